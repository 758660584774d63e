"""The interpreter: threads of some groups in lockstep, those least far in the code first.

Registers, constants and memory that nobody wrote hold garbage. What a launch did not state is a
fault: a register beyond its footprint, a constant that was not loaded, shared or private memory
beyond its size, a barrier that some threads of a group never reach.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from emulation.faults import BarrierFault, Fault, TimeoutFault
from emulation.memory import GlobalMemory, LocalMemory, SharedMemory

from adreno.ir3.actions import SHARED_END, SHARED_REGISTERS, Code, code_of
from adreno.ir3.syntax import Instruction, Operand
from adreno.state import POISON, Launch

Array = numpy.ndarray[Any, Any]

AT_ONCE: Final = 16_384
"""Threads that are interpreted together."""
MOST_INSTRUCTIONS: Final = 5_000_000
NONE: Final = 0xFC
RUNNING, WAITING, ENDED = range(3)


def execute(launch: Launch, memory: GlobalMemory) -> None:
    """Run all groups of a launch."""
    code = code_of(launch.machine, launch.merged)
    code.check(launch)
    x, y, z = launch.groups
    groups = x * y * z
    at_once = max(AT_ONCE // launch.block_threads, 1)
    for first in range(0, groups, at_once):
        numbers = numpy.arange(first, min(first + at_once, groups))
        Groups(launch, memory, code, numbers).run()


class Groups:
    """Some groups: registers and places in the code of all their threads."""

    def __init__(self, launch: Launch, memory: GlobalMemory, code: Code, groups: Array) -> None:
        self.launch, self.memory, self.code = launch, memory, code
        self.block = launch.block_threads
        self.count = len(groups) * self.block
        self.shape = (self.count,)
        self.threads = numpy.arange(self.count)
        self.constants = launch.constants
        self.full = [numpy.full(self.count, POISON, numpy.uint32)] * SHARED_END
        self.half = [numpy.full(self.count, POISON & 0xFFFF, numpy.uint32)] * SHARED_REGISTERS
        self.predicates = numpy.zeros((4, self.count), numpy.bool_)
        self.addresses = numpy.full(self.count, POISON & 0xFFFF, "u2").astype("i2").astype("i8")
        """a0.x of each thread."""
        self.disabled: Array | None = None
        """Threads that a predt or predf has turned off."""
        self.state = numpy.full(self.count, RUNNING, numpy.int8)
        self.places = numpy.zeros(self.count, numpy.int64)
        self.together = True
        """True while all threads are at one place, which is `place`."""
        self.place = 0
        self.active: Array | None = None
        """Mask of active threads; None for all."""
        self.index: Array | None = None
        """Their numbers."""
        shared = launch.shared_bytes
        self.shared = SharedMemory(len(groups), shared, self.block, code.granule, 64, first=0)
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
                self.full[place] = numpy.repeat(of_group[axis], self.block).astype(numpy.uint32)
            if self.launch.thread_register != NONE:
                place = self.launch.thread_register + axis
                self.full[place] = numpy.tile(of_thread[axis], len(groups)).astype(numpy.uint32)

    # --- the loop

    def run(self) -> None:
        """Until all threads have ended."""
        executed, going_on = 0, True
        with numpy.errstate(all="ignore"):
            while going_on:
                if self.together:
                    place, which, limit = self.place, None, len(self.code.acts)
                elif (found := self.least()) is not None:
                    place, which, limit = found
                elif self.meet():
                    continue
                else:
                    return
                acts, end = self.code.straight(place)
                executed += 1 + len(acts)
                if executed > MOST_INSTRUCTIONS:
                    raise TimeoutFault(f"more than {MOST_INSTRUCTIONS:,} instructions")
                if end > limit:
                    acts, end = tuple(one for one in acts if one[0] < limit), limit
                self.compute(acts, which)
                going_on = self.move(end, which) if end < limit else self.advance(end, which)

    def least(self) -> tuple[int, Array, int] | None:
        """The threads that are least far: their place, who they are, and where the next ones are.

        None where no thread runs.
        """
        running = self.state == RUNNING
        places = self.places[running]
        if not places.size:
            return None
        place = int(places.min())
        others = places[places > place]
        limit = int(others.min()) if others.size else len(self.code.acts)
        return place, running & (self.places == place), limit

    def compute(self, acts: tuple[Any, ...], which: Array | None) -> None:
        """A straight piece of code, for those threads that no predicate has turned off."""
        self.active, self.index = which, None
        if self.disabled is not None:
            self.active = ~self.disabled if which is None else which & ~self.disabled
        if self.active is not None:
            self.index = numpy.flatnonzero(self.active)
            if not len(self.index):
                return
        place = 0
        try:
            for place, act in acts:  # noqa: B007  the handler reads it
                act(self)
        except Fault as fault:
            raise self.code.located(fault, place) from fault

    def move(self, place: int, which: Array | None) -> bool:
        """An instruction that is about the place in the code; False when all threads ended."""
        made = self.code.instructions[place]
        control = Groups.barrier if made.name.startswith("bar") else CONTROL[made.name]
        try:
            return control(self, made, place, which)
        except Fault as fault:
            raise self.code.located(fault, place) from fault

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

    def advance(self, place: int, which: Array | None) -> bool:
        """Move threads to a place."""
        if which is None:
            self.place = place
        else:
            self.places[which] = place
            self.gather()
        return True

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
        return self.advance(place + int(made.operands[-1].value), which)

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
        return self.advance(place + 1, which)

    # --- registers and memory

    def chosen(self, value: Array) -> Array:
        """The elements of the threads that execute."""
        if value.shape != self.shape:
            value = numpy.broadcast_to(value, self.shape)
        return value if self.index is None else value[self.index]

    def spread(self, value: Array) -> Array:
        """Elements of the threads that execute, at the places of these threads."""
        if self.index is None:
            return value
        found = numpy.zeros(self.count, value.dtype)
        found[self.index] = value
        return found

    def put(self, file: list[Array], number: int, value: Array) -> None:
        """Words to a register, of the threads that execute."""
        if self.active is not None:
            value = numpy.where(self.active, value, file[number])
        elif value.shape != self.shape:
            value = numpy.broadcast_to(value, self.shape)
        file[number] = value

    def put_predicate(self, number: int, value: Array) -> None:
        """A predicate, of the threads that execute."""
        if self.active is None:
            self.predicates[number] = value != 0
        else:
            self.predicates[number][self.active] = self.chosen(value != 0)

    def put_address(self, value: Array) -> None:
        """16 bits with a sign to a0.x, of the threads that execute."""
        words = numpy.broadcast_to(value, self.shape).astype(numpy.uint16)
        mine = slice(None) if self.active is None else self.active
        self.addresses[mine] = words.view(numpy.int16)[mine]

    def load(self, head: str, addresses: Array, width: int, count: int) -> list[Array]:
        """ldg, ldl, ldp: words of the threads that execute."""
        if head == "ldg":
            return self.memory.load(addresses, width, count)
        room = self.shared if head == "ldl" else self.private
        return room.load(self.chosen(self.threads), addresses, width, count)

    def store(self, head: str, addresses: Array, width: int, values: list[Array]) -> None:
        """stg, stl, stp: words of the threads that execute."""
        if head == "stg":
            self.memory.store(addresses, width, values)
            return
        room = self.shared if head == "stl" else self.private
        room.store(self.chosen(self.threads), addresses, width, values)


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
