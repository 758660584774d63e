"""A card without a driver: registers by their numbers, and what each of them does.

The numbers are those of a Navi 31, whose blocks lie where its table of discovery says: GC at 0x1260
and 0xA000, MMHUB at 0x1A000, MP0 and MP1 at 0x16000, NBIF at 0xD20 (words of 32 bits). A register
that is not here is a Mistake, as is one of the graphics core before that has power.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy
from emulation.backing import Backing
from kfd_standin.cards import NAVI31, CardFacts
from kfd_standin.gpu import Array, Gpu, MemoryFault, Mistake
from kfd_standin.pm4 import Pm4Ring
from kfd_standin.queues import Ring, RingPlace
from kfd_standin.sdma import SdmaRing

from pci_standin.boot import PowerController, SecurityProcessor
from pci_standin.translation import WalkedMemory

if TYPE_CHECKING:
    from tiny_amd.am.firmware import Firmware

__all__ = ["PciGpu"]

GONE: Final = 0xFFFFFFFF
GC_0, GC_1, MM, PSP, POWER, NBIF = 0x1260, 0xA000, 0x1A000, 0x16000, 0x16200, 0xD20
HUB_REGISTERS: Final = {
    "AGP_TOP": (0x167A, 0x8EE),
    "AGP_BOT": (0x167B, 0x8EF),
    "AGP_BASE": (0x167C, 0x8F0),
    "FB_BASE": (0x1678, 0x8EC),
    "FB_TOP": (0x1679, 0x8ED),
    "LOW": (0x167D, 0x8F1),
    "HIGH": (0x167E, 0x8F2),
    "L1": (0x167F, 0x8F3),
    "DEFAULT_LOW": (0x15A8, 0x8D8),
    "DEFAULT_HIGH": (0x15A9, 0x8D9),
    "L2": (0x15BC, 0x700),
    "L2_2": (0x15BD, 0x701),
    "FAULT_CNTL": (0x15C4, 0x708),
    "FAULT_STATUS": (0x15C8, 0x70C),
    "FAULT_LOW": (0x15C9, 0x70D),
    "FAULT_HIGH": (0x15CA, 0x70E),
    "FAULT_PAGE_LOW": (0x15CB, 0x70F),
    "FAULT_PAGE_HIGH": (0x15CC, 0x710),
    **{f"IDENTITY_{n}": (0x15CE + n, 0x712 + n) for n in range(6)},
    **{f"CONTEXT_{n}": (0x1688 + n, 0x740 + n) for n in range(16)},
    "SEMAPHORE": (0x16AA, 0x762),
    "REQUEST": (0x16BC, 0x774),
    "ACKNOWLEDGE": (0x16CE, 0x786),
    **{f"RANGE_{n}": (0x16CF + n, 0x787 + n) for n in range(36)},
    "ROOT_LOW": (0x16F3, 0x7AB),
    "ROOT_HIGH": (0x16F4, 0x7AC),
    "START_LOW": (0x1713, 0x7CB),
    "START_HIGH": (0x1714, 0x7CC),
    "END_LOW": (0x1733, 0x7EB),
    "END_HIGH": (0x1734, 0x7EC),
}
"""Registers of GFXHUB and of MMHUB: gc_11_0_0_offset.h and mmhub_3_0_0_offset.h."""
NAMES: Final = {
    0xDE3: "MEMORY_SIZE",
    0x0: "MEMORY_INDEX",
    0x1: "MEMORY_DATA",
    0x6: "MEMORY_INDEX_HIGH",
    NBIF + 0xC0: "DOORBELL_APERTURE",
    **{NBIF + 0x1CB + n: f"PORT_{n}" for n in range(6)},
    NBIF + 0x12D: "FLUSH_REMAP",
    PSP + 0x63: "PSP_BOOT",
    PSP + 0x64: "PSP_ADDRESS",
    PSP + 0x80: "PSP_RING",
    PSP + 0x83: "PSP_WRITTEN",
    PSP + 0x85: "PSP_RING_LOW",
    PSP + 0x86: "PSP_RING_HIGH",
    PSP + 0x87: "PSP_RING_SIZE",
    PSP + 0x91: "PSP_ALIVE",
    POWER + 0x92: "POWER_ARGUMENT",
    POWER + 0x82: "POWER_MESSAGE",
    POWER + 0x9A: "POWER_ANSWER",
    POWER + 0x75: "DEBUG_ARGUMENT",
    POWER + 0x8B: "DEBUG_MESSAGE",
    POWER + 0x76: "DEBUG_ANSWER",
    0xA900: "SELECT",
    0xA9E3: "SHADER_BASES",
    0xA9E4: "SHADER_CONFIG",
    0xC046: "SCRATCH_6",
    0xC047: "SCRATCH_7",
    0xC900: "MEC_START",
    0xC904: "MEC",
    0xC938: "MEC_START_HIGH",
    0xEE82: "BOOTLOAD",
    0x305C: "MEC_DOORBELL_LOW",
    0x305D: "MEC_DOORBELL_HIGH",
    **{0x3209 + n: f"HQD_{n}" for n in range(56)},
    0xF89A: "SDMA",
    **{0x12E0 + n: f"COPY_{n:x}" for n in range(0x40)},
    **{GC_0 + gc: f"GC_{name}" for name, (gc, _) in HUB_REGISTERS.items()},
    **{MM + mm: f"MM_{name}" for name, (_, mm) in HUB_REGISTERS.items()},
}
GRAPHICS: Final = frozenset((*range(0x1260, 0x4000), *range(0xA000, 0x10000)))
"""Registers of the graphics core, which has no power at first."""
FLUSH_PLACE: Final = 0x7F000
"""Offset in BAR5 at which a write flushes what the host has written to memory."""
DOORBELLS: Final = 0x400
ACTIVE, DEQUEUE = 2, 24
MEC_SLOT, SDMA_SLOT = 3, 0x100


@dataclass
class PciGpu(Gpu):
    """A card on the PCI bus."""

    RESERVED = 64 << 20

    facts: CardFacts = NAVI31
    gpu_id: int = 1
    node: int = 0
    minor: int = 0
    backing: Backing = field(default_factory=Backing)
    vram_bytes: int = 1 << 30
    first: int = 0x80_0000_0000
    """The card's own address of the start of its memory."""
    is_gone: bool = False
    is_hung: bool = False
    """True if the queue of kernels does not end when it is asked to."""
    acknowledges: bool = True
    """True if hubs answer that translations are forgotten."""

    def __post_init__(self) -> None:
        self.vram_offset = self.backing.take(self.vram_bytes)
        self.vram: Array = self.backing.data[self.vram_offset : self.vram_offset + self.vram_bytes]
        self.walked = self.memory = WalkedMemory(self)
        super().__post_init__()
        self.doorbells = numpy.zeros(DOORBELLS, numpy.uint64)
        self.owned: dict[int, int] = {}
        """Memory of the system that processes have, by its place in the backing."""
        self.windows: dict[int, int] = {}
        """Further pages of the bus, as those of a USB bridge: place in the backing, by address."""
        self.is_bus_master = False
        self.reports_places = False
        self.firmware: Firmware
        self.pending: list[tuple[int, bytes]] = []
        """Writes of the host to memory that are not flushed."""
        self.values: dict[str, int] = {}
        self.banks: dict[tuple[int, str], int] = {}
        """Registers of contexts and queues, by what SELECT selects."""
        self.rings: dict[str, Ring] = {}
        self.resets = 0
        self.power = PowerController(self)
        self.security = SecurityProcessor(self)
        self.writes: dict[str, Callable[[int], None]] = {
            "PSP_BOOT": self.security.boot,
            "PSP_RING": self.security.make_ring,
            "PSP_WRITTEN": self.security.submit,
            "POWER_MESSAGE": self.message,
            "DEBUG_MESSAGE": self.debug_message,
            "GC_REQUEST": lambda value: self.invalidate("GC", value),
            "MM_REQUEST": lambda value: self.invalidate("MM", value),
            "HQD_2": self.activate,
            "HQD_24": self.dequeue,
            "COPY_0": self.ring_control,
            "MEC": self.control_mec,
        }
        self.restart()

    # --- power

    def restart(self) -> None:
        """After power-up."""
        self.values.clear()
        self.banks.clear()
        self.rings.clear()
        self.pending.clear()
        self.has_power = False
        self.is_lost = False
        self.walked.table = ([], [])
        top = self.first + self.vram_bytes - 1
        self.values |= {
            "MEMORY_SIZE": self.vram_bytes >> 20,
            "MM_FB_BASE": self.first >> 24,
            "MM_FB_TOP": top >> 24,
            "FLUSH_REMAP": FLUSH_PLACE,
            "SDMA": 1 | 1 << 9 | 1 << 13,
            "MEC": 1 << 30 | 0xF << 16,
        }
        self.power.is_alive = False
        self.security.reset()

    def reset(self) -> None:
        """A reset of the whole card. Its memory keeps the table of discovery alone."""
        self.resets += 1
        self.vram[: self.vram_bytes - self.RESERVED][: 96 << 20] = 0xCB
        self.restart()

    def switch_on(self) -> None:
        """The graphics core has its firmware, and power."""
        self.has_power = True
        self.values |= {"BOOTLOAD": 1 << 31, "GC_FB_BASE": self.values["MM_FB_BASE"]}
        self.values["GC_FB_TOP"] = self.values["MM_FB_TOP"]

    # --- registers

    def get(self, name: str) -> int:
        """The value of a register."""
        return self.values.get(name, 0)

    def set(self, name: str, value: int) -> None:
        """Have a register hold a value."""
        self.values[name] = value

    def name_of(self, number: int) -> str:
        """The name of a register that may be accessed now."""
        name = NAMES.get(number, "")
        if not name:
            raise Mistake(f"register {number:#x} is accessed, which is none that a driver needs")
        if number in GRAPHICS and not self.has_power and name != "BOOTLOAD":
            raise Mistake(f"{name} is accessed before the graphics core has power")
        return name

    def read32(self, number: int) -> int:
        """Read a register by its number."""
        if self.is_gone:
            return GONE
        name = self.name_of(number)
        if name == "MEMORY_DATA":
            return self.read_far()
        if name.endswith("_SEMAPHORE"):
            self.values[name], before = 1, self.get(name)
            return 0 if before else 1
        if name == "GC_FAULT_STATUS":
            self.pump()
        return self.banks.get((self.get("SELECT"), name), self.get(name))

    def write32(self, number: int, value: int) -> None:
        """Write a register by its number."""
        if number * 4 == FLUSH_PLACE:
            self.flush_host()
            return
        if self.is_gone:
            return
        name = self.name_of(number)
        if name.startswith(("HQD_", "SHADER_", "MEC_START")):
            self.banks[self.get("SELECT"), name] = value
        if name in self.writes:
            self.writes[name](value)
        elif name.endswith("FAULT_CNTL") and value & 1:
            self.values[name.replace("CNTL", "STATUS")] = 0
        else:
            self.values[name] = value

    def read_far(self) -> int:
        """Memory behind the index."""
        index = self.get("MEMORY_INDEX")
        if not index >> 31:
            raise Mistake(f"memory is read through index {index:#x}, which is not valid")
        place = index & 0x7FFFFFFF | self.get("MEMORY_INDEX_HIGH") << 31
        return int.from_bytes(self.vram[place : place + 4].tobytes(), "little")

    def message(self, number: int) -> None:
        """A message to the power controller."""
        if self.get("POWER_ANSWER"):
            raise Mistake(f"message {number} is sent before the last answer was cleared")
        answer, value = self.power.message(number, self.get("POWER_ARGUMENT"))
        self.values |= {"POWER_ANSWER": answer, "POWER_ARGUMENT": value}

    def debug_message(self, number: int) -> None:
        """A message to the power controller's other mailbox."""
        self.values["DEBUG_ANSWER"] = self.power.debug_message(number)

    # --- memory of the card, as the host sees it

    def write_memory(self, place: int, content: bytes) -> None:
        """BAR0 is written; it arrives when it is flushed."""
        if place + len(content) > self.vram_bytes - self.RESERVED:
            raise Mistake(f"{place:#x} is written, which the card's firmware keeps")
        if not self.is_gone:
            self.pending.append((place, bytes(content)))

    def read_memory(self, place: int, size: int) -> bytes:
        """BAR0 is read."""
        if self.is_gone:
            return b"\xff" * size
        content = bytearray(self.vram[place : place + size].tobytes())
        for at, written in self.pending:
            begin, end = max(at, place), min(at + len(written), place + size)
            if begin < end:
                content[begin - place : end - place] = written[begin - at : end - at]
        return bytes(content)

    def flush_host(self) -> None:
        """Let the host's writes arrive."""
        for place, content in self.pending:
            self.put(place, content)
        self.pending.clear()

    def put(self, place: int, content: bytes) -> None:
        """Write memory at once."""
        self.vram[place : place + len(content)] = (
            list(content) if len(content) < 64 else (numpy.frombuffer(content, numpy.uint8))
        )
        self.walked.note_write(place, len(content))

    def seen(self, place: int, size: int) -> bytes:
        """Memory as the card's processors see it."""
        if not 0 <= place <= self.vram_bytes - size:
            raise Mistake(f"{size} bytes at {place:#x}, which is not in the card's memory")
        return self.vram[place : place + size].tobytes()

    def owns_page(self, offset: int) -> bool:
        """True if a process has a page of the system's memory."""
        return any(begin <= offset < begin + size for begin, size in self.owned.items())

    # --- hubs

    def context(self) -> tuple[int, int, int | None]:
        """First and last address of context 0, and the place of its root; None while it is off."""
        control = self.get("GC_CONTEXT_0")
        if not control & 1:
            return 0, 0, None
        if control >> 1 & 3 != 3:
            raise Mistake(f"context 0 has {control >> 1 & 3} levels of directories")
        root = self.get("GC_ROOT_HIGH") << 32 | self.get("GC_ROOT_LOW")
        if not root & 1:
            raise Mistake(f"the root of context 0 is {root:#x}, which is not valid")
        begin = self.get("GC_START_HIGH") << 32 | self.get("GC_START_LOW")
        end = self.get("GC_END_HIGH") << 32 | self.get("GC_END_LOW")
        return begin << 12, (end << 12) | 0xFFF, root & ~1

    def invalidate(self, hub: str, request: int) -> None:
        """Translations are to be forgotten."""
        if hub == "MM" and not self.get("MM_SEMAPHORE"):
            raise Mistake("MMHUB is told to forget by one who does not hold its semaphore")
        if request & 1 and request >> 19 & 0x1F == 0x1F:
            if hub == "GC":
                self.walked.forget()
            if self.acknowledges:
                self.values[f"{hub}_ACKNOWLEDGE"] = request & 0xFFFF
        self.values[f"{hub}_REQUEST"] = request

    def verify_hub(self, hub: str) -> None:
        """Raise Mistake where a hub is not ready for engines."""
        location = (self.first >> 18, (self.first + self.vram_bytes - 1) >> 18)
        found = {
            "aperture": (self.get(f"{hub}_LOW"), self.get(f"{hub}_HIGH")) == location,
            "AGP": self.get(f"{hub}_AGP_BOT") > self.get(f"{hub}_AGP_TOP"),
            "L1": self.get(f"{hub}_L1") & 0x59 == 0x59,
            "L2": self.get(f"{hub}_L2") & 1 == 1,
            "faults": self.get(f"{hub}_CONTEXT_0") & 0x1555400 == 0x1555400,
            "identity": self.get(f"{hub}_IDENTITY_0") > self.get(f"{hub}_IDENTITY_2"),
            "range": self.get(f"{hub}_RANGE_35") == 0x1F,
            "default page": self.get(f"{hub}_FAULT_PAGE_LOW") >= self.first >> 12 & 0xFFFFFFFF,
            "root": self.get(f"{hub}_ROOT_LOW") == self.get("GC_ROOT_LOW"),
            "first invalidation": bool(self.get(f"{hub}_ACKNOWLEDGE")),
        }
        if wrong := [name for name, holds in found.items() if not holds]:
            raise Mistake(f"an engine starts, and {hub} has no {', '.join(wrong)}")

    # --- engines

    def control_mec(self, value: int) -> None:
        """The MEC is started or halted."""
        runs = value >> 30 & 1 == 0 and value >> 16 & 0xF == 0
        if runs:
            self.verify_hub("GC")
            self.verify_hub("MM")
            starts = {self.banks.get((4 | pipe, "MEC_START")) for pipe in range(4)}
            highs = {self.banks.get((4 | pipe, "MEC_START_HIGH")) for pipe in range(4)}
            wanted = self.firmware.mec_start
            if starts != {wanted >> 2 & GONE} or highs != {wanted >> 34}:
                raise Mistake(f"the MEC starts at {starts} {highs}, its firmware at {wanted:#x}")
            if value >> 26 & 0xF != 0xF:
                raise Mistake(f"pipes of the MEC are not active: {value:#x}")
        elif "compute" in self.rings:
            raise Mistake("the MEC is halted, and has a queue")
        self.values["MEC"] = value

    def hqd(self, number: int) -> int:
        """A register of the queue that is selected."""
        return self.banks.get((self.get("SELECT"), f"HQD_{number}"), 0)

    def activate(self, value: int) -> None:
        """HQD_ACTIVE is written."""
        if not value & 1 or "compute" in self.rings:
            raise Mistake(f"HQD_ACTIVE is {value}, of a queue that is there")
        if self.get("SELECT") != 4:
            raise Mistake(f"a queue of kernels at {self.get('SELECT'):#x}")
        if self.get("MEC") >> 16 & 0x400F or self.get("MEC") >> 26 & 1 == 0:
            raise Mistake("a queue for the MEC, which does not run")
        shader = [self.banks.get((context << 4, "SHADER_CONFIG"), 0) for context in range(16)]
        bases = [self.banks.get((context << 4, "SHADER_BASES"), 0) for context in range(16)]
        if set(shader) != {0xC00C} or set(bases) != {0x10002}:
            raise Mistake(f"shaders have memory {shader} {bases}")
        self.verify_doorbell(0, 3, self.hqd(15), 30, MEC_SLOT)
        if not self.get("MEC_DOORBELL_LOW") <= MEC_SLOT * 2 <= self.get("MEC_DOORBELL_HIGH"):
            raise Mistake("the queue's doorbell is outside of those of the MEC")
        self.verify_descriptor()
        control, ring = self.hqd(17), (self.hqd(8) | self.hqd(9) << 32) << 8
        size = 4 << (control & 0x3F) + 1
        if self.hqd(3) or control >> 8 & 0x3F != 5 or not control >> 30 & 1 or not control >> 31:
            raise Mistake(f"a queue of context {self.hqd(3)}, PQ_CONTROL {control:#x}")
        read, written = (self.hqd(n) | self.hqd(n + 1) << 32 for n in (11, 13))
        self.open_ring("compute", Pm4Ring, RingPlace(1, ring, size, written, read, MEC_SLOT))
        self.banks[self.get("SELECT"), "HQD_2"] = 1

    def verify_descriptor(self) -> None:
        """Raise Mistake where registers of a queue are not those of its descriptor."""
        place = (self.hqd(0) | self.hqd(1) << 32) - self.first
        words = numpy.frombuffer(self.seen(place, 2048), numpy.uint32)
        if words[0] != 0xC0310800:
            raise Mistake(f"a descriptor begins with {int(words[0]):#x}")
        for number in range(56):
            if number != ACTIVE and int(words[0x80 + number]) != self.hqd(number):
                raise Mistake(f"HQD_{number} is {self.hqd(number):#x}, not as in its descriptor")
        buffer = ((self.hqd(37) | self.hqd(38) << 32) << 8) - self.first
        self.seen(buffer, 4 << (self.hqd(39) & 0x3F) + 1)
        if self.hqd(39) != 9 or self.hqd(4) >> 8 & 0x3FF != 0x55 or self.hqd(21) >> 20 & 3 != 3:
            raise Mistake("end of pipe, state or buffers of a queue are not as they must be")

    def verify_doorbell(self, port: int, identity: int, told: int, bit: int, slot: int) -> None:
        """Raise Mistake where a doorbell does not reach its engine."""
        control = self.get(f"PORT_{port}")
        if not self.get("DOORBELL_APERTURE") & 1:
            raise Mistake("doorbells are off")
        if control & 0x3F != 1 | identity << 1 or control >> 28 != 3:
            raise Mistake(f"port {port} of doorbells is {control:#x}")
        if not told >> bit & 1 or told & 0x0FFFFFFC != slot * 2 << 2:
            raise Mistake(f"a queue listens to doorbell {told:#x}, not to {slot}")

    def dequeue(self, value: int) -> None:
        """HQD_DEQUEUE_REQUEST is written."""
        if value and not self.is_hung:
            self.rings.pop("compute", None)
            self.banks[self.get("SELECT"), "HQD_2"] = 0

    def ring_control(self, value: int) -> None:
        """SDMA0_QUEUE0_RB_CNTL is written."""
        self.values["COPY_0"] = value
        if not value & 1:
            self.rings.pop("copies", None)
            return
        if self.get("SDMA") & (1 | 1 << 9 | 1 << 13):
            raise Mistake("a queue for SDMA, which does not run")
        get = self.get
        port = get("PORT_2")
        if port >> 6 & 0x3FF != SDMA_SLOT * 2 or not port >> 16 & 0xFF:
            raise Mistake(f"port 2 covers doorbells {port:#x}")
        told = get("COPY_2b") | get("COPY_12") >> 28 << 30
        self.verify_doorbell(2, 0xE, told, 30, SDMA_SLOT)
        if not value >> 12 & 1 or not value >> 23 & 1 or value >> 24 & 0xF:
            raise Mistake(f"SDMA0_QUEUE0_RB_CNTL is {value:#x}")
        if get("COPY_3") or get("COPY_5"):
            raise Mistake("a queue of SDMA begins in the middle")
        ring = (get("COPY_1") | get("COPY_2") << 32) << 8
        read = get("COPY_8") << 32 | get("COPY_9")
        written = get("COPY_32") << 32 | get("COPY_33")
        size = 4 << (value >> 1 & 0x1F)
        self.open_ring("copies", SdmaRing, RingPlace(2, ring, size, written, read, SDMA_SLOT))

    def open_ring(self, name: str, kind: type[Any], place: RingPlace) -> None:
        """A queue is there."""
        try:
            self.rings[name] = kind(self, self, place)
        except MemoryFault as fault:
            raise Mistake(f"the ring of {name}, or its pointers: {fault}") from fault
        assert self.doorbells is not None
        self.doorbells[place.slot] = 0

    def ring_doorbell(self, slot: int, value: int) -> None:
        """BAR2 is written."""
        if self.is_gone:
            return
        assert self.doorbells is not None
        if slot not in (MEC_SLOT, SDMA_SLOT):
            raise Mistake(f"doorbell {slot} is nobody's")
        self.doorbells[slot] = value

    def interrupt(self, context: int) -> None:
        """Interrupts are off."""

    def runs(self) -> bool:
        """True unless a fault has stopped its engines."""
        return not self.is_lost

    def pump(self) -> None:
        """Let queues run, a packet of each in turn, until all of them wait."""
        moved = True
        while moved and self.runs() and not self.is_gone:
            moved = False
            for ring in list(self.rings.values()):
                try:
                    moved = (self.runs() and ring.step()) or moved
                except MemoryFault as fault:
                    self.fault(fault)

    def fault(self, fault: MemoryFault) -> None:
        """An access that no table allows: the hub tells of it, and the engine hangs."""
        self.is_lost = True
        is_write = "write" in str(fault) or "store" in str(fault)
        page = fault.address >> 12
        self.values |= {
            "GC_FAULT_STATUS": 1 << 1 | is_write << 18,
            "GC_FAULT_LOW": page & GONE,
            "GC_FAULT_HIGH": page >> 32 & 0xF,
        }
