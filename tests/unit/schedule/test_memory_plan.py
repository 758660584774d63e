"""Memory of intermediate results: in one block, never two that live at once in the same bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinycore import Context, GlobalCounters, Tensor, TinyJit, nn
from tinycore._lru import Lru
from tinycore.engine import engine
from tinycore.schedule import compiled
from tinycore.schedule.compiled import Schedule
from tinycore.schedule.memory_plan import ALIGNMENT, Layout, Life, pack, peak_bytes

BOUND = 1.1
"""Largest ratio of a block to the most bytes that live at once."""


@st.composite
def schedules(draw: st.DrawFn) -> list[Life]:
    spans = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 5000))
    return [Life(size, first, first + more) for first, more, size in draw(st.lists(spans))]


@given(schedules())
def test_values_that_live_at_once_share_no_bytes(lives: list[Life]) -> None:
    found = pack(lives)

    for number, (a, start) in enumerate(zip(lives, found.offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.size_bytes <= found.size_bytes
        for b, other in list(zip(lives, found.offsets, strict=True))[:number]:
            apart = start + a.size_bytes <= other or other + b.size_bytes <= start
            assert apart or a.last < b.first or b.last < a.first


@given(schedules())
def test_a_block_is_no_smaller_than_what_lives_at_once(lives: list[Life]) -> None:
    assert pack(lives).size_bytes >= peak_bytes(lives)


def test_a_chain_of_values_takes_two_places() -> None:
    lives = [Life(1000, step, step + 1) for step in range(50)]

    assert pack(lives).size_bytes == peak_bytes(lives) == 2 * 1024


def test_the_smallest_gap_that_fits_is_taken() -> None:
    ends = [Life(4096, 0, 9), Life(1024, 0, 1), Life(4096, 0, 9), Life(512, 0, 1), Life(4096, 0, 9)]
    found = pack([*ends, Life(512, 5, 6)])

    assert found.size_bytes == peak_bytes(ends)


# Whole steps


def mlp_step() -> Callable[[], Tensor]:
    layers = [nn.Linear(64, 96), nn.Linear(96, 96), nn.Linear(96, 10)]
    x = Tensor.rand(16, 64).realize()

    def logits() -> Tensor:
        return layers[2](layers[1](layers[0](x).relu()).relu())

    return training(layers, logits)


def cnn_step() -> Callable[[], Tensor]:
    first, second, last = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.Linear(8, 10)
    x = Tensor.rand(2, 1, 12, 12).realize()

    def logits() -> Tensor:
        seen = second(first(x).relu().max_pool2d()).relu()
        return last(seen.mean((2, 3)))

    return training([first, second, last], logits)


def training(layers: object, logits: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step of training, its weights being there."""
    parameters = nn.state.get_parameters(layers)
    optimizer = nn.optim.Adam(parameters, lr=1e-3)
    target = Tensor([1, 2] * 8)[: logits().shape[0]].contiguous()
    Tensor.realize(target, *parameters)

    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = logits().sparse_categorical_crossentropy(target)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    return step


def transformer_forward() -> Callable[[], Tensor]:
    layers = [[nn.Linear(32, 32) for _ in range(3)] for _ in range(2)]
    norms = [nn.LayerNorm(32) for _ in range(2)]
    wide, narrow = nn.Linear(32, 64), nn.Linear(64, 32)
    start = Tensor.rand(2, 16, 32)
    Tensor.realize(start, *nn.state.get_parameters([layers, norms, wide, narrow]))

    def forward() -> Tensor:
        x = start
        for projections, norm in zip(layers, norms, strict=True):
            q, k, v = (p(x).reshape(2, 16, 4, 8).transpose(1, 2) for p in projections)
            mixed = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(2, 16, 32)
            x = norm(x + mixed)
            x = x + narrow(wide(x).gelu())
        return x.realize()

    return forward


