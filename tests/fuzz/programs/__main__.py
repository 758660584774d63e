"""`python -m tests.fuzz.programs`.

Worker processes do not import a package's `__main__`, so all they need is in `command.py`.
"""

from __future__ import annotations

from tests.fuzz.programs.command import FUZZER
from tests.fuzz.runner import run

if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
