"""The declaration, and what importing it costs."""

from pathlib import Path

import pytest
from plugin_imports import loaded_by_importing

from tiny_cpu import BACKEND, _cdef, _native, clang, probe
from tiny_cpu.device import CpuDevice
from tiny_testing.native import write_native


def test_the_best_renderer_comes_first() -> None:
    assert list(BACKEND.renderers) == ["CLANG", "LLVM"]


@pytest.mark.parametrize("renderer", ["CLANG", "LLVM"])
def test_toolchains_say_what_they_are_for(renderer: str) -> None:
    if renderer == "CLANG" and not clang.is_clang_installed():
        pytest.skip("no clang")
    toolchain = BACKEND.renderers[renderer]("x86_64,znver2")

    assert toolchain.name == toolchain.compiler.name == renderer
    assert toolchain.arch == "x86_64,znver2"
    assert toolchain.renderer.limits.vector_bytes == 32


def test_importing_the_plugin_loads_nothing() -> None:
    heavy = ("_cffi_backend", "llvmlite", "subprocess", "tiny_cpu.device", "tiny_cpu.pool")

    assert loaded_by_importing("tiny_cpu", *heavy) == []


def test_devices_have_memory_of_their_own() -> None:
    one, other = CpuDevice(0, ""), CpuDevice(1, "")

    assert one.allocator is not other.allocator
    one.close()
    one.close()
    other.synchronize()


def test_this_machine_has_a_cpu() -> None:
    assert BACKEND.count() == 1
    assert BACKEND.probe is not None
    assert BACKEND.probe() == ""


def test_an_unsupported_platform_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "host_machine", lambda: "riscv64")

    assert probe.count() == 0
    assert "runs on Linux and macOS, on 64-bit x86_64 and aarch64; this is" in probe.reason()
    assert "riscv64" in probe.reason()
    assert "DEV=PYTHON computes anywhere" in probe.reason()


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"

    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)

    assert made.read_text() == Path(_native.__file__).read_text()
