"""Queues of a card as KFD makes them: memory exactly as large as kernels check, and doorbells.

Linux, drivers/gpu/drm/amd/amdkfd/kfd_queue.c: `kfd_queue_acquire_buffers` refuses other sizes of
the end-of-pipe buffer, the area for saved waves and the pages of the pointers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Any, Final, Protocol

from tiny_amd.arch import Arch, arch_of
from tiny_amd.kfd import DOORBELL_BYTES, OF_HOST, ON_CARD, PAGE, Allocation, Kfd, Kind
from tiny_amd.topology import Card
from tiny_amd.windows import pointer_at, ring_of
from tiny_hcq import bytes_at
from tinycore.config import settings
from tinycore.errors import DeviceError
from tinycore.plugin import lock

__all__ = ["HardwareQueue", "Memory", "OwnQueue", "OwnQueues", "QueueType", "SavedWaves"]

EOP_BYTES: Final = 4096
WRITE_POINTER: Final = 0x38
READ_POINTER: Final = 0x80
"""Places of the pointers in their page: of `write_dispatch_id` and `read_dispatch_id` in HSA's
amd_queue_t, where the hardware looks for them in queues of AQL packets."""
SHARED_BYTES_PER_UNIT: Final = 0x10000
SCALAR_BYTES_PER_UNIT: Final = 0x4000
MODE_BYTES_PER_UNIT: Final = 0x1000
HEADER_BYTES: Final = 40
_PRIORITY: Final = 7
_PERCENTAGE: Final = 100


class QueueType(IntEnum):
    """Command format of a queue: PM4, SDMA or AQL."""

    COMPUTE = 0
    SDMA = 1
    AQL = 2


class Memory(Protocol):
    """Memory of a driver: KFD's, or one of our own."""

    @property
    def shared(self) -> dict[int, Allocation]:
        """Memory that all cards address, by address."""
        ...

    def allocate(self, card: Card, size: int, kind: Kind, *, is_shared: bool = False) -> Allocation:
        """Memory that a card addresses. Raises OutOfMemory and DeviceError."""
        ...

    def free(self, allocation: Allocation) -> None:
        """Give memory back."""
        ...

    def map(self, allocation: Allocation, gpu_id: int) -> None:
        """Let a card address memory. Raises DeviceError and UnsupportedError."""
        ...

    def unmap(self, allocation: Allocation, gpu_id: int) -> None:
        """Take `map` back."""
        ...


class OwnQueue(Protocol):
    """A queue that is not the kernel's."""

    @property
    def doorbell(self) -> Any:
        """Array of 64-bit words, of which the first is the doorbell."""
        ...

    def stop(self) -> None:
        """Take it from its engine."""
        ...


class OwnQueues(Memory, Protocol):
    """A driver that makes queues by itself."""

    def open_queue(
        self, kind: QueueType, ring: int, size: int, write_pointer: int, read_pointer: int
    ) -> OwnQueue:
        """A queue whose ring and pointers lie at addresses of the card. Raises DeviceError."""
        ...


@dataclass(frozen=True)
class SavedWaves:
    """Sizes of the context save area (CWSR) of a queue's waves, per partition, in bytes."""

    control_stack: int
    total: int
    debug: int

    @classmethod
    def of(cls, card: Card, arch: Arch) -> SavedWaves:
        """As `kfd_queue_ctx_save_restore_size` computes it."""
        generation = arch.generation
        waves = card.units * generation.waves_per_unit
        if generation.waves_per_engine:
            waves = min(waves, card.engines * generation.waves_per_engine)
        control_stack = align(HEADER_BYTES + waves * generation.control_bytes + 8, PAGE)
        if generation.most_control_bytes:
            control_stack = min(control_stack, generation.most_control_bytes)
        per_unit = arch.vector_bytes_per_unit + SCALAR_BYTES_PER_UNIT
        per_unit += SHARED_BYTES_PER_UNIT + MODE_BYTES_PER_UNIT
        return cls(control_stack, control_stack + align(card.units * per_unit, PAGE), waves * 32)

    def allocation(self, partitions: int) -> int:
        """Bytes of the memory for all partitions."""
        return align((self.total + align(self.debug, 64)) * partitions, PAGE)


