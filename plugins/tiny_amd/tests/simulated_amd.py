"""AMD without a card: the kernel's driver is a stand-in, whose cards an emulator plays.

`BACKEND` is the plugin's own but for the operating system that it finds. So everything else is what
a card would have: queues of PM4 and SDMA packets, memory, events, faults. `BACKEND_AQL` has
queues of AQL packets; those of `BACKEND` are as AMD_AQL says. `BACKEND_CDNA3_HIP` and
`BACKEND_RDNA4_HIP` have their HIP compiled by clang in the place of COMGR.

    export PYTHONPATH=tests/support:plugins/tiny_amd/tests
    tinycore conformance AMD --register simulated_amd:BACKEND
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hip_by_clang import of_hip_by_clang
from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI21, NAVI31, NAVI48

from tiny_amd import BACKEND as PLUGIN
from tiny_amd.device import AmdDevice
from tiny_amd.kfd import Kfd, kfd_of_process
from tiny_hcq import use_system
from tinycore.plugin import Backend, Interface

__all__ = [
    "BACKEND",
    "BACKEND_AQL",
    "BACKEND_CDNA3",
    "BACKEND_CDNA3_AQL",
    "BACKEND_CDNA3_HIP",
    "BACKEND_RDNA2",
    "BACKEND_RDNA4",
    "BACKEND_RDNA4_HIP",
    "backend_of",
    "opened",
]


def opened(
    machine: Machine, index: int = 0, interface: str = "", *, aql: bool | None = None
) -> AmdDevice:
    """A card of a stand-in, opened as the plugin opens one."""
    with use_system(machine):
        limit_accesses(machine, kfd_of_process())
        return AmdDevice(index, interface, aql=aql)


def limit_accesses(machine: Machine, kfd: Kfd) -> None:
    """Let cards touch the bytes that were asked for, and not the rest of the last page."""
    allocate = kfd.allocate
    if vars(kfd).get("allocate"):
        return

    def exactly(card: Any, size: int, *arguments: Any, **options: Any) -> Any:
        machine.exact.size = size
        try:
            return allocate(card, size, *arguments, **options)
        finally:
            machine.exact.size = 0

    kfd.allocate = exactly  # type: ignore[method-assign]


def backend_of(machine: Machine, *, aql: bool | None = None) -> Backend:
    """The plugin's backend on a stand-in."""
    return replace(
        PLUGIN,
        open=lambda index, interface: opened(machine, index, interface, aql=aql),
        count=lambda: len(machine.gpus),
        probe=lambda: "",
        interfaces={"KFD": Interface()},
    )


MACHINE: Final = Machine((NAVI31, NAVI31))
BACKEND: Final = backend_of(MACHINE)
BACKEND_AQL: Final = backend_of(MACHINE, aql=True)
BACKEND_RDNA2: Final = backend_of(Machine((NAVI21, NAVI21)))
BACKEND_RDNA4: Final = backend_of(Machine((NAVI48, NAVI48)))
_INSTINCT: Final = Machine((MI300, MI300))
BACKEND_CDNA3: Final = backend_of(_INSTINCT)
BACKEND_CDNA3_AQL: Final = backend_of(_INSTINCT, aql=True)
BACKEND_CDNA3_HIP: Final = of_hip_by_clang(BACKEND_CDNA3)
BACKEND_RDNA4_HIP: Final = of_hip_by_clang(BACKEND_RDNA4)
