"""The way to a card over the kernel's files: registers, blocks, configuration, system memory."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tiny_amd.am.bus import DOORBELL_BAR, MEMORY_BAR, PAGE, REGISTER_BAR, KernelBus
from tiny_amd.am.cards import TakenCard, cards_on_bus, verify_machine
from tiny_hcq import LinuxSystem, PciFunction
from tiny_testing.standin import StandInFiles
from tinycore.errors import DeviceUnavailable, OutOfMemory

ADDRESS = "0000:03:00.0"
FOLDER = f"/sys/bus/pci/devices/{ADDRESS}"
SIZES = (1 << 20, 0, 1 << 16, 0, 0, 1 << 17)
TAKE = [f"drivers/amdgpu/unbind {ADDRESS}", f"devices/{ADDRESS}/enable 1"]


@dataclass
class Files(StandInFiles):
    """A machine with one card, whose BARs are files in memory that are really mapped."""

    refused: dict[str, int] = field(default_factory=dict)
    is_bound: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        self.host = LinuxSystem()
        self.contents = {f"resource{n}": os.memfd_create(f"bar{n}") for n in (0, 2, 5)}
        for name, file in self.contents.items():
            os.ftruncate(file, SIZES[int(name[-1])])
        self.contents["config"] = os.memfd_create("config")
        os.ftruncate(self.contents["config"], PAGE)
        self.written: list[str] = []
        self.mapped: set[int] = set()

    def texts(self) -> dict[str, str]:
        lines = [f"0x{1 << 32:x} 0x{(1 << 32) + n - 1:x} 0x0\n" if n else "0 0 0\n" for n in SIZES]
        found = {
            f"{FOLDER}/vendor": "0x1002\n",
            f"{FOLDER}/device": "0x744c\n",
            f"{FOLDER}/class": "0x030000\n",
            f"{FOLDER}/enable": "0\n",
            f"{FOLDER}/resource": "".join(lines),
            f"{FOLDER}/iommu_group/type": "identity\n",
            "/sys/bus/pci/devices/0000:03:00.1/vendor": "0x1002\n",
            "/sys/bus/pci/devices/0000:03:00.1/class": "0x040300\n",  # its sound
            "/sys/bus/pci/drivers/amdgpu/bind": "",
            "/proc/sys/vm/compact_unevictable_allowed": "0\n",
        }
        if self.is_bound:
            found[f"/sys/bus/pci/drivers/amdgpu/{ADDRESS}/vendor"] = "0x1002\n"
        return found

    def check(self, path: str) -> None:
        for end, number in self.refused.items():
            if path.endswith(end):
                raise OSError(number, os.strerror(number), path)

    def write_text(self, path: str, text: str) -> None:
        self.check(path)
        self.written.append(f"{path.removeprefix('/sys/bus/pci/')} {text}")
        if path.endswith("bind"):
            self.is_bound = not path.endswith("unbind")

    def open(self, path: str) -> int:
        self.check(path)
        return os.dup(self.contents[path.rpartition("/")[2]])

    def close(self, file: int) -> None:
        os.close(file)

    def ioctl(self, file: int, request: int, argument: int) -> int:
        raise AssertionError("the bus has no ioctls")

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        self.check("mmap")
        # what is locked is not counted against this user's limit
        found = self.host.map(address, size, protection, flags & ~0x2000, file, offset)
        self.mapped.add(found)
        return found

    def unmap(self, address: int, size: int) -> None:
        self.mapped.remove(address)
        self.host.unmap(address, size)

    def content(self, name: str, offset: int, size: int) -> bytes:
        return os.pread(self.contents[name], size, offset)


@pytest.fixture
def machine() -> Files:
    return Files()


@pytest.fixture
def card(machine: Files) -> PciFunction:
    return cards_on_bus(machine)[0]


@pytest.fixture
def bus(machine: Files, card: PciFunction) -> Iterator[KernelBus]:
    found = TakenCard(machine, card).open_bus()
    yield found
    found.close()
    assert not machine.mapped


def test_the_card_is_found_and_its_sound_is_not(machine: Files) -> None:
    (found,) = cards_on_bus(machine)

    assert str(found) == "card 0000:03:00.0 (1002:744c)"
    assert (found.driver, found.bar_bytes) == ("amdgpu", SIZES)


def test_registers_are_words_at_their_offsets(machine: Files, bus: KernelBus) -> None:
    bus.write32(REGISTER_BAR, 0x5800, 0x12345678)

    assert machine.content("resource5", 0x5800, 4) == bytes.fromhex("78563412")
    assert bus.read32(REGISTER_BAR, 0x5800) == 0x12345678
    assert bus.read32(REGISTER_BAR, 0x5804) == 0


def test_doorbells_are_written_at_once(machine: Files, bus: KernelBus) -> None:
    bus.write64(DOORBELL_BAR, 0x30, 1 << 40 | 7)

    assert machine.content("resource2", 0x30, 8) == (1 << 40 | 7).to_bytes(8, "little")


def test_blocks_of_memory_of_any_length(machine: Files, bus: KernelBus) -> None:
    content = os.urandom(1004)
    bus.write_block(MEMORY_BAR, 0x1004, content)
    bus.write_block(MEMORY_BAR, 0x3000, memoryview(content)[:8])

    assert machine.content("resource0", 0x1004, 1004) == content
    assert bus.read_block(MEMORY_BAR, 0x1004, 1004) == content
    assert bus.read_block(MEMORY_BAR, 0x3000, 12) == content[:8] + bytes(4)


def test_configuration(machine: Files, bus: KernelBus) -> None:
    bus.write_config(4, 2, 0x0406)

    assert machine.content("config", 0, 8) == bytes((0, 0, 0, 0, 6, 4, 0, 0))
    assert bus.read_config(4, 2) == 0x0406


def test_system_memory_is_that_of_its_bus_addresses(bus: KernelBus) -> None:
    if os.geteuid():
        pytest.skip("frames are told to root alone")
    try:
        memory = bus.allocate(5000)
    except Exception as error:
        pytest.skip(f"this system tells no frames: {error}")

    assert memory.size == 2 * PAGE
    assert len(set(memory.pages)) == 2
    assert not any(page % PAGE for page in memory.pages)
    memory.host[0:4] = b"card"
    bus.free(memory)


def test_memory_that_cannot_be_locked(machine: Files, bus: KernelBus) -> None:
    machine.refused["mmap"] = errno.ENOMEM
    with pytest.raises(OutOfMemory, match="ulimit -l"):
        bus.allocate(PAGE)


@pytest.mark.parametrize("name", ["resource0", "resource5", "config"])
def test_files_that_the_kernel_refuses(machine: Files, card: PciFunction, name: str) -> None:
    machine.refused[name] = errno.EPERM
    taken = TakenCard(machine, card)

    with pytest.raises(DeviceUnavailable, match=f"{name} of card .* locked down"):
        taken.open_bus()
    assert not machine.mapped
    assert not taken.give_back()
    assert machine.written == [*TAKE, f"drivers/amdgpu/bind {ADDRESS}"]


def test_a_card_that_is_not_let_go(machine: Files, card: PciFunction) -> None:
    machine.refused["unbind"] = errno.EACCES
    with pytest.raises(DeviceUnavailable, match="needs root"):
        TakenCard(machine, card)
    assert machine.is_bound


def test_a_driver_that_does_not_take_it_back(machine: Files, card: PciFunction) -> None:
    taken = TakenCard(machine, card)
    machine.refused["amdgpu/bind"] = errno.EIO
    assert "echo 0000:03:00.0 > /sys/bus/pci/drivers/amdgpu/bind" in taken.give_back()


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        (f"{FOLDER}/iommu_group/type", "DMA-FQ\n", "iommu=pt"),
        ("/proc/sys/vm/compact_unevictable_allowed", "1\n", "sysctl"),
    ],
)
def test_machines_whose_memory_moves(
    machine: Files,
    card: PciFunction,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    text: str,
    said: str,
) -> None:
    verify_machine(machine, card)
    texts = {**machine.texts(), path: text}
    monkeypatch.setattr(machine, "texts", lambda: texts)
    with pytest.raises(DeviceUnavailable, match=said):
        verify_machine(machine, card)


def test_a_card_without_addresses(machine: Files) -> None:
    bars = tuple((0, size) for size in (1 << 28, 0, 0, 0, 0, 1 << 20))
    card = PciFunction(ADDRESS, 0x1002, 0x744C, "", bars)
    with pytest.raises(DeviceUnavailable, match="no BAR2"):
        verify_machine(machine, card)


def test_a_mapping_is_shared(bus: KernelBus, machine: Files) -> None:
    pages = mmap.mmap(machine.contents["resource5"], SIZES[5])
    pages[8:12] = b"\xff" * 4
    assert bus.read32(REGISTER_BAR, 8) == 0xFFFFFFFF
