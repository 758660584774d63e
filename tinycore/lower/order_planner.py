"""The order of the loops around register tiles: which of them go inside of panels.

Floor 3'. What a panel holds is read again in every step of a loop inside of it, and filled again in
every step of a loop around it.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.loops import Number, counter_of
from tinycore.lower.stage_planner import StagePlanner
from tinycore.lower.tile import Reorder, Split
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

ENOUGH_READ: Final = 1024
"""How often an element of a panel is read when filling it takes no time to speak of."""


class OrderPlanner(StagePlanner):
    """Puts loops around and inside of panels."""

    def loops_between(self, columns: list[Number], row: UOp) -> list[Number]:
        """The loops outside of the rows over which the columns' loads stand still, too.

        They stay outside, so that what the rows read is read in the order in which it lies.
        """
        order = self.facts.outputs[: self.facts.outputs.index(row)]
        # Columns of one step have no loop: then what is staged, is so inside of the outermost.
        last = max((i for i, r in enumerate(order) if r.arg.number in columns), default=0)
        along = [n.src[1].ranges for n in self.facts.loads if row not in n.src[1].ranges]
        still = [r for r in order[last + 1 :] if r.arg.kind is AxisKind.LOOP]
        return [r.arg.number for r in still if not any(r in ranges for ranges in along)]

    def loops_outside(self, place: int, row: UOp, between: list[Number]) -> list[Number]:
        """Loops outside of the columns that go inside, as few rows would read what is staged.

        What the columns read stands still over them.
        """
        along = [n.src[1].ranges for n in self.facts.loads if row not in n.src[1].ranges]
        inside = [r.extent for r in self.facts.outputs if r.arg.number in between]
        rows, found = math.prod(inside) * row.extent, list[Number]()
        for r in reversed([r for r in self.facts.outputs[:place] if r.arg.number not in between]):
            if rows >= ENOUGH_READ or any(r in ranges for ranges in along):
                break
            rows *= r.extent
            found.insert(0, r.arg.number)
        return found

    def pieces_of(self, between: list[Number], pieces: int) -> Split | None:
        """How to cut the outermost of the loops between panels and rows, if it is long enough."""
        if not between:
            return None
        size = counter_of(self.kernel, between[0]).extent
        return Split(between[0], -(-size // pieces)) if size >= 2 * pieces else None

    def to_front(self, place: int, front: list[Number]) -> None:
        """Move some loops so that they begin at a place in the order of all."""
        there = [r.arg.number for r in self.facts.outputs]
        rest = [n for n in there if n not in front]
        self.do(Reorder((*rest[:place], *(n for n in front if n in there), *rest[place:])))

    def loop_before(self, axis: Number) -> Number | None:
        """The loop right around another; None if that is the outermost, or was of one step."""
        order = [r.arg.number for r in self.facts.outputs if r.arg.kind is AxisKind.LOOP]
        before = order[: order.index(axis)] if axis in order else []
        return before[-1] if before else None
