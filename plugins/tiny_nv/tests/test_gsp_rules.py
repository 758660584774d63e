"""Each rule of the stand-in of a card without a kernel driver is broken by a program."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from gsp_standin.falcon import FalconModel
from gsp_standin.fsp import FspModel, LockedFalcon, Window
from gsp_standin.gsp import LOGS, Gsp
from gsp_standin.images import BOOT_VERSION
from gsp_standin.memory import HUGE, PAGE, Memory
from gsp_standin.messages import COUNT, QUEUE, Queues
from nv_pci_standin import Chip, PciMachine
from rm_standin import Mistake
from rm_standin.status import Refused
from simulated_pci import opened

from tiny_hcq import LinuxSystem

BUS: Final = 0x4000_0000
CODE: Final = 6 << 8 | 1 << 4 | 1 << 2
"""A DMA of secure code."""
FREE_HANDLE: Final = 0xD000_0001
CHANNEL, COMPUTE, SPACE = 0xC56F, 0xC7C0, 0x90F1
_host: Final = LinuxSystem()


class Bench:
    """A card, with 4 MiB of the system's memory that it addresses from BUS on."""

    def __init__(self, architecture: int = 0x17) -> None:
        self.chip = Chip(architecture)
        self.memory: Memory = self.chip.memory
        self.memory.is_master = True
        self.host = _host.map(0, 2 * HUGE, 3, 0x4022, -1, 0)
        self.memory.pin(self.host, 2 * HUGE, BUS)

    @property
    def gsp(self) -> Gsp:
        """Its own processor."""
        assert self.chip.gsp is not None
        return self.chip.gsp

    @property
    def falcon(self) -> FalconModel:
        """The falcon of Ampere, ready for a DMA."""
        found = self.gsp.gsp_of_booter
        found.registers |= {0x624: 0x80, 0x600: 5, 0x110: BUS >> 8}
        return found

    @property
    def fsp(self) -> FspModel:
        """The security processor."""
        assert self.gsp.fsp is not None
        return self.gsp.fsp

    @property
    def locked(self) -> LockedFalcon:
        """The GSP that it starts, which is done."""
        found = self.gsp.gsp_of_fsp
        found.is_active = True
        return found

    def put(self, offset: int, content: bytes) -> int:
        """Content in memory of the system: where the card finds it."""
        ctypes.memmove(self.host + offset, content, len(content))
        return BUS + offset

    def transfer(self, command: int = CODE, **registers: int) -> None:
        """A DMA with other registers: base, target, source, context."""
        places = {"control": 0x10C, "target": 0x114, "source": 0x11C, "context": 0x600}
        falcon = self.falcon
        falcon.registers |= {places[name]: value for name, value in registers.items()}
        falcon.transfer(command)

    # --- the start of the GSP

    def begin(self, kind: int = 1, shift: int = 0, size: int = 0x10000, first: int = 0) -> None:
        """Begin with regions of which the first differs."""
        rows = b""
        for index, name in enumerate(LOGS):
            at = HUGE // 4 + index * 0x10000
            pages = [BUS + at + page for page in range(0, 0x10000, PAGE)]
            pages[0] += 0 if index else first
            self.put(at + 8, struct.pack("<16Q", *pages))
            change = (kind, shift, size) if not index else (1, 0, 0x10000)
            number = int.from_bytes(name, "big")
            rows += struct.pack("<QQQBB6x", number, BUS + at + change[1], change[2], change[0], 1)
        rows += struct.pack("<QQQBB6x", int.from_bytes(b"RMARGS", "big"), BUS, PAGE, 1, 1)
        self.gsp.begin(self.put(HUGE, rows))

    def learn(self, content: bytes, number: int = 2, function: int = 0x49) -> None:
        """A message before the start."""
        self.gsp.queues = object.__new__(Queues)
        self.gsp.told = [0] * number
        self.gsp.learn(function, content)

    def settings(self, kind: int = 1, length: int = 4, name: bytes = b"A\0", more: int = 0) -> None:
        """A table of settings."""
        entry = struct.pack("<IB3xII", 24, kind, 1, length)
        content = struct.pack("<II", 24 + len(name) + more, 1) + entry + name
        self.learn(content)

    def system(self, size: int = 928, bar: int = 0, device: int = 0) -> None:
        """Facts of the system."""
        bars = self.chip.bars
        content = struct.pack("<5Q", bars[0][0] + bar, bars[1][0], bars[3][0], 0, 0x100)
        ids = (0x88000, 0x1000, 0x2204 << 16 | 0x10DE + device, 0x14C31043, 0xA1)
        self.gsp.check_system((content.ljust(80, b"\0") + struct.pack("<5I", *ids)).ljust(size))

    def answer(self, function: int, content: bytes = b"") -> bytes:
        """The answer of a GSP that knows its version."""
        self.gsp.gsp_of_booter.version = BOOT_VERSION
        return self.gsp.answer(function, content)

    # --- queues

    def queues(
        self, *, resumes: int = 0, root: int = 0, count: int = 129, commands: int = PAGE,
        status: int = PAGE + QUEUE, flags: int = 1,
    ) -> Queues:  # fmt: skip
        """Both queues, of which a fact differs."""
        table = [BUS + page * PAGE for page in range(129)]
        table[0] += root
        self.put(0, struct.pack("<129Q", *table))
        head = struct.pack("<8I", 0, QUEUE, PAGE, COUNT, 0, flags, 32, PAGE)
        self.put(PAGE, head)
        tail = bytes([resumes]).ljust(40, b"\0")
        return Queues(self.memory, struct.pack("<QI4xQQ", BUS, count, commands, status) + tail)

    def message(
        self, function: int = 1, content: bytes = b"", *, sequence: int = 0, count: int = 1,
        version: int = 3 << 24, first: int = 0, length: int | None = None, damage: int = 0,
        written: int = 1,
    ) -> None:  # fmt: skip
        """Have the GSP read a command of which a fact differs."""
        queues = self.queues()
        data = bytearray(PAGE)
        data[0] = first
        struct.pack_into("<4I", data, 32, 0, sequence, count, 0)
        size = 32 + len(content) if length is None else length
        struct.pack_into("<8I", data, 48, version, 0x43505256, size, function, 0, 0, 0, 0)
        data[80 : 80 + len(content)] = content
        found = 0
        for (word,) in struct.iter_unpack("<Q", data):
            found ^= word
        struct.pack_into("<I", data, 32, (found >> 32 ^ found & 0xFFFFFFFF) ^ damage)
        self.put(2 * PAGE, bytes(data))
        self.put(PAGE + 16, struct.pack("<I", written))
        queues.receive()

    # --- page tables

    def tables(self, *entries: int) -> int:
        """Tables that each name the next one by their first entry, as given: the first one."""
        for index, entry in enumerate(entries):
            place = 1 if len(entries) - index == 2 else 0  # a table of small pages
            content = struct.pack("<512Q", *[0] * place, entry, *[0] * (511 - place))
            self.put(index * PAGE, content)
        return BUS

    def named(self, index: int) -> int:
        """The entry of a table."""
        return 2 << 1 | 1 << 3 | (BUS + index * PAGE) >> 12 << 8

    def show(self, entry: int, size: int = HUGE) -> None:
        """Put the page of an entry behind BAR1."""
        self.memory.bar1_at, self.memory.bar1_bytes = 1, size
        self.tables(self.named(1), self.named(2), self.named(3), entry)
        self.memory.show(self.named(0))


