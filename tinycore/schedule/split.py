"""Split a long reduction to few results in two, so that all cores can work on it.

Floor 3. sum over n of a vector becomes a sum of c partial sums: the inner one has c results to
share among threads, the outer one is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinycore.schedule.kernel import numel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size

LONG_REDUCTION = 1 << 15
FEW_RESULTS = 64
MOST_PARTIAL = 512


def split_reductions(node: UOp, is_memory: Callable[[UOp], bool]) -> tuple[UOp, list[UOp]]:
    """`node` with its long reductions made shorter, and the partial results it then reads."""
    replacements: dict[UOp, UOp] = {}
    partial: list[UOp] = []
    for n in node.toposort(lambda n: n is node or not is_memory(n)):
        computed = n.op is Op.REDUCE_AXIS and (n is node or not is_memory(n))
        if computed and (split := split_reduction(n)) is not None:
            replacements[n], inner = split
            partial.append(inner)
    return (node.substitute(replacements), partial) if replacements else (node, [])


def split_reduction(node: UOp) -> tuple[UOp, UOp] | None:
    """The same value as a reduction of a partial one, and that; None where it is fine as it is."""
    op, axes = node.arg
    source = node.src[0]
    fixed = [axis for axis in axes if not isinstance(source.shape[axis], Size)]
    length = math.prod(source.shape[axis] for axis in fixed)
    if length < LONG_REDUCTION or numel(node) > FEW_RESULTS:
        return None
    axis = next(a for a in fixed if source.shape[a] > 1)
    size = source.shape[axis]
    chunks = max((c for c in range(2, MOST_PARTIAL + 1) if size % c == 0), default=1)
    if chunks == 1:
        return None
    cut = (*source.shape[:axis], chunks, size // chunks, *source.shape[axis + 1 :])
    inner = reduce_axes(
        UOp(Op.RESHAPE, source.dtype, (source,), cut), op, tuple(a + (a >= axis) for a in axes)
    )
    outer = reduce_axes(inner, op, (axis,))
    return UOp(Op.RESHAPE, node.dtype, (outer,), node.shape), inner


def reduce_axes(node: UOp, op: Op, axes: tuple[int, ...]) -> UOp:
    """REDUCE_AXIS of `node` over `axes`."""
    return UOp(Op.REDUCE_AXIS, node.dtype, (node,), (op, axes))
