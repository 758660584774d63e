"""Comparisons of index expressions, and conjunctions of bounds on one of them.

Floor 1. Holds for dtype `index`, which never overflows. Inequalities come out as `sum < constant`,
or the negation of one, with a positive first factor: bounds on the same sum then meet in one place.
"""

from __future__ import annotations

from math import gcd
from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Const, RuleSet, const, node, var
from tinycore.uop.sums import (
    Terms,
    bounds_of_terms,
    common_factor,
    is_index,
    order_of,
    scaled,
    sum_of,
    terms_of,
)

comparisons: Final = RuleSet("comparisons")

index: Final = dtypes.index
boolean: Final = dtypes.bool
x, y = var("x", dtype=index), var("y", dtype=index)
a = const("a", dtype=index)
positive: Final = const("c", dtype=index, when=lambda c: c.arg > 0)
p, q = var("p", dtype=boolean), var("q", dtype=boolean)


@comparisons.rule(x < y)
def less_with_shared_terms(x: UOp, y: UOp) -> UOp | None:
    """x + z < y + z == x < y, for terms z; what is left has positive factors on both sides."""
    if y.op is Op.CONST and x.op is not Op.CONST:
        return None
    left, constant = terms_of(x)
    right, subtracted = terms_of(y)
    difference = subtract_terms(left, right)
    constant -= subtracted
    if not is_index(constant):
        return None
    positive = {base: factor for base, factor in difference.items() if factor > 0}
    negative = {base: -factor for base, factor in difference.items() if factor < 0}
    if not positive or not negative:
        return sum_of(difference, 0) < -constant
    return sum_of(positive, constant) < sum_of(negative, 0)


def subtract_terms(left: Terms, right: Terms) -> Terms:
    """The terms of a difference."""
    difference = dict(left)
    for base, factor in right.items():
        difference[base] = difference.get(base, 0) - factor
    return {base: factor for base, factor in difference.items() if factor}


@comparisons.rule(x < a)
def less_than_constant(x: UOp, a: Const) -> UOp | None:
    """x + b < a == x < a - b."""
    terms, constant = terms_of(x)
    if not constant or not is_index(a.arg - constant):
        return None
    return sum_of(terms, 0) < a.arg - constant


@comparisons.rule(x < a)
def less_with_negative_factor(x: UOp, a: Const) -> UOp | None:
    """-x < a == !(x < 1 - a), where the first factor of the sum is negative."""
    terms, constant = terms_of(x)
    if not terms or terms[min(terms, key=order_of)] > 0 or not is_index(constant - a.arg):
        return None
    negated = {base: -factor for base, factor in terms.items()}
    return (sum_of(negated, 0) < 1 - a.arg + constant).logical_not()


@comparisons.rule(x < a)
def less_by_factor(x: UOp, a: Const) -> UOp | None:
    """g*y + r < a == y < ceil(a/g), for 0 <= r < g with all r on one side of a % g."""
    terms, constant = terms_of(x)
    for factor in sorted({abs(factor) for factor in terms.values()}, reverse=True):
        if factor == 1:
            return None
        rest = {base: number for base, number in terms.items() if number % factor}
        low, high = bounds_of_terms(rest, constant)
        bound, limit = divmod(a.arg, factor)
        if low >= 0 and high < factor and (high < limit or limit <= low):
            big = {base: number for base, number in terms.items() if not number % factor}
            return sum_of(scaled(big, factor), 0) < bound + (high < limit)
    if (common := common_factor(terms)) > 1 and not constant:
        return sum_of(scaled(terms, common), 0) < -(-a.arg // common)
    return None


@comparisons.rule((x // positive) < a)
def less_quotient(x: UOp, c: Const, a: Const) -> UOp | None:
    """x // c < a == x < a*c, for c > 0."""
    return x < a.arg * c.arg if is_index(a.arg * c.arg) else None


@comparisons.rule(node({Op.CMPNE, Op.CMPEQ}, x, y, name="root", ordered=True))
def equal_with_shared_terms(root: UOp, x: UOp, y: UOp) -> UOp | None:
    """x + z == y + z is x == y, and c*x == c*a is x == a; the constant stays on the right."""
    terms, constant = terms_of(x)
    right, subtracted = terms_of(y)
    difference = subtract_terms(terms, right)
    target = subtracted - constant
    if not is_index(target):
        return None
    if not difference:
        return UOp.const(boolean, (target == 0) == (root.op is Op.CMPEQ))
    common = gcd(*difference.values())
    if target % common:
        return UOp.const(boolean, root.op is Op.CMPNE)
    if difference[min(difference, key=order_of)] < 0:
        common = -common
    if right and len(difference) == len(terms) + len(right) and not target and abs(common) == 1:
        return None
    return sum_of(scaled(difference, common), 0).alu(root.op, UOp.index(target // common))


# --- conjunctions


@comparisons.rule(node(Op.AND, p, q, name="root", dtype=boolean, ordered=True))
def meet_of_bounds(root: UOp) -> UOp | None:
    """(x < a) & (x < b) == x < min(a, b), likewise from below; false where nothing is left."""
    conjuncts = conjuncts_of(root)
    bounds: dict[UOp, list[int | None]] = {}
    for conjunct in conjuncts:
        if (bound := bound_of(conjunct)) is not None:
            value, side, limit = bound
            found = bounds.setdefault(value, [None, None])
            previous = found[side]
            found[side] = limit if previous is None else (max, min)[side](limit, previous)
    kept = [c for c in conjuncts if is_tightest(c, bounds)]
    if any(low is not None and high is not None and low >= high for low, high in bounds.values()):
        return UOp.const(boolean, False)
    return conjunction(kept) if len(kept) < len(conjuncts) else None


def conjuncts_of(node: UOp) -> list[UOp]:
    """The distinct parts of nested ANDs, from left to right."""
    parts: dict[UOp, None] = {}
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is Op.AND:
            stack += part.src[::-1]
        else:
            parts[part] = None
    return list(parts)


def conjunction(parts: list[UOp]) -> UOp:
    """The AND of bools, which are at least one."""
    total = parts[0]
    for part in parts[1:]:
        total = total & part
    return total


def bound_of(condition: UOp) -> tuple[UOp, int, int] | None:
    """(x, 1, a) for x < a, (x, 0, a) for x >= a, None for other conditions."""
    side = 1
    if condition.op is Op.CMPNE and condition.src[1].arg is True:
        condition, side = condition.src[0], 0
    if condition.op is not Op.CMPLT:
        return None
    value, limit = condition.src
    return (value, side, limit.arg) if limit.op is Op.CONST and value.dtype is index else None


def is_tightest(condition: UOp, bounds: dict[UOp, list[int | None]]) -> bool:
    """True if a conjunct is no bound, or the bound that implies the others on its side."""
    bound = bound_of(condition)
    return bound is None or bounds[bound[0]][bound[1]] == bound[2]
