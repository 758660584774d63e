"""Range analysis: a region of the tensor graph as arithmetic over loop counters.

Floor 3. Every tensor value is read at a *point*: one index expression per axis. Movement ops only
change the point on the way down, so nothing like a view object exists: a permute swaps two
expressions, a reshape divides, a pad adds a gate. Reductions open new loop counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinycore.dtype import ImageDType, PointerDType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.schedule.kernel import numel
from tinycore.uop.movement import source_below
from tinycore.uop.node import UOp, as_index, as_scalar
from tinycore.uop.op import ALU, MOVEMENT, PARTIAL_WRITES, SAME_VALUE, AxisKind, Merge, Op
from tinycore.uop.shape import Shape
from tinycore.uop.size import greatest, greatest_shape

Point = tuple[UOp, ...]
"""Coordinates at which a tensor is read: one index per axis."""

ZERO = UOp.index(0)
TRANSPARENT = SAME_VALUE | {Op.CONTIGUOUS, Op.VALUE}
"""Hints to the scheduler, which change no value."""


class Place(NamedTuple):
    """One value of the tensor graph, read at a point, where `gate` holds (None: everywhere)."""

    node: UOp
    point: Point
    gate: UOp | None


Reading = Generator[Place, UOp, UOp]
"""The reading of a value, which asks for those at other places and returns it."""


class Moved(NamedTuple):
    """The point at which a movement op reads its source, and its validity (None: everywhere)."""

    point: Point
    valid: UOp | None = None


def both(a: UOp | None, b: UOp | None) -> UOp | None:
    """The conjunction of two optional conditions."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def flatten(point: Point, shape: Shape) -> UOp:
    """The row-major offset of a point."""
    offset, stride = ZERO, 1
    for index, size in zip(reversed(point), reversed(shape), strict=True):
        if size != 1:
            offset = index * stride + offset if offset is not ZERO else index * stride
        stride *= size
    return offset


def unflatten(offset: UOp, shape: Shape) -> Point:
    """The point at a row-major offset."""
    point: list[UOp] = []
    stride = 1
    for axis in reversed(range(len(shape))):
        index = offset // stride if stride != 1 else offset
        point.append(index % shape[axis] if axis else index)
        stride *= shape[axis]
    return tuple(reversed(point))


def reshaped(point: Point, shape: Shape, source: Shape) -> Point:
    """Read an array of shape `source` at the point of its reshape to `shape`.

    Axes are matched in groups of equal size, so that only axes that really merge or split
    meet a division.
    """
    if 0 in shape:
        return (ZERO,) * len(source)
    here = [(p, n) for p, n in zip(point, shape, strict=True) if n != 1]
    there = [axis for axis, n in enumerate(source) if n != 1]
    result = [ZERO] * len(source)
    while there:
        group, axes = [here.pop(0)], [there.pop(0)]
        while (left := math.prod(n for _, n in group)) != (
            right := math.prod(source[a] for a in axes)
        ):
            if not there or (here and greatest(left) < greatest(right)):
                group.append(here.pop(0))
            else:
                axes.append(there.pop(0))
        offset = flatten(tuple(p for p, _ in group), tuple(n for _, n in group))
        inner = unflatten(offset, tuple(source[a] for a in axes))
        for axis, index in zip(axes, inner, strict=True):
            result[axis] = index
    return tuple(result)


def read_through(node: UOp, point: Point) -> Moved:
    """The point at which a movement op's source is read when its result is read at `point`."""
    source = node.src[0].shape
    match node.op:
        case Op.RESHAPE:
            return Moved(reshaped(point, node.shape, source))
        case Op.EXPAND:
            inner = [ZERO if n == 1 else p for p, n in zip(point, source, strict=True)]
        case Op.PERMUTE:
            inner = [point[node.arg.index(axis)] for axis in range(len(source))]
        case Op.SHRINK:
            inner = [p + a if a else p for p, (a, _) in zip(point, node.arg, strict=True)]
        case Op.FLIP:
            flips = zip(point, source, node.arg, strict=True)
            inner = [(n - 1) - p if is_flipped else p for p, n, is_flipped in flips]
        case Op.PAD:
            return padded(node, point)
        case Op.SKEW:
            return skewed(node, point)
        case _:
            return unskewed(node, point)
    return Moved(tuple(inner))


def padded(node: UOp, point: Point) -> Moved:
    """PAD: outside the source nothing is read."""
    inner: list[UOp] = []
    valid: UOp | None = None
    for index, size, (before, after) in zip(point, node.src[0].shape, node.arg, strict=True):
        moved = index - before if before else index
        inner.append(ZERO if size == 1 else moved)
        if before:
            valid = both(valid, moved >= 0)
        if after:
            valid = both(valid, moved < size)
    return Moved(tuple(inner), valid)


