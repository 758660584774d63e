"""Tiles of products whose columns texture units read, beside rows in shared memory.

Texture units have a cache of their own, so the two operands of a product come from two memories at
once: rows are staged for the group, and each thread reads the columns of its tile itself, in whole
pixels. For a convolution columns are the filters, which are contiguous in a copy (`layout.py`). Its
windows overlap: a thread with several adjacent windows loads what they share once, and multiplies
it by the weight of each tap that it is for. Of a few rows both operands are read by pixels along
the sum. No device has run any of this: costs are by rates that others measured (`chip.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tiny_qcom.banks import NEAR_BYTES, NEAR_TURNS, is_filled_across
from tiny_qcom.chip import L2_RATE, LANES, SHARED_RATE, TEXTURE_RATE
from tiny_qcom.texels import TEXEL, TEXTURED
from tinycore.dtype import PointerDType
from tinycore.render.base import Limits, pointer_of
from tinycore.tiling import (
    ADDRESSES,
    DEPTHS,
    FILL_CYCLES,
    GROUPS_BESIDE,
    LEAST_REUSE,
    SECTOR_BYTES,
    Bind,
    Cost,
    Draft,
    GroupTile,
    KernelFacts,
    LoopTile,
    Proposal,
    RegisterTile,
    Sides,
    Split,
    cut_depth,
    cut_side,
    deal_out,
    fill_of,
    fits_group,
    groups_of,
    launch_outputs,
    load_rows,
    operand_accesses,
    order_blocks,
    resident_groups,
    sides_of,
    stage_operands,
    steps_in_tile,
    threads_in,
    tiles_of,
    tiles_of_sides,
)
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

__all__ = ["Block", "blocks_of", "cost_of", "propose", "suits_textures", "tile_textured"]

WORD_BYTES: Final = 4
SHARED_WORD: Final = WORD_BYTES * LANES / SHARED_RATE
"""Clocks in which each thread reads a word of shared memory, in those of a multiply-add."""
TEXTURE_WORD: Final = WORD_BYTES * LANES / TEXTURE_RATE
"""The same by texture units."""
L2_WORD: Final = WORD_BYTES * LANES / L2_RATE
"""The same from the second cache."""
OUTPUTS: Final = 4
"""Outputs of a thread that reads their operands from buffers."""

TEXTURED_TILES: Final = tuple(
    itertools.starmap(RegisterTile, ((16, 8), (12, 8), (16, 6), (8, 8), (8, 4), (4, 4), (4, 2)))
)
"""Register tiles, the best first."""
WIDE_OF_WINDOWS: Final = (16, 8)
"""Columns of a thread whose rows are windows that overlap in its registers."""
BESIDE: Final = (14, 9, 8, 7, 6, 5, 4, 3)
"""Windows of a thread that overlap."""
MOST_TAPS: Final = 5
"""Steps of a window that are unrolled."""
UNROLLED_TEXTURED: Final = 2
"""Steps of a block that are unrolled there."""
TILES_ALONG_SUM: Final = ((4, 4), (2, 4), (1, 4), (2, 2), (1, 2))
"""Columns and rows of a thread that reads both operands by pixels along the sum."""
MOST_LANES: Final = 64
"""Most sums of such a thread, times the lanes of each."""


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """Tiles that take less time than threads that read both operands from buffers.

    None where the units are not stated over which groups are spread: nothing says how they fill.
    """
    sides, wanted = sides_of(facts), min(limits.block_wanted, limits.block_threads)
    if sides is None or wanted < limits.subgroup or not limits.units:
        return
    most = Cost(cost_of_buffers(facts, limits, wanted))
    for proposal in (
        *tiles_along_sum(facts, limits, sides, wanted),
        *tiles_of_pixels(facts, limits, sides, wanted),
    ):
        if proposal.cost < most:
            yield proposal


def cost_of_buffers(facts: KernelFacts, limits: Limits, wanted: int) -> float:
    """Cycles per multiply-add of threads that read both operands from buffers.

    A thread computes a tile of outputs; of few outputs a group shares each sum, and adds up its
    parts in shared memory.
    """
    if facts.outputs_launched >= limits.threads:
        return 1 + 2 * L2_WORD / math.sqrt(OUTPUTS)
    steps = facts.longest_reduction
    folded = 2 * SHARED_WORD * min(wanted, steps) / steps
    cycles = 1 + L2_WORD * (1 + 1 / wanted) + folded
    return cycles * limits.unevenness(facts.outputs_launched)


def tiles_of_pixels(
    facts: KernelFacts, limits: Limits, found: Sides, wanted: int
) -> Iterator[Proposal]:
    """Blocks of outputs for groups of `wanted` threads, or of a subgroup."""
    turned = found, Sides(found.columns, found.rows)
    for sides in (s for s in turned if suits_textures(facts, s)):
        for ordered, block in blocks_of(facts, limits, sides, wanted):
            for depth in DEPTHS if block.window is None else DEPTHS[:1]:
                cost = cost_of(facts, limits, ordered, block, depth)
                step = partial(tile_textured, sides=ordered, block=block, depth=depth)
                if not math.isinf(cost):
                    yield Proposal(f"grid {block}x{depth}", None, Cost(cost), step)


def price_of(facts: KernelFacts, limits: Limits, sides: Sides, block: Block) -> tuple[float, float]:
    """Cost of a block at its best depth. Ties go to the block that reads less, and to one whose
    groups are resident in pairs."""
    costs = [cost_of(facts, limits, sides, block, depth) for depth in DEPTHS]
    is_alone = groups_of(facts, sides, block.tiles) <= limits.units
    return min(costs), sum(block.words(limits.subgroup)) + is_alone


def cost_of(
    facts: KernelFacts, limits: Limits, sides: Sides, block: Block, depth: int = DEPTHS[0]
) -> float:
    """Cycles per multiply-add of each output; infinite if registers do not suffice.

    The unit with most groups finishes last: there may be few groups, and tiles exceed the outputs.
    Its lanes execute whole subgroups; its memories serve the threads that exist.
    """
    if not resident_groups(limits, block.threads, block.registers):
        return math.inf
    most = -(-groups_of(facts, sides, block.tiles) // limits.units)
    slots = most * -(-block.threads // limits.subgroup) * limits.subgroup
    each = limits.units * block.wide * block.tall / facts.outputs_launched
    room = limits.unit_shared_bytes or limits.shared_bytes
    is_alone = most == 1 or GROUPS_BESIDE * block.staged(depth) > room
    computed: float = -(-slots // LANES) * LANES
    near, pixels = block.words(limits.subgroup)
    shared, textured = near * SHARED_WORD, pixels * TEXTURE_WORD
    far = L2_WORD * block.far(limits.subgroup)
    computed += slots * shared if is_alone else 0
    filled = FILL_CYCLES / depth * slots
    return (max(computed, slots * max(shared, textured, far)) + filled) * each


@dataclass(frozen=True)
class Window:
    """A window along a row of outputs."""

    tap: UOp
    """The loop of the sum over its places."""
    moved: int
    """Taps from window to window (the stride)."""
    apart: int
    """Elements between windows, where they lie side by side; else 0."""


@dataclass(frozen=True)
class Block:
    """Tiles of threads and of a group whose columns are read by texture units."""

    wide: int
    tiles: GroupTile
    beside: int = 1
    """Adjacent rows of a thread. If 1, adjacent threads have adjacent rows, and read them
    together."""
    window: Window | None = None
    """Windows that overlap in the registers of a thread."""

    def __str__(self) -> str:
        return f"textured {self.wide}x{self.tall}" + (" windows" if self.window else "")

    @property
    def tall(self) -> int:
        """Rows of a thread."""
        return math.prod(tile.copies for tile in self.tiles.rows)

    @property
    def columns(self) -> int:
        """Columns of a group."""
        return math.prod(math.prod(tile) for tile in self.tiles.columns)

    @property
    def taps(self) -> int:
        """Steps of the sum that read the same rows."""
        return 1 if self.window is None else self.window.tap.extent

    @property
    def read(self) -> int:
        """Elements that a thread reads for adjacent rows in these steps."""
        moved = 1 if self.window is None else self.window.moved
        return (self.beside - 1) * moved + self.taps

    @property
    def registers(self) -> int:
        """Registers of a thread: sums, operands, addresses."""
        return self.wide * self.tall + self.wide + self.tall // self.beside * self.read + ADDRESSES

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return threads_in([tile for side in self.tiles for tile in side])

    def words(self, subgroup: int) -> tuple[float, float]:
        """Words per multiply-add from shared memory and from textures.

        Threads whose windows begin an even number of words apart share banks. A subgroup reads
        neighboring rows faster. Staged elements are read through textures once, and stored.
        """
        threads = self.tiles.rows[-1].threads
        apart = self.beside * (self.window.apart if self.window else 0)
        conflicts: float = min(apart & -apart, threads) if apart else 1
        down = -(-subgroup // threads_in(self.tiles.columns))
        if self.beside == 1 and min(down, threads) * WORD_BYTES <= NEAR_BYTES:
            conflicts = NEAR_TURNS
        read = conflicts * self.read / (self.taps * self.beside * self.wide)
        staged = 1 / (self.taps**2 * self.columns)
        return read + staged, 1 / self.tall + staged

    def far(self, subgroup: int) -> float:
        """Words per multiply-add from L2: a subgroup reads its columns once, a group its rows."""
        across, down = threads_in(self.tiles.columns), threads_in(self.tiles.rows)
        rows = self.tall * min(max(subgroup // across, 1), down)
        return 1 / rows + 1 / (self.taps**2 * self.columns)

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return math.prod(math.prod(tile) for tile in self.tiles.rows)

    def staged(self, depth: int) -> int:
        """Bytes of rows in shared memory."""
        return self.rows * max(depth // self.taps**2, 1) * WORD_BYTES


def blocks_of(
    facts: KernelFacts, limits: Limits, sides: Sides, wanted: int
) -> Iterator[tuple[Sides, Block]]:
    """The best block for each register tile, and blocks whose rows are overlapping windows."""
    for tile in TEXTURED_TILES:
        shapes = [
            tiles_of_sides(sides, threads, tile, facts.overwrites)
            for threads in (wanted, min(wanted, limits.subgroup))
        ]
        if not facts.overwrites:
            shapes += even_tiles(sides, wanted, limits.subgroup, tile)
        blocks = [Block(tile.wide, tiles) for tiles in shapes]
        yield sides, min(blocks, key=lambda block: price_of(facts, limits, sides, block))
    for row in () if facts.overwrites else sides.rows:
        yield from blocks_of_windows(facts, limits, sides, row, wanted)


def even_tiles(sides: Sides, most: int, subgroup: int, tile: RegisterTile) -> Iterator[GroupTile]:
    """Tiles of groups of at most `most` threads that divide the innermost loops equally.

    Or with more threads along columns, as fill the last subgroup, whose lanes are idle otherwise.
    """
    (*above, row), (*beside, column) = sides.rows, sides.columns
    for high in equal_parts(row.extent, tile.tall, most):
        for least in equal_parts(column.extent, tile.wide, most // high)[:2]:
            whole = -(-high * least // subgroup) * subgroup // high
            for broad in dict.fromkeys((least, whole) if high * whole <= most else (least,)):
                yield GroupTile(
                    [LoopTile(1, 1)] * len(above) + [LoopTile(high, tile.tall)],
                    [LoopTile(1, 1)] * len(beside) + [LoopTile(broad, tile.wide)],
                )


def equal_parts(extent: int, own: int, most: int) -> list[int]:
    """Numbers of threads, of `own` steps each, that divide a loop into equal parts, most first."""
    counts = range(1, -(-extent // own) + 1)
    found = dict.fromkeys(-(-extent // (own * parts)) for parts in counts)
    return [threads for threads in found if threads <= most]


def blocks_of_windows(
    facts: KernelFacts, limits: Limits, sides: Sides, row: UOp, wanted: int
) -> Iterator[tuple[Sides, Block]]:
    """Blocks in which a thread has adjacent windows along a row, and loads shared elements once."""
    window = window_of(facts, row)
    if window is None:
        return
    others = tuple(r for r in sides.rows if r is not row)
    turned = Sides((*others, row), sides.columns)
    across = 1 << (wanted.bit_length() // 2)
    for wide, own in itertools.product(WIDE_OF_WINDOWS, BESIDE):
        broad = tiles_of(sides.columns, across, wide, exact=False)
        room = wanted // threads_in(broad)
        threads = [1 << n for n in range(room.bit_length()) if n == 0 or own << n <= row.extent]
        blocks = []
        for n, more in itertools.product(threads, (1, 2)):
            rows = [*tiles_of(others, room // n, more, exact=False), LoopTile(n, own)]
            blocks.append(Block(wide, GroupTile(rows, broad), own, window))
        # Of equals the first: fewest threads along these rows are most along those beside them.
        yield turned, min(blocks, key=lambda block: cost_of(facts, limits, turned, block))


def window_of(facts: KernelFacts, row: UOp) -> Window | None:
    """The window along a row: a loop of the sum that moves along it; None where there is none."""
    places = [n for n in operand_accesses(facts) if row in n.ranges]
    for tap in (r for r in steps_of_block(facts) if 1 < r.extent <= MOST_TAPS):
        moves = {(facts.stride(n, tap), facts.stride(n, row)) for n in places}
        near, far = moves.pop() if len(moves) == 1 else (None, None)
        if near and far and near > 0 and far % near == 0 and 0 < far // near < tap.extent:
            return Window(tap, far // near, far if near == 1 else 0)
    return None


def steps_of_block(facts: KernelFacts) -> Iterator[UOp]:
    """The reduced loops that are entirely inside a block, as `cut_depth` splits them."""
    room = DEPTHS[0]
    for loop in reversed(facts.reduced):
        if loop.extent > 2 * room or not loop.is_fixed:
            return
        yield loop
        room = max(room // loop.extent, 1)


def tile_textured(draft: Draft, sides: Sides, block: Block, depth: int) -> bool | None:
    """Compute a block of outputs per group with staged rows, and unroll a few steps."""
    steps = math.prod(r.extent for r in draft.facts.reduced)
    widest = max(n.dtype.itemsize for n in draft.facts.loads)
    lanes = min(draft.lanes(), block.wide)
    kind = AxisKind.VECTOR if lanes > 1 else AxisKind.UNROLL
    columns = cut_side(draft, sides.columns, block.tiles.columns, kind, lanes)
    rows = cut_side(draft, sides.rows, block.tiles.rows, AxisKind.UNROLL, block.beside)
    if min(steps_in_tile(draft, columns), steps_in_tile(draft, rows)) < LEAST_REUSE:
        return False
    draft.launch()
    at, inner = cut_depth(draft, depth)
    staged = stage_operands(draft, at, inner, tuple(sorted(rows)))
    for number in staged:
        deal_out(draft, number, is_across=is_filled_across(draft, fill_of(draft, number)))
    if not staged or not fits_group(draft):
        return False
    order_blocks(draft, sides.rows[-1], sides.columns[-1], steps, widest)
    if block.window is not None:
        draft.do(Bind(block.window.tap.arg.number, AxisKind.UNROLL))
    unroll_textured(draft)
    return None


def suits_textures(facts: KernelFacts, sides: Sides) -> bool:
    """True if all operands that vary with the columns of a tile can be read in whole pixels."""
    column, written = sides.columns[-1], {pointer_of(n) for n in facts.stored}
    for index in (n for n in operand_accesses(facts) if column in n.ranges):
        pointer = pointer_of(index)
        assert isinstance(pointer.dtype, PointerDType)
        is_read = pointer.op is Op.DEFINE_GLOBAL and pointer not in written
        if not is_read or pointer.dtype.base not in TEXTURED or len(index.src) > 2:
            return False
        apart = [facts.stride(index, r) for r in index.ranges if r is not column]
        if facts.stride(index, column) != 1 or column.extent % TEXEL:
            return False
        if any(stride is None or stride % TEXEL for stride in apart):
            return False
    return True


def loop_of_pixels(facts: KernelFacts, limits: Limits) -> UOp | None:
    """The innermost loop of a sum, if all operands are read by whole pixels along it."""
    innermost = {n.src[-1] for n in facts.reductions}
    loop = next(iter(innermost)) if len(innermost) == 1 else None
    if loop is None or loop.op is not Op.RANGE or not loop.is_fixed:
        return None
    written = {pointer_of(n) for n in facts.stored}
    lanes = limits.vector_bytes // min(n.dtype.itemsize for n in facts.loads)
    if lanes % TEXEL or lanes == 0 or loop.extent % lanes:
        return None
    for index in operand_accesses(facts):
        pointer = pointer_of(index)
        assert isinstance(pointer.dtype, PointerDType)
        if pointer in written or pointer.dtype.base not in TEXTURED or len(index.src) > 2:
            return None
        apart = [facts.stride(index, r) for r in index.ranges if r is not loop]
        if facts.stride(index, loop) != 1 or any(n is None or n % lanes for n in apart):
            return None
    return loop


def unroll_textured(draft: Draft) -> None:
    """Unroll a few steps of a block: for more, registers would not hold the operands."""
    (loop,) = dict.fromkeys(n.src[-1] for n in draft.facts.reductions)
    if loop.arg.kind is AxisKind.REDUCE and loop.extent % UNROLLED_TEXTURED == 0:
        number = loop.arg.number
        draft.cut(number, UNROLLED_TEXTURED, AxisKind.UNROLL)


def tiles_along_sum(
    facts: KernelFacts, limits: Limits, sides: Sides, wanted: int
) -> Iterator[Proposal]:
    """Tiles of threads that read both operands of a product through textures, along the sum.

    For a few rows times a matrix that is contiguous along the sum: a transposed copy does not pay.
    """
    loop = loop_of_pixels(facts, limits)
    if loop is None or facts.overwrites:
        return
    row, column = sides.rows[-1], sides.columns[-1]
    size = min(n.dtype.itemsize for n in facts.loads)
    lanes = limits.vector_bytes // size
    for wide, tall in TILES_ALONG_SUM:
        is_whole = row.extent % tall == 0 and column.extent % wide == 0
        groups = facts.outputs_launched // (wide * tall * wanted)
        if not is_whole or wide * tall * lanes > MOST_LANES or groups < limits.units:
            continue
        textured = (1 / wide + 1 / tall) * TEXTURE_WORD
        pieces = max(SECTOR_BYTES // (lanes * size), 1)
        far = pieces * size / WORD_BYTES / tall * L2_WORD
        cost = Cost((1 + max(textured, far)) * limits.unevenness(groups))
        steps = partial(pixels_each, sides=(row, column), tile=(wide, tall), wanted=wanted)
        yield Proposal(f"grid along sum {wide}x{tall}", loop, cost, steps)


def pixels_each(draft: Draft, sides: tuple[UOp, UOp], tile: tuple[int, int], wanted: int) -> None:
    """Give each thread rows and columns, of which it reads vectors along the sum.

    Adjacent columns go to adjacent threads.
    """
    (row, column), (wide, tall) = (r.arg.number for r in sides), tile
    if tall > 1:
        draft.cut(row, tall, AxisKind.UNROLL)
    if wide > 1:
        draft.do(Split(column, sides[1].extent // wide), Bind((*column, 0), AxisKind.UNROLL))
    load_rows(draft)
    launch_outputs(draft, wanted)
