"""The decoder of tiny_llm on several processes: the losses of one, in each way of the example."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import numpy
import pytest
from processes import output

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "parallel_decoder.py"


@cache
def losses(count: int, way: str) -> list[float]:
    found: list[float] = ast.literal_eval(output(count, EXAMPLE, way).partition("\n")[0])
    return found


@pytest.mark.parametrize(
    ("way", "count"), [("data", 2), ("zero", 2), ("tensor", 2), ("pipeline", 2), ("mesh", 4)]
)
def test_losses(way: str, count: int) -> None:
    pytest.importorskip("tiny_llm")

    assert losses(1, "one")[-1] < losses(1, "one")[0]
    numpy.testing.assert_allclose(losses(count, way), losses(1, "one"), rtol=2e-5)
