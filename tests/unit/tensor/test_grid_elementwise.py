"""The grid of elementwise operations: accuracy, special values, dtypes, shapes, derivatives.

Many values go through one kernel. `UNARY` states for each function how many units in the last place
it may be off, `BINARY` likewise; what differs from torch on purpose is in `DIFFERENT`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from tests.unit.tensor.grid import (
    FLOATS,
    FULL,
    SHAPES,
    Array,
    assert_ulps,
    differences,
    extremes,
    limits,
    magnitudes,
    rounded,
    special,
    tensor_of,
    torch_dtype,
)
from tests.unit.tensor.helpers import RECIPROCALS
from tinycore.dtype import DType, dtypes
from tinycore.tensor import Tensor

pytestmark = pytest.mark.usefixtures("subnormals_kept")

F = torch.nn.functional
Function = Callable[..., Any]


class Unary(NamedTuple):
    """One function of one number."""

    name: str
    truth: Function
    """On long doubles."""
    torch: Function
    ulps: float = 3.0
    low: float = 1e-30
    high: float = 1e30
    """Magnitudes that are tried."""
    smooth: bool = True
    """True if it has derivatives, which are compared."""


def erf(x: Array) -> Array:
    """The error function, in float64."""
    found = torch.erf(torch.tensor(x.astype(numpy.float64))).numpy()
    return numpy.asarray(found, numpy.longdouble)


def sigmoid(x: Array) -> Array:
    return numpy.asarray(numpy.where(x < 0, numpy.exp(x), 1) / (1 + numpy.exp(-numpy.abs(x))))


def softplus(x: Array) -> Array:
    return numpy.maximum(x, 0) + numpy.log1p(numpy.exp(-numpy.abs(x)))


def elu(x: Array, alpha: float = 1.0) -> Array:
    return numpy.where(x > 0, x, alpha * numpy.expm1(numpy.minimum(x, 0)))


def gelu(x: Array) -> Array:
    return x * sigmoid(numpy.sqrt(8 / numpy.longdouble(numpy.pi)) * (x + 0.044715 * x**3))


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    return F.relu6(x + 3) / 6


SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
EXACT = 0.5
QUOTIENTS = frozenset({"div", "fmod", "mod", "idiv"})

UNARY = [
    Unary("neg", numpy.negative, torch.neg, EXACT),
    Unary("abs", numpy.abs, torch.abs, EXACT),
    Unary("sign", numpy.sign, torch.sign, EXACT, smooth=False),
    Unary("square", numpy.square, torch.square, EXACT),
    Unary("sqrt", numpy.sqrt, torch.sqrt, EXACT),
    Unary("rsqrt", lambda x: 1 / numpy.sqrt(x), torch.rsqrt, 1.5),
    Unary("reciprocal", lambda x: 1 / x, torch.reciprocal, EXACT),
    Unary("trunc", numpy.trunc, torch.trunc, EXACT, smooth=False),
    Unary("floor", numpy.floor, torch.floor, EXACT, smooth=False),
    Unary("ceil", numpy.ceil, torch.ceil, EXACT, smooth=False),
    Unary("round", numpy.rint, torch.round, EXACT, smooth=False),
    Unary("exp", numpy.exp, torch.exp, 1.1, 1e-6, 1e3),
    Unary("exp2", numpy.exp2, torch.exp2, 1.1, 1e-6, 1e3),
    Unary("expm1", numpy.expm1, torch.expm1, 2.0, 1e-9, 1e3),
    Unary("log", numpy.log, torch.log, 1.1),
    Unary("log2", numpy.log2, torch.log2, 1.1),
    Unary("log10", numpy.log10, torch.log10, 2.1),
    Unary("log1p", numpy.log1p, torch.log1p, 2.0),
    Unary("sin", numpy.sin, torch.sin, 1.7),
    Unary("cos", numpy.cos, torch.cos, 3.0, 1e-9, 5e3),
    Unary("tan", numpy.tan, torch.tan, 4.0, 1e-9, 5e3),
    Unary("asin", numpy.arcsin, torch.asin, 3.0, 1e-9, 1),
    Unary("acos", numpy.arccos, torch.acos, 3.0, 1e-9, 1),
    Unary("atan", numpy.arctan, torch.atan, 3.0, 1e-9),
    Unary("sinh", numpy.sinh, torch.sinh, 3.0, 1e-9, 1e3),
    Unary("cosh", numpy.cosh, torch.cosh, 3.0, 1e-9, 1e3),
    Unary("tanh", numpy.tanh, torch.tanh, 3.0, 1e-9, 1e3),
    Unary("asinh", numpy.arcsinh, torch.asinh, 3.0),
    Unary("acosh", numpy.arccosh, torch.acosh, 3.0, 1),
    Unary("atanh", numpy.arctanh, torch.atanh, 3.0, 1e-9, 1),
    Unary("erf", erf, torch.erf, 3.0, 1e-9, 10),
    Unary("sigmoid", sigmoid, torch.sigmoid, 2.5, 1e-9, 1e2),
    Unary("logsigmoid", lambda x: -softplus(-x), F.logsigmoid, 2.5, 1e-9, 1e3),
    Unary("softplus", softplus, lambda x: F.softplus(x, threshold=1e9), 2.5, 1e-9, 1e3),
    Unary("silu", lambda x: x * sigmoid(x), F.silu, 3.0, 1e-9, 80),
    Unary("swish", lambda x: x * sigmoid(x), F.silu, 3.0, 1e-9, 80),
    Unary("mish", lambda x: x * numpy.tanh(softplus(x)), F.mish, 4.0, 1e-9, 80),
    Unary("relu", lambda x: numpy.maximum(x, 0), torch.relu, EXACT),
    Unary("relu6", lambda x: numpy.clip(x, 0, 6), F.relu6, EXACT),
    Unary("leaky_relu", lambda x: numpy.where(x < 0, x * 0.01, x), F.leaky_relu, 1.1),
    Unary("hardtanh", lambda x: numpy.clip(x, -1, 1), F.hardtanh, EXACT),
    Unary("elu", elu, F.elu, 2.0, 1e-9, 1e3),
    Unary("celu", elu, F.celu, 2.0, 1e-9, 1e3),
    Unary("selu", lambda x: SELU_GAMMA * elu(x, SELU_ALPHA), F.selu, 3.0, 1e-9, 1e3),
    Unary("gelu", gelu, lambda x: F.gelu(x, approximate="tanh"), 32.0, 1e-9, 8),
    Unary("quick_gelu", lambda x: x * sigmoid(1.702 * x), quick_gelu, 16.0, 1e-9, 40),
    Unary(
        "hardsigmoid",
        lambda x: numpy.clip(x / 6 + 0.5, 0, 1),
        lambda x: F.relu6(x + 3) / 6,
        1.0,
        1e-9,
        2,
    ),
    Unary("hardswish", lambda x: x * numpy.clip(x + 3, 0, 6) / 6, F.hardswish, 3.0, 1e-9, 2),
    Unary("softsign", lambda x: x / (1 + numpy.abs(x)), F.softsign, 1.6),
]


SIGNED_ZEROS = frozenset(
    {
        "neg",
        "abs",
        "sign",
        "square",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "trunc",
        "floor",
        "ceil",
        "round",
    }
    | {"expm1", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"}
)
"""Functions that keep the sign of a zero as IEEE 754 says; of others only the value counts."""

DIFFERENT: dict[str, tuple[Function, str]] = {
    "sign": (numpy.isnan, "NaN stays NaN, as in NumPy; torch makes 0 of it"),
    "log1p": (lambda x: 0 < abs(x) < 1e-37, "torch flushes subnormals"),
    "gelu": (lambda x: x in (-3, -2.5), "torch cancels digits of 1 + tanh"),
    "hardsigmoid": (lambda x: x == -3, "alpha * a + beta is rounded before it is cut off"),
    "erf": (lambda x: 0 < abs(x) < 1e-7, "torch flushes subnormals of narrow floats"),
}
"""Arguments for which a function differs from torch's on purpose, and why."""


