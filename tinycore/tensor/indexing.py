"""Indexing `t[...]` and `t[...] = v`: slices, integers, None, ellipsis, tensors and masks.

Floor 5. The rules are torch's: those of NumPy, but ints are taken first. Slices and integers only
move elements; tensors of indices gather rows, negative ones counting from the end. An index that a
tensor holds cannot be checked before it is computed: out of range it reads 0 and writes nothing. A
bool mask makes a shape that depends on data, so it is computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

from tinycore._deferred import NumpyArray, numpy
from tinycore.dtype import Scalar, dtypes
from tinycore.errors import IndexRangeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import broadcast_shapes, counter_dtype, repeats_to, same_device
from tinycore.tensor.creation import Creation
from tinycore.tensor.data import SupportsArray
from tinycore.tensor.index_parsing import (
    AxisIndex,
    Flag,
    Index,
    Parsed,
    axes_of,
    check_positions,
    host_entry,
    is_mask,
    parse,
    spelled_out,
)
from tinycore.tensor.operands import on_one_device
from tinycore.tensor.view_writes import overwrite
from tinycore.uop.node import UOp
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size


class Indexing(Creation):
    """Reading and writing parts of a tensor."""

    __slots__ = ()

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Self:
        """The elements an index names.

        Raises IndexRangeError outside the axes or for too many entries.
        """
        parsed = parse(self, self._entries(index))
        return self._boxed(parsed)._gathered(parsed)

    def __iter__(self) -> Iterator[Self]:
        """The parts along the first axis. Raises TypeError when there is no axis."""
        if not self.ndim:
            raise TypeError("iteration over a tensor with no axes")
        return (self[i] for i in range(self.shape[0]))

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
        place = place if dtypes.is_unsigned(index.dtype) else (place < 0).where(place + size, place)
        inside = (place >= 0) & (place < size)
        place = place.cast(dtype)
        total = place if total is None else total * size + place
        valid = inside if valid is None else valid & inside
    assert total is not None
    assert valid is not None
    single = len(indices) == 1 and indices[0].dtype.itemsize <= dtype.itemsize
    return graph.broadcast_to((total if single else valid.where(total, -1)).uop, shape)
