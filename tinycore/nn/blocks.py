"""Numbers from the quantized blocks of ggml, in tensor operations on any device.

Floor 6. A block is a few bytes for 32 or 256 numbers: small integers, with one scale or several.
The layouts are those of ggml's `ggml-quants.c`, whose names the types have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes
from tinycore.tensor.tensor import Tensor

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
    """Fields of bytes: (n, ..., k) bytes give (n, ..., shifts, k) integers of `width` bits."""
    by = Tensor(list(shifts), dtype=dtypes.uint8, device=content.device).reshape(len(shifts), 1)
    return (content.unsqueeze(-2) >> by) & ((1 << width) - 1)


def signed(integers: Tensor, zero: int = 0) -> Tensor:
    """Unsigned bytes as float32, less the one that stands for 0."""
    return integers.cast(dtypes.float32) - zero


def chosen(table: Sequence[int], indices: Tensor) -> Tensor:
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
    high = bits(fifths.unsqueeze(-1), SINGLES, 1).flatten(1)
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


def iq4_nl(blocks: Tensor) -> Tensor:
    """A scale, and 32 numbers of a table."""
    return half(blocks, 0) * chosen(IQ4, nibbles(blocks[:, 2:]))


def iq4_xs(blocks: Tensor) -> Tensor:
    """Eight times 32 numbers of a table, each 32 with a scale of six bits around 32."""
    low = bits(blocks[:, 4:8].unsqueeze(-1), NIBBLES, 4).flatten(1)
    high = bits(blocks[:, 2:4].unsqueeze(-1), PAIRS, 2).flatten(1)
    scale = half(blocks, 0) * signed(low | (high << 4), 32)
    values = chosen(IQ4, nibbles(blocks[:, 8:].reshape(-1, 8, 16)))
    return (scale.unsqueeze(-1) * values).flatten(1)


def mxfp4(blocks: Tensor) -> Tensor:
    """A power of two, and 32 numbers of FP4."""
    exponent = blocks[:, :1].cast(dtypes.int32)
    denormal = Tensor([0x0020_0000], device=blocks.device) << exponent.clip(0, 1)
    scale = (exponent < 2).where(denormal, (exponent - 1).clip(0) << 23).bitcast(dtypes.float32)
    return scale * chosen(FP4, nibbles(blocks[:, 1:]))


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
    20: BlockType("IQ4_NL", 32, 18, iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, iq4_xs),
    24: BlockType("I8", 1, 1, as_stored(dtypes.int8)),
    25: BlockType("I16", 1, 2, as_stored(dtypes.int16)),
    26: BlockType("I32", 1, 4, as_stored(dtypes.int32)),
    27: BlockType("I64", 1, 8, as_stored(dtypes.int64)),
    28: BlockType("F64", 1, 8, as_stored(dtypes.float64)),
    30: BlockType("BF16", 1, 2, as_stored(dtypes.bfloat16)),
    39: BlockType("MXFP4", 32, 17, mxfp4),
}
"""The types that are read, by their numbers in ggml."""
