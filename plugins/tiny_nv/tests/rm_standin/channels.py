"""Rings of pushbuffers: doorbells, pointers, host methods, and what is executed next.

open-gpu-doc: clc56f.h, clc86f.h, clc96f.h (GPFIFO entries, method headers, semaphores).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy
from emulation.faults import Fault

from rm_standin.compute import Compute
from rm_standin.controls import notify
from rm_standin.copies import Copies
from rm_standin.gpu import Array
from rm_standin.objects import Engine
from rm_standin.status import Mistake
from rm_standin.view import MmuFault, View

if TYPE_CHECKING:
    from rm_standin.machine import Machine
    from rm_standin.objects import Channel

__all__ = ["Ring"]

USERD_BYTES: Final = 512
PUT, GET, GP_GET, GP_PUT, REFERENCE = 0x40, 0x44, 0x88, 0x8C, 0x48
NO_OPERATION, EXTENDED_BASE = 0, 4
INCREMENTING, NON_INCREMENTING, IMMEDIATE, INCREMENT_ONCE, END = 1, 3, 4, 5, 7
FIRST_CLASS_METHOD: Final = 0x100
COMPUTE_SUBCHANNEL, COPY_SUBCHANNEL = 1, 4
GRAPHICS_ENGINE: Final = 1
XID_EXCEPTION, XID_MMU, XID_PBDMA, XID_REMOVED, XID_CLASS = 13, 31, 32, 45, 69

ACQUIRE, RELEASE, ACQUIRE_STRICT, ACQUIRE_CIRCULAR, ACQUIRE_AND, ACQUIRE_NOR = range(6)
SEMAPHORE_NAMES: Final = {0x5C: "low", 0x60: "high", 0x64: "payload_low", 0x68: "payload_high"}
HARMLESS: Final = {0x08, 0x28, 0x2C, 0x30, 0x34, 0x80}
"""NOP, MEM_OP_A to D, YIELD."""


class Rejected(Exception):
    """A method that the front end or an engine reports as an error of the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Bound(Protocol):
    """A class on a subchannel."""

    def write(self, method: int, value: int) -> None:
        """A method."""

    def flush(self) -> bool:
        """End what has begun; whether there was anything."""


@dataclass(frozen=True)
class Write:
    """A method, as the front end hands it on."""

    subchannel: int
    method: int
    value: int


@dataclass
class Segment:
    """A pushbuffer that the ring names."""

    address: int
    words: Array
    """As they were when the doorbell was rung."""


