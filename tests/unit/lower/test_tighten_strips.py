"""Tighter loops of fused rows: strips leave out the columns that none of their rows sees."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest

from tests.unit.lower.test_stage import AVX2
from tinycore import Context, Tensor
from tinycore._lru import Lru
from tinycore.dtype import dtypes
from tinycore.lower.plan import planned
from tinycore.lower.strategies.fused_rows import nests_of
from tinycore.lower.tighten import tighten
from tinycore.schedule import attention as attention_pass
from tinycore.schedule import compiled, disk
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

pytestmark = pytest.mark.device("CPU")
"""Strips are for devices that run loops."""

Shape = tuple[int, int, int]


def kernel_of(make: Callable[[], Tensor]) -> UOp:
    """The one kernel of fused rows that computes a tensor."""
    with Context(DEV="CPU"):
        (item,) = make().schedule()
    return item.ast


def attention(shape: Shape, backward: bool = False, width: int = 16) -> Tensor:
    """Masked attention of (heads, rows, columns)."""
    heads, rows, columns = shape
    return attend([Tensor.empty(heads, n, width) for n in (rows, columns, columns)], backward)


def attend(operands: list[Tensor], backward: bool) -> Tensor:
    """Attention where rows see the columns up to their own, or from there on if `backward`."""
    q, k, v = operands
    scores = q @ k.transpose(-1, -2)
    seen = all_of(scores)
    return (seen.triu() if backward else seen.tril()).where(scores, -math.inf).softmax() @ v


def all_of(x: Tensor) -> Tensor:
    """A mask that hides nothing, which is in no memory."""
    return x.const_like(True, dtypes.bool)


def trips(kernel: UOp) -> list[tuple[UOp, list[int]]]:
    """The loops whose length depends on the strip, and that length at each strip."""
    found = [n for n in kernel.toposort() if n.op is Op.RANGE and not n.is_fixed]
    lengths = []
    for loop in found:
        (strip,) = loop.src[0].ranges
        ends = [loop.src[0].substitute({strip: UOp.index(n)}) for n in range(strip.extent)]
        lengths.append((loop, [int(rewrite(e, simplify, name="simplify").arg) for e in ends]))
    return lengths


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("columns", "width"), [(512, 16), (512, 64), (520, 16)])
def test_strips_of_attention_go_through_the_columns_that_they_see(
    columns: int, width: int, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many rows would be two kernels otherwise, and their schedule could be known from these.
    monkeypatch.setattr(attention_pass, "HIDING_ROWS", 1 << 20)
    monkeypatch.setattr(compiled, "schedules", Lru(4))
    monkeypatch.setattr(disk, "schedule_key", lambda *_: None)
    ast = kernel_of(lambda: attention((1, 512, columns), backward, width))
    _, kernel = planned(ast, AVX2)

    found = trips(tighten(kernel))
    nests = len(nests_of(kernel))
    assert nests == 5
    assert len(found) == (nests if columns == 512 else 0)  # one of each
    for loop, lengths in found:
        whole = int(loop.src[0].vmax)
        assert lengths == sorted(lengths, reverse=backward)
        assert max(lengths) == whole
        assert sum(lengths) < 0.6 * whole * len(lengths)


@pytest.mark.sample(4)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", [(1, 512, 512), (2, 300, 640)])
def test_values_are_those_of_all_columns(shape: Shape, backward: bool) -> None:
    heads, rows, columns = shape
    generator = numpy.random.default_rng(0)
    q, k, v = (
        generator.standard_normal((heads, n, 16), "float32") for n in (rows, columns, columns)
    )
    seen = numpy.tri(rows, columns, dtype=bool)
    seen = ~numpy.tri(rows, columns, -1, dtype=bool) if backward else seen
    weights = numpy.exp(numpy.where(seen, q @ k.swapaxes(-1, -2), -numpy.inf))
    expected = weights / weights.sum(-1, keepdims=True) @ v

    found = attend([Tensor(x).realize() for x in (q, k, v)], backward)
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_rows_that_see_nothing_are_nan() -> None:
    x = Tensor.zeros(256, 16).contiguous().realize()
    hidden = all_of(x @ x.T).tril(-100)
    found = hidden.where(x @ x.T, -math.inf).softmax() @ x

    assert numpy.isnan(found.numpy()).all(1).tolist() == [row < 100 for row in range(256)]


def with_hidden_rest() -> Tensor:
    """Softmax of rows that hide their last columns, less a sum that counts what is hidden."""
    x = Tensor.empty(64, 128)
    scores = all_of(x).tril().where(x.exp2(), 1.0)
    return scores - scores.max(-1, keepdim=True) - scores.sum(-1, keepdim=True)


def test_what_counts_is_not_left_out() -> None:
    _, kernel = planned(kernel_of(with_hidden_rest), AVX2)

    assert trips(tighten(kernel)) == []


def visible_softmax() -> Tensor:
    """Softmax of rows that hide their last columns; all of it is the result."""
    x = Tensor.empty(64, 128)
    return all_of(x).tril().where(x, -math.inf).softmax()


def test_rows_that_are_kept_have_all_columns() -> None:
    _, kernel = planned(kernel_of(visible_softmax), AVX2)

    assert trips(tighten(kernel)) == []