def domain(row: Unary, dtype: DType) -> Array:
    """Arguments of a function: its magnitudes and what lies near 1, rounded to the dtype."""
    near = 1 + magnitudes(20, 1e-4, 0.5, seed=1)
    drawn = numpy.concatenate([magnitudes(60, row.low, row.high), near, -near])
    if row.high == 1:
        drawn = drawn[numpy.abs(drawn) <= 1]
    return rounded(drawn, dtype)


def grid_dtypes(target: str) -> tuple[DType, ...]:
    """All floats on one target: the others show that they compute the same graph alike."""
    return FLOATS if target == FULL else (dtypes.float32,)


@pytest.mark.parametrize("row", UNARY, ids=[row.name for row in UNARY])
def test_unary(row: Unary, target: str) -> None:
    """Values within the stated distance of the true ones; special values as in torch."""
    for dtype in grid_dtypes(target):
        x, odd = domain(row, dtype), numpy.array(special(dtype))
        with numpy.errstate(all="ignore"):
            expected = row.truth(x)

        result = getattr(tensor_of(numpy.concatenate([x, odd]), dtype), row.name)().realize()

        allowed = row.ulps + 0.5 if target in RECIPROCALS else row.ulps
        assert_ulps(result[: len(x)], expected, dtype, allowed, [x])
        theirs = row.torch(torch.tensor(odd, dtype=torch.float64).to(torch_dtype(dtype)))
        near = max(4, 4 * row.ulps) * 2.0 ** -dtypes.finfo(dtype)[1]
        wrong = differences(result[len(x) :], theirs, near, row.name in SIGNED_ZEROS)
        assert [odd[i] for i in wrong if not is_different(row.name, odd[i])] == []


