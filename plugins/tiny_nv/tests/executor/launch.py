"""Threads in lockstep: launches, divergence, barriers and exits.

All threads of as many blocks as fit run together. The threads at the least program counter execute;
where a branch divides them, the others wait until these have reached their place or gone past it.
With code that a compiler has laid out in order, that is the point where the paths join.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
from emulation.faults import (
    BarrierFault,
    Fault,
    LaunchFault,
    SyntaxFault,
    TimeoutFault,
)
from emulation.memory import (
    FIRST_LOCAL,
    FIRST_SHARED,
    GlobalMemory,
    LocalMemory,
    Region,
    SharedMemory,
)

from executor.conversions import cvt_step
from executor.movement import STEPS as MOVEMENT_STEPS
from executor.operations import STEPS as ARITHMETIC_STEPS
from executor.registers import Array, State, Step, Who, reader
from executor.syntax import WIDTHS, Function, Instruction, Module, Register, Symbol

Dims = tuple[int, int, int]

MOST_THREADS: Final = 1 << 14
"""Threads that run together: their registers should stay in a cache."""
MOST_INSTRUCTIONS: Final = 50_000_000
"""Instructions, each for all threads at it, after which a launch counts as one without an end."""
WATCHED_BLOCKS: Final = 2
"""Blocks of those that run together that are watched for races; all run the same code."""
UNSIGNED: Final = {1: numpy.bool_, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
RUNNING, WAITING, DONE = 0, 1, 2


@dataclass(frozen=True)
class Limits:
    """Limits of a card."""

    block_threads: int = 1024
    shared_bytes: int = 227 << 10
    """With the opt-in; without it 48 KiB."""
    grid: Dims = (2**31 - 1, 65535, 65535)
    block: Dims = (1024, 1024, 64)


@dataclass
class Control:
    """An instruction that decides where threads go on: branch, barrier, exit."""

    kind: str
    target: int = 0
    barrier: Callable[[State, Who], Array] | None = None
    is_aligned: bool = True


class Kernel:
    """A function of a module, made ready to run."""

    def __init__(self, module: Module, name: str) -> None:
        if name not in module.functions:
            raise LaunchFault(f"there is no kernel {name!r}, only {sorted(module.functions)}")
        self.module = module
        self.function: Function = module.functions[name]
        self.steps: list[Step | Control] = [self.make(i) for i in self.function.instructions]
        self.shared_static, self.symbols = self.lay_out()
        self.granule = granule_of(self.function)

    def make(self, instruction: Instruction) -> Step | Control:
        """A step or a control instruction."""
        opcode = instruction.opcode
        match opcode:
            case "bra":
                label = instruction.operands[0]
                assert isinstance(label, Symbol)
                return Control("bra", self.target(label.name, instruction))
            case "ret" | "exit":
                return Control("exit")
            case "bar" | "barrier":
                if "warp" in instruction.modifiers:
                    return Control("warp")
                if "cluster" in instruction.modifiers:
                    return self.cluster_barrier(instruction)
                return self.barrier(instruction)
            case "trap":
                return Control("trap")
            case "cvt":
                return cvt_step(instruction)
        makers = ARITHMETIC_STEPS if opcode in ARITHMETIC_STEPS else MOVEMENT_STEPS
        if opcode not in makers:
            raise SyntaxFault(f"{instruction}: this executor does not know {opcode}")
        return makers[opcode](instruction)

    def target(self, label: str, instruction: Instruction) -> int:
        """The instruction that a label stands before."""
        if label not in self.function.labels:
            raise SyntaxFault(f"{instruction}: label {label} is not declared")
        return self.function.labels[label]

    def barrier(self, instruction: Instruction) -> Control:
        """bar.sync and barrier.sync of whole blocks."""
        if "sync" not in instruction.modifiers:
            raise SyntaxFault(f"{instruction}: only bar.sync is supported")
        if len(instruction.operands) > 1:
            raise SyntaxFault(f"{instruction}: barriers of a part of a block are not supported")
        number = reader(instruction.operands[0], "u32", instruction.line)
        is_aligned = instruction.opcode == "bar" or "aligned" in instruction.modifiers
        return Control("bar", barrier=number, is_aligned=is_aligned)

    def cluster_barrier(self, instruction: Instruction) -> Step | Control:
        """barrier.cluster.arrive, which waits for nobody, and .wait, where all blocks meet."""
        if "arrive" in instruction.modifiers:
            return lambda state, who: None
        is_aligned = "aligned" in instruction.modifiers
        return Control(
            "bar",
            barrier=lambda state, who: numpy.zeros(len(state.who(who)), numpy.int64),
            is_aligned=is_aligned,
        )

    @property
    def cluster(self) -> Dims:
        """The blocks of a cluster, as the kernel states them."""
        x, y, z = self.function.directives.get("reqnctapercluster", (1, 1, 1))
        return x, y, z

    def lay_out(self) -> tuple[int, dict[str, tuple[str, int]]]:
        """Bytes of shared variables of known size, and addresses of shared and local ones."""
        symbols: dict[str, tuple[str, int]] = {}
        places = {"shared": FIRST_SHARED, "local": FIRST_LOCAL}
        dynamic = []
        for variable in (*self.module.variables, *self.function.variables):
            if variable.space not in places:
                continue
            if variable.size is None:
                dynamic.append(variable)
                continue
            start = -(-places[variable.space] // variable.alignment) * variable.alignment
            symbols[variable.name] = (variable.space, start)
            places[variable.space] = start + variable.size
        for variable in dynamic:
            start = -(-places["shared"] // variable.alignment) * variable.alignment
            symbols[variable.name] = ("shared", start)
            places["shared"] = max(places["shared"], start)
        self.local_bytes = places["local"] - FIRST_LOCAL
        return places["shared"] - FIRST_SHARED, symbols


def granule_of(function: Function) -> int:
    """The fewest bytes that an access of shared memory has; races are told apart by so many."""
    widths = [4]
    for instruction in function.instructions:
        space = {"shared", "shared::cta", "shared::cluster"} & set(instruction.modifiers)
        generic = not {"global", "local", "param", "const"} & set(instruction.modifiers)
        if instruction.opcode in ("ld", "st", "atom", "red") and (space or generic):
            widths.append(WIDTHS[instruction.types[-1]])
    return min(widths)


class Executor:
    """Runs kernels of modules over one memory."""

    def __init__(self, memory: GlobalMemory | None = None, limits: Limits | None = None) -> None:
        self.memory = memory or GlobalMemory()
        self.limits = limits or Limits()
        self.kernels: dict[tuple[int, str], Kernel] = {}
        self.globals: dict[int, dict[str, tuple[str, int]]] = {}
        self.next_global = 0x6000_0000_0000
        self.most_instructions = MOST_INSTRUCTIONS
        self.watched_blocks = WATCHED_BLOCKS

    def kernel(self, module: Module, name: str) -> Kernel:
        """A kernel, made ready once."""
        key = (id(module), name)
        if key not in self.kernels:
            self.kernels[key] = Kernel(module, name)
        return self.kernels[key]

    def load(self, module: Module) -> dict[str, tuple[str, int]]:
        """Give the global and constant variables of a module memory, and their names addresses."""
        if id(module) not in self.globals:
            found = {}
            declared = [v for f in module.functions.values() for v in f.variables]
            for variable in (*module.variables, *declared):
                if variable.space in ("global", "const"):
                    size = variable.size or 0
                    data = numpy.zeros(max(size, 1), numpy.uint8)
                    data[: len(variable.data)] = numpy.frombuffer(variable.data, numpy.uint8)
                    self.memory.add(Region(self.next_global, data, variable.name))
                    found[variable.name] = (variable.space, self.next_global)
                    self.next_global += -(-size // 4096) * 4096 + 4096
            self.globals[id(module)] = found
        return self.globals[id(module)]

    def launch(
        self,
        module: Module,
        name: str,
        grid: Dims,
        block: Dims,
        parameters: bytes,
        dynamic_shared: int = 0,
        cluster: Dims = (1, 1, 1),
    ) -> None:
        """Run a grid of blocks to the end. Raises Fault."""
        kernel = self.kernel(module, name)
        self.check(kernel, grid, block, parameters, dynamic_shared)
        symbols = {**self.load(module), **kernel.symbols}
        threads = block[0] * block[1] * block[2]
        blocks = grid[0] * grid[1] * grid[2]
        members = math.prod(map(max, cluster, kernel.cluster))
        at_once = max(MOST_THREADS // threads // members * members, members)
        with numpy.errstate(all="ignore"):
            for first in range(0, blocks, at_once):
                count = min(at_once, blocks - first)
                Run(
                    self, kernel, symbols, grid, block, first, count, parameters, dynamic_shared
                ).go()

    def check(
        self, kernel: Kernel, grid: Dims, block: Dims, parameters: bytes, dynamic_shared: int
    ) -> None:
        """Raise LaunchFault for what the driver would refuse."""
        name, limits = kernel.function.name, self.limits
        if min(*grid, *block) < 1:
            raise LaunchFault(f"{name}: grid {grid} or block {block} has a size below 1")
        sizes, most = (*grid, *block), (*limits.grid, *limits.block)
        over = [a for a, b in zip(sizes, most, strict=True) if a > b]
        threads = block[0] * block[1] * block[2]
        if over or threads > limits.block_threads:
            raise LaunchFault(f"{name}: a grid of {grid} blocks of {block} is too large")
        if any(size % of for size, of in zip(grid, kernel.cluster, strict=True)):
            raise LaunchFault(f"{name}: a grid of {grid} has parts of clusters {kernel.cluster}")
        for directive in ("maxntid", "reqntid"):
            if stated := kernel.function.directives.get(directive):
                bound = int(numpy.prod(stated))
                if threads > bound or (directive == "reqntid" and threads != bound):
                    raise LaunchFault(f"{name}: blocks of {block}, but .{directive} {stated}")
        if kernel.shared_static + dynamic_shared > limits.shared_bytes:
            raise LaunchFault(
                f"{name}: {kernel.shared_static} + {dynamic_shared} bytes of shared memory; the "
                f"most is {limits.shared_bytes}"
            )
        if len(parameters) < kernel.function.parameter_bytes:
            raise LaunchFault(
                f"{name} takes {kernel.function.parameter_bytes} bytes of parameters, not "
                f"{len(parameters)}"
            )


class Run:
    """Some blocks of a launch, from their first instruction to their last."""

    def __init__(
        self,
        executor: Executor,
        kernel: Kernel,
        symbols: dict[str, tuple[str, int]],
        grid: Dims,
        block: Dims,
        first: int,
        blocks: int,
        parameters: bytes,
        dynamic_shared: int,
    ) -> None:
        self.kernel, self.executor = kernel, executor
        self.block_threads = block[0] * block[1] * block[2]
        self.blocks, self.first = blocks, first
        threads = blocks * self.block_threads
        size = kernel.shared_static + dynamic_shared
        self.state = State(
            threads,
            self.block_threads,
            [garbage(register, threads) for register in kernel.function.registers],
            specials_of(grid, block, first, blocks, dynamic_shared),
            {**symbols, **{p.name: ("param", p.offset) for p in kernel.function.parameters}},
            parameters,
            executor.memory,
            SharedMemory(blocks, size, self.block_threads, kernel.granule, executor.watched_blocks),
            LocalMemory(threads if kernel.local_bytes else 0, kernel.local_bytes),
            cluster=math.prod(kernel.cluster),
        )
        self.place = numpy.zeros(threads, numpy.int64)
        self.status = numpy.full(threads, RUNNING, numpy.int8)
        self.barrier = numpy.zeros(threads, numpy.int64)
        self.executed = 0
        self.seen = -1
        """Progress of mbarriers when they were last asked for."""

    def go(self) -> None:
        """Run until all threads have ended."""
        state = self.state
        while True:
            running = numpy.flatnonzero((self.status == RUNNING) & ~state.yields)
            if running.size:
                self.advance(running)
            elif state.yields.any():
                self.wait_again()
            elif (self.status == WAITING).any():
                self.release()
            else:
                return

    def wait_again(self) -> None:
        """Ask again for mbarriers, if anything has happened to one; else nobody ever will."""
        state = self.state
        if state.progress == self.seen:
            place = int(self.place[numpy.flatnonzero(state.yields)[0]]) - 1
            raise BarrierFault(
                f"{self.kernel.function.name}, {self.kernel.function.instructions[place]}: "
                f"{int(state.yields.sum())} threads wait for an mbarrier that nobody completes"
            )
        self.seen = state.progress
        state.yields[:] = False

    def advance(self, running: Array) -> None:
        """Execute from the least program counter until threads divide, meet others, or stop."""
        places = self.place[running]
        place = int(places.min())
        at_place = places == place
        who: Who = None
        limit = len(self.kernel.steps)
        if at_place.all():
            chosen = running
            if running.size < self.state.threads:
                who = running
        else:
            chosen = who = running[at_place]
            limit = int(places[~at_place].min())
        instructions, steps = self.kernel.function.instructions, self.kernel.steps
        while place < limit:
            instruction = instructions[place]
            self.count(instruction)
            try:
                active = self.guarded(instruction, who, chosen)
                step = steps[place]
                if isinstance(step, Control):
                    if step.kind == "bra" and limit == len(steps) and is_all(active, chosen):
                        place = step.target  # nobody waits elsewhere and all go the same way
                        continue
                    if self.control(step, instruction, place, chosen, active):
                        return
                elif active is None or active.size:
                    step(self.state, active)
                    if instruction.opcode == "mbarrier" and self.state.yields.any():
                        self.place[chosen] = place + 1
                        return
            except Fault as fault:
                raise self.named(fault, instruction) from None
            place += 1
        self.place[chosen] = place
        if place == len(steps):
            self.status[chosen] = DONE

    def count(self, instruction: Instruction) -> None:
        """One more instruction; raise TimeoutFault beyond the most."""
        self.executed += 1
        if self.executed > self.executor.most_instructions:
            raise TimeoutFault(
                f"{self.kernel.function.name}: more than {self.executor.most_instructions} "
                f"instructions; the last one was {instruction}"
            )

    def named(self, fault: Fault, instruction: Instruction) -> Fault:
        """The fault, with kernel and instruction."""
        return type(fault)(f"{self.kernel.function.name}, {instruction}: {fault}")

    def guarded(self, instruction: Instruction, who: Who, chosen: Array) -> Who:
        """The threads of those at an instruction that its guard lets through."""
        if instruction.guard is None:
            return who
        predicate = self.state.registers[instruction.guard.number]
        holds = (predicate if who is None else predicate[chosen]) ^ instruction.is_negated
        return who if holds.all() else chosen[holds]

    def control(
        self, step: Control, instruction: Instruction, place: int, chosen: Array, active: Who
    ) -> bool:
        """Branch, barrier or exit. True where the threads no longer go on as one."""
        taken = chosen if active is None else active
        if step.kind == "trap" and taken.size:
            raise Fault("the kernel trapped")
        if step.kind == "warp":
            self.join_warps(taken)
            return False
        if not taken.size:
            return False
        self.place[chosen] = place + 1
        if step.kind == "bra":
            self.place[taken] = step.target
        elif step.kind == "exit":
            self.status[taken] = DONE
        else:
            assert step.barrier is not None
            if step.is_aligned:
                self.check_warps(taken, instruction)
            numbers = step.barrier(self.state, active)
            if taken.size == self.state.threads and (numbers == numbers[0]).all():
                self.state.barrier(numpy.arange(self.blocks))  # all are here: go on
                return False
            self.status[taken], self.barrier[taken] = WAITING, numbers
        return True

    def check_warps(self, taken: Array, instruction: Instruction) -> None:
        """Raise ConvergenceFault where a part of a warp executes what all of it must."""
        warps = self.state.shared.warps_of(taken)
        alive = self.state.shared.warps_of(numpy.flatnonzero(self.status != DONE))
        total = int(max(warps.max(), alive.max())) + 1
        here, there = numpy.bincount(warps, minlength=total), numpy.bincount(alive, minlength=total)
        wrong = (here > 0) & (here != there)
        if wrong.any():
            warp = int(numpy.flatnonzero(wrong)[0])
            raise BarrierFault(
                f"{here[warp]} of {there[warp]} threads of a warp reach the barrier together"
            )

    def join_warps(self, taken: Array) -> None:
        """bar.warp.sync: accesses before it are seen by the warp's threads after it."""
        self.state.shared.warp_epoch[numpy.unique(self.state.shared.warps_of(taken))] += 1

    def release(self) -> None:
        """Let the blocks go on whose threads all wait at one barrier; else nobody ever will."""
        waiting = numpy.flatnonzero(self.status == WAITING)
        blocks = waiting // self.block_threads
        counts = numpy.bincount(blocks, minlength=self.blocks)
        for block in numpy.flatnonzero(counts):
            members = waiting[blocks == block]
            numbers = numpy.unique(self.barrier[members])
            if counts[block] < self.block_threads or numbers.size > 1:
                place = int(self.place[members[0]]) - 1
                instruction = self.kernel.function.instructions[place]
                raise BarrierFault(
                    f"{self.kernel.function.name}, {instruction}: {counts[block]} of "
                    f"{self.block_threads} threads of block {self.first + int(block)} wait at "
                    f"barrier {', '.join(map(str, numbers))}, the others have ended"
                )
        self.state.barrier(numpy.unique(blocks))
        self.status[waiting] = RUNNING


