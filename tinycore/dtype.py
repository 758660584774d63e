"""Dtypes: those there are, what they promote to, and how each is stored on the host.

Floor 0. What a type is is told in `_dtype.py`; users import everything from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tinycore._dtype import (
    SCALARS,
    DType,
    FloatLayout,
    ImageDType,
    Kind,
    PointerDType,
    Scalar,
    Space,
    image,
    pointer,
    scalar,
    vector,
)
from tinycore.config import settings
from tinycore.errors import DTypeError

if TYPE_CHECKING:
    import numpy

__all__ = [
    "DType",
    "DTypeLike",
    "FloatLayout",
    "ImageDType",
    "Kind",
    "PointerDType",
    "Scalar",
    "Space",
    "dtypes",
    "float_layout",
    "from_numpy_dtype",
    "image",
    "integer_for",
    "least_upper_dtype",
    "least_upper_float",
    "pointer",
    "sum_acc_dtype",
    "to_dtype",
    "to_numpy_dtype",
    "vector",
]


class ChosenDefault:
    """A default dtype as a setting says; assigning to the attribute overrides it."""

    def __init__(self, chosen: Callable[[], str]) -> None:
        self.chosen = chosen

    def __get__(self, instance: object, owner: type[dtypes]) -> DType:
        return owner.by_name[self.chosen()]


class dtypes:  # noqa: N801  the name tinygrad's users know
    """All types by name, and questions about them."""

    void: Final = scalar("void", "void", 0, -1)
    """No value: the type of statements, such as a STORE."""
    index: Final = scalar("index", "index", 8, 0)
    """Loop counters and addresses; renderers map it to the target's natural signed integer."""
    bool: Final = scalar("bool", "bool", 1, 0)
    weakint: Final = scalar("weakint", "int", 0, 1)
    """A Python integer in promotion: gives way to every integer and float. See `to_dtype`."""
    int8: Final = scalar("int8", "int", 1, 2)
    uint8: Final = scalar("uint8", "uint", 1, 3)
    int16: Final = scalar("int16", "int", 2, 4)
    uint16: Final = scalar("uint16", "uint", 2, 5)
    int32: Final = scalar("int32", "int", 4, 6)
    uint32: Final = scalar("uint32", "uint", 4, 7)
    int64: Final = scalar("int64", "int", 8, 8)
    uint64: Final = scalar("uint64", "uint", 8, 9)
    weakfloat: Final = scalar("weakfloat", "float", 0, 10)
    """A Python float in promotion: gives way to every float. See `to_dtype`."""
    fp8e4m3: Final = scalar("fp8e4m3", "float", 1, 11, FloatLayout(4, 3, "finite"))
    fp8e5m2: Final = scalar("fp8e5m2", "float", 1, 12, FloatLayout(5, 2))
    fp8e4m3fnuz: Final = scalar("fp8e4m3fnuz", "float", 1, 13, FloatLayout(4, 3, "unsigned zero"))
    fp8e5m2fnuz: Final = scalar("fp8e5m2fnuz", "float", 1, 14, FloatLayout(5, 2, "unsigned zero"))
    float16: Final = scalar("float16", "float", 2, 15, FloatLayout(5, 10))
    bfloat16: Final = scalar("bfloat16", "float", 2, 16, FloatLayout(8, 7))
    float32: Final = scalar("float32", "float", 4, 17, FloatLayout(8, 23))
    float64: Final = scalar("float64", "float", 8, 18, FloatLayout(11, 52))

    half: Final = float16
    float: Final = float32
    double: Final = float64
    char: Final = int8
    short: Final = int16
    int: Final = int32
    long: Final = int64
    uchar: Final = uint8
    ushort: Final = uint16
    uint: Final = uint32
    ulong: Final = uint64

    weaks: Final = (weakint, weakfloat)
    fp8_ocp: Final = (fp8e4m3, fp8e5m2)
    fp8_fnuz: Final = (fp8e4m3fnuz, fp8e5m2fnuz)
    fp8s: Final = (*fp8_ocp, *fp8_fnuz)
    floats: Final = (*fp8s, float16, bfloat16, float32, float64)
    uints: Final = (uint8, uint16, uint32, uint64)
    sints: Final = (int8, int16, int32, int64)
    ints: Final = (*uints, *sints)
    int8s: Final = (uint8, int8)
    int16s: Final = (uint16, int16)
    int32s: Final = (uint32, int32)
    int64s: Final = (uint64, int64)
    all: Final = (bool, *ints, *floats)
    """Types of the elements of tensors."""
    by_name: ClassVar[dict[str, DType]] = SCALARS

    default_float: ClassVar[DType] = ChosenDefault(lambda: settings.DEFAULT_FLOAT)  # type: ignore[assignment]
    default_int: ClassVar[DType] = ChosenDefault(lambda: settings.DEFAULT_INT)  # type: ignore[assignment]

    @staticmethod
    def imagef(size: tuple[int_type, ...]) -> ImageDType:
        """An image of (height, width) pixels, each four float32."""
        return image(dtypes.float32, size)

    @staticmethod
    def imageh(size: tuple[int_type, ...]) -> ImageDType:
        """An image of (height, width) pixels, each four float16."""
        return image(dtypes.float16, size)

    @staticmethod
    def is_float(dtype: DType) -> bool_type:
        """True if the scalar is a floating-point type."""
        return dtype.kind == "float"

    @staticmethod
    def is_int(dtype: DType) -> bool_type:
        """True if the scalar is an integer type, signed or not (`index` included, bool not)."""
        return dtype.kind in ("int", "uint", "index")

    @staticmethod
    def is_unsigned(dtype: DType) -> bool_type:
        """True if the scalar is an unsigned integer type."""
        return dtype.kind == "uint"

    @staticmethod
    def is_bool(dtype: DType) -> bool_type:
        """True if the scalar is bool."""
        return dtype.kind == "bool"

    @staticmethod
    def from_py(value: object) -> DType:
        """The default dtype of a Python scalar or (nested) list of them; int64 for large integers.

        Raises DTypeError for anything else, complex numbers included.
        """
        if isinstance(value, bool_type):
            return dtypes.bool
        if isinstance(value, int_type):
            return integer_for(value)
        if isinstance(value, float_type):
            return dtypes.default_float
        if isinstance(value, (list, tuple)):
            found = [dtypes.from_py(item) for item in value]
            return max(found, key=lambda d: d.priority) if found else dtypes.default_float
        many = type(value).__name__ == "Tensor"
        raise DTypeError(
            f"no dtype for a Python value of type {type(value).__name__!r}: {value!r}. "
            "Use bool, int, float, lists of them, or NumPy arrays; of complex z: z.real, z.imag."
            + (" `stack` makes one tensor of several." if many else "")
        )

    @staticmethod
    def min(dtype: DType) -> Scalar:
        """Least value: `dtype.min`."""
        return dtype.min

    @staticmethod
    def max(dtype: DType) -> Scalar:
        """Greatest value: `dtype.max`."""
        return dtype.max

    @staticmethod
    def finfo(dtype: DType) -> tuple[int_type, int_type]:
        """(exponent bits, explicit mantissa bits) of a floating-point type."""
        return float_layout(dtype)[:2]


