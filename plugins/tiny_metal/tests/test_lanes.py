"""Sums that the threads of a group share, folded by lanes that exchange values."""

from __future__ import annotations

import numpy
import pytest
from matrix_programs import noted

from tiny_testing.suite.case import Level, Trial, trials
from tiny_testing.suite.subject import Subject
from tiny_testing.suite.units import EXCHANGED
from tinycore import Device, Tensor

pytestmark = pytest.mark.usefixtures("simulated")
EXCHANGES = trials(Level.COMPUTE, "test_lanes_exchange_values")


def lanes_exchange() -> bool:
    """True if the GPU's language has functions of SIMD groups."""
    return set(Device["METAL"].toolchain.renderer.limits.shuffles) == set(EXCHANGED)


@pytest.mark.sample(4)
@pytest.mark.parametrize("trial", EXCHANGES, ids=lambda trial: trial.name)
def test_lanes_exchange_values_as_the_suite_says(trial: Trial) -> None:
    if not lanes_exchange():
        pytest.skip("its SIMD groups are of unknown size")
    trial.run(Subject("METAL"))


def test_sums_of_rows_are_folded_by_lanes() -> None:
    x = numpy.random.default_rng(0).integers(-5, 6, (3, 500)).astype(numpy.float32)
    with noted() as sources:
        found = Tensor(x, device="METAL").sum(1).numpy()

    assert numpy.array_equal(found, x.sum(1))
    assert ("simd_shuffle_xor(" in sources.texts[-1]) == lanes_exchange()
