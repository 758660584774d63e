"""LLVM IR for a CPU. See `tiny_cpu.render` for the ABI and for what is defined beyond LLVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_cpu._subnormals import constant_of
from tinycore.config import settings
from tinycore.dtype import DType, dtypes
from tinycore.render.facts import is_parallel
from tinycore.render.llvm import Llvm
from tinycore.render.llvm_types import constant, type_name
from tinycore.render.llvm_writer import Writer
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

PAIRS: Final = {
    16: "llvm.x86.sse2.pmadd.wd",
    32: "llvm.x86.avx2.pmadd.wd",
    64: "llvm.x86.avx512.pmaddw.d.512",
}
"""Products of neighboring int16, added; by the bytes of a vector."""
FETCH: Final = "llvm.prefetch.p0"
STREAM_LINES: Final = ("declare void @llvm.x86.sse.sfence()", "!0 = !{i32 1}")


FLOAT_MODE_IN_IR: Final[Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[str]]]] = {
    "x86_64": (
        ("declare void @llvm.x86.sse.stmxcsr(ptr)", "declare void @llvm.x86.sse.ldmxcsr(ptr)"),
        (
            "  %mode = alloca i32",
            "  %flush = alloca i32",
            "  call void @llvm.x86.sse.stmxcsr(ptr %mode)",
            "  %old = load i32, ptr %mode",
            "  %new = or i32 %old, 32832",  # FTZ and DAZ, Intel SDM 10.2.3
            "  store i32 %new, ptr %flush",
            "  call void @llvm.x86.sse.ldmxcsr(ptr %flush)",
        ),
        ("  call void @llvm.x86.sse.ldmxcsr(ptr %mode)",),
    ),
    "aarch64": (
        ("declare i64 @llvm.aarch64.get.fpcr()", "declare void @llvm.aarch64.set.fpcr(i64)"),
        (
            "  %old = call i64 @llvm.aarch64.get.fpcr()",
            "  %new = or i64 %old, 16777216",  # FZ
            "  call void @llvm.aarch64.set.fpcr(i64 %new)",
        ),
        ("  call void @llvm.aarch64.set.fpcr(i64 %old)",),
    ),
}
"""By machine: declarations, and the instructions around a kernel that flushes subnormal numbers."""


@dataclass(frozen=True)
class LlvmCpu(Llvm):
    """LLVM IR as it is compiled for a CPU of any width."""

    native_types: ClassVar[Mapping[Op, frozenset[DType]]] = {
        Op.SQRT: frozenset({dtypes.float32, dtypes.float64})  # halves would be taken one by one
    }
    machine: str = "x86_64"

    name: ClassVar[str] = "LLVM"
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})

    def write(self, u: UOp, writer: Writer) -> None:
        """Constants are as the kernel computes with them."""
        if u.op is Op.CONST:
            writer.values[u] = constant(u.dtype, constant_of(u.dtype, u.arg))
        else:
            super().write(u, writer)

    def assemble(self, writer: Writer) -> str:
        """The body as a function whose parameters say that buffers differ, and the entry."""
        name = writer.kernel.name
        parameters = [*self.parameters(writer), "i64 %begin", "i64 %end"]
        flushes = settings.FLUSH_SUBNORMALS
        declared, before, after = FLOAT_MODE_IN_IR[self.machine] if flushes else ((), (), ())
        # Not inlined, or floats could leave the mode; what LLVM computes itself is flushed, too.
        inline = ' noinline "denormal-fp-math"="preserve-sign,preserve-sign"' if flushes else ""
        lines = (
            *writer.declarations,
            *declared,
            f"define internal void @{name}_body({', '.join(parameters)}) nounwind{inline} {{",
            "entry:",
            *writer.entry,
            *writer.lines,
            "  ret void",
            "}",
            f"define void @{name}(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {{",
            *before,
            *self.unpacked(writer),
            *after,
            *(("  call void @llvm.x86.sse.sfence()",) if writer.kernel.streams else ()),
            "  ret void",
            "}",
            *(STREAM_LINES if writer.kernel.streams else ()),
        )
        return "\n".join(lines) + "\n"

    def unpacked(self, writer: Writer) -> list[str]:
        """Instructions that read the buffers and values, and call the body with them."""
        lines, arguments = [], []
        for i in (buffer.arg for buffer in writer.kernel.buffers):
            lines += [
                f"  %b{i} = getelementptr inbounds ptr, ptr %buffers, i64 {i}",
                f"  %buffer{i} = load ptr, ptr %b{i}",
            ]
            arguments.append(f"ptr %buffer{i}")
        for i, variable in enumerate(writer.kernel.variables):
            kind = type_name(variable.dtype)
            lines += [
                f"  %v{i} = getelementptr inbounds i64, ptr %values, i64 {i}",
                f"  %value{i} = load i64, ptr %v{i}",
            ]
            if kind != "i64":
                lines.append(f"  %narrow{i} = trunc i64 %value{i} to {kind}")
            arguments.append(f"{kind} %{'value' if kind == 'i64' else 'narrow'}{i}")
        arguments += ["i64 %begin", "i64 %end"]
        return [*lines, f"  call void @{writer.kernel.name}_body({', '.join(arguments)})"]

    def extent(self, u: UOp, writer: Writer) -> tuple[str, str]:
        """A PARALLEL range covers what this call was given."""
        return ("%begin", "%end") if is_parallel(u) else super().extent(u, writer)

    def dot(self, u: UOp, writer: Writer) -> str:
        """The instruction of an x86-64 for vectors of int16."""
        name, kind, source = PAIRS[u.src[0].dtype.size_bytes], type_name(u.dtype), u.src[0].dtype
        operand = type_name(source)
        writer.declarations.setdefault(f"declare {kind} @{name}({operand}, {operand})")
        operands = ", ".join(f"{operand} {writer[s]}" for s in u.src)
        return writer.add(f"call {kind} @{name}({operands})")

    def load(self, u: UOp, writer: Writer) -> str:
        """A load, after asking the second cache for what lies so many bytes ahead."""
        if u.arg is not None:
            writer.declarations.setdefault(f"declare void @{FETCH}(ptr, i32, i32, i32)")
            ahead = writer.add(f"getelementptr i8, ptr {writer[u.src[0]]}, i64 {u.arg}", "p")
            writer.line(f"call void @{FETCH}(ptr {ahead}, i32 0, i32 2, i32 1)")
        return super().load(u, writer)

    def stream(self, value: str, index: UOp, dtype: DType, writer: Writer) -> None:
        """Past the caches of an x86-64, where the place is aligned."""
        name, place, size = writer.fresh("stream"), writer[index], dtype.size_bytes
        address = writer.add(f"ptrtoint ptr {place} to i64")
        off = writer.add(f"and i64 {address}, {size - 1}")
        is_aligned = writer.add(f"icmp eq i64 {off}, 0")
        writer.line(f"br i1 {is_aligned}, label %{name}_past, label %{name}_plain")
        writer.label(f"{name}_past")
        writer.line(f"store {value}, ptr {place}, align {size}, !nontemporal !0")
        writer.line(f"br label %{name}_done")
        writer.label(f"{name}_plain")
        self.store(value, index, dtype, writer)
        writer.line(f"br label %{name}_done")
        writer.label(f"{name}_done")


class LlvmCpuBaseline(LlvmCpu):
    """IR for a CPU that can neither convert halves nor round at once (x86-64 before v3)."""

    native_ops: ClassVar[frozenset[Op]] = LlvmCpu.native_ops - {Op.TRUNC}
    emulated: ClassVar[frozenset[DType]] = LlvmCpu.emulated | {dtypes.float16}
