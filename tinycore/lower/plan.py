"""The default plan of a kernel: the cheapest proposal of the strategies.

Floor 3'. Which strategies may propose plans depends on the device, which runs loops or a grid, and
on how many nests of loops the kernel has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinycore.config import settings
from tinycore.errors import VerifyError
from tinycore.lower.draft import Draft
from tinycore.lower.legality import problem_of
from tinycore.lower.strategies.fused_rows import nests_of, plan_nests
from tinycore.lower.strategies.grid import plan_grid
from tinycore.lower.strategies.loops import plan_loops
from tinycore.lower.threads import share_among_threads
from tinycore.lower.tile import Plan, apply_plan
from tinycore.render.base import Limits
from tinycore.trace import Trace
from tinycore.uop.node import UOp

trace = Trace("plan")

NO_SIZES: Final[Mapping[str, int]] = {}


def plan_for(kernel: UOp, limits: Limits) -> Plan:
    """A plan for `kernel` on a device with these limits."""
    return planned(kernel, limits)[0]


def planned(kernel: UOp, limits: Limits) -> tuple[Plan, UOp]:
    """A plan for `kernel` on a device with these limits, and the kernel after it.

    With VERIFY=1 raises VerifyError where a strategy proposes what the device cannot launch.
    """
    draft = drafted(kernel, limits)
    if settings.VERIFY and (problem := problem_of(draft.kernel, limits)):
        raise VerifyError(f"a strategy proposes {draft.steps!r}, which is no plan: {problem}")
    if trace.on:
        trace(" ".join(map(str, draft.steps)) or "as it stands")
    return tuple(draft.steps), draft.kernel if draft.steps else apply_plan(kernel, ())


def drafted(kernel: UOp, limits: Limits, asked: Mapping[str, int] = NO_SIZES) -> Draft:
    """The plan of the cheapest proposals for the kernel, with the kernel after it.

    With `asked` the plan that depends on these sizes (`Draft.size`), for a search.
    """
    draft = Draft(kernel, limits, asked=asked)
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
