"""Cards on a PCI bus without a kernel driver of NVIDIA's: sysfs, and registers in memory.

For tests only. `PciMachine` takes the place of the operating system. It answers what the kernel
answers, drivers/pci/pci-sysfs.c and drivers/base/bus.c of Linux 6.12, and a `Mistake` is what the
kernel would let pass and a card or its driver would not survive.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
from rm_standin import Mistake

from tinycore.plugin import LinuxSystem
from tinycore.testing.standin import StandInFiles

__all__ = ["Chip", "PciMachine"]

DEVICES, DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
BAR0_BYTES: Final = 16 << 20
FIRST_FILE: Final = 1 << 20
STARTED: Final = {0x17: 0x118234, 0x18: 0x200BC, 0x19: 0x118234, 0x1A: 0x200BC, 0x1B: 0xAD00BC}
WPR2: Final = {0x1A: 0x88A828, 0x1B: 0x88A828}
CHIPS: Final = {0x17: "ga102", 0x18: "gh100", 0x19: "ad102", 0x1A: "gb100", 0x1B: "gb202"}
ADDRESS: Final = "0000:01:00.0"


@dataclass(eq=False)
class Chip:
    """A card: its registers, and who has it."""

    architecture: int = 0x17
    address: str = ADDRESS
    driver: str = "nvidia"
    memory_mib: int = 24576
    runs: bool = False
    """True if a driver's processor runs in it, with protected memory."""
    starts: bool = True
    """True if it gets ready by itself."""
    ends_by_reset: bool = True
    enabled: bool = True
    mapped: set[int] = field(default_factory=set)
    resets: int = 0

    def __post_init__(self) -> None:
        self.file = os.memfd_create("registers")
        os.ftruncate(self.file, BAR0_BYTES)
        memory = mmap.mmap(self.file, BAR0_BYTES)
        self.words: Any = numpy.frombuffer(memory, numpy.uint32)
        self.set(0x0, 0xB72000A1)
        self.set(0xA00, self.architecture << 24 | 2 << 20 | 0xA1000)
        self.set(0x1183A4, self.memory_mib if self.architecture < 0x1A else 0xBADF5040)
        self.set(WPR2.get(self.architecture, 0x1FA828), 0x17FFF0 if self.runs else 0)
        self.set(STARTED.get(self.architecture, 0), 0x3FF if self.starts else 0x21)

    def set(self, register: int, value: int) -> None:
        """Value of a register when it is read."""
        self.words[register // 4] = value

    def reset(self) -> None:
        """A function-level reset."""
        self.resets += 1
        if self.ends_by_reset:
            self.set(WPR2.get(self.architecture, 0x1FA828), 0)


class PciMachine(StandInFiles):
    """A machine with cards on its bus, as a process of root sees it."""

    def __init__(self, *chips: Chip, firmware: bool = True) -> None:
        super().__init__()
        self.chips, self.firmware = chips, firmware
        self.host = LinuxSystem()
        self.files: dict[int, str] = {}
        self.written: list[str] = []
        """Files that were written, with what."""
        self.refused: dict[str, int] = {}
        """Ends of paths, and the errno of writing or opening them."""

    def texts(self) -> dict[str, str]:
        """Files of sysfs, and of firmware."""
        found = {f"{DRIVERS}/{name}/bind": "" for name in ("nvidia", "vfio-pci", "xhci_hcd")}
        found[f"{DEVICES}/0000:00:14.0/vendor"] = "0x8086\n"
        found[f"{DEVICES}/0000:01:00.1/vendor"] = "0x10de\n"
        found[f"{DEVICES}/0000:01:00.1/class"] = "0x040300\n"  # its sound
        for chip in self.chips:
            folder = f"{DEVICES}/{chip.address}"
            found[f"{folder}/vendor"], found[f"{folder}/device"] = "0x10de\n", "0x2204\n"
            found[f"{folder}/class"] = "0x030000\n"
            found[f"{folder}/enable"] = f"{int(chip.enabled)}\n"
            found[f"{folder}/resource"] = (
                f"0x00000000a3000000 0x{0xA3000000 + BAR0_BYTES - 1:016x} 0x0000000000040200\n"
                "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
            )
            found[f"{folder}/resource0"] = ""
            if chip.driver:
                found[f"{DRIVERS}/{chip.driver}/{chip.address}/vendor"] = "0x10de\n"
            if self.firmware:
                kinds = ("bootloader", "fmc", "gsp", "booter_load")
                folder = f"/lib/firmware/nvidia/{CHIPS[chip.architecture]}/gsp"
                found |= {f"{folder}/{kind}-570.144.bin.zst": "" for kind in kinds}
        return found

    def chip_of(self, path: str) -> Chip:
        """The card that a file of sysfs is about."""
        return next(chip for chip in self.chips if chip.address in path)

    def check(self, path: str) -> None:
        """Fail as the system does where a test wants it."""
        for end, number in self.refused.items():
            if path.endswith(end):
                raise OSError(number, os.strerror(number), path)

    def write_text(self, path: str, text: str) -> None:
        """Write a file of sysfs."""
        self.check(path)
        self.written.append(f"{path.removeprefix('/sys/bus/pci/')} {text}")
        folder, _, name = path.rpartition("/")
        if name in ("bind", "unbind"):
            self.move(folder.rpartition("/")[2], name, text)
            return
        chip = self.chip_of(path)
        if chip.driver:
            raise Mistake(f"{name} of {chip.address} is written, which {chip.driver} has")
        if name == "enable":
            chip.enabled = text == "1"
        elif name == "reset":
            chip.reset()
        else:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def move(self, driver: str, name: str, address: str) -> None:
        """Take a card from a driver, or give it to one."""
        chip = self.chip_of(address)
        if chip.driver != (driver if name == "unbind" else ""):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), driver)
        if chip.mapped:
            raise Mistake(f"{driver} gets {address}, whose registers are mapped")
        chip.driver = driver if name == "bind" else ""

    def open(self, path: str) -> int:
        self.verify_path(path)
        self.check(path)
        number = FIRST_FILE + len(self.files)
        self.files[number] = path
        return number

    def close(self, file: int) -> None:
        if not self.files.get(file):
            raise Mistake(f"file {file} is closed, and not open")
        self.files[file] = ""

    def ioctl(self, file: int, request: int, argument: int) -> int:
        raise Mistake(f"request {request:#x} to {self.files.get(file)}")

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        path = self.files.get(file, "")
        self.check(f"{path} mmap")
        chip = self.chip_of(path)
        if size > BAR0_BYTES or not size or offset:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if chip.driver or not chip.enabled:
            who = chip.driver or "nobody, and it is off"
            raise Mistake(f"registers of {chip.address} are mapped; {who} has it")
        found = self.host.map(address, size, protection, flags, chip.file, 0)
        chip.mapped.add(found)
        return found

    def unmap(self, address: int, size: int) -> None:
        next(chip for chip in self.chips if address in chip.mapped).mapped.discard(address)
        self.host.unmap(address, size)
