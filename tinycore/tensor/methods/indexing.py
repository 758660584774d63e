"""Indexing, `t[...]` and `t[...] = v`: slices, integers, None, ellipsis, tensors and masks.

Floor 5. The rules are torch's: those of NumPy, but ints are taken first. Slices and integers only
move elements; tensors of indices gather rows, negative ones counting from the end. An index that a
tensor holds cannot be checked before it is computed: out of range it reads 0 and writes nothing. A
bool mask makes a shape that depends on data, so it is computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import EllipsisType, NoneType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from tinycore._deferred import NumpyArray, numpy
from tinycore._lru import Lru
from tinycore.dtype import Scalar, dtypes, from_numpy_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError, IndexRangeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import (
    broadcast_shapes,
    counter_dtype,
    int_arguments,
    integer_dtype,
    repeats_to,
    same_device,
)
from tinycore.tensor.methods.creation import Creation
from tinycore.tensor.methods.data import SupportsArray, nested_shape
from tinycore.tensor.methods.operands import on_one_device
from tinycore.tensor.storage.writes import overwrite
from tinycore.uop.node import UOp
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size, are_ints, greatest, is_size

Index: TypeAlias = "int | slice | Creation | Sequence[Any] | SupportsArray | EllipsisType | None"


INTS_AND_SLICES: Final = frozenset({int, slice})
PLAIN_ENTRIES: Final = frozenset({int, slice, NoneType, EllipsisType, Size})
"""Types of entries that are neither tensors nor arrays."""
BOUNDS: Final = frozenset({int, NoneType})


class AxisIndex(NamedTuple):
    """Index of one axis: `size` elements from `start` by `step`."""

    start: int
    size: int
    step: int
    keep: bool  # False for an integer, whose axis goes away


class Flag(NamedTuple):
    """A bool without axes, as rows of a new axis of size 1: row 0 once, or never."""

    rows: Creation


class Parsed(NamedTuple):
    """An index after parsing."""

    boxes: list[AxisIndex]  # one per axis of the tensor
    layout: list[int | None]  # axes of the result of the boxes that stay; None for a new one
    rows: dict[int, Creation]  # position in the layout -> tensor of indices along that axis

    @property
    def before(self) -> int:
        """Number of other axes before those of the tensors of indices; 0 if these are apart.

        An index without axes, like an int, is taken first and separates none, as in torch.
        """
        scalars = [at for at, index in self.rows.items() if not index.ndim]
        seen = [at for at in range(len(self.layout)) if at not in scalars]
        places = [seen.index(at) for at in self.rows if at not in scalars]
        return places[0] if places and adjacent(places) else 0


def host_entry(entry: Any) -> Any:
    """One entry of an index, what the host knows of it as an int, slice or NumPy array."""
    if type(entry) is int or entry is None:
        return entry
    if isinstance(entry, (Creation, slice, Size, EllipsisType, str)):
        return entry
    if isinstance(entry, (list, tuple)) and any(isinstance(e, Creation) for e in entry):
        first = next(e for e in entry if isinstance(e, Creation))
        rows = [first.ufix(e) for e in entry]
        return rows[0].stack(*rows[1:])
    if isinstance(entry, (list, tuple, range)):
        entry = list(entry) if isinstance(entry, range) else entry
        nested_shape(entry)  # raises for ragged lists, and the next line for what is no number
        dtypes.from_py(entry)
        array = numpy.array(entry)
        return array if array.size else array.astype(numpy.int64)
    if isinstance(entry, (bool, numpy.bool_)):
        return numpy.array(entry)
    if isinstance(entry, (SupportsArray, numpy.ndarray)):
        array = numpy.asarray(entry)
        return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else array
    return entry


def is_mask(entry: Any) -> bool:
    """True if an entry is an array or tensor of bools."""
    if isinstance(entry, Creation):
        return entry.dtype is dtypes.bool
    return isinstance(entry, NumpyArray) and entry.dtype == numpy.bool_


def axes_of(entry: Any) -> int:
    """Number of axes of the tensor that an entry stands for."""
    if entry is None or entry is Ellipsis:
        return 0
    if type(entry) in INTS_AND_SLICES:
        return 1
    return int(entry.ndim) if is_mask(entry) else 1


def spelled_out(entries: list[Any], shape: Shape) -> list[Any]:
    """The entries, with whole slices for the ellipsis and for the axes left out at the end.

    Raises IndexRangeError for too many entries, or for a second ellipsis.
    """
    if len(entries) == len(shape) and INTS_AND_SLICES.issuperset(map(type, entries)):
        return entries
    used = sum(axes_of(e) for e in entries)
    if used > len(shape):
        raise IndexRangeError(f"index: {used} entries for the {len(shape)} axes of shape {shape}")
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexRangeError("index: only one ellipsis (...) can be told apart")
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    return [*entries[:at], *[slice(None)] * (len(shape) - used), *entries[at + 1 :]]


def check_positions(places: numpy.ndarray[Any, Any], axis: int, shape: Shape) -> None:
    """Raises DTypeError unless integers, IndexRangeError for one outside its axis."""
    integer_dtype("index", from_numpy_dtype(places.dtype), "index")
    outside = places[(places < -shape[axis]) | (places >= shape[axis])]
    if outside.size:
        raise IndexRangeError(f"index: {outside[0]} is outside axis {axis} of shape {shape}")


paths: Final[Lru[tuple[Any, ...], tuple[graph.Movement, ...]]] = Lru(1024)
"""The movement of indices of ints and slices, by shape and index."""


def plain_key(index: Any, shape: Shape) -> tuple[Any, ...] | None:
    """The key of an index of plain ints and slices; None for another, or a symbolic shape."""
    words: list[Any] = [shape]
    for entry in index if type(index) is tuple else (index,):
        if type(entry) is slice:
            bounds = entry.start, entry.stop, entry.step
            if not BOUNDS.issuperset(map(type, bounds)):
                return None
            words.append(bounds)
        elif type(entry) is int or entry is None or entry is Ellipsis:
            words.append(entry)
        else:
            return None
    return tuple(words) if are_ints(shape) else None


def parse(x: Creation, entries: Sequence[Any]) -> Parsed:
    """Take an index apart that has an entry for every axis. Raises IndexRangeError outside one."""
    parsed = Parsed([], [], {})
    for entry in entries:
        if entry is None or isinstance(entry, Flag):
            if isinstance(entry, Flag):
                parsed.rows[len(parsed.layout)] = entry.rows
            parsed.layout.append(None)
            continue
        axis = len(parsed.boxes)
        if isinstance(entry, Creation):
            integer_dtype("index", entry.dtype, "index")
            parsed.rows[len(parsed.layout)] = entry
            entry = slice(None)
        box = axis_index(entry, x.shape[axis], axis, x.shape)
        parsed.boxes.append(box)
        if box.keep:
            parsed.layout.append(axis)
    return parsed


def axis_index(entry: Any, size: int, axis: int, shape: Shape) -> AxisIndex:
    """One slice or integer.

    Raises IndexRangeError for an integer outside, ArgumentError for anything else.
    """
    if type(entry) is slice and entry.start is entry.stop is entry.step is None:
        return AxisIndex(0, size, 1, True)
    if has_size(entry, size):
        return symbolic_index(entry, size, axis, shape)
    if isinstance(entry, slice):
        start, stop, step = slice_bounds(entry, size)
        count = len(range(start, stop, step))
        return AxisIndex(start if count else 0, count, step, True)
    if isinstance(entry, (int, numpy.integer)):
        place = int(entry)
        if not -size <= place < size:
            raise IndexRangeError(f"index: {place} is outside axis {axis} of shape {shape}")
        return AxisIndex(place % size, 1, 1, False)
    raise ArgumentError(f"index: {entry!r} is no integer, slice, None, ellipsis, list or tensor")


def has_size(entry: Any, size: int) -> bool:
    """True if an axis has a Size, or an entry is one or a slice with one."""
    bounds = (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)
    found = (size, *bounds)
    return not BOUNDS.issuperset(map(type, found)) and any(isinstance(n, Size) for n in found)


def symbolic_index(entry: Any, size: int, axis: int, shape: Shape) -> AxisIndex:
    """A slice or an integer of which some part is known at launch only.

    Ints are truncated at the ends of the axis, as in slices of lists. Raises IndexRangeError for a
    Size outside of it, where a cache would silently lose elements.
    """
    if isinstance(entry, slice):
        return symbolic_slice(entry, size, axis, shape)
    (place,) = from_front([entry], size)
    if not 0 <= place < size:
        raise outside(entry, axis, shape)
    return AxisIndex(place, 1, 1, False)


def symbolic_slice(entry: slice, size: int, axis: int, shape: Shape) -> AxisIndex:
    """A slice of which some part, or the axis, is known at launch only."""
    step = 1 if entry.step is None else int_arguments("index", [entry.step], "a step is an int")[0]
    if is_size(step) or step == 0:
        raise ArgumentError(f"index: the step of {entry!r} must be an int other than 0")
    first, last = (0, size) if step > 0 else (size - 1, -1)
    start = first if entry.start is None else bound(entry.start, entry, step, axis, shape)
    stop = last if entry.stop is None else bound(entry.stop, entry, step, axis, shape)
    length = distance(start, stop) if step > 0 else distance(stop, start)
    if length < 0:
        if is_size(entry.start) and is_size(entry.stop):
            raise outside(entry, axis, shape)
        length = 0
    if greatest(length) <= 0 or (step != 1 and length <= 0):  # no last element to step back from
        return AxisIndex(0, 0, 1, True)
    return AxisIndex(start, length if step == 1 else -(-length // abs(step)), step, True)


def distance(start: int, stop: int) -> int:
    """Distance from one place to another; a Size stays as it is where the first one is 0."""
    return stop if type(start) is int and start == 0 else stop - start


def bound(place: Any, entry: slice, step: int, axis: int, shape: Shape) -> int:
    """Position where a slice of an axis starts or stops, clamped to it."""
    size = shape[axis]
    (found,) = from_front([place], size)
    least, most = (0, size) if step > 0 else (-1, size - 1)
    if least <= found <= most:
        return found
    if is_size(place):
        raise outside(entry, axis, shape)
    return max(least, min(found, most))


def outside(entry: Any, axis: int, shape: Shape) -> IndexRangeError:
    """The error for an index outside of an axis, with the present numbers of Variables."""
    what = repr(entry)
    if isinstance(entry, slice):
        what = ":".join(["" if n is None else repr(n) for n in (entry.start, entry.stop)])
    return IndexRangeError(f"index: {what} is not inside axis {axis} of shape {shape}")


def from_front(places: Sequence[Any], size: int) -> list[int]:
    """Indices on an axis, negative ones counted from its end."""
    found = int_arguments("index", places, "an index is an int")
    return [n + size if n < 0 else n for n in found]


def slice_bounds(entry: slice, size: int) -> tuple[int, int, int]:
    """(start, stop, step) within an axis. Raises ArgumentError for step 0 or what is no integer."""
    try:
        return entry.indices(size)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"index: {entry!r} is no slice of ints: {error}") from None


def adjacent(places: Sequence[int]) -> bool:
    """True if indices are consecutive."""
    return all(b == a + 1 for a, b in pairwise(places))


class Indexing(Creation):
    """Reading and writing parts of a tensor."""

    __slots__ = ()

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        """The elements an index names.

        Raises IndexRangeError outside the axes or for too many entries.
        """
        key = plain_key(index, self.uop.shape)
        if key is not None and (path := paths.find(key)) is not None:
            return self._as_view(graph.moved_along(self.uop, path))
        parsed = parse(self, self._entries(index))
        found = self._boxed(parsed)._gathered(parsed)
        if key is not None:
            paths.keep(key, graph.path_between(self.uop, found.uop))
        return found

    def __iter__(self) -> Iterator[Self]:
        """The parts along the first axis. Raises TypeError when there is no axis."""
        if not self.ndim:
            raise ArgumentTypeError("iteration over a tensor with no axes")
        return map(self.__getitem__, range(self.shape[0]))

    def __setitem__(
        self, index: Index | tuple[Index, ...], value: Self | Scalar | Sequence[Any] | SupportsArray
    ) -> None:
        """Write `value`, broadcast, where an index points; the last one wins where it points twice.

        Raises ShapeError when the value does not fit, IndexRangeError outside the axes.
        """
        if (
            isinstance(index, Indexing)
            and index.dtype is dtypes.bool
            and isinstance(value, (bool, int, float))
        ):
            overwrite(self, self._masked(index, value).uop)
            return
        parsed = parse(self, self._entries(index))
        new = value if isinstance(value, Indexing) else self._ufix_nested(value)
        _, node = on_one_device("setitem", [self.uop, new.uop])
        new = new if node is new.uop else self._from_node(node)
        new, box = new.cast(self.dtype), self._box(parsed)
        if parsed.rows:
            region = self._boxed(parsed)
            changed = region._with_rows(parsed, new._fitting(region._gathered(parsed).shape))
        else:  # a view of the place would be one more tensor to show what is written
            changed = new._fitting(sizes_laid_out(parsed, box))
        overwrite(self, graph.reshape(changed.uop, box.shape), box)

    def _masked(self, mask: Creation, value: Scalar) -> Self:
        """This tensor with a number where a mask of its leading axes holds; not computed yet."""
        if mask.shape != self.shape[: mask.ndim]:
            raise IndexRangeError(
                f"setitem: a mask of shape {mask.shape} does not cover the first axes of "
                f"{self.shape}"
            )
        wide = self._from_node(
            graph.reshape(mask.uop, (*mask.shape, *[1] * (self.ndim - mask.ndim)))
        )
        return wide.where(self.const_like(value), self)

    def _ufix_nested(self, value: Scalar | Sequence[Any] | SupportsArray) -> Self:
        """A number or nested list as a tensor of this dtype and device."""
        data = value if isinstance(value, (bool, int, float, Size, SupportsArray)) else list(value)
        return type(self)(data, device=self.device, dtype=self.dtype)

    # --- reading

    def _entries(self, index: Any) -> list[Any]:
        """The index with an entry for every axis: no ellipsis, lists and masks as tensors.

        Raises IndexRangeError for positions in a list or an array that are outside their axis.
        """
        given = index if isinstance(index, tuple) else (index,)
        if PLAIN_ENTRIES.issuperset(map(type, given)):
            return spelled_out([*given], self.shape)
        found: list[Any] = []
        axis = 0
        for entry in spelled_out([host_entry(e) for e in given], self.shape):
            if is_mask(entry):
                found += self._mask_positions(entry, axis)
            elif isinstance(entry, NumpyArray):
                check_positions(entry, axis, self.shape)
                found.append(type(self)(entry, device=self.device))
            else:
                found.append(entry)
            axis += axes_of(entry)
        return found

    def _mask_positions(self, mask: Any, axis: int) -> list[Self | Flag]:
        """Integer tensors naming the true elements of a mask of some axes. Computes the mask."""
        beside = self.shape[axis : axis + mask.ndim]
        if mask.shape != beside:
            raise IndexRangeError(
                f"index: a mask of shape {mask.shape} does not cover axes {beside} of {self.shape}"
            )
        array = mask._host_array() if isinstance(mask, Indexing) else mask
        found = numpy.nonzero(array) if array.ndim else (numpy.zeros(int(array)),)
        kind = counter_dtype(*beside)
        rows = [type(self)(places, device=self.device, dtype=kind) for places in found]
        return [*rows] if array.ndim else [Flag(rows[0])]

    def _host_array(self) -> numpy.ndarray[Any, Any]:
        """The elements as a NumPy array; the realizing class provides it."""
        raise NotImplementedError

    def _boxed(self, parsed: Parsed) -> Self:
        """The part that slices and integers leave, in the layout of the result."""
        node = self._box(parsed)
        return self._as_view(graph.reshape(node, sizes_laid_out(parsed, node)))

    def _box(self, parsed: Parsed) -> UOp:
        """The part that slices and integers leave, with all axes."""
        node = self.uop
        for axis, box in enumerate(parsed.boxes):
            node = take_box(node, axis, box)
        return node

    def _gathered(self, parsed: Parsed) -> Self:
        """Rows picked by integer tensors: in the place of their axes if adjacent, else in front."""
        if not parsed.rows:
            return self
        axes = list(parsed.rows)
        index = linear_index(self, parsed.rows)
        order = axes + [a for a in range(self.ndim) if a not in axes]
        table = graph.permute(self.uop, order)
        rest = table.shape[len(axes) :]
        table = graph.reshape(table, (math.prod(table.shape[: len(axes)]), *rest))
        found = self._from_node(graph.gather(table, index))
        count, before = len(index.shape), parsed.before
        if not before:
            return found
        return self._from_node(
            graph.permute(
                found.uop,
                [*range(count, count + before), *range(count), *range(count + before, found.ndim)],
            )
        )

    # --- writing

    def _with_rows(self, parsed: Parsed, value: Self) -> Self:
        """This tensor with rows replaced by `value`, which has the layout of `gathered`."""
        axes = list(parsed.rows)
        others = [a for a in range(self.ndim) if a not in axes]
        axis = parsed.before
        order = others[:axis] + axes + others[axis:]
        moved = graph.permute(self.uop, order)
        before, after = moved.shape[:axis], moved.shape[axis + len(axes) :]
        index = linear_index(self, parsed.rows)
        count = math.prod(index.shape)
        shape = (*before, count, *after)
        places = graph.broadcast_to(graph.reshape(index, (count, *[1] * len(after))), shape)
        merged = graph.reshape(moved, (*before, math.prod(self.shape[a] for a in axes), *after))
        done = graph.scatter(merged, places, graph.reshape(value.uop, shape), None, axis)
        back = [order.index(a) for a in range(self.ndim)]
        return self._from_node(graph.permute(graph.reshape(done, moved.shape), back))

    def _fitting(self, shape: Shape) -> Self:
        """Broadcast to a shape, leading axes of size 1 dropped. Raises ShapeError."""
        x = self
        while x.ndim > len(shape) and x.shape[0] == 1:
            x = x.squeeze(0)
        if not repeats_to(x.shape, shape):
            raise ShapeError(
                f"setitem: a value of shape {self.shape} does not fit a place of shape {shape}"
            )
        return self._from_node(graph.broadcast_to(x.uop, shape))


def sizes_laid_out(parsed: Parsed, box: UOp) -> Shape:
    """The shape that slices and integers leave, in the layout of the result."""
    sizes = box.shape
    return tuple([1 if axis is None else sizes[axis] for axis in parsed.layout])


def span(box: AxisIndex) -> tuple[int, int]:
    """The elements from the first to the last that a box touches."""
    if box.step == 1:
        return box.start, box.start + box.size
    last = box.start + (box.size - 1) * box.step
    return (min(box.start, last), max(box.start, last) + 1) if box.size else (0, 0)


def take_box(node: UOp, axis: int, box: AxisIndex) -> UOp:
    """One axis reduced to its part of a box."""
    if box.step == 1 and box.start == 0 and box.size == node.shape[axis]:
        return node
    pairs = [(0, n) for n in node.shape]
    pairs[axis] = span(box)
    node = graph.shrink(node, pairs)
    node = graph.flip(node, [axis]) if box.step < 0 else node
    return graph.take_every(node, axis, abs(box.step)) if abs(box.step) > 1 < box.size else node


def linear_index(x: Creation, rows: dict[int, Creation]) -> UOp:
    """One index into the merged indexed axes; -1 where any is out of range. Raises ShapeError."""
    indices = list(rows.values())
    same_device("index", [x.device, *[i.device for i in indices if not graph.is_constant(i.uop)]])
    shape = broadcast_shapes("index", *[i.shape for i in indices])
    dtype = dtypes.int64 if x.numel() >= 1 << 31 else dtypes.int32
    total: Creation | None = None
    valid: Creation | None = None
    for axis, index in rows.items():
        size = x.shape[axis]
        place = index._from_node(graph.on_device(index.uop, x.device)).cast(
            dtype if index.dtype.itemsize < 8 else index.dtype
        )
        # Negative indices count from the end; what is still negative is out of range.
        place = place if dtypes.is_unsigned(index.dtype) else (place < 0).where(place + size, place)
        inside = (place >= 0) & (place < size)
        place = place.cast(dtype)
        total = place if total is None else total * size + place
        valid = inside if valid is None else valid & inside
    assert total is not None
    assert valid is not None
    single = len(indices) == 1 and indices[0].dtype.itemsize <= dtype.itemsize
    return graph.broadcast_to((total if single else valid.where(total, -1)).uop, shape)
