"""Boxes that the card copies by itself (TMA): the maps a launch encodes, and faults that are found.

The executor gives a map its meaning from the 128 bytes that the driver's stand-in encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from emulation.faults import BarrierFault, MisalignedAddress, RaceFault
from matrix_programs import for_few_threads, noted, small_integers
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card, EncodedMap, Function

from tiny_nv._native import ffi
from tiny_nv.arch import arch_of, limits_of
from tiny_nv.phases import maps_of
from tiny_nv.program import MAP_BYTES, NvrtcCompiler, PtxCompiler
from tiny_nv.spills import spilled_bytes
from tiny_testing.kernels import element, load, store
from tinycore import Context, Device, Tensor, TinyJit, dtypes
from tinycore.dtype import DType
from tinycore.engine.compile import info_of
from tinycore.errors import DeviceError
from tinycore.lower.pipeline import lower
from tinycore.lower.tile import Bind, Plan, Split, Stage, Tail
from tinycore.plugin import register, unregister
from tinycore.uop.host_bytes import encode
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

COPY = "cp.async.bulk.tensor.2d"
CALL = "copy_box(temp"
INVALID_VALUE, OUT_OF_RESOURCES = 1, 701


class Changing(Simulated):
    """A driver whose assembler makes of a text what a test says."""

    change: Callable[[str], str] = str

    def module_of(self, image: bytes) -> Any:
        return super().module_of(self.change(image.decode()).encode())

    @property
    def maps(self) -> list[bytes]:
        """The maps of the last launch, which had three buffers and no values."""
        arguments = self.launches[-1].arguments
        return [arguments[start : start + MAP_BYTES] for start in range(64, len(arguments), 128)]


@pytest.fixture(params=on_one_of("NVRTC", "PTX"))
def driver(request: pytest.FixtureRequest) -> Iterator[Changing]:
    """A Hopper with one multiprocessor, asked for what it alone has."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    found = Changing((Card(),))
    register(for_few_threads(backend_of(found)))
    with Context(DEV=f"CUDA:{request.param}:sm_90a"):
        yield found
    unregister("CUDA")


def operands(m: int, n: int, k: int, dtype: DType = dtypes.half) -> tuple[Tensor, Tensor]:
    """Both operands of a product, which lie along the sum."""
    a, b = small_integers(m, k), small_integers(n, k, seed=1)
    x, y = (Tensor(v.astype("f")).cast(dtype).realize() for v in (a, b))
    return x, y


def product(x: Tensor, y: Tensor) -> Tensor:
    return x.matmul(y.T, dtype=dtypes.float32)


def check(x: Tensor, y: Tensor, found: Tensor) -> None:
    a, b = (v.cast(dtypes.float32).numpy() for v in (x, y))
    assert numpy.array_equal(found.numpy(), a @ b.T)


def copies_boxes(texts: list[str]) -> bool:
    return any(CALL in text or COPY in text for text in texts)


@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_a_launch_says_what_its_operands_are(driver: Changing, dtype: DType) -> None:
    x, y = operands(100, 130, 136, dtype)
    with noted() as sources:
        found = product(x, y).realize()

    assert copies_boxes(sources.texts)
    kind = 6 if dtype is dtypes.half else 9
    rows = {100: (64, 128), 130: (64, 128, 256)}
    for number, (size, boxes) in enumerate(rows.items()):
        address = int.from_bytes(driver.maps[number][:8], "little")
        encoded = {
            EncodedMap(kind, address, (136, size), (64, box), (1, 1), (272,), 3).encoded
            for box in boxes
        }
        assert driver.maps[number] in encoded
    check(x, y, found)


def test_a_batch_of_products(driver: Changing) -> None:
    a, b = (small_integers(3 * 64, 128, seed=s).reshape(3, 64, 128) for s in range(2))
    x, y = (Tensor(v.astype("f")).half().realize() for v in (a, b))
    with noted() as sources:
        found = x.matmul(y.transpose(1, 2), dtype=dtypes.float32).numpy()

    assert copies_boxes(sources.texts)
    assert numpy.array_equal(found, a @ b.transpose(0, 2, 1))


def test_a_part_of_a_tensor(driver: Changing) -> None:
    whole, y = operands(80, 64, 128)
    with noted() as sources:
        found = product(whole[16:], y).numpy()

    assert copies_boxes(sources.texts)
    assert numpy.array_equal(
        found, small_integers(80, 128)[16:] @ small_integers(64, 128, seed=1).T
    )


def test_a_captured_step_gets_maps_of_other_memory(driver: Changing) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return product(x, y).relu().realize()

    for seed in range(5):
        x, y = (Tensor(small_integers(64, 128, seed=seed + s).astype("f")).half() for s in (0, 9))
        found = step(x.realize(), y.realize()).numpy()
        a, b = x.float().numpy(), y.float().numpy()
        assert numpy.array_equal(found, numpy.maximum(a @ b.T, 0))


