"""Memory of a card through the stand-in: copies of every size, exhaustion, memory of others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy
import pytest
from delayed_copies import DelayedCopies
from standin import Card, Driver

from tiny_nv import _lib
from tiny_nv.device import CudaDevice
from tiny_nv.memory import PIECE_BYTES, PIECES
from tinycore import Context
from tinycore.errors import DeviceError, OutOfMemory


@pytest.mark.parametrize(
    "size", [1, 1000, PIECE_BYTES, PIECE_BYTES + 1, (PIECES + 2) * PIECE_BYTES]
)
def test_what_is_written_is_read(device: CudaDevice, size: int) -> None:
    content = numpy.random.default_rng(size).integers(0, 256, size, numpy.uint8)
    found = numpy.zeros(size, numpy.uint8)
    handle = device.allocator.alloc(size)

    device.allocator.write(handle, content.data)
    device.allocator.read(found.data, handle)

    assert (found == content).all()


def test_few_pieces_serve_all_copies(device: CudaDevice, driver: Driver) -> None:
    handle = device.allocator.alloc(64)
    for _ in range(20):
        device.allocator.write(handle, memoryview(bytes(64)))

    assert driver.left["pinned"] == PIECES
    assert driver.calls["cuEventSynchronize"] == 20 - PIECES  # a piece is waited for once it is due


def test_a_view_is_an_address_inside(device: CudaDevice) -> None:
    handle = device.allocator.alloc(100)
    device.allocator.write(handle, memoryview(bytes(range(100))))
    found = bytearray(4)

    device.allocator.read(memoryview(found), device.allocator.offset(handle, 4, 50))

    assert list(found) == [50, 51, 52, 53]


def test_exhaustion_is_told_with_the_size(device: CudaDevice) -> None:
    with pytest.raises(OutOfMemory, match=r"for 2,147,483,648 bytes: cuMemAlloc_v2 returned CUDA_"):
        device.allocator.alloc(2 << 30)


def test_memory_of_somebody_else_is_taken_as_it_is(device: CudaDevice) -> None:
    handle = device.allocator.alloc(100)

    assert device.allocator.wrap(handle + 4, 96) == handle + 4


def test_what_is_no_memory_of_a_card_is_refused(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match="0x1234 is no address of CUDA's memory"):
        device.allocator.wrap(0x1234, 4)


def test_copies_between_cards() -> None:
    driver = Driver(cards=(Card(), Card()))
    with _lib.use(driver):
        first, second = CudaDevice(0, ""), CudaDevice(1, "")
        source, target = first.allocator.alloc(8), second.allocator.alloc(8)
        first.allocator.write(source, memoryview(b"abcdefgh"))
        first.synchronize()

        second.allocator.copy_from(target, source, 8, first)

        found = bytearray(8)
        second.allocator.read(memoryview(found), target)
        assert found == b"abcdefgh"
        with pytest.raises(DeviceError, match="name the device CUDA:0"):
            second.allocator.wrap(source, 8)


@pytest.fixture
def out_of_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let threads take longer for some pieces than for those behind them; numbers under way."""
    copies = DelayedCopies(monkeypatch, 0.002)
    with Context(CPU_COUNT=4):
        yield copies.under_way


def test_pieces_go_in_order_however_long_their_copies_take(
    device: CudaDevice, out_of_order: list[int]
) -> None:
    content = numpy.random.default_rng(1).integers(0, 256, 19 * PIECE_BYTES + 3, numpy.uint8)
    found, handle = numpy.zeros_like(content), device.allocator.alloc(content.size)

    device.allocator.write(handle, content.data)
    assert not out_of_order
    content_then = content.copy()
    content[:] = 0  # free when it has returned
    device.allocator.read(found.data, handle)

    assert not out_of_order
    assert (found == content_then).all()


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"])
def test_a_failure_waits_for_copies_under_way(
    device: CudaDevice, driver: Driver, out_of_order: list[int], call: str
) -> None:
    content = numpy.ones(12 * PIECE_BYTES, numpy.uint8)
    handle = device.allocator.alloc(content.size)
    device.allocator.write(handle, content.data)
    driver.fail(call, 999)

    writes = partial(device.allocator.write, handle, content.data)
    reads = partial(device.allocator.read, content.data, handle)
    with pytest.raises(DeviceError):
        writes() if "HtoD" in call else reads()

    assert not out_of_order
    found = numpy.zeros_like(content)
    device.allocator.read(found.data, handle)
    assert (found == 1).all()
