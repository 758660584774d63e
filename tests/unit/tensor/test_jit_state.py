"""TinyJit and memory that outlives a call: what replays may not exchange, and settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinycore import Context, Tensor, TinyJit


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


def test_other_setting_of_training_has_a_capture_of_its_own() -> None:
    step = TinyJit(lambda x: x.dropout(0.5) + 0)
    ones = Tensor.ones(64).contiguous().realize()

    for _ in range(3):
        with Context(TRAINING=1):
            assert set(step(ones).tolist()) == {0.0, 2.0}
        assert set(step(ones).tolist()) == {1.0}
