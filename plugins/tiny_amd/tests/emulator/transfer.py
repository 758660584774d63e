"""Memory instructions: SMEM, DS, GLOBAL, SCRATCH and FLAT (ISA, chapters 8, 10, 11 and 12).

A load fills its registers at once, but counts as under way until s_waitcnt has waited for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy
from emulation.faults import IllegalAddress, SyntaxFault
from emulation.memory import check_alignment

from emulator.decode import FIRST_VGPR, NULL, Instruction
from emulator.state import (
    PRIVATE_APERTURE,
    SHARED_APERTURE,
    Array,
    State,
    Step,
    Who,
    code_of_half,
    put,
    scalar_pair,
    scalar_word,
    vector_word,
    write_scalar,
)

U32, U64 = numpy.uint32, numpy.uint64
APERTURE: Final = 1 << 32
LOADS: Final = {
    "u8": (1, numpy.uint8),
    "i8": (1, numpy.int8),
    "u16": (2, numpy.uint16),
    "i16": (2, numpy.int16),
    "b16": (2, numpy.uint16),
}
"""Bytes and type of loads of less than a word."""
ATOMICS: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "add": lambda old, data, compared: old + data,
    "sub": lambda old, data, compared: old - data,
    "min": lambda old, data, compared: min(old, data),
    "max": lambda old, data, compared: max(old, data),
    "and": lambda old, data, compared: old & data,
    "or": lambda old, data, compared: old | data,
    "xor": lambda old, data, compared: old ^ data,
    "swap": lambda old, data, compared: data,
    "storexchg": lambda old, data, compared: data,
    "cmpswap": lambda old, data, compared: data if old == compared else old,
    "cmpstore": lambda old, data, compared: data if old == compared else old,
    "inc": lambda old, data, compared: type(old)(0) if old >= data else old + type(old)(1),
    "dec": lambda old, data, compared: data if old == 0 or old > data else old - type(old)(1),
}


class Lanes:
    """The lanes that take part in a memory instruction, as flat arrays."""

    def __init__(self, state: State, who: Who) -> None:
        self.state, self.who = state, who
        active = state.active if who is None else state.active[who]
        self.row, self.lane = numpy.nonzero(active)
        waves = state.numbers(who)[self.row]
        self.threads = waves * state.lanes + self.lane

    def read(self, register: int) -> Array:
        """Words of a vector register."""
        found: Array = vector_word(self.state, self.who, register)[self.row, self.lane]
        return found

    def scalar(self, values: Array) -> Array:
        """A number of each wave, for its lanes."""
        return values[self.row]

    def write(self, register: int, words: Array) -> None:
        """Words to a vector register."""
        whole = vector_word(self.state, self.who, register).copy()
        whole[self.row, self.lane] = words
        put(self.state, self.who, register, whole)

    @property
    def is_empty(self) -> bool:
        """True if nobody takes part."""
        return not self.threads.size


# --- scalar loads


def smem_step(instruction: Instruction) -> Step:
    """s_load_b32 ... b512."""
    name = instruction.name
    if name in ("s_gl1_inv", "s_dcache_inv"):
        return lambda state, who: None
    if not name.startswith("s_load"):
        raise SyntaxFault(f"{instruction} is not supported")
    base, offset = instruction.sources
    if name.rpartition("_")[2] in LOADS:
        return narrow_smem_step(instruction)
    count = int(name.split("_b")[1]) // 32

    def step(state: State, who: Who) -> None:
        address = scalar_pair(state, who, base, 0) + U64(instruction.immediate % 2**64)
        address = (address + scalar_word(state, who, offset, 0)) & ~U64(3)
        words = state.memory.load(address, 4, count)
        for index, word in enumerate(words):
            write_scalar(state, who, instruction.destination + index, word)
        registers = range(instruction.destination, instruction.destination + count)
        state.begin_load(who, "scalar", registers)

    return step


def narrow_smem_step(instruction: Instruction) -> Step:
    """s_load_u8, _i8, _u16 and _i16 of RDNA4."""
    width, wanted = LOADS[instruction.name.rpartition("_")[2]]
    base, offset = instruction.sources

    def step(state: State, who: Who) -> None:
        address = scalar_pair(state, who, base, 0) + U64(instruction.immediate % 2**64)
        address = address + scalar_word(state, who, offset, 0)
        check_alignment(address, width)
        (value,) = state.memory.load(address, width, 1)
        word = value.view(wanted).astype(numpy.int32).view(U32)
        write_scalar(state, who, instruction.destination, word)
        state.begin_load(who, "scalar", (instruction.destination,))

    return step


# --- access by space


def load(lanes: Lanes, space: str, addresses: Array, width: int, count: int) -> list[Array]:
    """Words from a space. Global ones lie on their alignment, of four bytes at most: cards take
    others where SH_MEM_CONFIG says so, and the plugin has LLVM not count on that.
    """
    state = lanes.state
    if space == "global":
        check_alignment(addresses, min(width * count, 4) if width * count > 2 else width)
        return state.memory.load(addresses, width, count)
    found: list[Array] = by_space(state, space).load(lanes.threads, addresses, width, count)
    return found


def store(lanes: Lanes, space: str, addresses: Array, width: int, values: list[Array]) -> None:
    """Words to a space, see `load`."""
    state = lanes.state
    if space == "global":
        check_alignment(addresses, min(width * len(values), 4))
        state.memory.store(addresses, width, values)
    else:
        by_space(state, space).store(lanes.threads, addresses, width, values)


def by_space(state: State, space: str) -> Any:
    """Shared or private memory."""
    return {"shared": state.shared, "private": state.local}[space]


def moved(name: str) -> tuple[int, int, Any, str]:
    """Bytes of a piece, pieces, type of a narrow one, and which half of the register it is for."""
    half = "whole"
    if "d16_hi" in name:
        half = "high"
    elif "d16" in name:
        half = "low"
    kind = next(
        (
            k
            for k in re.findall(r"[uib]\d+", name.replace("d16", ""))
            if k != "b16" or half != "whole"
        ),
        "b16" if "b16" in name else "b32",
    )
    if kind in LOADS:
        width, wanted = LOADS[kind]
        return width, 1, wanted, half
    if kind == "b8":
        return 1, 1, numpy.uint8, half
    return 4, int(kind[1:]) // 32, None, half


def fill(lanes: Lanes, register: int, pieces: list[Array], wanted: Any, half: str) -> list[int]:
    """Write what a load brought to its registers; returns their numbers."""
    if wanted is None:
        for index, piece in enumerate(pieces):
            lanes.write(register + index, piece)
        return [FIRST_VGPR + register + i for i in range(len(pieces))]
    value = pieces[0].view(wanted)
    if half == "whole":
        lanes.write(register, value.astype(numpy.int32).view(U32))
    else:
        part = value.astype(numpy.int16).view(numpy.uint16).astype(U32)
        old = lanes.read(register)
        low = (old & U32(0xFFFF0000)) | part
        high = (old & U32(0xFFFF)) | part << U32(16)
        lanes.write(register, high if half == "high" else low)
    return [FIRST_VGPR + register]


def taken(lanes: Lanes, register: int, width: int, count: int, half: str) -> list[Array]:
    """Content of the registers that a store takes."""
    if width == 4:
        return [lanes.read(register + i) for i in range(count)]
    word = lanes.read(register)
    word = word >> U32(16) if half == "high" else word
    return [word.astype(numpy.uint8 if width == 1 else numpy.uint16)]


# --- global, scratch and flat


def flat_step(instruction: Instruction) -> Step:
    """GLOBAL, SCRATCH and FLAT."""
    if "atomic" in instruction.name:
        return flat_atomic(instruction)
    width, count, wanted, half = moved(instruction.name)
    is_store = "store" in instruction.name
    data = instruction.sources[2]

    def step(state: State, who: Who) -> None:
        lanes = Lanes(state, who)
        if not is_store:
            first, size = FIRST_VGPR + instruction.destination, count if wanted is None else 1
            registers = [code_of_half(first + i, half) for i in range(size)]
            begin(instruction, state, who, "vm", registers)
        else:
            begin(instruction, state, who, counter_of_stores(state), [])
        if lanes.is_empty:
            return
        for space, part, addresses in spaces(instruction, lanes):
            if is_store:
                values = [v[part] for v in taken(lanes, data, width, count, half)]
                store(Part(lanes, part), space, addresses, width, values)
            else:
                pieces = load(Part(lanes, part), space, addresses, width, count)
                fill(Part(lanes, part), instruction.destination, pieces, wanted, half)

    return step


def counter_of_stores(state: State) -> str:
    """The counter that tells of stores, and of atomics that return nothing."""
    return "vm" if state.counts_stores else "stores"


def begin(
    instruction: Instruction, state: State, who: Who, counter: str, registers: list[int]
) -> None:
    """Count an access; private memory is no other wave's business."""
    if instruction.encoding == "SCRATCH":
        state.begin_load(who, counter, registers)
    elif instruction.encoding == "FLAT":
        state.begin_flat_access(who, counter, registers)
    else:
        state.begin_access(who, counter, registers)


