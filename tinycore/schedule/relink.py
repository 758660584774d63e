"""Relinking of launches to a graph of KERNELs, for `Tensor.kernelize`.

Floor 3. Steps know memory by number only. Here each becomes a KERNEL again whose sources are its
memory and all it depends on, and each node with memory an ASSIGN(BUFFER, KERNEL). Emission links
the kernels before fusion in the same way (`emit.py`).
"""

from __future__ import annotations

from collections import defaultdict

from tinycore.schedule.items import Step
from tinycore.schedule.kernel import memory_of
from tinycore.schedule.retention import Replacements
from tinycore.schedule.state import State
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def relink(state: State) -> Replacements:
    """The nodes that are replaced by memory, over the kernels that fill it."""
    final = Relinking(state).run()
    given, _ = state.policy(list(state.roots), state.sharded.unshard(state.cut))
    return {n: found.substitute(final) for n, found in given.items() if n in state.results}


class Relinking:
    """New ASSIGNs in place of those whose kernel was fused, or depends on a fused one."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.stores: dict[UOp, list[UOp]] = defaultdict(list)
        """The ASSIGNs of each kernel that was emitted."""
        for node in UOp.sink(*state.cut.values()).toposort():
            if node.op is Op.ASSIGN and node.src[1].op is Op.KERNEL:
                self.stores[node.src[1]].append(node)
        self.final: dict[UOp, UOp] = {}

    def run(self) -> dict[UOp, UOp]:
        """The final ASSIGN of each that was emitted, in the order of the steps."""
        for step, members in zip(self.state.steps, self.state.members, strict=True):
            kernels = [member.kernel for member in members]
            old = [node for kernel in kernels for node in self.stores[kernel]]
            kernel = step.kernel.with_src(tuple(self.sources(step, kernels, set(old))))
            for node in old:
                self.final[node] = node.with_src((node.src[0], kernel))
        return self.final

    def sources(self, step: Step, kernels: list[UOp], own: set[UOp]) -> list[UOp]:
        """The memory of each slot as the step finds it, then all else that it runs after."""
        everything = [s for k in kernels for s in k.src if s not in own]
        if len(kernels) == 1:
            return [self.final.get(s, s) for s in everything]
        slots = [s for k in kernels for s in k.src[: k.arg.slots] if s not in own]
        found: dict[UOp, UOp] = {}
        for source in slots:
            found.setdefault(memory_of(source), source)
        memory = [found[self.state.memory[place]] for place in step.places]
        later = dict.fromkeys(s for s in everything if s.op is Op.ASSIGN and s not in memory)
        return [self.final.get(s, s) for s in (*memory, *later)]
