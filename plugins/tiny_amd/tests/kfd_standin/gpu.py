"""One card: what it addresses, its clock, and the emulator that runs its kernels."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy
from emulation.faults import IllegalAddress
from emulation.memory import GlobalMemory, Region
from emulator.cdna3 import Cdna3Decoder
from emulator.decode import Decoder
from emulator.dispatch import Descriptor, Emulator
from emulator.rdna2 import Rdna2Decoder
from emulator.rdna4 import Rdna4Decoder

if TYPE_CHECKING:
    from kfd_standin.cards import CardFacts

__all__ = ["Dispatch", "Gpu", "MemoryFault", "Mistake"]

DECODERS: Final = {9: Cdna3Decoder, 10: Rdna2Decoder, 11: Decoder, 12: Rdna4Decoder}
"""Instruction sets, by the first number of a card's version."""
WAVES_OF_32: Final = 1 << 10
Array = numpy.ndarray[Any, Any]
Dims = tuple[int, int, int]


class Mistake(AssertionError):
    """A mistake that is undefined on a card, or that the kernel would not notice."""


class MemoryFault(Exception):
    """An access that the page table does not allow."""

    def __init__(self, address: int, action: str) -> None:
        super().__init__(f"{action} at {address:#x}")
        self.address = address


@dataclass
class Dispatch:
    """A launch, as registers or a packet describe it."""

    entry: int
    groups: Dims
    group: Dims
    rsrc1: int
    rsrc2: int
    user_data: list[int]
    shared_bytes: int
    private_bytes: int
    rsrc3: int = 0


@dataclass
class Gpu:
    """A card."""

    facts: CardFacts
    gpu_id: int
    node: int
    minor: int
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    """Memory that it addresses: its page table."""
    used_bytes: int = 0
    drm_file: int | None = None
    """The file whose VM this process has acquired."""
    is_lost: bool = False
    launched: int = 0
    doorbells: Array | None = None
    _ticks: int = 0
    _code: dict[int, bytes] = field(default_factory=dict)
    _fetched: set[int] = field(default_factory=set)
    """Entry points of what instruction caches may hold."""
    _decoded: dict[int, range] = field(default_factory=dict)
    """Memory of the code that is decoded, by entry points."""

    def __post_init__(self) -> None:
        major = self.facts.version // 10000
        self.emulator = Emulator(self.memory, DECODERS[major])

    def clock(self) -> int:
        """100 MHz, never the same twice."""
        self._ticks = max(self._ticks + 1, time.perf_counter_ns() // 10)
        return self._ticks

    # --- memory

    def span(self, address: int, size: int, action: str) -> Array:
        """Bytes in one allocation. Raises MemoryFault."""
        region = self.memory.region_at(address)
        if region is None:
            raise MemoryFault(address, action)
        start = address - region.address
        if start + size > region.data.nbytes:
            raise MemoryFault(region.address + region.data.nbytes, action)
        found: Array = region.data[start : start + size]
        return found

    def words(self, address: int, count: int, action: str = "read") -> Array:
        """Words of 32 bits."""
        if address % 4:
            raise Mistake(f"words at {address:#x}, which is no multiple of 4")
        found: Array = self.span(address, count * 4, action).view(numpy.uint32)
        return found

    def load(self, address: int) -> int:
        """32 bits."""
        return int(self.words(address, 1)[0])

    def store(self, address: int, value: int, width: int) -> None:
        """32 or 64 bits."""
        if address % width:
            raise Mistake(f"{width} bytes are written at {address:#x}, which is no multiple")
        self.span(address, width, "write")[:] = list(value.to_bytes(width, "little"))

    # --- kernels

    def forget_code(self) -> None:
        """Invalidate the instruction caches: what is launched from now on is fetched anew."""
        self._fetched.clear()

    def run(self, dispatch: Dispatch) -> None:
        """Run a kernel to its end. Raises MemoryFault, and the emulator's faults."""
        self.launched += 1
        self.check_code(dispatch.entry)
        found = Descriptor(
            entry=dispatch.entry,
            shared_bytes=dispatch.shared_bytes,
            private_bytes=dispatch.private_bytes,
            kernarg_bytes=0,
            properties=WAVES_OF_32 if self.facts.wave == 32 else 0,
            rsrc1=dispatch.rsrc1,
            rsrc2=dispatch.rsrc2,
            rsrc3=dispatch.rsrc3,
        )
        try:
            self.emulator.launch(found, dispatch.groups, dispatch.group, dispatch.user_data)
        except IllegalAddress as fault:
            at = re.search(r"bytes at (0x[0-9a-f]+)", str(fault))
            if at is None:  # of LDS or scratch, which no page table knows
                raise
            raise MemoryFault(int(at[1], 16), str(fault)) from fault

    def check_code(self, entry: int) -> None:
        """Decode anew what has changed, which needs the instruction caches to be invalidated."""
        region = self.memory.region_at(entry)
        if region is None:
            raise MemoryFault(entry, "fetch")
        now = region.data.tobytes()
        is_held = entry in self._fetched
        self._fetched.add(entry)
        if self._code.get(entry) == now and entry in self._decoded:
            return
        if is_held and self._code.get(entry, now) != now:
            raise Mistake(f"code at {entry:#x} has changed, and instruction caches are not told")
        self.emulator.forget()
        self._code[entry] = now
        memory = range(region.address, region.address + len(now))
        apart = {  # others' code may have lain here, and may come back as it was
            other: span
            for other, span in self._decoded.items()
            if span.stop <= memory.start or memory.stop <= span.start
        }
        self._decoded = {**apart, entry: memory}


def region_of(address: int, data: Array, name: str) -> Region:
    """An allocation for a page table."""
    return Region(address, data, name)
