"""The declaration, what importing it costs, and what is said of drivers that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_imports import loaded_by_importing
from standin import Card, Driver

from tiny_nv import CUDA, _cdef, _lib, _native, probe
from tiny_nv.device import CudaDevice
from tiny_testing.native import write_native
from tinycore.errors import DeviceUnavailable


def test_importing_the_plugin_loads_nothing() -> None:
    assert loaded_by_importing("tiny_nv", "_cffi_backend", "numpy", "tiny_nv._lib") == []


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"

    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)

    assert made.read_text() == Path(_native.__file__).read_text()


def test_without_a_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lib, "_opened", [])
    monkeypatch.setenv("CUDA_LIBRARY", "/nowhere/libcuda.so")

    assert probe.count() == 0
    assert "Install NVIDIA's driver" in probe.reason()
    assert "/nowhere/libcuda.so (No such file or directory)" in probe.reason()
    with pytest.raises(DeviceUnavailable, match="no CUDA driver"):
        CudaDevice(0, "")


def test_looking_for_cards_makes_no_context(driver: Driver) -> None:
    assert CUDA.count() == 1
    assert CUDA.probe is not None
    assert CUDA.probe() == ""

    assert not {"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"} & set(driver.calls)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Driver(cards=()), "CUDA_VISIBLE_DEVICES"),
        (Driver(cards=(Card(capability=(7, 5)),)), "compute capability 8.0 or later"),
        (Driver(version=11_080), r"is of CUDA 11.8; tiny-nv needs one of CUDA 12.0"),
    ],
    ids=["none", "old card", "old driver"],
)
def test_what_cannot_be_used_is_told(driver: Driver, words: str) -> None:
    with _lib.use(driver):
        assert probe.count() == 0
        assert words in probe.reason()
        with pytest.raises(DeviceUnavailable, match=words):
            CudaDevice(0, "")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803). The driver's library and kernel module"),
        (34, "a stub to link with"),
        (999, "CUDA_ERROR_UNKNOWN (999). See the kernel's log"),
    ],
)
def test_a_driver_that_does_not_start_is_told_by_name(status: int, words: str) -> None:
    driver = Driver()
    driver.fail("cuInit", status, status)
    with _lib.use(driver):
        assert probe.count() == 0
        assert words in probe.reason()


def test_cards_that_are_too_old_are_left_out() -> None:
    with _lib.use(Driver(cards=(Card("Old", (7, 0)), Card("New", (9, 0))))):
        (card,) = probe.cards()

    assert (card.name, card.number, card.arch) == ("New", 1, "sm_90")


def test_a_card_that_is_not_there_is_told_with_those_that_are(driver: Driver) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no CUDA:9; there are: CUDA:0 A card"):
        CudaDevice(9, "")


def test_closing_gives_everything_back(driver: Driver) -> None:
    opened = CudaDevice(0, "")
    handle = opened.allocator.alloc(100)
    opened.allocator.write(handle, memoryview(bytes(100)))
    opened.allocator.free(handle)
    opened.close()
    opened.close()

    assert driver.left == {}
