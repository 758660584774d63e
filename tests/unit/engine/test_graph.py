"""Captured steps as graphs: what is held, what changes, and what is run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from tinycore import Context, Device, GlobalCounters, Tensor, TinyJit
from tinycore.device.protocols import Launch
from tinycore.engine.graph import Alone, HeldLaunches, Part
from tinycore.errors import UnsupportedError

pytestmark = pytest.mark.device("CPU")


def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Four launches: intermediate results, and two that are returned."""
    a = (x + 1).contiguous()
    b = (a * y).contiguous()
    return (b.sum(0) + 0).contiguous(), (b - a).contiguous()


def arrays(seed: int) -> list[Any]:
    return [
        numpy.random.default_rng([seed, n]).standard_normal((4, 5)).astype(numpy.float32)
        for n in (0, 1)
    ]


def expected(x: Any, y: Any) -> tuple[Any, Any]:
    return ((x + 1) * y).sum(0), (x + 1) * y - (x + 1)


def captured(function: Any) -> TinyJit[Any, Any]:
    jitted = TinyJit(function)
    for seed in (0, 1):
        jitted(*map(Tensor, arrays(seed)))
    return jitted


@pytest.mark.parametrize("setting", [1, 2])
def test_replays_on_other_inputs(setting: int) -> None:
    jitted = captured(step)
    with Context(JIT=setting):
        kept = [(seed, jitted(*map(Tensor, arrays(seed)))) for seed in range(2, 6)]

    for seed, results in kept:  # no replay writes to the results of another
        for result, right in zip(results, expected(*arrays(seed)), strict=True):
            numpy.testing.assert_allclose(result.numpy(), right, 1e-5, 1e-6)


def parts(jitted: TinyJit[Any, Any]) -> list[Part]:
    """How a replay asks for its launches."""
    jitted(*map(Tensor, arrays(1)))
    assert jitted.captured is not None
    assert jitted.captured.graphs is not None
    return jitted.captured.graphs


def test_neighbors_are_held_as_one() -> None:
    jitted = captured(step)

    (part,) = parts(jitted)

    assert isinstance(part, HeldLaunches)
    assert jitted.captured is not None
    assert part.launches == len(jitted.captured.items) >= 2


def test_counters_count_every_kernel_of_a_graph() -> None:
    jitted = captured(step)
    inputs = [Tensor(a).realize() for a in arrays(3)]
    counts = []
    for setting in (1, 2):
        with Context(JIT=setting):
            GlobalCounters.reset()
            jitted(*inputs)
            counts.append((GlobalCounters.kernel_count, GlobalCounters.global_ops))

    assert counts[0] == counts[1]
    assert counts[0][0] >= 2


def test_copies_between_devices_that_wait_for_each_other_are_held_too() -> None:
    jitted = captured(lambda x, y: ((x + 1).contiguous().to("CPU:1") * y.to("CPU:1")).contiguous())

    (part,) = parts(jitted)

    assert isinstance(part, HeldLaunches)
    for seed in (7, 8):
        x, y = arrays(seed)
        result = jitted(Tensor(x), Tensor(y))
        numpy.testing.assert_allclose(result.numpy(), (x + 1) * y, 1e-6)


def test_a_copy_between_strangers_is_run_by_itself() -> None:
    jitted = captured(
        lambda x, y: ((x + 1).contiguous().to("PYTHON") * y.to("PYTHON")).contiguous()
    )
    assert jitted.captured is not None

    assert any(isinstance(part, Alone) for part in parts(jitted))
    x, y = arrays(7)
    result = jitted(Tensor(x), Tensor(y))
    numpy.testing.assert_allclose(result.numpy(), (x + 1) * y, 1e-6)


def test_what_a_device_cannot_hold_is_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(launches: Sequence[Launch]) -> None:
        raise UnsupportedError("too many")

    monkeypatch.setattr(Device["CPU"].runtime, "graph", refuse)
    jitted = captured(step)

    assert all(isinstance(part, Alone) for part in parts(jitted))
    x, y = arrays(9)
    numpy.testing.assert_allclose(jitted(Tensor(x), Tensor(y))[0].numpy(), expected(x, y)[0], 1e-5)


def test_state_that_a_step_updates_is_held() -> None:
    total = Tensor.zeros(3).contiguous().realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    for number in range(1, 6):
        result = add(Tensor([1.0, 2.0, 3.0]))
        assert result.tolist() == [2.0 * number, 4.0 * number, 6.0 * number]
    assert total.tolist() == [5, 10, 15]
