"""Merging of reductions over equal loops: the tail of a row joins the row.

Floor 3'. Splitting a reduced loop leaves two sums, of the whole steps and of the remainder. If both
have equal loops, one pass computes both; if only their lanes are equal, they are added lane by
lane, and then across the lanes once.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinycore.lower.loops import loops_of, values_of
from tinycore.uop.node import UOp
from tinycore.uop.op import REDUCTIONS, AxisKind, Op
from tinycore.uop.pattern import RuleSet, node

merge_reductions = RuleSet("merge reductions")


@merge_reductions.rule(
    node(
        REDUCTIONS,
        node(Op.REDUCE, name="first"),
        node(Op.REDUCE, name="second"),
        name="root",
        ordered=True,
    )
)
def merge_sums(root: UOp, first: UOp, second: UOp) -> UOp | None:
    """(sum of x over loops) + (sum of y over loops alike) == sum of x and y over the loops.

    Not over the very same loops: those are separate accumulators, which hide the latency of
    additions.
    """
    if not root.op is first.arg is second.arg:
        return None
    ours, theirs = loops_of(first), loops_of(second)
    if not set(ours).isdisjoint(theirs) or is_filled_in(theirs, second):
        return None
    if list(map(form_of, ours)) == list(map(form_of, theirs)):
        moved = second.substitute(dict(zip(theirs, ours, strict=True)))
        return first.with_src((*values_of(first), *values_of(moved), *ours))
    return merge_lanes(first, second)


def merge_lanes(first: UOp, second: UOp) -> UOp | None:
    """Two sums with the same lanes and different loops, added lane by lane."""
    own, other = lanes_of(first), lanes_of(second)
    if own is None or other is None or form_of(own) != form_of(other):
        return None
    both = drop_loops(first, [own]).alu(
        first.arg, drop_loops(second.substitute({other: own}), [own])
    )
    return UOp(Op.REDUCE, first.dtype, (both, own), first.arg)


def lanes_of(total: UOp) -> UOp | None:
    """The one loop of a sum that becomes lanes; None if these are of pairs."""
    inner = [r for r in loops_of(total) if r.kind in (AxisKind.VECTOR, AxisKind.PAIR)]
    return inner[0] if len(inner) == 1 and inner[0].kind is AxisKind.VECTOR else None


def drop_loops(total: UOp, outer: Iterable[UOp]) -> UOp:
    """A sum without some of its loops, such as lanes: the addend of each step of these."""
    gone = set(outer)
    loops = [r for r in loops_of(total) if r not in gone]
    values = values_of(total)
    if loops:
        return total.with_src((*values, *loops))
    return fold_balanced(values, total.arg)


def fold_balanced(values: list[UOp], op: Op) -> UOp:
    """All values combined by `op`, as a balanced tree."""
    while len(values) > 1:
        pairs = [a.alu(op, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def form_of(counter: UOp) -> tuple[UOp, AxisKind]:
    """Trip count and kind of a loop: equal for loops that can be merged."""
    return counter.src[0], counter.kind


def is_filled_in(loops: Iterable[UOp], total: UOp) -> bool:
    """True if memory is filled again in each step of some loops."""
    nodes = total.toposort(lambda n: not n.ranges.isdisjoint(loops) or n is total)
    return any(n.op is Op.AFTER and not n.ranges.isdisjoint(loops) for n in nodes)
