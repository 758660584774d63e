"""Images of the interpreter: their rows, and what is refused."""

from __future__ import annotations

import numpy
import pytest

from tinycore.builtin.image import Image
from tinycore.builtin.interpreter import PythonRenderer, PythonRuntime
from tinycore.dtype import ImageDType, dtypes
from tinycore.errors import DeviceError
from tinycore.plugin import ProgramInfo
from tinycore.render.base import LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

KIND = dtypes.imagef((2, 3))
ONES = UOp(Op.VECTORIZE, dtypes.float32.vec(4), (UOp.const(dtypes.float32, 1.0),) * 4)
RUNTIME = PythonRuntime(0, "")


def run_store(column: int, row: int, handle: object, kind: ImageDType = KIND) -> None:
    """A kernel that writes ones to a pixel."""
    image = UOp(Op.DEFINE_GLOBAL, kind, (), 0)
    pixel = UOp(Op.PIXEL, kind, (image, UOp.index(column), UOp.index(row)))
    body = UOp(Op.STORE, dtypes.void, (pixel, ONES))
    linear = LinearKernel("ones", tuple(body.toposort()))
    binary = PythonRenderer().render(linear).encode()
    RUNTIME.load(binary, ProgramInfo("ones", 1))([handle], [])  # type: ignore[list-item]


def test_rows_begin_at_multiples_of_64_pixels() -> None:
    image = RUNTIME.allocator.image(2, 3, 4)

    image.fill(memoryview(numpy.arange(24, dtype="f").tobytes()))

    floats = image.memory.view("f")
    assert floats[:12].tolist() == list(range(12))
    assert floats[64 * 4 : 64 * 4 + 12].tolist() == list(range(12, 24))


def test_a_pixel_is_written() -> None:
    image = RUNTIME.allocator.image(2, 3, 4)
    image.fill(memoryview(bytes(96)))

    run_store(2, 1, image)

    assert image.content().view("f").tolist() == [0] * 20 + [1] * 4


@pytest.mark.parametrize(("column", "row"), [(3, 0), (0, 2), (-1, 0)])
def test_a_store_outside_is_an_error(column: int, row: int) -> None:
    with pytest.raises(DeviceError, match=r"kernel ones writes outside of an image \(2, 3, 4\)"):
        run_store(column, row, RUNTIME.allocator.image(2, 3, 4))


@pytest.mark.parametrize("kind", [dtypes.imagef((3, 2)), dtypes.imageh((2, 3))])
def test_an_image_of_another_kind_is_refused(kind: ImageDType) -> None:
    with pytest.raises(DeviceError, match=r"takes dtypes\.image.* in slot 0, not"):
        run_store(0, 0, RUNTIME.allocator.image(2, 3, 4), kind)


def test_plain_memory_is_no_image() -> None:
    with pytest.raises(DeviceError, match=r"takes dtypes\.imagef\(\(2, 3\)\) in slot 0"):
        run_store(0, 0, RUNTIME.allocator.alloc(96))


def test_an_image_says_what_it_is() -> None:
    assert repr(RUNTIME.allocator.image(2, 3, 2)) == "<Image of 2 rows of 3 pixels, float16>"
    assert isinstance(RUNTIME.allocator.image(1, 1, 4), Image)
