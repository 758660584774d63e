"""Reverse-mode differentiation of the tensor graph.

Floor 5. A rule gets a node and the gradient of its value, and gives that of each source: nodes
again, so derivatives can be differentiated. None stands for no gradient, as of integers and bools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.autograd.softmax_products import RESULTS, weighed_at
from tinycore.tensor.autograd.versions import made_of, ordered_through, sources_of
from tinycore.tensor.methods.prefix_scan import running_fold, shifted
from tinycore.uop.node import Skew, UOp, device_node
from tinycore.uop.op import Op, Write, registers

Gradients = tuple[UOp | None, ...]
Rule = Callable[[UOp, UOp], Gradients]


def scale(x: UOp, number: Scalar) -> UOp:
    """x * number."""
    return x.alu(Op.MUL, graph.full_like(x, number))


def zero(x: UOp) -> UOp:
    """0 in the shape of `x`."""
    return graph.full_like(x, 0)


GRADIENT_RULES: Final[dict[Op, Rule]] = {
    Op.ADD: lambda node, g: (g, g),
    Op.SUB: lambda node, g: (g, -g),
    Op.MUL: lambda node, g: (g * node.src[1], g * node.src[0]),
    Op.MULACC: lambda node, g: (g * node.src[1], g * node.src[0], g),
    Op.NEG: lambda node, g: (-g,),
    Op.RECIPROCAL: lambda node, g: (-(g * node * node),),
    Op.SQRT: lambda node, g: (g / scale(node, 2),),
    Op.EXP: lambda node, g: (g * node,),
    Op.EXP2: lambda node, g: (scale(g * node, math.log(2)),),
    Op.LOG: lambda node, g: (g / node.src[0],),
    Op.LOG2: lambda node, g: (g / scale(node.src[0], math.log(2)),),
    # the same value; between floats it is converted back
    **dict.fromkeys((Op.CONTIGUOUS, Op.VALUE, Op.OWN), lambda node, g: (g,)),
    Op.CAST: lambda node, g: (
        g.cast(kind) if dtypes.is_float(kind := node.src[0].dtype) else None,
    ),
    Op.CONTIGUOUS_BACKWARD: lambda node, g: (g.alu(Op.CONTIGUOUS),),
    Op.COPY: lambda node, g: (g.alu(Op.COPY, device_node(node.src[0].device)), None),
    # former content has none; a CUSTOM has several results, and is told which one it is of
    Op.ASSIGN: lambda node, g: (None, UOp.sink(node, g) if node.src[1].op is Op.CUSTOM else g),
    # the adjoint of movement is movement, or a sum
    Op.RESHAPE: lambda node, g: (graph.reshape(g, node.src[0].shape),),
    Op.EXPAND: lambda node, g: (graph.sum_to(g, node.src[0].shape),),
    Op.PERMUTE: lambda node, g: (graph.permute(g, [*map(node.arg.index, range(len(node.arg)))]),),
    Op.PAD: lambda node, g: (
        graph.shrink(
            g, [(a, a + n) for (a, _), n in zip(node.arg, node.src[0].shape, strict=True)]
        ),
    ),
    Op.SHRINK: lambda node, g: (
        graph.pad(g, [(a, n - b) for (a, b), n in zip(node.arg, node.src[0].shape, strict=True)]),
    ),
    Op.SKEW: lambda node, g: (
        graph.unskew(g, node.arg._replace(size=node.src[0].shape[node.arg.axis])),
    ),
    Op.FLIP: lambda node, g: (graph.flip(g, [a for a, turned in enumerate(node.arg) if turned]),),
}
"""The derivative of every op that has one."""
rule: Final = registers(GRADIENT_RULES)
"""Register a function as the derivative of some ops."""


# --- arithmetic


@rule(Op.FDIV)
def of_fdiv(node: UOp, g: UOp) -> Gradients:
    """d(a / b) = da / b - (a / b) db / b."""
    share = g / node.src[1]
    return share, -(share * node)


@rule(Op.SIN)
def of_sin(node: UOp, g: UOp) -> Gradients:
    """d sin(a) = cos(a) da, with cos(a) = 1 - 2 sin(a/2)**2."""
    half = scale(node.src[0], 0.5).alu(Op.SIN)
    return (g * (graph.full_like(g, 1) - scale(half * half, 2)),)


@rule(Op.MAX, Op.MIN)
def of_extreme(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the selected operand, half to each of equals, to both beside NaN."""
    a, b = node.src
    first_loses = (a < b) if node.op is Op.MAX else (b < a)
    second_loses = (b < a) if node.op is Op.MAX else (a < b)
    shared = a.eq(b).where(scale(g, 0.5), g)
    return first_loses.where(zero(g), shared), second_loses.where(zero(g), shared)


