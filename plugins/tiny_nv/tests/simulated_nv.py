"""NV without a card: the kernel's driver is a stand-in, whose cards the executor of PTX plays.

`BACKEND` is the plugin's own but for the operating system that it finds, and for the assembler: a
cubin holds its PTX where machine code would be (cubin.py). So everything else is what a card would
have: requests, address spaces, pushbuffers, launch descriptors, faults. There is one for each
architecture whose queues differ, on a branch of NVIDIA's driver of its own.

    export PYTHONPATH=plugins/tiny_nv/tests:tests/support
    tinycore conformance NV --register simulated_nv:BACKEND
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cubin import assemble
from rm_standin import Machine
from rm_standin.cards import AD102, GA102, GB202, H200

from tiny_nv import NV
from tiny_nv.arch import arch_of, limits_of, number_of
from tiny_nv.nvk.device import NvDevice
from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import Ptx
from tiny_nv.render import CudaC
from tinycore.plugin import Backend, HCQSignal, Interface, Toolchain, use_system

__all__ = [
    "BACKEND",
    "BACKEND_ADA",
    "BACKEND_AMPERE",
    "BACKEND_BLACKWELL",
    "MACHINE",
    "backend_of",
    "opened",
]


class Simulated(NvDevice):
    """A card of a stand-in, which runs while somebody waits for it."""

    machine: Machine

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Let cards run; where waits sleep, only what polls the event does."""
        if self.event is None:
            self.machine.pump()
        super().sleep(signal, value, waited_seconds)

    def rest(self) -> None:
        """Let cards run."""
        self.machine.pump()
        super().rest()


def opened(machine: Machine, index: int = 0, interface: str = "") -> NvDevice:
    """A card of a stand-in, opened as the plugin opens one."""
    kind = type("Simulated", (Simulated,), {"machine": machine})
    with use_system(machine):
        found: NvDevice = kind(index, interface)
    limit_accesses(machine, found)
    return found


def limit_accesses(machine: Machine, device: NvDevice) -> None:
    """Let cards touch the bytes that were asked for, and not the rest of the last page."""
    card: Any = device.card
    allocate: Callable[..., Any] = card.allocate

    def exactly(size: int, **options: Any) -> Any:
        machine.exact.size = size
        try:
            return allocate(size, **options)
        finally:
            machine.exact.size = 0

    card.allocate = exactly


class Assembler:
    """A compiler to PTX, whose text becomes a cubin without NVIDIA's assembler."""

    def __init__(self, compiler: NvrtcCompiler | PtxCompiler, arch: str) -> None:
        self.compiler, self.arch = compiler, number_of(arch)
        self.name, self.key = compiler.name, f"{compiler.key} in a cubin"

    def compile(self, source: str) -> bytes:
        """The cubin. Raises CompileError with the log."""
        return assemble(self.compiler.compile(source), self.arch)

    def assembly(self, source: str) -> str:
        """The PTX."""
        return self.compiler.assembly(source)


def nvrtc(arch: str) -> Toolchain[CudaC]:
    """CUDA C."""
    compiler = Assembler(NvrtcCompiler(arch, assembles=False), arch)
    return Toolchain("NVRTC", arch, CudaC(limits_of(arch_of(arch))), compiler)


def ptx(arch: str) -> Toolchain[Ptx]:
    """PTX of our own."""
    renderer = Ptx(limits_of(arch_of(arch)), arch=arch)
    return Toolchain("PTX", arch, renderer, Assembler(PtxCompiler(arch, assembles=False), arch))


def backend_of(machine: Machine) -> Backend:
    """The plugin's backend on a stand-in."""
    renderers = {"PTX": ptx, "NVRTC": nvrtc}
    return replace(
        NV,
        open=lambda index, interface: opened(machine, index, interface),
        count=lambda: len(machine.gpus),
        probe=lambda: "",
        interfaces={"NVK": Interface()},
        driver=None,
        renderers=renderers,
    )


MACHINE: Final = Machine((H200, H200))
BACKEND: Final = backend_of(MACHINE)
BACKEND_AMPERE: Final = backend_of(Machine((GA102, GA102), version="570.144"))
BACKEND_ADA: Final = backend_of(Machine((AD102, AD102), version="590.48.01"))
BACKEND_BLACKWELL: Final = backend_of(Machine((GB202, GB202), version="610.43.03"))
