"""Registers of a thread as the real compiler gives them out, where it is installed."""

from __future__ import annotations

import re
from typing import Any

from tinycore import Context, Device
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.render.base import LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["compiled_registers", "texture_loads"]


def texture_loads(kernel: LinearKernel, target: str) -> frozenset[UOp]:
    """The loads that go through texture units: of images, and those the renderer so writes."""
    images = (u for u in kernel.uops if u.op is Op.LOAD and u.src[0].op is Op.PIXEL)
    if not target.startswith("IR3"):
        return frozenset(images)
    from tiny_qcom.texels import texel_loads  # noqa: PLC0415

    return texel_loads(kernel).union(images)


def compiled_registers(kernel: LinearKernel, target: str) -> int | None:
    """Registers of 4 bytes; None where no compiler says."""
    renderer, _, arch = target.partition(":")
    reader = {"NVRTC": of_cubin, "LLVM": of_assembly, "IR3": of_container}.get(renderer)
    if reader is None:
        return None
    with Context(DEV=f"NULL:{target}"):
        toolchain = Device["NULL"].toolchain
        source = toolchain.renderer.render(kernel)
    try:
        return reader(toolchain.compiler, source, kernel.name, arch)
    except (CompilerUnavailable, CompileError, ImportError):
        return None


def of_cubin(compiler: Any, source: str, name: str, arch: str) -> int:
    """Resources that a cubin states."""
    from tiny_nv.nvk.cubin import Cubin  # noqa: PLC0415

    return Cubin(compiler.compile(source), f"{name}_").kernel.registers


def of_assembly(compiler: Any, source: str, name: str, arch: str) -> int:
    """Resources that the metadata of a code object state."""
    from tiny_amd.llvm import LlvmCompiler  # noqa: PLC0415

    return int(re.findall(r"\.vgpr_count:\s+(\d+)", LlvmCompiler(arch).assembly(source))[0])


def of_container(compiler: Any, source: str, name: str, arch: str) -> int:
    """Resources that ir3 states: registers of four words."""
    from tiny_qcom.code import Code  # noqa: PLC0415

    return 4 * Code.unpack(compiler.compile(source), name).full_registers
