"""LLVM IR for AMD cards: address spaces, work-items, LDS and barriers on the LLVM family.

A kernel takes the addresses of its buffers by slot, then the variables by name, 8 bytes each:

    define amdgpu_kernel void @NAME(ptr addrspace(1) %data0, ..., i64 %value0)

Memory kinds are LLVM's address spaces: 1 global, 3 LDS, 5 private ("User Guide for AMDGPU Backend",
section "Address Spaces"). bfloat16 and the fp8s are stored, and computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_amd.matrix import INTRINSICS
from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import SHARED_ALIGNMENT, LinearKernel
from tinycore.render.llvm import Llvm, MatrixIntrinsic
from tinycore.render.llvm_types import storage_name, type_name
from tinycore.render.llvm_writer import Writer, reinterpreted
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["AmdLlvm", "swizzle_offset"]

UNUSED: Final = (
    *("dispatch-ptr", "queue-ptr", "dispatch-id", "implicitarg-ptr", "lds-kernel-id", "heap-ptr"),
    *("multigrid-sync-arg", "hostcall-ptr", "default-queue", "completion-action"),
    *("flat-scratch-init", "cluster-id-x", "cluster-id-y", "cluster-id-z"),
)
"""Implicit kernel arguments, declined: none of our kernels reads them, and each takes registers."""


SWIZZLED_LANES: Final = 32
"""Lanes among which ds_swizzle exchanges words."""


def swizzle_offset(mask: int) -> int:
    """The offset of ds_swizzle by which a lane reads that of its number XOR `mask`."""
    return mask << 10 | SWIZZLED_LANES - 1


WMMA_LANES: Final = 32
"""Lanes of a wave that has WMMA; MFMA is of waves of 64."""


def is_chain(kernel: LinearKernel) -> bool:
    """True if matrix instructions multiply what others made."""
    products = [n for n in kernel.uops if n.op is Op.MATRIX]
    operands = UOp.sink(*(s for n in products for s in n.src[:2]))
    return any(n.op is Op.MATRIX for n in operands.toposort())


def is_added_to(u: UOp, kernel: LinearKernel) -> bool:
    """True if a sum of a matrix instruction is what another one adds to."""
    return any(n.op is Op.MATRIX and n.src[2] is u for n in kernel.uops)


@dataclass(frozen=True)
class AmdLlvm(Llvm):
    """LLVM IR of the target amdgcn."""

    name: ClassVar[str] = "LLVM"
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    approximate: ClassVar[frozenset[Op]] = frozenset({Op.EXP2})
    matrix: ClassVar[Mapping[str, MatrixIntrinsic]] = INTRINSICS
    spaces: ClassVar[Mapping[Op, str]] = {
        Op.DEFINE_GLOBAL: "1",
        Op.DEFINE_LOCAL: "3",
        Op.DEFINE_REG: "5",
    }

    def assemble(self, writer: Writer) -> str:
        """Arrays in LDS, the kernel, and what it promises of its launch."""
        head = f"define amdgpu_kernel void @{writer.kernel.name}({', '.join(self.slots(writer))})"
        lines = (
            *writer.declarations,
            *self.arrays(writer),
            f"{head} #0 {{",
            "entry:",
            *writer.entry,
            *self.values(writer),
            *writer.lines,
            "  ret void",
            "}",
            f"attributes #0 = {{ {self.attributes(writer.kernel)} }}",
        )
        return "\n".join(lines) + "\n"

    def attributes(self, kernel: LinearKernel) -> str:
        """The size of a group, that all groups have it, and what is not read.

        Loads of a chain of products are early enough in any order of LLVM 22, but its first choice
        begins so many that registers of RDNA3 spill.
        """
        threads = math.prod(kernel.launch("block"))
        stated = {
            "amdgpu-flat-work-group-size": f"{threads},{threads}",
            "uniform-work-group-size": "true",
        }
        if is_chain(kernel):
            stated["amdgpu-sched-strategy"] = "iterative-maxocc"
        words = [f'"{key}"="{value}"' for key, value in stated.items()]
        return " ".join(["nounwind", *words, *(f'"amdgpu-no-{name}"' for name in UNUSED)])

    def slots(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; then the variables as 64 bits."""
        kernel = writer.kernel
        named = dict(zip((b.arg for b in kernel.buffers), self.parameters(writer), strict=False))
        slots = range(max(named, default=-1) + 1)
        buffers = [named.get(slot, f"ptr addrspace(1) %unused{slot}") for slot in slots]
        return [*buffers, *(f"i64 %given{i}" for i in range(len(kernel.variables)))]

    def values(self, writer: Writer) -> list[str]:
        """The variables as their own types."""
        lines = []
        for i, variable in enumerate(writer.kernel.variables):
            kind, given = type_name(variable.dtype), f"i64 %given{i}"
            value = f"add {given}, 0" if kind == "i64" else f"trunc {given} to {kind}"
            lines.append(f"  {writer[variable]} = {value}")
        return lines

    def arrays(self, writer: Writer) -> list[str]:
        """LDS arrays, each a variable of the module."""
        lines = []
        for u in writer.kernel.uops:
            if u.op is Op.DEFINE_LOCAL:
                assert isinstance(u.dtype, PointerDType)
                kind = f"[{u.dtype.size} x {storage_name(u.dtype.base)}]"
                lines.append(
                    f"{writer[u]} = internal addrspace(3) global {kind} poison, "
                    f"align {SHARED_ALIGNMENT}"
                )
        return lines

    def write_memory(self, u: UOp, writer: Writer) -> None:
        """A private register, or the name of an array in LDS."""
        if u.op is Op.DEFINE_LOCAL:
            writer.values[u] = f"@shared{u.arg}"
        else:
            super().write_memory(u, writer)

    def write_barrier(self, u: UOp, writer: Writer) -> None:
        """All work-items of a group meet, and see what each has stored."""
        writer.declarations.setdefault("declare void @llvm.amdgcn.s.barrier()")
        writer.line('fence syncscope("workgroup") release')
        writer.line("call void @llvm.amdgcn.s.barrier()")
        writer.line('fence syncscope("workgroup") acquire')

    def expression(self, u: UOp, writer: Writer) -> str:
        """The value of a node that computes; powers of two by v_exp_f32, lane by lane."""
        if u.op is not Op.EXP2:
            return super().expression(u, writer)
        called, kind, (x,) = "float @llvm.amdgcn.exp2.f32", type_name(u.dtype), u.src
        writer.declarations.setdefault(f"declare {called}(float)")
        if u.dtype.count == 1:
            return writer.add(f"call {called}(float {writer[x]})")
        value = "poison"
        for lane in range(u.dtype.count):
            own = writer.add(f"extractelement {kind} {writer[x]}, i64 {lane}")
            power = writer.add(f"call {called}(float {own})")
            value = writer.add(f"insertelement {kind} {value}, float {power}, i64 {lane}")
        return value

    def matrix_sum(self, u: UOp, writer: Writer) -> str:
        """A sum by a matrix instruction, which every lane executes.

        LLVM 22 has WMMA as an instruction that may be moved into code of some lanes, to where its
        sum is stored (not MFMA, which is convergent there): an empty convergent instruction takes
        the last sum of each chain where all lanes still are.
        """
        value = super().matrix_sum(u, writer)
        if u.arg.threads != WMMA_LANES or is_added_to(u, writer.kernel):
            return value
        kind = type_name(u.dtype)
        return writer.add(f'call {kind} asm "", "=v,0"({kind} {value}) convergent')

    def shuffle(self, u: UOp, writer: Writer) -> str:
        """The word of another lane: ds_swizzle within 32 lanes, ds_bpermute beyond them."""
        kind, (source,) = type_name(u.dtype), u.src
        word = reinterpreted(source.dtype, "i32", writer[source], writer)
        if u.arg < SWIZZLED_LANES:
            called = "i32 @llvm.amdgcn.ds.swizzle"
            writer.declarations.setdefault(f"declare {called}(i32, i32 immarg)")
            text = f"call {called}(i32 {word}, i32 {swizzle_offset(u.arg)})"
        else:
            called = "i32 @llvm.amdgcn.ds.bpermute"
            writer.declarations.setdefault(f"declare {called}(i32, i32)")
            other = writer.add(f"xor i32 {self.lane(writer)}, {u.arg}")
            place = writer.add(f"shl i32 {other}, 2")
            text = f"call {called}(i32 {place}, i32 {word})"
        found = writer.add(text)
        return found if kind == "i32" else writer.add(f"bitcast i32 {found} to {kind}")

    @staticmethod
    def lane(writer: Writer) -> str:
        """The number of this work-item in its wave."""
        number = "0"
        for half in ("lo", "hi"):
            called = f"i32 @llvm.amdgcn.mbcnt.{half}"
            writer.declarations.setdefault(f"declare {called}(i32, i32)")
            number = writer.add(f"call {called}(i32 -1, i32 {number})")
        return number

    def special(self, u: UOp, writer: Writer) -> str:
        """The number of this work-item in its group, or of its group."""
        prefix, axis = u.arg[:-1], "xyz"[int(u.arg[-1])]
        of = {"grid": "workgroup", "block": "workitem"}[prefix]
        name = f"llvm.amdgcn.{of}.id.{axis}"
        writer.declarations.setdefault(f"declare i32 @{name}()")
        most = int(u.src[0].arg)
        found = writer.add(f"call range(i32 0, {max(most, 1)}) i32 @{name}()")
        kind = type_name(u.dtype)
        return found if kind == "i32" else writer.add(f"zext nneg i32 {found} to {kind}")
