"""Dispatches: kernel descriptors, work-groups, and waves in lockstep.

The descriptor's 64 bytes and the initial registers: LLVM, "User Guide for AMDGPU Backend", sections
"Kernel Descriptor" and "Initial Kernel Execution State"; scalar branches decide for whole waves, so
that waves diverge from each other and lanes only by EXEC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy
from emulation.faults import BarrierFault, Fault, IllegalAddress, LaunchFault, TimeoutFault
from emulation.memory import GlobalMemory, LocalMemory, SharedMemory

from emulator import cdna3, rdna2
from emulator.cdna3 import (
    ACCUMULATOR,
    Cdna3Decoder,
    accumulator_step,
    matrix_registers,
    mfma_step,
)
from emulator.decode import FIRST_VGPR, NULL, Decoder, Instruction, decode
from emulator.packed import PAIRS, dot_step, operand_count, vop3p_step
from emulator.rdna2 import Rdna2Decoder
from emulator.rdna4 import TTMP7, TTMP9, Rdna4Decoder, matrix_step, waits
from emulator.scalar import reads_of, sop1, sop2, sopc, sopk
from emulator.state import (
    EXEC,
    SCC,
    VCC,
    Array,
    State,
    Step,
    Who,
    packed_lanes,
    read_mask,
    scalar_pair,
    width_of,
    write_scalar_pair,
)
from emulator.transfer import ds_step, flat_step, registers_read, smem_step
from emulator.vector import ROWS, SPECIAL, pair_step, vector_step

Dims = tuple[int, int, int]

MOST_WAVES: Final = 1 << 9
"""Waves that run together."""
MOST_INSTRUCTIONS: Final = 50_000_000
WATCHED_GROUPS: Final = 2
"""Groups of those that run together that are watched for races."""
SGPRS: Final = 256
WGP_MODE: Final = 29
"""Bit of RSRC1: a group may run on both compute units of a workgroup processor."""
LANES_OF_SCRATCH: Final = 64
"""Scratch is counted for waves of 64."""
SLOTS: Final = 8
"""Parts of scratch that waves have in turns: fewer than a card has."""
RUNNING, WAITING, DONE = 0, 1, 2
NOTHING: Final = frozenset(
    {
        *("s_nop", "s_sleep", "s_set_inst_prefetch_distance", "s_clause", "s_delay_alu"),
        *("s_waitcnt_depctr", "s_setprio", "s_sendmsg", "s_icache_inv", "s_code_end"),
        *("s_wait_idle", "s_round_mode", "s_denorm_mode", "s_setkill", "s_sethalt", "s_wakeup"),
        *("s_gl1_inv", "s_dcache_inv", "buffer_gl0_inv", "buffer_gl1_inv"),
        *("s_wait_alu", "global_inv", "global_wb"),
        *("buffer_wbl2", "buffer_inv", "s_dcache_wb"),
    }
)
"""Hints and cache maintenance: nothing happens out of order here."""


@dataclass(frozen=True)
class Descriptor:
    """Content of a kernel descriptor (`name.kd`)."""

    entry: int
    """Address of the first instruction."""
    shared_bytes: int
    private_bytes: int
    kernarg_bytes: int
    properties: int
    rsrc1: int
    rsrc2: int
    rsrc3: int = 0

    @classmethod
    def read(cls, memory: GlobalMemory, address: int) -> Descriptor:
        """From 64 bytes of memory."""
        words = memory.load(numpy.arange(16, dtype=numpy.uint64) * 4 + numpy.uint64(address), 4, 1)
        data = words[0].tobytes()
        shared, private, kernarg = struct.unpack_from("<III", data)
        (offset,) = struct.unpack_from("<q", data, 16)
        rsrc3, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", data, 44)
        return cls(address + offset, shared, private, kernarg, properties, rsrc1, rsrc2, rsrc3)

    @property
    def user_registers(self) -> int:
        """Number of scalar registers that the dispatcher fills before the group's numbers."""
        return self.rsrc2 >> 1 & 31

    @property
    def vector_registers(self) -> int:
        """Vector registers of a wave, of both kinds."""
        return ((self.rsrc1 & 63) + 1) * 8

    @property
    def first_accumulator(self) -> int:
        """Number of the first accumulator among them, on cards that have these (ACCUM_OFFSET)."""
        return ((self.rsrc3 & 63) + 1) * 4


