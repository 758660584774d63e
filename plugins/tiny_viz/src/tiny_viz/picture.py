"""Pictures of graphs for notebooks: `Tensor.graph()`, and any node that a cell ends with."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

from tiny_viz.graphs import Box, Diagram, diagram_of_text
from tiny_viz.layout import HEIGHT, LONGEST_LABEL, width_of
from tinycore import Tensor
from tinycore.errors import ArgumentError
from tinycore.uop.node import UOp
from tinycore.uop.text import to_text

__all__ = ["Picture", "graph", "svg_of"]

MOST_BOXES: Final = 2000
"""Boxes that a browser scrolls without effort inside of a notebook."""
MARGIN: Final = 20
FILLS: Final = {
    "memory": "#e6e8eb",
    "load": "#cfe8e4",
    "store": "#f0d3da",
    "reduce": "#d3e1f4",
    "range": "#f4e0cd",
}


class Picture:
    """A graph that a notebook shows as a picture, and a terminal as text."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The nodes, a line each, sources first."""

    def __repr__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str | None:
        diagram = diagram_of_text(self.text)
        return svg(diagram.laid_out()) if len(diagram.boxes) <= MOST_BOXES else None

    def save(self, path: str | Path) -> None:
        """Write the picture as an SVG file. Raises ArgumentError for a graph of too many nodes."""
        picture = self._repr_svg_()
        if picture is None:
            raise ArgumentError(f"a picture has at most {MOST_BOXES} nodes; print(graph) shows all")
        Path(path).write_text(picture, encoding="utf-8")


def graph(shown: Tensor | UOp | Any) -> Picture:
    """The graph of a tensor, of a node, or of the kernel of a schedule's item.

    Nothing is computed. Raises ArgumentError for anything else.
    """
    if isinstance(shown, Tensor):
        shown = shown.uop
    node = getattr(shown, "ast", shown)
    if not isinstance(node, UOp):
        raise ArgumentError(f"graph: needs a tensor, a node or a kernel, not {shown!r}")
    shapes = {}
    for part in node.toposort():
        if (shape := part.shape_or_none) is not None:
            shapes[part] = "×".join(map(str, shape)) or "()"
    return Picture(to_text(node, shapes))


def svg_of(shown: Tensor | UOp | Any) -> str | None:
    """The picture of a `graph`, None where it has too many nodes."""
    return graph(shown)._repr_svg_()


def svg(diagram: Diagram) -> str:
    """A diagram as a picture, on white whatever is around it."""
    boxes = diagram.boxes
    halves = [width_of(box.label) / 2 for box in boxes]
    bent = [x for bends in diagram.bends for x, _ in bends]
    left = min([b.x - half for b, half in zip(boxes, halves, strict=True)] + bent) - MARGIN
    right = max([b.x + half for b, half in zip(boxes, halves, strict=True)] + bent) + MARGIN
    top, height = -HEIGHT / 2 - MARGIN, max(box.y for box in boxes) + HEIGHT + 2 * MARGIN
    frame = f'width="{right - left:.0f}" height="{height:.0f}"'
    view = f'viewBox="{left:.0f} {top:.0f} {right - left:.0f} {height:.0f}"'
    style = 'font-family="monospace" font-size="12" stroke="#555b66" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} {view} {style}>',
        f'<rect x="{left:.0f}" y="{top:.0f}" {frame} fill="#fff" stroke="none"/>',
        *(
            curve(boxes[a], bends, boxes[b])
            for (a, b), bends in zip(diagram.edges, diagram.bends, strict=True)
        ),
        *map(drawn, boxes),
        "</svg>",
    ]
    return "\n".join(parts)


def curve(a: Box, bends: list[tuple[float, float]], b: Box) -> str:
    """An edge from the foot of a box to the head of another."""
    x, y = a.x, a.y + HEIGHT / 2
    path = [f"M{x} {y}"]
    for to_x, to_y in [*bends, (b.x, b.y - HEIGHT / 2)]:
        middle = (y + to_y) / 2
        path.append(f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
        x, y = to_x, to_y
    return f'<path d="{"".join(path)}" fill="none" stroke-opacity=".6"/>'


def drawn(box: Box) -> str:
    """A box with its label; all of its text is shown where the pointer rests."""
    width, radius = width_of(box.label), HEIGHT // 2 if box.kind == "memory" else 3
    label = box.label
    if len(label) > LONGEST_LABEL:
        label = f"{label[: LONGEST_LABEL - 1]}…"
    return (
        f'<g><title>{escape(box.text)}</title><rect x="{box.x - width / 2:.1f}" '
        f'y="{box.y - HEIGHT / 2}" width="{width:.1f}" height="{HEIGHT}" rx="{radius}" '
        f'fill="{FILLS.get(box.kind, "#fff")}"/><text x="{box.x}" y="{box.y + 4}" '
        f'fill="#1b1f24" stroke="none">{escape(label)}</text></g>'
    )
