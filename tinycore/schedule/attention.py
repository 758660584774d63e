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
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.schedule import explain
from tinycore.schedule.collectives import concatenate, pad
from tinycore.schedule.index_values import is_made_of_indices
from tinycore.schedule.limits import device_limits
from tinycore.schedule.operand_layout import is_narrowed
from tinycore.schedule.product_chains import multiplies, refusal_of_chain
from tinycore.schedule.ranges import RegionReader
from tinycore.schedule.storage import replaced
from tinycore.schedule.weighing import (
    ROW_AXIS,
    Block,
    Parts,
    gradient_of,
    in_memory,
    logarithm_of,
    mean_of,
    one_by_one,
    part_of,
    seen_of,
    shift_of,
    times_repeated,
    with_more,
)
from tinycore.uop.movement import is_everywhere, moved
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.product import elementwise_below, ends_of
from tinycore.uop.proportional import MOST_KEPT
from tinycore.uop.rewrite import rewrite
from tinycore.uop.size import are_ints, greatest
from tinycore.uop.softmax import Softmax, Weighing, weighing_at
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
"""Most groups of rows, each a kernel."""
PIECE_BYTES: Final = 512 << 10
"""Bytes read again for every row: keys and values of a piece, or queries and slopes."""
LEAST_PIECE: Final = 128
"""Keys of a piece, at least."""


