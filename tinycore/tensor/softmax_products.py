"""The gradient of values weighed by a softmax of products, whose weights are computed again.

Floor 5. Attention written out is R = A @ V with A = W * c, W = softmax(S) and S made of a product
P = Q @ K.T by elementwise steps. Its derivative is dS = W * (dW - rowsum(dR * R)): the sum over a
row of W * dW is one over the few columns of R (T. Dao et al., "FlashAttention", 2022). With W
computed anew from the totals of rows, once with the rows of Q and once with those of K in its rows,
each gradient is a chain of products (`render/chains.py`), and nothing of the size of S is stored.
Only where a device computes such chains, and where no gradient of a value inside is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tinycore._deferred import deferred
from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.uop.movement import below_movement, source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

refusal_of_chain: Final[Callable[..., str | None]] = deferred(
    "tinycore.schedule.product_chains:refusal_of_chain"
)

RESULTS: Final = frozenset({Op.CAST, Op.RESHAPE})
"""Ops that a product ends with: its axis of one is left out, and a wide sum rounded."""
Differentiate = Callable[[UOp, UOp, Collection[UOp]], dict[UOp, UOp]]


@dataclass(frozen=True)
class Product:
    """A sum of products of matrices: rows (.., rows, 1, steps) by columns (.., 1, columns, steps),
    in one type, summed in a wide one."""

    node: UOp
    """The sum in shape (.., rows, columns)."""
    rows: UOp
    columns: UOp
    batch: tuple[int, ...]
    """Sizes of the axes before the last two."""
    inside: tuple[UOp, ...]
    """The nodes between the operands and the sum."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of rows, columns and steps."""
        rows, _, steps = self.rows.shape[-3:]
        return rows, self.columns.shape[-2], steps


def product_at(node: UOp) -> Product | None:
    """The product that a node is, a sum with or without its axis of one; None for others."""
    total = node.src[0] if node.op is Op.RESHAPE else node
    if total.op is not Op.REDUCE_AXIS or total.src[0].op is not Op.MUL:
        return None
    value, last = total.src[0], len(total.shape) - 1
    if last < 2 or total.arg != (Op.ADD, (last,)) or node.shape != total.shape[:last]:
        return None
    sides = [operand_at(side) for side in value.src]
    if any(side is None for side in sides):
        return None
    (a, *above), (b, *beside) = (side for side in sides if side is not None)
    inside = (*above, *beside, value, total)
    fixed = all(isinstance(n, int) for n in value.shape)
    if not fixed or a.dtype is not b.dtype or a.shape[-1] != b.shape[-1]:
        return None
    for rows, columns in ((a, b), (b, a)):
        if rows.shape[-2] == columns.shape[-3] == 1 and value.shape[-3:-1] == (
            rows.shape[-3],
            columns.shape[-2],
        ):
            return Product(node, rows, columns, value.shape[:-3], inside)
    return None


def operand_at(side: UOp) -> tuple[UOp, ...] | None:
    """The operand that a factor repeats, with what widens and repeats it; None for others."""
    if side.op is not Op.EXPAND:
        return None
    (below,) = side.src
    return (below.src[0], below, side) if below.op is Op.CAST else (below, side)


def same(x: UOp) -> UOp:
    """A value as it is."""
    return x


def matrix(operand: UOp, axis: int) -> UOp:
    """The operand of a product without its axis of one."""
    shape = list(operand.shape)
    del shape[axis]
    return graph.reshape(operand, tuple(shape))


def placed(operand: UOp, slope: UOp, axis: int) -> tuple[UOp, UOp]:
    """An operand and its gradient, that of a matrix for all of its repetitions."""
    *outer, rows, columns = slope.shape
    shape = (*outer, rows, 1, columns) if axis == -2 else (*outer, 1, rows, columns)
    return operand, graph.sum_to(graph.reshape(slope, shape), operand.shape).cast(operand.dtype)


def first_ends(softmax: Softmax) -> set[UOp]:
    """The values that the elementwise steps of a softmax's scores begin with."""
    return ends_of(elementwise_below(softmax.scores)) or {softmax.scores}


def elementwise_below(node: UOp) -> list[UOp]:
    """The elementwise steps that a value ends, without what they begin with."""
    return [n for n in node.toposort(lambda n: n.op in ALU) if n.op in ALU]


