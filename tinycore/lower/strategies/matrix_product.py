"""Matrix products, and convolutions as products of windows: register tiles over packed panels.

Floor 3'. The scheme of BLIS. N (columns, which get lanes) is cut into panels of a few vectors and M
(rows) into groups that share each vector; the accumulators of a tile stay in registers. A panel
that many groups read is packed, and so are blocks of scattered rows. A matmul and a convolution are
not distinguished: rows are an output along which the operand of the columns is invariant.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tinycore.lower.cost import MOST_ROWS, NEAR_CACHE_BYTES, cycles_of_step, pieces_wanted
from tinycore.lower.draft import Draft
from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.lower.loops import PLAIN_KINDS, Number, counter_of
from tinycore.lower.packing import pack_panel, pack_rows
from tinycore.lower.steps.pair import Pair, is_paired
from tinycore.lower.steps.stage import MOST_SCRATCH, Dimension
from tinycore.lower.strategies.elementwise import cut_columns, output_lanes
from tinycore.lower.tile import Reorder, Split
from tinycore.render.base import Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

SUMS_IN_FLIGHT: Final = 8
"""Independent multiply-adds that hide the latency of one: latency (4 cycles) times those begun at
once (2), of Zen and of Intel's cores."""
ENOUGH_ROWS: Final = 6
"""Rows from which on a loop has enough of them for any tile, so that the innermost is taken: those
of a tile of 6 x 4 vectors, which reaches the rate of multiply-adds (Zen 4, AVX-512)."""
SPARE_REGISTERS: Final = 1
"""Registers a tile leaves to the compiler; a tile that spills is slower than a smaller one."""
SPARE_FOR_WINDOWS: Final = 2
"""More of them where a body holds several taps of a window, whose loads the compiler mixes. With
AVX-512, 3 x 3 convolutions spill by 6 x 4 vectors and not by 5 x 4 (Zen 4, clang 19)."""
SPARE_FOR_SHARED: Final = 1
"""And more where the rows themselves share taps, which then stay in registers."""
COMPILERS_UNROLL: Final = 8
"""Steps of a loop that a compiler unrolls by itself."""
ENOUGH_READ: Final = 1024
"""Reads of a panel's element that amortize packing it."""
BLOCK_OF_VARYING: Final = 8
"""Groups of rows that are packed together where their number is known at the launch."""
LINE_WAIT: Final = 6.0
"""Cycles that a vector from another line of the matrix is waited for, if that is far away: held
sums won up to 24 rows (Zen 3), given their two accesses for 8 rows."""
NEAR_LINE_WAIT: Final = 0.3
"""The same where the matrix fits the near cache: loads of several rows hide it. Held sums won for 1
row only."""


class Tile(NamedTuple):
    """Accumulators in registers: `tall` rows of `wide` vectors, or of a vector of `lines` each.

    `below` is the loop over image rows whose steps are the lines.
    """

    tall: int
    wide: int
    below: Number | None = None
    lines: int = 1


def wait_for_lines(facts: KernelFacts, limits: Limits, axis: UOp) -> float:
    """Cycles that a row waits for each vector that is read down the columns of a matrix."""
    row = row_loop(facts, axis)
    size = axis.extent * iterations_of(facts.reduced) * facts.itemsize
    wait = NEAR_LINE_WAIT if size <= limits.cache_bytes else LINE_WAIT
    return wait if row is None else wait / row.extent


