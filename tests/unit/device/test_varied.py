"""Backends whose devices differ: each says for what it compiles, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tinycore.device import Device
from tinycore.errors import DeviceUnavailable, UnsupportedError
from tinycore.plugin import Backend


@pytest.fixture
def devices(toy: Callable[..., Backend], toy_runtime: type[Any]) -> Iterator[type[Any]]:
    """A registered backend of two devices, the second of which has no float64."""

    class Varied(toy_runtime):  # type: ignore[misc]
        @property
        def arch(self) -> str:
            return f"v{self.index}"

        @property
        def capabilities(self) -> frozenset[str]:
            return frozenset({"float64", "queues"} if self.index == 0 else ())

    claimed = frozenset({"varied", "float64"})
    Device.register(toy(open=Varied, capabilities=claimed, count=lambda: 2))
    yield Varied
    Device.unregister("TOY")


def test_a_device_has_what_it_says_and_its_backend_declares(devices: type[Any]) -> None:
    assert Device["TOY"].capabilities == {"varied", "float64"}
    assert Device["TOY:1"].capabilities == {"varied"}
    assert not Device["TOY:1"].has("float64")
    with pytest.raises(UnsupportedError, match="device TOY:1 has no capability 'float64'"):
        Device["TOY:1"].ability("float64")


def test_toolchains_compile_for_the_device_unless_told_otherwise(devices: type[Any]) -> None:
    assert Device["TOY"].toolchain.arch == "v0"
    assert Device["TOY:1"].toolchain.arch == "v1"
    assert Device["TOY:1"].toolchain_for("C", "v7").arch == "v7"


def test_a_claim_without_the_properties_is_refused(toy: Callable[..., Backend]) -> None:
    Device.register(toy(capabilities=frozenset({"varied"})))
    try:
        with pytest.raises(DeviceUnavailable, match="ToyRuntime has not the methods"):
            Device["TOY"]
    finally:
        Device.unregister("TOY")