def test_memory_at_an_odd_place_is_no_tensor(driver: Changing) -> None:
    whole = Tensor(small_integers(1, 64 * 128 + 3).astype("f")).half().realize()
    x = whole.reshape(-1)[3:].reshape(64, 128)
    y, _ = operands(64, 64, 128)
    with noted() as sources:
        found = product(x, y)
        check(x, y, found)
    assert not copies_boxes(sources.texts[-1:])


def test_what_the_driver_refuses_is_told_with_the_buffer(driver: Changing) -> None:
    x, y = operands(64, 64, 128)
    driver.fail("cuTensorMapEncodeTiled", INVALID_VALUE)

    with pytest.raises(DeviceError, match=r"the map of buffer \d of kernel"):
        product(x, y).realize()


def test_a_map_is_encoded_once_for_an_address(driver: Changing) -> None:
    x, y = operands(64, 64, 128)
    for _ in range(3):
        product(x, y).realize()

    assert driver.calls["cuTensorMapEncodeTiled"] == 2


# --- boxes that any threads read

ROWS, COLUMNS, INNER = 24, 16, 96


def staged_product(dtype: DType) -> UOp:
    """The kernel of a product whose both operands lie along the sum, which is float32."""
    i, j = UOp.range(ROWS, 0), UOp.range(COLUMNS, 1)
    k = UOp.range(INNER, 2, AxisKind.REDUCE)
    left = load(element(1, dtype, ROWS * INNER, i * INNER + k), dtype)
    right = load(element(2, dtype, COLUMNS * INNER, j * INNER + k), dtype)
    factors = [x if x.dtype is dtypes.float32 else x.cast(dtypes.float32) for x in (left, right)]
    total = UOp(Op.REDUCE, dtypes.float32, (factors[0] * factors[1], k), Op.ADD)
    change = store(element(0, dtypes.float32, ROWS * COLUMNS, i * COLUMNS + j), total)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))


