"""Facts about dtypes and shapes that generator and comparison share."""

from __future__ import annotations

import math

from tests.fuzz.programs.form import Value
from tinycore.dtype import DType, dtypes, least_upper_dtype
from tinycore.uop.shape import Shape


def unit_of(dtype: DType) -> float:
    """Half the distance from 1 to the next greater float."""
    return math.ldexp(1, -dtypes.finfo(dtype)[1] - 1)


def underflow_of(dtype: DType) -> float:
    """Error of an underflow: the least positive float, or normal one if wider."""
    exponent_bits, mantissa_bits = dtypes.finfo(dtype)
    least_normal = 2 - (1 << (exponent_bits - 1))
    return math.ldexp(1, least_normal - (mantissa_bits if dtype is dtypes.float16 else 0))


def wrapped(dtype: DType, low: float, high: float) -> tuple[float, float]:
    """The range of integers after they wrap."""
    least, most = dtypes.min(dtype), dtypes.max(dtype)
    return (low, high) if least <= low and high <= most else (float(least), float(most))


def broadcast(*shapes: Shape) -> Shape | None:
    """The common shape, or None."""
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(s)) + s for s in shapes]
    sizes = [set(n) - {1} for n in zip(*aligned, strict=True)]
    return None if any(len(s) > 1 for s in sizes) else tuple(s.pop() if s else 1 for s in sizes)


def broadcasts(shape: Shape, target: Shape) -> bool:
    """True if a shape can be repeated to another."""
    return broadcast(shape, target) == target


def common(*values: Value) -> DType:
    """The dtype of an operation between values."""
    return least_upper_dtype(*(v.dtype for v in values))
