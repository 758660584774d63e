"""Explanations of decisions (DEBUG=3): why a value is stored, why kernels are not fused.

Floor 3. A line names a value by its op, dtype and shape.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinycore.schedule.state import State
from tinycore.schedule.storage import Reason
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

Lines = Iterator[str]


def value(node: UOp) -> str:
    """A value in few words."""
    return f"{node.op.name} {node.dtype.name} {node.shape}"


def graph(state: State) -> str:
    """The graph so far as text, with the decisions on a node behind it."""
    if steps := state.steps:
        return "".join(
            f"step {number}, on memory {', '.join(map(str, step.places))}\n{to_text(step.ast)}"
            for number, step in enumerate(steps)
        )
    if state.launches:
        notes = levels(state)
        return to_text(tuple(notes), notes)
    if found := state.groups.dependences.groups:
        notes = {n: f"kernel {place}" for place, each in enumerate(found) for n in each.outputs}
        return to_text(tuple(notes), notes)
    if reasons := state.storage.reasons:
        notes = {n: f"stored: {reason.value}" for n, reason in reasons.items()}
        return to_text(tuple(state.storage.roots), notes)
    return to_text(tuple([state.rewritten.get(root, root) for root in state.sharded.parts]))


def levels(state: State) -> dict[UOp, str]:
    """The level of each value that kernels share, and why it is no inline value.

    A value is global, in memory of its own between two kernels, or in loops that a kernel shares
    among all that read it, such as those over rows. All others are inline: computed where they are
    read.
    """
    numbers = {memory: number for number, memory in enumerate(state.memory)}
    found: dict[UOp, str] = {}
    for number, launch in enumerate(state.launches):
        for node in (n for group in launch.groups for n in group.outputs):
            memory = state.groups.output_memory(node)
            level = "global" if numbers.get(memory) in launch.places else "in shared loops"
            found[node] = f"{level}, kernel {number}: {state.storage.reasons[node].value}"
    return found


def no_lines(state: State) -> Lines:
    """No line: the decisions of this pass show in the next one."""
    yield from ()


def attention(state: State) -> Lines:
    """Attention that is several kernels, and why."""
    yield from state.refusals


def storage(state: State) -> Lines:
    """The stored values, each with its reason."""
    reasons = state.storage.reasons
    stored = state.storage.ordered()
    yield f"{len(stored)} values of {len(state.storage.graph)} nodes are stored"
    yield from (f"{value(n)} is stored: {reasons[n].value}" for n in stored)


def buffer_limit(state: State) -> Lines:
    """The values that are stored for the buffer limit alone."""
    yield from stored_for(Reason.BUFFER_LIMIT, state)


def splits(state: State) -> Lines:
    """The partial results."""
    yield from stored_for(Reason.PARTIAL, state)


def stored_for(wanted: Reason, state: State) -> Lines:
    """The values that are stored for one reason."""
    for node, reason in state.storage.reasons.items():
        if reason is wanted:
            yield f"{value(node)} is stored: {reason.value}"


def groups(state: State) -> Lines:
    """Kernels with several outputs, and values with the same loops in two kernels."""
    for found in state.groups.dependences.groups:
        if len(found.outputs) > 1:
            yield f"one kernel: {', '.join(map(value, found.outputs))}"
    for first, second, refusal in state.groups.refusals:
        yield f"two kernels: {value(first)} and {value(second)}: {refusal.value}"


def hazards(state: State) -> Lines:
    """The copies of memory that is overwritten too early."""
    for found in state.groups.dependences.groups:
        for version in found.saved:
            yield f"{value(version)} is copied: {value(found.first)} reads it when overwritten"


def kernels(state: State) -> Lines:
    """The kernels, each with the operations that were fused into it."""
    yield from (f"{number:4d} {step.kernel.arg!r}" for number, step in enumerate(state.steps))


def fused(state: State) -> Lines:
    """The level of each value."""
    yield from (f"{value(node)} is {level}" for node, level in levels(state).items())
