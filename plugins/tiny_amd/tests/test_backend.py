"""The plugin's declaration, its code objects, and kernels compiled for each architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine

from tiny_amd import BACKEND, _cdef, _native
from tiny_amd.arch import ARCHS
from tiny_amd.code import CodeObject
from tiny_amd.device import toolchain
from tiny_hcq import use_system
from tiny_testing.native import write_native
from tinycore import Context, Tensor
from tinycore.errors import (
    CompileError,
    CompilerUnavailable,
    DeviceUnavailable,
    FileFormatError,
)
from tinycore.plugin import SupportsAssembly, installed_renderers

EMPTY = "define amdgpu_kernel void @k(ptr addrspace(1) %data0) {\n  ret void\n}\n"


def test_where_there_is_no_card_the_error_says_what_to_do() -> None:
    machine = Machine(())
    machine.missing.add("/dev/kfd")
    with use_system(machine):
        assert BACKEND.count() == 0
        with pytest.raises(DeviceUnavailable, match=r"no /dev/kfd.* DEV=NULL:LLVM.*tiny-cl"):
            BACKEND.open(0, "")


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"
    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)
    assert made.read_text() == Path(_native.__file__).read_text(), "see tiny_amd/_cdef.py"


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile_for_each_architecture(arch: str) -> None:
    with Context(DEV=f"NULL:LLVM:{arch}"):
        (Tensor.empty(64, 48) @ Tensor.empty(48, 80)).softmax().realize()


def test_other_architectures_are_refused_by_name() -> None:
    with pytest.raises(CompilerUnavailable, match=r"'gfx803' is no architecture .*gfx1100"):
        toolchain("gfx803")


def test_a_renderer_of_the_same_name_is_asked_for_its_own_architectures() -> None:
    assert installed_renderers("NULL")["LLVM"]("gfx1151").arch == "gfx1151"


def test_errors_of_llvm_are_shown() -> None:
    with pytest.raises(CompileError, match="LLVM rejected a kernel"):
        toolchain().compiler.compile("define void @k() { what }")


def test_a_code_object() -> None:
    binary = toolchain().compiler.compile(EMPTY)
    code = CodeObject(binary, "k")
    placed = code.place(1 << 40)
    assert len(placed) == code.size
    found = code.descriptor(placed)
    start = code.descriptor_offset + found.entry
    assert 0 <= start < code.size
    assert placed[start : start + 4] == bytes.fromhex("0000b0bf")  # s_endpgm
    with pytest.raises(FileFormatError, match=r"no kernel descriptor 'other\.kd'"):
        CodeObject(binary, "other")
    with pytest.raises(FileFormatError):
        CodeObject(binary[: len(binary) // 2], "k")


def test_assembly_is_for_people() -> None:
    compiler = toolchain().compiler
    assert isinstance(compiler, SupportsAssembly)
    assert "s_endpgm" in compiler.assembly(EMPTY)
