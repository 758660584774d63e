"""Buffers, places in them, what the host sees of them, and buffers that others made."""

from __future__ import annotations

import numpy
import pytest

from tiny_cl._lib import create, ffi, library
from tiny_cl.device import ClDevice
from tiny_cl.memory import ClAllocator
from tiny_cl.probe import devices
from tinycore import Device, Tensor
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError

READ_WRITE = 1


def filled(allocator: ClAllocator, size: int) -> object:
    handle = allocator.alloc(size)
    allocator.write(handle, memoryview(bytes(range(size))))
    return handle


def content(allocator: ClAllocator, handle: object, size: int) -> list[int]:
    found = bytearray(size)
    allocator.read(memoryview(found), handle)  # type: ignore[arg-type]
    return list(found)


def test_what_is_written_is_read(device: ClDevice) -> None:
    handle = filled(device.allocator, 100)

    assert content(device.allocator, handle, 100) == list(range(100))


@pytest.mark.parametrize("start", [1, 4, 60])
def test_a_view_starts_at_any_byte(device: ClDevice, start: int) -> None:
    whole = filled(device.allocator, 100)
    part = device.allocator.offset(whole, 30, start)  # type: ignore[arg-type]
    inner = device.allocator.offset(part, 10, 5)

    assert content(device.allocator, part, 30) == list(range(start, start + 30))
    assert content(device.allocator, inner, 10) == list(range(start + 5, start + 15))
    device.allocator.write(inner, memoryview(b"\xff"))
    assert content(device.allocator, whole, 100)[start + 5] == 255


def test_the_host_sees_the_memory_itself(device: ClDevice) -> None:
    if not device.allocator.shares_memory:
        pytest.skip("the device has memory of its own, or its driver keeps a copy")
    handle = device.allocator.alloc(1000)
    part = device.allocator.offset(handle, 100, 7)
    seen = numpy.frombuffer(device.allocator.map(part, 100), numpy.uint8)
    again = numpy.frombuffer(device.allocator.map(part, 100), numpy.uint8)

    assert seen.ctypes.data == again.ctypes.data
    device.allocator.write(part, memoryview(bytes([9] * 100)))
    device.synchronize()
    assert seen.tolist() == [9] * 100
    seen[50] = 3
    assert content(device.allocator, part, 100)[50] == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_device_that_says_it_shares_memory_does(driver: None, number: int) -> None:
    """Nothing is copied on the way, neither what kernels write nor what the host does."""
    if number >= len(devices()) or not devices()[number].shares_memory:
        pytest.skip("there is none, or it has memory of its own")
    name = Device.canonicalize(f"CL:{number}")
    y = (Tensor(numpy.arange(100, dtype="f"), device=name) * 2).realize()

    assert Device[name].has("host_memory")
    first, again = (numpy.frombuffer(y.data(), "f") for _ in range(2))
    assert first.ctypes.data == again.ctypes.data
    y.assign(y + 1).realize()
    Device[name].synchronize()
    assert first.tolist() == [2.0 * n + 1 for n in range(100)]
    first[3] = 50
    assert (y + 0)[3].item() == 50


def test_more_than_there_is_says_so(device: ClDevice) -> None:
    with pytest.raises(OutOfMemory, match=r"no memory left for [\d,]+ bytes"):
        device.allocator.alloc(1 << 50)


def foreign(context: object, size: int) -> int:
    made = create("clCreateBuffer", context, READ_WRITE, size, ffi.NULL)
    return int(ffi.cast("uintptr_t", made))


def test_a_buffer_that_somebody_made_is_used(device: ClDevice) -> None:
    pointer = foreign(ffi.cast("cl_context", device.context_address), 64)
    handle = device.allocator.wrap(pointer, 64)
    device.allocator.write(handle, memoryview(bytes(range(64))))

    assert content(device.allocator, device.allocator.wrap(pointer, 8), 8) == list(range(8))
    with pytest.raises(UnsupportedError, match="made elsewhere; copy it"):
        device.allocator.map(handle, 8)
    with pytest.raises(DeviceError, match="the cl_mem has 64 bytes, the tensor 65"):
        device.allocator.wrap(pointer, 65)
    library().clReleaseMemObject(ffi.cast("cl_mem", pointer))


def test_host_memory_is_no_buffer(device: ClDevice) -> None:
    array = numpy.zeros(64)

    with pytest.raises(DeviceError, match="is no cl_mem of this device's driver"):
        device.allocator.wrap(array.ctypes.data, 64)


def test_a_buffer_of_another_context_is_refused(device: ClDevice) -> None:
    chosen = ffi.new("cl_device_id[]", [device.info.handle])
    other = create("clCreateContext", ffi.NULL, 1, chosen, ffi.NULL, ffi.NULL)

    with pytest.raises(UnsupportedError, match=r"Make it in .*\.context_address"):
        device.allocator.wrap(foreign(other, 64), 64)


def test_an_image_is_no_buffer(device: ClDevice) -> None:
    if device.info.largest_image is None:
        pytest.skip("the device has no images")
    image = device.allocator.image(4, 16, 4)
    pointer = int(ffi.cast("uintptr_t", image.memory))

    with pytest.raises(UnsupportedError, match="is an image, whose pixels lie as the device likes"):
        device.allocator.wrap(pointer, 64)
    device.allocator.free(image)
