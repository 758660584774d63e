"""Images at the edges: what is outside of them, rows that are filled up, sizes that do not go."""

from __future__ import annotations

from typing import Any, Final

import numpy
import pytest
from adreno.kgsl import Kgsl
from nir_listings import A630, STORE
from simulated_qcom import backend_of, execute

from tiny_hcq import HCQBuffer
from tiny_qcom import ir3
from tiny_qcom.descriptors import descriptor
from tiny_qcom.device import QcomDevice
from tiny_qcom.memory import Pixels
from tiny_testing.kernels import element
from tiny_testing.suite import Subject
from tiny_testing.suite.images import PIXEL, content_of, in_memory, pixel, pixels
from tiny_testing.suite.kernels import in_line
from tiny_testing.suite.kernels import loaded as loaded_program
from tinycore import Context, Device, Tensor, dtypes
from tinycore.errors import CompilerUnavailable, UnsupportedError
from tinycore.plugin import ProgramInfo, register, unregister
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

HEIGHT, WIDTH, PITCH = 3, 5, 64
KINDS: Final[dict[int, numpy.dtype[Any]]] = {4: numpy.dtype("f"), 2: numpy.dtype("e")}
COPY = """kernel k
block 16 8 1
shared 0
arguments 16
image 0 1 written
image 1 0 read
%four = const 32 0x4
%two = const 32 0x2
%x = thread 0
%y = thread 1
%column = isub %x %four
%row = isub %y %two
%p = pixel 1 %column %row
%r = lane %p 0
%g = lane %p 1
%b = lane %p 2
%a = lane %p 3
draw 0 %column %row %a %b %g %r
"""


def rows_of(driver: Kgsl, image: HCQBuffer, channel_bytes: int) -> Any:
    """All there is of an image, with what fills its rows up."""
    region = driver.memory.region_at(image.address)
    assert region is not None
    row = PITCH * 4 * channel_bytes
    return region.data[: HEIGHT * row].view(KINDS[channel_bytes]).reshape(HEIGHT, PITCH, 4)


@pytest.mark.parametrize("channel_bytes", KINDS)
def test_pixels_outside_are_zero_and_those_written_there_are_dropped(
    device: QcomDevice, driver: Kgsl, channel_bytes: int
) -> None:
    """A grid of 16 x 8 threads over an image of 5 x 3 pixels, from column -4 and row -2 on."""
    kernel = device.load(ir3.Ir3Compiler(A630).compile(COPY), ProgramInfo("k", 2, block=(16, 8, 1)))
    source, target = (device.allocator.image(HEIGHT, WIDTH, channel_bytes) for _ in range(2))
    pixels = numpy.arange(HEIGHT * WIDTH * 4).astype(KINDS[channel_bytes])
    device.allocator.write(source, memoryview(pixels.tobytes()))
    all_rows = rows_of(driver, target, channel_bytes)
    all_rows[:] = 7
    kernel([source, target], [], wait=True)
    expected = numpy.full_like(all_rows, 7)
    expected[:, :WIDTH] = pixels.reshape(HEIGHT, WIDTH, 4)[..., ::-1]
    assert (all_rows == expected).all()
    assert driver.launches[-1].textures
    for image in (source, target):
        device.allocator.free(image)


SUMMED = COPY.partition("draw")[0].replace("image 0 1 written\n", "")
SUMMED = SUMMED.replace("image 1 0 read", "image 0 1 read").replace("pixel 1", "pixel 0")
BORDER = """%sixteen = const 32 0x10
%three = const 32 0x3
%line = imul %y %sixteen
%place = iadd %line %x
%wide = u2u64 %place
%far = ishl %wide %three
%r1 = fadd %r %g
%r2 = fadd %b %a
%r = fadd %r1 %r2
"""


def test_the_border_is_read_as_zeros(device: QcomDevice) -> None:
    listing = SUMMED + BORDER + STORE.format(bits=32)
    info = ProgramInfo("k", 2, block=(16, 8, 1))
    kernel = device.load(ir3.Ir3Compiler(A630).compile(listing), info)
    source, out = device.allocator.image(HEIGHT, WIDTH, 4), device.allocator.alloc(1024)
    pixels = numpy.ones(HEIGHT * WIDTH * 4, "f")
    device.allocator.write(source, memoryview(pixels.tobytes()))
    device.allocator.write(out, memoryview(bytes(1024)))
    kernel([out, source], [], wait=True)
    back = bytearray(1024)
    device.allocator.read(memoryview(back), out)
    found = numpy.frombuffer(back, "Q").astype("I").view("f").reshape(8, 16)
    expected = numpy.zeros((8, 16), "f")
    expected[2 : 2 + HEIGHT, 4 : 4 + WIDTH] = 4
    assert (found == expected).all()
    for memory in (source, out):
        device.allocator.free(memory)


@pytest.mark.parametrize(
    ("width", "channel_bytes", "pitch"), [(1, 4, 1024), (64, 2, 512), (65, 4, 2048), (200, 2, 2048)]
)
def test_a_descriptor_states_a_pitch_of_whole_units(
    width: int, channel_bytes: int, pitch: int
) -> None:
    """Rows begin at multiples of 64 pixels, so of 1 KiB or 512 bytes."""
    words = numpy.frombuffer(descriptor(0x1000, Pixels(3, width, channel_bytes), True), "I")
    assert words[2] >> 7 & 0x3FFFFF == pitch
    assert pitch % (64 << (words[2] & 15)) == 0
    assert words[1] == width | 3 << 15