def choose_attention(nodes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
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
    for choice in choices if explain.trace.on else ():
        choice.tell_refusal()
    if changes:
        order = UOp.sink(*nodes.values()).toposort()
        first = {n: changes[n] for n in order if n in changes}
        done = replaced(nodes.values(), first | changes)
        nodes = {old: done.get(n, n) for old, n in nodes.items()}
    return dict(nodes)


class Choice:
    """Choice of regions for the products that read the weights of one softmax."""

    def __init__(self, weighings: Sequence[Weighing], is_group: bool = False) -> None:
        self.weighings = weighings
        self.is_group = is_group
        """True for some rows, which see keys in common."""
        self.softmax: Softmax = weighings[0].softmax
        means = [w for w in weighings if w.is_mean]
        self.mean = means[0] if means else None
        self.of_rows = [w for w in weighings if not (w.is_mean or w.is_turned)]
        """Gradients of queries, for which slopes are summed over keys."""
        self.of_keys = [w for w in weighings if w.is_turned]
        """Gradients of keys and values, for which slopes or weights are summed over rows."""
        self.slopes_read = [*self.of_rows, *self.of_keys]
        self.any = weighings[0]
        self.logarithm = logarithm_of(self.any)

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

    def refusal(self, weighings: Sequence[Weighing], parts: Parts, **facts: Any) -> str | None:
        """Why no kernel computes some products, of all keys in such parts at once; None if one
        does."""
        (dtype, *others), batch = {w.dtype for w in weighings}, weighings[0].last.batch
        if others or dtype is None:
            return "its operands are of several types"
        products = {p.node: p for w in weighings for p in w.products}
        sides = self.sizes[0] * parts.shared, parts.length
        sizes = (
            math.prod(batch) * parts.count // parts.shared,
            *(sides[::-1] if weighings[0].is_turned else sides),
            tuple([p.sizes[2] for p in products.values()]),
            tuple([w.last.sizes[1] for w in weighings]),
        )
        facts |= {"is_few": True} if parts.count > 1 else {}
        return refusal_of_chain(self.any.made.device, dtype, sizes, **facts)

    def parts_of(self, weighing: Weighing, shared: int = 1, **facts: bool) -> Parts | None:
        """The fewest parts of keys that one kernel sees at once; None if none does."""
        rows, seen = self.sizes
        is_few = not weighing.is_thinned and rows * shared <= MOST_TOGETHER
        most = greatest(seen) // LEAST_PART if is_few else 1
        is_fixed = are_ints((seen,))
        for count in range(1, max(most, 1) + 1):
            parts = Parts(count, length_of_part(seen, count), shared, count > 1 and not is_fixed)
            fits = not is_fixed or seen % count == 0
            if fits and self.refusal([weighing], parts, **facts) is None:
                return parts
        return None

    @cached_property
    def parts(self) -> Parts | None:
        """The parts of keys that a kernel sees at once; None if no kernel goes through all keys."""
        mean, rows = self.mean, self.sizes[0]
        if self.is_group or mean is None:
            return None
        if not are_ints((*mean.last.batch, rows, mean.last.sizes[1])):
            return None
        shared, together = heads_that_share(mean), None
        if shared > 1 and shared * rows <= MOST_TOGETHER and not mean.is_thinned:
            together = self.parts_of(mean, shared, is_few=True)
        return together or self.parts_of(mean, is_masked=mean.is_thinned or self.reads_memory)

    def chains(self, weighings: Sequence[Weighing], are_one: bool = False) -> bool:
        """True if gradients are one kernel each; all of them one, in whole columns, if they
        `are_one`."""
        each = [weighings] if are_one else [[w] for w in weighings]
        facts = {"is_masked": self.reads_memory, **({"most_parts": 1} if are_one else {})}
        whole = Parts(1, self.sizes[1])
        return all(self.refusal(own, whole, **facts) is None for own in each)

    def is_rounded(self, weighing: Weighing) -> bool:
        """True if weights are rounded to a type that a unit multiplies, or not at all."""
        made = weighing.made
        return not is_narrowed(made) or multiplies(made.device, made.dtype)

    def tell_refusal(self) -> None:
        """Print why attention is several kernels, where it is."""
        mean = self.mean
        if mean is not None and self.parts is None and are_ints(self.softmax.node.shape):
            why = self.refusal([mean], Parts(1, greatest(self.sizes[1])))
            shapes = f"{mean.query.shape} by {mean.key.shape}"
            text = f"several kernels: {mean.last.rows.dtype.name} {shapes}: {why}"
            explain.tell("attention", text)

    @cached_property
    def groups(self) -> list[Block]:
        """The rows, divided where a mask hides keys of some; [] where they stay together."""
        rows, seen = self.sizes
        are_one = self.is_group or self.parts is not None or (self.is_stored and self.is_thinned)
        if are_one or rows < HIDING_ROWS:
            return []
        softmax = self.softmax
        # Weights of a row that sees nothing are NaN at hidden keys, too, unless they are made 0.
        is_open = self.slopes_read and not softmax.has_empty_rows
        if is_open or not all(vanishes_with(w.made, softmax.node) for w in self.slopes_read):
            return []
        size = max(min(HIDING_ROWS, -(-rows // 2)), -(-rows // MOST_GROUPS))
        some = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
        groups = [Block(rows, slice(0, keys_seen(softmax.scores, rows))) for rows in some]
        return [] if all(group.seen.stop == seen for group in groups) else groups

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
        limits = device_limits(self.any.made.device)
        runs_loops = limits is not None and limits.grid is None
        return not runs_loops and self.is_rounded(self.any)

    @property
    def is_small(self) -> bool:
        """True if scores are few enough to be stored."""
        return math.prod(map(greatest, self.sizes)) <= MOST_KEPT

    @property
    def is_whole(self) -> bool:
        """True if all scores are in memory at a time in any case."""
        is_one_piece = len(pieces(self.sizes[1], self.width)) == 1
        return self.is_small or (self.is_thinned if self.slopes_read else is_one_piece)

    @property
    def width(self) -> int:
        """Features of a key and columns of a value."""
        columns = self.any.last.sizes[1] if self.mean is None else self.mean.last.sizes[1]
        return self.any.first.sizes[2] + columns

    # --- what is computed

    def changes(self) -> Iterator[tuple[UOp, UOp]]:
        """Nodes of the graph, and those that are computed in their place."""
        slopes = [*self.slopes()]
        if self.groups:
            yield from self.by_groups([w for w, is_chain, _ in slopes if not is_chain])
        elif self.is_stored and self.is_whole:
            return
        elif self.mean is not None:
            yield self.seen(self.mean)
        parts = self.parts
        is_stored = self.is_small and (parts is None or parts.count > 1 or parts.shared > 1)
        for weighing, is_chain, is_apart in slopes:
            if is_chain or not (is_stored or self.groups):
                yield weighing.last.node, self.gradient(weighing, is_chain, is_apart)

    def by_groups(self, slopes: Sequence[Weighing]) -> Iterator[tuple[UOp, UOp]]:
        """Each group of rows by itself."""
        whole = [*([] if self.mean is None else [self.mean]), *slopes]
        if not whole:
            return
        groups = [Choice([part_of(w, rows) for w in whole], is_group=True) for rows in self.groups]
        for group in groups:
            yield from group.changes()
        for weighing, *parts in zip(whole, *[group.weighings for group in groups], strict=True):
            node = weighing.last.node
            found = [n.last.node for n in parts]
            if weighing.is_turned:
                place, seen = len(node.shape) + ROW_AXIS, self.sizes[1]
                each = [pad(x, place, 0, seen - x.shape[place]) for x in found]
                joined = one_by_one(Op.ADD, each)
            else:
                joined = concatenate(found, len(node.shape) + ROW_AXIS)
            yield node, joined.alu(Op.CONTIGUOUS)

    def seen(self, mean: Weighing) -> tuple[UOp, UOp]:
        """The mean of the values, in place of its node."""
        parts, is_rounded, softmax = self.parts, self.is_rounded(mean), self.softmax
        (rows, seen), may_be_empty = self.sizes, softmax.has_empty_rows
        is_one = parts is not None or self.is_small or not are_ints(softmax.node.shape)
        some = [] if is_one else pieces(seen, self.width)
        if parts is not None and parts.count > 1:
            each = part_of(mean, parts)
            found = mean_of(seen_of(each, is_rounded, each.may_hide), may_be_empty)
        elif parts is not None and parts.shared > 1:
            found = seen_of(part_of(mean, parts), is_rounded, may_be_empty)
        elif len(some) > 1:
            blocks = [part_of(mean, Block(slice(0, rows), keys)) for keys in some]
            *before, last = [in_memory(seen_of(n, is_rounded, n.may_hide)) for n in blocks]
            so_far = functools.reduce(lambda a, b: with_more(a, b, mean.may_hide), before)
            found = with_more(so_far, last, may_be_empty)
        else:
            found = seen_of(mean, is_rounded, may_be_empty)
        logarithm = shift_of(found.logarithm, may_be_empty)
        self.logarithm = moved(Op.RESHAPE, logarithm, softmax.top.shape)
        return mean.last.node, moved(Op.RESHAPE, found.mean, mean.last.node.shape)

    def slopes(self) -> Iterator[tuple[Weighing, bool, bool]]:
        """The gradients, whether each is one kernel, and whether its scores are its own."""
        if not are_ints(self.softmax.node.shape) or has_choices(self.any):
            return
        of_rows, of_keys = self.of_rows, self.of_keys
        is_chain = self.chains(of_rows)
        widths = {w.last.sizes[1] for w in of_keys}
        are_one = len(of_keys) > len(widths) == 1 and self.chains(of_keys, are_one=True)
        are_chains = is_chain and (are_one or self.chains(of_keys))
        for weighing in of_rows:
            yield weighing, is_chain, False
        for weighing in of_keys:
            yield weighing, are_chains, is_chain and not are_one and len(weighing.products) == 1

    def gradient(self, weighing: Weighing, is_chain: bool, is_apart: bool) -> UOp:
        """A gradient, computed as one kernel or in pieces."""
        rounded, logarithm = self.is_rounded(weighing), self.logarithm
        if is_chain:
            return gradient_of(weighing, logarithm, rounded, is_apart)
        rows, seen = self.sizes
        if weighing.is_turned:
            blocks = [Block(some, slice(0, seen)) for some in pieces(rows, self.width)]
        else:
            blocks = [Block(slice(0, rows), some) for some in pieces(seen, self.width)]
        each = [(part_of(weighing, block), block.queries(logarithm)) for block in blocks]
        return added([gradient_of(part, own, rounded, is_apart) for part, own in each])


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
    """The keys up to the last one that some rows see; the others are hidden by their indices.

    No single one: a softmax over one key is written otherwise.
    """
    seen = int(scores.shape[-1])
    low, high = min(2, seen), seen
    while low < high:
        middle = (low + high) // 2
        if is_hidden(scores, rows, slice(middle, seen)):
            high = middle
        else:
            low = middle + 1
    return high


def is_hidden(scores: UOp, rows: slice, keys: slice) -> bool:
    """True if all scores of some rows and keys are -inf, by a mask of indices."""
    if scores.op is not Op.WHERE or not is_made_of_indices(scores.src[0]):
        return False
    counters = [
        UOp.range(some.stop - some.start, number, AxisKind.LOOP) + some.start
        for number, some in enumerate((rows, keys))
    ]
    outer = [UOp.range(n, 2 + axis, AxisKind.LOOP) for axis, n in enumerate(scores.shape[:-2])]
    condition = RegionReader(lambda _: None, 0).read(scores.src[0], (*outer, *counters))
    least, most = rewrite(condition, simplify, name="simplify a mask").bounds
    is_known: bool = least == most
    return is_known and is_everywhere(scores.src[1 if least else 2], -math.inf)


# --- pieces


def length_of_part(seen: int, parts: int) -> int:
    """Keys of each of some parts of all, at most; of a number that varies in whole blocks."""
    if are_ints((seen,)) or parts == 1:
        return greatest(seen) // parts
    return LEAST_PART * -(-greatest(seen) // (LEAST_PART * parts))


def pieces(length: int, width: int) -> list[slice]:
    """A length cut evenly, so that `width` numbers for each of its places fit a near cache."""
    most = max(PIECE_BYTES // (max(width, 1) * dtypes.float32.itemsize), LEAST_PIECE)
    size = -(-length // -(-length // most))
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def added(parts: Sequence[UOp]) -> UOp:
    """The sum of some products, each of which is added before the next one is begun."""
    return functools.reduce(
        lambda a, b: (a + b).alu(Op.CONTIGUOUS), parts[1:], parts[0].alu(Op.CONTIGUOUS)
    )
