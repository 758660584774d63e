"""Inlining: groups of values as one nest of loops, where what they store is computed instead.

Floor 3. The one way to fuse kernels without memory between them (Halide's `compute_inline`): rows
on a grid (`row_inlining.py`) and chains of products (`product_chains.py`) decide which groups gain
by it. The values of all groups are read from the tensor graph, at points of the loops of one of
them, so that no address has to be matched with another. What remains to be asked is whether each
value is computed at one point, and whether what others read is stored as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import permutations

from tinycore.schedule.access import Launch
from tinycore.schedule.candidates import Memory
from tinycore.schedule.kernel import numel, slot, with_slots
from tinycore.schedule.partial_writes import is_partial, loops_over, store
from tinycore.schedule.ranges import ZERO, Place, Point, Reading, RegionReader, flatten
from tinycore.uop.affine import digit_size
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.size import greatest_shape
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify


class Joined:
    """Kernels that become one, whose pointers have the numbers of their memory at first."""

    def __init__(self, memory: Memory, launches: Sequence[Launch]) -> None:
        self.memory, self.groups = memory, memory.groups
        self.members = [launch.groups[0] for launch in launches]
        saved = {old: new for group in self.members for old, new in group.saved.items()}
        inputs = (n for group in self.members for n in group.inputs)
        self.read_from = {n: self.groups.memory_at(saved, n) for n in inputs}
        """The memory of what they read; where some of them read a saved copy, all do."""

    def pointer_to(self, memory: UOp) -> UOp:
        """The pointer to some memory."""
        return slot(memory, self.memory.numbers[memory])

    def launch(self, body: UOp, stored: Iterable[int]) -> Launch:
        """The kernel of a statement that stores some memory, which its first slots are."""
        whole = rewrite(UOp.sink(body), simplify, name="simplify kernel")
        return Launch(*with_slots(whole, stored))


class Inlined(Joined, RegionReader):
    """Reads the values of some kernels at points of the loops of one of these, the `root`."""

    def __init__(
        self,
        memory: Memory,
        launches: Sequence[Launch],
        root: Launch,
        is_one_pass: bool = False,
        point: Point | None = None,
    ) -> None:
        """In one pass, folds of folds share their loops, as those over the scores of attention."""
        self.given = memory, launches, root, is_one_pass
        Joined.__init__(self, memory, (root, *launches))
        self.is_one_pass, self.root = is_one_pass, self.members[0]
        self.computed = dict.fromkeys(n for each in self.members for n in each.outputs)
        """The outputs of all of them, those of the root first."""
        self.places: dict[UOp, Place] = {}
        """The place at which each output is read first."""
        self.repeats = False
        """True if one is read elsewhere, too."""
        self.point = point or self.groups.point_of(self.root)
        loops = (r for index in self.point for r in index.ranges)
        self.loops = sorted(loops, key=lambda r: r.arg.number)
        RegionReader.__init__(self, self.pointer, len(self.point) + len(self.loops))

    def pointer(self, node: UOp) -> UOp | None:
        """The pointer that a node is loaded by; None for what is computed."""
        memory = None if node in self.computed else self.read_from.get(node)
        return None if memory is None else self.pointer_to(memory)

    def step(self, place: Place) -> Reading:
        """Outputs are read at simplified points, so that those that are equal are one."""
        if place.node in self.computed:
            simple = tuple([simplified(index) for index in place.point])
            if simple != place.point:
                return (yield place._replace(point=simple))
            self.repeats |= self.places.setdefault(place.node, place) != place
        return (yield from super().step(place))

    def key(self, place: Place, sizes: Sequence[int]) -> tuple[object, ...]:
        """In one pass, folds of folds share loops, and others have their own."""
        if not self.is_one_pass:
            return super().key(place, sizes)
        key = tuple(sizes)
        inside = {r for index in place.point for r in index.ranges}
        is_shared = self.level(place.node) > 1 and inside.isdisjoint(self.opened.get(key, ()))
        return key if is_shared else (*place, *sizes)

    def stores(self, kept: Collection[int]) -> dict[int, UOp] | None:
        """The STOREs to the memory of the root, and to what is kept of others, by its number.

        None if a value is computed at several points, or one that is kept not as a whole.
        """
        found: dict[int, UOp] = {}
        for node in self.computed:
            pointer = self.pointer_to(self.groups.output_memory(node))
            if node in self.root.outputs:
                found[pointer.arg] = store(self, node, self.point, pointer)
                self.places.setdefault(node, Place(node, self.point, None))
            elif pointer.arg in kept:
                if is_partial(node) or (point := self.point_for(node)) is None:
                    return None
                offset = flatten(point, greatest_shape(node.shape))
                loops = self.loops if varying(point) == varying(loops_over(node)) else ()
                if not covers(offset, numel(node), loops):
                    return None
                found[pointer.arg] = pointer.at(offset).store(self.read(node, point))
        return None if self.repeats else found

    @property
    def inside(self) -> frozenset[UOp]:
        """The loops in which other outputs than those of the root are computed."""
        others = (p for n, p in self.places.items() if n not in self.root.outputs)
        return frozenset(r for place in others for index in place.point for r in index.ranges)

    def point_for(self, node: UOp) -> Point | None:
        """The point at which an output is read; of one that is not, a point in loops of another at
        which it reads others as they are read already."""
        if place := self.places.get(node):
            return None if place.gate is not None else place.point
        before, sizes = dict(self.places), [n for n in greatest_shape(node.shape) if n != 1]
        alike = next((p.point for n, p in before.items() if numel(n) == numel(node)), ())
        for order in permutations([index for index in alike if index is not ZERO]):
            if [index.extent for index in order] != sizes:
                continue
            left = iter(order)
            point = tuple([ZERO if n == 1 else next(left) for n in node.shape])
            self.read(node, point)
            if not self.repeats:
                return point
            self.places, self.repeats = dict(before), False
        return None

    def with_digits_apart(self) -> Inlined | None:
        """The same over loops that are split where all outputs are read by digits of their
        counters, as by head and feature; None if none is."""
        nodes = UOp.sink(*[i for place in self.places.values() for i in place.point]).toposort()
        taken: dict[int, UOp] = {}
        for place, loop in enumerate(self.point):
            if loop.op is Op.RANGE and (size := digit_size(loop, nodes)) is not None:
                number = len(self.point) + 2 * len(taken)
                outer = UOp.range(loop.extent // size, number, AxisKind.LOOP)
                taken[place] = outer * size + UOp.range(size, number + 1, AxisKind.LOOP)
        point = tuple([taken.get(place, index) for place, index in enumerate(self.point)])
        return Inlined(*self.given, point) if taken else None


def simplified(index: UOp) -> UOp:
    """An index in normal form."""
    return index if index.op is Op.RANGE else rewrite(index, simplify, name="simplify a place")


def varying(point: Point) -> Counter[UOp]:
    """The lengths known at launch only of the loops that a point depends on."""
    loops = {r for index in point for r in index.ranges}
    return Counter(loop.src[0] for loop in loops if not loop.is_fixed)


def covers(offset: UOp, size: int, loops: Collection[UOp]) -> bool:
    """True if an offset goes through all elements of some memory, each once, by some loops."""
    bases, start = terms_of(simplified(offset))
    stride = 1
    for loop, step in sorted(bases.items(), key=lambda pair: pair[1]):
        if loop not in loops or step != stride:
            return False
        stride *= loop.extent
    return start == 0 and stride == size