def is_different(name: str, argument: float) -> bool:
    """True if the table of differences explains one."""
    return name in DIFFERENT and bool(DIFFERENT[name][0](argument))


FAR_ANGLES = rounded(magnitudes(100, 1e3, 1e30), dtypes.float32)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_the_cosine_of_many_turns_is_accurate_relative_to_one(dtype: DType) -> None:
    result = tensor_of(FAR_ANGLES, dtype).cos().numpy().astype(numpy.longdouble)

    expected = torch.cos(torch.tensor(FAR_ANGLES.astype(numpy.float64))).numpy()
    assert numpy.abs(result - expected).max() < 2 * 2.0 ** -dtypes.finfo(dtype)[1]


# --- two operands


class Binary(NamedTuple):
    """One function of two numbers."""

    name: str
    truth: Function
    """On long doubles."""
    torch: Function
    ulps: float = 0.5
    low: float = 1e-30
    high: float = 1e30


BINARY = [
    Binary("add", numpy.add, torch.add),
    Binary("sub", numpy.subtract, torch.sub),
    Binary("mul", numpy.multiply, torch.mul),
    Binary("div", numpy.divide, torch.div),
    Binary("maximum", numpy.maximum, torch.maximum),
    Binary("minimum", numpy.minimum, torch.minimum),
    Binary("fmod", numpy.fmod, torch.fmod, 0.5, 1e-4, 1e4),
    Binary("mod", numpy.mod, torch.remainder, 0.5, 1e-4, 1e4),
    Binary("idiv", numpy.floor_divide, torch.floor_divide, 0.5, 1e-4, 1e4),
    Binary("copysign", numpy.copysign, torch.copysign),
    Binary("logaddexp", numpy.logaddexp, torch.logaddexp, 8.0, 1e-3, 1e2),
    Binary("pow", numpy.power, torch.pow, 2.0, 1e-3, 40),
]
COMPARISONS = [
    ("eq", torch.eq),
    ("ne", torch.ne),
    ("__lt__", torch.lt),
    ("__le__", torch.le),
    ("__gt__", torch.gt),
    ("__ge__", torch.ge),
]
SIGNED_ZEROS_OF_TWO = frozenset({"add", "sub", "mul", "div", "fmod", "copysign", "pow"})


@pytest.mark.parametrize("row", BINARY, ids=[row.name for row in BINARY])
def test_binary(row: Binary, target: str) -> None:
    """All pairs of special values as in torch, random ones within the stated distance."""
    for dtype in grid_dtypes(target):
        x = rounded(magnitudes(60, row.low, row.high, seed=1), dtype)
        y = rounded(numpy.roll(magnitudes(60, row.low, row.high, seed=2), 30), dtype)
        odd, other = (n.reshape(-1) for n in numpy.meshgrid(*[special(dtype)] * 2))
        with numpy.errstate(all="ignore"):
            expected = row.truth(x, y)
        left = tensor_of(numpy.concatenate([x, odd]), dtype)
        right = tensor_of(numpy.concatenate([y, other]), dtype)

        result = getattr(left, row.name)(right).realize()

        is_product = target in RECIPROCALS and row.name in QUOTIENTS
        assert_ulps(result[: len(x)], expected, dtype, 2.5 if is_product else row.ulps, [x, y])
        if is_product:
            continue
        pair = [torch.tensor(n, dtype=torch.float64).to(torch_dtype(dtype)) for n in (odd, other)]
        near = 4 * 2.0 ** -dtypes.finfo(dtype)[1]
        wrong = differences(
            result[len(x) :], row.torch(*pair), near, row.name in SIGNED_ZEROS_OF_TWO
        )
        assert [
            (odd[i], other[i]) for i in wrong if not is_different_pair(row.name, odd[i], other[i])
        ] == []


