"""The declarations, and finding the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_testing.native import write_native
from tiny_webgpu import _cdef, _lib
from tinycore.errors import DeviceUnavailable


def test_the_native_module_is_what_the_declarations_make(tmp_path: Path) -> None:
    made = tmp_path / "native.py"
    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)

    assert made.read_text("utf-8") == Path(_lib.__file__).with_name("_native.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        ("WGPULimits", 160),
        ("WGPUDeviceDescriptor", 144),
        ("WGPUAdapterInfo", 96),
        ("WGPUBindGroupLayoutEntry", 112),
        ("WGPUBindGroupEntry", 56),
        ("WGPUComputePipelineDescriptor", 80),
    ],
)
def test_structures_have_the_sizes_of_the_header(structure: str, size: int) -> None:
    assert _lib.ffi.sizeof(structure) == size


def test_a_library_that_is_named_but_absent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBGPU_LIBRARY", "/nowhere/libwebgpu_dawn.so")

    with pytest.raises(DeviceUnavailable, match="WEBGPU_LIBRARY=/nowhere/libwebgpu_dawn"):
        _lib.dawn()


def test_a_library_that_is_none_of_dawn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBGPU_LIBRARY", __file__)

    with pytest.raises(DeviceUnavailable, match=r"is no library of Dawn that can be used .*0\.3"):
        _lib.dawn()


def test_without_the_wheel_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WEBGPU_LIBRARY", raising=False)
    monkeypatch.setattr(_lib, "_WHEEL", "no_such_wheel")

    assert "pip install dawn-python" in _lib.missing_library()
