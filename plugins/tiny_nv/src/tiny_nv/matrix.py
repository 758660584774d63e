"""mma.sync: matrix instructions of a warp, as units for plans and as text for both renderers.

Which lane holds which element: NVIDIA, "PTX ISA" 9.0, section 9.7.14.5, "Matrix multiply-accumulate
operation using mma instruction", under "Matrix Fragments for mma.m16n8k8", "... mma.m16n8k16 with
floating point type" and "... mma.m16n8k32". Lane bits 0 and 1 are `threadID_in_group`, the others
`groupID`; a register has neighbors along k, of as many elements as 32 bits hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiny_nv.operand_loads import MatrixLoad
from tinycore.dtype import DType, dtypes
from tinycore.uop.matrix import MatrixUnit

__all__ = ["FUNCTIONS", "INSTRUCTIONS", "LOAD", "Instruction"]

REGISTER_BYTES: Final = 4
LOAD: Final = MatrixLoad("ldmatrix", turned_bytes=2)
"""ldmatrix, which loads up to four tiles of 8 rows of 16 bytes, and transposes elements of 2 bytes:
PTX ISA 9.0, section 9.7.14.5.15."""
OUT_MAP: Final = "n2 n4 m1 m2 m4 | n1 m8"
OPERAND_MAPS: Final = {
    8: ("k1 k2 m1 m2 m4 | m8 k4", "k1 k2 n1 n2 n4 | k4"),
    16: ("k2 k4 m1 m2 m4 | k1 m8 k8", "k2 k4 n1 n2 n4 | k1 k8"),
    32: ("k4 k8 m1 m2 m4 | k1 k2 m8 k16", "k4 k8 n1 n2 n4 | k1 k2 k16"),
}
"""The lane maps of A and B by k, which is 32 bytes of elements."""
PTX_NAMES: Final = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.float32: "tf32",
    dtypes.int8: "s8",
    dtypes.fp8e4m3: "e4m3",
    dtypes.fp8e5m2: "e5m2",
}
ROUNDED: Final = """\
template <class X, class A> FUNCTION X rounded(A a) {
  X x;
#pragma unroll
  for (int i = 0; i < int(sizeof(X) / 4); i++)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x.v[i]) : "f"(a.v[i]));
  return x;
}
"""
FIRST_WITH_FP8: Final = 89


@dataclass(frozen=True)
class Instruction:
    """An instruction `mma.sync`."""

    unit: MatrixUnit
    since: int = 80
    """The first compute capability that has it: 80 is 8.0."""
    version: str = "8.0"
    """The first version of PTX that has it."""

    @property
    def name(self) -> str:
        """Mnemonic of the instruction in PTX, with its modifiers."""
        kind, total = PTX_NAMES[self.unit.a], "s32" if self.unit.out.kind == "int" else "f32"
        return f"mma.sync.aligned.m16n8k{self.unit.k}.row.col.{total}.{kind}.{kind}.{total}"

    def registers(self, operand: str) -> int:
        """The registers that a lane holds of `a`, `b` or `out`."""
        held = self.unit.fragment(operand)
        return held.count * held.dtype.itemsize // REGISTER_BYTES

    @property
    def function(self) -> str:
        """A function in CUDA C of the fragments of a lane."""
        counts = [self.registers(operand) for operand in ("out", "a", "b")]
        starts = (0, counts[0], counts[0] + counts[1])
        sums, left, right = (
            ", ".join(f"%{start + i}" for i in range(count))
            for start, count in zip(starts, counts, strict=True)
        )
        letter = "r" if self.unit.out.kind == "int" else "f"
        outputs = ", ".join(f'"+{letter}"(c.v[{i}])' for i in range(counts[0]))
        inputs = ", ".join(
            f'"r"({name}.v[{i}])'
            for name, count in (("x", counts[1]), ("y", counts[2]))
            for i in range(count)
        )
        held = "rounded" if self.unit.rounds else "as"
        return (
            f"{ROUNDED if self.unit.rounds else ''}"
            f"template <class A, class B, class C> FUNCTION C {self.unit.name}(A a, B b, C c) {{\n"
            f"  const vec<unsigned, {counts[1]}> x = {held}<vec<unsigned, {counts[1]}>>(a);\n"
            f"  const vec<unsigned, {counts[2]}> y = {held}<vec<unsigned, {counts[2]}>>(b);\n"
            f'  asm volatile("{self.name} {{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};"\n'
            f"    : {outputs}\n"
            f"    : {inputs});\n"
            "  return c;\n"
            "}"
        )


def unit_of(a: DType, out: DType = dtypes.float32) -> MatrixUnit:
    """The product of 16 rows and 8 columns whose operands have 32 bytes along k."""
    k = 32 // a.itemsize
    name = f"mma_m16n8k{k}_{PTX_NAMES[a]}"
    rounds = a is dtypes.float32  # to tf32
    return MatrixUnit(name, 16, 8, k, a, a, out, 32, *OPERAND_MAPS[k], OUT_MAP, rounds, LOAD)


INSTRUCTIONS: Final[Mapping[str, Instruction]] = {
    instruction.unit.name: instruction
    for instruction in (
        Instruction(unit_of(dtypes.float16)),
        Instruction(unit_of(dtypes.bfloat16)),
        Instruction(unit_of(dtypes.int8, dtypes.int32)),
        Instruction(unit_of(dtypes.fp8e4m3), FIRST_WITH_FP8, "8.4"),
        Instruction(unit_of(dtypes.fp8e5m2), FIRST_WITH_FP8, "8.4"),
        Instruction(unit_of(dtypes.float32)),
    )
}
"""The instructions, by the name of the unit."""

FUNCTIONS: Final[Mapping[str, str]] = {
    name: instruction.function for name, instruction in INSTRUCTIONS.items()
}
"""Functions in CUDA C, by the name of the unit."""
