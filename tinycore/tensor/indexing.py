"""`t[...]` and `t[...] = v`: slices, integers, None, ellipsis, integer tensors and bool masks.

Floor 5. The rules are NumPy's. Slices and integers only move elements; tensors of indices gather
rows, negative ones counting from the end. An index that a tensor holds cannot be checked before it
is computed: out of range it reads 0 and writes nothing. A bool mask makes a shape that depends on
data, so it is computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import EllipsisType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import broadcast_shapes, integer_dtype, same_device
from tinycore.tensor.creation import Creation
from tinycore.tensor.data import SupportsArray
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape

Index: TypeAlias = (
    "int | slice | Creation | Sequence[Any] | numpy.ndarray[Any, Any] | EllipsisType | None"
)


class AxisIndex(NamedTuple):
    """What an entry of an index takes from an axis: `size` elements from `start` by `step`."""

    start: int
    size: int
    step: int
    keep: bool  # False for an integer, whose axis goes away


class Parsed(NamedTuple):
    """An index taken apart."""

    boxes: list[AxisIndex]  # one per axis of the tensor
    layout: list[int | None]  # axes of the result of the boxes that stay; None for a new one
    rows: dict[int, Creation]  # position in the layout -> tensor of indices along that axis
    in_front: bool  # whether the axes of those tensors come first, as they have no one place


class Indexing(Creation):
    """Reading and writing parts of a tensor."""

    __slots__ = ()

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        """The elements an index names.

        Raises IndexRangeError outside the axes or for too many entries.
        """
        parsed = parse(self, self.without_masks(index))
        return self.boxed(parsed).gathered(parsed)

    def __setitem__(
        self, index: Index | tuple[Index, ...], value: Self | Scalar | Sequence[Any]
    ) -> None:
        """Write `value`, broadcast, where an index points; the last one wins where it points twice.

        Raises ShapeError when the value does not fit, IndexRangeError outside the axes.
        """
        if (
            isinstance(index, Indexing)
            and index.dtype is dtypes.bool
            and isinstance(value, (bool, int, float))
        ):
            self.write(self.masked(index, value))
            return
        parsed = parse(self, self.without_masks(index))
        new = value if isinstance(value, Indexing) else self.ufix_nested(value)
        self.write(self.placed(parsed, new.cast(self.dtype)))

    def write(self, new: Self) -> None:
        """Take over a new value of the same shape: in place where this is memory."""
        if graph.is_memory(self.uop):
            new_node = UOp(Op.ASSIGN, self.dtype, (self.uop, new.uop))
            self.uop = new_node
        else:
            self.uop = new.uop

    def masked(self, mask: Creation, value: Scalar) -> Self:
        """This tensor with a number where a mask of its leading axes holds; not computed yet."""
        if mask.shape != self.shape[: mask.ndim]:
            raise IndexRangeError(
                f"setitem: a mask of shape {mask.shape} does not cover the first axes of "
                f"{self.shape}"
            )
        wide = self.from_uop(graph.reshape(mask.uop, (*mask.shape, *[1] * (self.ndim - mask.ndim))))
        return wide.where(self.const_like(value), self)

    def ufix_nested(self, value: Scalar | Sequence[Any]) -> Self:
        """A number or nested list as a tensor of this dtype and device."""
        data = value if isinstance(value, (bool, int, float, SupportsArray)) else list(value)
        return type(self)(data, device=self.device, dtype=self.dtype)

    # --- reading

    def without_masks(self, index: Any) -> tuple[Any, ...]:
        """The index as a tuple in which lists are tensors and masks are integer tensors."""
        entries: list[Any] = []
        for entry in index if isinstance(index, tuple) else (index,):
            if isinstance(entry, (list, tuple, numpy.ndarray)):
                entry = type(self)(entry, device=self.device)
                entry = entry.cast(dtypes.default_int) if not entry.numel() else entry
            if isinstance(entry, (bool, numpy.bool_)) or (
                isinstance(entry, Indexing) and entry.dtype is dtypes.bool
            ):
                entries += self.mask_positions(entry, entries)
            else:
                entries.append(entry)
        return tuple(entries)

    def mask_positions(self, mask: Any, before: list[Any]) -> list[Self]:
        """Integer tensors naming the true elements of a mask. Computes the mask."""
        if not isinstance(mask, Indexing):
            raise DTypeError(
                "index: a single bool selects nothing in particular; use None, or a mask tensor"
            )
        axis = sum(e is not None for e in before)
        beside = self.shape[axis : axis + mask.ndim]
        if not any(e is Ellipsis for e in before) and mask.shape != beside:
            raise IndexRangeError(
                f"index: a mask of shape {mask.shape} does not cover axes {beside} of {self.shape}"
            )
        found = numpy.nonzero(mask.host_array())
        return [
            type(self)(places, device=self.device, dtype=dtypes.default_int) for places in found
        ]

    def host_array(self) -> numpy.ndarray[Any, Any]:
        """The elements as a NumPy array; the realizing class provides it."""
        raise NotImplementedError

    def boxed(self, parsed: Parsed) -> Self:
        """The part that slices and integers leave, in the layout of the result."""
        node = self.uop
        for axis, box in enumerate(parsed.boxes):
            node = take_box(node, axis, box)
        sizes = [1 if a is None else node.shape[a] for a in parsed.layout]
        return self.from_uop(graph.reshape(node, tuple(sizes)))

    def gathered(self, parsed: Parsed) -> Self:
        """Rows picked by integer tensors: in the place of their axes if adjacent, else in front."""
        if not parsed.rows:
            return self
        axes = list(parsed.rows)
        index = linear_index(self, parsed.rows)
        order = axes + [a for a in range(self.ndim) if a not in axes]
        table = graph.permute(self.uop, order)
        rest = table.shape[len(axes) :]
        table = graph.reshape(table, (math.prod(table.shape[: len(axes)]), *rest))
        found = self.from_uop(graph.gather(table, index))
        if parsed.in_front:
            return found
        count, before = len(index.shape), axes[0]
        return self.from_uop(
            graph.permute(
                found.uop,
                [*range(count, count + before), *range(count), *range(count + before, found.ndim)],
            )
        )

    # --- writing

    def placed(self, parsed: Parsed, value: Self) -> Self:
        """This tensor with `value` where the index points."""
        region = self.boxed(parsed)
        if not parsed.rows:
            return self.with_box(parsed, value.fitting(region.shape))
        axes = list(parsed.rows)
        order = axes + [a for a in range(region.ndim) if a not in axes]
        count = math.prod(region.shape[a] for a in axes)
        flat = region.permute(order).reshape(
            (count, *[region.shape[a] for a in order[len(axes) :]])
        )
        index = linear_index(region, parsed.rows)
        new = value.fitting(region.gathered(parsed).shape)
        if not parsed.in_front:
            before, rank = axes[0], len(index.shape)
            new = new.permute(
                [*range(before, before + rank), *range(before), *range(before + rank, new.ndim)]
            )
        flat = flat.scattered_rows(index, new.reshape((math.prod(index.shape), *flat.shape[1:])))
        full = flat.reshape([region.shape[a] for a in order]).permute(
            [order.index(a) for a in range(region.ndim)]
        )
        return self.with_box(parsed, full)

    def fitting(self, shape: Shape) -> Self:
        """Broadcast to a shape, leading axes of size 1 dropped. Raises ShapeError."""
        x = self
        while x.ndim > len(shape) and x.shape[0] == 1:
            x = x.squeeze(0)
        if x.ndim > len(shape) or broadcast_shapes("setitem", x.shape, shape) != shape:
            raise ShapeError(
                f"setitem: a value of shape {self.shape} does not fit a place of shape {shape}"
            )
        return self.from_uop(graph.broadcast_to(x.uop, shape))

    def with_box(self, parsed: Parsed, value: Self) -> Self:
        """This tensor with a box replaced by `value`, which has the layout of the result."""
        inner = [a for a in parsed.layout if a is not None]
        sizes = [parsed.boxes[a].size if a in inner else 1 for a in range(self.ndim)]
        node = graph.reshape(value.uop, tuple(sizes))
        inside = graph.full_like(node, True, dtypes.bool)
        for axis, box in enumerate(parsed.boxes):
            node = spread_box(node, axis, box, self.shape[axis])
            inside = spread_box(inside, axis, box, self.shape[axis])
        everywhere = all(
            box.size == size for box, size in zip(parsed.boxes, self.shape, strict=True)
        )
        return self.from_uop(node if everywhere else inside.where(node, self.uop))

    def scattered_rows(self, index: UOp, rows: Self) -> Self:
        """Rows of the first axis replaced: row index[s] by rows[s]; the last s wins."""
        flat = self.from_uop(graph.reshape(index, (1, math.prod(index.shape))))
        numbers = self.from_uop(
            graph.arange(self.shape[0], dtypes.default_int, self.device)
        ).unsqueeze(1)
        order = self.from_uop(graph.arange(flat.shape[1], dtypes.default_int, self.device)) + 1
        if not flat.shape[1]:
            return self
        chosen = flat.eq(numbers).where(order, 0).max(1)
        new = self.from_uop(graph.gather(rows.uop, (chosen - 1).uop))
        hit = (chosen > 0).reshape((self.shape[0], *[1] * (self.ndim - 1)))
        return hit.where(new, self)


def parse(x: Creation, entries: tuple[Any, ...]) -> Parsed:
    """Take an index apart. Raises IndexRangeError for too many entries, or one outside its axis."""
    used = sum(e is not None and e is not Ellipsis for e in entries)
    if used > x.ndim:
        raise IndexRangeError(f"index: {used} entries for the {x.ndim} axes of shape {x.shape}")
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexRangeError("index: only one ellipsis (...) can be told apart")
    whole = [slice(None)] * (x.ndim - used)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    full = [*entries[:at], *whole, *entries[at + 1 :]]
    picks = [i for i, e in enumerate(full) if not isinstance(e, slice) and e is not None]
    parsed = Parsed([], [], {}, in_front=not adjacent(picks))
    for entry in full:
        if entry is None:
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
    if isinstance(entry, slice):
        start, stop, step = entry.indices(size)
        count = len(range(start, stop, step))
        return AxisIndex(start if count else 0, count, step, True)
    if isinstance(entry, (int, numpy.integer)):
        place = int(entry)
        if not -size <= place < size:
            raise IndexRangeError(f"index: {place} is outside axis {axis} of shape {shape}")
        return AxisIndex(place % size, 1, 1, False)
    raise ArgumentError(f"index: {entry!r} is no integer, slice, None, ellipsis, list or tensor")


def span(box: AxisIndex) -> tuple[int, int]:
    """The elements from the first to the last that a box touches."""
    last = box.start + (box.size - 1) * box.step
    return (min(box.start, last), max(box.start, last) + 1) if box.size else (0, 0)


def take_box(node: UOp, axis: int, box: AxisIndex) -> UOp:
    """One axis reduced to what a box takes of it."""
    pairs = [(0, n) for n in node.shape]
    pairs[axis] = span(box)
    node = graph.shrink(node, pairs)
    node = graph.flip(node, [axis]) if box.step < 0 else node
    return graph.take_every(node, axis, abs(box.step)) if box.size > 1 else node


def spread_box(node: UOp, axis: int, box: AxisIndex, size: int) -> UOp:
    """Undo `take_box`: elements back in their places on an axis of `size`, zeros elsewhere."""
    start, stop = span(box)
    if box.size > 1:
        node = graph.spread_every(node, axis, abs(box.step), stop - start)
    node = graph.flip(node, [axis]) if box.step < 0 else node
    pairs = [(0, 0)] * len(node.shape)
    pairs[axis] = (start, size - stop)
    return graph.pad(node, pairs)


def adjacent(places: Sequence[int]) -> bool:
    """Whether places follow each other."""
    return all(b == a + 1 for a, b in pairwise(places))


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
        place = index.from_uop(graph.on_device(index.uop, x.device)).cast(
            dtype if index.dtype.itemsize < 8 else index.dtype
        )
        place = place if dtypes.is_unsigned(index.dtype) else (place < 0).where(place + size, place)
        inside = (place >= 0) & (place < size)
        place = place.cast(dtype)
        total = place if total is None else total * size + place
        valid = inside if valid is None else valid & inside
    assert total is not None
    assert valid is not None
    single = len(indices) == 1
    return graph.broadcast_to((total if single else valid.where(total, -1)).uop, shape)
