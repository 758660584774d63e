"""Chains of products: which kernels of two products a matrix unit computes as one, and why not.

Floor 2. The one place that decides it: the scheduler asks before it fuses kernels
(`schedule/product_chains.py`), the frontend by sizes alone, and the plan is made of the same answer
(`lower/strategies/matrix_chain.py`). So what is fused is planned so, and what is not says why.
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
from tinycore.uop.proportional import is_proportional

LEAST_ROWS: Final = 2
"""Rows that share what a tile reads of keys and values, at least."""
MOST_REGISTERS: Final = 255
"""Registers of a thread where a device states none."""


class Rows(NamedTuple):
    """The rows of a group: its subgroups, and the tiles of each, which share the fragments of the
    other operands."""

    subgroups: int
    tiles: int
    least: int
    """Least columns of a block of scores from which this division pays."""


WAYS: Final = (Rows(4, 2, 32), Rows(8, 1, 16))
"""Divisions of rows, the best first."""
WAYS_OF_SEVERAL: Final = (Rows(2, 1, 64), Rows(3, 1, 64), Rows(1, 1, 64))
"""Divisions for a unit of several subgroups that reads staged operands by itself: its products for
one overlap with the folds of another, so as many are resident as registers allow. Of equals those
that share what is staged: on an H200 attention of 128 features by groups of one had 8.1 TB/s of L2,
near the most that was seen of it."""


class Sizes(NamedTuple):
    """The sizes of products: rows x steps by steps x between, and those by between x columns."""

    others: int
    """Number of independent products (batch and heads)."""
    rows: int
    between: int
    steps: tuple[int, ...]
    """Lengths of the sums of each first product."""
    columns: tuple[int, ...]
    """Widths of each second product."""


MOST_PADDED: Final = 1.25
"""Steps or columns of a unit for one of a product: as 48 for the 40 features of a head."""
MOST_COLUMN_PARTS: Final = 2
"""Groups that share the columns of results where registers do not hold all of these. Each computes
the first products for itself, which is more work, but no more memory."""


class Way(NamedTuple):
    """A division of rows, the columns of a block of scores that registers hold with it, and the
    groups that share the columns of results."""

    rows: Rows
    block: int
    parts: int = 1


@dataclass(frozen=True)
class Products:
    """The loops of products, each once: rows, columns of the second ones, those between, and steps
    of the first ones; and their sizes."""

    m: UOp
    n: UOp
    between: UOp
    k: tuple[UOp, ...]
    sizes: Sizes


def units_of(limits: Limits) -> Iterator[MatrixUnit]:
    """The units whose accumulators can be an operand, in rows that lanes reduce."""
    for unit in limits.matrix if limits.grid is not None else ():
        is_whole = unit.is_of(limits.subgroup) and unit.out in limits.shuffles
        is_exact = settings.ALLOW_TF32 or not unit.rounds
        if is_whole and is_exact and unit.chained is not None:
            yield unit.chained


def padded(length: int, by: int) -> int:
    """The length of a sum, or the width of a result, in whole steps of a unit."""
    return -(-length // by) * by


def with_padding(unit: MatrixUnit, sizes: Sizes) -> Sizes:
    """The sizes of products that a unit computes for others that its steps do not divide."""
    steps = tuple(padded(n, unit.k) for n in sizes.steps)
    columns = tuple(padded(n, unit.n) for n in sizes.columns)
    return sizes._replace(steps=steps, columns=columns)


def registers_of(limits: Limits) -> int:
    """Registers of a thread."""
    return limits.thread_registers or MOST_REGISTERS


# --- by sizes


def ways_of(
    limits: Limits, unit: MatrixUnit, sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> Iterator[Way]:
    """The divisions whose sums and operands the registers of a unit hold, the best first.

    Those of as few parts as any has.
    """
    _, rows, between, steps, columns = with_padding(unit, sizes)
    ways = WAYS_OF_SEVERAL if unit.is_described else WAYS
    found = False
    for parts in range(1, most_parts + 1):
        if found or (parts > 1 and any(n % (parts * unit.n) for n in sizes.columns)):
            return
        own = [n // parts for n in columns]
        for way in ways:
            if (way.tiles - 1) * unit.m >= rows:
                continue
            block = unit.block_of_chain(own, steps, between, registers_of(limits), way.tiles)
            if block is not None and block >= min(way.least, between):
                found = True
                yield Way(way, block, parts)


def refusal_by_unit(
    limits: Limits, unit: MatrixUnit, sizes: Sizes, most_parts: int = MOST_COLUMN_PARTS
) -> str | None:
    """Why a unit computes no chain of products of some sizes, or should not; None if it does."""
    others, rows, between, *_ = sizes
    # Where keys and values are copied meanwhile, a tile may have few rows, as in decoding.
    least = LEAST_ROWS if limits.async_bytes and not unit.is_described else unit.m
    if rows < least:
        return f"{rows} rows are fewer than {least}"
    tiles = others * max(rows // unit.m, 1)
    if tiles < limits.units:
        return f"{tiles} tiles of {unit.m} rows are fewer than the {limits.units} units"
    most = 1.0 if unit.is_described else MOST_PADDED
    for name, found, size in (("columns", sizes.columns, unit.n), ("steps", sizes.steps, unit.k)):
        if odd := [n for n in found if padded(n, size) > most * n]:
            return f"{odd[0]} {name} are no multiple of {size}"
    steps, columns = with_padding(unit, sizes)[-2:]
    ways = list(ways_of(limits, unit, sizes, most_parts))
    block = WAYS_OF_SEVERAL[-1].least if unit.is_described else max(unit.k, WAYS[-1].least)
    if not ways and between < block:
        return f"{between} columns between are fewer than a block of {block}"
    if not ways:
        needed = unit.registers_of_chain(columns, steps, block)
        features = max(*columns, *steps)
        return f"sums of {features} features need {needed} registers of {registers_of(limits)}"
    staged = ways[-1].block * (sum(steps) + sum(columns)) * unit.a.itemsize
    if unit.is_described and staged > limits.shared_bytes:
        return f"operands need {staged} bytes of shared memory of {limits.shared_bytes}"
    return None


# --- by the graph of a kernel


def factors_of(total: UOp, unit: MatrixUnit) -> tuple[UOp, UOp] | None:
    """The factors of a sum of products over one loop, in the types of a unit; else None."""
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
    """The products of a kernel, some with an operand computed from the others; or what it is else.

    `loops` are those over its outputs, `unit` the unit of whose types its operands are.
    """
    folds = [n for n in kernel.toposort() if n.op is Op.REDUCE]
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
    # The longest, the innermost of several: heads that share keys are rows, too.
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
    """True if one pass over the columns of first products computes all folds over these."""
    greatest = [n for n in folds if n.arg is Op.MAX]
    sums = [n for n in folds if n.arg is Op.ADD]
    if any(n.src[1:] != (between,) for n in folds) or len(greatest) + len(sums) != len(folds):
        return False
    if not greatest:  # as in gradients
        return sums == list(products)
    return len(greatest) == 1 and all(is_proportional(n.src[0], greatest[0]) for n in sums)


def are_sides(factors: tuple[UOp, UOp], row: UOp, column: UOp) -> bool:
    """True if one factor varies with the row and not with the column, and one the other way."""
    return any(
        row in a.ranges and column not in a.ranges and column in b.ranges and row not in b.ranges
        for a, b in (factors, factors[::-1])
    )