class Ring:
    """The ring of one channel."""

    def __init__(self, machine: Machine, channel: Channel) -> None:
        self.machine, self.channel = machine, channel
        self.view = View(channel.space)
        start = channel.userd_offset
        userd = channel.userd.pages.data[start : start + USERD_BYTES]
        userd[:] = 0
        self.userd: Array = userd.view(numpy.uint32)
        self.get = self.put = 0
        self.is_stopped = False
        self.segments: deque[Segment | None] = deque()
        """Segments of the entries from `get` to `put`; None for those without a pushbuffer."""
        self.fetched: list[int] = []
        """The same entries as numbers."""
        self.writes: deque[Write] = deque()
        self.base = 0
        self.bound: dict[int, Bound] = {}
        self.semaphore: dict[str, int] = {}
        self.waits_for = ""
        self.executed = 0
        """Methods so far."""

    # --- the ring

    def entries(self) -> Array:
        """The ring itself."""
        address, count = self.channel.ring_address, self.channel.entries
        if address % 8 or not address:
            raise Mistake(f"a ring at {address:#x}")
        found: Array = self.view.span(address, 8 * count).view(numpy.uint64)
        return found

    def ring(self) -> None:
        """The doorbell: look how far the ring is filled. Raises MmuFault."""
        put, count = int(self.userd[GP_PUT // 4]), self.channel.entries
        if put >= count:
            raise Mistake(f"GP_PUT is {put} in a ring of {count}")
        entries = self.entries()
        waiting = [int(entries[(self.get + n) % count]) for n in range(len(self.fetched))]
        if waiting != self.fetched:
            raise Mistake(f"the ring of channel {self.channel.id} is written before it is read")
        fresh = (put - self.put) % count
        if len(self.fetched) + fresh >= count:
            raise Mistake(f"{len(self.fetched)} entries are left and {fresh} new, of {count}")
        for index in range(fresh):
            entry = int(entries[(self.put + index) % count])
            self.fetched.append(entry)
            self.segments.append(self.segment(entry))
        self.put = put

    def segment(self, entry: int) -> Segment | None:
        """The pushbuffer of an entry."""
        length = entry >> 42 & 0x1FFFFF
        if not length:
            opcode = entry >> 32 & 0xFF
            if opcode == EXTENDED_BASE and self.channel.gpu.facts.has_extended_base:
                self.base = (entry >> 8 & 0x1FFFF) << 40
            elif opcode != NO_OPERATION:
                raise Mistake(f"entry {entry:#x} has operation {opcode}")
            return None
        if entry & 3 or entry >> 40 & 1:
            raise Mistake(f"entry {entry:#x} has bits that must be 0")
        address = entry & 0xFF_FFFF_FFFC | self.base
        return Segment(address, self.view.words(address, length).copy())

    def step(self) -> bool:
        """Execute some methods; False when there are none, or they have to wait."""
        self.waits_for = ""
        if not self.writes and not self.next_segment():
            return False
        moved = False
        while self.writes:
            write = self.writes[0]
            if not self.execute(write):
                return moved
            self.writes.popleft()
            self.executed += 1
            moved = True
            if write.method == 0x6C:  # let others see a semaphore's value before what comes next
                break
        return True

    def next_segment(self) -> bool:
        """Begin the next entry of the ring."""
        while self.segments:
            segment = self.segments.popleft()
            self.fetched.pop(0)
            self.get = (self.get + 1) % self.channel.entries
            self.userd[GP_GET // 4] = self.get
            if segment is not None:
                now = self.view.words(segment.address, len(segment.words))
                if not numpy.array_equal(now, segment.words):
                    raise Mistake(f"a pushbuffer at {segment.address:#x} changes while it waits")
                self.writes.extend(decoded([int(word) for word in segment.words]))
                if self.writes:
                    return True
        return False

    @property
    def is_idle(self) -> bool:
        """True if all that the doorbell told of is done."""
        return not self.writes and not self.segments

    # --- methods

    def execute(self, write: Write) -> bool:
        """One method; False when it has to wait."""
        if write.method < FIRST_CLASS_METHOD:
            return self.host(write)
        bound = self.bound.get(write.subchannel)
        if bound is None:
            text = f"method {write.method:#x} on subchannel {write.subchannel}, which has no class"
            raise Rejected(XID_CLASS, text)
        bound.write(write.method, write.value)
        return True

    def host(self, write: Write) -> bool:
        """A method of the front end."""
        method, value = write.method, write.value
        if method == 0x00:
            self.set_object(write.subchannel, value)
        elif method in SEMAPHORE_NAMES:
            self.semaphore[SEMAPHORE_NAMES[method]] = value
        elif method == 0x6C:
            return self.semaphore_execute(value)
        elif method == 0x78:
            if value & 1:
                self.flush()
        elif method == 0x50:
            self.userd[REFERENCE // 4] = value
        elif method == 0x20:
            self.interrupt()
        elif method not in HARMLESS:
            raise Rejected(XID_PBDMA, f"host method {method:#x} of {value:#x}")
        return True

    def interrupt(self) -> None:
        """NON_STALL_INTERRUPT: the host raises it as soon as it comes to it."""
        begun = [b for b in self.bound.values() if isinstance(b, Compute) and b.launcher.begun]
        if begun:
            raise Mistake("an interrupt is raised before the kernels before it have ended")
        self.machine.interrupt(self.channel.gpu)

    def set_object(self, subchannel: int, value: int) -> None:
        """A class on a subchannel."""
        number, facts = value & 0xFFFF, self.channel.gpu.facts
        if value >> 16 & 0x1F or value >> 21:
            raise Mistake(f"SET_OBJECT of {value:#x}")
        objects = [c.number for c in self.channel.children.values() if isinstance(c, Engine)]
        if number not in objects:
            raise Rejected(XID_CLASS, f"class {number:#x} is not allocated on this channel")
        is_compute = number == facts.compute
        wanted = COMPUTE_SUBCHANNEL if is_compute else COPY_SUBCHANNEL
        if self.channel.engine == GRAPHICS_ENGINE and subchannel != wanted:
            raise Mistake(f"class {number:#x} on subchannel {subchannel}, which is not its own")
        made: Bound
        if is_compute:
            made = Compute(self.machine, self.channel, self.view)
        else:
            made = Copies(self.channel, self.view)
        self.bound[subchannel] = made

    def semaphore_execute(self, value: int) -> bool:
        """SEM_EXECUTE."""
        if missing := {"low", "high", "payload_low"} - {*self.semaphore}:
            raise Mistake(f"a semaphore without {', '.join(sorted(missing))}")
        high, bits = self.semaphore["high"], self.channel.gpu.facts.semaphore_bits
        if high >> bits - 32 or self.semaphore["low"] & 3:
            raise Mistake(f"a semaphore at {high:#x} {self.semaphore['low']:#x}")
        address = self.semaphore["low"] | high << 32
        is_long = bool(value >> 24 & 1)
        payload = self.semaphore["payload_low"]
        if is_long:
            payload |= self.semaphore.get("payload_high", 0) << 32
        operation = value & 7
        if operation == RELEASE:
            if value >> 20 & 1:
                self.flush()
            clock = self.channel.gpu.clock() if value >> 25 & 1 else None
            self.view.release(address, payload, is_long, clock)
            return True
        if operation > ACQUIRE_NOR:
            raise Mistake(f"SEM_EXECUTE of {value:#x}")
        width = 8 if is_long else 4
        if address % width:
            raise Mistake(f"a semaphore of {width} bytes at {address:#x}")
        found = self.view.load(address, width)
        if not COMPARED[operation](found, payload, 8 * width):
            self.waits_for = f"{payload} at {address:#x}, which is {found}"
            return False
        for bound in self.bound.values():
            if isinstance(bound, Compute):
                bound.is_fresh = False
        return True

    def flush(self) -> bool:
        """End what has begun on the engines."""
        return True in [bound.flush() for bound in self.bound.values()]

    # --- errors

    def guarded(self, action: Callable[[], bool | None]) -> bool:
        """Do something of this channel; errors that a card tells stop its group."""
        try:
            return bool(action())
        except MmuFault as fault:
            self.machine.last_fault = str(fault)
            self.channel.fault.pop("counter", 0)
            where = {"address": fault.address, "type": fault.kind, "access": fault.access}
            self.channel.fault.update(where)
            self.fail(XID_MMU)
        except Rejected as rejected:
            self.machine.last_fault = str(rejected)
            self.fail(rejected.code)
        except Fault as fault:
            self.machine.last_fault = str(fault)
            counter = self.channel.fault.pop("counter", 0)
            self.channel.fault["sms"] = {0: (esr_of(fault), counter, address_in(fault))}
            self.fail(XID_EXCEPTION)
            if not self.machine.tells_faults:
                raise
        except Exception:  # a test fails; nobody is to wait for this channel any more
            self.fail(XID_EXCEPTION)
            raise
        return False

    def fail(self, code: int) -> None:
        """Stop the channels of the group, and tell by the notifier."""
        group = self.channel.group
        rings = [self]
        if group is not None:
            members = self.machine.resources.channels
            rings = [c.ring for c in members if c.group is group and c.ring is not None]
        for ring in rings:
            ring.is_stopped = True
            if ring is self or ring.channel.notifier is not self.channel.notifier:
                told = code if ring is self else XID_REMOVED
                notify(ring.channel.notifier, told, 0, self.channel.gpu.clock())


def signed(value: int, bits: int) -> int:
    """A number of two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


COMPARED: Final[dict[int, Callable[[int, int, int], bool]]] = {
    ACQUIRE: lambda found, payload, bits: found == payload,
    ACQUIRE_STRICT: lambda found, payload, bits: found >= payload,
    ACQUIRE_CIRCULAR: lambda found, payload, bits: signed(found - payload, bits) >= 0,
    ACQUIRE_AND: lambda found, payload, bits: found & payload != 0,
    ACQUIRE_NOR: lambda found, payload, bits: (found | payload) != (1 << bits) - 1,
}


def decoded(words: list[int]) -> list[Write]:
    """The methods of a pushbuffer."""
    found, at = [], 0
    while at < len(words):
        header = words[at]
        operation, count = header >> 29, header >> 16 & 0x1FFF
        method, subchannel = (header & 0xFFF) << 2, header >> 13 & 7
        at += 1
        if operation == IMMEDIATE:
            found.append(Write(subchannel, method, count))
            continue
        if operation == END:
            break
        if operation not in (INCREMENTING, NON_INCREMENTING, INCREMENT_ONCE):
            raise Rejected(XID_PBDMA, f"{header:#010x} is no header of methods")
        if at + count > len(words):
            raise Mistake(f"a pushbuffer ends within the methods of {header:#010x}")
        for index in range(count):
            if operation == INCREMENTING:
                step = index
            else:
                step = min(index, 1) if operation == INCREMENT_ONCE else 0
            found.append(Write(subchannel, method + 4 * step, words[at + index]))
        at += count
    return found


def address_in(fault: Fault) -> int:
    """The address that a fault's text names; 0 for none."""
    found = re.search(r"at (0x[0-9a-f]+)", str(fault))
    return int(found[1], 16) if found else 0


def esr_of(fault: Fault) -> int:
    """The low byte of a warp's error status."""
    return {"MisalignedAddress": 0xF, "IllegalAddress": 0xE}.get(type(fault).__name__, 0x9)
