"""Searching, sorting, sets, and picking by index arrays.

Floor 6. Positions have the default integer dtype. Where the shape of a result depends on data
(`nonzero`, `unique_*`), the arrays are computed at once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tinycore.array_api._promotion import Operand, array, as_operand, common_dtype, promote_operands
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor
from tinycore.tensor.checks import broadcast_shapes, counter_dtype, integer_dtype, resolve_axis

__all__ = [
    "argmax", "argmin", "argsort", "count_nonzero", "nonzero", "searchsorted", "sort", "take",
    "take_along_axis", "unique_all", "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip

Axes = int | tuple[int, ...] | None


# --- searching


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the greatest element, the first of equals; in the flat array by default."""
    return array("argmax", x, "numeric").argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the least element, the first of equals; in the flat array by default."""
    return array("argmin", x, "numeric").argmin(axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Number of elements that are not zero; NaN is not."""
    flags = array("count_nonzero", x).cast(dtypes.bool)
    kind = counter_dtype(x.numel())
    return flags.cast(kind).sum(axis, keepdims).cast(kind)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The positions of all nonzero elements in row-major order, one array for each axis.

    Computes the array. Raises ShapeError when it has no axes.
    """
    if not array("nonzero", x).ndim:
        raise ShapeError("nonzero: the array has no axes; compare it with 0")
    found = x.nonzero()
    return tuple([found[:, axis] for axis in range(x.ndim)])


def searchsorted(
    x1: Tensor,
    x2: Tensor,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: Tensor | None = None,
) -> Tensor:
    """Insertion points in `x1`: the elements before each of `x2`, equal ones if `side` is "right".

    NaN goes after every number, as in `sort`. As all elements are compared and counted, `x1` need
    not be in order, and `sorter` is checked only. Raises ShapeError unless `x1` has one axis.
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side {side!r} is neither 'left' nor 'right'")
    table, values = promote_operands("searchsorted", "numeric", x1, array("searchsorted", x2))
    if table.ndim != 1:
        raise ShapeError(f"searchsorted: x1 needs one axis, got shape {table.shape}")
    if sorter is not None:
        integer_dtype("searchsorted", array("searchsorted", sorter).dtype, "sorter")
        if sorter.shape != table.shape:
            raise ShapeError(f"searchsorted: sorter {sorter.shape} beside x1 {table.shape}")
    values = values.unsqueeze(-1)
    after = ~goes_before(values, table)
    counted = goes_before(table, values) if side == "left" else after
    kind = counter_dtype(table.shape[0])
    return counted.cast(kind).sum(-1).cast(kind)


def goes_before(a: Tensor, b: Tensor) -> Tensor:
    """True where `a` stands before `b` in order, NaN last."""
    return (a < b) | (b.isnan() & ~a.isnan()) if dtypes.is_float(a.dtype) else a < b


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """`x1` where the condition holds, else `x2`, in their common dtype.

    Raises DTypeError unless the condition is bool, and across kinds.
    """
    array("where", condition, "bool")
    dtype = common_dtype("where", [x1, x2])
    yes, no = (as_operand(x, dtype, condition.device) for x in (x1, x2))
    return condition.where(yes, no)


# --- sorting


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Indices that sort an axis, stably; NaN is greatest."""
    return array("argsort", x, "numeric").argsort(axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements of an axis in order; NaN is greater than any number."""
    return array("sort", x, "numeric").sort(axis, descending)[0]


# --- sets


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """The distinct elements in order, where each is first, which one each element is, how many.

    Every NaN counts for itself. Computes the array.
    """
    flat = array("unique_all", x).reshape(-1)
    ordered, places = flat.sort()
    size = flat.shape[0]
    kind = counter_dtype(size)
    numbers = Tensor.arange(size, device=x.device, dtype=kind)
    first = numbers.eq(0) | ordered.ne(ordered.roll(1))
    Tensor.realize(ordered, places, first)
    starts = first.nonzero().reshape(-1)
    ends = starts[1:].cat(starts.const_like(size)[:1])
    group = first.cast(kind).cumsum().cast(kind) - 1
    inverse = group.scatter(0, places, group).reshape(x.shape)
    return UniqueAll(ordered[starts], places[starts], inverse, ends - starts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The distinct elements in order, and the number of each. Computes the array."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The distinct elements in order, and which of them each element is. Computes the array."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """The distinct elements in order. Computes the array."""
    return unique_all(x).values


# --- picking


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The elements of an axis that a row of indices names, negative ones from the end.

    Out of range they read 0. Raises ArgumentError when `axis` is missing and there is more than
    one, ShapeError unless the indices have one axis.
    """
    integer_dtype("take", array("take", indices).dtype, "index")
    if indices.ndim != 1:
        raise ShapeError(f"take: indices need one axis, got shape {indices.shape}")
    if axis is None and array("take", x).ndim != 1:
        raise ArgumentError(f"take: name one of the axes of shape {x.shape}")
    place = resolve_axis("take", axis or 0, x.ndim)
    return x[(*[slice(None)] * place, indices)]


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """out[i, j] = x[i, indices[i, j]] along the last axis, likewise along others.

    Other axes are broadcast. Out of range indices read 0. Raises ShapeError when the numbers of
    axes differ.
    """
    integer_dtype("take_along_axis", array("take_along_axis", indices).dtype, "index")
    if array("take_along_axis", x).ndim != indices.ndim:
        raise ShapeError(f"take_along_axis: indices {indices.shape} beside shape {x.shape}")
    place = resolve_axis("take_along_axis", axis, x.ndim)
    other = tuple([1 if a == place else n for a, n in enumerate(x.shape)])
    shape = broadcast_shapes("take_along_axis", other, indices.shape)
    wide = x.expand([x.shape[a] if a == place else n for a, n in enumerate(shape)])
    entries = [wide._positions(a) for a in range(x.ndim)]
    entries[place] = indices.expand(shape)
    return wide[tuple(entries)]
