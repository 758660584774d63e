"""What operands must satisfy, and what is said when they do not.

Floor 5. Every message names the operation and all operands. A check returns the fact it
established.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, DeviceError, DTypeError, IndexRangeError, ShapeError
from tinycore.uop.shape import Shape


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape all are repeated to, axes aligned at the end. Raises ShapeError."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*aligned, strict=True):
        distinct = set(sizes) - {1}
        if len(distinct) > 1:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(f"{name}: shapes {listed} cannot be broadcast together")
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)


def resolve_axis(name: str, axis: int, rank: int, extra: int = 0) -> int:
    """A nonnegative axis. Raises IndexRangeError when it is none of the `rank` (+ `extra`) axes."""
    count = rank + extra
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentError(f"{name}: an axis is an int, got {axis!r}")
    limit = max(count, 1)
    if not -limit <= axis < limit:
        raise IndexRangeError(
            f"{name}: axis {axis} is outside [{-limit}, {limit - 1}] of {rank} axes"
        )
    return axis % limit


def resolve_axes(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Nonnegative, distinct axes in ascending order; None means all. Raises on a repeated one."""
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = [resolve_axis(name, a, rank) for a in given]
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"{name}: an axis is repeated in {given}")
    return tuple(sorted(a for a in axes if rank))


def same_size(name: str, what: str, left: int, right: int, *shapes: Shape) -> None:
    """Two sizes that must agree. Raises ShapeError with all shapes."""
    if left != right:
        listed = " and ".join(map(str, shapes))
        raise ShapeError(f"{name}: {what} differ ({left} and {right}) in shapes {listed}")


def same_device(name: str, devices: Iterable[str]) -> None:
    """Raises DeviceError when operands live on different devices."""
    distinct = list(dict.fromkeys(devices))
    if len(distinct) > 1:
        listed = " and ".join(distinct)
        raise DeviceError(f"{name}: operands are on {listed}; move one of them with .to(device)")


def integer_dtype(name: str, dtype: DType, what: str = "operand") -> None:
    """Raises DTypeError unless the dtype is an integer."""
    if not dtypes.is_int(dtype):
        raise DTypeError(f"{name}: the {what} must be an integer tensor, got {dtype!r}")


def floating_dtype(name: str, dtype: DType) -> None:
    """Raises DTypeError unless the dtype is floating-point."""
    if not dtypes.is_float(dtype):
        raise DTypeError(f"{name}: needs a floating-point tensor, got {dtype!r}")


def int_arguments(name: str, values: Iterable[object]) -> tuple[int, ...]:
    """Plain ints from ints and NumPy integers. Raises ArgumentError for anything else."""
    result = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise ArgumentError(f"{name}: sizes are ints, got {value!r}")
        result.append(value.__index__())
    return tuple(result)


def spread(values: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of `f(2, 3)`, also when called as `f((2, 3))`."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        return tuple(values[0])
    return values
