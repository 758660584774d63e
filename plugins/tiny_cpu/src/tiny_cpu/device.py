"""The CPU as a device: its memory, its programs, and the two toolchains that make them.

Called directly, launches have ended when they return, so there is nothing to wait for; the other
interface is `tiny_cpu.queued`. CPU:1, CPU:2 and on are
further devices with memory of their own, on the same threads; they serve programs and tests that
want several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiny_cpu.amx import STRATEGIES, ClangAmx, LlvmAmx, units_of
from tiny_cpu.arch import Arch
from tiny_cpu.clang import ClangCompiler
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.memory import CpuAllocator
from tiny_cpu.program import CpuCopy, CpuProgram, Replay
from tiny_cpu.queued import QueuedCpu
from tiny_cpu.render import Clang, ClangBaseline, LlvmCpu, LlvmCpuBaseline
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import DeviceRuntime, Launch, ProgramInfo, Toolchain

__all__ = ["CpuDevice", "clang_toolchain", "llvm_toolchain", "open_cpu"]


def open_cpu(index: int = 0, interface: str = "DIRECT") -> CpuDevice | QueuedCpu:
    """Open a CPU, through direct calls or through queues. Raises DeviceUnavailable."""
    if interface == "HCQ":
        return QueuedCpu(index)
    if interface in ("", "DIRECT"):
        return CpuDevice(index, interface)
    raise DeviceUnavailable(f"a CPU is reached through DIRECT or HCQ, not through {interface}")


class CpuDevice:
    """An open CPU."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        self.index = index
        self.allocator = CpuAllocator()

    def load(self, binary: bytes, info: ProgramInfo) -> CpuProgram:
        """Make an object file callable. Raises DeviceError when it is for another machine."""
        return CpuProgram(binary, info)

    def graph(self, launches: Sequence[Launch]) -> Replay:
        """Launches that one native call runs."""
        return Replay(launches)

    def copier(self, size: int, source: DeviceRuntime) -> CpuCopy:
        """A program that copies from another CPU: launches are over when they return, so it is in
        order by itself.
        """
        return CpuCopy(size)

    def synchronize(self) -> None:
        """Return at once: a launch is over when it returns."""

    def close(self) -> None:
        """Nothing to do: the pool's threads outlive every device."""


def clang_toolchain(arch: str = "") -> Toolchain[Clang]:
    """C by clang. Raises CompilerUnavailable, or SettingError for a malformed `arch`."""
    parsed = Arch.parse(arch)
    compiler = ClangCompiler(parsed)
    dialect, limits = ClangBaseline if parsed.is_baseline else Clang, parsed.limits()
    if units := units_of(parsed):
        dialect, limits = ClangAmx, replace(limits, matrix=units, strategies=STRATEGIES)
    return Toolchain("CLANG", str(parsed), dialect(limits), compiler)


def llvm_toolchain(arch: str = "") -> Toolchain[LlvmCpu]:
    """LLVM IR by llvmlite. Raises CompilerUnavailable, or SettingError for a malformed `arch`."""
    parsed = Arch.parse(arch)
    compiler = LlvmCompiler(parsed)
    dialect, limits = LlvmCpuBaseline if parsed.is_baseline else LlvmCpu, parsed.limits()
    if units := units_of(parsed):
        dialect, limits = LlvmAmx, replace(limits, matrix=units, strategies=STRATEGIES)
    return Toolchain("LLVM", str(parsed), dialect(limits, parsed.machine), compiler)
