"""Numbers from the quantized blocks of ggml, in tensor operations on any device.

Floor 6. A block is a few bytes for 32 or 256 numbers: small integers, with one scale or several.
The layouts are those of ggml's `ggml-quants.c`, whose names the types have. Types IQ1 to IQ3 are
vector quantized: four or eight numbers at once are a point of a codebook, in `data/iq-grids.npz`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from tinycore.dtype import DType, dtypes
from tinycore.tensor import Tensor

Decode = Callable[[Tensor], Tensor]
"""From blocks, a row of bytes each, to their numbers, a row each."""


class BlockType(NamedTuple):
    """A type of ggml: its name, the numbers in a block, its bytes, and how it is read."""

    name: str
    elements: int
    size: int
    decode: Decode


NIBBLES: Final = (0, 4)
PAIRS: Final = (0, 2, 4, 6)
SINGLES: Final = (0, 1, 2, 3, 4, 5, 6, 7)
THREES: Final = (0, 3, 6, 9)
SEVENS: Final = (0, 7, 14, 21)
IQ4: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers that the four bits of IQ4_NL and IQ4_XS choose from."""
FP4: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of FP4, E2M1, of which MXFP4 has a scale for each 32 (OCP MX 1.0)."""


def as_stored(dtype: DType) -> Decode:
    """Numbers as they are stored."""
    return lambda blocks: blocks.bitcast(dtype)


def half(blocks: Tensor, at: int) -> Tensor:
    """A float16 of each block, as float32."""
    return blocks[:, at : at + 2].bitcast(dtypes.float16).cast(dtypes.float32)


def bits(content: Tensor, shifts: Sequence[int], width: int) -> Tensor:
    """Fields of words: (n, ..., k) words give (n, ..., shifts, k) integers of `width` bits."""
    by = Tensor(list(shifts), dtype=content.dtype, device=content.device).reshape(len(shifts), 1)
    return (content.unsqueeze(-2) >> by) & ((1 << width) - 1)


def fields(words: Tensor, shifts: Sequence[int], width: int) -> Tensor:
    """Fields of words, side by side: (n, k) words give (n, k * shifts) integers of `width` bits."""
    return bits(words.unsqueeze(-1), shifts, width).flatten(1)


def signed(integers: Tensor, zero: int = 0) -> Tensor:
    """Unsigned integers as float32, less the one that stands for 0."""
    return integers.cast(dtypes.float32) - zero


def chosen(table: Sequence[float], indices: Tensor) -> Tensor:
    """The numbers of a table at indices."""
    values = Tensor(list(table), dtype=dtypes.float32, device=indices.device)
    return values[indices.cast(dtypes.int32)]


def nibbles(content: Tensor) -> Tensor:
    """The low four bits of all bytes of a row, then the high ones."""
    return bits(content, NIBBLES, 4).flatten(-2)


def q4_0(blocks: Tensor) -> Tensor:
    """A scale, and 32 integers of four bits around 8."""
    return half(blocks, 0) * signed(nibbles(blocks[:, 2:]), 8)


def q4_1(blocks: Tensor) -> Tensor:
    """A scale, a least number, and 32 integers of four bits."""
    return half(blocks, 0) * signed(nibbles(blocks[:, 4:])) + half(blocks, 2)


def fives(fifths: Tensor, fours: Tensor) -> Tensor:
    """Integers of five bits: the highest ones lie apart, eight to a byte."""
    high = fields(fifths, SINGLES, 1)
    return nibbles(fours) | (high << 4)


def q5_0(blocks: Tensor) -> Tensor:
    """A scale, and 32 integers of five bits around 16."""
    return half(blocks, 0) * signed(fives(blocks[:, 2:6], blocks[:, 6:]), 16)


def q5_1(blocks: Tensor) -> Tensor:
    """A scale, a least number, and 32 integers of five bits."""
    return half(blocks, 0) * signed(fives(blocks[:, 4:8], blocks[:, 8:])) + half(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    """A scale, and 32 bytes."""
    return half(blocks, 0) * blocks[:, 2:].bitcast(dtypes.int8).cast(dtypes.float32)


def q2_k(blocks: Tensor) -> Tensor:
    """16 times 16 integers of two bits, each 16 with a scale and a least number of four bits."""
    scales, quants = blocks[:, :16], blocks[:, 16:80]
    scale = half(blocks, 80) * signed(scales & 15)
    least = half(blocks, 82) * signed(scales >> 4)
    values = signed(bits(quants.reshape(-1, 2, 32), PAIRS, 2)).reshape(-1, 16, 16)
    return (scale.unsqueeze(-1) * values - least.unsqueeze(-1)).flatten(1)


def q3_k(blocks: Tensor) -> Tensor:
    """16 times 16 integers of three bits, whose highest lie apart; scales of six bits around 32."""
    masks, quants, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low, high = bits(packed[:, :8], NIBBLES, 4), bits(packed[:, 8:], PAIRS, 2)
    scale = half(blocks, 108) * signed(low.flatten(1) | (high.flatten(1) << 4), 32)
    twos = bits(quants.reshape(-1, 2, 32), PAIRS, 2).reshape(-1, 256)
    values = signed(twos | (bits(masks, SINGLES, 1).reshape(-1, 256) << 2), 4)
    return (scale.unsqueeze(-1) * values.reshape(-1, 16, 16)).flatten(1)


def sixes(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight least numbers of six bits, in twelve bytes."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = (first & 63).cat((rest & 15) | ((first >> 6) << 4), dim=1)
    least = (second & 63).cat((rest >> 4) | ((second >> 6) << 4), dim=1)
    return signed(scales), signed(least)


def by_sixes(blocks: Tensor, integers: Tensor) -> Tensor:
    """Eight times 32 integers, each 32 with a scale and a least number of six bits."""
    scales, least = sixes(blocks[:, 4:16])
    scale, below = half(blocks, 0) * scales, half(blocks, 2) * least
    values = signed(integers.reshape(-1, 8, 32))
    return (scale.unsqueeze(-1) * values - below.unsqueeze(-1)).flatten(1)


def q4_k(blocks: Tensor) -> Tensor:
    """Integers of four bits by scales of six."""
    return by_sixes(blocks, bits(blocks[:, 16:].reshape(-1, 4, 32), NIBBLES, 4))


def q5_k(blocks: Tensor) -> Tensor:
    """Integers of five bits, whose highest lie apart, by scales of six."""
    fours = bits(blocks[:, 48:].reshape(-1, 4, 32), NIBBLES, 4).reshape(-1, 8, 32)
    return by_sixes(blocks, fours | (bits(blocks[:, 16:48], SINGLES, 1) << 4))


def q6_k(blocks: Tensor) -> Tensor:
    """16 times 16 integers of six bits around 32, whose highest two lie apart; scales are bytes."""
    low = bits(blocks[:, :128].reshape(-1, 2, 64), NIBBLES, 4).reshape(-1, 256)
    high = bits(blocks[:, 128:192].reshape(-1, 2, 32), PAIRS, 2).reshape(-1, 256)
    scale = half(blocks, 208) * blocks[:, 192:208].bitcast(dtypes.int8).cast(dtypes.float32)
    values = signed(low | (high << 4), 32).reshape(-1, 16, 16)
    return (scale.unsqueeze(-1) * values).flatten(1)


def q8_k(blocks: Tensor) -> Tensor:
    """A scale in float32, and 256 bytes; sums of each 16 follow, which are not needed."""
    scale = blocks[:, :4].bitcast(dtypes.float32)
    return scale * blocks[:, 4:260].bitcast(dtypes.int8).cast(dtypes.float32)


def iq4_nl(blocks: Tensor) -> Tensor:
    """A scale, and 32 numbers of a table."""
    return half(blocks, 0) * chosen(IQ4, nibbles(blocks[:, 2:]))


def iq4_xs(blocks: Tensor) -> Tensor:
    """Eight times 32 numbers of a table, each 32 with a scale of six bits around 32."""
    low, high = fields(blocks[:, 4:8], NIBBLES, 4), fields(blocks[:, 2:4], PAIRS, 2)
    scale = half(blocks, 0) * signed(low | (high << 4), 32)
    values = chosen(IQ4, nibbles(blocks[:, 8:].reshape(-1, 8, 16)))
    return (scale.unsqueeze(-1) * values).flatten(1)


def mxfp4(blocks: Tensor) -> Tensor:
    """A power of two, and 32 numbers of FP4."""
    exponent = blocks[:, :1].cast(dtypes.int32)
    denormal = Tensor([0x0020_0000], device=blocks.device) << exponent.clip(0, 1)
    scale = (exponent < 2).where(denormal, (exponent - 1).clip(0) << 23).bitcast(dtypes.float32)
    return scale * chosen(FP4, nibbles(blocks[:, 1:]))


def unsigned_e4m3(stored: int) -> float:
    """The number of an unsigned FP8 E4M3 whose highest bit is ignored; 127 stands for 0."""
    exponent, fraction = stored >> 3 & 15, stored & 7
    if stored == 0x7F:
        return 0.0
    return fraction * 2**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)


E4M3: Final = tuple(unsigned_e4m3(n) / 2 for n in range(256))
"""Halves of scales in FP8, beside numbers of FP4 that are doubled."""


def nvfp4(blocks: Tensor) -> Tensor:
    """Four times 16 numbers of FP4, each 16 with a scale in FP8."""
    scale = chosen(E4M3, blocks[:, :4])
    values = chosen(FP4, nibbles(blocks[:, 4:].reshape(-1, 4, 8)))
    return (scale.unsqueeze(-1) * values).flatten(1)


def q1_0(blocks: Tensor) -> Tensor:
    """A scale, and 128 signs."""
    return half(blocks, 0) * (2 * signed(fields(blocks[:, 2:], SINGLES, 1)) - 1)


def trits(content: Tensor, count: int) -> Tensor:
    """The first `count` ternary digits of bytes that are fractions of 256: all first, then next."""
    powers = Tensor([3**n for n in range(count)], dtype=dtypes.uint8, device=content.device)
    fractions = content.unsqueeze(-2) * powers.reshape(count, 1)
    return ((fractions.cast(dtypes.uint16) * 3) >> 8).flatten(-2)


def tq1_0(blocks: Tensor) -> Tensor:
    """256 ternary digits, five or four to a byte, and a scale."""
    parts = trits(blocks[:, :32], 5), trits(blocks[:, 32:48], 5), trits(blocks[:, 48:52], 4)
    return half(blocks, 52) * signed(Tensor.cat(*parts, dim=1), 1)


def tq2_0(blocks: Tensor) -> Tensor:
    """256 ternary digits of two bits, and a scale."""
    return half(blocks, 64) * signed(
        bits(blocks[:, :64].reshape(-1, 2, 32), PAIRS, 2).flatten(1), 1
    )


@cache
def codebook(name: str) -> numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int8]]:
    """The points of a codebook, a row each."""
    with numpy.load(Path(__file__).with_name("data") / "iq-grids.npz") as books:
        book: numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int8]] = books[name]
    book.flags.writeable = False
    return book


def points(name: str, indices: Tensor) -> Tensor:
    """The points of a codebook at indices: (n, k) indices give (n, k * size of a point) numbers."""
    book = Tensor(codebook(name), device=indices.device)
    return book[indices.cast(dtypes.int32)].flatten(1).cast(dtypes.float32)


def signs(content: Tensor) -> Tensor:
    """1 for each bit that is clear and -1 for each that is set, the lowest of a byte first."""
    return 1 - 2 * signed(fields(content, SINGLES, 1))


def even_signs(sevens: Tensor) -> Tensor:
    """The signs of seven bits and of an eighth, which makes the number of negative ones even."""
    halves = sevens ^ (sevens >> 4)
    pairs = halves ^ (halves >> 2)
    parity = (pairs ^ (pairs >> 1)) & 1
    return signs(sevens | (parity << 7))


def by_scales(scales: Tensor, values: Tensor) -> Tensor:
    """The numbers of blocks, as many of them to each scale as there are."""
    parts = scales.shape[1]
    return (scales.unsqueeze(-1) * values.reshape(-1, parts, 256 // parts)).flatten(1)


def iq2_xxs(blocks: Tensor) -> Tensor:
    """Eight times 32 numbers: four points, and a word of four times seven signs and a scale."""
    words = blocks[:, 2:].bitcast(dtypes.uint32)[:, 1::2]
    scales = half(blocks, 0) * (signed(words >> 28) + 0.5) * 0.25
    indices = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4].flatten(1)
    return by_scales(scales, points("IQ2_XXS", indices) * even_signs(fields(words, SEVENS, 7)))


def iq2_xs(blocks: Tensor) -> Tensor:
    """32 words of a point in nine bits and its signs in seven, each two with a scale of four."""
    words = blocks[:, 2:66].bitcast(dtypes.uint16)
    scales = half(blocks, 0) * (signed(fields(blocks[:, 66:], NIBBLES, 4)) + 0.5) * 0.25
    return by_scales(scales, points("IQ2_XS", words & 511) * even_signs(words >> 9))


def iq2_s(blocks: Tensor) -> Tensor:
    """32 points of ten bits, whose highest two lie apart; signs; scales of four bits for two."""
    scales = half(blocks, 0) * (signed(fields(blocks[:, 74:], NIBBLES, 4)) + 0.5) * 0.25
    high = fields(blocks[:, 66:74], PAIRS, 2).cast(dtypes.uint16)
    indices = blocks[:, 2:34].cast(dtypes.uint16) | (high << 8)
    return by_scales(scales, points("IQ2_S", indices) * signs(blocks[:, 34:66]))


def iq3_xxs(blocks: Tensor) -> Tensor:
    """64 points of four numbers, and eight words of four times seven signs and a scale."""
    words = blocks[:, 66:].bitcast(dtypes.uint32)
    scales = half(blocks, 0) * (signed(words >> 28) + 0.5) * 0.5
    values = points("IQ3_XXS", blocks[:, 2:66]) * even_signs(fields(words, SEVENS, 7))
    return by_scales(scales, values)


def iq3_s(blocks: Tensor) -> Tensor:
    """64 points of nine bits, whose highest lies apart; signs; scales of four bits for eight."""
    scales = half(blocks, 0) * (2 * signed(fields(blocks[:, 106:], NIBBLES, 4)) + 1)
    high = fields(blocks[:, 66:74], SINGLES, 1).cast(dtypes.uint16)
    indices = blocks[:, 2:66].cast(dtypes.uint16) | (high << 8)
    return by_scales(scales, points("IQ3_S", indices) * signs(blocks[:, 74:106]))


def shifted(values: Tensor, negative: Tensor) -> Tensor:
    """The ternary numbers of blocks plus 1/8, or less it where flags say so, each for a part."""
    parts = negative.shape[1]
    delta = 0.125 - 0.25 * signed(negative)
    return (values.reshape(-1, parts, 256 // parts) + delta.unsqueeze(-1)).flatten(1)


def iq1_s(blocks: Tensor) -> Tensor:
    """32 points of eleven bits, and words of the highest three of four, a scale and a shift."""
    words = blocks[:, 34:].bitcast(dtypes.uint16)
    scales = half(blocks, 0) * (2 * signed(bits(words, (12,), 3).flatten(1)) + 1)
    indices = blocks[:, 2:34].cast(dtypes.uint16) | (fields(words, THREES, 3) << 8)
    return by_scales(scales, shifted(points("IQ1_S", indices), words >> 15))


def iq1_m(blocks: Tensor) -> Tensor:
    """32 points of eleven bits, each with a shift; scales of three bits for two, in four words.

    The highest nibbles of these words are the float16 by which scales are multiplied.
    """
    words, apart = blocks[:, 48:].bitcast(dtypes.uint16), fields(blocks[:, 32:48], NIBBLES, 4)
    nibble = [words[:, n : n + 1] >> 12 for n in range(4)]
    whole = nibble[0] | (nibble[1] << 4) | (nibble[2] << 8) | (nibble[3] << 12)
    scale = whole.bitcast(dtypes.float16).cast(dtypes.float32)
    scales = scale * (2 * signed(fields(words, THREES, 3)) + 1)
    indices = blocks[:, :32].cast(dtypes.uint16) | ((apart & 7).cast(dtypes.uint16) << 8)
    return by_scales(scales, shifted(points("IQ1_S", indices), apart >> 3))


BLOCK_TYPES: Final[dict[int, BlockType]] = {
    0: BlockType("F32", 1, 4, as_stored(dtypes.float32)),
    1: BlockType("F16", 1, 2, as_stored(dtypes.float16)),
    2: BlockType("Q4_0", 32, 18, q4_0),
    3: BlockType("Q4_1", 32, 20, q4_1),
    6: BlockType("Q5_0", 32, 22, q5_0),
    7: BlockType("Q5_1", 32, 24, q5_1),
    8: BlockType("Q8_0", 32, 34, q8_0),
    10: BlockType("Q2_K", 256, 84, q2_k),
    11: BlockType("Q3_K", 256, 110, q3_k),
    12: BlockType("Q4_K", 256, 144, q4_k),
    13: BlockType("Q5_K", 256, 176, q5_k),
    14: BlockType("Q6_K", 256, 210, q6_k),
    15: BlockType("Q8_K", 256, 292, q8_k),
    16: BlockType("IQ2_XXS", 256, 66, iq2_xxs),
    17: BlockType("IQ2_XS", 256, 74, iq2_xs),
    18: BlockType("IQ3_XXS", 256, 98, iq3_xxs),
    19: BlockType("IQ1_S", 256, 50, iq1_s),
    20: BlockType("IQ4_NL", 32, 18, iq4_nl),
    21: BlockType("IQ3_S", 256, 110, iq3_s),
    22: BlockType("IQ2_S", 256, 82, iq2_s),
    23: BlockType("IQ4_XS", 256, 136, iq4_xs),
    24: BlockType("I8", 1, 1, as_stored(dtypes.int8)),
    25: BlockType("I16", 1, 2, as_stored(dtypes.int16)),
    26: BlockType("I32", 1, 4, as_stored(dtypes.int32)),
    27: BlockType("I64", 1, 8, as_stored(dtypes.int64)),
    28: BlockType("F64", 1, 8, as_stored(dtypes.float64)),
    29: BlockType("IQ1_M", 256, 56, iq1_m),
    30: BlockType("BF16", 1, 2, as_stored(dtypes.bfloat16)),
    34: BlockType("TQ1_0", 256, 54, tq1_0),
    35: BlockType("TQ2_0", 256, 66, tq2_0),
    39: BlockType("MXFP4", 32, 17, mxfp4),
    40: BlockType("NVFP4", 64, 36, nvfp4),
    41: BlockType("Q1_0", 128, 18, q1_0),
}
"""The types that are read, by their numbers in ggml."""
