"""Attention written out, whose weights are divided by their total before they weigh values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest

from tests.unit.schedule.chains import (
    TOLERANCES,
    Array,
    attention,
    check,
    launches,
    operands,
    plain,
)
from tinycore import Context, Tensor, dtypes
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Op

pytestmark = pytest.mark.sample(3)

SHAPES = [(1, 40, 39, 16, 16), (2, 48, 64, 32, 24)]


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """Scores in the type of queries."""
    return (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(query.shape[-1]))


def in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as it is mostly written."""
    return scores_of(query, key).softmax(-1) @ value


def in_single(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scores, weights and sums of values in float32."""
    scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32)
    weights = (scores / math.sqrt(query.shape[-1])).softmax(-1)
    return weights.cast(value.dtype).matmul(value, dtype=dtypes.float32)


def softmax_in_single(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weights in float32 of scores in the type of queries."""
    return scores_of(query, key).softmax(-1, dtype=dtypes.float32).cast(value.dtype) @ value


def softmax_by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax written out, too."""
    scores = scores_of(query, key).float()
    powers = (scores - scores.max(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).cast(value.dtype) @ value


def by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Both products by the names of their axes."""
    scores = Tensor.einsum("hqd,hkd->hqk", query, key) / math.sqrt(query.shape[-1])
    return Tensor.einsum("hqk,hkd->hqd", scores.softmax(-1), value)


WRITTEN = [in_half, in_single, softmax_in_single, softmax_by_hand, by_einsum]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written.__name__)
def test_it_is_one_kernel(
    unit: MatrixUnit, written: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    heads, rows, seen, width, columns = shape
    columns += -columns % unit.n
    query, key, value = operands(
        unit, (heads, rows, width), (heads, seen, width), (heads, seen, columns)
    )

    check(written(query, key, value), unit, attention(*map(plain, (query, key, value))))


@pytest.mark.parametrize("length", [32, 39])
def test_a_causal_mask_in_memory_is_read_by_the_kernel(unit: MatrixUnit, length: int) -> None:
    query, key, value = operands(unit, *[(2, 2, length, 16)] * 3)
    bias = Tensor(numpy.tril(numpy.ones((1, 1, 48, 48), numpy.float32)), device="CARD").realize()
    visible = bias[:, :, :length, :length]
    scores = scores_of(query, key).masked_fill(visible == 0, -math.inf)
    result = (scores.softmax(-1) @ value).transpose(1, 2).reshape(2, length, 32).contiguous()

    seen = plain(visible) != 0
    expected = attention(plain(query), plain(key), plain(value), seen)
    check(result, unit, numpy.swapaxes(expected, 1, 2).reshape(2, length, 32))


def below(length: int) -> Tensor:
    """True up to the diagonal, computed."""
    return Tensor.ones(length, length, dtype=dtypes.bool, device="CARD").tril()


MASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda scores: below(scores.shape[-1]).where(scores, -math.inf),
    "masked_fill": lambda scores: scores.masked_fill(~below(scores.shape[-1]), -math.inf),
    "triu": lambda scores: scores.masked_fill(
        Tensor.ones(*scores.shape[-2:], device="CARD").triu(1).bool(), -math.inf
    ),
    "zeros": lambda scores: scores.masked_fill(
        Tensor.ones(*scores.shape[-2:], device="CARD").tril() == 0, -math.inf
    ),
    "added": lambda scores: (
        scores
        + Tensor.full(scores.shape[-2:], -math.inf, dtype=scores.dtype, device="CARD").triu(1)
    ),
    "indices": lambda scores: (
        Tensor.arange(scores.shape[-1], device="CARD")
        <= Tensor.arange(scores.shape[-2], device="CARD").unsqueeze(1)
    ).where(scores, -math.inf),
}


@pytest.mark.parametrize("how", MASKED)
def test_a_causal_mask_may_be_computed(unit: MatrixUnit, how: str) -> None:
    length = 70
    query, key, value = operands(unit, *[(2, length, 16)] * 3)
    result = MASKED[how](scores_of(query, key)).softmax(-1) @ value

    visible = numpy.tril(numpy.ones((length, length), bool))
    check(result, unit, attention(plain(query), plain(key), plain(value), visible))


def test_a_mask_that_others_read_is_computed_as_well(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, *[(2, 32, 16)] * 3)
    ones = Tensor.ones(32, 32, device="CARD")
    mask = ones.tril()
    result = scores_of(query, key).masked_fill(mask == 0, -math.inf).softmax(-1) @ value
    Tensor.realize(result, mask)
    ones[0, 3] = 5

    visible = numpy.tril(numpy.ones((32, 32), bool))
    numpy.testing.assert_array_equal(plain(mask), visible)
    assert plain(ones)[0].tolist() == [1.0, 1, 1, 5, *[1.0] * 28]
    tolerance = TOLERANCES[unit.a]
    expected = attention(plain(query), plain(key), plain(value), visible)
    numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance)