def ends_of(steps: Iterable[UOp]) -> set[UOp]:
    """The values that elementwise steps begin with."""
    return {s for n in steps for s in n.src if s.op not in ALU}


def again(node: UOp, end: Callable[[UOp], UOp], known: dict[UOp, UOp]) -> UOp:
    """Elementwise steps on what `end` makes of the values that they begin with."""
    for n in node.toposort(lambda n: n.op in ALU and n not in known):
        if n not in known:
            known[n] = n.with_src(tuple([known[s] for s in n.src])) if n.op in ALU else end(n)
    return known[node]


@dataclass(frozen=True)
class Softmax:
    """exp(scores - greatest) / total along the last axis."""

    node: UOp
    scores: UOp
    folds: tuple[UOp, ...]
    """The maxima and the totals, and what repeats them."""


def softmax_at(node: UOp) -> Softmax | None:
    """The softmax that a node is; None for others."""
    if node.op is not Op.FDIV or node.src[0].op is not Op.EXP or node.dtype is not dtypes.float32:
        return None
    power, divisor = node.src
    if power.src[0].op is not Op.SUB:
        return None
    scores, shift = power.src[0].src
    folds = []
    for repeated, folded, op in ((divisor, power, Op.ADD), (shift, scores, Op.MAX)):
        fold = source_below(repeated, {Op.EXPAND, Op.DETACH})
        if fold.op is not Op.REDUCE_AXIS or fold.arg != (op, (len(node.shape) - 1,)):
            return None
        if fold.src[0] is not folded or repeated.op is not Op.EXPAND:
            return None
        folds += [repeated, fold]
    return Softmax(node, scores, tuple(folds))


def softmax_below(node: UOp) -> Softmax | None:
    """The softmax that a value is proportional to, element by element; None for others."""
    if (found := softmax_at(node)) is not None:
        return found
    match node.op:
        case Op.CAST if dtypes.is_float(node.src[0].dtype):
            return softmax_below(node.src[0])
        case Op.WHERE if is_zero(node.src[2]):
            return softmax_below(node.src[1])
        case Op.FDIV:
            return softmax_below(node.src[0])
        case Op.MUL:
            # The other factor must not depend on weights: one that is no elementwise step does not.
            return next(
                (softmax_below(a) for a, b in (node.src, node.src[::-1]) if b.op not in ALU), None
            )
    return None


def is_zero(node: UOp) -> bool:
    """True for 0 at all places."""
    number = below_movement(node)
    return number.op is Op.CONST and number.arg == 0


def turned(x: UOp) -> UOp:
    """The last two axes exchanged."""
    *outer, a, b = range(len(x.shape))
    return graph.permute(x, [*outer, b, a])


def product(a: UOp, b: UOp, batch: tuple[int, ...]) -> UOp:
    """Rows (.., r, steps) by columns (.., c, steps), summed in float32."""
    (*outer, r, steps), (*others, c, _) = a.shape, b.shape
    x = graph.reshape(a, (*outer, r, 1, steps)).cast(dtypes.float32)
    y = graph.reshape(b, (*others, 1, c, steps)).cast(dtypes.float32)
    x, y = (graph.expand(n, (*batch, r, c, steps)) for n in (x, y))
    return graph.reshape(graph.fold(x * y, Op.ADD, [len(batch) + 2]), (*batch, r, c))


@dataclass(frozen=True)
class Weighed:
    """A result R = A @ V in the type of its operands, with A in proportion to softmax(S)."""

    node: UOp
    last: Product
    made: UOp
    """A, in shape (.., rows, columns)."""
    softmax: Softmax
    first: Product
    """The product that S is made of."""
    apart: bool
    """True if the gradients of K and V are kernels of their own, each with weights of its own."""

    def gradients(self, g: UOp, differentiate: Differentiate) -> Iterator[tuple[UOp, UOp]]:
        """The operands of both products, and the gradient of each, given that of the result."""
        batch, narrow = self.last.batch, g.dtype
        query, key = matrix(self.first.rows, -2), matrix(self.first.columns, -3)
        value = turned(matrix(self.last.columns, -3))
        wide = g.cast(dtypes.float32) * self.node.cast(dtypes.float32)
        mean = graph.fold(wide, Op.ADD, [len(g.shape) - 1])
        # Of negated operands, those that stay with the rows of a kernel: other nodes than those of
        # the forward pass, whose numbers would be kept from then to now.
        anew = Anew(self, -product(-query, key, batch), same)
        slope = anew.slope(product(g, value, batch), mean, differentiate)
        yield placed(self.first.rows, product(slope.cast(narrow), turned(key), batch), -2)
        anew = Anew(self, -product(-key, query, batch), turned)
        slope = anew.slope(product(value, g, batch), mean, differentiate)
        yield placed(self.first.columns, product(slope.cast(narrow), turned(query), batch), -3)
        if self.apart:
            anew = Anew(self, turned(-product(query, -key, batch)), turned)
        yield placed(self.last.columns, turned(product(anew.made, turned(g), batch)), -3)