@pytest.mark.parametrize("address", [0x1020, 0x1001])
def test_an_address_that_no_descriptor_states_is_refused(address: int) -> None:
    with pytest.raises(UnsupportedError, match="must lie at a multiple of 64"):
        descriptor(address, Pixels(3, 64, 4), True)


@pytest.mark.parametrize(("size", "is_image"), [((2, 16_384), True), ((2, 16_385), False)])
def test_an_image_that_is_too_large_is_plain_memory(size: tuple[int, int], is_image: bool) -> None:
    """The computation is the same; no launch reads through a texture."""
    driver = Kgsl(execute)
    register(backend_of(driver))
    try:
        with Context(DEV="QCOM:IR3"):
            numbers = numpy.arange(size[0] * size[1] * 4, dtype="f")
            x = Tensor(numbers).cast(dtypes.imagef(size)).realize()
            assert ((x * 2).numpy() == numbers * 2).all()
    finally:
        unregister("QCOM")
    assert any(launch.textures for launch in driver.launches) == is_image
    assert not driver.faults


def test_an_image_that_is_written_may_come_after_those_that_are_read() -> None:
    """Slot 1 is written and slot 0 is read; stores count written images only."""
    driver = Kgsl(execute)
    register(backend_of(driver))
    kind = dtypes.imagef((HEIGHT, WIDTH))
    try:
        subject = Subject("QCOM:IR3")
        with Context(DEV="QCOM:IR3"), subject.chosen():
            value = UOp(Op.LOAD, PIXEL, (pixel(kind, 0, 2, 1),))
            plain = element(2, dtypes.float32, 4, UOp.index(0))
            stores = [
                UOp(Op.STORE, dtypes.void, (to, value)) for to in (plain, pixel(kind, 1, 4, 2))
            ]
            program = loaded_program(subject, in_line(*stores), 3, "last")
            a, b = (pixels(kind, seed) for seed in range(2))
            with (
                in_memory(subject, kind, a) as source,
                in_memory(subject, kind, b) as target,
                subject.memory(16) as copy,
            ):
                program([source, target, copy], [])
                found = content_of(subject, target, kind)
                assert subject.read(copy, 16) == a[1, 2].tobytes()
    finally:
        unregister("QCOM")
    expected = b.copy()
    expected[2, 4] = a[1, 2]
    assert (found == expected).all()
    assert not driver.faults


@pytest.mark.parametrize("count", [16, 17, 40])
def test_more_images_than_a_launch_reads_are_read_by_several(count: int) -> None:
    driver = Kgsl(execute)
    register(backend_of(driver))
    try:
        with Context(DEV="QCOM:IR3"):
            arrays = [pixels(dtypes.imagef((4, 4)), seed).reshape(4, 16) for seed in range(count)]
            kept = [Tensor(a).cast(dtypes.imagef((4, 4))).realize() for a in arrays]
            Device["QCOM"].synchronize()
            driver.launches.clear()
            total = sum(kept[1:], kept[0])
            assert total.numpy() == pytest.approx(sum(a.astype("d") for a in arrays), rel=1e-5)
    finally:
        unregister("QCOM")
    read = [len(launch.textures) for launch in driver.launches]
    assert max(read) <= 16
    assert (len(read) == 1) == (count == 16)
    assert not driver.faults


def test_a_kernel_that_reads_too_many_images_is_refused(device: QcomDevice) -> None:
    """Images that a listing names as read are textures, each."""
    images = "".join(f"image {n} {n} read\n" for n in range(1, 18))
    head = COPY.partition("image 1")[0].replace("image 0 1", "image 0 0") + images
    head = head.replace("arguments 16", "arguments 144")
    body = "%x = thread 0\n" + "".join(
        f"%p{n} = pixel {n} %x %x\n%l{n} = lane %p{n} 0\n"
        + (f"%s{n} = fadd %l{n} %s{n - 1}\n" if n > 1 else "%s1 = mov %l1\n")
        for n in range(1, 18)
    )
    binary = ir3.Ir3Compiler(A630).compile(head + body + "draw 0 %x %x %s17 %s17 %s17 %s17\n")
    with pytest.raises(UnsupportedError, match="k reads 17 images, and a launch has 16"):
        device.load(binary, ProgramInfo("k", 18, block=(16, 8, 1)))


@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("size", [(5, 7, 3), (1, 13, 66), (33, 4, 1)])
def test_products_with_odd_ends(mode: int, size: tuple[int, int, int]) -> None:
    driver = Kgsl(execute)
    register(backend_of(driver))
    try:
        with Context(DEV="QCOM:IR3", IMAGE=mode):
            generator = numpy.random.default_rng(0)
            a = generator.integers(-9, 9, size[:2]).astype("f")
            b = generator.integers(-9, 9, size[1:]).astype("f")
            assert ((Tensor(a) @ Tensor(b)).numpy() == a @ b).all()
    finally:
        unregister("QCOM")
    assert not driver.faults
