"""Kernels of several nests, each planned on its own, and kernels that only look like them."""

from __future__ import annotations

import pytest

from tests.unit.lower.test_stage import AVX2
from tests.unit.schedule.graphs import buffer, kernels
from tinycore import Tensor
from tinycore.lower.plan import plan_for
from tinycore.lower.strategies.fused_rows import nests_of


def test_values_stored_by_one_nest_are_planned_as_one_value_is() -> None:
    a, b = buffer(64, 64), buffer(64, 64)
    (both,) = kernels(a + b, a * b)
    (single,) = kernels(a + b)

    assert nests_of(both.arg.ast) == []
    assert plan_for(both.arg.ast, AVX2) == plan_for(single.arg.ast, AVX2)


@pytest.mark.device("CPU")
def test_each_nest_of_fused_rows_writes_memory_of_its_own() -> None:
    (item,) = Tensor.empty(64, 100, device="CPU").softmax().schedule()
    nests = nests_of(item.ast)

    assert all(len(written) == 1 for written in nests)
    assert len(frozenset().union(*nests)) == len(nests) > 1
