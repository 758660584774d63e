"""Lowered arithmetic, run by the interpreter, which fuses no products into sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import ClassVar

import numpy
import pytest

from tiny_testing.kernels import Array, Bench, elementwise, ulps
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer, PythonRuntime
from tinycore.device.protocols import Toolchain
from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.lower.elementary import DOUBLE_SERIES, SINGLE_SERIES, Series
from tinycore.lower.math import lower_math, lowering_of
from tinycore.render.base import Renderer
from tinycore.uop.evaluate import evaluate, threefry
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, APPROXIMATE, TRANSCENDENTAL, AxisKind, Op
from tinycore.uop.rewrite import rewrite

MISSING = TRANSCENDENTAL | {Op.THREEFRY, Op.FLOORDIV, Op.FLOORMOD, Op.TRUNC, Op.MIN, Op.MAX}
MISSING |= {Op.MULACC, Op.RECIPROCAL}
SIZE = 4096
LONG = numpy.longdouble


class Bare(PythonRenderer):
    """The interpreter, denying what it can do itself."""

    native_ops = ALU - MISSING


class Narrow(Bare):
    """One without float64, too."""

    lacking = frozenset({dtypes.float64})


BARE, NARROW = (
    Bench(PythonRuntime(0, ""), Toolchain("PYTHON", "", renderer, PythonCompiler()))
    for renderer in (Bare(), Narrow())
)


def computed(op: Op, *arguments: Array, lanes: int = 1, bench: Bench = BARE) -> Array:
    """Result of the lowered op for arrays of one type."""
    dtype = dtypes.by_name[arguments[0].dtype.name]
    inputs = [dtype] * len(arguments)
    size = arguments[0].size
    kernel = elementwise(lambda *x: [x[0].alu(op, *x[1:])], inputs, size, lanes, kind=AxisKind.GRID)
    return bench.run(kernel, numpy.zeros_like(arguments[0]), *arguments)[0]


def spread(dtype: DType, low: float, high: float) -> Array:
    random = numpy.random.default_rng(3)
    values = random.uniform(low, high, SIZE)
    return values.astype(to_numpy_dtype(dtype))


def magnitudes(dtype: DType) -> Array:
    """Positive floats of every exponent, denormal ones too."""
    random = numpy.random.default_rng(4)
    bits = random.integers(0, 2 ** (dtype.bits - 1), SIZE, dtype=numpy.uint64)
    values: Array = bits.astype(f"u{dtype.itemsize}").view(to_numpy_dtype(dtype))
    return values[numpy.isfinite(values)]


FLOATS = pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
EXACT: dict[Op, Callable[[Array], Array]] = {
    Op.EXP: numpy.exp,
    Op.EXP2: numpy.exp2,
    Op.LOG: numpy.log,
    Op.LOG2: numpy.log2,
}
RANGES = {
    (Op.EXP, dtypes.float32): (-104.0, 88.72),
    (Op.EXP, dtypes.float64): (-746.0, 709.78),
    (Op.EXP2, dtypes.float32): (-150.0, 127.99),
    (Op.EXP2, dtypes.float64): (-1075.0, 1023.99),
}


@FLOATS
@pytest.mark.parametrize("op", [Op.EXP, Op.EXP2], ids=lambda op: op.name)
def test_exponential_is_near_exact_where_it_is_finite(op: Op, dtype: DType) -> None:
    x = spread(dtype, *RANGES[op, dtype])

    assert ulps(computed(op, x), EXACT[op](x.astype(LONG))).max() < 1.3


@FLOATS
@pytest.mark.parametrize("op", [Op.EXP, Op.EXP2], ids=lambda op: op.name)
def test_exponential_near_zero(op: Op, dtype: DType) -> None:
    x = spread(dtype, -1e-3, 1e-3)

    assert ulps(computed(op, x), EXACT[op](x.astype(LONG))).max() < 1.0


@FLOATS
@pytest.mark.parametrize("op", [Op.LOG, Op.LOG2], ids=lambda op: op.name)
def test_logarithm_of_any_size(op: Op, dtype: DType) -> None:
    x = magnitudes(dtype)

    assert ulps(computed(op, x), EXACT[op](x.astype(LONG))).max() < 1.3


@FLOATS
@pytest.mark.parametrize("op", [Op.LOG, Op.LOG2], ids=lambda op: op.name)
def test_logarithm_near_one(op: Op, dtype: DType) -> None:
    x = spread(dtype, 0.7, 1.5)

    assert ulps(computed(op, x), EXACT[op](x.astype(LONG))).max() < 1.3


@FLOATS
@pytest.mark.parametrize(
    ("op", "argument", "value"),
    [
        (Op.EXP, math.inf, math.inf),
        (Op.EXP, -math.inf, 0.0),
        (Op.EXP, 1e6, math.inf),
        (Op.EXP, -1e6, 0.0),
        (Op.EXP2, 1024.0, math.inf),
        (Op.EXP2, -1100.0, 0.0),
        (Op.EXP2, -126.0, 2.0**-126),
        (Op.LOG, 0.0, -math.inf),
        (Op.LOG, -0.0, -math.inf),
        (Op.LOG, -1.0, math.nan),
        (Op.LOG, math.inf, math.inf),
        (Op.LOG, 1.0, 0.0),
        (Op.LOG2, 8.0, 3.0),
        (Op.LOG2, 2.0**-140, -140.0),
        (Op.SIN, math.inf, math.nan),
        (Op.SIN, 0.0, 0.0),
        *[(op, math.nan, math.nan) for op in sorted(TRANSCENDENTAL, key=lambda op: op.name)],
    ],
    ids=lambda v: v.name if isinstance(v, Op) else str(v),
)
def test_special_argument(op: Op, argument: float, value: float, dtype: DType) -> None:
    found = computed(op, numpy.array([argument], to_numpy_dtype(dtype)))[0]

    assert found == value or (math.isnan(found) and math.isnan(value))


def test_sine_keeps_the_sign_of_zero() -> None:
    assert math.copysign(1, computed(Op.SIN, numpy.array([-0.0], numpy.float32))[0]) == -1


@pytest.mark.parametrize("largest", [1.0, 1e3, 1e8, 3e38])
def test_sine_of_float32(largest: float) -> None:
    x = spread(dtypes.float32, -largest, largest)

    assert ulps(computed(Op.SIN, x), numpy.sin(x.astype(numpy.float64))).max() < 1.7


# sin(x) to 25 digits, computed with mpmath
SINES = [
    (1e22, "-0.8522008497671888017727059"),
    (3.141592653589793, "1.224646799147353177226066e-16"),
    (6381956970095103 * 2.0**797, "1.0"),
    (1.7976931348623157e308, "0.004961954789184061790502671"),
    (0.5, "0.4794255386042030002732879"),
    (-355.0, "0.00003014435335948844921433028"),
]


@pytest.mark.parametrize(("argument", "value"), SINES)
def test_sine_of_float64_at_any_size(argument: float, value: str) -> None:
    found = computed(Op.SIN, numpy.array([argument]))

    assert ulps(found, numpy.array([value]).astype(LONG)).max() < 1.7


def test_half_goes_by_float32() -> None:
    x = spread(dtypes.float16, -8.0, 8.0)

    found = computed(Op.EXP, x)
    numpy.testing.assert_array_equal(found, numpy.exp(x.astype(numpy.float64)).astype("e"))


@pytest.mark.parametrize("bench", [BARE, NARROW], ids=["float64", "no float64"])
def test_vectors_are_lowered_like_scalars(bench: Bench) -> None:
    x = spread(dtypes.float32, -20.0, 20.0)
    for op in TRANSCENDENTAL:
        scalars, vectors = (computed(op, x, lanes=n, bench=bench) for n in (1, 4))
        numpy.testing.assert_array_equal(vectors, scalars)


INTEGERS = [-128, -127, -8, -7, -1, 0, 1, 2, 3, 7, 8, 64, 127]


@pytest.mark.parametrize("op", [Op.FLOORDIV, Op.FLOORMOD, Op.MIN, Op.MAX])
def test_integers_of_any_sign(op: Op) -> None:
    a, b = (x.ravel().astype(numpy.int8) for x in numpy.meshgrid(INTEGERS, INTEGERS))
    functions = {
        Op.FLOORDIV: numpy.floor_divide,
        Op.FLOORMOD: numpy.mod,
        Op.MIN: numpy.minimum,
        Op.MAX: numpy.maximum,
    }
    with numpy.errstate(all="ignore"):
        numpy.testing.assert_array_equal(computed(op, a, b), functions[op](a, b))


@pytest.mark.parametrize("op", [Op.MIN, Op.MAX])
def test_nan_on_either_side_wins(op: Op) -> None:
    nan = math.nan
    found = computed(op, numpy.array([nan, 1.0, nan]), numpy.array([1.0, nan, nan]))

    assert numpy.isnan(found).all()


@FLOATS
def test_trunc(dtype: DType) -> None:
    x = spread(dtype, -1e3, 1e3)
    x[:7] = [0.0, -0.0, -0.5, math.inf, -math.inf, math.nan, 1e30]
    found = computed(Op.TRUNC, x)

    numpy.testing.assert_array_equal(found, numpy.trunc(x))
    numpy.testing.assert_array_equal(numpy.signbit(found), numpy.signbit(numpy.trunc(x)))


def test_threefry() -> None:
    random = numpy.random.default_rng(0)
    counters, keys = random.integers(0, 2**64, (2, 64), dtype=numpy.uint64)
    found = computed(Op.THREEFRY, counters, keys)

    assert found.tolist() == [threefry(int(c), int(k)) for c, k in zip(counters, keys, strict=True)]


def test_threefry_of_the_paper() -> None:
    """The known answer for counter 0 and key 0, from the distribution of Random123."""
    zeros = numpy.zeros(1, numpy.uint64)

    assert computed(Op.THREEFRY, zeros, zeros)[0] == (0x99BA4EFE << 32) | 0x6B200159


# --- the form of what is built


def lowered(u: UOp) -> UOp:
    return rewrite(u, lowering_of(MISSING))


I = UOp.range(100, 0)  # noqa: E741  the counter of a loop
N = UOp.variable("n", -50, 50)


def test_division_of_what_is_not_negative_truncates() -> None:
    assert lowered(I // 3) is I.alu(Op.IDIV, UOp.index(3))
    assert lowered(I % 3) is I.alu(Op.MOD, UOp.index(3))


def test_division_by_a_power_of_two_shifts() -> None:
    assert lowered(N // 8) is N >> 3
    assert lowered(N % 8) is N & 7


def test_floor_of_what_may_be_negative() -> None:
    for n in range(-50, 51):
        assert evaluate(lowered(N // 7), {N: n}) == n // 7
        assert evaluate(lowered(N % -7), {N: n}) == n % -7


def test_native_ops_are_left_alone() -> None:
    x = UOp.variable("x", 0, 1, dtypes.float32)

    assert rewrite(x.alu(Op.EXP), lower_math(Renderer())) is x.alu(Op.EXP)


class InPart(PythonRenderer):
    """The interpreter, with some functions of some types only."""

    native_types: ClassVar[Mapping[Op, frozenset[DType]]] = dict.fromkeys(
        (Op.SQRT, Op.MAX, Op.TRUNC, Op.FDIV), frozenset({dtypes.float32})
    )


@pytest.mark.parametrize("op", [Op.SQRT, Op.TRUNC], ids=lambda op: op.name)
def test_an_op_is_native_of_some_types(op: Op) -> None:
    single, half, double = (
        UOp.variable("x", 0, 9, dtypes.int32).cast(dtype)
        for dtype in (dtypes.float32, dtypes.float16, dtypes.float64)
    )
    rules = lower_math(InPart())

    assert rewrite(single.alu(op), rules) is single.alu(op)
    found = rewrite(half.alu(op), rules)
    assert [n.dtype for n in found.toposort() if n.op is op] == [dtypes.float32]
    assert found.dtype is dtypes.float16
    assert (rewrite(double.alu(op), rules) is double.alu(op)) == (op is Op.SQRT)  # has no lowering


def test_halves_are_rounded_as_if_their_op_was_native() -> None:
    bench = Bench(PythonRuntime(0, ""), Toolchain("PYTHON", "", InPart(), PythonCompiler()))
    x = numpy.abs(spread(dtypes.float16, 0.01, 1000.0))
    y = spread(dtypes.float16, 0.5, 90.0)

    with numpy.errstate(all="ignore"):
        assert (computed(Op.FDIV, x, y, lanes=4, bench=bench) == x / y).all()
        assert (computed(Op.SQRT, x, bench=bench) == numpy.sqrt(x)).all()


def test_the_greater_of_doubles_is_lowered_where_it_is_native_of_floats() -> None:
    bench = Bench(PythonRuntime(0, ""), Toolchain("PYTHON", "", InPart(), PythonCompiler()))
    x, y = spread(dtypes.float64, -5.0, 5.0), spread(dtypes.float64, -5.0, 5.0)[::-1].copy()
    y[:2] = numpy.nan, 1.0

    found = computed(Op.MAX, x, y, bench=bench)
    assert numpy.array_equal(found, numpy.maximum(x, y), equal_nan=True)
    assert InPart().lacks(Op.MAX, dtypes.float64)
    assert not InPart().lacks(Op.MAX, dtypes.float32.vec(4))


def test_rules_are_made_once() -> None:
    assert lower_math(Bare()) is lower_math(Bare())


def test_random_floor_divisions() -> None:
    random = Random(0)
    a, b = (UOp.variable(name, -(2**31), 2**31 - 1, dtypes.int32) for name in "ab")
    division, modulo = lowered(a // b), lowered(a % b)
    for _ in range(200):
        x, y = random.randint(-100, 100), random.choice([-7, -3, -1, 1, 2, 5, 64])
        assert evaluate(division, {a: x, b: y}) == x // y
        assert evaluate(modulo, {a: x, b: y}) == x % y


def test_a_power_that_may_be_approximate_is_left_to_a_device_that_has_it() -> None:
    x = UOp.variable("x", 0, 1, dtypes.int32).cast(dtypes.float32)
    exact, rough = UOp(Op.EXP2, x.dtype, (x,)), UOp(Op.EXP2, x.dtype, (x,), APPROXIMATE)
    kept = lowering_of(MISSING, approximate=frozenset({Op.EXP2}))

    assert rewrite(rough, kept) is rough
    assert rewrite(exact, kept) is rewrite(rough, lowering_of(MISSING))


@pytest.mark.parametrize(
    ("series", "dtype"), [(SINGLE_SERIES, dtypes.float32), (DOUBLE_SERIES, dtypes.float64)]
)
def test_exponentials_of_minus_infinity_are_products_by_zero(series: Series, dtype: DType) -> None:
    # Bits of an exponent of -2 * bias are 0, and half of that is, too: 0 * x is no underflow.
    least = -2 * float_layout(dtype).bias

    assert round(series.exp_domain.zero / math.log(2)) == least
    assert series.exp2_domain.zero == least
