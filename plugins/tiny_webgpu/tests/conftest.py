"""Fixtures of the tests of tiny_webgpu: an adapter, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tiny_webgpu import probe
from tiny_webgpu.device import WebGpuDevice
from tiny_webgpu.program import WebGpuProgram
from tinycore import Context
from tinycore.plugin import ProgramInfo

NEEDS_NO_ADAPTER = frozenset({"test_lib.py", "test_arch.py", "test_render.py"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs an adapter where there is none, with the reason."""
    here = [item for item in items if item.path.parent.parent.name == "tiny_webgpu"]
    needing = [item for item in here if item.path.name not in NEEDS_NO_ADAPTER]
    reason = probe.reason() if needing else ""
    for item in needing if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device() -> Iterator[WebGpuDevice]:
    """The first adapter, opened apart from the registry."""
    opened = WebGpuDevice(0, "")
    yield opened
    opened.close()


@pytest.fixture
def on_webgpu() -> Iterator[None]:
    """Tensors live on the device unless told otherwise."""
    with Context(DEV="WEBGPU"):
        yield


Load = Callable[..., WebGpuProgram]
"""load(source, buffers=1, values=(), grid=(1, 1, 1)): a program from WGSL."""


@pytest.fixture
def load(device: WebGpuDevice) -> Load:
    """Makes programs."""

    def make(
        source: str,
        buffers: int = 1,
        values: tuple[str, ...] = (),
        grid: tuple[int, int, int] = (1, 1, 1),
    ) -> WebGpuProgram:
        return device.load(source.encode(), ProgramInfo("test", buffers, values, grid=grid))

    return make
