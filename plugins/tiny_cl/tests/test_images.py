"""Images in OpenCL C, and tensors in them on the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

from tiny_cl.device import ClDevice
from tiny_cl.render import OpenClC
from tiny_testing.kernels import Array, element, load
from tinycore import Context, Device, Tensor, TinyJit, dtypes
from tinycore.lower.pipeline import lower
from tinycore.render.base import Limits
from tinycore.schedule.device_memory import buffer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

KIND = dtypes.imagef((8, 3))


def source() -> str:
    """A kernel that doubles an image into another one, as a device without float64 gets it."""
    out, into = (UOp(Op.DEFINE_GLOBAL, kind, (), n) for n, kind in enumerate((KIND, KIND)))
    row, column = UOp.range(8, 0), UOp.range(3, 1)
    place = row * 12 + column * 4
    lanes = [
        UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, KIND, (into, place + n)),)) for n in range(4)
    ]
    value = UOp(Op.VECTORIZE, dtypes.float32.vec(4), tuple([x * 2.0 for x in lanes]))
    store = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, KIND, (out, place)), value))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, row, column)))
    renderer = OpenClC(Limits(image=(64, 64)), has_double=False)
    return renderer.render(lower(kernel, renderer, "double", plan=()))


def test_a_kernel_reads_one_image_and_writes_another() -> None:
    found = source()

    assert "constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP" in found
    assert "(write_only image2d_t data0, read_only image2d_t data1, const long start0" in found
    assert "read_imagef(data1, nearest, (int2)(i1, i0))" in found
    assert "write_imagef(data0, (int2)(i1, i0), (float4)(" in found
    assert found.count("read_imagef") == 1


def test_kernels_without_images_have_no_sampler() -> None:
    renderer = OpenClC(Limits())
    place = element(0, dtypes.float32, 4, UOp.index(0))
    kernel = UOp.sink(UOp(Op.STORE, dtypes.void, (place, load(place, dtypes.float32))))

    assert "sampler_t" not in renderer.render(lower(kernel, renderer, "plain", plan=()))


def test_a_device_without_float64_is_known_to_lack_it() -> None:
    """Else sines of float32 would be reduced in float64."""
    assert OpenClC(Limits(), has_double=False).lacking == {dtypes.float64}
    assert not OpenClC(Limits()).lacking


def test_a_kernel_that_stores_past_the_end_writes_nothing() -> None:
    pointer = UOp(Op.DEFINE_GLOBAL, KIND, (), 0)
    counter = UOp.range(32, 0)
    index = UOp(Op.INDEX, KIND, (pointer, counter.minimum(23) * 4, counter < 24))
    value = UOp(Op.VECTORIZE, dtypes.float32.vec(4), (UOp.const(dtypes.float32, 1.0),) * 4)
    store = UOp(Op.STORE, dtypes.void, (index, value))
    renderer = OpenClC(Limits(image=(64, 64)))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (store, counter)))

    assert "if (i0 < 24) { write_imagef(" in renderer.render(lower(kernel, renderer, "k", plan=()))


# --- on the device


@pytest.fixture
def on_the_device(driver: None) -> Iterator[None]:
    """Tensors that name no device are on the first one, which has images."""
    with Context(DEV="CL"):
        if not Device["CL"].has("image"):
            pytest.skip("the device has no images")
        yield


def numbers(*shape: int, seed: int = 0) -> Array:
    return numpy.random.default_rng(seed).integers(-9, 9, shape).astype("f")


@pytest.mark.parametrize("channel_bytes", [4, 2])
def test_an_image_keeps_its_pixels(device: ClDevice, channel_bytes: int) -> None:
    if device.info.largest_image is None:
        pytest.skip("the device has no images")
    image = device.allocator.image(5, 33, channel_bytes)
    size = 5 * 33 * 4
    content = numpy.arange(size).astype("f" if channel_bytes == 4 else "e").tobytes()
    device.allocator.write(image, memoryview(content))

    found = bytearray(len(content))
    device.allocator.read(memoryview(found), image)
    device.allocator.free(image)

    assert bytes(found) == content


def test_products_are_computed_on_images(on_the_device: None) -> None:
    a, b = numbers(24, 12), numbers(12, 20, seed=1)
    x = Tensor(a).cast(dtypes.imagef((24, 3))).realize()
    y = Tensor(b).cast(dtypes.imageh((12, 5))).realize()

    assert buffer_of(x.uop).image is dtypes.imagef((24, 3))
    assert (x @ y.float()).numpy().tolist() == (a @ b).tolist()


def test_a_step_on_images_is_captured(on_the_device: None) -> None:
    kind = dtypes.imagef((8, 3))
    state = Tensor(numbers(8, 12)).cast(kind).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        state.assign(state + x.cast(kind)).realize()
        return state.sum().realize()

    total = numbers(8, 12)
    for seed in range(4):
        total = total + numbers(8, 12, seed=seed)
        assert step(Tensor(numbers(8, 12, seed=seed)).realize()).item() == total.sum()
    assert state.tolist() == total.tolist()
