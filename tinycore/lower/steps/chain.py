"""Chain: back-to-back fusion of two matrix products on one matrix unit (CUTLASS, FlashAttention).

Floor 3'. In attention the rows of a product are reduced, as in a softmax, and the resulting weights
are an operand of the second product. The accumulators of the first product stay in registers: they
must be operand `a` as they are, or once lanes have exchanged elements. Adjacent tiles form the
steps of the second product.

If the loop between the products is split into blocks, all reductions over it are done in one pass
over the blocks (`registers.py`), so that only one block of scores exists at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, closer_of, counter_of, numbered, text_of
from tinycore.lower.steps.split import INNER, OUTER, Split, Tail
from tinycore.lower.steps.tensorize import (
    COLUMNS,
    ELEMENTS,
    LANES,
    ROWS,
    STEPS,
    by_unit,
    factors_of,
    outputs_by_lane,
)
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.proportional import approximate_powers, are_one_pass, with_common_factors
from tinycore.uop.rewrite import rebuilt

COLUMNS_AFTER: Final = 5
"""See `STEPS_AFTER`."""
STEPS_AFTER: Final = 6
"""The loops of the second product: the number that follows Part.UNIT in their paths."""


@dataclass(frozen=True)
class Chain:
    """Fuse the products over each of `k` with those over `between`, of results along `m` and `n`.

    Each loop is cut into steps of the unit: (axis, 0) counts them, and of `n` and `k` the last one
    may pass the end. Of `between`, an inner loop of
    a split, the outer one becomes (axis, 0, Part.ONLINE).
    """

    m: Number
    n: Number
    between: Number
    k: tuple[Number, ...]
    unit: MatrixUnit

    @property
    def cuts(self) -> list[tuple[Number, int]]:
        """The splits into steps of the unit, which are done first."""
        unit = self.unit
        cuts = [(self.m, unit.m), (self.n, unit.n), *((axis, unit.k) for axis in self.k)]
        cuts.append((self.between, unit.k))
        return [*cuts, ((*self.between, INNER), unit.n)] if unit.k > unit.n else cuts

    @property
    def columns(self) -> Number:
        """The loop over the columns of a tile of a first product."""
        inner = (*self.between, INNER)
        return (*inner, INNER) if self.unit.k > self.unit.n else inner

    @property
    def tiles(self) -> Number | None:
        """The loop over the tiles of accumulators that form one step of a second product."""
        return (*self.between, INNER, OUTER) if self.unit.k > self.unit.n else None

    def number(self, part: int, product: int = 0) -> Number:
        """The number of a new loop of the unit; each first product has its own loop over steps."""
        return (*self.k[product], INNER, Part.UNIT, part)

    def __str__(self) -> str:
        axes = text_of(self.m, self.n, self.between, *self.k)
        return f"chain({axes} by {self.unit.name})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError where there are no such products."""
        for axis, size in self.cuts:
            is_whole = counter_of(kernel, axis).extent % size == 0
            kernel = Split(axis, size, Tail.AUTO if is_whole else Tail.GATE).apply(kernel)
        kernel = online(with_common_factors(chained(kernel, self)), self)
        # Weights that are rounded to a half type need no more precision than the approximate EXP2.
        is_rounded = self.unit.a.itemsize < self.unit.out.itemsize
        products = (n for n in kernel.every(Op.MATRIX) if is_rounded)
        made = [n.src[0] for n in products if n.src[7] in n.src[0].ranges]
        return approximate_powers(kernel, made) if made else kernel


