"""Scalar, vector and pointer types, promotion, and how each is stored on the host.

Floor 0. A `DType` is interned: there is one object per type, so types compare by identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from tinycore.config import settings
from tinycore.errors import DTypeError

if TYPE_CHECKING:
    import numpy

Scalar = bool | int | float
"""A Python value that can be the argument of a constant."""

Kind = Literal["void", "bool", "int", "uint", "float", "index"]
Space = Literal["global", "local", "register"]


class DType:
    """One type: `count` lanes of a scalar that takes `itemsize` bytes.

    `priority` orders types for promotion: of two incomparable types the higher one's successor
    wins. Vector types exist inside kernels only; a tensor's dtype is always scalar.
    """

    __slots__ = ("__weakref__", "count", "itemsize", "kind", "name", "priority")

    def __init__(self, name: str, kind: Kind, itemsize: int, priority: int, count: int = 1) -> None:
        self.name = name
        self.kind: Kind = kind
        self.itemsize = itemsize
        self.priority = priority
        self.count = count

    def __repr__(self) -> str:
        return f"dtypes.{self.name}" + (f".vec({self.count})" if self.count > 1 else "")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return restore, (self.name, self.count)

    def __lt__(self, other: DType) -> bool:
        return (self.priority, self.name, self.count) < (other.priority, other.name, other.count)

    @property
    def bits(self) -> int:
        """Width of one scalar in bits; a bool counts as 8, as it is stored."""
        return self.itemsize * 8

    @property
    def size_bytes(self) -> int:
        """Bytes that all lanes take together."""
        return self.itemsize * self.count

    def vec(self, count: int) -> DType:
        """The type of `count` lanes of this scalar type; `vec(1)` is the scalar itself."""
        return vector(self.scalar(), count)

    def scalar(self) -> DType:
        """The type of one lane."""
        return self if self.count == 1 else dtypes.by_name[self.name]

    def ptr(self, size: int, space: Space = "global") -> PointerDType:
        """A pointer to `size` elements of this type in the given memory space."""
        return pointer(self, size, space)


class PointerDType(DType):
    """The type of a buffer inside a kernel: `size` elements of `base` in a memory `space`."""

    __slots__ = ("base", "size", "space")

    def __init__(self, base: DType, size: int, space: Space) -> None:
        super().__init__(base.name, base.kind, base.itemsize, base.priority, base.count)
        self.base = base
        self.size = size
        self.space: Space = space

    def __repr__(self) -> str:
        return (
            f"{self.base!r}.ptr({self.size}{'' if self.space == 'global' else f', {self.space!r}'})"
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pointer, (self.base, self.size, self.space)


class ImageDType(PointerDType):
    """The type of a two-dimensional image of pixels, each of four channels of `base`.

    Channels are innermost, then columns, then rows. A row may be longer than its pixels: devices
    want each to start at a multiple of so many pixels (CL_DEVICE_IMAGE_PITCH_ALIGNMENT of OpenCL),
    64 unless they say otherwise. It is a layout of memory for kernels, not the dtype of a tensor.
    """

    __slots__ = ("height", "pixel_bytes", "shape", "width")

    CHANNELS: Final = 4
    PITCH_ALIGNMENT: Final = 64

    def __init__(self, base: DType, height: int, width: int) -> None:
        super().__init__(base, height * width * self.CHANNELS, "global")
        self.height = height
        self.width = width
        self.pixel_bytes = base.itemsize * self.CHANNELS
        self.shape = (height, width, self.CHANNELS)

    def __repr__(self) -> str:
        name = "imageh" if self.base.itemsize == 2 else "imagef"
        return f"dtypes.{name}(({self.height}, {self.width}))"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return image, (self.base, (self.height, self.width))

    def pitch_bytes(self, alignment_pixels: int = PITCH_ALIGNMENT) -> int:
        """Bytes from the start of one row to that of the next."""
        return -(-self.width // alignment_pixels) * alignment_pixels * self.pixel_bytes

    def memory_bytes(self, alignment_pixels: int = PITCH_ALIGNMENT) -> int:
        """Bytes of all rows, what fills them up included."""
        return self.pitch_bytes(alignment_pixels) * self.height


@cache
def vector(scalar: DType, count: int) -> DType:
    """The one vector type of `count` lanes of `scalar`."""
    if count == 1:
        return scalar
    return DType(scalar.name, scalar.kind, scalar.itemsize, scalar.priority, count)


@cache
def pointer(base: DType, size: int, space: Space) -> PointerDType:
    """The one pointer type to `size` elements of `base` in `space`."""
    return PointerDType(base, size, space)


def image(base: DType, size: tuple[int, ...]) -> ImageDType:
    """The one image type of (height, width) or (height, width, 4). Raises DTypeError."""
    channels = size[2:] or (ImageDType.CHANNELS,)
    if len(size) < 2 or channels != (ImageDType.CHANNELS,) or min(size) < 1:
        raise DTypeError(f"an image is (height, width) of pixels with 4 channels, got {size}")
    return interned_image(base, *size[:2])


@cache
def interned_image(base: DType, height: int, width: int) -> ImageDType:
    """The one image type with these facts."""
    return ImageDType(base, height, width)


def restore(name: str, count: int) -> DType:
    """Find the interned type again after unpickling."""
    return vector(dtypes.by_name[name], count)


class ChosenDefault:
    """A default dtype as a setting says; assigning to the attribute overrides it."""

    def __init__(self, chosen: Callable[[], str]) -> None:
        self.chosen = chosen

    def __get__(self, instance: object, owner: type[dtypes]) -> DType:
        return owner.by_name[self.chosen()]


class dtypes:  # noqa: N801  the name tinygrad's users know
    """All types by name, and questions about them."""

    void: Final = DType("void", "void", 0, -1)
    index: Final = DType("index", "index", 8, 0)
    """Loop counters and addresses; renderers map it to the target's natural signed integer."""
    bool: Final = DType("bool", "bool", 1, 0)
    int8: Final = DType("int8", "int", 1, 1)
    uint8: Final = DType("uint8", "uint", 1, 2)
    int16: Final = DType("int16", "int", 2, 3)
    uint16: Final = DType("uint16", "uint", 2, 4)
    int32: Final = DType("int32", "int", 4, 5)
    uint32: Final = DType("uint32", "uint", 4, 6)
    int64: Final = DType("int64", "int", 8, 7)
    uint64: Final = DType("uint64", "uint", 8, 8)
    fp8e4m3: Final = DType("fp8e4m3", "float", 1, 9)
    fp8e5m2: Final = DType("fp8e5m2", "float", 1, 10)
    float16: Final = DType("float16", "float", 2, 11)
    bfloat16: Final = DType("bfloat16", "float", 2, 12)
    float32: Final = DType("float32", "float", 4, 13)
    float64: Final = DType("float64", "float", 8, 14)

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

    fp8s: Final = (fp8e4m3, fp8e5m2)
    floats: Final = (*fp8s, float16, bfloat16, float32, float64)
    uints: Final = (uint8, uint16, uint32, uint64)
    sints: Final = (int8, int16, int32, int64)
    ints: Final = (*uints, *sints)
    all: Final = (bool, *ints, *floats)
    by_name: ClassVar[dict[str, DType]] = {d.name: d for d in (void, index, *all)}

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
        """Whether the scalar is a floating-point type."""
        return dtype.kind == "float"

    @staticmethod
    def is_int(dtype: DType) -> bool_type:
        """Whether the scalar is an integer type, signed or not (`index` included, bool not)."""
        return dtype.kind in ("int", "uint", "index")

    @staticmethod
    def is_unsigned(dtype: DType) -> bool_type:
        """Whether the scalar is an unsigned integer type."""
        return dtype.kind == "uint"

    @staticmethod
    def is_bool(dtype: DType) -> bool_type:
        """Whether the scalar is bool."""
        return dtype.kind == "bool"

    @staticmethod
    def from_py(value: object) -> DType:
        """The default dtype of a Python scalar or (nested) list of them.

        Raises DTypeError for anything else, complex numbers included.
        """
        if isinstance(value, bool_type):
            return dtypes.bool
        if isinstance(value, int_type):
            return dtypes.default_int
        if isinstance(value, float_type):
            return dtypes.default_float
        if isinstance(value, (list, tuple)):
            found = [dtypes.from_py(item) for item in value]
            return max(found, key=lambda d: d.priority) if found else dtypes.default_float
        raise DTypeError(
            f"no dtype for a Python value of type {type(value).__name__!r}: {value!r}. "
            "Use bool, int, float, a nested list of them, or a NumPy array."
        )

    @staticmethod
    def min(dtype: DType) -> Scalar:
        """Least value: -inf for floats that have it, False for bool."""
        if dtype.kind in ("int", "index"):
            return -(1 << (dtype.bits - 1))
        if dtype.name == "fp8e4m3":
            return -448.0
        return -math.inf if dtype.kind == "float" else dtype.kind == "void"

    @staticmethod
    def max(dtype: DType) -> Scalar:
        """Greatest value: inf for floats that have it, True for bool."""
        if dtype.kind in ("int", "uint", "index"):
            return (1 << (dtype.bits - (dtype.kind != "uint"))) - 1
        if dtype.name == "fp8e4m3":
            return 448.0
        return math.inf if dtype.kind == "float" else dtype.kind == "bool"

    @staticmethod
    def finfo(dtype: DType) -> tuple[int_type, int_type]:
        """(exponent bits, explicit mantissa bits) of a floating-point type."""
        try:
            return FLOAT_LAYOUT[dtype.scalar()]
        except KeyError:
            raise DTypeError(f"finfo needs a floating-point dtype, got {dtype!r}") from None