class Running:
    """A card that runs, and the messages that made its objects."""

    def __init__(self) -> None:
        self.machine = PciMachine(Chip())
        found = self.machine.chips[0].gsp
        assert found is not None
        self.gsp: Any = found
        self.told: dict[int, bytes] = {}
        """Allocations by their classes."""
        for name in ("alloc", "promote", "set_directory"):
            self._keep(name)
        self.device = opened(self.machine)
        self.client = self.device.card.rm.root

    def _keep(self, name: str) -> None:
        call = getattr(self.gsp, name)

        def kept(*given: Any) -> Any:
            content = bytes(given[-1])
            key = struct.unpack_from("<I", content, 12)[0] if name == "alloc" else 0
            if name != "alloc":
                vars(self)[name] = content
            self.told.setdefault(key, content)
            return call(*given)

        setattr(self.gsp, name, kept)

    def changed(self, content: bytes, at: int, value: int, size: int = 4) -> bytes:
        """A message with another number."""
        return content[:at] + value.to_bytes(size, "little") + content[at + size :]

    def alloc(self, kind: int, **changes: int) -> int:
        """Make an object again, with another handle: the status. Changes are named by places."""
        content = self.changed(self.told[kind], 8, FREE_HANDLE)
        for name, value in changes.items():
            _, at, size = name.split("_")
            content = self.changed(content, int(at), value, int(size))
        self.gsp.gsp_of_booter.version = BOOT_VERSION
        return int(struct.unpack_from("<I", self.gsp.alloc(content), 16)[0])

    def channel(self, **changes: int) -> int:
        """Make a channel again, in a group that is not scheduled."""
        for channel in self.gsp.resources.channels:
            channel.group.is_scheduled = False
        return self.alloc(CHANNEL, **changes)

    @property
    def devices(self) -> int:
        """Handle of the device."""
        return int(self.device.card.device)

    @property
    def part(self) -> int:
        """Handle of the subdevice."""
        return int(self.device.card.subdevice)

    def promoted(self, at: int, value: int, size: int) -> int:
        """Promote contexts again."""
        content = bytearray(self.changed(vars(self)["promote"], at, value, size))
        return int(self.gsp.promote(self.client, content))

    def at_the_end(self) -> int:
        """Promote a context at the end of what is mapped."""
        (space,) = self.gsp.resources.roots
        last = space.memory.regions[-1]
        return self.promoted(self.entries[5][0] + 8, last.address + last.data.nbytes - PAGE, 8)

    def directory(self, at: int, value: int, size: int = 4) -> None:
        """Set page tables again."""
        self.gsp.set_directory(self.changed(vars(self)["set_directory"], at, value, size))

    def orphaned(self) -> None:
        """Set page tables of an address space without a device."""
        (space,) = self.gsp.resources.roots
        space.parent = None
        self.directory(0, self.client)

    def without_tables(self) -> int:
        """Make a channel in an address space without page tables."""
        self.gsp.resources.roots.clear()
        return self.channel()

    def without_contexts(self) -> int:
        """Make the engine of a channel without contexts."""
        self.gsp.resources.promoted.clear()
        return self.alloc(COMPUTE)

    @property
    def entries(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Context buffers by their numbers: where they are in the message, and what is told."""
        content = vars(self)["promote"]
        found = {}
        for index in range(struct.unpack_from("<I", content, 40)[0]):
            at = 48 + 32 * index
            entry = struct.unpack_from("<QQQIHBB", content, at)
            found[entry[4]] = (at, entry)
        return found


ANY: Final = object()
Case = tuple[str, Callable[[Any], Any]]


def busy(bench: Any) -> Any:
    """A bench whose falcon is at a DMA."""
    bench.falcon.busy = 3
    return bench


OF_FALCON: Final[tuple[Case, ...]] = (
    ("a register that is read", lambda b: b.falcon.read(0x998)),
    ("a start by another value", lambda b: b.falcon.write(0x130, 1)),
    ("a register that is written", lambda b: b.falcon.write(0x998, 0)),
    ("a DMA while there is one", lambda b: busy(b).transfer()),
    ("a DMA in another context", lambda b: b.transfer(context=4)),
    ("a DMA that needs a context", lambda b: b.transfer(control=1)),
    ("a DMA of another size", lambda b: b.transfer(CODE ^ 3 << 8)),
    ("a DMA the other way", lambda b: b.transfer(CODE | 1 << 5)),
    ("a DMA of a context", lambda b: b.transfer(CODE | 1 << 12)),
    ("a target between blocks", lambda b: b.transfer(target=4)),
    ("a source between blocks", lambda b: b.transfer(source=4)),
    ("a target beyond", lambda b: b.transfer(target=1 << 16)),
    ("code that is not secure", lambda b: b.transfer(CODE & ~(1 << 2))),
    ("a start before a DMA ends", lambda b: busy(b).falcon.start()),
    ("TLBs", lambda b: b.gsp.write(0xB830B0, 1)),
)


def chain(bench: Bench, version: int = 1, fmc: int = BUS, boot: int = BUS) -> bytes:
    """A chain of trust."""
    message = struct.pack("<HHQ", version, 860, fmc).ljust(852, b"\0")
    return message + struct.pack("<Q", boot)


def boot(bench: Bench, first: int = 0, target: int = 1, more: int = 0) -> None:
    """Start the first program with arguments of which one differs."""
    words = (first, 0, target, 256, BUS, 0, 0, 1, 1, 0, BUS, more, 0, 0, 0, 0)
    bench.fsp.boot(bench.put(0, struct.pack("<IIIIQQIIIIQIIQII", *words)))


def answered(bench: Bench) -> FspModel:
    """A security processor whose answer waits."""
    bench.fsp.answer = bytes(20)
    bench.fsp.pointers[0x8F2C84] = 16
    return bench.fsp


def overwritten(bench: Bench) -> None:
    """Write where an answer waits that was not read."""
    bench.fsp.write(0x8F2AC0, 1 << 24)
    answered(bench).write(0x8F2AC4, 0)


def sized(bench: Bench, size: int, head: int = 0) -> FspModel:
    """The security processor, told of a message of so many bytes."""
    bench.fsp.window = Window(size, writes=True)
    bench.fsp.write(0x8F2C04, size - 4)
    bench.fsp.write(0x8F2C00, head)
    return bench.fsp


OF_FSP: Final[tuple[Case, ...]] = (
    ("a register of the GSP", lambda b: b.locked.read(0x998)),
    ("a register of the GSP that is written", lambda b: b.locked.write(0x998, 1)),
    (
        "a GSP that waits",
        lambda b: (vars(b.locked).update(reads_waiting=2), b.locked.write(0x80, 1)),
    ),
    ("a window that is not read", lambda b: answered(b).read(0x8F2AC4)),
    ("a register", lambda b: b.fsp.read(0x8F2D00)),
    ("a register that is written", lambda b: b.fsp.write(0x8F2D00, 0)),
    (
        "a window beyond",
        lambda b: (b.fsp.write(0x8F2AC0, 1 << 24 | 4 << 8), b.fsp.write(0x8F2AC4, 0)),
    ),
    ("an answer that is overwritten", overwritten),
    ("a message elsewhere", lambda b: sized(b, 16, head=4)),
    ("a message that is too long", lambda b: sized(b, 1028)),
    ("a message before an answer is read", lambda b: (answered(b), sized(b, 16))),
    ("a chain of another size", lambda b: b.fsp.chain(bytes(859))),
    ("a chain of another version", lambda b: b.fsp.chain(chain(b, version=2))),
    ("a first program between pages", lambda b: b.fsp.chain(chain(b, fmc=BUS + 1))),
    ("arguments between pages", lambda b: b.fsp.chain(chain(b, boot=BUS + 1))),
    ("arguments in another memory", lambda b: boot(b, target=0)),
    ("arguments of a session", lambda b: boot(b, more=1)),
    ("arguments with keys", lambda b: boot(b, first=1)),
    ("an answer that is not taken", lambda b: (answered(b), b.gsp.serve())),
)
OF_GSP: Final[tuple[Case, ...]] = (
    ("a region of another kind", lambda b: b.begin(kind=2)),
    ("a region between pages", lambda b: b.begin(shift=1)),
    ("a region of another size", lambda b: b.begin(size=0x20000)),
    ("pages of a region", lambda b: b.begin(first=PAGE)),
    ("the order of messages", lambda b: b.learn(b"", number=1)),
    ("the kind of a setting", lambda b: b.settings(kind=2)),
    ("the length of a setting", lambda b: b.settings(length=8)),
    ("the name of a setting", lambda b: b.settings(name=b"A-B\0")),
    ("the size of the settings", lambda b: b.settings(more=4)),
    ("the size of the system", lambda b: b.system(size=920)),
    ("the system", lambda b: b.system(bar=1)),
    ("the card", lambda b: b.system(device=1)),
    ("the version", lambda b: b.gsp.answer(0x67, b"")),
    ("a BAR", lambda b: b.answer(0x46, struct.pack("<I4xQQ", 1, 0, 47))),
    ("the end", lambda b: b.answer(0x2F, b"\1" * 8)),
    (
        "channels in the end",
        lambda b: (b.gsp.resources.channels.append(ANY), b.answer(0x2F, bytes(8))),
    ),
    ("a function", lambda b: b.answer(0x99)),
    ("flags of an object", lambda b: b.answer(0x67, struct.pack("<8I", 1, 1, 1, 1, 0, 0, 1, 0))),
    ("bytes of an object", lambda b: b.answer(0x67, struct.pack("<8I", 1, 1, 1, 1, 0, 9, 0, 0))),
    (
        "an object without a handle",
        lambda b: b.answer(0x67, struct.pack("<8I", 1, 1, 0, 1, 0, 0, 0, 0)),
    ),
    ("flags of a control", lambda b: b.answer(0x4C, struct.pack("<6I", 1, 1, 1, 0, 0, 1))),
    ("bytes of a control", lambda b: b.answer(0x4C, struct.pack("<6I", 1, 1, 1, 0, 9, 0))),
    (
        "a control of the host",
        lambda b: b.answer(0x4C, struct.pack("<6I", 1, 1, 0x800201, 0, 0, 0)),
    ),
    ("facts of the engine", lambda b: b.gsp.gr_info(1, bytearray(8))),
    ("sizes of contexts", lambda b: b.gsp.contexts(1, bytearray(8))),
)
OF_MEMORY: Final[tuple[Case, ...]] = (
    ("a bus address twice", lambda b: b.memory.pin(b.host, HUGE, BUS)),
    ("a read over a page's end", lambda b: b.memory.host_of(BUS + HUGE - 8, 16)),
    ("the card's memory beyond", lambda b: b.memory.video(b.memory.size, 1)),
    ("a table between pages", lambda b: b.memory.table(BUS + 8, 2)),
    ("a page of an upper level", lambda b: b.memory.walk(b.tables(b.named(0) | 1))),
    ("a table in another memory", lambda b: b.memory.walk(b.tables(b.named(0) | 3 << 1))),
    ("an entry that is not valid", lambda b: b.memory._page(6 << 56, 0, PAGE)),
    ("a huge page between others", lambda b: b.memory._page(6 << 56 | 1 | 1 << 8, 0, HUGE)),
    ("a page that is cached", lambda b: b.memory._page(6 << 56 | 1 | 2 << 1, 0, PAGE)),
    ("a page of another card", lambda b: b.memory._page(6 << 56 | 1 | 1 << 1, 0, PAGE)),
    ("a page as the root of BAR1", lambda b: b.memory.show(b.named(0) | 1)),
    ("a root of BAR1 on the card", lambda b: b.memory.show(b.named(0) & ~6)),
    ("a window beyond BAR1", lambda b: b.show(6 << 56 | 1, size=16)),
    (
        "memory of the system in BAR1",
        lambda b: b.show(6 << 56 | 1 | 2 << 1 | 1 << 3 | BUS >> 12 << 8),
    ),
)
OF_QUEUES: Final[tuple[Case, ...]] = (
    ("a resume", lambda b: b.queues(resumes=1)),
    ("the first page", lambda b: b.queues(root=PAGE)),
    ("another number of pages", lambda b: b.queues(count=128)),
    ("commands between pages", lambda b: b.queues(commands=PAGE + 8)),
    ("answers between pages", lambda b: b.queues(status=PAGE + QUEUE + 8)),
    ("queues in one place", lambda b: b.queues(status=PAGE)),
    ("the head of a queue", lambda b: b.queues(flags=0)),
    ("a part without a beginning", lambda b: b.message(0x47)),
    ("a queue that is written beyond", lambda b: b.message(written=COUNT)),
    ("a number", lambda b: b.message(sequence=5)),
    ("elements", lambda b: b.message(count=0)),
    ("a version", lambda b: b.message(version=4 << 24)),
    ("words before the checksum", lambda b: b.message(first=1)),
    ("elements of another length", lambda b: b.message(length=9000)),
    ("a checksum", lambda b: b.message(damage=1)),
    (
        "a host that reads nothing",
        lambda b: [b_queues.send(1, b"") for b_queues in [b.queues()] * 99],
    ),
)
OF_OBJECTS: Final[tuple[Case, ...]] = (
    ("memory", lambda r: r.alloc(SPACE, at_12_4=0x40)),
    ("an address space below a part", lambda r: r.alloc(SPACE, at_4_4=r.part)),
    ("flags of an address space", lambda r: r.alloc(SPACE, at_36_4=0)),
    ("an address space between pages", lambda r: r.alloc(SPACE, at_72_8=0x1001)),
    ("an address space of a kind", lambda r: r.alloc(SPACE, at_32_4=1)),
    ("a channel below a device", lambda r: r.channel(at_4_4=r.devices)),
    ("a channel of a group that runs", lambda r: r.alloc(CHANNEL)),
    ("a ring without entries", lambda r: r.channel(at_48_4=0)),
    ("a ring of three entries", lambda r: r.channel(at_48_4=3)),
    ("a channel without page tables", lambda r: r.without_tables()),
    ("flags of a channel", lambda r: r.channel(at_276_4=0)),
    ("a handle of USERD", lambda r: r.channel(at_64_4=5)),
    ("RAMFC elsewhere", lambda r: r.channel(at_224_8=0x100_0000)),
    ("USERD in the system", lambda r: r.channel(at_216_4=1)),
    ("USERD that is short", lambda r: r.channel(at_208_8=16)),
    ("USERD between", lambda r: r.channel(at_200_8=0x100_0004)),
    ("an engine without contexts", lambda r: r.without_contexts()),
    ("a context that is filled", lambda r: r.promoted(r.entries[3][0] + 30, 1, 1)),
    ("a context that is hidden", lambda r: r.promoted(r.entries[0][0] + 31, 1, 1)),
    ("a context that is short", lambda r: r.promoted(r.entries[0][0] + 16, 4096, 8)),
    ("contexts that are missing", lambda r: r.promoted(40, 7, 4)),
    (
        "a context that is not mapped",
        lambda r: r.promoted(r.entries[3][0] + 8, 0x5000_0000_0000, 8),
    ),
    ("a context at an end", lambda r: r.at_the_end()),
    ("a context elsewhere", lambda r: r.promoted(r.entries[2][0] + 8, r.entries[0][1][1], 8)),
    ("tables of another device", lambda r: r.directory(4, r.client)),
    ("tables of nobody", lambda r: r.orphaned()),
    ("tables of a process", lambda r: r.directory(8, 1)),
    ("tables of another size", lambda r: r.directory(24, 8)),
)


def on(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    """A test for each case, by its name."""
    return pytest.mark.parametrize("case", [c for _, c in cases], ids=[name for name, _ in cases])


def check(case: Callable[[Any], Any], bench: Any) -> None:
    """A program is found wrong, or refused with a status."""
    try:
        status = case(bench)
    except (Mistake, Refused):
        return
    assert isinstance(status, int)
    assert status


@on(OF_FALCON)
def test_falcons(case: Callable[[Any], Any]) -> None:
    check(case, Bench())


@on(OF_FSP)
def test_the_security_processor(case: Callable[[Any], Any]) -> None:
    check(case, Bench(0x18))


@on(OF_GSP)
def test_messages(case: Callable[[Any], Any]) -> None:
    check(case, Bench())


@on(OF_MEMORY)
def test_memory(case: Callable[[Any], Any]) -> None:
    check(case, Bench())


@on(OF_QUEUES)
def test_queues(case: Callable[[Any], Any]) -> None:
    check(case, Bench())


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.machine.chips[0].reset()


@on(OF_OBJECTS)
def test_objects(case: Callable[[Any], Any], running: Running) -> None:
    check(case, running)
