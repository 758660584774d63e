"""Small gray images as text, for a terminal of any kind.

Floor 6. Imports NumPy.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final, TextIO

import numpy

__all__ = ["beside", "picture", "ramp_for", "shrunk"]

Image = numpy.ndarray[tuple[int, ...], numpy.dtype[Any]]

SHADES: Final = " ░▒▓█"
ASCII_SHADES: Final = " .+*#"
"""From paper to ink, in five steps."""


def ramp_for(stream: TextIO) -> str:
    """The shades that `stream` can encode: blocks in UTF-8 and the like, else plain ASCII."""
    try:
        SHADES.encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII_SHADES
    return SHADES


def picture(image: Image, ramp: str = SHADES) -> list[str]:
    """The lines of an image (rows, columns), dark where it is greatest.

    A pixel is two characters wide, because a character is twice as tall as wide.
    """
    peak = max(float(image.max()), 1e-9)
    levels = numpy.rint(numpy.clip(image / peak, 0, 1) * (len(ramp) - 1)).astype(int)
    return ["".join(ramp[level] * 2 for level in row) for row in levels]


def shrunk(image: Image, side: int) -> Image:
    """The image (rows, columns) with at most `side` of each, by averaging square blocks."""
    block = -(-max(image.shape) // side)
    rows, columns = (-size % block for size in image.shape)
    margins = [(rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2)]
    padded = numpy.pad(image.astype(float), margins)
    blocks = padded.reshape(padded.shape[0] // block, block, padded.shape[1] // block, block)
    return numpy.asarray(blocks.mean(axis=(1, 3)))


def beside(blocks: list[list[str]], gap: int = 3) -> list[str]:
    """Blocks of lines side by side; each line of a block is as wide as its widest."""
    widths = [max(map(len, block)) for block in blocks]
    return [
        (" " * gap).join(map(str.ljust, lines, widths)).rstrip()
        for lines in zip_longest(*blocks, fillvalue="")
    ]
