"""Memory of Qualcomm's OpenCL by its raw address, as the documents of tinygrad show it."""

from __future__ import annotations

import ctypes
import errno
from collections import deque
from collections.abc import Iterator

import numpy
import pytest
from adreno import opencl
from adreno.kgsl import Kgsl
from simulated_qcom import Simulated, backend_of, execute

from tiny_qcom.ir3 import library_path
from tinycore import Device, Tensor, dtypes
from tinycore.errors import CompilerUnavailable, DeviceError, ShapeError
from tinycore.helpers import to_mv
from tinycore.plugin import HCQBuffer, register, unregister

try:
    library_path()
    RENDERER = "IR3"
except CompilerUnavailable as error:
    RENDERER = "QCOMCL"
    if why := opencl.missing():
        pytest.skip(f"{error} {why}", allow_module_level=True)

DESCRIPTION_BYTES = 0x100
ADDRESS = 20
"""Which word of the object behind a cl_mem is the raw address."""


class ClMemory(ctypes.c_void_p):
    """A cl_mem: a pointer to an object of the run time."""


class OpenCl:
    """Qualcomm's run time, as far as it is known: KGSL memory, and objects that say where."""

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self.kept: list[tuple[HCQBuffer, object]] = []

    def create_buffer(self, size: int) -> tuple[ClMemory, memoryview]:
        """A buffer, and its content."""
        return self.kept_as_object(self.device.allocator.alloc(size))

    def create_image(self, width: int, height: int) -> tuple[ClMemory, memoryview]:
        """An image of four floats a pixel, and its content, rows by pitch."""
        return self.kept_as_object(self.device.allocator.image(height, width, 4))

    def kept_as_object(self, memory: HCQBuffer) -> tuple[ClMemory, memoryview]:
        """The object behind a cl_mem."""
        words = numpy.full(DESCRIPTION_BYTES // 8, 0xDEAD, numpy.uint64)
        words[ADDRESS] = memory.address
        self.kept.append((memory, words))
        assert memory.view is not None
        return ClMemory(words.ctypes.data), memory.view


@pytest.fixture(scope="module")
def cl() -> Iterator[OpenCl]:
    driver = Kgsl(execute)
    register(backend_of(driver))
    device = Device["QCOM"].runtime
    assert isinstance(device, Simulated)
    yield OpenCl(device)
    unregister("QCOM")
    assert not driver.faults


def raw_pointer(memory: ClMemory) -> int:
    """The lines of the documents."""
    cl_buf_desc_ptr = to_mv(ctypes.addressof(memory), 8).cast("Q")[0]
    return to_mv(cl_buf_desc_ptr, 0x100).cast("Q")[20]


def test_a_buffer(cl: OpenCl) -> None:
    memory, content = cl.create_buffer(0x100)
    content.cast("i")[:] = memoryview(numpy.arange(64, dtype="i"))
    tiny = Tensor.from_blob(raw_pointer(memory), (8, 8), dtype=dtypes.int, device="QCOM")
    assert (tiny + 1).tolist() == (numpy.arange(64).reshape(8, 8) + 1).tolist()
    assert tiny.uop is not None
    content.cast("i")[0] = 77  # no copy was made
    assert (tiny + 1)[0, 0].item() == 78


@pytest.mark.parametrize("width", [128, 100])
def test_an_image(cl: OpenCl, width: int) -> None:
    """Also with rows that are filled up to a multiple of 64 pixels."""
    h, w, pitch = 6, width, 128
    memory, content = cl.create_image(w, h)
    numbers = numpy.arange(h * w * 4, dtype="f")
    rows = numpy.frombuffer(content, "f").reshape(h, pitch * 4)
    rows[:, : w * 4] = numbers.reshape(h, w * 4)
    cl.device.driver.launches.clear()
    pointer = raw_pointer(memory)
    tiny = Tensor.from_blob(pointer, (h * w * 4,), dtype=dtypes.imagef((h, w)), device="QCOM")
    assert (tiny + 1).tolist() == (numbers + 1).tolist()
    assert tiny.image is dtypes.imagef((h, w))
    assert RENDERER == "QCOMCL" or cl.device.driver.launches[-1].textures
    rows[0, 0] = 77  # no copy was made
    assert (tiny + 1)[0].item() == 78
    tiny.assign(tiny * 2).realize()
    Device["QCOM"].synchronize()
    assert (rows[1, :4] == 2 * numbers[w * 4 : w * 4 + 4]).all()


def test_an_image_that_does_not_begin_where_images_do(cl: OpenCl) -> None:
    memory, _ = cl.create_buffer(0x4000)
    pointer = raw_pointer(memory)
    with pytest.raises(DeviceError, match="first pixel must lie at a multiple of 64"):
        Tensor.from_blob(pointer + 16, (4096,), dtype=dtypes.imagef((8, 128)), device="QCOM")
    with pytest.raises(ShapeError, match="does not fill"):
        Tensor.from_blob(pointer, (4095,), dtype=dtypes.imagef((8, 128)), device="QCOM")


def test_what_is_neither_of_this_process_nor_of_kgsl(cl: OpenCl) -> None:
    array = numpy.zeros(64, "f")
    x = Tensor.from_blob(array.ctypes.data, (16,), dtype="float32", device="QCOM", owner=array)
    assert (x + 2).tolist() == [2.0] * 16
    cl.device.driver.injected[0xC0300915] = deque([errno.EPERM])
    with pytest.raises(DeviceError, match="neither memory of this process"):
        cl.device.allocator.wrap(0x1000, 64)