def skewed(node: UOp, point: Point) -> Moved:
    """SKEW: index o of the axis and k of the window axis read o*stride + k*dilation."""
    how = node.arg
    inner = list(point)
    inner[how.axis] = point[how.axis] * how.stride + point[how.window_axis] * how.dilation
    return Moved(tuple(inner))


def unskewed(node: UOp, point: Point) -> Moved:
    """UNSKEW: index i and window index k read (i - k*dilation) / stride, where that is exact."""
    how = node.arg
    inner = list(point)
    offset = point[how.axis] - point[how.window_axis] * how.dilation
    inner[how.axis] = offset // how.stride if how.stride != 1 else offset
    valid = (offset >= 0) & (inner[how.axis] < node.src[0].shape[how.axis])
    if how.stride != 1:
        valid = valid & (offset % how.stride).eq(0)
    return Moved(tuple(inner), valid)


class RegionReader:
    """Reads one fused region of the tensor graph as arithmetic.

    `leaf` maps a node that lives in memory to the pointer it is loaded from, or None for a node to
    be computed here.
    """

    def __init__(self, leaf: Callable[[UOp], UOp | None], first_range: int) -> None:
        self.leaf = leaf
        self.next_range = first_range
        self.done: dict[Place, UOp] = {}
        self.opened: dict[tuple[object, ...], tuple[UOp, ...]] = {}
        self.levels: dict[UOp, int] = {}

    def read(self, node: UOp, point: Point, gate: UOp | None = None) -> UOp:
        """The value of `node` at `point` as a kernel expression."""
        done, stack = self.done, list[tuple[Place, Reading]]()
        place = Place(node, point, gate)
        while (value := done.get(place)) is None or stack:
            if value is None:
                stack.append((place, self.step(place)))
            above, reading = stack[-1]
            try:
                place = next(reading) if value is None else reading.send(value)
            except StopIteration as end:
                place, done[above] = above, end.value
                stack.pop()
        return value

    def step(self, place: Place) -> Reading:
        """The reading of a value."""
        node, point, gate = place
        if (pointer := self.leaf(node)) is not None:
            return gated_load(pointer, flatten(point, greatest_shape(node.shape)), gate)
        if node.op is Op.CONST:
            return UOp.const(node.dtype, node.arg)
        if node.op is Op.ARANGE:
            return point[0].cast(node.dtype)
        if node.op is Op.BIND:
            return as_index(node.arg).cast(node.dtype)
        if node.op in ALU:
            values: list[UOp] = []
            for source in reversed(node.src):
                value = yield Place(source, point, gate)
                values.append(value)
            return UOp(node.op, node.dtype, tuple(reversed(values)), node.arg)
        if node.op in TRANSPARENT:
            return (yield Place(node.src[0], point, gate))
        if node.op is Op.ASSIGN:  # another output of this kernel: what it stores
            return (yield Place(node.src[1], point, gate))
        if node.op in MOVEMENT:
            return (yield from self.rearranged(place))
        if node.op is Op.REDUCE_AXIS:
            return (yield from self.reduce(place))
        if node.op is Op.SCAN_AXIS:
            op, axis = node.arg
            value, counter = (yield Place(node.src[0], point, gate)), point[axis]
            return UOp(Op.SCAN, value.dtype, (value, counter), op) if counter is not ZERO else value
        if node.op is Op.MERGE_AXIS:
            return merged(self.read, node, point)
        assert node.op is Op.GATHER, f"{node!r} cannot be part of a kernel"
        return (yield from self.gather(place))

    def rearranged(self, place: Place) -> Reading:
        """The value below a chain of movement ops, composed in one step."""
        node, point, gate = place
        if (constant := repeated_constant(node)) is not None:
            return UOp.const(constant.dtype, constant.arg)
        valid: UOp | None = None
        while node.op in MOVEMENT and (node is place.node or self.leaf(node) is None):
            moved = read_through(node, point)
            node, point = node.src[0], moved.point
            gate, valid = both(gate, moved.valid), both(valid, moved.valid)
        return zero_unless(valid, (yield Place(node, point, gate)))

    def reduce(self, place: Place) -> Reading:
        """A REDUCE over new counters of the reduced axes."""
        node, point, gate = place
        op, axes = node.arg
        source_shape = node.src[0].shape
        counters = self.counters(place, [source_shape[axis] for axis in axes])
        inner = list(point)
        for axis, counter in zip(axes, counters, strict=True):
            inner[axis] = counter
        value = yield Place(node.src[0], tuple(inner), gate)
        loops = [c for c in counters if c.op is Op.RANGE]
        ranges = tuple(c for c in loops if op is Op.MUL or c in value.ranges)
        if op is Op.ADD:
            value = repeat_sum(value, [c.src[0] for c in loops if c not in ranges])
        if ranges and value.op is Op.REDUCE and value.arg is op:  # a sum of sums is one sum
            return value.with_src((value.src[0], *ranges, *value.src[1:]))
        return UOp(Op.REDUCE, value.dtype, (value, *ranges), op) if ranges else value

    def counters(self, place: Place, sizes: list[int]) -> tuple[UOp, ...]:
        """Counters of reduced axes. Independent reductions of one shape share their loops."""
        key = self.key(place, sizes)
        if key not in self.opened:
            found = []
            for size in sizes:
                found.append(
                    ZERO if size == 1 else UOp.range(size, self.next_range, AxisKind.REDUCE)
                )
                self.next_range += size != 1
            self.opened[key] = tuple(found)
        return self.opened[key]

    def key(self, place: Place, sizes: Sequence[int]) -> tuple[object, ...]:
        """Reductions of axes of some sizes at places with the same key share their counters."""
        return self.level(place.node), place.point, place.gate, *sizes

    def level(self, node: UOp) -> int:
        """Most reductions of this region on a path below a node."""
        for n in node.toposort(lambda n: n not in self.levels and self.leaf(n) is None):
            if n not in self.levels:
                below = (
                    0
                    if self.leaf(n) is not None
                    else max((self.levels[s] for s in n.src), default=0)
                )
                self.levels[n] = below + (n.op is Op.REDUCE_AXIS)
        return self.levels[node]

    def gather(self, place: Place) -> Reading:
        """Rows read at an index that is itself read from memory."""
        (table, index), point, gate = place.node.src, place.point, place.gate
        position = yield Place(index, point[: len(index.shape)], gate)
        row = position.cast(dtypes.index)
        valid = (row >= 0) & (row < table.shape[0])
        source = Place(table, (row, *point[len(index.shape) :]), both(gate, valid))
        return zero_unless(valid, (yield source))


