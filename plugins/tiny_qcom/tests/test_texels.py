"""Buffers that are read through texture units: which loads are, and what they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from adreno.kgsl import Kgsl
from nir_listings import A630, STORE
from simulated_qcom import Simulated, backend_of, execute

from tiny_qcom import ir3
from tiny_qcom.code import Code
from tiny_qcom.descriptors import texel_buffer
from tiny_qcom.texels import texel_loads
from tinycore import Context, Device, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.errors import CompilerUnavailable, DeviceError
from tinycore.lower.pipeline import lower
from tinycore.plugin import ProgramInfo, register, unregister

try:
    ir3.library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(autouse=True)
def driver() -> Iterator[Kgsl]:
    """A stand-in of its own for each, whose device is QCOM."""
    made = Kgsl(execute)
    register(backend_of(made))
    with Context(DEV="QCOM:IR3"):
        yield made
    unregister("QCOM")
    assert not made.faults


def numbers(*shape: int) -> Any:
    return numpy.random.default_rng(sum(shape)).integers(-9, 9, shape).astype("f")


def test_a_large_product_reads_one_operand_as_pixels_and_spills_nothing() -> None:
    with Context(DEV="NULL:IR3:a640"):
        toolchain = Device["NULL"].toolchain
        (item,) = (Tensor.empty(512, 512) @ Tensor.empty(512, 512)).schedule()
        kernel = lower(item.ast, toolchain.renderer, "kernel")
        code = Code.unpack(toolchain.compiler.compile(toolchain.renderer.render(kernel)), "kernel")
    assert len(texel_loads(kernel)) == 9  # four vectors of two steps, and what rows are filled by
    assert {how for _, how in code.images} == {"texels"}
    assert code.private_bytes == 0
    assert code.full_registers <= 48


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_a_convolution_reads_its_weights_as_pixels_and_spills_nothing(dtype: DType) -> None:
    """Mesa unrolls loops whose steps then do not fit registers; they are compiled as they are."""
    with Context(DEV="NULL:IR3:a640"):
        toolchain = Device["NULL"].toolchain
        image, weight = (Tensor.empty(*s, dtype=dtype) for s in ((4, 64, 56, 56), (64, 64, 3, 3)))
        *_, item = image.conv2d(weight, padding=1).schedule()
        kernel = lower(item.ast, toolchain.renderer, "kernel")
        code = Code.unpack(toolchain.compiler.compile(toolchain.renderer.render(kernel)), "kernel")
    assert texel_loads(kernel)
    assert code.images == ((2, "texels" if dtype is dtypes.float32 else "halves"),)
    assert code.private_bytes == 0
    assert code.full_registers <= 48


@pytest.mark.parametrize("kind", ["f", "e"])
def test_a_convolution_is_right(driver: Kgsl, kind: str) -> None:
    image, weight = numbers(1, 4, 30, 30).astype(kind), numbers(16, 4, 3, 3).astype(kind)
    found = Tensor(image).conv2d(Tensor(weight)).numpy()
    windows = numpy.lib.stride_tricks.sliding_window_view(image.astype("f"), (3, 3), (2, 3))
    expected = numpy.einsum("ncyxij,ocij->noyx", windows, weight.astype("f"))
    assert any(launch.textures for launch in driver.launches)
    assert (found == expected.astype(kind)).all()


def test_keys_are_copied_along_their_places(driver: Kgsl) -> None:
    """Queries and keys both lie along the sum."""
    queries, keys = numbers(2, 64, 16), numbers(2, 64, 16)
    found = (Tensor(queries) @ Tensor(keys).transpose(1, 2)).numpy()
    assert any(launch.textures for launch in driver.launches)
    assert (found == queries @ keys.transpose(0, 2, 1)).all()


def test_a_large_product_is_right(driver: Kgsl) -> None:
    """Sums of integers are exact."""
    a, b = numbers(256, 32), numbers(32, 512)
    found = (Tensor(a) @ Tensor(b)).numpy()
    assert any(launch.textures for launch in driver.launches)
    assert (found == a @ b).all()


def attended(q: Any, k: Any, v: Any, is_hidden: Any = False) -> Any:
    """Attention in float64."""
    q, k, v = (x.astype("d") for x in (q, k, v))
    scores = numpy.where(is_hidden, -numpy.inf, q @ k.swapaxes(-2, -1) / q.shape[-1] ** 0.5)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def normal(*shape: int) -> Any:
    return numpy.random.default_rng(sum(shape)).standard_normal(shape).astype("e")


def test_attention_stores_scores_and_no_weights() -> None:
    """Weights are computed from them where they are staged for the product with values; maxima and
    totals of rows are one kernel. The loops spill nothing; a few values of the last kernel's
    results do not fit beside all sums."""
    with Context(DEV="NULL:IR3:a640"):
        toolchain = Device["NULL"].toolchain
        q, k, v = (Tensor.empty(1, 16, 256, 64, dtype=dtypes.float16) for _ in "qkv")
        items = q.scaled_dot_product_attention(k, v).schedule()
        kernels = [lower(item.ast, toolchain.renderer, "kernel") for item in items]
        sources = map(toolchain.renderer.render, kernels)
        codes = [Code.unpack(toolchain.compiler.compile(s), "kernel") for s in sources]
    assert len(items) == 4
    scores = 16 * 256 * 256
    large = [[n for n, b in enumerate(item.bufs) if b.size == scores] for item in items]
    assert large == [[], [0], [2], [2]]  # stored once, read for its folds and for the product
    assert [b.size for b in items[2].bufs[:2]] == [scores // 256, scores // 256]
    assert all(code.private_bytes == 0 for code in codes[:3])


@pytest.mark.parametrize("is_causal", [False, True], ids=["whole", "causal"])
def test_attention_of_halves_is_right(driver: Kgsl, is_causal: bool) -> None:
    q, k, v = (normal(1, 4, 128, 64) + n for n in range(3))
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=is_causal)
    hidden = ~numpy.tri(128, dtype=bool) if is_causal else False
    assert numpy.allclose(found.numpy(), attended(q, k, v, hidden), rtol=2e-3, atol=2e-3)
    assert any(launch.textures for launch in driver.launches)
    assert len(driver.launches) == 4


def test_a_query_of_heads_that_share_keys_is_right(driver: Kgsl) -> None:
    """Keys are read by pixels along the sum, values in parts."""
    q, k, v = normal(1, 8, 1, 32), normal(1, 2, 1024, 32), normal(1, 2, 1024, 32)
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), enable_gqa=True)
    heads = [x.repeat(4, 1) for x in (k, v)]
    assert numpy.allclose(found.numpy(), attended(q, *heads), rtol=2e-3, atol=2e-3)
    assert any(launch.textures for launch in driver.launches)


@pytest.mark.parametrize("kind", ["f", "e"])
def test_few_rows_times_what_lies_along_the_sum_are_right(driver: Kgsl, kind: str) -> None:
    rows, weights = numbers(4, 64).astype(kind), numbers(2048, 64).astype(kind)
    found = (Tensor(rows) @ Tensor(weights).T).numpy()
    assert any(launch.textures for launch in driver.launches)
    assert (found == (rows.astype("f") @ weights.astype("f").T).astype(kind)).all()


def test_a_softmax_of_halves_is_right_for_all_that_is_hidden_or_far_or_no_number() -> None:
    rows = numpy.linspace(-200, 60, 4 * 64).reshape(4, 64)[:, ::-1].astype("e")
    rows[1, 5:] = -numpy.inf
    rows[2, 7] = numpy.nan
    found = Tensor(rows).softmax(-1).numpy()
    powers = numpy.exp(rows.astype("d") - rows.astype("d").max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    assert numpy.allclose(found, expected, rtol=2e-3, atol=2.0**-24, equal_nan=True)


def test_every_half_is_a_float_and_every_float_the_nearest_half() -> None:
    """Subnormal halves too, of which the conversions of the hardware make zeros."""
    halves = numpy.arange(1 << 16, dtype="H").view("e")
    floats = numpy.arange(0, 1 << 32, 999_983, dtype="L").astype("I").view("f")
    near = numpy.arange(0x32FF_FFF0, 0x3880_0010, 0x3FFF, dtype="I").view("f")
    some = numpy.concatenate([floats, near, -near, halves.astype("f")])

    widened = Tensor(halves).cast(dtypes.float32).numpy()
    narrowed = Tensor(some).cast(dtypes.float16).numpy()

    assert numpy.array_equal(widened, halves.astype("f"), equal_nan=True)
    assert (numpy.signbit(widened) == numpy.signbit(halves))[halves == halves].all()
    with numpy.errstate(over="ignore"):
        assert numpy.array_equal(narrowed, some.astype("e"), equal_nan=True)


def test_halves_are_read_as_pixels_where_they_are_only_multiplied() -> None:
    with Context(DEV="NULL:IR3:a640"):
        toolchain = Device["NULL"].toolchain
        a, b = (Tensor.empty(512, 512, dtype=dtypes.float16) for _ in "ab")
        (item,) = (a @ b).schedule()
        kernel = lower(item.ast, toolchain.renderer, "kernel")
        code = Code.unpack(toolchain.compiler.compile(toolchain.renderer.render(kernel)), "kernel")
    assert {how for _, how in code.images} == {"halves"}
    assert code.private_bytes == 0


def test_products_of_halves_are_right() -> None:
    a, b = numbers(256, 32).astype("e"), numbers(32, 512).astype("e")
    found = (Tensor(a) @ Tensor(b)).numpy()
    assert (found == (a.astype("f") @ b.astype("f")).astype("e")).all()


def test_integers_of_the_size_of_halves_are_none() -> None:
    """A matrix of uint16 that is multiplied as floats is read as what it is."""
    a = numbers(256, 32)
    b = numpy.random.default_rng(1).integers(0, 1 << 16, (32, 512)).astype("H")
    found = (Tensor(a) @ Tensor(b).cast(dtypes.float32)).numpy()
    assert (found == a @ b.astype("f")).all()


READ = """kernel k
block 64 1 1
shared 0
arguments 16
image 0 1 {how}
%three = const 32 0x3
%x = thread 0
%wide = u2u64 %x
%far = ishl %wide %three
%t = texel 0 %x
%r = lane %t 1
"""


@pytest.mark.parametrize(("how", "kind", "start"), [("texels", "f", 48), ("halves", "e", 24)])
def test_pixels_are_those_of_a_view_from_its_start_to_its_end(
    driver: Kgsl, how: str, kind: str, start: int
) -> None:
    """Descriptors name multiples of 64 bytes; threads past the end of 50 pixels get zeros."""
    device = Simulated(driver)
    code = ir3.Ir3Compiler(A630).compile(READ.format(how=how) + STORE.format(bits=32))
    kernel = device.load(code, ProgramInfo("k", 2, block=(64, 1, 1)))
    content = numpy.arange(1, 400, dtype=kind)
    out, whole = (device.allocator.alloc(2048) for _ in range(2))
    device.allocator.write(out, memoryview(bytes(2048)))
    device.allocator.write(whole, memoryview(content.tobytes()))
    pixel = 4 * content.itemsize
    kernel([out, device.allocator.offset(whole, 50 * pixel, start)], [], wait=True)
    back = bytearray(512)
    device.allocator.read(memoryview(back), out)
    found = numpy.frombuffer(back, "I").view("f")[::2]
    first = start // content.itemsize
    expected = numpy.zeros(64, "f")
    expected[:50] = content[first + 1 :: 4][:50]
    assert (found == expected).all()
    with pytest.raises(DeviceError, match="starts at a multiple of"):
        kernel([out, device.allocator.offset(whole, 64, 2)], [], wait=True)
    device.close()


def test_texels_start_at_a_multiple_of_64_bytes_and_some() -> None:
    words = numpy.frombuffer(texel_buffer(0x1_0000_1030, 4096, 4), "I")
    assert (words[4], words[5] & 0x1FFFF) == (0x1000, 1)
    assert words[2] >> 16 & 63 == 3
    assert words[1] == 256


def test_what_a_launch_wrote_is_read_as_pixels_by_the_next(driver: Kgsl) -> None:
    """A cache is written back and read anew before each launch that reads pixels of buffers."""
    a, b = numbers(256, 32), numbers(32, 512)
    weights = (Tensor(b) + 1).realize()
    found = (Tensor(a) @ weights).numpy()
    assert (found == a @ (b + 1)).all()
