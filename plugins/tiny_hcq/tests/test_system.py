"""System calls of drivers on this machine, and stand-ins in place of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from mmap import MAP_SHARED, PAGESIZE, PROT_READ, PROT_WRITE
from pathlib import Path

import pytest

from tiny_hcq import (
    MAP_FIXED,
    MAP_RESERVED,
    LinuxSystem,
    _cdef,
    _native,
    address_of,
    bytes_at,
    errno_text,
    system,
    use_system,
)
from tiny_testing.native import write_native
from tiny_testing.standin import StandInFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drivers by system calls: Linux")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Two pages of a file, open to read and write: of ones, then of twos."""
    path = tmp_path / "pages"
    path.write_bytes(b"\1" * PAGESIZE + b"\2" * PAGESIZE)
    number = LinuxSystem().open(str(path))
    yield number
    LinuxSystem().close(number)


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"
    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)
    assert made.read_text() == Path(_native.__file__).read_text(), "see tiny_hcq/_cdef.py"


def test_the_face_of_plugins_needs_no_cffi() -> None:
    script = "import sys, tinycore.plugin; print('_cffi_backend' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_a_file_is_mapped_in_place_of_reserved_addresses(file: int) -> None:
    machine = LinuxSystem()
    begin = machine.map(0, 2 * PAGESIZE, 0, MAP_RESERVED, -1, 0)

    found = machine.map(
        begin + PAGESIZE, PAGESIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, PAGESIZE
    )

    assert found == begin + PAGESIZE
    view = bytes_at(found, PAGESIZE)
    assert bytes(view) == b"\2" * PAGESIZE
    view[:3] = b"abc"
    assert os.pread(file, 4, PAGESIZE) == b"abc\2"
    machine.unmap(begin, 2 * PAGESIZE)
    machine.map(begin, PAGESIZE, 0, MAP_RESERVED | MAP_FIXED, -1, 0)  # it is free again
    machine.unmap(begin, PAGESIZE)


def test_a_mapping_that_fails_names_the_error(file: int) -> None:
    with pytest.raises(OSError, match=f"mmap of {PAGESIZE} bytes: Invalid argument") as raised:
        LinuxSystem().map(0, PAGESIZE, PROT_READ, MAP_SHARED, file, 1)
    assert raised.value.errno == errno.EINVAL


def test_an_offset_of_64_bits_is_passed_as_it_is(file: int) -> None:
    """The driver sees bit 63 and refuses: it is no matter of Python's or cffi's."""
    with pytest.raises(OSError, match="mmap of"):
        LinuxSystem().map(0, PAGESIZE, PROT_READ, MAP_SHARED, file, 1 << 63)


def test_a_request_ends_with_an_errno(file: int) -> None:
    argument = bytearray(8)

    assert LinuxSystem().ioctl(file, 0xC0084B03, address_of(argument)) == errno.ENOTTY
    assert LinuxSystem().ioctl(-1, 0xC0084B03, address_of(argument)) == errno.EBADF


def test_a_request_fills_its_structure() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"seven b")
    available = bytearray(4)
    try:
        assert LinuxSystem().ioctl(reading, 0x541B, address_of(available)) == 0  # FIONREAD
    finally:
        os.close(reading)
        os.close(writing)
    assert available == b"\7\0\0\0"


def test_files_and_folders() -> None:
    machine = LinuxSystem()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "b").write_text("text\n")
        Path(folder, "a").touch()
        assert machine.names(folder) == ["a", "b"]
        assert machine.read_text(f"{folder}/b") == "text\n"
        assert machine.exists(f"{folder}/a")
        assert machine.is_usable(f"{folder}/a")
    assert (machine.names(folder), machine.read_text(f"{folder}/b")) == ([], "")
    assert not machine.exists(f"{folder}/a")
    assert not machine.is_usable(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        machine.open(f"{folder}/a")


def test_addresses_of_buffers_and_pointers() -> None:
    memory = bytearray(b"hello")
    pointer = _native.ffi.new("int[2]", [5, 6])

    assert bytes(bytes_at(address_of(memory), 5)) == b"hello"
    assert address_of(memoryview(memory)[2:]) == address_of(memory) + 2
    assert bytes(bytes_at(address_of(pointer), 8)) == b"\5\0\0\0\6\0\0\0"


def test_an_errno_is_told_by_name() -> None:
    assert errno_text(errno.EINVAL) == "EINVAL: Invalid argument"
    assert errno_text(9999).startswith("9999: ")


class Machine(StandInFiles):
    """A driver whose requests all end with the same errno."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status

    def texts(self) -> dict[str, str]:
        return {"/sys/class/toy/card0/version": "3\n", "/sys/class/toy/card1/version": "4\n"}

    def device_files(self) -> set[str]:
        return {"/dev/toy0", "/dev/toy1"}

    def open(self, path: str) -> int:
        self.verify_path(path)
        return 77

    def close(self, file: int) -> None:
        assert file == 77

    def ioctl(self, file: int, request: int, argument: int) -> int:
        return self.status

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        return LinuxSystem().map(address, size, protection, MAP_RESERVED, -1, 0)

    def unmap(self, address: int, size: int) -> None:
        LinuxSystem().unmap(address, size)


def test_a_stand_in_takes_the_place_of_the_machine() -> None:
    before = system()
    with use_system(Machine(errno.EIO)):
        assert system().ioctl(system().open("/dev/toy0"), 1, 0) == errno.EIO
        with use_system(Machine(errno.EBUSY)):
            assert system().ioctl(77, 1, 0) == errno.EBUSY
        assert system().ioctl(77, 1, 0) == errno.EIO
    assert system() is before


def test_files_of_a_stand_in() -> None:
    machine = Machine(0)
    machine.missing.add("/dev/toy1")
    machine.forbidden.add("/sys/class/toy/card1/version")

    assert machine.names("/dev") == ["toy0"]
    assert machine.names("/sys/class/toy/") == ["card0", "card1"]
    assert machine.names("/sys/class/toy/card0") == ["version"]
    assert machine.read_text("/sys/class/toy/card0/version") == "3\n"
    assert machine.read_text("/sys/class/toy/card1/version") == ""
    assert machine.exists("/sys/class/toy/card1/version")
    assert not machine.is_usable("/sys/class/toy/card1/version")
    assert not machine.exists("/dev/toy1")
    with pytest.raises(FileNotFoundError, match="/dev/toy1"):
        machine.open("/dev/toy1")
    with pytest.raises(PermissionError, match="card1/version"):
        machine.open("/sys/class/toy/card1/version")