def cut_tiles(draft: Draft, axis: UOp) -> None:
    """Cut columns and rows into the best tile, and pack what pays."""
    width = output_lanes(draft, axis)
    if not width:
        return
    row = row_loop(draft.facts, axis)
    most = -(-axis.extent // width)
    tile = tile_of(draft.facts, draft.limits, axis, row, most)
    rows = 1 if row is None else row.extent
    tile = tile._replace(
        tall=draft.size("rows", tile.tall, rows), wide=draft.size("vectors", tile.wide, most)
    )
    column, panel = cut_columns(draft, axis, width, tile.wide)
    if row is not None and tile.below is not None:
        lines = draft.cut(tile.below, tile.lines, AxisKind.UNROLL)
        cut_rows(draft, row, tile.tall, [lines, column], ())
    elif row is not None and not cut_pairs(draft, row, tile.tall, [column], panel):
        cut_rows(draft, row, tile.tall, [column], panel)


# --- the tile


def row_loop(facts: KernelFacts, axis: UOp) -> UOp | None:
    """M: an output loop over which a load along `axis` stands still, so that rows share it."""
    along = [n for n in facts.loads if axis in n.src[1].ranges]
    others = [r for r in facts.nest_of(axis) if r is not axis and r.extent > 1]
    others = [r for r in others if r.kind in PLAIN_KINDS]  # not the rows of another nest's tile
    still = [r for r in others if any(r not in n.src[1].ranges for n in along)]
    return max(still, key=lambda r: (min(r.extent, ENOUGH_ROWS), r.number), default=None)


def tile_of(facts: KernelFacts, limits: Limits, axis: UOp, row: UOp | None, vectors: int) -> Tile:
    """The tile with the least estimated time for the whole.

    Its width is a number of vectors along `axis`, or of steps of another loop along which the
    operand of the rows is invariant: for windows of an image, a number of its lines.
    """
    rows = 1 if row is None else row.extent
    below = None if row is None else image_rows(facts, axis, row)
    room = room_for_tile(facts, limits, row)
    time, tall, wide = register_tile(facts, limits, rows, vectors, room)
    # Lines that share no taps are read as well by a wide tile, which reads them whole.
    if below is not None and facts.rows_overlap(axis, below):
        other, taller, lines = register_tile(facts, limits, rows, below.extent, room)
        if lines > 1 and other * vectors <= time * below.extent:
            return Tile(taller, 1, below.number, lines)
    return Tile(tall, wide)


def image_rows(facts: KernelFacts, axis: UOp, row: UOp) -> UOp | None:
    """An output loop that moves the operand along `axis`, and no operand of the rows."""
    read = [n.src[1].ranges for n in facts.loads]
    along = [ranges for ranges in read if axis in ranges]
    across = [ranges for ranges in read if row in ranges]
    if any(axis in ranges for ranges in across):
        return None
    for loop in reversed(facts.nest_of(axis)):
        if loop not in (axis, row) and loop.extent > 1 and loop.kind in PLAIN_KINDS:
            moves = all(loop in ranges for ranges in along)
            if moves and not any(loop in ranges for ranges in across):
                return loop
    return None


def register_tile(
    facts: KernelFacts, limits: Limits, rows: int, columns: int, room: int
) -> tuple[float, int, int]:
    """The time of the best tile, and its rows and columns of accumulators.

    All must fit in `room` registers together with the operands. A kernel that overwrites what it
    reads cannot compute an element twice, so its tiles must divide the extents. Each of several
    groups of rows reads the whole panel, from the second cache if that is larger than the first.
    """
    best, tile, sums = math.inf, (1, 1), facts.simultaneous
    depth = iterations_of(facts.reduced)
    for wide in range(1, min(columns, limits.vector_registers) + 1):
        read = wide * limits.vector_bytes * sums
        is_far = read * depth > NEAR_CACHE_BYTES
        for tall in range(1, min(rows, MOST_ROWS) + 1):
            if tall * wide * sums + wide + 1 > room:
                break
            if facts.overwrites and (rows % tall or columns % wide):
                continue
            tiles = -(-rows // tall) * -(-columns // wide)
            work = max(tall * wide * sums, SUMS_IN_FLIGHT)
            again = read if is_far and tall < rows else 0
            step = cycles_of_step(work, (tall + wide) * sums, again)
            if tiles * step < best:
                best, tile = tiles * step, (tall, wide)
    return best, *tile


def room_for_tile(facts: KernelFacts, limits: Limits, row: UOp | None) -> int:
    """The registers a tile may take."""
    room = limits.vector_registers - SPARE_REGISTERS
    if not any(r.extent <= COMPILERS_UNROLL for r in facts.reduced[-1:]):
        return room
    shared = row is not None and any(
        facts.is_window(n, row) for n in facts.loads if row in n.src[1].ranges
    )
    return room - SPARE_FOR_WINDOWS - SPARE_FOR_SHARED * shared


# --- rows


def cut_pairs(draft: Draft, row: UOp, tall: int, columns: list[Number], panel: Dimension) -> bool:
    """Cut the rows with steps of the sums in pairs, if columns can be packed as such."""
    loop = loop_of_pairs(draft.facts, draft.limits)
    if not panel or loop is None:
        return False
    before = draft.copy()
    draft.do(Pair(loop.number))
    if cut_rows(draft, row, tall, columns, panel):
        return True
    draft.become(before)
    return False


def loop_of_pairs(facts: KernelFacts, limits: Limits) -> UOp | None:
    """The reduced loop whose neighboring steps one instruction can fold, if there is any."""
    if limits.pair_bytes < limits.vector_bytes:
        return None
    if not all(map(is_paired, facts.reductions)) or not facts.are_side_by_side:
        return None
    loops = facts.reduced
    even = [r for r in loops if r.extent % 2 == 0 or len(loops) == 1]
    return max(reversed(even), key=lambda r: r.extent > 2, default=None)


def cut_rows(draft: Draft, row: UOp, tall: int, columns: list[Number], panel: Dimension) -> bool:
    """Cut the loop over rows, move it inside of the panels, and pack where that pays.

    Returns True if the columns were packed.
    """
    facts, number = draft.facts, row.number
    order = [r.number for r in facts.outputs]
    place = min(order.index(n) for n in (number, *columns) if n in order)
    # Rows that are read far apart, and narrow ones that many panels would widen again, are packed
    # in blocks of MC rows; then loops around the rows stay where they are.
    scattered = tall > 1 and is_scattered(facts, row)
    panels = iterations_of(r for r in facts.outputs if r.number in columns)
    widened = panels >= LEAST_REUSE and is_widened(facts, row, facts.outputs[:place])
    copied = scattered or (tall > 1 and widened)
    between = [] if copied else loops_between(facts, columns, row)
    # A packed panel must be read often: loops along which it stands still move inside of it.
    if panel and not copied:
        between = [*loops_outside(facts, place, row, between), *between]
    outside = [n for n in order[:place] if n not in between]
    around = [r.extent for r in facts.outputs if r.number in (*outside, *columns)]
    block = block_of_rows(draft, row, tall, math.prod(around), copied)
    front = columns
    # The loop over blocks (IC of BLIS) is outermost, for threads to share. If a loop between panels
    # and rows is long enough, its steps are cut into blocks, and rows stay whole.
    place = min(order.index(n) for n in (order[place], *between))
    if block < row.extent and (pieces := pieces_of(draft, between, -(-row.extent // block))):
        draft.do(pieces)
        front, between[0] = [(*pieces.axis, 0), *columns], (*pieces.axis, 1)
    elif block < row.extent:
        draft.do(Split(number, block))
        front, number, between = [(*number, 0), *columns], (*number, 1), []
    if tall > 1:
        draft.cut(number, tall, AxisKind.UNROLL)
    front = [*front, *between, (*number, 0) if tall > 1 else number]
    # The rows of a tile go outside of its columns: then one broadcast operand is live at a time.
    to_front(draft, place, [*front, (*number, 1)] if tall > 1 else front)
    # Rows are packed at the loop over blocks, which there is for several blocks only.
    if copied and block < row.extent:
        pack_rows(draft, front[0], front[-1], (*number, 1), scattered)
    around_panel = loop_before(draft, [*between, front[-1]][0])
    return bool(panel) and pack_panel(draft, around_panel, panel)


def is_scattered(facts: KernelFacts, row: UOp) -> bool:
    """True if the rows of a tile read far apart along the innermost reduction loop."""
    read = (facts.stride(n, facts.reduced[-1]) for n in facts.loads if row in n.src[1].ranges)
    return any(stride is None or abs(stride) > LONGEST_STRIDE for stride in read)


def is_widened(facts: KernelFacts, row: UOp, around: list[UOp]) -> bool:
    """True if the operand of rows is widened before the product: better once than at each use.

    False if it also depends on loops other than those around the rows.
    """
    loads = [n for r in facts.reductions for n in facts.below(r) if n.op is Op.LOAD]
    read = [n for n in loads if row in n.ranges]
    inside = {r for r in facts.outputs if r is not row and r not in around}
    return any(n.dtype.itemsize < facts.itemsize for n in read) and all(
        inside.isdisjoint(n.ranges) for n in read
    )


def block_of_rows(draft: Draft, row: UOp, tall: int, panels: int, copied: bool) -> int:
    """MC of BLIS: the number of rows before the next panel.

    Usually all; as many as fit scratch memory if rows are packed, and fewer if there are too few
    panels to occupy all threads. Blocks of rows of a symbolic number are whole: few rows then are
    computed for nothing.
    """
    if not row.is_fixed:
        return min(BLOCK_OF_VARYING * tall, row.extent) if copied else row.extent
    facts, blocks = draft.facts, -(-pieces_wanted(draft) // panels)
    if copied:
        depth = iterations_of(facts.reduced) * facts.itemsize
        most = max(MOST_SCRATCH // depth // tall, LEAST_REUSE) * tall
        blocks = max(-(-row.extent // most), 2 * draft.limits.threads)
    groups = max(-(-row.extent // (blocks * tall)), LEAST_REUSE)
    return min(groups * tall, row.extent)


# --- the order of loops around and inside of panels


def loops_between(facts: KernelFacts, columns: list[Number], row: UOp) -> list[Number]:
    """The loops outside of the rows along which the columns' loads are invariant, too.

    They stay outside, so that the operand of the rows is read in memory order.
    """
    order = facts.outputs[: facts.outputs.index(row)]
    # A single column has no loop: then packing happens inside of the outermost loop.
    last = max((i for i, r in enumerate(order) if r.number in columns), default=0)
    still = [r for r in order[last + 1 :] if r.kind is AxisKind.LOOP]
    return [r.number for r in still if not moves_columns(facts, r, row)]


def loops_outside(facts: KernelFacts, place: int, row: UOp, between: list[Number]) -> list[Number]:
    """Loops outside of the columns that move inside, because few rows would read a packed panel.

    The operand of the columns is invariant along them.
    """
    inside = [r.extent for r in facts.outputs if r.number in between]
    rows, found = math.prod(inside) * row.extent, list[Number]()
    for r in reversed([r for r in facts.outputs[:place] if r.number not in between]):
        if rows >= ENOUGH_READ or moves_columns(facts, r, row):
            break
        rows *= r.extent
        found.insert(0, r.number)
    return found


def moves_columns(facts: KernelFacts, loop: UOp, row: UOp) -> bool:
    """True if an operand that all rows share moves with a loop."""
    return any(row not in n.src[1].ranges and loop in n.src[1].ranges for n in facts.loads)


def pieces_of(draft: Draft, between: list[Number], pieces: int) -> Split | None:
    """A Split of the outermost loop between panels and rows, if it is long enough."""
    if not between:
        return None
    loop = counter_of(draft.kernel, between[0])
    is_long = loop.is_fixed and loop.extent >= 2 * pieces
    return Split(between[0], -(-loop.extent // pieces)) if is_long else None


def to_front(draft: Draft, place: int, front: list[Number]) -> None:
    """Move some loops so that they begin at a place in the order of all."""
    there = [r.number for r in draft.facts.outputs]
    rest = [n for n in there if n not in front]
    draft.do(Reorder((*rest[:place], *(n for n in front if n in there), *rest[place:])))


def loop_before(draft: Draft, axis: Number) -> Number | None:
    """The loop right around another: of the nest, or of those around it; None if there is none."""
    order = [r.number for r in draft.facts.outputs if r.kind is AxisKind.LOOP]
    before = [*draft.around[-1:], *(order[: order.index(axis)] if axis in order else [])]
    return before[-1] if before else None
