"""Sums of index expressions in canonical form: distinct terms in a fixed order, then the constant.

Floor 1. Holds for dtype `index`, which never overflows. A term is a base times a nonzero constant;
`a - b` becomes `a + b*-1` and products distribute over sums, so equal sums become one node.
Terms are ordered by their innermost loop, then by what they are: what varies in outer loops comes
first, so that compilers can hoist it, and the order is the same in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Final
from zlib import crc32

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp, interned
from tinycore.uop.op import Op
from tinycore.uop.pattern import Const, RuleSet, const, node, var

Order = tuple[tuple[int, ...], int, str, int]

LEAF_RANKS = {Op.DEFINE_VAR: 0, Op.SPECIAL: 1, Op.RANGE: 2}
OTHER = 3


def order_of(node: UOp) -> Order:
    """Sort key of a node: (innermost loop, kind of node, name, digest)."""
    try:
        found: Any = node._order
    except AttributeError:
        found = node.derive("_order", derived_order)
    return found  # type: ignore[no-any-return]


def derived_order(node: UOp) -> Order:
    """The order of one node, given those of its sources.

    The digest is a hash of the structure, made of integers only, for which Python's is repeatable.
    """
    what = crc32(f"{node.op.name} {node.arg!r}".encode())
    digest = hash((what, *[s._order[3] for s in node.src]))
    loop = max([s._order[0] for s in node.src], default=())
    if node.op is Op.RANGE:
        loop = max(loop, node.arg.number)
    name = (
        str(node.arg[0] if node.op is Op.DEFINE_VAR else node.arg) if node.op in LEAF_RANKS else ""
    )
    return loop, LEAF_RANKS.get(node.op, OTHER), name or node.op.name, digest


Terms = dict[UOp, int]

sums: Final = RuleSet("sums")

index: Final = dtypes.index
x, y = var("x", dtype=index), var("y", dtype=index)
a, b = const("a", dtype=index), const("b", dtype=index)


def term_of(node: UOp) -> tuple[UOp, int]:
    """The base and the constant factor of one term."""
    if node.op is Op.MUL and (factor := node.src[1]).op is Op.CONST:
        return node.src[0], factor.arg
    return node, 1


def terms_of(node: UOp) -> tuple[Terms, int]:
    """The terms of a sum and its constant: node == sum(base * factor) + constant.

    The result is remembered on the node: do not change it.
    """
    try:
        return node._terms
    except AttributeError:
        node._terms = found = derived_terms(node)
        return found


def derived_terms(node: UOp) -> tuple[Terms, int]:
    """`terms_of`, computed from the node."""
    terms: Terms = {}
    constant = 0
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op is Op.ADD:
            stack += part.src[::-1]
        elif part.op is Op.CONST:
            constant += part.arg
        else:
            base, factor = term_of(part)
            terms[base] = terms.get(base, 0) + factor
    return {base: factor for base, factor in terms.items() if factor}, constant


def sum_of(terms: Mapping[UOp, int], constant: int) -> UOp:
    """The canonical sum of terms and a constant, its bases being in normal form."""
    total: UOp | None = None
    for base in sorted(terms, key=order_of) if len(terms) > 1 else terms:
        factor = terms[base]
        if not factor:
            continue
        part = base if factor == 1 else interned(Op.MUL, index, (base, UOp.index(factor)))
        total = part if total is None else interned(Op.ADD, index, (total, part))
    if total is None:
        return UOp.index(constant)
    return interned(Op.ADD, index, (total, UOp.index(constant))) if constant else total


def scaled(terms: Mapping[UOp, int], divisor: int) -> Terms:
    """The terms with factors divided by `divisor`, which divides them all."""
    return {base: factor // divisor for base, factor in terms.items()}


def is_index(value: int) -> bool:
    """True if a constant fits, with room for one more step of arithmetic."""
    return -(1 << 62) < value < 1 << 62


def bounds_of_terms(terms: Mapping[UOp, int], constant: int = 0) -> tuple[int, int]:
    """The least and the greatest value of a sum."""
    low = high = constant
    for base, factor in terms.items():
        least, greatest = base.bounds
        low += factor * (least if factor > 0 else greatest)
        high += factor * (greatest if factor > 0 else least)
    return low, high


def common_factor(terms: Mapping[UOp, int], *more: int) -> int:
    """The greatest common divisor of all factors and of `more`."""
    return gcd(*terms.values(), *more)


# --- rules


@sums.rule(x - y)
def subtract(x: UOp, y: UOp) -> UOp:
    """x - y == x + y*-1."""
    return x + y * -1


@sums.rule(-x)
def negate(x: UOp) -> UOp:
    """-x == x*-1."""
    return x * -1


@sums.rule(node(Op.MUL, x, y, ordered=True))
def order_factors(x: UOp, y: UOp) -> UOp | None:
    """x*y == y*x: the constant last, the others in canonical order."""
    if y.op is Op.CONST:
        return None
    return y * x if x.op is Op.CONST or order_of(y) < order_of(x) else None


@sums.rule(node(Op.MUL, node(Op.ADD, x, y, ordered=True), a, ordered=True))
def distribute(x: UOp, y: UOp, a: Const) -> UOp:
    """(x + y)*a == x*a + y*a."""
    return x * a + y * a


@sums.rule(node(Op.MUL, node(Op.MUL, x, a, ordered=True), y))
def move_factor_out(x: UOp, a: Const, y: UOp) -> UOp | None:
    """(x*a)*y == (x*y)*a."""
    return None if y.op is Op.CONST else x * y * a


@sums.rule(node(Op.ADD, x, y, name="root", ordered=True))
def collect_terms(root: UOp, x: UOp, y: UOp) -> UOp | None:
    """x*a + x*b == x*(a + b), for terms anywhere in a sum; the sum comes out in canonical order."""
    last = x.src[1] if x.op is Op.ADD else x
    if y.op is Op.CONST:
        if y.arg and last.op is not Op.CONST:
            return None
    elif y.op is not Op.ADD and last.op is not Op.CONST:
        last_base, base = term_of(last)[0], term_of(y)[0]
        if last_base is not base and order_of(last_base) < order_of(base):
            return None
    return sum_of(*terms_of(root))


@sums.rule(node(Op.ADD, x, y, name="root", ordered=True))
def recombine(root: UOp, y: UOp) -> UOp | None:
    """(x//a)*(a*k) + (x%a)*k == x*k, and ((x//a)%b)*(a*k) + (x%a)*k == (x%(a*b))*k."""
    if term_of(y)[0].op is not Op.FLOORMOD:
        return None
    terms, constant = terms_of(root)
    for low in [t for t in terms if t.op is Op.FLOORMOD and t.src[1].op is Op.CONST]:
        whole, period, factor = low.src[0], low.src[1], terms[low]
        for high in terms:
            if terms[high] != factor * period.arg or high is low:
                continue
            if high.op not in (Op.FLOORDIV, Op.FLOORMOD):
                continue
            quotient = high if high.op is Op.FLOORDIV else high.src[0]
            if not divides(quotient, whole, period.arg):
                continue
            rest = {base: terms[base] for base in terms if base is not low and base is not high}
            joined = whole if high is quotient else whole % (high.src[1].arg * period.arg)
            return sum_of(rest, constant) + joined * factor
    return None


def divides(quotient: UOp, whole: UOp, period: int) -> bool:
    """True if `quotient` is `whole // period`, of which a constant divisor may have been merged."""
    if quotient.op is not Op.FLOORDIV or quotient.src[1].op is not Op.CONST:
        return False
    if quotient.src == (whole, UOp.index(period)):
        return True
    # whole = z // c gives whole // period the normal form z // (c * period)
    return (
        whole.op is Op.FLOORDIV
        and whole.src[1].op is Op.CONST
        and quotient.src == (whole.src[0], UOp.index(whole.src[1].arg * period))
    )
