"""Initial values of layers: named distributions, each from its paper.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

import math

from tinycore import Tensor
from tinycore.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "inverse_root_uniform",
    "neutral_affine",
    "positive_sizes",
    "verify_input",
]


def inverse_root_uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
    """Uniform within 1/sqrt(inputs), where each output sums that many; variance 1/(3*inputs).

    The "commonly used heuristic", equation 1 of Glorot and Bengio, "Understanding the difficulty of
    training deep feedforward neural networks", 2010.
    """
    bound = 1 / math.sqrt(inputs)
    return Tensor.uniform(*shape, low=-bound, high=bound)


def neutral_affine(wanted: bool, *shape: int) -> tuple[Tensor | None, Tensor | None]:
    """The scale 1 and the shift 0 that change nothing until they are trained; None if not wanted.

    They are gamma and beta of Ioffe and Szegedy, https://arxiv.org/abs/1502.03167, section 3.
    """
    if not wanted:
        return None, None
    return Tensor.ones(*shape), Tensor.zeros(*shape)


def positive_sizes(layer: str, **sizes: object) -> None:
    """Raises ArgumentError naming the first size that is not a positive integer."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{layer}: {name} must be a positive integer, got {size!r}")


def verify_input(layer: object, x: object) -> None:
    """Raises ArgumentTypeError for the input of a layer that is no tensor, such as an array."""
    if not isinstance(x, Tensor):
        kind = f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
        raise ArgumentTypeError(
            f"{type(layer).__name__}: x is of type {kind}; it must be a Tensor. Tensor(...) makes "
            "one of it"
        )
