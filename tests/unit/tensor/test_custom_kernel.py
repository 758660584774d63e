"""Kernels that users write: what they compute, when they run, their gradients, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tinycore import Context, GlobalCounters, TinyJit
from tinycore.dtype import dtypes
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
)
from tinycore.tensor import Tensor
from tinycore.tensor.methods.placeholder import Placeholder
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op


@pytest.fixture(autouse=True)
def engine(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator runs no kernels")


def multiply(out: Placeholder, x: Placeholder, y: Placeholder) -> UOp:
    i = UOp.range(out.size, 0)
    return out.store(i, x[i] * y[i])


def multiply_gradient(gradient: UOp, kernel: UOp) -> tuple[Any, ...]:
    _, _, x, y = kernel.src
    return None, Tensor(gradient) * Tensor(y), (Tensor(gradient) * Tensor(x)).uop


def increment(x: Placeholder) -> UOp:
    i = UOp.range(x.size, 0)
    return x.store(i, x[i] + 1)


def matrix_product(out: Placeholder, a: Placeholder, b: Placeholder) -> UOp:
    i, j = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1)
    k = UOp.range(a.shape[1], 2, AxisKind.REDUCE)
    return out.store((i, j), UOp(Op.REDUCE, out.dtype, (a[i, k] * b[k, j], k), Op.ADD))


def twice_and_next(double: Placeholder, after: Placeholder, x: Placeholder) -> list[UOp]:
    i = UOp.range(x.size, 0)
    return [double.store(i, x[i] * 2), after.store(i, x[i] + 1)]


def product(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    return Tensor.empty(*x.shape).custom_kernel(x, y, fxn=multiply, **options)[0]


A, B = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]


# --- what they compute


def test_results_come_for_every_tensor() -> None:
    x, y = Tensor(A), Tensor(B)
    results = Tensor.custom_kernel(Tensor.empty(3), x, y, fxn=multiply)

    assert [r.tolist() for r in results] == [[4.0, 10.0, 18.0], A, B]
    assert results[1] is x


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 4), (17, 33, 9)], ids=str)
def test_a_reduction_is_lowered_as_any_other(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    a, b = numbers(rows, inner), numbers(inner, columns, seed=1)
    out = Tensor.empty(rows, columns)
    found = out.custom_kernel(
        Tensor(a, dtype=dtypes.float32), Tensor(b, dtype=dtypes.float32), fxn=matrix_product
    )[0]

    numpy.testing.assert_allclose(found.numpy(), a @ b, 1e-5, 1e-5)


def test_one_kernel_is_one_launch() -> None:
    x, y = Tensor(A).realize(), Tensor(B).realize()
    GlobalCounters.reset()

    assert product(x, y).tolist() == [4.0, 10.0, 18.0]
    assert GlobalCounters.kernel_count == 1


def test_inputs_may_be_anything() -> None:
    x = Tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]]).realize()

    assert product(x[0].flip(0), x[0] + 3).tolist() == [6.0, 10.0, 12.0]
    assert product(Tensor.full((3,), 2.0, buffer=False), Tensor(B)).tolist() == [8.0, 10.0, 12.0]
    assert product(x.sum(0), Tensor.arange(3).float()).tolist() == [0.0, 2.0, 2.0]


def test_kernels_follow_each_other_in_one_graph() -> None:
    x = product(Tensor(A), Tensor(B))
    y = product(x + 1, x)

    assert (y + x).tolist() == [24.0, 120.0, 360.0]


def test_several_tensors_are_stored_to() -> None:
    double, after, _ = Tensor.empty(3).custom_kernel(Tensor.empty(3), Tensor(A), fxn=twice_and_next)

    assert (double * after).tolist() == [4.0, 12.0, 24.0]


def test_loops_of_different_sizes() -> None:
    def heads(out: Placeholder, short: Placeholder, x: Placeholder) -> tuple[UOp, ...]:
        i, j = UOp.range(out.size, 0), UOp.range(short.size, 1)
        return out.store(i, x[i] * 2), short.store(j, x[j] + 1)

    out, short, _ = Tensor.empty(3).custom_kernel(Tensor.empty(2), Tensor(A), fxn=heads)
    assert (out.tolist(), short.tolist()) == ([2.0, 4.0, 6.0], [2.0, 3.0])


def test_a_graph_written_out_whole() -> None:
    def whole(out: Placeholder, x: Placeholder) -> UOp:
        i = UOp.range(out.size, 0)
        return UOp.sink(UOp(Op.END, dtypes.void, (out.store(i, x[i] * 3), i)))

    assert Tensor.empty(3).custom_kernel(Tensor(A), fxn=whole)[0].tolist() == [3.0, 6.0, 9.0]


def test_gates_keep_accesses_inside() -> None:
    def shift(out: Placeholder, x: Placeholder) -> UOp:
        i = UOp.range(4, 0)
        return out.store(i, x.load(i + 1, gate=i < 2, otherwise=-1), gate=i < 3)

    assert Tensor.empty(3).custom_kernel(Tensor(A), fxn=shift)[0].tolist() == [2.0, 3.0, -1.0]


def test_an_ordered_loop_may_store_where_loaded_values_say() -> None:
    def count(bins: Placeholder, x: Placeholder) -> UOp:
        i = UOp.range(x.size, 0, AxisKind.ORDERED)
        return bins.store(x[i], bins.load(x[i], gate=x[i] < 3) + 1, gate=x[i] < 3)

    bins = Tensor.zeros(3, dtype=dtypes.int32)
    assert bins.custom_kernel(Tensor([0, 2, 2, 1, 2, 5]), fxn=count)[0].tolist() == [1, 1, 3]


def test_a_recurrence_has_a_value_in_every_step() -> None:
    def logistic(out: Placeholder, start: Placeholder) -> UOp:
        row, step = UOp.range(out.shape[1], 0), UOp.range(out.shape[0], 1, AxisKind.ORDERED)
        state = UOp(Op.STATE, out.dtype, (), 0)
        value = UOp(Op.RECUR, out.dtype, (start[row], state * 3 * (state * -1 + 1), step), 0)
        return out.store((step, row), value)

    start = numpy.linspace(0.1, 0.9, 9, dtype=numpy.float32)
    found = Tensor.empty(5, 9).custom_kernel(Tensor(start), fxn=logistic)[0].numpy()

    for row in found:
        numpy.testing.assert_allclose(row, start, rtol=1e-5)
        start = 3 * start * (1 - start)


@pytest.mark.parametrize("size", [1, 13])
def test_a_recurrence_has_a_value_after_its_loop(size: int) -> None:
    def place(out: Placeholder, table: Placeholder, x: Placeholder) -> UOp:
        i, halving = UOp.range(x.size, 0), UOp.range(4, 1, AxisKind.ORDERED)
        low, step = UOp(Op.STATE, dtypes.index, (), 0), UOp.index(8) >> halving
        last = (low + step - 1).minimum(table.size - 1)
        is_less = (low + step < table.size + 1) & (table[last] < x[i])
        search = (UOp.index(0), is_less.where(low + step, low), halving)
        return out.store(i, UOp(Op.ITERATE, dtypes.index, search, 0).cast(out.dtype))

    table = numpy.arange(size, dtype=numpy.float32) * 2
    x = numpy.arange(-1, 2 * size + 1, dtype=numpy.float32)
    out = Tensor.empty(len(x), dtype=dtypes.int32)
    found = out.custom_kernel(Tensor(table), Tensor(x), fxn=place)[0]

    assert found.tolist() == numpy.searchsorted(table, x).tolist()


def test_what_is_stored_to_may_be_any_of_the_tensors() -> None:
    def twice(x: Placeholder, out: Placeholder, y: Placeholder) -> UOp:
        i = UOp.range(out.size, 0)
        return out.store(i, x[i] * 2 - y[i])

    found = Tensor(A).custom_kernel(Tensor.empty(3), Tensor(B), fxn=twice)

    assert [t.tolist() for t in found] == [A, [-2.0, -1.0, 0.0], B]


# --- memory that is written


@pytest.mark.parametrize("number", [0, 1, 2])
def test_memory_of_its_own_is_no_tensors(number: int) -> None:
    """The number of local memory says nothing about slots, whichever these are."""

    def twice(out: Placeholder, x: Placeholder) -> UOp:
        i, j = UOp.range(4, 0), UOp.range(4, 1)
        own = UOp(Op.DEFINE_LOCAL, x.dtype.ptr(4, "local"), (), number)
        fill = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, own.dtype, (own, i)), x[i] + x[i]))
        filled = UOp(Op.AFTER, own.dtype, (own, UOp(Op.END, dtypes.void, (fill, i))))
        value = UOp(Op.LOAD, x.dtype, (UOp(Op.INDEX, own.dtype, (filled, j)),))
        return UOp.sink(UOp(Op.END, dtypes.void, (out.store(j, value), j)))

    x = Tensor([1.0, 2.0, 3.0, 4.0]).contiguous()
    memory = x.realize().uop
    result, read = Tensor.empty(4).custom_kernel(x, fxn=twice)

    assert result.tolist() == [2.0, 4.0, 6.0, 8.0]
    assert read.uop is memory


def test_memory_is_written_in_place_once_per_call() -> None:
    x = Tensor(A).realize()
    before = x * 10
    x.custom_kernel(fxn=increment)
    second = x.custom_kernel(fxn=increment)[0]

    assert second.tolist() == x.tolist() == [3.0, 4.0, 5.0]
    assert before.tolist() == [10.0, 20.0, 30.0]


def test_a_reader_of_the_old_content_is_computed_first() -> None:
    x = Tensor(A).realize()
    old = product(x, x)
    x.assign(x + 10).realize()

    assert old.tolist() == [1.0, 4.0, 9.0]
    assert product(x, x).tolist() == [121.0, 144.0, 169.0]


def test_what_is_not_stored_to_stays() -> None:
    x = Tensor(A).realize()
    x.custom_kernel(fxn=lambda out: out.store(1, 7))

    assert x.tolist() == [1.0, 7.0, 3.0]


def test_views_and_values_are_copied_first() -> None:
    x = Tensor(A).realize()

    assert x[1:].custom_kernel(fxn=increment)[0].tolist() == [3.0, 4.0]
    assert (x * 2).custom_kernel(fxn=increment)[0].tolist() == [3.0, 5.0, 7.0]
    assert x.tolist() == A


def test_a_tensor_may_be_read_and_written_under_two_names() -> None:
    def reverse(out: Placeholder, x: Placeholder) -> UOp:
        i = UOp.range(out.size, 0)
        return out.store(i, x[2 - i])

    x = Tensor(A).realize()
    assert x.custom_kernel(x, fxn=reverse)[0].tolist() == [3.0, 2.0, 1.0]
    assert x.custom_kernel(x + 0, fxn=reverse)[0].tolist() == A


def test_inside_a_captured_step() -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor, total: Tensor) -> Tensor:
        total.assign(total + product(x + 1, y)).realize()
        return product(x, total) * 2

    total = Tensor.zeros(3).realize()
    y = Tensor(B).realize()
    expected = numpy.zeros(3)
    for i in range(5):
        x = numpy.array([i, 1.0, 2.0], numpy.float32)
        expected += (x + 1) * B
        assert step(Tensor(x).realize(), y, total).tolist() == (x * expected * 2).tolist()


# --- gradients


def test_the_gradient_function_is_followed() -> None:
    x, y = Tensor(A, requires_grad=True), Tensor(B, requires_grad=True)
    result = product(x * 2, y, grad_fxn=multiply_gradient)
    (result * result).sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [8 * a * b * b for a, b in zip(A, B, strict=True)]
    assert y.grad.tolist() == [8 * a * a * b for a, b in zip(A, B, strict=True)]


def test_a_gradient_for_each_result() -> None:
    def gradient(doubled: UOp, after: UOp, *, call: UOp) -> tuple[Any, ...]:
        assert len(call.src) == 4
        return None, None, Tensor(doubled) * 2 + Tensor(after)

    def results(x: Tensor) -> list[Tensor]:
        out = Tensor.empty(3), Tensor.empty(3)
        return Tensor.custom_kernel(*out, x, fxn=twice_and_next, grad_fxn=gradient)

    x = Tensor(A)
    double, after, _ = results(x)
    assert (double * after).sum().gradient(x)[0].tolist() == [6.0, 10.0, 14.0]
    assert results(x)[1].sum().gradient(x)[0].tolist() == [1.0] * 3


def test_gradients_of_gradients() -> None:
    x, y = Tensor(A), Tensor(B)
    (first,) = (product(x, y, grad_fxn=multiply_gradient) ** 2).sum().gradient(x)
    (second,) = first.sum().gradient(x)

    assert second.tolist() == [2 * b * b for b in B]


def test_no_gradient_is_made_up() -> None:
    x, y = Tensor(A), Tensor(B)

    with pytest.raises(GradientError, match="multiply has no gradient; pass grad_fxn, or detach"):
        product(x, y).sum().gradient(x)
    assert (product(x, y).detach() * x).sum().gradient(x)[0].tolist() == [4.0, 10.0, 18.0]


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (lambda g, kernel: (None, None), "gave 2 results for 3 tensors"),
        (lambda g, kernel: (None, Tensor([1.0]), None), r"of shape \(3,\) is of shape \(1,\)"),
    ],
    ids=["count", "shape"],
)
def test_a_gradient_that_does_not_fit(gradient: Callable[..., Any], message: str) -> None:
    x = Tensor(A)

    with pytest.raises(GradientError, match=message):
        product(x, Tensor(B), grad_fxn=gradient).sum().gradient(x)


# --- what is refused, at the call


def reduced_nowhere(out: Placeholder) -> UOp:
    return out.store(UOp.range(3, 0), out[UOp.range(3, 1, AxisKind.REDUCE)])


def numbered_twice(out: Placeholder) -> list[UOp]:
    return [out.store(UOp.range(3, 0), 1), out.store(UOp.range(2, 0), 1)]


def another_slot(out: Placeholder) -> UOp:
    return Placeholder(1, (3,), dtypes.float32).store(0, out[0])


def uneven(out: Placeholder) -> UOp:
    i, j = UOp.range(2, 0), UOp.range(2, 1)
    return out.store(i * 2 * j, 1, gate=i < 3)


def gated(out: Placeholder) -> UOp:
    i = UOp.range(3, 0)
    return out.store((i + 1) // 2, 1, gate=i < 3)


def stored_twice(out: Placeholder) -> list[UOp]:
    return [out.store(1, 1), out.store(1, 2)]


def stored_in_two_nests(out: Placeholder) -> list[UOp]:
    return [out.store(UOp.range(3, 0), 1), out.store(UOp.range(2, 1), 2)]


REFUSED: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    ("nothing", lambda out: None, ArgumentTypeError, "returned None; it must return what it"),
    ("a value", lambda out: out[0], ArgumentTypeError, "it must return what it stores"),
    ("beyond", lambda out: out.store(UOp.range(4, 0), 1), ArgumentError, "goes from 0 to 3 in a"),
    ("before", lambda out: out.store(UOp.range(3, 0) - 1, 1), ArgumentError, "goes from -1 to 1"),
    ("far", lambda out: out.store(5, 1), ArgumentError, r"index 5\.\.5 is outside of 3 elements"),
    ("axes", lambda out: out.store((0, 0), 1), ShapeError, "2 indices for the 1 axes of"),
    ("dtype", lambda out: out.store(0, out[0].cast(dtypes.int32)), DTypeError, "cast it"),
    (
        "mixed",
        lambda out: out.store(0, out[0] + UOp.const(dtypes.int32, 1)),
        ArgumentError,
        "int32",
    ),
    ("race", lambda out: out.store(0, out[UOp.range(3, 0)]), ArgumentError, "the same element"),
    (
        "halves",
        lambda out: out.store(UOp.range(4, 0) // 2, 1),
        ArgumentError,
        "several steps of its loops store to one element, at index",
    ),
    ("remainders", lambda out: out.store(UOp.range(4, 0) % 2, 1), ArgumentError, "several steps"),
    (
        "sums",
        lambda out: out.store(UOp.range(2, 0) + UOp.range(2, 1), 1),
        ArgumentError,
        "several steps",
    ),
    ("uneven", uneven, ArgumentError, "two steps of its loops store to element 0"),
    ("gated", gated, ArgumentError, "two steps of its loops store to element 1"),
    ("twice", stored_twice, ArgumentError, "two stores write element 1 of slot 0"),
    ("two nests", stored_in_two_nests, ArgumentError, "two stores write element 0 of slot 0"),
    ("reduce", reduced_nowhere, ArgumentError, "no REDUCE node folds over it"),
    ("number", numbered_twice, ArgumentError, "two loops have the number 0"),
    ("slot", another_slot, ArgumentError, "slot 1 of .* is none of its placeholders"),
    (
        "variable",
        lambda out: out.store(UOp.variable("v", 0, 2), 1),
        ArgumentError,
        "variable v has no value here",
    ),
    (
        "kind",
        lambda out: out.store(UOp.range(3, 0, AxisKind.UNROLL), 1),
        ArgumentError,
        "an axis of kind UNROLL comes from lowering",
    ),
]


@pytest.mark.parametrize(
    ("function", "error", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_malformed_kernel_is_refused_at_the_call(
    function: Callable[..., Any], error: type[Exception], message: str
) -> None:
    with Context(VERIFY=0), pytest.raises(error, match=message):
        Tensor.empty(3).custom_kernel(fxn=function)


DISJOINT: list[tuple[str, Callable[..., Any], list[float]]] = [
    (
        "evens and odds",
        lambda out: [out.store(UOp.range(2, 0) * 2, 1), out.store(UOp.range(2, 1) * 2 + 1, 2)],
        [1, 2, 1, 2],
    ),
    (
        "gates",
        lambda out: out.store(UOp.range(8, 0) // 2, 3, gate=(UOp.range(8, 0) % 2).eq(0)),
        [3, 3, 3, 3],
    ),
    ("backwards", lambda out: out.store(3 - UOp.range(4, 0), 5), [5, 5, 5, 5]),
    (
        "in order",
        lambda out: out.store(UOp.range(8, 0, AxisKind.ORDERED) // 2, 4),
        [4, 4, 4, 4],
    ),
    (
        "permuted",
        lambda out: out.store(UOp.range(2, 0) + UOp.range(2, 1) * 2, 6),
        [6, 6, 6, 6],
    ),
]


@pytest.mark.parametrize(
    ("function", "expected"), [case[1:] for case in DISJOINT], ids=[c[0] for c in DISJOINT]
)
def test_stores_to_places_of_their_own(function: Callable[..., Any], expected: list[float]) -> None:
    (out,) = as_many(Tensor.zeros(4).custom_kernel(fxn=function))

    assert out.tolist() == expected


def as_many(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def test_races_of_large_kernels_are_refused() -> None:
    def wrapped(out: Placeholder) -> UOp:
        return out.store(UOp.range(1 << 24, 0) % (1 << 23), 1)

    def skewed(out: Placeholder) -> UOp:
        return out.store(UOp.range(1 << 12, 0) * 100 + UOp.range(1 << 12, 1), 1)

    for function in (wrapped, skewed):
        with pytest.raises(ArgumentError, match="store to"):
            Tensor.empty(1 << 23).custom_kernel(fxn=function)


def test_memory_stored_to_twice_is_refused() -> None:
    def both(x: Placeholder, y: Placeholder) -> list[UOp]:
        return [x.store(0, 1), y.store(1, 2)]

    x = Tensor(A).realize()
    with pytest.raises(ArgumentError, match="tensors 0, 1 are stored to, and some of them are the"):
        x.custom_kernel(x, fxn=both)


def test_tensors_are_on_one_device() -> None:
    with pytest.raises(DeviceError, match="custom_kernel: operands are on"):
        Tensor.empty(3, device="NULL").custom_kernel(Tensor.empty(3, device="PYTHON"), fxn=multiply)


# --- graphs as values


def test_a_body_is_called_with_tensors() -> None:
    x, y = Tensor(A), Tensor(B)
    body = x.as_param(0) * y.as_param(1) + 1

    assert x.call(y, fxn=body).tolist() == [5.0, 11.0, 19.0]
    assert y.call(y + 1, fxn=body.uop).tolist() == [21.0, 31.0, 43.0]
    assert x.call(y, fxn=body).sum().gradient(y)[0].tolist() == A


def test_a_call_with_a_gradient_of_its_own() -> None:
    """It gets the gradient and the node of the call, whose sources are the arguments."""
    x, y = Tensor(A), Tensor(B)
    body = x.as_param(0) * y.as_param(1)

    def gradient(g: UOp, call: UOp) -> tuple[UOp, None]:
        value, first, second = call.src
        assert [value.shape, first, second] == [(3,), x.uop, y.uop]
        return g * Tensor.from_uop(call).uop * 2, None

    out = x.call(y, fxn=body, grad_fxn=gradient)
    (slope,) = (out * 10).sum().gradient(x)

    assert out.tolist() == [a * b for a, b in zip(A, B, strict=True)]
    assert slope.tolist() == [20 * a * b for a, b in zip(A, B, strict=True)]
    assert out.sum().gradient(y)[0].tolist() == [0.0] * 3


def test_calls_of_one_value_are_told_apart() -> None:
    """Two results that are the same numbers, each with its own gradient, in one step."""
    x = Tensor(A)
    once = x.call(fxn=x.as_param(0) + 1, grad_fxn=lambda g, call: [g])
    twice = x.call(fxn=x.as_param(0) + 1, grad_fxn=lambda g, call: [g * 2])
    (slope,) = (once + twice * 10).sum().gradient(x)
    Tensor.realize(once, twice, slope)

    assert once.tolist() == twice.tolist() == [a + 1 for a in A]
    assert slope.tolist() == [21.0] * 3


@pytest.mark.parametrize("body", [lambda p: p.round(), lambda p: p.detach() * 2])
def test_reading_on_the_way_keeps_the_gradient_of_a_call(body: Callable[..., Any]) -> None:
    """Also where none would flow through the value, as in straight-through estimators."""
    x = Tensor(A).realize()
    out = x.call(fxn=body(x.as_param(0)), grad_fxn=lambda g, call: [g * 3])
    hidden = (out * 2).contiguous()
    hidden.max().item()

    assert hidden.sum().gradient(x)[0].tolist() == [6.0] * 3


def test_a_realized_call_is_memory_of_its_own() -> None:
    """Neither a view of its argument, nor a node with a gradient."""
    x = Tensor(A).realize()
    early, late = (x.call(fxn=x.as_param(0), grad_fxn=lambda g, call: [g]) for _ in range(2))
    early.realize()

    with pytest.raises(GradientError, match="realize"):
        early.sum().gradient(x)

    x.assign(x * 0).realize()

    assert early.tolist() == late.tolist() == A


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (lambda g, call: [None, None], "call: its gradient gave 2 results for 1 tensors"),
        (lambda g, call: [Tensor([1.0])], r"of shape \(3,\) is of shape \(1,\)"),
    ],
    ids=["count", "shape"],
)
def test_a_gradient_of_a_call_that_does_not_fit(gradient: Callable[..., Any], message: str) -> None:
    x = Tensor(A)

    with pytest.raises(GradientError, match=message):
        x.call(fxn=x.as_param(0) * 2, grad_fxn=gradient).sum().gradient(x)


def test_a_placeholder_has_no_value() -> None:
    x = Tensor(A)

    with pytest.raises(ArgumentError, match=r"parameter 0 of shape \(3,\) stands for an argument"):
        (x.as_param(0) + 1).tolist()


def test_arguments_have_to_fit() -> None:
    x = Tensor(A)
    body = x.as_param(0) + x.as_param(1)

    with pytest.raises(ArgumentError, match="the body has a slot 1, there are 1 tensors"):
        x.call(fxn=body)
    with pytest.raises(ShapeError, match=r"slot 1 is of shape \(3,\), the tensor of \(1,\)"):
        x.call(Tensor([1.0]), fxn=body)
    with pytest.raises(DTypeError, match=r"slot 1 is dtypes\.float32, the tensor dtypes\.int32"):
        x.call(Tensor([1, 2, 3]), fxn=body)
    with pytest.raises(ArgumentError, match="slots are counted from 0, got -1"):
        x.as_param(-1)


def test_schedules_as_one_node() -> None:
    x = Tensor(A).realize()
    y = (x.softmax() + 1).contiguous()
    sink, values = y.linear_with_vars()

    assert sink.op is Op.SINK
    assert [n.op for n in sink.src] == [Op.KERNEL] * len(y.schedule())
    assert values == {}
    assert len((x + 1).schedule_linear().src) == 1
    assert y.callify(x) is y


def increase(x: Placeholder) -> UOp:
    i = UOp.range(x.size, 0)
    return x.store(i, x[i] + 1)


@pytest.mark.parametrize("realizes", [False, True])
def test_views_of_what_a_kernel_stores_to_stay_views(realizes: bool) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    last, before = x[2:], x * 10

    x.custom_kernel(fxn=increase)
    if realizes:
        x.realize()
    last += 5
    x.custom_kernel(fxn=increase)

    assert last.tolist() == [10.0]
    assert x.tolist() == [3.0, 4.0, 10.0]
    x[2] = 0.0
    assert (last.tolist(), before.tolist()) == ([0.0], [10.0, 20.0, 30.0])
