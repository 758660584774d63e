"""Row fusion on a grid: reductions of rows are inlined into the kernel that reads them.

Floor 3. `row_fusion.py` calls it for devices that launch grids. The maximum and the sum of a row of
a softmax are single numbers, which the kernel of the quotients reads. If their folds replace the
loads, one kernel remains: the threads of a group fold a row that they hold, and store it
(`lower/strategies/grid_rows.py`). `row_fusion.py` does the same for devices that run loops, strip
by strip.

Legality is a question of addresses alone: each fold is one element for each step of the loops over
rows, and is read in the step in which it is computed. Profitability is a question of bytes: one
kernel fewer is one pass over memory fewer, but a row is then folded by a single unit of the device.
See docs/decisions/0061-rows-on-a-grid.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

from tinycore.dtype import dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.access import Launch, Spans, elements, widen
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

    def __init__(self, first: Launch, device: str, limits: Limits) -> None:
        self.device = device
        self.limits = limits
        self.members = [first]

    def admit(self, launch: Launch) -> RowRefusal | None:
        """Add a kernel if it can take in the others and gains by it; else say why not."""
        written = frozenset().union(*(m.written for m in self.members))
        touched = frozenset().union(*(m.touched for m in self.members))
        if self.limits.block_wanted == 1 or not self.limits.sums_are_shared:
            return RowRefusal.ALONE
        if len(self.members) >= MOST_MEMBERS:
            return RowRefusal.FULL
        if not launch.read & written:
            return RowRefusal.UNRELATED
        if launch.written & touched:
            return RowRefusal.OVERWRITTEN
        if not self.is_row_by_row(launch, written):
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

    def is_row_by_row(self, launch: Launch, written: frozenset[int]) -> bool:
        """True if all before are one element for each row, which a kernel reads in that row."""
        shape = [r.extent for r in self.members[0].loops]
        depth = len(shape)
        if any(len(m.loops) != depth or not folds_rows(m) for m in self.members):
            return False
        if [r.extent for r in launch.loops[:depth]] != shape:
            return False
        if len(launch.loops) == depth and not folds_rows(launch):
            return False
        for member in (*self.members, launch):
            own = {i: n for i, n in member.accesses.items() if n in written}
            if any(elements(index) != math.prod(shape) for index in own):
                return False
            if not set(own.values()) <= member.stays_in_rows(depth):
                return False
        rows = {*launch.loops[:depth]}
        return all(n.ranges <= rows for n in launch.nodes if n.op is Op.REDUCE)

    # --- what it costs

    def clocks_apart(self, launch: Launch) -> float:
        """Clocks of the kernels one after another, each spread over all units."""
        moved = sum(bytes_of_row([m], len(m.loops)) * rows_of(m) for m in (*self.members, launch))
        rate = rate_of_unit(self.limits)
        return moved / (rate * self.units) + LAUNCH_CLOCKS * len(self.members)

    def clocks_as_one(self, launch: Launch) -> float:
        """Clocks of one kernel, which has a group for each row, or for several."""
        depth, members = len(self.members[0].loops), [*self.members, launch]
        computed = frozenset().union(*(m.written for m in self.members))
        read = bytes_of_row(members, depth, computed | launch.written)
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
        return RowKernelBuilder(self.members, kept).build()


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


class RowKernelBuilder:
    """One kernel of several: what members read of each other gives way to its value."""

    def __init__(self, members: Sequence[Launch], kept: frozenset[int]) -> None:
        *self.folds, self.last = members
        self.rows = self.last.loops[: len(members[0].loops)]
        self.kept = kept
        self.slots: dict[int, UOp] = {}
        """Pointers of the kernel, by memory number."""
        self.values: dict[int, UOp] = {}
        """Values that members store, by memory number."""
        self.number = max((r.arg.number[0] for r in self.last.by_op[Op.RANGE]), default=0)

    def build(self) -> Launch:
        """The kernel: what is stored of each row, and of its folds what others read."""
        for member in (*self.folds, self.last):  # outputs first
            for place in sorted(member.written):
                if member is self.last or place in self.kept:
                    self.slot(place, member)
        stores = [store for member in self.folds for store in self.fold(member)]
        body = self.inlined(self.last, {r: r for r in self.last.loops})[self.body]
        columns = self.last.loops[len(self.rows) :]
        if stores and columns:
            body = UOp(Op.END, dtypes.void, (body, *columns))
        if stores:
            body = UOp(Op.GROUP, dtypes.void, (body, *stores))
        if loops := self.rows if stores else self.last.loops:
            body = UOp(Op.END, dtypes.void, (body, *loops))
        ast = rewrite(UOp.sink(body), simplify, name="simplify rows")
        return Launch(ast, tuple(self.slots))

    @property
    def body(self) -> UOp:
        """The stores of the last member, without its loops."""
        end = self.last.end
        return end.src[0] if end.op is Op.END else end

    def fold(self, member: Launch) -> list[UOp]:
        """Note the values of a member that folds rows; the stores of those that are kept."""
        done = self.inlined(member, dict(zip(member.loops, self.rows, strict=True)))
        stores = []
        for store in member.by_op[Op.STORE]:
            place = member.accesses[store.src[0]]
            self.values[place] = done[store.src[1]]
            if place in self.kept:
                stores.append(store.with_src((done[store.src[0]], self.values[place])))
        return stores

    def slot(self, place: int, member: Launch) -> UOp:
        """The pointer to memory."""
        if place not in self.slots:
            old = next(pointer_of(n) for n, p in member.accesses.items() if p == place)
            self.slots[place] = old.replace(arg=len(self.slots))
        return self.slots[place]

    def inlined(self, member: Launch, renamed: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """Replacements of the nodes of a member."""
        done: dict[UOp, UOp] = {}
        values = {n for n in member.by_op[Op.LOAD] if member.accesses[n.src[0]] in self.values}
        # An INDEX that only LOADs of inlined values use goes with them.
        apart = {s for n in member.nodes if n not in values for s in n.src}
        folded = frozenset().union(*(m.written for m in self.folds))
        for node in member.nodes:
            if node.op is Op.RANGE:
                done[node] = renamed[node] if node in renamed else self.fresh(node)
            elif node in values:
                done[node] = self.value(member, node, done)
            elif node.op is Op.INDEX and node in apart:
                place = member.accesses[node]
                if place in self.kept or place not in folded:
                    where = (done[s] for s in node.src[1:])
                    done[node] = node.with_src((self.slot(place, member), *where))
            elif all(s in done for s in node.src) and node.op is not Op.DEFINE_GLOBAL:
                done[node] = node.with_src(tuple([done[s] for s in node.src]))
        return done

    def fresh(self, loop: UOp) -> UOp:
        """A loop of a fold under a number of its own."""
        self.number += 1
        return UOp.range(loop.extent, self.number, loop.arg.kind)

    def value(self, member: Launch, load: UOp, done: dict[UOp, UOp]) -> UOp:
        """The value in place of a LOAD of it; of a gated one, or what the LOAD gives instead."""
        index, *other = load.src
        value = self.values[member.accesses[index]]
        return done[index.src[2]].where(value, done[other[0]]) if other else value
