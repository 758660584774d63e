"""An open card, driven through KFD, and the toolchain that makes its programs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from tiny_amd.arch import arch_of, limits_of
from tiny_amd.comgr import ComgrCompiler
from tiny_amd.faults import Faults
from tiny_amd.hardware_queue import HardwareQueue, QueueType
from tiny_amd.hip import AmdHip
from tiny_amd.kfd import kfd_of_process
from tiny_amd.llvm import LlvmCompiler
from tiny_amd.memory import AmdAllocator
from tiny_amd.program import AmdProgram
from tiny_amd.queues import AqlQueue, Pm4Queue, SdmaQueue
from tiny_amd.render import AmdLlvm
from tiny_amd.scratch import scratch_bytes
from tiny_amd.settings import settings
from tiny_amd.topology import cards
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import ArgumentArena, HCQCompiled, HCQSignal, ProgramInfo, Toolchain

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
    limits = replace(limits_of(arch_of(name)), matrix=())
    return Toolchain("HIP", name, AmdHip(limits), ComgrCompiler(name))


class AmdDevice(HCQCompiled):
    """A card: a queue that computes, a queue that copies, and the events of both."""

    allocator: AmdAllocator
    ticks_per_second = CLOCK_HZ

    def __init__(self, index: int = 0, interface: str = "", *, aql: bool | None = None) -> None:
        """`aql` chooses queues of AQL packets; None: as the variable AMD_AQL says."""
        if interface not in ("", "KFD"):
            raise DeviceUnavailable(
                f"AMD has no interface {interface!r}: DEV=KFD+AMD is the one there is"
            )
        found = cards()
        if index >= len(found):
            names = ", ".join(f"AMD:{i} {card}" for i, card in enumerate(found))
            raise DeviceUnavailable(f"there is no AMD:{index}; there are: {names}")
        self.card = card = found[index]
        self.arch = card.arch
        self.generation, self.wave = arch_of(card.arch).generation, arch_of(card.arch).wave
        self.kfd = kfd = kfd_of_process()
        kfd.acquire(card)
        with ExitStack() as undo:
            self.faults = Faults(kfd, card)
            undo.callback(self.faults.close)
            self.uses_aql = settings.AMD_AQL if aql is None else aql
            kind = QueueType.AQL if self.uses_aql else QueueType.COMPUTE
            compute = HardwareQueue(kfd, card, kind, COMPUTE_RING_BYTES)
            undo.callback(compute.close)
            copies = HardwareQueue(kfd, card, QueueType.SDMA, COPY_RING_BYTES)
            undo.callback(copies.close)
            allocator = AmdAllocator(kfd, card)
            allocator.device = self
            super().__init__(
                f"AMD:{index}" if index else "AMD",
                allocator,
                partial(AqlQueue if self.uses_aql else Pm4Queue, self, compute),
                partial(SdmaQueue, self, copies),
                peer_group=f"KFD {id(kfd)}",
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
        """Fault reported by KFD; "" without one."""
        self.faults.poll()
        return self.faults.found

    def release(self) -> None:
        """Give queues and events back. The process keeps the card until it ends."""
        self._opened.close()
