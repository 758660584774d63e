"""Random tensor programs, run here and with torch: what differs is a bug on one side.

Floor 6. `random_program` makes one from a seed; `check` runs both interpretations and says what
differs; `smaller` leaves out one thing that a failure may not need; `script` writes it down as
Python.
`python -m tinycore.testing.programs --count 1000 --seed 0` does it for many. torch is needed only
for running, as the mirror.
"""

from tinycore.testing.programs.compare import check
from tinycore.testing.programs.form import Program
from tinycore.testing.programs.generate import random_program
from tinycore.testing.programs.shrink import script, smaller

__all__ = ["Program", "check", "random_program", "script", "smaller"]
