"""Expansion: unrolled loops are replicated, vector loops become lanes.

Floor 3'. An unrolled loop becomes copies of its body, one for each value of the counter; nodes
that do not depend on the counter are the same node in every copy, so sharing is free. A vector loop
becomes vector nodes: only what depends on the counter gets lanes, and each access decides, from how
its address moves, whether it is one vector access or one per lane.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product, takewhile
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.lower.fragments import (
    Fragments,
    added,
    folded_rows,
    is_planned,
    multiplied,
    operands_of_sums,
    unit_of,
)
from tinycore.lower.lanes import lane_of, lanes_of, vector_of
from tinycore.lower.loops import loops_of, numbered, values_of
from tinycore.lower.merge_reductions import drop_loops, fold_balanced, merge_reductions
from tinycore.lower.predicate import with_gate
from tinycore.lower.register_transpose import transpose_loads
from tinycore.uop.affine import coefficient, repetition
from tinycore.uop.compare import conjuncts_of
from tinycore.uop.node import UOp, interned
from tinycore.uop.op import ALU, AxisKind, Op, Part
from tinycore.uop.pattern import RuleSet, node
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import sum_of, terms_of
from tinycore.uop.symbolic import simplified

LONGEST_STRIDE = 4
"""Stride up to which lanes are selected from whole vectors; beyond, each is a separate load. At 4,
a quarter of what is loaded is used."""
MOST_IN_RUN: Final = 4
"""Lanes of a matrix unit's result that are stored together at most."""
LARGEST_FRAGMENT: Final = 128
"""Elements of a result that a thread of several holds at most; a thread that holds more is alone,
and stores whole vectors."""
WRITTEN_OUT = (AxisKind.UNROLL, AxisKind.PARTIAL)
"""Kinds of loops that become copies of their body."""
LINEAR: Final = frozenset({Op.ADD, Op.MUL})
"""Ops of index expressions that `terms_of` decomposes."""


def counters_of(closer: UOp, *kinds: AxisKind) -> tuple[UOp, ...]:
    """The loops of these kinds that a node closes."""
    return tuple(r for r in loops_of(closer) if r.kind in kinds)


def without(closer: UOp, counters: Iterable[UOp]) -> tuple[UOp, ...]:
    """The sources of a closer after its body, less some loops."""
    gone = set(counters)
    return tuple(s for s in closer.src[1:] if s not in gone)


class Sum(NamedTuple):
    """An index expression with its counters as separate terms."""

    rest: UOp
    constant: int
    factors: tuple[int, ...]
    """By how much it grows with each step of each counter."""

    def at(self, steps: Iterable[int]) -> UOp:
        """The canonical sum for one step of each counter: all copies share the rest."""
        constant = self.constant + sum(map(operator.mul, self.factors, steps))
        if self.rest.op is Op.CONST:
            return UOp.index(constant)
        if not constant:
            return self.rest
        return interned(Op.ADD, dtypes.index, (self.rest, UOp.index(constant)))


class Body:
    """The nodes copied by unrolling: all that depends on the counters, sources first."""

    def __init__(self, root: UOp, counters: tuple[UOp, ...]) -> None:
        self.root, self.counters = root, counters
        self.gone = frozenset(counters)
        self.sums: dict[UOp, Sum] = {}
        found = root.toposort(self.is_rebuilt)
        self.moving = [n for n in found if not self.gone.isdisjoint(n.ranges)]

    def is_rebuilt(self, node: UOp) -> bool:
        """True if a node depends on the counters other than as a sum of them."""
        if self.gone.isdisjoint(node.ranges):
            return False
        if node.op in LINEAR and (found := self.sum_of(node)) is not None:
            self.sums[node] = found
            return False
        return True

    def sum_of(self, node: UOp) -> Sum | None:
        """A sum with its counters as separate terms; None if they are in other terms, too."""
        if node.dtype is not dtypes.index:
            return None
        terms, constant = terms_of(node)
        rest = {base: factor for base, factor in terms.items() if base not in self.gone}
        if any(not self.gone.isdisjoint(base.ranges) for base in rest):
            return None
        return Sum(sum_of(rest, 0), constant, tuple([terms.get(c, 0) for c in self.counters]))

    def at(self, steps: tuple[int, ...]) -> UOp:
        """The root for one step of each counter; nodes that do not depend on them are shared."""
        new = dict(zip(self.counters, map(UOp.index, steps), strict=True))
        get = new.get
        for n in self.moving:
            if (total := self.sums.get(n)) is not None:
                new[n] = total.at(steps)
            elif n not in new:
                src = n.src
                new[n] = interned(n.op, n.dtype, tuple(map(get, src, src)), n.arg)
        return get(self.root, self.root)


