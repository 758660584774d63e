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

from tiny_hcq import HCQBuffer
from tiny_qcom.ir3 import library_path
from tinycore import Context, Device, Tensor, dtypes
from tinycore.errors import CompilerUnavailable, DeviceError, ShapeError
from tinycore.helpers import to_mv
from tinycore.plugin import register, unregister

RENDERERS = []
try:
    library_path()
    RENDERERS.append("IR3")
except CompilerUnavailable as error:
    why = str(error)
if not (lacking := opencl.missing()):
    RENDERERS.append("QCOMCL")
if not RENDERERS:
    pytest.skip(f"{why} {lacking}", allow_module_level=True)

DESCRIPTION_BYTES = 0x100
ADDRESS = 20
"""Number of the word with the raw address, in the object behind a cl_mem."""
BUFFER_PROGRAM = """
# create raw opencl buffer.
cl_buf = cl.clCreateBuffer(cl_context, cl.CL_MEM_READ_WRITE, 0x100, None, status := ctypes.c_int32())

# extract pointers
cl_buf_desc_ptr = to_mv(ctypes.addressof(cl_buf), 8).cast('Q')[0]
rawbuf_ptr = to_mv(cl_buf_desc_ptr, 0x100).cast('Q')[20] # offset 0xA0 is a raw gpu pointer.

# create tiny tensor
tiny = Tensor.from_blob(rawbuf_ptr, (8, 8), dtype=dtypes.int, device='QCOM')
"""  # noqa: E501  word for word
IMAGE_PROGRAM = """
# create cl image.
cl_img = cl.clCreateImage2D(cl_context, cl.CL_MEM_READ_WRITE, cl.cl_image_format(cl.CL_RGBA, cl.CL_FLOAT), w, h, 0, None, status := ctypes.c_int32())

# extract pointers
cl_buf_desc_ptr = to_mv(ctypes.addressof(cl_img), 8).cast('Q')[0]
rawbuf_ptr = to_mv(cl_buf_desc_ptr, 0x100).cast('Q')[20] # offset 0xA0 is a raw gpu pointer.

# create tiny tensor
tiny = Tensor.from_blob(rawbuf_ptr, (h*w*4,), dtype=dtypes.imagef((h,w)), device='QCOM')
"""  # noqa: E501  word for word
"""The programs of tinygrad's documents, word for word."""


class ClMemory(ctypes.c_void_p):
    """A cl_mem: a pointer to an object of the run time."""


class OpenCl:
    """Qualcomm's run time, as far as it is known: KGSL memory, and objects that say where.

    It has the names of a module of ctypes that the documents' programs call `cl`.
    """

    CL_MEM_READ_WRITE = 1
    CL_RGBA = 0x10B5
    CL_FLOAT = 0x10DE

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self.kept: list[tuple[HCQBuffer, object]] = []

    @staticmethod
    def cl_image_format(order: int, kind: int) -> tuple[int, int]:
        return order, kind

    def clCreateBuffer(  # noqa: N802  a function of OpenCL
        self, context: object, flags: int, size: int, host: None, status: ctypes.c_int32
    ) -> ClMemory:
        return self.kept_as_object(self.device.allocator.alloc(size), status)

    def clCreateImage2D(  # noqa: N802  a function of OpenCL
        self,
        context: object,
        flags: int,
        kind: tuple[int, int],
        width: int,
        height: int,
        pitch: int,
        host: None,
        status: ctypes.c_int32,
    ) -> ClMemory:
        assert kind == (self.CL_RGBA, self.CL_FLOAT)
        return self.kept_as_object(self.device.allocator.image(height, width, 4), status)

    def kept_as_object(self, memory: HCQBuffer, status: ctypes.c_int32) -> ClMemory:
        """The object behind a cl_mem."""
        words = numpy.full(DESCRIPTION_BYTES // 8, 0xDEAD, numpy.uint64)
        words[ADDRESS] = memory.address
        self.kept.append((memory, words))
        status.value = 0
        return ClMemory(words.ctypes.data)

    @property
    def content(self) -> memoryview:
        """Bytes of the last object, rows of images by pitch."""
        view = self.kept[-1][0].view
        assert view is not None
        return view

    def run(self, program: str, **names: object) -> tuple[Tensor, int]:
        """A program of the documents: its tensor, and the raw address."""
        found = {"cl": self, "cl_context": None, "ctypes": ctypes, "to_mv": to_mv, **names}
        found |= {"Tensor": Tensor, "dtypes": dtypes}
        exec(program, found)
        tiny, address = found["tiny"], found["rawbuf_ptr"]
        assert isinstance(tiny, Tensor)
        assert isinstance(address, int)
        return tiny, address


@pytest.fixture(scope="module", params=RENDERERS)
def cl(request: pytest.FixtureRequest) -> Iterator[OpenCl]:
    driver = Kgsl(execute)
    register(backend_of(driver))
    with Context(DEV=f"QCOM:{request.param}"):
        device = Device["QCOM"].runtime
        assert isinstance(device, Simulated)
        made = OpenCl(device)
    yield made
    unregister("QCOM")
    assert not driver.faults


@pytest.fixture(autouse=True)
def on_the_device(cl: OpenCl, request: pytest.FixtureRequest) -> Iterator[None]:
    renderer = request.node.callspec.params["cl"]
    with Context(DEV=f"QCOM:{renderer}"):
        yield


def test_a_buffer(cl: OpenCl) -> None:
    tiny, _ = cl.run(BUFFER_PROGRAM)
    cl.content.cast("i")[:] = numpy.arange(64, dtype="i").data
    assert (tiny + 1).tolist() == (numpy.arange(64).reshape(8, 8) + 1).tolist()
    cl.content.cast("i")[0] = 77  # no copy was made
    assert (tiny + 1)[0, 0].item() == 78
    tiny.assign(tiny * 2).realize()
    Device["QCOM"].synchronize()
    assert cl.content.cast("i")[:3].tolist() == [154, 2, 4]


@pytest.mark.parametrize("width", [128, 100])
def test_an_image(cl: OpenCl, width: int) -> None:
    """Also with rows that are filled up to a multiple of 64 pixels."""
    h, w, pitch = 6, width, 128
    tiny, _ = cl.run(IMAGE_PROGRAM, w=w, h=h)
    numbers = numpy.arange(h * w * 4, dtype="f")
    rows = numpy.frombuffer(cl.content, "f").reshape(h, pitch * 4)
    rows[:, : w * 4] = numbers.reshape(h, w * 4)
    cl.device.driver.launches.clear()
    assert (tiny + 1).tolist() == (numbers + 1).tolist()
    assert tiny.image is dtypes.imagef((h, w))
    assert cl.device.driver.launches[-1].textures
    rows[0, 0] = 77  # no copy was made
    assert (tiny + 1)[0].item() == 78
    tiny.assign(tiny * 2).realize()
    Device["QCOM"].synchronize()
    assert (rows[1, :4] == 2 * numbers[w * 4 : w * 4 + 4]).all()


def test_an_image_that_does_not_begin_where_images_do(cl: OpenCl) -> None:
    pointer = cl.device.allocator.alloc(0x4000).address
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
