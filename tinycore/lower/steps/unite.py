"""Unite: the same threads of a group run loops of several nests, one after another.

Floor 3'. TVM binds such loops to one `threadIdx.x`. A thread then has the same index in each of
them, so elements that it loaded for one need not be loaded again for the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.errors import ArgumentError
from tinycore.lower.loops import PLAIN_KINDS, Number, counter_of, text_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind


@dataclass(frozen=True)
class Unite:
    """Share loops as long as each other among the threads of a group, all of them alike."""

    axes: tuple[Number, ...]
    """The loops; that of the first counts for all."""

    def __str__(self) -> str:
        return f"unite({', '.join(map(text_of, self.axes))})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError for loops of different or symbolic
        lengths, those that are bound already, and those of which one is inside of another.
        """
        loops = {counter_of(kernel, axis) for axis in self.axes}
        is_plain = all(loop.is_fixed and loop.kind in PLAIN_KINDS for loop in loops)
        is_nested = any(len(loops & {*n.ranges, *n.src}) > 1 for n in kernel.toposort())
        if len({loop.src for loop in loops}) > 1 or not is_plain or is_nested:
            raise ArgumentError(f"{self}: the loops are not as long as each other, free and apart")
        thread = counter_of(kernel, self.axes[0]).replace(arg=Axis(self.axes[0], AxisKind.GROUP))
        return kernel.substitute(dict.fromkeys(loops, thread))