def zero_unless(valid: UOp | None, value: UOp) -> UOp:
    """A value; zero where it is not valid."""
    return value if valid is None else valid.where(value, value.const_like(0))


def repeated_constant(node: UOp) -> UOp | None:
    """The number that all elements are, where a node only repeats and reshapes one."""
    node = source_below(node, (Op.RESHAPE, Op.EXPAND))
    return node if node.op is Op.CONST else None


def repeat_sum(value: UOp, counts: list[UOp]) -> UOp:
    """The sum of equal values, as many as the product of some counts."""
    known = math.prod(c.arg for c in counts if c.op is Op.CONST)
    if known != 1:
        value = value * value.const_like(as_scalar(known, value.dtype))
    for count in counts:
        if count.op is not Op.CONST:
            value = value * count.cast(value.dtype)
    return value


def gated_load(pointer: UOp, offset: UOp, gate: UOp | None) -> UOp:
    """The element of a buffer at an offset; zero where the gate is false."""
    assert isinstance(pointer.dtype, PointerDType)
    base = pointer.dtype.base
    if gate is None:
        return pointer.at(offset).load(base)
    index = pointer.at(offset, gate)
    return index.load(base, UOp.const(base, 0))


# --- merges: a MERGE_AXIS as arithmetic over loop counters, sorted runs in independent pieces

# Element t of a piece is the first that is left of two runs, of equal ones that of the first run.
# How many the first run has given before the piece is found by bisection: O. Green, S. Odeh & Y.
# Birk, "Merge path: a visually intuitive approach to parallel merging" (2014). From there on it is
# a recurrence. See docs/floors/schedule.md.

Read = Callable[[UOp, Point], UOp]
"""The value of a node at a point."""

GIVEN_COUNT = UOp(Op.STATE, dtypes.index, (), 0)
"""Number of elements that the first run has given."""
FOUND = UOp(Op.STATE, dtypes.index, (), 1)
"""Lower bound of that number."""


def merged(read: Read, node: UOp, point: Point) -> UOp:
    """The value of a MERGE_AXIS at a point, whose last counter is that of a sequential loop."""
    keys, values = node.src
    how: Merge = node.arg
    *outer, piece, step = point
    first = piece * how.piece
    pair = Pair(
        read, keys, tuple(outer), first // how.kept * (2 * how.run), first % how.kept, how.run
    )
    start = pair.given_before(len(point)) if how.piece < how.kept else UOp.index(0)
    following = GIVEN_COUNT + pair.takes_first(GIVEN_COUNT, step).cast(dtypes.index)
    given = UOp(Op.RECUR, dtypes.index, (start, following, step), GIVEN_COUNT.arg)
    here, there = pair.in_first(given), pair.in_second(given, step)
    if values is keys:
        return pair.takes_first(given, step).where(pair.key(here), pair.key(there))
    return read(values, (*outer, pair.takes_first(given, step).where(here, there)))


