"""Refusals of product chains: what is told, and that what a plan refuses is several kernels."""

from __future__ import annotations

import pytest

from tests.unit.schedule.chains import operands
from tinycore import Context, dtypes
from tinycore.render.base import Limits
from tinycore.render.chains import Sizes
from tinycore.schedule.product_chains import refusal_by_strips
from tinycore.uop.matrix import MatrixUnit

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


def test_one_kernel_is_told_no_reason(unit: MatrixUnit, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(unit, capsys, (2, 64, 16), (2, 128, 16), (2, 128, 16))

    assert "a chain of products" in text
    assert "schedule attention" not in text
    assert "no chain of products" not in text


def test_operands_of_strips_are_as_large_as_their_type() -> None:
    """Keys and values of float64, which every strip reads, take twice the room in a near cache."""
    limits = Limits(vector_bytes=64, cache_bytes=2 << 20)
    sizes = Sizes(1, 4096, 4096, (64,), (64,))

    assert refusal_by_strips(limits, dtypes.float32, sizes) is None
    told = refusal_by_strips(limits, dtypes.float64, sizes)
    assert told is not None
    assert "4194304 bytes" in told
