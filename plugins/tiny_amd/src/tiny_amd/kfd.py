"""The kernel's compute driver, /dev/kfd: memory, queues and events, each call with one check.

Linux, include/uapi/linux/kfd_ioctl.h. What a process has acquired belongs to it until it ends, and
a second VM for one card is refused, so the files stay open. Addresses of cards are addresses of the
process: memory is allocated at an address that has been reserved.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Any, Final

from tiny_amd._native import ffi
from tiny_amd.topology import KFD, Card
from tiny_hcq import MAP_FIXED, MAP_RESERVED, HostView, System, address_of, errno_text, system
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import lock, recursive_lock

__all__ = [
    "DOORBELL_BYTES",
    "OF_HOST",
    "ON_CARD",
    "PAGE",
    "Allocation",
    "Event",
    "EventType",
    "Kfd",
    "Kind",
    "kfd_of_process",
    "reserve_addresses",
]

PAGE: Final = 4096
HUGE_PAGE: Final = 2 << 20
_NO_ACCESS: Final = 0
EVENT_PAGE_BYTES: Final = 0x8000
DOORBELL_BYTES: Final = 0x2000
_OLDEST: Final = (1, 14)
"""The ABI whose events and exceptions are as they are read here: Linux 6.5."""

REQUESTS: Final = {
    "GET_VERSION": 0x80084B01,
    "CREATE_QUEUE": 0xC0604B02,
    "DESTROY_QUEUE": 0xC0084B03,
    "CREATE_EVENT": 0xC0204B08,
    "DESTROY_EVENT": 0x40084B09,
    "WAIT_EVENTS": 0xC0184B0C,
    "ACQUIRE_VM": 0x40084B15,
    "ALLOC_MEMORY_OF_GPU": 0xC0284B16,
    "FREE_MEMORY_OF_GPU": 0x40084B17,
    "MAP_MEMORY_TO_GPU": 0xC0184B18,
    "UNMAP_MEMORY_FROM_GPU": 0xC0184B19,
    "RUNTIME_ENABLE": 0xC0104B25,
}


class Kind(IntFlag):
    """Flags of an allocation."""

    VRAM = 1 << 0
    GTT = 1 << 1
    USERPTR = 1 << 2
    UNCACHED = 1 << 25
    COHERENT = 1 << 26
    NO_SUBSTITUTE = 1 << 28
    PUBLIC = 1 << 29
    EXECUTABLE = 1 << 30
    WRITABLE = 1 << 31


ALWAYS: Final = Kind.WRITABLE | Kind.EXECUTABLE | Kind.NO_SUBSTITUTE
ON_CARD: Final = Kind.VRAM | ALWAYS
OF_HOST: Final = Kind.GTT | Kind.COHERENT | Kind.UNCACHED | Kind.PUBLIC | ALWAYS


class EventType(IntEnum):
    """Event type: the end of work, a hardware exception or a memory fault."""

    SIGNAL = 0
    HARDWARE = 3
    MEMORY = 8


@dataclass(frozen=True)
class Event:
    """An event of this process."""

    id: int
    mailbox: int
    """Address at which a card writes the id before it interrupts; 0 for events of KFD alone."""


@dataclass
class Allocation:
    """Memory at one address of the host and of every card that it is mapped to."""

    address: int
    size: int
    handle: int
    is_visible: bool
    """Host-visible: mapped into this process's address space."""
    mapped: list[int] = field(default_factory=list)
    """Cards that address it, by gpu_id."""
    window: HostView | None = None
    """The host's access by calls, where it is not mapped into the process."""