def align(size: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-size // unit) * unit


class HardwareQueue:
    """A ring in memory that a card reads, its two pointers and its doorbell."""

    def __init__(
        self, driver: Kfd | OwnQueues, card: Card, kind: QueueType, ring_bytes: int
    ) -> None:
        self.driver, self.card, self.kind = driver, card, kind
        self.size = ring_bytes
        self.lock = lock()
        self._doorbell: Any = None
        self._memory: list[Allocation] = []
        self._id: int | None = None
        self._own: OwnQueue | None = None
        self._doorbells = (0, 0)
        with ExitStack() as undo:
            undo.callback(self.close)
            ring, pointers = self._allocate(ring_bytes), self._allocate(PAGE)
            self.ring = ring_of(ring, ring_bytes)
            page = pointers.window or bytes_at(pointers.address, PAGE)
            page[0:PAGE] = bytes(PAGE)
            self._write = pointer_at(pointers, WRITE_POINTER, is_ours=True)
            self._read = pointer_at(pointers, READ_POINTER, is_ours=False)
            if isinstance(driver, Kfd):
                self._create(driver, ring, pointers)
            else:
                page_at = pointers.address
                places = (ring.address, ring_bytes, page_at + WRITE_POINTER, page_at + READ_POINTER)
                self._own = driver.open_queue(kind, *places)
                self._doorbell = self._own.doorbell
            undo.pop_all()

    def _allocate(self, size: int, is_on_card: bool = False) -> Allocation:
        made = self.driver.allocate(self.card, size, ON_CARD if is_on_card else OF_HOST)
        self._memory.append(made)
        return made

    def _create(self, kfd: Kfd, ring: Allocation, pointers: Allocation) -> None:
        saved: dict[str, int] = {}
        if self.kind is not QueueType.SDMA:
            sizes = SavedWaves.of(self.card, arch_of(self.card.arch))
            area = self._allocate(sizes.allocation(self.card.xccs), is_on_card=True)
            saved = {
                "eop_buffer_address": self._allocate(EOP_BYTES, is_on_card=True).address,
                "eop_buffer_size": EOP_BYTES,
                "ctx_save_restore_address": area.address,
                "ctx_save_restore_size": sizes.total,
                "ctl_stack_size": sizes.control_stack,
            }
        made = kfd.call(
            "CREATE_QUEUE",
            "kfd_create_queue",
            f"a queue of {self.kind.name} on {self.card}",
            ring_base_address=ring.address,
            ring_size=self.size,
            write_pointer_address=pointers.address + WRITE_POINTER,
            read_pointer_address=pointers.address + READ_POINTER,
            gpu_id=self.card.gpu_id,
            queue_type=int(self.kind),
            queue_percentage=_PERCENTAGE,
            queue_priority=_PRIORITY,
            **saved,
        )
        self._id = made.queue_id
        base = made.doorbell_offset & ~(DOORBELL_BYTES - 1)
        place = made.doorbell_offset & (DOORBELL_BYTES - 1)
        page = kfd.machine.map(
            0, DOORBELL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, kfd.file, base
        )
        self._doorbells = (page, DOORBELL_BYTES)
        self._doorbell = bytes_at(page + place, 8).cast("Q")

    # --- pointers

    @property
    def written(self) -> int:
        """Write pointer of the ring, in the unit of the hardware; it never wraps."""
        return self._write[0]

    @property
    def consumed(self) -> int:
        """Read pointer of the ring, which the card advances."""
        return self._read[0]

    def ring_doorbell(self, written: int, doorbell: int) -> None:
        """Tell the card how far commands go: the pointer in memory first, then the doorbell."""
        self._write[0] = written
        self._doorbell[0] = doorbell

    def wait_for_room(self, has_room: Callable[[], bool], sleep: Callable[[], None]) -> None:
        """Wait until the card has read enough. Raises DeviceError when it reads nothing."""
        seen, since = self.consumed, time.monotonic()
        while not has_room():
            if self.consumed != seen:
                seen, since = self.consumed, time.monotonic()
            elif time.monotonic() - since > settings.WAIT_TIMEOUT_MS / 1e3:
                raise DeviceError(
                    f"the {self.kind.name} queue of {self.card} is full and its card has read "
                    f"nothing for {settings.WAIT_TIMEOUT_MS} ms, at {seen} of {self.written}"
                )
            sleep()

    def close(self) -> None:
        """Destroy the queue and give its memory back."""
        if self._own is not None:
            self._own.stop()
            self._own = None
        if isinstance(self.driver, Kfd):
            self._destroy(self.driver)
        while self._memory:
            self.driver.free(self._memory.pop())

    def _destroy(self, kfd: Kfd) -> None:
        if self._id is not None:
            kfd.call("DESTROY_QUEUE", "kfd_destroy_queue", queue_id=self._id)
            self._id = None
        if self._doorbells[1]:
            kfd.machine.unmap(*self._doorbells)
            self._doorbells = (0, 0)
