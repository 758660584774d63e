"""Numbering of memory: kernels become steps over memory numbers.

Floor 3. Parameters, which exist before the launches, have the first numbers. The retention policy
(`retention.py`) says which nodes are replaced by memory, and which stay and are only cached in it.
"""

from __future__ import annotations

from dataclasses import replace

from tinycore.schedule.items import Step, kernels_below
from tinycore.schedule.kernel import memory_of
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
