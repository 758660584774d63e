"""Kernel emission: each launch becomes a KERNEL node, once it is known what shares a kernel.

Floor 3. The sources of a KERNEL are its memory, as the launch finds it, then all else that it must
run after, so the node graph holds every dependence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from tinycore.dtype import dtypes
from tinycore.schedule import explain
from tinycore.schedule.access import Launch
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel, custom_of, memory_of, with_shape
from tinycore.schedule.state import State
from tinycore.schedule.storage import is_stored
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, PARTIAL_WRITES, Op
from tinycore.uop.origins import texts

NAMED_OPS = (
    frozenset({Op.REDUCE_AXIS, Op.SCAN_AXIS, Op.MERGE_AXIS, Op.GATHER, Op.COPY, Op.CONTIGUOUS})
    | PARTIAL_WRITES
)
"""Ops that are no arithmetic but are named in a kernel's metadata."""


def emit(state: State) -> State:
    """Each launch becomes a KERNEL, and each stored node ASSIGN(BUFFER, KERNEL)."""
    emitter = Emitter(state)
    steps = tuple([emitter.step(launch) for launch in state.launches])
    for number, step in enumerate(steps if explain.trace.on else ()):
        explain.tell("emit kernels", f"{number:4d} {step.kernel.arg!r}")
    built = {old: emitter.built.get(base_of(state.rewritten[old])) for old in state.stored}
    cut = {old: with_shape(new, old.shape) for old, new in built.items() if new is not None}
    return replace(state, steps=steps, cut=state.stored | cut)


class Emitter:
    """The KERNELs of launches, in their order."""

    def __init__(self, state: State) -> None:
        self.state, self.groups = state, state.groups
        self.origins = {state.rewritten.get(n, n): text for n, text in texts(state.known).items()}
        """The line of a program that made each node."""
        self.built: dict[UOp, UOp] = {}
        """The ASSIGN(BUFFER, KERNEL) of each stored node."""
        self.current: dict[UOp, UOp] = {}
        """The last ASSIGN to each memory."""
        self.readers: dict[UOp, list[UOp]] = defaultdict(list)
        """ASSIGNs of the kernels that read each memory since."""
        for node in UOp.sink(*state.sharded.parts).toposort():
            if node.op is Op.ASSIGN and is_stored(node):
                self.note(node.src[1], [node])

    def step(self, launch: Launch) -> Step:
        """The KERNEL of a launch, at which its outputs point from now on."""
        if (kernel := launch.kernel) is not None:
            return Step(launch.ast, launch.places, kernel.arg.metadata, kernel)
        metadata = tuple(dict.fromkeys(chain(*map(self.metadata, reversed(launch.groups)))))
        targets = {n: self.groups.output_memory(n) for g in launch.groups for n in g.outputs}
        slots, waits, own = list[UOp](), dict[UOp, None](), {*targets.values()}
        for memory in map(self.state.memory.__getitem__, launch.places):
            now = self.current.get(memory, memory)
            slots.append(memory if memory in own else now)
            if memory in own:
                waits |= dict.fromkeys((now, *self.readers[memory]))
        sources = (*slots, *(w for w in waits if w not in slots))
        kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(launch.ast, metadata))
        assigned = {n: UOp(Op.ASSIGN, to.dtype, (to, kernel)) for n, to in targets.items()}
        self.built |= assigned
        self.note(kernel, assigned.values())
        return Step(launch.ast, launch.places, metadata, kernel)

    def note(self, kernel: UOp, assigned: Collection[UOp]) -> None:
        """Record what a kernel reads and writes."""
        for source in kernel.src[: kernel.arg.slots]:
            self.readers[memory_of(source)] += assigned
        for node in assigned:
            self.current[memory := memory_of(node)] = node
            self.readers[memory] = []

    def metadata(self, group: KernelGroup) -> tuple[str, ...]:
        """The operations a group computes, the last one first."""
        if (custom := custom_of(group.first)) is not None:
            return (*custom.arg.metadata, *filter(None, map(self.origins.get, group.outputs)))
        computed = self.groups.computed(group)
        named = [n for n in computed if n.op in ALU or n.op in NAMED_OPS]
        places = [*filter(None, map(self.origins.get, named or computed))]
        if not places:  # of nodes that passes have made, the operands tell it
            places += filter(None, map(self.origins.get, chain(*(n.src for n in computed))))
        return tuple(dict.fromkeys([*[n.op.name.lower() for n in named], *places]))
