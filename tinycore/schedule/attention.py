"""Attention: which regions of the scores are computed at a time, on the device that computes them.

Floor 3. The frontend writes softmax(Q @ K.T) @ V and its gradients, and knows no device. Here one
of these is chosen for the products that read the same weights (`weighing.py`):

- one kernel (`product_chains.py`): values are divided by totals behind the product, and gradients
  get scores of their own, so that none are stored (T. Dao et al., "FlashAttention", 2022);
- parts of the keys at once, where rows are too few for the units of a device, and the mean of their
  results (T. Dao et al., "Flash-Decoding for long-context inference", 2023). Heads that share keys
  are rows of one product then;
- pieces that fit a near cache, one after another: few scores are in memory at a time. Rows that see
  the same keys by a mask of indices, as a causal one, leave out those that are hidden;
- scores in memory, where they are few.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import add
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.render.chains import MOST_COLUMN_PARTS
from tinycore.schedule.collectives import pad
from tinycore.schedule.limits import loop_limits
from tinycore.schedule.product_chains import multiplies, refusal_of_chain
from tinycore.schedule.ranges import Point, read_through
from tinycore.schedule.storage import is_leaf
from tinycore.schedule.weighing import (
    ROW_AXIS,
    Again,
    Block,
    Parts,
    Region,
    Seen,
    Weighing,
    beside,
    divided,
    in_memory,
    length_of,
    logarithm_of,
    mean_of,
    times_repeated,
    weighing_at,
    with_more,
)
from tinycore.uop.movement import moved
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, AxisKind, Op
from tinycore.uop.product import elementwise_below, ends_of, row_fold
from tinycore.uop.proportional import MOST_KEPT
from tinycore.uop.rewrite import rewrite
from tinycore.uop.size import are_ints, greatest
from tinycore.uop.softmax import Softmax, is_everywhere
from tinycore.uop.symbolic import simplify

LEAST_PART: Final = 64
"""Keys of a part, at least, where parts of them are seen at once."""
MOST_TOGETHER: Final = 64
"""Rows up to which keys are seen in parts, and those of heads that share keys are rows of one
product: as in decoding, where each key is read once for all of them."""
HIDING_ROWS: Final = 512
"""Rows that share the keys they see, where a mask hides others. Fewer leave out more of what it
hides, but each group of rows is a kernel of its own. Fewer than twice that are cut in two: at 512
that leaves out a quarter of all scores, and of their memory."""
MOST_GROUPS: Final = 8
PIECE_BYTES: Final = 512 << 10
"""Bytes read again for every row: keys and values of a piece, or queries and slopes."""
LEAST_PIECE: Final = 128


class Chosen(NamedTuple):
    """The nodes on single devices with attention as chosen, and why some is no single kernel."""

    nodes: dict[UOp, UOp]
    refusals: tuple[str, ...]


class Group(NamedTuple):
    """Rows, and the keys that any of them sees."""

    rows: slice
    seen: slice

    @property
    def is_small(self) -> bool:
        """True if the scores are stored."""
        return length_of(self.rows) * length_of(self.seen) <= MOST_KEPT


def choose_attention(nodes: Mapping[UOp, UOp]) -> Chosen:
    """The nodes on single devices, with attention in the form in which it is computed.

    `nodes`, and the result, map nodes of the sharded graph to their nodes on single devices.
    """
    found: dict[UOp, list[Weighing]] = {}
    if any(n.op is Op.EXP for n in nodes.values()):
        for node in dict.fromkeys(nodes.values()):
            if (weighing := weighing_at(node)) is not None:
                found.setdefault(weighing.softmax.node, []).append(weighing)
    choices = [Choice(weighings) for weighings in found.values()]
    changes = {old: new for choice in choices for old, new in choice.changes()}
    refusals = [line for choice in choices for line in choice.refusals()]
    return Chosen(replaced(nodes, changes) if changes else dict(nodes), tuple(refusals))


class Choice:
    """Choice of regions for the products that read the weights of one softmax."""

    def __init__(self, weighings: Sequence[Weighing]) -> None:
        self.softmax: Softmax = weighings[0].softmax
        means = [w for w in weighings if w.is_mean]
        self.mean = means[0] if means else None
        self.of_rows = [w for w in weighings if not (w.is_mean or w.is_turned)]
        """Gradients of queries, for which slopes are summed over keys."""
        self.of_keys = [w for w in weighings if w.is_turned]
        """Gradients of keys and values, for which slopes or weights are summed over rows."""
        self.slopes_read = [*self.of_rows, *self.of_keys]
        self.any = weighings[0]
        self.logarithms: list[UOp] = []
        """For each group of rows."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of rows and keys."""
        *_, rows, seen = self.softmax.node.shape
        return rows, seen

    @cached_property
    def reads_memory(self) -> bool:
        """True if something in memory is read for each score, such as a mask."""
        softmax, weighing = self.softmax, self.mean or self.any
        steps = [*elementwise_below(softmax.scores), *elementwise_below(weighing.made)]
        read = {*ends_of(steps)} - {p.node for p in weighing.products} - {*softmax.folds}
        return any(n.op in (Op.BUFFER, Op.BUFFER_VIEW) for n in UOp.sink(*read).toposort())

    # --- what a device does

    def refusal(self, weighing: Weighing, parts: Parts, **facts: bool) -> str | None:
        """Why no kernel goes through all keys, in such parts at once; None if one does."""
        others = math.prod(weighing.last.batch) * parts.count // parts.shared
        rows = self.sizes[0] * parts.shared
        sizes = others, rows, parts.length, (weighing.first.sizes[2],), (weighing.last.sizes[1],)
        if weighing.dtype is None:
            return "its operands are of several types"
        facts |= {"is_few": True} if parts.count > 1 else {}
        return refusal_of_chain(weighing.made.device, weighing.dtype, sizes, **facts)

    def parts_of(self, weighing: Weighing, shared: int = 1, **facts: bool) -> Parts | None:
        """The fewest parts of keys that one kernel sees at once; None if none does."""
        rows, seen = self.sizes
        is_few = not weighing.is_thinned and rows * shared <= MOST_TOGETHER
        most = greatest(seen) // LEAST_PART if is_few else 1
        is_fixed = are_ints((seen,))
        for count in range(1, max(most, 1) + 1):
            parts = Parts(count, length_of_part(seen, count), shared, count > 1 and not is_fixed)
            fits = not is_fixed or seen % count == 0
            if fits and self.refusal(weighing, parts, **facts) is None:
                return parts
        return None

    @cached_property
    def parts(self) -> Parts | None:
        """The parts of keys that a kernel sees at once; None if no kernel goes through all keys."""
        mean, rows = self.mean, self.sizes[0]
        if mean is None or not are_ints((*mean.last.batch, rows, mean.last.sizes[1])):
            return None
        shared, together = heads_that_share(mean), None
        if shared > 1 and shared * rows <= MOST_TOGETHER and not mean.is_thinned:
            together = self.parts_of(mean, shared, is_few=True)
        return together or self.parts_of(mean, is_masked=mean.is_thinned or self.reads_memory)

    def chains(self, weighings: Sequence[Weighing], most_parts: int | None = None) -> bool:
        """True if gradients are one kernel each; all of them one, in whole columns, if `most_parts`
        are given."""
        own = [[w] for w in weighings] if most_parts is None else [weighings]
        return all(self.chain(each, most_parts) for each in own)

    def chain(self, weighings: Sequence[Weighing], most_parts: int | None) -> bool:
        """True if some gradients are one kernel."""
        found = {w.dtype for w in weighings}
        products = {p.node: p for w in weighings for p in w.products}
        steps = tuple([p.sizes[2] for p in products.values()])
        columns = tuple([w.last.sizes[1] for w in weighings])
        others, (dtype, *more) = math.prod(self.any.last.batch), found
        sides = self.sizes[::-1] if weighings[0].is_turned else self.sizes
        if more or dtype is None:
            return False
        sizes = (others, *sides, steps, columns)
        device, is_masked = self.any.made.device, self.reads_memory
        most = MOST_COLUMN_PARTS if most_parts is None else most_parts
        return refusal_of_chain(device, dtype, sizes, False, most, is_masked) is None

    def is_rounded(self, weighing: Weighing) -> bool:
        """True if weights are rounded to a type that a unit multiplies, or not at all."""
        made = weighing.made
        is_narrow = made.op is Op.CAST and made.dtype.itemsize < made.src[0].dtype.itemsize
        return not is_narrow or multiplies(made.device, made.dtype)

    def refusals(self) -> Iterator[str]:
        """Why attention is several kernels."""
        mean = self.mean
        if mean is not None and self.parts is None and are_ints(self.softmax.node.shape):
            why = self.refusal(mean, Parts(1, greatest(self.sizes[1])))
            shapes = f"{mean.query.shape} by {mean.key.shape}"
            yield f"several kernels: {mean.last.rows.dtype.name} {shapes}: {why}"

    @cached_property
    def groups(self) -> list[Group]:
        """The rows, divided where a mask hides keys of some."""
        rows, seen = self.sizes
        whole = [Group(slice(0, rows), slice(0, seen))]
        if rows < HIDING_ROWS or self.parts is not None or (self.is_stored and self.is_thinned):
            return whole
        softmax = self.softmax
        # Weights of a row that sees nothing are NaN at hidden keys, too, unless they are made 0.
        is_open = self.slopes_read and not softmax.has_empty_rows
        if is_open or not all(vanishes_with(w.made, softmax.node) for w in self.slopes_read):
            return whole
        size = max(min(HIDING_ROWS, -(-rows // 2)), -(-rows // MOST_GROUPS))
        some = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
        groups = [Group(rows, slice(0, keys_seen(softmax.scores, rows))) for rows in some]
        return whole if all(group.seen == whole[0].seen for group in groups) else groups

    @property
    def is_thinned(self) -> bool:
        """True if weights are dropped before they weigh values."""
        return self.mean is not None and self.mean.is_thinned

    @cached_property
    def is_stored(self) -> bool:
        """True if weights that are few are stored: gradients read them, or kernels of a grid."""
        if self.parts is not None or not are_ints(self.softmax.node.shape):
            return False
        if self.slopes_read:
            return not self.chains(self.slopes_read)
        is_grid = loop_limits(self.any.made.device) is None
        return is_grid and self.is_rounded(self.any)

    def stores(self, group: Group) -> bool:
        """True if the scores of a group are few, and stored."""
        parts = self.parts
        return group.is_small and (parts is None or parts.count > 1 or parts.shared > 1)

    def is_whole(self, group: Group) -> bool:
        """True if all scores of a group are in memory at a time in any case."""
        if self.slopes_read:
            return group.is_small or self.is_thinned
        return group.is_small or len(pieces(group.seen, self.width)) == 1

    @property
    def width(self) -> int:
        """Features of a key and columns of a value."""
        columns = self.any.last.sizes[1] if self.mean is None else self.mean.last.sizes[1]
        return self.any.first.sizes[2] + columns

    # --- what is computed

    def changes(self) -> Iterator[tuple[UOp, UOp]]:
        """Nodes of the graph, and those that are computed in their place."""
        if self.is_stored and len(self.groups) == 1 and self.is_whole(self.groups[0]):
            return
        if self.mean is not None:
            yield from self.means(self.mean, self.seen(self.mean))
        if are_ints(self.softmax.node.shape) and not has_choices(self.any):
            yield from self.slopes()

    def means(self, mean: Weighing, seen: Sequence[Seen]) -> Iterator[tuple[UOp, UOp]]:
        """The means of the values, of groups of rows or of all."""
        softmax, node = self.softmax, mean.last.node
        has_empty_rows = softmax.has_empty_rows
        if len(seen) == 1:
            found = divided(seen[0], has_empty_rows)
            for old, new in ((softmax.top, seen[0].top), (softmax.total, seen[0].total)):
                if new is not old:
                    yield old, moved(Op.RESHAPE, new, old.shape)
        else:
            found = beside(
                [
                    mean.mean(Block(*group))
                    if group.is_small and self.is_stored
                    else divided(each, has_empty_rows)
                    for each, group in zip(seen, self.groups, strict=True)
                ]
            ).alu(Op.CONTIGUOUS)
        yield node, moved(Op.RESHAPE, found, node.shape)
        self.logarithms = [logarithm_of(each, has_empty_rows) for each in seen]

    def seen(self, mean: Weighing) -> list[Seen]:
        """The values weighed, for each group of rows."""
        parts, is_rounded, softmax = self.parts, self.is_rounded(mean), self.softmax
        if parts is not None and parts.count > 1:
            found = mean.seen(parts, is_rounded)
            has_empty_parts = parts.is_padded or mean.may_hide
            return [mean_of(found, softmax.has_empty_rows, has_empty_parts)]
        if parts is not None and parts.shared > 1:
            return [mean.seen(parts, is_rounded)]
        is_one = parts is not None or not are_ints(softmax.node.shape)
        if is_one or (len(self.groups) == 1 and self.groups[0].is_small):
            power = mean.power(softmax.power.src[0], is_rounded)
            weighed = mean.weighed(power, Region(), {}, is_rounded)
            return [Seen(softmax.top, row_fold(power, Op.ADD), weighed, power)]
        return [self.seen_by(mean, group) for group in self.groups]

    def seen_by(self, mean: Weighing, group: Group) -> Seen:
        """The values weighed for some rows."""
        some = [group.seen] if group.is_small else pieces(group.seen, self.width)
        found = [mean.seen(Block(group.rows, keys), self.is_rounded(mean)) for keys in some]
        return found[0] if len(found) == 1 else functools.reduce(with_more, map(in_memory, found))

    def slopes(self) -> Iterator[tuple[UOp, UOp]]:
        """The gradients."""
        of_rows, of_keys = self.of_rows, self.of_keys
        is_chain = self.chains(of_rows)
        widths = {w.last.sizes[1] for w in of_keys}
        are_one = len(of_keys) > len(widths) == 1 and self.chains(of_keys, most_parts=1)
        are_chains = is_chain and (are_one or self.chains(of_keys))
        apart = [w for w in of_keys if is_chain and not are_one and len(w.products) == 1]
        for weighing in of_rows:
            yield from self.change(weighing, is_chain, Again.ROWS)
        for weighing in of_keys:
            how = Again.APART if weighing in apart else Again.ROWS
            yield from self.change(weighing, are_chains, how)

    def change(self, weighing: Weighing, is_chain: bool, how: Again) -> Iterator[tuple[UOp, UOp]]:
        """A gradient, computed as one kernel or over groups of rows."""
        node, (rows, seen) = weighing.last.node, self.sizes
        if is_chain:
            whole, rounded = Block(slice(0, rows), slice(0, seen)), self.is_rounded(weighing)
            found = weighing.gradient(whole, self.logarithm(), rounded, how)
            # A sum over heads that share keys is no part of a chain.
            yield node, found.alu(Op.CONTIGUOUS) if is_shared(weighing) else found
        elif len(self.groups) > 1 or not self.stores(self.groups[0]):
            logarithms = self.logarithms
            if len(logarithms) != len(self.groups):
                logarithms = [Block(*group).queries(self.logarithm()) for group in self.groups]
            each = zip(self.groups, logarithms, strict=True)
            parts = [self.gradient(weighing, *given, how) for given in each]
            if weighing.is_turned:
                place = len(node.shape) + ROW_AXIS
                parts = [pad(x, place, 0, seen - x.shape[place]) for x in parts]
            found = functools.reduce(add, parts) if weighing.is_turned else beside(parts)
            yield node, found if len(parts) == 1 else found.alu(Op.CONTIGUOUS)

    def logarithm(self) -> UOp:
        """The logarithms of the totals of all rows."""
        if len(self.logarithms) != 1:
            return self.any.logarithm
        return moved(Op.RESHAPE, self.logarithms[0], self.softmax.top.shape)

    def gradient(self, weighing: Weighing, group: Group, logarithm: UOp, how: Again) -> UOp:
        """A gradient over a group of rows, whose logarithms are given."""
        is_stored = self.stores(group)
        if is_stored:
            blocks = [Block(*group)]
        elif weighing.is_turned:
            blocks = [Block(rows, group.seen) for rows in pieces(group.rows, self.width)]
        else:
            blocks = [Block(group.rows, keys) for keys in pieces(group.seen, self.width)]
        start, rounded = group.rows.start, self.is_rounded(weighing)
        found = []
        for block in blocks:
            own = Block(slice(block.rows.start - start, block.rows.stop - start), block.seen)
            known = weighing.weights(block) if is_stored else None
            found.append(
                weighing.gradient(
                    block, own.queries(logarithm), rounded, None if is_stored else how, known
                )
            )
        return found[0] if is_stored else added(found)


def is_shared(weighing: Weighing) -> bool:
    """True if an operand of a product is repeated for several heads."""
    batch = weighing.last.batch
    operands = weighing.query, weighing.key, weighing.value
    return any(times_repeated(x) > 1 or x.shape[:-2] != batch for x in operands)


def heads_that_share(weighing: Weighing) -> int:
    """Heads that have keys and values in common, of one batch; 1 for others."""
    operands = weighing.query, weighing.key, weighing.value
    found = {times_repeated(x) for x in operands[1:]}
    return found.pop() if len({x.shape[:-2] for x in operands}) == len(found) == 1 else 1


def has_choices(weighing: Weighing) -> bool:
    """True if comparisons of scores decide, as of the k greatest: computed anew, the score that is
    compared with itself may be another one by its last bit."""
    varying = {weighing.first.node}
    for n in elementwise_below(weighing.softmax.scores):
        if not varying.isdisjoint(n.src):
            varying.add(n)
    return any(n.dtype is dtypes.bool for n in varying)


# --- hidden keys


def vanishes_with(value: UOp, weights: UOp) -> bool:
    """True if a value is 0 where weights are, so that hidden keys are no part of a sum over it."""
    if value is weights:
        return True
    match value.op:
        case Op.MUL:
            return any(vanishes_with(s, weights) for s in value.src)
        case Op.ADD | Op.SUB:
            return all(vanishes_with(s, weights) for s in value.src)
        case Op.CAST | Op.NEG | Op.FDIV:
            return vanishes_with(value.src[0], weights)
        case Op.WHERE:
            return all(is_everywhere(s, 0) or vanishes_with(s, weights) for s in value.src[1:])
    return False


def keys_seen(scores: UOp, rows: slice) -> int:
    """The keys up to the last one that some rows see; the others are hidden by their indices."""
    seen = int(scores.shape[-1])
    low, high = 1, seen
    while low < high:
        middle = (low + high) // 2
        if is_hidden(scores, rows, slice(middle, seen)):
            high = middle
        else:
            low = middle + 1
    return high


def is_hidden(scores: UOp, rows: slice, keys: slice) -> bool:
    """True if all scores of some rows and keys are -inf, by a mask of indices."""
    if scores.op is not Op.WHERE:
        return False
    counters = [
        UOp.range(length_of(some), number, AxisKind.LOOP) + some.start
        for number, some in enumerate((rows, keys))
    ]
    outer = [UOp.range(n, 2 + axis, AxisKind.LOOP) for axis, n in enumerate(scores.shape[:-2])]
    condition = read_at(scores.src[0], (*outer, *counters))
    if condition is None:
        return False
    least, most = rewrite(condition, simplify, name="simplify a mask").bounds
    is_known: bool = least == most
    return is_known and is_everywhere(scores.src[1 if least else 2], -math.inf)


def read_at(node: UOp, point: Point) -> UOp | None:
    """A value of indices alone at a point; None for others."""
    if node.op in MOVEMENT:
        found = read_through(node, point)
        return read_at(node.src[0], found.point) if found.valid is None else None
    if node.op is Op.ARANGE:
        return point[0].cast(node.dtype)
    if node.op is Op.CONST:
        return UOp.const(node.dtype, node.arg)
    if node.op not in ALU:
        return None
    sources = [read_at(s, point) for s in node.src]
    return None if None in sources else node.with_src(tuple([s for s in sources if s is not None]))


# --- pieces


def length_of_part(seen: int, parts: int) -> int:
    """Keys of each of some parts of all, at most; of a number that varies in whole blocks."""
    if are_ints((seen,)) or parts == 1:
        return greatest(seen) // parts
    return LEAST_PART * -(-greatest(seen) // (LEAST_PART * parts))


def pieces(whole: slice, width: int) -> list[slice]:
    """A length cut evenly, so that `width` numbers for each of its places fit a near cache."""
    length = length_of(whole)
    most = max(PIECE_BYTES // (max(width, 1) * dtypes.float32.itemsize), LEAST_PIECE)
    size = -(-length // -(-length // most))
    starts = range(whole.start, whole.stop, size)
    return [slice(start, min(start + size, whole.stop)) for start in starts]


def added(parts: Sequence[UOp]) -> UOp:
    """The sum of some products, each of which is added before the next one is begun."""
    return functools.reduce(
        lambda a, b: (a + b).alu(Op.CONTIGUOUS), parts[1:], parts[0].alu(Op.CONTIGUOUS)
    )


def replaced(nodes: Mapping[UOp, UOp], changes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """Nodes, with others in place of some below them; what these are made of is replaced, too."""
    done: dict[UOp, UOp] = {}
    waiting = [*reversed([*nodes.values()])]
    while waiting:
        node = waiting[-1]
        change = changes.get(node)
        below = (change,) if change is not None else () if is_leaf(node) else node.src
        if node not in done and (left := [n for n in below if n not in done]):
            waiting += reversed(left)
            continue
        waiting.pop()
        if node not in done:
            new = tuple([done[n] for n in below])
            done[node] = new[0] if change is not None else node.with_src(new) if new else node
    return {old: done[new] for old, new in nodes.items()}
