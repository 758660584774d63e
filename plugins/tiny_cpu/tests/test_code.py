"""From an object file to something that runs: loading, symbols, pages."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_cpu.arch import Arch, host_machine
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.memory import CpuAllocator
from tiny_cpu.program import CpuProgram
from tinycore.errors import DeviceError
from tinycore.plugin import ProgramInfo

Load = Callable[..., CpuProgram]

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_constants_and_library_functions_are_found(load: Load) -> None:
    allocator = CpuAllocator()
    data = allocator.alloc(4)

    load("library")([data], [0, 10])

    assert allocator.map(data, 4).cast("f")[0] == 11.5  # fmodf(7.5, 2) + 10


@needs_proc
def test_no_page_is_writable_and_executable(load: Load) -> None:
    allowed = {page for page in pages() if is_unsafe(page)}  # llvmlite's callbacks, made by libffi

    programs = [load("add", parallel=64), load("library")]  # and the pool
    programs[0]([CpuAllocator().alloc(256)], [1])

    assert [permissions_at(program.entry) for program in programs] == ["r-xp", "r-xp"]
    assert not [page for page in pages() if is_unsafe(page) and page not in allowed]


@needs_proc
def test_code_is_unmapped_with_its_program(load: Load) -> None:
    program = load("add")
    entry = program.entry

    del program

    assert permissions_at(entry) != "r-xp"


def pages() -> list[tuple[int, int, str]]:
    """Start, end and permissions of all mappings of this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        start, end = (int(number, 16) for number in span.split("-"))
        found.append((start, end, permissions))
    return found


def is_unsafe(page: tuple[int, int, str]) -> bool:
    return "w" in page[2] and "x" in page[2]


def permissions_at(address: int) -> str:
    return next((how for start, end, how in pages() if start <= address < end), "")


def test_code_for_another_machine_is_refused() -> None:
    other = "aarch64" if host_machine() == "x86_64" else "x86_64"
    binary = LlvmCompiler(Arch.parse(other)).compile("define void @nothing() {\n ret void\n}")

    with pytest.raises(DeviceError, match=f"{other}"):
        CpuProgram(binary, ProgramInfo("nothing", 0))


def test_an_unknown_function_is_named() -> None:
    source = (
        "declare void @nowhere_to_be_found()\n"
        "define void @k() {\n  call void @nowhere_to_be_found()\n  ret void\n}"
    )
    binary = LlvmCompiler(Arch.parse("native")).compile(source)

    with pytest.raises(DeviceError, match="nowhere_to_be_found"):
        CpuProgram(binary, ProgramInfo("k", 0))
