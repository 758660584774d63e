"""Chains of products: which kernels of two products a matrix unit computes as one, and why not.

Floor 2. The only place that decides this. The scheduler asks before it fuses kernels
(`schedule/product_chains.py`), the frontend asks by sizes alone, and lowering plans from the same
answer (`lower/strategies/matrix_chain.py`). So a fused kernel always has a plan, and a refusal
states its reason.
See docs/decisions/0063-chains-of-products.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.proportional import are_one_pass

LEAST_ROWS: Final = 2
"""Fewest rows for which a tile of keys and values is worth staging."""
MOST_REGISTERS: Final = 255
"""Registers of a thread where a device states none."""


class RowDivision(NamedTuple):
    """The rows of a group, divided among its subgroups."""

    subgroups: int
    tiles: int
    """Tiles of rows of a subgroup, which share the fragments of the other operands."""
    least: int
    """Fewest columns of a block of scores for which this division pays."""


ROW_DIVISIONS: Final = (RowDivision(4, 2, 32), RowDivision(8, 1, 16))
"""Divisions of rows, the best first."""
DESCRIBED_ROW_DIVISIONS: Final = (
    RowDivision(2, 1, 64),
    RowDivision(3, 1, 64),
    RowDivision(1, 1, 64),
)
"""Divisions for a unit that reads staged operands by itself (wgmma). Its products for one subgroup
overlap with the folds of another, so as many are resident as registers allow. Ties go to divisions
that share a stage: on an H200, attention of 128 features by groups of one took 8.1 TB/s from L2,
close to the highest rate measured."""


class Sizes(NamedTuple):
    """The sizes of a chain: (rows x steps) @ (steps x between) @ (between x columns)."""

    others: int
    """Number of independent chains (batch and heads)."""
    rows: int
    between: int
    """Columns of the first products, over which the second ones sum."""
    steps: tuple[int, ...]
    """Lengths of the sums of each first product."""
    columns: tuple[int, ...]
    """Widths of each second product."""


MOST_PADDED: Final = 1.25
"""Largest ratio of a padded size to the size of the product: 48 for a head of 40 features."""
MOST_COLUMN_PARTS: Final = 2
"""Most groups among which the columns of results are divided where registers do not hold them all.
Each group computes the first products again, which is more work but no more memory traffic."""


class ChainTile(NamedTuple):
    """The part of a chain that a group computes at a time."""

    rows: RowDivision
    block: int
    """Columns of a block of scores, which registers hold."""
    parts: int = 1
    """Groups among which the columns of results are divided."""


@dataclass(frozen=True)
class Products:
    """The loops of a chain of products, and their sizes."""

    m: UOp
    """Rows."""
    n: UOp
    """Columns of the second products."""
    between: UOp
    """Columns of the first products, over which the second ones sum."""
    k: tuple[UOp, ...]
    """Steps of the first products."""
    sizes: Sizes


def units_of(limits: Limits) -> Iterator[MatrixUnit]:
    """The units whose accumulators can be an operand, and whose lanes can reduce rows of them."""
    for unit in limits.matrix if limits.grid is not None else ():
        is_whole = unit.is_of(limits.subgroup) and unit.out in limits.shuffles
        is_exact = settings.ALLOW_TF32 or not unit.rounds
        if is_whole and is_exact and unit.chained is not None:
            yield unit.chained


def padded(length: int, by: int) -> int:
    """A length, rounded up to a multiple."""
    return -(-length // by) * by


def with_padding(unit: MatrixUnit, sizes: Sizes) -> Sizes:
    """The sizes, rounded up to what a unit computes."""
    steps = tuple(padded(n, unit.k) for n in sizes.steps)
    columns = tuple(padded(n, unit.n) for n in sizes.columns)
    return sizes._replace(steps=steps, columns=columns)


def registers_of(limits: Limits) -> int:
    """Registers of a thread."""
    return limits.thread_registers or MOST_REGISTERS


# --- by sizes


def chain_tiles(
    limits: Limits, unit: MatrixUnit, sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> Iterator[ChainTile]:
    """The tiles whose sums and operands fit the registers of a unit, the best first.

    All divide the columns of results into the same number of parts, the smallest possible.
    """
    _, rows, between, steps, columns = with_padding(unit, sizes)
    divisions = DESCRIBED_ROW_DIVISIONS if unit.is_described else ROW_DIVISIONS
    found = False
    for parts in range(1, most_parts + 1):
        if found or (parts > 1 and any(n % (parts * unit.n) for n in sizes.columns)):
            return
        own = [n // parts for n in columns]
        for division in divisions:
            if (division.tiles - 1) * unit.m >= rows:
                continue
            block = unit.block_of_chain(own, steps, between, registers_of(limits), division.tiles)
            if block is not None and block >= min(division.least, between):
                found = True
                yield ChainTile(division, block, parts)


def refusal_by_unit(
    limits: Limits, unit: MatrixUnit, sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> str | None:
    """Why a unit cannot or should not compute a chain of some sizes; None if it does."""
    others, rows, between, *_ = sizes
    # Where keys and values are copied asynchronously, a tile may have few rows, as in decoding.
    least = LEAST_ROWS if limits.copies and not unit.is_described else unit.m
    if rows < least:
        return f"{rows} rows are fewer than {least}"
    row_tiles = others * max(rows // unit.m, 1)
    if row_tiles < limits.units:
        return f"{row_tiles} tiles of {unit.m} rows are fewer than the {limits.units} units"
    most = 1.0 if unit.is_described else MOST_PADDED
    for name, found, size in (("columns", sizes.columns, unit.n), ("steps", sizes.steps, unit.k)):
        if odd := [n for n in found if padded(n, size) > most * n]:
            return f"{odd[0]} {name} are not a multiple of {size}"
    steps, columns = with_padding(unit, sizes)[-2:]
    tiles = list(chain_tiles(limits, unit, sizes, most_parts))
    divisions = DESCRIBED_ROW_DIVISIONS if unit.is_described else ROW_DIVISIONS
    block = max(divisions[-1].least, unit.k)
    if not tiles and between < block:
        return f"{between} columns between are fewer than a block of {block}"
    if not tiles:
        needed = unit.registers_of_chain(columns, steps, block)
        features = max(*columns, *steps)
        return f"sums of {features} features need {needed} registers of {registers_of(limits)}"
    staged = tiles[-1].block * (sum(steps) + sum(columns)) * unit.a.itemsize
    if unit.is_described and staged > limits.shared_bytes:
        return f"operands need {staged} bytes of shared memory of {limits.shared_bytes}"
    return None


# --- by the graph of a kernel


def factors_of(total: UOp, unit: MatrixUnit) -> tuple[UOp, UOp] | None:
    """The factors of a sum of products over one loop, if it has the types of a unit; else None."""
    value = total.src[0]
    if total.arg is not Op.ADD or value.op is not Op.MUL or len(total.src) != 2:
        return None
    a, b = (s.src[0] if s.op is Op.CAST else s for s in value.src)
    is_ours = a.dtype is unit.a and b.dtype is unit.b and value.dtype is unit.out
    return (a, b) if is_ours else None


def has_sums(value: UOp) -> bool:
    """True if a value depends on a reduction."""
    return any(n.op is Op.REDUCE for n in value.toposort())


def products_of(kernel: UOp, loops: Sequence[UOp], unit: MatrixUnit) -> Products | str:
    """The chain of products that a kernel computes on a unit; as text, why it computes none.

    `loops` are the loops over its outputs.
    """
    folds = kernel.every(Op.REDUCE)
    factors = {n: found for n in folds if (found := factors_of(n, unit)) is not None}
    made = {n: [f for f in found if has_sums(f)] for n, found in factors.items()}
    seconds = [n for n in factors if made[n]]
    between = {n.src[1] for n in seconds}
    if len(between) != 1 or any(len(made[n]) > 1 for n in seconds):
        return f"no product of {unit.a.name} has another one as an operand"
    (through,) = between
    firsts = [n for n in folds if through not in n.src[1:]]
    if not firsts or not all(n in factors for n in firsts):
        return f"what is summed first is not a product of {unit.a.name}"
    if not is_one_pass([n for n in folds if n not in firsts], seconds, through):
        return "the folds of rows are not one maximum and sums proportional to exp(-maximum)"
    pairs = [(made[n][0], next(f for f in factors[n] if f is not made[n][0])) for n in seconds]
    rows = {r for a, b in pairs for r in loops if r in a.ranges and r not in b.ranges}
    columns = {r for a, b in pairs for r in loops if r in b.ranges and r not in a.ranges}
    if not rows or len(columns) != 1 or not all(columns <= b.ranges for _, b in pairs):
        return "second products differ by more than rows and columns"
    # The longest loop, and of equals the innermost: heads that share keys are rows, too.
    row = max((r for r in reversed(loops) if r in rows), key=lambda r: int(r.extent))
    (column,) = columns
    if not all(are_sides(factors[n], row, through) for n in firsts):
        return "first products do not move by rows on one side, and by columns on the other"
    if any(row in b.ranges or column in a.ranges for a, b in pairs):
        return "second products have no rows in common"
    others = 1
    for loop in loops:
        others *= 1 if loop in (row, column) else int(loop.extent)
    summed = [n.src[1] for n in firsts]
    steps, widths = tuple(int(r.extent) for r in summed), (int(column.extent),) * len(seconds)
    sizes = Sizes(others, int(row.extent), int(through.extent), steps, widths)
    return Products(row, column, through, tuple(dict.fromkeys(summed)), sizes)


def is_one_pass(folds: Sequence[UOp], products: Sequence[UOp], between: UOp) -> bool:
    """True if one pass over the columns of first products can compute all folds over them."""
    if any(n.src[1:] != (between,) for n in folds):
        return False
    return folds == products or are_one_pass(folds)  # gradients have no maximum


def are_sides(factors: tuple[UOp, UOp], row: UOp, column: UOp) -> bool:
    """True if one factor varies with the row alone, and the other with the column alone."""
    return any(
        row in a.ranges and column not in a.ranges and column in b.ranges and row not in b.ranges
        for a, b in (factors, factors[::-1])
    )
