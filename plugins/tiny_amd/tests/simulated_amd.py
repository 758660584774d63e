"""AMD without a card: what the plugin compiles is executed by the emulator of RDNA3.

`BACKEND` has the plugin's own toolchain; memory and launches are the emulator's, without a driver.

    export PYTHONPATH=tests/support:plugins/tiny_amd/tests
    tinycore conformance AMD --register simulated_amd:BACKEND
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy
from emulation.memory import Region
from emulator.dispatch import Emulator

from tiny_amd import BACKEND as PLUGIN
from tiny_amd.code import CodeObject
from tinycore.errors import OutOfMemory
from tinycore.plugin import ProgramInfo

__all__ = ["BACKEND", "Card"]

PAGE: Final = 4096
FIRST: Final = 0x7000_0000_0000
CARD_BYTES: Final = 1 << 34
PREPARED: Final = ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1))
"""Bits of a descriptor's properties, and the scalar registers that each asks for, in order."""
KERNARGS: Final = 3


class CardMemory:
    """The card's memory: handles are addresses."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.lock = threading.Lock()
        self.next = FIRST
        self.used = 0

    def alloc(self, size: int) -> int:
        """Memory of so many bytes, with a page behind it that nothing may touch."""
        with self.lock:  # kernels are loaded by several threads
            if self.used + size > CARD_BYTES:
                raise OutOfMemory(
                    f"{size:,} bytes do not fit: {self.used:,} of {CARD_BYTES:,} are used"
                )
            address = self.next
            self.emulator.memory.add(Region(address, numpy.full(size, 0xCB, numpy.uint8), "memory"))
            self.used += size
            self.next += -(-size // PAGE) * PAGE + PAGE
            return address

    def free(self, handle: int) -> None:
        """Give memory back: what touches it from now on is a fault."""
        with self.lock:
            region = self.emulator.memory.region_at(handle)
            assert region is not None
            self.used -= region.data.nbytes
            self.emulator.memory.remove(handle)

    def _span(self, handle: int, size: int) -> memoryview:
        region = self.emulator.memory.region_at(handle)
        assert region is not None
        start = handle - region.address
        return memoryview(region.data)[start : start + size]  # type: ignore[arg-type]

    def write(self, dst: int, src: memoryview) -> None:
        """Copy from the host."""
        if src.nbytes:
            self._span(dst, src.nbytes)[:] = src

    def read(self, dst: memoryview, src: int) -> None:
        """Copy to the host."""
        if dst.nbytes:
            dst[:] = self._span(src, dst.nbytes)

    def offset(self, handle: int, size: int, start: int) -> int:
        """An address further on."""
        return handle + start


class Kernel:
    """A loaded kernel."""

    def __init__(self, card: Card, binary: bytes, info: ProgramInfo) -> None:
        self.card, self.info = card, info
        code = CodeObject(binary, info.name)
        self.address = card.allocator.alloc(code.size)
        placed = code.place(self.address)
        card.allocator.write(self.address, memoryview(placed))
        self.descriptor = code.descriptor(placed)
        self.start = self.address + code.descriptor_offset
        self.arguments = card.allocator.alloc(max(self.descriptor.kernarg_bytes, 64))

    def __call__(
        self, buffers: Sequence[int], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Run to the end; one launch at a time."""
        with self.card.lock:
            return self.run(buffers, values, wait)

    def run(self, buffers: Sequence[int], values: Sequence[int], wait: bool) -> float | None:
        """Write the arguments and run all groups."""
        packed = struct.pack(f"<{len(buffers)}Q{len(values)}q", *buffers, *values)
        assert len(packed) <= max(self.descriptor.kernarg_bytes, 64)
        self.card.allocator.write(self.arguments, memoryview(packed))
        user: list[int] = []
        for bit, words in PREPARED:
            if self.descriptor.properties >> bit & 1:
                pointer = [self.arguments & 0xFFFFFFFF, self.arguments >> 32]
                user += pointer if bit == KERNARGS else [0] * words
        begun = time.perf_counter()
        self.card.emulator.dispatch(self.start, self.info.grid, self.info.block, user)
        return time.perf_counter() - begun if wait else None


class Card:
    """A card that the emulator plays."""

    arch = "gfx1100"

    def __init__(self, index: int = 0, interface: str = "") -> None:
        self.emulator = Emulator()
        self.lock = threading.Lock()
        self.allocator = CardMemory(self.emulator)

    def load(self, binary: bytes, info: ProgramInfo) -> Kernel:
        """Put a kernel into memory."""
        return Kernel(self, binary, info)

    def synchronize(self) -> None:
        """Everything has been done."""

    def close(self) -> None:
        """Nothing to release."""


BACKEND: Final = replace(PLUGIN, open=Card, count=lambda: 2, probe=lambda: "")
