"""Stores past the caches write what other stores write, wherever a buffer begins."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_cpu.arch import Arch
from tinycore.dtype import DType, dtypes
from tinycore.lower.pipeline import lower
from tinycore.plugin import ProgramInfo
from tinycore.testing.kernels import Bench, bench, elementwise

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
