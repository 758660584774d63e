"""The declaration, what importing it costs, and what is said where there is no driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from plugin_imports import loaded_by_importing

from tiny_cl import BACKEND, _cdef, _lib, _native, probe
from tiny_cl.device import ClDevice, context_of, toolchain
from tiny_cl.render import limits_of
from tiny_testing.native import write_native
from tinycore import Context
from tinycore.cli.devices import computing_on
from tinycore.errors import DeviceUnavailable


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine without OpenCL."""
    caches = (_lib.library, probe.devices, context_of)
    monkeypatch.setenv("OPENCL_LIBRARY", "/nowhere/libOpenCL.so")
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_importing_the_plugin_loads_nothing() -> None:
    assert loaded_by_importing("tiny_cl", "_cffi_backend", "numpy", "tiny_cl._lib") == []


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"

    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)

    assert made.read_text() == Path(_native.__file__).read_text()


def test_without_a_library_it_says_what_to_install(no_library: None) -> None:
    assert probe.count() == 0
    assert "apt install pocl-opencl-icd" in probe.reason()
    assert "/nowhere/libOpenCL.so" in probe.reason()
    with pytest.raises(DeviceUnavailable, match="no OpenCL library"):
        ClDevice(0, "")


def test_without_a_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "devices", lambda: ())

    assert "no driver is registered" in probe.reason()


def test_processors_come_last(driver: None) -> None:
    kinds = [info.is_processor for info in probe.devices()]

    assert kinds == sorted(kinds)
    assert BACKEND.count() == len(kinds) > 0
    assert probe.reason() == ""


def test_shared_memory_is_near_on_cards_only(driver: None) -> None:
    info = probe.devices()[0]

    assert not limits_of(replace(info, is_processor=True)).shared_is_near
    assert limits_of(replace(info, is_processor=False)).shared_is_near


def test_a_device_that_is_not_there_is_told_with_those_that_are(driver: None) -> None:
    with pytest.raises(DeviceUnavailable, match=r"there is no CL:99; there are: CL:0 \w+"):
        ClDevice(99, "")


def test_an_architecture_is_a_number(driver: None) -> None:
    assert toolchain("0").arch == "0"
    with pytest.raises(DeviceUnavailable, match="not 'gfx1100'"):
        toolchain("gfx1100")


def test_a_device_says_what_it_lacks(device: ClDevice) -> None:
    assert ("float64" in device.capabilities) == device.info.has_double
    assert ("host_memory" in device.capabilities) == device.allocator.shares_memory
    assert device.arch == "0"


def test_the_number_of_a_device_is_no_machine(device: ClDevice) -> None:
    with Context(DEV="CL"):
        assert computing_on("CL") == "CL, compiled by OPENCL"


@pytest.mark.parametrize(
    ("told", "version"),
    [("OpenCL C 1.2 PoCL", (1, 2)), ("OpenCL 3.0 LINUX", (3, 0)), ("unknown", (1, 0))],
)
def test_versions_are_read_from_text(told: str, version: tuple[int, int]) -> None:
    assert probe._version(told) == version


def test_statuses_have_their_names() -> None:
    assert _lib.describe(-11) == "CL_BUILD_PROGRAM_FAILURE (-11)"
    assert _lib.describe(-7777) == "an unknown error (-7777)"