def is_all(active: Who, chosen: Array) -> bool:
    """True if a guard has let all threads through."""
    return active is None or active.size == chosen.size


def garbage(register: Register, threads: int) -> Array:
    """Content of a register that nobody has written."""
    if register.is_predicate:
        return numpy.asarray(numpy.arange(threads) % 2 == 0)
    kind: Any = UNSIGNED[register.width]
    found: Array = numpy.frombuffer(b"\xcb" * (register.width * threads), kind).copy()
    return found


def specials_of(
    grid: Dims, block: Dims, first: int, blocks: int, dynamic_shared: int
) -> dict[str, Array]:
    """The special registers of some blocks' threads."""
    size = block[0] * block[1] * block[2]
    within = numpy.tile(numpy.arange(size, dtype=numpy.uint32), blocks)
    number = numpy.repeat(numpy.arange(first, first + blocks, dtype=numpy.uint64), size)

    def full(value: int) -> Array:
        return numpy.full(size * blocks, value, numpy.uint32)

    found: dict[str, Array] = {
        "tid.x": within % block[0],
        "tid.y": within // block[0] % block[1],
        "tid.z": within // (block[0] * block[1]),
        "ctaid.x": number % grid[0],
        "ctaid.y": number // grid[0] % grid[1],
        "ctaid.z": number // (grid[0] * grid[1]),
        "laneid": within % 32,
        "warpid": within // 32,
        "nwarpid": full(-(-size // 32)),
        "lanemask_lt": ((1 << (within.astype(numpy.uint64) % 32)) - 1),
        "lanemask_eq": (1 << (within.astype(numpy.uint64) % 32)),
        "clock": full(0),
        "clock64": full(0),
        "globaltimer": full(0),
        "smid": full(0),
        "dynamic_smem_size": full(dynamic_shared),
    }
    for index, axis in enumerate("xyz"):
        found[f"ntid.{axis}"], found[f"nctaid.{axis}"] = full(block[index]), full(grid[index])
    return {name: array.astype(numpy.uint64) for name, array in found.items()}