def test_dropout_of_weights_is_part_of_the_kernel(unit: MatrixUnit) -> None:
    p = 0.25
    query, key, value = operands(unit, (2, 32, 16), (2, 40, 16), (2, 40, 16))
    Tensor.manual_seed(3)
    kept = plain(query._kept(p, (2, 32, 40)).cast(dtypes.float32))
    Tensor.manual_seed(3)
    with Context(TRAINING=1):
        result = scores_of(query, key).softmax(-1).dropout(p) @ value
        kernels = [item.ast for item in result.schedule() if item.ast.op is not Op.COPY]

    folds = [sum(n.op is Op.REDUCE for n in ast.toposort()) for ast in kernels]
    assert sorted(folds)[-2:] == [0, 4]  # two products, a maximum and a sum beside the draw
    scores = plain(query).astype(numpy.float64) @ numpy.swapaxes(plain(key), -1, -2) / 4
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights *= kept / (1 - p) / weights.sum(-1, keepdims=True)
    expected = weights @ plain(value)
    tolerance = 2 * TOLERANCES[unit.a]
    numpy.testing.assert_allclose(
        plain(result), expected, rtol=tolerance, atol=tolerance * float(abs(expected).max())
    )


def test_scores_too_large_for_exp_overflow_nowhere(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 48, 16), (2, 64, 16), (2, 64, 16), scale=20.0)

    check(in_single(query, key, value), unit, attention(*map(plain, (query, key, value))))


def test_sums_of_equal_weights_of_large_values_overflow_nowhere(unit: MatrixUnit) -> None:
    (query,) = operands(unit, (2, 48, 16))
    key = (query * 0)[:, :1].expand(2, 64, 16).contiguous().realize()
    value = Tensor.full((2, 64, 16), 6e4, device="CPU").cast(unit.a).to("CARD").realize()

    expected = numpy.broadcast_to(plain(value)[:, :1], (2, 48, 16))
    check(in_half(query, key, value), unit, expected)


def test_a_row_without_keys_has_no_numbers(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 48, 16), (2, 64, 16), (2, 64, 16))
    visible = numpy.random.default_rng(1).random((48, 64)) > 0.5
    visible[5] = False
    visible[7, :32] = False  # nothing in the first block, something in the last
    hidden = Tensor(~visible, device="CARD").realize()
    result = scores_of(query, key).masked_fill(hidden, -math.inf).softmax(-1) @ value

    assert launches(result) == 1
    found, rest = plain(result), [n for n in range(48) if n != 5]
    assert numpy.isnan(found[:, 5]).all()
    expected = attention(plain(query), plain(key), plain(value), visible)[:, rest]
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(
        found[:, rest], expected, rtol=tolerance, atol=tolerance * float(abs(expected).max())
    )


def proportions(scores: Tensor) -> Tensor:
    """Shares of a row's sum, of which some are far from 1 before they are divided."""
    powers = scores.abs() * 1e6
    return powers / powers.sum(-1, keepdim=True)


def unshifted(scores: Tensor) -> Tensor:
    """A softmax that does not take off the maximum."""
    powers = (scores + 12).exp()  # e ** 12 is beyond float16
    return powers / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize("weighed", [proportions, unshifted], ids=lambda f: f.__name__)
def test_weights_that_a_narrow_type_may_not_hold_are_divided_first(
    unit: MatrixUnit, weighed: Callable[[Tensor], Tensor]
) -> None:
    query, key, value = operands(unit, (2, 48, 16), (2, 64, 16), (2, 64, 16))
    scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32) / 4
    result = weighed(scores).cast(unit.a).matmul(value, dtype=dtypes.float32)

    assert launches(result) > 1
    exact = plain(query).astype(numpy.float64) @ numpy.swapaxes(plain(key), -1, -2) / 4
    powers: Array = abs(exact) if weighed is proportions else numpy.exp(exact)
    expected = powers / powers.sum(-1, keepdims=True) @ plain(value)
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance)


def test_weights_that_are_asked_for_are_quotients(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 48, 16), (2, 64, 16), (2, 64, 16))
    weights = scores_of(query, key).softmax(-1)
    result = weights @ value
    Tensor.realize(weights, result)

    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(plain(weights).sum(-1), 1, rtol=tolerance)
    expected = plain(weights).astype(numpy.float64) @ plain(value)
    numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance)
