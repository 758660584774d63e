"""The driver on a mocked Mac: memory, order, errors, what is given back, and what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from metal_kernels import ADD, INFO

from tiny_metal import _lib, probe
from tinycore.errors import CompileError, DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from mock_metal.metal import Gpu, Mac

    from tiny_metal.device import MetalDevice
    from tiny_metal.memory import MetalMemory
    from tiny_metal.program import MetalProgram

pytestmark = pytest.mark.usefixtures("mock")

KEPT: list[tuple[MetalDevice, MetalMemory]] = []


@pytest.fixture(autouse=True)
def given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free what a test has allocated on the device that it was given."""
    if "device" in request.fixturenames:
        request.getfixturevalue("device")
    yield
    for device, handle in KEPT:
        if handle.buffer is not None:
            device.allocator.free(handle)
    KEPT.clear()


def adder(device: MetalDevice, source: str = ADD, info: ProgramInfo = INFO) -> MetalProgram:
    return device.load(source.encode(), info)


def numbers(device: MetalDevice, first: int = 0, count: int = 64) -> MetalMemory:
    content = b"".join((first + i).to_bytes(4, "little") for i in range(count))
    handle = device.allocator.alloc(len(content))
    device.allocator.write(handle, memoryview(content))
    KEPT.append((device, handle))
    return handle


def read(device: MetalDevice, handle: MetalMemory, count: int = 64) -> list[int]:
    content = bytearray(4 * count)
    device.allocator.read(memoryview(content), handle)
    return memoryview(content).cast("i").tolist()


def opened(mac: Mac, *gpus: Gpu) -> MetalDevice:
    """A device on a Mac of other GPUs."""
    from tiny_metal.device import MetalDevice  # noqa: PLC0415

    with _lib.use(mac):
        return MetalDevice(0, "")


def test_a_launch(device: MetalDevice) -> None:
    a, b, add = numbers(device), numbers(device, 10), adder(device)
    assert add([a, b], [5]) is None
    assert read(device, a) == [15 + i for i in range(64)]
    seconds = add([a, b], [-20], wait=True)
    assert seconds is not None
    assert seconds > 0
    assert read(device, a) == [i - 10 for i in range(64)]


def test_launches_copies_and_views_happen_in_order(mac: Mac, device: MetalDevice) -> None:
    mac.plan.delay = (0.0, 0.005)
    a, add = numbers(device, 0, 128), adder(device)
    allocator = device.allocator
    half = allocator.offset(a, 256, 256)
    for _ in range(20):
        add([a, a], [1])
        add([half, a], [0])
    assert read(device, a, 128) == [20 + i for i in range(64)] * 2
    allocator.write(a, memoryview(bytes(256)))
    add([half, a], [7])
    assert read(device, half) == [7] * 64


@pytest.mark.slow
def test_a_write_comes_after_launches_that_read_what_was_there(
    mac: Mac, device: MetalDevice
) -> None:
    mac.plan.delay = (0.02, 0.03)
    a, b, add = numbers(device), numbers(device), adder(device)
    add([b, a], [1])
    device.allocator.write(a, memoryview(bytes(256)))
    assert read(device, b) == [1 + i for i in range(64)]
    assert read(device, a) == [0] * 64


@pytest.mark.slow
def test_a_view_of_a_view(device: MetalDevice) -> None:
    a = numbers(device)
    outer = device.allocator.offset(a, 128, 64)
    assert read(device, device.allocator.offset(outer, 16, 32), 4) == [24, 25, 26, 27]


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.slow
def test_thousands_of_launches_leave_nothing(mac: Mac, shares: bool) -> None:
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415
    from simulated_metal import M1, OLD  # noqa: PLC0415

    other = AnyMac((M1 if shares else OLD,))
    device = opened(other)
    a, add = numbers(device), adder(device)
    device.synchronize()
    before = dict(other.left)
    for _ in range(1000):
        add([a, a], [1])
    assert read(device, a) == [1000 + i for i in range(64)]
    assert other.left == before
    device.allocator.free(a)
    del add
    gc.collect()
    device.close()
    device.close()
    assert other.left == {}
    assert other.misuses == []


@pytest.mark.slow
def test_memory_is_the_hosts_where_it_is_shared(device: MetalDevice) -> None:
    a, add = numbers(device), adder(device)
    seen = device.allocator.map(a, 256).cast("i")
    seen[3] = 1000
    add([a, a], [1], wait=True)
    assert seen[3] == 1001
    assert "host_memory" in device.capabilities


