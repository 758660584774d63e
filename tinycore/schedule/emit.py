"""Kernel emission: each launch becomes a KERNEL node, once it is known what shares a kernel.

Floor 3. The sources of a KERNEL are its memory, as the launch finds it, then all else that it must
run after, so the node graph holds every dependence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain

from tinycore.dtype import dtypes
from tinycore.schedule.access import Launch
from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel, custom_of, memory_of, with_shape
from tinycore.schedule.nests import NestMaker
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
    built = {old: emitter.built.get(base_of(state.rewritten[old])) for old in state.stored}
    cut = {old: with_shape(new, old.shape) for old, new in built.items() if new is not None}
    return replace(state, steps=steps, cut=state.stored | cut)


class Emitter:
    """The KERNELs of launches, in their order."""

    def __init__(self, state: State) -> None:
        self.state, self.groups = state, state.groups
        self.maker = NestMaker(state.groups)
        self.origins = {state.rewritten.get(n, n): text for n, text in texts(state.known).items()}
        """The line of a program that made each node."""
        self.built: dict[UOp, UOp] = {}
        """The ASSIGN(BUFFER, KERNEL) of each stored node."""

    def step(self, launch: Launch) -> Step:
        """The KERNEL of a launch, at which its outputs point from now on."""
        if (kernel := launch.kernel) is not None:
            return Step(launch.ast, launch.places, kernel.arg.metadata, kernel)
        metadata = tuple(dict.fromkeys(chain(*map(self.metadata, reversed(launch.groups)))))
        slots, waits = self.slots(launch), dict.fromkeys(self.waits(launch))
        sources = (*slots, *(w for w in waits if w not in slots))
        kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(launch.ast, metadata))
        for group in launch.groups:
            for node in group.outputs:
                target = self.groups.output_memory(node)
                self.built[node] = UOp(Op.ASSIGN, target.dtype, (target, kernel))
        return Step(launch.ast, launch.places, metadata, kernel)

    def slots(self, launch: Launch) -> list[UOp]:
        """The memory of each slot, in the version that the launch reads."""
        versions: dict[UOp, UOp] = {}
        for group in launch.groups:
            for node in group.inputs:
                version = group.saved.get(node, node)
                version = self.built.get(version, version)
                versions.setdefault(memory_of(version), version)
        own = {self.groups.output_memory(n) for group in launch.groups for n in group.outputs}
        memory = [self.state.memory[place] for place in launch.places]
        return [node if node in own else versions.get(node, node) for node in memory]

    def waits(self, launch: Launch) -> Iterator[UOp]:
        """All that a launch has to run after."""
        dependences = self.groups.dependences
        for group in launch.groups:
            before = [n for g in dependences.predecessors(group) for n in g.outputs]
            yield from [self.built[n] for n in before if n in self.built]
            for old in chain(*map(dependences.overwritten, group.outputs)):
                if is_stored(old) and old.op is Op.ASSIGN:
                    yield old
                yield from self.readers.get(old, ())

    @cached_property
    def readers(self) -> dict[UOp, list[UOp]]:
        """By what they read, the ASSIGNs of kernels of earlier calls that have not run."""
        found: dict[UOp, list[UOp]] = {}
        for node in UOp.sink(*self.state.sharded.parts).toposort():
            if node.op is Op.ASSIGN and is_stored(node):
                for source in node.src[1].src:
                    found.setdefault(source, []).append(node)
        return found

    def metadata(self, group: KernelGroup) -> tuple[str, ...]:
        """The operations a group computes, the last one first."""
        if (custom := custom_of(group.first)) is not None:
            return (*custom.arg.metadata, *filter(None, map(self.origins.get, group.outputs)))
        computed = self.maker.computed(group)
        named = [n for n in computed if n.op in ALU or n.op in NAMED_OPS]
        places = [*filter(None, map(self.origins.get, named or computed))]
        if not places:  # of nodes that passes have made, the operands tell it
            places += filter(None, map(self.origins.get, chain(*(n.src for n in computed))))
        return tuple(dict.fromkeys([*[n.op.name.lower() for n in named], *places]))
