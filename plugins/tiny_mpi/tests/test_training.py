"""Training on several processes: the losses of one process, and the bytes that theory says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import output

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "train.py"
STEPS = 6


@cache
def trained(count: int, way: str) -> Any:
    return json.loads(output(count, PROGRAM, way, str(STEPS)))


@pytest.mark.parametrize("way", ["data", "parts", "columns"])
@pytest.mark.parametrize("count", [2, 4])
def test_losses_are_those_of_one_process(count: int, way: str) -> None:
    one, several = trained(1, "data"), trained(count, way)

    numpy.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-5)
    assert one["losses"][-1] < one["losses"][0]


def test_one_process_sends_nothing() -> None:
    assert trained(1, "data")["sent"] == [0] * STEPS


def test_gradients_are_sent_to_each_other_process_once() -> None:
    parameters = 32 * 64 + 64 + 64 * 8 + 8
    loss_and_its_weights = 2

    sent = trained(2, "data")["sent"][-1] / 4

    assert parameters <= sent <= parameters + loss_and_its_weights