def plan_of(row_bytes: int, swizzle: int, dtype: DType) -> Plan:
    """Both operands staged by groups of 16 rows, so many bytes along the sum at a time."""
    sides = (((((side, 1), 1),), (((2, 1), 1),)) for side in (0, 1))
    stages = (
        Stage((2, 0), side, copies=3, swizzle=swizzle // 16, narrow=(dtype,)) for side in sides
    )
    fills = ((axis, 1, Part.FILL, array) for array, side in enumerate((0, 1)) for axis in (side, 2))
    return (
        *(Split((0,), 16, Tail.GUARD), Split((1,), 8, Tail.GUARD)),
        Split((2,), row_bytes // dtype.itemsize, Tail.GUARD),
        *(Bind((0, 0), AxisKind.GRID), Bind((1, 0), AxisKind.GRID)),
        *(Bind((0, 1), AxisKind.BLOCK), Bind((1, 1), AxisKind.UNROLL)),
        *stages,
        *(Bind(axis, AxisKind.FILL) for axis in fills),
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.half], ids=lambda dtype: dtype.name)
def test_boxes_lie_as_threads_read_them(driver: Changing, dtype: DType, swizzle: int) -> None:
    device = Device["CUDA"]
    renderer, compiler = device.toolchain.renderer, device.toolchain.compiler
    linear = lower(
        staged_product(dtype), renderer, "staged", plan_of(swizzle or 64, swizzle, dtype)
    )
    program = device.runtime.load(compiler.compile(renderer.render(linear)), info_of(linear, 3))
    a, b = small_integers(ROWS, INNER), small_integers(COLUMNS, INNER, seed=1)
    found = numpy.zeros((ROWS, COLUMNS), numpy.float32)
    arrays = (found, *(encode(v.astype(numpy.float32), dtype) for v in (a, b)))
    allocator = device.runtime.allocator
    handles = [allocator.alloc(array.nbytes) for array in arrays]
    for handle, array in zip(handles, arrays, strict=True):
        allocator.write(handle, array.data.cast("B"))

    program(handles, [], wait=True)
    allocator.read(found.data.cast("B"), handles[0])

    assert [box.swizzle for box in maps_of(linear)] == [swizzle, swizzle]
    assert numpy.array_equal(found, a @ b.T)


# --- what kernels do wrong

WAIT = re.compile(r"mbarrier\.try_wait\.parity\.shared::cta\.b64 (\S+), .*?;")
EXPECT = re.compile(r"((?:@%p\d+ )?mbarrier\.arrive\.expect_tx\S* _, \[\S+\]), (\S+);")
INIT = re.compile(r"(mbarrier\.init\.shared::cta\.b64 \[\S+\]), \S+;")
TARGET = re.compile(r"(complete_tx::bytes \[%r\d+)(?:\+(\d+))?\]")
WAIT_GROUP = re.compile(r"wgmma\.wait_group\.sync\.aligned 1;")
MANY = 3
"""More copies than a phase has."""


def without_wait(text: str) -> str:
    return WAIT.sub(r"setp.eq.u32 \1, 0, 0;", text)


def with_bytes(by: int) -> Callable[[str], str]:
    """Copies that are announced with another count of bytes."""

    def changed(found: re.Match[str]) -> str:
        before, count = found[1], found[2]
        if count.startswith("%"):
            return f"add.s32 {count}, {count}, {by}; {before}, {count};"
        return f"{before}, {int(count) + by};"

    return lambda text: EXPECT.sub(changed, text)


def moved(text: str) -> str:
    """Boxes that go 16 bytes further."""
    return TARGET.sub(lambda found: f"{found[1]}+{int(found[2] or 0) + 16}]", text)


FAULTS: dict[str, tuple[Callable[[str], str], type[Exception], str]] = {
    "a wait that is forgotten": (without_wait, RaceFault, "copy is unfinished"),
    "more bytes than come": (with_bytes(16), BarrierFault, "mbarrier that nobody completes"),
    "fewer bytes than come": (with_bytes(-16), BarrierFault, "mbarrier that nobody completes"),
    "a copy fewer than a phase has": (
        lambda text: INIT.sub(rf"\1, {MANY};", text),
        *(BarrierFault, "mbarrier that nobody completes"),
    ),
    "a box that is not aligned": (moved, MisalignedAddress, "cp.async.bulk.tensor"),
    "more products under way than copies keep off": (
        lambda text: WAIT_GROUP.sub("wgmma.wait_group.sync.aligned 2;", text),
        *(RaceFault, "is written that a product under way reads"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_a_kernel_are_found(driver: Changing, name: str) -> None:
    change, fault, message = FAULTS[name]
    x, y = operands(64, 64, 320)
    texts: list[str] = []

    def changed(text: str) -> str:
        texts.append(text)
        return change(text)

    driver.change = changed
    with pytest.raises(fault, match=message):
        product(x, y).realize()
    assert change(texts[-1]) != texts[-1]


@pytest.mark.parametrize("inner", [320, 282])
def test_copies_of_threads_keep_off_products_under_way(driver: Changing, inner: int) -> None:
    """As on cards that copy no boxes: by pieces of 16 bytes, and by single elements."""
    unregister("CUDA")
    register(for_few_threads(backend_of(driver), fills=None))
    x, y = operands(64, 64, inner)
    with noted() as sources:
        check(x, y, product(x, y))
    (text,) = (text for text in sources.texts if "wgmma.mma_async" in text)
    assert WAIT_GROUP.search(text)
    assert not copies_boxes([text])

    driver.change = FAULTS["more products under way than copies keep off"][0]
    with pytest.raises(RaceFault, match="that a product under way reads"):
        product(*operands(128, 64, inner)).realize()


# --- what NVIDIA's assembler takes


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["NVRTC", "PTX"])
def test_nvidias_assembler_takes_copies_of_boxes(nvrtc: None, writer: str) -> None:
    with noted() as sources, Context(DEV=f"NULL:{writer}:sm_90a"):
        for dtype in (dtypes.half, dtypes.bfloat16):
            x, y = (Tensor.empty(4096, 4096, dtype=dtype).realize() for _ in range(2))
            (x @ y.T).realize()
    compiler = NvrtcCompiler("sm_90a") if writer == "NVRTC" else PtxCompiler("sm_90a")

    for text in sources.texts:
        assert copies_boxes([text])
        assert not spilled_bytes(compiler.built(text)[1])


def test_only_the_card_that_is_asked_for_copies_boxes() -> None:
    """NV writes launches itself, and has no words for a map of a tensor."""
    hopper = arch_of("sm_90a")

    assert limits_of(hopper, takes_maps=True).fills
    assert not limits_of(hopper).fills
    assert not limits_of(arch_of("sm_90"), takes_maps=True).fills


def test_a_block_of_arguments_with_maps_is_refused(driver: Changing) -> None:
    x, y = operands(64, 128, 128)
    product(x, y).realize()
    launched = driver.launches[-1]
    size = ffi.new("size_t *", len(launched.arguments))
    words = (1, ffi.from_buffer(launched.arguments), 2, size, 0)
    extra = ffi.new("void *[]", [ffi.cast("void *", word) for word in words])
    kernel = Function(0, launched.image, launched.name)

    assert driver.arguments_of(kernel, ffi.NULL, extra) == OUT_OF_RESOURCES
    assert driver.arguments_of(kernel, extra, extra) == INVALID_VALUE
