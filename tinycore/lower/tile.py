"""The tile language: plans as tuples of steps, their application, and their text.

Floor 3'. A plan is a tuple of steps, each a class in a file of `steps/`: what it does (`apply`),
when it must not be done (`objection`), its text. Steps change loops and never values, so every
legal plan computes the right result; `cost.py` estimates its time. As text, a step is written as
graphs write arguments: `Split((1,), 8)`. Text comes from anywhere, so it is parsed, never
evaluated, and checked for legality before it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from tinycore.errors import ArgumentError, FileFormatError, VerifyError
from tinycore.lower.legality import Loops
from tinycore.lower.steps.accumulate import Accumulate
from tinycore.lower.steps.bind import Bind
from tinycore.lower.steps.chain import Chain
from tinycore.lower.steps.fuse import Fuse
from tinycore.lower.steps.pair import Pair
from tinycore.lower.steps.peel import Peel
from tinycore.lower.steps.reorder import Reorder
from tinycore.lower.steps.split import Split, Tail
from tinycore.lower.steps.stage import MOST_SCRATCH, Stage, scratch_bytes
from tinycore.lower.steps.tensorize import Tensorize
from tinycore.lower.steps.unite import Unite
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.parse import Reader
from tinycore.uop.symbolic import simplified
from tinycore.uop.text import argument_text, register_argument

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
    "apply_checked",
    "apply_plan",
    "apply_verified",
    "plan_from_text",
    "plan_to_text",
]

Step = Split | Bind | Reorder | Fuse | Peel | Stage | Accumulate | Pair | Tensorize | Chain | Unite
"""Every kind of step."""
Plan = tuple[Step, ...]


def apply_plan(kernel: UOp, plan: Iterable[Step]) -> UOp:
    """The kernel with every step of the plan done."""
    for step in plan:
        kernel = step.apply(kernel)
    return simplified(kernel, "tiles")


def apply_verified(kernel: UOp, plan: Iterable[Step], limits: Limits) -> UOp:
    """The kernel with every step of a strategy done. Raises VerifyError for a step that is illegal.

    Strategies propose legal plans only, so this is for tests (VERIFY=1): what is wrong is found
    here, and not by a pass of lowering that meets what it was never told of.
    """
    for step in plan:
        problem = step.objection(Loops(kernel), limits)
        if problem is not None:
            raise VerifyError(f"a strategy proposes {step!r}, which cannot be done: {problem}")
        kernel = step.apply(kernel)
    return simplified(kernel, "tiles")


def apply_checked(kernel: UOp, plan: Iterable[Step], limits: Limits) -> UOp:
    """The kernel with every step of a plan done. Raises ArgumentError for a step that is illegal,
    or makes more copies or scratch than a search is worth.

    Errors of a step whose loops do not exist are raised as ArgumentError, too.
    """
    for step in plan:
        loops = Loops(kernel)
        problem = step.objection(loops, limits)
        if problem is None and isinstance(step, Bind):
            problem = step.excess(loops)
        if problem is not None:
            raise ArgumentError(f"{step!r} cannot be done: {problem}")
        try:
            kernel = apply_plan(kernel, (step,))
        except (StopIteration, AssertionError, KeyError, ValueError) as error:
            raise ArgumentError(f"{step!r} cannot be done: {error!r}") from error
        most = MOST_SCRATCH if limits.grid is None else limits.shared_bytes
        if isinstance(step, Stage) and (size := scratch_bytes(kernel)) > most:
            raise ArgumentError(f"{step!r} cannot be done: {size} bytes of scratch are too many")
    return kernel


# --- plans as text

STEP_TYPES: tuple[type[Any], ...] = get_args(Step)
"""Every kind of step."""


register_argument(Tail, lambda tail: (tail.value,))
for kind in STEP_TYPES:
    register_argument(kind)


def plan_to_text(plan: Plan) -> str:
    """A plan on one line."""
    return argument_text(tuple(plan), {})


def plan_from_text(text: str) -> Plan:
    """The plan of a line of text. Raises FileFormatError for text that is no plan."""
    reader = Reader(text, 1, {})
    found = reader.argument(0)
    if not reader.at_end() or not isinstance(found, tuple):
        raise FileFormatError(f"plan text: {text[:80]!r} is no plan")
    if wrong := [step for step in found if not isinstance(step, STEP_TYPES)]:
        raise FileFormatError(f"plan text: {wrong[0]!r} is no step of a plan")
    return found
