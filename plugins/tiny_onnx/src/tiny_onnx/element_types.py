"""Element types of ONNX beside those of tinycore and NumPy.

tinycore has no numbers below a byte and no E8M0 or E2M1 floats. Integers of 2 and 4 bits are held
as int8 and uint8, the two floats as float32; both hold every value of theirs. Strings stay on the
host. Source: `TensorProto.DataType` of onnx.proto.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import ml_dtypes
import numpy
from onnx import TensorProto

from tinycore import dtypes
from tinycore.dtype import DType
from tinycore.errors import UnsupportedError

__all__ = ["ELEMENTS", "HELD_WIDER", "Element", "element_of", "held_as", "named"]


class Element(NamedTuple):
    """One element type: how NumPy and tinycore hold it."""

    name: str
    array: numpy.dtype[numpy.generic]
    tensor: DType | None


def _row(name: str, array: object, tensor: DType | None) -> Element:
    return Element(name, numpy.dtype(array), tensor)  # type: ignore[call-overload]


ELEMENTS: Final[dict[int, Element]] = {
    TensorProto.FLOAT: _row("float32", numpy.float32, dtypes.float32),
    TensorProto.UINT8: _row("uint8", numpy.uint8, dtypes.uint8),
    TensorProto.INT8: _row("int8", numpy.int8, dtypes.int8),
    TensorProto.UINT16: _row("uint16", numpy.uint16, dtypes.uint16),
    TensorProto.INT16: _row("int16", numpy.int16, dtypes.int16),
    TensorProto.INT32: _row("int32", numpy.int32, dtypes.int32),
    TensorProto.INT64: _row("int64", numpy.int64, dtypes.int64),
    TensorProto.STRING: _row("string", object, None),
    TensorProto.BOOL: _row("bool", numpy.bool_, dtypes.bool),
    TensorProto.FLOAT16: _row("float16", numpy.float16, dtypes.float16),
    TensorProto.DOUBLE: _row("float64", numpy.float64, dtypes.float64),
    TensorProto.UINT32: _row("uint32", numpy.uint32, dtypes.uint32),
    TensorProto.UINT64: _row("uint64", numpy.uint64, dtypes.uint64),
    TensorProto.BFLOAT16: _row("bfloat16", ml_dtypes.bfloat16, dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: _row("float8e4m3fn", ml_dtypes.float8_e4m3fn, dtypes.fp8e4m3),
    TensorProto.FLOAT8E4M3FNUZ: _row(
        "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, dtypes.fp8e4m3fnuz
    ),
    TensorProto.FLOAT8E5M2: _row("float8e5m2", ml_dtypes.float8_e5m2, dtypes.fp8e5m2),
    TensorProto.FLOAT8E5M2FNUZ: _row(
        "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, dtypes.fp8e5m2fnuz
    ),
    TensorProto.UINT4: _row("uint4", ml_dtypes.uint4, dtypes.uint8),
    TensorProto.INT4: _row("int4", ml_dtypes.int4, dtypes.int8),
    TensorProto.UINT2: _row("uint2", ml_dtypes.uint2, dtypes.uint8),
    TensorProto.INT2: _row("int2", ml_dtypes.int2, dtypes.int8),
    TensorProto.FLOAT4E2M1: _row("float4e2m1", ml_dtypes.float4_e2m1fn, dtypes.float32),
    TensorProto.FLOAT8E8M0: _row("float8e8m0", ml_dtypes.float8_e8m0fnu, dtypes.float32),
}
"""Every element type but complex numbers, by its number in a file."""

HELD_WIDER: Final = frozenset(("uint4", "int4", "uint2", "int2", "float4e2m1", "float8e8m0"))
"""Names of the types that a tensor holds as a wider dtype, which does not tell their bounds."""

_OF_ARRAY: Final = {element.array: element for element in ELEMENTS.values()}


def named(number: int, where: str) -> Element:
    """The element type of a number. Raises UnsupportedError for complex and unknown ones."""
    found = ELEMENTS.get(number)
    if found is None:
        raise UnsupportedError(
            f"{where}: element type {number} is not supported. Supported: "
            f"{', '.join(element.name for element in ELEMENTS.values())}."
        )
    return found


def held_as(dtype: DType) -> Element:
    """The element type of a dtype; of those that share it the one that has it of its own."""
    return next(element for element in ELEMENTS.values() if element.tensor == dtype)


def element_of(array: numpy.ndarray) -> Element:
    """The element type of an array. Raises UnsupportedError for one that ONNX does not have."""
    if array.dtype.kind in "OUST":
        return ELEMENTS[TensorProto.STRING]
    if array.dtype not in _OF_ARRAY:
        raise UnsupportedError(f"arrays of {array.dtype} are not supported by tiny_onnx.")
    return _OF_ARRAY[array.dtype]
