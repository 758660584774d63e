"""Values that the lanes of a wave exchange, among 32 lanes and among 64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy
import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI31
from matrix_programs import noted
from simulated_amd import backend_of

from tiny_testing.suite.case import Level, Trial, trials
from tiny_testing.suite.subject import Subject
from tinycore import Context, Tensor
from tinycore.plugin import register, unregister

EXCHANGES: Final = trials(Level.COMPUTE, "test_lanes_exchange_values")


@pytest.fixture(scope="module", params=[NAVI31, MI300], ids=["gfx1100", "gfx942"])
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card that the emulator plays."""
    register(backend_of(Machine((request.param,))))
    with Context(DEV="AMD"):
        yield
    unregister("AMD")


@pytest.mark.sample(3)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("trial", EXCHANGES, ids=lambda trial: trial.name)
def test_lanes_exchange_values_as_the_suite_says(trial: Trial) -> None:
    trial.run(Subject("AMD"))


@pytest.mark.usefixtures("card")
def test_sums_of_rows_are_folded_by_lanes() -> None:
    x = numpy.random.default_rng(0).integers(-5, 6, (3, 500)).astype(numpy.float32)
    with noted() as sources:
        found = Tensor(x).sum(1).numpy()

    assert numpy.array_equal(found, x.sum(1))
    assert "@llvm.amdgcn.ds.swizzle(" in sources.texts[-1]
