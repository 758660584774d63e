"""The tile language: plans as tuples of steps, and their application.

Floor 3'. A plan is a tuple of steps, each a class in a file of `steps/`: what it does (`apply`),
and its text for `TRACE=plan`. Steps change loops and never values; one that cannot be done raises
ArgumentError. `cost.py` estimates the time of a plan, and `legality.py` says whether a device can
launch what it made.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.steps.bind import Bind, Reorder, Unite
from tinycore.lower.steps.chain import Chain
from tinycore.lower.steps.fuse import Fuse
from tinycore.lower.steps.pair import Pair
from tinycore.lower.steps.split import Peel, Split, Tail
from tinycore.lower.steps.stage import Stage
from tinycore.lower.steps.tensorize import Tensorize
from tinycore.uop.node import UOp
from tinycore.uop.symbolic import simplified

__all__ = [
    "Accumulate",
    "Bind",
    "Chain",
    "Fuse",
    "Pair",
    "Peel",
    "Plan",
    "Reorder",
    "Split",
    "Stage",
    "Step",
    "Tail",
    "Tensorize",
    "Unite",
    "apply_plan",
]

Step = Split | Bind | Reorder | Fuse | Peel | Stage | Accumulate | Pair | Tensorize | Chain | Unite
"""Every kind of step."""
Plan = tuple[Step, ...]


def apply_plan(kernel: UOp, plan: Iterable[Step]) -> UOp:
    """The kernel with every step of the plan done."""
    for step in plan:
        kernel = step.apply(kernel)
    return simplified(kernel, "tiles")
