"""Numbers at their edges: promotion, overflow, division by zero, NaN, casts, nothing, huge axes.

What is expected is NumPy's or torch's answer where they agree with docs/numerics.md, which says
where they do not.
"""

from __future__ import annotations

import gc
import itertools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import RECIPROCALS, Array
from tinycore.config import Context
from tinycore.dtype import DType, Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, IndexRangeError, ShapeError
from tinycore.helpers import GlobalCounters
from tinycore.tensor import Tensor

Function = Callable[..., Any]
INTEGERS = [d.name for d in dtypes.ints]
NAN, INF = math.nan, math.inf


def assert_same(ours: Array, expected: Array, what: str, sign_of_zero: bool = False) -> None:
    """Equal dtype and values; NaN where NaN is, and if asked for -0.0 where -0.0 is."""
    assert ours.dtype == expected.dtype, f"{what}: {ours.dtype} instead of {expected.dtype}"
    numpy.testing.assert_array_equal(ours, expected, err_msg=what)
    if sign_of_zero:
        zero = expected == 0
        numpy.testing.assert_array_equal(
            numpy.signbit(ours[zero]), numpy.signbit(expected[zero]), err_msg=f"{what}: signs"
        )


def crossed(values: Array) -> tuple[Array, Array]:
    """Every value beside every other."""
    left, right = numpy.meshgrid(values, values)
    return left.ravel().copy(), right.ravel().copy()


# --- promotion

TORCH = {
    dtypes.bool: torch.bool,
    dtypes.int8: torch.int8,
    dtypes.uint8: torch.uint8,
    dtypes.int16: torch.int16,
    dtypes.int32: torch.int32,
    dtypes.int64: torch.int64,
    dtypes.float16: torch.float16,
    dtypes.bfloat16: torch.bfloat16,
    dtypes.float32: torch.float32,
    dtypes.float64: torch.float64,
}


def test_pairs_of_tensors_promote_as_in_torch() -> None:
    for left, right in itertools.product(TORCH, TORCH):
        expected = torch.promote_types(TORCH[left], TORCH[right])
        ours = Tensor([1], dtype=left).maximum(Tensor([1], dtype=right)).dtype
        assert TORCH[ours] is expected, (left, right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("uint16", "int16", "int32"),
        ("uint16", "uint8", "uint16"),
        ("uint32", "int32", "int64"),
        ("uint32", "int8", "int64"),
        ("uint64", "int64", "float32"),
        ("uint64", "int8", "float32"),
        ("uint64", "float16", "float16"),
        ("fp8e4m3", "fp8e5m2", "float16"),
        ("fp8e4m3", "int64", "fp8e4m3"),
        ("fp8e5m2", "bfloat16", "bfloat16"),
        ("fp8e4m3", "fp8e4m3fnuz", "float16"),
        ("fp8e5m2fnuz", "uint8", "fp8e5m2fnuz"),
        ("fp8e5m2fnuz", "float16", "float16"),
    ],
)
def test_pairs_that_torch_does_not_promote(left: str, right: str, expected: str) -> None:
    a, b = Tensor([1], dtype=left), Tensor([1], dtype=right)

    assert a.maximum(b).dtype.name == b.maximum(a).dtype.name == expected


def test_promotion_does_not_depend_on_the_order() -> None:
    uneven = set()
    for a, b in itertools.product(dtypes.all, dtypes.all):
        joined = least_upper_dtype(a, b)
        assert joined is least_upper_dtype(b, a)
        assert least_upper_dtype(a, joined) is joined
        for c in dtypes.all:
            if least_upper_dtype(joined, c) is not least_upper_dtype(a, b, c):
                uneven.add(frozenset((a, b, c)))

    # two 8-bit floats have two least wider types, of which float16 is taken; signed integers and
    # uint64 are the default float together, and beside a narrower float that one
    pairs = itertools.combinations(dtypes.fp8s, 2)
    narrow = (*dtypes.fp8s, dtypes.float16, dtypes.bfloat16)
    assert uneven == {frozenset((*pair, dtypes.bfloat16)) for pair in pairs} | {
        frozenset((signed, dtypes.uint64, d)) for signed in dtypes.sints for d in narrow
    }


SIGNED = [-1, 0, 5, 2**53 + 1, -(2**63), 2**63 - 1]
UNSIGNED = [2**64 - 1, 0, 5, 2**53, 2**63, 2**63 - 1]


