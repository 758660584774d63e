"""Tables of the command line: aligned text, and by `rich` on a terminal where that is installed.

Floor 6. Imports nothing of tinycore. What goes into pipes and files is the same with and without
`rich`, so reports compare and `grep` finds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from textwrap import wrap


class Table:
    """Rows of cells below the names of their columns, as text.

    `head` has the names, two spaces apart, each behind "<" or ">", the side that its cells are
    aligned to. A row may have notes behind its cells: sentences that stand below it.
    """

    def __init__(self, head: str, rows: Sequence[Sequence[str]]) -> None:
        columns = head.split("  ")
        every = [[name[1:] for name in columns], *rows]
        self.widths = [max(map(len, cells)) for cells in zip(*every, strict=False)]
        shapes = [f"{{:{name[0]}{n}}}" for name, n in zip(columns, self.widths, strict=True)]
        self.rows = [([*map(str.format, shapes, row)], row[len(columns) :]) for row in every]

    def __str__(self) -> str:
        margin = " " * (self.widths[0] + 2)
        lines = []
        for cells, notes in self.rows:
            lines.append("  ".join(cells).rstrip())
            lines += (margin + line for note in notes for line in wrap(note, 80))
        return "\n".join(lines)

    def show(self) -> None:
        """Print it; on a terminal, where `rich` is installed, fitted to the width of that.

        Nothing is cut there: columns that do not fit beside the others stand below them.
        """
        if not (sys.stdout.isatty() and find_spec("rich")):
            print(self, flush=True)
            return
        from rich.console import Console  # noqa: PLC0415  .1 s, which `import tinycore` spares
        from rich.padding import Padding  # noqa: PLC0415

        console = Console(markup=False, emoji=False, highlight=False)
        ends = accumulate(width + 2 for width in self.widths)
        count = sum(end <= console.width + 2 for end in ends) or 1
        indent, style = min(self.widths[0] + 2, console.width // 2), "bold"
        for cells, notes in self.rows:
            console.print("  ".join(cells[:count]).rstrip(), style=style)
            for note in filter(str.strip, ["  ".join(cells[count:]), *notes]):
                console.print(Padding.indent(note.rstrip(), indent), style=style)
            style = ""
