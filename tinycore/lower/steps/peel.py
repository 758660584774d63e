"""Peel: split a loop into consecutive loops (index set splitting).

Floor 3'. A gate that compares the counter with a peeling point is constant in each part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, closer_of, counter_of, loops_within, numbered, text_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

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

        Raises ArgumentError for a part without steps.
        """
        counter = counter_of(kernel, self.axis)
        edges = (0, *self.at, counter.extent)
        if sorted({*edges}) != [*edges]:
            raise ArgumentError(f"{self}: a part of {counter.extent} steps has none")
        return kernel.substitute({c: peeled(c, counter, edges) for c in closer_of(kernel, counter)})


def peeled(closer: UOp, counter: UOp, edges: tuple[int, ...]) -> UOp:
    """An END or a REDUCE over the consecutive parts of a loop."""
    number, kind = counter.arg
    place = closer.src.index(counter) if closer.op is Op.END else 1
    around = closer.src[1:place]
    own = tuple(r for r in closer.src[place:] if r is not counter)
    found = []
    for part, (start, stop) in enumerate(itertools.pairwise(edges)):
        here = UOp.range(stop - start, (*number, part), kind)
        # A loop is closed once: each part has copies of the loops inside.
        copies = {r: numbered(r, part) for r in loops_within(closer, around, counter)}
        body = closer.src[0].substitute(copies | {counter: here + start})
        inner = [copies[r] for r in own]
        loops = (*inner, here) if closer.op is Op.REDUCE else (here, *inner)
        found.append(UOp(closer.op, closer.dtype, (body, *loops), closer.arg))
    if closer.op is Op.REDUCE:
        return reduce(lambda a, b: a.alu(closer.arg, b), found)
    group = UOp.group(*found)
    return closer.with_src((group, *around)) if around else group