def test_int64_and_uint64_meet_in_a_float() -> None:
    a, b = Tensor([-5, 7], dtype="int64"), Tensor([1, 2], dtype="uint64")

    assert [(x.dtype, x.tolist()) for x in (a + b, b * a, a.maximum(b))] == [
        (dtypes.float32, [-4.0, 9.0]),
        (dtypes.float32, [-5.0, 14.0]),
        (dtypes.float32, [1.0, 7.0]),
    ]
    assert a.cat(b).tolist() == [-5.0, 7.0, 1.0, 2.0]
    assert Tensor([True, False]).where(a, b).tolist() == [-5.0, 2.0]


@pytest.mark.parametrize("kind", ["int64", "int8"])
def test_comparisons_of_signed_integers_and_uint64_are_exact(kind: str) -> None:
    a, b = Tensor(SIGNED, dtype=kind), Tensor(UNSIGNED, dtype="uint64")
    given = a.tolist()

    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        found, back = compare(a, b).tolist(), compare(b, a).tolist()
        assert found == [compare(x, y) for x, y in zip(given, UNSIGNED, strict=True)], compare
        assert back == [compare(y, x) for x, y in zip(given, UNSIGNED, strict=True)], compare


def scalar_result(dtype: DType, number: Scalar) -> DType:
    """A number keeps the tensor's dtype, unless that has not its kind."""
    if dtypes.is_float(dtype) or (dtypes.is_int(dtype) and not isinstance(number, float)):
        return dtype
    if isinstance(number, bool):
        return dtypes.bool
    return dtypes.int32 if isinstance(number, int) else dtypes.float32


@pytest.mark.parametrize("number", [True, 2, 2.5], ids=str)
def test_a_number_takes_the_dtype_of_the_tensor_beside_it(number: float) -> None:
    for dtype in dtypes.all:
        x = Tensor([1], dtype=dtype)
        expected = scalar_result(dtype, number)
        assert (x + number).dtype is (number + x).dtype is (x * number).dtype is expected, dtype


def test_division_of_integers_is_in_the_default_float() -> None:
    for dtype in (*dtypes.ints, dtypes.bool):
        assert (Tensor([1], dtype=dtype) / Tensor([2], dtype=dtype)).dtype is dtypes.float32


# --- integers


def extremes(name: str) -> Array:
    info = numpy.iinfo(name)
    near = {0, 1, 2, 3, info.max - 1, info.max, info.min, info.min + 1}
    return numpy.array(sorted(near | ({-1, -2, -3} if info.min else set())), name)


def safe(function: Function) -> Function:
    """The NumPy function on integers, 0 for a divisor 0."""
    return lambda x, y: numpy.where(y == 0, 0, function(x, numpy.where(y == 0, 1, y))).astype(
        x.dtype
    )


