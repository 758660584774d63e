"""Gradients flow through what is computed here and not by a method of `Tensor`."""

from __future__ import annotations

import numpy
import pytest
import torch

import tinycore.array_api as xp
from tests.unit.array_api.comparing import Case
from tests.unit.tensor.helpers import compare, numbers

PLANE = [numbers(2, 3, seed=seed) for seed in (1, 2)]
MATRICES = numbers(2, 3, 3) + 3 * numpy.eye(3)


def both(case: Case, *inputs: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]) -> None:
    """The same code on this namespace and on torch's functions, with gradients, in float64."""
    compare(case(xp), case(torch), *inputs, dtypes_used=[xp.float64])


@pytest.mark.parametrize("name", ["atan2", "hypot", "copysign", "logaddexp", "pow", "log1p"])
def test_gradients_in_the_plane(name: str) -> None:
    inputs = [numpy.abs(x) for x in PLANE] if name in ("pow", "log1p") else PLANE

    both(lambda namespace: getattr(namespace, name), *inputs[: 1 if name == "log1p" else 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["det", "inv"])
def test_gradients_of_square_matrices(name: str) -> None:
    both(lambda namespace: getattr(namespace.linalg, name), MATRICES)


def test_gradients_of_a_system_of_equations() -> None:
    both(lambda namespace: namespace.linalg.solve, MATRICES, numbers(2, 3, 2))


def test_gradients_of_a_triangle() -> None:
    both(lambda namespace: lambda x: namespace.linalg.cholesky(x @ x.mT), MATRICES)


def test_gradients_of_picked_elements() -> None:
    places = [[0, 2, 1, 1], [1, 0, 0, 0]]

    compare(
        lambda x: xp.take_along_axis(x, xp.asarray(places)),
        lambda x: torch.take_along_dim(x, torch.tensor(places), -1),
        numbers(2, 3),
        dtypes_used=[xp.float64],
    )
