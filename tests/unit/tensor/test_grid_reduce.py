"""The grid of folds, scans and sorting: axes, shapes, dtypes, special values, derivatives.

torch is the reference; what differs from it on purpose is in `WIDER` and `NO_ELEMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.grid import (
    FLOATS,
    FULL,
    Array,
    differences,
    extremes,
    special,
    tensor_of,
    torch_dtype,
)
from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, IndexRangeError, ShapeError
from tinycore.tensor import Tensor

Function = Callable[..., Any]

EVERYWHERE = ("test_folds_of_no", "test_infinities", "test_scans_of_every", "test_topk_takes")


@pytest.fixture(autouse=True)
def reduced_grid(request: pytest.FixtureRequest, target: str) -> None:
    """Elsewhere than on `FULL` run the tests of `EVERYWHERE` only, which reach every kernel."""
    if target != FULL and not request.node.name.startswith(EVERYWHERE):
        pytest.skip("the whole grid runs on one target")


def all_axes(name: str) -> Function:
    """torch's function over an axis, several, or (where None is given) every one."""

    def theirs(x: torch.Tensor, axis: Any, keepdim: bool) -> Any:
        dim = tuple(range(x.ndim)) if axis is None else axis
        return getattr(torch, name)(x, dim, keepdim=keepdim)

    return theirs


def prod(x: torch.Tensor, axis: Any, keepdim: bool) -> torch.Tensor:
    """torch.prod over several axes."""
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in sorted([a % x.ndim for a in axes], reverse=True):
        x = x.prod(a, keepdim=keepdim)
    return x


def moments(name: str) -> Function:
    """torch's statistics, without correction."""

    def theirs(x: torch.Tensor, axis: Any, keepdim: bool) -> Any:
        return getattr(torch, name)(x, axis, correction=0, keepdim=keepdim)

    return theirs


FOLDS: list[tuple[str, Function]] = [
    ("sum", all_axes("sum")),
    ("prod", prod),
    ("max", all_axes("amax")),
    ("min", all_axes("amin")),
    ("mean", all_axes("mean")),
    ("any", all_axes("any")),
    ("all", all_axes("all")),
    ("logsumexp", all_axes("logsumexp")),
]
AXES: list[tuple[tuple[int, ...], Any]] = [
    ((7,), None),
    ((7,), 0),
    ((1,), -1),
    ((3, 5), None),
    ((3, 5), 1),
    ((3, 5), (0, 1)),
    ((2, 3, 4), (0, -1)),
    ((2, 3, 4), -2),
    ((3, 0, 2), 0),
    ((3, 0, 2), (0, 2)),
    ((257, 129), 0),
    ((257, 129), 1),
    ((70_001,), 0),
]


@pytest.mark.parametrize(("shape", "axis"), AXES, ids=str)
@pytest.mark.parametrize(("name", "theirs"), FOLDS, ids=[name for name, _ in FOLDS])
def test_folds(name: str, theirs: Function, shape: tuple[int, ...], axis: Any) -> None:
    if math.prod(shape) > 100 and name not in ("sum", "max", "logsumexp"):
        pytest.skip("large shapes for one operation of each kind")
    low, high = (0.99, 1.01) if name == "prod" else (-2.0, 2.0)
    x = numbers(*shape, low=low, high=high)
    for keepdim in (False, True):
        expected = theirs(torch.tensor(x), axis, keepdim)

        result = getattr(Tensor(x.astype(numpy.float32)), name)(axis, keepdim)

        assert result.shape == tuple(expected.shape)
        numpy.testing.assert_allclose(result.numpy(), expected.numpy(), 2e-5, 2e-5)


def test_a_scalar_is_folded_over_its_one_axis() -> None:
    x = Tensor(2.0)

    for name, _ in FOLDS:
        assert getattr(x, name)(0).shape == getattr(x, name)(-1, True).shape == ()
        with pytest.raises(IndexRangeError, match=name):
            getattr(x, name)(1)


