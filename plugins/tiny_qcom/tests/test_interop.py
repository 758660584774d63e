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
from tinycore.errors import CompilerUnavailable, DeviceError
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
        memory = self.device.allocator.alloc(size)
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


def test_what_is_neither_of_this_process_nor_of_kgsl(cl: OpenCl) -> None:
    array = numpy.zeros(64, "f")
    x = Tensor.from_blob(array.ctypes.data, (16,), dtype="float32", device="QCOM", owner=array)
    assert (x + 2).tolist() == [2.0] * 16
    cl.device.driver.injected[0xC0300915] = deque([errno.EPERM])
    with pytest.raises(DeviceError, match="neither memory of this process"):
        cl.device.allocator.wrap(0x1000, 64)
