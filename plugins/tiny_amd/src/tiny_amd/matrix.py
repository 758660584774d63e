"""WMMA and MFMA: matrix instructions of a wave, as units that plans know and LLVM has calls for.

Which lane holds which element: AMD, "RDNA3 Instruction Set Architecture" (2023), section 7.9
("Wave Matrix Multiply Accumulate"); "RDNA4 Instruction Set Architecture" (2025), section 7.12;
"AMD Instinct MI300 Instruction Set Architecture" (2024), chapter 7 ("Matrix Arithmetic
Instructions"). On gfx11 lanes 16 to 31 hold what lanes 0 to 15 do of A and B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.render.llvm import MatrixIntrinsic
from tinycore.uop.matrix import MatrixUnit

__all__ = ["CDNA2", "CDNA3", "CDNA4", "FAMILIES", "INTRINSICS", "RDNA3", "RDNA4", "Instruction"]

TYPE_NAMES: Final = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.float32: "f32",
    dtypes.int8: "i8",
    **dict.fromkeys((dtypes.fp8e4m3, dtypes.fp8e4m3fnuz), "fp8"),
    **dict.fromkeys((dtypes.fp8e5m2, dtypes.fp8e5m2fnuz), "bf8"),
}
"""Names of operand types in the instruction sets."""
PLAIN: Final = ("a", "b", "c")
SIGNED: Final = ("i1 true", "a", "i1 true", "b", "c", "i1 false")
"""Arguments of WMMA on bytes: that they have signs, and that sums wrap."""
UNPERMUTED: Final = ("a", "b", "c", "i32 0", "i32 0", "i32 0")
"""Arguments of MFMA: no block of A or B is broadcast or moved."""
RDNA3_MAPS: Final = (
    "m1 m2 m4 m8 - | k1 k2 k4 k8",
    "n1 n2 n4 n8 - | k1 k2 k4 k8",
    "n1 n2 n4 n8 m1 | m2 m4 m8",
)
RDNA4_MAPS: Final = (
    "m1 m2 m4 m8 k8 | k1 k2 k4",
    "n1 n2 n4 n8 k8 | k1 k2 k4",
    "n1 n2 n4 n8 m8 | m1 m2 m4",
)
MFMA_MAPS: Final = {
    k: (f"m1 m2 m4 m8 {steps}", f"n1 n2 n4 n8 {steps}", "n1 n2 n4 n8 m4 m8 | m1 m2")
    for k, steps in {
        4: "k1 k2 |",
        16: "k4 k8 | k1 k2",
        32: "k8 k16 | k1 k2 k4",
        64: "k16 k32 | k1 k2 k4 k8",
    }.items()
}
"""By k: each quarter of a wave has a quarter of the steps."""


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction, and LLVM's call of it."""

    unit: MatrixUnit
    intrinsic: MatrixIntrinsic


def sum_of(operand: DType) -> DType:
    """The type in which products are summed."""
    return dtypes.int32 if operand.kind == "int" else dtypes.float32


def wmma(operand: DType, family: str, maps: tuple[str, str, str], kind: str) -> Instruction:
    """A product of 16 by 16 by 16 by a wave of 32; `kind` is the type of operands in LLVM."""
    out, name = sum_of(operand), TYPE_NAMES[operand]
    unit = MatrixUnit(f"wmma_{family}_{name}", 16, 16, 16, operand, operand, out, 32, *maps)
    total = "i32" if operand.kind == "int" else "f32"
    both = {"i8": "iu8", "fp8": "fp8.fp8", "bf8": "bf8.bf8"}.get(name, name)
    count, _, element = kind.strip("<>").split()
    types = f"v8{total}.v{count}{element.replace('half', 'f16')}"
    return Instruction(
        unit,
        MatrixIntrinsic(
            f"amdgcn.wmma.{total}.16x16x16.{both}.{types}",
            kind,
            SIGNED if operand.kind == "int" else PLAIN,
        ),
    )


def mfma(operand: DType, k: int, kind: str, ending: str) -> Instruction:
    """A product of 16 by 16 by k by a wave of 64; `ending` is how LLVM's name of it ends."""
    out, total = sum_of(operand), "i32" if operand.kind == "int" else "f32"
    unit = MatrixUnit(
        *(f"mfma_16x16x{k}_{operand.name}", 16, 16, k, operand, operand, out, 64, *MFMA_MAPS[k])
    )
    return Instruction(
        unit,
        MatrixIntrinsic(f"amdgcn.mfma.{total}.16x16x{k}{ending}", kind, UNPERMUTED),
    )


RDNA3: Final = (
    wmma(dtypes.float16, "rdna3", RDNA3_MAPS, "<16 x half>"),
    wmma(dtypes.bfloat16, "rdna3", RDNA3_MAPS, "<16 x i16>"),
    wmma(dtypes.int8, "rdna3", RDNA3_MAPS, "<4 x i32>"),
)
RDNA4: Final = (
    wmma(dtypes.float16, "rdna4", RDNA4_MAPS, "<8 x half>"),
    wmma(dtypes.bfloat16, "rdna4", RDNA4_MAPS, "<8 x i16>"),
    wmma(dtypes.int8, "rdna4", RDNA4_MAPS, "<2 x i32>"),
    wmma(dtypes.fp8e4m3, "rdna4", RDNA4_MAPS, "<2 x i32>"),
    wmma(dtypes.fp8e5m2, "rdna4", RDNA4_MAPS, "<2 x i32>"),
)
_SINGLE: Final = mfma(dtypes.float32, 4, "float", "f32")
_HALF: Final = mfma(dtypes.float16, 16, "<4 x half>", "f16")
_BFLOAT: Final = mfma(dtypes.bfloat16, 16, "<4 x i16>", "bf16.1k")
CDNA2: Final = (_HALF, _BFLOAT, _SINGLE)
CDNA3: Final = (
    *CDNA2,
    mfma(dtypes.int8, 32, "i64", ".i8"),
    mfma(dtypes.fp8e4m3fnuz, 32, "i64", ".fp8.fp8"),
    mfma(dtypes.fp8e5m2fnuz, 32, "i64", ".bf8.bf8"),
)
CDNA4: Final = (
    mfma(dtypes.float16, 32, "<8 x half>", ".f16"),
    mfma(dtypes.bfloat16, 32, "<8 x bfloat>", ".bf16"),
    _SINGLE,
    mfma(dtypes.int8, 64, "<4 x i32>", ".i8"),
    mfma(dtypes.fp8e4m3, 32, "i64", ".fp8.fp8"),
    mfma(dtypes.fp8e5m2, 32, "i64", ".bf8.bf8"),
    *(_HALF, _BFLOAT),  # for chains of products: lanes hold sums of 32 steps in another order
)
FAMILIES: Final = (RDNA3, RDNA4, CDNA2, CDNA3, CDNA4)
INTRINSICS: Final = {found.unit.name: found.intrinsic for family in FAMILIES for found in family}
"""By the name of the unit."""
