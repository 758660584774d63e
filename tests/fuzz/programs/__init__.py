"""Random tensor programs, run here and with torch: what differs is a bug on one side.

`random_program` makes one from a seed; `check` runs both interpretations and says what
differs; `smaller` leaves out one thing that a failure may not need; `script` writes it down as
Python.
`python -m tests.fuzz.programs --count 1000 --seed 0` does it for many. torch is needed only
for running, as the mirror.
"""

from tests.fuzz.programs.compare import check
from tests.fuzz.programs.form import Program
from tests.fuzz.programs.generate import random_program
from tests.fuzz.programs.shrink import script, smaller

__all__ = ["Program", "check", "random_program", "script", "smaller"]
