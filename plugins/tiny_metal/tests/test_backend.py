"""The declaration, what importing it costs, and what is said where there is no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from plugin_imports import loaded_by_importing

from tiny_metal import _lib
from tiny_metal.arch import ARCHS
from tiny_metal.device import toolchain
from tiny_metal.render import Msl, MslWithBfloat
from tinycore import Context, Device, Tensor
from tinycore.errors import CompilerUnavailable, DeviceUnavailable, TinycoreError


def test_importing_the_plugin_loads_nothing() -> None:
    assert loaded_by_importing("tiny_metal", "_cffi_backend", "numpy", "tiny_metal._lib") == []


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one")
def test_off_macos_it_is_told_and_never_chosen() -> None:
    assert Device.DEFAULT.partition(":")[0] != "METAL"
    with pytest.raises(DeviceUnavailable, match=r"Metal is a part of macOS.*DEV=NULL:MSL"):
        Tensor([1.0], device="METAL").realize()


def test_functions_are_found_in_the_libraries_that_have_them(
    mock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As macOS has them: Objective-C's in one library, Metal's in another."""
    from shader.compiler import FLAGS, run, target, toolchain  # noqa: PLC0415

    clang, linker = toolchain()
    flags = [flag for flag in FLAGS if flag != "-fno-rtti"]
    sources = {
        "objc": "void *objc_getClass(const char *name) { return (void *)1; } void objc_msgSend(){}",
        "Metal": "void *MTLCreateSystemDefaultDevice(void) { return (void *)2; }",
        "Foundation": "int foundation;",
        "CoreGraphics": "int graphics;",
    }
    for name, source in sources.items():
        code, library = tmp_path / f"{name}.o", tmp_path / name
        run([*clang, *target(), "-x", "c", *flags, "-c", "-", "-o", str(code)], source)
        run([*linker, "-shared", str(code), "-o", str(library)])
    monkeypatch.setattr(_lib, "_OBJC", str(tmp_path / "objc"))
    monkeypatch.setattr(_lib, "_FRAMEWORKS", str(tmp_path / "{0}"))
    system = _lib.MacOs()
    assert int(_lib.ffi.cast("uintptr_t", system.objc_getClass(b"any"))) == 1
    assert int(_lib.ffi.cast("uintptr_t", system.MTLCreateSystemDefaultDevice())) == 2
    assert _lib.ffi.cast("void(*)(void *)", system.objc_msgSend) != _lib.ffi.NULL


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_are_written_for_each_architecture(arch: str) -> None:
    with Context(DEV=f"NULL:MSL:{arch}"):
        (Tensor.empty(64, 48) @ Tensor.empty(48, 80)).softmax().realize()


@pytest.mark.parametrize("name", ["apple6", "apple7,9.9", "sm_80", "apple7,", ",3.0"])
def test_other_architectures_are_refused_by_name(name: str) -> None:
    with pytest.raises(CompilerUnavailable, match=r"no architecture .*apple7.*3\.0"):
        toolchain(name)


def test_bfloat_is_of_the_language_from_3_1_on() -> None:
    assert isinstance(toolchain("apple7").renderer, MslWithBfloat)
    for name in ("apple7,3.0", "mac2"):
        assert type(toolchain(name).renderer) is Msl
    assert toolchain("apple8,3.1").arch == "apple8"
    assert toolchain("apple8,3.0").arch == "apple8,3.0"


def test_float64_is_refused_by_name() -> None:
    with Context(DEV="NULL:MSL"), pytest.raises(TinycoreError, match="float64"):
        (Tensor.empty(4, dtype="float64") + 1).realize()
