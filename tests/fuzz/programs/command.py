"""Check many random programs: `python -m tests.fuzz.programs --count 20000 --jobs 2`."""

from __future__ import annotations

from typing import Final

from tests.fuzz.programs import check, random_program, script, smaller
from tests.fuzz.runner import Fuzzer

FUZZER: Final = Fuzzer(
    "tests.fuzz.programs",
    __doc__,
    random_program,
    check,
    script,
    smaller,
    accepted=frozenset({"refused"}),
)
