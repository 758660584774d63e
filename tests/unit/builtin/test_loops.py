"""Loops of the PYTHON device: those whose steps are done at once give what one by one gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy
import pytest

from tests.unit.builtin.test_interpreter import (
    at,
    buffer,
    end,
    linear,
    load,
    numbers,
    register,
    run,
    special,
    store,
    zeros,
)
from tinycore.builtin import interpreter
from tinycore.builtin.arithmetic import computed_as, fold_values, operation
from tinycore.builtin.frame import boxes
from tinycore.builtin.nest import Loop, nest_of
from tinycore.dtype import DType, dtypes
from tinycore.errors import DeviceError
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

F32 = dtypes.float32
ZERO = UOp.const(F32, 0.0)


def counter(size: UOp | int, number: int) -> UOp:
    return UOp.range(size, number, AxisKind.REDUCE)


def at_once(uops: tuple[UOp, ...]) -> list[UOp]:
    """The counters of loops whose steps are done at once."""

    def found(loop: Loop) -> list[UOp]:
        own = [] if loop.folds is None else [loop.counter]
        return sum((found(inner) for inner in loop.body if isinstance(inner, Loop)), own)

    return found(nest_of("kernel", uops))


def both_ways(monkeypatch: pytest.MonkeyPatch, launch: Callable[[], Any]) -> Any:
    """Result of a launch, which is the same with few values at once as with many."""
    whole = launch()
    for most in (1, 5, 24):
        monkeypatch.setattr(interpreter, "VALUES_AT_ONCE", most)
        assert numpy.array_equal(launch(), whole)
    return whole


# Folding


@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX])
@pytest.mark.parametrize(
    "dtype", [*dtypes.floats, dtypes.int8, dtypes.uint32], ids=lambda d: d.name
)
def test_values_are_folded_in_the_order_of_the_loops(dtype: DType, op: Op) -> None:
    generator = numpy.random.default_rng(0)
    function, kind = operation(op, dtype, dtype), computed_as(dtype)
    for steps, *threads in [(1, 1, 1), (1000, 1, 1), (300, 1, 2), (9, 2, 17), (129, 3, 1)]:
        values = (generator.standard_normal((steps, *threads)) * 3).astype(kind)
        before = generator.standard_normal((1, *threads)).astype(kind)
        with numpy.errstate(all="ignore"):
            expected = reduce(function, [before, *numpy.split(values, steps)])
            found = fold_values(function, before, values, steps)

        assert found.dtype == kind
        assert numpy.array_equal(found, expected, equal_nan=kind.kind == "f")


def test_a_fold_leaves_its_values_alone() -> None:
    values = numpy.ones((3, 2), numpy.float32)
    fold_values(numpy.add, numpy.ones((1, 2), numpy.float32), values, 3)

    assert (values == 1).all()


def test_a_value_that_is_the_same_in_all_steps_counts_each_time() -> None:
    one = numpy.ones((1, 4), numpy.float32)

    assert fold_values(numpy.add, one, one, 15).tolist() == [[16.0] * 4]


# Which loops are an axis


def sum_of_products() -> tuple[UOp, ...]:
    i, j, k = special("grid0", 3), counter(4, 1), counter(5, 2)
    total = at(register(), 0)
    value = load(at(buffer(1, 60), (i * 4 + j) * 5 + k)) * load(at(buffer(2, 5), k))
    step = store(total, load(total) + value)
    last = store(at(buffer(0, 3), i), load(total))
    return (
        *linear(i, store(total, ZERO), j, k, step),
        end(k, step),
        end(j, step),
        *linear(last),
    )


def test_a_sum_over_two_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch() -> Any:
        out = zeros(3)
        run(sum_of_products(), [out, numbers(60), numbers(5)])
        return out

    found = both_ways(monkeypatch, launch)

    assert [k.number for k in at_once(sum_of_products())] == [(2,)]
    assert found.tolist() == (numbers(60).reshape(3, 4, 5) * numbers(5)).sum((1, 2)).tolist()


def test_a_sum_down_the_columns_of_a_matrix() -> None:
    """The counter of the inner loop, whose steps are done at once, comes first in the address."""
    j, k, total = counter(4, 1), counter(5, 2), at(register(), 0)
    add = store(total, load(total) + load(at(buffer(1, 20), k * 4 + j)))
    last = store(at(buffer(0, 1), 0), load(total))
    uops = (*linear(store(total, ZERO), j, k, add), end(k, add), end(j, add), *linear(last))
    out = zeros(1)
    run(uops, [out, numbers(20)])

    assert out.tolist() == [sum(range(20))]


def greatest_sum() -> tuple[UOp, ...]:
    """The greatest row sum, and the last row sum, which stays in the register."""
    j, k = counter(4, 1), counter(5, 2)
    total, greatest = at(register(0), 0), at(register(1), 0)
    add = store(total, load(total) + load(at(buffer(1, 20), j * 5 + k)))
    step = store(greatest, load(greatest).alu(Op.MAX, load(total)))
    results = [store(at(buffer(0, 2), i), load(r)) for i, r in enumerate([greatest, total])]
    return (
        *linear(store(greatest, ZERO), j, store(total, ZERO), k, add),
        end(k, add),
        *linear(step),
        end(j, step),
        *linear(*results),
    )


def test_a_register_that_each_step_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = numpy.array([[1, 2, 3, 4, 5], [9, 9, 9, 9, 9], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1]])

    def launch() -> Any:
        out = zeros(2)
        run(greatest_sum(), [out, rows.astype(numpy.float32)])
        return out

    assert [k.number for k in at_once(greatest_sum())] == [(2,)]
    assert both_ways(monkeypatch, launch).tolist() == [45, 5]


def test_what_goes_on_in_a_register_goes_step_by_step() -> None:
    """A recurrence: each step needs the one before."""
    k, total = counter(6, 1), at(register(), 0)
    step = store(total, load(total) * 2.0 + load(at(buffer(1, 6), k)))
    last = store(at(buffer(0, 1), 0), load(total))
    uops = (*linear(store(total, ZERO), k, step), end(k, step), *linear(last))
    out = zeros(1)
    run(uops, [out, numbers(6)])

    assert at_once(uops) == []
    assert out.tolist() == [sum(x * 2 ** (5 - x) for x in range(6))]


def test_a_register_read_between_its_sums_goes_step_by_step() -> None:
    """Cumulative sums: what was added so far is stored in each step."""
    k, total = counter(5, 1), at(register(), 0)
    so_far = load(total) + load(at(buffer(1, 5), k))
    step, keep = store(total, so_far), store(at(buffer(0, 5), k), so_far)
    uops = (*linear(store(total, ZERO), k, step, keep), end(k, keep))
    out = zeros(5)
    run(uops, [out, numbers(5)])

    assert at_once(uops) == []
    assert out.tolist() == [0, 1, 3, 6, 10]


def test_an_inner_loop_is_an_axis_though_the_outer_one_is_none() -> None:
    j, k, total = counter(3, 1), counter(4, 2), at(register(), 0)
    add = store(total, load(total) + load(at(buffer(1, 12), j * 4 + k)))
    keep = store(at(buffer(0, 3), j), load(total))
    uops = (
        *linear(j, store(total, ZERO), k, add),
        end(k, add),
        *(u for u in linear(keep) if u is not j),
        end(j, keep),
    )
    out = zeros(3)
    run(uops, [out, numbers(12)])

    assert at_once(uops) == [k]
    assert out.tolist() == [6, 22, 38]


def test_a_loop_whose_end_is_given_at_launch() -> None:
    size, total = UOp.variable("size", 0, 9), at(register(), 0)
    k = counter(size, 1)
    add = store(total, load(total) + load(at(buffer(1, 9), k)))
    last = store(at(buffer(0, 1), 0), load(total))
    uops = (*linear(store(total, ZERO), k, add), end(k, add), *linear(last))

    assert at_once(uops) == [k]
    for length in (0, 1, 9):
        out = zeros(1)
        run(uops, [out, numbers(9)], [length])
        assert out.tolist() == [sum(range(length))]


def test_a_sum_inside_a_loop_that_differs_between_threads() -> None:
    i, total = special("grid0", 4), at(register(), 0)
    j, k = counter(i, 1), counter(3, 2)
    add = store(total, load(total) + load(at(buffer(1, 9), j * 3 + k)))
    last = store(at(buffer(0, 4), i), load(total))
    uops = (
        *linear(i, store(total, ZERO), j, k, add),
        end(k, add),
        end(j, add),
        *linear(last),
    )
    out = zeros(4)
    run(uops, [out, numbers(9)])

    assert at_once(uops) == [k]
    assert out.tolist() == [0, 3, 15, 36]  # and no thread reads past the ninth element


# Memory inside loops


def test_a_gated_load_in_a_loop() -> None:
    i, k, total = special("grid0", 4), counter(3, 1), at(register(), 0)
    position = i + k - 1
    gate = (position >= 0) & (position < 4)
    value = load(at(buffer(1, 4), position, gate), other=UOp.const(F32, 100.0))
    add = store(total, load(total) + value)
    last = store(at(buffer(0, 4), i), load(total))
    out = zeros(4)
    run(
        (*linear(i, store(total, ZERO), k, add), end(k, add), *linear(last)),
        [out, numbers(4)],
    )

    assert out.tolist() == [101, 3, 6, 105]


def test_memory_read_backwards() -> None:
    i, j = special("grid0", 3), special("grid1", 2)
    position = i * -2 + j + 4
    out = zeros(6)
    run(
        linear(store(at(buffer(0, 6), j * 3 + i), load(at(buffer(1, 6), position)))),
        [out, numbers(6)],
    )

    assert out.tolist() == [4, 2, 0, 5, 3, 1]


def test_of_threads_that_store_at_one_place_the_last_one_wins() -> None:
    i, j = special("grid0", 3), special("grid1", 2)
    out = zeros(2, numpy.int64)
    run(
        linear(store(at(buffer(0, 2, dtypes.int64), j), (i * 10 + j).cast(dtypes.int64))),
        [out],
    )

    assert out.tolist() == [20, 21]


def test_a_load_outside_names_the_first_thread_of_each_axis() -> None:
    i, j, k = special("grid0", 3), special("grid1", 4), counter(2, 1)
    total = at(register(), 0)
    add = store(total, load(total) + load(at(buffer(1, 6), j * 2 + k)))
    last = store(at(buffer(0, 12), j * 3 + i), load(total))
    uops = (*linear(i, j, store(total, ZERO), k, add), end(k, add), *linear(last))

    with pytest.raises(DeviceError) as raised:
        run(uops, [zeros(12), numbers(6)])
    assert str(raised.value) == (
        "kernel kernel reads buffer 1 at index 6, outside its 6 elements, grid (0, 3, 0)"
    )


def test_a_register_is_set_before_it_is_added_to() -> None:
    k, total = counter(2, 1), at(register(3), 0)
    add = store(total, load(total) + load(at(buffer(0, 2), k)))

    with pytest.raises(DeviceError, match="kernel reads register 3 before it is written"):
        run((*linear(k, add), end(k, add)), [zeros(2)])


# Pieces


@pytest.mark.parametrize("most", [0, 1, 3, 4, 6, 7, 23, 24, 100])
def test_boxes_cover_a_shape_once(most: int) -> None:
    seen = numpy.zeros((2, 3, 4), int)
    for box in boxes((2, 3, 4), most):
        seen[tuple(slice(start, start + length) for start, length in box)] += 1
        assert math.prod(length for _, length in box) <= max(most, 1)

    assert (seen == 1).all()
