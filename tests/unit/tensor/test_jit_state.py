"""TinyJit and memory that outlives a call: what replays may not exchange, and settings."""

from __future__ import annotations

import pickle
import signal
import weakref
from collections.abc import Callable

import pytest

from tinycore import Context, Tensor, TinyJit
from tinycore.device.buffer import Buffer
from tinycore.engine import captured_step
from tinycore.engine.device_graph import Alone, HeldLaunches, Single
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor.aliases import buffers_below


def host(*values: float) -> Tensor:
    return Tensor([float(v) for v in values]).realize()


def five_calls(make: Callable[[], Callable[[Tensor], Tensor]]) -> list[list[float]]:
    step = make()
    return [step(host(i + 1.0)).tolist() for i in range(5)]


def accumulator() -> Callable[[Tensor], Tensor]:
    state = host(0)
    return lambda x: state.assign(state + x).realize()


def overwritten() -> Callable[[Tensor], Tensor]:
    state = host(0)
    return lambda x: state.assign(x * 2).realize()


def slice_assigned() -> Callable[[Tensor], Tensor]:
    state = host(0, 0, 0)

    def step(x: Tensor) -> Tensor:
        state[1:2] = x
        return state.realize()

    return step


@pytest.mark.parametrize("make", [accumulator, overwritten, slice_assigned])
def test_returned_state_is_the_same_with_and_without_jit(
    make: Callable[[], Callable[[Tensor], Tensor]],
) -> None:
    captured = five_calls(lambda: TinyJit(make()))

    assert captured == five_calls(make)


def test_state_that_is_returned_is_seen_outside() -> None:
    state = host(0)
    step = TinyJit(lambda x: state.assign(x * 2).realize())
    for i in range(5):
        step(host(i))

    assert state.tolist() == [8.0]


@pytest.mark.parametrize("view", [lambda w: w[:1], lambda w: w.reshape(2, 1), lambda w: w.detach()])
def test_views_of_state_that_the_caller_holds_for_a_while_leave_the_capture_as_it_is(
    view: Callable[[Tensor], Tensor],
) -> None:
    state = host(0, 0)
    step = TinyJit(lambda x: state.assign(state + x).realize())
    found = []
    for number in range(20):
        held = view(state)
        step(host(1, 2))
        assert held.reshape(-1).tolist()[0] == number + 1
        found.append(step.captured)
        del held

    assert len({*found[1:]}) == 1


def test_other_setting_of_training_has_a_capture_of_its_own() -> None:
    step = TinyJit(lambda x: x.dropout(0.5) + 0)
    ones = Tensor.ones(64).contiguous().realize()

    for _ in range(3):
        with Context(TRAINING=1):
            assert set(step(ones).tolist()) == {0.0, 2.0}
        assert set(step(ones).tolist()) == {1.0}


def test_pruned_replays_leave_out_what_no_argument_changes() -> None:
    weight = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        product = (weight @ weight).contiguous()  # which no device fuses with what reads it
        table = (weight * 5).realize()
        noise = Tensor.rand(2)
        return x * product[0] + table[0], noise

    plain, pruned = TinyJit(step), TinyJit(step, prune=True)
    found = [(plain(host(i, 1)), pruned(host(i, 1))) for i in range(4)]

    assert [a.tolist() for (a, _), _ in found] == [a.tolist() for _, (a, _) in found]
    assert [a.tolist() for _, (a, _) in found] == [[5.0 + 7 * i, 20.0] for i in range(4)]
    assert len({tuple(noise.tolist()) for _, (_, noise) in found}) == 4
    assert plain.captured is not None
    assert pruned.captured is not None
    assert len(pruned.captured.items) == len(plain.captured.items) - 2


def test_pruned_replays_still_write_to_memory_and_give_new_results() -> None:
    total, weight = host(0, 0), host(1, 2)

    def add(x: Tensor) -> Tensor:
        total.assign(total + x * (weight * 2))
        return (weight * 3).contiguous()

    step = TinyJit(add, prune=True)
    results = [step(host(i, 1)) for i in range(4)]
    results[-1].assign(host(0, 0)).realize()

    assert total.tolist() == [12.0, 16.0]
    assert [step(host(0, 0)).tolist() for _ in range(2)] == [[3.0, 6.0]] * 2


def test_a_pruned_capture_takes_what_it_left_out_to_another_process() -> None:
    weight = host(1, 2)
    step = TinyJit(lambda x: x + (weight * 5).realize(), prune=True)
    for i in range(3):
        step(host(i, i))

    again = pickle.loads(pickle.dumps(step))

    assert again(host(7, 7)).tolist() == [12.0, 17.0]


def test_a_captured_call_keeps_no_memory_of_gradients_that_it_drops() -> None:
    weight = Tensor.ones(8, 8).contiguous().realize().requires_grad_()
    dropped: list[weakref.ref[Buffer]] = []
    alive: list[bool] = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        alive.extend(reference() is not None for reference in dropped)
        return (x @ weight).square().sum().backward()

    for _ in range(2):
        step(Tensor.ones(2, 8).contiguous().realize())
        assert weight.grad is not None
        dropped[:] = [weakref.ref(buffer_of(buffers_below(weight.grad.uop)[0]))]

    assert alive == [False]


# --- interrupts of long steps


@pytest.mark.parametrize(("copied_bytes", "most"), [(1 << 30, 9), (1 << 30, 1), (0, 9)])
@pytest.mark.parametrize("place", range(6))
def test_an_interrupted_replay_leaves_the_state_as_it_was_or_is_complete(
    monkeypatch: pytest.MonkeyPatch, copied_bytes: int, most: int, place: int
) -> None:
    """Also where a part of the memory is copied alone, or none."""
    cheap = captured_step.CapturedStep.cheap_copies
    monkeypatch.setattr(captured_step.CapturedStep, "cheap_copies", lambda step: cheap(step)[:most])
    monkeypatch.setattr(captured_step, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(captured_step, "PIECE_SECONDS", 0.0)
    monkeypatch.setattr(captured_step, "COPIED_BYTES_PER_SECOND", copied_bytes * 1e6)
    count, total, weight = host(0), host(0), host(2)
    weight.requires_grad = True

    def run(x: Tensor) -> Tensor:
        weight.grad = None
        y = (x * 3).realize()
        count.assign(count + 1).realize()
        (weight * y.detach()).sum().backward()
        total.assign(total + y).realize()
        return y + 1

    step = TinyJit(run)
    for number in range(4):
        step(host(number))
    assert step.captured is not None
    assert step.captured.is_long

    def state() -> tuple[object, ...]:
        assert weight.grad is not None
        return count.item(), total.item(), weight.grad.item()

    before = state()
    began = 0

    def interrupted(graph_part: type, *arguments: object) -> None:
        nonlocal began
        began += 1
        if began == place:
            signal.raise_signal(signal.SIGINT)

    for kind in (Alone, Single, HeldLaunches):
        right = kind.run

        def run_and_count(
            part: Alone, *arguments: object, right: Callable[..., None] = right
        ) -> None:
            right(part, *arguments)
            interrupted(type(part))

        monkeypatch.setattr(kind, "run", run_and_count)

    is_interrupted = False
    try:
        step(host(9))
    except KeyboardInterrupt:
        is_interrupted = True
    began, after = place, state()

    complete = (before[0] + 1, before[1] + 27, 27.0)  # type: ignore[operator]
    if is_interrupted and copied_bytes and most > 1:
        assert after == before
    else:
        assert after in (before, complete) if is_interrupted else after == complete
    step(host(9))
    assert count.item() == after[0] + 1  # type: ignore[operator]