NO_ELEMENTS = {
    "sum": 0.0,
    "prod": 1.0,
    "any": False,
    "all": True,
    "mean": math.nan,
    "var": math.nan,
}
"""Folds of nothing. The logarithm of the sum of nothing is -inf, as in torch."""


@pytest.mark.parametrize("name", NO_ELEMENTS)
def test_folds_of_no_elements(name: str) -> None:
    x = Tensor.zeros(3, 0, 2)

    numpy.testing.assert_array_equal(
        getattr(x, name)(1).numpy(), numpy.full((3, 2), NO_ELEMENTS[name])
    )
    numpy.testing.assert_array_equal(getattr(x, name)().numpy(), NO_ELEMENTS[name])
    assert getattr(x, name)(0).shape == (0, 2)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_there_is_no_extreme_of_no_elements(name: str) -> None:
    with pytest.raises(ShapeError, match=name.removeprefix("arg")):
        getattr(Tensor.zeros(3, 0), name)(1)


# --- dtypes

WIDER: dict[DType, DType] = {
    dtypes.bool: dtypes.int32,
    dtypes.int8: dtypes.int32,
    dtypes.int16: dtypes.int32,
    dtypes.uint8: dtypes.uint32,
    dtypes.uint16: dtypes.uint32,
}
"""Dtypes of sums; torch has int64 for all integers. Those of at least 32 bits keep their own."""

SUMMED = (dtypes.bool, *dtypes.ints)


@pytest.mark.parametrize("dtype", SUMMED, ids=[d.name for d in SUMMED])
def test_folds_of_integers(dtype: DType) -> None:
    values: list[int] = [False, True, True] if dtype is dtypes.bool else extremes(dtype)
    x, goal = Tensor(values, dtype=dtype), WIDER.get(dtype, dtype)
    low, span = int(dtypes.min(goal)), 1 << goal.bits

    def wrapped(n: int) -> int:
        return (n - low) % span + low

    sums = [wrapped(sum(values[: i + 1])) for i in range(len(values))]
    products = [wrapped(math.prod(values[1 : i + 1])) for i in range(1, len(values))]
    assert (x.sum().dtype, x.sum().item()) == (goal, sums[-1])
    assert (x[1:].prod().dtype, x[1:].prod().item()) == (goal, products[-1])
    assert (x.cumsum().dtype, x.cumsum().tolist()) == (goal, sums)
    assert (x[1:].cumprod(0).dtype, x[1:].cumprod(0).tolist()) == (goal, products)
    assert (x.max().dtype, x.max().item()) == (dtype, max(values))
    assert (x.min().dtype, x.min().item()) == (dtype, min(values))
    assert x.argmax().item() == values.index(max(values))
    assert x.argmin().item() == values.index(min(values))
    assert x.mean().dtype is dtypes.float32
    largest = max(abs(int(n)) for n in values)
    assert x.mean().item() == pytest.approx(sum(values) / len(values), abs=1e-6 * largest)


@pytest.mark.parametrize("dtype", FLOATS, ids=[d.name for d in FLOATS])
def test_narrow_floats_are_folded_wide_and_rounded_once(dtype: DType) -> None:
    x = numpy.random.default_rng(5).uniform(0.5, 1.5, 300)
    narrow = torch.tensor(x).to(torch_dtype(dtype))
    right = narrow.double()
    ours = Tensor(narrow.double().numpy(), dtype=dtype)
    near = (1 if dtype.itemsize < 4 else len(x)) * 2.0 ** -dtypes.finfo(dtype)[1]

    for name in ("sum", "std", "log_softmax"):
        arguments = (0,) if "m" in name[-3:] or name == "logsumexp" else ()
        expected = getattr(right, name)(*arguments)
        result = getattr(ours, name)(*arguments)
        assert result.dtype is dtype
        assert differences(result, expected, near) == [], name
    prefix = torch.cumsum(right, 0)
    assert differences(ours.cumsum(), prefix, near) == []


# --- special values