def far_apart(a: float, b: float) -> bool:
    """True if a quotient is beyond what remainders follow; torch yields NaN for most of these."""
    return b != 0 and abs(a) / 2.0**40 >= abs(b)


DIFFERENT_PAIRS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "fmod": (far_apart, "remainders are 0 where the quotient is 2**40 or more"),
    "mod": (far_apart, "remainders are 0 where the quotient is 2**40 or more"),
    "copysign": (lambda a, b: b != b, "NaN has no sign"),
}


def is_different_pair(name: str, a: float, b: float) -> bool:
    """True if the table of differences explains one."""
    return name in DIFFERENT_PAIRS and DIFFERENT_PAIRS[name][0](a, b)


@pytest.mark.parametrize("name", [name for name, _ in COMPARISONS])
def test_comparisons(name: str, target: str) -> None:
    theirs = dict(COMPARISONS)[name]
    for dtype in (*grid_dtypes(target), dtypes.int32, dtypes.uint8, dtypes.bool):
        values = (
            special(dtype)
            if dtypes.is_float(dtype)
            else [0, 1, 7, 255][: 2 if dtype is dtypes.bool else 4]
        )
        x = torch.tensor(values, dtype=torch.float64).to(torch_dtype(dtype))
        ours = Tensor(values, dtype=dtype)

        result = getattr(ours.unsqueeze(1), name)(ours)

        assert result.dtype is dtypes.bool
        assert result.tolist() == theirs(x.unsqueeze(1), x).tolist()


# --- integers

INTEGERS = (*dtypes.sints, *dtypes.uints)
WRAPPING: list[tuple[str, Function]] = [
    ("add", numpy.add),
    ("sub", numpy.subtract),
    ("mul", numpy.multiply),
    ("maximum", numpy.maximum),
    ("minimum", numpy.minimum),
    ("bitwise_and", numpy.bitwise_and),
    ("bitwise_or", numpy.bitwise_or),
    ("bitwise_xor", numpy.bitwise_xor),
    ("idiv", numpy.floor_divide),
    ("mod", numpy.remainder),
    ("fmod", numpy.fmod),
]


def pairs_of(dtype: DType) -> tuple[Array, Array]:
    """All pairs of an integer dtype's extremes."""
    values = numpy.array(extremes(dtype), dtype.name)
    a, b = numpy.meshgrid(values, values)
    return a.reshape(-1), b.reshape(-1)


@pytest.mark.parametrize(("name", "truth"), WRAPPING, ids=[name for name, _ in WRAPPING])
def test_integers_wrap_and_division_by_zero_gives_zero(
    name: str, truth: Function, target: str
) -> None:
    for dtype in INTEGERS if target == FULL else (dtypes.int8, dtypes.uint32, dtypes.int64):
        a, b = pairs_of(dtype)
        with numpy.errstate(all="ignore"):
            expected = truth(a, b)
        if name == "idiv":  # the least integer over -1 wraps
            expected = numpy.where(b == 0, 0, expected)

        result = getattr(Tensor(a), name)(Tensor(b)).numpy()

        numpy.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=[d.name for d in INTEGERS])
def test_division_toward_zero_shifts_and_signs(dtype: DType) -> None:
    a, b = pairs_of(dtype)
    low, bits = int(dtypes.min(dtype)), dtype.bits
    wide_a, wide_b = [[int(x) for x in n] for n in (a, b)]

    def wrapped(x: int) -> int:
        return (x - low) % (1 << bits) + low

    quotients = [
        0 if y == 0 else wrapped(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))
        for x, y in zip(wide_a, wide_b, strict=True)
    ]
    x = Tensor(a)
    assert x.div(Tensor(b), rounding_mode="trunc").tolist() == quotients
    count = numpy.arange(len(a), dtype=dtype.name) % (bits + 3)
    places = [int(n) % bits for n in count]
    assert (x << Tensor(count)).tolist() == [
        wrapped(n << k) for n, k in zip(wide_a, places, strict=True)
    ]
    assert (x >> Tensor(count)).tolist() == [n >> k for n, k in zip(wide_a, places, strict=True)]
    assert (-x).tolist() == [wrapped(-n) for n in wide_a]
    assert (~x).tolist() == [wrapped(~n) for n in wide_a]
    assert x.abs().tolist() == [wrapped(abs(n)) for n in wide_a]
    assert x.sign().tolist() == [(n > 0) - (n < 0) for n in wide_a]
    assert x.square().tolist() == [wrapped(n * n) for n in wide_a]