bool_type = bool
int_type = int
float_type = float

FLOAT_LAYOUT: Final = {
    dtypes.fp8e4m3: (4, 3),
    dtypes.fp8e5m2: (5, 2),
    dtypes.float16: (5, 10),
    dtypes.bfloat16: (8, 7),
    dtypes.float32: (8, 23),
    dtypes.float64: (11, 52),
}

DTypeLike = str | DType


def to_dtype(dtype: DTypeLike) -> DType:
    """A DType from itself or from its name or alias.

    Raises DTypeError for an unknown name, and for an image, which is no dtype of elements.
    """
    if isinstance(dtype, ImageDType):
        raise DTypeError(
            f"{dtype!r} is a layout of memory; a tensor of its elements is {dtype.base!r} of shape "
            f"{dtype.shape}"
        )
    if isinstance(dtype, DType):
        return dtype
    found = getattr(dtypes, str(dtype), None)
    if isinstance(found, DType):
        return found
    raise DTypeError(f"unknown dtype {dtype!r}. Known: {', '.join(d.name for d in dtypes.all)}.")


# Successors of each type in the promotion lattice (JAX type promotion semantics,
# https://docs.jax.dev/en/latest/type_promotion.html, with strong Python scalars as tinygrad has).
PROMOTES_TO: Final[dict[DType, tuple[DType, ...]]] = {
    dtypes.bool: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,),
    dtypes.int64: (dtypes.uint64,),
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.uint64: dtypes.fp8s,
    dtypes.fp8e4m3: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


