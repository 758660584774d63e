"""Explanations of decisions (DEBUG=3): why a value is stored, why kernels are not fused.

Floor 3. A line names a value by its op, dtype and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

if TYPE_CHECKING:
    from tinycore.schedule.state import State

trace = Trace("schedule")


def tell(step: str, text: str) -> None:
    """Print a line on a decision of a pass."""
    trace(f"{step:<16} {text}")


def value(node: UOp) -> str:
    """A value in few words."""
    return f"{node.op.name} {node.dtype.name} {node.shape}"


def decisions(state: State) -> dict[UOp, str]:
    """The last decision on each stored value: its reason, then its kernel, then its level.

    A value is global, in memory of its own between two kernels, or in loops that a kernel shares
    among all that read it, such as those over rows. All others are inline: computed where they are
    read.
    """
    reasons = {node: reason.value for node, reason in state.storage.reasons.items()}
    numbers = {memory: number for number, memory in enumerate(state.memory)}
    found: dict[UOp, str] = {}
    for number, launch in enumerate(state.launches):
        for node in (n for group in launch.groups for n in group.outputs):
            memory = state.groups.output_memory(node)
            level = "global" if numbers.get(memory) in launch.places else "in shared loops"
            found[node] = f"{level}, kernel {number}: {reasons[node]}"
    if found:
        return found
    for number, group in enumerate(state.groups.groups):
        found |= dict.fromkeys(group.outputs, f"in kernel {number}")
    return found or {node: f"stored: {reason}" for node, reason in reasons.items()}


def graph(state: State) -> str:
    """The graph so far as text, with the decisions on a node behind it."""
    if steps := state.steps:
        return "".join(
            f"step {number}, on memory {', '.join(map(str, step.places))}\n{to_text(step.ast)}"
            for number, step in enumerate(steps)
        )
    notes = decisions(state)
    parts = [state.rewritten.get(root, root) for root in state.sharded.parts]
    return to_text(tuple(notes or parts), notes)


def tell_changes(step: str, state: State, before: Mapping[UOp, str]) -> dict[UOp, str]:
    """Print what a pass has decided on values; returns all decisions so far."""
    found = decisions(state)
    for node, text in found.items():
        if before.get(node) != text:
            tell(step, f"{value(node)} is {text}")
    return found
