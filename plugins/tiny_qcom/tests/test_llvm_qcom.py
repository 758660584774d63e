"""Qualcomm's compiler by the functions of its library, which a library in C plays."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cffi import FFI

from tiny_qcom import llvm_qcom
from tiny_qcom.chip import chip_of
from tiny_qcom.llvm_qcom import Library, QcomCompiler
from tinycore.errors import CompileError, CompilerUnavailable

SOURCE = Path(__file__).with_name("libllvm_qcom.c")
COUNTS = "extern int instances, made_instances, handles, binaries;"


def c_compiler() -> list[str]:
    """A command that compiles C; empty without one."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return []


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    if not (compiler := c_compiler()):
        pytest.skip("no compiler of C, which the stand-in of libllvm-qcom.so is written in")
    made = tmp_path_factory.mktemp("library") / "libllvm-qcom.so"
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.fixture
def compiler(path: Path, monkeypatch: pytest.MonkeyPatch) -> QcomCompiler:
    monkeypatch.setattr(llvm_qcom, "NAMES", ("/nowhere/libllvm-qcom.so", str(path)))
    return QcomCompiler(chip_of("a630"), Library())


def counts(path: Path) -> tuple[int, int, int, int]:
    """Instances that there are and were made, handles and binaries that are not freed."""
    ffi = FFI()
    ffi.cdef(COUNTS)
    lib = ffi.dlopen(str(path))
    return lib.instances, lib.made_instances, lib.handles, lib.binaries


def test_a_source_is_compiled_and_linked_for_the_chip(compiler: QcomCompiler, path: Path) -> None:
    before = counts(path)
    assert compiler.compile("kernel void k() {}") == b"6030001 1 kernel void k() {}"
    assert compiler.compile("kernel void l() {}").endswith(b"l() {}")
    assert counts(path) == before, "handles and binaries are given back"


@pytest.mark.parametrize(
    ("source", "log"), [("reject", "line 1: this is rejected"), ("unlinked", "nothing to link")]
)
def test_after_an_error_there_is_a_new_instance(
    compiler: QcomCompiler, path: Path, source: str, log: str
) -> None:
    instances, made, _, _ = counts(path)
    with pytest.raises(CompileError, match="Qualcomm's compiler rejected a kernel") as raised:
        compiler.compile(source)
    assert raised.value.log == log
    assert counts(path)[:2] == (instances, made + 1)
    assert compiler.compile("kernel void k() {}")


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_qcom, "NAMES", ("/nowhere/libllvm-qcom.so",))
    with pytest.raises(CompilerUnavailable, match="which is part of the drivers"):
        Library()