ROWS = [
    [1.0, math.nan, 3.0],
    [math.inf, 1.0, -math.inf],
    [-math.inf, -math.inf, -math.inf],
    [math.inf, 2.0, math.inf],
    [0.0, -0.0, 0.0],
    [math.nan, math.nan, -math.inf],
    [1e38, 1e38, -1e38],
]
ODD: list[tuple[str, Function, Function]] = [
    ("sum", lambda x: x.sum(1), lambda x: x.sum(1)),
    ("prod", lambda x: x.prod(1), lambda x: x.prod(1)),
    ("max", lambda x: x.max(1), lambda x: x.amax(1)),
    ("min", lambda x: x.min(1), lambda x: x.amin(1)),
    ("argmax", lambda x: x.argmax(1), lambda x: x.argmax(1)),
    ("argmin", lambda x: x.argmin(1), lambda x: x.argmin(1)),
    ("mean", lambda x: x.mean(1), lambda x: x.mean(1)),
    ("any", lambda x: x.any(1), lambda x: x.any(1)),
    ("all", lambda x: x.all(1), lambda x: x.all(1)),
    ("logsumexp", lambda x: x.logsumexp(1), lambda x: x.logsumexp(1)),
    ("softmax", lambda x: x.softmax(1), lambda x: x.softmax(1)),
    ("log_softmax", lambda x: x.log_softmax(1), lambda x: x.log_softmax(1)),
    ("cumsum", lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    ("cumprod", lambda x: x.cumprod(1), lambda x: x.cumprod(1)),
    ("cummax", lambda x: x.cummax(1)[0], lambda x: x.cummax(1)[0]),
    ("cummax_place", lambda x: x.cummax(1)[1], lambda x: x.cummax(1)[1]),
    ("cummin", lambda x: x.cummin(1)[0], lambda x: x.cummin(1)[0]),
    ("cummin_place", lambda x: x.cummin(1)[1], lambda x: x.cummin(1)[1]),
    ("logcumsumexp", lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(1)),
    ("sort", lambda x: x.sort(1)[0], lambda x: x.sort(1)[0]),
    ("argsort", lambda x: x.argsort(1), lambda x: torch.argsort(x, dim=1, stable=True)),
    (
        "argsort_down",
        lambda x: x.argsort(1, descending=True),
        lambda x: torch.argsort(x, dim=1, descending=True, stable=True),
    ),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), ODD, ids=[o[0] for o in ODD])
def test_infinities_and_nan(name: str, ours: Function, theirs: Function) -> None:
    for x in (numpy.array(ROWS, numpy.float32), numpy.array(ROWS, numpy.float64)):
        expected = theirs(torch.tensor(x))

        result = ours(Tensor(x))

        got, right = result.numpy().astype(numpy.float64), expected.double().numpy()
        numpy.testing.assert_allclose(got, right, 1e-6, err_msg=name)


# --- the other forms of arguments


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 5])
@pytest.mark.parametrize("axis", [None, 0, (0, 2), -1])
def test_statistics(correction: float, axis: Any) -> None:
    x = numbers(3, 4, 2)
    names = ("var", "std")
    dim = tuple(range(3)) if axis is None else axis
    count = math.prod(x.shape[a] for a in ([dim] if isinstance(dim, int) else dim))
    if correction >= count:
        result = Tensor(x).var(axis, correction=correction).numpy()
        assert numpy.isinf(result).all()
        return
    for name in names:
        compare(
            lambda t, n=name: getattr(t, n)(axis, correction=correction),
            lambda t, n=name: getattr(t, n)(dim, correction=correction),
            x,
            dtypes_used=[dtypes.float64],
        )
    compare(
        lambda t: list(t.var_mean(axis, True, correction)),
        lambda t: list(torch.var_mean(t, dim, correction=correction, keepdim=True)),
        x,
        dtypes_used=[dtypes.float32],
    )


def test_the_variance_of_numbers_far_from_zero() -> None:
    x = (numbers(1000) + 1e4).astype(numpy.float32)

    assert Tensor(x).var().item() == pytest.approx(numpy.var(x.astype(numpy.float64), ddof=1), 1e-5)


