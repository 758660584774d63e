"""Fixtures of the tests of tiny_cpu: two kernels by hand, in the language of each compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiny_cpu.arch import Arch
from tiny_cpu.clang import ClangCompiler, is_clang_installed
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.program import CpuProgram
from tinycore.config import Context
from tinycore.plugin import Compiler, ProgramInfo

# Both add values[0] to the floats of buffer 0, from begin to end.

ADD_IN_C = """
void add(void *const *buffers, const long long *values, long long begin, long long end) {
  float *data = buffers[0];
  for (long long i = begin; i < end; i++) data[i] += values[0];
}
"""

ADD_IN_IR = """
define void @add(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %data = load ptr, ptr %buffers
  %value = load i64, ptr %values
  %amount = sitofp i64 %value to float
  br label %head
head:
  %i = phi i64 [ %begin, %0 ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %place = getelementptr float, ptr %data, i64 %i
  %old = load float, ptr %place
  %new = fadd float %old, %amount
  store float %new, ptr %place
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

# Element 0 of buffer 0 becomes fmodf(7.5, 2) + values[1], by a table and a library function.

LIBRARY_IN_C = """
float fmodf(float, float);
static const float table[3] = {7.5f, 2.0f, 1.0f};
void library(void *const *buffers, const long long *values, long long begin, long long end) {
  *(float *)buffers[0] = fmodf(table[values[0]], table[values[0] + 1]) + values[1];
}
"""

LIBRARY_IN_IR = """
@table = internal constant [3 x float] [float 7.5, float 2.0, float 1.0]
declare float @fmodf(float, float)
define void @library(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %data = load ptr, ptr %buffers
  %first = load i64, ptr %values
  %second_place = getelementptr i64, ptr %values, i64 1
  %second = load i64, ptr %second_place
  %after = add i64 %first, 1
  %a_place = getelementptr float, ptr @table, i64 %first
  %b_place = getelementptr float, ptr @table, i64 %after
  %a = load float, ptr %a_place
  %b = load float, ptr %b_place
  %rest = call float @fmodf(float %a, float %b)
  %amount = sitofp i64 %second to float
  %sum = fadd float %rest, %amount
  store float %sum, ptr %data
  ret void
}
"""

SOURCES = {
    "CLANG": {"add": ADD_IN_C, "library": LIBRARY_IN_C},
    "LLVM": {"add": ADD_IN_IR, "library": LIBRARY_IN_IR},
}

VALUES = {"add": ("amount",), "library": ("first", "second")}

Load = Callable[..., CpuProgram]
"""load(kernel, parallel=1): one of the kernels above, as a program."""


@pytest.fixture(params=["CLANG", "LLVM"])
def toolchain(request: pytest.FixtureRequest) -> str:
    """Each compiler in turn."""
    if request.param == "CLANG" and not is_clang_installed():
        pytest.skip("no clang 15 or newer, and no ziglang")
    return str(request.param)


@pytest.fixture
def compiler(toolchain: str) -> Compiler:
    """A compiler for this machine."""
    arch = Arch.parse("native")
    return ClangCompiler(arch) if toolchain == "CLANG" else LlvmCompiler(arch)


@pytest.fixture
def load(toolchain: str, compiler: Compiler) -> Load:
    """Makes programs of this compiler."""

    def make(kernel: str, parallel: int = 1) -> CpuProgram:
        info = ProgramInfo(kernel, buffers=1, values=VALUES[kernel], parallel=parallel)
        return CpuProgram(compiler.compile(SOURCES[toolchain][kernel]), info)

    return make


@pytest.fixture
def clean_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    with Context(CACHE_DIR=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def sources() -> dict[str, dict[str, str]]:
    """The kernels above, by toolchain."""
    return SOURCES
