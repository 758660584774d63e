"""Arithmetic of ir3 on arrays of words with an element for each thread."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy
from emulation.faults import SyntaxFault
from emulation.numbers import fma_narrow

Array = numpy.ndarray[Any, Any]
WORD: Final = 0xFFFF_FFFF
SIXTEEN: Final = numpy.uint32(16)


def signed(a: Array) -> Array:
    return a.view(numpy.int32)


def unsigned(a: Array) -> Array:
    return numpy.asarray(a).astype(numpy.int64).astype(numpy.uint32)


def floats(a: Array) -> Array:
    return a.view(numpy.float32)


def words(a: Array) -> Array:
    """Floats as words."""
    return numpy.asarray(a, numpy.float32).view(numpy.uint32)


def clamped(a: Array) -> Array:
    """Wide numbers, held within what 32 bits with a sign have."""
    return numpy.clip(a, -(1 << 31), (1 << 31) - 1)


def low(a: Array) -> Array:
    return a & numpy.uint32(0xFFFF)


def shift(a: Array) -> Array:
    """The amount of a shift: five bits."""
    return a & numpy.uint32(31)


def multiply_high(a: Array, b: Array, c: Array) -> Array:
    """madsh.m16: the lower half of the first times the upper of the second, moved up, added.

    Of a product by a constant whose upper half is 0 Mesa leaves out the one of two such
    instructions in which that half is multiplied, which tells the halves apart.
    """
    sums: Array = c + ((low(a) * (b >> SIXTEEN)) << SIXTEEN)
    return sums


def twenty_four(a: Array) -> Array:
    """24 bits, extended by their sign."""
    return signed(a << numpy.uint32(8)) >> 8


def selected(a: Array, gate: Array, c: Array) -> Array:
    """The first where the gate is not 0, or the third."""
    return numpy.where(gate != 0, a, c)


def leading_zeros(a: Array) -> Array:
    """Zeros above the highest one; all ones for 0."""
    _, exponent = numpy.frexp(a.astype(numpy.float64))
    return numpy.where(a == 0, numpy.uint32(WORD), (32 - exponent).astype(numpy.uint32))


def ones(a: Array) -> Array:
    return numpy.bitwise_count(a).astype(numpy.uint32)


def reversed_bits(a: Array) -> Array:
    result = numpy.zeros_like(a)
    for n in range(32):
        result |= ((a >> numpy.uint32(n)) & numpy.uint32(1)) << numpy.uint32(31 - n)
    return result


def floating(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of floats as one of words, rounded once."""

    def run(*sources: Array) -> Array:
        wide = [floats(s).astype(numpy.float64) for s in sources]
        return words(numpy.asarray(function(*wide)).astype(numpy.float32))

    return run


def fused(a: Array, b: Array, c: Array) -> Array:
    return words(fma_narrow(floats(a), floats(b), floats(c)).astype(numpy.float32))


FLOAT: Final[dict[str, Callable[..., Array]]] = {
    "add.f": floating(lambda a, b: a + b),
    "mul.f": lambda a, b: words(floats(a) * floats(b)),
    "min.f": floating(numpy.fmin),
    "max.f": floating(numpy.fmax),
    "floor.f": floating(numpy.floor),
    "ceil.f": floating(numpy.ceil),
    "rndne.f": floating(numpy.rint),
    "trunc.f": floating(numpy.trunc),
    "sign.f": floating(numpy.sign),
    "absneg.f": lambda a: a,
    "mad.f32": fused,
    "rcp": floating(lambda a: 1 / a),
    "rsq": floating(lambda a: 1 / numpy.sqrt(a)),
    "sqrt": floating(numpy.sqrt),
    "exp2": floating(numpy.exp2),
    "log2": floating(numpy.log2),
    "sin": floating(numpy.sin),
    "cos": floating(numpy.cos),
}
"""Sources are changed by (neg) and (abs) as floats."""
INTEGER: Final[dict[str, Callable[..., Array]]] = {
    "add.u": lambda a, b: a + b,
    "add.s": lambda a, b: a + b,
    "sub.u": lambda a, b: a - b,
    "sub.s": lambda a, b: a - b,
    "absneg.s": lambda a: a,
    "min.u": numpy.minimum,
    "max.u": numpy.maximum,
    "min.s": lambda a, b: unsigned(numpy.minimum(signed(a), signed(b))),
    "max.s": lambda a, b: unsigned(numpy.maximum(signed(a), signed(b))),
    "and.b": lambda a, b: a & b,
    "or.b": lambda a, b: a | b,
    "xor.b": lambda a, b: a ^ b,
    "not.b": lambda a: ~a,
    "shl.b": lambda a, b: a << shift(b),
    "shr.b": lambda a, b: a >> shift(b),
    "ashr.b": lambda a, b: unsigned(signed(a) >> signed(shift(b))),
    "clz.b": leading_zeros,
    "cbits.b": ones,
    "bfrev.b": reversed_bits,
    "mul.u24": lambda a, b: (a & numpy.uint32(0xFFFFFF)) * (b & numpy.uint32(0xFFFFFF)),
    "mul.s24": lambda a, b: unsigned(twenty_four(a).astype(numpy.int64) * twenty_four(b)),
    "mull.u": lambda a, b: low(a) * low(b),
    "madsh.m16": multiply_high,
    "mad.u24": lambda a, b, c: (a & numpy.uint32(0xFFFFFF)) * (b & numpy.uint32(0xFFFFFF)) + c,
    "mad.s24": lambda a, b, c: unsigned(twenty_four(a).astype(numpy.int64) * twenty_four(b)) + c,
    "mad.u16": lambda a, b, c: low(a) * low(b) + c,
    "shrm": lambda s1, s2, s3: (s2 >> shift(s1)) & s3,
    "shlm": lambda s1, s2, s3: (s2 << shift(s1)) & s3,
    "shrg": lambda s1, s2, s3: (s2 >> shift(s1)) | s3,
    "shlg": lambda s1, s2, s3: (s2 << shift(s1)) | s3,
    "andg": lambda s1, s2, s3: (s2 & s1) | s3,
    "sel.b32": selected,
    "sel.b16": selected,
}
SATURATED: Final[dict[str, Callable[..., Array]]] = {
    "add.u": lambda a, b: numpy.where(a > ~b, numpy.uint32(WORD), a + b),
    "sub.u": lambda a, b: numpy.where(a < b, numpy.uint32(0), a - b),
    "add.s": lambda a, b: unsigned(clamped(signed(a).astype(numpy.int64) + signed(b))),
    "sub.s": lambda a, b: unsigned(clamped(signed(a).astype(numpy.int64) - signed(b))),
}
"""Words; halves are not known."""
COMPARED: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
VIEWS: Final[dict[str, Callable[[Array], Array]]] = {
    "u": lambda a: a,
    "s": signed,
    "f": floats,
}