BINARY: dict[str, tuple[Function, Function]] = {
    "add": (lambda x, y: x + y, numpy.add),
    "sub": (lambda x, y: x - y, numpy.subtract),
    "mul": (lambda x, y: x * y, numpy.multiply),
    "floordiv": (lambda x, y: x // y, safe(numpy.floor_divide)),
    "mod": (lambda x, y: x % y, safe(numpy.mod)),
    "fmod": (lambda x, y: x.fmod(y), safe(numpy.fmod)),
    "minimum": (lambda x, y: x.minimum(y), numpy.minimum),
    "less": (lambda x, y: x < y, numpy.less),
    "xor": (lambda x, y: x ^ y, numpy.bitwise_xor),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_and_a_divisor_of_zero_gives_zero(name: str) -> None:
    x, y = crossed(extremes(name))
    a, b = Tensor(x), Tensor(y)
    results = {op: ours(a, b) for op, (ours, _) in BINARY.items()}
    Tensor.realize(*results.values())

    with numpy.errstate(all="ignore"):
        for op, (_, theirs) in BINARY.items():
            assert_same(results[op].numpy(), theirs(x, y), f"{op} of {name}")


@pytest.mark.parametrize("name", ["int8", "uint16", "int32", "uint64"])
def test_one_integer_wraps(name: str) -> None:
    x = extremes(name)
    with numpy.errstate(all="ignore"):
        for ours, theirs in (
            (-Tensor(x), -x),
            (Tensor(x).abs(), numpy.abs(x)),
            (~Tensor(x), ~x),
            (Tensor(x).square(), x * x),
            (Tensor(x) ** 3, x**3),
            (Tensor(x) << 1, x << 1),
            (Tensor(x) >> 1, x >> 1),
        ):
            assert_same(ours.numpy(), theirs.astype(x.dtype), name)


def test_shifts_are_modulo_the_width() -> None:
    assert (Tensor([1, -8]) << 33).tolist() == [2, -16]
    assert (Tensor([1, -8]) >> 33).tolist() == [0, -4]


def test_an_integer_beyond_the_dtype_compares_as_what_it_is() -> None:
    for name in ("uint8", "int32", "uint64"):
        x, beyond = extremes(name), int(numpy.iinfo(name).max) + 1
        for number in (beyond, beyond + 1, -(2**70)):
            t = Tensor(x)
            expected = number > 0
            assert (t < number).tolist() == (t <= number).tolist() == [expected] * len(x)
            assert (t > number).tolist() == (t >= number).tolist() == [not expected] * len(x)
            assert not any((t == number).tolist())
            assert all((t != number).tolist())


def test_an_integer_beside_a_tensor_wraps_as_in_torch() -> None:
    assert (Tensor([1], dtype="uint8") + 300).tolist() == [45]
    assert (Tensor([-1]) & 0xFFFFFFFF).tolist() == [-1]


def test_bools_are_logic() -> None:
    x, y = Tensor([False, False, True, True]), Tensor([False, True, False, True])

    assert (x + y).tolist() == [False, True, True, True]
    assert (x * y).tolist() == [False, False, False, True]
    assert x.maximum(y).tolist() == [False, True, True, True]
    assert x.minimum(y).tolist() == [False, False, False, True]
    assert (x < y).tolist() == [False, True, False, False]
    assert (-x).tolist() == (~x).tolist() == [True, True, False, False]
    assert x.sum().item() == 2
    assert (x / y).numpy().tolist()[1:] == [0.0, INF, 1.0]


# --- floats

SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0]
FLOAT_BINARY: dict[str, tuple[Function, Function]] = {
    "add": (lambda x, y: x + y, numpy.add),
    "sub": (lambda x, y: x - y, numpy.subtract),
    "mul": (lambda x, y: x * y, numpy.multiply),
    "div": (lambda x, y: x / y, numpy.divide),
    "copysign": (lambda x, y: x.copysign(y), numpy.copysign),
}
FLOAT_LOOSE: dict[str, tuple[Function, Function]] = {
    "maximum": (lambda x, y: x.maximum(y), numpy.maximum),
    "minimum": (lambda x, y: x.minimum(y), numpy.minimum),
    "mod": (lambda x, y: x % y, numpy.mod),
    "fmod": (lambda x, y: x.fmod(y), numpy.fmod),
    "less": (lambda x, y: x < y, numpy.less),
    "less_or_equal": (lambda x, y: x <= y, numpy.less_equal),
    "greater": (lambda x, y: x > y, numpy.greater),
    "eq": (lambda x, y: x == y, numpy.equal),
    "ne": (lambda x, y: x != y, numpy.not_equal),
}
"""Functions for which the sign of a zero is not promised."""


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_floats_are_ieee_754(name: str, target: str) -> None:
    limits = numpy.finfo(name)
    special = numpy.array([*SPECIAL, limits.max, limits.min, limits.tiny], name)
    x, y = crossed(special)
    a, b = Tensor(x), Tensor(y)
    table = FLOAT_BINARY | FLOAT_LOOSE
    results = {op: ours(a, b) for op, (ours, _) in table.items()}
    with Context(FLUSH_SUBNORMALS=0):
        Tensor.realize(*results.values())

    with numpy.errstate(all="ignore"):
        # quotients beyond the precision of a dtype are not taken apart exactly
        ordinary = (numpy.abs(x) <= 3) & ((numpy.abs(y) >= 0.5) | (y == 0)) | numpy.isnan(x)
        for op, (_, theirs) in table.items():
            if target in RECIPROCALS and op in ("div", "mod", "fmod"):
                continue  # test_grid_elementwise.py says how near they are
            chosen = ordinary if op in ("mod", "fmod") else slice(None)
            assert_same(
                results[op].numpy()[chosen], theirs(x, y)[chosen], op, op not in FLOAT_LOOSE
            )


def test_special_values_of_functions() -> None:
    x = Tensor(SPECIAL)
    values = torch.tensor(SPECIAL)

    for name in ("abs", "neg", "trunc", "floor", "ceil", "round", "sqrt", "reciprocal", "relu"):
        assert_same(getattr(x, name)().numpy(), getattr(values, name)().numpy(), name)
    for name in ("exp", "log", "sin", "tanh", "sigmoid", "log1p", "expm1", "isnan", "isinf"):
        ours, theirs = getattr(x, name)().numpy(), getattr(values, name)().numpy()
        numpy.testing.assert_allclose(ours, theirs, 1e-6, 1e-7, err_msg=name)


@pytest.mark.usefixtures("subnormals_kept")
def test_denormal_numbers_are_kept() -> None:
    tiny = numpy.array([1e-40, -1e-45, 1.1754944e-38], numpy.float32)

    assert_same((Tensor(tiny) * 1).numpy(), tiny, "product")
    assert_same((Tensor(tiny) + 0.0).numpy(), tiny, "sum")
    assert_same((Tensor(tiny) / 2).numpy(), tiny / numpy.float32(2), "quotient")


# --- NaN

WITH_NAN = [3.0, NAN, 1.0, NAN, -INF, INF]
NAN_CASES: dict[str, Function] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "sort": lambda x: x.sort(),
    "sort_down": lambda x: x.sort(descending=True),
    "topk": lambda x: x.topk(3),
    "clamp": lambda x: x.clamp(0, 2),
    "cummax": lambda x: x.cummax(0),
    "cummin": lambda x: x.cummin(0),
    "cumsum": lambda x: x.cumsum(0),
    "any": lambda x: x.any(),
    "all": lambda x: x.all(),
    "softmax": lambda x: x.softmax(0),
    "relu": lambda x: x.relu(),
    "bool": lambda x: x.bool(),
}


