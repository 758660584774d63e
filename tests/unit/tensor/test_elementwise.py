"""Arithmetic, comparison, rounding and elementary functions against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from tinycore.tensor import Tensor
from tinycore.uop.op import Op

F = torch.nn.functional
Function = Callable[..., Any]

# name, torch's function, lowest and highest argument
UNARY: list[tuple[str, Function, float, float]] = [
    ("neg", torch.neg, -3, 3),
    ("abs", torch.abs, -3, 3),
    ("exp", torch.exp, -20, 20),
    ("exp2", torch.exp2, -20, 20),
    ("log", torch.log, 1e-3, 100),
    ("log2", torch.log2, 1e-3, 100),
    ("log10", torch.log10, 1e-3, 100),
    ("sqrt", torch.sqrt, 1e-3, 100),
    ("rsqrt", torch.rsqrt, 1e-2, 100),
    ("square", torch.square, -3, 3),
    ("reciprocal", torch.reciprocal, 0.1, 3),
    ("sin", torch.sin, -10, 10),
    ("cos", torch.cos, -10, 10),
    ("tan", torch.tan, -1.4, 1.4),
    ("asin", torch.asin, -0.99, 0.99),
    ("acos", torch.acos, -0.99, 0.99),
    ("atan", torch.atan, -5, 5),
    ("sinh", torch.sinh, -5, 5),
    ("cosh", torch.cosh, -5, 5),
    ("tanh", torch.tanh, -5, 5),
    ("asinh", torch.asinh, -5, 5),
    ("acosh", torch.acosh, 1.01, 20),
    ("atanh", torch.atanh, -0.97, 0.97),
    ("erf", torch.erf, -4, 4),
    ("expm1", torch.expm1, -3, 3),
    ("log1p", torch.log1p, -0.9, 5),
    ("sigmoid", torch.sigmoid, -20, 20),
    ("logsigmoid", F.logsigmoid, -20, 20),
    ("softplus", F.softplus, -20, 20),
    ("relu", torch.relu, -3, 3),
    ("relu6", F.relu6, -3, 9),
    ("leaky_relu", F.leaky_relu, -3, 3),
    ("elu", F.elu, -3, 3),
    ("celu", F.celu, -3, 3),
    ("selu", F.selu, -3, 3),
    ("silu", F.silu, -9, 9),
    ("swish", F.silu, -9, 9),
    ("mish", F.mish, -9, 9),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), -9, 9),
    ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), -9, 9),
    ("hardsigmoid", lambda x: F.relu6(x + 3) / 6, -5, 5),
    ("hardswish", F.hardswish, -5, 5),
    ("hardtanh", F.hardtanh, -3, 3),
    ("softsign", F.softsign, -3, 3),
    ("trunc", torch.trunc, -5, 5),
    ("floor", torch.floor, -5, 5),
    ("ceil", torch.ceil, -5, 5),
    ("round", torch.round, -5, 5),
    ("sign", torch.sign, -5, 5),
]


@pytest.mark.parametrize(("name", "theirs", "low", "high"), UNARY, ids=[u[0] for u in UNARY])
def test_unary(name: str, theirs: Function, low: float, high: float) -> None:
    flat = name in ("trunc", "floor", "ceil", "round", "sign")

    compare(
        lambda x: getattr(x, name)(), theirs, numbers(4, 25, low=low, high=high), gradient=not flat
    )


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["exp", "tanh", "sigmoid", "erf", "gelu", "softplus", "log1p", "atan", "cos"]
)
def test_unary_in_narrow_floats(name: str, dtype: DType) -> None:
    theirs = {u[0]: u[1] for u in UNARY}[name]

    compare(
        lambda x: getattr(x, name)(), theirs, numbers(50, low=-0.9, high=2), dtypes_used=[dtype]
    )


SMALL_ACCURATE = [
    "tanh",
    "sinh",
    "asinh",
    "atanh",
    "atan",
    "asin",
    "erf",
    "expm1",
    "log1p",
    "sin",
    "tan",
]


@pytest.mark.parametrize("name", SMALL_ACCURATE)
def test_relative_error_stays_small_near_zero(name: str) -> None:
    x = numpy.float32(10.0) ** -numpy.arange(1, 20, dtype=numpy.float32)
    expected = getattr(torch, name)(torch.tensor(x, dtype=torch.float64)).numpy()

    result = getattr(Tensor(x), name)().numpy().astype(numpy.float64)

    assert numpy.abs(result / expected - 1).max() < 4e-7


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tanh", [-1.0, -1.0, 1.0, 1.0]),
        ("erf", [-1.0, -1.0, 1.0, 1.0]),
        ("sigmoid", [0.0, 0.0, 1.0, 1.0]),
        ("softplus", [0.0, 0.0, 1e4, math.inf]),
        ("logsigmoid", [-math.inf, -1e4, 0.0, 0.0]),
        ("atan", [-math.pi / 2, -math.atan(1e4), math.atan(1e4), math.pi / 2]),
        ("elu", [-1.0, -1.0, 1e4, math.inf]),
        ("asinh", [-math.inf, -math.asinh(1e4), math.asinh(1e4), math.inf]),
        ("relu", [0.0, 0.0, 1e4, math.inf]),
    ],
)
def test_far_from_zero(name: str, expected: list[float]) -> None:
    x = Tensor([-math.inf, -1e4, 1e4, math.inf])

    numpy.testing.assert_allclose(
        getattr(x, name)().numpy(), numpy.array(expected, numpy.float32), rtol=1e-6
    )


@pytest.mark.parametrize(
    "name",
    ["tanh", "sigmoid", "softplus", "logsigmoid", "erf", "elu", "mish", "atan", "asinh", "silu"],
)
def test_gradients_stay_finite(name: str) -> None:
    x = Tensor([-3e4, -200.0, -1.0, 0.0, 1.0, 200.0, 3e4])

    (gradient,) = getattr(x, name)().sum().gradient(x)

    assert numpy.isfinite(gradient.numpy()).all()


@pytest.mark.parametrize(
    "name",
    ["tanh", "sigmoid", "softplus", "elu", "erf", "silu", "mish", "gelu", "asinh", "abs", "relu"],
)
def test_gradient_at_zero(name: str) -> None:
    theirs = {u[0]: u[1] for u in UNARY}[name]

    compare(lambda x: getattr(x, name)(), theirs, numpy.zeros(3))


def test_gelu_exact() -> None:
    compare(lambda x: x.gelu(approximate="none"), F.gelu, numbers(50, low=-6, high=6))


def test_gelu_refuses_an_unknown_approximation() -> None:
    with pytest.raises(ArgumentError, match="gelu"):
        Tensor([1.0]).gelu(approximate="fast")


@pytest.mark.slow
def test_nan_passes_through() -> None:
    x = Tensor([math.nan])

    names = [
        u[0] for u in UNARY if u[0] not in ("relu", "relu6", "hardtanh", "hardsigmoid", "hardswish")
    ]

    assert all(math.isnan(getattr(x, name)().item()) for name in names)


def test_rounding_keeps_infinities_and_large_numbers() -> None:
    x = Tensor([math.inf, -math.inf, 1e10, -1e10])

    assert (
        x.floor().tolist()
        == x.ceil().tolist()
        == x.trunc().tolist()
        == x.round().tolist()
        == x.tolist()
    )


def test_round_takes_halves_to_even() -> None:
    x = Tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997])

    assert x.round().tolist() == [-2.0, -2.0, -0.0, 0.0, 2.0, 2.0, 0.0]


# --- binary

BINARY: list[tuple[str, Function]] = [
    ("add", torch.add),
    ("sub", torch.sub),
    ("mul", torch.mul),
    ("div", torch.div),
    ("maximum", torch.maximum),
    ("minimum", torch.minimum),
    ("mod", torch.remainder),
    ("fmod", torch.fmod),
    ("copysign", torch.copysign),
    ("logaddexp", torch.logaddexp),
]
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((2, 0), (1,))]


@pytest.mark.parametrize(("name", "theirs"), BINARY, ids=[b[0] for b in BINARY])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_binary(
    name: str, theirs: Function, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    a, b = numbers(*shapes[0], seed=1), numbers(*shapes[1], seed=2)

    compare(lambda x, y: getattr(x, name)(y), theirs, a, b, gradient=name not in ("mod", "fmod"))


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
def test_comparison(name: str) -> None:
    a, b = integers(50, seed=1), integers(50, seed=2)

    compare(lambda x, y: getattr(x, name)(y), None, a, b, gradient=False)


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__gt__", "__ge__", "__eq__"])
def test_nan_compares_false(name: str) -> None:
    x = Tensor([math.nan, 1.0])

    assert getattr(x, name)(Tensor([math.nan, math.nan])).tolist() == [False, False]


@pytest.mark.parametrize(
    ("divide", "expected"),
    [
        (lambda a, b: a // b, [3, -4, -4, 3]),
        (lambda a, b: a % b, [1, 1, -1, -1]),
        (lambda a, b: a.div(b, rounding_mode="trunc"), [3, -3, -3, 3]),
        (lambda a, b: a.fmod(b), [1, -1, 1, -1]),
    ],
)
def test_integer_division(divide: Function, expected: list[int]) -> None:
    a, b = Tensor([7, -7, 7, -7]), Tensor([2, 2, -2, -2])

    assert divide(a, b).tolist() == expected


def test_float_remainder_has_the_sign_of_the_divisor() -> None:
    compare(
        lambda x, y: x % y,
        None,
        numbers(40, low=-9, high=9),
        numbers(40, low=0.5, high=3),
        gradient=False,
    )
    compare(
        lambda x, y: x % y,
        None,
        numbers(40, low=-9, high=9),
        numbers(40, low=-3, high=-0.5),
        gradient=False,
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sign_of_zero_and_of_nan_is_copied(dtype: str) -> None:
    signs = numpy.copysign([0.0, 0.0, math.nan, math.nan, math.inf], [1, -1, 1, -1, -1])

    found = Tensor.ones(5, dtype=dtype).copysign(Tensor(signs.astype(dtype)))

    assert found.tolist() == [1.0, -1.0, 1.0, -1.0, -1.0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -2, 0.5, -0.5, 1.5, 2.7, -1.3])
def test_power_of_a_number(exponent: float) -> None:
    compare(lambda x: x**exponent, None, numbers(30, low=0.2, high=3), scale=4)


def test_power_of_tensors() -> None:
    compare(torch_like_pow, torch.pow, numbers(30, low=0.2, high=3), numbers(30, seed=1), scale=4)


def torch_like_pow(x: Tensor, y: Tensor) -> Tensor:
    return x.pow(y)


def test_power_special_cases() -> None:
    base = [0.0, 0.0, 0.0, -2.0, -2.0, -2.0, 1.0, -1.0, 2.0, math.inf, 5.0]
    exponent = [0.0, 2.0, -1.0, 3.0, 2.0, 0.5, math.inf, math.inf, -math.inf, 0.0, 0.0]
    expected = torch.pow(torch.tensor(base), torch.tensor(exponent)).numpy()

    numpy.testing.assert_allclose(Tensor(base).pow(Tensor(exponent)).numpy(), expected, rtol=1e-6)


def test_integer_powers_are_exact_and_wrap() -> None:
    base, exponent = (
        numpy.array([0, 1, -1, 2, 3, 7, -5, 10], numpy.int32),
        numpy.array([0, 50, 51, 31, 20, 11, 13, 9], numpy.int32),
    )

    result = Tensor(base).pow(Tensor(exponent))

    assert result.dtype is dtypes.int32
    assert result.tolist() == (base**exponent).tolist()
    assert (2 ** Tensor([0, 5, 10])).tolist() == [1, 32, 1024]


def test_integer_to_a_negative_power_is_refused() -> None:
    with pytest.raises(ArgumentError, match="pow"):
        Tensor([2]) ** -1


@pytest.mark.parametrize("name", ["__and__", "__or__", "__xor__"])
def test_bits(name: str) -> None:
    compare(
        lambda x, y: getattr(x, name)(y), None, integers(30), integers(30, seed=1), gradient=False
    )


def test_shifts_and_inversion() -> None:
    x = Tensor([-9, 0, 5], dtype=dtypes.int32)

    assert (x << 2).tolist() == [-36, 0, 20]
    assert (x >> 1).tolist() == [-5, 0, 2]
    assert (~x).tolist() == [8, -1, -6]
    assert (~x.cast(dtypes.uint8)).tolist() == [8, 255, 250]
    assert (~Tensor([True, False])).tolist() == [False, True]


def test_bits_of_floats_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"bitwise_and.*float32"):
        Tensor([1.0]) & 1


# --- promotion

PROMOTION: list[tuple[DType, Any, DType]] = [
    (dtypes.int32, 1, dtypes.int32),
    (dtypes.int32, 1.5, dtypes.float32),
    (dtypes.int32, True, dtypes.int32),
    (dtypes.uint8, 300, dtypes.uint8),
    (dtypes.float16, 1.5, dtypes.float16),
    (dtypes.float16, 2, dtypes.float16),
    (dtypes.bool, 1, dtypes.int32),
    (dtypes.bool, True, dtypes.bool),
    (dtypes.bool, 1.5, dtypes.float32),
]


@pytest.mark.parametrize(("dtype", "number", "expected"), PROMOTION, ids=str)
def test_a_number_follows_the_tensor(dtype: DType, number: Any, expected: DType) -> None:
    assert (Tensor([1], dtype=dtype) + number).dtype is expected
    assert (number + Tensor([1], dtype=dtype)).dtype is expected


def test_tensors_are_promoted_to_their_common_dtype() -> None:
    a, b = Tensor([1], dtype=dtypes.int8), Tensor([200], dtype=dtypes.uint8)

    assert (a + b).dtype is dtypes.int16
    assert (a + b).tolist() == [201]


def test_division_of_integers_is_float() -> None:
    assert (Tensor([1]) / Tensor([2])).dtype is dtypes.float32
    assert (1 / Tensor([4])).tolist() == [0.25]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64"])
def test_an_integer_that_the_dtype_does_not_hold_divides_as_a_float(dtype: str) -> None:
    x = Tensor([0, 1, 3, 44], dtype=dtype)
    array = x.numpy().astype("float64")
    divisors: list[Any] = [200, -129, 300, 65536, 2**32, -(2**33), numpy.int64(300)]
    for number in divisors:
        numpy.testing.assert_allclose((x / number).numpy(), array / int(number), rtol=1e-6)
        numpy.testing.assert_allclose(
            (number / (x + 1).cast("int16")).numpy(), int(number) / ((x + 1).numpy()), rtol=1e-6
        )
        close = numpy.isclose(array, int(number)).tolist()
        assert x.isclose(number).tolist() == close
        assert (x == number).tolist() == (array == int(number)).tolist()
        assert (x < number).tolist() == (array < int(number)).tolist()


def test_arithmetic_of_bools_is_logic() -> None:
    a, b = Tensor([True, True, False]), Tensor([True, False, False])

    assert (a + b).tolist() == [True, True, False]
    assert (a * b).tolist() == [True, False, False]
    assert (-a).tolist() == [False, False, True]


def test_bools_cannot_be_subtracted() -> None:
    with pytest.raises(DTypeError, match="sub"):
        Tensor([True]) - Tensor([True])


def test_where_promotes_its_sides() -> None:
    chosen = Tensor([True, False]).where(Tensor([1, 2]), 0.5)

    assert chosen.dtype is dtypes.float32
    assert chosen.tolist() == [1.0, 0.5]


def test_where_needs_a_bool() -> None:
    with pytest.raises(DTypeError, match=r"where.*int32"):
        Tensor([1]).where(1, 0)


def test_where_gradient() -> None:
    compare(
        lambda x, y: (x > 0).where(x * 2, y),
        lambda x, y: torch.where(x > 0, x * 2, y),
        numbers(30),
        numbers(30, seed=1),
    )


def test_clamp() -> None:
    compare(lambda x: x.clamp(-1, 0.5), lambda x: x.clamp(-1, 0.5), numbers(40))
    compare(lambda x: x.clip(max_=0.5), lambda x: x.clip(max=0.5), numbers(40))


def test_lerp() -> None:
    compare(
        lambda a, b: a.lerp(b, 0.3),
        lambda a, b: torch.lerp(a, b, 0.3),
        numbers(9),
        numbers(9, seed=1),
    )


def test_isclose_and_questions() -> None:
    x = numpy.array([1.0, math.nan, math.inf, -math.inf, 0.0])

    compare(
        lambda t: [t.isnan(), t.isinf(), t.isfinite()],
        lambda t: [t.isnan(), t.isinf(), t.isfinite()],
        x,
        gradient=False,
    )
    compare(lambda t: t.isclose(t), lambda t: t.isclose(t), x, gradient=False)
    compare(
        lambda t: t.isclose(t, equal_nan=True),
        lambda t: t.isclose(t, equal_nan=True),
        x,
        gradient=False,
    )


# --- errors


def test_shapes_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(ShapeError, match=r"add: shapes \(3, 4\) and \(5,\)"):
        Tensor.zeros(3, 4) + Tensor.zeros(5)


def test_devices_that_differ_are_named() -> None:
    a = Tensor([1.0])
    b = Tensor([1.0]).to(f"{a.device}:1")

    with pytest.raises(DeviceError, match=rf"mul: operands are on {a.device} and {a.device}:1"):
        a * b


def test_a_constant_goes_where_it_is_needed() -> None:
    a = Tensor([1.0]).to(f"{Tensor([1.0]).device}:1")

    assert (Tensor(2.0) * a).device == a.device


def test_comparison_with_a_stranger_is_false() -> None:
    assert not isinstance(Tensor([1]) == None, Tensor)  # noqa: E711
    assert Tensor([1]) != "x"


# --- casts


@pytest.mark.parametrize(
    "dtype",
    [
        dtypes.int8,
        dtypes.uint8,
        dtypes.int32,
        dtypes.int64,
        dtypes.bool,
        dtypes.float16,
        dtypes.float64,
    ],
)
def test_cast(dtype: DType) -> None:
    x = numpy.array([-3.7, -0.5, 0.0, 0.5, 3.7, 100.0])
    x = abs(x) if dtype is dtypes.uint8 else x
    names = {"float16": torch.float16, "float64": torch.float64, "bool": torch.bool}

    compare(
        lambda t: t.cast(dtype),
        lambda t: t.to(names.get(dtype.name, getattr(torch, dtype.name))),
        x,
        gradient=False,
        scale=100,
    )


def test_cast_gradient() -> None:
    compare(
        lambda x: x.half().float() * 3,
        lambda x: x * 3,
        numbers(9),
        dtypes_used=[dtypes.float32],
        scale=100,
    )


def test_bitcast() -> None:
    assert Tensor([1.0]).bitcast(dtypes.int32).tolist() == [0x3F800000]
    assert Tensor([-1], dtype=dtypes.int8).bitcast(dtypes.uint8).tolist() == [255]


WIDTHS = ("int8", "uint16", "float16", "int32", "float32", "uint64", "float64")


@pytest.mark.parametrize("wanted", WIDTHS)
@pytest.mark.parametrize("source", WIDTHS)
def test_bitcast_of_another_width_keeps_the_bytes(source: str, wanted: str) -> None:
    raw = numpy.random.default_rng(0).integers(0, 120, (3, 16), dtype=numpy.uint8)  # no NaN
    before, after = raw.view(source), raw.view(wanted)

    result = Tensor(before).bitcast(getattr(dtypes, wanted))

    assert result.dtype is getattr(dtypes, wanted)
    numpy.testing.assert_array_equal(result.numpy(), after, strict=True)


def test_bitcast_to_a_narrower_type_starts_with_the_low_bytes() -> None:
    assert Tensor([0x04030201]).bitcast(dtypes.uint8).tolist() == [1, 2, 3, 4]
    assert Tensor([1, 2, 3, 4], dtype=dtypes.uint8).bitcast(dtypes.int32).tolist() == [0x04030201]


def test_bitcast_of_no_elements() -> None:
    assert Tensor.zeros(0, 4, dtype=dtypes.int8).bitcast(dtypes.int32).shape == (0, 1)
    assert Tensor.zeros(2, 0, dtype=dtypes.int8).bitcast(dtypes.int32).sum(1).tolist() == [0, 0]


def test_bitcast_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(DTypeError, match=r"bitcast: the last axis of shape \(2, 3\) in .*int8"):
        Tensor.zeros(2, 3, dtype=dtypes.int8).bitcast(dtypes.int16)
    with pytest.raises(DTypeError, match="bitcast: the last axis"):
        Tensor(1.0).bitcast(dtypes.int16)
    with pytest.raises(DTypeError, match=r"bitcast: .*bool"):
        Tensor([True]).bitcast(dtypes.int8)


def test_logaddexp_of_two_dtypes_has_the_wider_one() -> None:
    narrow, wide = Tensor([1.0], dtype=dtypes.bfloat16), Tensor([2.0], dtype=dtypes.float32)

    assert narrow.logaddexp(wide).dtype is wide.logaddexp(narrow).dtype is dtypes.float32
    assert abs(narrow.logaddexp(wide).item() - math.log(math.exp(1) + math.exp(2))) < 1e-6


def test_zeros_of_both_signs_are_different_numbers() -> None:
    x = Tensor([1.0, 2.0])

    for _ in range(2):
        assert [math.copysign(1, v) for v in (x * 0.0).tolist()] == [1, 1]
        assert [math.copysign(1, v) for v in (x * -0.0).tolist()] == [-1, -1]


OPERANDS: dict[str, Callable[[], Any]] = {
    "number": lambda: 2,
    "fraction": lambda: 2.5,
    "truth": lambda: True,
    "NumPy's": lambda: numpy.float32(1.5),
    "like it": lambda: Tensor.empty(2, 3),
    "integers": lambda: Tensor.empty(2, 3, dtype="int32"),
    "row": lambda: Tensor.empty(3),
    "scalar": Tensor.empty,
}


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
@pytest.mark.parametrize("operand", OPERANDS)
def test_two_operands_are_those_of_the_general_way(operand: str, dtype: str) -> None:
    x, y = Tensor.empty(2, 3, dtype=dtype), OPERANDS[operand]()

    assert list(x._pair("add", y)) == x._nodes("add", (y,))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("operand", OPERANDS)
def test_selection_is_that_of_the_general_way(operand: str, dtype: str) -> None:
    x, y, mask = Tensor.empty(2, 3, dtype=dtype), OPERANDS[operand](), Tensor.empty(2, 3) < 0
    parts = mask._broadcasted("where", *mask._choices(x, y), promote=False)
    swapped = mask._broadcasted("where", *mask._choices(y, x), promote=False)

    assert mask.where(x, y).uop is parts[0].alu(Op.WHERE, *parts[1:]).uop
    assert mask.where(y, x).uop is swapped[0].alu(Op.WHERE, *swapped[1:]).uop


@pytest.mark.parametrize("operand", OPERANDS)
def test_less_or_equal_is_made_of_less_and_equal(operand: str) -> None:
    x, y = Tensor.empty(2, 3), OPERANDS[operand]()

    assert (x <= y).uop is ((x < y) | x.eq(y)).uop


def test_a_selection_is_as_large_as_an_array_beside_it() -> None:
    mask, x = Tensor([True, False]), Tensor([1.0, 2.0])

    assert mask.where(x, numpy.full((2, 2), 9.0, "f")).tolist() == [[1.0, 9.0], [1.0, 9.0]]  # type: ignore[arg-type]


def test_limits_outside_of_the_dtype_do_not_wrap() -> None:
    small, signed = Tensor([1, 200], dtype="uint8"), Tensor([-5, 100], dtype="int8")

    for found in (small.maximum(-1), small.clamp(-1, 300), small.minimum(10**400)):
        assert found.dtype is dtypes.uint8
        assert found.tolist() == [1, 200]
    assert signed.minimum(300).tolist() == signed.clamp(max_=300).tolist() == [-5, 100]
    large: Any = numpy.int64(300)
    for found in (small.minimum(large), small.maximum(-1), small.clamp(-1, 300)):
        found += 1  # they are no views
    assert small.tolist() == [1, 200]
    assert small.maximum(float("inf")).tolist() == [float("inf")] * 2
    for limit in (300, large):
        with pytest.raises(DTypeError, match="outside of dtypes"):
            small.maximum(limit)
    with pytest.raises(DTypeError, match="outside of dtypes"):
        signed.minimum(-300)
    with pytest.raises(DTypeError, match="outside of dtypes"):
        small.clamp(300)
