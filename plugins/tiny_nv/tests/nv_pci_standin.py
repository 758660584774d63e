"""Cards on a PCI bus without a kernel driver of NVIDIA's: sysfs, vfio, and registers.

For tests only. `PciMachine` takes the place of the operating system. It answers what the kernel
answers, drivers/pci/pci-sysfs.c, drivers/base/bus.c and drivers/vfio of Linux 6.12, and a `Mistake`
is what the kernel would let pass and a card or its driver would not survive. Cards have a GSP
(gsp_standin).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
from gsp_standin import Gsp, Memory
from gsp_standin.images import firmware, rom
from gsp_standin.memory import Entries2, Entries3
from rm_standin import Mistake
from rm_standin.cards import AD102, B200, GA102, GB202, H200

from tiny_hcq import LinuxSystem
from tiny_testing.standin import StandInFiles

__all__ = ["Chip", "PciMachine"]

DEVICES, DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
GROUPS: Final = "/sys/kernel/iommu_groups"
BAR0_BYTES: Final = 16 << 20
BAR1_BYTES: Final = 256 << 20
FIRST_FILE: Final = 1 << 20
STARTED: Final = {0x17: 0x118234, 0x18: 0x200BC, 0x19: 0x118234, 0x1A: 0x200BC, 0x1B: 0xAD00BC}
WPR2: Final = {0x1A: 0x88A828, 0x1B: 0x88A828}
CHIPS: Final = {0x17: "ga102", 0x18: "gh100", 0x19: "ad102", 0x1A: "gb100", 0x1B: "gb202"}
SIGNATURES: Final = {0x17: "ga10x", 0x18: "gh100", 0x19: "ad10x", 0x1A: "gb10x", 0x1B: "gb20x"}
FACTS: Final = {0x17: GA102, 0x18: H200, 0x19: AD102, 0x1A: B200, 0x1B: GB202}
ADDRESS: Final = "0000:01:00.0"
ROM_AT: Final = 0x300000
CONFIG_BYTES: Final = 256
VFIO_CONFIG: Final = 7 << 40
"""Offset of the configuration space in the file of a device of vfio."""


@dataclass(eq=False)
class Chip:
    """A card: its registers, and who has it."""

    architecture: int = 0x17
    address: str = ADDRESS
    driver: str = "nvidia"
    memory_mib: int = 4096
    runs: bool = False
    """True if a driver's processor runs in it, with protected memory."""
    starts: bool = True
    """True if it gets ready by itself."""
    ends_by_reset: bool = True
    enabled: bool = True
    iommu: str = ""
    """Kind of addresses of its IOMMU group; "" without one."""
    mapped: set[int] = field(default_factory=set)
    resets: int = 0
    at: int = 0
    """Address at which its registers are mapped."""

    def __post_init__(self) -> None:
        self.file = os.memfd_create("registers")
        os.ftruncate(self.file, BAR0_BYTES)
        memory = mmap.mmap(self.file, BAR0_BYTES)
        self.words: Any = numpy.frombuffer(memory, numpy.uint32)
        self.bytes: Any = self.words.view(numpy.uint8)
        self.command = 2
        has_fsp = self.architecture in (0x18, 0x1A, 0x1B)
        self.memory = Memory(self.memory_mib << 20, Entries3 if has_fsp else Entries2)
        self.bytes[ROM_AT : ROM_AT + len(rom())] = numpy.frombuffer(rom(), numpy.uint8)
        facts = FACTS.get(self.architecture)
        wpr2 = WPR2.get(self.architecture, 0x1FA828)
        self.gsp = Gsp(self, facts, self.memory, wpr2) if facts else None
        self.set(0x0, 0xB72000A1)
        self.set(0xA00, self.architecture << 24 | 2 << 20 | 0xA1000)
        self.set(0x1183A4, self.memory_mib)
        self.set(WPR2.get(self.architecture, 0x1FA828), 0x17FFF0 if self.runs else 0)
        self.set(STARTED.get(self.architecture, 0), 0x3FF if self.starts else 0x21)

    def set(self, register: int, value: int) -> None:
        """Value of a register when it is read."""
        self.words[register // 4] = value

    @property
    def bars(self) -> list[tuple[int, int]]:
        """Bus address and size of each BAR."""
        return [
            (0xA3000000, BAR0_BYTES),
            (0x60_0000_0000, BAR1_BYTES),
            (0, 0),
            (0x61_0000_0000, 32 << 20),
            (0, 0),
            (0x3000, 128),
        ]

    def reset(self) -> None:
        """A function-level reset."""
        self.resets += 1
        if self.ends_by_reset:
            self.set(WPR2.get(self.architecture, 0x1FA828), 0)
            if self.gsp is not None:
                self.gsp.reset()

    def set_command(self, value: int) -> None:
        """The command register of its configuration space."""
        self.command = value
        self.memory.is_master = bool(value & 4)


class PciMachine(StandInFiles):
    """A machine with cards on its bus, as a process of root sees it."""

    def __init__(self, *chips: Chip, firmware: bool = True, compression: str = "") -> None:
        super().__init__()
        self.chips, self.firmware, self.compression = chips, firmware, compression
        self.host = LinuxSystem()
        self.files: dict[int, str] = {}
        self.written: list[str] = []
        """Files that were written, with what."""
        self.refused: dict[str, int] = {}
        """Ends of paths, and the errno of writing or opening them."""
        self.pinned: dict[int, int] = {}
        """Bytes of this process's memory that cards may address, by address."""
        self.notes: dict[str, str] = {}
        """Files that were made, and their texts."""
        self.users: dict[str, list[str]] = {}
        """Processes that have device files open, by those."""
        self.locked: set[str] = set()
        """Files that another process has locked."""
        self.group_status = 1
        self.containers: dict[int, set[str]] = {}
        self.pages_moved = False
        """True if the kernel hides physical addresses."""

    def texts(self) -> dict[str, str]:
        """Files of sysfs, and of firmware."""
        found = {f"{DRIVERS}/{name}/bind": "" for name in ("nvidia", "vfio-pci", "xhci_hcd")}
        found[f"{DEVICES}/0000:00:14.0/vendor"] = "0x8086\n"
        found[f"{DEVICES}/0000:01:00.1/vendor"] = "0x10de\n"
        found[f"{DEVICES}/0000:01:00.1/class"] = "0x040300\n"  # its sound
        found |= self.notes
        found["/proc/self/pagemap"] = found["/dev/vfio/vfio"] = ""
        for number, chip in enumerate(self.chips, 7):
            folder = f"{DEVICES}/{chip.address}"
            device = FACTS.get(chip.architecture, GA102).device_id
            found[f"{folder}/vendor"], found[f"{folder}/device"] = "0x10de\n", f"{device:#06x}\n"
            found[f"{folder}/class"] = "0x030000\n"
            found[f"{folder}/subsystem_vendor"] = "0x1043\n"
            found[f"{folder}/subsystem_device"] = "0x14c3\n"
            found[f"{folder}/revision"] = "0xa1\n"
            found[f"{folder}/enable"] = f"{int(chip.enabled)}\n"
            found[f"{folder}/drm/card1/dev"] = "226:1\n"
            if chip.driver == "nvidia":
                minor = f"Model: X\nDevice Minor: \t {number - 4}\n"
                found[f"/proc/driver/nvidia/gpus/{chip.address}/information"] = minor
            found[f"{folder}/resource"] = "".join(
                f"0x{begin:016x} 0x{begin + size - 1 if size else 0:016x} 0x{bool(size):016x}\n"
                for begin, size in chip.bars
            )
            found |= {f"{folder}/{name}": "" for name in ("resource0", "resource1", "config")}
            if chip.driver:
                found[f"{DRIVERS}/{chip.driver}/{chip.address}/vendor"] = "0x10de\n"
            if chip.iommu:
                found[f"{folder}/iommu_group/type"] = f"{chip.iommu}\n"
                found[f"{GROUPS}/{number}/devices/{chip.address}"] = ""
                found[f"/dev/vfio/{number}"] = ""
            if self.firmware:
                kinds = ("bootloader", "fmc", "gsp", "booter_load")
                folder = f"/lib/firmware/nvidia/{CHIPS[chip.architecture]}/gsp"
                found |= {f"{folder}/{kind}-570.144.bin{self.compression}": "" for kind in kinds}
        return found

    def read_bytes(self, path: str) -> bytes:
        """A file of firmware."""
        self.verify_path(path)
        self.check(path)
        chip = next(chip for chip in self.chips if f"/{CHIPS[chip.architecture]}/" in path)
        name = path.rpartition("/")[2].partition("-")[0]
        return self.packed(firmware(SIGNATURES[chip.architecture])[name])

    def packed(self, content: bytes) -> bytes:
        """A file as it lies there."""
        import lzma  # noqa: PLC0415

        return lzma.compress(content, preset=0) if self.compression == ".xz" else content

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
        if name == "unbind" and any(self.users.values()):
            raise Mistake(f"{driver} waits for ever before it gives {address} away")
        if chip.driver != (driver if name == "unbind" else ""):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), driver)
        if chip.mapped or chip.memory.is_master:
            raise Mistake(f"{driver} gets {address}, whose registers are mapped")
        chip.driver = driver if name == "bind" else ""

    # --- files

    def open(self, path: str) -> int:
        self.verify_path(path)
        self.check(path)
        return self.opened(path)

    def opened(self, path: str) -> int:
        """A number for a file that is open."""
        number = FIRST_FILE + len(self.files)
        self.files[number] = path
        return number

    def lock_file(self, path: str) -> int:
        """flock."""
        if path in self.locked or path in self.files.values():
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        return self.open(path)

    def keep_text(self, path: str, text: str) -> None:
        """Write a file, made where there is none."""
        self.check(path)
        self.notes[path] = text

    def holders(self, files: Collection[str]) -> list[str]:
        """Processes that have one of some files open."""
        return [who for path in files for who in self.users.get(path, [])]

    def close(self, file: int) -> None:
        if not self.files.get(file):
            raise Mistake(f"file {file} is closed, and not open")
        path, self.files[file] = self.files[file], ""
        if path.startswith("vfio "):
            self.chip_of(path).set_command(self.chip_of(path).command & ~4)

    def config_of(self, file: int, offset: int) -> Chip | None:
        """The card whose command register is accessed."""
        path = self.files[file]
        if path.endswith("/config"):
            at = offset
        elif path.startswith("vfio "):
            at = offset - VFIO_CONFIG
        else:
            return None
        if at != 4:
            raise Mistake(f"byte {at} of the configuration space")
        return self.chip_of(path)

    def read_at(self, file: int, size: int, offset: int) -> bytes:
        """pread."""
        if chip := self.config_of(file, offset):
            return chip.command.to_bytes(size, "little")
        if self.files[file] != "/proc/self/pagemap" or size != 8 or offset % 8:
            raise Mistake(f"{size} bytes of {self.files[file]} at {offset:#x}")
        if self.pages_moved:
            return bytes(8)
        host = offset // 8 * 4096
        for chip in self.chips:
            if (bus := chip.memory.frames.get(host)) is not None:
                return (1 << 63 | bus >> 12).to_bytes(8, "little")
        raise Mistake(f"the page map is asked for {host:#x}, which is no huge page")

    def write_at(self, file: int, content: bytes, offset: int) -> None:
        """pwrite."""
        chip = self.config_of(file, offset)
        assert chip is not None
        chip.set_command(int.from_bytes(content, "little"))

    def ioctl(self, file: int, request: int, argument: int) -> int:
        raise Mistake(f"request {request:#x} to {self.files.get(file)}")

    def ioctl_value(self, file: int, request: int, argument: int | bytearray) -> int:
        """vfio."""
        path = self.files[file]
        if path == "/dev/vfio/vfio":
            return self.container(file, request, argument)
        if path.startswith("/dev/vfio/"):
            return self.group(file, int(path.rpartition("/")[2]) - 7, request, argument)
        if not path.startswith("vfio "):
            raise Mistake(f"request {request:#x} to {path}")
        chip = self.chip_of(path)
        if request == 0x3B6F:
            self.check("vfio reset")
            chip.reset()
            return 0
        if request != 0x3B6C or not isinstance(argument, bytearray):
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        size, _, index, _, _, _ = struct.unpack("<IIIIQQ", argument)
        if size != 32:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        bytes_ = CONFIG_BYTES if index == 7 else chip.bars[index][1]
        flags = 3 if index in (5, 7) else 7
        argument[:] = struct.pack("<IIIIQQ", 32, flags, index, 0, bytes_, index << 40)
        return 0

    def container(self, file: int, request: int, argument: int | bytearray) -> int:
        """The container, which the IOMMU is told by."""
        if request == 0x3B64:
            return 0
        if request == 0x3B65:
            return int(argument == 1)
        groups = self.containers.setdefault(file, set())
        if request == 0x3B66 and groups and argument == 1:
            return 0
        if not groups or not isinstance(argument, bytearray):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        chip = self.chip_of(next(iter(groups)))
        if request == 0x3B71:
            self.check("vfio map")
            size, flags, host, bus, count = struct.unpack("<IIQQQ", argument)
            if (size, flags) != (32, 3) or host % 4096 or bus % 4096 or host not in self.pinned:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            chip.memory.pin(host, count, bus)
        elif request == 0x3B72:
            size, _, bus, count = struct.unpack("<IIQQ", argument)
            chip.memory.unpin(chip.memory.pinned[bus], count)
        else:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return 0

    def group(self, file: int, number: int, request: int, argument: int | bytearray) -> int:
        """A group of functions that the IOMMU cannot tell apart."""
        chip = self.chips[number]
        assert isinstance(argument, bytearray)
        if request == 0x3B67:
            argument[4:8] = self.group_status.to_bytes(4, "little")
            return 0
        if request == 0x3B68:
            (container,) = struct.unpack("<i", argument)
            self.containers.setdefault(container, set()).add(chip.address)
            return 0
        name = bytes(argument).partition(b"\0")[0].decode()
        if request != 0x3B6A or name != chip.address or not any(self.containers.values()):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self.opened(f"vfio {chip.address}")

    # --- memory

    def map(
        self, address: int, size: int, protection: int, flags: int, file: int, offset: int
    ) -> int:
        if file == -1:
            return self.map_own(size, flags)
        path = self.files.get(file, "")
        self.check(f"{path} mmap")
        chip = self.chip_of(path)
        by_vfio = path.startswith("vfio ")
        bar = offset >> 40 if by_vfio else int(path[-1])
        if size != chip.bars[bar][1] or (offset and not by_vfio):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if (chip.driver if not by_vfio else chip.driver != "vfio-pci") or not chip.enabled:
            who = chip.driver or "nobody, and it is off"
            raise Mistake(f"registers of {chip.address} are mapped; {who} has it")
        if bar == 1:
            found = chip.memory.map_bar1(size)
        else:
            found = chip.at = self.host.map(address, size, protection, flags, chip.file, 0)
        chip.mapped.add(found)
        return found

    def map_own(self, size: int, flags: int) -> int:
        """Memory of the process, in huge pages where it asks for them."""
        self.check("huge pages")
        is_huge = bool(flags & 0x40000)
        if is_huge and (
            size % (2 << 20) or flags >> 26 & 63 != 21 or not flags & mmap.MAP_POPULATE
        ):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        found = self.host.map(0, size, 3, flags & 0xFFF & ~mmap.MAP_POPULATE | 0x4000, -1, 0)
        self.pinned[found] = size
        if is_huge:
            for offset in range(0, size, 2 << 20):
                for chip in self.chips:
                    chip.memory.pin(found + offset, 2 << 20, chip.memory.fresh_frame())
        return found

    def unmap(self, address: int, size: int) -> None:
        if address in self.pinned:
            if self.pinned.pop(address) != size:
                raise Mistake(f"{size} bytes of a larger mapping are taken back")
            for chip in self.chips:
                chip.memory.unpin(address, size)
                if chip.gsp is not None and chip.memory.is_master:
                    chip.gsp.check_memory()
            self.host.unmap(address, size)
            return
        chip = next(chip for chip in self.chips if address in chip.mapped)
        chip.mapped.discard(address)
        if address == chip.memory.bar1_at:
            chip.memory.bar1_at = 0
        self.host.unmap(address, size)

    # --- registers

    def register(self, address: int) -> tuple[Chip, int]:
        """The card and the register that an address of the process means."""
        for chip in self.chips:
            if chip.at in chip.mapped and chip.at <= address < chip.at + BAR0_BYTES:
                if address % 4:
                    raise Mistake(f"register {address - chip.at:#x} is no word")
                return chip, address - chip.at
        raise Mistake(f"{address:#x} is no register")

    def load_register(self, address: int) -> int:
        """Read a register."""
        chip, register = self.register(address)
        found = chip.gsp.read(register) if chip.gsp is not None else None
        return int(chip.words[register // 4]) if found is None else found

    def store_register(self, address: int, value: int) -> None:
        """Write a register."""
        chip, register = self.register(address)
        if chip.gsp is None or not chip.gsp.write(register, value):
            raise Mistake(f"register {register:#x} is written with {value:#x}")

    # --- what cards do

    def pump(self) -> None:
        """Let channels run."""
        for chip in self.chips:
            if chip.gsp is not None:
                chip.gsp.machine.pump()
