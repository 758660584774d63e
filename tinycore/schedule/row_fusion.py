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

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.render.base import Limits
from tinycore.schedule.access import Launch, Spans, widen, written_by
from tinycore.schedule.chain_search import Memory, Run, fuse_chain
from tinycore.schedule.emit import KernelEmitter
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel, kernel_name, without_unread
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import is_long_product
from tinycore.schedule.row_inlining import RowKernel, RowRefusal
from tinycore.schedule.strips import Strips
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace = Trace("schedule")

MOST_MEMBERS: Final = 8
MOST_PRODUCTS: Final = 2
"""Most members that are matrix products with shared weights. Fusing more saves only intermediate
rows, and multiplies the time of lowering."""
FEWEST_STRIPS: Final = 16
"""Strips below which they are made narrower than the cache requires, to have one per thread."""
PARALLEL_BYTES: Final = 64 << 10
"""Bytes a group touches from which its strips are shared among threads."""
MOST_STRIP_BYTES: Final = 1 << 20
"""Thread-local memory for one strip."""
LEAST_SHARED: Final = 1 / 8
"""Fraction of its footprint that a kernel must share with the group if it reads none of its
results."""
LINE_BYTES: Final = 64
MOST_REREAD: Final = 1.25
"""Fraction of the near cache that operands re-read by every row may occupy. Above 1, since little
else is in the cache beside such an operand."""
FEWEST_ROWS: Final = 8
"""Rows of a strip below which re-reading an operand for each strip does not pay, as the rows of a
register tile of a matrix product share each load."""


class Refusal(Enum):
    """Why a kernel does not join the fusion group before it, as DEBUG=3 says it."""

    NEST = "one of them is not a single nest of plain loops that writes new memory"
    DEVICE = "they run on different devices"
    CLOSED = "the device cannot be opened"
    FULL = f"{MOST_MEMBERS} kernels are fused already"
    UNRELATED = "the second reads too little of what the first touches"
    PRODUCTS = f"{MOST_PRODUCTS} matrix products are fused already"
    ROWS = "the second reads rows of the first other than the one being written"
    CACHE = "no strip of rows fits the cache"
    UNIT = "one of them is a product that the matrix unit computes by whole tiles"


