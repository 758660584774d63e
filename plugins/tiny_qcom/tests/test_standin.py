"""Checks of the stand-in of KGSL, each asked for something wrong by calls without the driver."""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from adreno.kgsl import Kgsl

from tiny_qcom import kgsl
from tiny_qcom.kgsl import COMMAND_OBJECT, Call, address_of
from tiny_qcom.probe import DEVICE_FILE

PAGE = 4096
GOOD_CONTEXT = 0x12
NOP = 0x7010_0001
MARKER = {"cmdlist": 0, "cmdsize": 0, "numcmds": 0}


class Client:
    """A process that has the device file open."""

    def __init__(self, driver: Kgsl) -> None:
        self.driver = driver
        self.file = driver.open(DEVICE_FILE)
        self.kept: list[Any] = []

    def ask(self, made: Call, **values: int) -> dict[str, int]:
        """A call; what the driver wrote."""
        argument = made.pack(**values)
        self.driver.ioctl(self.file, made.request, argument)
        return made.unpack(argument)

    def status(self, made: Call, **values: int) -> int:
        """The number of the error that a call ends with; 0 without one."""
        try:
            self.ask(made, **values)
        except OSError as error:
            return error.errno or 0
        return 0

    def keep(self, data: bytes) -> int:
        """Bytes of this process; their address."""
        self.kept.append(bytearray(data))
        return address_of(self.kept[-1])

    def allocate(self, size: int = PAGE, flags: int = kgsl.MEMORY_CPU_MAP) -> dict[str, int]:
        return self.ask(kgsl.OBJECT_ALLOCATE, size=size, flags=flags)

    def mapped(self, size: int = PAGE) -> tuple[int, mmap.mmap]:
        """An object and its mapping."""
        made = self.allocate(size)
        return made["id"], self.driver.map(self.file, made["mmapsize"], made["id"] * PAGE)

    def context(self, flags: int = GOOD_CONTEXT) -> int:
        return self.ask(kgsl.CONTEXT_CREATE, flags=flags)["drawctxt_id"]

    def command(self, context: int, *pieces: tuple[int, int, int], **values: int) -> int:
        """Status of a submission of pieces: address, bytes and flags of each."""
        data = b"".join(
            COMMAND_OBJECT.pack(0, place, size, flag, 0) for place, size, flag in pieces
        )
        values = {"cmdlist": self.keep(data), "cmdsize": 32, "numcmds": len(pieces)} | values
        return self.status(kgsl.COMMAND, context_id=context, **values)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client(Kgsl())
    yield made
    made.driver.close(made.file)


def test_files_and_calls(client: Client) -> None:
    with pytest.raises(OSError, match="ENOENT"):
        client.driver.open(Path("/dev/kgsl-3d1"))
    with pytest.raises(OSError, match="ENOTTY"):
        client.driver.ioctl(client.file, 0xC0040901, bytearray(4))
    with pytest.raises(Exception, match="has 23 bytes"):
        client.driver.ioctl(client.file, kgsl.GET_PROPERTY.request, bytearray(23))
    with pytest.raises(OSError, match="EBADF"):
        client.driver.ioctl(7, kgsl.GET_PROPERTY.request, bytearray(24))
    with pytest.raises(OSError, match="EBADF"):
        client.driver.map(7, PAGE, PAGE)


@pytest.mark.parametrize(("size", "rounded"), [(1, 4096), (4096, 4096), (4097, 8192)])
def test_an_object_has_whole_pages_and_an_id(client: Client, size: int, rounded: int) -> None:
    first, second = client.allocate(size), client.allocate(size, 1 << 33 | kgsl.MEMORY_CPU_MAP)
    assert (first["id"], second["id"]) == (1, 2)
    assert first["size"] == first["mmapsize"] == rounded
    assert second["mmapsize"] == rounded + PAGE, "a guard page"


@pytest.mark.parametrize("size", [0, 1 << 32])
def test_sizes_that_no_object_has(client: Client, size: int) -> None:
    asked = {"size": size, "flags": kgsl.MEMORY_CPU_MAP}
    assert client.status(kgsl.OBJECT_ALLOCATE, **asked) == errno.EINVAL


