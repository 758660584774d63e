"""A machine with cards on its bus, as a process of root sees it.

sysfs answers as drivers/pci/pci-sysfs.c and drivers/base/bus.c of Linux 6.12 do. BARs are windows
whose every access the card sees; memory of the system is pages that the card addresses by numbers
of their own.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from typing import Final

from emulation.backing import Backing
from kfd_standin.gpu import Mistake

from pci_standin.card import PciGpu
from pci_standin.tables import discovery_table, firmware_files
from pci_standin.translation import bus_address
from tiny_amd.am.firmware import Versions, read_firmware
from tiny_testing.standin import StandInFiles

__all__ = ["ADDRESS", "PciMachine"]

DEVICES, DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
ADDRESS: Final = "0000:03:00.0"
PAGE: Final = 4096
BAR_BYTES: Final = {2: 256 << 20, 5: 1 << 20}
COMMAND: Final = 4
BUS_MASTER: Final = 4
ANONYMOUS: Final = 0x20
RESERVED: Final = 0x4000


class PciMachine(StandInFiles):
    """A machine; `use_system` puts it in place."""

    def __init__(
        self, cards: int = 1, *, driver: str = "amdgpu", bar0_bytes: int = 1 << 30
    ) -> None:
        super().__init__()
        self.backing = Backing()
        self.lock = threading.RLock()
        self.bar0_bytes = bar0_bytes
        self.files = firmware_files()
        self.gpus = [PciGpu(backing=self.backing) for _ in range(cards)]
        self.drivers = [driver] * cards
        self.enabled = [bool(driver)] * cards
        self.open_windows: set[CardWindow] = set()
        self.written: list[str] = []
        """Files that were written, with what."""
        self.refused: dict[str, int] = {}
        """Ends of paths, and the errno of writing or opening them."""
        self.extra: dict[str, str] = {}
        """Texts of files in place of what is there."""
        self.places: dict[int, tuple[int, int]] = {}
        """Place in the backing, and bytes, by address of the process."""
        for gpu in self.gpus:
            self.put_firmware(gpu)

    def put_firmware(self, gpu: PciGpu) -> None:
        """Write the card's discovery table, and the firmware that it accepts."""
        table = discovery_table()
        begin = gpu.vram_bytes - (64 << 10)
        gpu.vram[begin : begin + len(table)] = list(table)
        gpu.firmware = read_firmware(self, Versions("13_0_0", "13_0_0", "6_0_0", "11_0_0"), "card")

    # --- files

    def address(self, number: int) -> str:
        """The address of a card on the bus."""
        return f"0000:{3 + number:02x}:00.0"

    def texts(self) -> dict[str, str]:
        """Files of sysfs and of the kernel's settings."""
        found = {f"{DRIVERS}/{name}/bind": "" for name in ("amdgpu", "vfio-pci")}
        found["/proc/sys/vm/compact_unevictable_allowed"] = "0\n"
        for number, driver in enumerate(self.drivers):
            address = self.address(number)
            folder = f"{DEVICES}/{address}"
            sizes = {0: self.bar0_bytes, **BAR_BYTES}
            begin, empty = 1 << 38, "0 0 0\n"
            lines = [
                f"0x{begin:x} 0x{begin + sizes[bar] - 1:x} 0x0\n" if bar in sizes else empty
                for bar in range(6)
            ]
            found |= {
                f"{folder}/vendor": "0x1002\n",
                f"{folder}/device": "0x744c\n",
                f"{folder}/class": "0x030000\n",
                f"{folder}/enable": f"{int(self.enabled[number])}\n",
                f"{folder}/resource": "".join(lines),
                f"{folder}/iommu_group/type": "identity\n",
            }
            if driver:
                found[f"{DRIVERS}/{driver}/{address}/vendor"] = "0x1002\n"
        return {**found, **self.extra}

    def device_files(self) -> set[str]:
        return set(self.files)

    def read_bytes(self, path: str) -> bytes:
        """The content of a file of firmware. Raises OSError."""
        self.check(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.files[path]

    def check(self, path: str) -> None:
        """Fail as the system does where a test wants it."""
        for end, number in self.refused.items():
            if path.endswith(end):
                raise OSError(number, os.strerror(number), path)

    def number_of(self, path: str) -> int:
        """The card that a file of sysfs is about."""
        return next(n for n in range(len(self.gpus)) if self.address(n) in path)

    def write_text(self, path: str, text: str) -> None:
        """Write a file of sysfs."""
        self.check(path)
        self.written.append(f"{path.removeprefix('/sys/bus/pci/')} {text}")
        folder, _, name = path.rpartition("/")
        if name in ("bind", "unbind"):
            self.move(folder.rpartition("/")[2], name, text)
        elif name == "enable":
            number = self.number_of(path)
            if self.drivers[number]:
                raise Mistake(f"enable of a card is written, which {self.drivers[number]} has")
            self.enabled[number] = text == "1"
        else:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def move(self, driver: str, name: str, address: str) -> None:
        """Take a card from a driver, or give it to one."""
        number = self.number_of(address)
        if self.drivers[number] != (driver if name == "unbind" else ""):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), driver)
        if any(window.number == number for window in self.open_windows):
            raise Mistake(f"{driver} gets {address}, whose registers are open")
        gpu = self.gpus[number]
        if name == "bind" and (gpu.is_bus_master or gpu.rings) and not gpu.is_gone:
            raise Mistake(f"{driver} gets {address}, which may still write to memory")
        self.drivers[number] = driver if name == "bind" else ""

    def run_as_left_by_driver(self) -> None:
        """Have cards be as amdgpu leaves them: their processors run."""
        for gpu in self.gpus:
            gpu.security.is_alive = gpu.power.is_alive = True
            gpu.set("PSP_ALIVE", 0x00130000)
            gpu.switch_on()
            gpu.is_bus_master = True

    # --- windows

    def window(self, path: str, size: int) -> CardWindow:
        """Open a file of sysfs."""
        self.check(path)
        number = self.number_of(path)
        if self.drivers[number] or not self.enabled[number]:
            who = self.drivers[number] or "nobody, and it is off"
            raise Mistake(f"{path} is opened; {who} has the card")
        found = CardWindow(self, number, path.rpartition("/")[2])
        self.open_windows.add(found)
        return found

    def bus_addresses(self, address: int, size: int) -> tuple[int, ...]:
        """Bus address of each page."""
        place, length = self.places[address]
        if length != size:
            raise OSError(errno.EINVAL, f"{size} bytes of {length}")
        return tuple(bus_address(place + at) for at in range(0, size, PAGE))

    # --- memory of the process

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        self.check("mmap")
        if flags & RESERVED:
            return self.backing.map_own(address, size, protection, flags)
        if flags & 0x2000 == 0 or flags & 1 == 0:
            raise Mistake(f"memory for a card that is not locked, or private: {flags:#x}")
        place = self.backing.take(size + PAGE + -size % (2 * PAGE))
        place += place % (2 * PAGE)  # pairs of pages, which are exchanged
        self.backing.data[place : place + size] = 0
        found = self.backing.map(address, size, protection, 1 | flags & 0x10, place)
        self.places[found] = (place, size)
        for gpu in self.gpus:
            gpu.owned[place] = size + -size % (2 * PAGE)
        return found

    def unmap(self, address: int, size: int) -> None:
        if (known := self.places.pop(address, None)) is not None:
            place, _ = known
            for gpu in self.gpus:
                del gpu.owned[place]
                self.verify_unmapped(gpu, place, size)
        self.backing.unmap(address, size)

    def verify_unmapped(self, gpu: PciGpu, place: int, size: int) -> None:
        """Raise Mistake where a card still addresses memory that is given back."""
        if not gpu.is_bus_master or gpu.is_gone or not gpu.has_power:
            return
        base = self.backing.data.__array_interface__["data"][0]
        for region in gpu.walked.table[1]:
            begin = region.data.__array_interface__["data"][0] - base
            if begin < place + size and place < begin + region.data.nbytes:
                raise Mistake(f"memory at {place:#x} is given back, which a card addresses")

    def open(self, path: str) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def close(self, file: int) -> None:
        raise Mistake(f"file {file} is closed, and not open")

    def ioctl(self, file: int, request: int, argument: int) -> int:
        raise Mistake("there is no driver to ask")


