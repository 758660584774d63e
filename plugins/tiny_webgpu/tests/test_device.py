"""Memory, programs, order, time and errors of a device, with WGSL written by hand."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from tiny_webgpu import BACKEND, probe
from tiny_webgpu._lib import Pointer
from tiny_webgpu.device import WebGpuDevice
from tiny_webgpu.memory import DeviceMemory
from tiny_webgpu.program import Pipeline, Span, WebGpuProgram
from tinycore import Device, Tensor
from tinycore.errors import CompileError, DeviceUnavailable, OutOfMemory

Load = Callable[..., WebGpuProgram]
"""load(source, buffers=1, values=(), grid=(1, 1, 1)): a program from WGSL."""

ADD = """
@group(0) @binding(0) var<storage, read_write> data0: array<f32>;
@group(0) @binding(100) var<uniform> arguments: array<vec4<u32>, 1>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
  data0[(arguments[0].x >> 2u) + group.x] += f32(i32(arguments[0].y));
}
"""

COPY = """
@group(0) @binding(0) var<storage, read_write> data0: array<u32>;
@group(0) @binding(1) var<storage, read> data1: array<u32>;
@group(0) @binding(100) var<uniform> arguments: array<vec4<u32>, 1>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group: vec3<u32>) {
  data0[(arguments[0].x >> 2u) + group.x] = data1[(arguments[0].y >> 2u) + group.x];
}
"""


def filled(device: WebGpuDevice, data: bytes) -> DeviceMemory:
    """New memory with some bytes."""
    memory = device.allocator.alloc(len(data))
    device.allocator.write(memory, memoryview(data))
    return memory


def content(device: WebGpuDevice, memory: DeviceMemory) -> bytes:
    """The bytes of some memory."""
    read = bytearray(memory.size)
    device.allocator.read(memoryview(read), memory)
    return bytes(read)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 255, 4096, 100_001])
def test_what_is_written_is_read(device: WebGpuDevice, size: int) -> None:
    data = numpy.random.default_rng(size).bytes(size)

    assert content(device, filled(device, data)) == data


@pytest.mark.parametrize(("start", "size"), [(0, 1), (1, 2), (3, 5), (4, 8), (7, 9), (15, 1)])
def test_a_span_inside_words_is_written_and_read(
    device: WebGpuDevice, start: int, size: int
) -> None:
    whole = filled(device, bytes(range(16)))
    span = device.allocator.offset(whole, size, start)

    assert content(device, span) == bytes(range(start, start + size))
    device.allocator.write(span, memoryview(b"\xff" * size))
    expected = bytearray(range(16))
    expected[start : start + size] = b"\xff" * size
    assert content(device, whole) == bytes(expected)


def test_launches_happen_in_order_with_their_own_values(device: WebGpuDevice, load: Load) -> None:
    add = load(ADD, values=("amount",), grid=(4, 1, 1))
    memory = filled(device, struct.pack("<4f", 1, 2, 3, 4))
    for amount in range(300):  # more than are recorded before they are submitted
        add([memory], [amount - 100])

    expected = sum(range(-100, 200))
    assert struct.unpack("<4f", content(device, memory)) == tuple(
        expected + i for i in (1, 2, 3, 4)
    )


def test_a_span_is_launched_on_wherever_it_starts(device: WebGpuDevice, load: Load) -> None:
    whole = filled(device, struct.pack("<100f", *range(100)))
    load(ADD, values=("amount",), grid=(2, 1, 1))([device.allocator.offset(whole, 8, 292)], [1000])

    values = struct.unpack("<100f", content(device, whole))
    assert values[72:76] == (72, 1073, 1074, 75)


def test_two_spans_of_one_buffer_may_be_read_and_written(device: WebGpuDevice, load: Load) -> None:
    whole = filled(device, struct.pack("<8I", *range(8)))
    first, second = (device.allocator.offset(whole, 16, start) for start in (0, 16))
    load(COPY, buffers=2, grid=(4, 1, 1))([second, first], [])

    assert struct.unpack("<8I", content(device, whole)) == (0, 1, 2, 3, 0, 1, 2, 3)


def test_a_launch_that_is_waited_for_is_timed(device: WebGpuDevice, load: Load) -> None:
    add = load(ADD, values=("amount",), grid=(1 << 14, 1, 1))
    memory = device.allocator.alloc(4 << 14)

    seconds = add([memory], [1], wait=True)

    assert seconds is not None
    assert 0 <= seconds < 10


def test_a_kernel_that_is_no_wgsl_is_told_with_the_line(load: Load) -> None:
    with pytest.raises(CompileError, match=r"unresolved value 'nonsense'") as told:
        load(ADD.replace("group.x]", "nonsense]"))
    assert "data0[(arguments" in str(told.value.log)


def test_after_an_error_the_device_works(device: WebGpuDevice, load: Load) -> None:
    with pytest.raises(CompileError):
        load("fn main( {")

    memory = filled(device, struct.pack("<f", 1))
    load(ADD, values=("amount",))([memory], [2])
    assert struct.unpack("<f", content(device, memory)) == (3,)


def test_a_buffer_beyond_the_device_is_out_of_memory(device: WebGpuDevice) -> None:
    with pytest.raises(OutOfMemory, match=r"holds at most [\d,]+ bytes in one buffer"):
        device.allocator.alloc(1 << 50)


def test_an_adapter_that_is_not_there_is_told(device: WebGpuDevice) -> None:
    with pytest.raises(
        DeviceUnavailable, match=f"no adapter 99; there are 0: {device.adapter.name[:4]}"
    ):
        WebGpuDevice(99, "")


@pytest.mark.parametrize("given", ["{}", "WGPUBackendType_{}"])
def test_a_variable_names_what_dawn_goes_through(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    names = list(BACKEND.interface_table)
    here = names[-1]
    monkeypatch.setenv("WEBGPU_BACKEND", given.format(here.capitalize()))

    assert {adapter.backend.name for adapter in probe.adapters()} == {here}
    monkeypatch.setenv("WEBGPU_BACKEND", "Glide")
    assert probe.count() == 0
    assert probe.reason().startswith("WEBGPU_BACKEND=Glide: Dawn reaches GPUs through")
    with pytest.raises(DeviceUnavailable, match=f"Set it to {names[0]}, or leave it"):
        WebGpuDevice(0, "")
    opened = WebGpuDevice(0, here)  # what DEV names comes first
    opened.close()
    assert opened.adapter.backend.name == here


def test_the_device_says_what_its_kernels_may_use(on_webgpu: None, device: WebGpuDevice) -> None:
    toolchain = Device["WEBGPU"].toolchain

    assert toolchain.arch == device.arch
    assert toolchain.renderer.limits.buffers == device.adapter.arch.buffers


def test_equal_kernels_share_a_pipeline(device: WebGpuDevice, load: Load) -> None:
    before = len(device._pipelines)
    source = ADD + "// once"
    load(source)
    load(source)

    assert len(device._pipelines) == before + 1


def test_views_of_one_tensor_are_computed_on(on_webgpu: None) -> None:
    x = Tensor(numpy.arange(20, dtype=numpy.uint8)).realize()
    x[3:8] = x[9:14] + 1

    assert x.tolist() == [0, 1, 2, 10, 11, 12, 13, 14, *range(8, 20)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system(device: WebGpuDevice) -> None:
    size = 16 << 20
    data = bytes(size)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(8):  # until the driver keeps what it will
        device.allocator.free(filled(device, data))
    before = resident()
    for _ in range(16):
        device.allocator.free(filled(device, data))
    assert resident() - before < 4 * size


def test_memory_collected_while_a_launch_is_recorded_waits_for_its_end(
    device: WebGpuDevice, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, other = filled(device, struct.pack("<f", 2.0)), filled(device, bytes(64))
    program, find = load(ADD, values=("x",)), WebGpuProgram._group

    def collected(self: WebGpuProgram, pipeline: Pipeline, spans: tuple[Span, ...]) -> Pointer:
        if other.block.pointer:
            device.allocator.free(other)  # as a tensor may that is collected here
        return find(self, pipeline, spans)

    monkeypatch.setattr(WebGpuProgram, "_group", collected)
    program([memory], [3])

    assert not other.block.pointer
    assert content(device, memory) == struct.pack("<f", 5.0)


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("start", [0, 252])
def test_one_buffer_read_and_written_by_many_launches(
    device: WebGpuDevice, load: Load, start: int, wait: bool
) -> None:
    """More than are submitted together; of places that are bound apart, and of neighbors."""
    memory = filled(device, bytes(512))
    read, written = (device.allocator.offset(memory, 4, place) for place in (start, start + 256))
    program, add = load(COPY, buffers=2), load(ADD, values=("x",))

    for _ in range(70):
        program([written, read], [], wait=wait)
        add([read], [1], wait=wait)

    assert content(device, read) == struct.pack("<f", 70.0)
    assert content(device, written) == struct.pack("<f", 69.0)


def test_a_program_without_a_desktop_prints_what_it_prints() -> None:
    program = "from tinycore import Tensor; print((Tensor([1]) + 1).tolist())"
    environment = {
        name: os.environ[name] for name in os.environ if name not in probe._DEVICE_SELECT
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"DEV": "WEBGPU"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[2]\n", "")


AT_EXIT = """
import ctypes, os, sys
from tinycore import Tensor
Tensor([1.0]).add(1).realize()
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # as a handler of a driver that cannot end in a fork
if not (child := os.fork()):
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(status)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="handlers at exit are left out by glibc's means"
)
def test_a_child_ends_without_the_handlers_of_drivers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], env=os.environ | {"DEV": "WEBGPU"}, check=False
    )
    assert done.returncode == 7