class Anew:
    """The steps of a `Weighed` on other nodes of its first product, some with columns in rows."""

    def __init__(self, of: Weighed, scores: UOp, turn: Callable[[UOp], UOp]) -> None:
        self.of, self.scores, self.turn = of, scores, turn
        known = {of.first.node: scores}
        self.made = again(of.made, turn, known)
        self.weights = known[of.softmax.node]
        self.softened = known[of.softmax.scores]

    def slope(self, of_made: UOp, mean: UOp, differentiate: Differentiate) -> UOp:
        """The gradient of the first product, given that of A and its means over rows."""
        end = self.made.src[0] if self.made.op is Op.CAST else self.made  # it is not rounded
        slope = differentiate(end, of_made.cast(end.dtype), [self.weights])[self.weights]
        means = graph.expand(self.turn(mean), self.scores.shape)
        slope = self.weights * (slope - means)
        return differentiate(self.softened, slope, [self.scores])[self.scores]


def weighed_at(node: UOp, useful: Collection[UOp], targets: Collection[UOp]) -> Weighed | None:
    """The values weighed by a softmax of products that a node is the result of, where its device
    computes their gradients as chains; None where it does not, or gradients of others are asked."""
    last = product_at(node.src[0] if node.op is Op.CAST else node)
    if last is None or not last.rows.dtype is last.columns.dtype is node.dtype:
        return None
    made = last.rows.src[0] if last.rows.op is Op.RESHAPE else last.rows
    softmax = softmax_below(made) if made.shape == (*last.batch, *last.sizes[::2]) else None
    if softmax is None:
        return None
    steps = elementwise_below(made)
    folded = {repeated for repeated in softmax.folds if repeated.op is Op.EXPAND}
    ends = [n for n in ends_of(steps) - folded if n in useful]
    first = product_at(ends[0]) if len(ends) == 1 else None
    if first is None or first.rows.dtype is not node.dtype or first.node not in first_ends(softmax):
        return None
    inside = {*steps, *softmax.folds, *first.inside, first.node, *last.inside, last.rows}
    inside |= {last.node} - {node}
    if first.batch != last.batch or not inside.isdisjoint(targets) or has_choices(steps, first):
        return None
    apart = are_apart(node, last, first)
    return None if apart is None else Weighed(node, last, made, softmax, first, apart)


def has_choices(steps: Iterable[UOp], first: Product) -> bool:
    """True if comparisons of scores decide, as of the k greatest: computed anew, the score that is
    compared with itself may be another one by its last bit."""
    moved = {first.node}
    for n in steps:
        if not moved.isdisjoint(n.src):
            moved.add(n)
    return any(n.dtype is dtypes.bool for n in moved)


def are_apart(node: UOp, last: Product, first: Product) -> bool | None:
    """True if the gradients of K and V are chains apart, False if they are one; None if none."""
    others = math.prod(last.batch)
    (rows, between, steps), (_, columns, _) = first.sizes, last.sizes
    both = (steps, columns)

    def are_chains(*sizes: tuple[Any, ...], **options: int) -> bool:
        device = node.device
        return not any(refusal_of_chain(device, node.dtype, (others, *n), **options) for n in sizes)

    if not are_chains((rows, between, (steps,), (columns,)), (rows, between, both, (steps,))):
        return None
    # One kernel has columns of one number, and all of them: parts would repeat both first products.
    if steps == columns and are_chains((between, rows, both, both), most_parts=1):
        return False
    whole = (between, rows, both, (steps,)), (between, rows, (steps,), (columns,))
    return True if are_chains(*whole) else None
