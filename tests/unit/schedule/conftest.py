"""The matrix units whose sums are operands of another product, each on a card of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.lower.matrices import MFMA, SIMDGROUP, WMMA, WMMA_BLOCKS
from tests.unit.schedule.chains import BFLOAT, HALF, card_with
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context
from tinycore.uop.matrix import MatrixUnit


@pytest.fixture(
    params=[HALF, BFLOAT, SIMDGROUP, WMMA, WMMA_BLOCKS, MFMA], ids=lambda unit: unit.name
)
def unit(request: pytest.FixtureRequest) -> Iterator[MatrixUnit]:
    """The unit of a card under the name CARD."""
    limits = card_with(request.param)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        yield request.param
