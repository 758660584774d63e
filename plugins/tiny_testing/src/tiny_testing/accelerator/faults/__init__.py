"""Faults as seen in drivers, renderers and run-times, each with the trial that finds it.

A fault is a subclass of one part of the accelerator that does one thing wrong; `FAULTS`
has them all by name, and `tiny_testing.grading` runs the trials.
"""

from __future__ import annotations

from tiny_testing.accelerator.faults import images, lanes, memory, order, programs
from tiny_testing.accelerator.faults.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "images", "lanes", "memory", "order", "programs"]
