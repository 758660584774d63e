"""Decimal literals that read back exactly.

Floor 2.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from tinycore.dtype import DType, dtypes

FORMATS: Final = {dtypes.float16: ("e", 5), dtypes.float32: ("f", 9), dtypes.float64: ("d", 17)}
"""The struct code of a float type, and how many decimal digits always identify a value."""


def as_stored(dtype: DType, value: float) -> float:
    """`value` rounded to a float type."""
    code, _ = FORMATS[dtype]
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def shortest(dtype: DType, value: float) -> str:
    """The shortest decimal text, with a point or an exponent, that rounds to `value`."""
    for digits in range(1, FORMATS[dtype][1] + 1):
        text = f"{value:.{digits}g}"
        if as_stored(dtype, float(text)) == value:
            break
    return text if any(c in text for c in ".en") else f"{text}.0"