class Part(Lanes):
    """Some of the lanes of an instruction."""

    def __init__(self, lanes: Lanes, part: Array) -> None:
        self.state, self.who = lanes.state, lanes.who
        self.row, self.lane = lanes.row[part], lanes.lane[part]
        self.threads = lanes.threads[part]


def spaces(instruction: Instruction, lanes: Lanes) -> list[tuple[str, Array, Array]]:
    """For each space which lanes access it, and their addresses there."""
    state, who = lanes.state, lanes.who
    register, scalar, _ = instruction.sources
    everyone = numpy.arange(len(lanes.threads))
    if instruction.encoding == "SCRATCH":
        state.check_scratch(who)
        word = numpy.int32 if state.has_signed_scratch else U32
        offset = numpy.full(len(everyone), instruction.immediate, numpy.int64)
        if instruction.flags >> 1 & 1:
            offset = offset + lanes.read(register).view(word)
        if scalar != NULL:
            offset = offset + lanes.scalar(scalar_word(state, who, scalar, 0)).view(word)
        return [("private", everyone, offset.astype(U64))]
    if scalar != NULL and instruction.encoding == "GLOBAL":
        base = lanes.scalar(scalar_pair(state, who, scalar, 0)) + lanes.read(register)
    else:
        high = lanes.read(register + 1).astype(U64)
        base = lanes.read(register).astype(U64) | high << U64(32)
    address = base + U64(instruction.immediate % 2**64)
    if instruction.encoding == "GLOBAL":
        return [("global", everyone, address)]
    found = []
    in_shared = (address >= SHARED_APERTURE) & (address < SHARED_APERTURE + APERTURE)
    in_private = (address >= PRIVATE_APERTURE) & (address < PRIVATE_APERTURE + APERTURE)
    for space, mask, start in (
        ("shared", in_shared, SHARED_APERTURE),
        ("private", in_private, PRIVATE_APERTURE),
        ("global", ~(in_shared | in_private), 0),
    ):
        if mask.any():
            found.append((space, numpy.flatnonzero(mask), address[mask] - U64(start)))
    return found


