"""The command processor: PM4 packets, one at a time, from a ring or an indirect buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kfd_standin.gpu import Array, Dispatch, Gpu, Mistake
from kfd_standin.queues import Ring, RingPlace

if TYPE_CHECKING:
    from kfd_standin.machine import Machine

__all__ = ["Pm4Ring", "Processor"]

REGISTERS: Final = range(0x200, 0x400)
WANTED: Final = {
    **dict.fromkeys((0x204, 0x205, 0x206), "START"),
    **dict.fromkeys((0x207, 0x208, 0x209), "NUM_THREAD"),
    **dict.fromkeys((0x20C, 0x20D), "PGM"),
    0x212: "PGM_RSRC1",
    0x213: "PGM_RSRC2",
    0x215: "RESOURCE_LIMITS",
    0x218: "TMPRING_SIZE",
    **dict.fromkeys((0x21B, 0x21C, 0x21D), "RESTART"),
}
"""Registers that every dispatch must have set: others' work may have come between."""
SCRATCH_BASE: Final = dict.fromkeys((0x210, 0x211), "DISPATCH_SCRATCH_BASE")
"""The same, where kernels do not place their scratch themselves."""
RSRC3: Final = {False: 0x228, True: 0x22D}
"""PGM_RSRC3 of RDNA, and of CDNA."""
GCR_SEEN: Final = {0: "GLI_INV", 7: "GLK_INV", 8: "GLV_INV", 9: "GL1_INV", 14: "GL2_INV"}
GCR_INSTRUCTIONS: Final = 1
RELEASED: Final = {21: "GL2_WB"}
COHER_SEEN: Final = {18: "TC_WB", 22: "TCL1", 23: "TC", 27: "SH_KCACHE", 29: "SH_ICACHE"}
COHER_INSTRUCTIONS: Final = 1 << 29
COHER_RELEASED: Final = {15: "TC_WB"}
"""Bits of CP_COHER_CNTL and of RELEASE_MEM on CDNA."""


@dataclass
class Frame:
    """An indirect buffer that is being executed."""

    words: Array
    at: int = 0


