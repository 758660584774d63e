"""Numbering of memory: kernels become steps over memory numbers, and KERNELs again.

Floor 3. Parameters, which exist before the launches, have the first numbers. The retention policy
(`retention.py`) says which nodes are replaced by memory, and which stay and are only cached in it.

For `Tensor.kernelize` launches are linked again, as emission linked the kernels before fusion
(`emit.py`): each step becomes a KERNEL whose sources are its memory and all it depends on, and each
node with memory an ASSIGN(BUFFER, KERNEL).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from tinycore.schedule.items import Step, kernels_below
from tinycore.schedule.kernel import memory_of
from tinycore.schedule.retention import Replacements
from tinycore.schedule.state import State
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def number_memory(state: State) -> State:
    """Memory gets numbers, kernels become steps, and nodes give way to their memory."""
    parts = state.sharded.parts
    sink = UOp.sink(*parts).substitute(state.cut)
    kernels = [k for k in kernels_below(sink) if k not in state.pending]
    ran = set(kernels)  # one kernel may have stored more than the roots
    stored = UOp.sink(sink, *state.cut.values()).toposort()
    done = {n: memory_of(n) for n in stored if n.op is Op.ASSIGN and n.src[1] in ran}
    memory = {node: found.substitute(done) for node, found in state.cut.items()}
    given, cached = state.policy(list(state.roots), state.sharded.unshard(done | memory))
    results = {old: new for old, new in given.items() if old in state.known}
    numbers = {node: number for number, node in enumerate(state.parameters)}
    shown = UOp.sink(*results.values()).toposort()
    for node in (*shown, *(n for k in kernels for n in k.src[: k.arg.slots])):
        if (found := memory_of(node)).op in (Op.BUFFER, Op.BUFFER_VIEW):
            numbers.setdefault(found, len(numbers))
    return replace(
        state,
        memory=tuple(numbers),
        steps=tuple([step_of(kernel, numbers) for kernel in kernels]),
        results=results,
        cached={old: new for old, new in cached.items() if old in state.known},
        persistent=frozenset(numbers[m] for n in shown if (m := memory_of(n)) in numbers),
    )


def step_of(kernel: UOp, numbers: dict[UOp, int]) -> Step:
    """The launch of a KERNEL over numbered memory."""
    places = tuple([numbers[memory_of(slot)] for slot in kernel.src[: kernel.arg.slots]])
    return Step(kernel.arg.ast, places, kernel.arg.metadata, kernel)


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
