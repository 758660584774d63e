"""Buffer: allocation, views, copies, sharing, and every check of its arguments."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tinycore.device.backend import Backend
from tinycore.device.buffer import Buffer
from tinycore.device.registry import Device
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, UnsupportedError


@pytest.fixture
def device(toy: Callable[..., Backend]) -> Iterator[str]:
    """A device whose memory the host cannot address."""
    Device.register(toy())
    yield "TOY"
    Device.unregister("TOY")


def floats(device: str, *values: float) -> Buffer:
    return Buffer.from_cpu(device, numpy.array(values, numpy.float32))


def used(device: str) -> int:
    """Bytes in use on a device, garbage apart."""
    gc.collect()
    return Device[device].allocator.used


# Pickle


def test_pickled_buffers_have_their_content_and_share_memory(device: str) -> None:
    whole = floats(device, 1, 2, 3, 4)
    found = pickle.loads(pickle.dumps((whole, whole.view(2, offset_bytes=8), Buffer.like(whole))))
    again, part, empty = found

    assert again.tobytes() == whole.tobytes()
    part.copyin(numpy.array([7, 8], numpy.float32).data)
    assert again.numpy().tolist() == [1, 2, 7, 8]
    assert whole.numpy().tolist() == [1, 2, 3, 4]
    assert not empty.is_allocated


# Memory


def test_memory_is_allocated_at_the_first_use(device: str) -> None:
    buffer = Buffer(device, 8, dtypes.float32)
    before = used(device)

    assert not buffer.is_allocated
    assert buffer.ensure_allocated() is buffer
    assert used(device) - before == buffer.nbytes == 32


def test_making_a_buffer_opens_no_device(toy: Callable[..., Backend]) -> None:
    def refuse(index: int, interface: str) -> Any:
        raise AssertionError("opened")

    Device.register(toy(open=refuse))
    try:
        assert Buffer("toy:0", 1, dtypes.int8).device == "TOY"
    finally:
        Device.unregister("TOY")


def test_memory_is_freed_when_the_buffer_is_dropped(device: str) -> None:
    buffer = floats(device, 1, 2)
    before = used(device)
    del buffer

    assert before - used(device) == 8


def test_a_view_keeps_the_memory_of_its_base(device: str) -> None:
    buffer = floats(device, 1, 2, 3)
    before = used(device)
    view = buffer.view(2, offset_bytes=4)
    del buffer

    assert view.numpy().tolist() == [2, 3]
    assert used(device) == before
    del view
    assert before - used(device) == 12


def test_an_empty_buffer_has_no_memory_and_can_be_copied(device: str) -> None:
    buffer = Buffer(device, 0, dtypes.float32)

    assert buffer.is_allocated
    assert buffer.copyin(b"").tobytes() == b""
    assert buffer.numpy().shape == (0,)
    assert buffer.handle is None


def test_deallocated_memory_comes_back_at_the_next_use(device: str) -> None:
    buffer = floats(device, 1)
    buffer.deallocate()

    assert not buffer.is_allocated
    assert buffer.copyin(bytes(4)).numpy().tolist() == [0]


# Views


def test_a_view_of_a_view_is_a_view_of_the_base(device: str) -> None:
    buffer = floats(device, 0, 1, 2, 3, 4)
    inner = buffer.view(4, offset_bytes=4).view(2, offset_bytes=8)

    assert inner.base is buffer
    assert inner.offset == 12
    assert inner.numpy().tolist() == [3, 4]


def test_a_view_shares_memory_and_may_have_another_dtype(device: str) -> None:
    buffer = floats(device, 1, 2)
    bits = buffer.view(1, dtypes.uint32, 4)
    bits.copyin(numpy.array([0x40400000], numpy.uint32).data)

    assert buffer.numpy().tolist() == [1, 3]


@pytest.mark.parametrize(
    ("size", "dtype", "offset"),
    [(3, dtypes.float32, 0), (1, dtypes.float32, 8), (1, dtypes.int8, -1), (2, dtypes.float64, 0)],
)
def test_a_view_must_fit(device: str, size: int, dtype: Any, offset: int) -> None:
    with pytest.raises(ArgumentError, match="do not lie inside the 8 bytes of <Buffer TOY 2 x"):
        Buffer(device, 2, dtypes.float32).view(size, dtype, offset)


def test_a_view_of_a_view_must_fit_the_inner_one(device: str) -> None:
    inner = Buffer(device, 8, dtypes.int8).view(2, offset_bytes=2)

    with pytest.raises(ArgumentError, match=r"4 elements of dtypes.int8 from byte 0 on do not lie"):
        inner.view(4)


def test_a_view_starts_at_a_whole_element(device: str) -> None:
    with pytest.raises(ArgumentError, match=r"byte 2 is no place for an element of dtypes.float32"):
        Buffer(device, 2, dtypes.float32).view(1, offset_bytes=2)


@pytest.mark.parametrize("dtype", [dtypes.void, dtypes.float32.vec(4), dtypes.float32.ptr(4)])
def test_elements_are_scalars(dtype: Any) -> None:
    with pytest.raises(DTypeError, match=r"a buffer holds elements of a scalar dtype, not dtypes."):
        Buffer("PYTHON", 4, dtype)


def test_a_size_is_not_negative() -> None:
    with pytest.raises(ArgumentError, match="a buffer cannot have -1 elements"):
        Buffer("PYTHON", -1, dtypes.int8)


# Copies


def test_bytes_go_in_and_come_out(device: str) -> None:
    buffer = Buffer(device, 3, dtypes.int16)
    buffer.copyin(memoryview(b"abcdef"))
    target = bytearray(6)

    assert bytes(buffer.copyout(target)) == b"abcdef"
    assert target == b"abcdef"


@pytest.mark.parametrize("data", [b"", b"123", b"12345"])
def test_the_size_must_match(device: str, data: bytes) -> None:
    buffer = Buffer(device, 1, dtypes.float32)
    message = f"<Buffer TOY 1 x dtypes.float32> has 4 bytes, the host memory {len(data)}"

    with pytest.raises(ArgumentError, match=message):
        buffer.copyin(data)
    with pytest.raises(ArgumentError, match=message):
        buffer.copyout(bytearray(data))


def test_host_memory_must_be_contiguous(device: str) -> None:
    with pytest.raises(ArgumentError, match=r"the host memory for .* is not contiguous"):
        Buffer(device, 4, dtypes.int8).copyin(memoryview(bytes(8))[::2])


def test_read_only_memory_is_no_target(device: str) -> None:
    with pytest.raises(ArgumentError, match=r"cannot copy .* to read-only memory"):
        Buffer(device, 4, dtypes.int8).copyout(memoryview(bytes(4)))


@pytest.mark.parametrize(
    ("target", "source"),
    [("TOY", "TOY"), ("TOY", "PYTHON"), ("PYTHON", "TOY"), ("PYTHON", "PYTHON:1")],
)
def test_copies_between_devices(device: str, target: str, source: str) -> None:
    copied = Buffer(target, 2, dtypes.float32).copy_from(floats(source, 5, 6))

    assert copied.numpy().tolist() == [5, 6]


def test_a_copy_must_have_the_same_size(device: str) -> None:
    with pytest.raises(ArgumentError, match=r"cannot copy .* of 8 bytes to <Buffer TOY 3 x"):
        Buffer(device, 3, dtypes.float32).copy_from(floats(device, 1, 2))


# Arrays and shared memory


def test_arrays_of_any_layout(device: str) -> None:
    array = numpy.arange(6, dtype=">i4").reshape(2, 3).T

    assert Buffer.from_cpu(device, array).numpy().tolist() == [0, 3, 1, 4, 2, 5]


def test_small_floats_are_given_as_the_integers_they_are_stored_in(device: str) -> None:
    buffer = Buffer.from_cpu(device, numpy.array([0x3F80], numpy.uint16), dtypes.bfloat16)

    assert buffer.dtype is dtypes.bfloat16
    assert buffer.numpy().tolist() == [0x3F80]


def test_an_array_cannot_stand_for_another_width(device: str) -> None:
    with pytest.raises(DTypeError, match=r"an array of float64 cannot stand for dtypes.float32"):
        Buffer.from_cpu(device, numpy.zeros(2), dtypes.float32)


def test_the_older_names_are_the_same_functions() -> None:
    assert Buffer.fromCPU is Buffer.from_cpu
    assert Buffer.toCPU is Buffer.to_cpu


def test_mapped_memory_is_shared_without_a_copy() -> None:
    buffer = floats("PYTHON", 1, 2)
    view = buffer.as_memoryview()
    view.cast("f")[0] = 7
    shared = buffer.to_cpu()
    shared[1] = 8

    assert buffer.numpy().tolist() == [7, 8]


def test_a_shared_view_keeps_the_buffer_alive() -> None:
    buffer = floats("PYTHON", 1, 2)
    before = used("PYTHON")
    view = buffer.as_memoryview()[4:]
    array = buffer.to_cpu()[1:]
    del buffer

    assert used("PYTHON") == before
    del view
    assert array.tolist() == [2]
    assert used("PYTHON") == before
    del array
    assert used("PYTHON") < before


def test_memory_that_is_not_mapped_cannot_be_shared(device: str) -> None:
    buffer = floats(device, 1)

    with pytest.raises(UnsupportedError, match="TOY has no capability 'host_memory'"):
        buffer.as_memoryview()
    assert buffer.to_cpu().tolist() == [1]


def test_external_memory_is_used_in_place_and_its_owner_kept() -> None:
    array = numpy.array([1, 2, 3], numpy.int32)
    buffer = Buffer.external("PYTHON", array.ctypes.data, 3, dtypes.int32, owner=array)
    before = used("PYTHON")
    array[1] = 9

    assert buffer.numpy().tolist() == [1, 9, 3]
    del buffer
    assert used("PYTHON") == before


def test_external_memory_needs_the_capability(device: str) -> None:
    with pytest.raises(UnsupportedError, match="TOY has no capability 'external_pointer'"):
        Buffer.external(device, 4096, 1, dtypes.int8)


def test_a_null_pointer_is_refused() -> None:
    with pytest.raises(ArgumentError, match="0x0 is no address of device memory"):
        Buffer.external("PYTHON", 0, 1, dtypes.int8)


def test_memory_in_a_reference_cycle_is_given_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Block:
        """A handle that frees itself when nobody has it any more."""

        def __del__(self) -> None:
            ended.append(id(self))

    runtime_allocator = Device["PYTHON"].runtime.allocator
    monkeypatch.setattr(runtime_allocator, "alloc", lambda size: Block())
    size = 12_345_678  # like no other
    buffer: Any = Buffer("PYTHON", size, dtypes.uint8).ensure_allocated()
    kept = id(buffer.handle)
    buffer._owner = [buffer]

    del buffer
    gc.collect()

    assert ended == []
    again = Device["PYTHON"].allocator.alloc(size)
    assert id(again) == kept
    del again
