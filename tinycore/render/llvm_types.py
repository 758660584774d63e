"""Types and constants in LLVM IR.

Floor 2. See `llvm.py` for the family that uses them.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.render.literals import as_stored

TYPES: Final = {
    dtypes.void: "void",
    dtypes.index: "i64",
    dtypes.bool: "i1",
    **{d: f"i{d.bits}" for d in dtypes.ints},
    dtypes.float16: "half",
    dtypes.bfloat16: "bfloat",
    dtypes.float32: "float",
    dtypes.float64: "double",
}


def type_name(dtype: DType) -> str:
    """The type of a value."""
    scalar = TYPES[dtype.scalar()]
    return scalar if dtype.count == 1 else f"<{dtype.count} x {scalar}>"


def storage_name(dtype: DType) -> str:
    """The type in memory, where a bool is a byte."""
    return type_name(stored_as(dtype))


def stored_as(dtype: DType) -> DType:
    """The type whose values are in memory: bytes for bool."""
    return dtypes.uint8.vec(dtype.count) if dtype.kind == "bool" else dtype


def mask_name(dtype: DType) -> str:
    """The type of a comparison of values of `dtype`."""
    return type_name(dtypes.bool.vec(dtype.count))


def suffix(dtype: DType) -> str:
    """The type as part of an intrinsic's name: f32, or v8f32."""
    letter = {"float": "f"}.get(dtype.kind, "i")
    name = "bf16" if dtype.scalar() is dtypes.bfloat16 else f"{letter}{dtype.bits}"
    return name if dtype.count == 1 else f"v{dtype.count}{name}"


def comparison_kind(dtype: DType) -> str:
    """The family of predicates that compare values of `dtype`."""
    return {"index": "int", "bool": "uint"}.get(dtype.kind, dtype.kind)


def constant(dtype: DType, value: Scalar) -> str:
    """A scalar literal of exactly this value."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.kind != "float":
        return str(int(value))
    number = float(value)
    if dtype is dtypes.float16:
        bits = struct.unpack("<H", struct.pack("<e", as_stored(dtype, number)))[0]
        return f"0xH{bits:04X}"
    if dtype is dtypes.bfloat16:
        raise NotImplementedError("bfloat16 is computed in float32")
    if dtype is dtypes.float32 and not math.isnan(number):
        number = as_stored(dtype, number)  # a float is written as the double of the same value
    if math.isfinite(number) and number == int(number) and abs(number) < 2**24:
        return f"{number:.1f}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def splat(dtype: DType, value: Scalar) -> str:
    """A constant in every lane."""
    text = constant(dtype.scalar(), value)
    if dtype.count == 1:
        return text
    return f"<{', '.join([f'{type_name(dtype.scalar())} {text}'] * dtype.count)}>"


def zero(dtype: DType) -> str:
    """Zero in every lane."""
    if dtype.count > 1:
        return "zeroinitializer"
    return "0.0" if dtype.kind == "float" else "false" if dtype.kind == "bool" else "0"
