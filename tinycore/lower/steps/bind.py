"""Bind: map a loop to vector lanes, copies, threads or the grid (TVM's vectorize, unroll, bind).

Floor 3'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.lower.expand import WRITTEN_OUT
from tinycore.lower.loops import Number, counter_of, text_of
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
        """The kernel with this step done."""
        counter = counter_of(kernel, self.axis)
        return kernel.substitute({counter: counter.replace(arg=Axis(self.axis, self.kind))})