@pytest.mark.parametrize("case", NAN_CASES)
def test_nan_goes_where_it_goes_in_torch(case: str) -> None:
    ours, theirs = NAN_CASES[case](Tensor(WITH_NAN)), NAN_CASES[case](torch.tensor(WITH_NAN))
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, (tuple, list)) else [(ours, theirs)]

    for a, b in pairs:
        numpy.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=case)


# --- casts


def truncated(x: Array, target: str) -> Array:
    """docs/numerics.md: what does not fit is the least int32 (int64 for wide types), cut."""
    wide = numpy.dtype(target).itemsize == 8 or target == "uint32"
    host, bound = (numpy.int64, 2.0**63) if wide else (numpy.int32, 2.0**31)
    fits = (x >= -bound) & (x < bound)
    whole = numpy.where(fits, x, 0).astype(host)
    return numpy.where(fits, whole, numpy.iinfo(host).min).astype(target)


@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_floats_that_do_not_fit_an_integer(source: str) -> None:
    numbers = [NAN, INF, -INF, 0.9, -0.9, 3.7, -3.7, 127.5, 128, -129, 255.9, 256, 40000]
    numbers += [] if source == "float16" else [2.0**31, -(2.0**31) - 512, 3e9, 1e18, -1e30, 1e30]
    x = numpy.array(numbers, source)
    results = {name: Tensor(x).cast(name) for name in INTEGERS if name != "uint64"}
    Tensor.realize(*results.values())

    for name, result in results.items():
        assert_same(result.numpy(), truncated(x.astype(numpy.float64), name), f"{source} to {name}")


@pytest.mark.parametrize("name", ["int8", "int32", "uint32", "int64"])
def test_making_a_tensor_of_floats_converts_as_a_cast_does(name: str) -> None:
    x = numpy.array([NAN, 1e30, -1e30, 3e9, -5.7, 300.0])

    assert_same(Tensor(x, dtype=name).numpy(), truncated(x, name), name)


def test_integers_round_to_the_nearest_float() -> None:
    x = numpy.array([2**24 + 1, 2**53 + 1, 2**53 + 3, -(2**62) - 1, 2**63 - 1, 65520])
    results = {name: Tensor(x).cast(name) for name in ("float16", "float32", "float64")}
    Tensor.realize(*results.values())

    with numpy.errstate(all="ignore"):
        for name, result in results.items():
            assert_same(result.numpy(), x.astype(name), name)
    greatest = numpy.array([2**64 - 1, 2**63 + 1025], numpy.uint64)
    assert_same(Tensor(greatest).cast("float64").numpy(), greatest.astype(float), "uint64")


