"""Proportionality to exp(-maximum): sums that may be taken with another maximum, and scaled.

Floor 1. exp(s - m) == exp(s - m') * exp(m' - m), so a sum of such terms that was taken with m'
gives that with m by one product. The fold over a loop of the maximum, and those of sums that depend
on it so, need no pass each (`lower/registers.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from operator import mul
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.uop.movement import is_everywhere
from tinycore.uop.node import UOp
from tinycore.uop.op import APPROXIMATE, Op
from tinycore.uop.rewrite import rebuilt

LOG2_E: Final = math.log2(math.e)
MOST_KEPT: Final = 512 * 512
"""Scores of a softmax that is a factor of products up to which they are stored, for each head, and
the gradient reads them; more are never all in memory, and computed again for the gradient."""


def place_of_weight(value: UOp, varies: Callable[[UOp], bool]) -> int | None:
    """The source of which a value is the product with a factor that does not vary.

    Or that it keeps where a gate holds, or rounds. None if it is nothing of these.
    """
    match value.op:
        case Op.CAST if dtypes.is_float(value.dtype) and dtypes.is_float(value.src[0].dtype):
            return 0
        case Op.WHERE if is_everywhere(value.src[2], 0):
            return 1
        case Op.FDIV if not varies(value.src[1]):
            return 0
        case Op.MUL | Op.MATRIX:
            varying = [place for place in range(2) if varies(value.src[place])]
            return varying[0] if len(varying) == 1 else None
    return None


def is_proportional(value: UOp, greatest: UOp) -> bool:
    """True if a value is the product of exp(-maximum) and what does not depend on the maximum.

    Up to the rounding of casts between floats.
    """

    def varies(node: UOp) -> bool:
        return greatest in node.toposort()

    while value.op is not Op.EXP:
        is_sum = value.op is Op.REDUCE and value.arg is Op.ADD
        place = 0 if is_sum else place_of_weight(value, varies)
        if place is None or (value.op is Op.WHERE and varies(value.src[0])):
            return False
        value = value.src[place]
    return is_shifted(value.src[0], greatest)


def are_one_pass(folds: Iterable[UOp]) -> bool:
    """True if one pass over a loop computes some folds of it: a maximum, and sums in proportion to
    exp(-maximum)."""
    greatest = [n for n in folds if n.arg is Op.MAX]
    sums = [n for n in folds if n.arg is not Op.MAX]
    return len(greatest) == 1 and all(
        n.arg is Op.ADD and is_proportional(n.src[0], greatest[0]) for n in sums
    )


def with_divisors_last(graph: UOp) -> UOp:
    """A graph that divides sums of a softmax's weights times values, not each weight.

    sum(w / t * v) == sum(w * v) / t for a divisor that does not vary with the loop of the sum. A
    weight exp(s - max s) is at most 1, so a narrow type holds it as well as the quotient.
    """
    return rebuilt(graph, divided_last)


def divided_last(_: UOp, total: UOp) -> UOp:
    """A sum over one loop of weights times values, times the factors that all weights share.

    Unchanged unless one of these is computed by a reduction, as the total of a softmax is.
    """
    if total.op is not Op.REDUCE or total.arg is not Op.ADD or len(total.src) != 2:
        return total
    value, loop = total.src
    for place, side in enumerate(value.src if value.op is Op.MUL else ()):
        weight, factors = without_factors(side, loop, total.dtype) or (side, ())
        if any(n.op is Op.REDUCE for factor in factors for n in factor.toposort()):
            sides = (*value.src[:place], weight, *value.src[place + 1 :])
            return functools.reduce(mul, factors, total.with_src((value.with_src(sides), loop)))
    return total


def without_factors(value: UOp, loop: UOp, wide: DType) -> tuple[UOp, tuple[UOp, ...]] | None:
    """A weight of a softmax over a loop, and the factors that do not vary with it, in a wide type.

    None for a value that is no such weight: exp of a difference from the maximum is at most 1.
    """
    if value.op is Op.EXP and value.src[0].op is Op.SUB:
        score = value.src[0].src[0]
        greatest = UOp(Op.REDUCE, score.dtype, (score, loop), Op.MAX)
        return (value, ()) if is_shifted(value.src[0], greatest) else None
    place = place_of_weight(value, lambda source: loop in source.ranges)
    found = None if place is None else without_factors(value.src[place], loop, wide)
    if place is None or found is None:
        return None
    weight, factors = found
    if value.op in (Op.MUL, Op.FDIV):
        factor = value.src[1 - place].cast(wide)
        return weight, (*factors, factor.alu(Op.RECIPROCAL) if value.op is Op.FDIV else factor)
    return value.with_src((*value.src[:place], weight, *value.src[place + 1 :])), factors


def approximate_powers(graph: UOp, values: Iterable[UOp]) -> UOp:
    """A graph with EXP2, as a device may approximate it, in place of each EXP below some values.

    A factor of the argument is one product with log2(e); so is a maximum, once for each row.
    """
    below = UOp.sink(*values).every(Op.EXP)
    return approximated(graph, {n for n in below if n.dtype is dtypes.float32}, times)


def approximate_weights(kernel: UOp) -> UOp:
    """A kernel with EXP2 approximated in place of each EXP that may be, and of those of a softmax
    where all results are halves.

    That is exp of a difference from a maximum of the kernel: 1 is among the terms of its sum, so
    that what is lost below 2**-126 is nothing beside it.
    """
    nodes = kernel.toposort()
    free = {n for n in nodes if n.op is Op.EXP and n.arg == APPROXIMATE}
    kernel = approximated(kernel, free, as_one_product) if free else kernel
    nodes = kernel.toposort() if free else nodes
    stored = [n.src[1].dtype for n in nodes if n.op is Op.STORE]
    maxima = [n for n in nodes if n.op is Op.REDUCE and n.arg is Op.MAX]
    if not maxima or not all(dtypes.is_float(d) and d.scalar().itemsize == 2 for d in stored):
        return kernel
    powers = {n for n in nodes if n.op is Op.EXP and n.dtype.scalar() is dtypes.float32}
    weights = {n for n in powers if is_weight(n, maxima)}
    return approximated(kernel, weights, as_one_product)


def as_one_product(value: UOp, factor: float) -> UOp:
    """A value times a factor, as one product."""
    return value * value.const_like(factor)


def approximated(graph: UOp, powers: set[UOp], scaled: Callable[[UOp, float], UOp]) -> UOp:
    """A graph with EXP2, as a device may approximate it, in place of some EXP."""

    def change(node: UOp, new: UOp) -> UOp:
        if node not in powers:
            return new
        return UOp(Op.EXP2, node.dtype, (scaled(new.src[0], LOG2_E),), APPROXIMATE)

    return rebuilt(graph, change)


def is_weight(power: UOp, maxima: Iterable[UOp]) -> bool:
    """True for exp of a difference from one of some maxima."""
    difference = power.src[0]
    if difference.op is not Op.SUB:
        return False
    value, greatest = (s.toposort() for s in difference.src)
    return any(m in greatest and m not in value for m in maxima)


def with_common_factors(graph: UOp) -> UOp:
    """A graph with (p ? inf : x) * c in place of p ? inf : x * c, and likewise for other signs.

    A maximum of such values is found without the factor, and a difference takes it up.
    """
    return rebuilt(graph, with_common_factor)


def with_common_factor(_: UOp, node: UOp) -> UOp:
    """One node of `with_common_factors`."""
    if node.op is Op.WHERE and dtypes.is_float(node.dtype):
        gate, hidden, value = node.src
        factor = value.src[1].arg if value.op is Op.MUL and value.src[1].op is Op.CONST else 0
        is_infinite = hidden.op is Op.CONST and math.isinf(hidden.arg)
        if is_infinite and factor and math.isfinite(factor):
            infinity = hidden.const_like(hidden.arg * math.copysign(1, factor))
            return gate.where(infinity, value.src[0]) * value.src[1]
    return node


def times(value: UOp, factor: float) -> UOp:
    """A value times a positive constant, which constants inside of it take up."""
    match value.op:
        case Op.CONST:
            return value.const_like(value.arg * factor)
        case Op.WHERE:
            gate, *values = value.src
            return value.with_src((gate, *(times(v, factor) for v in values)))
        case Op.MUL if value.src[1].op is Op.CONST:
            return value.src[0] * times(value.src[1], factor)
        case Op.SUB:
            return value.with_src(tuple([times(v, factor) for v in value.src]))
    return value * value.const_like(factor)


def is_shifted(value: UOp, greatest: UOp) -> bool:
    """True if a value is a difference from the maximum, or from that where it is finite."""
    if value.op is not Op.SUB or greatest in value.src[0].toposort():
        return False
    return value.src[1] is greatest or value.src[1] is finite(greatest)


def finite(greatest: UOp) -> UOp:
    """A maximum that may be subtracted: 0 in place of -inf."""
    lowest, zero = greatest.const_like(-math.inf), greatest.const_like(0)
    return greatest.eq(lowest).where(zero, greatest)
