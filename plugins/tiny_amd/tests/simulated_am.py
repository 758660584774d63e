"""AMD cards without a driver, as `DEV=PCI+AMD` has them: their registers are played by a stand-in.

export PYTHONPATH=tests/support:plugins/tiny_amd/tests
tinycore conformance AMD --level 1 --register simulated_am:BACKEND
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from pci_standin.machine import PciMachine

from tiny_amd import BACKEND as PLUGIN
from tiny_amd.am.cards import CONSENT
from tiny_amd.device import AmdDevice
from tiny_hcq import use_system
from tinycore.plugin import Backend, Interface

__all__ = ["BACKEND", "backend_of", "opened"]


def opened(machine: PciMachine, index: int = 0, interface: str = "PCI") -> AmdDevice:
    """A card of a stand-in, opened as the plugin opens one that the user has named."""
    named = ",".join(machine.address(number) for number in range(len(machine.gpus)))
    with use_system(machine), patch.dict(os.environ, {CONSENT: named}):
        return AmdDevice(index, interface, aql=False)


def backend_of(machine: PciMachine) -> Backend:
    """The plugin's backend on a stand-in."""
    return replace(
        PLUGIN,
        open=lambda index, interface: opened(machine, index, interface or "PCI"),
        count=lambda: len(machine.gpus),
        probe=lambda: "",
        interfaces={"PCI": Interface()},
    )


BACKEND: Final = backend_of(PciMachine(2))
