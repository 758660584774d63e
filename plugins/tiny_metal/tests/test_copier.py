"""Copies between two GPUs of a mocked Mac: in order by shared events, also when one fails."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from metal_kernels import ADD, INFO

from tiny_metal import _lib, copier
from tinycore.errors import DeviceError

if TYPE_CHECKING:
    from mock_metal.metal import Mac

    from tiny_metal.device import MetalDevice
    from tiny_metal.memory import MetalMemory

pytestmark = pytest.mark.usefixtures("mock")

COUNT = 64
SIZE = 4 * COUNT


class Two:
    """Two GPUs with some memory on each, and the Mac that they are in."""

    def __init__(self, mac: Mac) -> None:
        from tiny_metal.device import MetalDevice  # noqa: PLC0415

        self.mac = mac
        with _lib.use(mac):
            self.gpus = [MetalDevice(index, "") for index in range(2)]
        self.adds = [gpu.load(ADD.encode(), INFO) for gpu in self.gpus]
        self.kept: list[tuple[MetalDevice, MetalMemory]] = []

    def memory(self, index: int, value: int, count: int = COUNT) -> MetalMemory:
        gpu = self.gpus[index]
        handle = gpu.allocator.alloc(4 * count)
        gpu.allocator.write(handle, memoryview(value.to_bytes(4, "little") * count))
        self.kept.append((gpu, handle))
        return handle

    def read(self, index: int, handle: MetalMemory, count: int = COUNT) -> list[int]:
        content = bytearray(4 * count)
        self.gpus[index].allocator.read(memoryview(content), handle)
        return memoryview(content).cast("i").tolist()

    def close(self) -> None:
        for gpu, handle in self.kept:
            gpu.allocator.free(handle)
        self.adds.clear()
        gc.collect()
        for gpu in self.gpus:
            gpu.close()


@pytest.fixture(params=["M1", "OLD"])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    """Two GPUs of a kind; nothing is done wrong, and nothing is left."""
    from mock_metal.metal import Mac  # noqa: PLC0415
    from simulated_metal import MACS, pair  # noqa: PLC0415

    mac = Mac(pair(MACS[request.param]))
    made = Two(mac)
    yield made
    made.close()
    assert mac.misuses == []
    assert mac.left == {}


def test_gpus_wait_for_each_other_and_the_host_for_neither(two: Two) -> None:
    two.mac.plan.delay = (0.0, 0.004)
    here, there = two.gpus
    a, b = two.memory(0, 1), two.memory(1, 0)
    to_there, to_here = there.copier(SIZE, here), here.copier(SIZE, there)
    for _ in range(6):
        two.adds[0]([a, a], [1])
        to_there([b, a], [])
        two.adds[0]([a, a], [1000])  # after the copy has read it
        two.adds[1]([b, b], [10])
        to_here([a, b], [])
    assert here._running, "the host waited"
    assert two.read(0, a) == [67] * COUNT
    assert two.read(1, b) == [67] * COUNT


def test_pieces_take_turns_with_two_halves(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "PIECE_BYTES", SIZE)
    two.mac.plan.delay = (0.0, 0.003)
    here, there = two.gpus
    a, b = two.memory(0, 0, 7 * COUNT), two.memory(1, 0, 8 * COUNT)
    values = [random.Random(1).randrange(1 << 30) for _ in range(7 * COUNT)]
    here.allocator.write(a, memoryview(b"".join(v.to_bytes(4, "little") for v in values)))
    size = 4 * 6 * COUNT + 20
    there.copier(size, here)(
        [there.allocator.offset(b, size, 8), here.allocator.offset(a, size, 4)], []
    )
    found = two.read(1, b, 8 * COUNT)
    assert found[2 : 2 + size // 4] == values[1 : 1 + size // 4]
    assert found[:2] + found[2 + size // 4 :] == [0] * (8 * COUNT - size // 4)


def test_a_copy_says_how_long_it_took(two: Two) -> None:
    here, there = two.gpus
    a, b, c = two.memory(0, 5), two.memory(1, 0), two.memory(1, 7)
    seconds = there.copier(SIZE, here)([b, a], [], wait=True)
    assert seconds is not None
    assert seconds > 0
    within = there.copier(SIZE, there)([c, b], [], wait=True)
    assert within is not None
    assert within > 0
    assert two.read(1, c) == [5] * COUNT


@pytest.mark.parametrize("which", [0, 1])
def test_a_gpu_that_fails_leaves_nobody_waiting(two: Two, which: int) -> None:
    """Metal delivers no signal of a command buffer that failed; both are told, and usable after."""
    here, there = two.gpus
    a, b = two.memory(0, 5), two.memory(1, 0)
    here.synchronize()
    there.synchronize()
    copy = there.copier(SIZE, here)
    two.mac.plan.fails_next[two.gpus[which].info.name] = (3, "Caused GPU Address Fault Error")
    for _ in range(3):
        copy([b, a], [])
    two.adds[1]([b, b], [1])
    with pytest.raises(DeviceError, match="a copy of 256 bytes"):
        there.synchronize()
    if which:
        here.synchronize()
    else:
        with pytest.raises(DeviceError, match=r"failed in a copy of 256 bytes from Mock .* to"):
            here.synchronize()
    copy([b, a], [])
    assert two.read(1, b) == [5] * COUNT


def test_results_of_a_kernel_that_failed_are_not_used_elsewhere(two: Two) -> None:
    here, there = two.gpus
    a, b = two.memory(0, 5), two.memory(1, 0)
    here.synchronize()
    two.mac.plan.fails_next[here.info.name] = (3, "Caused GPU Address Fault Error")
    two.adds[0]([a, a], [1])
    there.copier(SIZE, here)([b, a], [])
    with pytest.raises(DeviceError, match=r"from Mock .* has no data, Mock .* failed"):
        two.read(1, b)
    with pytest.raises(DeviceError, match="failed in kernel add"):
        here.synchronize()


def test_a_graph_of_two_gpus_takes_other_memory_and_values(two: Two) -> None:
    here, there = two.gpus
    a, b, c = two.memory(0, 1), two.memory(1, 0), two.memory(1, 100)
    copy, back = there.copier(SIZE, here), here.copier(SIZE, there)
    launches = [
        (two.adds[0], [a, a], [1]),
        (two.adds[1], [c, c], [1]),
        (two.adds[0], [a, a], [2]),
        (copy, [b, a], []),
        (two.adds[1], [b, b], [3]),
        (back, [a, b], []),
    ]
    graph = here.graph(launches)
    assert graph() is None
    assert (two.read(0, a)[0], two.read(1, b)[0], two.read(1, c)[0]) == (7, 7, 101)
    graph.set_value(2, 0, 20)
    graph.set_buffer(3, 0, c)
    seconds = graph(wait=True)
    assert seconds is not None
    assert seconds > 0
    assert (two.read(0, a)[0], two.read(1, b)[0], two.read(1, c)[0]) == (10, 10, 28)


def test_a_mac_with_one_gpu_has_none_to_wait_for(mac: Mac) -> None:
    from tiny_metal.device import MetalDevice  # noqa: PLC0415

    device = MetalDevice(0, "")
    assert "queues" not in device.capabilities
    device.close()
