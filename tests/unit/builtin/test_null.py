"""NULL: renders and compiles for any installed backend, and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy
import pytest

from tinycore.config import Context
from tinycore.device import Buffer, Device
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError, SettingError
from tinycore.plugin import Backend, ProgramInfo, Toolchain, register, unregister

NAMES: Final = ("NULL", "NULL:1")


class Compiler:
    name = "TOYC"
    key = "toy"

    def compile(self, source: str) -> bytes:
        return source.encode()


def toolchain(arch: str) -> Toolchain[str]:
    return Toolchain("TOYC", arch, "a renderer", Compiler())


def refuse(index: int, interface: str) -> Any:
    raise AssertionError("opened")


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    """An accelerator that must not be opened, with a renderer of its own."""
    register(
        Backend(name="TOY", api=(2, 0), open=refuse, renderers={"TOYC": toolchain}, priority=900)
    )
    yield
    unregister("TOY")
    Device.close("NULL")  # it keeps the toolchains it was asked for


def test_it_takes_the_renderer_of_another_backend() -> None:
    with Context(DEV="NULL:TOYC:v7"):
        found = Device["NULL"].toolchain

    assert (found.name, found.arch) == ("TOYC", "v7")


def test_without_a_name_it_takes_that_of_the_preferred_backend() -> None:
    with Context(DEV="NULL"):
        assert Device[Device.DEFAULT].toolchain.name == "TOYC"


def test_a_renderer_that_nobody_has() -> None:
    with (
        Context(DEV="NULL:NOSUCH"),
        pytest.raises(SettingError, match="NULL has no renderer NOSUCH; it has TOYC"),
    ):
        _ = Device["NULL"].toolchain


def test_it_runs_nothing() -> None:
    program = Device["NULL"].load(b"anything", ProgramInfo("kernel", 2))

    assert program([None, None], []) is None
    assert program([None, None], [], wait=True) == 0


def test_memory_of_any_size_takes_no_room() -> None:
    buffer = Buffer("NULL", 1 << 50, dtypes.float32).ensure_allocated()

    assert buffer.view(4, offset_bytes=1 << 40).ensure_allocated().is_allocated


def test_there_is_nothing_to_read() -> None:
    buffer = Buffer.from_cpu("NULL", numpy.ones(2, numpy.float32))

    with pytest.raises(DeviceError) as raised:
        buffer.numpy()
    assert str(raised.value) == (
        "NULL computes nothing, so there is nothing to read. Choose another device by DEV, "
        "or set NULL_ALLOW_COPYOUT=1 to read zeros."
    )
    with Context(NULL_ALLOW_COPYOUT=1):
        assert buffer.numpy().tolist() == [0, 0]


def test_copies_between_its_devices_do_nothing() -> None:
    first, second = [Buffer(name, 2, dtypes.float32).ensure_allocated() for name in NAMES]

    assert second.copy_from(first) is second


def test_it_is_never_chosen_by_itself() -> None:
    assert Device["NULL"].backend.priority < 0
