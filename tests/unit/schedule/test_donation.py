"""Results over what their kernel reads for the last time: where that is done, where it is not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.schedule.test_memory_plan import apart, training
from tinycore import Context, GlobalCounters, Tensor, TinyJit, dtypes, nn
from tinycore._lru import Lru
from tinycore.engine import engine
from tinycore.schedule import compiled, memory_plan, pipeline
from tinycore.schedule.compiled import Schedule
from tinycore.schedule.fusion_search import fuse_rows
from tinycore.schedule.memory_plan import Block

SIDE = 32
on_loops = pytest.mark.device("CPU")
"""Whoever runs no loops has no rows whose vectors come out even."""


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any size are made smaller, no strips pass values on, nothing was laid out yet."""
    monkeypatch.setattr(memory_plan, "LEAST_LIVE_BYTES", 0)
    monkeypatch.setattr(pipeline, "fuse_rows", lambda memory: memory.launches)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))


def square() -> Tensor:
    return Tensor(numpy.linspace(-2, 2, SIDE * SIDE, dtype=numpy.float32).reshape(SIDE, SIDE))


def blocks() -> list[Block]:
    layouts = [layout for r in compiled.schedules.values() for layout in r.layouts.values()]
    return [block for layout in layouts for block in layout.blocks]


def overwritten(program: Callable[[Tensor], Tensor]) -> int:
    """Number of results that overwrite; the values are those of memory on its own."""
    x = square().realize()
    compiled.schedules.clear()
    found = program(x).numpy()
    count = sum(len(block.reuses) for block in blocks())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schedule, "layout", apart)
        expected = program(x).numpy()
    numpy.testing.assert_array_equal(found, expected)
    return count


# Where it is done


def chain(x: Tensor) -> Tensor:
    """Products, each added to what the one before left."""
    y = (x * 3).contiguous()
    for number in range(3):
        y = (y + x @ (x + number)).contiguous()
    return y.sum(0)


@pytest.mark.slow
@on_loops
def test_a_chain_of_values_takes_one_place() -> None:
    assert overwritten(chain) == 3
    (block,) = [b for b in blocks() if b.reuses]
    assert block.size_bytes == SIDE * SIDE * 4
    assert len(block.places) == 1
    assert len(block.holder) == 3


@on_loops
def test_a_kernel_has_one_parameter_for_both() -> None:
    x = square().realize()
    compiled.schedules.clear()
    chain(x).realize()
    (layout,) = [one for r in compiled.schedules.values() for one in r.layouts.values()]
    (schedule,) = compiled.schedules.values()
    (block,) = layout.blocks

    for number, dying, made in block.reuses:
        before, after = schedule.steps[number], layout.steps[number]
        assert {dying, made} <= set(before.places)
        assert set(after.places) == set(before.places) - {dying}
        assert after.kernel.arg.slots == before.kernel.arg.slots - 1


@on_loops
def test_only_what_makes_the_block_smaller_overwrites() -> None:
    def turned(x: Tensor) -> Tensor:
        return chain(x)[0] + (x @ x).contiguous().transpose(0, 1).contiguous().sum(0)

    def wide(x: Tensor) -> Tensor:
        y = (x * 3).contiguous()
        y = (y + x @ x).contiguous()
        return y.transpose(0, 1).contiguous().sum(0)  # two such values live at once here anyway

    overwritten(turned)
    assert overwritten(wide) == 0


@on_loops
def test_peak_memory_goes_down() -> None:
    def peak() -> int:
        x = square().realize()
        compiled.schedules.clear()
        gc.collect()
        GlobalCounters.reset()
        before = GlobalCounters.mem_used
        chain(x).realize()
        return GlobalCounters.mem_peak - before

    lower = peak()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "LEAST_LIVE_BYTES", 1 << 40)
        higher = peak()
    assert higher - lower == SIDE * SIDE * 4


@pytest.mark.slow
@on_loops
def test_training_takes_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run_schedule", lambda *_: [])
    monkeypatch.setattr(pipeline, "fuse_rows", fuse_rows)
    first, second, last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3), nn.Linear(16, 10)
    x = Tensor.rand(4, 1, 24, 24).realize()
    step = training(
        [first, second, last],
        lambda: last(second(first(x).relu().max_pool2d()).relu().mean((2, 3))),
    )
    compiled.schedules.clear()
    step()
    lower = max(block.size_bytes for block in blocks())
    compiled.schedules.clear()
    monkeypatch.setattr(memory_plan, "LEAST_LIVE_BYTES", 1 << 40)
    step()

    assert lower < 0.95 * max(block.size_bytes for block in blocks())


