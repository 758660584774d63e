"""The gradient of values weighed by a softmax of products, whoever wrote it.

Floor 5. Attention is R = A @ V, with A in proportion to W = softmax(S), and S made of P = Q @ K.T
by elementwise steps. The derivative is dS = W * (dW - rowsum(dR * R)): the sum over a row of W * dW
is one over the few columns of R (T. Dao et al., "FlashAttention", 2022). All else is as the rules
of each step have it. What of it is stored, and what computed again, is decided where the device is
known (`schedule/attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.product import elementwise_below, ends_of, product_of, turned
from tinycore.uop.size import are_ints
from tinycore.uop.softmax import weighing_at

RESULTS: Final = frozenset({Op.CAST, Op.RESHAPE})
"""Ops that a product ends with: its axis of one is left out, and a wide sum rounded."""
Differentiate = Callable[[UOp, UOp, Collection[UOp]], dict[UOp, UOp]]


def weighed_at(
    node: UOp, g: UOp, useful: Collection[UOp], targets: Collection[UOp], by: Differentiate
) -> list[tuple[UOp, UOp]] | None:
    """Gradients where a node is values weighed by a softmax of products: the operands of both, with
    theirs, given that of the node. None where it is not, or where gradients of others are asked."""
    found = weighing_at(node.src[0] if node.op is Op.CAST else node)
    if found is None or not (found.is_mean and found.dtype is node.dtype):
        return None
    softmax, first, made, last = found.softmax, found.first, found.made, found.last
    sizes = (*made.shape, *last.sizes, *first.sizes)
    steps, scored = elementwise_below(made), elementwise_below(softmax.scores)
    of_scores = ends_of(scored) or [softmax.scores]
    ends = [n for n in ends_of(steps) if n in useful and n not in softmax.folds]
    if not are_ints(sizes) or first.node not in ends or not {*ends} <= {*of_scores}:
        return None
    inside = {*steps, *softmax.folds, *first.inside, *last.inside, last.rows, last.node}
    if not (inside - {node}).isdisjoint(targets) or first.node in targets:
        return None
    query, key, value = found.query, found.key, found.value
    wide, weights = last.node.dtype, softmax.node
    mean = graph.fold(g.cast(wide) * node.cast(wide), Op.ADD, [len(g.shape) - 1])
    end = made.src[0] if made.op is Op.CAST else made  # it is not rounded
    slope = by(end, product_of(g, value, wide).cast(end.dtype), [weights])[weights]
    slope = weights * (slope - graph.expand(mean.cast(weights.dtype), weights.shape))
    slopes = by(softmax.scores, slope, ends)
    of_first = slopes.pop(first.node).cast(made.dtype)
    of_query = product_of(of_first, turned(key), wide)
    of_key = product_of(turned(of_first), turned(query), wide)
    of_value = turned(product_of(turned(made), turned(g), wide))
    return [
        placed(first.rows, of_query, -2),
        placed(first.columns, of_key, -3),
        placed(last.columns, of_value, -3),
        *slopes.items(),
    ]


def placed(operand: UOp, slope: UOp, axis: int) -> tuple[UOp, UOp]:
    """An operand and its gradient, that of a matrix for all of its repetitions."""
    shape = list(slope.shape)
    shape.insert(axis + 1, 1)
    whole = graph.reshape(slope, tuple(shape))
    return operand, graph.sum_to(whole, operand.shape).cast(operand.dtype)