def flat_atomic(instruction: Instruction) -> Step:
    """Atomics of global memory: one lane after the other."""
    name = re.sub(r"^(global|flat)_atomic_", "", instruction.name)
    action, kind = name.rsplit("_", 1)
    wanted = atomic_type(kind, instruction)
    words = numpy.dtype(wanted).itemsize // 4
    data, returns = instruction.sources[2], instruction.flags & 1

    def step(state: State, who: Who) -> None:
        lanes = Lanes(state, who)
        if returns:
            registers = [FIRST_VGPR + instruction.destination + i for i in range(words)]
            begin(instruction, state, who, "vm", registers)
        else:
            begin(instruction, state, who, counter_of_stores(state), [])
        for space, part, addresses in spaces(instruction, lanes) if not lanes.is_empty else ():
            some = Part(lanes, part)
            value = together(some, data, words, wanted)
            compared = together(some, data + words, words, wanted) if "cmp" in action else value
            old = one_by_one(some, space, addresses, action, wanted, value, compared)
            if returns:
                fill(some, instruction.destination, apart(old), None, "whole")

    return step


def atomic_type(kind: str, instruction: Instruction) -> Any:
    """The type of an atomic."""
    table = {
        "u32": U32,
        "b32": U32,
        "i32": numpy.int32,
        "u64": U64,
        "b64": U64,
        "i64": numpy.int64,
        "f32": numpy.float32,
        "f64": numpy.float64,
    }
    if kind not in table:
        raise SyntaxFault(f"{instruction} is not supported")
    return table[kind]


def together(lanes: Lanes, register: int, words: int, wanted: Any) -> Array:
    """Registers as numbers."""
    columns = numpy.stack([lanes.read(register + i) for i in range(words)], axis=1)
    found: Array = numpy.ascontiguousarray(columns).view(wanted)[:, 0]
    return found


