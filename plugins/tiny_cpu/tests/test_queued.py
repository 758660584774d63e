"""The CPU through queues: native threads execute commands, in order, to the very end."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tiny_cpu import BACKEND
from tiny_cpu import pool as pools
from tiny_cpu.clang import is_clang_installed
from tiny_cpu.code import Code
from tiny_cpu.device import CpuDevice, open_cpu
from tiny_cpu.queued import QueuedCpu, QueuedProgram
from tiny_hcq import HCQBuffer
from tinycore.config import Context, settings
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.plugin import Compiler, ProgramInfo

Add = Callable[..., QueuedProgram]
FLOATS = 1001


@pytest.fixture
def devices() -> Iterator[list[QueuedCpu]]:
    """Two CPUs of queues."""
    found = [open_cpu(number, "HCQ") for number in range(2)]
    assert all(isinstance(device, QueuedCpu) for device in found)
    yield found  # type: ignore[misc]
    with Context(WAIT_TIMEOUT_MS=100):
        for device in found:
            device.close()


@pytest.fixture
def add(compiler: Compiler, sources: dict[str, dict[str, str]], toolchain: str) -> Add:
    """Makes the program that adds values[0] to the floats of buffer 0."""
    binary = compiler.compile(sources[toolchain]["add"])

    def make(device: QueuedCpu, parallel: int = FLOATS) -> QueuedProgram:
        written = frozenset({0})
        info = ProgramInfo("add", 1, ("amount",), parallel=parallel, written=written)
        return device.load(binary, info)

    return make


def floats(device: QueuedCpu, value: float = 0.0) -> HCQBuffer:
    memory = device.allocator.alloc(FLOATS * 4)
    device.allocator.write(memory, memoryview(struct.pack("=f", value) * FLOATS))
    return memory


def content(device: QueuedCpu, memory: HCQBuffer) -> set[float]:
    found = bytearray(FLOATS * 4)
    device.allocator.read(memoryview(found), memory)
    return set(memoryview(found).cast("f"))


def test_launches_run_in_order_beyond_what_the_ring_holds(
    devices: list[QueuedCpu], add: Add
) -> None:
    one = devices[0]
    memory, program = floats(one), add(one)

    for _ in range(3000):
        program([memory], [2])

    assert content(one, memory) == {6000.0}


def test_a_launch_tells_its_seconds(devices: list[QueuedCpu], add: Add) -> None:
    seconds = add(devices[0])([floats(devices[0])], [1], wait=True)

    assert seconds is not None
    assert 0 < seconds < 5


def test_a_graph_is_called_from_native_memory_with_other_arguments(
    devices: list[QueuedCpu], add: Add
) -> None:
    one = devices[0]
    first, second, program = floats(one), floats(one), add(one)
    graph = one.graph([(program, [first], [1])] * 50 + [(program, [second], [3])])
    for _ in range(10):
        graph()
    graph.set_buffer(50, 0, first)
    graph.set_value(0, 0, 1000)

    assert graph(wait=True)

    assert content(one, first) == {500.0 + 1049 + 3}
    assert content(one, second) == {30.0}


def test_devices_wait_for_each_other(devices: list[QueuedCpu], add: Add) -> None:
    one, other = devices
    here, there = floats(one, 1.0), floats(other)
    programs = [add(one), add(other)]
    launches: list[Any] = [
        (programs[0], [here], [1]),
        (other.copier(FLOATS * 4, one), [there, here], []),
        (programs[1], [there], [1]),
        (one.copier(FLOATS * 4, other), [here, there], []),
    ]
    graph = one.graph(launches)

    for _ in range(100):
        for program, buffers, values in launches:
            program(buffers, values)
        graph()

    assert content(one, here) == content(other, there) == {401.0}


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_work_is_as_if_done_one_after_the_other(
    devices: list[QueuedCpu], add: Add, seed: int
) -> None:
    chance = random.Random(seed)
    for device in devices:
        device.TIMELINE_LIMIT = 64  # type: ignore[misc]
    memories = [[floats(device) for _ in range(3)] for device in devices]
    programs = [[add(device, parallel) for parallel in (1, FLOATS)] for device in devices]
    expected = [[[0.0, 0.0] for _ in range(3)] for _ in devices]  # the first float, and the last

    for _ in range(1500):
        (a, i), (b, j) = [(chance.randrange(2), chance.randrange(3)) for _ in range(2)]
        if chance.random() < 0.5:
            whole, amount = chance.randrange(2), chance.randrange(3)
            programs[a][whole]([memories[a][i]], [amount])
            first, last = expected[a][i]
            expected[a][i] = [first + amount, last + amount * whole]
        else:
            copy = devices[a].copier(FLOATS * 4, devices[b])
            copy([memories[a][i], memories[b][j]], wait=chance.random() < 0.02)
            expected[a][i] = list(expected[b][j])

    for device, row, right in zip(devices, memories, expected, strict=True):
        device.synchronize()
        found = [device.allocator.map(m, FLOATS * 4).cast("f") for m in row]
        assert [[view[0], view[FLOATS - 1]] for view in found] == right
        assert device.era > 0


def test_memory_is_the_hosts(devices: list[QueuedCpu], add: Add) -> None:
    one = devices[0]
    memory = floats(one, 4.0)
    wrapped = one.allocator.wrap(memory.address, FLOATS * 4)

    add(one)([wrapped], [1])

    assert content(one, memory) == {5.0}
    one.allocator.free(memory)
    with pytest.raises(ValueError, match="format 'Q'"):
        add(one)([memory], [1])


def test_a_queue_that_hangs_is_told_and_closed(devices: list[QueuedCpu], add: Add) -> None:
    one = devices[0]
    never = one.new_signal()
    program, memory = add(one), floats(one)
    one.compute_queue().wait(never, 1).submit()
    program([memory], [1])

    with Context(WAIT_TIMEOUT_MS=50), pytest.raises(DeviceError, match="0 of 1 submissions"):
        one.synchronize()
    began = time.monotonic()
    one.close()

    assert time.monotonic() - began < settings.WAIT_TIMEOUT_MS / 2e3


WITHOUT_WAITING = """
import numpy
from tinycore import Context, Device, Tensor