def torch_result(function: Function, *arguments: torch.Tensor) -> torch.Tensor | None:
    """Result of torch, None where it refuses."""
    try:
        result = function(*arguments)
    except (RuntimeError, NotImplementedError):
        return None
    assert isinstance(result, torch.Tensor)
    return result


OTHER_DTYPES = {("square", dtypes.bool): "a * a of bools is logical, as * is; torch makes int64"}
"""Results whose dtype differs from torch's on purpose, and why."""

FLOAT_FUNCTIONS = [row for row in UNARY if row.name not in ("round", "leaky_relu", "hardtanh")]


@pytest.mark.parametrize("row", FLOAT_FUNCTIONS, ids=[row.name for row in FLOAT_FUNCTIONS])
def test_dtype_of_a_function_of_integers(row: Unary) -> None:
    for dtype in (dtypes.bool, *INTEGERS):
        theirs = torch_result(row.torch, torch.tensor([0, 1]).to(torch_dtype(dtype)))
        if theirs is not None and (row.name, dtype) not in OTHER_DTYPES:
            ours = getattr(Tensor([0, 1], dtype=dtype), row.name)().dtype
            assert torch_dtype(ours) is theirs.dtype, (row.name, dtype)


# --- derivatives

KINKS = [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0]
SMOOTH = [row for row in UNARY if row.smooth]
KINKS_DIFFERENT: dict[str, tuple[Callable[[float], bool], str]] = {
    "acosh": (lambda x: abs(x) == 1, "the second derivative there is NaN"),
    "hardsigmoid": (lambda x: x == -3, "alpha * a + beta is rounded before it is cut off"),
    "elu": (lambda x: x == 0, "the second derivative is that from below, torch's that from above"),
    "celu": (lambda x: x == 0, "as elu"),
    "selu": (lambda x: x == 0, "as elu"),
}
"""Points at which a derivative differs from torch's on purpose, and why."""


def derivative_points(row: Unary) -> Array:
    """Some arguments of a function, and where functions have folds, ends and poles."""
    drawn = magnitudes(12, max(row.low, 1e-3), min(row.high, 8.0), seed=3)
    return numpy.concatenate([drawn, KINKS])


@pytest.mark.parametrize("row", SMOOTH, ids=[row.name for row in SMOOTH])
def test_derivatives(row: Unary, target: str) -> None:
    """The first and the second derivative; elsewhere than on `FULL` those of some functions."""
    if target != FULL and row.name not in ("exp", "sqrt", "tanh", "relu", "erf"):
        pytest.skip("derivatives are graphs like others")
    points = derivative_points(row)
    x = torch.tensor(points, requires_grad=True)
    (first,) = torch.autograd.grad(row.torch(x).sum(), x, create_graph=True)
    dtype = dtypes.float32 if target == "PYTHON" else dtypes.float64
    ours = tensor_of(points, dtype)

    (gradient,) = getattr(ours, row.name)().sum().gradient(ours)

    assert_derivative(row, points, gradient, first)
    if first.requires_grad and target == FULL:
        (second,) = torch.autograd.grad(first.sum(), x)
        (again,) = gradient.sum().gradient(ours)
        assert_derivative(row, points, again, second)


def assert_derivative(row: Unary, points: Array, found: Tensor, expected: torch.Tensor) -> None:
    """A derivative as in torch, but for what `KINKS_DIFFERENT` explains."""
    near = 1e-5 if found.dtype is dtypes.float32 else 1e-9
    different = KINKS_DIFFERENT.get(row.name, (lambda x: False, ""))[0]
    wrong = differences(
        found,
        expected,
        near,
        signed_zeros=False,
        absolute=near * 2e-2 if found.dtype is dtypes.float32 else 1e-14,
    )
    listed = [(points[i], found.numpy()[i], expected[i].item()) for i in wrong]
    assert [place for place in listed if not different(place[0])] == []


# --- derivatives of two operands

