"""Fixtures of the tests of tiny_nv: a driver without a card, and cards that the executor plays.

The plugin is imported by the fixtures that need it: tests of the executor itself need none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tinycore import Context
from tinycore.errors import CompilerUnavailable
from tinycore.plugin import register, unregister

if TYPE_CHECKING:
    from standin import Driver

    from tiny_nv.device import CudaDevice


@pytest.fixture(scope="session")
def nvrtc() -> None:
    """Skip without NVIDIA's compiler, saying how to get it."""
    from tiny_nv import _nvrtc  # noqa: PLC0415

    try:
        _nvrtc.library()
    except CompilerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def ptxas() -> str:
    """NVIDIA's assembler."""
    from tiny_nv import _nvrtc  # noqa: PLC0415

    found = _nvrtc.tool("ptxas")
    if found is None:
        pytest.skip("ptxas is not installed; it comes with a CUDA toolkit")
    return found


@pytest.fixture
def driver() -> Iterator[Driver]:
    """A driver with one card, in place of the machine's."""
    from standin import Driver  # noqa: PLC0415

    from tiny_nv import _lib  # noqa: PLC0415

    stand_in = Driver()
    with _lib.use(stand_in):
        yield stand_in


@pytest.fixture
def device(driver: Driver) -> Iterator[CudaDevice]:
    """The card, opened for one test."""
    from tiny_nv.device import CudaDevice  # noqa: PLC0415

    opened = CudaDevice(0, "")
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["NVRTC", "PTX"])
def simulated(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Two cards that the executor plays, as CUDA, whose kernels NVIDIA's compiler or we write.

    Tensors that name no device are on the first.
    """
    from simulated import Simulated, backend_of  # noqa: PLC0415
    from standin import Card  # noqa: PLC0415

    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    driver = Simulated((Card(), Card()))
    register(backend_of(driver))
    with Context(DEV=f"CUDA:{request.param}"):
        yield driver
    unregister("CUDA")
