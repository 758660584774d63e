"""Launches that are held ready, and asked for at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from tiny_cl.device import ClDevice
from tiny_cl.program import ClProgram
from tinycore import Context, Tensor, TinyJit, Variable
from tinycore.engine.device_graph import HeldLaunches
from tinycore.errors import UnsupportedError
from tinycore.plugin import ProgramInfo

SOURCE = """
kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void add_(global int *base0, const long start0, const long n) {
  global int *data0 = (global int *)((global char *)base0 + start0);
  data0[get_group_id(0)] += (int)n;
}
"""


@pytest.fixture
def add(device: ClDevice) -> ClProgram:
    """A program that adds a number to four integers."""
    program = device._programs.load(device._programs.compile(SOURCE, ""))
    info = ProgramInfo("add", 1, ("n",), grid=(4, 1, 1))
    return ClProgram(program, info, device.info, device._queue)


def integers(device: ClDevice, handle: object) -> list[int]:
    found = numpy.zeros(4, numpy.int32)
    device.allocator.read(found.data.cast("B"), handle)  # type: ignore[arg-type]
    return [int(n) for n in found]


def test_launches_keep_arguments_of_their_own(device: ClDevice, add: ClProgram) -> None:
    a, b = (device.allocator.alloc(16) for _ in range(2))
    for handle in (a, b):
        device.allocator.write(handle, memoryview(bytes(16)))
    graph = device.graph([(add, [a], [1]), (add, [b], [10]), (add, [a], [100])])

    graph()
    add([b], [5])
    graph()

    assert integers(device, a) == [202] * 4
    assert integers(device, b) == [25] * 4


def test_buffers_places_and_numbers_are_exchanged(device: ClDevice, add: ClProgram) -> None:
    whole = device.allocator.alloc(32)
    device.allocator.write(whole, memoryview(bytes(32)))
    first, second = (device.allocator.offset(whole, 16, start) for start in (0, 16))
    graph = device.graph([(add, [first], [1]), (add, [first], [2])])
    graph.set_buffer(1, 0, second)
    graph.set_value(0, 0, 7)

    graph()

    assert (integers(device, first), integers(device, second)) == ([7] * 4, [2] * 4)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_device_says_how_long_it_took(device: ClDevice, add: ClProgram, count: int) -> None:
    handle = device.allocator.alloc(16)
    graph = device.graph([(add, [handle], [1])] * count)

    taken = graph(wait=True)

    assert taken is not None
    assert (taken > 0) == (count > 0)


def test_programs_of_other_devices_are_not_held(device: ClDevice) -> None:
    with pytest.raises(UnsupportedError, match="holds its own programs"):
        device.graph([(lambda *_, **__: None, [], [])])


@pytest.fixture
def on_the_device(driver: None) -> Iterator[None]:
    with Context(DEV="CL"):
        yield


def test_a_captured_step_is_one_graph(on_the_device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    call = HeldLaunches.run

    def noted(held: HeldLaunches, *given: Any) -> Any:
        asked.append(held.launches)
        return call(held, *given)

    monkeypatch.setattr(HeldLaunches, "run", noted)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = (x + 1).contiguous().realize()
        return (y * 2).sum(0).realize()

    for seed in range(4):
        x = numpy.full((4, 8), seed, "f")
        assert step(Tensor(x).realize()).tolist() == ((x + 1) * 2).sum(0).tolist()

    assert asked == [2, 2]


def test_a_variable_is_given_at_each_replay(on_the_device: None) -> None:
    n = Variable("n", 1, 8)
    table = Tensor(numpy.arange(8, dtype="f")).realize()

    @TinyJit
    def step(size: Any) -> Tensor:
        part = (table[:size] * 2).realize()
        return part.sum().realize()

    assert [step(n.bind(size)).item() for size in (3, 5, 2, 8)] == [6.0, 20.0, 2.0, 56.0]