def apart(values: Array) -> list[Array]:
    """Numbers as registers."""
    words = numpy.ascontiguousarray(values).view(U32).reshape(len(values), -1)
    return [words[:, i].copy() for i in range(words.shape[1])]


def one_by_one(
    lanes: Lanes,
    space: str,
    addresses: Array,
    action: str,
    wanted: Any,
    values: Array,
    compared: Array,
) -> Array:
    """Change memory for one lane after the other; the old values."""
    width = numpy.dtype(wanted).itemsize
    check_alignment(addresses, width)
    change = ATOMICS[action]
    olds = numpy.empty(len(addresses), wanted)
    if space == "private":
        raise IllegalAddress("an atomic of private memory")
    for index in range(len(addresses)):
        if space == "shared":
            place = lanes.state.shared.places(
                lanes.threads[index : index + 1], addresses[index : index + 1], width, "atomic"
            )[0]
            cell = lanes.state.shared.data[place : place + width].view(wanted)
        else:
            ((region, _, offsets),) = lanes.state.memory.pieces(
                addresses[index : index + 1], width, "atomic"
            )
            cell = region.data[int(offsets[0]) : int(offsets[0]) + width].view(wanted)
        olds[index] = cell[0]
        cell[0] = change(cell[0], values[index], compared[index])
    return olds


# --- shared memory


def ds_step(instruction: Instruction) -> Step:
    """DS; the flag of GDS, which all groups share, is refused."""
    name = instruction.name[3:]
    if instruction.flags:
        raise SyntaxFault(f"{instruction}: GDS is not supported")
    if "addtid" in name:
        raise SyntaxFault(f"{instruction} is not supported")
    if name in ("permute_b32", "bpermute_b32", "swizzle_b32"):
        return exchange_step(instruction)
    if "2addr" in name:
        return two_address_step(instruction)
    if not name.startswith(("load", "store_b")):
        return ds_atomic(instruction)
    width, count, wanted, half = moved(name)
    address, data, _ = instruction.sources
    is_store = name.startswith("store")

    def step(state: State, who: Who) -> None:
        lanes = Lanes(state, who)
        if not is_store:
            first, size = FIRST_VGPR + instruction.destination, count if wanted is None else 1
            registers = [code_of_half(first + i, half) for i in range(size)]
            state.begin_access(who, "lgkm", registers)
        else:
            state.begin_access(who, "lgkm")
        if lanes.is_empty:
            return
        places = shared_places(lanes, address, instruction.immediate, width * count)
        if is_store:
            store(lanes, "shared", places, width, taken(lanes, data, width, count, half))
        else:
            pieces = load(lanes, "shared", places, width, count)
            fill(lanes, instruction.destination, pieces, wanted, half)

    return step


def shared_places(lanes: Lanes, register: int, offset: int, size: int) -> Array:
    """Addresses of shared memory, aligned as the access wants it."""
    places = (lanes.read(register) + U32(offset)).astype(U64)
    # ds_load_b128 and b96 want 16 bytes unless the unaligned mode is on (SH_MEM_CONFIG); LLVM
    # relies on natural alignment for what it emits
    check_alignment(places, {12: 16}.get(size, size))
    return places + U64(lanes.state.shared.first)


def two_address_step(instruction: Instruction) -> Step:
    """ds_load_2addr and ds_store_2addr: two elements of 32 or 64 bits."""
    name = instruction.name
    bits = int(name.rsplit("_b", 1)[1])
    words = bits // 32
    step_bytes = bits // 8 * (64 if "stride64" in name else 1)
    offsets = [(instruction.immediate >> 8 * i & 255) * step_bytes for i in range(2)]
    address, first, second = instruction.sources
    is_store = "store" in name
    if "xchg" in name:
        raise SyntaxFault(f"{instruction} is not supported")

    def step(state: State, who: Who) -> None:
        lanes = Lanes(state, who)
        target = instruction.destination
        if not is_store:
            registers = [FIRST_VGPR + target + i for i in range(2 * words)]
            state.begin_access(who, "lgkm", registers)
        else:
            state.begin_access(who, "lgkm")
        if lanes.is_empty:
            return
        found = []
        for offset, data in zip(offsets, (first, second), strict=True):
            places = shared_places(lanes, address, offset, 4)  # 8 bytes need 4 here
            for index in range(words):
                at = places + U64(4 * index)
                if is_store:
                    store(lanes, "shared", at, 4, [lanes.read(data + index)])
                else:
                    found += load(lanes, "shared", at, 4, 1)
        if not is_store:
            fill(lanes, target, found, None, "whole")

    return step


