"""Commands of a card's queues: compute by PM4 or by AQL, copies by SDMA.

A submission ends in an interrupt, so that whoever sleeps is woken. Commands that are submitted
again and again (graphs) lie in memory of their own, and the ring holds only a packet that names it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self, cast

from tiny_amd import aql, pm4, sdma
from tiny_amd.pm4 import Register
from tiny_amd.program import AmdProgram, split
from tiny_amd.windows import Ring
from tiny_hcq import HCQArgsState, HCQBuffer, HCQProgram, HWQueue, Number, SignalPlace
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tiny_amd.device import AmdDevice
    from tiny_amd.hardware_queue import HardwareQueue

__all__ = ["AqlQueue", "Pm4Queue", "SdmaQueue", "write_words"]

_WORD_BYTES: Final = 4


def as_words(numbers: Iterable[Number]) -> memoryview:
    """Numbers as words of 32 bits."""
    return memoryview(array("I", cast("Iterable[int]", numbers)))


def write_words(ring: Ring, place: int, words: memoryview) -> None:
    """Copy words into a ring from a place on, around its end."""
    place %= len(ring)
    first = min(len(words), len(ring) - place)
    ring[place : place + first] = words[:first]
    if first < len(words):
        ring[: len(words) - first] = words[first:]


class AmdQueue(HWQueue):
    """Command recording common to compute and copy queues."""

    FORMAT: ClassVar[Literal["I", "Q"]] = "I"

    def __init__(self, device: AmdDevice, hardware: HardwareQueue) -> None:
        super().__init__()
        self.device = device
        self.generation = device.generation
        self.hardware = hardware

    def view(self) -> memoryview:
        """The commands as they are now."""
        words = self.words
        return words if isinstance(words, memoryview) else memoryview(words)

    def buffers(self, words: memoryview) -> list[tuple[int, int]]:
        """Start and length of the indirect buffers that hold PM4."""
        return self.whole_commands(words, pm4.LARGEST_BUFFER, pm4.length_of)

    def submit_words(self) -> None:
        """Hand the commands to the hardware."""
        if not len(self.words):
            return
        with self.hardware.lock:
            self.write()

    def write(self) -> None:
        """Put the commands into the ring, and ring the doorbell."""
        raise NotImplementedError

    def sleep(self) -> None:
        """Wait while the ring has no room."""
        self.device.wait_for_events()


class Pm4Queue(AmdQueue):
    """Commands of the command processor, in a ring of PM4."""

    GRID_WORDS = True

    def __init__(self, device: AmdDevice, hardware: HardwareQueue) -> None:
        super().__init__(device, hardware)
        self.bound: HCQBuffer | None = None

    def __del__(self) -> None:
        if self.bound is not None:
            self.device.discard(self.bound, None)

    # --- commands

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the signal is at least at `value`."""
        return self.append(*pm4.wait_at_least(signal.address, value))

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal, and wake who sleeps."""
        done = self.device.faults.done
        self.append(*pm4.release(self.generation, signal.address, value))
        return self.append(*pm4.interrupt(self.generation, done.mailbox, done.id))

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the card's clock."""
        return self.append(*pm4.release_clock(signal.address + 8))

    def memory_barrier(self) -> Self:
        """Let launches before end, and see what they and others have written."""
        return self.append(*pm4.acquire(self.generation))

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Describe a kernel by registers, and launch it."""
        assert isinstance(program, AmdProgram)
        arguments = args_state.memory.address
        temporary, scratch = program.scratch_registers()
        registers: tuple[tuple[Register, tuple[Number, ...]], ...] = (
            (Register.PGM_LO, split(program.entry >> 8)),
            (Register.PGM_RSRC1, (program.rsrc1, program.rsrc2)),
            (self.generation.rsrc3, (program.rsrc3,)),
            (Register.TMPRING_SIZE, (temporary,)),
            (Register.DISPATCH_SCRATCH_BASE_LO, scratch),
            (Register.RESTART_X, (0, 0, 0)),
            (Register.USER_DATA_0, program.user_data(arguments)),
            (Register.RESOURCE_LIMITS, (0,)),
            (Register.START_X, (0, 0, 0, *block, 0, 0)),
        )
        for first, values in registers:
            if values:
                self.append(*pm4.set_registers(first, *values))
        return self.append(*pm4.dispatch(grid, self.device.wave))

    # --- submission

    def bind_words(self) -> memoryview | None:
        """The commands in memory that the card reads; none where the host has no such memory."""
        if not len(self.words) or not self.device.maps_memory:
            return None
        size = len(self.words) * _WORD_BYTES
        self.bound = self.device.allocator.alloc_visible(size)
        assert self.bound.view is not None
        words = self.bound.view.cast("I")
        words[:] = memoryview(self.words)
        return words

    def write(self) -> None:
        """Commands themselves, or packets that name those that are bound."""
        words = self.view()
        if self.bound is not None:
            base = self.bound.address
            words = as_words(
                word
                for start, count in self.buffers(words)
                for word in pm4.indirect_buffer(base + start * _WORD_BYTES, count)
            )
        ring, hardware = self.hardware.ring, self.hardware
        if len(words) >= len(ring):
            raise UnsupportedError(
                f"{len(words)} words of commands do not fit a ring of {len(ring)}: split the work"
            )
        written = hardware.written

        def has_room() -> bool:
            # Cards report how far they are as a place in the ring, or as a number that grows.
            return (written - hardware.consumed) % len(ring) + len(words) < len(ring)

        if not has_room():
            hardware.wait_for_room(has_room, self.sleep)
        write_words(ring, written, words)
        hardware.ring_doorbell(written + len(words), written + len(words))


class AqlQueue(Pm4Queue):
    """Commands in a ring of AQL: launches are packets of their own, all else is PM4 between them.

    The words are PM4 with the packets of launches among them. At submission each run of PM4 lies in
    memory, and a packet names it.
    """

    def __init__(self, device: AmdDevice, hardware: HardwareQueue) -> None:
        super().__init__(device, hardware)
        self.launches: list[int] = []
        """Offsets, in words, of dispatch packets."""

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        """Launch a kernel by a packet."""
        assert isinstance(program, AmdProgram)
        self.launches.append(len(self.words))
        return self.append(
            *aql.dispatch(
                grid,
                program.info.block,
                program.private_bytes,
                program.shared_bytes,
                program.descriptor_address,
                args_state.memory.address,
            )
        )

    def packets(self, address: int) -> list[memoryview]:
        """Packets for the ring; the words that they name lie at an address."""
        found, begin, words = [], 0, self.view()
        for at in [*self.launches, len(words)]:
            for start, count in self.buffers(words[begin:at]):
                place = address + (begin + start) * _WORD_BYTES
                found.append(as_words(aql.commands(place, count)))
            if at < len(words):
                found.append(words[at : at + aql.PACKET_WORDS])
            begin = at + aql.PACKET_WORDS
        return found

    def write(self) -> None:
        """Packets one by one; the PM4 of a submission that is not bound goes to memory first."""
        hardware, slots = self.hardware, len(self.hardware.ring) // aql.PACKET_WORDS
        bound = self.bound.address if self.bound is not None else self.lend()
        for packet in self.packets(bound):
            written = hardware.written

            def has_room(written: int = written) -> bool:
                return written - hardware.consumed < slots

            if not has_room():
                hardware.wait_for_room(has_room, self.sleep)
            place = written % slots * aql.PACKET_WORDS
            hardware.ring[place + 1 : place + aql.PACKET_WORDS] = packet[1:]
            hardware.ring[place : place + 1] = packet[
                :1
            ]  # the header last: it makes the packet valid
            hardware.ring_doorbell(written + 1, written)

    def lend(self) -> int:
        """The address of a copy of the words, which lasts until they are executed."""
        memory = self.device.commands.take(len(self.words) * _WORD_BYTES)
        assert memory.view is not None
        memory.view.cast("I")[:] = self.view()
        return memory.address


class SdmaQueue(AmdQueue):
    """Commands of an engine that copies."""

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        """Go on when the signal is at least at `value`."""
        return self.append(*sdma.wait_at_least(signal.address, value))

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        """Set the signal, and wake who sleeps."""
        done = self.device.faults.done
        bits = self.generation.fence
        self.append(*sdma.fence(signal.address, value, bits))
        return self.append(*sdma.interrupt(done.mailbox, done.id, bits))

    def timestamp(self, signal: SignalPlace) -> Self:
        """Note the card's clock."""
        return self.append(*sdma.clock(signal.address + 8))

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        """Copy bytes."""
        return self.append(*sdma.copy(dst, src, size, self.generation.largest_copy))

    def write(self) -> None:
        """Packets one by one where the ring ends, else all at once. Pointers count bytes."""
        words, begin = self.view(), 0
        place = self.hardware.written // _WORD_BYTES % len(self.hardware.ring)
        if place + len(words) <= len(self.hardware.ring) and len(words) < len(self.hardware.ring):
            self.put(words)
            return
        while begin < len(words):
            length = sdma.LENGTHS[sdma.Operation(words[begin] & 0xFF)]
            self.put(words[begin : begin + length])
            begin += length

    def put(self, words: memoryview) -> None:
        """Write words side by side, at the start of the ring when its end is too near."""
        hardware, size = self.hardware, len(self.hardware.ring)
        written = hardware.written // _WORD_BYTES
        left = size - written % size
        skipped = left if left < len(words) else 0

        def has_room() -> bool:
            used = (written - hardware.consumed // _WORD_BYTES) % size
            return used + skipped + len(words) < size

        if not has_room():
            hardware.wait_for_room(has_room, self.sleep)
        if skipped:
            write_words(hardware.ring, written, as_words([0] * skipped))
        write_words(hardware.ring, written + skipped, words)
        reached = (written + skipped + len(words)) * _WORD_BYTES
        hardware.ring_doorbell(reached, reached)
