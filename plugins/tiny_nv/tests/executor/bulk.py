"""mbarrier objects, bulk copies and tensor maps: what Hopper adds to copy by.

PTX ISA 9.0, sections 9.7.13.15 (mbarrier) and 9.7.9.27 (cp.async.bulk.tensor);
the tensor map's 128 bytes as `cuTensorMapEncodeTiled` writes them. A bulk copy arrives only when
somebody waits for its barrier, so that what reads earlier finds the copy unfinished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy
from emulation.faults import (
    BarrierFault,
    IllegalAddress,
    SyntaxFault,
)
from emulation.memory import SHARED_WINDOW, check_alignment

from executor.registers import Array, State, Step, Who, address_reader, reader, writer
from executor.syntax import Address, Instruction, Operand, Sink

MOST_TRANSACTIONS: Final = (1 << 20) - 1
"""Bytes that a phase may wait for."""
ELEMENT_BYTES: Final = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 4, 9: 8, 10: 2, 11: 4}
"""Bytes of an element of a tensor map by its type, as .elemtype of tensormap.replace counts it."""
ROUNDED_KIND: Final = 11
"""The type of elements that arrive as TF32."""


@dataclass
class Arrival:
    """A bulk copy under way: who began it, where it goes, and its bytes."""

    thread: int
    places: Array
    data: Array


@dataclass
class Mbarrier:
    """An mbarrier object: arrivals and bytes that its phase still waits for."""

    expected: int
    pending: int
    bytes_left: int = 0
    phase: int = 0
    copies: list[Arrival] = field(default_factory=list)

    def settle(self) -> None:
        """Begin the next phase if this one is complete."""
        if self.pending == 0 and self.bytes_left == 0:
            self.phase += 1
            self.pending = self.expected


def barrier_at(state: State, thread: int, address: int) -> Mbarrier:
    """The object at an address of a thread's block."""
    key = (thread // state.block_threads, address)
    if key not in state.barriers:
        raise BarrierFault(f"no mbarrier was initialized at {address:#x} of shared memory")
    barrier: Mbarrier = state.barriers[key]
    return barrier


def shared_address(address: int) -> int:
    """An address of shared memory, also where a generic one is given."""
    return address - SHARED_WINDOW if address >= SHARED_WINDOW else address


def each(state: State, who: Who, *values: Array) -> list[tuple[int, ...]]:
    """Thread and values, one row for each thread that executes."""
    return list(zip(state.who(who).tolist(), *(value.tolist() for value in values), strict=True))


# --- mbarrier


def mbarrier_step(instruction: Instruction) -> Step:
    """mbarrier.init, .inval, .arrive, .expect_tx, .test_wait, .try_wait."""
    action = instruction.modifiers[0]
    if action not in MBARRIER_STEPS:
        raise SyntaxFault(f"{instruction}: mbarrier.{action} is not supported")
    return MBARRIER_STEPS[action](instruction)


def init_step(instruction: Instruction) -> Step:
    """mbarrier.init [address], count."""
    address = address_reader(instruction.operands[0], instruction.line)
    count = reader(instruction.operands[1], "u32", instruction.line)

    def step(state: State, who: Who) -> None:
        where = address(state, who)
        check_alignment(where, 8)
        for thread, place, arrivals in each(state, who, where, count(state, who)):
            state.shared.places(numpy.array([thread]), numpy.array([place]), 8, "mbarrier")
            block = thread // state.block_threads
            state.barriers[block, shared_address(place)] = Mbarrier(arrivals, arrivals)

    return step


def inval_step(instruction: Instruction) -> Step:
    """mbarrier.inval [address]."""
    address = address_reader(instruction.operands[0], instruction.line)

    def step(state: State, who: Who) -> None:
        for thread, place in each(state, who, address(state, who)):
            barrier_at(state, thread, shared_address(place))
            del state.barriers[thread // state.block_threads, shared_address(place)]

    return step


def arrive_step(instruction: Instruction) -> Step:
    """mbarrier.arrive state, [address]{, count}; .expect_tx takes bytes instead of a count."""
    line, operands = instruction.line, list(instruction.operands)
    target: Operand = Sink() if isinstance(operands[0], Address) else operands.pop(0)
    address = address_reader(operands[0], line)
    extra = reader(operands[1], "u32", line) if len(operands) > 1 else None
    expects, write = "expect_tx" in instruction.modifiers, writer(target, "b64", line)

    def step(state: State, who: Who) -> None:
        where = address(state, who)
        amounts = numpy.ones(len(where), numpy.int64) if extra is None else extra(state, who)
        phases = []
        for thread, place, amount in each(state, who, where, amounts):
            barrier = barrier_at(state, thread, shared_address(place))
            phases.append(barrier.phase)
            if expects:
                barrier.bytes_left += amount
            arrivals = 1 if expects else amount
            if barrier.pending < arrivals:
                raise BarrierFault(f"more than {barrier.expected} arrivals at one mbarrier phase")
            barrier.pending -= arrivals
            barrier.settle()
        write(state, who, numpy.array(phases, numpy.uint64))
        state.progress += 1

    return step


def expect_step(instruction: Instruction) -> Step:
    """mbarrier.expect_tx [address], bytes: more bytes in this phase, no arrival."""
    address = address_reader(instruction.operands[0], instruction.line)
    extra = reader(instruction.operands[1], "u32", instruction.line)

    def step(state: State, who: Who) -> None:
        for thread, place, amount in each(state, who, address(state, who), extra(state, who)):
            barrier_at(state, thread, shared_address(place)).bytes_left += amount

    return step


def wait_step(instruction: Instruction) -> Step:
    """mbarrier.try_wait{.parity} p, [address], phase. Who waits in vain lets others go first."""
    line = instruction.line
    target, place, phase, *_ = instruction.operands
    address, by_parity = address_reader(place, line), "parity" in instruction.modifiers
    wanted = reader(phase, "u32" if by_parity else "b64", line)
    write = writer(target, "pred", line)

    def step(state: State, who: Who) -> None:
        results = []
        for thread, where, number in each(state, who, address(state, who), wanted(state, who)):
            barrier = barrier_at(state, thread, shared_address(where))
            deliver(state, barrier)
            done = barrier.phase % 2 != number if by_parity else barrier.phase > number
            results.append(done)
        found = numpy.array(results)
        write(state, who, found)
        state.yields[state.who(who)[~found]] = True

    return step


def deliver(state: State, barrier: Mbarrier) -> None:
    """Copies that signal a barrier arrive."""
    for copy in barrier.copies:
        state.shared.bulk_ends(copy.places, copy.data)
        barrier.bytes_left -= copy.data.size
        state.progress += 1
    if barrier.copies:
        barrier.copies = []
        barrier.settle()


MBARRIER_STEPS: Final[dict[str, Callable[[Instruction], Step]]] = {
    "init": init_step,
    "inval": inval_step,
    "arrive": arrive_step,
    "expect_tx": expect_step,
    "test_wait": wait_step,
    "try_wait": wait_step,
}


# --- bulk copies


def bulk_step(instruction: Instruction) -> Step:
    """cp.async.bulk: bytes, or a box of a tensor, from global to shared memory."""
    modifiers = instruction.modifiers
    if "commit_group" in modifiers or "wait_group" in modifiers or modifiers.index("bulk") != 1:
        raise SyntaxFault(f"{instruction}: not supported")
    spaces = [m for m in modifiers if m.split("::")[0] in ("shared", "global")]
    if spaces not in (["shared::cluster", "global"], ["shared::cta", "global"]):
        raise SyntaxFault(f"{instruction}: only copies from global to shared memory are supported")
    if "multicast::cluster" in modifiers and "tensor" not in modifiers:
        raise SyntaxFault(f"{instruction}: only boxes go to several blocks")
    return tensor_step(instruction) if "tensor" in modifiers else bytes_step(instruction)


def bytes_step(instruction: Instruction) -> Step:
    """cp.async.bulk [shared], [global], size, [mbarrier]."""
    line = instruction.line
    to, source, size, signal = instruction.operands
    reads = [
        address_reader(to, line),
        address_reader(source, line),
        reader(size, "u32", line),
        address_reader(signal, line),
    ]

    def step(state: State, who: Who) -> None:
        for thread, place, origin, count, where in each(
            state, who, *(r(state, who) for r in reads)
        ):
            for address in (place, origin, count):
                check_alignment(numpy.array([address]), 16)
            words = numpy.arange(count // 4, dtype=numpy.uint64) * numpy.uint64(4)
            data = state.memory.load(words + numpy.uint64(origin), 4, 1)[0].view(numpy.uint8)
            begin(state, thread, shared_address(place), data, shared_address(where))

    return step


def begin(state: State, thread: int, place: int, data: Array, signal: int) -> None:
    """A bulk copy is under way."""
    places = state.shared.bulk_begins(thread, place, data.size)
    state.note_write(places, 1)
    barrier_at(state, thread, signal).copies.append(Arrival(thread, places, data))
    state.progress += 1


@dataclass(frozen=True)
class TensorMap:
    """The descriptor of a tensor in global memory; dimension 0 lies densest."""

    address: int
    element: int
    """Bytes of an element."""
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from one index to the next, for each dimension."""
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    """0 none, 1: 32 bytes, 2: 64, 3: 128."""
    rounds: bool = False
    """True if float32 elements arrive rounded to TF32."""

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """Read the 128 bytes. Raises IllegalAddress where they are no tensor map."""

        def word(at: int, size: int = 4) -> int:
            return int.from_bytes(data[at : at + size], "little")

        head = word(8)
        rank = (head >> 4 & 7) + 1
        kind = head >> 7 & 15
        element = ELEMENT_BYTES.get(kind)
        if rank > 5 or element is None or head >> 11 & 3:
            raise IllegalAddress(f"the tensor map {data[:32].hex()}... is none that is known")
        strides = [element]
        for index in range(rank - 1):
            high = word(0x1C) >> (4 * index) & 15
            strides.append((word(0x0C + 4 * index) | high << 32) << 4)
        boxes = [data[0x37], *data[0x38:0x3C]]
        return cls(
            word(0, 8),
            element,
            tuple(word(0x20 + 4 * i) + 1 for i in range(rank)),
            tuple(strides),
            tuple(boxes[i] + 1 for i in range(rank)),
            tuple((word(0x34) >> (3 * i) & 7) + 1 for i in range(rank)),
            head >> 13 & 3,
            kind == ROUNDED_KIND,
        )

    def read(self, state: State, start: tuple[int, ...]) -> Array:
        """The bytes of a box, as they lie in shared memory; zeros outside of the tensor."""
        grids = numpy.meshgrid(
            *(
                first + numpy.arange(count) * step
                for first, count, step in zip(start, self.box, self.steps, strict=True)
            ),
            indexing="ij",
        )
        indices = [grid.transpose().ravel() for grid in grids]  # dimension 0 innermost
        inside = numpy.ones(indices[0].shape, numpy.bool_)
        addresses = numpy.full(indices[0].shape, self.address, numpy.int64)
        for index, size, stride in zip(indices, self.sizes, self.strides, strict=True):
            inside &= (index >= 0) & (index < size)
            addresses += index * stride
        data = numpy.zeros((len(inside), self.element), numpy.uint8)
        if inside.any():
            found = state.memory.load(addresses[inside].astype(numpy.uint64), self.element, 1)[0]
            found = rounded(found.view(numpy.uint32)) if self.rounds else found
            data[inside] = found.view(numpy.uint8).reshape(-1, self.element)
        return data.ravel()


def rounded(words: Array) -> Array:
    """Bits of float32 numbers rounded to TF32, to the nearest and ties to even."""
    parts = words & numpy.uint32(0x1FFF)
    down = words - parts
    is_up = (parts > 0x1000) | ((parts == 0x1000) & (words >> 13 & 1 == 1))
    is_number = words & numpy.uint32(0x7F800000) != 0x7F800000
    found: Array = numpy.where(is_number, down + numpy.where(is_up, 0x2000, 0), words)
    return found.astype(numpy.uint32)


def swizzled(places: Array, swizzle: int) -> Array:
    """Byte addresses with the 16-byte units of a row exchanged: bits 4.. by bits 7.. ."""
    mask = {0: 0, 1: 1, 2: 3, 3: 7}[swizzle]
    exchanged: Array = places ^ ((places >> 7 & mask) << 4)
    return exchanged


def tensor_step(instruction: Instruction) -> Step:
    """cp.async.bulk.tensor.Nd [shared], [map, {coordinates}], [mbarrier]."""
    if "im2col" in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: only tiles are supported")
    line = instruction.line
    to, source, signal, *rest = instruction.operands
    to_all = reader(rest[0], "u16", line) if "multicast::cluster" in instruction.modifiers else None
    if not isinstance(source, Address):
        raise SyntaxFault(f"{instruction}: the second operand is no tensor map")
    address = [address_reader(x, line) for x in (to, source, signal)]
    coordinates = [reader(x, "s32", line) for x in source.coordinates]

    def step(state: State, who: Who) -> None:
        rows = each(state, who, *(r(state, who) for r in (*address, *coordinates)))
        masks = [0] * len(rows) if to_all is None else to_all(state, who).tolist()
        for (thread, place, origin, where, *start), mask in zip(rows, masks, strict=True):
            found = TensorMap.decode(descriptor(state, origin))
            data = found.read(state, tuple(start))
            check_alignment(numpy.array([place]), 128)
            plain = shared_address(place) + numpy.arange(data.size)
            order = numpy.argsort(swizzled(plain, found.swizzle))
            for member in members_of(state, thread, mask):
                begin(state, member, shared_address(place), data[order], shared_address(where))

    return step


def members_of(state: State, thread: int, mask: int) -> list[int]:
    """A thread of each block that a mask names in a cluster; the thread itself without a mask."""
    if not mask:
        return [thread]
    if mask >> state.cluster:
        raise IllegalAddress(f"the mask {mask:#x} names blocks beyond a cluster of {state.cluster}")
    first = thread // state.block_threads // state.cluster * state.cluster
    ranks = [rank for rank in range(state.cluster) if mask >> rank & 1]
    return [(first + rank) * state.block_threads for rank in ranks]


def descriptor(state: State, address: int) -> bytes:
    """128 bytes at an address of global memory, or of a parameter."""
    if address < len(state.parameters):
        return state.parameters[address : address + 128]
    check_alignment(numpy.array([address]), 64)
    words = numpy.arange(0, 128, 4, dtype=numpy.uint64) + numpy.uint64(address)
    return bytes(state.memory.load(words, 4, 1)[0].tobytes())