def compared(name: str) -> Callable[..., Array]:
    """cmps.<type>.<condition>: 1 where it holds; with NaN only `ne` does."""
    _, kind, condition = name.split(".")
    view, holds = VIEWS[kind], COMPARED[condition]
    return lambda a, b: holds(view(a), view(b)).astype(numpy.uint32)


def saturated(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of floats whose result is clamped to 0 and 1; NaN becomes 0."""
    return lambda *sources: words(numpy.clip(numpy.nan_to_num(floats(function(*sources))), 0, 1))


def is_floating(name: str) -> bool:
    """True if sources are floats, for (neg) and (abs)."""
    return name in FLOAT or name.startswith("cmps.f")


def meaning(name: str, flags: Collection[str]) -> Callable[..., Array]:
    """Result of an operation on words. Raises SyntaxFault."""
    saturates = "sat" in flags
    if name.startswith("cmps"):
        return compared(name)
    if name.startswith("mov"):
        return lambda a: a
    if name.startswith("cov"):
        return converted(name, "even" in flags)
    if name in FLOAT:
        return saturated(FLOAT[name]) if saturates else FLOAT[name]
    table = SATURATED if saturates else INTEGER
    if name not in table:
        raise SyntaxFault(f"the operation {'(sat)' * saturates}{name} is not known")
    return table[name]


# --- conversions


NUMBER_OF: Final[dict[str, Callable[[Array], Array]]] = {
    "f32": lambda a: floats(a).astype(numpy.float64),
    "f16": lambda a: a.astype(numpy.uint16).view(numpy.float16).astype(numpy.float64),
    "u32": lambda a: a,
    "u16": low,
    "s32": signed,
    "s16": lambda a: signed(a << SIXTEEN) >> 16,
    "u8": lambda a: signed(a << numpy.uint32(24)) >> 24,
}
"""Conversion of a source by its type.

There is no type of signed bytes: u8 is one with a sign. Bytes become unsigned numbers by a mask,
and floats by way of 16 bits, because cov does neither (Mesa 25.2.7, create_cov).
"""
BYTES: Final = {("u8", "s16"), ("u8", "s32"), *((n, "u8") for n in ("u16", "s16", "u32", "s32"))}


def converted(name: str, to_even: bool) -> Callable[..., Array]:
    """cov.<source><target>, on a source that is held in a word."""
    source, target = split_types(name.split(".")[1])
    if "u8" in (source, target) and (source, target) not in BYTES:
        raise SyntaxFault(f"{name}, which hardware does not do")
    if source not in NUMBER_OF or target not in NUMBER_OF:
        raise SyntaxFault(f"the operation {name} is not known")
    number = NUMBER_OF[source]
    if target == "f32":
        return lambda a: words(number(a).astype(numpy.float32))
    if target == "f16":
        half = nearest_half if to_even else half_toward_zero
        return lambda a: half(number(a)).view(numpy.uint16).astype(numpy.uint32)
    bits = int(target[1:])
    mask = numpy.uint32((1 << bits) - 1)
    if source[0] != "f":
        return lambda a: number(a).view(numpy.uint32) & mask
    least = 0 if target[0] == "u" else -(1 << (bits - 1))
    return lambda a: clipped(number(a), least, least + (1 << bits) - 1) & mask


def nearest_half(number: Array) -> Array:
    """Numbers rounded to halves, ties to even: cov with (even)."""
    return number.astype(numpy.float16)


def half_toward_zero(number: Array) -> Array:
    """Numbers cut off to halves: cov without a rounding, by Mesa's names for its field."""
    found = number.astype(numpy.float16)
    beyond = numpy.isfinite(number) & (numpy.abs(found.astype(numpy.float64)) > numpy.abs(number))
    return numpy.where(beyond, numpy.nextafter(found, numpy.float16(0)), found)


def clipped(number: Array, least: int, most: int) -> Array:
    """Floats as integers of a range, toward 0; NaN is 0."""
    return unsigned(numpy.trunc(numpy.clip(numpy.nan_to_num(number, nan=0.0), least, most)))


def split_types(text: str) -> tuple[str, str]:
    """u16s32 as u16 and s32."""
    place = next(n for n in range(1, len(text)) if text[n] in "fus")
    return text[:place], text[place:]