PAIRS: list[tuple[str, Function, Function]] = [
    ("add", Tensor.add, torch.add),
    ("sub", Tensor.sub, torch.sub),
    ("mul", Tensor.mul, torch.mul),
    ("div", Tensor.div, torch.div),
    ("maximum", Tensor.maximum, torch.maximum),
    ("minimum", Tensor.minimum, torch.minimum),
    ("pow", Tensor.pow, torch.pow),
    ("logaddexp", Tensor.logaddexp, torch.logaddexp),
    ("fmod", Tensor.fmod, torch.fmod),
    ("mod", Tensor.mod, torch.remainder),
    ("lerp", lambda a, b: a.lerp(b, 0.3), lambda a, b: torch.lerp(a, b, 0.3)),
    ("where", lambda a, b: (a < b).where(a * 2, b), lambda a, b: torch.where(a < b, a * 2, b)),
    ("masked", lambda a, b: (a > 0).where(a.log(), b), lambda a, b: torch.where(a > 0, a.log(), b)),
    ("clamp", lambda a, b: a.clamp(-1, b), lambda a, b: a.clamp(min=-1).clamp(max=b)),
]
LEFT = numpy.array([2.0, 2.0, -2.0, 0.5, 3.0, -1.0, 0.0, 7.5, 0.0, -7.5, 4.0])
RIGHT = numpy.array([3.0, 2.0, 3.0, -1.5, 0.0, 2.0, 2.0, 2.5, 1.0, 2.0, 4.0])
OPERANDS_DIFFERENT = {
    ("pow", 1): LEFT < 0,  # by the exponent of a negative base, as of |a|; torch has NaN
    ("fmod", 0): RIGHT == 0,  # of a remainder that is NaN
    ("fmod", 1): RIGHT == 0,
    ("mod", 0): RIGHT == 0,
    ("mod", 1): RIGHT == 0,
}
"""Operands by which the derivative differs from torch's on purpose."""


@pytest.mark.parametrize(("name", "ours", "theirs"), PAIRS, ids=[name for name, *_ in PAIRS])
def test_derivatives_of_two(name: str, ours: Function, theirs: Function, target: str) -> None:
    """With ties, zeros and negative bases; the sum of derivatives also a second time."""
    dtype = dtypes.float32 if target == "PYTHON" else dtypes.float64
    a, b = (torch.tensor(n, requires_grad=True) for n in (LEFT, RIGHT))
    first = torch.autograd.grad(theirs(a, b).sum(), (a, b), create_graph=True)
    x, y = (tensor_of(n, dtype) for n in (LEFT, RIGHT))

    found = ours(x, y).sum().gradient(x, y)

    for operand, (mine, right) in enumerate(zip(found, first, strict=True)):
        wrong = differences(mine, right, 1e-5, signed_zeros=False)
        explained = OPERANDS_DIFFERENT.get((name, operand), numpy.zeros(len(LEFT), bool))
        assert [i for i in wrong if not explained[i]] == [], (mine.numpy(), right)
    if name in ("mul", "div", "pow", "logaddexp") and target == FULL:
        second = torch.autograd.grad(first[0].sum() + first[1].sum(), (a, b))
        again = (found[0].sum() + found[1].sum()).gradient(x, y)
        for mine, right in zip(again, second, strict=True):
            wrong = differences(mine, right, 1e-9, False, 1e-12)
            assert [i for i in wrong if RIGHT[i] and right[i].isfinite()] == [], (
                mine.numpy(),
                right,
            )


POWERS = [0, 1, 2, 3, 4, 5, 10, -1, -2, -3, -7, 0.5, 1.5, -0.5, -1.5, 2.7, 0.3]


@pytest.mark.parametrize("exponent", POWERS)
def test_a_power_of_a_number_and_its_derivative(exponent: float, target: str) -> None:
    points = numpy.array([-2.0, -0.5, 0.0, 0.3, 1.0, 2.5, 40.0])
    x = torch.tensor(points, requires_grad=True)
    expected = x**exponent
    expected.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    ours = tensor_of(points, dtypes.float64)

    result = ours**exponent

    assert differences(result, expected, 1e-15, signed_zeros=False) == []
    if target == FULL:
        (gradient,) = result.sum().gradient(ours)
        wrong = differences(gradient, x.grad, 1e-14, signed_zeros=False)
        listed = [(points[i], gradient.numpy()[i], x.grad[i].item()) for i in wrong]
        assert [place for place in listed if place[0] >= 0 or exponent % 1 == 0] == []


# --- casts

WHOLE = [0.0, 1.0, -1.0, 2.0, 100.0, -100.0, 0.5, -0.5, 1.5, -3.7, 127.9]


