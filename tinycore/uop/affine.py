"""Strides of an index along a loop: 1 makes a vector load, 0 is reuse.

Floor 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import gcd, prod
from typing import Final

from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

CHOOSING: Final = frozenset({Op.ADD, Op.SUB, Op.NEG, Op.MIN, Op.MAX, Op.WHERE, Op.XOR})
"""Ops whose result every common power of two that divides their values divides."""
REMAINDERS: Final = frozenset({Op.MOD, Op.FLOORMOD})
FLOOR_DIVISIONS: Final = frozenset({Op.FLOORDIV, Op.FLOORMOD})
DIVISIONS_BY_CONSTANT: Final = REMAINDERS | {Op.IDIV, Op.FLOORDIV}


def iterations_of(loops: Iterable[UOp]) -> int:
    """The iterations of some loops, the most that there may be."""
    return prod(loop.extent for loop in loops)


def coefficient(expression: UOp, counter: UOp) -> int | None:
    """The stride of `expression` per step of `counter`; None where it varies.

    The expression is a sum in normal form, as `simplify` leaves it.
    """
    if counter not in expression.ranges:
        return 0
    bases, _ = terms_of(expression)
    if any(base is not counter and counter in base.ranges for base in bases):
        return None
    return bases.get(counter, 0)


def stride_ratio(expression: UOp, one: UOp, other: UOp) -> int | None:
    """The steps of loop `one` that move an index as far as one step of loop `other`.

    None unless that is a positive integer, known statically.
    """
    short, long = coefficient(expression, one), coefficient(expression, other)
    if not short or not long:
        return None
    steps, rest = divmod(long, short)
    return steps if rest == 0 and steps > 0 else None


def digit_size(loop: UOp, nodes: Iterable[UOp]) -> int | None:
    """The size by which every division in `nodes` splits a loop counter, as into head and feature.

    None unless all of them are by one constant, which divides the length of the loop.
    """
    divided = [n for n in nodes if n.op in FLOOR_DIVISIONS and n.src[0] is loop]
    sizes = {n.src[1].arg if n.src[1].op is Op.CONST else 0 for n in divided}
    size = int(sizes.pop()) if len(sizes) == 1 else 0
    return size if 1 < size < loop.extent and loop.extent % size == 0 else None


def interval(expression: UOp, still: Collection[UOp]) -> tuple[int, int]:
    """The range of elements that an index addresses, from the first to one past the last.

    All counters run but some, which stand still at 0: this is the footprint of one of their steps.
    """
    bases, start = terms_of(expression)
    stop = start + 1
    for base, times in bases.items():
        if base in still:
            continue
        if not base.ranges.isdisjoint(still):
            zero = base.substitute({counter: UOp.index(0) for counter in still})
            base = rewrite(zero, simplify, name="simplify a footprint")
        ends = int(base.vmin) * times, int(base.vmax) * times
        start, stop = start + min(ends), stop + max(ends)
    return start, stop


def repetition(expression: UOp, counter: UOp) -> int | None:
    """Steps of `counter` after which the expression grows by 1; None if it moves otherwise.

    So it does where the counter, plus what stands still, is divided by that number.
    """
    bases, _ = terms_of(expression)
    moving = [(base, times) for base, times in bases.items() if counter in base.ranges]
    if len(moving) != 1 or moving[0][0].op is not Op.FLOORDIV or moving[0][1] != 1:
        return None
    dividend, divisor = moving[0][0].src
    is_plain = divisor.op is Op.CONST and divisor.arg > 1 and coefficient(dividend, counter) == 1
    return int(divisor.arg) if is_plain else None


def divisor(expression: UOp, most: int, known: dict[UOp, int] | None = None) -> int:
    """The greatest power of two, at most `most`, that provably divides an index expression.

    `most` is a power of two. `known` keeps what was found of parts, for questions with one `most`.
    """
    if known is None:
        known = {}
    if (found := known.get(expression)) is None:
        found = known[expression] = gcd(most, derived_divisor(expression, most, known))
    return found


def derived_divisor(expression: UOp, most: int, known: dict[UOp, int]) -> int:
    """`divisor` by the op of an expression; 0 where every number divides it."""
    op, src = expression.op, expression.src
    if op is Op.CONST:
        return int(expression.arg)
    if op is Op.MUL:
        return divisor(src[0], most, known) * divisor(src[1], most, known)
    if op in CHOOSING:
        values = src[1:] if op is Op.WHERE else src
        return gcd(*(divisor(s, most, known) for s in values))
    if op in DIVISIONS_BY_CONSTANT and src[1].op is Op.CONST and src[1].arg > 0:
        by = int(src[1].arg)
        if op in REMAINDERS:
            return gcd(divisor(src[0], most, known), by)
        return max(divisor(src[0], most * by, {}) // by, 1) if by & (by - 1) == 0 else 1
    return 1