def test_memory_of_a_discrete_gpu_is_its_own(mac: Mac) -> None:
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415
    from simulated_metal import OLD  # noqa: PLC0415

    other = AnyMac((OLD,))
    device = opened(other)
    a = numbers(device)
    assert device.arch == "mac2,2.4"
    assert device.send(a.buffer, "storageMode") == 2
    assert "host_memory" not in device.capabilities
    with pytest.raises(DeviceError, match="the host cannot address a private MTLBuffer"):
        device.allocator.map(a, 4)
    assert other.world.sent["copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"] == 1
    device.allocator.free(a)
    device.close()
    assert other.misuses == []


def test_parts_of_private_memory(mac: Mac) -> None:
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415
    from simulated_metal import OLD  # noqa: PLC0415

    device = opened(AnyMac((OLD,)))
    a = numbers(device)
    part = device.allocator.offset(a, 16, 32)
    assert read(device, part, 4) == [8, 9, 10, 11]
    device.allocator.write(part, memoryview(bytes(16)))
    assert read(device, a) == [0 if 8 <= i < 12 else i for i in range(64)]
    device.allocator.free(a)
    device.close()


@pytest.mark.slow
def test_no_memory_is_told(mac: Mac, device: MetalDevice) -> None:
    with pytest.raises(OutOfMemory, match=r"no memory left for 8,589,934,592 bytes; a buffer has "):
        device.allocator.alloc(1 << 33)
    mac.plan.no_memory_after = 0
    with pytest.raises(OutOfMemory, match="Mock M1 has no memory left for 64 bytes"):
        device.allocator.alloc(64)
    mac.plan.no_memory_after = None
    device.allocator.free(device.allocator.alloc(64))


@pytest.mark.slow
def test_the_compilers_text_and_the_line_are_shown(device: MetalDevice) -> None:
    with pytest.raises(CompileError) as found:
        adder(device, ADD.replace("data1[i] +", "data9[i] +"))
    text = str(found.value)
    assert "program_source:8:14: error: use of undeclared identifier 'data9'" in text
    assert "data0[i] = data9[i] + (int)values[0];" in text
    assert "MTLLibraryErrorDomain 3" in text


@pytest.mark.slow
def test_threadgroup_memory_of_32_kib_and_more(mac: Mac, device: MetalDevice) -> None:
    shared = """  threadgroup int t[{count}];
  t[thread_.x] = data1[i];
  data0[i] = t[thread_.x] + (int)values[0];"""
    for count, fits in ((8192, True), (8193, False)):
        source = ADD.replace("  data0[i] = data1[i] + (int)values[0];", shared.format(count=count))
        if not fits:
            with pytest.raises(CompileError, match=r"Threadgroup memory size \(32772\) exceeds"):
                adder(device, source)
            continue
        a, add = numbers(device), adder(device, source)
        add([a, a], [2])
        assert read(device, a) == [2 + i for i in range(64)]


@pytest.mark.slow
def test_a_table_of_31_buffers(device: MetalDevice) -> None:
    """Thirty for tensors and one for values, as the limits of plans have it."""
    names = [f"data{i}" for i in range(1, 30)]
    parameters = "".join(f"    const device int *{n} [[buffer({n[4:]})]],\n" for n in names)
    source = (
        ADD.replace(" const device int *data1 [[buffer(1)]],\n", f"\n{parameters}")
        .replace("buffer(2)]],\n    uint3", "buffer(30)]],\n    uint3")
        .replace("data1[i] +", f"{'[i] + '.join(names)}[i] +")
    )
    add = adder(device, source, replace(INFO, buffers=30))
    a, b = numbers(device), numbers(device, 1)
    add([a] + [b] * 29, [5])
    assert read(device, a) == [29 * (i + 1) + 5 for i in range(64)]


@pytest.mark.slow
def test_warnings_are_no_errors(mac: Mac, device: MetalDevice) -> None:
    mac.plan.warnings = "program_source:1:1: warning: unused"
    assert adder(device) is not None


@pytest.mark.slow
def test_a_function_that_there_is_not(device: MetalDevice) -> None:
    with pytest.raises(DeviceError, match="no function other_"):
        adder(device, info=replace(INFO, name="other"))


