"""Dtypes: promotion, limits and kinds, and casts.

Floor 6. float16, bfloat16 and the fp8 types count as "real floating".
"""

from __future__ import annotations

from typing import NamedTuple

from tinycore.array_api._promotion import FAMILIES, array, common_dtype
from tinycore.dtype import DType, Scalar, dtypes, float_layout
from tinycore.errors import ArgumentError, DTypeError
from tinycore.tensor import Tensor
from tinycore.uop.shape import DeviceLike

__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

Kind = DType | str


class FloatInfo(NamedTuple):
    """Limits of a floating-point dtype, as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def dtype_of(name: str, x: DType | Tensor) -> DType:
    """The dtype itself, or the array's. Raises ArgumentTypeError for anything else."""
    return x if isinstance(x, DType) else array(name, x).dtype


def astype(
    x: Tensor, dtype: DType, /, *, copy: bool = True, device: DeviceLike | None = None
) -> Tensor:
    """Every element converted: to an integer truncates, to bool is x != 0.

    The array itself when nothing changes and `copy` is False, memory of its own otherwise.
    """
    same = array("astype", x).dtype is dtype
    moved = x.cast(dtype).to(device)
    return moved.clone() if copy and same and moved.device == x.device else moved


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """True if one dtype is promoted to the other."""
    try:
        return common_dtype("can_cast", [dtype_of("can_cast", from_), to]) is to
    except DTypeError:
        return False


def finfo(type: DType | Tensor, /) -> FloatInfo:  # noqa: A002  the standard's name
    """Limits of a floating-point dtype: bits, eps, max, min, smallest_normal, dtype.

    Raises DTypeError for any other.
    """
    dtype = dtype_of("finfo", type)
    layout = float_layout(dtype)
    eps, least = 2.0**-layout.mantissa_bits, 2.0**layout.least_exponent
    return FloatInfo(dtype.bits, eps, layout.greatest, -layout.greatest, least, dtype)


def iinfo(type: DType | Tensor, /) -> IntInfo:  # noqa: A002
    """Limits of an integer dtype: bits, max, min, dtype. Raises DTypeError for any other."""
    dtype = dtype_of("iinfo", type)
    if dtype not in FAMILIES["integral"]:
        raise DTypeError(f"iinfo needs an integer dtype, got {dtype!r}")
    return IntInfo(dtype.bits, int(dtypes.max(dtype)), int(dtypes.min(dtype)), dtype)


def isdtype(dtype: DType, kind: Kind | tuple[Kind, ...]) -> bool:
    """True if a dtype is another one, or of a kind such as "integral", or any of several.

    Raises ArgumentError for a kind that the standard does not name.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if unknown := [k for k in kinds if isinstance(k, str) and k not in FAMILIES]:
        raise ArgumentError(f"isdtype: {unknown[0]!r} is none of {', '.join(FAMILIES)}")
    return any(dtype in FAMILIES[k] if isinstance(k, str) else dtype is k for k in kinds)


def result_type(*arrays_and_dtypes: Tensor | DType | Scalar) -> DType:
    """The dtype that arrays, dtypes and Python numbers combine to.

    Raises DTypeError where the standard defines none, ArgumentError when there are numbers only.
    """
    return common_dtype("result_type", arrays_and_dtypes)
