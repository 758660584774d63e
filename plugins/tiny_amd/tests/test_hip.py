"""HIP: source through COMGR where it is, and through zig's clang, which takes the same language.

Kernels that clang makes of it run on the emulator through the driver, as those of LLVM IR do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ziglang")

from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI31
from simulated_amd import backend_of
from tensor_programs import TensorPrograms

from tiny_amd import comgr
from tiny_amd.arch import arch_of, limits_of
from tiny_amd.hip import AmdHip
from tinycore import Context, Tensor, dtypes
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.plugin import Toolchain, register, unregister

PROGRAMS: Final = TensorPrograms("AMD")
LANGUAGE: Final = (
    *("clang", "-cc1", "-triple", "amdgcn-amd-amdhsa", "-aux-triple", "x86_64-unknown-linux-gnu"),
    *("-fcuda-is-device", "-emit-obj", "-mcode-object-version=5", "-O3", "-fwrapv"),
    *("-std=c++17", "-x", "hip"),
)


class ZigCompiler:
    """HIP source to an object by zig's clang."""

    name = "COMGR"

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.key = f"zig {arch}"

    def compile(self, source: str) -> bytes:
        """The object. Raises CompileError."""
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder) / "kernel.hip", Path(folder) / "kernel.o"
            given.write_text(source)
            command = [*LANGUAGE, str(given), "-target-cpu", self.arch, "-o", str(made)]
            done = subprocess.run(
                [sys.executable, "-m", "ziglang", *command], capture_output=True, check=False
            )
            if done.returncode:
                raise CompileError("clang failed", log=done.stderr.decode(), source=source)
            return made.read_bytes()


def toolchain(arch: str) -> Toolchain[AmdHip]:
    """HIP by zig's clang."""
    limits = replace(limits_of(arch_of(arch)), matrix=())
    return Toolchain("HIP", arch, AmdHip(limits), ZigCompiler(arch))


@pytest.fixture(scope="module", params=[NAVI31, MI300], ids=["gfx1100", "gfx942"])
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card whose kernels are HIP."""
    made = backend_of(Machine((request.param,)))
    register(replace(made, renderers={"HIP": toolchain}))
    with Context(DEV="AMD:HIP"):
        yield
    unregister("AMD")


def test_elements_and_sums(card: None) -> None:
    PROGRAMS.elements()
    PROGRAMS.sums(0)


def test_softmax(card: None) -> None:
    PROGRAMS.softmax()


def test_products_with_shared_memory(card: None) -> None:
    PROGRAMS.matmul(65, 50, 130)


def test_integers(card: None) -> None:
    PROGRAMS.integers()


def test_halves_and_bools(card: None) -> None:
    values = numpy.linspace(-4, 4, 100, dtype="e")
    found = (Tensor(values) > 1).where(Tensor(values).sqrt(), 0)
    expected = numpy.where(values > 1, numpy.sqrt(numpy.maximum(values, 0)), 0)
    assert numpy.allclose(found.cast(dtypes.float32).numpy(), expected, 2e-3)


# --- COMGR itself


def test_what_is_said_without_comgr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comgr, "_opened", [])
    monkeypatch.setenv(comgr.VARIABLE, "/nowhere/libamd_comgr.so")
    with pytest.raises(CompilerUnavailable) as raised:
        comgr.ComgrCompiler("gfx1100")

    said = str(raised.value)
    assert "DEV=AMD:HIP needs AMD's compiler library COMGR, which is not here" in said
    assert "apt install libamd-comgr2" in said
    assert "Tried: /nowhere/libamd_comgr.so" in said


def test_comgr_compiles_where_it_is() -> None:
    try:
        compiler = comgr.ComgrCompiler("gfx1100")
    except CompilerUnavailable as why:
        pytest.skip(str(why))
    found = compiler.compile('extern "C" __attribute__((global)) void k(float *p) { *p = 1; }')

    assert found[:4] == b"\x7fELF"
    with pytest.raises(CompileError, match="COMGR cannot compile a kernel") as raised:
        compiler.compile("void k( {")
    assert "error:" in raised.value.log
