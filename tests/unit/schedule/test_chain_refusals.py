"""Refusals of product chains: what is told, and that what a plan refuses is several kernels."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.schedule.chains import TOLERANCES, attention, launches, operands, plain
from tinycore import Context, dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.steps.chain import Chain
from tinycore.schedule.compiled import schedules
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp

pytestmark = pytest.mark.sample(3)


def told(unit: MatrixUnit, capsys: pytest.CaptureFixture[str], *shapes: tuple[int, ...]) -> str:
    """Lines of DEBUG=3 on attention."""
    query, key, value = operands(unit, *shapes)
    with Context(DEBUG=3, CCACHE=0):
        query.scaled_dot_product_attention(key, value).schedule()
    return capsys.readouterr().err


WHY = {
    "sums of 2048 features need": [(2, 64, 16), (2, 128, 16), (2, 128, 2048)],
    "17 steps are not a multiple of": [(2, 64, 17), (2, 128, 17), (2, 128, 64)],
    "1 rows are fewer than": [(2, 1, 16), (2, 128, 16), (2, 128, 16)],
    "7 columns between are fewer than a block of 16": [(2, 64, 16), (2, 7, 16), (2, 7, 16)],
}


@pytest.mark.parametrize("why", WHY)
def test_it_is_told_why_attention_is_several_kernels(
    unit: MatrixUnit, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(unit, capsys, *WHY[why])

    lines = [line for line in text.splitlines() if line.startswith("schedule attention")]
    assert len(lines) == 1
    assert f"{unit.name}: {why}" in lines[0]


def test_it_is_told_why_kernels_are_no_chain(
    unit: MatrixUnit, capsys: pytest.CaptureFixture[str]
) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 2048))
    scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32)
    weights = (scores - scores.max(-1, keepdim=True)).exp().cast(unit.a)
    result = weights.matmul(value, dtype=dtypes.float32)
    with Context(DEBUG=3, CCACHE=0):
        result.schedule()

    (line,) = (x for x in capsys.readouterr().err.splitlines() if "no chain of products" in x)
    assert "sums of 2048 features need" in line


def test_what_a_plan_refuses_stays_apart(
    unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(step: Chain, kernel: UOp) -> UOp:
        raise ArgumentError(f"{step} is refused by the test")

    query, key, value = operands(unit, (2, 66, 16), (2, 130, 16), (2, 130, 16))
    expected = attention(*map(plain, (query, key, value)))
    result = query.scaled_dot_product_attention(key, value)
    schedules.clear()
    with Context(DEBUG=3, CCACHE=0), monkeypatch.context() as patched:
        patched.setattr(Chain, "apply", refuse)
        count = launches(result)
        lines = capsys.readouterr().err.splitlines()
        found = plain(result)
    schedules.clear()

    assert count > 1
    (line,) = (x for x in lines if "no chain of products" in x)
    assert "is refused by the test" in line
    assert unit.name in line
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_one_kernel_is_told_no_reason(unit: MatrixUnit, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(unit, capsys, (2, 64, 16), (2, 128, 16), (2, 128, 16))

    assert "a chain of products" in text
    assert "schedule attention" not in text
    assert "no chain of products" not in text
