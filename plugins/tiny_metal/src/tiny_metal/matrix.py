"""simdgroup_matrix: products of 8 by 8 by a SIMD group, as units that plans know and MSL calls.

Metal Shading Language Specification 3.2, section 6.7 ("SIMD-Group Matrix Functions"); which lane
holds which element is not in it, but the same in all that is public of kernels for Apple's GPUs
(MLX, `mma.h`): a lane holds two neighbors of a row, 16 lanes the upper four rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.uop.matrix import MatrixUnit

__all__ = ["CALLS", "LANES", "UNITS"]

LANES: Final = 32
"""Threads of a SIMD group."""
TYPE_NAMES: Final = {dtypes.float16: "half", dtypes.bfloat16: "bfloat", dtypes.float32: "float"}


def unit_of(operand: DType) -> MatrixUnit:
    """The product of matrices of a type, summed in float."""
    maps = ("k2 m1 m2 k4 m4 | k1", "n2 k1 k2 n4 k4 | n1", "n2 m1 m2 n4 m4 | n1")
    name = f"simdgroup_{TYPE_NAMES[operand]}8x8"
    return MatrixUnit(name, 8, 8, 8, operand, operand, dtypes.float32, LANES, *maps)


UNITS: Final = tuple(unit_of(operand) for operand in TYPE_NAMES)


def function_of(unit: MatrixUnit) -> str:
    """A function of MSL, of the two elements of each matrix that a lane holds."""
    kind = TYPE_NAMES[unit.a]
    return (
        f"inline float2 {unit.name}_sum({kind}2 a, {kind}2 b, float2 c) {{\n"
        f"  simdgroup_matrix<{kind}, 8, 8> x, y;\n"
        "  simdgroup_matrix<float, 8, 8> z;\n"
        "  x.thread_elements()[0] = a.x; x.thread_elements()[1] = a.y;\n"
        "  y.thread_elements()[0] = b.x; y.thread_elements()[1] = b.y;\n"
        "  z.thread_elements()[0] = c.x; z.thread_elements()[1] = c.y;\n"
        "  simdgroup_multiply_accumulate(z, x, y, z);\n"
        "  return float2(z.thread_elements()[0], z.thread_elements()[1]);\n"
        "}"
    )


CALLS: Final[Mapping[str, tuple[str, str]]] = {
    unit.name: (f"{unit.name}_sum({{0}}, {{1}}, {{2}})", function_of(unit)) for unit in UNITS
}
"""By the name of a unit: its call, and the definition that it needs."""
