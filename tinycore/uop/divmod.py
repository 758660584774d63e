"""Division and remainder of index expressions by constants.

Floor 1. Holds for dtype `index`, which never overflows. Flattening an index and splitting it again
leaves divisions of sums whose terms have known bounds; nearly all of them vanish here.
Every rule writes the dividend as `g*y + r` with a factor g of the divisor and a small rest r.
"""

from __future__ import annotations

from math import gcd
from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Const, RuleSet, const, node, var
from tinycore.uop.sums import Terms, bounds_of_terms, is_index, scaled, sum_of, terms_of

divmod_rules: Final = RuleSet("divmod")

index: Final = dtypes.index
x, y = var("x", dtype=index), var("y", dtype=index)
positive: Final = const("c", dtype=index, when=lambda c: c.arg > 0)
negative: Final = const("c", dtype=index, when=lambda c: -(1 << 62) < c.arg < 0)
divisor: Final = const("a", dtype=index, when=lambda a: a.arg > 0)


# --- negative divisors


@divmod_rules.rule(x // negative)
def quotient_by_negative(x: UOp, c: Const) -> UOp:
    """x // -c == (x*-1) // c."""
    return (x * -1) // -c.arg


@divmod_rules.rule(x % negative)
def remainder_by_negative(x: UOp, c: Const) -> UOp:
    """x % -c == -((x*-1) % c)."""
    return ((x * -1) % -c.arg) * -1


# --- quotients


@divmod_rules.rule(x // positive)
def quotient_of_whole_terms(x: UOp, c: Const) -> UOp | None:
    """(c*y + r) // c == y + r//c, y being the terms that c divides."""
    terms, constant = terms_of(x)
    whole = {base: factor for base, factor in terms.items() if factor % c.arg == 0}
    quotient, rest = divmod(constant, c.arg)
    if not whole and not quotient:
        return None
    remaining = {base: factor for base, factor in terms.items() if base not in whole}
    return sum_of(scaled(whole, c.arg), quotient) + sum_of(remaining, rest) // c


@divmod_rules.rule(x // positive)
def quotient_by_factor(x: UOp, c: Const) -> UOp | None:
    """(g*y + r) // c == y // (c/g), for a factor g of c and 0 <= r < g."""
    terms, constant = terms_of(x)
    found = split_terms(terms, constant, c.arg)
    if found is None:
        return None
    factor, big, constant, _ = found
    return sum_of(scaled(big, factor), constant // factor) // (c.arg // factor)


@divmod_rules.rule(node(Op.ADD, x // divisor, const("b"), ordered=True) // positive)
def quotient_of_shifted_quotient(x: UOp, a: Const, b: Const, c: Const) -> UOp | None:
    """(x//a + b) // c == (x + a*b) // (a*c), for a > 0 and c > 0."""
    if not (is_index(a.arg * b.arg) and is_index(a.arg * c.arg)):
        return None
    return (x + a.arg * b.arg) // (a.arg * c.arg)


@divmod_rules.rule((x % divisor) // positive)
def quotient_of_remainder(x: UOp, a: Const, c: Const) -> UOp | None:
    """(x % a) // c == (x // c) % (a/c), when c divides a."""
    return x // c % (a.arg // c.arg) if a.arg % c.arg == 0 else None


# --- remainders


@divmod_rules.rule(x % positive)
def remainder_in_one_period(x: UOp, c: Const) -> UOp | None:
    """x % c == x - c*q, when x // c is q for all values of x."""
    low, high = x.bounds
    quotient: int = low // c.arg
    return x + -quotient * c.arg if quotient == high // c.arg else None


@divmod_rules.rule(x % positive)
def remainder_without_periods(x: UOp, c: Const) -> UOp | None:
    """(x + c*y) % c == x % c, in every term and inside remainders by multiples of c."""
    terms, constant = terms_of(x)
    reduced: Terms = {}
    changed = not 0 <= constant < c.arg
    for base, factor in terms.items():
        inner, kept = base, abs(factor) % c.arg * (1 if factor > 0 else -1)
        if is_remainder(inner) and factor * inner.src[1].arg % c.arg == 0:
            inner = inner.src[0]
        changed |= kept != factor or inner is not base
        reduced[inner] = reduced.get(inner, 0) + kept
    return sum_of(reduced, constant % c.arg) % c if changed else None


@divmod_rules.rule(x % positive)
def remainder_by_factor(x: UOp, c: Const) -> UOp | None:
    """(g*y + r) % c == (y % (c/g))*g + r, for a factor g of c and 0 <= r < g."""
    terms, constant = terms_of(x)
    found = split_terms(terms, constant, c.arg)
    if found is None:
        return None
    factor, big, constant, rest = found
    low = constant % factor
    high = sum_of(scaled(big, factor), constant // factor) % (c.arg // factor)
    return high * factor + sum_of(rest, low)


def is_remainder(node: UOp) -> bool:
    """True if a node is x % a for a constant a."""
    return node.op is Op.FLOORMOD and node.src[1].op is Op.CONST


def split_terms(terms: Terms, constant: int, divisor: int) -> tuple[int, Terms, int, Terms] | None:
    """The largest g > 1 that divides `divisor` and the factors of some terms, such that the other
    terms and `constant % g` stay within 0..g-1: (g, those terms, constant, the other terms)."""
    for factor in sorted({gcd(factor, divisor) for factor in terms.values()}, reverse=True):
        if factor == 1:
            return None
        rest = {base: number for base, number in terms.items() if number % factor}
        low, high = bounds_of_terms(rest, constant % factor)
        if low >= 0 and high < factor:
            big = {base: number for base, number in terms.items() if not number % factor}
            return factor, big, constant, rest
    return None
