"""Constant folding, and identities of integers and floats.

Floor 1. Integers wrap, so for them only what holds modulo 2**n is here; floats keep IEEE exactly,
signed zeros, infinities and NaN included, so nothing is reassociated. What holds for `index` alone,
which never overflows, is in sums.py, divmod.py and compare.py.
"""

from __future__ import annotations

import math
import sys
from typing import Final

from tinycore.dtype import Scalar, dtypes, float_layout
from tinycore.uop.evaluate import Undefined, compute, round_to
from tinycore.uop.node import UOp
from tinycore.uop.op import BINARY, COMMUTATIVE, TERNARY, UNARY, Op
from tinycore.uop.pattern import INTEGER, Const, RuleSet, const, node, var

identities: Final = RuleSet("identities")

x = var("x")
a, b = const("a"), const("b")
i, j = var("i", kind=INTEGER), var("j", kind=INTEGER)
m, n = const("m", kind=INTEGER), const("n", kind=INTEGER)
f = var("f", kind="float")
with_infinity = var("f", dtype=[d for d in dtypes.floats if float_layout(d).has_infinity])
p = var("p", kind="bool")

EXACT_KINDS: Final = ("bool", *INTEGER)
ASSOCIATIVE: Final = frozenset({Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR, Op.MAX, Op.MIN})
NARROWING: Final = frozenset(
    {Op.CMPLT, Op.CMPNE, Op.CMPEQ, Op.FLOORDIV, Op.FLOORMOD, Op.IDIV, Op.MOD, Op.MIN, Op.MAX}
    | {Op.AND, Op.WHERE, Op.SHR, Op.CAST}
)
"""Ops that can be constant although their operands are not."""


# --- constants


@identities.rule(node(UNARY, a, name="root"))
@identities.rule(node(BINARY, a, b, name="root", ordered=True))
@identities.rule(node(TERNARY, a, b, const("c"), name="root"))
def fold(root: UOp) -> UOp | None:
    """op(a, b, c) is a constant."""
    return folded(root, *root.src)


def folded(root: UOp, *operands: UOp) -> UOp | None:
    """The constant that an ALU node of constants is. None where it is undefined, or where a device
    that takes subnormal numbers for 0 would compute another: those of operands, and as constants of
    a kernel those that are views of integers, whose bits it moves.
    """
    if root.dtype.count != 1:
        return None
    values = [rounded(c) for c in operands]
    if any(map(is_subnormal, operands, values)):
        return None
    try:
        value = compute(root.op, root.dtype, values, operands[0].dtype)
    except Undefined:
        return None
    if root.op is Op.BITCAST and is_subnormal(root, value):
        return None
    return UOp(Op.CONST, root.dtype, operands[0].src, value)


def is_subnormal(constant: UOp, value: Scalar) -> bool:
    """True if processors may take the value for 0; those of float16 are kept everywhere."""
    least = sys.float_info.min if constant.dtype is dtypes.float64 else 2.0**-126
    return constant.dtype.kind == "float" and 0 < abs(value) < least


def rounded(constant: Const | UOp) -> Scalar:
    """The value of a constant as its dtype holds it."""
    dtype = constant.dtype
    return round_to(dtype, constant.arg) if dtype.kind == "float" else constant.arg


@identities.rule(node(NARROWING, name="root", kind=EXACT_KINDS))
def constant_by_bounds(root: UOp) -> UOp | None:
    """x == c, when c is both its least and its greatest value."""
    low, high = root.bounds
    return root.const_like(low) if low == high else None


@identities.rule(node(COMMUTATIVE, a, x, name="root", ordered=True))
def constant_last(root: UOp, a: UOp, x: UOp) -> UOp | None:
    """a + x == x + a: constants go to the right of commutative ops."""
    return None if x.op is Op.CONST else root.with_src((x, a))


@identities.rule(node(ASSOCIATIVE, node(ASSOCIATIVE, x, a, name="inner", ordered=True), b,
                      name="root", kind=EXACT_KINDS, ordered=True))  # fmt: skip
def join_constants(root: UOp, inner: UOp, x: UOp, a: UOp, b: UOp) -> UOp | None:
    """(x + a) + b == x + (a + b), for every associative op on integers."""
    if inner.op is not root.op or x.op is Op.CONST:
        return None
    joined = folded(root, a, b)
    return None if joined is None else root.with_src((x, joined))


# --- integers