@rule(Op.WHERE)
def of_where(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the selected side."""
    condition = condition_by_result(node)
    return None, condition.where(g, zero(g)), condition.where(zero(g), g)


def condition_by_result(node: UOp) -> UOp:
    """The condition of a WHERE; of a relu the same condition on its result.

    With b = where(a <= c, c, a), b <= c is a <= c, for NaN as well. Then `a` need not be stored
    beside `b`, which is stored in any case for what reads it.
    """
    condition, bound, value = node.src
    if condition.op is not Op.OR or [s.op for s in condition.src] != [Op.CMPLT, Op.CMPEQ]:
        return condition
    if any(compared.src != (value, bound) for compared in condition.src):
        return condition
    below, equal = [compared.replace(src=(node, bound)) for compared in condition.src]
    return condition.replace(src=(below, equal))


# --- writes


# --- movement


@rule(Op.UNSKEW)
def of_unskew(node: UOp, g: UOp) -> Gradients:
    """SKEW is the adjoint of UNSKEW; what it would read beyond the end is zero."""
    how: Skew = node.arg
    count = node.src[0].shape[how.axis]
    reach = (count - 1) * how.stride + (g.shape[how.window_axis] - 1) * how.dilation + 1
    pairs = [(0, 0)] * len(g.shape)
    pairs[how.axis] = (0, max(0, reach - g.shape[how.axis]))
    return (graph.skew(graph.pad(g, pairs), how._replace(size=count)),)


# --- reductions and rows


@rule(Op.REDUCE_AXIS)
def of_reduce(node: UOp, g: UOp) -> Gradients:
    """The gradient: repeated for a sum, shared by equals for an extreme, times other factors for a
    product.

    No element equals an extreme that is NaN: NaN is then the gradient of all.
    """
    x = node.src[0]
    op, axes = node.arg
    if op is Op.ADD:
        return (graph.expand(g, x.shape),)
    if op is Op.MUL:
        return (graph.expand(g, x.shape) * other_factors(x, axes),)
    best = graph.expand(node, x.shape)
    count = graph.wide_sum(x.eq(best).cast(dtypes.float32).cast(g.dtype), axes)
    share = count.eq(zero(count)).where(graph.full_like(g, math.nan), g / count)
    loses = (x < best) if op is Op.MAX else (best < x)
    return (loses.where(zero(x), graph.expand(share, x.shape)),)


@rule(Op.SCAN_AXIS)
def of_scan(node: UOp, g: UOp) -> Gradients:
    """An element is in its own sum and in all after it. Raises GradientError for other folds."""
    op, axis = node.arg
    if op is not Op.ADD:
        raise GradientError(f"a scan by {op.name} has no derivative; take the elements it chose")
    return (graph.flip(graph.scan(graph.flip(g, [axis]), op, axis), [axis]),)


def other_factors(x: UOp, axes: Iterable[int]) -> UOp:
    """For each element the product of all others along `axes`: those before times those after."""
    folded = list(axes)
    order = [a for a in range(len(x.shape)) if a not in folded] + folded
    moved = graph.permute(x, order)
    outer = moved.shape[: len(order) - len(folded)]
    flat = graph.reshape(moved, (*outer, math.prod(x.shape[a] for a in folded)))
    last = len(outer)
    after = graph.flip(product_before(graph.flip(flat, [last])), [last])
    others = graph.reshape(product_before(flat) * after, moved.shape)
    return graph.permute(others, [order.index(a) for a in range(len(order))])


def product_before(x: UOp) -> UOp:
    """Along the last axis, the product of all elements before each."""
    return running_fold(shifted(x, 1, 1), Op.MUL)


@rule(Op.GATHER)
def of_gather(node: UOp, g: UOp) -> Gradients:
    """Each row of the table gets the sum of the gradients of its copies."""
    table, index = node.src
    count, rest = math.prod(index.shape), math.prod(table.shape[1:])
    places = graph.expand(graph.reshape(index, (count, 1)), (count, rest))
    start = graph.reshape(zero(table), (table.shape[0], rest))
    total = graph.scatter(start, places, graph.reshape(g, (count, rest)), Op.ADD, 0)
    return graph.reshape(total, table.shape), None


@rule(Op.SCATTER)
def of_scatter(node: UOp, g: UOp) -> Gradients:
    """Each row gets the gradient of its place, as far as the place depends on the row.

    Of several elements written to one place, each gets that gradient.
    """
    x, index, rows = node.src
    op, axis = node.arg
    there = graph.take(g, index, axis)
    if op is None:
        return graph.scatter(g, index, zero(rows), None, axis), None, there
    if op is Op.ADD:
        return g, None, there
    if op is Op.MUL:
        return of_product(node, g)
    chosen = x.eq(node)
    hits = rows.eq(graph.take(node, index, axis))
    count = graph.scatter(chosen.cast(x.dtype), index, hits.cast(rows.dtype), Op.ADD, axis)
    share = g / count
    part = graph.take(share, index, axis)
    return chosen.where(share, zero(x)), None, hits.where(part, zero(rows))


def of_product(node: UOp, g: UOp) -> Gradients:
    """Each factor gets the product of the others at its place; a zero is left out, not divided."""
    (x, index, rows), (op, axis) = node.src, node.arg
    empty, vacant = x.eq(zero(x)), rows.eq(zero(rows))
    one, ones = graph.full_like(x, 1), graph.full_like(rows, 1)
    others = graph.scatter(empty.where(one, x), index, vacant.where(ones, rows), op, axis)
    zeros = graph.scatter(empty.cast(x.dtype), index, vacant.cast(rows.dtype), Op.ADD, axis)

    def share(factor: UOp, is_zero: UOp, others: UOp, zeros: UOp, g: UOp) -> UOp:
        alone = zeros.eq(is_zero.cast(zeros.dtype))
        without = others / is_zero.where(graph.full_like(factor, 1), factor)
        return alone.where(g * without, zero(g))

    beside = [graph.take(n, index, axis) for n in (others, zeros, g)]
    return share(x, empty, others, zeros, g), None, share(rows, vacant, *beside)


@rule(Op.INSERT)
def of_insert(node: UOp, g: UOp) -> Gradients:
    """The value written gets the gradient of its place; the content that it replaced gets none."""
    x, view, value = node.src
    shown = view.substitute({x: g})
    return graph.insert(g, shown, zero(value)), None, shown


STOPS: Final = frozenset(
    {Op.BUFFER, Op.BUFFER_VIEW, Op.BIND, Op.CONST, Op.ARANGE, Op.DETACH, Op.BITCAST, Op.TRUNC}
)
"""Ops of floats whose sources get no gradient: leaves, and functions constant almost everywhere."""

LEAF: Final = "leaf"
"""The argument of an ASSIGN to a leaf that requires a gradient: the content written is data."""


def is_data_written(node: UOp) -> bool:
    """True for an ASSIGN, in a canonical graph or not, of data to a leaf."""
    mark = node.arg
    return (mark.mark if type(mark) is Write else mark) == LEAF


def gradients(
    root: UOp, seed: UOp, targets: Iterable[UOp], ends: Collection[UOp] = ()
) -> dict[UOp, UOp]:
    """The gradient of every target that `root` depends on, given that of `root`.

    None flows on from `ends`.
    """
    wanted = set(targets)
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if passes := node not in ends and passes_gradient(node):
            passing.add(node)
        return passes

    below = ordered_through(root, enter)
    order = [n for n in below if n.shape_or_none is not None or n.op is CUSTOM]
    useful: set[UOp] = set()
    for node in order:
        is_passed = node in passing or (node not in ends and bool(made_of(node)))
        if node in wanted or (is_passed and not useful.isdisjoint(sources_of(node))):
            useful.add(node)
    found, shown = {root: seed}, {seed}
    for node in reversed(order):
        if node not in useful or node not in found:
            continue
        if node in wanted:
            shown.add(found[node])
        if node not in ends and (made := made_of(node)):
            parts: Iterable[tuple[UOp, UOp | None]] = [
                (made.node, graph.reshape(found[node], made.node.shape))
            ]
        elif node in passing:
            parts = parts_of(node, found[node], useful, wanted, shown)
        else:
            continue
        for source, part in parts:
            if part is not None and source in useful:
                found[source] = add_gradients(found[source], part) if source in found else part
    return {target: found[target] for target in wanted if target in found}


def parts_of(
    node: UOp, g: UOp, useful: Collection[UOp], targets: Collection[UOp], shown: Collection[UOp]
) -> Iterable[tuple[UOp, UOp | None]]:
    """Nodes that a node was computed from, and their gradients as far as they come from it.

    The gradient of a copy stays where it came from, unless it is one of those that are `shown`.
    """
    if node.op is g.op is Op.COPY and g.src[0].device == node.src[0].device and g not in shown:
        return [(node.src[0], g.src[0])]
    if node.op in RESULTS:
        found = weighed_at(node, g, useful, targets, gradients)
        if found is not None:
            return found
    return zip(node.src, GRADIENT_RULES[node.op](node, g), strict=True)


def add_gradients(a: UOp, b: UOp) -> UOp:
    """The sum of two gradients; a CUSTOM keeps those of its results separate."""
    return UOp.sink(*a.src, *b.src) if a.op is Op.SINK else a + b


def passes_gradient(node: UOp) -> bool:
    """True if a gradient of this node reaches its sources."""
    op = node.op
    if op is CUSTOM:
        return True
    if node.dtype.kind != "float" or op in STOPS:
        return False
    if op is ASSIGN and is_data_written(node):
        return False
    if op not in GRADIENT_RULES:
        raise GradientError(f"{op.name} of floats has no derivative here; detach() its result")
    for source in node.src:  # noqa: SIM110  a generator costs twice as much
        if source.op is KERNEL:
            return False
    return True


ASSIGN, CUSTOM, KERNEL = Op.ASSIGN, Op.CUSTOM, Op.KERNEL
