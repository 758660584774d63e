"""Instructions as functions of the threads that execute them, made once for each kernel.

A register holds an array with an element for each thread, which is replaced, never changed: that is
why it can be handed on without a copy. What is computed is computed for all threads; an element is
kept where its thread executes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy
from emulation.faults import Fault, IllegalAddress, SyntaxFault
from emulation.memory import UNSIGNED, check_alignment

from adreno.ir3 import operations
from adreno.ir3.images import load_pixels, store_pixels
from adreno.ir3.syntax import Instruction, Operand, program

if TYPE_CHECKING:
    from adreno.ir3.run import Groups
    from adreno.state import Launch

Array = numpy.ndarray[Any, Any]
Act: TypeAlias = "Callable[[Groups], None]"
Read: TypeAlias = "Callable[[Groups], Array]"
Write: TypeAlias = "Callable[[Groups, Array], None]"

SHARED_REGISTERS: Final = 48 * 4
SHARED_END: Final = 56 * 4
WIDTHS: Final = {"u8": 1, "s8": 1, "u16": 2, "s16": 2, "f16": 2, "u32": 4, "s32": 4, "f32": 4}
HALVES: Final = frozenset({"hr", "hc"})
LOW: Final = numpy.uint32(0xFFFF)
SIXTEEN: Final = numpy.uint32(16)
SIGN: Final = numpy.uint32(1 << 31)
KINDS: Final = {
    "r": "register r",
    "hr": "half register hr",
    "c": "constant c",
    "hc": "half constant hc",
}
OF_32_BITS: Final = frozenset({"clz.b", "bfrev.b", "mull.u", "madsh.m16"})
"""Operations whose meaning for halves is not known."""


def moves_threads(name: str) -> bool:
    """True if an instruction moves the place in the code, so that it ends a straight piece."""
    return name in CONTROL or name.startswith("bar")


CONTROL: Final = frozenset({"end", "jump", "br", "brao", "braa", "predt", "predf", "prede"})


def extended(a: Array) -> Array:
    """The low half, extended by its sign."""
    return ((a << SIXTEEN).view(numpy.int32) >> 16).view(numpy.uint32)


def is_signed(name: str) -> bool:
    """True if an operation takes its sources as signed numbers."""
    return name == "ashr.b" or name.split(".")[1:2] == ["s"]


def changed(a: Array, source: Operand, name: str, half: bool) -> Array:
    """A source as an operation takes it: of its width, negated, absolute or inverted."""
    if operations.is_floating(name):
        if source.absolute:
            a = a & ~SIGN
        return a ^ SIGN if source.negated else a
    if half and is_signed(name):
        a = extended(a)
    if source.inverted:
        a = ~a
    if source.absolute:
        a = numpy.abs(a.view(numpy.int32)).view(numpy.uint32)
    if source.negated:
        a = numpy.uint32(0) - a
    return a if not half or is_signed(name) else a & LOW


def room_of(launch: Launch, kind: str) -> int:
    """Components of registers or constants that a launch has."""
    if kind == "hc" and not launch.demotes:
        return 0
    registers = {"r": launch.full_registers * 4, "hr": launch.half_registers * 4}
    return registers.get(kind, launch.constant_words)


class Code:
    """A kernel as functions, and what it uses of a launch."""

    def __init__(self, instructions: tuple[Instruction, ...], merged: bool) -> None:
        self.instructions, self.merged = instructions, merged
        self.uses: dict[str, tuple[int, int]] = {}
        """The highest full and half register and constant, and the place of what uses it."""
        self.granule = 4
        """Bytes of the smallest access of shared memory: apart from others by so many, they race
        with none."""
        self.place = 0
        self.acts: list[Act | None] = []
        """None for what moves threads."""
        for self.place, made in enumerate(instructions):
            try:
                self.acts.append(None if moves_threads(made.name) else self.act(made))
            except Fault as fault:
                raise self.located(fault, self.place) from fault
        self.pieces: dict[int, tuple[tuple[tuple[int, Act], ...], int]] = {}

    def located(self, fault: Fault, place: int) -> Fault:
        """A fault that names the instruction."""
        return type(fault)(f"instruction {place}, {self.instructions[place].text}: {fault}")

    def straight(self, place: int) -> tuple[tuple[tuple[int, Act], ...], int]:
        """Straight piece of code from a place to the next that moves threads, and that place."""
        if place not in self.pieces:
            if place >= len(self.acts):
                raise Fault("the code goes on behind its end")
            end = place
            while end < len(self.acts) and self.acts[end] is not None:
                end += 1
            acts = enumerate(self.acts[place:end], place)
            self.pieces[place] = tuple((n, a) for n, a in acts if a and a is not nothing), end
        return self.pieces[place]

    def check(self, launch: Launch) -> None:
        """Fault where the code uses more than a launch states."""
        for kind, (number, place) in self.uses.items():
            if number >= (room := room_of(launch, kind)):
                had = f"{KINDS[kind]}{number // 4} of {room // 4} that the launch has"
                raise self.located(IllegalAddress(had), place)

    def note(self, kind: str, number: int) -> None:
        """Remember the highest that is used, unless it is a register that waves share."""
        if kind == "hr" and self.merged:
            kind, number = "r", number >> 1
        if kind not in KINDS:
            raise SyntaxFault(f"an operand of the kind {kind}")
        if kind == "r" and number >= SHARED_REGISTERS:
            if number >= SHARED_END:
                raise IllegalAddress(f"register r{number // 4}")
        elif number > self.uses.get(kind, (-1, 0))[0]:
            self.uses[kind] = number, self.place

    # --- registers

    def source(self, kind: str, number: int) -> Read:
        """The words of a register or constant."""
        self.note(kind, number)
        return self.words_of(kind, number)

    def words_of(self, kind: str, number: int) -> Read:
        """The words of a register or constant that the launch has."""
        if kind == "r":
            return lambda g: g.full[number]
        if kind == "hr" and self.merged:
            at = number >> 1
            if number & 1:
                return lambda g: g.full[at] >> SIXTEEN
            return lambda g: g.full[at] & LOW
        if kind == "hr":
            return lambda g: g.half[number]
        if kind == "c":
            return lambda g: g.constants[number]
        return lambda g: g.constants[number] & LOW  # hc: constants are demoted

    def words(self, source: Operand, step: int) -> Read:
        """The words of a register or constant, which a0.x may name."""
        find = self.relative_source if source.relative else self.source
        return find(source.kind, source.number + step)

    def relative_source(self, kind: str, offset: int) -> Read:
        """The words of the registers or constants that a0.x of each thread names."""

        def read(g: Groups) -> Array:
            numbers, mine = self.addressed(g, kind, offset)
            found = numpy.zeros(g.count, numpy.uint32)
            for number in numpy.unique(numbers[mine]):
                found = numpy.where(numbers == number, self.words_of(kind, int(number))(g), found)
            return found

        return read

    def relative_target(self, kind: str, offset: int) -> Write:
        """Writer of the registers that a0.x of each thread names."""

        def write(g: Groups, value: Array) -> None:
            numbers, mine = self.addressed(g, kind, offset)
            for number in numpy.unique(numbers[mine]):
                kept = self.words_of(kind, int(number))(g)
                self.put_words(kind, int(number))(g, numpy.where(numbers == number, value, kept))

        return write

    def addressed(self, g: Groups, kind: str, offset: int) -> tuple[Array, Array]:
        """Numbers of registers by a0.x of each thread, and a mask of active threads."""
        numbers = g.addresses + offset
        mine = numpy.ones(g.count, numpy.bool_) if g.active is None else g.active
        halves = kind == "hr" and self.merged
        room = room_of(g.launch, "r") * 2 if halves else room_of(g.launch, kind)
        wrong = numbers[mine & ((numbers < 0) | (numbers >= room))]
        if len(wrong):
            raise IllegalAddress(f"{KINDS[kind]} of component {wrong[0]}, of {room}, by a0.x")
        return numbers, mine

    def read(self, source: Operand, step: int, name: str, half: bool) -> Read:
        """A source as an operation takes it."""
        if source.kind in ("literal", "float"):
            if source.kind == "literal":
                number = numpy.array(int(source.value) & operations.WORD, numpy.uint32)
            else:
                number = numpy.array(source.value, numpy.float32).view(numpy.uint32)
            value = changed(number, source, name, half)
            return lambda g: value
        read = self.words(source, step if source.repeats else 0)
        plain = not (source.negated or source.absolute or source.inverted)
        if plain and not (half and is_signed(name)):
            return read
        return lambda g: changed(read(g), source, name, half)

    def write(self, target: Operand, step: int = 0) -> Write:
        """Writer of a register."""
        number = target.number + step
        if target.kind == "p":
            return lambda g, value: g.put_predicate(number, value)
        if target.kind == "a":
            return lambda g, value: g.put_address(value)
        if target.kind not in ("r", "hr"):
            raise SyntaxFault(f"a target of the kind {target.kind}")
        if target.relative:
            return self.relative_target(target.kind, number)
        self.note(target.kind, number)
        return self.put_words(target.kind, number)

    def put_words(self, kind: str, number: int) -> Write:
        """Writer of a register that the launch has."""
        if kind == "r":
            if number >= SHARED_REGISTERS:
                raise IllegalAddress("a register that all threads of a wave share is written")
            return lambda g, value: g.put(g.full, number, value)
        if not self.merged:
            return lambda g, value: g.put(g.half, number, value & LOW)
        at, shift = number >> 1, numpy.uint32(16 * (number & 1))
        kept = ~(LOW << shift)
        return lambda g, value: g.put(g.full, at, g.full[at] & kept | (value & LOW) << shift)

    # --- instructions

    def act(self, made: Instruction) -> Act:
        """Action of an instruction."""
        name, head = made.name, made.name.partition(".")[0]
        if head in ("nop", "fence"):
            return nothing
        if head in MEMORY:
            return MEMORY[head](self, made)
        if head == "isam":
            return self.act_of_isam(made)
        if head == "stib":
            return self.act_of_stib(made)
        if head == "swz":
            return self.act_of_swz(made)
        sources, floating = made.operands[1:], operations.is_floating(name)
        half = any(s.kind in HALVES for s in sources)
        if half and floating:
            raise SyntaxFault("arithmetic on halves, which our kernels have not")
        if any(s.kind == "hc" for s in sources) and name.startswith(("cov.f", "mov.f")):
            raise SyntaxFault("a half constant that is a float")
        converts = name.startswith(("mov", "cov", "sel"))
        if half and (name in OF_32_BITS or "sat" in made.flags):
            raise SyntaxFault(f"{name} of halves")
        function = operations.meaning(name, made.flags)
        steps = [
            computed(
                function,
                [self.read(s, step, name, half and not converts) for s in sources],
                self.write(made.operands[0], step),
            )
            for step in range(made.repeat + 1)
        ]
        return steps[0] if len(steps) == 1 else in_order(steps)

    def act_of_swz(self, made: Instruction) -> Act:
        """swz: all sources are read before a target is written."""
        half = len(made.operands) // 2
        reads = [self.read(s, 0, "mov", half=False) for s in made.operands[half:]]
        writes = [self.write(target) for target in made.operands[:half]]

        def act(g: Groups) -> None:
            values = [read(g) for read in reads]
            for write, value in zip(writes, values, strict=True):
                write(g, value)

        return act

    def act_of_isam(self, made: Instruction) -> Act:
        """isam: the channels of a pixel that the instruction names."""
        target, place, sampler, texture = made.operands
        written = next(flag.split()[1] for flag in made.flags if flag.startswith("writes "))
        column, row = (self.source(place.kind, place.number + n) for n in range(2))
        writes = {"xyzw".index(c): self.write(target, "xyzw".index(c)) for c in written}

        def act(g: Groups) -> None:
            pixels = load_pixels(
                g, sampler.number, texture.number, g.chosen(column(g)), g.chosen(row(g))
            )
            for channel, write in writes.items():
                write(g, g.spread(pixels[channel]))

        return act

    def act_of_stib(self, made: Instruction) -> Act:
        """stib: a pixel is written."""
        value, place, slot = made.operands
        if ".f32.4" not in made.name or ".2d" not in made.name:
            raise SyntaxFault(f"{made.name} is not known")
        number = int(slot.value)
        column, row = (self.source(place.kind, place.number + n) for n in range(2))
        parts = [self.source(value.kind, value.number + n) for n in range(4)]

        def act(g: Groups) -> None:
            channels = [g.chosen(part(g)) for part in parts]
            store_pixels(g, number, g.chosen(column(g)), g.chosen(row(g)), channels)

        return act

    # --- memory

    def address(self, place: Operand) -> Read:
        """64 bits of an address, from two registers."""
        low, high = (self.source("r", place.number + n) for n in range(2))
        offset = numpy.uint64(int(place.value) & 0xFFFF_FFFF_FFFF_FFFF)
        up = numpy.uint64(32)

        def read(g: Groups) -> Array:
            found = low(g).astype(numpy.uint64) | high(g).astype(numpy.uint64) << up
            return g.chosen(found + offset)

        return read

    def near(self, place: Operand) -> Read:
        """32 bits of an address of shared or private memory."""
        base, offset = self.source("r", place.number), int(place.value)
        return lambda g: g.chosen((base(g).astype(numpy.int64) + offset) & 0xFFFF_FFFF)

    def registers_of(self, data: Operand, head: str, width: int) -> Operand:
        """The registers of what is loaded or stored.

        Those of bytes and of 16 bits are half ones; the disassembler prints them as full ones where
        memory is not global.
        """
        if head in ("ldl", "stl"):
            self.granule = min(self.granule, width)
        if width < 4 and data.kind == "r" and head not in ("ldg", "stg"):
            return replace(data, kind="hr")
        return data

    def load(self, made: Instruction) -> Act:
        """ldg, ldl, ldp: words side by side."""
        target, place, count = made.operands
        head, _, kind = made.name.partition(".")
        width, number = WIDTHS[kind], int(count.value)
        address = self.address(place) if head == "ldg" else self.near(place)
        target = self.registers_of(target, head, width)
        writes = [self.write(target, step) for step in range(number)]

        def act(g: Groups) -> None:
            addresses = address(g)
            check_alignment(addresses, width)
            for write, value in zip(writes, g.load(head, addresses, width, number), strict=True):
                write(g, g.spread(value.astype(numpy.uint32)))

        return act

    def store(self, made: Instruction) -> Act:
        """stg, stl, stp: words side by side."""
        place, source, count = made.operands
        head, _, kind = made.name.partition(".")
        width, number = WIDTHS[kind], int(count.value)
        address = self.address(place) if head == "stg" else self.near(place)
        source = self.registers_of(source, head, width)
        reads = [self.words(source, n) for n in range(number)]

        def act(g: Groups) -> None:
            addresses = address(g)
            check_alignment(addresses, width)
            values = [g.chosen(read(g)).astype(UNSIGNED[width]) for read in reads]
            g.store(head, addresses, width, values)

        return act


MEMORY: Final = {
    **dict.fromkeys(("ldg", "ldl", "ldp"), Code.load),
    **dict.fromkeys(("stg", "stl", "stp"), Code.store),
}


def nothing(g: Groups) -> None:
    """nop, fence."""


def in_order(acts: list[Act]) -> Act:
    """Acts one after the other."""

    def act(g: Groups) -> None:
        for one in acts:
            one(g)

    return act


def computed(function: Callable[..., Array], reads: list[Read], write: Write) -> Act:
    """Arithmetic: what a function makes of sources, to a target."""
    match reads:
        case [a]:
            return lambda g: write(g, function(a(g)))
        case [a, b]:
            return lambda g: write(g, function(a(g), b(g)))
        case _:
            return lambda g: write(g, function(*[read(g) for read in reads]))


@lru_cache(maxsize=512)
def code_of(machine: bytes, merged: bool) -> Code:
    """The code of a kernel, whose half registers lie in full ones or apart."""
    return Code(program(machine), merged)
