"""The plan of a kernel, and what DEBUG=3 prints of it.

Floor 3'. Which strategies may propose plans depends on the device, which runs loops or a grid, and
on how many nests of loops the kernel has.
"""

from __future__ import annotations

from tinycore.lower.draft import Draft
from tinycore.lower.hold import Hold
from tinycore.lower.loops import Number
from tinycore.lower.pair import Pair
from tinycore.lower.stage import Stage
from tinycore.lower.strategies.fused_rows import nests_of, plan_nests
from tinycore.lower.strategies.grid import plan_grid
from tinycore.lower.strategies.loops import plan_loops
from tinycore.lower.threads import share_among_threads
from tinycore.lower.tile import (
    Assign,
    Cover,
    Merge,
    Overlap,
    Peel,
    Plan,
    Reorder,
    Split,
    Step,
    apply_plan,
)
from tinycore.render.base import Limits
from tinycore.trace import Trace
from tinycore.uop.node import UOp

trace = Trace("plan")


def plan_for(kernel: UOp, limits: Limits) -> Plan:
    """A plan for `kernel` on a device with these limits."""
    return planned(kernel, limits)[0]


def planned(kernel: UOp, limits: Limits) -> tuple[Plan, UOp]:
    """A plan for `kernel` on a device with these limits, and the kernel with all of it done."""
    draft = drafted(kernel, limits)
    if trace.on:
        trace(" ".join(map(describe, draft.steps)) or "as it stands")
    return tuple(draft.steps), draft.kernel if draft.steps else apply_plan(kernel, ())


def drafted(kernel: UOp, limits: Limits) -> Draft:
    """The plan of the cheapest proposals for the kernel, with the kernel after it."""
    draft = Draft(kernel, limits)
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


def describe(step: Step) -> str:
    """A step in a few characters, as DEBUG=3 prints it: split(1 by 16), vector(1.1) ..."""
    match step:
        case Split(axis, by):
            return f"split({dotted(axis)} by {by})"
        case Assign(axis, kind):
            return f"{kind.value}({dotted(axis)})"
        case Reorder(axes):
            return f"reorder({' '.join(map(dotted, axes))})"
        case Merge(outer, inner):
            return f"merge({dotted(outer)} {dotted(inner)})"
        case Cover(axis, by):
            return f"cover({dotted(axis)} by {by})"
        case Overlap(axis, by):
            return f"overlap({dotted(axis)} by {by})"
        case Peel(axis, at):
            return f"peel({dotted(axis)} at {' '.join(map(str, at))})"
        case Hold(outputs, reduced):
            inside, around = (" ".join(map(dotted, axes)) for axes in (outputs, reduced))
            return f"hold({inside} in {around})"
        case Pair(axis):
            return f"pair({dotted(axis)})"
        case Stage(place, dimensions):
            layout = "][".join("+".join(map(term, d)) for d in dimensions)
            return f"stage([{layout}] at {dotted(place or ())})"


def term(part: tuple[Number, int]) -> str:
    """A loop and its factor as text."""
    axis, factor = part
    return dotted(axis) if factor == 1 else f"{factor}*{dotted(axis)}"


def dotted(axis: Number) -> str:
    """An axis number as text."""
    return ".".join(map(str, axis))