def instances(root: UOp, counters: tuple[UOp, ...]) -> list[UOp]:
    """A node for every combination of the counters' values, in one walk."""
    body = Body(root, counters)
    return [body.at(steps) for steps in product(*[range(c.extent) for c in counters])]


def placed(node: UOp, counter: UOp, step: int) -> UOp:
    """A node for one step of a counter."""
    return Body(node, (counter,)).at((step,))


unroll = RuleSet("unroll")


@unroll.rule(node(Op.REDUCE, name="root"))
def unroll_reduction(root: UOp) -> UOp | None:
    """reduce over an UNROLL loop == one reduce of several values into the same accumulator."""
    counters = counters_of(root, AxisKind.UNROLL)
    if not counters:
        return None
    written = [i for v in values_of(root) for i in instances(v, counters)]
    loops = tuple(r for r in loops_of(root) if r not in counters)
    return fold_loops(written, loops, root.arg)


@unroll.rule(node(Op.REDUCE, name="root"))
def unroll_partial_reduction(root: UOp) -> UOp | None:
    """reduce over a PARTIAL loop == the fold of one reduce for each of its steps.

    Lanes are folded after that.
    """
    counters = counters_of(root, AxisKind.PARTIAL)
    if not counters:
        return None
    lanes = counters_of(root, AxisKind.VECTOR)
    value = fold_balanced(instances(drop_loops(root, (*counters, *lanes)), counters), root.arg)
    return UOp(Op.REDUCE, root.dtype, (value, *lanes), root.arg) if lanes else value


@unroll.rule(node(Op.END, name="root"))
def unroll_outputs(root: UOp) -> UOp | None:
    """A body closed over an UNROLL loop == all its copies, closed over the other loops."""
    counters = counters_of(root, *WRITTEN_OUT)
    if not counters:
        return None
    inner = [
        r
        for n in root.src[0].toposort()
        if n.op is Op.END and not n.ranges.isdisjoint(counters)
        for r in n.src[1:]
    ]
    copies = [
        copy.substitute({r: numbered(r, Part.COPY, number) for r in inner})
        for number, copy in enumerate(instances(root.src[0], counters))
    ]
    ranges = without(root, counters)
    group = UOp.group(*copies)
    return root.with_src((group, *ranges)) if ranges else group


@unroll.rule(node(Op.MATRIX, name="root"))
def unroll_tiles(root: UOp) -> UOp | None:
    """a MATRIX over an UNROLL loop == one whose first operand is several, side by side."""
    counters = counters_of(root, AxisKind.UNROLL)
    if not counters:
        return None
    first, *others = instances(root.src[0], counters)
    return root.with_src((first, *without(root, counters), *others))


vectorize = RuleSet("vectorize")


@vectorize.rule(node(Op.END, name="root"))
def vectorize_outputs(root: UOp) -> UOp | None:
    """A body closed over a VECTOR loop == the body on vectors."""
    counters = counters_of(root, AxisKind.VECTOR)
    if not counters:
        return None
    ranges = without(root, (*counters, *counters_of(root, AxisKind.PAIR)))
    wide = Lanes(counters[0]).of(root.src[0])
    return root.with_src((wide, *ranges)) if ranges else wide


@vectorize.rule(node(Op.REDUCE, name="root"))
def vectorize_reduction(root: UOp) -> UOp | None:
    """reduce over a VECTOR loop == the fold of the lanes of one reduce of vectors.

    Threads that share a sum fold their lanes first, so that they exchange scalars.
    """
    counters = counters_of(root, AxisKind.VECTOR)
    if not counters:
        return None
    lanes = Lanes(counters[0])
    values = list(map(lanes.full, values_of(root)))
    shared = counters_of(root, AxisKind.GROUP)
    gone = {*counters_of(root, AxisKind.VECTOR, AxisKind.PAIR), *shared}
    loops = tuple(r for r in loops_of(root) if r not in gone)
    folded = fold_lanes(fold_loops(values, loops, root.arg), root.arg)
    return UOp(Op.REDUCE, folded.dtype, (folded, *shared), root.arg) if shared else folded


