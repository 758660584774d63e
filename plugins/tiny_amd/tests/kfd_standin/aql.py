"""Queues of AQL packets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.dispatch import Descriptor

from kfd_standin.gpu import Array, Dispatch, Gpu, Mistake
from kfd_standin.pm4 import Processor, check
from kfd_standin.queues import Ring, RingPlace

if TYPE_CHECKING:
    from kfd_standin.machine import Machine

__all__ = ["AqlRing"]

VENDOR, INVALID, DISPATCH = 0, 1, 2
WORDS = 16
SYSTEM = 2
PREPARED = ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1))
"""Bits of a descriptor's properties, and the scalar registers that each asks for, in order."""
KERNARGS = 3


class AqlRing(Ring):
    """A queue of packets of 64 bytes. Pointers count packets."""

    UNIT = 64

    def __init__(self, machine: Machine, gpu: Gpu, place: RingPlace) -> None:
        super().__init__(machine, gpu, place)
        self.processor = Processor(machine, gpu)

    def doorbell(self, value: int) -> int:
        """It holds the number of the last packet."""
        return (value + 1) % 2**64

    def report(self) -> None:
        """The number of packets read: never a place in the ring."""
        self.gpu.store(self.place.read_pointer, self.read, 8)

    def step(self) -> bool:
        """Execute one packet, or one of the PM4 packets that it names."""
        if self.processor.frames:
            return self.processor.step_buffer() and self.end()
        if self.read == self.written:
            return False
        packet = self.take(WORDS)
        words = [int(word) for word in packet]
        kind, header = words[0] & 0xFF, words[0] & 0xFFFF
        check(header >> 8 & 1 == 1, "a packet that does not wait for those before:", words)
        if kind == VENDOR:
            return self.commands(packet) and self.end()
        if kind == DISPATCH:
            check(header >> 9 & 15 == (SYSTEM | SYSTEM << 2), "scopes of a launch are", words)
            self.launch(words)
            return self.end()
        raise Mistake(f"AQL packet of type {kind}: {[hex(word) for word in words]}")

    def end(self) -> bool:
        """A packet that has ended is marked as invalid, and counted."""
        if not self.processor.frames:
            self.processor.flush()
            begin = self.read * WORDS % len(self.ring)
            self.ring[begin] = INVALID
            self.advance(WORDS)
        return True

    def commands(self, packet: Array) -> bool:
        """An indirect buffer of PM4 within a packet."""
        words = [int(word) for word in packet]
        check(words[0] >> 16 == 1 and words[5] == 10, "a packet of AMD's own is", words)
        return self.processor.execute(packet[1:5])

    def launch(self, words: list[int]) -> None:
        """A kernel by its descriptor."""
        descriptor = Descriptor.read(self.gpu.memory, words[8] | words[9] << 32)
        group = (words[1] & 0xFFFF, words[1] >> 16, words[2] & 0xFFFF)
        items = (words[3], words[4], words[5])
        check(
            all(i % g == 0 for i, g in zip(items, group, strict=True)), "a part of a group", words
        )
        check(words[7] >= descriptor.shared_bytes, "less LDS than the kernel has:", words)
        check(words[6] == descriptor.private_bytes, "another scratch than the kernel's:", words)
        user: list[int] = []
        for bit, count in PREPARED:
            if descriptor.properties >> bit & 1:
                user += words[10:12] if bit == KERNARGS else [0xCBCBCBCB] * count
        x, y, z = (i // g for i, g in zip(items, group, strict=True))
        self.processor.is_fresh = True  # it acquires by itself
        self.gpu.forget_code()
        self.processor.begin(
            Dispatch(
                entry=descriptor.entry,
                groups=(x, y, z),
                group=group,
                rsrc1=descriptor.rsrc1,
                rsrc2=descriptor.rsrc2,
                rsrc3=descriptor.rsrc3,
                user_data=user,
                shared_bytes=words[7],
                private_bytes=words[6],
            )
        )
