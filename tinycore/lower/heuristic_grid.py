"""A plan for a device with a grid: which outputs become groups, threads, lanes and registers.

Floor 3'. Every output is a step of a thread. Where there are few outputs and long sums, the threads
of a group share each sum; where an operand stands still over an output, a thread computes a tile of
outputs, and loads it once for all of them. Where operands stand still both ways, the threads of a
group load them together into the memory that they share (`shared_planner.py`).
"""

from __future__ import annotations

from typing import Final

from tinycore.lower.loops import Number
from tinycore.lower.share import fills_of
from tinycore.lower.shared_planner import SharedPlanner
from tinycore.lower.stage_planner import LEAST_REUSE
from tinycore.lower.tile import Assign, Cover, Split, overwrites_what_it_reads
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

SHORTEST_SHARED: Final = 32
"""Steps of a sum from which on sharing it pays."""
TILE_ROWS: Final = 4
"""Outputs of a register tile beside its lanes."""
UNROLLED: Final = 4
"""Steps of a sum written out."""


class GridPlanner(SharedPlanner):
    """What a device with a grid is given to run."""

    def plan_grid(self) -> None:
        """Threads and groups for the outputs; loops that cannot be launched stay loops."""
        wanted = min(self.limits.block_wanted, self.limits.block_threads)
        if wanted > 1:
            shared = self.shared_sum()
            sharers = 1 if shared is None else self.sharers(wanted)
            if (shared is None or sharers > 1) and self.share_operands(wanted, sharers):
                self.unroll_sums()
                return
            if shared is not None:
                wanted //= self.share(shared, wanted)
            elif self.outputs_launched() >= self.limits.threads:
                self.give_lanes()
                self.tile_rows()
                self.unroll_sums()
        self.launch(wanted)

    # --- threads of a group share a sum

    def shared_sum(self) -> UOp | None:
        """The loop of a sum to share among the threads of a group: the one along memory."""
        outputs = self.launched()
        if not self.limits.sums_are_shared:
            return None
        if self.outputs_launched() >= self.limits.threads or self.has_order():
            return None
        loops = [
            r
            for r in self.facts.reduced
            if r.src[0].op is Op.CONST
            and r.extent >= SHORTEST_SHARED
            and all(n.ranges <= set(outputs) for n in self.facts.reductions if r in n.src[1:])
        ]
        return max(loops, key=lambda r: (self.contiguous(r), r.extent), default=None)

    def sharers(self, wanted: int) -> int:
        """How many threads of a group share a sum where the group shares operands, too."""
        short = -(-self.limits.threads // self.outputs_launched())
        return min(1 << (short - 1).bit_length(), power_of_two(wanted // LEAST_REUSE**2))

    def contiguous(self, counter: UOp) -> int:
        """How many accesses move by one element with a loop."""
        return sum(self.facts.stride(n, counter) == 1 for n in self.facts.accesses)

    def share(self, counter: UOp, wanted: int) -> int:
        """Give the steps of a sum to threads; returns to how many."""
        members = [n for n in self.facts.reductions if counter in n.src[1:]]
        # Each thread leaves a part there, and some leave another.
        most = self.limits.shared_bytes // sum(2 * max(n.dtype.itemsize, 4) for n in members)
        threads = power_of_two(min(wanted, most, counter.extent, self.limits.block[0]))
        if threads > 1:
            number = counter.arg.number
            self.do(Cover(number, threads), Assign((*number, 1), AxisKind.GROUP))
        return threads

    # --- several outputs to a thread

    def give_lanes(self) -> None:
        """Lanes along an output that every access moves along, or not at all."""
        lanes = 1 if self.facts.has_recurrence else self.lanes()
        for counter in reversed(self.launched()):
            if lanes > 1 and counter.extent % lanes == 0 and self.suits_lanes(counter):
                number = counter.arg.number
                self.do(Split(number, lanes), Assign((*number, 1), AxisKind.VECTOR))
                return

    def suits_lanes(self, counter: UOp) -> bool:
        """Whether lanes along a loop make every access one of a vector or of one element."""
        moves = [self.facts.stride(n, counter) for n in self.facts.accesses]
        gated = any(counter in gate.ranges for n in self.facts.accesses for gate in n.src[2:])
        return not gated and 1 in moves and set(moves) <= {0, 1}

    def tile_rows(self) -> None:
        """Several outputs to a thread along a loop over which a load stands still."""
        loads = [n for r in self.facts.reductions for n in r.toposort() if n.op is Op.INDEX]
        rows = [r for r in self.launched() if any(r not in n.ranges for n in loads)]
        if not rows or not any(rows[0] in n.ranges for n in loads):
            return
        row = rows[0]
        tall = next((t for t in (TILE_ROWS, 2) if row.extent % t == 0), 1)
        if row.extent > 2 * TILE_ROWS and not overwrites_what_it_reads(self.kernel):
            tall = TILE_ROWS
        if tall > 1 and self.outputs_launched() // tall >= self.limits.threads:
            number = row.arg.number
            self.do(Split(number, tall), Assign((*number, 1), AxisKind.UNROLL))

    def unroll_sums(self) -> None:
        """Write out a few steps of the innermost loop of a sum."""
        innermost = dict.fromkeys(
            n.src[-1] for n in self.facts.reductions if n.src[-1].op is Op.RANGE
        )
        for loop in innermost:  # in the order of the kernel, which is the same in every process
            if loop.arg.kind is AxisKind.REDUCE and loop.src[0].op is Op.CONST:
                self.unroll_sum(loop.arg.number, loop.extent)

    def unroll_sum(self, number: Number, extent: int) -> None:
        """Write out a loop, or a few of its steps."""
        if extent <= UNROLLED:
            self.do(Assign(number, AxisKind.UNROLL))
        elif extent % UNROLLED == 0:
            self.do(Split(number, UNROLLED), Assign((*number, 1), AxisKind.UNROLL))

    # --- the launch

    def launch(self, wanted: int) -> None:
        """Groups of up to `wanted` threads, filled from the innermost output on."""
        room = list(self.limits.block[len(self.facts.loops_of_kind(AxisKind.GROUP)) :])
        for counter in reversed(self.launched()):
            number, extent = counter.arg.number, counter.extent
            most = min(wanted, room[0]) if room and not self.is_filled_inside(counter) else 1
            threads = extent if extent <= most else power_of_two(most)
            wanted //= threads
            room = room[1:] if threads > 1 else room
            if threads == 1:
                self.do(Assign(number, AxisKind.GRID))
            elif threads == extent:
                self.do(Assign(number, AxisKind.BLOCK))
            else:
                self.do(Cover(number, threads))
                self.do(Assign((*number, 0), AxisKind.GRID), Assign((*number, 1), AxisKind.BLOCK))

    def is_filled_inside(self, counter: UOp) -> bool:
        """Whether memory that a group shares is filled anew in each step of a loop."""
        return any(counter in n.ranges for n in fills_of(self.kernel))


def power_of_two(most: int) -> int:
    """The greatest power of two that is at most `most`, and at least 1."""
    return 1 << max(most, 1).bit_length() - 1
