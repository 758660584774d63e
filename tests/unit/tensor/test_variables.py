"""Variables in shapes, offsets and bounds: NumPy's results for each number, by one program."""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tinycore import Device, GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tinycore.engine.compile import compile_kernel, programs
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    JitError,
    ShapeError,
)

MOST = 12
DATA = numpy.arange(MOST * 3, dtype=numpy.float32).reshape(MOST, 3) / 8
length = Variable("length", 1, MOST)


def memory() -> Tensor:
    return Tensor(DATA).realize()


def softmax(x: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    grown = numpy.exp(x - x.max(0))
    return numpy.asarray(grown / grown.sum(0))


Case = tuple[Callable[[Tensor, Any], Tensor], Callable[[Any, int], Any]]

CASES: dict[str, Case] = {
    "slice": (lambda x, n: x[:n], lambda x, n: x[:n]),
    "window that moves": (lambda x, n: x[n - 1 : n] * 2, lambda x, n: x[n - 1 : n] * 2),
    "slice from": (lambda x, n: x[n - 1 :], lambda x, n: x[n - 1 :]),
    "element": (lambda x, n: x[n - 1], lambda x, n: x[n - 1]),
    "element from the end": (lambda x, n: x[:n][-1], lambda x, n: x[n - 1]),
    "shrink": (lambda x, n: x.shrink(((0, n), None)), lambda x, n: x[:n]),
    "sum": (lambda x, n: x[:n].sum(), lambda x, n: x[:n].sum()),
    "sum of an axis": (lambda x, n: x[:n].sum(0), lambda x, n: x[:n].sum(0)),
    "sum of the other axis": (lambda x, n: x[:n].sum(1), lambda x, n: x[:n].sum(1)),
    "max": (lambda x, n: x[:n].max(0), lambda x, n: x[:n].max(0)),
    "mean": (lambda x, n: x[:n].mean(0), lambda x, n: x[:n].mean(0)),
    "softmax": (lambda x, n: x[:n].softmax(0), lambda x, n: softmax(x[:n])),
    "add": (lambda x, n: x[:n] + x[:n], lambda x, n: x[:n] * 2),
    "product within": (lambda x, n: x[:n].T @ x[:n], lambda x, n: x[:n].T @ x[:n]),
    "product beside": (lambda x, n: x[:n] @ x[:n].T, lambda x, n: x[:n] @ x[:n].T),
    "pad back": (
        lambda x, n: x[:n].pad(((0, MOST - n), None)),
        lambda x, n: numpy.pad(x[:n], ((0, MOST - n), (0, 0))),
    ),
    "flat": (lambda x, n: x[:n].reshape(n * 3), lambda x, n: x[:n].reshape(-1)),
    "flat, inferred": (lambda x, n: x[:n].reshape(-1) * 2, lambda x, n: x[:n].reshape(-1) * 2),
    "flat, transposed": (lambda x, n: x[:n].T.reshape(n * 3), lambda x, n: x[:n].T.reshape(-1)),
    "folded": (
        lambda x, n: (x[:n].reshape(n * 3) + 1).contiguous().reshape(n, 3),
        lambda x, n: x[:n] + 1,
    ),
    "expand": (lambda x, n: x[:1].expand(n, 3), lambda x, n: numpy.tile(x[:1], (n, 1))),
    "equal terms": (lambda x, n: x[0].expand(n, 3).sum(0), lambda x, n: x[0] * n),
    "flip": (lambda x, n: x[:n].flip(0), lambda x, n: x[:n][::-1]),
    "cat": (lambda x, n: x[:n].cat(x[:2]), lambda x, n: numpy.concatenate([x[:n], x[:2]])),
    "arange": (lambda x, n: Tensor.arange(n), lambda x, n: numpy.arange(n)),
    "arange from": (lambda x, n: Tensor.arange(n, n + 4), lambda x, n: numpy.arange(n, n + 4)),
    "number": (lambda x, n: Tensor(n) * 2 + n, lambda x, n: numpy.asarray(3 * n)),
    "beside floats": (lambda x, n: x * n, lambda x, n: x * n),
    "mask": (lambda x, n: Tensor.arange(MOST) < n, lambda x, n: numpy.arange(MOST) < n),
    "memory of its own": (lambda x, n: (x[:n] * 2).realize() + 1, lambda x, n: x[:n] * 2 + 1),
}


@pytest.mark.parametrize("name", CASES)
def test_each_number_gives_what_numpy_gives(name: str) -> None:
    ours, theirs = CASES[name]
    x = memory()
    known = 0

    for n in (1, 5, MOST):
        found, expected = ours(x, length.bind(n)).numpy(), theirs(DATA, n)
        assert found.shape == expected.shape
        numpy.testing.assert_allclose(found, expected, rtol=1e-5)
        assert known in (0, len(programs)), "another number compiled another program"
        known = len(programs)


DECIDED: dict[str, Case] = {
    "slice of a slice": (lambda x, n: x[:n][:2] * 2, lambda x, n: x[:n][:2] * 2),
    "end of a slice": (lambda x, n: x[:n][-3:] * 2, lambda x, n: x[:n][-3:] * 2),
    "every other": (lambda x, n: x[:n:2] * 2, lambda x, n: x[:n:2] * 2),
    "windows": (
        lambda x, n: x[: n + 1].unfold(0, 2, 1) * 2 if n < MOST else x[:n].unfold(0, 2, 1) * 2,
        lambda x, n: numpy.stack([x[: n + 1][:-1], x[: n + 1][1:]], -1)[: MOST - 1] * 2,
    ),
    "backwards": (lambda x, n: x[n - 1 :: -2] * 2, lambda x, n: x[n - 1 :: -2] * 2),
    "full": (lambda x, n: Tensor.full((n,), 3.0), lambda x, n: numpy.full(n, 3.0)),
    "zeros": (lambda x, n: Tensor.zeros(n, 2) + 1, lambda x, n: numpy.ones((n, 2))),
    "filled by n": (lambda x, n: Tensor.full((2, 3), n), lambda x, n: numpy.full((2, 3), n)),
    "ones like": (lambda x, n: x[:n].ones_like() * 2, lambda x, n: numpy.full((n, 3), 2)),
    "empty, written": (lambda x, n: Tensor.empty(n, 3).assign(x[:n]), lambda x, n: x[:n]),
    "split": (
        lambda x, n: x[:n].split(4)[-1] * 2,
        lambda x, n: x[:n][(n - 1) // 4 * 4 :] * 2,
    ),
    "split by n": (
        lambda x, n: x.split(n)[-1] * 2,
        lambda x, n: x[(MOST - 1) // n * n :] * 2,
    ),
    "chunk": (
        lambda x, n: x[:n].chunk(3)[-1] * 2,
        lambda x, n: x[:n][(n - 1) // -(-n // 3) * -(-n // 3) :] * 2,
    ),
    "halves": (
        lambda x, n: x[: (n + 1) // 2 * 2].reshape(2, -1, 3) * 2,
        lambda x, n: x[: (n + 1) // 2 * 2].reshape(2, -1, 3) * 2,
    ),
    "var": (lambda x, n: x[:n].var(correction=0), lambda x, n: x[:n].var()),
    "std": (lambda x, n: x[:n].std(0, correction=0), lambda x, n: x[:n].std(0)),
    "tril": (
        lambda x, n: (x[:n] @ x[:n].T).tril(),
        lambda x, n: numpy.tril(x[:n] @ x[:n].T),
    ),
    "triu": (
        lambda x, n: (x[:n] @ x[:n].T).triu(1),
        lambda x, n: numpy.triu(x[:n] @ x[:n].T, 1),
    ),
    "shrink": (lambda x, n: x.shrink(((n - 1, n), None)) * 2, lambda x, n: x[n - 1 : n] * 2),
    "pad or crop": (
        lambda x, n: x[:n].pad(((0, 4 - n), None)),
        lambda x, n: numpy.pad(x[:n], ((0, max(0, 4 - n)), (0, 0)))[:4],
    ),
    "arange by n": (lambda x, n: Tensor.arange(0, 10, n), lambda x, n: numpy.arange(0, 10, n)),
    "arange by 2": (lambda x, n: Tensor.arange(1, n, 2), lambda x, n: numpy.arange(1, n, 2)),
    "arange down": (lambda x, n: Tensor.arange(n, 0, -2), lambda x, n: numpy.arange(n, 0, -2)),
    "arange to n": (lambda x, n: Tensor.arange(3, n), lambda x, n: numpy.arange(3, n)),
    "every other of none": (lambda x, n: x[n:][::2] * 2, lambda x, n: x[n:][::2] * 2),
    "backwards, of none": (lambda x, n: x[n:][::-1] * 2, lambda x, n: x[n:][::-1] * 2),
    "counted to none": (
        lambda x, n: x[n:] + Tensor.arange(x[n:].shape[0]).reshape(-1, 1),
        lambda x, n: x[n:] + numpy.arange(MOST - n).reshape(-1, 1),
    ),
    "running sum": (lambda x, n: x[:n].cumsum(0), lambda x, n: x[:n].cumsum(0)),
    "repeat": (lambda x, n: x[:2].repeat(n, 1), lambda x, n: numpy.tile(x[:2], (n, 1))),
    "roll": (lambda x, n: x.roll(n, 0), lambda x, n: numpy.roll(x, n, 0)),
    "cut and joined": (lambda x, n: x[:n].cat(x[n:]), lambda x, n: x),
}
"""Cases in which numbers may decide what is computed."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", DECIDED)
@pytest.mark.parametrize("jitted", [False, True])
def test_what_holds_for_the_number_is_taken(name: str, jitted: bool, target: str) -> None:
    if jitted and target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    ours, theirs = DECIDED[name]
    step = TinyJit(ours) if jitted else ours
    x = memory()

    for n in (5, 5, 1, 2, MOST, 3, 4, 5, 1, 6, 2, MOST):
        found, expected = step(x, length.bind(n)).numpy(), theirs(DATA, n)
        assert found.shape == expected.shape
        numpy.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_filled_memory_of_symbolic_shape_is_written_to() -> None:
    filled = Tensor.zeros(length.bind(3), 2)
    filled[1:2] = 5
    _ = filled.assign(filled + 1)

    assert filled.tolist() == [[1, 1], [6, 6], [1, 1]]


def test_variables_compute_and_take_a_dtype() -> None:
    assert ((length + 1).least, (3 * length - 1).greatest) == (2, 3 * MOST - 1)
    assert Variable("n", 1, 8, dtype=dtypes.int32).bind(3).unbind() == (Variable("n", 1, 8), 3)
    with pytest.raises(DTypeError, match="does not hold its numbers"):
        Variable("n", 1, 300, dtype="uint8")
    with pytest.raises(ArgumentError, match="length holds no number; bind it first"):
        memory()[: length + 1]


def test_a_pickled_function_tells_which_condition_a_number_breaks(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    step = TinyJit(last_three)
    for n in (5, 6, 7):
        step(memory(), length.bind(n))

    again = pickle.loads(pickle.dumps(step))

    assert again(memory(), length.bind(8)).tolist() == (DATA[5:8] * 2).tolist()
    with pytest.raises(JitError, match=r"last_three was captured where .*, and here length=2"):
        again(memory(), length.bind(2))


def last_three(x: Tensor, n: Any) -> Tensor:
    return x[:n][-3:] * 2


def test_writing_at_an_offset() -> None:
    cache = Tensor.zeros(2, MOST).contiguous().realize()
    place = Variable("place", 0, MOST - 1)
    expected = numpy.zeros((2, MOST), numpy.float32)

    for i in range(4):
        cache[:, place.bind(i) : place.bind(i) + 1] = Tensor([[i + 1.0], [i - 1.0]])
        cache.realize()
        expected[:, i] = i + 1, i - 1

    assert cache.tolist() == expected.tolist()
    inner = Variable("inner", 0, MOST - 2).bind(7)
    _ = cache[:, inner : inner + 2].assign(9)
    expected[:, 7:9] = 9
    assert cache.tolist() == expected.tolist()


def test_two_variables_in_one_shape() -> None:
    rows, columns = Variable("rows", 1, MOST), Variable("columns", 1, 3)
    x = memory()

    for r, c in ((1, 3), (7, 2), (MOST, 1)):
        found = x[: rows.bind(r), : columns.bind(c)] * 2
        assert found.sum(1).tolist() == (DATA[:r, :c] * 2).sum(1).tolist()
        assert found.tolist() == (DATA[:r, :c] * 2).tolist()


def test_work_for_several_threads() -> None:
    data = numpy.random.default_rng(0).standard_normal((64, 1024)).astype(numpy.float32)
    rows, x = Variable("rows", 1, 64), Tensor(data).realize()

    for n in (1, 33, 64):
        part, expected = x[: rows.bind(n)], data[:n]
        numpy.testing.assert_allclose((part * 2 + 1).numpy(), expected * 2 + 1, 1e-6)
        numpy.testing.assert_allclose(
            (part.T * 2).sum(1).numpy(), (expected * 2).sum(0), 1e-4, 1e-4
        )
        numpy.testing.assert_allclose((part @ part.T).numpy(), expected @ expected.T, 1e-4, 1e-3)


def test_a_symbolic_value_that_was_read_keeps_its_gradient() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True).realize()
    n = Variable("n", 1, 4).bind(3)
    row = x[:n] * x[:n]
    loss = (row * 2).sum()

    assert row.tolist() == [1.0, 4.0, 9.0]
    assert loss.item() == 28.0
    assert loss.gradient(x)[0].tolist() == [4.0, 8.0, 12.0, 0.0]
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 8.0, 12.0, 0.0]


def test_a_symbolic_value_that_was_read_is_not_computed_again() -> None:
    x, size = Tensor([1.0, 2.0, 3.0, 4.0]).realize(), Variable("n", 1, 4)
    three, two = x[: size.bind(3)] * 2, x[: size.bind(2)] * 2
    assert (three.tolist(), two.tolist()) == ([2.0, 4.0, 6.0], [2.0, 4.0])

    GlobalCounters.reset()
    assert (three.tolist(), two.tolist()) == ([2.0, 4.0, 6.0], [2.0, 4.0])
    assert GlobalCounters.kernel_count == 0
    x[0] = 10
    assert three.tolist() == [2.0, 4.0, 6.0]
    assert (x[: size.bind(2)] * 2).tolist() == [20.0, 4.0]


def test_a_turned_symbolic_slice_is_read_row_by_row() -> None:
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    n = Variable("n", 1, 3).bind(2)
    x[:, :n].assign(x[:, :n] * 10)

    assert x[:, :n].T.tolist() == [[10.0, 40.0], [20.0, 50.0]]
    assert (x[:, :n] + 1).T.tolist() == [[11.0, 41.0], [21.0, 51.0]]


def test_gradients_flow_through_symbolic_slices() -> None:
    x = Tensor(DATA, requires_grad=True)
    _ = (x[: length.bind(4)] ** 2).sum().backward()
    expected = numpy.zeros_like(DATA)
    expected[:4] = 2 * DATA[:4]

    assert x.grad is not None
    assert x.grad.tolist() == expected.tolist()


def test_shapes_compute_as_ints_do() -> None:
    n = length.bind(5)
    x = memory()[:n]

    assert x.shape == (n, 3)
    assert x.max_shape == (MOST, 3)
    assert x.numel() == n * 3 == 3 * n
    assert (n + 1) - n == 1
    assert (n * 6) // 3 == n + n
    assert (n * 4) % 2 == 0
    assert n < MOST + 1
    assert not n > MOST
    assert (n * 3 + 1).value == 16
    assert n.unbind() == (length, 5)
    assert pickle.loads(pickle.dumps(n * 2)) == n * 2


def test_bindings_of_one_variable_are_computed_each_with_its_own() -> None:
    x = memory()
    three, four = length.bind(3), length.bind(4)

    assert (three + four).value == 7
    assert repr(three * 2 + four) == "((length * 2) + length#1)[length=3, length#1=4]"
    assert (x[:three].sum() + x[:four].sum()).item() == DATA[:3].sum() + DATA[:4].sum()
    assert x[three : four + 1].tolist() == DATA[3:5].tolist()
    assert (x[:three].T @ x[:three] + x[:four].T @ x[:four]).tolist() == (
        DATA[:3].T @ DATA[:3] + DATA[:4].T @ DATA[:4]
    ).tolist()
    with pytest.raises(ShapeError, match="cannot be broadcast"):
        x[:three] + x[:four]


def test_bindings_are_computed_at_once() -> None:
    x = memory()
    one, other, product = x[: length.bind(3)].sum(), x[: length.bind(4)].sum(), length.bind(3) * 2

    Tensor.realize(one, other)

    assert (one.item(), other.item()) == (DATA[:3].sum(), DATA[:4].sum())
    assert (x.sum() * product).item() == DATA.sum() * 6


def test_two_variables_of_one_name_are_two() -> None:
    short = Variable("length", 1, 5)
    x = memory()

    assert (length.bind(3) + short.bind(3)).value == 6
    assert (length.bind(3) - short.bind(3)).greatest == MOST - 1
    assert x[length.bind(4) - short.bind(3) : length.bind(3)].tolist() == DATA[1:3].tolist()


NAMES = ["idx0", "data0", "int", "value0", "acc0", "i0", "lidx0", "return", "two words", "größe"]
NAMES += ["a \"quoted' name", "/* */ 0; }", "line\nbreak", "a=1", "a#1", "a@0", "%3D", "%"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_variable_reaches_generated_code(name: str, target: str) -> None:
    number = Variable(name, 1, MOST)
    found = (memory()[: number.bind(5)] * 7).sum(0)

    if target != "reference":
        toolchain = Device[Device.DEFAULT].toolchain
        plain = (memory()[: length.bind(5)] * 7).sum(0)
        asts = [x.schedule()[0].ast for x in (found, plain)]
        assert asts[0] is not asts[1]
        sources = [compile_kernel(ast, toolchain).source for ast in asts]
        assert sources[0] == sources[1]
    numpy.testing.assert_allclose(found.numpy(), (DATA[:5] * 7).sum(0), rtol=1e-5)
    assert number.bind(5).unbind() == (number, 5)
    assert repr(number.bind(5)) == f"{name}[{name}=5]"


@pytest.mark.parametrize("value", [0, MOST + 1])
def test_a_number_outside_the_bounds_is_refused(value: int) -> None:
    with pytest.raises(ArgumentError, match="outside the bounds of Variable"):
        length.bind(value)


def test_what_lies_outside_is_refused() -> None:
    x = memory()

    with pytest.raises(IndexRangeError, match=r":length\[length=4\] is not inside axis 1 of shape"):
        x[:, : length.bind(4)]
    with pytest.raises(IndexRangeError, match=r"length=12\]:.* is not inside axis 0"):
        x[length.bind(MOST) : length.bind(MOST) + 1]
    with pytest.raises(ShapeError, match=r"shrink: .*length\[length=4\].* reaches outside"):
        x.shrink((None, (0, length.bind(4))))
    with pytest.raises(IndexRangeError, match="is not inside axis 0"):
        x[length.bind(4) : length.bind(3)]


large = Variable("large", 0, 100_000)
AREA = 70_000**2
OF_LARGE: dict[str, tuple[Callable[[Any], Tensor], list[Any]]] = {
    "number": (lambda n: Tensor(n).reshape(1), [AREA]),
    "full": (lambda n: Tensor.full((2,), n), [AREA, AREA]),
    "arange": (lambda n: Tensor.arange(n, n + 2), [AREA, AREA + 1]),
    "arange of a dtype": (lambda n: Tensor.arange(n, n + 2, dtype="int64"), [AREA, AREA + 1]),
    "arange down": (lambda n: Tensor.arange(-n, -n - 3, -2), [-AREA, -AREA - 2]),
    "where": (lambda n: Tensor([True, False]).where(n, 0), [AREA, 0]),
    "beside bools": (lambda n: Tensor([True]) + n, [AREA + 1]),
    "quotient": (lambda n: Tensor([AREA % 2**32]).cast("uint8") / n, [0.0]),
    "equal": (lambda n: Tensor([AREA - 2**32]) == n, [False]),
    "less": (lambda n: Tensor([AREA - 2**32 + 9]) < n, [True]),
    "not less": (lambda n: n <= Tensor([AREA - 2**32 + 9]), [False]),
    "unsigned": (lambda n: Tensor([3], dtype="uint64") > -n, [True]),
    "equal bytes": (lambda n: Tensor([AREA % 256], dtype="uint8") == n, [False]),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", OF_LARGE)
def test_an_expression_that_may_exceed_the_default_integer_does_not_wrap(
    name: str, jitted: bool
) -> None:
    make, expected = OF_LARGE[name]
    step: Callable[[Any], Tensor] = lambda n: make(n * n)  # noqa: E731
    if jitted:
        step = TinyJit(lambda n: (make(n * n) * 1).realize())

    for number in (5, 70_000, 70_000):
        found = step(large.bind(number))
    assert [*map(float, found.tolist())] == pytest.approx([*map(float, expected)], abs=1e-7)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, n: Tensor(n * n * n * n),
        lambda x, n: x[: n * n * n * n // AREA**2],
        lambda x, n: x[(n * n * n * n) % 2 :],
        lambda x, n: x[: 4 - (-n * n * n * n) // AREA**2],
        lambda x, n: x.reshape(1, 4).expand(n * n * n * n, 4),
    ],
)
def test_an_expression_that_may_exceed_int64_is_refused(make: Callable[..., Tensor]) -> None:
    with pytest.raises(DTypeError, match="may exceed int64; give its Variables tighter bounds"):
        make(Tensor([1, 2, 3, 4]).realize(), large.bind(3))


def test_a_size_is_compared_with_any_int() -> None:
    n = large.bind(3)

    assert n < sys.maxsize
    assert n > -sys.maxsize
    assert Tensor([1, 2, 3, 4])[n : sys.maxsize].tolist() == [4]


@pytest.mark.parametrize(
    "other",
    [
        *(numpy.int8(-128), numpy.uint8(200), numpy.int64(2**63 - 1), numpy.int64(-(2**63))),
        *(numpy.uint64(2**64 - 1), 2**64, -(2**64), 2**70, -(2**70), 3, numpy.uint8(3)),
    ],
)
def test_a_size_is_compared_with_integers_near_and_far(other: Any) -> None:
    n, number = Variable("n", 1, 300).bind(3), int(other)

    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        assert compare(n, other) == compare(3, number)


def test_a_variable_without_a_number_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="holds no number"):
        Tensor.zeros(4).expand(length, 4)  # type: ignore[arg-type]


REFUSED: dict[str, Callable[[Tensor, Any], object]] = {
    "iterate": lambda x, n: list(x[:n]),
    "sort": lambda x, n: x[:n].sort(0),
    "write": lambda x, n: (x[:n] * 2).__setitem__(0, 3),
    "zero divisor": lambda x, n: 5 // (n - 1),
    "int": lambda x, n: range(n),
}


def test_kernels_that_do_not_run_now_would_not_know_the_number(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no kernels")

    with pytest.raises(ShapeError, match=r"depends on length.*realize\(\) it instead"):
        memory()[: length.bind(3)].sum().kernelize()


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_symbolic_form_is_refused_at_the_call(name: str) -> None:
    with pytest.raises((ArgumentError, ShapeError)):
        REFUSED[name](memory(), length.bind(4))


@pytest.mark.parametrize("reader", [Tensor.tolist, Tensor.numpy, lambda x: (x + 1).tolist()])
def test_a_symbolic_value_that_was_read_is_realized_and_read_again(
    reader: Callable[[Tensor], object],
) -> None:
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).realize()
    doubled = x[:, : Variable("n", 1, 3).bind(2)] * 2
    reader(doubled)
    doubled.realize()

    assert doubled.tolist() == [[2.0, 4.0], [8.0, 10.0]]
    assert (doubled + 1).tolist() == [[3.0, 5.0], [9.0, 11.0]]
