"""Attention written out, whose weights are divided by their total before they weigh values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest

from tests.unit.schedule.chains import (
    HOST,
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

pytestmark = pytest.mark.sample(5)

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


@pytest.mark.sample(18)
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


@pytest.mark.sample(4)
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


@pytest.mark.sample(18)
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


ELSEWHERE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "some keys": lambda weights, value: weights[..., :32] @ value[:, :32],
    "some rows": lambda weights, value: weights[:, :32] @ value,
    "keys backwards": lambda weights, value: weights.flip(-1) @ value,
    "heads backwards": lambda weights, value: weights.flip(0) @ value,
    "rows as keys": lambda weights, value: weights.transpose(-2, -1) @ value,
    "rows by rows": lambda weights, value: weights @ weights.transpose(-2, -1),
    "keys by keys": lambda weights, value: weights.transpose(-2, -1) @ weights,
    "one row": lambda weights, value: weights[:, 3:4].expand(*weights.shape) @ value,
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("where", ELSEWHERE)
def test_weights_may_be_read_elsewhere_than_they_are_stored(unit: MatrixUnit, where: str) -> None:
    query, key, value = operands(unit, *[(2, 48, 16)] * 3)
    scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32) / 4
    result = ELSEWHERE[where](scores.softmax(-1).cast(unit.a), value)

    weights = attention(plain(query), plain(key), numpy.eye(48)[None])
    given = (Tensor(x.astype("d"), device=HOST) for x in (weights, plain(value)))
    expected = ELSEWHERE[where](*given).numpy()
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(plain(result), expected, rtol=2 * tolerance, atol=2 * tolerance)


def test_scores_too_large_for_exp_overflow_nowhere(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 48, 16), (2, 64, 16), (2, 64, 16), scale=20.0)

    check(in_single(query, key, value), unit, attention(*map(plain, (query, key, value))))


def test_sums_of_equal_weights_of_large_values_overflow_nowhere(unit: MatrixUnit) -> None:
    (query,) = operands(unit, (2, 48, 16))
    key = (query * 0)[:, :1].expand(2, 64, 16).contiguous().realize()
    value = Tensor.full((2, 64, 16), 6e4, device=HOST).cast(unit.a).to("CARD").realize()

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


@pytest.mark.sample(4)
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


Mask = Tensor | None


def hidden(scores: Tensor, mask: Mask) -> Tensor:
    """Scores where a mask is False are hidden."""
    return scores if mask is None else mask.where(scores, -math.inf)


def softmaxed(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def by_powers(scores: Tensor) -> Tensor:
    """The softmax written out in float32."""
    wide = scores.float()
    powers = (wide - wide.max(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).cast(scores.dtype)


def slopes_of(
    given: list[Array], visible: Array | None, kept: Array | float = 1.0
) -> tuple[Array, list[Array]]:
    """Attention and its gradients in double precision; `kept` multiplies weights."""
    query, key, value, slope = (x.astype(numpy.float64) for x in given)
    root = math.sqrt(query.shape[-1])
    scores = query @ numpy.swapaxes(key, -1, -2) / root
    scores = scores if visible is None else numpy.where(visible, scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_weights = slope @ numpy.swapaxes(value, -1, -2) * kept
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)) / root
    used = weights * kept
    found = [of_scores @ key, numpy.swapaxes(of_scores, -1, -2) @ query]
    return used @ value, [*found, numpy.swapaxes(used, -1, -2) @ slope]


def close(unit: MatrixUnit, found: list[Tensor], expected: list[Array]) -> None:
    """Results are those of double precision, up to what operands are rounded by."""
    tolerance = 8 * TOLERANCES[unit.a]
    for ours, theirs in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(plain(ours), theirs, rtol=tolerance, atol=tolerance)


def kernels_of(results: list[Tensor]) -> int:
    """The kernels that compute some results."""
    return sum(item.ast.op is not Op.COPY for item in Tensor.schedule(*results))


GRADIENTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "plain": (softmaxed, ""),
    "powers": (by_powers, ""),
    "mask in memory": (softmaxed, "memory"),
    "mask of indices": (by_powers, "tril"),
}


@pytest.mark.sample(36)
@pytest.mark.parametrize("shape", [(2, 48, 64, 16, 16), (1, 40, 39, 32, 16)], ids=str)
@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients_are_as_many_kernels_as_those_of_one_function(
    unit: MatrixUnit, how: str, shape: tuple[int, ...]
) -> None:
    heads, rows, seen, width, columns = shape
    softmax, kind = GRADIENTS[how]
    given = operands(
        unit,
        *((heads, rows, width), (heads, seen, width), (heads, seen, columns)),
        (heads, rows, columns),
    )
    visible, mask = None, None
    if kind == "memory":
        visible = numpy.random.default_rng(4).random((rows, seen)) > 0.5
        visible[:, 2] = True
        mask = Tensor(visible, device="CARD").realize()
    elif kind:
        visible = numpy.tril(numpy.ones((rows, seen), bool))
        mask = Tensor.ones(rows, seen, dtype=dtypes.bool, device="CARD").tril()
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    query, key, value = leaves
    result = softmax(hidden(scores_of(query, key), mask)) @ value
    (result * given[3]).sum().backward()
    found = [result, *(x.grad for x in leaves if x.grad is not None)]

    # The result, the slopes of rows, the gradient of queries, and those of keys and values, in one
    # kernel if they have columns of one number.
    assert kernels_of(found) == (4 if width == columns else 5)
    expected, slopes = slopes_of([plain(x) for x in given], visible)
    close(unit, found, [expected, *slopes])


@pytest.mark.slow
def test_gradients_of_dropout_by_hand_are_chains(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 48, 16), (2, 40, 16), (2, 40, 16), (2, 48, 16))
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    Tensor.manual_seed(3)
    kept = plain(given[0]._kept(0.25, (2, 48, 40)).cast(dtypes.float32))
    Tensor.manual_seed(3)
    with Context(TRAINING=1):
        result = scores_of(leaves[0], leaves[1]).softmax(-1).dropout(0.25) @ leaves[2]
        (result * given[3]).sum().backward()
    found = [result, *(x.grad for x in leaves if x.grad is not None)]

    assert kernels_of(found) <= 6  # a counter and the draw
    expected, slopes = slopes_of([plain(x) for x in given], None, kept / 0.75)
    close(unit, found, [expected, *slopes])


@pytest.mark.slow
def test_heads_that_share_keys_have_the_sum_of_their_gradients(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 3, 32, 16), (2, 1, 48, 16), (2, 1, 48, 16), (2, 3, 32, 16))
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    result = scores_of(leaves[0], leaves[1]).softmax(-1) @ leaves[2]
    (result * given[3]).sum().backward()
    found = [result, *(x.grad for x in leaves if x.grad is not None)]

    query, key, value, slope = (plain(x) for x in given)
    shared = [numpy.repeat(x, 3, axis=1) for x in (key, value)]
    expected, slopes = slopes_of([query, *shared, slope], None)
    summed = [x.sum(1, keepdims=True) for x in slopes[1:]]
    close(unit, found, [expected, slopes[0], *summed])


@pytest.mark.slow
def test_weights_that_others_read_have_both_gradients(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 32, 16), (2, 48, 16), (2, 48, 16), (2, 32, 16), (2, 32, 48))
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    weights = scores_of(leaves[0], leaves[1]).softmax(-1)
    result = weights @ leaves[2]
    ((result * given[3]).sum() + (weights * given[4]).sum()).backward()
    found = [x.grad for x in leaves if x.grad is not None]

    _, slopes = slopes_of([plain(x) for x in given[:4]], None)
    query, key = plain(given[0]).astype(numpy.float64), plain(given[1])
    exact = numpy.exp(query @ numpy.swapaxes(key, -1, -2) / 4)
    exact /= exact.sum(-1, keepdims=True)
    more = plain(given[4]).astype(numpy.float64)
    more = exact * (more - (exact * more).sum(-1, keepdims=True)) / 4
    added = [more @ key, numpy.swapaxes(more, -1, -2) @ query, 0]
    close(unit, found, [a + b for a, b in zip(slopes, added, strict=True)])


def test_a_gradient_of_what_is_inside_is_found(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 32, 16), (2, 48, 16), (2, 48, 16), (2, 32, 16))
    query, key, value, slope = given
    scores = scores_of(query, key)
    weights = scores.softmax(-1)
    result = ((weights @ value) * slope).sum()
    of_scores, of_weights, of_query = result.gradient(scores, weights, query)

    _, slopes = slopes_of([plain(x) for x in given], None)
    exact = plain(slope).astype(numpy.float64) @ numpy.swapaxes(plain(value), -1, -2)
    shares = plain(weights).astype(numpy.float64)
    inner = shares * (exact - (shares * exact).sum(-1, keepdims=True))
    close(unit, [of_weights, of_scores, of_query], [exact, inner, slopes[0]])


def test_a_gradient_of_the_sums_before_they_are_rounded_is_found(unit: MatrixUnit) -> None:
    query, key, value, slope = operands(unit, *[(2, 32, 16)] * 4)
    sums = scores_of(query, key).softmax(-1).matmul(value, dtype=dtypes.float32)
    (found,) = (sums.cast(unit.a) * slope).sum().gradient(sums)

    close(unit, [found], [plain(slope)])


def test_scores_that_are_chosen_by_their_order_have_their_gradient(unit: MatrixUnit) -> None:
    given = operands(unit, *[(2, 32, 16)] * 4)
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    query, key, value = leaves
    scores = scores_of(query, key).float()
    least = scores.max(-1, keepdim=True).detach()
    weights = scores.masked_fill(scores < least, -math.inf).softmax(-1)
    result = weights.cast(unit.a) @ value
    (result * given[3]).sum().backward()
    found = [x.grad for x in leaves if x.grad is not None]

    exact = plain(query).astype(numpy.float64) @ numpy.swapaxes(plain(key), -1, -2)
    share = numpy.eye(32)[exact.argmax(-1)]
    expected = numpy.swapaxes(share, -1, -2) @ plain(given[3])
    close(unit, found, [numpy.zeros((2, 32, 16)), numpy.zeros((2, 32, 16)), expected])


def test_a_bias_that_is_learned_has_its_gradient(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 32, 16), (2, 48, 16), (2, 48, 16), (2, 32, 16), (32, 48))
    leaves = [x.detach().requires_grad_() for x in (*given[:3], given[4])]
    query, key, value, bias = leaves
    result = (scores_of(query, key) + bias).softmax(-1) @ value
    (result * given[3]).sum().backward()

    scores = plain(query).astype(numpy.float64) @ numpy.swapaxes(plain(key), -1, -2) / 4
    weights = numpy.exp(scores + plain(given[4]))
    weights /= weights.sum(-1, keepdims=True)
    slopes = plain(given[3]).astype(numpy.float64) @ numpy.swapaxes(plain(value), -1, -2)
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True))
    assert bias.grad is not None
    close(unit, [bias.grad], [slopes.sum(0)])