def ds_atomic(instruction: Instruction) -> Step:
    """Atomics of shared memory."""
    name = instruction.name[3:]
    returns = "_rtn_" in name
    action, kind = name.replace("_rtn", "").rsplit("_", 1)
    if action not in ATOMICS:
        raise SyntaxFault(f"{instruction} is not supported")
    wanted = atomic_type(kind, instruction)
    words = numpy.dtype(wanted).itemsize // 4
    address, first, second = instruction.sources

    def step(state: State, who: Who) -> None:
        lanes = Lanes(state, who)
        if returns:
            registers = [FIRST_VGPR + instruction.destination + i for i in range(words)]
            state.begin_access(who, "lgkm", registers)
        else:
            state.begin_access(who, "lgkm")
        if lanes.is_empty:
            return
        places = shared_places(lanes, address, instruction.immediate, 4 * words)
        value = together(lanes, first, words, wanted)
        compared = together(lanes, second, words, wanted) if "cmp" in action else value
        old = one_by_one(lanes, "shared", places, action, wanted, value, compared)
        if returns:
            fill(lanes, instruction.destination, apart(old), None, "whole")

    return step


def exchange_step(instruction: Instruction) -> Step:
    """ds_permute_b32, ds_bpermute_b32 and ds_swizzle_b32: words between the lanes of a wave."""
    address, data, _ = instruction.sources
    name, offset = instruction.name, instruction.immediate

    def step(state: State, who: Who) -> None:
        shape = (state.count(who), state.lanes)
        active = state.active if who is None else state.active[who]
        state.begin_load(who, "lgkm", [FIRST_VGPR + instruction.destination])
        if name == "ds_swizzle_b32":
            values = vector_word(state, who, address)
            source = numpy.broadcast_to(swizzle_lanes(offset, state.lanes, instruction), shape)
        else:
            values = vector_word(state, who, data)
            source = (vector_word(state, who, address) + U32(offset)) // 4 % state.lanes
        if name == "ds_permute_b32":
            result = numpy.zeros(shape, U32)
            row, lane = numpy.nonzero(active)
            result[row, source[row, lane]] = values[row, lane]
        else:
            chosen = source.astype(numpy.int64)
            result = numpy.take_along_axis(values, chosen, axis=1)
            result = numpy.where(numpy.take_along_axis(active, chosen, axis=1), result, U32(0))
        put(state, who, instruction.destination, result)

    return step


def swizzle_lanes(offset: int, lanes: int, instruction: Instruction) -> Array:
    """The lane that each reads from, by the offset of ds_swizzle_b32."""
    lane: Array = numpy.arange(lanes)
    if offset >> 15:
        if offset >= 0xC000:
            raise SyntaxFault(f"{instruction}: this swizzle is not supported")
        within: Array = numpy.array([offset >> 2 * i & 3 for i in range(4)])
        quad: Array = lane // 4 * 4 + within[lane % 4]
        return quad
    keeps, sets, flips = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    source: Array = lane // 32 * 32 + (((lane % 32) & keeps | sets) ^ flips)
    return source


def registers_read(instruction: Instruction) -> Sequence[int]:
    """Vector registers that a memory instruction may read, as operand codes."""
    register, scalar, data = instruction.sources
    wide = instruction.encoding in ("FLAT", "GLOBAL") and scalar == NULL
    count = 2 if wide or instruction.encoding == "FLAT" else 1
    if instruction.encoding == "SCRATCH" and not instruction.flags >> 1 & 1:
        count = 0  # the address is a scalar and the offset
    found = [FIRST_VGPR + register + i for i in range(count)]
    if "store" in instruction.name or "atomic" in instruction.name:
        width, pieces, _, half = moved(instruction.name)
        is_narrow = "store" in instruction.name and width < 4 and half == "whole"
        read = "low" if is_narrow else half
        values: tuple[int, ...] = (data,)
        if instruction.encoding == "DS":  # where what others have as a scalar is the first value
            values = (scalar, data) if "2addr" in instruction.name else (scalar,)
        found += [code_of_half(FIRST_VGPR + v + i, read) for v in values for i in range(pieces)]
    return found