def test_allclose() -> None:
    x = Tensor([1.0, math.nan, math.inf])

    assert x.allclose(x, equal_nan=True).item() is True
    assert x.allclose(x).item() is False
    assert Tensor([1.0]).allclose(Tensor([1.1]), rtol=0.2).item() is True


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_of_narrow_and_with_a_dtype(name: str, axis: int) -> None:
    theirs = getattr(torch.nn.functional, name)
    compare(
        lambda x: getattr(x, name)(axis),
        lambda x: theirs(x, axis),
        numbers(4, 33, low=-20, high=20),
        dtypes_used=[dtypes.float64, dtypes.float16],
    )
    result = getattr(Tensor([1, 2], dtype=dtypes.int32), name)(dtype=dtypes.float64)
    expected = theirs(torch.tensor([1, 2]), 0, dtype=torch.float64)
    assert differences(result, expected, 1e-14) == []
    assert getattr(Tensor.zeros(3, 0), name)().shape == (3, 0)


# --- derivatives


def test_ties_in_extremes_share_the_derivative() -> None:
    x = numpy.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])

    compare(lambda t: t.max(1), lambda t: t.amax(1), x)
    compare(lambda t: t.min((0, 1)), lambda t: t.amin((0, 1)), x)


PRODUCTS = [[1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 3.0, 4.0], [0.0, 2.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0]]


def test_products_with_zeros_have_their_derivative() -> None:
    x = numpy.array(PRODUCTS)

    compare(lambda t: t.prod(1), lambda t: t.prod(1), x)
    compare(lambda t: t.prod((0, 1)), lambda t: t.prod(), x)
    compare(lambda t: t.cumprod(1), lambda t: t.cumprod(1), x)