x = Tensor(numpy.ones((1500, 1500), numpy.float32)).realize()
product = (x @ x).realize()
with Context(WAIT_TIMEOUT_MS=1):
    try:
        product.numpy()
    except RuntimeError as error:
        assert "did not bring a signal" in str(error), error
    else:
        raise SystemExit("the product was done")
for read in (product.data, product.numpy, (product + 1).numpy, product.to("PYTHON").numpy):
    try:
        read()
    except RuntimeError as error:
        assert "lost" in str(error), error
    else:
        raise SystemExit("memory was read that no kernel has written yet")
x = None
Device.close("CPU")
try:
    product.numpy()
except RuntimeError as error:
    assert "lost" in str(error), error
else:
    raise SystemExit("memory was read of the device that was lost")
assert (Tensor([1.0]) + 1).tolist() == [2.0]
"""


@pytest.mark.slow
def test_a_kernel_that_nobody_awaits_ends_before_its_memory_goes(toolchain: str) -> None:
    environment = {**os.environ, "DEV": f"HCQ+CPU:{toolchain}"}
    command = [sys.executable, "-c", WITHOUT_WAITING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told(devices: list[QueuedCpu], add: Add) -> None:
    program, memory = add(devices[0]), floats(devices[0])
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            program([memory], [1])
        except DeviceError:
            os._exit(0)
        os._exit(1)

    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("maker", ["clang", "llvm"])
def test_both_compilers_make_the_queues(
    maker: str, monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    if maker == "clang" and not is_clang_installed():
        pytest.skip("no clang")
    make = pools.compile_by_clang if maker == "clang" else pools.compile_by_llvm
    code = Code(make(), "pool")
    code.keep_forever()
    monkeypatch.setattr("tiny_cpu.queue.code_of_pool", lambda: code)
    device = QueuedCpu()
    memory = floats(device)

    add(device)([memory], [7], wait=True)

    assert content(device, memory) == {7.0}
    device.close()


def test_direct_devices_copy_as_launches() -> None:
    one, other = CpuDevice(0), CpuDevice(1)
    size = 1 << 20
    source, target = one.allocator.alloc(size), other.allocator.alloc(size)
    data = random.Random(1).randbytes(size)
    one.allocator.write(source, memoryview(data))
    copy = other.copier(size, one)

    copy([target, source], [])
    assert bytes(other.allocator.map(target, size)) == data
    other.allocator.write(target, memoryview(bytes(size)))
    other.graph([(copy, [target, source], [])])()
    assert bytes(other.allocator.map(target, size)) == data


def test_a_direct_device_is_not_waited_for(devices: list[QueuedCpu]) -> None:
    with pytest.raises(UnsupportedError, match="another group"):
        devices[0].copier(4, CpuDevice(1))


SCRIPT = """
from tinycore import Device, Tensor, TinyJit, nn
assert Device["CPU"].interface == "HCQ"
x = Tensor([[1.0, 2.0], [3.0, 4.0]])
print((x @ x).softmax().sum().item())
@TinyJit
def step(x, y):
    total = (x + y.to("CPU")).contiguous()
    return (total.to("CPU:1") * 2).realize()
for n in range(4):
    print(step(Tensor([float(n)]).realize(), Tensor([1.0], device="CPU:2").realize()).tolist())
w = Tensor([1.0, 2.0], requires_grad=True)
optimizer = nn.optim.SGD([w], lr=0.1)
with Tensor.train():
    for _ in range(2):
        loss = (w * w).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print([round(v, 4) for v in w.tolist()])
for _ in range(50):
    x = (x * 1.01).contiguous().realize()  # still at work when the interpreter ends
"""


@pytest.mark.slow
def test_tensors_compute_and_the_interpreter_ends_at_once() -> None:
    environment = os.environ | {"DEV": "HCQ+CPU", "VERIFY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False,
        env=environment,
    )  # fmt: skip

    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split("\n")[:-1] == [
        "2.0", "[2.0]", "[4.0]", "[6.0]", "[8.0]", "[0.64, 1.28]"
    ]  # fmt: skip


def test_queues_are_used_where_they_are_named() -> None:
    used = {name: one.automatic for name, one in BACKEND.interface_table.items()}
    assert used == {"DIRECT": True, "HCQ": False}