@dataclass
class Control:
    """An instruction that decides where a wave goes on."""

    kind: str
    target: int = 0
    holds: Callable[[State, Who], Array] | None = None


@dataclass
class Ready:
    """A decoded instruction, made executable."""

    instruction: Instruction
    action: Step | Control
    touched: Sequence[int]
    """Registers whose loads must have arrived."""


class Emulator:
    """Runs kernels over one memory; code is decoded once for each address."""

    def __init__(
        self, memory: GlobalMemory | None = None, decoder: type[Decoder] = Decoder
    ) -> None:
        self.memory = memory or GlobalMemory()
        self.decoder = decoder
        """The instruction set: that of RDNA3 or RDNA4."""
        self.decoded: dict[int, Ready] = {}
        self.executed: dict[str, int] = {}
        """Number of executions of each instruction, by name."""
        self.most_instructions = MOST_INSTRUCTIONS
        self.watched_groups = WATCHED_GROUPS

    def forget(self) -> None:
        """Code may have changed."""
        self.decoded.clear()

    def ready(self, address: int) -> Ready:
        """The instruction at an address."""
        if address not in self.decoded:
            region = self.memory.region_at(address)
            if region is None:
                raise IllegalAddress(f"an instruction is fetched at {address:#x}")
            start = address - region.address
            instruction = decode(region.data[start : start + 16].tobytes(), address, self.decoder)
            action = make(instruction)
            self.decoded[address] = Ready(instruction, action, touched(instruction))
        return self.decoded[address]

    def dispatch(
        self,
        descriptor: int,
        groups: Dims,
        group: Dims,
        user_data: Sequence[int],
        shared_bytes: int | None = None,
    ) -> None:
        """Run groups of work-items; `user_data` fills the first scalar registers. Raises Fault."""
        found = Descriptor.read(self.memory, descriptor)
        if shared_bytes is not None:
            if shared_bytes < found.shared_bytes:
                raise LaunchFault(
                    f"{shared_bytes} bytes of LDS; the kernel needs {found.shared_bytes}"
                )
            found = replace(found, shared_bytes=shared_bytes)
        self.launch(found, groups, group, user_data)

    def launch(
        self, found: Descriptor, groups: Dims, group: Dims, user_data: Sequence[int]
    ) -> None:
        """Run groups of what a descriptor, or registers in its place, describe. Raises Fault."""
        lanes = 32 if found.properties >> 10 & 1 else 64
        if lanes != self.decoder.lanes:
            raise LaunchFault(f"the kernel is for waves of {lanes}, the card's are of others")
        items = group[0] * group[1] * group[2]
        if min(*groups, *group) < 1 or items > 1024:
            raise LaunchFault(f"{groups} groups of {group} work-items are no dispatch")
        shared = found.shared_bytes
        if shared > 64 << 10:
            raise LaunchFault(f"{shared} bytes of LDS are more than a group can have")
        waves = -(-items // lanes)
        at_once = max(MOST_WAVES // waves, 1)
        total = groups[0] * groups[1] * groups[2]
        with numpy.errstate(all="ignore"):
            for first in range(0, total, at_once):
                count = min(at_once, total - first)
                Run(self, found, groups, group, first, count, user_data, shared).go()


def vector_file(descriptor: Descriptor, waves: int, lanes: int) -> list[Array]:
    """Vector registers, and those of accumulators from ACCUMULATOR on, with what others left."""
    garbage = numpy.uint32(0xCBCBCBCB)
    whole = [numpy.full((waves, lanes), garbage) for _ in range(descriptor.vector_registers)]
    if lanes == 32:
        return whole
    first = descriptor.first_accumulator
    missing = [numpy.empty(0, numpy.uint32)] * (ACCUMULATOR - len(whole[:first]))
    return [*whole[:first], *missing, *whole[first:]]


class Run:
    """Some groups of a dispatch, from their first instruction to their last."""

    def __init__(
        self,
        emulator: Emulator,
        descriptor: Descriptor,
        groups: Dims,
        group: Dims,
        first: int,
        count: int,
        user_data: Sequence[int],
        shared: int,
    ) -> None:
        self.emulator, self.first, self.count = emulator, first, count
        items = group[0] * group[1] * group[2]
        lanes = emulator.decoder.lanes
        self.group_waves = -(-items // lanes)
        waves = count * self.group_waves
        garbage = numpy.uint32(0xCBCBCBCB)
        scalars = [numpy.full(waves, garbage) for _ in range(SGPRS)]
        vectors = vector_file(descriptor, waves, lanes)
        flat = numpy.tile(numpy.arange(self.group_waves * lanes), count).reshape(waves, lanes)
        exists = packed_lanes(flat < items).astype(numpy.uint64)
        scalars[EXEC] = exists.astype(numpy.uint32)
        scalars[EXEC + 1] = (exists >> numpy.uint64(32)).astype(numpy.uint32)
        scalars[SCC] = numpy.zeros(waves, numpy.uint32)
        for index, value in enumerate(user_data):
            scalars[index] = numpy.full(waves, value % 2**32, numpy.uint32)
        number = numpy.repeat(numpy.arange(first, first + count), self.group_waves)
        place = descriptor.user_registers
        for axis, numbers in enumerate(
            (number % groups[0], number // groups[0] % groups[1], number // (groups[0] * groups[1]))
        ):
            if descriptor.rsrc2 >> (7 + axis) & 1:
                scalars[place] = numbers.astype(numpy.uint32)
                place += 1
        if emulator.decoder is Rdna4Decoder:
            row, layer = number // groups[0] % groups[1], number // (groups[0] * groups[1])
            scalars[TTMP9] = (number % groups[0]).astype(numpy.uint32)
            scalars[TTMP7] = (row | layer << 16).astype(numpy.uint32)
        places_scratch = emulator.decoder is Rdna2Decoder and bool(descriptor.rsrc2 & 1)
        if places_scratch:
            part = descriptor.private_bytes * LANES_OF_SCRATCH
            scalars[place] = (numpy.arange(waves) % SLOTS * part).astype(numpy.uint32)
        axes = descriptor.rsrc2 >> 11 & 3
        x = flat % group[0]
        y = flat // group[0] % group[1] if axes > 0 else 0
        z = flat // (group[0] * group[1]) if axes > 1 else 0
        if emulator.decoder is Rdna2Decoder:  # a register for each, later cards pack them
            for axis, place_of_item in enumerate((x, y, z)[: axes + 1]):
                vectors[axis] = numpy.asarray(place_of_item, numpy.uint32)
        else:
            vectors[0] = (x | y << 10 | z << 20 if axes else x).astype(numpy.uint32)
        threads = waves * lanes
        self.state = State(
            waves,
            lanes,
            self.group_waves,
            scalars,
            vectors,
            emulator.memory,
            SharedMemory(
                count, shared, self.group_waves * lanes, 1, emulator.watched_groups, 0, True, lanes
            ),
            LocalMemory(threads, descriptor.private_bytes, first=0),
        )
        if places_scratch:
            self.state.scratch = numpy.full((waves, 2), garbage)
        self.state.counts_stores = emulator.decoder is Cdna3Decoder
        self.state.has_signed_scratch = emulator.decoder is Rdna4Decoder
        self.state.spans_units = lanes == 32 and bool(descriptor.rsrc1 >> WGP_MODE & 1)
        self.place = numpy.full(waves, descriptor.entry, numpy.int64)
        self.status = numpy.full(waves, RUNNING, numpy.int8)
        self.steps = 0

    def go(self) -> None:
        """Run until all waves have ended."""
        while True:
            running = numpy.flatnonzero(self.status == RUNNING)
            if running.size:
                self.advance(running)
            elif (self.status == WAITING).any():
                self.release()
            else:
                return

    def advance(self, running: Array) -> None:
        """Execute from the least address until waves divide, meet others, or stop."""
        places = self.place[running]
        place, limit = int(places.min()), 1 << 62
        at_place = places == place
        who: Who = None
        chosen = running
        if not at_place.all():
            chosen = who = running[at_place]
            limit = int(places[~at_place].min())
        elif running.size < self.state.waves:
            who = running
        emulator = self.emulator
        while place < limit:
            ready = emulator.ready(place)
            instruction = ready.instruction
            self.count_one(instruction)
            following = place + instruction.size
            try:
                if self.state.pending and ready.touched:
                    self.state.check_arrived(who, ready.touched)
                if isinstance(ready.action, Control):
                    moved = self.control(ready.action, instruction, following, chosen, who, limit)
                    if moved is None:
                        return
                    following = moved
                else:
                    ready.action(self.state, who)
            except Fault as fault:
                raise type(fault)(f"{instruction}: {fault}") from None
            place = following
        self.place[chosen] = place

    def count_one(self, instruction: Instruction) -> None:
        """One more instruction; raise TimeoutFault beyond the most."""
        self.steps += 1
        executed = self.emulator.executed
        for each in (instruction, instruction.partner):
            if each is not None:
                executed[each.name] = executed.get(each.name, 0) + 1
        if self.steps > self.emulator.most_instructions:
            raise TimeoutFault(
                f"more than {self.emulator.most_instructions} instructions, last {instruction}"
            )

    def control(
        self,
        control: Control,
        instruction: Instruction,
        following: int,
        chosen: Array,
        who: Who,
        limit: int,
    ) -> int | None:
        """Branch, wait, barrier or end: where all go on, or None where they no longer go as one."""
        if control.kind == "wait":
            self.wait(instruction, who)
            return following
        if control.kind == "branch":
            target = following + 4 * instruction.immediate
            taken = numpy.ones(len(chosen), numpy.bool_)
            if control.holds is not None:
                taken = control.holds(self.state, who)
            if not taken.any():
                return following
            if taken.all() and limit == 1 << 62:
                return target
            self.place[chosen] = numpy.where(taken, target, following)
            return None
        self.place[chosen] = following
        if control.kind == "jump":
            assert control.holds is not None
            self.place[chosen] = control.holds(self.state, who).astype(numpy.int64)
        elif control.kind == "end":
            self.status[chosen] = DONE
        elif control.kind == "barrier":
            if instruction.name == "s_barrier":
                self.state.check_ordered(who)
            if self.group_waves == 1 or (chosen.size == self.state.waves):
                self.state.shared.barrier(numpy.unique(chosen // self.group_waves))
                return following
            self.status[chosen] = WAITING
        else:
            raise Fault("the kernel trapped")
        return None

    def wait(self, instruction: Instruction, who: Who) -> None:
        """s_waitcnt: scalar loads come in any order, so that only a count of 0 says anything."""
        if instruction.name in OLDER_WAITS:
            vector, other = OLDER_WAITS[instruction.name](instruction.immediate)
            self.state.wait(who, "vm", vector)
            self.state.wait(who, "lgkm", other)
            if other == 0:
                self.state.wait(who, "scalar", 0)
            return
        if instruction.name.startswith("s_wait_"):
            for counter, left in waits(instruction.name, instruction.immediate).items():
                if counter != "scalar" or left == 0:
                    self.state.wait(who, counter, left)
            return
        immediate = instruction.immediate & 0xFFFF
        vector = immediate >> 10 & 63 if instruction.name == "s_waitcnt" else 63
        other = immediate >> 4 & 63 if instruction.name == "s_waitcnt" else 63
        if instruction.name == "s_waitcnt_vmcnt":
            vector = immediate & 63
        if instruction.name == "s_waitcnt_lgkmcnt":
            other = immediate & 63
        if instruction.name == "s_waitcnt_vscnt":
            self.state.wait(who, "stores", immediate & 63)
        if vector < 63:
            self.state.wait(who, "vm", vector)
        if other == 0:
            self.state.wait(who, "scalar", 0)
        if other < 63:
            self.state.wait(who, "lgkm", other)

    def release(self) -> None:
        """Let the groups go on whose waves all wait; else nobody ever will."""
        waiting = numpy.flatnonzero(self.status == WAITING)
        counts = numpy.bincount(waiting // self.group_waves, minlength=self.count)
        ended = numpy.bincount(
            numpy.flatnonzero(self.status == DONE) // self.group_waves, minlength=self.count
        )
        wrong = (counts > 0) & (ended > 0)
        if wrong.any():
            group = int(numpy.flatnonzero(wrong)[0])
            raise BarrierFault(
                f"{counts[group]} of {self.group_waves} waves of group {self.first + group} wait "
                f"at s_barrier, the others have ended"
            )
        self.state.shared.barrier(numpy.flatnonzero(counts))
        self.status[waiting] = RUNNING


def branch_if(code: int, is_zero: bool) -> Callable[[State, Who], Array]:
    """Condition of a branch: a scalar register is zero, or is not."""

    def holds(state: State, who: Who) -> Array:
        value = state.scalars[SCC] if code == SCC else read_mask(state, None, code)
        value = value if who is None else value[who]
        found: Array = value == 0 if is_zero else value != 0
        return found

    return holds


OLDER_WAITS: Final = {
    "s_waitcnt_gfx9": cdna3.counts_waited_for,
    "s_waitcnt_gfx10": rdna2.counts_waited_for,
}
"""Counters of s_waitcnt, by what wrote the number otherwise than RDNA3."""
CONTROLS: Final[dict[str, Control]] = {
    "s_endpgm": Control("end"),
    "s_barrier": Control("barrier"),
    "s_trap": Control("trap"),
    "s_branch": Control("branch"),
    "s_cbranch_scc0": Control("branch", holds=branch_if(SCC, True)),
    "s_cbranch_scc1": Control("branch", holds=branch_if(SCC, False)),
    "s_cbranch_vccz": Control("branch", holds=branch_if(VCC, True)),
    "s_cbranch_vccnz": Control("branch", holds=branch_if(VCC, False)),
    "s_cbranch_execz": Control("branch", holds=branch_if(EXEC, True)),
    "s_cbranch_execnz": Control("branch", holds=branch_if(EXEC, False)),
    **dict.fromkeys(("s_waitcnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt"), Control("wait")),
    **dict.fromkeys(("s_waitcnt_vscnt", "s_waitcnt_expcnt", *OLDER_WAITS), Control("wait")),
    "s_barrier_wait": Control("barrier"),
    **dict.fromkeys(
        (
            *("s_wait_loadcnt", "s_wait_storecnt", "s_wait_dscnt", "s_wait_kmcnt"),
            *("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"),
        ),
        Control("wait"),
    ),
}


def make(instruction: Instruction) -> Step | Control:
    """An instruction as a step or a control."""
    name = instruction.name
    if name in CONTROLS:
        return CONTROLS[name]
    if name in NOTHING:
        return lambda state, who: None
    if name == "s_barrier_signal":
        return lambda state, who: state.check_ordered(who)
    if name == "s_getpc_b64":
        return lambda state, who: next_address(instruction, state, who)
    if name in ("s_setpc_b64", "s_swappc_b64"):
        return jump(instruction)
    if name.startswith("v_wmma12"):
        return matrix_step(instruction)
    if name.startswith("v_mfma"):
        return mfma_step(instruction)
    if name.startswith("v_accvgpr"):
        return accumulator_step(instruction)
    if name.startswith("v_dot") and instruction.encoding == "VOP2":
        return dot_step(instruction)
    makers: dict[str, Callable[[Instruction], Step]] = {
        "SOP1": sop1,
        "SOP2": sop2,
        "SOPC": sopc,
        "SOPK": sopk,
        "SMEM": smem_step,
        "DS": ds_step,
        **dict.fromkeys(("FLAT", "SCRATCH", "GLOBAL"), flat_step),
        **dict.fromkeys(("VOP1", "VOP2", "VOP3", "VOPC"), vector_step),
        "VOP3P": vop3p_step,
        "VOPD": pair_step,
    }
    if instruction.encoding not in makers:
        raise Fault(f"{instruction} is not supported")
    return makers[instruction.encoding](instruction)


def next_address(instruction: Instruction, state: State, who: Who) -> None:
    """s_getpc_b64: the address behind the instruction."""
    value = numpy.full(state.count(who), instruction.address + instruction.size, numpy.uint64)
    write_scalar_pair(state, who, instruction.destination, value)


def jump(instruction: Instruction) -> Control:
    """s_setpc_b64, and s_swappc_b64 which keeps the address behind it."""

    def target(state: State, who: Who) -> Array:
        found = scalar_pair(state, who, instruction.sources[0], 0).copy()
        if instruction.name == "s_swappc_b64":
            next_address(instruction, state, who)
        return found

    return Control("jump", holds=target)


# --- registers that must have arrived


def touched(instruction: Instruction) -> list[int]:
    """Registers that an instruction reads or overwrites, as operand codes."""
    encoding = instruction.encoding
    if instruction.name in NOTHING or instruction.name == "s_barrier_signal":
        return []
    if encoding in ("SOP1", "SOP2", "SOPC"):
        wide = 2 if "64" in instruction.name else 1
        written = [instruction.destination + i for i in range(wide)] if encoding != "SOPC" else []
        return [*reads_of(instruction), *(c for c in written if c != NULL)]
    if encoding == "SOPK":
        return [instruction.destination]
    if encoding == "SMEM":
        base, offset = instruction.sources
        return [base, base + 1, *([offset] if offset != NULL else [])]
    if encoding in ("DS", "FLAT", "SCRATCH", "GLOBAL"):
        scalar = instruction.sources[1] if encoding != "DS" else NULL
        words = 1 if encoding == "SCRATCH" else 2
        scalars = range(scalar, scalar + words) if scalar != NULL else ()
        return [*registers_read(instruction), *scalars]
    if encoding in ("VOP1", "VOP2", "VOP3", "VOPC", "VOPD", "VOP3P"):
        found = vector_registers(instruction)
        return found + (vector_registers(instruction.partner) if instruction.partner else [])
    return []


def vector_registers(instruction: Instruction) -> list[int]:
    """Registers of the sources and the destination of a vector instruction."""
    if instruction.name.startswith("v_mfma"):
        return matrix_registers(instruction)
    row = ROWS.get(instruction.name.replace("v_dual_", "v_"))
    count = len(row.sources) if row is not None else min(len(instruction.sources), 3)
    if instruction.name.startswith("v_s_"):
        count = 1
    elif instruction.name.startswith(
        ("v_cmp", "v_readlane", "v_mbcnt", "v_add_co_u32", "v_sub_co", "v_subrev_co_u32")
    ):
        count = 2
    elif instruction.encoding == "VOP3P":
        count = operand_count(instruction.name)
    elif row is None and instruction.name in SPECIAL and instruction.encoding == "VOP3":
        count = (
            3
            if instruction.name.startswith(("v_cndmask", "v_mad", "v_div"))
            or "_ci_" in instruction.name
            else 2
        )
    found = []
    for index, code in enumerate(instruction.sources[:count]):
        kind = row.sources[index] if row is not None else "b32"
        if instruction.name in PAIRS:
            kind = "b64"
        if instruction.name.startswith("v_cmp") and instruction.name.endswith("64"):
            kind = "b32" if "class" in instruction.name and index else "b64"
        is_short = instruction.encoding in ("VOP1", "VOP2", "VOPC")
        is_half = width_of(kind) == 16 and is_short and not instruction.clears_upper
        code = code & ~0x80 if is_half and code >= FIRST_VGPR else code
        if (code < 128 or code >= FIRST_VGPR) and code != NULL:
            found += [code, code + 1] if width_of(kind) == 64 else [code]
    if not instruction.name.startswith(("v_cmp", "v_readfirst", "v_readlane", "v_s_")):
        target = instruction.destination
        if (
            row is not None
            and width_of(row.result) == 16
            and instruction.encoding in ("VOP1", "VOP2")
            and not instruction.clears_upper
        ):
            target &= 0x7F
        found.append(FIRST_VGPR + target)
    return found
