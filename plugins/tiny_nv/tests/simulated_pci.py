"""NV without a card and without a kernel driver: its registers and its GSP are a stand-in.

`BACKEND` is the plugin's own but for the operating system that it finds, and for the assembler, as
in simulated_nv.py. The card is taken, its processor started, and given back, as a card would be.

    export PYTHONPATH=plugins/tiny_nv/tests:tests/support
    tinycore conformance NV --register simulated_pci:BACKEND
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from nv_pci_standin import ADDRESS, Chip, PciMachine
from simulated_nv import nvrtc, ptx

from tiny_hcq import HCQSignal, use_system
from tiny_nv import NV
from tiny_nv.nvk.device import NvDevice
from tinycore.plugin import Backend, Interface

__all__ = ["BACKEND", "BACKEND_ADA", "BACKEND_BLACKWELL", "BACKEND_HOPPER", "backend_of", "opened"]


class Simulated(NvDevice):
    """A card of a stand-in, which runs while somebody waits for it."""

    machine: PciMachine

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Let the card run."""
        self.machine.pump()
        if signal.value < value:
            super().sleep(signal, value, waited_seconds)

    def rest(self) -> None:
        """Let the card run."""
        self.machine.pump()
        super().rest()


def opened(machine: PciMachine, index: int = 0) -> NvDevice:
    """A card of a stand-in, which the user has named."""
    kind = type("Simulated", (Simulated,), {"machine": machine})
    before = os.environ.get("NV_PCI_TAKE")
    os.environ["NV_PCI_TAKE"] = ADDRESS
    try:
        with use_system(machine):
            found: NvDevice = kind(index, "PCI")
            return found
    finally:
        del os.environ["NV_PCI_TAKE"]
        if before is not None:
            os.environ["NV_PCI_TAKE"] = before


def backend_of(machine: PciMachine) -> Backend:
    """The plugin's backend on a stand-in."""
    return replace(
        NV,
        open=lambda index, interface: opened(machine, index),
        count=lambda: len(machine.chips),
        probe=lambda: "",
        interfaces={"PCI": Interface()},
        renderers={"PTX": ptx, "NVRTC": nvrtc},
    )


BACKEND: Final = backend_of(PciMachine(Chip(0x17)))
BACKEND_ADA: Final = backend_of(PciMachine(Chip(0x19, driver="vfio-pci", iommu="DMA")))
BACKEND_HOPPER: Final = backend_of(PciMachine(Chip(0x18)))
BACKEND_BLACKWELL: Final = backend_of(PciMachine(Chip(0x1B, driver="vfio-pci", iommu="DMA")))
