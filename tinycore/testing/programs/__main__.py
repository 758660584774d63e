"""`python -m tinycore.testing.programs`. Floor 6.

Worker processes do not import a package's `__main__`, so all they need is in `command.py`.
"""

from __future__ import annotations

from tinycore.testing.fuzz import run
from tinycore.testing.programs.command import FUZZER

if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