@pytest.mark.parametrize("size", [31, 33, 100, 2000])
def test_the_derivative_of_a_long_product(size: int) -> None:
    x = numbers(size, low=0.9, high=1.1)
    x[[3, size // 2]] = 0.0, 1.0

    compare(lambda t: t.prod(), lambda t: t.prod(), x, dtypes_used=[dtypes.float64])
    x[3] = 1.5
    compare(lambda t: t.prod(), lambda t: t.prod(), x, dtypes_used=[dtypes.float64])


SECOND: list[tuple[str, Function, Function]] = [
    ("prod", lambda x: x.prod(1), lambda x: x.prod(1)),
    ("logsumexp", lambda x: x.logsumexp(1), lambda x: x.logsumexp(1)),
    ("softmax", lambda x: x.softmax(1).square(), lambda x: x.softmax(1).square()),
    ("var", lambda x: x.var(1).square(), lambda x: x.var(1).square()),
    ("cumprod", lambda x: x.cumprod(1), lambda x: x.cumprod(1)),
    ("logcumsumexp", lambda x: x.logcumsumexp(1), lambda x: x.logcumsumexp(1)),
    ("sort", lambda x: x.sort(1)[0] ** 3, lambda x: x.sort(1)[0] ** 3),
    ("cummax", lambda x: x.cummax(1)[0] ** 3, lambda x: x.cummax(1)[0] ** 3),
]


@pytest.mark.parametrize(("name", "ours", "theirs"), SECOND, ids=[s[0] for s in SECOND])
def test_second_derivatives(name: str, ours: Function, theirs: Function) -> None:
    points = numbers(2, 5, low=0.5, high=2)
    weights = numbers(2, 5, seed=9)
    x = torch.tensor(points, requires_grad=True)
    (first,) = torch.autograd.grad(theirs(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.tensor(weights)).sum(), x)
    tensor = Tensor(points)

    (found,) = ours(tensor).sum().gradient(tensor)
    (again,) = (found * Tensor(weights)).sum().gradient(tensor)

    assert differences(found, first, 1e-10, False, 1e-12) == []
    assert differences(again, second, 1e-9, False, 1e-12) == []


# --- scans

SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
SIZES = [1, 3, 32, 33, 100, 1025, 5000]


def first_of(result: Any) -> Any:
    """The values of a scan that also yields places."""
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCANS)
def test_scans_of_every_size(name: str, size: int, target: str) -> None:
    if target != FULL and size not in (3, 33):
        pytest.skip("the whole grid runs on one target")
    low, high = (0.97, 1.03) if name == "cumprod" else (-3, 3)
    x = numbers(size, low=low, high=high, seed=size)

    compare(
        lambda t: first_of(getattr(t, name)(0)),
        lambda t: first_of(getattr(t, name)(0)),
        x,
        dtypes_used=[dtypes.float64],
        gradient=size <= 100,
    )


@pytest.mark.parametrize("name", SCANS)
def test_scans_along_every_axis(name: str) -> None:
    for shape in ((3, 5), (2, 3, 4), (3, 0, 2), (40, 2)):
        x = numbers(*shape, low=0.5, high=1.5)
        for axis in range(-len(shape), len(shape)):
            expected = first_of(getattr(torch.tensor(x), name)(axis))

            result = first_of(getattr(Tensor(x), name)(axis))

            assert result.shape == shape
            numpy.testing.assert_allclose(result.numpy(), expected.numpy(), 1e-12)
    assert first_of(getattr(Tensor(2.0), name)(0)).item() == 2.0
    with pytest.raises(IndexRangeError, match=name):
        getattr(Tensor.zeros(2), name)(1)


@pytest.mark.parametrize("size", [6, 40, 90])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_with_ties_go_to_the_last(name: str, size: int) -> None:
    x = integers(size, low=0, high=4).astype(numpy.float64)

    compare(lambda t: list(getattr(t, name)(0)), lambda t: list(getattr(t, name)(0)), x)


def test_logcumsumexp_is_stable() -> None:
    x = numpy.array([-1e4, 1e4, 1e4, -1e4, 0.0, 1e4 + 1, -math.inf] * 12)
    x[0] = -math.inf

    for dtype, near in ((dtypes.float32, 1e-6), (dtypes.float64, 1e-13)):
        result = tensor_of(x, dtype).logcumsumexp()
        assert differences(result, torch.logcumsumexp(torch.tensor(x), 0), near) == []


def test_scans_of_views() -> None:
    x = numpy.arange(12.0).reshape(3, 4)
    views: list[Function] = [lambda t: t.transpose(0, 1), lambda t: t[1:], lambda t: t.expand(3, 4)]

    for view in views:
        compare(lambda t, v=view: v(t).cumsum(1), lambda t, v=view: v(t).cumsum(1), x)
    compare(lambda t: t.flip(1).cummax(1)[0], lambda t: torch.flip(t, (1,)).cummax(1)[0], x)


# --- sorting

SORTED = [d for d in dtypes.all if d not in dtypes.fp8s]


@pytest.mark.usefixtures("subnormals_kept")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", SORTED, ids=[d.name for d in SORTED])
def test_every_dtype_is_sorted(dtype: DType, descending: bool) -> None:
    """Extremes and special values, each three times; equal ones keep their order."""
    if dtypes.is_float(dtype):
        values: Any = torch.tensor(special(dtype), dtype=torch.float64).to(torch_dtype(dtype))
    elif dtype is dtypes.bool:
        values = torch.tensor([True, False])
    else:
        values = torch.tensor(numpy.array(extremes(dtype), dtype.name))
    order = numpy.random.default_rng(3).permutation(3 * len(values))
    x = torch.cat([values] * 3)[torch.tensor(order)]
    raw = x.double().numpy() if dtypes.is_float(dtype) else x.numpy()
    keys = raw if dtype is not dtypes.bool else raw.astype(int)
    places = sorted(range(len(raw)), key=lambda i: (rank(keys[i], descending), i))

    result, found = Tensor(raw, dtype=dtype).sort(descending=descending)

    assert result.dtype is dtype
    assert found.tolist() == places
    numpy.testing.assert_array_equal(result.numpy().astype(raw.dtype), raw[places])


def rank(value: Any, descending: bool) -> tuple[bool, Any]:
    """A key whose order is that of the elements: NaN is greater than any number."""
    is_nan = bool(value != value)
    number = 0 if is_nan else int(value) if isinstance(value, numpy.integer) else float(value)
    return (not is_nan, -number) if descending else (is_nan, number)


@pytest.mark.parametrize("size", [1, 2, 32, 33, 65, 200, 1500])
def test_sizes_around_the_runs_of_the_network(size: int) -> None:
    x = integers(2, size, low=-size // 2, high=size // 2 + 1, seed=size)

    for descending in (False, True):
        values, places = Tensor(x).sort(1, descending)
        right, order = torch.sort(torch.tensor(x), dim=1, descending=descending, stable=True)
        assert values.tolist() == right.tolist()
        assert places.tolist() == order.tolist()
    assert (
        Tensor(x).argsort(1).tolist() == torch.argsort(torch.tensor(x), dim=1, stable=True).tolist()
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorting_along_axes_and_its_derivative(axis: int) -> None:
    compare(lambda t: t.sort(axis)[0], lambda t: t.sort(axis)[0], numbers(5, 7))
    compare(
        lambda t: t.sort(axis, descending=True)[0],
        lambda t: torch.sort(t, dim=axis, descending=True, stable=True)[0],
        integers(6, 40, low=0, high=3).astype(numpy.float64),
        dtypes_used=[dtypes.float64],
    )


def test_sorting_nothing_and_one() -> None:
    assert Tensor.zeros(3, 0).sort(1)[0].shape == Tensor.zeros(3, 0).argsort(1).shape == (3, 0)
    assert Tensor.zeros(0, 3).sort(1)[1].shape == (0, 3)
    assert [t.item() for t in Tensor(5.0).sort()] == [5.0, 0]
    assert Tensor([[4.0]]).topk(1, 0)[1].tolist() == [[0]]


TOPK = [(7, 1), (7, 7), (7, 0), (33, 5), (100, 40), (1000, 10)]


@pytest.mark.parametrize(("size", "k"), TOPK)
def test_topk(size: int, k: int) -> None:
    x = numbers(2, size, seed=size)

    for largest in (True, False):
        for dim, view in ((1, x), (0, x.T.copy())):
            values, places = Tensor(view).topk(k, dim, largest)
            right, order = torch.topk(torch.tensor(view), k, dim, largest)
            numpy.testing.assert_array_equal(values.numpy(), right.numpy())
            assert places.tolist() == order.tolist()
    if size <= 100 and k:
        compare(lambda t: t.topk(k)[0], lambda t: t.topk(k)[0], x, dtypes_used=[dtypes.float64])
    unordered = Tensor(x).topk(k, sorted_=False)[0]
    assert numpy.sort(unordered.numpy()).tolist() == numpy.sort(-numpy.sort(-x)[:, :k]).tolist()


def test_topk_takes_the_first_of_equals() -> None:
    x = Tensor([2, 3, 3, 1, 3] * 20)

    assert x.topk(4)[1].tolist() == [1, 2, 4, 6]
    assert x.topk(2, largest=False)[1].tolist() == [3, 8]
    with pytest.raises(ArgumentError, match="topk: 4 elements of axis 0"):
        Tensor([1, 2, 3]).topk(4)


PICKED: list[tuple[str, Array]] = [
    ("ties", numpy.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])),
    ("nan", numpy.array([[1.0, math.nan, 3.0, math.nan], [-math.inf, math.inf, 0.0, 1.0]])),
]


@pytest.mark.parametrize(("name", "x"), PICKED, ids=[p[0] for p in PICKED])
def test_places_of_extremes_are_those_of_the_first(name: str, x: Array) -> None:
    for function in ("argmax", "argmin"):
        for axis in (None, 0, 1, -1):
            for keepdim in (False, True):
                result = getattr(Tensor(x), function)(axis, keepdim)
                expected = getattr(torch.tensor(x), function)(axis, keepdim)
                assert result.shape == tuple(expected.shape)
                assert result.tolist() == expected.tolist()
        assert result.dtype is dtypes.int32
