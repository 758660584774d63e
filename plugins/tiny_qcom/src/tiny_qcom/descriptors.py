"""Descriptors of textures, of images that are stored to, and of samplers."""

from __future__ import annotations

import struct
from typing import Final

from tiny_qcom.memory import CHANNELS, IMAGE_ALIGNMENT, Pixels
from tinycore.errors import UnsupportedError

__all__ = ["DESCRIPTOR_BYTES", "NEAREST", "SAMPLER_BYTES", "descriptor", "texel_buffer"]

DESCRIPTOR_BYTES: Final = 64
SAMPLER_BYTES: Final = 16
FORMATS: Final = {4: 0x82, 2: 0x62}
"""Four floats of 32 bits, and of 16."""
SWIZZLE_XYZW: Final = 0 << 4 | 1 << 7 | 2 << 10 | 3 << 13
PLANE: Final = 1 << 29
"""Two-dimensional."""
LINE: Final = 4 << 29
"""A buffer of texels."""
PITCH_UNIT: Final = 64
CLAMP_TO_BORDER: Final = 3
UNNORMALIZED: Final = 1 << 5
NEAREST: Final = struct.pack(
    "<4I",
    CLAMP_TO_BORDER << 5 | CLAMP_TO_BORDER << 8 | CLAMP_TO_BORDER << 11,
    UNNORMALIZED | 1 << 4,
    0,
    0,
)
"""The sampler of all images: the very pixel, and the border color outside of the image."""


def descriptor(address: int, pixels: Pixels, is_texture: bool) -> bytes:
    """64 bytes that say where the pixels of an image lie. Raises UnsupportedError."""
    if address % IMAGE_ALIGNMENT:
        raise UnsupportedError(
            f"an image at {address:#x} cannot be used: it must lie at a multiple of "
            f"{IMAGE_ALIGNMENT}"
        )
    pitch = pixels.pitch
    alignment = (pitch & -pitch).bit_length() - 1 - (PITCH_UNIT.bit_length() - 1)
    head = FORMATS[pixels.channel_bytes] << 22 | (SWIZZLE_XYZW if is_texture else 0)
    return struct.pack(
        "<16I",
        head,
        pixels.width | pixels.height << 15,
        alignment | pitch << 7 | PLANE,
        0,
        address & 0xFFFF_FFFF,
        address >> 32 | 1 << 17,
        *(0,) * 10,
    )


def texel_buffer(address: int, size: int, channel_bytes: int) -> bytes:
    """64 bytes that say where the pixels of a buffer lie, four numbers each. It starts at a
    multiple of a pixel's size: the descriptor names a multiple of 64, and the first pixel there.
    """
    pixel = CHANNELS * channel_bytes
    count, skipped = size // pixel, address % IMAGE_ALIGNMENT // pixel
    start = address - address % IMAGE_ALIGNMENT
    return struct.pack(
        "<16I",
        FORMATS[channel_bytes] << 22 | SWIZZLE_XYZW,
        count,
        1 << 4 | skipped << 16 | LINE,
        0,
        start & 0xFFFF_FFFF,
        start >> 32 | 1 << 17,
        *(0,) * 10,
    )
