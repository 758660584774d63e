"""Every row of docs/spec-map.md: the name's home exists and behaves as the row says."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from tests.unit.schedule.graphs import buffer as graph_buffer
from tests.unit.schedule.graphs import kernels, matmul
from tinycore import Context, GlobalCounters, Tensor, cache
from tinycore.builtin.interpreter import PythonRuntime
from tinycore.device import Buffer, Device, LRUAllocator, OpenDevice
from tinycore.device.protocols import DeviceRuntime, Handle, ProgramInfo
from tinycore.dtype import dtypes
from tinycore.engine.captured_step import CapturedStep
from tinycore.engine.compile import compile_kernel, info_of, runner_for
from tinycore.engine.counters import Estimate, update_stats
from tinycore.engine.estimate import estimate
from tinycore.engine.program_cache import BINARIES, binary_key
from tinycore.engine.run import ExecItem, lower_schedule
from tinycore.errors import ArgumentError, OutOfMemory
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import apply_plan
from tinycore.render.base import Limits
from tinycore.schedule.kernel import kernel_name
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, Op

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/spec-map.md"


def small() -> Tensor:
    return Tensor([[1.0, 2.0], [3.0, 4.0]], device="PYTHON").realize()


def items() -> list[ExecItem]:
    return list(lower_schedule((small() + 1).schedule()))


def block(device: OpenDevice, *values: float) -> Handle:
    """Memory of a device that holds some float32 numbers."""
    content = memoryview(numpy.array(values, "f").tobytes())
    handle = device.allocator.alloc(len(content))
    device.allocator.write(handle, content)
    return handle


def held(device: OpenDevice, handle: Handle) -> list[float]:
    """The four float32 numbers in memory of a device, without waiting for kernels."""
    back = bytearray(16)
    device.allocator.read(memoryview(back), handle)
    return list(struct.unpack("4f", back))


def plus_one() -> UOp:
    """The kernel that adds 1 to four numbers."""
    return (small() + 1).schedule()[-1].ast


def test_every_row_names_a_test_that_exists() -> None:
    named = re.findall(r"\| `(test_\w+)` \|", DOCUMENT.read_text("utf-8"))

    assert len(named) == len(set(named)) > 20
    assert [name for name in named if name not in globals()] == []


def test_frontend_builds_a_graph_and_computes_nothing() -> None:
    x = small()
    GlobalCounters.reset()

    assert (x * 2).uop.op is Op.MUL
    assert GlobalCounters.kernel_count == 0


def test_views_are_movement_nodes() -> None:
    assert small().T.uop.op in MOVEMENT


def test_schedule_item_has_ast_and_bufs() -> None:
    item = (small() + 1).schedule()[-1]

    assert item.ast.op is Op.SINK
    assert all(isinstance(b, Buffer) for b in item.bufs)


def test_schedule_is_in_dependency_order() -> None:
    first, second = ((small() @ small()) @ small()).schedule()

    assert first.bufs[0] in second.bufs[1:]


def test_lower_schedule_makes_exec_items() -> None:
    assert all(isinstance(item, ExecItem) for item in items())


def test_lowering_goes_from_graph_to_list_to_source_to_binary() -> None:
    device = Device["PYTHON"]
    linear = lower(plus_one(), device.toolchain.renderer, "kernel")
    source = device.toolchain.renderer.render(linear)
    binary = device.toolchain.compiler.compile(source)
    place = {uop: number for number, uop in enumerate(linear.uops)}
    out, four = block(device, 0, 0, 0, 0), block(device, 1, 2, 3, 4)
    device.load(binary, info_of(linear, buffers=2))([out, four], [], wait=True)

    computed = [uop for uop in linear.uops if uop.op is not Op.SPECIAL]  # that is given by a launch
    assert all(place[s] < place[uop] for uop in computed for s in uop.src)
    assert source.count(" = STORE ") == 1
    assert held(device, out) == [2, 3, 4, 5]


def test_exec_item_runs() -> None:
    x = small() + 1
    schedule = x.schedule()
    for item in lower_schedule(schedule):
        seconds = item.run(wait=True)

    assert seconds is not None
    assert schedule[-1].bufs[0].numpy().tolist() == [2.0, 3.0, 4.0, 5.0]


def test_captured_step_replays() -> None:
    x = small()
    schedule = (x + 1).schedule()
    source = schedule[-1].bufs[1]
    step = CapturedStep(tuple(lower_schedule(schedule)), (source,), (schedule[-1].bufs[0],))
    other = Buffer.from_cpu("PYTHON", numpy.zeros(4, "f"))

    assert step.replay([other], {})[0].numpy().tolist() == [1.0] * 4


def test_alloc_refuses_sizes_below_one() -> None:
    with pytest.raises(ArgumentError, match="at least 1 byte"):
        Device["PYTHON"].allocator.alloc(0)


def test_write_and_read_copy_bytes() -> None:
    allocator = Device["PYTHON"].allocator
    handle = allocator.alloc(4)
    allocator.write(handle, memoryview(b"abcd"))
    back = bytearray(4)
    allocator.read(memoryview(back), handle)
    allocator.free(handle, 4)

    assert back == b"abcd"


class Scarce:
    """Memory for two blocks."""

    def __init__(self) -> None:
        self.given: list[bytearray] = []
        self.made = 0

    def alloc(self, size: int) -> bytearray:
        if len(self.given) == 2:
            raise OutOfMemory("two blocks are all there is")
        self.made += 1
        self.given.append(bytearray(size))
        return self.given[-1]

    def free(self, handle: bytearray) -> None:
        self.given = [g for g in self.given if g is not handle]

    def write(self, dst: bytearray, src: memoryview) -> None:
        dst[:] = src

    def read(self, dst: memoryview, src: bytearray) -> None:
        dst[:] = src

    def offset(self, handle: bytearray, size: int, start: int) -> memoryview:
        return memoryview(handle)[start : start + size]


def test_free_keeps_a_block_for_reuse() -> None:
    scarce = Scarce()
    pool = LRUAllocator(scarce)
    pool.free(pool.alloc(64), 64)
    pool.alloc(64)

    assert scarce.made == 1


def test_exhausted_memory_is_asked_again_after_free_cache() -> None:
    scarce = Scarce()
    pool = LRUAllocator(scarce)
    blocks = [pool.alloc(64), pool.alloc(64)]
    for block in blocks:
        pool.free(block, 64)

    assert len(pool.alloc(128)) == 128


def test_buffer_is_allocated_at_first_use() -> None:
    buffer = Buffer("PYTHON", 4, dtypes.float32)

    assert not buffer.is_allocated
    assert buffer.ensure_allocated().is_allocated


def test_buffer_copyin() -> None:
    buffer = Buffer("PYTHON", 4, dtypes.uint8).copyin(memoryview(b"abcd"))

    assert buffer.tobytes() == b"abcd"
    with pytest.raises(ArgumentError, match="4 bytes"):
        buffer.copyin(memoryview(b"abc"))


def test_buffer_from_cpu_and_back() -> None:
    array = numpy.arange(6, dtype=numpy.int32)

    assert Buffer.fromCPU("PYTHON", array).toCPU().tolist() == array.tolist()


def test_to_cpu_shares_memory_where_the_host_sees_it() -> None:
    buffer = Buffer.from_cpu("PYTHON", numpy.zeros(4, "f"))
    view = buffer.to_cpu()
    buffer.copyin(numpy.ones(4, "f").data.cast("B"))

    assert view.tolist() == [1.0] * 4


def test_open_device_holds_what_compiled_held() -> None:
    device = Device["PYTHON"]
    compiled = compile_kernel(plus_one(), device.toolchain)
    out, four = block(device, 0, 0, 0, 0), block(device, 1, 2, 3, 4)
    device.runtime.load(compiled.binary, compiled.info)([out, four], [], wait=True)

    assert held(device, out) == [2, 3, 4, 5]
    assert isinstance(device.toolchain.renderer.limits, Limits)


def test_plan_is_data_that_applies_to_a_graph() -> None:
    ast = kernels(matmul(graph_buffer(8, 8), graph_buffer(8, 8)))[0].arg.ast
    plan = plan_for(ast, Device["PYTHON"].toolchain.renderer.limits)

    assert pickle.loads(pickle.dumps(plan)) == plan
    assert apply_plan(ast, plan).op is Op.SINK


class Counting:
    """A compiler that nothing in the disk cache is from, which counts its calls."""

    name = "counting"

    def __init__(self, tmp_path: Path) -> None:
        self.key = str(tmp_path)
        self.calls = 0

    def compile(self, source: str) -> bytes:
        self.calls += 1
        return source.encode()[::-1]


def test_compile_kernel_gives_source_and_binary(tmp_path: Path) -> None:
    compiler = Counting(tmp_path)
    toolchain = replace(Device["PYTHON"].toolchain, compiler=compiler)
    with Context(CCACHE=1, CACHE_DIR=str(tmp_path)):
        ast = plus_one()
        first = compile_kernel(ast, toolchain)
        cache.put(BINARIES, binary_key(first.source, toolchain), first.binary)  # once it was loaded
        second = compile_kernel(ast, toolchain)

    linear = lower(ast, toolchain.renderer, kernel_name(ast))
    assert first.source == toolchain.renderer.render(linear)
    assert first.binary == second.binary == first.source.encode()[::-1]
    assert compiler.calls == 1


def test_runner_is_made_once() -> None:
    ast = (small() + 1).schedule()[-1].ast

    assert runner_for(ast, "PYTHON") is runner_for(ast, "PYTHON")


class Late:
    """A runtime whose launches are done only when somebody waits for them."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self.runtime = runtime
        self.waiting: list[Callable[[], object]] = []

    def load(self, binary: bytes, info: ProgramInfo) -> Callable[..., None]:
        program = self.runtime.load(binary, info)
        return lambda *launch: self.waiting.append(lambda: program(*launch))

    def synchronize(self) -> None:
        for launch in self.waiting:
            launch()