@pytest.mark.parametrize("source", dtypes.all, ids=[d.name for d in dtypes.all])
def test_casts(source: DType, target: str) -> None:
    """Every dtype to every other as in torch, of values that fit; of floats also the others."""
    theirs = cast_values(source)
    raw = theirs.double().numpy() if dtypes.is_float(source) else theirs.numpy()
    ours = Tensor(raw, dtype=source)
    for goal in dtypes.all if target == FULL else (dtypes.int8, dtypes.float16, dtypes.bool):
        if dtypes.is_unsigned(goal) and dtypes.is_float(source):
            continue  # of negative floats torch's result depends on the machine
        expected = theirs.to(torch_dtype(goal))

        result = ours.cast(goal)

        assert result.dtype is goal
        if dtypes.is_float(goal):
            right = expected.double()
            if goal is dtypes.fp8e4m3:  # overflow is NaN, as in test_rounding_to_narrow_floats
                right[theirs.double().abs() > 448] = numpy.nan
            assert differences(result.cast(dtypes.float64), right) == [], (goal, right)
        else:
            assert result.numpy().tolist() == expected.numpy().tolist(), goal


def cast_values(source: DType) -> torch.Tensor:
    """Values of a dtype that others may hold: halves, whole numbers, the extremes of integers."""
    if source is dtypes.bool:
        return torch.tensor([False, True])
    if dtypes.is_float(source):
        return torch.tensor(WHOLE, dtype=torch.float64).to(torch_dtype(source))
    return torch.tensor(numpy.array(extremes(source), source.name))


ODD_FLOATS = [numpy.nan, numpy.inf, -numpy.inf, 3e9, -3e9, 1e19, -1e19, 300.0, -129.0]


@pytest.mark.parametrize("goal", dtypes.ints, ids=[d.name for d in dtypes.ints])
def test_floats_that_fit_no_integer_are_cut_to_its_width(goal: DType) -> None:
    """The rule is in docs/numerics.md."""
    narrow = goal.itemsize < 4 or goal is dtypes.int32
    least = -(2**31) if narrow else -(2**63)
    end = 2**64 if goal is dtypes.uint64 else -least
    whole = [int(x) if least <= x < end else least for x in ODD_FLOATS]
    low = int(dtypes.min(goal))
    expected = [(x - low) % (1 << goal.bits) + low for x in whole]

    assert Tensor(ODD_FLOATS, dtype=dtypes.float64).cast(goal).tolist() == expected


NARROW = [d for d in dtypes.floats if d.itemsize < 4]


@pytest.mark.parametrize("goal", NARROW, ids=[d.name for d in NARROW])
def test_rounding_to_narrow_floats(goal: DType) -> None:
    """Halves to even, subnormals, overflow as torch; fp8e4m3 overflows to NaN, torch to 448."""
    drawn = magnitudes(300, limits(goal)[0] / 4, limits(goal)[2] * 2)
    ties = numpy.concatenate(
        [1 + (numpy.arange(32) + 0.5) * 2.0 ** -dtypes.finfo(goal)[1], special(goal)]
    )
    with numpy.errstate(over="ignore"):
        x = numpy.concatenate([drawn, ties, -ties]).astype(numpy.float32)
    if goal is dtypes.fp8e4m3:
        x = x[~(numpy.abs(x) > 448)]
    expected = torch.tensor(x).to(torch_dtype(goal)).float()

    assert differences(Tensor(x).cast(goal).float(), expected) == []
    if goal is dtypes.fp8e4m3:
        assert numpy.isnan(Tensor([1e4, -1e4]).cast(goal).float().numpy()).all()


# --- questions and choices


def each_pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands of a comparison of each element with each; torch 2.11's isclose expands none."""
    return x.expand(len(x), -1), x.unsqueeze(1).expand(-1, len(x))


QUESTIONS: list[tuple[str, Function, Function]] = [
    ("isnan", Tensor.isnan, torch.isnan),
    ("isinf", Tensor.isinf, torch.isinf),
    ("isposinf", lambda x: x.isinf(detect_negative=False), torch.isposinf),
    ("isneginf", lambda x: x.isinf(detect_positive=False), torch.isneginf),
    ("isfinite", Tensor.isfinite, torch.isfinite),
    ("logical_not", Tensor.logical_not, torch.logical_not),
    ("isclose", lambda x: x.isclose(x.unsqueeze(1)), lambda x: torch.isclose(*each_pair(x))),
    (
        "isclose_nan",
        lambda x: x.isclose(x.unsqueeze(1), 0.5, 0.1, equal_nan=True),
        lambda x: torch.isclose(*each_pair(x), 0.5, 0.1, equal_nan=True),
    ),
    ("clamp", lambda x: x.clamp(-1, 2), lambda x: x.clamp(-1, 2)),
    ("clamp_crossed", lambda x: x.clamp(2, -1), lambda x: x.clamp(2, -1)),
    ("masked_fill", lambda x: x.masked_fill(x > 1, 7), lambda x: x.masked_fill(x > 1, 7)),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), QUESTIONS, ids=[q[0] for q in QUESTIONS])
