"""The timeline of a profile as a picture for notebooks, with a row for each lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any, Final

from tiny_viz.queries import Queries
from tiny_viz.summary import duration

__all__ = ["timeline"]

LEFT: Final = 150
"""Pixels of the names of lanes."""
WIDTH: Final = 800
"""Pixels of the time."""
ROW: Final = 24
TICKS: Final = 5
COLORS: Final = ("#3b6fb6", "#2f8f83", "#8a5fb0", "#b5651d", "#a23b52", "#4f7d2e", "#7a6a2c")
OTHERS: Final = "#8a919c"


def timeline(path: str | Path) -> str:
    """The lanes of a profile from its begin to its end; spans of one pixel are one."""
    with closing(Queries(path)) as queries:
        about = queries.summary({})
        whole = max(about["nanoseconds"], 1)
        found = queries.timeline({"from": "0", "to": str(whole), "pixels": str(WIDTH)})
    kernels = {kernel["id"]: kernel["name"] for kernel in about["kernels"]}
    height = ROW * (len(found["lanes"]) + 1)
    frame = f'width="{LEFT + WIDTH}" height="{height}"'
    style = 'font-family="sans-serif" font-size="11" fill="#555b66"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} {style}>',
        *ticks(whole, height),
    ]
    for row, lane in enumerate(found["lanes"], 1):
        names = kernels if lane.get("kernels") else dict(enumerate(found["labels"]))
        parts.append(f'<text x="4" y="{row * ROW + 16}">{escape(lane["name"])}</text>')
        for left, right, span in merged(lane["spans"], WIDTH / whole):
            color = COLORS[span[2] % len(COLORS)] if lane.get("kernels") else OTHERS
            told = escape(f"{names.get(span[2], '?')}, {duration(span[1] / 1e9)}")
            parts.append(
                f'<rect x="{LEFT + left:.1f}" y="{row * ROW + 3}" width="{right - left:.1f}" '
                f'height="{ROW - 6}" fill="{color}"><title>{told}</title></rect>'
            )
    return "\n".join([*parts, "</svg>"])


def ticks(whole: int, height: int) -> Iterator[str]:
    """Lines at equal times, each with its time."""
    for number in range(TICKS):
        x = LEFT + WIDTH * number // TICKS
        label = duration(whole * number / TICKS / 1e9) if number else "0"
        yield f'<path d="M{x} 0V{height}" stroke="#d9dce1"/><text x="{x + 3}" y="14">{label}</text>'


def merged(spans: Sequence[Any], scale: float) -> list[tuple[float, float, Any]]:
    """Begin and end of spans in pixels, the longest in the place of those that one pixel has."""
    found: list[tuple[float, float, Any]] = []
    for span in sorted(spans):
        left = min(span[0] * scale, WIDTH - 1)
        right = min(max((span[0] + span[1]) * scale, left + 1), WIDTH)
        if found and int(found[-1][0]) == int(left):
            before = found[-1]
            longest = max(before[2], span, key=lambda each: each[1])
            found[-1] = before[0], max(before[1], right), longest
        else:
            found.append((left, right, span))
    return found
