"""Operands as arrays over threads, and the state of a launch that they are read from.

A register is an unsigned array of its width with an element for each thread; `who` names the
threads that execute, None for all. Reading gives a view of the wanted type, writing extends to
the register's width: by the sign for signed types, by zeros for others (PTX ISA 9.0, section 9.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
from emulation.faults import RaceFault, SyntaxFault
from emulation.memory import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    UNSIGNED,
    GlobalMemory,
    LocalMemory,
    SharedMemory,
)

from executor.syntax import (
    Address,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)

Array = numpy.ndarray[Any, Any]
Who = Array | None
Read = Callable[["State", Who], Array]
Write = Callable[["State", Who, Array], None]
Step = Callable[["State", Who], None]

ARRAY_TYPES: Final[dict[str, Any]] = {
    **{f"{kind}{bits}": UNSIGNED[bits // 8] for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": numpy.dtype(f"i{bits // 8}").type for bits in (8, 16, 32, 64)},
    "f32": numpy.float32,
    "f64": numpy.float64,
    "f16": numpy.float16,
    "tf32": numpy.uint32,
    "bf16": numpy.uint16,
    "f16x2": numpy.uint32,
    "bf16x2": numpy.uint32,
    "pred": numpy.bool_,
    "e4m3x2": numpy.uint16,
    "e5m2x2": numpy.uint16,
    "u16x2": numpy.uint32,
    "s16x2": numpy.uint32,
}
"""The NumPy type of each PTX type; small formats are bit patterns."""


@dataclass
class State:
    """Everything that a launch reads and writes."""

    threads: int
    block_threads: int
    registers: list[Array]
    specials: dict[str, Array]
    symbols: dict[str, tuple[str, int]]
    """Space and address of each variable."""
    parameters: bytes
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    numbers: Array = field(init=False)
    """The number of each thread among those that run."""
    pending: list[Any] = field(default_factory=list)
    """Asynchronous copies that have begun, oldest first."""
    groups: Array = field(init=False)
    """Number of groups of copies that each thread has committed."""
    barriers: dict[tuple[int, int], Any] = field(default_factory=dict)
    """mbarrier objects by block and address."""
    cluster: int = 1
    """Neighboring blocks that share copies."""
    products: dict[int, Any] = field(default_factory=dict)
    """Products under way of each warpgroup, by its first thread."""
    yields: Array = field(init=False)
    """Threads that wait in vain for an mbarrier, and let others go first."""
    unfenced: Array = field(init=False)
    """Threads that stored to shared memory since their last fence.proxy.async."""
    exposed: Array = field(init=False)
    """Unfenced threads after a barrier: a unit may read what they stored, and not see it."""
    progress: int = 0
    """Count of events of mbarriers so far."""

    def __post_init__(self) -> None:
        self.numbers = numpy.arange(self.threads)
        self.groups = numpy.zeros(self.threads, numpy.int64)
        self.yields = numpy.zeros(self.threads, numpy.bool_)
        self.unfenced = numpy.zeros(self.threads, numpy.bool_)
        self.exposed = numpy.zeros(self.threads, numpy.bool_)

    def barrier(self, blocks: Array) -> None:
        """A barrier of whole blocks."""
        self.shared.barrier(blocks)
        by_block = (-1, self.block_threads)
        self.exposed.reshape(by_block)[blocks] |= self.unfenced.reshape(by_block)[blocks]

    def note_write(self, places: Array, size: int) -> None:
        """Raise RaceFault where shared memory is written that products under way read."""
        read = [p.places for found in self.products.values() for p in found.under_way()]
        if not read:
            return
        is_read = numpy.zeros(len(self.shared.data), numpy.bool_)
        for found in read:
            is_read[found] = True
        if is_read[places[:, None] + numpy.arange(size)].any():
            raise RaceFault("shared memory is written that a product under way reads")

    def who(self, who: Who) -> Array:
        """The numbers of the threads that execute."""
        return self.numbers if who is None else who


def count_of(state: State, who: Who) -> int:
    """Number of threads that execute."""
    return state.threads if who is None else len(who)


def reader(operand: Operand, kind: str, line: int = 0) -> Read:
    """Function that reads an operand as a PTX type."""
    wanted = ARRAY_TYPES[kind]
    width = 1 if kind == "pred" else numpy.dtype(wanted).itemsize
    match operand:
        case Register(number=number, width=held, is_predicate=is_predicate):
            if is_predicate or kind == "pred":
                return lambda s, w: s.registers[number] if w is None else s.registers[number][w]
            if held == width:

                def same(state: State, who: Who) -> Array:
                    array = state.registers[number]
                    return (array if who is None else array[who]).view(wanted)

                return same
            if held < width:
                raise SyntaxFault(f"line {line}: {operand.name} is narrower than .{kind}")
            narrow = UNSIGNED[width]

            def truncated(state: State, who: Who) -> Array:
                array = state.registers[number]
                return (array if who is None else array[who]).astype(narrow).view(wanted)

            return truncated
        case Immediate(value=value):
            constant = immediate(value, kind)
            return lambda state, who: numpy.full(count_of(state, who), constant)
        case Negated(register=register):
            number = register.number
            return lambda s, w: ~(s.registers[number] if w is None else s.registers[number][w])
        case Special(name=name):

            def special(state: State, who: Who) -> Array:
                if name not in state.specials:
                    raise SyntaxFault(f"line {line}: special register %{name} is not supported")
                array = state.specials[name]
                array = array if who is None else array[who]
                return array.astype(UNSIGNED[width], copy=False).view(wanted)

            return special
        case Symbol(name=name, offset=offset):

            def address(state: State, who: Who) -> Array:
                _, start = symbol_of(state, name, line)
                value = numpy.array(start + offset, numpy.uint64).astype(UNSIGNED[width])
                return numpy.full(count_of(state, who), value).view(wanted)

            return address
        case _:
            raise SyntaxFault(f"line {line}: {operand} cannot be read as .{kind}")


def symbol_of(state: State, name: str, line: int) -> tuple[str, int]:
    """Space and address of a variable."""
    if name not in state.symbols:
        raise SyntaxFault(f"line {line}: {name} is not declared")
    return state.symbols[name]


def immediate(value: float, kind: str) -> Any:
    """A literal as one element of a PTX type."""
    wanted = ARRAY_TYPES[kind]
    if kind == "pred":
        return numpy.bool_(value)
    if not isinstance(value, int):
        if kind in ("f32", "f64", "f16"):
            return wanted(value)
        if kind in ("b32", "u32", "s32"):
            return numpy.float32(value).view(wanted)
        if kind in ("b64", "u64", "s64"):
            return numpy.float64(value).view(wanted)
        raise SyntaxFault(f"{value} is no .{kind}")
    if kind in ("f32", "f64"):
        return wanted(value)
    bits = numpy.dtype(wanted).itemsize * 8
    unsigned: Any = UNSIGNED[bits // 8](value % (1 << bits))
    return unsigned.view(wanted)


def writer(operand: Operand, kind: str, line: int = 0) -> Write:
    """Function that writes a result of a PTX type to an operand."""
    if isinstance(operand, Sink):
        return lambda state, who, value: None
    if not isinstance(operand, Register):
        raise SyntaxFault(f"line {line}: {operand} cannot be written")
    number, held = operand.number, operand.width
    if operand.is_predicate:

        def write_predicate(state: State, who: Who, value: Array) -> None:
            if who is None:
                state.registers[number] = numpy.array(
                    numpy.broadcast_to(value, state.threads), numpy.bool_
                )
            else:
                state.registers[number][who] = value

        return write_predicate
    unsigned, signed = UNSIGNED[held], kind.startswith("s")
    extended = numpy.dtype(f"i{held}").type if signed else unsigned

    def write(state: State, who: Who, value: Array) -> None:
        if value.dtype.itemsize != held:
            if value.dtype.kind == "f":
                value = value.view(UNSIGNED[value.dtype.itemsize])
            value = value.astype(extended)
        elif value.base is not None:
            value = value.copy()  # a view of another register
        value = value.view(unsigned)
        if who is None:
            state.registers[number] = value
        else:
            state.registers[number][who] = value

    return write


def address_reader(operand: Operand, line: int = 0) -> Read:
    """Addresses of a memory operand, as uint64."""
    if not isinstance(operand, Address):
        raise SyntaxFault(f"line {line}: {operand} is no address")
    if operand.base is None:
        return lambda s, w: numpy.full(count_of(s, w), operand.offset, numpy.uint64)
    if isinstance(operand.base, Symbol):
        return reader(Symbol(operand.base.name, operand.offset), "u64", line)
    number, offset = operand.base.number, operand.offset
    width = operand.base.width

    def read(state: State, who: Who) -> Array:
        array = state.registers[number]
        array = array if who is None else array[who]
        if offset:
            array = array + UNSIGNED[width](offset % (1 << (8 * width)))
        return array.astype(numpy.uint64, copy=False)

    return read


def generic_of(space: str, address: int) -> int:
    """The generic address of a variable."""
    return address + {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
