"""Fixtures of the tests of tiny_metal: a mocked Mac, and its GPU.

The mock is imported by the fixtures that need it: where there is no clang, or no runtime of
Objective-C, they skip and say how to get it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tinycore import Context
from tinycore.plugin import register, unregister

if TYPE_CHECKING:
    from mock_metal.metal import Mac

    from tiny_metal.device import MetalDevice


@pytest.fixture(scope="session")
def mock() -> None:
    """Skip where nothing can be mocked."""
    from mock_metal.objective import world_reason  # noqa: PLC0415

    if reason := world_reason():
        pytest.skip(reason)


@pytest.fixture
def mac(mock: None) -> Iterator[Mac]:
    """A Mac with an M1, in place of macOS; nothing is done wrong on it, and nothing is left."""
    from mock_metal.metal import Mac  # noqa: PLC0415
    from simulated_metal import M1  # noqa: PLC0415

    from tiny_metal import _lib  # noqa: PLC0415

    mocked = Mac((M1,))
    with _lib.use(mocked):
        yield mocked
    gc.collect()
    assert mocked.misuses == []
    assert mocked.left == {}


@pytest.fixture
def device(mac: Mac) -> Iterator[MetalDevice]:
    """The GPU, opened for one test."""
    from tiny_metal.device import MetalDevice  # noqa: PLC0415

    opened = MetalDevice(0, "")
    yield opened
    gc.collect()
    opened.close()


@pytest.fixture(scope="module", params=["M1", pytest.param("M3", marks=pytest.mark.slow), "OLD"])
def simulated(request: pytest.FixtureRequest, mock: None) -> Iterator[Mac]:
    """Two GPUs of a kind as METAL; tensors that name no device are on the first."""
    from mock_metal.metal import Mac  # noqa: PLC0415
    from simulated_metal import MACS, backend_of, pair  # noqa: PLC0415

    mocked = Mac(pair(MACS[request.param]))
    register(backend_of(mocked))
    with Context(DEV="METAL"):
        yield mocked
    unregister("METAL")
    assert mocked.misuses == []
