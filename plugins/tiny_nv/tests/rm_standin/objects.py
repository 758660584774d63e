"""Objects of the resource manager: a tree of handles below each client."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from emulation.memory import GlobalMemory, Region

from rm_standin.gpu import Array, Gpu, Pages
from rm_standin.status import Refused, Status

if TYPE_CHECKING:
    from rm_standin.channels import Ring

__all__ = [
    "Channel",
    "Client",
    "ContextShare",
    "Debugger",
    "Device",
    "Engine",
    "Event",
    "Group",
    "Memory",
    "Object",
    "Subdevice",
    "Usermode",
    "VaSpace",
    "Virtual",
]

Kind = TypeVar("Kind", bound="Object")


@dataclass(eq=False)
class Object:
    """Anything with a handle."""

    handle: int
    number: int
    """Its class."""
    parent: Object | None
    children: dict[int, Object] = field(default_factory=dict)

    @property
    def gpu(self) -> Gpu:
        """The card it belongs to."""
        above = self.parent
        while not isinstance(above, Device):
            assert above is not None
            above = above.parent
        return above.owner

    def below(self) -> Iterator[Object]:
        """This and all below it, children first."""
        for child in list(self.children.values()):
            yield from child.below()
        yield self


@dataclass(eq=False)
class Client(Object):
    """A root. `file` is what it was made through, with which it ends."""

    file: int = 0
    objects: dict[int, Object] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(0xCAF00001))

    def get(self, handle: int, kind: type[Kind]) -> Kind:
        """An object of a kind. Raises Refused."""
        found = self.objects.get(handle)
        if found is None:
            raise Refused(Status.OBJECT_NOT_FOUND)
        if not isinstance(found, kind):
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        return found


@dataclass(eq=False)
class Device(Object):
    """A card within a client."""

    owner: Gpu = field(kw_only=True)
    default: VaSpace | None = None
    """Its own address space, made when something asks for it."""

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return self.owner


class Subdevice(Object):
    """The one part that a card has."""


class Debugger(Object):
    """Object from which errors of multiprocessors are read."""


@dataclass(eq=False)
class Event(Object):
    """Event that wakes a waiting file."""

    file: int = 0
    index: int = 0
    """Number of the notification that it waits for."""
    of_interrupts: bool = False


class Engine(Object):
    """A compute or a copy class on a channel."""


@dataclass(eq=False)
class Usermode(Object):
    """The page with the doorbell."""

    is_bar1: bool = False


@dataclass(eq=False)
class Memory(Object):
    """Pages of the card, of the system, or of the process itself."""

    pages: Pages = field(kw_only=True)
    host_size: int = 0
    """Bytes that mappings of the host hold of the card's window."""


@dataclass(eq=False)
class VaSpace(Object):
    """Addresses of a card, and what is mapped at them."""

    base: int = 0
    limit: int = 0
    is_external: bool = False
    """True if UVM owns the page tables."""
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    mapped: dict[int, Mapping] = field(default_factory=dict)
    next_free: int = 1 << 36
    is_registered: bool = False

    def map(self, address: int, mapping: Mapping, data: Array, name: str) -> None:
        """Have an address mean these bytes."""
        self.memory.add(Region(address, data, name))
        self.mapped[address] = mapping
        mapping.pages.hold()

    def unmap(self, address: int) -> None:
        """Take `map` back."""
        self.memory.remove(address)
        self.mapped.pop(address).pages.release()

    def overlaps(self, address: int, size: int) -> bool:
        """True if something is mapped among these bytes."""
        starts, regions = self.memory.table
        place = bisect_left(starts, address + size) - 1
        if place < 0:
            return False
        mapping = self.mapped.get(starts[place])  # none where page tables say what is mapped
        bytes_ = regions[place].data.nbytes if mapping is None else mapping.size
        return address < starts[place] + bytes_


@dataclass(frozen=True)
class Mapping:
    """Pages in an address space."""

    pages: Pages
    offset: int
    size: int
    is_writable: bool = True
    is_cached: bool = False


class Virtual(Object):
    """A range of an address space to map into."""

    space: VaSpace


@dataclass(eq=False)
class Group(Object):
    """Channels that share a time slice."""

    space: VaSpace = field(kw_only=True)
    engine: int = 1
    is_scheduled: bool = False


@dataclass(eq=False)
class ContextShare(Object):
    """The part of a group that channels of one address space share."""

    space: VaSpace = field(kw_only=True)
    subcontext: int = 0


@dataclass(eq=False)
class Channel(Object):
    """A ring of pushbuffers."""

    space: VaSpace = field(kw_only=True)
    group: Group | None = None
    id: int = 0
    notifier: Memory | None = None
    userd: Memory = field(kw_only=True)
    userd_offset: int = 0
    ring_address: int = 0
    entries: int = 0
    engine: int = 1
    is_scheduled: bool = False
    is_registered: bool = False
    """True if UVM knows it, so that its context has memory."""
    ring: Ring | None = None
    fault: dict[str, Any] = field(default_factory=dict)

    @property
    def token(self) -> int:
        """Token that the doorbell is rung with."""
        runlist = 0 if self.engine == 1 else self.engine
        return runlist << 16 | self.id | self.gpu.facts.token_bits
