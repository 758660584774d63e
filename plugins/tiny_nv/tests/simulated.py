"""CUDA without a card: the stand-in of the driver, whose kernels the executor of PTX runs.

`BACKEND` is the plugin's own but for two things: nvrtc stops at PTX, and opening it puts the
stand-in in the driver's place. So everything else of the plugin is what a card would have.

    export PYTHONPATH=plugins/tiny_nv/tests:tests/support
    tinycore conformance CUDA --register simulated:BACKEND
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy
from emulation.faults import Fault, IllegalAddress, MisalignedAddress
from emulation.memory import GlobalMemory, Region
from executor.launch import Executor, Limits
from executor.syntax import Module, parse
from standin import Card, Driver, Launched

from tiny_nv import CUDA, _lib
from tiny_nv._native import ffi
from tiny_nv.device import CudaDevice, ptx_toolchain, toolchain
from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import Ptx
from tiny_nv.render import CudaC
from tinycore.plugin import Backend, Toolchain

__all__ = ["BACKEND", "Simulated", "backend_of"]

STATUSES: Final = {IllegalAddress: 700, MisalignedAddress: 716}
LAUNCH_FAILED: Final = 719


class Simulated(Driver):
    """A driver with cards that run PTX.

    What a kernel does wrong is raised where it was launched, naming the instruction; with
    `loses_context` the context is lost instead, as on a card, and a later call says so.
    """

    def __init__(self, cards: tuple[Card, ...] = (Card(),), loses_context: bool = False) -> None:
        super().__init__(cards, execute=lambda _, launched: self.run(launched))
        self.loses_context = loses_context
        self.global_memory = GlobalMemory()
        self.executor = Executor(self.global_memory, Limits())
        self.modules: dict[bytes, Module] = {}

    def module_of(self, image: bytes) -> Module:
        """The module of a text, read once."""
        if image not in self.modules:
            self.modules[image] = parse(image.rstrip(b"\0").decode())
        return self.modules[image]

    def parameters_of(self, image: bytes, name: str) -> list[tuple[int, int]]:
        return [(p.offset, p.size) for p in self.module_of(image).functions[name].parameters]

    def run(self, launched: Launched) -> None:
        """Run a kernel to its end."""
        place = (launched.grid, launched.block, launched.arguments)
        module = self.module_of(launched.image)
        try:
            self.executor.launch(module, launched.name, *place, launched.shared_bytes)
        except Fault as fault:
            if not self.loses_context:
                raise
            self.lose(STATUSES.get(type(fault), LAUNCH_FAILED))

    def cuMemAlloc_v2(self, address: Any, size: int) -> int:  # noqa: N802
        status = super().cuMemAlloc_v2(address, size)
        if not status:
            _, content = self.memory[address[0]]
            data = numpy.frombuffer(content, numpy.uint8)
            self.global_memory.add(Region(address[0], data, f"{size} bytes"))
        return status

    def cuMemFree_v2(self, address: int) -> int:  # noqa: N802
        if int(address) in self.memory:
            self.global_memory.remove(int(address))
        return super().cuMemFree_v2(address)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        status = super().cuModuleGetFunction(function, module, name)
        if not status:
            found = self._alive["CUfunction"][int(ffi.cast("uintptr_t", function[0]))]
            kernel = self.executor.kernel(self.module_of(found.image), found.name)
            found.uses_static = kernel.shared_static
        return status


def nvrtc(arch: str) -> Toolchain[CudaC]:
    """The plugin's CUDA C, which leaves assembling to the driver."""
    made = toolchain(arch)
    return replace(made, compiler=NvrtcCompiler(made.arch, assembles=False))


def ptx(arch: str) -> Toolchain[Ptx]:
    """The plugin's PTX, which leaves assembling to the driver."""
    made = ptx_toolchain(arch)
    return replace(made, compiler=PtxCompiler(made.arch, assembles=False))


def backend_of(driver: Driver) -> Backend:
    """The plugin's backend with a driver in place of the machine's."""

    def opened(index: int, interface: str) -> CudaDevice:
        with _lib.use(driver):
            return CudaDevice(index, interface)

    def count() -> int:
        return len(driver.cards)

    renderers = {"NVRTC": nvrtc, "PTX": ptx}
    return replace(CUDA, open=opened, count=count, probe=lambda: "", renderers=renderers)


BACKEND: Final = backend_of(Simulated((Card(), Card())))
