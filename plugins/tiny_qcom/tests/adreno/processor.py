"""An executor of PM4: the command processor of an Adreno 630, which checks all that it is told.

Headers must have their parity, registers must be known and written with bits that they have. A
launch must find everything it needs written since the last one, consistent, and in the right order:
state that is loaded before SP_UPDATE_CNTL is lost, what a launch writes is only in memory when the
processor was idle and caches were flushed, and what the host wrote is only read after they were
invalidated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy
from emulation.faults import Fault, LaunchFault
from emulation.memory import GlobalMemory

from adreno.state import POISON, Launch, bits

Array = numpy.ndarray[Any, Any]

HANG_SECONDS: Final = 20.0
TICKS: Final = 19.2e6
WAVE: Final = 64
REGISTER_FILE: Final = 96
SHARED_LIMIT: Final = 32 << 10

ALL: Final = 0xFFFF_FFFF
MASKS: Final = {
    0xA9B0: 1 | 0x3F << 1 | 0x3F << 7 | 0x3F << 14 | 1 << 20 | 1 << 23 | 1 << 31,
    0xA9B1: 0x1F | 3 << 5,
    0xA9B2: ALL,
    0xA9B3: ALL,
    0xA9B4: ALL & ~31,
    0xA9B5: 0x1FFFF,
    0xA9B6: 0xFF | 0xFF << 24,
    0xA9B7: ALL & ~31,
    0xA9B8: 0x1FFFF,
    0xA9B9: 0x3FFFF | 1 << 31,
    0xA9BA: 0xFF,
    0xA9BB: 0xF | 1 << 8 | 0xFF << 9 | 0x1F << 17 | 0x7F << 22,
    0xA9BC: ALL,
    0xA9BD: 0x7FFFF,
    0xA9E2: ALL & ~15,
    0xA9E3: 0x1FFFF,
    0xA9E6: ALL & ~63,
    0xA9E7: 0x1FFFF,
    0xA9F2: ALL & ~15,
    0xA9F3: 0x1FFFF,
    0xAA00: 0xFF,
    0xAB00: 1 | 3 << 1 | 1 << 3,
    0xAE0F: 0x3F,
    0xB180: ALL & ~127,
    0xB181: 0x1FFFF,
    0xB309: 0xFF,
    0xB600: ALL,
    **dict.fromkeys(range(0xB983, 0xB987), ALL),
    0xB987: 0xFF | 1 << 8,
    **dict.fromkeys(range(0xB990, 0xB998), ALL),
    0xB998: 0x7FF,
    **dict.fromkeys(range(0xB999, 0xB99C), ALL),
    0xBB08: 1 << 5 | 1 << 6 | 1 << 7 | 0x1F << 9 | 1 << 19,
}
"""Registers that a compute launch may write, and the bits that each has."""
NEEDED: Final = frozenset(
    {
        *(0xA9B0, 0xA9B1, 0xA9B2, 0xA9B3, 0xA9B4, 0xA9B5, 0xA9B6, 0xA9B7, 0xA9B8, 0xA9B9, 0xA9BA),
        *(0xA9BB, 0xA9BC, 0xA9BD, 0xAA00, 0xAB00, 0xAE0F, 0xB309, 0xB600, 0xB987, 0xBB08),
        *range(0xB983, 0xB987),
        *range(0xB990, 0xB99C),
    }
)
"""Registers that must have been written since the last launch."""


class PacketFault(Fault):
    """A packet that no command processor takes."""


class Hang(Fault):
    """A wait that does not end."""


def parity(value: int) -> int:
    return 1 if bin(value).count("1") % 2 == 0 else 0


class Processor:
    """Registers, loaded state, and the packets that change them."""

    def __init__(
        self,
        memory: GlobalMemory,
        launch: Callable[[Launch], None],
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self.memory = memory
        self.launch = launch
        self.is_closing = is_closing
        self.registers: dict[int, int] = {}
        self.fresh: set[int] = set()
        self.forget_state()
        self.marker = -1
        self.busy = False
        """True while work may be under way."""
        self.begun = False
        """True if state of earlier launches was dropped."""
        self.stale = True
        """True while caches may hold what the host has changed since."""
        self.packets: list[int] = []

    def forget_state(self) -> None:
        self.constants = numpy.full(512 * 4, POISON, numpy.uint32)
        self.constant_vectors = 0
        self.loaded: dict[str, tuple[int, int]] = {}

    # --- packets

    def run(self, address: int, count: int) -> None:
        """Execute an indirect buffer."""
        self.stale = True
        at = 0
        while at < count:
            header = self.word(address + 4 * at)
            size = self.packet(header, address + 4 * (at + 1), count - at - 1)
            at += 1 + size

    def packet(self, header: int, place: int, room: int) -> int:
        if header >> 30 == 1 and header >> 28 & 3 == 0:
            return self.packet_4(header, place, room)
        if header >> 28 != 7:
            raise PacketFault(f"{header:#010x} is no packet of type 4 or 7")
        size, opcode = header & 0x3FFF, header >> 16 & 0x7F
        right = 0x70000000 | size | parity(size) << 15 | opcode << 16 | parity(opcode) << 23
        if header != right:
            raise PacketFault(f"{header:#010x} has the wrong parity; {right:#010x} has not")
        if size > room:
            raise PacketFault(f"{header:#010x} has {size} operands, and the buffer ends")
        if opcode not in OPERATIONS:
            raise PacketFault(f"operation {opcode:#x} is not known")
        self.packets.append(opcode)
        OPERATIONS[opcode](self, [self.word(place + 4 * n) for n in range(size)])
        return size

    def packet_4(self, header: int, place: int, room: int) -> int:
        size, register = header & 0x7F, header >> 8 & 0x3FFFF
        right = 0x40000000 | size | parity(size) << 7 | register << 8 | parity(register) << 27
        if header != right:
            raise PacketFault(f"{header:#010x} has the wrong parity; {right:#010x} has not")
        if not 0 < size <= room:
            raise PacketFault(f"{header:#010x} writes {size} registers, and the buffer ends")
        for number in range(size):
            self.write_register(register + number, self.word(place + 4 * number))
        return size

    def write_register(self, register: int, value: int) -> None:
        mask = MASKS.get(register)
        if mask is None:
            raise PacketFault(f"register {register:#x} is not known")
        if value & ~mask:
            raise PacketFault(f"register {register:#x} has no bits {value & ~mask:#x}")
        if register == 0xBB08 and value & 1 << 5:
            self.forget_state()
            self.begun = bool(value & 1 << 6)
        self.registers[register] = value
        self.fresh.add(register)

    def word(self, address: int) -> int:
        return int(self.load(address, 1)[0])

    def load(self, address: int, count: int) -> Array:
        """Words from memory."""
        places = numpy.uint64(address) + 4 * numpy.arange(count, dtype=numpy.uint64)
        if address % 4:
            raise PacketFault(f"{address:#x} is no address of words")
        return self.memory.load(places, 4, 1)[0]

    def store(self, address: int, *values: int) -> None:
        places = numpy.uint64(address) + 4 * numpy.arange(len(values), dtype=numpy.uint64)
        self.memory.store(places, 4, [numpy.array(values, numpy.uint32)])

    def need_idle(self, what: str) -> None:
        if self.busy:
            raise PacketFault(f"{what} while a launch may be under way: WAIT_FOR_IDLE is missing")

    # --- operations

    def nothing(self, operands: list[int]) -> None:
        """NOP, WAIT_MEM_WRITES."""

    def idle(self, operands: list[int]) -> None:
        expect(operands, 0)
        self.busy = False

    def wait_memory(self, operands: list[int]) -> None:
        head, low, high, reference, mask, _ = expect(operands, 6)
        if head != (5 | 1 << 4):
            raise PacketFault(f"WAIT_REG_MEM {head:#x}: only memory, at least, is known")
        address = low | high << 32
        limit = time.monotonic() + HANG_SECONDS
        polls = 0
        while self.word(address) & mask < reference:
            if self.is_closing() or time.monotonic() > limit:
                raise Hang(f"{self.word(address)} at {address:#x} does not reach {reference}")
            polls += 1
            time.sleep(0 if polls < 20 else 1e-4)

    def write_event(self, operands: list[int]) -> None:
        event = operands[0] & 0xFF
        if operands[0] >> 8:
            raise PacketFault(f"EVENT_WRITE {operands[0]:#x}: flags that are not known")
        if event == 4:
            _, low, high, value = expect(operands, 4)
            self.need_idle("a timestamp")
            self.store(low | high << 32, value)
        elif event == 0x31:
            expect(operands, 1)
            self.stale = False
        else:
            raise PacketFault(f"event {event:#x} is not known")

    def copy_register(self, operands: list[int]) -> None:
        head, low, high = expect(operands, 3)
        if head & 0x3FFFF != 0x980 or bits(head, 18, 12) != 2 or not head >> 30 & 1:
            raise PacketFault(f"REG_TO_MEM {head:#x}: only the counter of 64 bits is known")
        self.need_idle("a time")
        ticks = int(time.perf_counter() * TICKS)
        self.store(low | high << 32, ticks & ALL, ticks >> 32)

    def write_memory(self, operands: list[int]) -> None:
        self.store(operands[0] | operands[1] << 32, *operands[2:])

    def set_marker(self, operands: list[int]) -> None:
        (self.marker,) = expect(operands, 1)

    def load_state(self, operands: list[int]) -> None:
        head, low, high = expect(operands, 3)
        offset, kind, source = bits(head, 0, 14), bits(head, 14, 2), bits(head, 16, 2)
        block, units = bits(head, 18, 4), bits(head, 22, 10)
        address = low | high << 32
        if source != 2 or not units:
            raise PacketFault(f"LOAD_STATE {head:#x}: only some units from memory are known")
        if (block, kind) == (0xD, 1):
            if self.stale:
                raise PacketFault("LOAD_STATE of constants from caches that were not invalidated")
            if offset + units > 256:
                raise PacketFault(f"LOAD_STATE of {units} vectors at {offset}; there are 256")
            words = self.load(address, units * 4)
            self.constants[offset * 4 : (offset + units) * 4] = words
            self.constant_vectors = max(self.constant_vectors, offset + units)
            return
        names = {(0xD, 0): "code", (5, 0): "samplers", (5, 1): "textures", (0xD, 3): "images"}
        sizes = {"code": 128, "samplers": 16, "textures": 64, "images": 64}
        if (block, kind) not in names or offset:
            raise PacketFault(f"LOAD_STATE {head:#x}: block and kind are not known")
        name = names[block, kind]
        self.load(address, units * sizes[name] // 4)
        self.loaded[name] = address, units

    def execute(self, operands: list[int]) -> None:
        """EXEC_CS: the path of Mesa."""
        zero, x, y, z = expect(operands, 4)
        if zero:
            raise PacketFault(f"EXEC_CS {zero:#x}")
        if tuple(self.registers.get(n) for n in range(0xB999, 0xB99C)) != (1, 1, 1):
            raise LaunchFault("SP_CS_KERNEL_GROUP must be 1, 1, 1 for EXEC_CS")
        self.start((x, y, z), is_blob=False)

    def run_opencl(self, operands: list[int]) -> None:
        """RUN_OPENCL: the path of Qualcomm's compiler."""
        if expect(operands, 1) != [0]:
            raise PacketFault(f"RUN_OPENCL {operands[0]:#x}")
        x, y, z = (self.registers.get(n, 0) for n in range(0xB999, 0xB99C))
        self.start((x, y, z), is_blob=True)

    # --- a launch

    def start(self, groups: tuple[int, int, int], is_blob: bool) -> None:
        """Check all that a launch needs, and run it."""
        self.need_idle("a launch")
        if self.marker != 8:
            raise LaunchFault("SET_MARKER does not say that computing begins")
        if self.stale:
            raise LaunchFault("caches were not invalidated since the host may have written")
        if missing := NEEDED - self.fresh:
            raise LaunchFault(f"registers {sorted(map(hex, missing))} are not written")
        if self.registers[0xBB08] or not self.begun:
            raise LaunchFault("SP_UPDATE_CNTL stays set, or never was")
        launch = self.described(groups, is_blob)
        self.check(launch)
        self.fresh.clear()
        self.busy, self.begun = True, False
        self.launch(launch)
        self.forget_state()

    def described(self, groups: tuple[int, int, int], is_blob: bool) -> Launch:
        """The launch that registers describe."""
        r = self.registers
        control, shape = r[0xA9B0], r[0xB990]
        address = r[0xA9B4] | r[0xA9B5] << 32
        machine = self.load(address, r[0xA9BC] * 32).tobytes()
        config, ids = r[0xA9BB], r[0xB997]
        return Launch(
            is_blob,
            groups,
            (bits(shape, 2, 10) + 1, bits(shape, 12, 10) + 1, bits(shape, 22, 10) + 1),
            machine,
            address,
            r[0xA9B3],
            self.constants.copy(),
            (r[0xB987] & 0xFF) * 16,
            bits(control, 7, 6),
            bits(control, 1, 6),
            bool(control >> 31),
            bool(r[0xAB00] & 1),
            bits(control, 14, 6),
            (bits(r[0xA9B1], 0, 5) + 1) * 1024,
            bits(r[0xA9B6], 0, 8) << 9,
            bits(ids, 0, 8),
            bits(ids, 24, 8),
            self.descriptors("textures", bits(config, 9, 8), 0xA9E6, 16),
            self.descriptors("samplers", bits(config, 17, 5), 0xA9E2, 4),
            self.descriptors("images", bits(config, 22, 7), 0xA9F2, 16),
        )

    def descriptors(self, name: str, count: int, register: int, words: int) -> list[Array]:
        """Descriptors of textures, samplers or images, which must lie where both places say."""
        address, loaded = self.loaded.get(name, (0, 0))
        if count != loaded:
            raise LaunchFault(f"SP_CS_CONFIG has {count} {name}, and {loaded} are loaded")
        if not count:
            return []
        if register not in self.fresh or register + 1 not in self.fresh:
            raise LaunchFault(f"the base of {name} is not written")
        base = self.registers[register] | self.registers[register + 1] << 32
        if base != address:
            raise LaunchFault(f"{name} are loaded from {address:#x}, and their base is {base:#x}")
        return [self.load(address + 4 * words * n, words) for n in range(count)]

    def check(self, launch: Launch) -> None:
        """Checks of what the hardware would punish by garbage, or a hang."""
        r = self.registers
        if not r[0xA9BB] >> 8 & 1 or not r[0xB987] >> 8 & 1:
            raise LaunchFault("the shader or its constants are not enabled")
        address, units = self.loaded.get("code", (0, 0))
        if address != launch.address or units != min(r[0xA9BC], 64):
            raise LaunchFault(
                f"{units} groups of code are loaded from {address:#x}; the base is "
                f"{launch.address:#x}, and the code has {r[0xA9BC]}"
            )
        if launch.address % 32 or not launch.machine:
            raise LaunchFault(f"code of {len(launch.machine)} bytes at {launch.address:#x}")
        if self.constant_vectors < launch.constant_words // 4:
            raise LaunchFault(
                f"{self.constant_vectors} vectors of constants are loaded, and "
                f"{launch.constant_words // 4} are said to be there"
            )
        sizes = [n * t for n, t in zip(launch.groups, launch.threads, strict=True)]
        if r[0xB990] & 3 != 3 or [r[0xB991], r[0xB993], r[0xB995]] != sizes:
            raise LaunchFault(f"the grid of {launch.groups} groups has other sizes in registers")
        if r[0xB992] or r[0xB994] or r[0xB996]:
            raise LaunchFault("the grid does not begin at 0")
        if 0 in launch.groups or max(launch.groups) > 65_535:
            raise LaunchFault(f"a grid of {launch.groups} groups")
        self.check_room(launch)

    def check_room(self, launch: Launch) -> None:
        """Check that a group fits the registers and the memory it is given."""
        r = self.registers
        used = launch.full_registers
        used += 0 if launch.merged else -(-launch.half_registers // 2)
        if used > 48:
            raise LaunchFault(f"{used} registers; there are 48")
        waves = min(REGISTER_FILE // max(used, 1) * 2, 16)
        if launch.block_threads > min(waves * WAVE, 1024):
            raise LaunchFault(f"a group of {launch.block_threads} threads beside {used} registers")
        if launch.shared_bytes > SHARED_LIMIT:
            raise LaunchFault(f"{launch.shared_bytes} bytes of shared memory")
        if bits(r[0xA9B1], 5, 2) != 2:
            raise LaunchFault("the constant file must have 256 vectors")
        if bits(r[0xA9B0], 20, 1) != bits(r[0xB998], 9, 1):
            raise LaunchFault("the sizes of waves differ")
        core = bits(r[0xA9B9], 0, 18) << 12
        stack = r[0xA9BD] << 11
        if launch.private_bytes:
            base = r[0xA9B7] | r[0xA9B8] << 32
            region = self.memory.region_at(base)
            room = 0 if region is None else region.address + region.data.nbytes - base
            if core < launch.private_bytes * 2048 or stack != core or room < 2 * core:
                raise LaunchFault(
                    f"private memory of {launch.private_bytes} bytes a thread needs more than "
                    f"{core} a core, twice, of the {room} at {base:#x}"
                )
        elif core or stack:
            raise LaunchFault("private memory without a size")


def expect(operands: list[int], count: int) -> list[int]:
    if len(operands) != count:
        raise PacketFault(f"{len(operands)} operands where {count} are wanted")
    return operands


OPERATIONS: Final[dict[int, Callable[[Processor, list[int]], None]]] = {
    0x10: Processor.nothing,
    0x12: Processor.nothing,
    0x26: Processor.idle,
    0x31: Processor.run_opencl,
    0x33: Processor.execute,
    0x34: Processor.load_state,
    0x3C: Processor.wait_memory,
    0x3D: Processor.write_memory,
    0x3E: Processor.copy_register,
    0x46: Processor.write_event,
    0x65: Processor.set_marker,
}
