"""The gradient of attention: of values weighed by a softmax of products, computed again.

Floor 5. Attention, whoever wrote it, is R = A @ V with A = W * c, W = softmax(S) and S made of
P = Q @ K.T by elementwise steps. The derivative is dS = W * (dW - rowsum(dR * R)): the sum over a
row of W * dW is one over the few columns of R (T. Dao et al., "FlashAttention", 2022). With W
computed anew from the totals of rows, once with the rows of Q and once with those of K in its rows,
each gradient is a chain of products (`render/chains.py`), and nothing of the size of S is stored.
Of `scaled_dot_product_attention` pieces of S exist at a time where a device has no such chains;
what is written out is differentiated step by step there, as where a value inside has a gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinycore._deferred import deferred
from tinycore.dtype import DType, dtypes
from tinycore.tensor import graph
from tinycore.uop.movement import below_movement, source_below
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.shape import DeviceLike

refusal_of_chain: Final[Callable[..., str | None]] = deferred(
    "tinycore.schedule.product_chains:refusal_of_chain"
)

PIECE_BYTES: Final = 512 << 10
"""Bytes read again for every row: keys and values of a piece, or queries and slopes."""
LEAST_PIECE: Final = 128

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
    if not all(sides):
        return None
    (a, *above), (b, *beside) = sides
    inside = (*above, *beside, value, total)
    fixed = all(isinstance(n, int) for n in value.shape)
    if not fixed or a.dtype is not b.dtype or a.shape[-1] != b.shape[-1]:
        return None
    *batch, m, n, _ = value.shape
    for rows, columns in ((a, b), (b, a)):
        if (*rows.shape[-3:-1], *columns.shape[-3:-1]) == (m, 1, 1, n):
            return Product(node, rows, columns, tuple(batch), inside)
    return None


def operand_at(side: UOp) -> tuple[UOp, ...]:
    """The operand that a factor repeats, with what widens and repeats it; nothing for others."""
    if side.op is not Op.EXPAND:
        return ()
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
    shape = list(slope.shape)
    shape.insert(axis + 1, 1)
    whole = graph.reshape(slope, tuple(shape))
    return operand, graph.sum_to(whole, operand.shape).cast(operand.dtype)


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


def times(x: UOp, number: float) -> UOp:
    """x * number."""
    return x if number == 1 else x * graph.full_like(x, number)


def part(x: UOp, rows: slice, columns: slice | None = None) -> UOp:
    """Some rows of matrices, and columns of these."""
    *outer, _, last = x.shape
    stop = (0, last) if columns is None else (columns.start, columns.stop)
    return graph.shrink(x, [*((0, size) for size in outer), (rows.start, rows.stop), stop])


def added(parts: Sequence[UOp]) -> UOp:
    """The sum of some products, each of which is added before the next one is begun."""
    first, *others = map(in_memory, parts)
    return functools.reduce(lambda a, b: in_memory(a + b.src[0]), others, first)


def in_memory(x: UOp) -> UOp:
    """A value in memory."""
    return x if x.op is Op.CONTIGUOUS else x.alu(Op.CONTIGUOUS)


@dataclass(frozen=True)
class Ways:
    """Ways of a device to compute gradients: whole chains of products, or pieces of them."""

    keys: Sequence[slice]
    """Keys whose slopes exist at a time for the gradient of queries."""
    queries: Sequence[slice]
    """Queries whose weights exist at a time for the gradients of keys and values."""
    apart: bool
    """True if the gradients of keys and values are kernels of their own, each with weights."""
    are_whole: bool
    """True if nothing is in pieces because the device has no chain for it."""


def ways_of(
    device: DeviceLike,
    dtype: DType | None,
    others: int,
    sizes: tuple[int, int, int, int],
    is_masked: bool,
) -> Ways:
    """The ways for numbers of rows, keys, features and columns; `dtype` is None for several."""
    rows, seen, width, columns = sizes
    both = width, columns
    chains = functools.partial(are_chains, device, dtype, others, is_masked=is_masked)
    is_query = chains((rows, seen, both, (width,)))
    # In parts each group would compute both first products: more than the two kernels do.
    shared = (seen, rows, both, both)
    are_one = width == columns and chains(shared, most_parts=1)
    apart = (seen, rows, both, (width,)), (seen, rows, (width,), (columns,))
    are_whole = is_query and (are_one or chains(*apart))
    return Ways(
        [slice(0, seen)] if is_query else pieces(seen, width + columns),
        [slice(0, rows)] if are_whole else pieces(rows, width + columns),
        is_query and not are_one,
        are_whole,
    )


def are_chains(
    device: DeviceLike,
    dtype: DType | None,
    others: int,
    *sizes: tuple[Any, ...],
    **options: int,
) -> bool:
    """True if products of each of some sizes, and what is between them, are one kernel."""
    return dtype is not None and not any(
        refusal_of_chain(device, dtype, (others, *each), **options) for each in sizes
    )


def pieces(length: int, width: int) -> list[slice]:
    """A length cut evenly, so that `width` numbers for each of its places fit a near cache."""
    most = max(PIECE_BYTES // (max(width, 1) * dtypes.float32.itemsize), LEAST_PIECE)
    size = -(-length // -(-length // most))
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


@dataclass(frozen=True)
class Weighed:
    """A result R = A @ V: A is made of W by elementwise steps, each row of W adds up to 1, and W is
    made of S by a softmax, or of its logarithms; S is made of P = Q @ K.T * scale."""

    result: UOp
    query: UOp
    key: UOp
    value: UOp
    made: UOp
    """A, in the type in which it is multiplied."""
    weights: UOp
    scores: UOp
    first: UOp
    """P, which is computed again, by other nodes."""
    ways: Ways
    given: tuple[UOp, ...] = ()
    """Values in the shape of P that are read as they are, whatever they are made of."""
    scale: float = 1.0

    def gradients(self, g: UOp, by: Differentiate) -> tuple[UOp, UOp, UOp, list[UOp]]:
        """Gradients of Q, K and V, given that of R; and that of P, in pieces of some columns."""
        narrow, rows, seen = self.made.dtype, slice(0, g.shape[-2]), slice(0, self.key.shape[-2])
        wide = g.cast(self.weights.dtype) * self.result.cast(self.weights.dtype)
        mean = graph.fold(wide, Op.ADD, [len(g.shape) - 1])
        queries, slopes, keys, values = [], [], [], []
        for some in self.ways.keys:
            key, value = part(self.key, some), part(self.value, some)
            anew = Anew(self, rows, some, self.again(-self.query, key), same)
            slopes.append(anew.slope(self.product(g, value), mean, by))
            queries.append(self.product(slopes[-1].cast(narrow), turned(key)))
        for some in self.ways.queries:
            query, of_rows = part(self.query, some), part(g, some)
            anew = Anew(self, some, seen, self.again(-self.key, query), turned)
            slope = anew.slope(self.product(self.value, of_rows), part(mean, some), by)
            keys.append(self.product(slope.cast(narrow), turned(query)))
            if self.ways.apart:  # in a kernel of their own, whose registers the weights fit
                anew = Anew(self, some, seen, turned(self.again(query, -self.key)), turned)
            values.append(self.product(anew.made, turned(of_rows)))
        of_query, of_key, of_value = (
            x[0] if self.ways.are_whole else added(x) for x in (queries, keys, values)
        )
        return times(of_query, self.scale), times(of_key, self.scale), of_value, slopes

    def again(self, rows: UOp, columns: UOp) -> UOp:
        """P by operands of which one is negated, that which stays with the rows of a kernel where
        it can: other nodes than those of the forward pass, whose numbers would be kept until now.
        """
        return times(self.product(rows, columns), -self.scale)

    def product(self, a: UOp, b: UOp) -> UOp:
        """Rows (.., r, steps) by columns (.., c, steps), summed in the type of weights."""
        batch, (*outer, r, steps), (*beside, c, _) = self.result.shape[:-2], a.shape, b.shape
        x = graph.reshape(a, (*outer, r, 1, steps)).cast(self.weights.dtype)
        y = graph.reshape(b, (*beside, 1, c, steps)).cast(self.weights.dtype)
        x, y = (graph.expand(n, (*batch, r, c, steps)) for n in (x, y))
        return graph.reshape(graph.fold(x * y, Op.ADD, [len(batch) + 2]), (*batch, r, c))


class Anew:
    """The steps of a `Weighed` for some rows and keys, turned or not, on other nodes of P."""

    def __init__(
        self, of: Weighed, rows: slice, keys: slice, scores: UOp, turn: Callable[[UOp], UOp]
    ) -> None:
        self.of, self.turn = of, turn
        self.known = {n: turn(part(n, rows, keys)) for n in of.given} | {of.first: scores}
        """Nodes of the forward pass, and those that stand for them."""
        self.made = again(of.made, lambda end: turn(part(end, rows, keys)), self.known)

    def slope(self, of_made: UOp, mean: UOp, by: Differentiate) -> UOp:
        """The gradient of P, given that of A and its means over rows."""
        known, made = self.known, self.made
        end = made.src[0] if made.op is Op.CAST else made  # it is not rounded
        weights, first = known[self.of.weights], known[self.of.first]
        slope = by(end, of_made.cast(end.dtype), [weights])[weights]
        slope = weights * (slope - graph.expand(self.turn(mean), weights.shape))
        return by(known[self.of.scores], slope, [first])[first]


def weighed_at(
    node: UOp, g: UOp, useful: Collection[UOp], targets: Collection[UOp], by: Differentiate
) -> list[tuple[UOp, UOp]] | None:
    """Gradients where a node is values weighed by a softmax of products: the operands of both, with
    theirs, given that of the node. None where it is not, where its device does not compute them
    as chains, or where gradients of others are asked."""
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
    (rows, seen, width), columns, others = first.sizes, last.sizes[1], math.prod(last.batch)
    read = ends_of(steps) - folded - {first.node}
    is_masked = any(below_movement(n).op is not Op.CONST for n in read)
    ways = ways_of(node.device, node.dtype, others, (rows, seen, width, columns), is_masked)
    query, key = matrix(first.rows, -2), matrix(first.columns, -3)
    value = turned(matrix(last.columns, -3))
    whole = Weighed(node, query, key, value, made, softmax.node, softmax.scores, first.node, ways)
    if not ways.are_whole:
        return None
    of_query, of_key, of_value, _ = whole.gradients(g, by)
    products = (first.rows, of_query, -2), (first.columns, of_key, -3)
    return [placed(*each) for each in (*products, (last.columns, turned(of_value), -3))]


def has_choices(steps: Iterable[UOp], first: Product) -> bool:
    """True if comparisons of scores decide, as of the k greatest: computed anew, the score that is
    compared with itself may be another one by its last bit."""
    moved = {first.node}
    for n in steps:
        if not moved.isdisjoint(n.src):
            moved.add(n)
    return any(n.dtype is dtypes.bool for n in moved)