def test_integers_are_cut_to_a_narrow_type() -> None:
    x = numpy.array([0, 127, 128, 255, 256, 65535, 2**31, -1, -129, -(2**40) - 7])
    results = {name: Tensor(x).cast(name) for name in INTEGERS}
    Tensor.realize(*results.values())

    for name, result in results.items():
        assert_same(result.numpy(), x.astype(name), name)


def test_floats_round_to_narrow_floats() -> None:
    x = numpy.array([0.1, 65519.0, 65520.0, 1e-8, 6e-8, -1e39, 3.4028236e38, NAN, -0.0])
    with numpy.errstate(all="ignore"):
        for name in ("float16", "float32"):
            assert_same(Tensor(x).cast(name).numpy(), x.astype(name), name, sign_of_zero=True)
    expected = torch.tensor(x).bfloat16().float().numpy()
    assert_same(Tensor(x).cast("bfloat16").numpy(), expected, "bfloat16")


def test_bool_of_anything_but_zero_is_true() -> None:
    with Context(FLUSH_SUBNORMALS=0):
        found = Tensor([NAN, INF, -0.0, 0.0, 1e-45]).bool().tolist()
    assert found == [True, True, False, False, True]
    assert Tensor([256, 0, -1]).bool().tolist() == [True, False, True]


# --- nothing at all

EMPTY_CASES: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum 0": lambda x: x.sum(0),
    "sum 1": lambda x: x.sum(1),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(0),
    "std": lambda x: x.std(0),
    "var": lambda x: x.var(0),
    "max": lambda x: x.max(1) if isinstance(x, Tensor) else x.amax(1),
    "any": lambda x: x.any(0),
    "all": lambda x: x.all(0),
    "logsumexp 0": lambda x: x.logsumexp(0),
    "logsumexp 1": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "sort": lambda x: x.sort(0)[0],
    "argmax": lambda x: x.argmax(1),
    "topk": lambda x: x.topk(0, 0)[0],
    "matmul": lambda x: x.transpose(0, 1) @ x,
}


@pytest.mark.parametrize("case", EMPTY_CASES)
def test_no_elements_as_in_torch(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = EMPTY_CASES[case](torch.zeros(0, 3))
    ours = EMPTY_CASES[case](Tensor.zeros(0, 3))

    assert ours.shape == tuple(theirs.shape)
    numpy.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_there_is_no_extreme_of_nothing(name: str) -> None:
    with pytest.raises(ShapeError, match="no elements"):
        getattr(Tensor.zeros(0, 3), name)(0)


# --- no axes

SCALAR_CASES: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "mean -1": lambda x: x.mean(-1),
    "var": lambda x: x.var(correction=0),
    "argmax": lambda x: x.argmax(0),
    "sort": lambda x: x.sort()[0],
    "topk": lambda x: x.topk(1)[0],
    "cumsum": lambda x: x.cumsum(0),
    "cummax": lambda x: x.cummax(0)[0],
    "softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "reshape": lambda x: x.reshape(1, 1),
    "expand": lambda x: x.expand(2),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(0),
    "transpose": lambda x: x.transpose(0, 0),
    "flip": lambda x: x.flip(0),
    "flatten": lambda x: x.flatten(),
    "repeat": lambda x: x.repeat(2),
    "new axis": lambda x: x[None],
    "whole": lambda x: x[...],
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "clamp": lambda x: x.clamp(0, 1),
    "exp": lambda x: x.exp(),
}


@pytest.mark.parametrize("case", SCALAR_CASES)
def test_a_tensor_with_no_axes_as_in_torch(case: str) -> None:
    ours, theirs = SCALAR_CASES[case](Tensor(2.0)), SCALAR_CASES[case](torch.tensor(2.0))

    assert ours.shape == tuple(theirs.shape)
    numpy.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-6)


@pytest.mark.parametrize("name", ["cat", "split", "chunk"])
def test_no_axes_to_join_or_cut(name: str) -> None:
    x = Tensor(2.0)

    with pytest.raises((ShapeError, IndexRangeError), match=name):
        getattr(x, name)(x if name == "cat" else 1)


# --- huge axes

HUGE, COLUMNS = 1 << 40, 1 << 31


