"""An open card, driven through KFD, and the toolchain that makes its programs."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Final

from tiny_amd.arch import arch_of, limits_of
from tiny_amd.faults import Faults, Submissions
from tiny_amd.hardware_queue import HardwareQueue, QueueType
from tiny_amd.kfd import kfd_of_process
from tiny_amd.llvm import LlvmCompiler
from tiny_amd.memory import AmdAllocator
from tiny_amd.program import AmdProgram
from tiny_amd.queues import AqlQueue, CommandRing, Pm4Queue, SdmaQueue
from tiny_amd.render import AmdLlvm
from tiny_amd.scratch import Scratch, scratch_bytes
from tiny_amd.topology import cards
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import HCQBuffer, HCQCompiled, HCQSignal, ProgramInfo, Toolchain

__all__ = ["AmdDevice", "toolchain"]

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
        self.kfd = kfd = kfd_of_process()
        self.submissions = Submissions()
        self.scratch: Scratch | None = None
        self._own: set[HCQBuffer] = set()
        kfd.acquire(card)
        with ExitStack() as undo:
            self.faults = Faults(kfd, card)
            undo.callback(self.faults.close)
            self.uses_aql = os.environ.get("AMD_AQL", "0") == "1" if aql is None else aql
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
                self.commands = CommandRing(self, COMMAND_BYTES)
                self._own.add(self.commands.memory)
            self._opened = undo.pop_all()

    # --- programs

    def load(self, binary: bytes, info: ProgramInfo) -> AmdProgram:
        """Put a code object into memory. Raises DeviceError for one that cannot run here."""
        self.reap()
        return AmdProgram(self, binary, info)

    def own_memory(self, size: int) -> HCQBuffer:
        """Memory for code or scratch, given back with the device at the latest."""
        buffer = self.allocator.alloc(size)
        self._own.add(buffer)
        return buffer

    def give_back(self, buffer: HCQBuffer) -> None:
        """Free memory of the device's own, which nothing under way uses, some time later."""
        if buffer in self._own:
            self._own.remove(buffer)
            self.discard(buffer, None)

    def prepare_scratch(self, private_bytes: int) -> None:
        """Have scratch for a kernel that spills so many bytes."""
        needed = scratch_bytes(self.card, private_bytes)
        with self.lock:
            if needed > (self.scratch.size if self.scratch is not None else 0):
                self.synchronize()
                self.scratch = Scratch(self, needed)

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
        """Fault reported by KFD, with the kernels under way; "" without one."""
        self.faults.poll()
        if not self.faults.found:
            return ""
        running = self.submissions.under_way(self.timeline_signal.value)
        return f"{self.faults.found}. What ran: {running}"

    def release(self) -> None:
        """Give queues, events and memory back. The process keeps the card until it ends."""
        self.scratch = None
        while self._own:
            self.allocator.release(self._own.pop())
        self._opened.close()
