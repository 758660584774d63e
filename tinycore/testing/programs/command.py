"""Check many random programs: `python -m tinycore.testing.programs --count 20000 --jobs 2`.

Floor 6.
"""

from __future__ import annotations

from typing import Final

from tinycore.testing.fuzz import Fuzzer
from tinycore.testing.programs import check, random_program, script, smaller

FUZZER: Final = Fuzzer(
    "tinycore.testing.programs",
    __doc__,
    random_program,
    check,
    script,
    smaller,
    accepted=frozenset({"refused"}),
)
