"""An open card, driven through an interface, and the toolchain that makes its programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tiny_amd.am.interface import open_card
from tiny_amd.arch import arch_of, limits_of
from tiny_amd.comgr import ComgrCompiler
from tiny_amd.faults import Faults
from tiny_amd.hardware_queue import HardwareQueue, OwnQueues, QueueType
from tiny_amd.hip import AmdHip
from tiny_amd.kfd import Event, Kfd, kfd_of_process
from tiny_amd.llvm import LlvmCompiler
from tiny_amd.memory import AmdAllocator
from tiny_amd.program import AmdProgram
from tiny_amd.queues import AqlQueue, Pm4Queue, SdmaQueue
from tiny_amd.render import AmdLlvm
from tiny_amd.scratch import scratch_bytes
from tiny_amd.settings import settings
from tiny_amd.topology import Card, cards
from tiny_hcq import ArgumentArena, HCQCompiled, HCQSignal
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import ProgramInfo, Toolchain

__all__ = ["AmdDevice", "toolchain", "toolchain_hip"]

DEFAULT_ARCH: Final = "gfx1100"
"""Target architecture if ARCH is not given and there is no card."""
COMPUTE_RING_BYTES: Final = 1 << 20
COPY_RING_BYTES: Final = 1 << 20
COMMAND_BYTES: Final = 1 << 20
"""Memory for PM4 that packets of AQL name."""
CLOCK_HZ: Final = 100e6
_SPIN_SECONDS: Final = 2e-4
"""Polling time of a wait before it sleeps until an interrupt, which takes some tens of
microseconds to wake."""
_SLEEP_MILLISECONDS: Final = 5


def toolchain(arch: str = "") -> Toolchain[AmdLlvm]:
    """LLVM IR compiled by llvmlite for an architecture. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    return Toolchain("LLVM", name, AmdLlvm(limits_of(arch_of(name))), LlvmCompiler(name))


def toolchain_hip(arch: str = "") -> Toolchain[AmdHip]:
    """HIP source compiled by COMGR for an architecture. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    return Toolchain("HIP", name, AmdHip(limits_of(arch_of(name))), ComgrCompiler(name))


class FaultReports(Protocol):
    """Faults of one card, and the event that ends work: of KFD, or of a driver of our own."""

    found: str
    """Description of the first fault; "" without one."""

    @property
    def done(self) -> Event:
        """Completion event, which a queue signals at the end of its work."""
        ...

    def wait(self, milliseconds: int) -> None:
        """Wait for the end of some work, or for a fault."""
        ...

    def poll(self) -> None:
        """Ask for a fault without waiting."""
        ...


@dataclass(frozen=True)
class Way:
    """A card as an interface reaches it."""

    driver: Kfd | OwnQueues
    card: Card
    faults: FaultReports
    maps_memory: bool = True
    """True if the process sees memory of the host that the card sees, at an address."""


def _by_kfd(index: int, undo: ExitStack) -> Way:
    """A card of the kernel's driver."""
    found = cards()
    if index >= len(found):
        names = ", ".join(f"AMD:{i} {card}" for i, card in enumerate(found))
        raise DeviceUnavailable(f"there is no AMD:{index}; there are: {names}")
    kfd = kfd_of_process()
    kfd.acquire(found[index])
    faults = Faults(kfd, found[index])
    undo.callback(faults.close)
    return Way(kfd, found[index], faults)


def _by_pci(index: int, undo: ExitStack) -> Way:
    """A card that is taken from the kernel's driver, and given back in the end."""
    driver = open_card(index)
    undo.callback(driver.close)
    faults = driver.open_faults()
    undo.callback(faults.close)
    return Way(driver, driver.card, faults)


def _by_usb(index: int, undo: ExitStack) -> Way:
    """A card behind a USB bridge."""
    from tiny_amd.usb.driver import open_usb_card  # noqa: PLC0415  only for who asks for it

    driver = open_usb_card(index)
    undo.callback(driver.close)
    faults = driver.open_faults()
    undo.callback(faults.close)
    return Way(driver, driver.card, faults, maps_memory=False)


_WAYS: Final[Mapping[str, Callable[[int, ExitStack], Way]]] = {
    "KFD": _by_kfd,
    "PCI": _by_pci,
    "USB": _by_usb,
}
"""Interfaces, by their names in DEV."""


class AmdDevice(HCQCompiled):
    """A card: a queue that computes, a queue that copies, and the events of both."""

    allocator: AmdAllocator
    ticks_per_second = CLOCK_HZ

    def __init__(self, index: int = 0, interface: str = "", *, aql: bool | None = None) -> None:
        """`aql` chooses queues of AQL packets; None: as the variable AMD_AQL says."""
        if interface not in ("", *_WAYS):
            known = ", ".join(f"DEV={name}+AMD" for name in _WAYS)
            raise DeviceUnavailable(f"AMD has no interface {interface!r}; there are {known}")
        with ExitStack() as undo:
            way = _WAYS[interface or "KFD"](index, undo)
            self.driver, self.faults = way.driver, way.faults
            self.maps_memory = way.maps_memory
            self.card = card = way.card
            self.arch = card.arch
            self.generation, self.wave = arch_of(card.arch).generation, arch_of(card.arch).wave
            self.uses_aql = settings.AMD_AQL if aql is None else aql
            kind = QueueType.AQL if self.uses_aql else QueueType.COMPUTE
            compute = HardwareQueue(way.driver, card, kind, COMPUTE_RING_BYTES)
            undo.callback(compute.close)
            copies = HardwareQueue(way.driver, card, QueueType.SDMA, COPY_RING_BYTES)
            undo.callback(copies.close)
            allocator = AmdAllocator(way.driver, card)
            allocator.device = self
            super().__init__(
                f"AMD:{index}" if index else "AMD",
                allocator,
                partial(AqlQueue if self.uses_aql else Pm4Queue, self, compute),
                partial(SdmaQueue, self, copies),
                peer_group=f"{type(way.driver).__name__} {id(way.driver)}",
            )
            if self.uses_aql:
                self.commands = ArgumentArena(
                    self,
                    COMMAND_BYTES,
                    purpose="submission with {} bytes of commands",
                    within_submission=True,
                )
                self.own(self.commands.memory)
            self._opened = undo.pop_all()

    # --- programs

    def load(self, binary: bytes, info: ProgramInfo) -> AmdProgram:
        """Put a code object into memory. Raises DeviceError for one that cannot run here."""
        return AmdProgram(self, binary, info)

    def scratch_size(self, bytes_per_thread: int) -> int:
        """Memory for all waves that a card may run at once."""
        return scratch_bytes(self.card, bytes_per_thread)

    # --- waiting

    def wait_for_events(self) -> None:
        """Sleep until some work ends, a few milliseconds at most."""
        self.faults.wait(_SLEEP_MILLISECONDS)

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Poll for a while, then sleep by an interrupt."""
        if waited_seconds < _SPIN_SECONDS:
            super().sleep(signal, value, waited_seconds)
        else:
            self.wait_for_events()

    def fault(self) -> str:
        """Fault reported by the interface; "" without one."""
        self.faults.poll()
        return self.faults.found

    def release(self) -> None:
        """Give queues and events back. The process keeps a card of KFD until it ends."""
        self._opened.close()
