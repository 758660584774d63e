"""Attention where a device computes it as several kernels: what is chosen, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest

from tests.unit.schedule.chains import HALF, HOST, card_with, operands, plain
from tests.unit.schedule.chains import attention as expected_of
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, dtypes
from tinycore._lru import Lru
from tinycore.schedule import attention, compiled, disk
from tinycore.uop.matrix import MatrixUnit

pytestmark = pytest.mark.sample(3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of few scores in memory; schedules of these tests are their own."""
    for name, value in (
        ("MOST_KEPT", 0),
        ("HIDING_ROWS", 2),
        ("PIECE_BYTES", 1),
        ("LEAST_PIECE", 3),
    ):
        monkeypatch.setattr(attention, name, value)
    monkeypatch.setattr(compiled, "schedules", Lru(64))
    monkeypatch.setattr(disk, "schedule_key", lambda *_: None)


def numbers(*shape: int, seed: int = 0) -> numpy.ndarray:
    """Random float32."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def causal(scores: Tensor) -> Tensor:
    """Scores of which each row sees those up to its own."""
    rows, seen = scores.shape[-2:]
    return Tensor.ones(rows, seen, dtype=dtypes.bool).tril().where(scores, -math.inf)


def window(scores: Tensor) -> Tensor:
    """Scores of which each row sees three."""
    rows, seen = (Tensor.arange(n) for n in scores.shape[-2:])
    away = rows.unsqueeze(1) - seen
    return ((away >= 0) & (away < 3)).where(scores, -math.inf)


WEIGHED: dict[str, Callable[[Tensor], Tensor]] = {
    "weights": lambda weights: weights,
    "more than weights": lambda weights: weights + 0.5,
    "square": lambda weights: weights * weights,
    "root": lambda weights: (weights + 0.01).sqrt(),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("hide", [causal, window])
@pytest.mark.parametrize("how", WEIGHED)
def test_what_reads_weights_may_be_of_hidden_keys(how: str, hide: Callable[..., Tensor]) -> None:
    """Hidden keys are left out of what is 0 where weights are, and of nothing else."""
    given = [numbers(2, n, 4, seed=n) for n in (7, 7, 9)]
    given[2] = given[2][:, :7]
    leaves = [Tensor(x, requires_grad=True) for x in given]
    query, key, value = leaves
    with Context(VERIFY=1):
        weights = hide(query @ key.transpose(-2, -1)).softmax(-1)
        (WEIGHED[how](weights) @ value).square().sum().backward()
        found = [x.grad.numpy() for x in leaves if x.grad is not None]
    exact = [Tensor(x.astype(numpy.float64), requires_grad=True) for x in given]
    query, key, value = exact
    # In the order of other loops, so that nothing is recognized.
    weights = hide((query.unsqueeze(-2) * key.unsqueeze(-3)).sum(-1)).softmax(-1)
    made = WEIGHED[how](weights).unsqueeze(-1) * value.unsqueeze(-3)
    made.sum(-2).square().sum().backward()

    for ours, theirs in zip(found, exact, strict=True):
        assert theirs.grad is not None
        numpy.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=2e-4, atol=2e-5)


def test_rows_leave_out_the_keys_that_a_mask_of_indices_hides() -> None:
    scores = Tensor.empty(2, 8, 8)
    hidden = causal(scores).uop

    assert attention.keys_seen(hidden, slice(0, 8)) == 8
    assert attention.keys_seen(scores.uop, slice(0, 2)) == 8
    computed = (Tensor.arange(8) <= Tensor.arange(8).unsqueeze(1)).where(scores, -math.inf).uop
    assert [attention.keys_seen(computed, slice(n, n + 2)) for n in (0, 2, 6)] == [2, 4, 8]


def test_a_row_of_a_softmax_without_keys_has_no_numbers() -> None:
    """In pieces as well, while a row that sees one key has."""
    query, key, value = (Tensor(numbers(1, 7, 4, seed=n)) for n in range(3))
    seen = Tensor([[row != 3 and (row != 5 or n == 6) for n in range(7)] for row in range(7)])
    result = (seen.where(query @ key.transpose(-2, -1), -math.inf).softmax(-1) @ value).numpy()

    assert numpy.isnan(result[0, 3]).all()
    assert numpy.isfinite(numpy.delete(result, 3, axis=1)).all()
    numpy.testing.assert_allclose(result[0, 5], value.numpy()[0, 6], rtol=1e-5)


def test_gradients_of_a_row_of_a_softmax_without_keys_are_no_numbers_either() -> None:
    """Weights of such a row are NaN at keys that others hide, too."""
    query, key, value = (Tensor(numbers(7, 4, seed=n), requires_grad=True) for n in range(3))
    mask = Tensor.arange(7) < Tensor.arange(7).unsqueeze(1)
    result = mask.where(query @ key.T, -math.inf).softmax(-1) @ value
    slopes = result.square().sum().gradient(query, key, value)

    assert numpy.isnan(result.numpy()).sum() == 4
    assert numpy.isnan(slopes[2].numpy()).all()


def test_weights_that_are_asked_for_beside_pieces() -> None:
    query, key, value = (Tensor(numbers(2, 7, 4, seed=seed)) for seed in range(3))
    weights = causal(query @ key.transpose(-2, -1)).softmax(-1)
    result = weights @ value
    Tensor.realize(weights, result)

    numpy.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
    expected = weights.numpy().astype(numpy.float64) @ value.numpy()
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_attention_by_names_of_axes_is_that_by_matrices() -> None:
    """A sum of named axes has those of a product of matrices, heads first, whatever their order."""
    query, key, value = (Tensor(numbers(7, 2, 4, seed=seed)).realize() for seed in range(3))
    weights = Tensor.einsum("qhd,khd->hqk", query, key).softmax(-1)
    result = Tensor.einsum("hqk,khd->qhd", weights, value)
    rows, columns, values = (x.transpose(0, 1) for x in (query, key, value))
    other = ((rows @ columns.transpose(1, 2)).softmax(-1) @ values).transpose(0, 1).contiguous()

    assert len(result.schedule()) == len(other.schedule())
    exact = [x.numpy().astype(numpy.float64).swapaxes(0, 1) for x in (query, key, value)]
    scale = math.sqrt(query.shape[-1])
    expected = expected_of(exact[0] * scale, exact[1], exact[2]).swapaxes(0, 1)
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_mask_of_no_key_at_all() -> None:
    """Rows that a mask of indices hides whole are 0, and have no gradient."""
    query, key, value = (Tensor(numbers(1, 6, 4, seed=n), requires_grad=True) for n in range(3))
    mask = Tensor.arange(6) < Tensor.arange(6).unsqueeze(1) - 2
    out = query.scaled_dot_product_attention(key, value, mask)
    slopes = out.sum().gradient(query, key, value)

    assert out.numpy()[0, :3].tolist() == [[0.0] * 4] * 3
    assert slopes[0].numpy()[0, :3].tolist() == [[0.0] * 4] * 3
    assert all(numpy.isfinite(slope.numpy()).all() for slope in slopes)


@pytest.mark.sample(12)
def test_attention_by_hand_sees_parts_of_keys_at_once(unit: MatrixUnit) -> None:
    """As the function does: few rows would keep few units busy."""
    limits = replace(card_with(unit), units=16)
    parts = replace(CORRECT, name="FEW", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        given = operands(unit, (2, 2, 16), *[(2, 256, 16)] * 2)
        query, key, value = (x.to(HOST).to("FEW").realize() for x in given)
        result = (query @ key.transpose(-2, -1) / 4).softmax(-1) @ value
        stored = [b.size for item in result.schedule() for b in item.bufs]

        assert 2 * 2 * 256 not in stored  # no scores
        expected = expected_of(*map(plain, (query, key, value)))
        numpy.testing.assert_allclose(plain(result), expected, rtol=2e-2, atol=2e-2)


def test_gradients_by_one_kernel_each_without_the_result() -> None:
    """A mask hides keys of some rows, but no product is left that groups of rows would compute."""
    limits = card_with(HALF)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        leaves = [x.requires_grad_() for x in operands(HALF, *((1, 64, 16),) * 3)]
        query, key, value = leaves
        query.scaled_dot_product_attention(key, value, is_causal=True).sum().backward()
        found = [plain(x.grad) for x in leaves if x.grad is not None]
        exact = [x.detach().to(HOST).float().requires_grad_() for x in leaves]
        query, key, value = exact
        scores = (query.unsqueeze(-2) * key.unsqueeze(-3)).sum(-1) / 4
        (causal(scores).softmax(-1).unsqueeze(-1) * value.unsqueeze(-3)).sum().backward()

        for ours, theirs in zip(found, exact, strict=True):
            assert theirs.grad is not None
            numpy.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=2e-2, atol=2e-2)