class CardWindow:
    """A BAR or the configuration of a card, each access by itself."""

    def __init__(self, machine: PciMachine, number: int, name: str) -> None:
        self.machine, self.number, self.name = machine, number, name
        self.gpu = machine.gpus[number]
        self.config = bytearray(struct.pack("<HHH", 0x1002, 0x744C, 6) + bytes(250))

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes."""
        with self.machine.lock:
            if self.name == "config":
                return bytes(self.config[offset : offset + size])
            if self.name == "resource0":
                self.verify_aligned(offset, size)
                return self.gpu.read_memory(offset, size)
            if self.name == "resource5" and size == 4 and not offset % 4:
                return self.gpu.read32(offset // 4).to_bytes(4, "little")
            raise Mistake(f"{size} bytes at {offset:#x} of {self.name} are read")

    def write(self, offset: int, content: bytes | memoryview) -> None:
        """Write bytes."""
        size = len(content)
        with self.machine.lock:
            if self.name == "config":
                self.config[offset : offset + size] = content
                self.gpu.is_bus_master = bool(self.config[COMMAND] & BUS_MASTER)
            elif self.name == "resource0":
                self.verify_aligned(offset, size)
                self.gpu.write_memory(offset, bytes(content))
            elif self.name == "resource2" and size == 8 and not offset % 8:
                self.gpu.ring_doorbell(offset // 8, int.from_bytes(content, "little"))
            elif self.name == "resource5" and size == 4 and not offset % 4:
                self.gpu.write32(offset // 4, int.from_bytes(content, "little"))
            else:
                raise Mistake(f"{size} bytes at {offset:#x} of {self.name} are written")

    def verify_aligned(self, offset: int, size: int) -> None:
        """Raise Mistake for an access of BAR0 that is none of whole words, or outside of it."""
        if offset % 4 or size % 4 or offset + size > self.machine.bar0_bytes:
            raise Mistake(f"{size} bytes at {offset:#x} of the card's memory")

    def close(self) -> None:
        """Close it."""
        self.machine.open_windows.remove(self)