def fold_loops(values: list[UOp], loops: tuple[UOp, ...], op: Op) -> UOp:
    """Values folded over loops, if any are left."""
    if not loops and values[0].op is Op.MATRIX:
        return functools.reduce(lambda total, value: added(total, value, op), values)
    if not loops:
        return fold_balanced(values, op)
    return UOp(Op.REDUCE, values[0].dtype, (*values, *loops), op)


pair_rest = RuleSet("pair rest")


@pair_rest.rule(node(Op.REDUCE, name="root"))
def pair_scalars(root: UOp) -> UOp | None:
    """reduce of products over a PAIR loop == reduce of DOTs of two lanes, where no lanes are."""
    counters = counters_of(root, AxisKind.PAIR)
    if not counters:
        return None
    dots = [n for s in root.src for n in s.every(Op.DOT) if counters[0] in n.ranges]
    lanes = Lanes(counters[0])
    done = {n: n.with_src(tuple(map(lanes.full, n.src))) for n in dots}
    values = [s.substitute(done) for s in values_of(root)]
    loops = tuple(r for r in loops_of(root) if r not in counters)
    return fold_loops(values, loops, root.arg)


@pair_rest.rule(node(Op.MATRIX, name="root"))
def fragments_of_one_sum(root: UOp) -> UOp | None:
    """A MATRIX of which each lane holds one sum, where no lanes are."""
    if not is_planned(root):
        return None
    return multiplied(root, root.src[2], lambda turn, value: Lanes(turn).full(value))


def fold_lanes(vector: UOp, op: Op) -> UOp:
    """All lanes of a vector combined by `op`: halves with halves."""
    while (count := vector.dtype.count) > 1:
        if count % 2:
            return fold_balanced([lane_of(vector, i) for i in range(count)], op)
        half = count // 2
        vector = lanes_of(vector, range(half)).alu(op, lanes_of(vector, range(half, count)))
    return vector


def shift_index(index: UOp, offset: int) -> UOp:
    """An INDEX some elements further on."""
    return index.with_src((index.src[0], index.src[1] + offset, *index.src[2:]))


