"""Stores past the caches write what other stores write, wherever a buffer begins.

Loads that fetch ahead read what other loads read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_cpu.arch import Arch
from tiny_testing.kernels import Bench, bench, element, elementwise, load, store
from tinycore.dtype import DType, dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.tile import Bind, Split
from tinycore.plugin import ProgramInfo
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

SIZE = 512
WORDS = {"CLANG": "__builtin_nontemporal_store", "LLVM": "!nontemporal !0"}

only_x86 = pytest.mark.skipif(
    not Arch.parse("native").limits().stream_bytes, reason="only x86-64 stores past its caches"
)


@pytest.fixture
def cpu(toolchain: str) -> Bench:
    """Each compiler, on a processor whose last cache holds 64 bytes."""
    found = bench(BACKEND, toolchain)
    renderer = found.toolchain.renderer
    tiny = replace(renderer, limits=replace(renderer.limits, stream_bytes=64))
    return replace(found, toolchain=replace(found.toolchain, renderer=tiny))


@pytest.mark.sample(4)
@only_x86
@pytest.mark.parametrize("start", [0, 4, 16, 32])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_what_is_stored(cpu: Bench, dtype: DType, lanes: int, start: int) -> None:
    if lanes * dtype.itemsize < 16:
        pytest.skip("too narrow to be stored past the caches")
    kernel = elementwise(lambda a: [a], [dtype], SIZE, lanes)
    linear = lower(kernel, cpu.toolchain.renderer, "copied", plan=())
    source = cpu.toolchain.renderer.render(linear)
    program = cpu.runtime.load(
        cpu.toolchain.compiler.compile(source), ProgramInfo("copied", 2, (), parallel=1)
    )
    allocator, size = cpu.runtime.allocator, SIZE * dtype.itemsize
    sent = numpy.random.default_rng(lanes).bytes(size)
    if dtype is dtypes.float16 or dtype is dtypes.bfloat16:
        sent = bytes(numpy.frombuffer(sent, numpy.uint16) & 0x3FFF)  # NaN may change its bits
    whole = allocator.alloc(size + 64)
    source_handle = allocator.alloc(size)
    allocator.write(whole, memoryview(b"\xa5" * (size + 64)))
    allocator.write(source_handle, memoryview(sent))
    program([allocator.offset(whole, size, start), source_handle], [])
    found = bytearray(size + 64)
    allocator.read(memoryview(found), whole)
    allocator.free(whole)
    allocator.free(source_handle)

    assert WORDS[cpu.toolchain.name] in source
    assert bytes(found[start : start + size]) == sent
    assert set(found[:start]) | set(found[start + size :]) == {0xA5}


def centered(rows: int, columns: int) -> UOp:
    """Rows of a matrix, less their sums."""
    i, j, k = UOp.range(rows, 0), UOp.range(columns, 2), UOp.range(columns, 1)
    x, y = (
        load(element(1, dtypes.int32, rows * columns, i * columns + at), dtypes.int32)
        for at in (j, k)
    )
    total = UOp(Op.REDUCE, dtypes.int32, (x, j), Op.ADD)
    change = store(element(0, dtypes.int32, rows * columns, i * columns + k), y - total)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, k)))


@only_x86
def test_the_next_row_is_fetched(cpu: Bench) -> None:
    plan = [step for n in (1, 2) for step in (Split((n,), 8), Bind((n, 1), AxisKind.VECTOR))]
    rows = numpy.random.default_rng(0).integers(-99, 99, (6, 32), dtype=numpy.int32)
    linear = lower(centered(6, 32), cpu.toolchain.renderer, "centered", plan=tuple(plan))
    source = cpu.toolchain.renderer.render(linear)
    program = cpu.runtime.load(
        cpu.toolchain.compiler.compile(source), ProgramInfo("centered", 2, (), parallel=1)
    )
    allocator = cpu.runtime.allocator
    result, operand = allocator.alloc(rows.nbytes), allocator.alloc(rows.nbytes)
    allocator.write(operand, memoryview(rows.tobytes()))
    program([result, operand], [])
    found = numpy.empty_like(rows)
    allocator.read(found.data, result)

    assert "prefetch" in source
    numpy.testing.assert_array_equal(found, rows - rows.sum(1, keepdims=True))
