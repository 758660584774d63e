"""Blocks of ggml as integers with scales by group: what `packing` lays out for products.

A quantized type of GGUF has blocks of 32 or 256 numbers; the layouts are those of ggml's
`ggml-quants.c`, whose names they have here. Nearly all mean `(integer - zero) * scale + least`
with a scale, and perhaps a least number, for each group of 16 or 32. `split` takes blocks apart
without rounding. Types that are points of a codebook have no such form: `split` gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy

__all__ = ["Groups", "split"]

Array = numpy.ndarray[Any, Any]

IQ4: Final = numpy.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], numpy.int8
)
"""The numbers that the four bits of IQ4_NL and IQ4_XS choose from."""
FP4: Final = numpy.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], numpy.int8)
"""Twice the numbers of FP4, E2M1."""


@dataclass(frozen=True)
class Groups:
    """Rows of a matrix as integers, and numbers by group: n rows, k columns, groups of `size`.

    `integers` (n, blocks of the file, columns of each), or pairs of them in bytes, half as many,
    where they fit in `bits` = 4: of each group the first half in the low bits. `scale` and `least`
    (n, k / size); where `outer` is there, (n, groups of groups), both are integers and are
    multiplied by it and by `outer_least`.
    """

    size: int
    bits: int
    integers: Array
    scale: Array
    zero: int = 0
    least: Array | None = None
    outer: Array | None = None
    outer_least: Array | None = None


def split(kind: str, blocks: Array, rows: int) -> Groups | None:
    """The blocks (count, bytes) of a matrix of so many rows, taken apart; None for other types."""
    take = SPLITS.get(kind)
    if take is None:
        return None
    found = take(blocks)
    arrays: dict[str, Any] = {
        name: value.reshape(rows, -1)
        for name, value in vars(found).items()
        if isinstance(value, numpy.ndarray) and name != "integers"
    }
    # a view of the blocks where it can be one: of the largest matrix, a copy is much of a model
    integers = found.integers.reshape(rows, -1, found.integers.shape[1])
    return replace(found, integers=integers, **arrays)


def half(blocks: Array, at: int) -> Array:
    """A float16 of each block."""
    return numpy.ascontiguousarray(blocks[:, at : at + 2]).view(numpy.float16)


def pairs(integers: Array, size: int) -> Array:
    """Integers of four bits (count, many) as bytes: halves of each group share bytes."""
    halves = integers.reshape(len(integers), -1, 2, size // 2)
    content: Array = halves[:, :, 0] | (halves[:, :, 1] << 4)
    return content.reshape(len(integers), -1)


def nibbles(content: Array) -> Array:
    """The low four bits of each row of bytes (..., n), then the high ones: (..., 2 n)."""
    return numpy.concatenate([content & 15, content >> 4], axis=-1)


def fields(content: Array, width: int) -> Array:
    """Integers of `width` bits, by their place in the bytes (..., n): (..., 8 / width * n)."""
    mask = (1 << width) - 1
    parts = [(content >> shift) & mask for shift in range(0, 8, width)]
    return numpy.concatenate(parts, axis=-1)


def signed(integers: Array, zero: int) -> Array:
    """Bytes less the number that stands for 0, as int8."""
    return (integers - numpy.uint8(zero)).view(numpy.int8)


def fives(high: Array, low: Array) -> Array:
    """32 integers of five bits, whose highest are the bits of four bytes, lowest first."""
    top = numpy.unpackbits(numpy.ascontiguousarray(high), axis=1, bitorder="little")
    found: Array = nibbles(low) | (top << 4)
    return found


def sixes(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight least numbers of six bits, in twelve bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = numpy.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=1)
    least = numpy.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, least


def q4_0(blocks: Array) -> Groups:
    """A scale, and 32 integers of four bits around 8."""
    return Groups(32, 4, blocks[:, 2:], half(blocks, 0), zero=8)


def q4_1(blocks: Array) -> Groups:
    """A scale, a least number, and 32 integers of four bits."""
    return Groups(32, 4, blocks[:, 4:], half(blocks, 0), least=half(blocks, 2))


def q5_0(blocks: Array) -> Groups:
    """A scale, and 32 integers of five bits around 16."""
    return Groups(32, 8, signed(fives(blocks[:, 2:6], blocks[:, 6:]), 16), half(blocks, 0))


def q5_1(blocks: Array) -> Groups:
    """A scale, a least number, and 32 integers of five bits."""
    integers = signed(fives(blocks[:, 4:8], blocks[:, 8:]), 0)
    return Groups(32, 8, integers, half(blocks, 0), least=half(blocks, 2))


def q8_0(blocks: Array) -> Groups:
    """A scale, and 32 bytes."""
    return Groups(32, 8, blocks[:, 2:].view(numpy.int8), half(blocks, 0))


def q2_k(blocks: Array) -> Groups:
    """16 times 16 integers of two bits, each 16 with a scale and a least number of four bits."""
    scales = blocks[:, :16]
    integers = fields(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return Groups(
        16,
        4,
        pairs(integers, 16),
        scales & 15,
        least=signed(0 - (scales >> 4), 0),
        outer=half(blocks, 80),
        outer_least=half(blocks, 82),
    )


def q3_k(blocks: Array) -> Groups:
    """16 times 16 integers of three bits, whose highest lie apart; scales of six bits around 32."""
    masks, quants, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low, high = nibbles(packed[:, :8]), fields(packed[:, 8:], 2)
    twos = fields(quants.reshape(-1, 2, 32), 2).reshape(-1, 256)
    integers = twos | (fields(masks, 1).reshape(-1, 256) << 2)
    scale = signed(low | (high << 4), 32)
    return Groups(16, 4, pairs(integers, 16), scale, zero=4, outer=half(blocks, 108))


def by_sixes(blocks: Array, bits: int, integers: Array) -> Groups:
    """Eight times 32 integers, each 32 with a scale and a least number of six bits."""
    scales, least = sixes(blocks[:, 4:16])
    return Groups(
        32,
        bits,
        integers,
        scales,
        least=signed(0 - least, 0),
        outer=half(blocks, 0),
        outer_least=half(blocks, 2),
    )


def q4_k(blocks: Array) -> Groups:
    """Integers of four bits by scales of six."""
    integers = nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return by_sixes(blocks, 4, pairs(integers, 32))


def q5_k(blocks: Array) -> Groups:
    """Integers of five bits, whose highest lie apart, by scales of six."""
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256)
    high = fields(blocks[:, 16:48], 1).reshape(-1, 256)
    return by_sixes(blocks, 8, signed(low | (high << 4), 0))


def q6_k(blocks: Array) -> Groups:
    """16 times 16 integers of six bits around 32, whose highest two lie apart; scales are bytes."""
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    high = fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    integers = signed(low | (high << 4), 32)
    scale = numpy.ascontiguousarray(blocks[:, 192:208]).view(numpy.int8)
    return Groups(16, 8, integers, scale, outer=half(blocks, 208))


def iq4_nl(blocks: Array) -> Groups:
    """A scale, and 32 numbers of a table."""
    return Groups(32, 8, IQ4[nibbles(blocks[:, 2:])], half(blocks, 0))


def iq4_xs(blocks: Array) -> Groups:
    """Eight times 32 numbers of a table, each 32 with a scale of six bits around 32."""
    shifts = numpy.array([0, 4], numpy.uint8)
    low = ((blocks[:, 4:8, None] >> shifts) & 15).reshape(-1, 8)
    high = fields_in_order(blocks[:, 2:4], 2)
    integers = IQ4[nibbles(blocks[:, 8:].reshape(-1, 8, 16))].reshape(-1, 256)
    return Groups(32, 8, integers, signed(low | (high << 4), 32), outer=half(blocks, 0))


def fields_in_order(content: Array, width: int) -> Array:
    """Integers of `width` bits, byte by byte (n, k): (n, 8 / width * k)."""
    shifts = numpy.arange(0, 8, width, dtype=numpy.uint8)
    return ((content[:, :, None] >> shifts) & ((1 << width) - 1)).reshape(len(content), -1)


def mxfp4(blocks: Array) -> Groups:
    """A power of two, and 32 numbers of FP4."""
    scale = numpy.ldexp(numpy.float32(1), blocks[:, :1].astype(numpy.int32) - 128)
    return Groups(32, 8, FP4[nibbles(blocks[:, 1:])], scale)


SPLITS: Final[dict[str, Callable[[Array], Groups]]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}