bool_type = bool
int_type = int
float_type = float


def float_layout(dtype: DType) -> FloatLayout:
    """Layout of the bits of a floating-point type. Raises DTypeError for any other."""
    if dtype.layout is None:
        raise DTypeError(f"{dtype!r} is no floating-point dtype with a layout of bits")
    return dtype.layout


DTypeLike = str | DType
"""A dtype or its name; also the dtypes of NumPy and torch, and Python's bool, int and float."""

FOREIGN_SPELLINGS: Final = {
    "bool_": "bool",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
    "float8_e4m3fnuz": "fp8e4m3fnuz",
    "float8_e5m2fnuz": "fp8e5m2fnuz",
}
"""Names of types in NumPy and torch that differ from ours."""


def name_of(dtype: object) -> str:
    """Our name of a dtype given as one of NumPy or torch, as a Python type or as a string."""
    if dtype in (bool_type, int_type, float_type):
        return dtypes.from_py(dtype(0)).name
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(dtype, type) and issubclass(dtype, numpy.generic):
        dtype = numpy.dtype(dtype)
    name = dtype.name if numpy is not None and isinstance(dtype, numpy.dtype) else str(dtype)
    name = name.removeprefix("torch.")
    return FOREIGN_SPELLINGS.get(name, name)


def to_dtype(dtype: DTypeLike) -> DType:
    """The dtype that a DType, a name or an alias stands for.

    weakint and weakfloat ask for the default integer and float: they are the types that Python
    numbers have in promotion, and no tensor is of them. A number beside a tensor takes the dtype
    `to_dtype(least_upper_dtype(weak, tensor.dtype))`, where weak is bool for True and False.

    Raises DTypeError for an unknown name, and for what elements cannot be: void, a vector, a
    pointer or an image.
    """
    if isinstance(dtype, ImageDType):
        raise DTypeError(
            f"{dtype!r} is a layout of memory, not a dtype of elements. Keep a tensor of "
            f"{dtype.base!r} in it by x.cast({dtype!r})"
        )
    found = dtype if isinstance(dtype, DType) else getattr(dtypes, name_of(dtype), None)
    if not isinstance(found, DType):
        known = ", ".join(d.name for d in dtypes.all)
        raise DTypeError(f"unknown dtype {dtype!r}. Known: {known}.")
    if found.count > 1 or isinstance(found, PointerDType) or found is dtypes.void:
        raise DTypeError(f"{found!r} is no dtype of elements, {found.scalar()!r} may be")
    if found in dtypes.weaks:
        return dtypes.default_float if found is dtypes.weakfloat else dtypes.default_int
    return found


