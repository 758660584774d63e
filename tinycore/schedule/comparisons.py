"""Comparisons of a value with itself: the values that must be stored so that equal stays equal.

Floor 3. `x == max(x)` asks for equal bits of `x` in two kernels, or at two points of one. A kernel
that computes `x` again may round otherwise: a compiler contracts a product and a sum in one of the
two, a small float stays wide inside one kernel, a sum is folded in another order. So a value that
decides both sides of a comparison is memory wherever such freedom exists. Values that every kernel
computes to the same bits, like `relu(stored + bias)`, stay fused.

See docs/decisions/0073-compared-values.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from tinycore.dtype import dtypes
from tinycore.schedule.index_values import is_number
from tinycore.schedule.ranges import TRANSPARENT
from tinycore.uop.movement import source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, MOVEMENT, SAME_VALUE, TRANSCENDENTAL, Op

IsMemory = Callable[[UOp], bool]
"""True for the nodes whose value every kernel loads."""

SELECTING: Final = frozenset({Op.NEG, Op.CAST, Op.BITCAST, Op.MAX, Op.MIN, Op.WHERE})
"""Arithmetic whose result has the bits of an operand, or is a function of them without rounding."""
FOLDING: Final = frozenset({Op.REDUCE_AXIS, Op.SCAN_AXIS})
EXTREMES: Final = frozenset({Op.MAX, Op.MIN})
JOINING: Final = frozenset({Op.MERGE_AXIS, Op.MULTI})
"""Ops whose elements are those of all sources."""
COPIERS: Final = MOVEMENT | TRANSPARENT | {Op.GATHER, Op.COPY}
"""Ops that copy elements of their first source."""
AT_ONE_POINT: Final = ALU | TRANSPARENT
"""Ops that read their sources at the point at which they are read themselves."""
PLACING: Final = frozenset({Op.SCATTER, Op.INSERT})
CHOOSERS: Final = FOLDING | PLACING | EXTREMES | {Op.GATHER, Op.WHERE}
"""Ops whose result may be an element of a source."""
ROUNDING: Final = TRANSCENDENTAL | {
    Op.ADD, Op.SUB, Op.MUL, Op.FDIV, Op.MULACC, Op.RECIPROCAL, Op.SQRT
}  # fmt: skip
"""Arithmetic of floats that rounds its result."""


def sides(node: UOp) -> tuple[UOp, UOp] | None:
    """The two numbers that a node compares: directly, or as a difference with a constant."""
    if node.op not in COMPARISON or node.src[0].dtype is dtypes.bool:
        return None
    one, other = node.src
    if not (is_number(one) or is_number(other)):
        return one, other
    difference = source_below(other if is_number(one) else one, SAME_VALUE)
    if difference.op is Op.SUB:
        return difference.src[0], difference.src[1]
    if difference.op is Op.ADD:
        return difference.src[0], difference.src[1]
    return None


def deciding(node: UOp) -> Sequence[UOp]:
    """The sources whose bits decide a value, as far as nothing is rounded on the way."""
    if node.op in COPIERS:
        return node.src[:1]
    if node.op is Op.ASSIGN:  # also the copy that a SCATTER of a part is made in
        return node.src[1:]
    is_float = dtypes.is_float(node.dtype)
    if node.op in FOLDING:
        return node.src if not is_float or node.arg[0] in EXTREMES else ()
    if node.op in PLACING:
        adds = node.op is Op.SCATTER and node.arg.op not in {None, *EXTREMES}
        return () if is_float and adds else (node.src[0], node.src[2])
    if node.op in SELECTING or (node.op in ALU and not is_float):
        return [s for s in node.src if s.dtype is not dtypes.bool]
    return node.src if node.op in JOINING else ()


def reached(side: UOp, stops: IsMemory) -> dict[UOp, bool]:
    """The nodes whose bits decide a side of a comparison, and whether at another point than it."""
    found: dict[UOp, bool] = {}
    stack = [(side, False)]
    while stack:
        node, is_away = stack.pop()
        if found.get(node, False) or (node in found and not is_away):
            continue
        found[node] = is_away
        if not stops(node):
            is_away = is_away or node.op not in AT_ONE_POINT
            stack += [(source, is_away) for source in deciding(node)]
    return found


def on_both_sides(
    pair: tuple[UOp, UOp], is_memory: IsMemory, stops: IsMemory
) -> tuple[list[UOp], set[UOp]]:
    """The nodes that decide both sides of a comparison without common memory; the memory between.

    What both sides read at the point of the comparison alone is one value of one kernel, as in
    `x != x`.
    """
    one, other = [reached(side, stops) for side in pair]
    shared = {n for n in one if n in other and is_memory(n)}
    if shared:
        one, other = [reached(side, lambda n: n in shared or stops(n)) for side in pair]
    common = [n for n in one if n in other and (one[n] or other[n])]
    between = {n for n in (*one, *other) if is_memory(n)} - shared
    return [n for n in common if n not in shared and not stops(n)], between


# --- values that depend on the kernel that computes them


def operands_of(node: UOp, is_memory: IsMemory) -> Iterator[UOp]:
    """The arithmetic whose result an op gets unrounded or by way of a selection, if fused."""
    stack, seen = [*node.src], set()
    while stack:
        source = stack.pop()
        if source in seen or source.shape_or_none is None or is_memory(source):
            continue
        seen.add(source)
        if source.op in SELECTING or source.op in MOVEMENT | TRANSPARENT:
            stack += source.src
        if source.op in ALU:
            yield source


def rounds_by_context(node: UOp, is_memory: IsMemory) -> bool:
    """True if kernels may compute different bits of a value from equal operands: it is rounded more
    than once, of which one may leave out a rounding."""
    if not dtypes.is_float(node.dtype):
        return False
    if node.op in FOLDING:
        return node.arg[0] not in EXTREMES
    if node.op in TRANSCENDENTAL or node.op is Op.MULACC:
        return True
    return rounds(node) and any(map(rounds, operands_of(node, is_memory)))


def rounds(node: UOp) -> bool:
    """True for arithmetic of floats with a rounded result, and for a CAST to a small float."""
    if not dtypes.is_float(node.dtype):
        return False
    return node.op in ROUNDING or (node.op is Op.CAST and not is_widening(node))


def is_widening(node: UOp) -> bool:
    """True for a CAST that keeps every number."""
    return node.op is Op.CAST and node.src[0].dtype.itemsize < node.dtype.itemsize


def depending_on_kernel(graph: Sequence[UOp], is_memory: IsMemory) -> set[UOp]:
    """The nodes of a graph, sources first, of which kernels may compute different bits."""
    found: set[UOp] = set()
    for node in graph:
        if not is_memory(node) and (
            not found.isdisjoint(node.src) or rounds_by_context(node, is_memory)
        ):
            found.add(node)
    return found


# --- what they are for


def compared_with_itself(
    graph: Sequence[UOp], is_memory: IsMemory, is_leaf: IsMemory
) -> UOp | None:
    """The last node of a graph, sources first, that a comparison needs as memory; None if none.

    With it in memory, all that is between it and the comparison is computed from equal bits.
    """
    found: set[UOp] = set()
    for node in graph:
        if (pair := sides(node)) is not None:
            common, _ = on_both_sides(pair, is_memory, is_leaf)
            found.update(filter(is_computed, common))
    if found:
        found &= depending_on_kernel(graph, is_memory)
    return next((n for n in reversed(graph) if n in found), None)


def is_computed(node: UOp) -> bool:
    """True for a value that would be worth storing: it is no copy of elements of another."""
    return node.op not in COPIERS and not is_widening(node)


def read_again(roots: Sequence[UOp], cached: Collection[UOp], is_leaf: IsMemory) -> frozenset[UOp]:
    """Cached values that a run must compute again, as it compares them with what they came from.

    A maximum in the cache is of other bits than `x` may have in a kernel of this run.
    """
    if not any(n.op in CHOOSERS and dtypes.is_float(n.dtype) for n in cached):
        return frozenset()
    below = UOp.sink(*roots).toposort(lambda n: not is_leaf(n))
    graph = [n for n in below if n.shape_or_none is not None]
    pairs = [pair for pair in map(sides, graph) if pair is not None]
    found = [on_both_sides(pair, cached.__contains__, is_leaf) for pair in pairs]
    found = [(common, between) for common, between in found if common and between]
    varying = depending_on_kernel(graph, is_leaf) if found else set()
    return frozenset(
        n for common, between in found if not varying.isdisjoint(common) for n in between
    )
