"""The interpreter: threads of some groups in lockstep, those least far in the code first.

Registers, constants and memory that nobody wrote hold garbage. What a launch did not state is a
fault: a register beyond its footprint, a constant that was not loaded, shared or private memory
beyond its size, a barrier that some threads of a group never reach.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from emulation.faults import BarrierFault, Fault, IllegalAddress, SyntaxFault, TimeoutFault
from emulation.memory import UNSIGNED, GlobalMemory, LocalMemory, SharedMemory, check_alignment

from adreno.ir3 import operations
from adreno.ir3.images import load_pixels, store_pixels
from adreno.ir3.syntax import Instruction, Operand, program
from adreno.state import POISON, Launch

Array = numpy.ndarray[Any, Any]

AT_ONCE: Final = 16_384
"""Threads that are interpreted together."""
MOST_INSTRUCTIONS: Final = 5_000_000
SHARED_REGISTERS: Final = 48 * 4
SHARED_END: Final = 56 * 4
NONE: Final = 0xFC
WIDTHS: Final = {"u8": 1, "s8": 1, "u16": 2, "s16": 2, "f16": 2, "u32": 4, "s32": 4, "f32": 4}
NOTHING: Final = frozenset({"nop", "fence.g.r.w", "fence.l.r.w", "fence.g.l.r.w", "fence.r.w"})
RUNNING, WAITING, ENDED = range(3)


def execute(launch: Launch, memory: GlobalMemory) -> None:
    """Run all groups of a launch."""
    code = program(launch.machine)
    x, y, z = launch.groups
    groups = x * y * z
    at_once = max(AT_ONCE // launch.block_threads, 1)
    for first in range(0, groups, at_once):
        numbers = numpy.arange(first, min(first + at_once, groups))
        Groups(launch, memory, code, numbers).run()


class Groups:
    """Some groups: registers and places in the code of all their threads."""

    def __init__(
        self,
        launch: Launch,
        memory: GlobalMemory,
        code: tuple[Instruction, ...],
        groups: Array,
    ) -> None:
        self.launch, self.memory, self.code = launch, memory, code
        self.block = launch.block_threads
        self.count = len(groups) * self.block
        self.threads = numpy.arange(self.count)
        self.full = numpy.full((SHARED_END, self.count), POISON, numpy.uint32)
        self.half = numpy.full((SHARED_REGISTERS, self.count), POISON & 0xFFFF, numpy.uint32)
        self.predicates = numpy.zeros((4, self.count), numpy.bool_)
        self.disabled: Array | None = None
        """Threads that a predt or predf has turned off."""
        self.state = numpy.full(self.count, RUNNING, numpy.int8)
        self.places = numpy.zeros(self.count, numpy.int64)
        self.together = True
        """Whether all threads are at one place, which is `place`."""
        self.place = 0
        shared = launch.shared_bytes
        self.shared = SharedMemory(len(groups), shared, self.block, 4, 64, first=0)
        self.private = LocalMemory(self.count, max(launch.private_bytes, 16), first=0)
        self.give_numbers(groups)

    def give_numbers(self, groups: Array) -> None:
        """The numbers of groups and threads, in the registers that the launch names."""
        x, y, _ = self.launch.groups
        sizes = self.launch.threads
        of_group = (groups % x, groups // x % y, groups // (x * y))
        local = numpy.arange(self.block)
        of_thread = (local % sizes[0], local // sizes[0] % sizes[1], local // (sizes[0] * sizes[1]))
        for axis in range(3):
            if self.launch.group_register != NONE:
                place = self.launch.group_register + axis
                self.full[place] = numpy.repeat(of_group[axis], self.block)
            if self.launch.thread_register != NONE:
                place = self.launch.thread_register + axis
                self.full[place] = numpy.tile(of_thread[axis], len(groups))

    # --- the loop

    def run(self) -> None:
        """Until all threads have ended."""
        executed = 0
        with numpy.errstate(all="ignore"):
            while True:
                if self.together:
                    place, which = self.place, None
                else:
                    running = self.state == RUNNING
                    if not running.any():
                        if self.meet():
                            continue
                        return
                    place = int(self.places[running].min())
                    which = running & (self.places == place)
                if place >= len(self.code):
                    raise Fault("the code goes on behind its end")
                made = self.code[place]
                try:
                    going_on = self.step(made, place, which)
                except Fault as fault:
                    raise type(fault)(f"instruction {place}, {made.text}: {fault}") from fault
                executed += 1
                if executed > MOST_INSTRUCTIONS:
                    raise TimeoutFault(f"more than {MOST_INSTRUCTIONS:,} instructions")
                if not going_on:
                    return

    def meet(self) -> bool:
        """Let groups go on whose threads are all at a barrier; whether any did."""
        waiting = (self.state == WAITING).reshape(-1, self.block)
        if not waiting.any():
            return False
        some = waiting.any(1) & ~waiting.all(1)
        if some.any():
            raise BarrierFault(f"{int(waiting[some][0].sum())} of {self.block} threads of a group")
        places = self.places.reshape(-1, self.block)[waiting.any(1)]
        if (places != places[:, :1]).any():
            raise BarrierFault("threads of a group wait at different barriers")
        groups = numpy.flatnonzero(waiting.all(1))
        self.shared.barrier(groups)
        self.state[self.state == WAITING] = RUNNING
        self.gather()
        return True

    def gather(self) -> None:
        """Note whether all threads are at one place again."""
        if (self.state == RUNNING).all() and (self.places == self.places[0]).all():
            self.together, self.place = True, int(self.places[0])

    def scatter(self) -> None:
        """Give every thread a place of its own."""
        if self.together:
            self.places[:] = self.place
            self.together = False

    def step(self, made: Instruction, place: int, which: Array | None) -> bool:
        """One instruction for the threads at it; False when all have ended."""
        name = made.name
        if name in CONTROL:
            return CONTROL[name](self, made, place, which)
        if name.startswith("bar"):
            return self.barrier(made, place, which)
        if name not in NOTHING and not name.startswith("fence"):
            active: Any = which
            if self.disabled is not None:
                active = ~self.disabled if which is None else which & ~self.disabled
            index = slice(None) if active is None else numpy.flatnonzero(active)
            if active is None or len(index):
                self.compute(made, index)
        self.advance(place + 1, which)
        return True

    def advance(self, place: int, which: Array | None) -> None:
        """Move threads to a place."""
        if which is None:
            self.place = place
        else:
            self.places[which] = place
            self.gather()

    # --- control

    def end(self, made: Instruction, place: int, which: Array | None) -> bool:
        """Threads end."""
        if which is None:
            return False
        self.state[which] = ENDED
        return True

    def barrier(self, made: Instruction, place: int, which: Array | None) -> bool:
        """Threads wait for the others of their group."""
        if self.disabled is not None and self.disabled.any():
            raise BarrierFault("a barrier that a predicate turns off for some threads")
        if which is None:
            self.shared.barrier(numpy.arange(self.count // self.block))
            self.place = place + 1
            return True
        self.places[which] = place + 1
        self.state[which] = WAITING
        return True

    def jump(self, made: Instruction, place: int, which: Array | None) -> bool:
        self.advance(place + int(made.operands[-1].value), which)
        return True

    def branch(self, made: Instruction, place: int, which: Array | None) -> bool:
        """br, brao (either of two predicates) and braa (both)."""
        *gates, distance = made.operands
        values = [self.predicates[g.number] ^ g.negated for g in gates]
        taken = values[0]
        if len(values) == 2:
            taken = values[0] | values[1] if made.name == "brao" else values[0] & values[1]
        target = place + int(distance.value)
        if which is None:
            if taken.all() or not taken.any():
                self.place = target if taken.all() else place + 1
                return True
            self.scatter()
            which = numpy.ones(self.count, numpy.bool_)
        self.places[which & taken] = target
        self.places[which & ~taken] = place + 1
        self.gather()
        return True

    def predicate(self, made: Instruction, place: int, which: Array | None) -> bool:
        """predt, predf: what follows is for the threads whose predicate is so; prede: for all."""
        mine = numpy.ones(self.count, numpy.bool_) if which is None else which
        if self.disabled is None:
            self.disabled = numpy.zeros(self.count, numpy.bool_)
        if made.name == "prede":
            self.disabled[mine] = False
            if not self.disabled.any():
                self.disabled = None
        else:
            gate = made.operands[0] if made.operands else Operand("p")  # p0.x is not written
            holds = self.predicates[gate.number] ^ gate.negated
            off = ~holds if made.name == "predt" else holds
            self.disabled[mine] = off[mine]
        self.advance(place + 1, which)
        return True

    # --- registers

    def read(self, source: Operand, which: Any, step: int = 0, as_float: bool = False) -> Array:
        """The words of a source, for the threads that execute."""
        number = source.number + (step if source.repeats else 0)
        count = self.count if isinstance(which, slice) else len(which)
        match source.kind:
            case "r":
                self.check_register(number)
                found = self.full[number][which]
            case "hr":
                found = self.half_register(number)[which]
            case "c":
                if number >= self.launch.constant_words:
                    raise IllegalAddress(f"constant {number} of {self.launch.constant_words}")
                found = numpy.full(count, self.launch.constants[number], numpy.uint32)
            case "literal":
                found = numpy.full(count, int(source.value) & 0xFFFF_FFFF, numpy.uint32)
            case "float":
                found = operations.words(numpy.full(count, source.value, numpy.float32))
            case _:
                raise SyntaxFault(f"a source of the kind {source.kind}")
        if source.absolute:
            found = numpy.abs(found.view(numpy.float32 if as_float else numpy.int32)).view(
                numpy.uint32
            )
        if source.negated:
            flipped = found ^ numpy.uint32(1 << 31) if as_float else numpy.uint32(0) - found
            found = flipped
        return found

    def check_register(self, number: int) -> None:
        """Fault beyond the footprint that the launch states."""
        if number >= SHARED_REGISTERS:
            if number >= SHARED_END:
                raise IllegalAddress(f"register r{number // 4}")
        elif number >= self.launch.full_registers * 4:
            raise IllegalAddress(
                f"register r{number // 4} of {self.launch.full_registers} that the launch has"
            )

    def half_register(self, number: int) -> Array:
        """The 16 bits of a half register of all threads, as words."""
        if self.launch.merged:
            self.check_register(number >> 1)
            return (self.full[number >> 1] >> numpy.uint32(16 * (number & 1))) & numpy.uint32(
                0xFFFF
            )
        if number >= self.launch.half_registers * 4:
            raise IllegalAddress(f"half register hr{number // 4}")
        return self.half[number]

    def write(self, target: Operand, which: Any, value: Array, step: int = 0) -> None:
        """Words to a register, of the threads that execute."""
        number = target.number + step
        if target.kind == "r":
            self.check_register(number)
            if number >= SHARED_REGISTERS:
                raise IllegalAddress("a register that all threads of a wave share is written")
            self.full[number][which] = value
        elif target.kind == "p":
            self.predicates[number][which] = value != 0
        elif target.kind == "hr":
            bits = value & numpy.uint32(0xFFFF)
            if self.launch.merged:
                self.check_register(number >> 1)
                at = numpy.uint32(16 * (number & 1))
                kept = self.full[number >> 1][which] & ~(numpy.uint32(0xFFFF) << at)
                self.full[number >> 1][which] = kept | (bits << at)
            else:
                self.half_register(number)
                self.half[number][which] = bits
        else:
            raise SyntaxFault(f"a target of the kind {target.kind}")

    # --- instructions

    def compute(self, made: Instruction, which: Any) -> None:
        """An instruction that is not about the place in the code."""
        name, head = made.name, made.name.partition(".")[0]
        if head in MEMORY:
            MEMORY[head](self, made, which)
            return
        if head in ("isam", "stib"):
            (load_pixels if head == "isam" else store_pixels)(self, made, which)
            return
        target, sources = made.operands[0], made.operands[1:]
        if head == "swz":
            half = len(made.operands) // 2
            values = [self.read(s, which).copy() for s in made.operands[half:]]
            for one, value in zip(made.operands[:half], values, strict=True):
                self.write(one, which, value)
            return
        for step in range(made.repeat + 1):
            self.write(target, which, self.value(name, sources, which, step, made), step)

    def value(
        self, name: str, sources: tuple[Operand, ...], which: Any, step: int, made: Instruction
    ) -> Array:
        """What arithmetic gives."""
        halves = [s for s in sources if s.kind == "hr"]
        if name in operations.FLOAT or name.startswith("cmps.f"):
            if halves:
                raise SyntaxFault("arithmetic on halves, which our kernels have not")
            values = [self.read(s, which, step, as_float=True) for s in sources]
            if name in operations.FLOAT:
                found = operations.FLOAT[name](*values)
                if "sat" in made.flags:
                    number = numpy.clip(numpy.nan_to_num(operations.floats(found)), 0, 1)
                    found = operations.words(number)
                return found
            return operations.compare(name, *values)
        values = [self.read(s, which, step) for s in sources]
        if halves and len(halves) == len(sources):
            values = [v & numpy.uint32(0xFFFF) for v in values]
        if name.startswith("cmps"):
            if halves and ".s." in name:
                values = [((v << 16).view(numpy.int32) >> 16).view(numpy.uint32) for v in values]
            return operations.compare(name, *values)
        if name.startswith("mov"):
            return values[0]
        if name.startswith("cov"):
            return operations.converted(name, values[0])
        if name not in operations.INTEGER:
            raise SyntaxFault(f"the operation {name} is not known")
        return operations.INTEGER[name](*values)

    # --- memory

    def address(self, place: Operand, which: Any) -> Array:
        """64 bits of an address, from two registers."""
        low, high = (
            self.read(Operand("r", place.number + n), which).astype(numpy.uint64) for n in (0, 1)
        )
        found: Array = (low | high << numpy.uint64(32)) + numpy.uint64(int(place.value))
        return found

    def load_global(self, made: Instruction, which: Any) -> None:
        target, place, count = made.operands
        width = WIDTHS[made.name.partition(".")[2]]
        addresses = self.address(place, which)
        check_alignment(addresses, width)
        found = self.memory.load(addresses, width, int(count.value))
        for step, value in enumerate(found):
            self.write(target, which, value.astype(numpy.uint32), step)

    def store_global(self, made: Instruction, which: Any) -> None:
        place, source, count = made.operands
        width = WIDTHS[made.name.partition(".")[2]]
        addresses = self.address(place, which)
        check_alignment(addresses, width)
        values = self.sources_of(source, int(count.value), which, width)
        self.memory.store(addresses, width, values)

    def sources_of(self, source: Operand, count: int, which: Any, width: int) -> list[Array]:
        """Neighboring registers."""
        made = [Operand(source.kind, source.number + n) for n in range(count)]
        return [self.read(one, which).astype(UNSIGNED[width]) for one in made]

    def near(self, place: Operand, which: Any) -> Array:
        """32 bits of an address."""
        found = self.read(Operand("r", place.number), which).astype(numpy.int64)
        return (found + int(place.value)) & 0xFFFF_FFFF

    def load_near(self, made: Instruction, which: Any) -> None:
        target, place, count = made.operands
        width = WIDTHS[made.name.partition(".")[2]]
        addresses = self.near(place, which)
        check_alignment(addresses, width)
        room: Any = self.shared if made.name.startswith("ldl") else self.private
        found = room.load(self.threads[which], addresses, width, int(count.value))
        for step, value in enumerate(found):
            self.write(target, which, value.astype(numpy.uint32), step)

    def store_near(self, made: Instruction, which: Any) -> None:
        place, source, count = made.operands
        width = WIDTHS[made.name.partition(".")[2]]
        addresses = self.near(place, which)
        check_alignment(addresses, width)
        values = self.sources_of(source, int(count.value), which, width)
        room: Any = self.shared if made.name.startswith("stl") else self.private
        room.store(self.threads[which], addresses, width, values)


CONTROL: Final = {
    "end": Groups.end,
    "jump": Groups.jump,
    "br": Groups.branch,
    "brao": Groups.branch,
    "braa": Groups.branch,
    "predt": Groups.predicate,
    "predf": Groups.predicate,
    "prede": Groups.predicate,
}
MEMORY: Final = {
    "ldg": Groups.load_global,
    "stg": Groups.store_global,
    "ldl": Groups.load_near,
    "stl": Groups.store_near,
    "ldp": Groups.load_near,
    "stp": Groups.store_near,
}
