"""Index parsing: the expression inside `t[...]`, split into one entry per axis and validated.

Floor 5. Indices that the host knows (ints, slices, lists, NumPy arrays) are checked here; index
tensors cannot be checked before they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import EllipsisType, NoneType
from typing import Any, Final, NamedTuple, TypeAlias

from tinycore._deferred import NumpyArray, numpy
from tinycore.dtype import dtypes, from_numpy_dtype
from tinycore.errors import ArgumentError, IndexRangeError
from tinycore.tensor.checks import int_arguments, integer_dtype
from tinycore.tensor.creation import Creation
from tinycore.tensor.data import SupportsArray, nested_shape
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size, greatest, is_size

Index: TypeAlias = "int | slice | Creation | Sequence[Any] | SupportsArray | EllipsisType | None"


INTS_AND_SLICES: Final = frozenset({int, slice})
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
    if isinstance(entry, (Creation, slice, EllipsisType, str)) or entry is None:
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
    """Start or stop of a slice on an axis, clamped to it."""
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