def test_huge_shapes_take_no_memory() -> None:
    gc.collect()  # else what another test left may be freed meanwhile
    kernels, memory = GlobalCounters.kernel_count, GlobalCounters.mem_used
    x = Tensor.full((1 << 20, 1 << 20), 1.0, buffer=False)

    assert x.numel() == HUGE
    assert x.nbytes() == 4 * HUGE
    assert x.reshape(-1)[5:].shape == (HUGE - 5,)
    assert x.sum(0).shape == x.max(1).shape == (1 << 20,)
    assert x.unsqueeze(0).expand(1 << 20, -1, -1).numel() == 1 << 60
    assert Tensor.empty(1 << 20, 1 << 20).T.shape == (1 << 20, 1 << 20)
    assert (GlobalCounters.kernel_count, GlobalCounters.mem_used) == (kernels, memory)


HUGE_CASES: dict[str, tuple[Function, Any]] = {
    "a column": (
        lambda: Tensor([[7.0]]).expand(3, COLUMNS).shrink([(0, 3), (COLUMNS - 1, COLUMNS)]).sum(),
        21.0,
    ),
    "the last column": (lambda: rows().flip(1)[:, -1], [1.0, 2.0, 3.0]),
    "across rows": (lambda: rows().reshape(-1)[2 * COLUMNS - 1 : 2 * COLUMNS + 1], [2.0, 3.0]),
    "other rows": (lambda: rows().reshape(COLUMNS, 3)[COLUMNS // 3], [1.0, 1.0, 2.0]),
    "picked": (
        lambda: rows()[Tensor([0, 2]), Tensor([COLUMNS - 1, 5], dtype="int64")],
        [1.0, 3.0],
    ),
    "counted": (lambda: Tensor.arange(HUGE, dtype="int64")[HUGE // 2 : HUGE // 2 + 2], None),
    "padded": (lambda: Tensor([1.0]).pad((1 << 33, 1 << 33))[(1 << 33) - 1 :][:3], [0.0, 1.0, 0.0]),
    "windows": (
        lambda: Tensor.arange(1 << 33, dtype="int64").unfold(0, 2, 2)[-1],
        [(1 << 33) - 2, (1 << 33) - 1],
    ),
    "diagonal": (lambda: Tensor.eye(1 << 20)[1 << 19, (1 << 19) - 1 :][:3], [0.0, 1.0, 0.0]),
}


def rows() -> Tensor:
    return Tensor([[1.0], [2.0], [3.0]]).expand(3, COLUMNS)


@pytest.mark.parametrize("case", HUGE_CASES)
def test_indices_beyond_32_bits(case: str) -> None:
    function, expected = HUGE_CASES[case]

    assert function().tolist() == (expected or [HUGE // 2, HUGE // 2 + 1])


# --- accumulation


def test_sums_and_products_are_accumulated_in_at_least_32_bits() -> None:
    assert Tensor([200, 100], dtype="uint8").sum().item() == 300
    assert Tensor([100, 100], dtype="int8").prod().item() == 10000
    assert Tensor([100, 100], dtype="int8").cumsum().tolist() == [100, 200]
    assert Tensor([2**31 - 1, 1]).sum().item() == -(2**31)
    assert Tensor([2**31 - 1, 1]).sum(dtype="int64").item() == 2**31
    assert Tensor([60000.0, 60000.0, -60000.0], dtype="float16").sum().item() == 60000.0
    assert Tensor([60000.0, 60000.0], dtype="float16").sum().item() == INF
    assert Tensor([60000.0, 60000.0], dtype="float16").mean().item() == 60000.0


# --- text


def test_repr_shows_shape_dtype_device_and_whether_it_is_computed() -> None:
    x = Tensor([[1.0, 2.0]])
    y = x + 1

    assert "(1, 2) float32" in repr(y)
    assert "Op.ADD" in repr(y)
    assert str(y.device) in repr(y)
    y.realize()
    assert repr(y) == f"Tensor([[2., 3.]], dtype=float32, device={y.device})"


def test_integers_are_of_a_dtype_that_holds_them() -> None:
    assert Tensor(2**31 - 1).item() == 2**31 - 1
    assert Tensor(2**31, dtype="int64").item() == 2**31
    assert Tensor(-1, dtype="uint8").item() == 255
    assert Tensor(2**31).dtype is dtypes.int64
    with pytest.raises(ArgumentError, match="pass a dtype"):
        Tensor(2**63)