class Tiles:
    """The loops of the products after the splits, and the loops of the unit that replace them."""

    def __init__(self, kernel: UOp, step: Chain) -> None:
        unit = self.unit = step.unit
        self.m, self.n = (counter_of(kernel, (*axis, INNER)) for axis in (step.m, step.n))
        self.column = counter_of(kernel, step.columns)
        self.tile = None if step.tiles is None else counter_of(kernel, step.tiles)
        self.lane = UOp.range(unit.threads, step.number(LANES), AxisKind.LANE)
        held = unit.fragment("out").count
        self.element = UOp.range(held, step.number(ELEMENTS), AxisKind.VECTOR)
        self.rows, self.columns, self.columns_after, self.steps_after = (
            UOp.range(size, step.number(part), AxisKind.FRAGMENT)
            for part, size in (
                (ROWS, unit.m),
                (COLUMNS, unit.n),
                (COLUMNS_AFTER, unit.n),
                (STEPS_AFTER, unit.k),
            )
        )
        self.steps = {
            counter_of(kernel, (*axis, INNER)): UOp.range(
                unit.k, step.number(STEPS, product), AxisKind.FRAGMENT
            )
            for product, axis in enumerate(step.k)
        }
        """Loops of the unit, by the loops of first products."""

    def first(self, closer: UOp, k: UOp) -> UOp:
        """A sum of products of two operands in memory, by the unit."""
        inside = {self.m: self.rows, self.column: self.columns, k: self.steps[k]}
        factors = factors_of(closer, self.m, self.column, self.unit)
        a, b = (factor.substitute(inside) for factor in factors)
        loops = (self.rows, self.columns, self.steps[k], self.lane, self.element)
        return by_unit(closer, (a, b), loops, (k,), self.unit)

    def second(self, closer: UOp) -> UOp:
        """A sum of products one operand of which is computed from accumulators."""
        a, b = factors_of(closer, self.m, self.n, self.unit)
        if all(n.op is not Op.MATRIX for n in a.toposort()):
            raise ArgumentError(f"{self.unit.name} finds no product of values made of sums")
        inside = {self.n: self.columns_after, self.column: self.steps_after}
        tile = () if self.tile is None else (self.tile,)
        b = b.substitute({**inside, **dict.fromkeys(tile, UOp.index(0))})
        loops = (self.rows, self.columns_after, self.steps_after, self.lane, self.element, *tile)
        return by_unit(closer, (a, b), loops, (self.column, *tile), self.unit)

    def by_lanes(self, node: UOp, new: UOp) -> UOp:
        """A reduction by the unit, or over the columns of its lanes; other nodes as they are."""
        loops = node.src[1:] if node.op is Op.REDUCE else ()
        if (k := next((r for r in loops if r in self.steps), None)) is not None:
            return self.first(new, k)
        if self.column in loops:
            return self.second(new) if self.n in node.ranges else self.fold(new)
        return new

    def fold(self, closer: UOp) -> UOp:
        """A reduction along the columns of the first product, which are distributed over lanes."""
        return closer.with_src(tuple(self.columns if s is self.column else s for s in closer.src))


def chained(kernel: UOp, step: Chain) -> UOp:
    """A Chain whose loops were cut. Raises ArgumentError where there are no such products."""
    if step.tiles is not None:
        written = counter_of(kernel, step.tiles)
        kind = Axis(written.arg.number, AxisKind.UNROLL)
        kernel = kernel.substitute({written: written.replace(arg=kind)})
    tiles = Tiles(kernel, step)
    kernel = rebuilt(kernel, tiles.by_lanes)
    if closer_of(kernel, tiles.column):
        raise ArgumentError(f"{step} finds no sum of products along its loops")
    axes: dict[str, UOp | None] = {"m": tiles.m, "n": tiles.n}
    kernel = outputs_by_lane(kernel, axes, tiles.lane, tiles.element, step.unit)
    place = step.unit.fragment("out").map.place("n", tiles.lane, tiles.element)
    return kernel.substitute({tiles.column: UOp.index(0) + place})


def online(kernel: UOp, step: Chain) -> UOp:
    """The kernel with all reductions over blocks in one pass.

    Raises ArgumentError where a sum cannot be scaled to another maximum.
    """
    number = (*step.between[:-1], OUTER)
    block = next((n for n in kernel.every(Op.RANGE) if n.arg.number == number), None)
    if block is None or step.between[-1] != INNER:
        return kernel
    folds = closer_of(kernel, block)
    if any(n.arg is not Op.ADD for n in folds) and not are_one_pass(folds):
        raise ArgumentError(f"{step} folds blocks by a maximum, and sums like exp(-maximum) alone")
    return kernel.substitute({block: numbered(block, Part.ONLINE)})
