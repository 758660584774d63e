"""Registers of all waves that run, and operands as arrays over waves and lanes.

A scalar register is an array (waves,), a vector register (waves, lanes), both unsigned. `who` names
the waves that execute, None for all; vector results reach only lanes whose bit in EXEC is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
from emulation.faults import IllegalAddress, RaceFault, SyntaxFault
from emulation.memory import GlobalMemory, LocalMemory, SharedMemory

from emulator.decode import FIRST_VGPR, LITERAL, NULL

Array = numpy.ndarray[Any, Any]
Who = Array | None

VCC: Final = 106
M0: Final = 125
EXEC: Final = 126
SCC: Final = 253
SHARED_APERTURE: Final = 0x0001_0000_0000_0000
PRIVATE_APERTURE: Final = 0x0002_0000_0000_0000
TYPES: Final[dict[str, Any]] = {
    **{
        f"{kind}{bits}": numpy.dtype(f"u{bits // 8}").type for kind in "bu" for bits in (16, 32, 64)
    },
    **{f"i{bits}": numpy.dtype(f"i{bits // 8}").type for bits in (16, 32, 64)},
    "f16": numpy.float16,
    "f32": numpy.float32,
    "f64": numpy.float64,
    "bf16": numpy.uint16,
}
FLOAT_CONSTANTS: Final = {
    **dict(zip(range(240, 248), (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0), strict=True)),
    248: 0.15915494309189535,
}


def width_of(kind: str) -> int:
    """Bits of a type."""
    return int(kind.lstrip("bufi"))


ACCESSES: Final = {
    "lgkm": "an access of LDS",
    "vm": "a load from global memory",
    "stores": "a store to global memory",
    "scalar": "a scalar load",
}
"""By counter; before RDNA stores are counted as loads are."""
COUNTERS: Final = tuple(ACCESSES)


@dataclass
class Pending:
    """A register that a load has yet to fill: which counter tells, and its number among loads."""

    counter: str
    number: Array
    """For each wave; -1 where nothing is under way."""


@dataclass
class State:
    """Everything that waves read and write."""

    waves: int
    lanes: int
    group_waves: int
    scalars: list[Array]
    vectors: list[Array]
    memory: GlobalMemory
    shared: SharedMemory
    local: LocalMemory
    active: Array = field(init=False)
    """EXEC as booleans (waves, lanes)."""
    issued: dict[str, Array] = field(init=False)
    """Loads begun by each wave, by counter."""
    pending: dict[int, Pending] = field(default_factory=dict)
    """Registers under way, by operand code."""
    is_full: bool = True
    """True if every lane of every wave is active."""
    counts_stores: bool = False
    """True if the counter of loads (vmcnt) counts stores too, as it does before RDNA."""
    spans_units: bool = False
    """True if waves of a group may be on two compute units, each with a cache (WGP_MODE)."""
    has_signed_scratch: bool = False
    """True if registers of an address in scratch are signed, as they are from RDNA4 on (LLVM,
    `GCNSubtarget.h`: `hasSignedScratchOffsets`); below zero they are a fault elsewhere."""
    scratch: Array | None = None
    """The address of scratch by each wave, in halves (waves, 2); None where cards know it."""
    has_flat: bool = False
    """True if a FLAT instruction has loaded: its registers are pending by two counters."""

    finished: dict[str, Array] = field(init=False)
    """Number of them that have arrived for sure, by counter."""
    accessed: dict[str, Array] = field(init=False)
    """Number of the latest access of memory that waves share, by counter."""

    def __post_init__(self) -> None:
        self.issued, self.finished, self.accessed = (
            {name: numpy.zeros(self.waves, numpy.int64) for name in COUNTERS} for _ in range(3)
        )
        self.update_active(None)

    def check_scratch(self, who: Who) -> None:
        """Raise IllegalAddress where scratch, where waves have said that it is, is no memory."""
        if self.scratch is None:
            return
        size = self.local.size * self.lanes
        for low, high in (self.scratch if who is None else self.scratch[who]).tolist():
            address = low | high << 32
            region = self.memory.region_at(address)
            if region is None or address + size > region.address + region.data.nbytes:
                raise IllegalAddress(
                    f"scratch of a wave, {size} bytes at {address:#x}, is no memory"
                )

    def update_active(self, who: Who) -> None:
        """EXEC has changed."""
        self.active = bit_lanes(self, read_mask(self, None, EXEC))
        self.is_full = bool(self.active.all())

    def mask(self, who: Who) -> Array | None:
        """The lanes that vector instructions write; None for all."""
        if self.is_full:
            return None
        return self.active if who is None else self.active[who]

    def count(self, who: Who) -> int:
        """Number of waves that execute."""
        return self.waves if who is None else len(who)

    def numbers(self, who: Who) -> Array:
        """The numbers of the waves that execute."""
        return numpy.arange(self.waves) if who is None else who

    # --- waiting for loads

    def begin_load(self, who: Who, counter: str, registers: Iterable[int]) -> None:
        """Registers are under way from now on."""
        waves = self.numbers(who)
        self.issued[counter][waves] += 1
        for register in registers:
            entry = self.pending.get(register)
            if entry is None or entry.counter != counter:
                entry = Pending(counter, numpy.full(self.waves, -1))
                self.pending[register] = entry
            entry.number[waves] = self.issued[counter][waves]

    def begin_access(self, who: Who, counter: str, registers: Iterable[int] = ()) -> None:
        """A load or a store of memory that waves share: registers are under way from now on."""
        self.begin_load(who, counter, registers)
        waves = self.numbers(who)
        self.accessed[counter][waves] = self.issued[counter][waves]

    def begin_flat_access(self, who: Who, counter: str, registers: Sequence[int]) -> None:
        """One whose address may be of LDS too: both counters must say that it has arrived."""
        self.has_flat = True
        self.begin_access(who, counter, registers)
        self.begin_access(who, "lgkm", [FLAT + register for register in registers])

    def check_ordered(self, who: Who) -> None:
        """Raise RaceFault at a barrier that a wave reaches before its accesses have ended.

        Compute units of a workgroup processor have a cache of vectors each, so that accesses of
        global memory count too; those of one unit are in order (LLVM, "User Guide for AMDGPU
        Backend", section "Memory Model GFX10-GFX11").
        """
        waves = self.numbers(who)
        for counter in COUNTERS if self.spans_units else ("lgkm",):
            if (self.accessed[counter][waves] > self.finished[counter][waves]).any():
                raise RaceFault(
                    f"a barrier is reached before s_waitcnt says that {ACCESSES[counter]} has ended"
                )

    def wait(self, who: Who, counter: str, left: int) -> None:
        """All but the latest loads of a counter have arrived."""
        waves = self.numbers(who)
        bound = self.issued[counter] - left
        self.finished[counter][waves] = numpy.maximum(self.finished[counter], bound)[waves]
        for register in list(self.pending):
            entry = self.pending[register]
            if entry.counter == counter:
                done = entry.number[waves] <= bound[waves]
                entry.number[waves[done]] = -1
                if (entry.number < 0).all():
                    del self.pending[register]

    def check_arrived(self, who: Who, registers: Sequence[int]) -> None:
        """Raise RaceFault for a register that is used while a load of it is under way."""
        codes = [other for register in registers for other in overlapping(register)]
        if self.has_flat:
            codes += [FLAT + code for code in codes]
        for code in codes:
            entry = self.pending.get(code)
            if entry is not None and (entry.number[self.numbers(who)] >= 0).any():
                code %= FLAT
                register = code if code < HALVES else (code - HALVES) // 2
                name = f"v{register - FIRST_VGPR}" if register >= FIRST_VGPR else f"s{register}"
                raise RaceFault(f"{name} is used before s_waitcnt says that its load has arrived")


HALVES: Final = 1 << 16
"""Operand codes of halves of registers begin here, two for each register."""
FLAT: Final = 1 << 20
"""Added to the code of a register that the counter of LDS must release too."""


def code_of_half(register: int, half: str) -> int:
    """Code of the part of a register that is "whole", "low" or "high".

    A wave waits for halves apart: loads arrive in order, so that of one half may have arrived while
    a later one of the other is under way.
    """
    return register if half == "whole" else HALVES + 2 * register + (half == "high")


def overlapping(code: int) -> tuple[int, ...]:
    """Codes of registers and halves that share bits with one."""
    if code >= HALVES:
        return code, (code - HALVES) // 2
    return code, HALVES + 2 * code, HALVES + 2 * code + 1


def scalar_word(state: State, who: Who, code: int, literal: int) -> Array:
    """32 bits of a scalar operand, (waves,)."""
    if code < 128:
        if code == NULL:
            return numpy.zeros(state.count(who), numpy.uint32)
        array = state.scalars[code]
        return array if who is None else array[who]
    if code == SCC:
        array = state.scalars[SCC]
        return array if who is None else array[who]
    if code in (235, 237):
        window = SHARED_APERTURE if code == 235 else PRIVATE_APERTURE
        return numpy.full(state.count(who), window >> 32, numpy.uint32)
    if code in FLOAT_CONSTANTS:
        value = numpy.float32(FLOAT_CONSTANTS[code]).view(numpy.uint32)
    else:
        value = numpy.uint32(integer_constant(code, literal) % 2**32)
    return numpy.full(state.count(who), value)


def integer_constant(code: int, literal: int) -> int:
    """An inline integer or the literal."""
    if 128 <= code <= 192:
        return code - 128
    if 193 <= code <= 208:
        return 192 - code
    if code == LITERAL:
        return literal
    raise SyntaxFault(f"operand code {code} is not supported")


def scalar_pair(state: State, who: Who, code: int, literal: int) -> Array:
    """64 bits of a scalar operand, (waves,)."""
    if code in (235, 237):
        window = SHARED_APERTURE if code == 235 else PRIVATE_APERTURE
        return numpy.full(state.count(who), window, numpy.uint64)
    if code < 128:
        low = scalar_word(state, who, code, literal).astype(numpy.uint64)
        high = scalar_word(state, who, code if code == NULL else code + 1, literal)
        return low | high.astype(numpy.uint64) << numpy.uint64(32)
    if code in FLOAT_CONSTANTS:
        value = numpy.float64(FLOAT_CONSTANTS[code]).view(numpy.uint64)
    else:
        value = numpy.uint64(integer_constant(code, literal) % 2**64)
    return numpy.full(state.count(who), value)


def write_scalar(state: State, who: Who, code: int, value: Array) -> None:
    """A word to a scalar register."""
    if code == NULL:
        return
    value = numpy.asarray(value).astype(numpy.uint32, copy=False)
    if who is None:
        state.scalars[code] = numpy.array(numpy.broadcast_to(value, state.waves))
    else:
        state.scalars[code][who] = value
    if code == EXEC or (code == EXEC + 1 and state.lanes > 32):
        state.update_active(who)


def write_scalar_pair(state: State, who: Who, code: int, value: Array) -> None:
    """64 bits to a pair of scalar registers."""
    if code == NULL:
        return
    write_scalar(state, who, code, value & numpy.uint64(0xFFFFFFFF))
    write_scalar(state, who, code + 1, value >> numpy.uint64(32))


def vector_word(state: State, who: Who, register: int) -> Array:
    """A vector register, (waves, lanes)."""
    array = state.vectors[register]
    return array if who is None else array[who]


def read_vector(state: State, who: Who, code: int, kind: str, literal: int, high: bool) -> Array:
    """An operand of a vector instruction as a type: (waves, lanes), or (waves, 1) for scalars.

    `high` chooses the upper half of a register for types of 16 bits.
    """
    bits, wanted = width_of(kind), TYPES[kind]
    if code >= FIRST_VGPR:
        word = vector_word(state, who, code - FIRST_VGPR)
        if bits == 64:
            upper = vector_word(state, who, code - FIRST_VGPR + 1).astype(numpy.uint64)
            pair: Array = (word | upper << numpy.uint64(32)).view(wanted)
            return pair
    elif bits == 64:
        if code == LITERAL and kind == "f64":
            return numpy.full((state.count(who), 1), literal << 32, numpy.uint64).view(wanted)
        return scalar_pair(state, who, code, literal)[:, None].view(wanted)
    elif bits == 16 and code in FLOAT_CONSTANTS:
        half = numpy.float16(FLOAT_CONSTANTS[code])
        if kind == "bf16":
            half = (numpy.float32(FLOAT_CONSTANTS[code]).view(numpy.uint32) >> 16).astype(
                numpy.uint16
            )
        return numpy.full((state.count(who), 1), half).view(wanted)
    else:
        word = scalar_word(state, who, code, literal)[:, None]
    if bits == 16:
        part = word >> numpy.uint32(16) if high else word & numpy.uint32(0xFFFF)
        return part.astype(numpy.uint16).view(wanted)
    return numpy.ascontiguousarray(word).view(wanted)


def write_vector(
    state: State, who: Who, register: int, kind: str, value: Array, high: bool = False
) -> None:
    """A result to the active lanes of a vector register."""
    bits = width_of(kind)
    if bits == 64:
        whole = numpy.broadcast_to(value, (state.count(who), state.lanes))
        pair = numpy.ascontiguousarray(whole).view(numpy.uint64)
        put(state, who, register, (pair & numpy.uint64(0xFFFFFFFF)).astype(numpy.uint32))
        put(state, who, register + 1, (pair >> numpy.uint64(32)).astype(numpy.uint32))
        return
    if bits == 16:
        part = numpy.ascontiguousarray(value).view(numpy.uint16).astype(numpy.uint32)
        old = vector_word(state, who, register)
        word = (old & 0xFFFF) | part << numpy.uint32(16) if high else (old & 0xFFFF0000) | part
        put(state, who, register, word.astype(numpy.uint32))
        return
    put(state, who, register, numpy.ascontiguousarray(value).view(numpy.uint32))


def put(state: State, who: Who, register: int, word: Array) -> None:
    """Words to the active lanes of a vector register."""
    mask = state.mask(who)
    shape = (state.count(who), state.lanes)
    if mask is None:
        if who is None:
            state.vectors[register] = numpy.array(numpy.broadcast_to(word, shape))
        else:
            state.vectors[register][who] = word
        return
    old = vector_word(state, who, register)
    merged = numpy.where(mask, word, old)
    if who is None:
        state.vectors[register] = merged
    else:
        state.vectors[register][who] = merged


def lane_bits(state: State, who: Who, flags: Array) -> Array:
    """Booleans of active lanes as a mask of as many bits, (waves,)."""
    shape = (state.count(who), state.lanes)
    flags = numpy.broadcast_to(flags, shape)
    mask = state.mask(who)
    if mask is not None:
        flags = flags & mask
    return packed_lanes(flags)


def packed_lanes(flags: Array) -> Array:
    """Booleans (waves, lanes) as masks of 32 or 64 bits."""
    packed = numpy.packbits(flags, axis=1, bitorder="little")
    return numpy.ascontiguousarray(packed).view(f"u{flags.shape[1] // 8}")[:, 0]


def bit_lanes(state: State, mask: Array) -> Array:
    """A mask (waves,) as booleans (waves, lanes)."""
    shifts = numpy.arange(state.lanes, dtype=mask.dtype)
    flags: Array = (mask[:, None] >> shifts & mask.dtype.type(1)) != 0
    return flags


def read_mask(state: State, who: Who, code: int) -> Array:
    """A bit a lane: a scalar register, or a pair of them for waves of 64."""
    return (scalar_word if state.lanes == 32 else scalar_pair)(state, who, code, 0)


def write_mask(state: State, who: Who, code: int, mask: Array) -> None:
    """A bit a lane to a scalar register or a pair of them."""
    (write_scalar if state.lanes == 32 else write_scalar_pair)(state, who, code, mask)


Step = Callable[[State, Who], None]