@cache
def ancestors(dtype: DType) -> frozenset[DType]:
    """The type and everything it promotes to."""
    return frozenset({dtype}).union(*(ancestors(d) for d in PROMOTES_TO[dtype]))


@cache
def least_upper_dtype(*types: DType) -> DType:
    """The smallest type that every given one promotes to.

    Raises DTypeError when one of them takes no part in promotion (void, index, vectors).
    """
    if odd := [d for d in types if d not in PROMOTES_TO]:
        raise DTypeError(f"cannot promote {', '.join(map(repr, odd))}")
    return min(frozenset.intersection(*map(ancestors, types)), key=lambda d: d.priority)


def least_upper_float(dtype: DType) -> DType:
    """The type itself if it is a float, else the default float."""
    return dtype if dtypes.is_float(dtype) else dtypes.default_float


def sum_acc_dtype(dtype: DType) -> DType:
    """The type in which sums of `dtype` are accumulated: at least 32 bits wide."""
    if dtypes.is_unsigned(dtype):
        return least_upper_dtype(dtype, dtypes.uint32)
    if dtypes.is_int(dtype) or dtypes.is_bool(dtype):
        return least_upper_dtype(dtype, dtypes.int32)
    return least_upper_dtype(dtype, dtypes.float32)


STORED_AS: Final = {"bfloat16": "uint16", "fp8e4m3": "uint8", "fp8e5m2": "uint8", "index": "int64"}


@cache
def to_numpy_dtype(dtype: DType) -> numpy.dtype[numpy.generic]:
    """The NumPy dtype with the same bytes; bfloat16 and fp8 appear as unsigned integers."""
    import numpy  # noqa: PLC0415  the core's types are needed before NumPy is

    return numpy.dtype(STORED_AS.get(dtype.name, dtype.name))


def from_numpy_dtype(dtype: numpy.dtype[numpy.generic]) -> DType:
    """The DType of a NumPy dtype. Raises DTypeError for complex, string, object and the like."""
    found = dtypes.by_name.get(dtype.name)
    if found is None:
        raise DTypeError(
            f"NumPy dtype {dtype.name!r} has no counterpart. "
            f"Known: {', '.join(d.name for d in dtypes.all)}."
        )
    return found
