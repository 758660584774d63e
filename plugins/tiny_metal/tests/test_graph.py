"""Graphs on the mock: indirect command buffers, what changes, and GPUs without them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from metal_kernels import ADD, INFO

from tiny_metal import _lib
from tiny_metal.graph import EncodedGraph, IndirectGraph
from tinycore.errors import UnsupportedError
from tinycore.plugin import Launch, ProgramInfo

if TYPE_CHECKING:
    from mock_metal.metal import Mac

    from tiny_metal.device import MetalDevice
    from tiny_metal.memory import MetalMemory
    from tiny_metal.program import MetalProgram

pytestmark = pytest.mark.usefixtures("mock")

DOUBLE = """\
#include <metal_stdlib>
using namespace metal;
kernel void double_(device int *data0 [[buffer(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_ [[thread_position_in_threadgroup]]) {
  int i = group.x * 32 + thread_.x;
  data0[i] = data0[i] * 2;
}
"""
DOUBLE_INFO = ProgramInfo("double", 1, grid=(2, 1, 1), block=(32, 1, 1), written=frozenset({0}))


class Bench:
    """A mocked Mac with its GPU, two programs, and memory."""

    def __init__(self, gpu: str, **changes: object) -> None:
        from mock_metal.metal import Mac  # noqa: PLC0415
        from simulated_metal import MACS  # noqa: PLC0415

        from tiny_metal.device import MetalDevice  # noqa: PLC0415

        self.mac: Mac = Mac((replace(MACS[gpu], **changes),))  # type: ignore[arg-type]
        with _lib.use(self.mac):
            self.device: MetalDevice = MetalDevice(0, "")
        self.add: MetalProgram = self.device.load(ADD.encode(), INFO)
        self.double: MetalProgram = self.device.load(DOUBLE.encode(), DOUBLE_INFO)
        self.kept: list[MetalMemory] = []

    def memory(self, value: int, count: int = 64) -> MetalMemory:
        handle = self.device.allocator.alloc(4 * count)
        self.device.allocator.write(handle, memoryview(value.to_bytes(4, "little") * count))
        self.kept.append(handle)
        return handle

    def read(self, handle: MetalMemory) -> int:
        """The value that all elements have."""
        content = bytearray(256)
        self.device.allocator.read(memoryview(content), handle)
        (value,) = set(memoryview(content).cast("i").tolist())
        return int(value)

    def close(self) -> None:
        for handle in self.kept:
            self.device.allocator.free(handle)
        del self.add, self.double
        gc.collect()
        self.device.close()
        assert self.mac.misuses == []
        assert self.mac.left == {}


@pytest.fixture(params=["M1", "M3", "OLD"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.close()


def test_launches_of_a_graph_happen_in_order(bench: Bench) -> None:
    a = bench.memory(1)
    launches: list[tuple[Launch, Launch]]
    launches = [((bench.add, [a, a], [n]), (bench.double, [a], [])) for n in (3, 5, 7)]
    graph = bench.device.graph([launch for pair in launches for launch in pair])
    assert isinstance(graph, IndirectGraph)
    expected = 1
    for _ in range(5):
        assert graph() is None
        for n in (3, 5, 7):
            expected = (expected + n) * 2
    assert bench.read(a) == expected


@pytest.mark.slow
def test_what_changes_is_put_in_between_runs(bench: Bench) -> None:
    bench.mac.plan.delay = (0.001, 0.005)
    a, b, c = (bench.memory(10 * i) for i in range(3))
    graph = bench.device.graph([(bench.add, [a, b], [1]), (bench.double, [a], [])])
    graph()
    graph.set_value(0, 0, 5)
    graph()
    graph.set_buffer(0, 1, c)
    graph.set_buffer(0, 0, b)
    seconds = graph(wait=True)
    assert seconds is not None
    assert seconds > 0
    assert [bench.read(x) for x in (a, b, c)] == [60, 25, 20]


@pytest.mark.slow
def test_a_run_without_changes_is_one_command(bench: Bench) -> None:
    a = bench.memory(0)
    graph = bench.device.graph([(bench.add, [a, a], [1])] * 20)
    graph()
    bench.device.synchronize()
    sent = bench.mac.world.sent
    before = dict(sent)
    graph.set_buffer(3, 0, a)
    graph.set_value(3, 0, 1)
    graph()
    bench.device.synchronize()
    assert sent["executeCommandsInBuffer:withRange:"] == 2
    assert sent["setKernelBuffer:offset:atIndex:"] == before["setKernelBuffer:offset:atIndex:"]
    assert bench.read(a) == 40


def test_parts_of_memory(bench: Bench) -> None:
    whole = bench.memory(1, 128)
    half = bench.device.allocator.offset(whole, 256, 256)
    bench.device.graph([(bench.add, [half, whole], [4])])()
    assert (bench.read(whole), bench.read(half)) == (1, 5)


@pytest.mark.slow
def test_a_graph_that_is_dropped_ends_its_run(bench: Bench) -> None:
    bench.mac.plan.delay = (0.01, 0.02)
    a = bench.memory(1)
    double = bench.device.load(DOUBLE.encode(), DOUBLE_INFO)
    graph = bench.device.graph([(double, [a], [])])
    graph()
    del graph, double
    gc.collect()
    assert bench.read(a) == 2


@pytest.mark.parametrize(
    "changes",
    [{"has_indirect": False}, {"has_indirect": False, "name": "Apple Paravirtual device"}],
    ids=["refused", "virtual"],
)
def test_a_gpu_without_indirect_commands(changes: dict[str, object]) -> None:
    bench = Bench("M1", **changes)
    a, b = bench.memory(1), bench.memory(7)
    graph = bench.device.graph([(bench.add, [a, a], [3]), (bench.double, [a], [])])
    assert isinstance(graph, EncodedGraph)
    graph()
    graph.set_value(0, 0, 1)
    graph.set_buffer(0, 1, b)
    assert graph(wait=True) is not None
    assert bench.read(a) == 16
    assert bench.mac.world.sent["commandBuffer"] == 2
    del graph
    bench.close()


def test_programs_of_another_backend_are_refused(bench: Bench) -> None:
    with pytest.raises(UnsupportedError, match="a graph holds programs of GPUs of the Mac"):
        bench.device.graph([(lambda *_, **__: None, [], [])])
