"""Weights start as the layers' docstrings say: within their bound, with its variance."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest

from tinycore import Tensor, nn
from tinycore.nn.state import get_state_dict


def assert_uniform(weight: Tensor, bound: float) -> None:
    """Within the bound and filling it: each moment within five of its deviations."""
    values = weight.numpy().astype(numpy.float64).ravel() / bound
    count = len(values)
    assert abs(values).max() <= 1
    assert abs(values).max() > 1 - 20 / count  # missed once in e**20 draws
    assert abs(values.mean()) < 5 * (1 / 3 / count) ** 0.5
    assert abs((values**2).mean() - 1 / 3) < 5 * (4 / 45 / count) ** 0.5


@pytest.mark.parametrize(
    ("weight", "bound"),
    [
        (lambda: nn.Linear(16, 200).weight, 16**-0.5),
        (lambda: nn.Linear(9, 3000).bias, 9**-0.5),
        (lambda: nn.Conv2d(8, 30, (3, 4), groups=2).weight, 48**-0.5),
        (lambda: nn.Conv1d(2, 2000, 3).bias, 6**-0.5),
        (lambda: nn.ConvTranspose2d(30, 8, 3, groups=2).weight, 36**-0.5),
        (lambda: nn.ConvTranspose1d(2, 2000, 3).bias, 6000**-0.5),
        (lambda: nn.Embedding(100, 50).weight, (6 / 150) ** 0.5),
        (lambda: nn.LSTMCell(10, 25).weight_ih, 25**-0.5),
        (lambda: nn.GRU(40, 20, bidirectional=True).weight_hh_l0_reverse, 20**-0.5),  # type: ignore[attr-defined]
    ],
    ids=["linear", "bias", "conv", "conv bias", "up", "up bias", "embedding", "lstm", "gru"],
)
def test_weights_are_uniform_within_their_bound(weight: Callable[[], Tensor], bound: float) -> None:
    Tensor.manual_seed(11)

    assert_uniform(weight(), bound)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm(3),
        lambda: nn.GroupNorm(1, 3),
        lambda: nn.LayerNorm((2, 3)),
        lambda: nn.RMSNorm(3),
    ],
)
def test_normalization_starts_by_changing_nothing(make: Callable[[], object]) -> None:
    starts = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}

    for name, tensor in get_state_dict(make()).items():
        assert set(tensor.numpy().ravel()) == {starts.get(name, 0)}


def test_layers_do_not_start_alike() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)

    assert first.weight.tolist() != second.weight.tolist()


def test_a_seed_starts_alike() -> None:
    def started() -> list[float]:
        Tensor.manual_seed(5)
        values: list[float] = nn.Linear(3, 3).weight.tolist()
        return values

    assert started() == started()