@identities.rule(i + 0)
@identities.rule(i - 0)
@identities.rule(i | 0)
@identities.rule(i ^ 0)
@identities.rule(i << 0)
@identities.rule(i >> 0)
@identities.rule(i * 1)
@identities.rule(i // 1)
@identities.rule(node(Op.IDIV, i, 1))
def integer_identity(i: UOp) -> UOp:
    """i + 0 == i, and likewise for the other ops."""
    return i


@identities.rule(i * 0)
@identities.rule(i - i)
@identities.rule(i ^ i)
def integer_zero(i: UOp) -> UOp:
    """i * 0 == 0, and likewise for the other ops."""
    return i.const_like(0)


@identities.rule(node({Op.AND, Op.OR, Op.MAX, Op.MIN}, x, x))
def idempotent(x: UOp) -> UOp:
    """x & x == x | x == max(x, x) == min(x, x) == x."""
    return x


@identities.rule(i < i)
@identities.rule(i.ne(i))
@identities.rule(p.ne(p))
@identities.rule(p ^ p)
def never(root: UOp) -> UOp:
    """i < i and i != i are false."""
    return UOp.const(root.dtype, False)


@identities.rule(i.eq(i))
@identities.rule(p.eq(p))
def always(root: UOp) -> UOp:
    """i == i is true."""
    return UOp.const(root.dtype, True)


@identities.rule(i & const("m", kind=INTEGER))
@identities.rule(i | const("m", kind=INTEGER))
def mask_of_ones(root: UOp, i: UOp, m: Const) -> UOp | None:
    """i & ~0 == i, and i | ~0 == ~0."""
    if (m.arg + 1) & ((1 << m.dtype.bits) - 1):
        return None
    return i if root.op is Op.AND else m


@identities.rule((i * m) + (i * n))
def collect_products(i: UOp, m: Const, n: Const) -> UOp:
    """i*m + i*n == i*(m + n)."""
    return i * (m.arg + n.arg)


@identities.rule(i + i * m)
def collect_product(i: UOp, m: Const) -> UOp:
    """i + i*m == i*(m + 1)."""
    return i * (m.arg + 1)


@identities.rule(i - const("m", kind=INTEGER))
def subtract_constant(i: UOp, m: Const) -> UOp:
    """i - m == i + (-m)."""
    return i + -m.arg


@identities.rule(i + j * -1)
@identities.rule(i + -j)
def add_negated(root: UOp, i: UOp, j: UOp) -> UOp | None:
    """i + -j == i - j."""
    return None if root.dtype.kind == "index" else i - j


@identities.rule((i + j) - j)
@identities.rule(i - (i - j).named("inner"))
def cancel(root: UOp, i: UOp, j: UOp) -> UOp:
    """(i + j) - j == i, and i - (i - j) == j."""
    return i if root.src[0].op is Op.ADD and root.src[1] is j else j


@identities.rule(node(Op.FLOORDIV, i // m, n))
@identities.rule(node(Op.IDIV, node(Op.IDIV, i, m), n))
def divide_twice(root: UOp, i: UOp, m: Const, n: Const) -> UOp | None:
    """(i // m) // n == i // (m*n), for positive m and n whose product does not overflow."""
    product = m.arg * n.arg
    if m.arg <= 0 or n.arg <= 0 or product > dtypes.max(m.dtype):
        return None
    return root.with_src((i, m.const_like(product)))


@identities.rule(node(Op.MOD, i, j))
@identities.rule(node(Op.FLOORMOD, i, j))
def remainder_small(i: UOp, j: UOp) -> UOp | None:
    """i % j == i, for 0 <= i < j."""
    return i if i.vmin >= 0 and i.vmax < j.vmin else None


@identities.rule(node(Op.MAX, i, j))
@identities.rule(node(Op.MIN, i, j))
def extreme_by_bounds(root: UOp, i: UOp, j: UOp) -> UOp | None:
    """max(i, j) == i, when the least i is at least the greatest j; min likewise."""
    wins = i.vmin >= j.vmax if root.op is Op.MAX else i.vmax <= j.vmin
    return i if wins else None


@identities.rule((-x).alu(Op.NEG))
def negate_twice(x: UOp) -> UOp:
    """-(-x) == x, also for floats."""
    return x


# --- floats: only what is exact for every value, signed zeros and NaN included


@identities.rule(f * 1.0)
@identities.rule(f / 1.0)
@identities.rule(f - 0.0)
@identities.rule(f + -0.0)
@identities.rule(with_infinity.maximum(-math.inf))
@identities.rule(with_infinity.minimum(math.inf))
def float_identity(f: UOp) -> UOp:
    """f*1, f/1, f - 0 and f + -0 are f, as is max(f, -inf)."""
    return f


@identities.rule(f * -1.0)
@identities.rule(f / -1.0)
def float_negated(f: UOp) -> UOp:
    """f * -1 == -f."""
    return -f


@identities.rule(f / const("a", kind="float"))
def divide_by_power_of_two(f: UOp, a: Const) -> UOp | None:
    """f / a == f * (1/a), when a is a power of two whose reciprocal is a normal number."""
    mantissa, exponent = math.frexp(a.arg)
    limit = 1 << (dtypes.finfo(a.dtype)[0] - 1)
    if abs(mantissa) != 0.5 or not -limit + 4 < exponent < limit - 2:
        return None
    return f * (1.0 / a.arg)
