"""Bind: map a loop to vector lanes, copies, threads or the grid (TVM's vectorize, unroll, bind).

Floor 3'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.expand import WRITTEN_OUT
from tinycore.lower.loops import PLAIN_KINDS, Number, counter_of, text_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind

COPYING: Final = (*WRITTEN_OUT, AxisKind.VECTOR)
"""Kinds of loops that become copies of their body, or lanes."""


@dataclass(frozen=True)
class Bind:
    """Give a loop its kind: unrolled, lanes of a vector, shared among threads, ..."""

    axis: Number
    kind: AxisKind

    def __str__(self) -> str:
        return f"{self.kind.value}({text_of(self.axis)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError for a loop that is bound already, or
        whose steps happen in order, and for copies or threads of a number known at launch only."""
        counter = counter_of(kernel, self.axis)
        if counter.kind not in PLAIN_KINDS:
            raise ArgumentError(f"{self}: the loop is {counter.kind.value} already")
        if not counter.is_fixed and self.kind not in (AxisKind.GRID, AxisKind.PARALLEL):
            raise ArgumentError(f"{self}: how often the loop runs is known at launch only")
        return kernel.substitute({counter: counter.replace(arg=Axis(self.axis, self.kind))})
