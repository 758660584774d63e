"""The costliest kernels of a profile, as rows, text and HTML."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from tiny_viz.store import connect
from tinycore.cli.tables import Table

__all__ = [
    "KernelTotal",
    "Summary",
    "closing_lines",
    "html_table",
    "summary_of",
    "table_of",
    "text_table",
    "totals",
]

SHOWN: Final = 10
HEADER: Final = ">share  >time  >launches  >mean  <limit  <device  <kernel  <where"
Origin = tuple[str, str, int]
"""A method, and the file and line at which it was called."""


@dataclass(frozen=True)
class KernelTotal:
    """All launches of a kernel together."""

    number: int
    name: str
    device: str
    queue: str
    operations: tuple[str, ...]
    origins: tuple[Origin, ...]
    launches: int
    seconds: float
    share: float
    """Share of the time of all kernels."""
    ops: int
    bytes: int
    limit: float | None
    """Share of the machine's limit that it reaches; None where that is not known."""
    bound: str
    """The resource that limits it: "arithmetic" or "memory"."""

    @property
    def mean(self) -> float:
        """Seconds of one launch."""
        return self.seconds / self.launches if self.launches else 0.0


@dataclass(frozen=True)
class Summary:
    """A program as a whole, by its profile."""

    program: str
    seconds: float
    """From begin to end."""
    busy: float
    """Seconds that kernels and copies took, added up."""
    kernels: tuple[KernelTotal, ...]
    """The costliest first."""
    failures: tuple[str, ...]
    rates: dict[str, tuple[float, float]]


def summary_of(path: str | Path) -> Summary:
    """The summary of a profile. Raises FileFormatError for another file."""
    with closing(connect(path)) as connection:
        about = dict(connection.execute("SELECT key, value FROM meta"))
        rates = {d: (f, b) for d, f, b in connection.execute("SELECT * FROM rates")}
        kernels = tuple(totals(connection, rates))
        failed = connection.execute("SELECT kernel, error, message FROM failures")
        failures = tuple(
            f"{kernel or 'the program'}: {kind}: {text}" for kernel, kind, text in failed
        )
    return Summary(
        about.get("program", "?"),
        int(about.get("nanoseconds", 0)) / 1e9,
        sum(kernel.seconds for kernel in kernels),
        kernels,
        failures,
        rates,
    )


def totals(
    connection: sqlite3.Connection, rates: dict[str, tuple[float, float]]
) -> list[KernelTotal]:
    """Every kernel with its share of the time and of the machine's limit, the costliest first."""
    rows: list[Any] = connection.execute(
        "SELECT kernels.id, name, device, queue, operations, origins, launches, "
        "nanoseconds / 1e9, ops, bytes FROM totals JOIN kernels ON kernels.id = totals.kernel "
        "ORDER BY nanoseconds DESC"
    ).fetchall()
    whole = sum(row[7] for row in rows) or 1.0
    found = []
    for number, name, device, queue, operations, origins, launches, seconds, ops, moved in rows:
        limit, bound = share_of_limit(rates.get(device), ops, moved, seconds / max(launches, 1))
        found.append(
            KernelTotal(
                number,
                name,
                device,
                queue,
                tuple(json.loads(operations)),
                tuple([(m, f, n) for m, f, n in json.loads(origins)]),
                launches,
                seconds,
                seconds / whole,
                ops,
                moved,
                limit,
                bound,
            )
        )
    return found


def share_of_limit(
    rates: tuple[float, float] | None, ops: int, moved: int, seconds: float
) -> tuple[float | None, str]:
    """The least time that a kernel can take (the roofline) as a share of its time, and why."""
    if rates is None or not all(rates) or not seconds:
        return None, ""
    arithmetic, memory = ops / rates[0], moved / rates[1]
    return max(arithmetic, memory) / seconds, "arithmetic" if arithmetic > memory else "memory"


def where(origins: Iterable[Origin], full: bool = False) -> str:
    """Origins in one line: `matmul softmax train.py:31`."""
    lines: dict[str, list[str]] = {}
    for method, file, line in origins:
        shown = file if full else file.replace("\\", "/").rpartition("/")[2]
        lines.setdefault(f"{shown}:{line}", []).insert(0, method)
    return printable(", ".join(f"{' '.join(names)} {place}" for place, names in lines.items()))


def printable(text: str) -> str:
    """Text without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def cells(kernel: KernelTotal) -> tuple[str, ...]:
    """The columns of a kernel."""
    limit = "?" if kernel.limit is None else f"{kernel.limit:.0%} {kernel.bound}"
    if (kernel.limit or 0) > 1 and kernel.bound == "memory":
        limit = "in cache"  # faster than what the limit was measured with
    times = duration(kernel.seconds), f"{kernel.launches:,}", duration(kernel.mean)
    return f"{kernel.share:.1%}", *times, limit, kernel.device, kernel.name, where(kernel.origins)


def closing_lines(summary: Summary) -> list[str]:
    """Lines below the table."""
    others = len(summary.kernels) - SHOWN
    lines = [f"{others} more kernels"] if others > 0 else []
    lines.append(
        f"kernels took {duration(summary.busy)} of the {duration(summary.seconds)} of "
        f"{printable(summary.program)}"
    )
    for device, (flops, moved) in summary.rates.items():
        if flops and moved:
            lines.append(
                f"limit of {device}: {flops / 1e9:,.0f} GFLOP/s, {moved / 1e9:,.1f} GB/s, as "
                "measured by a product of matrices and by x + 1"
            )
    return [*lines, *(f"failed: {printable(text)}" for text in summary.failures)]


def table_of(summary: Summary) -> Table:
    """The ten costliest kernels."""
    return Table(HEADER, [*map(cells, summary.kernels[:SHOWN])])


def text_table(summary: Summary) -> str:
    """The ten costliest kernels as text, with what there is to say below them."""
    return "\n".join([str(table_of(summary)), "", *closing_lines(summary)])


def html_table(summary: Summary) -> str:
    """The same table for a notebook."""
    head = "".join(f"<th>{name[1:]}</th>" for name in HEADER.split())
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(kernel)) + "</tr>"
        for kernel in summary.kernels[:SHOWN]
    )
    below = "".join(f"<br>{escape(line)}" for line in closing_lines(summary))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{below[4:]}</p>"
