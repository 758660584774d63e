"""Row fusion on a grid: reductions of rows are inlined into the kernel that reads them.

Floor 3. The maximum and the sum of a row of a softmax are single numbers, which the kernel of the
quotients reads. If their folds replace the loads, one kernel remains: the threads of a group fold a
row that they hold, and store it (`lower/strategies/grid_rows.py`). `row_fusion.py` does the same
for devices that run loops, strip by strip.

Legality is asked of the values of all kernels, read as one nest (`inlining.py`): each fold is
computed at one point, which depends on the loops over rows alone. Profitability is a question of
bytes: one kernel fewer is one pass over memory fewer, but a row is then folded by a single unit of
the device.
See docs/floors/schedule.md.
"""

from __future__ import annotations

import itertools
from typing import Final

from tinycore.schedule.access import Launch, footprint, written_by
from tinycore.schedule.candidates import Group, Refusal
from tinycore.schedule.inlining import Inlined
from tinycore.schedule.limits import LAUNCH_CLOCKS, rate_of_unit
from tinycore.uop.affine import coefficient, iterations_of
from tinycore.uop.node import UOp

HELD_BYTES: Final = 128
"""Bytes of a row that each thread holds in registers."""


class RowKernel(Group):
    """Kernels that fold rows, and the last one, which may store whole rows."""

    kind = "loop over rows"

    @property
    def rows(self) -> tuple[UOp, ...]:
        """The loops over rows."""
        return self.members[0].loops

    def refusal(self, launch: Launch) -> Refusal | None:
        """Why a kernel cannot take in the others, or gains nothing by it; None if it does."""
        if not self.is_row_by_row(launch):
            return Refusal.ROWS
        if not all(lie_side_by_side(m) for m in (*self.members, launch)):
            return Refusal.COLUMNS
        return Refusal.COST if self.clocks_as_one(launch) > self.clocks_apart(launch) else None

    def is_row_by_row(self, launch: Launch) -> bool:
        """True if a kernel is in the loops over rows, and folds no others."""
        depth = len(self.rows)
        rows = launch.loops[:depth]
        if len(self.members[-1].loops) > depth or iterations_of(rows) != iterations_of(self.rows):
            return False
        if len(launch.loops) == depth and not folds_rows(launch):
            return False
        return all(fold.ranges <= {*rows} for fold in launch.folds)

    # --- what it costs

    def clocks_apart(self, launch: Launch) -> float:
        """Clocks of the kernels one after another, each spread over all units."""
        moved = sum(
            footprint([m], len(m.loops))[1] * iterations_of(m.loops)
            for m in (*self.members, launch)
        )
        rate = rate_of_unit(self.limits)
        return moved / (rate * self.units) + LAUNCH_CLOCKS * len(self.members)

    def clocks_as_one(self, launch: Launch) -> float:
        """Clocks of one kernel, which has a group for each row, or for several."""
        depth, members = len(self.rows), [*self.members, launch]
        _, read = footprint(members, depth, written_by(members))
        _, stored = footprint([launch], depth, launch.touched - launch.written)
        passes = 1 if read <= HELD_BYTES * self.limits.block_threads else len(members)
        rounds = -(-iterations_of(self.rows) // self.units)
        return (passes * read + stored) * rounds / rate_of_unit(self.limits)

    @property
    def units(self) -> int:
        """Units of the device, or as many groups as keep it busy."""
        return max(self.limits.units or self.limits.threads // self.limits.block_wanted, 1)

    # --- the kernel

    def fused(self) -> Launch | str:
        """The members as one kernel; what others read is stored beside what the last one writes."""
        values = Inlined(self.memory, self.members, self.members[-1])
        stores = values.stores(self.memory.kept(self.members))
        rows, columns = values.loops[: len(self.rows)], values.loops[len(self.rows) :]
        if stores is None or not values.inside <= {*rows}:
            return Refusal.ROWS.value
        own = [stores.pop(place) for place in self.members[-1].written]
        body = UOp.group(*own).end(*(() if stores else rows), *columns)
        if stores:
            body = UOp.group(body, *stores.values()).end(*rows)
        return values.launch(body, (*self.members[-1].written, *stores))


def folds_rows(launch: Launch) -> bool:
    """True if a kernel reduces, and is no product that is computed better in tiles.

    The operands of a product are invariant along different loops, so tiles of both are loaded once
    and used many times.
    """
    below = {n for fold in launch.folds for n in fold.toposort() if n in launch.accesses}
    still = [{r for r in launch.loops if r not in n.ranges} for n in below]
    pairs = itertools.combinations(still, 2)
    return bool(launch.folds) and all(one <= other or other <= one for one, other in pairs)


def lie_side_by_side(launch: Launch) -> bool:
    """True if neighboring steps of each fold read neighboring elements, or the same."""
    for loop in {fold.src[-1] for fold in launch.folds}:
        moves = {coefficient(n.src[1], loop) for n in launch.accesses if loop in n.src[1].ranges}
        if moves != {1}:
            return False
    return True
