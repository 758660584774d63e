"""Dtypes that a function of the standard takes, and the one that several of them promote to.

Floor 6. `Tensor` itself promotes across kinds as its users are accustomed to; the standard leaves
that undefined, and here it is refused, so that a program that runs is a portable one. A Python
number takes the dtype of the arrays beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tinycore.dtype import DType, Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError
from tinycore.tensor import Tensor
from tinycore.uop.shape import DeviceLike

Operand = Tensor | Scalar

FAMILIES: Final[Mapping[str, frozenset[DType]]] = {
    "bool": frozenset({dtypes.bool}),
    "signed integer": frozenset(dtypes.sints),
    "unsigned integer": frozenset(dtypes.uints),
    "integral": frozenset(dtypes.ints),
    "real floating": frozenset(dtypes.floats),
    "complex floating": frozenset(),
    "numeric": frozenset(dtypes.ints) | frozenset(dtypes.floats),
}
"""The dtypes of each kind that the standard names; float16, bfloat16 and fp8 count as real floats.
"""

ACCEPTED: Final[Mapping[str, frozenset[DType]]] = {
    "any": frozenset(dtypes.all),
    "numeric": FAMILIES["numeric"],
    "floating-point": FAMILIES["real floating"],
    "integer": FAMILIES["integral"],
    "integer or bool": FAMILIES["integral"] | FAMILIES["bool"],
    "bool": FAMILIES["bool"],
}
"""Conditions of functions on their operands."""

WIDTHS: Final = {d.itemsize: d for d in dtypes.uints}
"""The unsigned integer of a size in bytes."""


def array(name: str, x: object, kind: str = "any") -> Tensor:
    """`x`, found to be a tensor of the right kind. Raises ArgumentTypeError or DTypeError."""
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(
            f"{name}: needs an array, got {type(x).__name__} {x!r}; convert it with asarray"
        )
    if x.dtype not in ACCEPTED[kind]:
        raise DTypeError(f"{name}: needs a {kind} dtype, got {x.dtype!r}; convert it with astype")
    return x


def family(dtype: DType) -> str:
    """The kind within which a dtype is promoted. Raises DTypeError for one that takes no part."""
    for kind in ("bool", "integral", "real floating"):
        if dtype in FAMILIES[kind]:
            return kind
    raise DTypeError(f"{dtype!r} is no dtype of arrays")


def common_dtype(name: str, given: Iterable[object]) -> DType:
    """The dtype that arrays, dtypes and Python numbers combine to, by the standard's table.

    Raises DTypeError across kinds, for uint64 beside a signed integer, and for a number of another
    kind than the arrays; ArgumentError when there are numbers only, or one that does not fit.
    """
    values = list(given)
    found = [x.dtype if isinstance(x, Tensor) else x for x in values]
    types = [d for d in found if isinstance(d, DType)]
    if not types:
        raise ArgumentError(f"{name}: needs an array or a dtype among {values!r}")
    signed = any(d in FAMILIES["signed integer"] for d in types)
    if len({family(d) for d in types}) > 1 or (signed and dtypes.uint64 in types):
        listed = ", ".join(sorted({repr(d) for d in types}))
        raise DTypeError(
            f"{name}: {listed} have no common dtype in the standard; convert with astype"
        )
    result = least_upper_dtype(*types)
    for value in found:
        if not isinstance(value, DType):
            check_number(name, value, result)
    return result


def check_number(name: str, value: object, beside: DType) -> None:
    """Raises DTypeError, or ArgumentError when too large, unless a number fits a dtype."""
    kind = family(beside)
    fits = {"bool": (bool,), "integral": (int,), "real floating": (int, float)}[kind]
    if not isinstance(value, fits) or (isinstance(value, bool) and kind != "bool"):
        raise DTypeError(
            f"{name}: {value!r} ({type(value).__name__}) beside arrays of {beside!r}; "
            "convert one of them"
        )
    least, most = dtypes.min(beside), dtypes.max(beside)
    if kind == "integral" and isinstance(value, int) and not least <= value <= most:
        raise ArgumentError(f"{name}: {value!r} is outside the range of {beside!r}")


def promote_operands(name: str, kind: str, *operands: object) -> tuple[Tensor, ...]:
    """Arrays and numbers as arrays of their common dtype, whose kind is checked.

    Raises as `common_dtype` does, and DTypeError for another kind.
    """
    dtype = common_dtype(name, operands)
    if dtype not in ACCEPTED[kind]:
        raise DTypeError(f"{name}: needs {kind} dtypes, got {dtype!r}; convert with astype")
    device = next(x.device for x in operands if isinstance(x, Tensor))
    return tuple([as_operand(x, dtype, device) for x in operands])


def as_operand(x: Any, dtype: DType, device: DeviceLike) -> Tensor:
    """One operand in a dtype; a number becomes a constant, which takes no memory."""
    if isinstance(x, Tensor):
        return x.cast(dtype)
    return Tensor.full((), x, dtype=dtype, device=device, buffer=False)


def summed(dtype: DType) -> DType:
    """The dtype of sums: integers are at least as wide as the default one, floats stay."""
    if dtype not in FAMILIES["integral"] or dtype.itemsize >= dtypes.default_int.itemsize:
        return dtype
    default = dtypes.default_int
    return WIDTHS[default.itemsize] if dtypes.is_unsigned(dtype) else default
