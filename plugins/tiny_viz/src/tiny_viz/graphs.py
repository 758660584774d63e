"""Graphs as boxes with places: of nodes in their text form, and of launches with their memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tiny_viz.layout import layered, width_of

__all__ = ["Box", "Diagram", "diagram_of_launches", "diagram_of_text"]

LINE: Final = re.compile(
    r"%(\d+) = (\w+) ([^ (]+(?:\([^()]*\)[^ (]*)*)(?: \[(.*?)\])?(?: \(([%\d, ]*)\))?(?:  # (.*))?$"
)
SHORTER: Final = (
    (re.compile(r"Axis\(\(([\d, ]*?),?\), AxisKind\.(\w+)\)"), r"\1 \2"),
    (re.compile(r"\b(Op|AxisKind|dtypes)\."), ""),
)
"""Patterns of arguments, each with its shorter form in a label."""
HIDDEN: Final = frozenset({"DEVICE", "UNIQUE"})
"""Operations that say where memory is, which its own label does."""
SPREAD: Final = frozenset({"RESHAPE", "EXPAND"})
"""Movements of a constant, which is the same number everywhere."""
KINDS: Final = {
    "BUFFER": "memory",
    "DEFINE_GLOBAL": "memory",
    "DEFINE_LOCAL": "memory",
    "LOAD": "load",
    "STORE": "store",
    "ASSIGN": "store",
    "REDUCE": "reduce",
    "REDUCE_AXIS": "reduce",
    "RANGE": "range",
}


@dataclass(slots=True)
class Box:
    """A node of a diagram, with the middle of its box."""

    label: str
    text: str
    """The description in full, for a tip."""
    kind: str = ""
    kernel: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(slots=True)
class Diagram:
    """Boxes in a topological order, and edges between them by their places in the list."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    bends: list[list[tuple[float, float]]] = field(default_factory=list)
    """The points between the ends of each edge."""

    def add(self, box: Box, sources: Iterable[int] = ()) -> int:
        """Add a box, with edges from others to it; its place."""
        place = len(self.boxes)
        self.boxes.append(box)
        self.edges += [(source, place) for source in dict.fromkeys(sources)]
        return place

    def laid_out(self) -> Diagram:
        """Itself, with the places of boxes and bends."""
        places, self.bends = layered([width_of(box.label) for box in self.boxes], self.edges)
        for box, place in zip(self.boxes, places, strict=True):
            box.x, box.y = place
        return self

    def plain(self) -> Any:
        """Data for JSON, laid out."""
        return asdict(self.laid_out())


def diagram_of_text(text: str) -> Diagram:
    """The graph that a text of `tinycore.uop.text` is. Constants are in the labels of their users.

    A note at the end of a line, such as a shape, is in the label.
    """
    diagram = Diagram()
    places: dict[str, int] = {}
    numbers: dict[str, str] = {}
    for line in text.splitlines():
        if (found := LINE.match(line)) is None:
            continue
        name, op, dtype, argument, listed, note = found.groups(default="")
        sources = listed.replace("%", "").split(", ") if listed else []
        if op == "CONST":
            numbers[name] = argument
        elif op in SPREAD and sources[0] in numbers:
            numbers[name] = numbers[sources[0]]
        elif op not in HIDDEN:
            shown = dtype if KINDS.get(op) == "memory" else "" if op in SPREAD else short(argument)
            words = [op, shown, *(numbers[s] for s in sources if s in numbers), note]
            box = Box(" ".join(filter(None, words)), line, KINDS.get(op, ""))
            places[name] = diagram.add(box, (places[s] for s in sources if s in places))
    if not places and numbers:  # a constant alone
        diagram.add(Box(f"CONST {next(iter(numbers.values()))}", text))
    return diagram


def short(argument: str) -> str:
    """An argument as labels show it."""
    for pattern, replacement in SHORTER:
        argument = pattern.sub(replacement, argument)
    return argument


def diagram_of_launches(
    launches: Iterable[tuple[int, int, str, str, Sequence[Any]]],
    buffers: Mapping[int, tuple[str, str, int]],
) -> Diagram:
    """Launches and the memory that connects them.

    A launch is its number, its kernel with name and text, and (buffer, is_written) of each slot; a
    buffer its device, dtype and bytes. Memory that is written is a box of its own for
    each version, so the graph stays acyclic.
    """
    diagram = Diagram()
    latest: dict[int, int] = {}
    versions: dict[int, int] = {}

    def memory(number: int, sources: Iterable[int] = ()) -> int:
        device, dtype, size = buffers.get(number, ("?", "?", 0))
        version = versions[number] = versions.get(number, -1) + 1
        label = f"{in_bytes(size)} #{number}{f' v{version + 1}' if version else ''}"
        text = f"buffer {number} on {device}\n{dtype}, {in_bytes(size)}"
        latest[number] = diagram.add(Box(label, text, "memory"), sources)
        return latest[number]

    for number, kernel, name, text, bound in launches:
        read = dict.fromkeys(buffer for buffer, is_written in bound if not is_written)
        written = dict.fromkeys(buffer for buffer, is_written in bound if is_written)
        sources = [latest[b] if b in latest else memory(b) for b in read]
        box = Box(name, f"launch {number}: {name}\n{text}", "kernel", kernel)
        place = diagram.add(box, sources)
        for buffer in written:
            memory(buffer, [place])
    return diagram


def in_bytes(size: int) -> str:
    """A size for people: `12.6 MB`."""
    for unit, most in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= most:
            return f"{size / most:.1f} {unit}"
    return f"{size} B"