@pytest.mark.slow
def test_mathematics_is_safe_and_the_language_is_named(mac: Mac) -> None:
    """The mock refuses fast math; older systems have another message for it."""
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415
    from simulated_metal import M1, OLD  # noqa: PLC0415

    for gpu, selector, language in (
        (M1, "setMathMode:", (3, 1)),
        (OLD, "setFastMathEnabled:", (2, 4)),
        (replace(M1, language=(3, 0)), "setMathMode:", (3, 0)),
    ):
        other = AnyMac((gpu,))
        device = opened(other)
        assert other.world.sent[selector]
        assert device.language == language
        device.close()
        assert other.misuses == []


@pytest.mark.slow
def test_more_threads_than_fit(mac: Mac) -> None:
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415
    from simulated_metal import M1  # noqa: PLC0415

    other = AnyMac((replace(M1, most_threads=16),))
    device = opened(other)
    with pytest.raises(DeviceError, match=r"groups of 32 threads; as Metal compiled it, 16 fit"):
        adder(device)
    device.close()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (2, DeviceError, "Caused GPU Timeout"),
        (3, DeviceError, "Caused GPU Address Fault"),
        (8, OutOfMemory, "Insufficient Memory"),
    ],
)
@pytest.mark.slow
def test_a_failure_is_raised_once_and_names_the_kernel(
    mac: Mac, device: MetalDevice, code: int, kind: type[Exception], words: str
) -> None:
    a, add = numbers(device), adder(device)
    mac.plan.failures[1] = (code, f"{words} Error (IOGPUCommandBufferCallbackError)")
    for _ in range(3):
        add([a, a], [1])
    with pytest.raises(kind, match=rf"Mock M1 failed in kernel add: {words}.*Domain {code}"):
        device.synchronize()
    device.synchronize()
    assert read(device, a) == [2 + i for i in range(64)]


@pytest.mark.slow
def test_a_kernel_that_writes_outside_is_told_by_its_command_buffer(
    mac: Mac, device: MetalDevice
) -> None:
    add = adder(device, ADD.replace("data0[i]", "data0[i + 64]"))
    a, b = numbers(device), numbers(device)
    add([a, b], [1])
    with pytest.raises(DeviceError, match=r"failed in kernel add: .*writes 4 bytes at byte \d+ of"):
        device.synchronize()
    assert "of data0 (256 bytes)" in mac.misuses.pop()


@pytest.mark.slow
def test_several_threads_launch(device: MetalDevice) -> None:
    a, add = numbers(device), adder(device)

    def work() -> None:
        for _ in range(25):
            add([a, a], [1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(device, a) == [100 + i for i in range(64)]


@pytest.mark.slow
def test_a_buffer_that_somebody_else_made(device: MetalDevice) -> None:
    a, add = numbers(device), adder(device)
    wrapped = device.allocator.wrap(device.address(a)[0], 256)
    add([wrapped, wrapped], [1])
    assert read(device, a) == [1 + i for i in range(64)]
    with pytest.raises(DeviceError, match="the MTLBuffer has 256 bytes, the tensor 257"):
        device.allocator.wrap(device.address(a)[0], 257)
    queue = int(_lib.ffi.cast("uintptr_t", device.queue))
    with pytest.raises(DeviceError, match="no MTLBuffer"):
        device.allocator.wrap(queue, 4)
    with pytest.raises(DeviceError, match=r"is no object of Metal\. .*untyped_storage"):
        device.allocator.wrap(device.address(a)[0] + 12, 4)


def test_gpus_that_are_too_old_and_none_at_all(mac: Mac) -> None:
    from mock_metal.metal import Gpu  # noqa: PLC0415
    from mock_metal.metal import Mac as AnyMac  # noqa: PLC0415

    for gpus in ((), (Gpu("Old", (2001,)),)):
        other = AnyMac(gpus)
        with _lib.use(other):
            assert probe.count() == 0
            assert "families apple10" in probe.reason()
            with pytest.raises(DeviceUnavailable, match="Metal finds no GPU"):
                opened(other)
        assert other.misuses == []
        assert other.left == {}


def test_a_gpu_that_is_not_there_is_told_with_those_that_are(mac: Mac) -> None:
    from tiny_metal.device import MetalDevice  # noqa: PLC0415

    with pytest.raises(DeviceUnavailable, match="there is no METAL:7; there are: METAL:0 Mock M1"):
        MetalDevice(7, "")


@pytest.mark.slow
def test_what_was_freed_is_not_used_again(mac: Mac, device: MetalDevice) -> None:
    add, a = adder(device), numbers(device)
    device.allocator.free(a)
    with pytest.raises((TypeError, AttributeError)):
        add([a, a], [1])
    del add
    gc.collect()
    device.synchronize()
    assert mac.misuses == []
