"""Loads, stores, atomics, asynchronous copies, and exchange within a warp.

PTX ISA 9.0, sections 9.7.9 (data movement), 9.7.12 and 9.7.13 (synchronization, votes). A
shuffle or vote names in its mask who takes part; it is checked that all of these execute it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
from emulation.faults import ConvergenceFault, IllegalAddress, SyntaxFault
from emulation.memory import LOCAL_WINDOW, SHARED_WINDOW, UNSIGNED, WINDOW, check_alignment

from executor.bulk import bulk_step, mbarrier_step
from executor.matrix import MATRIX_STEPS
from executor.operations import plain_step
from executor.registers import (
    ARRAY_TYPES,
    Array,
    State,
    Step,
    Who,
    address_reader,
    reader,
    writer,
)
from executor.syntax import (
    WIDTHS,
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Sink,
    Symbol,
    Vector,
)
from executor.warpgroup import wgmma_step

SPACES: Final = ("param", "global", "shared", "local", "const")


def space_of(instruction: Instruction) -> str:
    """The state space that an access names; "generic" where it names none."""
    for modifier in instruction.modifiers:
        if modifier.split("::")[0] in SPACES:
            return modifier.split("::")[0]
    return "generic"


def count_in(instruction: Instruction) -> int:
    """Number of elements that a vector access moves."""
    return next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)


# --- loads and stores


def load_words(
    state: State, space: str, threads: Array, addresses: Array, width: int, count: int
) -> list[Array]:
    """Words from a space."""
    check_alignment(addresses, width * count)
    if space in ("global", "const"):
        return state.memory.load(addresses, width, count)
    if space == "shared":
        return state.shared.load(threads, addresses, width, count)
    if space == "local":
        return state.local.load(threads, addresses, width, count)
    results = [numpy.empty(addresses.shape, UNSIGNED[width]) for _ in range(count)]
    for part, which, moved in generic_parts(addresses):
        found = load_words(state, part, threads[which], moved, width, count)
        for result, words in zip(results, found, strict=True):
            result[which] = words
    return results


def store_words(
    state: State, space: str, threads: Array, addresses: Array, width: int, values: list[Array]
) -> None:
    """Words to a space."""
    check_alignment(addresses, width * len(values))
    if space == "global":
        state.memory.store(addresses, width, values)
    elif space == "shared":
        state.shared.store(threads, addresses, width, values)
        first = threads // state.block_threads * state.shared.size
        state.note_write(first + addresses.astype(numpy.int64), width)
        state.unfenced[threads] = True
    elif space == "local":
        state.local.store(threads, addresses, width, values)
    elif space == "generic":
        for part, which, moved in generic_parts(addresses):
            store_words(state, part, threads[which], moved, width, [v[which] for v in values])
    else:
        raise IllegalAddress(f"a write to .{space}, which can only be read")


def generic_parts(addresses: Array) -> list[tuple[str, Array, Array]]:
    """Generic addresses by space: which they are, and the addresses there."""
    in_shared = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + WINDOW)
    in_local = (addresses >= LOCAL_WINDOW) & (addresses < LOCAL_WINDOW + WINDOW)
    parts = (
        ("shared", in_shared, SHARED_WINDOW),
        ("local", in_local, LOCAL_WINDOW),
        ("global", ~(in_shared | in_local), 0),
    )
    return [
        (space, numpy.flatnonzero(mask), addresses[mask] - numpy.uint64(base))
        for space, mask, base in parts
        if mask.any()
    ]


def ld_step(instruction: Instruction) -> Step:
    """ld.space.v.type."""
    kind, space, count = instruction.types[-1], space_of(instruction), count_in(instruction)
    target, source = instruction.operands
    targets = target.parts if isinstance(target, Vector) else (target,)
    if len(targets) != count:
        raise SyntaxFault(f"{instruction}: {len(targets)} registers for {count} elements")
    if space == "param":
        return parameter_step(instruction, targets, kind)
    width = WIDTHS[kind]
    addresses = address_reader(source, instruction.line)
    writes = [writer(each, kind, instruction.line) for each in targets]
    wanted = ARRAY_TYPES[kind]

    def step(state: State, who: Who) -> None:
        found = load_words(state, space, state.who(who), addresses(state, who), width, count)
        for write, words in zip(writes, found, strict=True):
            write(state, who, words.view(wanted))

    return step


def parameter_step(instruction: Instruction, targets: tuple[Operand, ...], kind: str) -> Step:
    """ld.param: the same for all threads."""
    source = instruction.operands[1]
    width, wanted = WIDTHS[kind], ARRAY_TYPES[kind]
    writes = [writer(each, kind, instruction.line) for each in targets]
    if not (isinstance(source, Address) and isinstance(source.base, Symbol)):
        raise SyntaxFault(f"{instruction}: computed addresses of parameters are not supported")
    name, offset = source.base.name, source.offset

    def step(state: State, who: Who) -> None:
        first = state.symbols[name][1] + offset
        for index, write in enumerate(writes):
            data = state.parameters[first + index * width : first + (index + 1) * width]
            value = numpy.frombuffer(data, wanted)[0]
            write(state, who, numpy.full(len(state.who(who)), value))

    return step


def st_step(instruction: Instruction) -> Step:
    """st.space.v.type."""
    kind, space, count = instruction.types[-1], space_of(instruction), count_in(instruction)
    target, source = instruction.operands
    sources = source.parts if isinstance(source, Vector) else (source,)
    if len(sources) != count:
        raise SyntaxFault(f"{instruction}: {len(sources)} registers for {count} elements")
    width = WIDTHS[kind]
    addresses = address_reader(target, instruction.line)
    reads = [reader(each, kind, instruction.line) for each in sources]
    wanted = UNSIGNED[width]

    def step(state: State, who: Who) -> None:
        values = [read(state, who).view(wanted) for read in reads]
        store_words(state, space, state.who(who), addresses(state, who), width, values)

    return step


def cvta_step(instruction: Instruction) -> Step:
    """cvta: between generic addresses and those of a space."""
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space_of(instruction), 0)
    kind = instruction.types[-1]
    base = numpy.uint64(window if kind[1:] == "64" else 0)
    if "to" in instruction.modifiers:
        return plain_step(instruction, lambda a: a - base.astype(a.dtype), kind, [kind])
    return plain_step(instruction, lambda a: a + base.astype(a.dtype), kind, [kind])


# --- atomics


def apply_atomic(name: str, kind: str) -> Callable[[Any, Any, Any], Any]:
    """Function of an atomic: of the old value, its operand, and a third."""
    is_float = kind[0] == "f"
    table: dict[str, Callable[[Any, Any, Any], Any]] = {
        "add": lambda old, b, c: old + b,
        "min": lambda old, b, c: min(old, b),
        "max": lambda old, b, c: max(old, b),
        "exch": lambda old, b, c: b,
        "cas": lambda old, b, c: c if old == b else old,
        "and": lambda old, b, c: old & b,
        "or": lambda old, b, c: old | b,
        "xor": lambda old, b, c: old ^ b,
        "inc": lambda old, b, c: old.dtype.type(0) if old >= b else old + old.dtype.type(1),
        "dec": lambda old, b, c: b if old == 0 or old > b else old - old.dtype.type(1),
    }
    if name not in table or (is_float and name not in ("add", "exch")):
        raise SyntaxFault(f"atomic {name} of .{kind} is not supported")
    return table[name]


def atom_step(instruction: Instruction) -> Step:
    """atom and red: one thread after the other, in the order of their numbers."""
    kind, space = instruction.types[-1], space_of(instruction)
    has_result = instruction.opcode == "atom"
    operands = instruction.operands if has_result else (Sink(), *instruction.operands)
    target, place, *sources = operands
    name = next(
        m
        for m in instruction.modifiers
        if m in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
    )
    if kind not in ARRAY_TYPES or kind.endswith("x2") or kind == "bf16":
        raise SyntaxFault(f"{instruction}: atomics of .{kind} are not supported")
    change = apply_atomic(name, kind)
    wanted, width = ARRAY_TYPES[kind], WIDTHS[kind]
    addresses = address_reader(place, instruction.line)
    reads = [reader(source, kind, instruction.line) for source in sources]
    write = writer(target, kind, instruction.line)

    def one(state: State, part: str, thread: Array, address: Array, values: list[Any]) -> Any:
        if part == "shared":  # atomics of a block race with nothing but plain accesses
            place = state.shared.places(thread, address, width, "atomic")[0]
            cell = state.shared.data[place : place + width].view(wanted)
        else:
            ((region, _, offsets),) = state.memory.pieces(address, width, "atomic")
            cell = region.data[int(offsets[0]) : int(offsets[0]) + width].view(wanted)
        old = cell[0]
        cell[0] = change(old, values[0], values[1] if len(values) > 1 else None)
        return old

    def step(state: State, who: Who) -> None:
        threads, where = state.who(who), addresses(state, who)
        check_alignment(where, width)
        values = [read(state, who) for read in reads]
        olds = numpy.empty(len(threads), wanted)
        parts = (
            generic_parts(where)
            if space == "generic"
            else [(space, numpy.arange(len(threads)), where)]
        )
        for part, which, moved in parts:
            for index, number in enumerate(which):
                olds[number] = one(
                    state,
                    part,
                    threads[number : number + 1],
                    moved[index : index + 1],
                    [value[number] for value in values],
                )
        write(state, who, olds)

    return step


# --- exchange within a warp


def warps_whole(state: State, threads: Array, mask: Array, what: str) -> None:
    """Raise ConvergenceFault where a thread that the mask names does not take part."""
    warps = state.shared.warps_of(threads)
    lanes = threads % state.block_threads % 32
    present = numpy.zeros(int(warps.max()) + 1, numpy.uint64)
    numpy.bitwise_or.at(present, warps, numpy.uint64(1) << lanes.astype(numpy.uint64))
    named = mask.astype(numpy.uint64)
    missing = named & ~present[warps]
    outside = (named >> lanes.astype(numpy.uint64)) & numpy.uint64(1) == 0
    if missing.any() or outside.any():
        which = int(numpy.flatnonzero((missing != 0) | outside)[0])
        raise ConvergenceFault(
            f"{what}: the mask {int(named[which]):#010x} of thread "
            f"{int(threads[which]) % state.block_threads} is not who executes it, "
            f"{int(present[warps[which]]):#010x}"
        )


def shfl_step(instruction: Instruction) -> Step:
    """shfl.sync.mode.b32 d|p, a, b, c, mask."""
    line = instruction.line
    mode = next(m for m in instruction.modifiers if m in ("up", "down", "bfly", "idx"))
    target, a, b, c, mask = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    reads = [reader(x, "b32", line) for x in (a, b, c, mask)]
    write, write_flag = writer(first, "b32", line), writer(second, "pred", line)

    def step(state: State, who: Who) -> None:
        threads = state.who(who)
        value, by, control, members = (read(state, who) for read in reads)
        warps_whole(state, threads, members, "shfl.sync")
        lane = (threads % state.block_threads % 32).astype(numpy.int64)
        by = (by & 31).astype(numpy.int64)
        segment = (control >> 8 & 31).astype(numpy.int64)
        clamp = (control & 31).astype(numpy.int64)
        most = (lane & segment) | (clamp & ~segment)
        least = lane & segment
        if mode == "up":
            source = lane - by
            valid = source >= most
        elif mode == "down":
            source = lane + by
            valid = source <= most
        elif mode == "bfly":
            source = lane ^ by
            valid = source <= most
        else:
            source = least | (by & ~segment)
            valid = source <= most
        source = numpy.where(valid, source, lane)
        whole = numpy.zeros(state.threads, numpy.uint32)
        whole[threads] = value
        write(state, who, whole[numpy.minimum(threads - lane + source, state.threads - 1)])
        write_flag(state, who, valid)

    return step


def vote_step(instruction: Instruction) -> Step:
    """vote.sync.mode: all, any, uni, ballot."""
    line = instruction.line
    mode = next(m for m in instruction.modifiers if m in ("all", "any", "uni", "ballot"))
    target, source, mask = instruction.operands
    read, members = reader(source, "pred", line), reader(mask, "b32", line)
    write = writer(target, "b32" if mode == "ballot" else "pred", line)

    def step(state: State, who: Who) -> None:
        threads = state.who(who)
        named = members(state, who)
        warps_whole(state, threads, named, "vote.sync")
        warps = state.shared.warps_of(threads)
        lanes = (threads % state.block_threads % 32).astype(numpy.uint64)
        bits = numpy.zeros(int(warps.max()) + 1, numpy.uint64)
        held = read(state, who).astype(numpy.uint64) << lanes
        numpy.bitwise_or.at(bits, warps, held)
        found = bits[warps] & named
        if mode == "ballot":
            write(state, who, found.astype(numpy.uint32))
        elif mode == "all":
            write(state, who, found == named)
        elif mode == "any":
            write(state, who, found != 0)
        else:
            write(state, who, (found == 0) | (found == named))

    return step


def activemask_step(instruction: Instruction) -> Step:
    """activemask.b32: the lanes that execute together."""
    write = writer(instruction.operands[0], "b32", instruction.line)

    def step(state: State, who: Who) -> None:
        threads = state.who(who)
        warps = state.shared.warps_of(threads)
        lanes = (threads % state.block_threads % 32).astype(numpy.uint64)
        bits = numpy.zeros(int(warps.max()) + 1, numpy.uint64)
        numpy.bitwise_or.at(bits, warps, numpy.uint64(1) << lanes)
        write(state, who, bits[warps].astype(numpy.uint32))

    return step


def redux_step(instruction: Instruction) -> Step:
    """redux.sync.op.type: one number of all lanes in the mask."""
    kind, line = instruction.types[-1], instruction.line
    fold: dict[str, Any] = {
        "add": numpy.add,
        "min": numpy.minimum,
        "max": numpy.maximum,
        "and": numpy.bitwise_and,
        "or": numpy.bitwise_or,
        "xor": numpy.bitwise_xor,
    }
    operation = fold[next(m for m in instruction.modifiers if m in fold)]
    target, source, mask = instruction.operands
    read, members = reader(source, kind, line), reader(mask, "b32", line)
    write = writer(target, kind, line)

    def step(state: State, who: Who) -> None:
        threads = state.who(who)
        warps_whole(state, threads, members(state, who), "redux.sync")
        _, first = numpy.unique(state.shared.warps_of(threads), return_index=True)
        totals = operation.reduceat(read(state, who), first)
        write(state, who, numpy.repeat(totals, numpy.diff([*first, len(threads)])))

    return step


def elect_step(instruction: Instruction) -> Step:
    """elect.sync d|p, mask: the first lane of the mask."""
    target, mask = instruction.operands
    assert isinstance(target, Pair)
    members = reader(mask, "b32", instruction.line)
    write = writer(target.first, "b32", instruction.line)
    write_flag = writer(target.second, "pred", instruction.line)

    def step(state: State, who: Who) -> None:
        threads = state.who(who)
        named = members(state, who).astype(numpy.int64)
        warps_whole(state, threads, named, "elect.sync")
        leader = numpy.bitwise_count((named & -named) - 1).astype(numpy.uint32)
        write(state, who, leader)
        write_flag(state, who, threads % state.block_threads % 32 == leader)

    return step


# --- asynchronous copies (cp.async)


@dataclass
class Copy:
    """Copies of some threads that have begun: their destinations, data and groups."""

    threads: Array
    places: Array
    data: Array
    groups: Array


def cp_step(instruction: Instruction) -> Step:
    """cp.async and its groups; cp.async.bulk."""
    if "bulk" in instruction.modifiers:
        return bulk_step(instruction)
    if "commit_group" in instruction.modifiers:
        return commit_step(instruction)
    if "wait_group" in instruction.modifiers or "wait_all" in instruction.modifiers:
        return wait_step(instruction)
    if "mbarrier" in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: not supported")
    line = instruction.line
    to, source, length, *rest = instruction.operands
    if not isinstance(length, Immediate):
        raise SyntaxFault(f"{instruction}: the size must be a constant")
    size = int(length.value)
    destination, origin = address_reader(to, line), address_reader(source, line)
    read_size = reader(rest[0], "u32", line) if rest else None

    def step(state: State, who: Who) -> None:
        threads, where = state.who(who), destination(state, who)
        check_alignment(where, size)
        addresses = origin(state, who)
        check_alignment(addresses, size)
        data = numpy.zeros((len(threads), size), numpy.uint8)
        wanted = numpy.full(len(threads), size) if read_size is None else read_size(state, who)
        for amount in numpy.unique(wanted[wanted > 0]):
            which = numpy.flatnonzero(wanted == amount)
            words = state.memory.load(addresses[which], 4, int(amount) // 4)
            data[which, : int(amount)] = numpy.stack(words, 1).view(numpy.uint8)
        places = state.shared.copy_begins(threads, where, size)
        state.note_write(places, size)
        state.pending.append(Copy(threads.copy(), places, data, state.groups[threads].copy()))

    return step


def commit_step(instruction: Instruction) -> Step:
    """cp.async.commit_group: what has begun since the last one is a group."""

    def step(state: State, who: Who) -> None:
        state.groups[state.who(who)] += 1

    return step


def wait_step(instruction: Instruction) -> Step:
    """cp.async.wait_group n: all but the latest n groups have ended; wait_all: everything."""
    waits_for_all = "wait_all" in instruction.modifiers
    left = 0
    if not waits_for_all:
        operand = instruction.operands[0]
        if not isinstance(operand, Immediate):
            raise SyntaxFault(f"{instruction}: the number of groups must be a constant")
        left = int(operand.value)

    def step(state: State, who: Who) -> None:
        takes_part = numpy.zeros(state.threads, numpy.bool_)
        takes_part[state.who(who)] = True
        remaining = []
        for copy in state.pending:
            done = takes_part[copy.threads]
            if not waits_for_all:
                done = done & (copy.groups < state.groups[copy.threads] - left)
            if done.any():
                state.shared.copy_ends(copy.threads[done], copy.places[done], copy.data[done])
                state.unfenced[copy.threads[done]] = True
            if not done.all():
                keep = ~done
                remaining.append(
                    Copy(copy.threads[keep], copy.places[keep], copy.data[keep], copy.groups[keep])
                )
        state.pending = remaining

    return step


def fence_step(instruction: Instruction) -> Step:
    """fence.proxy.async: what a thread stored before is seen by matrix units; others do nothing."""
    if instruction.modifiers[:2] != ("proxy", "async"):
        return nothing_step(instruction)

    def step(state: State, who: Who) -> None:
        state.unfenced[state.who(who)] = state.exposed[state.who(who)] = False

    return step


def nothing_step(instruction: Instruction) -> Step:
    """Fences, prefetches and hints: threads in lockstep see everything at once."""
    return lambda state, who: None


STEPS: Final[dict[str, Callable[[Instruction], Step]]] = {
    "ld": ld_step,
    "ldu": ld_step,
    "st": st_step,
    "cvta": cvta_step,
    "atom": atom_step,
    "red": atom_step,
    "shfl": shfl_step,
    "vote": vote_step,
    "activemask": activemask_step,
    "redux": redux_step,
    "elect": elect_step,
    "cp": cp_step,
    **dict.fromkeys(
        ("membar", "prefetch", "prefetchu", "discard", "nanosleep", "setmaxnreg"),
        nothing_step,
    ),
    "griddepcontrol": nothing_step,
    "fence": fence_step,
    **MATRIX_STEPS,
    "mbarrier": mbarrier_step,
    "wgmma": wgmma_step,
}
"""Translation of each opcode of movement to a step."""
