"""The way of a graph of tensors to kernels, made again: what is in memory, and why.

A profile has each graph that was scheduled. Scheduling is a function of the graph, its policy, the
limits of its devices and tinycore, so it is done once more, pass by pass, where it is looked at, in
a process of its own. The kernels of both are compared by their text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cached_property
from io import StringIO
from math import prod
from pkgutil import resolve_name
from typing import Any, Final

from tiny_viz.graphs import Box, Diagram
from tiny_viz.passes import difference
from tinycore import Context
from tinycore.errors import FileFormatError, TinycoreError
from tinycore.schedule import explain
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.pipeline import SCHEDULE_PIPELINE, run_passes
from tinycore.schedule.state import State
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.parse import program_from_text
from tinycore.uop.size import are_ints
from tinycore.uop.text import to_text

__all__ = ["scheduled"]

WITHOUT_BOX: Final = frozenset({Op.DEVICE, Op.UNIQUE, Op.SINK})
"""Ops without a box: they say where memory is, which its own label does."""
POLICIES: Final = frozenset(
    {"tinycore.tensor.storage.realization:choose_retention", "tinycore.schedule.state:replace_all"}
)
"""The functions that choose what is kept; no other that a profile names is imported."""
STRETCHING: Final = frozenset({Op.RESHAPE, Op.EXPAND})
MEMORY: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW})
WIDTH_OF_PASS: Final = 26
"""Columns of a line of DEBUG=3 before its text: the channel and the pass."""


def scheduled(graph: str, policy: str, varying: Sequence[int] | None) -> Any:
    """A graph with its values in memory, the decisions of every pass, and the graph after each."""
    *_, sink = nodes = program_from_text(graph)
    lines = graph.splitlines()
    origins = {n: line.partition("  # ")[2] for n, line in zip(nodes, lines, strict=True)}
    if policy not in POLICIES:
        raise FileFormatError(f"its policy is {policy!r}; known are {', '.join(sorted(POLICIES))}")
    below = sink.toposort()
    state = State(
        sink.src,
        resolve_name(policy),
        parameters=tuple(sorted((n for n in below if n.op in MEMORY), key=number_of)),
        known={node: node for node in below},
        varying=None if varying is None else frozenset(varying),
    )
    passes: list[Any] = []
    before = ""
    for step in SCHEDULE_PIPELINE:
        if step.name == "memory plan":
            state = replace(state, needed=frozenset(state.roots))
        told = StringIO()
        with Context(DEBUG=0, TRACE="schedule", VIZ=0, NO_COLOR=1), redirect_stderr(told):
            state = run_passes(state, step.name, step.name)
        decisions = [line[WIDTH_OF_PASS:] for line in told.getvalue().splitlines()]
        text = explain.graph(state)
        lines_of = difference(before or text, text)
        changed = bool(before) and before != text
        about = {"name": step.name, "lines": lines_of, "changed": changed, "decisions": decisions}
        passes.append(about)
        before = text
    return Found(state, origins).plain() | {"passes": passes}


def number_of(memory: UOp) -> int:
    """The number of a parameter of a canonical graph: that of its UNIQUE, which counts down."""
    return max((-1 - int(n.arg) for n in memory.toposort() if n.op is Op.UNIQUE), default=0)


class Found:
    """The decisions of a schedule, for the page."""

    def __init__(self, state: State, origins: Mapping[UOp, str]) -> None:
        self.state = state
        self.origins = {state.rewritten.get(n, n): origin for n, origin in origins.items()}
        for node in reversed(self.nodes):  # what has none is for that which uses it
            if own := self.origins.get(node):
                for source in node.src:
                    self.origins.setdefault(source, own)
        for node in self.nodes:  # a write has that of what it writes
            if not self.origins.get(node):
                self.origins[node] = next(filter(None, map(self.origins.get, node.src[::-1])), "")

    @cached_property
    def nodes(self) -> list[UOp]:
        """The graph that storage was chosen for, sources first."""
        return UOp.sink(*self.state.storage.roots).toposort()[:-1]

    @cached_property
    def reasons(self) -> dict[UOp, str]:
        """The reason why a value is in memory, or would be if its readers had own kernels."""
        return {n: reason.value for n, reason in self.state.storage.reasons.items()}

    @cached_property
    def places(self) -> dict[UOp, int]:
        """The numbers of the memory of values."""
        numbers = {memory: number for number, memory in enumerate(self.state.memory)}
        found = {n: self.state.groups.output_memory(n) for n in self.reasons}
        return {n: numbers[memory] for n, memory in found.items() if memory in numbers}

    @cached_property
    def writers(self) -> dict[UOp, int]:
        """The launch that computes each value, by its number."""
        return {
            node: number
            for number, launch in enumerate(self.state.launches)
            for group in launch.groups
            for node in group.outputs
            if node in self.reasons
        }

    def level(self, node: UOp) -> str:
        """The place of a value: memory that is kept, temporary memory, or inside of a kernel."""
        place, launch = self.places.get(node), self.writers.get(node)
        if launch is None or place is None:
            return "memory"
        if place not in self.state.steps[launch].places:
            return "inside of its kernel, row by row"
        if place in self.state.persistent or place < len(self.state.parameters):
            return "memory, kept"
        layout = self.state.layout
        for number, block in enumerate(layout.blocks if layout else ()):
            for other, offset in block.places:
                if other == place:
                    return f"memory, temporary: block {number} from byte {offset:,} on"
        return "memory, temporary"

    def storages(self) -> Iterator[Any]:
        """Every value that is stored, with its reason and its level."""
        for node in self.nodes:
            if (reason := self.reasons.get(node)) is not None:
                shape = [str(n) for n in node.shape]
                size = prod(node.shape) * node.dtype.itemsize if are_ints(node.shape) else None
                yield {
                    "op": node.op.name, "dtype": node.dtype.name, "shape": shape, "bytes": size,
                    "reason": reason, "level": self.level(node), "launch": self.writers.get(node),
                    "origin": self.origins.get(node, ""),
                }  # fmt: skip

    def apart(self) -> Iterator[Any]:
        """Pairs of values with the same loops in two kernels, and why."""
        for first, second, refusal in self.state.groups.refusals:
            both = [
                {
                    "value": explain.value(n),
                    "origin": self.origins.get(n, ""),
                    "launch": self.writers.get(n),
                }
                for n in (first, second)
            ]
            yield {"values": both, "reason": refusal.value}

    def computed_by(self) -> dict[UOp, int]:
        """The first launch that computes each node, stored or not."""
        found = dict(self.writers)
        for node in self.nodes:
            if (launch := self.writers.get(node)) is not None:
                for inner in self.state.groups.region(node):
                    if inner.op not in MEMORY:
                        found.setdefault(inner, launch)
        return found

    def diagram(self) -> Diagram:
        """The graph: values in memory are round, and have the color of their launch."""
        diagram = Diagram()
        places: dict[UOp, int] = {}
        numbers: dict[UOp, str] = {}
        launches = self.computed_by()
        for node in self.nodes:
            if node.op is Op.CONST:
                numbers[node] = str(node.arg)
                continue
            if node.op in STRETCHING and node.src[0] in numbers:
                numbers[node] = numbers[node.src[0]]
                continue
            if node.op in WITHOUT_BOX:
                continue
            shape = "×".join(map(str, node.shape)) if node.shape_or_none else ""
            operands = [numbers[s] for s in node.src if s in numbers]
            label = " ".join(filter(None, (node.op.name, *operands, shape)))
            launch = launches.get(node)
            is_memory = node in self.reasons or node.op in MEMORY
            box = Box(label, self.told(node, launch), "memory" if is_memory else "")
            box.kernel = 0 if launch is None else launch + 1
            sources = dict.fromkeys(s for s in node.src if s in places)
            places[node] = diagram.add(box, (places[s] for s in sources))
        return diagram

    def told(self, node: UOp, launch: int | None) -> str:
        """The facts of a node."""
        lines = [f"{node.op.name} {node.dtype.name} {node.shape_or_none or ''}"]
        if node in self.reasons:
            lines += [f"stored: {self.reasons[node]}", self.level(node)]
        if launch is not None:
            name = kernel_name(self.state.steps[launch].ast)
            lines.append(f"computed by launch {launch}: {name}")
        return "\n".join([*lines, self.origins.get(node, "")]).rstrip()

    def plain(self) -> dict[str, Any]:
        """Data for JSON."""
        return {
            "nodes": len(self.nodes),
            "diagram": self.diagram().plain(),
            "storages": [*self.storages()],
            "apart": [*self.apart()],
            "kernels": [to_text(step.ast) for step in self.state.steps],
        }


def main(given: Iterable[Any]) -> Any:
    """The answer to a question on the standard input."""
    try:
        return scheduled(*given)
    except (TinycoreError, LookupError) as error:
        return {"error": f"it cannot be scheduled here: {error}"}


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)