class Processor:
    """Registers, and what has begun and not ended."""

    def __init__(self, machine: Machine, gpu: Gpu) -> None:
        self.machine, self.gpu = machine, gpu
        self.registers: dict[int, int] = {}
        self.frames: list[Frame] = []
        self.begun: list[Dispatch] = []
        """Dispatches that nothing has waited for."""
        self.is_fresh = False
        """True if caches hold nothing from before others' work that was waited for."""
        self.packets: dict[int, Callable[[list[int]], bool]] = {
            0x10: lambda body: True,
            0x15: self.dispatch,
            0x3C: self.wait,
            0x3F: self.indirect,
            0x46: self.event,
            0x49: self.release,
            0x58: self.acquire,
            0x76: self.set_registers,
        }

    def execute(self, words: Array) -> bool:
        """One packet; False when it has to wait."""
        header, *body = (int(word) for word in words)
        opcode = header >> 8 & 0xFF
        if header >> 30 != 3 or header & 0xFF:
            raise Mistake(f"{header:#010x} is no header of a packet of type 3")
        if opcode not in self.packets:
            raise Mistake(f"PM4 packet {opcode:#x} is not known here: {[hex(w) for w in body]}")
        return self.packets[opcode](body)

    def step_buffer(self) -> bool:
        """One packet of the innermost indirect buffer."""
        frame = self.frames[-1]
        length = packet_words(int(frame.words[frame.at]))
        if frame.at + length > len(frame.words):
            raise Mistake("an indirect buffer ends within a packet")
        if not self.execute(frame.words[frame.at : frame.at + length]):
            return False
        frame.at += length
        while self.frames and self.frames[-1].at == len(self.frames[-1].words):
            self.frames.pop()
        return True

    # --- packets

    def set_registers(self, body: list[int]) -> bool:
        first, *values = body
        for number, value in enumerate(values, first):
            if number not in REGISTERS:
                raise Mistake(f"SET_SH_REG sets {number:#x}, which is no register of dispatches")
            self.registers[number] = value
        return True

    def acquire(self, body: list[int]) -> bool:
        is_cdna = self.gpu.facts.is_cdna
        check(len(body) == (6 if is_cdna else 7), "ACQUIRE_MEM has", body)
        control, seen = (body[0], COHER_SEEN) if is_cdna else (body[6], GCR_SEEN)
        body = [0, *body[1:5]] if is_cdna else body
        missing = [name for bit, name in seen.items() if not control >> bit & 1]
        instructions = COHER_INSTRUCTIONS if is_cdna else GCR_INSTRUCTIONS
        covers = body[1] == 0xFFFFFFFF and body[2] == 0xFF and body[3] == body[4] == 0
        if not missing and covers:
            self.is_fresh = True
        if control & instructions:
            self.gpu.forget_code()
        return True

    def wait(self, body: list[int]) -> bool:
        check(len(body) == 6, "WAIT_REG_MEM has", body)
        control, low, high, reference, mask, _ = body
        check(control >> 4 & 1 == 1 and control >> 6 & 3 == 0, "WAIT_REG_MEM polls", body)
        value = self.gpu.load(low | high << 32) & mask
        if not compare(control & 7, value, reference):
            return False
        self.is_fresh = False
        return True

    def event(self, body: list[int]) -> bool:
        check(body == [0x407], "EVENT_WRITE of", body)
        self.flush()
        return True

    def release(self, body: list[int]) -> bool:
        check(len(body) == 7, "RELEASE_MEM has", body)
        event, select, low, high, data_low, data_high, context = body
        check(event & 0xFFF == 0x514, "RELEASE_MEM of event", [event])
        wanted = COHER_RELEASED if self.gpu.facts.is_cdna else RELEASED
        missing = [name for bit, name in wanted.items() if not event >> bit & 1]
        self.flush()
        address, data = low | high << 32, select >> 29
        if data == 2 and missing:
            raise Mistake(f"what has been written is signaled without {', '.join(missing)}")
        if data == 1:
            self.gpu.store(address, data_low, 4)
        elif data:
            value = self.gpu.clock() if data == 3 else data_low | data_high << 32
            check(data in (2, 3), "RELEASE_MEM writes", body)
            self.gpu.store(address, value, 8)
        interrupt = select >> 24 & 7
        check(interrupt in (0, 2), "RELEASE_MEM interrupts", body)
        if interrupt:
            check(not (self.gpu.facts.is_cdna and context), "RELEASE_MEM carries", [context])
            self.machine.interrupt(context)
        return True

    def indirect(self, body: list[int]) -> bool:
        check(len(body) == 3 and body[2] >> 23 & 1 == 1, "INDIRECT_BUFFER is", body)
        count = body[2] & 0xFFFFF
        check(count > 0, "INDIRECT_BUFFER is empty:", body)
        self.frames.append(Frame(self.gpu.words(body[0] | body[1] << 32, count, "fetch")))
        return True

    # --- kernels

    def dispatch(self, body: list[int]) -> bool:
        x, y, z, initiator = body
        facts = self.gpu.facts
        waves = 0x8000 if facts.wave == 32 else 0
        check(initiator & 0x8005 == 5 | waves, "DISPATCH_INITIATOR is", [initiator])
        rsrc3 = RSRC3[facts.is_cdna]
        needed = {**WANTED, rsrc3: "PGM_RSRC3"}
        if not facts.is_rdna2:
            needed |= SCRATCH_BASE
        missing = {name for number, name in needed.items() if number not in self.registers}
        if missing:
            raise Mistake(f"a dispatch without {', '.join(sorted(missing))}")
        at = self.registers
        check([at[n] for n in (0x204, 0x205, 0x206)] == [0, 0, 0], "a dispatch starts at", body)
        rsrc2 = at[0x213]
        wanted = range(0x240, 0x240 + min(rsrc2 >> 1 & 31, 16))
        scratch = at.get(0x210, 0) | at.get(0x211, 0) << 32
        check(not (facts.is_rdna2 and scratch), "RDNA2 has no base of scratch:", [scratch])
        self.begin(
            Dispatch(
                entry=(at[0x20C] | at[0x20D] << 32) << 8,
                groups=(x, y, z),
                group=(at[0x207], at[0x208], at[0x209]),
                rsrc1=at[0x212],
                rsrc2=rsrc2,
                user_data=[at.get(number, 0xCBCBCBCB) for number in wanted],
                shared_bytes=(rsrc2 >> 15 & 0x1FF) * 512,
                private_bytes=self.private_bytes(at[0x218], scratch << 8, rsrc2),
                rsrc3=at[rsrc3],
            )
        )
        self.registers.clear()
        return True

    def begin(self, dispatch: Dispatch) -> None:
        """A launch, which runs when something waits for it."""
        if not self.is_fresh:
            raise Mistake("a kernel is launched before caches forget what others have overwritten")
        self.begun.append(dispatch)

    def private_bytes(self, ring: int, base: int, rsrc2: int) -> int:
        """Bytes of scratch of each work-item, whose memory must be there for all waves."""
        if not rsrc2 & 1:
            return 0
        facts = self.gpu.facts
        unit, engines = 256, facts.array_count // facts.arrays_per_engine
        if facts.is_cdna or facts.is_rdna2:
            unit, engines = 1024, 1
        wave, waves = (ring >> 12 & 0x7FFF) * unit, ring & 0xFFF
        check(waves > 0 and wave > 0, "scratch without memory: TMPRING_SIZE is", [ring])
        if not facts.is_rdna2:  # there the emulator sees where each wave has its part
            self.gpu.span(base, wave * waves * engines, "scratch")
        return wave // 64

    def flush(self) -> None:
        """Run what has begun: in reverse, as nothing says that one comes after the other."""
        while self.begun:
            self.gpu.run(self.begun.pop())
            self.is_fresh = False


class Pm4Ring(Ring):
    """A queue of PM4. Pointers count words."""

    def __init__(self, machine: Machine, gpu: Gpu, place: RingPlace) -> None:
        super().__init__(machine, gpu, place)
        self.processor = Processor(machine, gpu)

    def step(self) -> bool:
        """Execute one packet."""
        if self.processor.frames:
            return self.processor.step_buffer()
        left = self.written - self.read
        if not left:
            return False
        length = packet_words(int(self.take(1)[0]))
        if length > left:
            raise Mistake(f"a packet of {length} words, of which {left} are written")
        if not self.processor.execute(self.take(length)):
            return False
        self.advance(length)
        return True


def packet_words(header: int) -> int:
    """Words of a packet, its header included."""
    count = header >> 16 & 0x3FFF
    return 1 if count == 0x3FFF else count + 2


def compare(function: int, value: int, reference: int) -> bool:
    """A condition of WAIT_REG_MEM and POLL_REGMEM."""
    found = (
        True,
        value < reference,
        value <= reference,
        value == reference,
        value != reference,
        value >= reference,
        value > reference,
    )
    return found[function]


def check(holds: bool, text: str, words: list[int]) -> None:
    """Raise Mistake with the words of a packet."""
    if not holds:
        raise Mistake(f"{text} {[hex(word) for word in words]}")
