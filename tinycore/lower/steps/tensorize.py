"""Tensorize: map three loops of a matrix product to a matrix unit.

Floor 3'. The step of that name in TVM and Exo. What the loops of the product were becomes the lanes
of a subgroup (AxisKind.LANE, a thread each) and the elements of the sum that a lane holds (a VECTOR
loop). In the operands rows, columns and steps are counted by FRAGMENT loops until `fragments.py`
writes out what each lane holds of them, so that a Stage after this step finds an operand by its
loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, closer_of, counter_of, text_of, with_other_loops
from tinycore.lower.steps.split import INNER, Split
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind, Op, Part

LANES, ELEMENTS, ROWS, COLUMNS, STEPS = range(5)
"""The loops of a unit: the number that follows Part.UNIT in their paths."""
DROPPED_BITS: Final = 13
"""Bits of a float32's fraction that TF32 is without."""
HALF_OF_DROPPED: Final = (1 << DROPPED_BITS - 1) - 1
"""Less than a half by the last bit, which is added where the result would be odd."""
KEPT: Final = 0xFFFFFFFF >> DROPPED_BITS << DROPPED_BITS
EXPONENT: Final = 0x7F800000
"""The bits of a float32's exponent."""


@dataclass(frozen=True)
class Tensorize:
    """Compute the sums over `k` of products along `m` and `n` by a matrix unit.

    Each loop is cut into steps of the unit's size: (axis, 0) counts the steps. An axis of size 1
    has no loop, and is None. The numbers of the new loops are (k, 1, Part.UNIT, ...).
    """

    m: Number | None
    n: Number | None
    k: Number
    unit: MatrixUnit

    @property
    def cuts(self) -> list[tuple[Number, int]]:
        """The splits that come first."""
        axes = ((self.m, self.unit.m), (self.n, self.unit.n), (self.k, self.unit.k))
        return [(axis, size) for axis, size in axes if axis is not None]

    def number(self, part: int) -> Number:
        """The number of a new loop."""
        return (*self.k, INNER, Part.UNIT, part)

    def __str__(self) -> str:
        axes = " ".join(text_of(axis) if axis else "-" for axis in (self.m, self.n, self.k))
        return f"tensorize({axes} by {self.unit.name})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError where no product is summed."""
        for axis, size in self.cuts:
            kernel = Split(axis, size).apply(kernel)
        return tensorize(kernel, self)


def tensorize(kernel: UOp, step: Tensorize) -> UOp:
    """A Tensorize whose loops were cut. Raises ArgumentError where no product is summed."""
    unit = step.unit
    if (step.m is None) != (unit.m == 1) or (step.n is None) != (unit.n == 1):
        raise ArgumentError(f"{unit.name} takes a loop for each of m and n that is more than 1")
    m, n = (None if a is None else counter_of(kernel, (*a, INNER)) for a in (step.m, step.n))
    k = counter_of(kernel, (*step.k, INNER))
    lane = UOp.range(unit.threads, step.number(LANES), AxisKind.LANE)
    element = UOp.range(unit.fragment("out").count, step.number(ELEMENTS), AxisKind.VECTOR)
    inside = {
        counter: counter.replace(arg=Axis(step.number(part), AxisKind.FRAGMENT))
        for counter, part in ((m, ROWS), (n, COLUMNS), (k, STEPS))
        if counter is not None
    }
    own = tuple(UOp.index(0) if c is None else inside[c] for c in (m, n, k))
    done = {}
    for closer in closer_of(kernel, k):
        factors = factors_of(closer, m, n, unit)
        a, b = (factor.substitute(inside) for factor in factors)
        if unit.rounds and unit.is_described:
            a, b = rounded_operand(a), rounded_operand(b)
        done[closer] = by_unit(closer, (a, b), (*own, lane, element), (k,), unit)
    return outputs_by_lane(kernel.substitute(done), {"m": m, "n": n}, lane, element, unit)


def by_unit(
    closer: UOp,
    factors: tuple[UOp, UOp],
    loops: tuple[UOp, ...],
    gone: tuple[UOp, ...],
    unit: MatrixUnit,
) -> UOp:
    """A sum of products by a unit: in the unit's own loops, in place of those that are `gone`."""
    product = UOp(Op.MATRIX, unit.out, (*factors, UOp.const(unit.out, 0), *loops), unit)
    left = tuple(r for r in closer.src[1:] if r not in gone)
    return closer.with_src((product, *left)) if left else product


def outputs_by_lane(
    kernel: UOp, counters: dict[str, UOp | None], lane: UOp, element: UOp, unit: MatrixUnit
) -> UOp:
    """The kernel with rows and columns of sums in terms of lanes and their elements."""
    places = unit.fragment("out").map
    found = {
        counter: UOp.index(0) + places.place(axis, lane, element)
        for axis, counter in counters.items()
        if counter is not None
    }
    closers = {end for counter in found for end in closer_of(kernel, counter)}
    if any(end.op is not Op.END or not found.keys() <= set(end.src[1:]) for end in closers):
        raise ArgumentError(f"not everything in the rows of {unit.name} is in its columns, too")
    *_, last = (None, *found)
    loops = {counter: (lane, element) if counter is last else () for counter in found}
    return with_other_loops(kernel, loops, found)


def factors_of(closer: UOp, m: UOp | None, n: UOp | None, unit: MatrixUnit) -> tuple[UOp, UOp]:
    """The operands, narrow, of a sum of products; raises ArgumentError for anything else."""
    value = closer.src[0]
    if closer.op is not Op.REDUCE or closer.arg is not Op.ADD or value.op is not Op.MUL:
        raise ArgumentError(f"{unit.name} adds products, not {value.op.name} in {closer.op.name}")
    if value.dtype is not unit.out:
        raise ArgumentError(f"{unit.name} adds in {unit.out!r}, not in {value.dtype!r}")
    for x, y in (value.src, value.src[::-1]):
        a, b = (narrowed(s, dtype, unit.threads == 1) for s, dtype in ((x, unit.a), (y, unit.b)))
        if a is not None and b is not None and n not in a.ranges and m not in b.ranges:
            return a, b
    raise ArgumentError(
        f"{unit.name} multiplies {unit.a!r} that moves along m by {unit.b!r} that moves along n"
    )


def rounded_operand(value: UOp) -> UOp:
    """A float32 rounded to the 10 bits of a fraction that a unit takes (TF32), ties to even.

    What reads memory by itself leaves out the others. Infinities and NaN stay what they are.
    """
    bits = value.bitcast(dtypes.uint32)
    nearest = bits + (bits >> DROPPED_BITS & 1) + HALF_OF_DROPPED & KEPT
    is_finite = (bits & EXPONENT).ne(EXPONENT)
    return is_finite.where(nearest, bits).bitcast(dtypes.float32)


def narrowed(value: UOp, dtype: DType, from_integers: bool = False) -> UOp | None:
    """The narrow value that was widened, if it was of this type; else None.

    None for sums as well, but for those of a matrix unit. Where its elements are packed first, they
    may come from a type of integers that it holds.
    """
    inner = value.src[0] if value.op is Op.CAST else value
    is_exact = (
        from_integers and dtype.kind == "float" and inner.dtype in (dtypes.int8, dtypes.uint8)
    )
    for found in (value, inner, inner.cast(dtype) if is_exact else inner):
        if found.dtype is dtype:
            ops = {n.op for n in found.toposort(lambda n: n.op is not Op.AFTER)}
            return found if Op.MATRIX in ops or Op.REDUCE not in ops else None
    return None