def test_a_mapping_has_the_size_and_the_address_of_its_object(client: Client) -> None:
    made = client.allocate(2 * PAGE)
    for size, place, status in (
        (PAGE, made["id"] * PAGE, "ERANGE"),
        (2 * PAGE, 9 * PAGE, "EINVAL"),
        (2 * PAGE, made["id"] * PAGE + 1, "EINVAL"),
    ):
        with pytest.raises(OSError, match=status):
            client.driver.map(client.file, size, place)
    mapping = client.driver.map(client.file, 2 * PAGE, made["id"] * PAGE)
    assert client.driver.objects[1].address == address_of(mapping)
    with pytest.raises(OSError, match="EBUSY"):
        client.driver.map(client.file, 2 * PAGE, made["id"] * PAGE)


@pytest.mark.parametrize("first", ["free", "unmap"])
def test_memory_is_freed_and_unmapped_in_either_order(client: Client, first: str) -> None:
    number, mapping = client.mapped()
    if first == "unmap":
        del mapping
    else:
        mapping[:4] = b"kept"
    assert client.status(kgsl.OBJECT_FREE, id=number) == 0
    assert first == "unmap" or mapping[:4] == b"kept"
    assert client.status(kgsl.OBJECT_FREE, id=number) == errno.EINVAL
    assert not client.driver.objects
    assert not client.driver.memory.regions


def test_properties(client: Client) -> None:
    place = client.keep(bytes(40))
    assert client.status(kgsl.GET_PROPERTY, type=1, value=place, sizebytes=40) == 0
    _, chip, mmu, _, _, _, _, gmem = kgsl.DEVICE_INFO.unpack(client.kept[-1])
    assert (chip, mmu, gmem) == (0x0603_0001, 1, 1 << 20)
    for kind, size in ((1, 39), (0x77, 40)):
        asked = {"type": kind, "value": place, "sizebytes": size}
        assert client.status(kgsl.GET_PROPERTY, **asked) == errno.EINVAL


@pytest.mark.parametrize(
    ("size", "kind", "level", "length", "right_context"),
    [
        (23, 1, 1, 4, True),
        (24, 2, 1, 4, True),
        (24, 1, 2, 4, True),
        (24, 1, 1, 8, True),
        (24, 1, 1, 4, False),
    ],
)
def test_power_constraints_that_are_refused(
    client: Client, size: int, kind: int, level: int, length: int, right_context: bool
) -> None:
    context = client.context() + (0 if right_context else 5)
    data = client.keep(struct.pack("<II", level, 0))
    constraint = client.keep(kgsl.CONSTRAINT.pack(kind, context, data, length))
    asked = {"type": kgsl.PROPERTY_POWER, "value": constraint, "sizebytes": size}
    assert client.status(kgsl.SET_PROPERTY, **asked) == errno.EINVAL


def test_a_context_states_what_is_mandatory_and_gets_what_is_forced(client: Client) -> None:
    for flags in (0, 0x2, 0x10):
        assert client.status(kgsl.CONTEXT_CREATE, flags=flags) == errno.EINVAL
    made = client.ask(kgsl.CONTEXT_CREATE, flags=GOOD_CONTEXT | 1 << 31 | 1 << 8)
    assert made["flags"] == GOOD_CONTEXT | 0x40 | 8 << 12
    other = client.ask(kgsl.CONTEXT_CREATE, flags=GOOD_CONTEXT | 3 << 12)
    assert other["flags"] == GOOD_CONTEXT | 0x40 | 3 << 12
    assert other["drawctxt_id"] != made["drawctxt_id"]
    assert client.status(kgsl.CONTEXT_DESTROY, drawctxt_id=99) == errno.EINVAL


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"len": 0}, errno.EINVAL),
        ({"len": 100}, errno.EINVAL),
        ({"offset": PAGE}, errno.EINVAL),
        ({"hostptr": 64}, errno.EINVAL),
        ({"memtype": 1}, errno.EINVAL),
    ],
)
def test_pages_that_are_not_imported(client: Client, change: dict[str, int], status: int) -> None:
    pages = mmap.mmap(-1, 2 * PAGE)
    start = address_of(pages)
    asked = {"len": PAGE, "hostptr": start, "memtype": kgsl.MEMORY_USER}
    assert client.status(kgsl.MAP_USER_MEMORY, **asked) == 0
    asked |= {name: value + (start if name == "hostptr" else 0) for name, value in change.items()}
    assert client.status(kgsl.MAP_USER_MEMORY, **asked) == status


