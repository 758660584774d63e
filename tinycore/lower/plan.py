"""The default plan of a kernel: the cheapest proposal of the strategies.

Floor 3'. Which strategies may propose plans depends on the device, which runs loops or a grid, and
on how many nests of loops the kernel has.
"""

from __future__ import annotations

from typing import Final

from tinycore._lru import Lru
from tinycore.config import settings
from tinycore.lower.draft import Draft
from tinycore.lower.steps.chain import Chain
from tinycore.lower.strategies import matrix_chain
from tinycore.lower.strategies.fused_rows import nests_of, plan_nests
from tinycore.lower.strategies.grid import plan_grid
from tinycore.lower.strategies.loops import plan_loops
from tinycore.lower.threads import share_among_threads
from tinycore.lower.tile import (
    Plan,
    apply_plan,
)
from tinycore.render.base import Limits
from tinycore.trace import Trace
from tinycore.uop.node import UOp

trace = Trace("plan")

checked: Final[Lru[UOp, tuple[Limits, bool, Draft]]] = Lru(16)
"""Plans of kernels that were fused as chains, for their lowering: limits, ALLOW_TF32, the draft."""


def plan_for(kernel: UOp, limits: Limits) -> Plan:
    """A plan for `kernel` on a device with these limits."""
    return planned(kernel, limits)[0]


def planned(kernel: UOp, limits: Limits) -> tuple[Plan, UOp]:
    """A plan for `kernel` on a device with these limits, and the kernel after it."""
    draft = checked_plan(kernel, limits) or drafted(kernel, limits)
    if trace.on:
        trace(" ".join(map(str, draft.steps)) or "as it stands")
    return tuple(draft.steps), draft.kernel if draft.steps else apply_plan(kernel, ())


def checked_plan(kernel: UOp, limits: Limits) -> Draft | None:
    """The plan by which a kernel was found to be a chain, on a device with these limits."""
    found = checked.find(kernel)
    if found is None or found[0] is not limits or found[1] != settings.ALLOW_TF32:
        return None
    return found[2]


def refusal_of_chain(kernel: UOp, limits: Limits) -> str | None:
    """Why a kernel of several products is not planned as a chain of them; None if it is.

    The schedule asks before it fuses them: any other plan would compute the first product again for
    each column of the second.
    """
    if settings.NOOPT:
        return None
    draft = drafted(kernel, limits)
    if any(isinstance(step, Chain) for step in draft.steps):
        checked.keep(kernel, (limits, settings.ALLOW_TF32, draft))
        return None
    return matrix_chain.refusal(Draft(kernel, limits))


def drafted(kernel: UOp, limits: Limits, rank: int = 0) -> Draft:
    """The plan of the cheapest proposals for the kernel, with the kernel after it.

    With `rank` n the plan of the n-th cheapest proposals, for a search.
    """
    draft = Draft(kernel, limits, rank=rank)
    if limits.grid is not None:
        plan_grid(draft)
        return draft
    nests = nests_of(kernel)
    if len(nests) > 1:
        plan_nests(draft, nests)
    else:
        plan_loops(draft)
    share_among_threads(draft)
    return draft
