"""Derivatives against differences: is what `gradient` gives what the function does?

For authors of custom kernels, of derivative rules, and of anything composed of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, GradientError
from tinycore.tensor import Tensor

__all__ = ["check_gradients"]

Array = NDArray[Any]
Function = Callable[..., Tensor | Sequence[Tensor]]


def check_gradients(
    function: Function,
    *inputs: Array | Sequence[Any],
    step: float = 1e-6,
    rtol: float = 1e-5,
    atol: float = 1e-7,
    seed: int = 0,
) -> None:
    """Compare the derivatives of `function` with central differences, in float64.

    `function` takes a tensor for each of `inputs` and returns one or several. Its results are
    weighed by random numbers from `seed`, and every element of every input is moved by `step`
    both ways. The functions should be smooth near the inputs: at a kink the two disagree.

    Raises GradientError naming the input, the element and both derivatives where they differ by
    more than `atol + rtol * |difference quotient|`, ArgumentError when nothing is a float.

    >>> check_gradients(lambda x: x.exp() * x, [0.5, 1.0])
    """
    arrays = [numpy.asarray(x, numpy.float64) for x in inputs]
    if not arrays:
        raise ArgumentError("check_gradients: give the inputs of the function")
    weights = numpy.random.default_rng(seed)
    factors = [weights.uniform(0.5, 1.5, r.shape) for r in results_of(function, arrays)]

    def total(values: Sequence[Array]) -> float:
        results = results_of(function, values)
        return sum(float((r.numpy() * w).sum()) for r, w in zip(results, factors, strict=True))

    tensors = [Tensor(x, dtype=dtypes.float64) for x in arrays]
    weighed = [
        (r * Tensor(w, dtype=dtypes.float64)).sum()
        for r, w in zip(as_list(function(*tensors)), factors, strict=True)
    ]
    found = sum(weighed[1:], start=weighed[0]).gradient(*tensors)
    for number, (x, gradient) in enumerate(zip(arrays, found, strict=True)):
        compare(number, gradient.numpy(), differences(total, arrays, number, x, step), rtol, atol)


def as_list(results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The results of a function that returns one or several."""
    return [results] if isinstance(results, Tensor) else list(results)


def results_of(function: Function, arrays: Sequence[Array]) -> list[Tensor]:
    """The float results of a function. Raises ArgumentError when there are none."""
    results = as_list(function(*[Tensor(x, dtype=dtypes.float64) for x in arrays]))
    if not results or not all(r.is_floating_point() for r in results):
        raise ArgumentError("check_gradients: the function must return float tensors")
    return results


def differences(
    total: Callable[[Sequence[Array]], float],
    arrays: Sequence[Array],
    number: int,
    x: Array,
    step: float,
) -> Array:
    """The central difference quotient with respect to every element of one input."""
    quotients = numpy.zeros_like(x)
    for place in numpy.ndindex(x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            sides.append(total([*arrays[:number], moved, *arrays[number + 1 :]]))
        quotients[place] = (sides[0] - sides[1]) / (2 * step)
    return quotients


def compare(number: int, gradient: Array, quotients: Array, rtol: float, atol: float) -> None:
    """Raise GradientError at the element where the two differ most, if they differ too much."""
    excess = numpy.abs(gradient - quotients) - atol - rtol * numpy.abs(quotients)
    if gradient.size == 0 or (excess <= 0).all():
        return
    worst = int(numpy.argmax(numpy.where(numpy.isnan(excess), numpy.inf, excess)))
    place = tuple(int(i) for i in numpy.unravel_index(worst, gradient.shape))
    raise GradientError(
        f"the derivative by element {place} of input {number} is "
        f"{gradient[place]}, the difference quotient {quotients[place]}"
    )