@dataclass(frozen=True)
class Pair:
    """Two adjacent sorted runs; the last ones may be shorter."""

    read: Read
    keys: UOp
    outer: Point
    start: UOp
    """Start of the first run."""
    done: UOp
    """Number of elements of both runs before the piece that is merged."""
    run: int
    """The elements of a run."""

    @property
    def size(self) -> int:
        """The elements of all runs."""
        return self.keys.shape[-1]

    @property
    def length(self) -> UOp:
        """Length of the second run; 0 if there is none."""
        left = UOp.index(self.size - self.run) - self.start
        return left.minimum(self.run).maximum(0)

    def key(self, place: UOp) -> UOp:
        """The key of an element."""
        return self.read(self.keys, (*self.outer, place))

    def inside(self, place: UOp) -> UOp:
        """A position, clamped to that of the last element, where the value read does not matter."""
        return place.minimum(self.size - 1)

    def in_first(self, given: UOp) -> UOp:
        """The place of an element of the first run; after the last one, of the second run's."""
        return self.start + given

    def in_second(self, given: UOp, step: UOp) -> UOp:
        """The position of the next element of the second run when the first has given some."""
        return self.inside(self.start + self.run + self.done + step - given)

    def takes_first(self, given: UOp, step: UOp) -> UOp:
        """True if the next element is the first run's."""
        lesser = self.key(self.in_first(given)) <= self.key(self.in_second(given, step))
        left = given < self.run
        over = self.done + step - given >= self.length
        return over | (left & lesser)

    def given_before(self, number: int) -> UOp:
        """Elements of the first run before the piece, by bisection in a loop of that number."""
        least = (self.done - self.length).maximum(0)
        most = self.done.minimum(self.run)
        halving = UOp.range(self.run.bit_length(), number, AxisKind.ORDERED)
        more = UOp.index(self.run) >> halving
        last = FOUND + more - 1
        other = self.start + self.run + self.done - 1 - last
        lesser = self.key(self.inside(self.start + last)) <= self.key(self.inside(other))
        following = ((last < most) & lesser).where(FOUND + more, FOUND)
        return UOp(Op.ITERATE, dtypes.index, (least, following, halving), FOUND.arg)


# --- images: whole pixels, four neighboring elements at a time

PIXEL_CHANNELS = ImageDType.CHANNELS


def pixels_of(node: UOp) -> Point:
    """One counter for each axis of the stored value, the last one in steps of a pixel; if that axis
    does not consist of whole pixels, one counter of pixels for all axes.
    """
    refuse_parts(node)
    shape = node.shape
    whole = has_whole_pixels(shape)
    rest = (*shape[:-1], shape[-1] // PIXEL_CHANNELS) if whole else (numel(node) // PIXEL_CHANNELS,)
    return tuple(
        [UOp.range(n, axis, AxisKind.LOOP) if n != 1 else ZERO for axis, n in enumerate(rest)]
    )


def has_whole_pixels(shape: Shape) -> bool:
    """True if rows along the last axis are whole pixels."""
    return bool(shape) and shape[-1] % PIXEL_CHANNELS == 0


def store_pixel(reader: RegionReader, node: UOp, point: Point, pointer: UOp) -> UOp:
    """The STORE of the pixel at a point of `pixels_of`."""
    value, shape = node.src[1] if node.op is Op.ASSIGN else node, node.shape
    *outer, last = point
    channels = [last * PIXEL_CHANNELS + channel for channel in range(PIXEL_CHANNELS)]
    if has_whole_pixels(shape):
        places: list[Point] = [(*outer, channel) for channel in channels]
        start = flatten(places[0], shape)
    else:
        places = [unflatten(channel, shape) for channel in channels]
        start = channels[0]
    lanes = tuple([reader.read(value, place) for place in places])
    pixel = UOp(Op.VECTORIZE, lanes[0].dtype.vec(PIXEL_CHANNELS), lanes)
    return pointer.at(start).store(pixel)


def refuse_parts(node: UOp) -> None:
    """Raise UnsupportedError for a change of some elements of an image."""
    change = node.src[1] if node.op is Op.ASSIGN else node
    if change.op in PARTIAL_WRITES and change.src[0] is node.src[0]:
        raise UnsupportedError(
            "an image is written as a whole: no part of it can be changed in place. Change a copy "
            "in plain memory, x.clone(), and write all of it: x.assign(copy)"
        )