class FusionGroup:
    """Kernels that share one loop over strips of rows."""

    def __init__(self, first: Launch, limits: Limits) -> None:
        self.limits = limits
        self.members = [first]
        self.shape = tuple(r.extent for r in first.loops)
        """The extents of the loops over rows, common to all members."""
        self.cut: tuple[int, int] | None = None
        """(loops over rows, rows of a strip), once there is a second member."""

    def admit(self, launch: Launch) -> Refusal | None:
        """Add a kernel if it can share the loop over rows and gains by it; else return why not.

        The shared loops are the longest common prefix of loop extents for which every member stays
        in its row; a strip that fits the cache may need more loops outside, which is a shorter row.
        """
        if len(self.members) >= MOST_MEMBERS:
            return Refusal.FULL
        if any(is_long_product(member, self.limits) for member in (*self.members, launch)):
            return Refusal.UNIT
        if not self.is_related(launch):
            return Refusal.UNRELATED
        if is_product(launch) and sum(map(is_product, self.members)) >= MOST_PRODUCTS:
            return Refusal.PRODUCTS
        pairs = zip(self.shape, (r.extent for r in launch.loops), strict=False)
        shape = tuple([a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
        members = [*self.members, launch]
        refusal = Refusal.ROWS
        while shape:
            if stays_in_row(members, shape):
                refusal = Refusal.CACHE
                if cut := cut_rows(members, shape, self.limits):
                    self.members, self.shape, self.cut = members, shape, cut
                    return None
            shape = shape[:-1]
        return refusal

    def is_related(self, launch: Launch) -> bool:
        """True if a kernel reads what members write, or much of what they read."""
        if launch.read & written_by(self.members):
            return True
        read = frozenset().union(*(m.read for m in self.members))
        _, own = launch.footprint(1)
        shared = sum(size_of(span) for number, span in own.items() if number in read)
        return shared > 0 and shared >= LEAST_SHARED * sum(map(size_of, own.values()))


# --- which neighbors form a group

Group = FusionGroup | RowKernel


def fuse_rows(
    steps: Sequence[Step],
    nodes: Sequence[UOp],
    parameters: int,
    persistent: frozenset[int],
    emitter: KernelEmitter,
) -> list[tuple[Step, list[Step]]]:
    """The steps after row fusion, and the members of each.

    `nodes` are memory by number. Memory beyond the first `parameters` that is not `persistent` is
    temporary: it is dead when all steps are done. `emitter` has made the kernels.
    """
    memory = Memory(steps, nodes, parameters, persistent)
    runs = [Run([step]) for step in steps]
    place = 0
    while place < len(runs):
        place += not fuse_chain(runs, place, memory)
    found: list[tuple[Step, list[Step]]] = []
    for is_chain, some in itertools.groupby(runs, lambda run: run.fused is not None):
        if not is_chain:
            some = group_neighbors([run.steps[0] for run in some], memory, emitter)
        for run, launch in some:
            if launch is None:
                found += [(step, [step]) for step in run]
            else:
                found.append((fused_step(run, launch, nodes), run))
    return found


def group_neighbors(steps: Sequence[Step], memory: Memory, emitter: KernelEmitter) -> Iterator[Run]:
    """Runs of neighbors that fuse by strips of rows, or into rows on a grid."""
    shared: dict[Hashable, Any] = {}
    runs: list[tuple[list[Step], Group | None]] = []
    last: Group | None = None
    for step in steps:
        launch, device = Launch(step.ast, step.places, shared), memory.device(step)
        kind: type[Group]
        limits = device_limits(device)
        if limits is None or limits.grid is not None:  # there a single element is a row, too
            is_nest, kind = launch.is_row, RowKernel
        else:  # neither a kernel by hand, nor of an earlier call
            is_nest, kind = launch.is_plain and step.kernel in emitter.groups_of, FusionGroup
        is_nest = is_nest and memory.is_new(launch)
        refusal: Refusal | RowRefusal | None = Refusal.NEST
        if last is not None and is_nest:
            is_near = memory.device(runs[-1][0][0]) == device
            refusal = last.admit(launch) if is_near else Refusal.DEVICE
        if refusal is None:
            runs[-1][0].append(step)
            continue
        if runs and trace.on:
            before = runs[-1][0][-1]
            is_closed = device_limits(memory.device(before)) is None
            explain(before, step, Refusal.CLOSED if is_closed else refusal)
        last = kind(launch, limits) if is_nest and limits is not None else None
        runs.append(([step], last))
    for run, group in runs:
        if group is None or len(run) == 1:
            yield Run(run)
        else:
            yield Run(run, fused(run, group, memory, emitter))


def fused(steps: Sequence[Step], group: Group, memory: Memory, emitter: KernelEmitter) -> Launch:
    """The kernel of a group of steps."""
    kept = memory.kept(steps)
    if isinstance(group, RowKernel):
        return group.fuse(kept)
    assert group.cut is not None
    strips = Strips(emitter, {memory.nodes[n] for n in kept}, group.shape, group.cut)
    ast = strips.build([emitter.groups_of[step.kernel] for step in steps])
    ast, used = without_unread(ast, [*strips.slots])
    numbers = {memory.nodes[place]: place for step in steps for place in step.places}
    return Launch(ast, tuple([numbers[node] for node in used]))


def explain(first: Step, second: Step, refusal: Refusal | RowRefusal) -> None:
    """A line of DEBUG=3 on why two neighbors are two kernels."""
    names = f"{kernel_name(first.ast)} | {kernel_name(second.ast)}"
    trace(f"{'row fusion':<16} two kernels: {names}: {refusal.value}")


def fused_step(run: Sequence[Step], launch: Launch, memory: Sequence[UOp]) -> Step:
    """The step of a fused kernel in place of its members'."""
    sources = tuple(memory[place] for place in launch.places)
    metadata = tuple(dict.fromkeys(name for step in reversed(run) for name in step.metadata))
    kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(launch.ast, metadata))
    return Step(launch.ast, launch.places, metadata, kernel)


# --- what may be fused, and in which strips


def is_product(launch: Launch) -> bool:
    """True if a kernel reduces over an operand that all rows share, as a product with weights."""
    reread, _ = launch.footprint(1)
    reduces = any(n.op is Op.REDUCE for n in launch.nodes)
    return reduces and any(size_of(span) > LINE_BYTES for span in reread.values())


def stays_in_row(members: Sequence[Launch], shape: tuple[int, ...]) -> bool:
    """True if every access to memory that a member writes stays within the current row."""
    written, depth = written_by(members), len(shape)
    return all(m.stays(i, depth) for m in members for i, n in m.accesses.items() if n in written)


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
        # Every strip loads the operands that its rows share: longer strips load them less often,
        # which is worth rows that fall out of the near cache. Without such an operand nothing is
        # gained by a strip of more than half of that cache.
        room = min(2 * limits.cache_bytes, MOST_STRIP_BYTES) if reread else limits.cache_bytes // 2
        if row > room:
            continue  # a row is too long: take one more loop as rows
        *outer, last = shape[:depth]
        most = min(room // max(row, 1), last)
        if row * math.prod(shape[:depth]) > PARALLEL_BYTES:
            most = min(most, last // max(FEWEST_STRIPS // math.prod(outer), 1))
        rows = max((n for n in range(1, most + 1) if last % n == 0), default=1)
        return None if reread and rows < min(FEWEST_ROWS, last) else (depth, rows)
    return None


def footprint(members: Sequence[Launch], depth: int) -> tuple[int, int]:
    """(bytes that every row re-reads, bytes that one row reads) of several kernels together."""
    reread: Spans = {}
    own: Spans = {}
    for member in members:
        for kind, found in zip((reread, own), member.footprint(depth), strict=True):
            for number, span in found.items():
                widen(kind, number, span)
    shared = sum(n for n in map(size_of, reread.values()) if n > LINE_BYTES)
    return shared, sum(map(size_of, own.values()))


def size_of(span: tuple[int, int]) -> int:
    """The bytes of a span."""
    return span[1] - span[0]
