"""NV without a card: the kernel's driver is a stand-in, whose cards the executor of PTX plays.

`BACKEND` is the plugin's own but for the operating system that it finds, and for the assembler: a
cubin holds its PTX where machine code would be (cubin.py). So everything else is what a card would
have: requests, address spaces, pushbuffers, launch descriptors, faults. `HOPPER_580` is that of a
Hopper on branch 580 of NVIDIA's driver, and so for each card and branch; `HOPPER_580_OPTIONS` is
the same with every option of `tiny_nv.nvk.options` on.

    export PYTHONPATH=plugins/tiny_nv/tests:tests/support
    tinycore conformance NV --register simulated_nv:HOPPER_580
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cubin import assemble
from rm_standin import Machine
from rm_standin.cards import AD102, GA102, GB202, H200, CardFacts

from tiny_hcq import HCQSignal, use_system
from tiny_nv import NV
from tiny_nv.arch import arch_of, limits_of, number_of
from tiny_nv.nvk.device import NvDevice
from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import Ptx
from tiny_nv.render import CudaC
from tinycore.plugin import Backend, Interface, Toolchain

__all__ = [
    "BACKEND",
    "CARDS",
    "MACHINE",
    "NAMES",
    "OPTIONS",
    "VERSIONS",
    "backend_named",
    "backend_of",
    "opened",
]

CARDS: Final[Mapping[str, CardFacts]] = {
    "AMPERE": GA102,
    "ADA": AD102,
    "HOPPER": H200,
    "BLACKWELL": GB202,
}
VERSIONS: Final[Mapping[str, str]] = {
    "570": "570.144",
    "580": "580.159.03",
    "590": "590.48.01",
    "610": "610.43.03",
}
"""A version of each branch of the driver whose structures differ; each of them drives all CARDS."""
OPTIONS: Final[Mapping[str, str]] = {
    "NV_COPY_ENGINE": "2",
    "NV_INLINE_DESCRIPTORS": "1",
    "NV_SLEEP": "1",
}
"""Environment that chooses every option."""


class Simulated(NvDevice):
    """A card of a stand-in, which runs while somebody waits for it."""

    machine: Machine

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Let cards run; where waits sleep, only what polls the event does."""
        if self.event is None:
            self.machine.pump()
        if signal.value < value:
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


def backend_of(machine: Machine, options: Mapping[str, str] | None = None) -> Backend:
    """The plugin's backend on a stand-in, with options that are chosen while it opens a card."""

    def open_card(index: int, interface: str) -> NvDevice:
        with patch.dict(os.environ, options or {}):
            return opened(machine, index, interface)

    renderers = {"PTX": ptx, "NVRTC": nvrtc}
    return replace(
        NV,
        open=open_card,
        count=lambda: len(machine.gpus),
        probe=lambda: "",
        interfaces={"NVK": Interface()},
        renderers=renderers,
    )


NAMES: Final = (
    *(f"{card}_{branch}" for card in CARDS for branch in VERSIONS),
    *("AMPERE_570_OPTIONS", "HOPPER_580_OPTIONS", "BLACKWELL_610_OPTIONS"),
)
"""Backends by card and branch; with every option on, one card of each form of launch descriptors.
The core's tests know them as stand-ins (tests/standins.py)."""


def backend_named(name: str) -> Backend:
    """The backend of a card and a branch, CARD_BRANCH, on a machine of its own with two cards."""
    card, branch, *options = name.split("_")
    facts = CARDS[card]
    machine = Machine((facts, facts), version=VERSIONS[branch])
    return backend_of(machine, OPTIONS if options == ["OPTIONS"] else None)


def __getattr__(name: str) -> Backend:
    """A backend by the name of its card and branch, made when it is asked for."""
    if name.partition("_")[0] not in CARDS:
        raise AttributeError(name)
    made = globals()[name] = backend_named(name)
    return made


MACHINE: Final = Machine((H200, H200))
BACKEND: Final = backend_of(MACHINE)