def interleaved(vectors: list[UOp]) -> UOp:
    """The lanes of vectors, a power of two of them, in turns: first the first lane of each."""
    if len(vectors) == 1:
        return vectors[0]
    a, b = interleaved(vectors[::2]), interleaved(vectors[1::2])
    order = tuple(i // 2 + i % 2 * a.dtype.count for i in range(2 * a.dtype.count))
    return UOp(Op.EXTRACT, a.dtype.scalar().vec(len(order)), (a, b), order)


class Lanes:
    """One VECTOR loop on its way to becoming lanes."""

    def __init__(self, counter: UOp) -> None:
        self.counter = counter
        self.count = counter.extent
        self.done: dict[UOp, UOp] = {}
        self.fragments: Fragments = {}

    def of(self, root: UOp) -> UOp:
        """`root` with lanes where it depends on the counter, scalar where it does not."""
        for u in root.toposort(lambda n: self.counter in n.ranges and n not in self.done):
            if u not in self.done:
                self.done[u] = self.step(u) if self.counter in u.ranges else u
        return self.done[root]

    def full(self, root: UOp) -> UOp:
        """`root` with all lanes, repeated where they are equal."""
        return self.widened(self.of(root))

    def widened(self, value: UOp) -> UOp:
        """A scalar repeated in every lane; a vector as it is."""
        if value.dtype.count == self.count or value.dtype is dtypes.void:
            return value
        return lanes_of(value, range(self.count))

    def at(self, node: UOp, step: int) -> UOp:
        """A scalar node for one value of the counter."""
        return placed(node, self.counter, step)

    def step(self, node: UOp) -> UOp:
        """One node that depends on the counter, its sources being done."""
        match node.op:
            case Op.RANGE:
                return vector_of(map(UOp.index, range(self.count)))
            case Op.INDEX:
                return node  # its LOAD or STORE looks at the scalar form
            case Op.LOAD:
                return self.load(node)
            case Op.STORE:
                return self.store(node)
            case Op.GROUP | Op.END:
                return node.with_src(tuple(self.done[s] for s in node.src))
            case Op.SCAN:
                value, counter = node.src
                return UOp(
                    Op.SCAN, node.dtype.vec(self.count), (self.full(value), counter), node.arg
                )
            case Op.DOT:
                (steps,) = (r for r in node.ranges if r.kind is AxisKind.PAIR)
                sources = tuple(self.pairs(s, steps) for s in node.src)
                return UOp(Op.DOT, node.dtype.vec(self.count), sources)
            case Op.MATRIX:
                total = self.full(node.src[2])
                made = [self.full(a) for a in operands_of_sums(node)]
                return multiplied(
                    node, total, lambda turn, value: Lanes(turn).full(value), made, self.fragments
                )
            case Op.REDUCE:
                values = [self.widened(self.done[s]) for s in values_of(node)]
                if columns := counters_of(node, AxisKind.FRAGMENT):
                    left = tuple(r for r in loops_of(node) if r not in columns)
                    return folded_rows(values, left, node.arg, unit_of(node, columns[0]))
                loops = [s for s in node.src if s.op is Op.RANGE and s.kind is not AxisKind.PAIR]
                return fold_loops(values, tuple(loops), node.arg)
            case _:
                assert node.op in ALU, f"no lanes for {node!r}"
                sources = tuple(self.widened(self.done[s]) for s in node.src)
                return UOp(node.op, node.dtype.vec(self.count), sources, node.arg)

    def movement(self, index: UOp) -> int | None:
        """Stride of an address from lane to lane, or None if uneven or gated by lane."""
        if any(self.counter in gate.ranges for gate in index.src[2:]):
            return None
        return coefficient(index.src[1], self.counter)

    def load(self, node: UOp) -> UOp:
        """A LOAD: lanes of the few vectors that cover what is read, or one scalar per lane."""
        index, *others = node.src
        offsets = self.offsets(index)
        is_whole = offsets == range(self.count)
        is_apart = not is_whole and any(self.counter in other.ranges for other in others)
        if offsets is None or is_apart:
            return vector_of(instances(node, (self.counter,)))
        least = min(offsets)
        last = max(offsets) - least
        if last > LONGEST_STRIDE * (self.count - 1):
            return vector_of(instances(node, (self.counter,)))
        size = min(last + 1, self.count)
        first = self.at(index, offsets.index(least))
        alternative = tuple(self.widened(self.done[s]) for s in others)
        starts = [min(start, last + 1 - size) for start in range(0, last + 1, size)]
        wide = node.dtype.vec(size)
        vectors = [shift_index(first, start).load(wide, *alternative) for start in starts]
        if is_whole:
            return vectors[0]
        places = [offset - least for offset in offsets]
        if len(vectors) == 1:
            return lanes_of(vectors[0], places)
        parts = ((place // size, place) for place in places)
        return vector_of(lane_of(vectors[part], place - starts[part]) for part, place in parts)

    def offsets(self, index: UOp) -> Sequence[int] | None:
        """Distance of each lane's element from that of the first; None if that varies.

        Where it is no multiple of the lane, several lanes read the same element, and all of them
        a power of two of neighbors.
        """
        if move := self.movement(index):
            return range(0, move * self.count, move)
        if len(index.src) > 2 or repetition(index.src[1], self.counter) is None:
            return None
        places = instances(index.src[1], (self.counter,))
        apart = [simplified(p - places[0], "lanes") for p in places]
        steps = [n.arg for n in apart if n.op is Op.CONST]
        size = len(set(steps))
        whole = len(steps) == self.count and set(steps) == set(range(size))
        return steps if whole and size & (size - 1) == 0 else None

    def pairs(self, value: UOp, steps: UOp) -> UOp:
        """A value with all steps of a PAIR loop side by side in each lane: as many times the lanes.

        The loops of a DOT have two steps, those that fill an array may have more.
        """
        size = steps.extent
        every = range(size * self.count)
        if self.counter not in value.ranges:
            return lanes_of(Lanes(steps).full(value), [i % size for i in every])
        if self.is_row_of_pairs(value, steps):
            number = (*self.counter.number, Part.PAIRED)
            lane = UOp.range(len(every), number, AxisKind.VECTOR)
            whole = value.substitute({self.counter: lane // size, steps: lane % size})
            return Lanes(lane).full(simplified(whole, "pairs"))
        parts = [Lanes(self.counter).full(placed(value, steps, step)) for step in range(size)]
        return interleaved(parts)

    def is_row_of_pairs(self, value: UOp, steps: UOp) -> bool:
        """True if a value loads pairs that lie side by side."""
        places = [n.src[1] for n in value.every(Op.INDEX)]
        moving = [p for p in places if not p.ranges.isdisjoint((self.counter, steps))]
        moves = [(coefficient(p, self.counter), coefficient(p, steps)) for p in moving]
        return all(move == (steps.extent, 1) for move in moves)

    def stores_rows_of_pairs(self, index: UOp, steps: UOp) -> bool:
        """True if all steps of all lanes are neighbors in the memory stored to."""
        is_row = self.movement(index) == steps.extent
        return is_row and coefficient(index.src[1], steps) == 1

    def store(self, node: UOp) -> UOp:
        """A STORE: one vector, or one scalar per lane; of pairs one vector with more lanes."""
        index = node.src[0]
        steps = next((r for r in index.ranges if r.kind is AxisKind.PAIR), None)
        if steps is not None and not self.stores_rows_of_pairs(index, steps):
            halves = (placed(node, steps, step) for step in range(steps.extent))
            return UOp.group(*map(Lanes(self.counter).of, halves))
        if steps is not None:
            first = placed(self.at(index, 0), steps, 0)
            return node.with_src((first, self.pairs(node.src[1], steps)))
        value = self.widened(self.done[node.src[1]])
        if self.movement(index) == 1:
            return node.with_src((self.at(index, 0), value))
        if self.stores_a_prefix(index):
            return self.store_prefix(node, value)
        places = instances(index, (self.counter,))
        runs = self.runs_of(places)
        return UOp.group(*[node.with_src((places[r[0]], lanes_of(value, r))) for r in runs])

    def stores_a_prefix(self, index: UOp) -> bool:
        """True if lanes are neighbors in memory, of which the first so many may be stored."""
        if len(index.src) < 3 or coefficient(index.src[1], self.counter) != 1:
            return False
        moving = [c for c in conjuncts_of(index.src[2]) if self.counter in c.ranges]
        ends = (c.src[0] - c.src[1] for c in moving if c.op is Op.CMPLT)
        return [coefficient(end, self.counter) for end in ends] == [1] * len(moving)

    def store_prefix(self, node: UOp, value: UOp) -> UOp:
        """A STORE of a whole vector where its last lane is stored, and else lane by lane."""
        places = instances(node.src[0], (self.counter,))
        whole = places.pop().src[2]
        parts = [node.with_src((with_gate(places[0], whole), value))]
        for step, place in enumerate(places):
            partly = with_gate(place, whole.logical_not())
            parts.append(node.with_src((partly, lane_of(value, step))))
        return UOp.group(*parts)

    def runs_of(self, places: list[UOp]) -> list[list[int]]:
        """Lanes of a matrix unit's result that follow one another in memory, under one gate.

        Other loops get lanes only along memory.
        """
        if Part.UNIT not in self.counter.number:
            return [[lane] for lane in range(self.count)]
        most = MOST_IN_RUN if self.count <= LARGEST_FRAGMENT else self.count
        left: dict[tuple[UOp, ...], dict[int, int]] = defaultdict(dict)
        for lane, place in enumerate(places):
            address, *gates = (simplified(s, "lanes") for s in place.src[1:])
            terms, start = terms_of(address)
            left[sum_of(terms, 0), *gates][start] = lane
        runs: list[list[int]] = []
        for lanes in left.values():
            while lanes:
                first = next(iter(lanes))
                near = list(takewhile(lanes.__contains__, range(first, first + most)))
                size = 1 << len(near).bit_length() - 1
                runs.append([lanes.pop(start) for start in near[:size]])
        return sorted(runs)


def expand(kernel: UOp) -> UOp:
    """The kernel without UNROLL, PARTIAL and VECTOR loops."""
    kinds = {n.kind for n in kernel.every(Op.RANGE)}
    kernel = rewrite(kernel, unroll + merge_reductions, name="unroll")
    kernel = simplified(kernel, "unrolled")
    if AxisKind.VECTOR in kinds:
        kernel = rewrite(kernel, vectorize, name="vectorize")
    if not kinds.isdisjoint((AxisKind.PAIR, AxisKind.FRAGMENT)):
        kernel = rewrite(kernel, pair_rest, name="pair rest")
    return transpose_loads(simplified(kernel, "vectors"))