class Kfd:
    """The driver as this process uses it."""

    def __init__(self, machine: System) -> None:
        self.machine = machine
        self.process = os.getpid()
        self.lock = recursive_lock()
        try:
            self.file = machine.open(KFD)
        except OSError as error:
            raise DeviceUnavailable(f"{KFD} cannot be opened: {error}") from error
        version = self.call("GET_VERSION", "kfd_version")
        self.version = (version.major, version.minor)
        if self.version < _OLDEST:
            found, oldest = (".".join(map(str, each)) for each in (self.version, _OLDEST))
            raise DeviceUnavailable(
                f"the kernel's compute driver speaks version {found} of its interface, and "
                f"tiny-amd needs {oldest}: run Linux 6.5 or later"
            )
        self.cards: dict[int, int] = {}
        """Files of render nodes, by gpu_id of the cards whose VM has been acquired."""
        self.shared: dict[int, Allocation] = {}
        """Memory that all cards address, by address."""
        self.event_page: Allocation | None = None

    # --- requests

    def call(self, name: str, kind: str, what: str = "", **fields: Any) -> Any:
        """Make a request, and return its structure. Raises OutOfMemory and DeviceError."""
        argument = ffi.new(f"struct {kind} *", fields)
        status = self.machine.ioctl(self.file, REQUESTS[name], address_of(argument))
        if status:
            raise self.error(status, name, what)
        return argument

    def error(self, status: int, name: str, what: str) -> Exception:
        """The exception that a status stands for."""
        text = f"{name}{f' for {what}' if what else ''} returned {errno_text(status)}"
        if status == errno.ENOMEM:
            return OutOfMemory(f"the card has no memory left: {text}. Free tensors first.")
        return DeviceError(f"AMD's kernel driver refused: {text}")

    # --- cards

    def acquire(self, card: Card) -> None:
        """Let this process use a card; once for each."""
        with self.lock:
            if card.gpu_id in self.cards:
                return
            try:
                file = self.machine.open(card.render_node)
            except OSError as error:
                raise DeviceUnavailable(f"{card.render_node} cannot be opened: {error}") from error
            try:
                self.call("ACQUIRE_VM", "kfd_acquire_vm", drm_fd=file, gpu_id=card.gpu_id)
            except DeviceError as error:
                self.machine.close(file)
                raise DeviceUnavailable(f"{card} cannot be used: {error}") from error
            if not self.cards:
                self.enable()
            self.cards[card.gpu_id] = file
            for allocation in self.shared.values():
                self.map(allocation, card.gpu_id)

    def enable(self) -> None:
        """Tell the kernel that a run time is there; a debugger may have done so before."""
        request = ffi.new("struct kfd_runtime_enable *")
        status = self.machine.ioctl(self.file, REQUESTS["RUNTIME_ENABLE"], address_of(request))
        if status not in (0, errno.EBUSY, errno.EEXIST):
            raise self.error(status, "RUNTIME_ENABLE", "")

    # --- memory

    def allocate(self, card: Card, size: int, kind: Kind, *, is_shared: bool = False) -> Allocation:
        """Memory that a card addresses, and all others as well when it `is_shared`.

        Raises OutOfMemory and DeviceError.
        """
        size = -(-size // PAGE) * PAGE
        address = self.reserve(size)
        file = self.cards[card.gpu_id]
        is_visible = bool(kind & Kind.PUBLIC)
        try:
            made = self.call(
                "ALLOC_MEMORY_OF_GPU",
                "kfd_alloc_memory",
                f"{size:,} bytes",
                va_addr=address,
                size=size,
                gpu_id=card.gpu_id,
                flags=int(kind),
            )
        except (OutOfMemory, DeviceError):
            self.machine.unmap(address, size)
            raise
        allocation = Allocation(address, size, made.handle, is_visible)
        try:
            if is_visible:
                flags, offset = MAP_SHARED | MAP_FIXED, made.mmap_offset
                self.machine.map(address, size, PROT_READ | PROT_WRITE, flags, file, offset)
            with self.lock:  # cards that are acquired later map what is shared by then
                for gpu_id in list(self.cards) if is_shared else [card.gpu_id]:
                    self.map(allocation, gpu_id)
                if is_shared:
                    self.shared[address] = allocation
        except (OSError, DeviceError) as error:
            self.free(allocation)
            raise DeviceError(f"{size:,} bytes of {card} cannot be mapped: {error}") from error
        return allocation

    def reserve(self, size: int) -> int:
        """Addresses that nothing else of this process uses."""
        return reserve_addresses(self.machine, size)

    def map(self, allocation: Allocation, gpu_id: int) -> None:
        """Let a card address memory. Raises DeviceError."""
        self.change("MAP_MEMORY_TO_GPU", allocation, [gpu_id])
        allocation.mapped.append(gpu_id)

    def unmap(self, allocation: Allocation, gpu_id: int) -> None:
        """Take `map` back."""
        self.change("UNMAP_MEMORY_FROM_GPU", allocation, [gpu_id])
        allocation.mapped.remove(gpu_id)

    def change(self, name: str, allocation: Allocation, gpu_ids: list[int]) -> None:
        """Map memory to cards, or unmap it from them."""
        array = ffi.new("uint32_t[]", gpu_ids)
        what = f"{allocation.size:,} bytes at {allocation.address:#x}"
        made = self.call(
            name,
            "kfd_map_memory",
            what,
            handle=allocation.handle,
            device_ids_array_ptr=address_of(array),
            n_devices=len(gpu_ids),
        )
        if made.n_success != len(gpu_ids):
            raise DeviceError(f"{name} for {what} reached {made.n_success} of {len(gpu_ids)} cards")

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Its addresses may be given to others from now on."""
        with self.lock:
            self.shared.pop(allocation.address, None)
        if allocation.mapped:
            self.change("UNMAP_MEMORY_FROM_GPU", allocation, allocation.mapped)
        self.machine.unmap(allocation.address, allocation.size)
        self.call("FREE_MEMORY_OF_GPU", "kfd_free_memory", handle=allocation.handle)

    # --- events

    def create_event(self, card: Card, kind: EventType) -> Event:
        """An event that resets itself when somebody has waited for it."""
        is_signal = kind is EventType.SIGNAL
        with self.lock:
            handle = 0  # the first event of a process brings the page of all
            if self.event_page is None:
                self.event_page = self.allocate(card, EVENT_PAGE_BYTES, OF_HOST, is_shared=True)
                handle = self.event_page.handle
            made = self.call(
                "CREATE_EVENT",
                "kfd_create_event",
                event_page_offset=handle,
                event_type=int(kind),
                auto_reset=1,
                node_id=0 if is_signal else card.node,
            )
        mailbox = self.event_page.address + 8 * made.event_slot_index if is_signal else 0
        return Event(made.event_id, mailbox)

    def destroy_event(self, event: Event) -> None:
        """Give an event back."""
        self.call("DESTROY_EVENT", "kfd_destroy_event", event_id=event.id)

    def wait_events(self, events: list[Event], milliseconds: int) -> Any:
        """Wait for any of the events, and return what the kernel says of each: an array."""
        data = ffi.new("struct kfd_event_data[]", len(events))
        for entry, event in zip(data, events, strict=True):
            entry.event_id = event.id
        self.call(
            "WAIT_EVENTS",
            "kfd_wait_events",
            events_ptr=address_of(data),
            num_events=len(events),
            timeout=milliseconds,
        )
        return data


def reserve_addresses(machine: System, size: int) -> int:
    """Addresses that nothing else of this process uses; aligned to huge pages where it pays."""
    extra = HUGE_PAGE if size >= HUGE_PAGE else 0
    try:
        begin = machine.map(0, size + extra, _NO_ACCESS, MAP_RESERVED, -1, 0)
    except OSError as error:
        raise OutOfMemory(f"no {size:,} bytes of addresses are left: {error}") from error
    if not extra:
        return begin
    address = -(-begin // HUGE_PAGE) * HUGE_PAGE
    if before := address - begin:
        machine.unmap(begin, before)
    if behind := extra - before:
        machine.unmap(address + size, behind)
    return address


_KEPT: Final = "tiny_amd kfd"
"""Attribute of a machine that holds its driver, so that both end together."""
_lock: Final = lock()


def kfd_of_process() -> Kfd:
    """The driver, opened once in each process. Raises DeviceUnavailable."""
    machine = system()
    with _lock:
        found: Kfd | None = vars(machine).get(_KEPT)
        if found is None or found.process != os.getpid():
            found = vars(machine)[_KEPT] = Kfd(machine)
        return found
