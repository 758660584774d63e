"""Peel: split a loop into consecutive loops (index set splitting).

Floor 3'. A gate that compares the counter with a peeling point is constant in each part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.loops import (
    Consecutive,
    Number,
    closer_of,
    counter_of,
    peeled,
    text_of,
)
from tinycore.uop.node import UOp

MOST_PEELED: Final = 5
"""Parts of a loop at most, each of which is compiled: two steps at either end, and what is
between."""


@dataclass(frozen=True)
class Peel:
    """Split a loop into consecutive loops at some steps: (axis, 0), (axis, 1), ... in order."""

    axis: Number
    at: tuple[int, ...]

    def __str__(self) -> str:
        return f"peel({text_of(self.axis)} at {' '.join(map(str, self.at))})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with the body once for each part, the loops inside of it copied.

        Raises ArgumentError for a part without steps, or whose number is known at launch only.
        """
        counter = counter_of(kernel, self.axis)
        edges = (0, *self.at, counter.extent)
        if sorted({*edges}) != [*edges] or not counter.is_fixed:
            raise ArgumentError(
                f"{self}: a part of {counter.extent} steps has none, or no fixed end"
            )
        number, kind = counter.arg
        parts = []
        for part, (start, stop) in enumerate(itertools.pairwise(edges)):
            here = UOp.range(stop - start, (*number, part), kind)
            parts.append(Consecutive((here,), here + start, (part,)))
        done = {c: peeled(c, counter, parts) for c in closer_of(kernel, counter)}
        return kernel.substitute(done)
