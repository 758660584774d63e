"""Sums, extremes, statistics, running sums, differences, truth of many.

Floor 6. Integers are added in at least the default integer dtype, unsigned ones in the unsigned one
of its width, as the standard says.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinycore.array_api._promotion import array, promote_operands, summed
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor
from tinycore.tensor.checks import resolve_axes, resolve_axis

__all__ = [
    "all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std",
    "sum", "var",
]  # fmt: skip

Axes = int | tuple[int, ...] | None


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """True if every element is nonzero; True of none."""
    return array("all", x).all(axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """True if some element is nonzero; False of none."""
    return array("any", x).any(axis, keepdims)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """The greatest element; NaN if any element is. Raises ShapeError of no elements."""
    return array("max", x, "numeric").max(axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """The least element; NaN if any element is. Raises ShapeError of no elements."""
    return array("min", x, "numeric").min(axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The average; NaN of no elements."""
    return array("mean", x, "floating-point").mean(axis, keepdims)


def sum(  # noqa: A001
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The sum, in `dtype` if that is given; 0 of no elements."""
    target = dtype or summed(array("sum", x, "any" if dtype else "numeric").dtype)
    return x.cast(target).sum(axis, keepdims).cast(target)


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The product, in `dtype` if that is given; 1 of no elements."""
    target = dtype or summed(array("prod", x, "any" if dtype else "numeric").dtype)
    return x.cast(target).prod(axis, keepdims).cast(target)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance: squared distances from the mean, divided by count - correction.

    NaN when that is not positive.
    """
    axes = resolve_axes("var", axis, array("var", x, "floating-point").ndim)
    count = math.prod(x.shape[a] for a in axes)
    found = x.var(axes, keepdims, correction)
    return found if count > correction else found.const_like(math.nan)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The standard deviation, the root of `var`."""
    return var(x, axis=axis, correction=correction, keepdims=keepdims).sqrt()


def running_fold(
    name: str,
    x: Tensor,
    axis: int | None,
    dtype: DType | None,
    first: int | None,
    fold: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """A running fold along an axis in the right dtype, behind the value of none if it is given."""
    target = dtype or summed(array(name, x, "any" if dtype else "numeric").dtype)
    if not x.ndim or (axis is None and x.ndim != 1):
        raise ArgumentError(f"{name}: name one of the axes of shape {x.shape}")
    place = resolve_axis(name, axis or 0, x.ndim)
    result = fold(x.cast(target), place).cast(target)
    if first is None:
        return result
    edge = [1 if a == place else n for a, n in enumerate(x.shape)]
    start = Tensor.full(tuple(edge), first, dtype=target, device=x.device, buffer=False)
    return start.cat(result, dim=place)


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running sums along an axis, which may be omitted for one axis only; optionally after a 0.

    Raises ArgumentError when the axis is missing.
    """
    first = 0 if include_initial else None
    return running_fold("cumulative_sum", x, axis, dtype, first, Tensor.cumsum)


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running products along an axis; optionally after a 1.

    Raises ArgumentError when the axis is missing and there is more than one.
    """
    first = 1 if include_initial else None
    return running_fold("cumulative_prod", x, axis, dtype, first, Tensor.cumprod)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Each element less the one before it along an axis, `n` times over.

    What is to be prepended or appended is joined first. Raises ShapeError for an array with no
    axes, ArgumentError for a negative `n`.
    """
    if n < 0:
        raise ArgumentError(f"diff: n cannot be negative, got {n}")
    place = resolve_axis("diff", axis, array("diff", x, "numeric").ndim)
    if not x.ndim:
        raise ShapeError("diff: the array has no axes")
    parts = [part for part in (prepend, x, append) if part is not None]
    first, *rest = promote_operands("diff", "numeric", *parts)
    result = first.cat(*rest, dim=place)
    for _ in range(n):
        size = result.shape[place]
        if size:
            result = result._between(place, 1, size) - result._between(place, 0, size - 1)
    return result
