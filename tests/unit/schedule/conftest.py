"""The matrix units whose sums are operands of another product, each on a card of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest
from sampling import leave_out

from tests.unit.lower.matrices import MFMA, SIMDGROUP, WMMA, WMMA_BLOCKS
from tests.unit.schedule.chains import BFLOAT, HALF, card_with
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context
from tinycore.uop.matrix import MatrixUnit

FOLDER: Final = Path(__file__).parent
EVERY: Final = 4
"""Sampling rate of slow tests of the unit of bfloat16, whose lanes are those of float16: one in so
many runs.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the unit of bfloat16 leaves to that of float16."""
    leave_out(config, items, {item for item in items if is_repeated(item)})


def is_repeated(item: pytest.Item) -> bool:
    """True if a test of this folder is left to the unit of float16."""
    if item.path.parent != FOLDER or not item.get_closest_marker("slow"):
        return False
    return BFLOAT.name in item.nodeid and crc32(item.nodeid.encode()) % EVERY != 0


@pytest.fixture(
    params=[HALF, BFLOAT, SIMDGROUP, WMMA, WMMA_BLOCKS, MFMA], ids=lambda unit: unit.name
)
def unit(request: pytest.FixtureRequest) -> Iterator[MatrixUnit]:
    """The unit of a card under the name CARD."""
    limits = card_with(request.param)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        yield request.param
