"""Constants, and the dtypes of the standard that exist here.

Floor 6. float16, bfloat16 and the fp8 types of `tinycore.dtypes` work with every function as well.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.dtype import dtypes

__all__ = [
    "bool", "e", "float32", "float64", "inf", "int8", "int16", "int32", "int64", "nan", "newaxis",
    "pi", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

e: Final = math.e
inf: Final = math.inf
nan: Final = math.nan
pi: Final = math.pi
newaxis: Final = None

bool = dtypes.bool  # noqa: A001  the standard's name
int8: Final = dtypes.int8
int16: Final = dtypes.int16
int32: Final = dtypes.int32
int64: Final = dtypes.int64
uint8: Final = dtypes.uint8
uint16: Final = dtypes.uint16
uint32: Final = dtypes.uint32
uint64: Final = dtypes.uint64
float32: Final = dtypes.float32
float64: Final = dtypes.float64
