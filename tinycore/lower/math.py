"""Lowering of arithmetic that a target lacks to ops that it has.

Floor 3'. One function per op, each under its equation; `lower_math` gathers those whose op is not
in `Renderer.native_ops`. What they build is made of plain arithmetic, comparisons, WHERE, shifts
and BITCAST, so it vectorizes, and holds for vectors as for scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from tinycore.dtype import DType, dtypes, float_layout
from tinycore.lower.elementary import exp, exp2, float_bits, log, log2, sin, sin_without_double
from tinycore.lower.lanes import lanes_of
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, APPROXIMATE, Op
from tinycore.uop.pattern import RuleSet, node
from tinycore.uop.threefry import WORD_BITS, threefry_words

Lowering = Callable[[UOp], UOp | None]

LEAST_PAIR_BYTES: Final = 16
"""The narrowest DOT that is an instruction: PMADDWD of SSE2."""
HALVES: Final = (dtypes.float16, dtypes.bfloat16)


@cache
def lower_math(renderer: Renderer) -> RuleSet:
    """The rules that lower all arithmetic that the renderer lacks."""
    missing, has_double = ALU - renderer.native_ops, dtypes.float64 not in renderer.lacking
    partial = frozenset(renderer.native_types.items())
    rules = lowering_of(missing, has_double, renderer.approximate, partial)
    return rules + lower_pairs(renderer.limits.pair_bytes)


@cache
def lowering_of(
    missing: frozenset[Op],
    has_double: bool = True,
    approximate: frozenset[Op] = frozenset(),
    partial: frozenset[tuple[Op, frozenset[DType]]] = frozenset(),
) -> RuleSet:
    """The rules for some ops, on a target with or without float64.

    An op that the target has in an `approximate` form is not lowered where that form is allowed.
    One of `partial` is lowered for other types than those beside it.
    """
    rules = RuleSet("lower math")
    lowerings = LOWERINGS if has_double else WITHOUT_DOUBLE
    for op, function in lowerings.items():
        if op in missing:
            lowering = unless_approximate(function) if op in approximate else function
            rules.rule(node(op, name="root"))(lowering)
    for op, types in sorted(partial, key=lambda pair: pair[0].name):
        if op not in missing:
            rules.rule(node(op, name="root"))(of_other_types(lowerings.get(op), types))
    return rules


def of_other_types(function: Lowering | None, types: frozenset[DType]) -> Lowering:
    """A lowering of an op of all types but those of which it is native.

    Halves are computed in float32 where that is one, which rounds them correctly: it has more than
    twice their bits.
    """

    def lower(root: UOp) -> UOp | None:
        kind = root.dtype.scalar()
        if kind in types:
            return None
        if kind in HALVES and dtypes.float32 in types:
            wide = [s.cast(dtypes.float32) for s in root.src]
            return wide[0].alu(root.op, *wide[1:]).cast(root.dtype)
        return None if function is None else function(root)

    lower.__name__ = "lower_other_types"
    lower.__doc__ = "Op of a type that is not native == what it is lowered to, or that of float32."
    return lower


def unless_approximate(function: Lowering) -> Lowering:
    """A lowering of all but the nodes that may be approximate."""

    def lower(root: UOp) -> UOp | None:
        return None if root.arg == APPROXIMATE else function(root)

    lower.__name__, lower.__doc__ = "lower_unless_approximate", function.__doc__
    return lower


@cache
def lower_pairs(widest: int) -> RuleSet:
    """The rule for DOT of vectors that the target has no instruction for."""
    rules = RuleSet("lower pairs")

    @rules.rule(node(Op.DOT, name="root"))
    def lower_dot(root: UOp) -> UOp | None:
        """dot(a, b) == a[even] * b[even] + a[odd] * b[odd], each widened."""
        lanes = root.src[0].dtype.count
        if LEAST_PAIR_BYTES <= root.src[0].dtype.size_bytes <= widest:
            return None
        products = []
        for first in range(2):
            a, b = (lanes_of(s, range(first, lanes, 2)).cast(root.dtype) for s in root.src)
            products.append(a * b)
        return products[0] + products[1]

    return rules


# --- functions of one float


def elementary(function: Callable[[UOp], UOp], name: str) -> Lowering:
    """The lowering of a function that exists for float32 and float64; halves go by float32."""

    def lower(root: UOp) -> UOp | None:
        x = root.src[0]
        if x.dtype.scalar() in (dtypes.float32, dtypes.float64):
            return function(x)
        return function(x.cast(dtypes.float32)).cast(x.dtype)

    lower.__name__ = f"lower_{name}"
    lower.__doc__ = function.__doc__
    return lower


def lower_trunc(root: UOp) -> UOp:
    """trunc(x) == float(int(x)) with the sign of x, where |x| is small enough for a fraction."""
    x = root.src[0]
    if x.dtype.scalar() is dtypes.float16:
        return x.cast(dtypes.float32).alu(Op.TRUNC).cast(x.dtype)
    bits = float_bits(x)
    sign = bits & (1 << x.dtype.bits - 1)
    magnitude = (bits ^ sign).bitcast(x.dtype)
    whole = x.cast(float_bits(x, "int").dtype).cast(x.dtype).bitcast(bits.dtype) | sign
    small = magnitude < 2.0 ** float_layout(x.dtype).mantissa_bits
    return small.where(whole.bitcast(x.dtype), x)


def lower_reciprocal(root: UOp) -> UOp:
    """1 / x is a division."""
    return root.const_like(1.0).alu(Op.FDIV, root.src[0])


def lower_fdiv(root: UOp) -> UOp:
    """a / b == a * (1 / b), rounded twice."""
    a, b = root.src
    return a * b.alu(Op.RECIPROCAL)


# --- the lesser and the greater


def lower_max(root: UOp) -> UOp:
    """max(a, b) == b if a < b else a; NaN in b wins, and NaN in a fails the comparison."""
    a, b = root.src
    greater = (a < b).where(b, a)
    return b.eq(b).where(greater, b) if root.dtype.kind == "float" else greater


def lower_min(root: UOp) -> UOp:
    """min(a, b) == b if b < a else a; NaN in b wins, and NaN in a fails the comparison."""
    a, b = root.src
    lesser = (b < a).where(b, a)
    return b.eq(b).where(lesser, b) if root.dtype.kind == "float" else lesser


# --- integers


def lower_floordiv(root: UOp) -> UOp:
    """floor(a / b): a shift for powers of 2, else a / b, less 1 where it was rounded up."""
    a, b = root.src
    if (shift := exponent_of_divisor(b)) is not None and a.vmin < 0:
        return a >> shift
    quotient = a.alu(Op.IDIV, b)
    if signs_agree(a, b):
        return quotient
    return quotient - rounds_up(a, b).cast(a.dtype)


def lower_floormod(root: UOp) -> UOp:
    """a - b*floor(a / b): a mask for powers of 2, else a % b, plus b where that differs in sign."""
    a, b = root.src
    if (shift := exponent_of_divisor(b)) is not None and a.vmin < 0:
        return a & ((1 << shift) - 1)
    remainder = a.alu(Op.MOD, b)
    if signs_agree(a, b):
        return remainder
    return rounds_up(a, b).where(remainder + b, remainder)


def exponent_of_divisor(divisor: UOp) -> int | None:
    """The n with divisor == 2**n in every lane, None where it is no such constant."""
    low, high = divisor.bounds
    if low != high or low <= 0 or low & (low - 1):
        return None
    return int(low).bit_length() - 1


def signs_agree(a: UOp, b: UOp) -> bool:
    """True if a quotient is known not to be negative, so that truncating it is the floor."""
    return bool((a.vmin >= 0 and b.vmin >= 0) or (a.vmax <= 0 and b.vmax <= 0))


def rounds_up(a: UOp, b: UOp) -> UOp:
    """Condition for truncating a / b to round up: a remainder whose sign is not that of b."""
    remainder = a.alu(Op.MOD, b)
    return remainder.ne(0) & ((remainder < 0) ^ (b < 0))


def lower_mulacc(root: UOp) -> UOp:
    """mulacc(a, b, c) == a*b + c."""
    a, b, c = root.src
    return a * b + c


def lower_threefry(root: UOp) -> UOp:
    """Threefry-2x32 on 32-bit halves; the low half is the first word."""
    counter, key = (halves(s) for s in root.src)
    words = threefry_words(counter, key, lambda word: word)
    low, high = [word.cast(dtypes.uint64) for word in words]
    result: UOp = (high << WORD_BITS) | low
    return result


def halves(word: UOp) -> tuple[UOp, UOp]:
    """The low and the high 32 bits of a uint64."""
    return word.cast(dtypes.uint32), (word >> WORD_BITS).cast(dtypes.uint32)


LOWERINGS: Final[Mapping[Op, Lowering]] = {
    Op.EXP: elementary(exp, "exp"),
    Op.EXP2: elementary(exp2, "exp2"),
    Op.LOG: elementary(log, "log"),
    Op.LOG2: elementary(log2, "log2"),
    Op.SIN: elementary(sin, "sin"),
    Op.TRUNC: lower_trunc,
    Op.RECIPROCAL: lower_reciprocal,
    Op.FDIV: lower_fdiv,
    Op.MAX: lower_max,
    Op.MIN: lower_min,
    Op.FLOORDIV: lower_floordiv,
    Op.FLOORMOD: lower_floormod,
    Op.MULACC: lower_mulacc,
    Op.THREEFRY: lower_threefry,
}
"""Rule that replaces each op. RECIPROCAL and FDIV replace each other: one must be native."""

WITHOUT_DOUBLE: Final = {**LOWERINGS, Op.SIN: elementary(sin_without_double, "sin")}
"""The same for a target that has no float64."""
