"""Row fusion on a grid: reductions of rows are inlined into the kernel that reads them.

Floor 3. `row_fusion.py` calls it for devices that launch grids. The maximum and the sum of a row of
a softmax are single numbers, which the kernel of the quotients reads. If their folds replace the
loads, one kernel remains: the threads of a group fold a row that they hold, and store it
(`lower/strategies/grid_rows.py`). `row_fusion.py` does the same for devices that run loops, strip
by strip.

Legality is a question of addresses alone (`inlining.py`): each fold is one element for each step of
the loops over rows, and is read in the step in which it is computed. Profitability is a question of
bytes: one kernel fewer is one pass over memory fewer, but a row is then folded by a single unit of
the device.
See docs/floors/schedule.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

from tinycore.render.base import Limits
from tinycore.schedule.access import Launch, Spans, widen, written_by
from tinycore.schedule.inlining import Inlining
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import LAUNCH_CLOCKS, rate_of_unit
from tinycore.trace import Trace
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

trace = Trace("schedule")

MOST_MEMBERS: Final = 8
HELD_BYTES: Final = 128
"""Bytes of a row that each thread holds in registers."""


class RowRefusal(Enum):
    """Why a kernel is not joined with the one before it, as DEBUG=3 says it."""

    ALONE = "threads of the device's groups share no sums"
    FULL = f"{MOST_MEMBERS} kernels are one already"
    UNRELATED = "the second does not read what the first computes"
    ROWS = "the first is not one element for each row of the second"
    COLUMNS = "what one of them folds does not lie side by side"
    OVERWRITTEN = "the second writes what the first reads or writes"
    COST = "its rows are too few for the units of the device: apart they take fewer clocks"


class RowKernel:
    """Kernels that fold rows, and the last one, which may store whole rows."""

    def __init__(self, first: Launch, limits: Limits) -> None:
        self.limits = limits
        self.members = [first]

    def admit(self, launch: Launch) -> RowRefusal | None:
        """Add a kernel if it can take in the others and gains by it; else say why not."""
        touched = frozenset().union(*(m.touched for m in self.members))
        if self.limits.block_wanted == 1 or not self.limits.sums_are_shared:
            return RowRefusal.ALONE
        if len(self.members) >= MOST_MEMBERS:
            return RowRefusal.FULL
        if not launch.read & written_by(self.members):
            return RowRefusal.UNRELATED
        if launch.written & touched:
            return RowRefusal.OVERWRITTEN
        if not self.is_row_by_row(launch):
            return RowRefusal.ROWS
        if not all(lie_side_by_side(m) for m in (*self.members, launch)):
            return RowRefusal.COLUMNS
        one, apart = self.clocks_as_one(launch), self.clocks_apart(launch)
        if one > apart:
            return RowRefusal.COST
        if trace.on:
            names = f"{kernel_name(self.members[-1].ast)} | {kernel_name(launch.ast)}"
            trace(f"{'row fusion':<16} one kernel: {names}: {one:,.0f} clocks, {apart:,.0f} apart")
        self.members.append(launch)
        return None

    def is_row_by_row(self, launch: Launch) -> bool:
        """True if all before are one element for each row, which a kernel reads in that row."""
        shape = [r.extent for r in self.members[0].loops]
        depth = len(shape)
        if any(len(m.loops) != depth or not folds_rows(m) for m in self.members):
            return False
        if [r.extent for r in launch.loops[:depth]] != shape:
            return False
        if len(launch.loops) == depth and not folds_rows(launch):
            return False
        rows = {*launch.loops[:depth]}
        if not all(n.ranges <= rows for n in launch.nodes if n.op is Op.REDUCE):
            return False
        return inlined(self.members, launch) is not None

    # --- what it costs

    def clocks_apart(self, launch: Launch) -> float:
        """Clocks of the kernels one after another, each spread over all units."""
        moved = sum(bytes_of_row([m], len(m.loops)) * rows_of(m) for m in (*self.members, launch))
        rate = rate_of_unit(self.limits)
        return moved / (rate * self.units) + LAUNCH_CLOCKS * len(self.members)

    def clocks_as_one(self, launch: Launch) -> float:
        """Clocks of one kernel, which has a group for each row, or for several."""
        depth, members = len(self.members[0].loops), [*self.members, launch]
        read = bytes_of_row(members, depth, written_by(members))
        stored = bytes_of_row([launch], depth, launch.touched - launch.written)
        passes = 1 if read <= HELD_BYTES * self.limits.block_threads else len(members)
        rounds = -(-rows_of(self.members[0]) // self.units)
        return (passes * read + stored) * rounds / rate_of_unit(self.limits)

    @property
    def units(self) -> int:
        """Units of the device, or as many groups as keep it busy."""
        stated = self.limits.units or self.limits.threads // self.limits.block_wanted
        return max(stated, 1)

    # --- the kernel

    def fuse(self, kept: frozenset[int]) -> Launch:
        """The members as one kernel; of what they write, `kept` is stored beside the last."""
        *folds, last = self.members
        depth = len(folds[0].loops)
        rows, columns = last.loops[:depth], last.loops[depth:]
        whole = inlined(folds, last)
        assert whole is not None, "each member was admitted"
        stored = [place for place in whole.stored if place in kept or place in last.written]
        folded = [whole.store(place) for place in stored if place not in last.written]
        stores = [whole.store(place) for place in stored if place in last.written]
        body = UOp.group(*stores).end(*(columns if folded else last.loops))
        if folded:
            body = UOp.group(body, *folded).end(*rows)
        return whole.kernel(rewrite(body, simplify, name="simplify rows"), stored)


def inlined(folds: Sequence[Launch], last: Launch) -> Inlining | None:
    """Folds of rows, and the kernel that reads them, over its loops; None if it reads others."""
    whole = Inlining(max((r.arg.number[0] for r in last.by_op[Op.RANGE]), default=0))
    for member in (*folds, last):
        if not whole.add(member, dict(zip(member.loops, last.loops, strict=member is last))):
            return None
    return whole


def folds_rows(launch: Launch) -> bool:
    """True if a kernel reduces, and is no product that is computed better in tiles.

    The operands of a product are invariant along different loops, so tiles of both are loaded once
    and used many times.
    """
    reductions = [n for n in launch.nodes if n.op is Op.REDUCE]
    below = {n for r in reductions for n in r.toposort() if n in launch.accesses}
    still = [{r for r in launch.loops if r not in n.ranges} for n in below]
    pairs = itertools.combinations(still, 2)
    return bool(reductions) and all(one <= other or other <= one for one, other in pairs)


def lie_side_by_side(launch: Launch) -> bool:
    """True if neighboring steps of each fold read neighboring elements, or the same."""
    for loop in {n.src[-1] for n in launch.nodes if n.op is Op.REDUCE}:
        moves = {coefficient(n.src[1], loop) for n in launch.accesses if loop in n.src[1].ranges}
        if moves != {1}:
            return False
    return True


def rows_of(launch: Launch) -> int:
    """The steps of the loops over outputs."""
    return math.prod(r.extent for r in launch.loops)


def bytes_of_row(
    members: Sequence[Launch], depth: int, without: frozenset[int] = frozenset()
) -> float:
    """Bytes that some kernels touch in each step of the outer loops, but for some memory."""
    spans: Spans = {}
    for member in members:
        _, own = member.footprint(depth)
        for number in own.keys() - without:
            widen(spans, number, own[number])
    return float(sum(stop - start for start, stop in spans.values()))
