"""Tile sizes on a grid: a table of what is tried at each level, for each kind of unit.

Floor 3'. A group computes a block of a product (GRID); each of its threads or subgroups a part of
the block (SUBGROUP), in tiles of a unit (UNIT): a matrix unit, or multiply-adds of a thread.
Operands of a few steps of the sum are in shared memory, in one or more copies (STAGE). The levels
are those of CUTLASS. `LEVELS` has the sizes of each, and no strategy has others; `Limits` says
which fit, and `cost.py` which are cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp


class Tile(NamedTuple):
    """The part of a block that a thread or a subgroup computes, with its sums in registers."""

    rows: int
    columns: int
    tall: int = 0
    """Threads or subgroups of a group along rows; 0: as many as suit the loops."""
    wide: int = 0
    """The same along columns."""


class RegisterTile(NamedTuple):
    """The outputs of one thread, whose sums stay in its registers."""

    wide: int
    """Columns."""
    tall: int
    """Rows."""


class LoopTile(NamedTuple):
    """The part of an output loop that one group computes."""

    threads: int
    """Threads that share the loop."""
    copies: int
    """Steps of each thread."""


class GroupTile(NamedTuple):
    """The block of outputs that one group computes, by loops."""

    rows: list[LoopTile]
    columns: list[LoopTile]


class Level(NamedTuple):
    """A row of the table: the sizes of each level for a kind of unit."""

    unit: str
    """The kind of unit: of a subgroup, of a thread, or a thread's own multiply-adds (vector)."""
    tiles: tuple[Tile, ...]
    """SUBGROUP: the best first, of which the first is taken where estimates are equal."""
    depths: tuple[int, ...] = (64,)
    """STAGE: bytes of a row of an operand that are staged at a time; for vectors steps of a sum."""
    copies: int = 4
    """STAGE: most copies, where a device fills some while groups read another."""
    sharers: tuple[int, ...] = ()
    """Lanes that may share each sum where groups are too few for the device."""
    is_large: bool = False
    """True for tiles whose sums take most registers: for devices that state how many there are."""


ONE_TILE: Final = Tile(1, 1, 1, 1)
"""One tile of a matrix unit, whatever its size."""
DEPTHS: Final = (16, 8, 4)
"""Steps of a sum between two fills, approximately."""

LEVELS: Final = (
    Level("subgroup", (Tile(64, 64, 2, 4), Tile(64, 64, 4, 2), Tile(64, 64, 2, 2)), is_large=True),
    Level(
        "subgroup",
        (
            Tile(64, 32, 2, 4),
            Tile(32, 64, 4, 2),
            Tile(64, 32, 2, 2),
            Tile(32, 32, 2, 2),
            Tile(32, 16, 2, 2),
            Tile(32, 16, 2, 1),
            Tile(16, 16, 1, 1),
            ONE_TILE,
        ),
    ),
    # Of products with few rows.
    Level("subgroup", (Tile(64, 32, 1, 4), Tile(32, 32, 1, 4), Tile(16, 32, 1, 4)), is_large=True),
    Level("thread", (Tile(4, 4, 16, 16), Tile(4, 4, 8, 8), Tile(2, 2, 8, 8), ONE_TILE)),
    Level("vector", (Tile(8, 8), Tile(4, 8)), DEPTHS, 3, (2, 4, 8), is_large=True),
    Level("vector", (Tile(4, 4), Tile(2, 4), Tile(2, 2), Tile(2, 1), Tile(1, 1)), DEPTHS, 3),
)
"""Every row. Tiles of a subgroup and large ones were chosen by counts for an H200, an RX 7900 XTX
and an M3 (`benchmarks/cards`), those of vectors by times of PoCL and lavapipe; those of a thread by
made-up instructions alone. Their order is that of docs/decisions/0051-proposals.md.
"""

ADDRESSES: Final = 24
"""Registers of a thread beside its sums and operands."""
LOADS_OF_A_COPY: Final = 2
"""Cost of a step's loads in multiply-adds, divided among the copies of a thread."""
LOADS_OF_A_TILE: Final = 8
"""Cost of a step's fill in multiply-adds, divided among a row of the tile."""
UNEVEN: Final = 1.05
"""Cost factor of a number of threads that is not a power of two."""


def levels_of(limits: Limits, unit: MatrixUnit | None) -> Iterator[tuple[Level, Tile]]:
    """The tiles to try on a unit, each with its row; None is the unit of vectors."""
    has_room = bool(limits.units and limits.unit_registers)
    kind = "vector" if unit is None else "thread" if unit.threads == 1 else "subgroup"
    for level in LEVELS:
        if level.unit == kind and (has_room or not level.is_large):
            for tile in level.tiles:
                yield level, tile


# --- tiles of loops


def tiles_of(loops: tuple[UOp, ...], most: int, copies: int, exact: bool) -> list[LoopTile]:
    """The tile of each loop, innermost filled first; at most `most` threads in total."""
    found: list[LoopTile] = []
    for loop in reversed(loops):
        tile = loop_tile(loop.extent, most, copies, exact)
        found.insert(0, tile)
        most //= tile.threads
        copies //= tile.copies
    return found


def threads_in(tiles: list[LoopTile]) -> int:
    """The total threads of some tiles."""
    return math.prod(threads for threads, _ in tiles)


def loop_tile(extent: int, most: int, copies: int, exact: bool) -> LoopTile:
    """The tile of a loop with the least work, of at most `most` threads and `copies` per thread.

    Work counts every output computed, including those computed twice at the end of the loop, and
    the loads of each. If `exact`, none may be computed twice.
    """
    best, tile = math.inf, LoopTile(1, 1)
    for own in (n for n in (16, 8, 4, 2, 1) if n <= copies):
        for threads in range(1, min(most, extent // own) + 1):
            steps = threads * own
            if exact and extent % steps:
                continue
            computed = -(-extent // steps) * steps
            time = computed * (1 + LOADS_OF_A_COPY / own + LOADS_OF_A_TILE / steps)
            if threads & (threads - 1):
                time *= UNEVEN
            if time < best:
                best, tile = time, LoopTile(threads, own)
    return tile


def block_of(extent: int, wanted: int, of: int = 1) -> int:
    """The steps of a block: the divisor of the extent nearest to `wanted` that is a multiple of
    `of`, else `wanted`."""
    near = [n for n in range(max(wanted // 2, 2), 2 * wanted + 1) if extent % n == n % of == 0]
    return min(near, key=lambda n: abs(n - wanted), default=wanted)
