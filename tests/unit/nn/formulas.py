"""Optimizers as their papers write them, in NumPy and float64, where torch has none.

Each takes a parameter and the gradients of its steps, and returns where the parameter ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy

Array = numpy.ndarray[Any, numpy.dtype[Any]]


def size(x: Array) -> float:
    """The Euclidean norm of all elements."""
    return float(numpy.sqrt((x * x).sum()))


def lars(
    w: Array,
    gradients: Iterable[Array],
    lr: float,
    momentum: float,
    decay: float,
    trust: float,
    *,
    rate_in_velocity: bool = True,
    decay_in_velocity: bool = True,
    nesterov: bool = False,
) -> Array:
    """You, Gitman and Ginsburg 2017, algorithm 1: v = m v + lr * local * (g + decay w); w -= v.

    The flags move the rate and the decay out of the velocity.
    """
    velocity = numpy.zeros_like(w)
    for g in gradients:
        defined = trust and size(w) > 0 and size(g) > 0
        local = lr * (trust * size(w) / (size(g) + decay * size(w)) if defined else 1.0)
        step = g + decay * w if decay_in_velocity else g
        step = local * step if rate_in_velocity else step
        velocity = momentum * velocity + step
        step = step + momentum * velocity if nesterov else velocity
        step = step if rate_in_velocity else local * step
        w = w - step if decay_in_velocity else w - step - lr * decay * w
    return w


def lamb(
    w: Array,
    gradients: Iterable[Array],
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    decay: float,
    adam: bool = False,
) -> Array:
    """You and others 2020, algorithm 2, the trust function being the identity."""
    m, v = numpy.zeros_like(w), numpy.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = (m / (1 - b1**t)) / (numpy.sqrt(v / (1 - b2**t)) + eps) + decay * w
        trusted = not adam and size(w) > 0 and size(step) > 0
        w = w - lr * (size(w) / size(step) if trusted else 1.0) * step
    return w


def orthogonal(x: Array, steps: int, coefficients: Sequence[float]) -> Array:
    """Newton and Schulz: a polynomial of the singular values, here through the decomposition."""
    left, values, right = numpy.linalg.svd(x / (size(x) + 1e-7), full_matrices=False)
    for _ in range(steps):
        values = values * numpy.polynomial.polynomial.polyval(values**2, coefficients)
    result: Array = left * values @ right
    return result


def muon(
    w: Array,
    gradients: Iterable[Array],
    lr: float,
    momentum: float,
    decay: float,
    steps: int,
    coefficients: Sequence[float],
    *,
    nesterov: bool = True,
    scale: float = 1.0,
) -> Array:
    """Jordan 2024, with the decay of Liu and others 2025: w -= lr (scale NS(g + m v) + decay w)."""
    velocity = numpy.zeros_like(w)
    for g in gradients:
        velocity = momentum * velocity + g
        step = g + momentum * velocity if nesterov else velocity
        matrix = orthogonal(step.reshape(len(step), -1), steps, coefficients)
        w = w - lr * (scale * matrix.reshape(w.shape) + decay * w)
    return w
