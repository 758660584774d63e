"""Subnormal numbers: the constants of kernels that take them for 0."""

from __future__ import annotations

import math
import sys
from typing import Final

from tinycore.config import settings
from tinycore.dtype import DType, Scalar, dtypes

LEAST: Final = {dtypes.float32: 2.0**-126, dtypes.float64: sys.float_info.min}
"""Least normal number of each type that a processor's modes are about."""


def constant_of(dtype: DType, value: Scalar) -> Scalar:
    """A constant as a kernel computes with it: compilers do not know the mode that it sets."""
    if settings.FLUSH_SUBNORMALS and dtype in LEAST and abs(value) < LEAST[dtype]:
        return math.copysign(0.0, value)
    return value


FLUSHING: Final = "/* subnormal numbers are 0 */"
"""Line of a kernel in C of which clang flushes what it computes itself, too."""
