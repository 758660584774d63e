"""Matrices for products with few rows, quantized in memory: repacked once, read as they are.

A step of generation reads every weight once, so its time is that of reading them. The numbers of a
quantized matrix are therefore computed in the kernel that multiplies them. For that its rows lie in
panels: `PANEL` rows beside each other, column by column, so that vectors run across rows, a scale
is loaded once for a group, and memory is read in order. The sum over a group is taken over integers
and then scaled; so a product costs one multiplication for each number, as a float matrix does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy

from tiny_llm.quants import Groups
from tinycore import Tensor, dtypes
from tinycore.errors import ArgumentError

__all__ = [
    "DenseMatrix",
    "Matrix",
    "PackedMatrix",
    "dense",
    "form",
    "joined",
    "packed",
    "packed_experts",
]

Array = numpy.ndarray[Any, Any]

PANEL: Final = 64
"""Rows in a panel: of 16 to 192, the fastest or next to it on AVX-512 for one row and for 128."""
ARRAYS: Final = ("integers", "scale", "least", "outer", "outer_least")
"""The arrays of a quantized matrix."""


@dataclass(frozen=True)
class DenseMatrix:
    """A matrix of floats (n, k), as the file has them."""

    values: Tensor

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.values.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        """x (m, k) times the transposed matrix: (m, n) float32."""
        return x @ self.values.cast(dtypes.float32).T

    def of_expert(self, x: Tensor, number: int, count: int) -> Tensor:
        """x (m, k) times one of `count` matrices that lie one after another: (m, n) float32."""
        rows = self.rows // count
        one = self.values[number * rows : (number + 1) * rows]
        return x @ one.cast(dtypes.float32).T

    def of_experts(self, x: Tensor, indices: Tensor, count: int) -> Tensor:
        """x (m, u or 1, k) times those of `count` matrices at indices (m, u): (m, u, n) float32."""
        all_of_them = self.values.reshape(count, self.rows // count, self.values.shape[1])
        return (x.unsqueeze(-2) * all_of_them[indices].cast(dtypes.float32)).sum(-1)

    def taken(self, indices: Tensor) -> Tensor:
        """The rows at indices (m,): (m, k) float32."""
        return self.values[indices].cast(dtypes.float32)


@dataclass(frozen=True)
class PackedMatrix:
    """A quantized matrix (n, k) in panels: c panels, g groups of `size` columns.

    `integers` (c, g, size, PANEL) int8, or (c, g, size / 2, PANEL) uint8 with two of four bits
    each. `scale` and `least` (c, g, PANEL), `outer` and `outer_least` (c, fewer groups, PANEL).
    """

    rows: int
    bits: int
    zero: int
    integers: Tensor
    scale: Tensor
    least: Tensor | None = None
    outer: Tensor | None = None
    outer_least: Tensor | None = None

    @property
    def size(self) -> int:
        """Columns in a group."""
        return int(self.integers.shape[2]) * (2 if self.bits == 4 else 1)

    def __call__(self, x: Tensor) -> Tensor:
        """x (m, k) times the transposed matrix: (m, n) float32."""
        return self._product(x, *self._fields)

    def of_expert(self, x: Tensor, number: int, count: int) -> Tensor:
        """x (m, k) times one of `count` matrices that lie one after another: (m, n) float32."""
        panels = int(self.integers.shape[0]) // count
        which = slice(number * panels, (number + 1) * panels)
        return self._product(x, *(f if f is None else f[which] for f in self._fields))

    def of_experts(self, x: Tensor, indices: Tensor, count: int) -> Tensor:
        """x (m, u or 1, k) times those of `count` matrices at indices (m, u): (m, u, n) float32.

        Only these are read, in the kernel that multiplies them.
        """

        def chosen(numbers: Tensor | None) -> Tensor | None:
            if numbers is None:
                return None
            panels = int(numbers.shape[0]) // count
            return numbers.reshape(count, panels, *numbers.shape[1:])[indices]

        return self._product(x, *map(chosen, self._fields))

    @property
    def _fields(self) -> tuple[Tensor | None, ...]:
        return tuple([getattr(self, name) for name in ARRAYS])

    def _product(
        self,
        x: Tensor,
        integers: Tensor | None,
        scale: Tensor | None,
        least: Tensor | None,
        outer: Tensor | None,
        outer_least: Tensor | None,
    ) -> Tensor:
        """Rows x (..., k) times panels (..., c, g, lines, PANEL): (..., n)."""
        assert integers is not None and scale is not None  # noqa: PT018
        groups, size, lead = int(integers.shape[-3]), self.size, x.shape[:-1]
        if self.bits == 4:  # a sum for each half, as products are then fused with additions
            halves = x.reshape(*lead, 1, groups, 2, size // 2, 1)
            low, high = (integers & 15).cast("float32"), (integers >> 4).cast("float32")
            total = (halves[..., 0, :, :] * low).sum(-2) + (halves[..., 1, :, :] * high).sum(-2)
        else:
            total = (x.reshape(*lead, 1, groups, size, 1) * integers.cast("float32")).sum(-2)
        sums = x.reshape(*lead, 1, groups, size, 1).sum(-2)
        if self.zero:
            total = total - sums * self.zero
        total = total * _spread(scale, outer)
        if least is not None:
            total = total + sums * _spread(least, outer_least)
        # stored as panels: fused with what follows, it would lose the loop over a panel, and
        # take four times as long
        found = total.sum(-2).contiguous()
        return found.flatten(-2)[..., : self.rows]

    def taken(self, indices: Tensor) -> Tensor:
        """The rows at indices (m,): (m, k) float32."""
        panel, lane = indices // PANEL, indices % PANEL
        integers = self.integers[panel, :, :, lane]  # (m, g, size or half of it)
        if self.bits == 4:
            integers = (integers & 15).cat(integers >> 4, dim=2)
        values = integers.cast("float32") - self.zero
        found = values * _lanes(self.scale, self.outer, panel, lane)
        if self.least is not None:
            found = found + _lanes(self.least, self.outer_least, panel, lane)
        return found.flatten(1)


Matrix = DenseMatrix | PackedMatrix


def _spread(numbers: Tensor, outer: Tensor | None) -> Tensor:
    """Numbers by group (..., g, PANEL) in float32, times those of their groups of groups."""
    numbers = numbers.cast("float32")
    if outer is None:
        return numbers
    inside = numbers.reshape(*outer.shape[:-1], -1, outer.shape[-1])
    return (inside * outer.cast("float32").unsqueeze(-2)).reshape(numbers.shape)


def _lanes(numbers: Tensor, outer: Tensor | None, panel: Tensor, lane: Tensor) -> Tensor:
    """Numbers by group of some rows (m, g, 1)."""
    found = numbers[panel, :, lane].cast("float32")
    if outer is not None:
        scale = outer[panel, :, lane].cast("float32")
        found = found.reshape(*scale.shape, -1) * scale.unsqueeze(-1)
    return found.reshape(int(panel.shape[0]), -1, 1)


def dense(values: Array | Tensor, device: str | None = None) -> DenseMatrix:
    """A matrix of floats; float64 becomes float32."""
    tensor = values if isinstance(values, Tensor) else Tensor(values, device=device)
    return DenseMatrix(tensor.cast("float32") if tensor.dtype == dtypes.float64 else tensor)


def packed(groups: Groups, device: str | None = None) -> PackedMatrix:
    """Rows of groups in panels; the last panel is filled up with zeros."""
    return packed_experts([groups], device)


def packed_experts(parts: list[Groups], device: str | None = None) -> PackedMatrix:
    """Matrices of one shape and type, one after another, each in panels of its own.

    Raises ArgumentError for others.
    """
    first = alike(parts)
    rows, count = first.scale.shape
    if any(len(part.scale) != rows for part in parts):
        raise ArgumentError("matrices of different sizes cannot be packed one after another")
    tensors: dict[str, Any] = {}
    for name in ARRAYS:
        if getattr(first, name) is not None:
            panels = _panels([getattr(part, name) for part in parts])
            tensors[name] = Tensor(panels, device=device).realize()
    integers = tensors.pop("integers")
    held = integers.reshape(integers.shape[0], count, -1, PANEL)
    return PackedMatrix(rows, first.bits, first.zero, held, **tensors)


def alike(parts: list[Groups]) -> Groups:
    """The first of matrices that have one type. Raises ArgumentError for others."""
    if len({form(part) for part in parts}) > 1:
        raise ArgumentError("matrices of different types cannot be joined")
    return parts[0]


def form(groups: Groups) -> tuple[object, ...]:
    """The layout of a matrix: those with equal ones can be joined."""
    arrays = [getattr(groups, name) for name in ("scale", "least", "outer", "outer_least")]
    inside = groups.integers[0].size // groups.scale.shape[1]
    kinds = [None if array is None else (array.dtype, array.shape[1]) for array in arrays]
    return (groups.size, groups.bits, groups.zero, inside, *kinds)


def _panels(parts: list[Array]) -> Array:
    """The rows of matrices (n, ...), each in panels of its own: (panels, k, PANEL).

    Written where they stay: of the largest matrix, an array more is much of a small model.
    """
    rows, *inside = parts[0].shape
    found = numpy.zeros((len(parts), -(-rows // PANEL), *inside, PANEL), parts[0].dtype)
    for part, panels in zip(parts, found, strict=True):
        for number, panel in enumerate(panels):
            some = part[number * PANEL : (number + 1) * PANEL]
            panel[..., : len(some)] = numpy.moveaxis(some, 0, -1)
    return found.reshape(len(parts) * found.shape[1], -1, PANEL)


def joined(parts: list[Groups]) -> Groups:
    """The rows of several matrices of one type, one after another. Raises ArgumentError."""
    first = alike(parts)
    stacked: dict[str, Any] = {
        name: numpy.concatenate([getattr(part, name) for part in parts])
        for name in ARRAYS
        if getattr(first, name) is not None
    }
    return replace(first, **stacked)
