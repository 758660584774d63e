"""Compiling LLVM IR in this process."""

import sys

import pytest

from tiny_cpu.arch import Arch
from tiny_cpu.device import llvm_toolchain
from tiny_cpu.llvm import LlvmCompiler
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import SupportsAssembly

NOTHING = "define void @nothing() {\n  ret void\n}\n"
VECTOR_SUM = """
define void @sum(ptr %a) {
  %x = load <16 x float>, ptr %a, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %a, align 4
  ret void
}
"""


@pytest.mark.parametrize(
    "text", ["native", "x86_64,znver2,avx2,-avx512f", "aarch64,cortex-a76,-fullfp16"]
)
def test_every_processor_gets_its_object(text: str) -> None:
    arch = Arch.parse(text)
    binary = LlvmCompiler(arch).compile(NOTHING)

    assert binary[:4] == b"\x7fELF"
    assert int.from_bytes(binary[18:20], "little") == {"x86_64": 62, "aarch64": 183}[arch.machine]


@pytest.mark.parametrize(
    ("text", "is_wide"), [("x86_64,skylake-avx512", True), ("x86_64,znver2", False)]
)
def test_wide_vectors_are_used_where_there_are_some(text: str, is_wide: bool) -> None:
    binary = LlvmCompiler(Arch.parse(text)).compile(VECTOR_SUM)

    assert (b"\x62\xf1\x7c\x48\x58" in binary) is is_wide  # vaddps of 512 bits


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("x86_64,skylake-avx512", "vaddps\t%zmm"),
        ("x86_64,znver2", "vaddps\t%ymm"),
        ("aarch64", "fadd\tv"),
    ],
)
def test_assembly_is_what_is_compiled(text: str, instruction: str) -> None:
    compiler = LlvmCompiler(Arch.parse(text))

    assert isinstance(compiler, SupportsAssembly)
    assert instruction in compiler.assembly(VECTOR_SUM)


def test_assembly_of_what_llvm_rejects_is_refused_alike() -> None:
    with pytest.raises(CompileError, match="LLVM rejected a kernel"):
        LlvmCompiler(Arch.parse("native")).assembly("define void @f() { ret i32 }")


def test_what_llvm_says_is_kept() -> None:
    with pytest.raises(CompileError, match="LLVM rejected a kernel") as caught:
        LlvmCompiler(Arch.parse("native")).compile("define void @f() { ret i32 }")

    assert "expected" in caught.value.log
    assert caught.value.source == "define void @f() { ret i32 }"


def test_the_key_tells_processors_apart() -> None:
    keys = {
        LlvmCompiler(Arch.parse(text)).key
        for text in ("native", "x86_64", "x86_64,znver2", "aarch64")
    }

    assert len(keys) == 4


def test_without_llvmlite_the_message_names_the_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)

    with pytest.raises(CompilerUnavailable) as caught:
        llvm_toolchain("native")

    assert "DEV=CPU:LLVM needs the Python package llvmlite" in str(caught.value)
    assert "`pip install llvmlite`, or set DEV=CPU:CLANG" in str(caught.value)
