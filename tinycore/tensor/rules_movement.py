"""Derivatives of movement, of folds, and of rows picked and placed.

Floor 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.adjoint import unskew
from tinycore.tensor.polyphase import sum_to
from tinycore.tensor.prefix_scan import running_fold, shifted
from tinycore.tensor.rules import Gradients, rule, zero
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import Op

# --- movement: each op's adjoint is a movement op or a sum


@rule(Op.RESHAPE)
def of_reshape(node: UOp, g: UOp) -> Gradients:
    """Reshaped back."""
    return (graph.reshape(g, node.src[0].shape),)


@rule(Op.EXPAND)
def of_expand(node: UOp, g: UOp) -> Gradients:
    """Repetitions are added up."""
    return (sum_to(g, node.src[0].shape),)


@rule(Op.PERMUTE)
def of_permute(node: UOp, g: UOp) -> Gradients:
    """Axes put back."""
    return (graph.permute(g, [node.arg.index(axis) for axis in range(len(node.arg))]),)


@rule(Op.PAD)
def of_pad(node: UOp, g: UOp) -> Gradients:
    """The gradient without the padding."""
    sizes = node.src[0].shape
    return (
        graph.shrink(
            g, [(before, before + n) for (before, _), n in zip(node.arg, sizes, strict=True)]
        ),
    )


@rule(Op.SHRINK)
def of_shrink(node: UOp, g: UOp) -> Gradients:
    """The gradient padded by zeros where the source was cut."""
    sizes = node.src[0].shape
    return (
        graph.pad(g, [(start, n - stop) for (start, stop), n in zip(node.arg, sizes, strict=True)]),
    )


@rule(Op.FLIP)
def of_flip(node: UOp, g: UOp) -> Gradients:
    """Reversed again."""
    return (graph.flip(g, [axis for axis, reverse in enumerate(node.arg) if reverse]),)


@rule(Op.SKEW)
def of_skew(node: UOp, g: UOp) -> Gradients:
    """UNSKEW is the adjoint of SKEW."""
    how: Skew = node.arg
    return (unskew(g, how._replace(size=node.src[0].shape[how.axis])),)


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
    """Repeated for a sum, shared by equals for an extreme, times other factors for a product."""
    x = node.src[0]
    op, axes = node.arg
    if op is Op.ADD:
        return (graph.expand(g, x.shape),)
    if op is Op.MUL:
        return (graph.expand(g, x.shape) * other_factors(x, axes),)
    chosen = x.eq(graph.expand(node, x.shape))
    count = graph.wide_sum(chosen.cast(dtypes.float32).cast(g.dtype), axes)
    share = graph.expand(g / count, x.shape)
    return (chosen.where(share, zero(share)),)


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
    one, ones = graph.full_like(x, 1), graph.full_like(rows, 1)
    count = graph.scatter(
        chosen.where(one, zero(x)), index, hits.where(ones, zero(rows)), Op.ADD, axis
    )
    share = g / count
    part = graph.take(share, index, axis)
    return chosen.where(share, zero(x)), None, hits.where(part, zero(rows))


def of_product(node: UOp, g: UOp) -> Gradients:
    """Each factor gets the product of the others at its place; a zero is left out, not divided."""
    (x, index, rows), (op, axis) = node.src, node.arg
    empty, vacant = x.eq(zero(x)), rows.eq(zero(rows))
    one, ones = graph.full_like(x, 1), graph.full_like(rows, 1)
    others = graph.scatter(empty.where(one, x), index, vacant.where(ones, rows), op, axis)
    zeros = graph.scatter(
        empty.where(one, zero(x)), index, vacant.where(ones, zero(rows)), Op.ADD, axis
    )

    def share(factor: UOp, is_zero: UOp, others: UOp, zeros: UOp, g: UOp) -> UOp:
        alone = zeros.eq(is_zero.where(graph.full_like(zeros, 1), zero(zeros)))
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
