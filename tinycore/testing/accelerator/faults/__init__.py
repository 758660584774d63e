"""Faults as seen in drivers, renderers and run-times, each with the trial that finds it.

Floor 6. A fault is a subclass of one part of the accelerator that does one thing wrong; `FAULTS`
has them all by name, and `tinycore.testing.grading` runs the trials.
"""

from __future__ import annotations

from tinycore.testing.accelerator.faults import images, lanes, memory, order, programs
from tinycore.testing.accelerator.faults.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "images", "lanes", "memory", "order", "programs"]
