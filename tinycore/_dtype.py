"""Types of values: scalars, vectors, pointers and images, and the bits of floats.

Floor 0. A `DType` is interned: there is one object per type, so types compare by identity. Which
types there are is told in `dtype.py`, from where everything here is imported.
"""

from __future__ import annotations

import math
from functools import cache
from numbers import Integral
from typing import Any, Final, Literal, NamedTuple

from tinycore.errors import DTypeError

Scalar = bool | int | float
"""A Python value that can be the argument of a constant."""

Kind = Literal["void", "bool", "int", "uint", "float", "index"]
Space = Literal["global", "local", "register"]
Special = Literal["ieee", "finite", "unsigned zero"]


class FloatLayout(NamedTuple):
    """Layout of a float's bits: a sign, then the exponent, then the mantissa.

    `special` says which codes are no numbers. "ieee" (IEEE 754): the greatest exponent is that of
    infinity and NaN. "finite" (E4M3 of the OCP 8-bit floating point specification, revision 1.0):
    all ones are NaN, there is no infinity. "unsigned zero" (Noune and others, "8-bit numerical
    formats for deep neural networks", arXiv:2206.02915): the code of -0 is the one NaN, there is
    no infinity, and exponents are one lower.
    """

    exponent_bits: int
    mantissa_bits: int
    special: Special = "ieee"

    @property
    def bias(self) -> int:
        """Bias: the number added to an exponent to store it."""
        return (1 << (self.exponent_bits - 1)) - self.has_negative_zero

    @property
    def least_exponent(self) -> int:
        """The exponent of the least normal number."""
        return 1 - self.bias

    @property
    def has_infinity(self) -> bool:
        """True if overflow is infinite; it is NaN otherwise."""
        return self.special == "ieee"

    @property
    def has_negative_zero(self) -> bool:
        """True if zero has a sign."""
        return self.special != "unsigned zero"

    @property
    def beyond(self) -> int:
        """The code after that of the greatest finite number, the sign left out."""
        odd = {"ieee": 1 << self.mantissa_bits, "finite": 1, "unsigned zero": 0}
        return (1 << (self.exponent_bits + self.mantissa_bits)) - odd[self.special]

    @property
    def nan(self) -> int:
        """The code of a NaN: all ones but the sign, or the sign alone where that is the one."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - self.has_negative_zero

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        return self.magnitude(self.beyond - 1)

    def magnitude(self, code: int) -> float:
        """The number that a code without its sign stands for."""
        exponent, mantissa = divmod(code, 1 << self.mantissa_bits)
        digits = mantissa + ((1 << self.mantissa_bits) if exponent else 0)
        return math.ldexp(digits, max(exponent, 1) - self.bias - self.mantissa_bits)

    def holds(self, other: FloatLayout) -> bool:
        """True if every value of the other layout is exactly one of this."""
        return (
            self.mantissa_bits >= other.mantissa_bits
            and self.magnitude(1) <= other.magnitude(1)
            and self.greatest >= other.greatest
            and self.has_infinity >= other.has_infinity
            and self.has_negative_zero >= other.has_negative_zero
        )


class DType:
    """One type: `count` lanes of a scalar that takes `itemsize` bytes.

    `priority` orders types for promotion: of several types that two promote to, the one with the
    least is taken. `layout` is that of floats, None for what is none and for weakfloat. Vector
    types exist inside kernels only; a tensor's dtype is always scalar.
    """

    __slots__ = tuple("__weakref__ count itemsize kind layout name priority".split())

    def __init__(
        self,
        name: str,
        kind: Kind,
        itemsize: int,
        priority: int,
        layout: FloatLayout | None = None,
        count: int = 1,
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.itemsize = itemsize
        self.priority = priority
        self.layout = layout
        self.count = count

    def __eq__(self, other: object) -> bool:
        """True for itself and for its name: `x.dtype == "float32"`."""
        return self is other or (isinstance(other, str) and self is SCALARS.get(other))

    __hash__ = object.__hash__

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

    @property
    def min(self) -> Scalar:
        """Least value: -inf for floats that have it and for weak types, False for bool.

        Void has no value, so its least is above its greatest.
        """
        if self.kind in ("bool", "uint", "void"):
            return False if self.kind == "bool" else int(self.kind == "void")
        return -self.max if self.kind == "float" or not self.itemsize else -(1 << (self.bits - 1))

    @property
    def max(self) -> Scalar:
        """Greatest value: inf for floats that have it and for weak types, True for bool."""
        if self.kind in ("bool", "void"):
            return self.kind == "bool"
        if self.layout is not None and not self.layout.has_infinity:
            return self.layout.greatest
        if self.kind == "float" or not self.itemsize:
            return math.inf
        return (1 << (self.bits - (self.kind != "uint"))) - 1

    def vec(self, count: int) -> DType:
        """The type of `count` lanes of this scalar type; `vec(1)` is the scalar itself."""
        return vector(self.scalar(), count)

    def scalar(self) -> DType:
        """The type of one lane."""
        return self if self.count == 1 else SCALARS[self.name]

    def ptr(self, size: int, space: Space = "global") -> PointerDType:
        """A pointer to `size` elements of this type in the given memory space."""
        return pointer(self, size, space)


class PointerDType(DType):
    """The type of a buffer inside a kernel: `size` elements of `base` in a memory `space`."""

    __slots__ = ("base", "size", "space")

    def __init__(self, base: DType, size: int, space: Space) -> None:
        super().__init__(
            base.name, base.kind, base.itemsize, base.priority, base.layout, base.count
        )
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
    64 unless they say otherwise. It is a layout of memory, not the dtype of elements: a tensor that
    is kept in an image (docs/decisions/0034-images.md) has the dtype `base`.
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


SCALARS: Final[dict[str, DType]] = {}
"""Every scalar type by its name."""


def scalar(
    name: str, kind: Kind, itemsize: int, priority: int, layout: FloatLayout | None = None
) -> DType:
    """A new scalar type, found under its name from now on."""
    assert name not in SCALARS, name
    SCALARS[name] = DType(name, kind, itemsize, priority, layout)
    return SCALARS[name]


@cache
def vector(scalar: DType, count: int) -> DType:
    """The one vector type of `count` lanes of `scalar`."""
    if count == 1:
        return scalar
    return DType(scalar.name, scalar.kind, scalar.itemsize, scalar.priority, scalar.layout, count)


@cache
def pointer(base: DType, size: int, space: Space) -> PointerDType:
    """The one pointer type to `size` elements of `base` in `space`."""
    return PointerDType(base, size, space)


def is_count(value: Any) -> bool:
    """True if a value is a positive integer, of Python or of NumPy."""
    is_integer = issubclass(type(value), Integral) and type(value) is not bool
    return is_integer and value > 0


def image(base: DType, size: object) -> ImageDType:
    """The one image type of (height, width) or (height, width, 4). Raises DTypeError."""
    sizes = tuple(size) if isinstance(size, (tuple, list)) else ()
    channels = sizes[2:] or (ImageDType.CHANNELS,)
    if len(sizes) < 2 or not all(map(is_count, sizes)) or channels != (ImageDType.CHANNELS,):
        raise DTypeError(
            f"an image is (height, width) of pixels with 4 channels, two positive ints, got {size}"
        )
    return interned_image(base, *map(int, sizes[:2]))


@cache
def interned_image(base: DType, height: int, width: int) -> ImageDType:
    """The one image type with these facts."""
    return ImageDType(base, height, width)


def restore(name: str, count: int) -> DType:
    """Find the interned type again after unpickling."""
    return vector(SCALARS[name], count)