@pytest.mark.sample(9)
@pytest.mark.parametrize("program", [mlp_step, cnn_step, transformer_forward])
def test_blocks_are_hardly_larger_than_what_lives_at_once(
    program: Callable[[], Callable[[], Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "run_schedule", lambda *_: [])  # where values lie is known before
    step = program()
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    step()
    found = compiled.schedules.values()
    blocks = [b for r in found for layout in r.layouts.values() for b in layout.blocks]

    assert sum(len(block.places) for block in blocks) >= 4
    for block in blocks:
        assert block.size_bytes <= BOUND * block.live_bytes


def apart(schedule: Schedule, others: object, form: object) -> Layout:
    """The layout of those who want all memory on its own."""
    new = tuple(range(schedule.parameters, len(schedule.memory)))
    return Layout(schedule.results, {}, new, ())


def test_results_are_those_of_memory_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor([[0.5, 1.5, -2.0], [3.0, 0.25, 1.0], [1.0, -1.0, 2.0]], device="PYTHON").realize()

    def result() -> list[float]:
        y = ((x @ x).softmax() @ x).contiguous()
        z = (y.exp().contiguous().sum(0) * y.max(1)).contiguous()
        return ((z.sum() + y) @ x).flatten().tolist()  # type: ignore[no-any-return]

    together = result()
    monkeypatch.setattr(Schedule, "layout", apart)

    assert result() == together


def test_intermediate_results_are_freed_with_the_step() -> None:
    x = Tensor.rand(64, 64).realize()
    gc.collect()
    before = GlobalCounters.mem_used
    y = ((x @ x).softmax() @ x).realize()
    gc.collect()

    assert GlobalCounters.mem_used - before == y.nbytes()


def test_the_peak_is_counted_until_it_is_reset() -> None:
    x = Tensor.rand(64, 64).realize()
    gc.collect()
    GlobalCounters.reset()
    before = GlobalCounters.mem_used
    y = (x @ x).contiguous().transpose(0, 1).softmax().realize()
    gc.collect()

    assert GlobalCounters.mem_peak > GlobalCounters.mem_used == before + y.nbytes()
    GlobalCounters.reset()
    assert GlobalCounters.mem_peak == GlobalCounters.mem_used


def test_the_first_call_of_a_captured_function_frees_what_it_computed_on_its_way() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x + 1).realize()
        return x

    x = Tensor.zeros(1024).contiguous().realize()
    gc.collect()
    GlobalCounters.reset()
    before = GlobalCounters.mem_used

    assert step(x)[0].item() == 10
    assert GlobalCounters.mem_peak - before <= 3 * x.nbytes()
    assert [step(x)[0].item() for _ in range(3)] == [10, 10, 10]


def test_a_call_that_is_captured_holds_no_intermediates_of_its_runs() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x.cumsum(0).flip(0).cumsum(0) / 2**21 - x).realize()
        return x

    x = Tensor.zeros(2048).contiguous().realize()
    step(x)
    gc.collect()
    GlobalCounters.reset()
    before = GlobalCounters.mem_used

    assert step(x)[0].item() == 0
    assert GlobalCounters.mem_peak - before < 16 * x.nbytes()  # 31 if all were held
    y = Tensor.arange(2048).contiguous().realize() % 2
    assert step.fxn is not None
    assert step(y).tolist() == (plain := step.fxn(y)).tolist()
    assert 0 < abs(plain[0].item()) < 1000


def test_a_result_that_a_living_tensor_is_made_of_is_not_packed() -> None:
    for _ in range(2):
        x = Tensor([1.0, 2.0, 3.0]).realize()
        middle = (x * 2).contiguous().detach()
        also = middle + 1
        total = (middle.sum() * 3).contiguous() + 1
        total.realize()
        (x * 5).contiguous().sum().realize()  # what would overwrite it
        assert (total.item(), also.tolist()) == (37.0, [3.0, 5.0, 7.0])


def test_debug_says_what_was_packed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Tensor.rand(32, 32, device="PYTHON").realize()
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    with Context(DEBUG=1):
        ((x @ x).softmax() @ x).realize()

    assert "live at once" in capsys.readouterr().err


# Captured steps


def test_a_captured_step_packs_what_its_schedules_pass_on() -> None:
    weights = [Tensor.rand(16, 16).realize() for _ in range(6)]

    def chain(x: Tensor) -> Tensor:
        for weight in weights:
            x = (x @ weight).relu().realize()
        return x

    step = TinyJit(chain)
    inputs = [Tensor.rand(16, 16).realize() for _ in range(4)]
    results = [step(x).tolist() for x in inputs]
    gc.collect()

    assert results == [chain(x).tolist() for x in inputs]
    captured = step.captured
    assert captured is not None
    used = {b.base for item in captured.items for b in item.bufs if b.base is not None}
    assert len(used) == 1
    assert next(iter(used)).nbytes == 2 * 16 * 16 * 4


def test_state_made_inside_a_captured_step_is_not_packed() -> None:
    kept: dict[str, Tensor] = {}

    @TinyJit
    def step(x: Tensor) -> Tensor:
        kept["last"] = (x * 2).realize()
        return ((kept["last"] + 1).realize() * 3).realize()

    results = [step(Tensor([float(i)]).realize()).item() for i in range(4)]

    assert results == [3.0, 9.0, 15.0, 21.0]


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
