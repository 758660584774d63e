"""Captured steps as graphs: what is held, what changes, and what is run one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from tinycore import Context, Device, GlobalCounters, Tensor, TinyJit, Variable
from tinycore.device.protocols import Graph, Handle, Launch
from tinycore.engine.device_graph import Alone, HeldLaunches, Part
from tinycore.errors import UnsupportedError
from tinycore.schedule.device_memory import buffer_of
from tinycore.uop.movement import base_of

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
    """Parts in which a replay asks for its launches."""
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


class Told:
    """A graph that notes what it is told, and is interrupted after so many times."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.buffers: list[Handle] = []
        self.values: list[int] = []
        self.left = -1
        """Number of calls left until it is interrupted."""

    def set_buffer(self, launch: int, slot: int, handle: Handle) -> None:
        self.graph.set_buffer(launch, slot, handle)
        self.buffers.append(handle)
        self.count()

    def set_value(self, launch: int, position: int, value: int) -> None:
        self.graph.set_value(launch, position, value)
        self.values.append(value)
        self.count()

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def __call__(self, *, wait: bool = False) -> float | None:
        return self.graph(wait=wait)


def told(jitted: TinyJit[Any, Any]) -> Told:
    """The graph of a step, listened to."""
    assert jitted.captured is not None
    assert jitted.captured.graphs is not None
    (part,) = jitted.captured.graphs
    assert isinstance(part, HeldLaunches)
    part.graph = Told(part.graph)
    return part.graph


def test_a_graph_is_told_only_of_buffers_that_changed() -> None:
    jitted = captured(step)
    x, y = (Tensor(array).realize() for array in arrays(3))
    jitted(x, y)
    graph = told(jitted)

    jitted(x, y)
    before = [*graph.buffers]
    other = Tensor(arrays(4)[0]).realize()
    right = expected(arrays(4)[0], arrays(3)[1])
    result = jitted(other, y)

    handle = buffer_of(base_of(y.uop)).handle
    assert not any(h is handle for h in graph.buffers)
    assert not any(h is buffer_of(base_of(x.uop)).handle for h in before)
    assert any(h is buffer_of(base_of(other.uop)).handle for h in graph.buffers)
    numpy.testing.assert_allclose(result[0].numpy(), right[0], 1e-5)


@pytest.mark.parametrize("after", range(1, 7))
def test_a_graph_is_told_again_after_an_interrupt(after: int) -> None:
    jitted = captured(step)
    inputs = [[Tensor(array).realize() for array in arrays(seed)] for seed in (3, 4)]
    jitted(*inputs[0])
    graph = told(jitted)

    graph.left = after
    with contextlib.suppress(KeyboardInterrupt):
        jitted(*inputs[1])
    graph.left = -1

    for result, right in zip(jitted(*inputs[0]), expected(*arrays(3)), strict=True):
        numpy.testing.assert_allclose(result.numpy(), right, 1e-5, 1e-6)


def test_a_graph_is_told_a_number_again_after_an_interrupt() -> None:
    size = Variable("n", 1, 8)
    whole = Tensor(numpy.arange(8, dtype=numpy.float32)).realize()

    @TinyJit
    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1).sum().realize(), (x * 2).sum().realize()

    def at(number: int) -> list[float]:
        one, other = total(whole[: size.bind(number)])
        return [one.item(), other.item()]

    for number in (2, 3, 4):
        at(number)
    graph = told(total)
    graph.left = 1
    with pytest.raises(KeyboardInterrupt):
        at(5)
    graph.left = -1

    assert at(5) == [15.0, 20.0]
    assert at(4) == [10.0, 12.0]