# Successors of each type in the promotion lattice (JAX type promotion semantics,
# https://docs.jax.dev/en/latest/type_promotion.html), the weak types of Python numbers among them.
PROMOTES_TO: Final[dict[DType, tuple[DType, ...]]] = {
    dtypes.bool: (dtypes.weakint,),
    dtypes.weakint: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,),
    dtypes.int64: (dtypes.weakfloat,),  # no integer holds both it and uint64
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.uint64: (dtypes.weakfloat,),
    dtypes.weakfloat: dtypes.fp8s,
    **dict.fromkeys(dtypes.fp8s, (dtypes.float16, dtypes.bfloat16)),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


@cache
def ancestors(dtype: DType) -> frozenset[DType]:
    """The type and everything it promotes to."""
    return frozenset({dtype}).union(*(ancestors(d) for d in PROMOTES_TO[dtype]))


def least_upper_dtype(*types: DType) -> DType:
    """The smallest type that all promote to: the default float of a signed one and uint64.

    Raises DTypeError when one of them takes no part in promotion (void, index, vectors).
    """
    found = least_upper(*types)
    promoted_to_float = found is dtypes.weakfloat and dtypes.weakfloat not in types
    return dtypes.default_float if promoted_to_float else found


@cache
def least_upper(*types: DType) -> DType:
    """Least upper bound in the lattice, where signed integers and uint64 meet in weakfloat."""
    if odd := [d for d in types if d not in PROMOTES_TO]:
        raise DTypeError(f"cannot promote {', '.join(map(repr, odd))}")
    return min(frozenset.intersection(*map(ancestors, types)), key=lambda d: d.priority)


def integer_for(*numbers: int) -> DType:
    """The default integer, or int64 where that does not hold all the numbers."""
    default = dtypes.default_int
    least, most = default.min, default.max
    return default if all(least <= n <= most for n in numbers) else dtypes.int64


def least_upper_float(dtype: DType) -> DType:
    """The type itself if it is a float, else the default float; weakfloat for weakint."""
    if dtype is dtypes.weakint:
        return dtypes.weakfloat
    return dtype if dtypes.is_float(dtype) else dtypes.default_float


def sum_acc_dtype(dtype: DType) -> DType:
    """The type in which sums of `dtype` are accumulated: at least 32 bits wide."""
    wide = dtypes.float32 if dtypes.is_float(dtype) else dtypes.int32
    return least_upper_dtype(dtype, dtypes.uint32 if dtypes.is_unsigned(dtype) else wide)


STORED_AS: Final = {
    dtypes.bfloat16: "uint16",
    dtypes.index: "int64",
    **dict.fromkeys(dtypes.fp8s, "uint8"),
}


@cache
def to_numpy_dtype(dtype: DType) -> numpy.dtype[numpy.generic]:
    """The NumPy dtype with the same bytes; bfloat16 and fp8 appear as unsigned integers.

    Raises DTypeError for void and the weak types, which have no bytes.
    """
    import numpy  # noqa: PLC0415  the core's types are needed before NumPy is

    if dtype.itemsize == 0:
        raise DTypeError(
            f"{dtype!r} has no bytes: a tensor of a Python number has the default dtype"
        )
    return numpy.dtype(STORED_AS.get(dtypes.by_name[dtype.name], dtype.name))


def _to_np_dtype(dtype: DType) -> type[numpy.generic]:
    """The class of NumPy's scalars of a dtype, by the name tinygrad gives it."""
    return to_numpy_dtype(dtype).type


def _from_torch_dtype(dtype: object) -> DType:
    """The DType of torch's. Raises DTypeError for complex and quantized ones."""
    return to_dtype(str(dtype))


def _to_torch_dtype(dtype: DType) -> Any:
    """torch's dtype of the same name. Raises DTypeError where torch is not imported or has none."""
    names = {ours: theirs for theirs, ours in FOREIGN_SPELLINGS.items() if "float8" in theirs}
    found = getattr(sys.modules.get("torch"), names.get(dtype.name, dtype.name), None)
    if found is None:
        raise DTypeError(f"{dtype!r} is no dtype of torch, or torch is not imported")
    return found


def from_numpy_dtype(dtype: numpy.dtype[numpy.generic]) -> DType:
    """The DType of a NumPy dtype. Raises DTypeError for complex, string, object and the like."""
    found = dtypes.by_name.get(dtype.name)
    if found not in dtypes.all:
        raise DTypeError(
            f"NumPy dtype {dtype.name!r} has no counterpart. "
            f"Known: {', '.join(d.name for d in dtypes.all)}; of complex z: z.real, z.imag."
        )
    return found


_from_np_dtype: Final = from_numpy_dtype
"""The same by the name tinygrad gives it."""
