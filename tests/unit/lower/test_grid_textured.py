"""Tiles whose columns texture units read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.schedule.graphs import buffer, kernels, matmul, permute
from tiny_testing.accelerator.device import LIMITS
from tinycore.dtype import dtypes
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.strategies.grid import tiles_along_sum
from tinycore.lower.strategies.grid_textured import propose
from tinycore.uop.node import UOp

CARD = replace(LIMITS, vector_bytes=16, texture_rate=55.0, units=2, unit_lanes=128, subgroup=64)


@pytest.mark.parametrize("unknown", ["texture_rate", "units", "unit_lanes"])
def test_none_are_proposed_where_no_rate_is_known(unknown: str) -> None:
    (kernel,) = kernels(matmul(buffer(64, 64), buffer(64, 64)))
    facts = KernelFacts(kernel.arg.ast, (kernel.arg.ast,))
    unstated = replace(CARD, **{unknown: 0})  # type: ignore[arg-type]

    assert list(propose(facts, CARD, 64))
    assert not list(propose(facts, unstated, 64))


def facts_of(a: UOp, b: UOp) -> KernelFacts:
    """Facts of the kernel of a product."""
    *_, kernel = kernels(matmul(a, b))
    return KernelFacts(kernel.arg.ast, (kernel.arg.ast,))


def test_both_sides_are_read_along_the_sum_where_they_lie_so() -> None:
    """By tiles of four rows at most, and of fewer sums where a pixel has more numbers."""
    floats = facts_of(buffer(4, 64), permute(buffer(2048, 64), 1, 0))
    halves = (buffer(*shape, dtype=dtypes.float16) for shape in ((4, 64), (2048, 64)))
    narrow = facts_of(next(halves), permute(next(halves), 1, 0))

    assert next(p.strategy for p in tiles_along_sum(floats, CARD, 64)) == "grid along sum 4x4"
    assert next(p.strategy for p in tiles_along_sum(narrow, CARD, 64)) == "grid along sum 2x4"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param((4, 64), (64, 2048), id="columns lie side by side"),
        pytest.param((4, 62), None, id="no whole pixels"),
        pytest.param((4, 64), (64, 8), id="few columns"),
    ],
)
def test_others_are_not(a: tuple[int, int], b: tuple[int, int] | None) -> None:
    right = buffer(*b) if b is not None else permute(buffer(2048, a[1]), 1, 0)

    assert not list(tiles_along_sum(facts_of(buffer(*a), right), CARD, 64))
