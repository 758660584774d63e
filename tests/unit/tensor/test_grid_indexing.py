"""Random and tabulated indices against NumPy, reading, writing and differentiating.

Ints are taken first, as torch does; for the rest NumPy's own assignment and `numpy.add.at` say what
a write and a gradient must be.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import Array, compare, numbers
from tinycore import TinyJit
from tinycore.dtype import dtypes
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    ShapeError,
)
from tinycore.tensor import Tensor

Function = Callable[..., Any]

# --- a generator of index expressions

SHAPES = [(4,), (3, 4), (2, 3, 4), (1,), (0, 3), (5, 1, 2), (2, 2, 2, 2), (3, 0, 2), ()]
COUNTS = {"PYTHON": 80, "CPU:LLVM": 20, "CPU:CLANG": 8}
"""Expressions per seed: the interpreter needs no compiler."""


def some_slice(rng: random.Random, size: int) -> slice:
    """A slice whose bounds may be missing, negative or outside."""
    start, stop = (rng.choice([None, None, None, *range(-size - 2, size + 3)]) for _ in range(2))
    return slice(start, stop, rng.choice([None, None, 1, 2, 3, -1, -2, -3]))


def some_positions(rng: random.Random, size: int, shape: tuple[int, ...]) -> Array:
    """Positions along an axis, of a shape that broadcasts to `shape`."""
    thin = tuple([1 if rng.random() < 0.5 else n for n in shape])
    chosen = rng.choice([shape, shape[-1:], thin, ()])
    found = [rng.randint(-size, size - 1) for _ in range(int(numpy.prod(chosen)))]
    kind = rng.choice([numpy.int32, numpy.int64, numpy.int8])
    return numpy.array(found, kind).reshape(chosen)


def some_mask(rng: random.Random, shape: tuple[int, ...]) -> Array:
    """Bools, each true half of the time."""
    found = [rng.random() < 0.5 for _ in range(int(numpy.prod(shape)))]
    return numpy.array(found, bool).reshape(shape)


def some_index(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """Up to one entry per axis and a few new ones, of every kind NumPy takes."""
    entries: list[Any] = []
    axis, dotted = 0, False
    beside = rng.choice([(2,), (3,), (2, 2), (1,)])
    while axis < len(shape):
        kind = rng.choices(
            ["new", "dots", "slice", "int", "array", "mask", "stop"], [2, 2, 6, 3, 4, 2, 1]
        )[0]
        if kind == "stop":
            break
        if kind == "new":
            entries.append(None)
        elif kind == "dots" and not dotted:
            dotted = True
            entries.append(...)
            axis += rng.randint(0, len(shape) - axis)
        elif kind == "mask":
            covered = rng.randint(0, min(2, len(shape) - axis))
            entries.append(some_mask(rng, shape[axis : axis + covered]))
            axis += covered
        elif kind in ("int", "array") and shape[axis]:
            size = shape[axis]
            whole = kind == "int"
            entries.append(
                rng.randint(-size, size - 1) if whole else some_positions(rng, size, beside)
            )
            axis += 1
        else:
            entries.append(some_slice(rng, shape[axis]))
            axis += 1
    return entries[0] if len(entries) == 1 and rng.random() < 0.7 else tuple(entries)


def as_ours(rng: random.Random, entry: Any) -> Any:
    """Arrays as they are, as nested lists, or as tensors."""
    if not isinstance(entry, numpy.ndarray):
        return entry
    how = rng.random()
    if how < 0.4:
        return Tensor(entry)
    return entry.tolist() if how < 0.7 and entry.ndim and entry.size else entry


def translated(rng: random.Random, index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple([as_ours(rng, entry) for entry in index])
    return as_ours(rng, index)


def axes_of(entry: Any) -> int:
    """Number of axes of an array that an entry stands for."""
    if entry is None or entry is ...:
        return 0
    return entry.ndim if isinstance(entry, numpy.ndarray) and entry.dtype == bool else 1


def ints_first(x: Array, index: Any) -> tuple[Array, tuple[Any, ...]]:
    """The view that ints leave of an array, and the rest of the index, as torch has it.

    Raises IndexError where NumPy does.
    """
    x[index]
    entries = list(index) if isinstance(index, tuple) else [index]
    wholes = [slice(None)] * (x.ndim - sum(map(axes_of, entries)))
    at = next((i for i, e in enumerate(entries) if e is ...), len(entries))
    entries = [*entries[:at], *wholes, *entries[at + 1 :]]
    rest: list[Any] = []
    axis = 0
    for entry in entries:
        if axes_of(entry) == 1 and not isinstance(entry, slice) and numpy.ndim(entry) == 0:
            place: Any = (*[slice(None)] * axis, int(entry), ...)
            x = x[place]
        else:
            rest.append(entry)
            axis += axes_of(entry)
    return x, tuple(rest)


def some_value(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """A number, or an array that broadcasts to `shape`."""
    if rng.random() < 0.3:
        return -7
    thin = tuple([1 if rng.random() < 0.3 else n for n in shape])
    thin = thin[1:] if rng.random() < 0.3 else thin
    return -1 - numpy.arange(int(numpy.prod(thin)), dtype=numpy.int32).reshape(thin)


@pytest.mark.parametrize("seed", range(4))
def test_random_indices(seed: int, target: str) -> None:
    for number in range(COUNTS.get(target, 60)):
        rng = random.Random(seed * 1000 + number)
        shape = rng.choice(SHAPES)
        x = numpy.arange(int(numpy.prod(shape)), dtype=numpy.int32).reshape(shape)
        index = some_index(rng, shape)
        what = f"seed {seed}, number {number}: shape {shape}, index {index}"
        try:
            view, rest = ints_first(x, index)
        except IndexError:
            with pytest.raises((IndexRangeError, ShapeError)):
                Tensor(x)[translated(rng, index)]
            continue
        expected = view[rest]
        found = Tensor(x)[translated(rng, index)]
        assert found.shape == expected.shape, what
        assert (found.numpy() == expected).all(), what

        value = some_value(rng, expected.shape)
        written = Tensor(x)
        view[rest] = value
        ours = Tensor(value) if isinstance(value, numpy.ndarray) else value
        written[translated(rng, index)] = ours
        assert (written.numpy() == x).all(), f"{what}, writing {value!r}"


PLACES = (torch.tensor([0, 1, 1]), torch.tensor([[1], [0]]), torch.tensor(1))
ENTRIES: list[Any] = [1, None, ..., slice(None), slice(1, None), *PLACES]
"""Entries that torch takes, which knows no backward slices."""


@pytest.mark.slow
def test_ints_beside_arrays_are_taken_first_as_in_torch() -> None:
    x = torch.arange(2 * 3 * 4 * 2).reshape(2, 3, 4, 2)
    cases = [index for n in (2, 3, 4) for index in itertools.product(ENTRIES, repeat=n)]
    chosen = random.Random(0).sample([c for c in cases if c.count(...) < 2], 40)
    for index in [*chosen, (1, slice(None), PLACES[0]), (None, PLACES[0], slice(None), 1)]:
        ours = tuple([Tensor(e.numpy()) if isinstance(e, torch.Tensor) else e for e in index])
        found, written = Tensor(x.numpy())[ours], Tensor(x.numpy())
        expected, changed = x[index], x.clone()

        assert found.shape == tuple(expected.shape), index
        assert found.tolist() == expected.tolist(), index

        written[ours], changed[index] = 0, 0
        assert written.tolist() == changed.tolist(), index


# --- gradients

MASK = numpy.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
FORMS: dict[str, Any] = {
    "int": 1,
    "int_int": (2, -1),
    "slice": slice(1, None),
    "step": (slice(None), slice(0, 4, 3)),
    "backwards": slice(None, None, -1),
    "backwards_by_two": (slice(None), slice(3, None, -2)),
    "empty": slice(2, 1),
    "dots": (..., 2),
    "new": (None, 1, None),
    "list": [0, 2, 2],
    "pairs": ([0, 1, 0], [1, 2, 1]),
    "grid": ([[0], [2]], [1, 1, -1]),
    "list_slice": ([2, 0], slice(1, 3)),
    "slice_list": (slice(0, 2), [3, 0, 0]),
    "int_list": (1, [3, 3]),
    "list_new_list": ([0, 1], None, [1, 2]),
    "mask": MASK,
    "mask_of_rows": MASK[:, 0],
    "mask_of_columns": (slice(None), MASK[2]),
    "mask_and_int": (MASK[:, 0], 2),
    "flag": (True, [0, 1]),
}


def listed(index: Any) -> Any:
    """The index with lists as arrays, which NumPy wants inside tuples."""
    if isinstance(index, tuple):
        return tuple([numpy.array(i) if isinstance(i, list) else i for i in index])
    return numpy.array(index) if isinstance(index, list) else index


EVERY = {"CPU:LLVM": 2, "CPU:CLANG": 4}
"""On targets that compile, every second or fourth form is enough."""


@pytest.mark.slow
def test_gradient_of_reading(target: str) -> None:
    x = numbers(3, 4)
    for name in list(FORMS)[:: EVERY.get(target, 1)]:
        index = listed(FORMS[name])
        weights = numbers(*x[index].shape, seed=1)
        expected = numpy.zeros_like(x)
        numpy.add.at(expected, index, weights)

        ours = Tensor(x, dtype=dtypes.float64)
        read = ours[FORMS[name]]
        (gradient,) = (read * Tensor(weights)).sum().gradient(ours)

        assert (read.numpy() == x[index]).all(), name
        numpy.testing.assert_allclose(gradient.numpy(), expected, 1e-12, err_msg=name)


@pytest.mark.slow
def test_gradient_of_writing(target: str) -> None:
    """Replaced elements get no gradient; the value written gets that of its place."""
    x, weights = numbers(3, 4), numbers(3, 4, seed=1)
    for name in list(FORMS)[:: EVERY.get(target, 1)]:
        index = listed(FORMS[name])
        value = numbers(*x[index].shape, seed=2)
        expected = weights.copy()
        expected[index] = 0

        base, written = Tensor(x, dtype=dtypes.float64), Tensor(value, dtype=dtypes.float64)
        ours = base * 1
        ours[FORMS[name]] = written
        gradients = (ours * Tensor(weights)).sum().gradient(base, written)

        numpy.testing.assert_allclose(gradients[0].numpy(), expected, 1e-12, err_msg=name)
        numpy.testing.assert_allclose(gradients[1].numpy(), weights[index], 1e-12, err_msg=name)


def test_gradient_of_a_broadcast_value() -> None:
    def write(x: Any, value: Any) -> Any:
        y = x * 1
        y[1:, [0, 2]] = value
        return y

    compare(write, write, numbers(3, 4), numbers(2))


# --- what is told at the call

MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "list_outside": ([0, 3], IndexRangeError, r"index: 3 is outside axis 0 of shape \(3, 4\)"),
    "list_below": ((0, [-5]), IndexRangeError, "index: -5 is outside axis 1"),
    "array_outside": ((slice(None), numpy.array([4])), IndexRangeError, "4 is outside axis 1"),
    "mask_shape": (numpy.ones(4, bool), IndexRangeError, r"mask of shape \(4,\).*\(3,\)"),
    "mask_after_dots": ((..., numpy.ones(3, bool)), IndexRangeError, r"mask of shape \(3,\)"),
    "too_many_by_a_mask": ((0, numpy.ones((3, 4), bool)), IndexRangeError, "3 entries for the 2"),
    "not_together": (([0, 1], [0, 1, 2]), ShapeError, r"index: shapes \(2,\) and \(3,\)"),
    "float": (1.5, ArgumentError, "1.5"),
    "float_array": (numpy.array([1.5]), DTypeError, "float64"),
    "ragged": ([[1], [2, 3]], ShapeError, "ragged"),
    "step_zero": (slice(0, 2, 0), ArgumentError, "zero"),
    "float_bound": (slice(0, 1.5), ArgumentError, r"slice\(0, 1.5, None\)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_at_the_call(name: str) -> None:
    index, error, text = MISTAKES[name]
    x = Tensor.zeros(3, 4)

    with pytest.raises(error, match=text):
        x[index]
    with pytest.raises(error, match=text):
        x[index] = 1


@pytest.mark.parametrize("value", [None, "text", {1: 2}], ids=repr)
def test_strange_values_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="setitem: value"):
        Tensor.zeros(3)[0] = value


def test_a_tensor_without_axes_is_not_iterable() -> None:
    with pytest.raises(TypeError, match="no axes"):
        iter(Tensor(1))
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert list(Tensor.zeros(0, 2)) == []


# --- single facts


def test_a_single_bool_is_a_new_axis_taken_once_or_never() -> None:
    x = Tensor([1, 2, 3])

    assert x[True].tolist() == [[1, 2, 3]]
    assert x[False].shape == (0, 3)
    assert x[Tensor(True), 1].tolist() == [2]
    x[False] = 9
    x[numpy.bool_(True)] = 5
    assert x.tolist() == [5, 5, 5]


def test_a_wide_index_out_of_range_reads_zero() -> None:
    places = Tensor([2**32, 1, -(2**32), 2**62], dtype=dtypes.int64)

    assert Tensor([1, 2, 3])[places].tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint64], ids=str)
def test_indices_of_every_integer_dtype(dtype: Any) -> None:
    x = numpy.arange(300)
    places = numpy.array([0, 100, 5]) if dtypes.is_unsigned(dtype) else numpy.array([-1, 100, -128])

    index = Tensor(places, dtype=dtype)

    assert Tensor(x)[index].tolist() == x[places].tolist()
    assert Tensor(x).gather(0, index).tolist() == x[places].tolist()


OVERLAPS: dict[str, Function] = {
    "down": lambda x: (slice(1, None), x[:-1]),
    "up": lambda x: (slice(None, -1), x[1:]),
    "reversed": lambda x: (slice(None), x[::-1]),
    "columns": lambda x: ((slice(None), slice(1, None)), x[:, :-1]),
    "swapped": lambda x: ([1, 0], x[:2]),
    "rows_from_one": lambda x: (slice(None), x[0]),
    "transposed_block": lambda x: ((slice(0, 3), slice(0, 3)), x[:3, :3].T),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_writing_a_part_of_itself(name: str) -> None:
    x = numpy.arange(12, dtype=numpy.int32).reshape(3, 4)
    ours = Tensor(x)

    index, value = OVERLAPS[name](ours)
    ours[index] = value
    index, value = OVERLAPS[name](x.copy())
    x[index] = value

    assert ours.tolist() == x.tolist()


def test_augmented_writes() -> None:
    x = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    ours = Tensor(x)
    both: list[tuple[Any, Any]] = [(x, x > 6), (ours, Tensor(x > 6))]

    for t, mask in both:
        t[0] += 1
        t[mask] *= 2
        t[[0, 0], 1] += 10
        t[:, ::2] -= t[:, 1::2]

    assert ours.tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["bool", "uint8", "int8", "int64", "float16", "float64"])
def test_every_dtype_is_read_and_written(kind: str) -> None:
    x = (numpy.arange(12) % 5).astype(kind).reshape(3, 4)
    ours, value = Tensor(x), x[0, ::-1]

    assert (ours[[2, 0], ::-2].numpy() == x[[2, 0], ::-2]).all()
    ours[1:, [3, 0]] = Tensor(value[:2])
    ours[0, ::2] = 1
    x[1:, [3, 0]] = value[:2]
    x[0, ::2] = 1

    assert ours.numpy().dtype == x.dtype
    assert (ours.numpy() == x).all()


def test_written_values_take_the_dtype_that_is_there() -> None:
    whole, halves, flags = Tensor([1, 2, 3]), Tensor([1.0, 2.0]), Tensor([False, False])

    whole[:2] = Tensor([2.9, -2.9])
    whole[2] = numpy.float32(7.5)
    halves[0] = True
    flags[1:] = [3]

    assert (whole.tolist(), halves.tolist(), flags.tolist()) == ([2, -2, 7], [1, 2], [False, True])


# --- along an axis

BESIDE: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "line": ((5,), 0, (7,)),
    "rows": ((3, 5), 0, (2, 4)),
    "columns": ((3, 5), 1, (3, 6)),
    "middle": ((2, 3, 4), 1, (1, 5, 3)),
    "last": ((2, 3, 4), -1, (2, 3, 4)),
    "one": ((1, 1), 0, (1, 1)),
    "none": ((3, 4), 1, (3, 0)),
    "of_none": ((0, 4), 1, (0, 2)),
}
"""Shape of the tensor, axis, shape of the index."""


def positions(name: str) -> Array:
    shape, dim, index = BESIDE[name]
    return numpy.random.default_rng(len(name)).integers(0, max(1, shape[dim]), index)


@pytest.mark.parametrize("name", BESIDE)
def test_gather_and_its_gradient(name: str) -> None:
    shape, dim, _ = BESIDE[name]
    index = positions(name)

    compare(
        lambda x: x.gather(dim, Tensor(index)),
        lambda x: x.gather(dim, torch.tensor(index)),
        numbers(*shape),
    )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("name", ["middle", "none", "of_none"])
def test_scatter_reduce_and_its_gradients(name: str, reduce: Any, include_self: bool) -> None:
    shape, dim, beside = BESIDE[name]
    index = positions(name)

    compare(
        lambda x, y: x.scatter_reduce(dim, Tensor(index), y, reduce, include_self),
        lambda x, y: x.scatter_reduce(
            dim, torch.tensor(index), y, reduce, include_self=include_self
        ),
        numbers(*shape),
        numbers(*beside, seed=1),
        dtypes_used=[dtypes.float32],
        scale=2,
    )


@pytest.mark.parametrize("kind", ["uint8", "int8", "int64", "float16"])
def test_scatter_reduce_of_other_dtypes(kind: str) -> None:
    rng = numpy.random.default_rng(3)
    x, y, index = rng.integers(0, 4, (3, 2)), rng.integers(0, 4, (5, 2)), rng.integers(0, 3, (5, 2))
    x, y = x.astype(kind), y.astype(kind)

    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        ours = Tensor(x).scatter_reduce(0, Tensor(index), Tensor(y), reduce)
        theirs = torch.tensor(x).scatter_reduce(0, torch.tensor(index), torch.tensor(y), reduce)
        assert ours.numpy().dtype == x.dtype
        assert ours.tolist() == theirs.tolist(), reduce


def test_scatter_of_distinct_places_and_its_gradients() -> None:
    index = numpy.random.default_rng(0).random((4, 3, 5)).argsort(1)[:3, :2]

    compare(
        lambda x, y: x.scatter(1, Tensor(index), y),
        lambda x, y: x.scatter(1, torch.tensor(index), y),
        numbers(4, 3, 5),
        numbers(3, 2, 5, seed=1),
    )


def test_gather_needs_an_axis() -> None:
    with pytest.raises(IndexRangeError, match="gather: axis 0 of a tensor with no axes"):
        Tensor(1.0).gather(0, Tensor(0))


def test_masked_select_and_its_gradient() -> None:
    compare(
        lambda x: x.masked_select(Tensor(MASK)),
        lambda x: x.masked_select(torch.tensor(MASK)),
        numbers(3, 4),
    )
    compare(
        lambda x: x.masked_select(Tensor(MASK[2])),
        lambda x: x.masked_select(torch.tensor(MASK[2])),
        numbers(3, 4),
    )
    assert Tensor.zeros(2).masked_select(Tensor([False, False])).shape == (0,)


def test_nonzero() -> None:
    assert Tensor(MASK).nonzero().tolist() == numpy.argwhere(MASK).tolist()
    assert Tensor(MASK).nonzero(2).tolist() == numpy.argwhere(MASK)[:2].tolist()
    assert Tensor([0.0, 0.5]).nonzero(2, -1).tolist() == [[1], [-1]]
    assert Tensor.zeros(0, 3).nonzero().shape == (0, 2)
    assert Tensor(2).nonzero().shape == (1, 0)


@pytest.mark.parametrize("shape", [(5,), (0,), (3, 4), (2, 0, 3), (), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 30])
def test_rows_of_a_given_number(shape: tuple[int, ...], size: int) -> None:
    random = numpy.random.default_rng(len(shape) * 100 + size)
    mask = random.random(shape) < 0.5
    numbers = random.integers(0, 100, shape).astype(numpy.int8)
    positions, picked = numpy.argwhere(mask)[:size], numbers[mask][:size]
    rows = numpy.full((size, mask.ndim), -1)
    rows[: len(positions)] = positions
    elements = numpy.full(size, -7, numpy.int8)
    elements[: len(picked)] = picked

    found = Tensor(numbers).masked_select(Tensor(mask), size=size, fill_value=-7)

    assert found.dtype is dtypes.int8
    assert found.tolist() == elements.tolist()
    assert Tensor(mask).nonzero(size, -1).tolist() == rows.tolist()


def test_rows_of_a_given_number_can_be_replayed() -> None:
    select = TinyJit(lambda x, m: x.masked_select(m, size=3, fill_value=-1).realize())
    positions = TinyJit(lambda x: x.nonzero(size=2, fill_value=-1).realize())
    for row in range(4):
        picked = [row + n for n in range(4) if n != row]
        mask = Tensor([n != row for n in range(4)])
        assert select(Tensor([row + n for n in range(4)]), mask).tolist() == picked
        assert positions(~mask).tolist() == [[row], [-1]]
    x = Tensor([1.0, 2.0, 3.0])
    assert x.masked_select(x > 1.5, size=4).sum().gradient(x)[0].tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3)], ids=str)
def test_one_hot(shape: tuple[int, ...]) -> None:
    labels = numpy.random.default_rng(0).integers(0, 4, shape)

    expected = torch.nn.functional.one_hot(torch.tensor(labels), 4)

    assert (Tensor(labels).one_hot(4).numpy() == expected.numpy()).all()


def test_one_hot_without_a_class() -> None:
    assert Tensor([0, 1]).one_hot(0).shape == (2, 0)
    assert Tensor([-1, 3]).one_hot(3).tolist() == [[0, 0, 0], [0, 0, 0]]
    with pytest.raises(ArgumentError, match="one_hot"):
        Tensor([0]).one_hot(-1)


def test_large_tables(target: str) -> None:
    rows, places = 40_000 if target != "PYTHON" else 400, 2_000 if target != "PYTHON" else 50
    rng = numpy.random.default_rng(0)
    x, index = rng.random((rows, 3), numpy.float32), rng.integers(-rows, rows, places)
    expected = numpy.zeros_like(x)
    numpy.add.at(expected, index, 1)

    ours = Tensor(x)
    (gradient,) = ours[Tensor(index)].sum().gradient(ours)

    assert (ours[Tensor(index)].numpy() == x[index]).all()
    assert (gradient.numpy() == expected).all()