@on_loops
def test_a_captured_step_keeps_them() -> None:
    step = TinyJit(lambda x: (chain(x) * x).realize())
    inputs = [(square() * number).realize() for number in range(5)]
    results = [step(x).numpy() for x in inputs]
    captured = step.captured
    assert captured is not None
    used = {b.base for item in captured.items for b in item.bufs if b.base is not None}

    assert any(block.reuses for block in blocks())
    assert sum(b.nbytes for b in used) < 2 * SIDE * SIDE * 4
    for x, found in zip(inputs, results, strict=True):
        numpy.testing.assert_array_equal(found, (chain(x) * x).numpy())


@on_loops
def test_debug_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    x = square().realize()
    with Context(DEBUG=1):
        chain(x).realize()

    assert "3 in place of another" in capsys.readouterr().err


# Where it is not


@pytest.mark.parametrize(
    "read",
    [
        lambda y, x: y.roll(1, 0) + x @ x,
        lambda y, x: y.transpose(0, 1) + x @ x,
        lambda y, x: y[1:].pad(((1, 0), (0, 0))) + x @ x,
        lambda y, x: y + y.flip(0) + x @ x,
        lambda y, x: y @ x,
        lambda y, x: y.cast(dtypes.int32) + (x @ x).cast(dtypes.int32),
        lambda y, x: (y + x @ x).cumsum(0),
    ],
    ids=["shifted", "turned", "padded", "twice", "folded", "cast", "scanned"],
)
def test_not_where_more_than_the_element_is_read(
    read: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def program(x: Tensor) -> Tensor:
        return read((x * 3).contiguous(), x).contiguous().sum(0)

    assert overwritten(program) == 0


def test_not_where_it_is_read_later() -> None:
    def later(x: Tensor) -> Tensor:
        y = (x * 2).contiguous()
        z = (y + x @ x).contiguous()
        return (z @ y).sum(0)

    assert overwritten(later) == 0


def test_not_where_a_tensor_shows_it() -> None:
    x = Tensor(numpy.arange(SIDE * SIDE, dtype=numpy.int32).reshape(SIDE, SIDE) % 7).realize()

    compiled.schedules.clear()
    middle = (x * 2).contiguous()
    total = (middle + x @ x).contiguous().sum(0).numpy()

    assert sum(len(block.reuses) for block in blocks()) == 0
    numpy.testing.assert_array_equal(middle.numpy(), x.numpy() * 2)
    numpy.testing.assert_array_equal(total, (x.numpy() * 2 + x.numpy() @ x.numpy()).sum(0))


def test_not_where_the_result_is_asked_for() -> None:
    x = square().realize()
    compiled.schedules.clear()
    ((x * 2).contiguous() + x @ x).realize()

    assert sum(len(block.reuses) for block in blocks()) == 0


def test_not_in_memory_that_was_there_before() -> None:
    x, state = square().realize(), (square() * 5).realize()
    before = state.numpy().copy()
    (state + x @ x).contiguous().sum(0).realize()

    numpy.testing.assert_array_equal(state.numpy(), before)


def test_not_where_vectors_would_overlap() -> None:
    x = Tensor(numpy.ones((31, 31), dtype=numpy.float32)).realize()
    compiled.schedules.clear()
    found = chain(x).numpy()

    numpy.testing.assert_array_equal(found, numpy.full(31, 31 * (3 + 31 * (1 + 2 + 3))))
    if str(Tensor([1.0]).device).startswith("CPU"):
        assert sum(len(block.reuses) for block in blocks()) == 0


# Any graph

CHANGES: Final[dict[str, Callable[[Any], Any]]] = {
    "double": lambda x: x * 2,
    "negate": lambda x: 1 - x,
    "turn": lambda x: x.transpose(1, 0),
    "sum": lambda x: x.sum(0) + x,
    "product": lambda x: x @ x,
    "shift": lambda x: x[::-1] + x,
}


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Steps: what to do with which two of the values so far."""
    steps = st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 3), st.integers(0, 3))
    return draw(st.lists(steps, min_size=2, max_size=8))


@settings(max_examples=20, deadline=None)
@given(programs(), st.sampled_from([4, 16, 5]))
@pytest.mark.slow
@pytest.mark.device("CPU:LLVM")
def test_any_chain_is_that_of_numpy(program: list[tuple[str, int, int]], side: int) -> None:
    start = (numpy.arange(side * side, dtype=numpy.float32) % 7 - 3).reshape(side, side)
    expected, found = [start], [Tensor(start).realize()]
    for name, first, second in program:
        a, b = (-1 - number % len(found) for number in (first, second))
        change = CHANGES[name]
        expected.append((change(expected[a]) + expected[b]).clip(-9, 9))
        found.append((change(found[a]) + found[b]).clip(-9, 9).contiguous())
    last = found[-1]
    found.clear()
    numpy.testing.assert_array_equal(last.numpy(), expected[-1])