def test_imported_pages_are_shared_and_lie_elsewhere(client: Client) -> None:
    pages = mmap.mmap(-1, PAGE)
    asked = {"len": PAGE, "memtype": kgsl.MEMORY_USER}
    found = client.ask(kgsl.MAP_USER_MEMORY, hostptr=address_of(pages), **asked)["gpuaddr"]
    assert found != address_of(pages)
    pages[8:12] = b"same"
    seen = client.driver.memory.load(numpy.array([found + 8], "Q"), 4, 1)[0]
    assert int(seen[0]).to_bytes(4, "little") == b"same"
    assert client.status(kgsl.SHARED_FREE, gpuaddr=found) == 0
    assert client.status(kgsl.SHARED_FREE, gpuaddr=found) == errno.EINVAL
    _, mapping = client.mapped()
    own = address_of(mapping)
    assert client.status(kgsl.MAP_USER_MEMORY, hostptr=own, **asked) == errno.EFAULT


def test_pages_that_may_only_be_read_are_imported_for_that(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE))
    array = numpy.memmap(tmp_path / "file", numpy.uint8, "r")
    asked = {"len": PAGE, "hostptr": array.ctypes.data, "memtype": kgsl.MEMORY_USER}
    assert client.status(kgsl.MAP_USER_MEMORY, **asked) == errno.EFAULT
    assert client.status(kgsl.MAP_USER_MEMORY, flags=kgsl.MEMORY_READ_ONLY, **asked) == 0


def test_submissions_that_are_refused(client: Client) -> None:
    number, mapping = client.mapped()
    start, context = address_of(mapping), client.context()
    mapping[:8] = struct.pack("<II", NOP, 0)
    good = (start, 8, 1)
    assert client.command(context, good) == 0
    wrong: list[int] = [
        client.command(context + 5, good),
        client.command(context, *[good] * 2001),
        client.command(context, good, cmdlist=0),
        client.command(context, good, numcmds=0),
        client.command(context, good, cmdsize=24),
        client.command(context, (start, 8, 0)),
        client.command(context, (start, 0, 1)),
        client.command(context, (start, 4 << 20, 1)),
        client.command(context, (start + 2, 8, 1)),
        client.command(context, (start + PAGE, 8, 1)),
    ]
    assert wrong == [errno.EINVAL] * len(wrong)
    assert client.status(kgsl.OBJECT_FREE, id=number) == 0
    assert client.command(context, good) == errno.EINVAL, "commands in memory that is gone"
    assert not client.driver.faults


def test_timestamps_count_submissions_of_a_context_and_are_waited_for(client: Client) -> None:
    first, second = client.context(), client.context()
    for expected in (1, 2, 3):
        found = client.ask(kgsl.COMMAND, context_id=first, **MARKER)["timestamp"]
        assert found == expected
    assert client.ask(kgsl.COMMAND, context_id=second, **MARKER)["timestamp"] == 1
    waits = {"context_id": first, "timeout_ms": 0xFFFF_FFFF}
    assert client.status(kgsl.WAIT_TIMESTAMP, timestamp=3, **waits) == 0
    assert client.status(kgsl.WAIT_TIMESTAMP, timestamp=4, **waits) == errno.EINVAL
    assert client.status(kgsl.WAIT_TIMESTAMP, context_id=9, timestamp=1) == errno.EINVAL
    client.driver.going.clear()
    client.ask(kgsl.COMMAND, context_id=first, **MARKER)
    asked = {"context_id": first, "timestamp": 4}
    assert client.status(kgsl.WAIT_TIMESTAMP, timeout_ms=10, **asked) == errno.ETIMEDOUT
    client.driver.going.set()
    assert client.status(kgsl.WAIT_TIMESTAMP, timeout_ms=0xFFFF_FFFF, **asked) == 0


def test_a_fault_is_told_once(client: Client) -> None:
    """By the wait, or the next submission, whichever comes first; the context lives on."""
    _, mapping = client.mapped()
    context = client.context()
    mapping[:8] = struct.pack("<II", NOP ^ 1 << 15, 0)
    assert client.command(context, (address_of(mapping), 8, 1)) == 0
    waits = {"context_id": context, "timestamp": 1, "timeout_ms": 5000}
    assert client.status(kgsl.WAIT_TIMESTAMP, **waits) == errno.EPROTO
    assert client.status(kgsl.WAIT_TIMESTAMP, **waits) == 0
    assert client.status(kgsl.COMMAND, context_id=context, **MARKER) == 0
    assert "has the wrong parity" in client.driver.faults[0]