def test_synchronize(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device["PYTHON"]
    compiled = compile_kernel(plus_one(), device.toolchain)
    out, four = block(device, 0, 0, 0, 0), block(device, 1, 2, 3, 4)
    monkeypatch.setattr(device, "runtime", Late(device.runtime))
    device.load(compiled.binary, compiled.info)([out, four], [])

    assert held(device, out) == [0, 0, 0, 0]
    device.synchronize()
    assert held(device, out) == [2, 3, 4, 5]


def test_compiled_runner_knows_name_and_launch_size() -> None:
    runner = runner_for((small() + 1).schedule()[-1].ast, "PYTHON")

    assert runner.name == "elementwise_2_2"
    assert numpy.prod(runner.info.grid) == 4


def test_interpreter_has_a_function_for_every_op() -> None:
    lowered_away = {Op.THREEFRY, Op.FLOORDIV, Op.FLOORMOD}
    by_dtype = {Op.CAST, Op.BITCAST}

    assert ALU - lowered_away - by_dtype <= PythonRuntime.fxn_for_op.keys()


def test_estimates_count_operations_and_bytes() -> None:
    ast = kernels(matmul(graph_buffer(8, 16), graph_buffer(16, 4)))[0].arg.ast

    assert estimate(ast) == Estimate(2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4))


def test_launch_returns_seconds_when_it_waits() -> None:
    (item,) = items()

    assert item.runner.launch(item.bufs, {}, wait=True) is not None
    assert item.runner.launch(item.bufs, {}, wait=False) is None


def test_update_stats_adds_to_global_counters(capsys: pytest.CaptureFixture[str]) -> None:
    GlobalCounters.reset()
    with Context(DEBUG=2):
        update_stats("kernel_7", "TOY", Estimate(2_000_000, 8_000_000), 0.001)

    assert (GlobalCounters.global_ops, GlobalCounters.global_mem) == (2_000_000, 8_000_000)
    assert (GlobalCounters.kernel_count, GlobalCounters.time_sum_s) == (1, 0.001)
    assert re.search(
        r"TOY +1 kernel_7 +1000.0 us +2.00 GFLOP/s +8.00 GB/s", capsys.readouterr().err
    )
