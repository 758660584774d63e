"""Fixtures of the tests of tiny_cl: the first device, if there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tiny_cl import BACKEND
from tiny_cl.device import ClDevice
from tiny_testing.kernels import Bench, bench

os.environ.setdefault("OPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # what is tested runs once


@pytest.fixture(scope="session")
def driver() -> None:
    """Skip without a device, saying why there is none."""
    assert BACKEND.probe is not None
    if reason := BACKEND.probe():
        pytest.skip(reason)


@pytest.fixture
def device(driver: None) -> Iterator[ClDevice]:
    """The first device, opened for one test."""
    opened = ClDevice(0, "")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def kernels(driver: None) -> Bench:
    """Runs kernels by hand on the first device."""
    return bench(BACKEND, "OPENCL")
