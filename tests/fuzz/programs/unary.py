"""Families of functions of one float, smooth and broken, and questions about it.

A row says how to write an op on both sides, the interval its operand is brought into, so
that it is defined and well-conditioned there, and the interval of its result.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.fuzz.programs.builder import Builder
from tests.fuzz.programs.form import Rounding, Value
from tinycore.dtype import dtypes, least_upper_float


class Unary(NamedTuple):
    """One function of one float."""

    ours: str
    theirs: str
    low: float
    high: float
    least: float
    most: float
    rounding: Rounding = Rounding.ROUNDED
    widens: bool = True
    """True if it makes floats of integers."""
    cancels: float = 0.0
    """The size of what cancels in it, or in its derivative, where little is left."""


SMOOTH: Final = (
    Unary("{x}.exp()", "{x}.exp()", -4, 4, 0, 55),
    Unary("{x}.exp2()", "{x}.exp2()", -4, 4, 0, 16),
    Unary("{x}.log()", "{x}.log()", 0.25, 16, -1.5, 3),
    Unary("{x}.log2()", "{x}.log2()", 0.25, 16, -2, 4),
    Unary("{x}.log10()", "{x}.log10()", 0.25, 16, -1, 2),
    Unary("{x}.log1p()", "{x}.log1p()", -0.75, 8, -2, 3),
    Unary("{x}.expm1()", "{x}.expm1()", -4, 4, -1, 55),
    Unary("{x}.sqrt()", "{x}.sqrt()", 0.25, 16, 0.5, 4),
    Unary("{x}.rsqrt()", "{x}.rsqrt()", 0.25, 16, 0.25, 2),
    Unary("{x}.reciprocal()", "{x}.reciprocal()", 0.25, 8, 0.125, 4),
    Unary("{x}.sin()", "{x}.sin()", -8, 8, -1, 1),
    Unary("{x}.cos()", "{x}.cos()", -8, 8, -1, 1),
    Unary("{x}.tan()", "{x}.tan()", -1.25, 1.25, -3.1, 3.1),
    Unary("{x}.sinh()", "{x}.sinh()", -3, 3, -11, 11),
    Unary("{x}.cosh()", "{x}.cosh()", -3, 3, 1, 11, cancels=1),
    Unary("{x}.tanh()", "{x}.tanh()", -4, 4, -1, 1),
    Unary("{x}.asinh()", "{x}.asinh()", -8, 8, -3, 3),
    Unary("{x}.acosh()", "{x}.acosh()", 1.125, 8, 0, 3),
    Unary("{x}.atanh()", "{x}.atanh()", -0.875, 0.875, -1.5, 1.5),
    Unary("{x}.asin()", "{x}.asin()", -0.875, 0.875, -1.6, 1.6),
    Unary("{x}.acos()", "{x}.acos()", -0.875, 0.875, 0, 3.2),
    Unary("{x}.atan()", "{x}.atan()", -8, 8, -1.6, 1.6),
    Unary("{x}.erf()", "torch.erf({x})", -3, 3, -1, 1),
    Unary("{x}.sigmoid()", "{x}.sigmoid()", -8, 8, 0, 1),
    Unary("{x}.silu()", "functional.silu({x})", -8, 8, -1, 8),
    Unary("{x}.swish()", "functional.silu({x})", -8, 8, -1, 8),
    Unary("{x}.gelu()", "functional.gelu({x}, approximate='tanh')", -4, 4, -1, 4, cancels=4),
    Unary("{x}.gelu('none')", "functional.gelu({x})", -3, 3, -1, 3, cancels=3),
    Unary("{x}.quick_gelu()", "{x} * (1.702 * {x}).sigmoid()", -4, 4, -1, 4),
    Unary("{x}.elu()", "functional.elu({x})", -4, 4, -1, 4),
    Unary("{x}.celu(1.5)", "functional.celu({x}, 1.5)", -4, 4, -1.5, 4),
    Unary("{x}.selu()", "functional.selu({x})", -4, 4, -1.8, 5),
    Unary("{x}.softplus()", "functional.softplus({x}, threshold=99)", -8, 8, 0, 9),
    Unary("{x}.softplus(2.0)", "functional.softplus({x}, 2.0, 99)", -4, 4, 0, 5),
    Unary("{x}.logsigmoid()", "functional.logsigmoid({x})", -8, 8, -9, 0),
    Unary("{x}.mish()", "functional.mish({x})", -4, 4, -1, 4),
    Unary("{x}.softsign()", "softsign({x})", -16, 16, -1, 1),
    Unary("{x}.square()", "{x}.square()", -16, 16, 0, 256, Rounding.WHOLE, widens=False),
    # torch has 1/6 in float32 in both of these, also where it computes in float64
    Unary("{x}.hardswish()", "{x} * ({x} + 3).clamp(0, 6) / 6", -8, 8, -1, 8),
    # whose derivative jumps at 3 and -3, which are whole numbers
    Unary(
        "({x} * 0.875).hardsigmoid()", "({x} * 0.875 / 6 + 0.5).clamp(0, 1)", -8, 8, 0, 1, cancels=1
    ),
)
"""Functions with a derivative, nearly everywhere."""

BROKEN: Final = (
    Unary("{x}.relu()", "functional.relu({x})", -99, 99, 0, 99, Rounding.EXACT),
    Unary("{x}.relu6()", "functional.relu6({x})", -99, 99, 0, 6, Rounding.EXACT),
    Unary(
        "{x}.hardtanh(-1.5, 2)",
        "functional.hardtanh({x}, -1.5, 2)",
        -99,
        99,
        -1.5,
        2,
        Rounding.EXACT,
    ),
    Unary("{x}.leaky_relu(0.125)", "functional.leaky_relu({x}, 0.125)", -99, 99, -13, 99),
    Unary("{x}.abs()", "{x}.abs()", -99, 99, 0, 99, Rounding.EXACT),
    Unary("{x}.neg()", "{x}.neg()", -99, 99, -99, 99, Rounding.EXACT),
    Unary("{x}.sign()", "{x}.sign()", -99, 99, -1, 1, Rounding.EXACT),
    Unary("{x}.floor()", "{x}.floor()", -99, 99, -99, 99, Rounding.EXACT),
    Unary("{x}.ceil()", "{x}.ceil()", -99, 99, -99, 99, Rounding.EXACT),
    Unary("{x}.trunc()", "{x}.trunc()", -99, 99, -99, 99, Rounding.EXACT),
    Unary("{x}.round()", "{x}.round()", -99, 99, -99, 99, Rounding.EXACT),
    Unary("{x}.clamp(-1.25, 1.5)", "{x}.clamp(-1.25, 1.5)", -99, 99, -1.25, 1.5, Rounding.EXACT),
    Unary("{x}.clip(max_=0.5)", "{x}.clamp(max=0.5)", -99, 99, -99, 0.5, Rounding.EXACT),
    Unary(
        "{x}.maximum(0.25)", "torch.maximum({x}, constant(0.25))", -99, 99, 0.25, 99, Rounding.EXACT
    ),
    Unary(
        "{x}.minimum(-0.5)",
        "torch.minimum({x}, constant(-0.5))",
        -99,
        99,
        -99,
        -0.5,
        Rounding.EXACT,
    ),
)
"""Functions with corners and steps."""

QUESTIONS: Final = (
    Unary("{x}.isnan()", "{x}.isnan()", -99, 99, 0, 1),
    Unary("{x}.isinf()", "{x}.isinf()", -99, 99, 0, 1),
    Unary("{x}.isfinite()", "{x}.isfinite()", -99, 99, 0, 1),
    Unary("{x} > 0.5", "{x} > 0.5", -99, 99, 0, 1),
    Unary("{x} <= -0.25", "{x} <= -0.25", -99, 99, 0, 1),
    Unary("{x}.ne(0)", "truth({x})", -99, 99, 0, 1),
    Unary("{x}.logical_not()", "~truth({x})", -99, 99, 0, 1),
    Unary("{x}.cast(dtypes.bool)", "truth({x})", -99, 99, 0, 1),
)


def smooth(b: Builder) -> None:
    """A smooth function; of integers, it makes floats."""
    row = b.draw.pick(SMOOTH)
    x = b.floating(row.low, row.high, convert=row.widens)
    apply(b, row, x)


def broken(b: Builder) -> None:
    """A function with corners, of floats."""
    row = b.draw.pick(BROKEN)
    apply(b, row, b.floating(row.low, row.high, convert=False))


def apply(b: Builder, row: Unary, x: Value) -> None:
    """One row applied."""
    b.compute(
        row.ours.format(x=x.name),
        row.theirs.format(x=as_real(x)),
        [x],
        x.shape,
        least_upper_float(x.dtype),
        row.least,
        row.most,
        row.rounding,
        absolute=row.cancels,
        slope=row.cancels,
    )


def question(b: Builder) -> None:
    """A question about one element."""
    row = b.draw.pick(QUESTIONS)
    x = b.floating(-99, 99, convert=False)
    b.compute(
        row.ours.format(x=x.name),
        row.theirs.format(x=x.name),
        [x],
        x.shape,
        dtypes.bool,
        0,
        1,
        Rounding.EXACT,
    )


def as_real(x: Value) -> str:
    """Text of an operand for the mirror, which does not promote."""
    return x.name if dtypes.is_float(x.dtype) else f"real({x.name})"


FAMILY: Final = ((smooth, 9), (broken, 6), (question, 1.5))
"""Ops, and how often."""
