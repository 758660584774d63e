"""Checks of operands, with their error messages.

Floor 5. Every message names the operation and all operands. A check returns the fact it
established.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from numbers import Integral
from reprlib import repr as shorten
from typing import Final, cast

from tinycore.dtype import DType, Scalar, dtypes, integer_for
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    IndexRangeError,
    ShapeError,
)
from tinycore.uop.shape import DeviceLike, Shape, is_group
from tinycore.uop.size import Variable, are_ints, greatest, is_size, same_number

Ints = int | Sequence[int]


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape all are repeated to, axes aligned at the end. Raises ShapeError."""
    first = max(shapes, key=len)
    for shape in shapes:
        if shape and shape is not first and shape != first:  # () is that of numbers
            break
    else:
        return first
    if are_ints(chain.from_iterable(shapes)):
        return common_shape(name, shapes)
    return aligned_shape(name, shapes)


def aligned_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """The shape that different ones are repeated to. Raises ShapeError."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*aligned, strict=True):
        distinct = set(sizes) - {1}
        size = distinct.pop() if distinct else 1
        if distinct and (size := shared_size(sizes)) is None:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{name}: shapes {listed} cannot be broadcast together")
        result.append(size)
    return tuple(result)


@lru_cache(1024)
def common_shape(name: str, shapes: tuple[Shape, ...]) -> Shape:
    """`aligned_shape` of ints, which are the same again and again."""
    return aligned_shape(name, shapes)


def shared_size(sizes: Sequence[int]) -> int | None:
    """The common size of all but those of 1, fixed if one is; None if they differ."""
    wide = [size for size in sizes if size != 1]
    first = next((size for size in wide if not is_size(size)), wide[0])
    return first if all(same_number(size, first) for size in wide) else None


def repeats_to(shape: Shape, target: Shape) -> bool:
    """True if a shape can be repeated to another, axes aligned at the end."""
    if len(shape) > len(target):
        return False
    pairs = zip(shape, target[len(target) - len(shape) :], strict=True)
    return all(old == 1 or same_number(old, new) for old, new in pairs)


def resolve_axis(name: str, axis: int, rank: int, extra: int = 0) -> int:
    """A nonnegative axis. Raises IndexRangeError when it is none of the `rank` (+ `extra`) axes."""
    count = rank + extra
    if type(axis) is int and -count <= axis < count:
        return axis % count
    (axis,) = int_arguments(name, [axis], "an axis is an int")
    limit = max(count, 1)
    if not -limit <= axis < limit:
        raise IndexRangeError(
            f"{name}: axis {axis} is outside [{-limit}, {limit - 1}] of {rank} axes"
        )
    return axis % limit


def resolve_axes(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes, nonnegative and in ascending order; None means all. Raises on a repeated one."""
    if axis is None:
        return tuple(range(rank))
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    axes = [resolve_axis(name, a, rank) for a in given]
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"{name}: an axis is repeated in {given}")
    return tuple(sorted(a for a in axes if rank))


def same_size(name: str, what: str, left: int, right: int, *shapes: Shape) -> None:
    """Two sizes that must agree. Raises ShapeError with all shapes."""
    if not same_number(left, right):
        listed = " and ".join(map(str, shapes))
        raise ShapeError(f"{name}: {what} differ ({left} and {right}) in shapes {listed}")


def same_device(name: str, devices: Iterable[DeviceLike]) -> None:
    """Raises DeviceError when operands live on different devices."""
    distinct = list(dict.fromkeys(devices))
    if len(distinct) > 1:
        listed = " and ".join(map(str, distinct))
        how = ".shard(devices)" if any(map(is_group, distinct)) else ".to(device)"
        raise DeviceError(f"{name}: operands are on {listed}; move one of them with {how}")


def integer_dtype(name: str, dtype: DType, what: str = "operand") -> None:
    """Raises DTypeError unless the dtype is an integer."""
    if not dtypes.is_int(dtype):
        raise DTypeError(f"{name}: the {what} must be an integer tensor, got {dtype!r}")


def bool_dtype(name: str, dtype: DType, what: str) -> None:
    """Raises DTypeError unless the dtype is bool."""
    if dtype is not dtypes.bool:
        raise DTypeError(
            f"{name}: the {what} must be bool, got {dtype!r}; compare it with something"
        )


def floating_dtype(name: str, dtype: DType) -> None:
    """Raises DTypeError unless the dtype is floating-point."""
    if not dtypes.is_float(dtype):
        raise DTypeError(f"{name}: needs a floating-point tensor, got {dtype!r}")


def int_arguments(
    name: str, values: Iterable[object], what: str = "sizes are ints"
) -> tuple[int, ...]:
    """Plain ints from ints and NumPy integers; Sizes as they are.

    Raises ArgumentTypeError for anything else.
    """
    result: list[int] = []
    for value in values:
        if type(value) is int:
            result.append(value)
            continue
        if is_size(value):
            result.append(cast(int, value))
            continue
        if isinstance(value, Variable):
            raise ArgumentTypeError(f"{name}: {value!r} holds no number; give it one with .bind(n)")
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ArgumentTypeError(f"{name}: {what}, got {value!r} of type {type(value).__name__}")
        result.append(int(value))
    return tuple(result)


def counter_dtype(*counts: int) -> DType:
    """The dtype of positions and counts up to some: the default integer, else int64."""
    return integer_for(*map(greatest, counts))


def number_dtype(name: str, value: Scalar, dtype: DType | None) -> DType:
    """The dtype of a constant: the one asked for, else the default of the number's kind (int64 for
    integers beyond that).

    Asked for, an integer type takes any integer and wraps it. Raises ArgumentError for an integer
    that int64 does not hold, an infinite or NaN integer, and an integer beyond float64.
    """
    if dtype is not None:
        if type(value) is int and -SMALL_INTEGERS < value < SMALL_INTEGERS:
            return dtype
        if type(value) is float and dtypes.is_float(dtype):
            return dtype
    target = dtype
    if target is None or type(value) not in NUMBER_TYPES:
        found = dtypes.from_py(value)  # raises for what is no number
        target = found if target is None else target
    problem = None
    if isinstance(value, float):
        if dtypes.is_int(target) and not math.isfinite(value):
            problem = f"{value} is no integer, so {target!r} has no such element"
    elif dtype is None and not dtypes.min(target) <= value <= dtypes.max(target):
        problem = f"{shorten(value)} does not fit {target!r}; pass a dtype"
    elif dtypes.is_float(target) and abs(value).bit_length() > LARGEST_FLOAT_BITS:
        problem = f"{shorten(value)} is greater than any float"
    if problem:
        raise ArgumentError(f"{name}: {problem}")
    return target


NUMBER_TYPES: Final = frozenset({bool, int, float})
SMALL_INTEGERS: Final = 1 << 15
"""Bound of the integers that every float holds, and that an integer type wraps."""
LARGEST_FLOAT_BITS = 1023
"""Bits of the largest integers that can be converted to a Python float."""


def spread(values: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of `f(2, 3)`, also when called as `f((2, 3))`."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    return values
