"""The source of kernels: what holds of it on every processor, without running it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_cpu.clang import ClangCompiler
from tiny_cpu.llvm import LlvmCompiler
from tiny_hcq import ElfImage
from tiny_testing.kernels import Bench, bench, element, elementwise, load, store
from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import TRANSCENDENTAL, AxisKind, Op

NATIVE = (dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64)
ARCHS = ("x86_64", "x86_64,sandybridge", "x86_64,x86-64-v3", "x86_64,x86-64-v4", "aarch64")
PROVIDED = {"memset", "memcpy", "memmove"}
"""Functions that compilers put in on their own account, and loaders provide."""

SINGLE = dtypes.float32


def hard_kernels(lanes: int) -> Iterator[UOp]:
    """Kernels that compilers like to call libraries for."""
    floats = [d for d in NATIVE if d.kind == "float"]
    functions = (*TRANSCENDENTAL, Op.SQRT, Op.TRUNC)
    for dtype in floats:
        yield elementwise(lambda a: [a.alu(op) for op in functions], [dtype], 64, lanes)
        yield elementwise(lambda a, b: [a / b, a.maximum(b)], [dtype, dtype], 64, lanes)
    for dtype in NATIVE:
        others = [d for d in NATIVE if d is not dtype]
        yield elementwise(lambda a: [a.cast(d) for d in others], [dtype], 64, lanes)  # noqa: B023
    for dtype in (dtypes.int64, dtypes.uint8):
        yield elementwise(lambda a, b: [a // b, a % b], [dtype, dtype], 64, lanes)


@pytest.mark.sample(12)
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_outside_the_kernel_is_called(toolchain: str, arch: str, lanes: int) -> None:
    cpu = bench(BACKEND, toolchain, arch)
    for kernel in hard_kernels(lanes):
        source = cpu.toolchain.renderer.render(cpu.lower(kernel))
        image = ElfImage(cpu.toolchain.compiler.compile(source))

        assert set(image.undefined) <= PROVIDED, source


@pytest.mark.parametrize("kind", [SINGLE, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
def test_roots_of_lanes_are_taken_at_once(toolchain: str, lanes: int, kind: DType) -> None:
    """By an instruction for each register: clang 15 has a builtin for single numbers only."""
    cpu = bench(BACKEND, toolchain, "x86_64,x86-64-v4")
    kernel = elementwise(lambda a: [a.alu(Op.SQRT)], [kind], 64, lanes)
    compiler = cpu.toolchain.compiler
    assert isinstance(compiler, ClangCompiler | LlvmCompiler)

    assembly = compiler.assembly(cpu.toolchain.renderer.render(cpu.lower(kernel)))

    assert "sqrtp" in assembly
    assert "sqrts" not in assembly


@pytest.fixture
def cpu(toolchain: str) -> Bench:
    """Each compiler, for this processor."""
    return bench(BACKEND, toolchain)


def source_of(cpu: Bench, kernel: UOp) -> str:
    return cpu.toolchain.renderer.render(cpu.lower(kernel))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16])
def test_lanes_are_taken_of_any_number_of_vectors(cpu: Bench, count: int) -> None:
    """In turn, reversed, and one alone; compilers shuffle two vectors at once."""
    size = 4 * count
    parts = [load(element(1, SINGLE, size, UOp.index(4 * n)), SINGLE.vec(4)) for n in range(count)]
    for lanes in (tuple(range(size)), tuple(range(size))[::-1][:4], (size - 2,)):
        dtype = SINGLE if len(lanes) == 1 else SINGLE.vec(len(lanes))
        taken = UOp(Op.EXTRACT, dtype, tuple(parts), lanes)
        kernel = UOp.sink(store(element(0, SINGLE, size, UOp.index(0)), taken))
        given = numpy.arange(size, dtype=numpy.float32)

        found, _ = cpu.run(kernel, numpy.zeros(size, numpy.float32), given)

        assert found[: len(lanes)].tolist() == list(map(float, lanes))


def test_kernel_gets_begin_and_end_only_where_it_is_shared(cpu: Bench) -> None:
    shared = elementwise(lambda a: [-a], [SINGLE], 64, kind=AxisKind.PARALLEL)
    alone = elementwise(lambda a: [-a], [SINGLE], 64)

    bounds = "p0 < end" if cpu.toolchain.name == "CLANG" else "slt i64 %p0_1, %end"
    assert bounds in source_of(cpu, shared)
    assert bounds not in source_of(cpu, alone)


def test_buffer_that_is_not_written_is_read_only(cpu: Bench) -> None:
    source = source_of(cpu, elementwise(lambda a: [-a], [SINGLE], 64))

    words = {"CLANG": "const float *restrict data1", "LLVM": "ptr noalias readonly %data1"}
    assert words[cpu.toolchain.name] in source


def test_buffers_are_told_by_their_slots(cpu: Bench) -> None:
    """Slot 1 became unused and is gone; slot 2 is still the third buffer."""
    counter = UOp.range(4, 0)
    value = load(element(2, SINGLE, 4, counter), SINGLE)
    change = store(element(0, SINGLE, 4, counter), value)
    source = source_of(cpu, UOp.sink(UOp(Op.END, dtypes.void, (change, counter))))

    words = {"CLANG": "(buffers[0], buffers[2])", "LLVM": "ptr %buffers, i64 2"}
    assert words[cpu.toolchain.name] in source


def test_index_literals_do_not_overflow_int(cpu: Bench) -> None:
    n = UOp.variable("n", 0, 40)
    far = UOp.index(1) << n
    change = store(element(0, SINGLE, 1 << 41, far), UOp.const(SINGLE, 1.0))
    source = source_of(cpu, UOp.sink(UOp(Op.END, dtypes.void, (change,))))

    words = {"CLANG": "(int64_t)1 << value0", "LLVM": "shl i64 1, %value0"}
    assert words[cpu.toolchain.name] in source