def test_questions_and_limits(name: str, ours: Function, theirs: Function, target: str) -> None:
    for dtype in (*grid_dtypes(target), dtypes.int32, dtypes.int8):
        values = special(dtype) if dtypes.is_float(dtype) else extremes(dtype)
        x = torch.tensor(values, dtype=torch.float64).to(torch_dtype(dtype))

        result = ours(Tensor(values, dtype=dtype))

        expected = theirs(x)
        assert torch_dtype(result.dtype) is expected.dtype
        assert result.shape == tuple(expected.shape)
        if dtypes.is_float(result.dtype):
            assert differences(result, expected, signed_zeros=False) == []
        else:
            assert result.tolist() == expected.tolist()


# --- shapes and views

VIEWS: list[tuple[str, Function]] = [
    ("plain", lambda x: x),
    ("permuted", lambda x: x.permute(1, 0).permute(1, 0) if x.ndim == 2 else x),
    ("transposed", lambda x: x.transpose(0, 1) if x.ndim == 2 else x),
    ("flipped", lambda x: x.flip(0) if x.ndim else x),
    ("expanded", lambda x: x.reshape(1, *x.shape).expand(3, *x.shape)),
    ("sliced", lambda x: x[1:-1] if x.ndim else x),
]
FAMILIES: list[tuple[str, Function, Function]] = [
    ("op", lambda x: x.sqrt(), torch.sqrt),
    ("composed", lambda x: x.tanh(), torch.tanh),
    ("cast", lambda x: x.cast(dtypes.int32), lambda x: x.to(torch.int32)),
    ("compared", lambda x: x > 1, lambda x: x > 1),
    ("chosen", lambda x: (x > 1).where(x, 0.0), lambda x: torch.where(x > 1, x, 0.0)),
]


@pytest.mark.parametrize(("family", "ours", "theirs"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_shapes_and_views(family: str, ours: Function, theirs: Function, target: str) -> None:
    large: list[tuple[int, ...]] = [(70_001,), (257, 129)] if target == FULL else []
    for shape in [*SHAPES, *large]:
        x = numpy.random.default_rng(0).uniform(0, 3, shape).astype(numpy.float32)
        for name, view in VIEWS if target == FULL and shape in SHAPES else VIEWS[2:4]:
            if 0 in shape and name == "expanded":
                continue
            expected = theirs(torch_view(name, torch.tensor(x)))

            result = ours(view(Tensor(x)))

            assert result.shape == tuple(expected.shape), (shape, name)
            numpy.testing.assert_allclose(
                result.numpy(), expected.numpy(), 1e-6, err_msg=f"{shape} {name}"
            )


def torch_view(name: str, x: torch.Tensor) -> torch.Tensor:
    """The view of the same name, by torch."""
    return torch.flip(x, (0,)) if name == "flipped" and x.ndim else dict(VIEWS)[name](x)


BROADCAST = [((3, 5), (5,)), ((3, 1), (1, 5)), ((), (7,)), ((3, 0, 2), (1, 2)), ((2, 1, 3), (4, 1))]


@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
def test_operands_are_broadcast_and_promoted(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], target: str
) -> None:
    rng = numpy.random.default_rng(1)
    a, b = (rng.integers(1, 9, shape) for shape in shapes)
    kinds = [("float32", "float64"), ("int8", "uint8"), ("bool", "int32"), ("int32", "float16")]
    for left, right in kinds:
        x, y = a.astype(left), b.astype(right)
        common = torch.promote_types(*[torch.tensor(n).dtype for n in (x, y)])
        expected = torch.tensor(x).to(common) + torch.tensor(y).to(common)

        result = Tensor(x) + Tensor(y)

        assert result.shape == tuple(expected.shape)
        assert torch_dtype(result.dtype) is expected.dtype
        assert result.tolist() == expected.tolist()


def test_every_pair_of_dtypes_promotes_as_in_torch() -> None:
    """But for wide unsigned integers and 8-bit floats, for which torch has no rule."""
    for a in dtypes.all:
        for b in dtypes.all:
            if not {a, b} & (set(dtypes.fp8s) | set(dtypes.uints[1:])):
                ours = (Tensor([1], dtype=a) * Tensor([1], dtype=b)).dtype
                theirs = torch.promote_types(torch_dtype(a), torch_dtype(b))
                assert torch_dtype(ours) is theirs, (a, b)
