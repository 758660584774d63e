"""Row fusion: neighboring kernels over the same rows become one, such as a softmax.

Floor 3. Row-blocked loop fusion, on devices that run loops; `row_inlining.py` says what is done on
a grid. The maxima, the sums and the quotients of a softmax are three kernels: a sum must be
complete before it divides. But row i of each needs only row i of the others. So a block of rows (a
strip) goes through all three while it is in a near cache, and a value that no later step reads,
such as the scores of attention, is stored for one strip at a time in thread-local memory.

Legality is a question of addresses alone: every access to memory that one kernel of a group writes
and another reads stays within the current row (`access.py`). Halide calls the result `compute_at`
a loop over strips of rows; `strips.py` emits it from the values of all kernels of the group.
See docs/decisions/0033-strips.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tinycore.render.base import Limits
from tinycore.schedule.access import LINE_BYTES, Launch, footprint, size_of, written_by
from tinycore.schedule.candidates import Group, Memory, Refusal
from tinycore.schedule.product_chains import is_long_product
from tinycore.schedule.strips import Strips

MOST_PRODUCTS: Final = 2
"""Most members that are matrix products with shared weights. Fusing more saves only intermediate
rows, and multiplies the time of lowering."""
FEWEST_STRIPS: Final = 16
"""Strips below which they are made narrower than the cache requires, to have one per thread."""
PARALLEL_BYTES: Final = 64 << 10
"""Bytes a group touches from which its strips are shared among threads."""
MOST_STRIP_BYTES: Final = 1 << 20
"""Thread-local memory for one strip."""
NEAREST_BYTES: Final = 16 << 10
"""Most bytes that several rows of a strip touch if sums of them share no operand. Softmax,
deviations and layernorm over rows of 16 to 4096 elements take .75 to 1 of the time of strips of
1 MB on a Xeon whose first cache has 48 KB; 32 and 64 KB are between, 4 and 8 KB no better but for
the shortest rows."""
LEAST_SHARED: Final = 0.125
"""Fraction of its footprint that a kernel must share with the group if it reads none of its
results."""
MOST_REREAD: Final = 1.25
"""Fraction of the near cache that operands re-read by every row may occupy. Above 1, since little
else is in the cache beside such an operand."""
FEWEST_ROWS: Final = 8
"""Rows of a strip below which re-reading an operand for each strip does not pay, as the rows of a
register tile of a matrix product share each load."""


class FusionGroup(Group):
    """Kernels that share one loop over strips of rows."""

    kind = "loop over strips of rows"

    def __init__(self, first: Launch, limits: Limits, memory: Memory) -> None:
        super().__init__(first, limits, memory)
        self.shape = tuple(r.extent for r in first.loops)
        """The extents of the loops over rows, common to all members."""
        self.cut: tuple[int, int] | None = None
        """(loops over rows, rows of a strip), once there is a second member."""

    def is_nest(self, launch: Launch) -> bool:
        """True for plain loops."""
        return launch.is_plain

    def is_related(self, launch: Launch) -> bool:
        """True if a kernel reads much of what members read."""
        read = frozenset().union(*(m.read for m in self.members))
        _, own = launch.footprint(1)
        shared = sum(size_of(span) for number, span in own.items() if number in read)
        return shared > 0 and shared >= LEAST_SHARED * sum(map(size_of, own.values()))

    def refusal(self, launch: Launch) -> Refusal | None:
        """Why a kernel cannot share the loop over rows, or gains nothing; None if it joins.

        The shared loops are the longest common prefix of loop extents for which every member stays
        in its row; a strip that fits the cache may need more loops outside, which is a shorter row.
        """
        members = [*self.members, launch]
        if any(is_long_product(member, self.limits) for member in members):
            return Refusal.UNIT
        if is_product(launch) and sum(map(is_product, self.members)) >= MOST_PRODUCTS:
            return Refusal.PRODUCTS
        shape, extents = self.shape, tuple([r.extent for r in launch.loops])
        written, refusal = written_by(members), Refusal.ROWS
        shared = [(m, i) for m in members for i, n in m.accesses.items() if n in written]
        while shape:
            depth = len(shape)
            if shape == extents[:depth] and all(m.stays(index, depth) for m, index in shared):
                refusal = Refusal.CACHE
                if cut := cut_rows(members, shape, self.limits):
                    self.shape, self.cut = shape, cut
                    return None
            shape = shape[:-1]
        return refusal

    def fused(self) -> Launch:
        """The members as one kernel."""
        assert self.cut is not None
        return Strips(self.memory, self.members, self.shape, self.cut).build()


# --- what may be fused, and in which strips


def is_product(launch: Launch, depth: int = 1) -> bool:
    """True if a kernel reduces over an operand that all rows share, as a product with weights.

    Rows are the steps of loop number `depth`, counted from outside.
    """
    return bool(launch.folds) and any(
        size_of(span) > LINE_BYTES for span in launch.footprint(depth)[0].values()
    )


def cut_rows(
    members: Sequence[Launch], shape: tuple[int, ...], limits: Limits
) -> tuple[int, int] | None:
    """(loops over rows, rows of a strip); None if no strip suits the cache.

    The innermost of these loops is the one that is cut into strips.
    """
    for depth in range(1, len(shape) + 1):
        reread, row = footprint(members, depth)
        if reread > limits.cache_bytes * MOST_REREAD:
            return None
        shares = reread and any(is_product(member, depth) for member in members)
        # Every strip loads the operands that sums of its rows share: longer strips load them less
        # often, which is worth rows that fall out of the near cache.
        room = min(2 * limits.cache_bytes, MOST_STRIP_BYTES) if shares else limits.cache_bytes // 2
        if row > room:
            continue  # a row is too long: take one more loop as rows
        *outer, last = shape[:depth]
        most = min((room if shares else NEAREST_BYTES) // max(row, 1), last)
        around = math.prod(outer)
        if row * around * last > PARALLEL_BYTES:
            most = min(most, last * around // FEWEST_STRIPS)
        rows = max((n for n in range(1, most + 1) if last % n == 0), default=1)
        return None if shares and rows < min(FEWEST_ROWS, last) else (depth, rows)
    return None
