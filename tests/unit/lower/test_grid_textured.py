"""Tiles whose columns texture units read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.schedule.graphs import buffer, kernels, matmul
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.strategies.grid_textured import propose
from tinycore.testing.accelerator.device import LIMITS

CARD = replace(LIMITS, texture_rate=55.0, units=2, unit_lanes=128, subgroup=64)


@pytest.mark.parametrize("unknown", ["texture_rate", "units", "unit_lanes"])
def test_none_are_proposed_where_no_rate_is_known(unknown: str) -> None:
    (kernel,) = kernels(matmul(buffer(64, 64), buffer(64, 64)))
    facts = KernelFacts(kernel.arg.ast, (kernel.arg.ast,))
    unstated = replace(CARD, **{unknown: 0})  # type: ignore[arg-type]

    assert list(propose(facts, CARD, 64))
    assert not list(propose(facts, unstated, 64))
