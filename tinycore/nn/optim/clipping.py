"""Gradient clipping.

Floor 6. Imports the public API and the errors. No number is read back, so it can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinycore import Tensor, dtypes
from tinycore.dtype import least_upper_dtype
from tinycore.errors import ArgumentError
from tinycore.nn.optim.optimizer import nonnegative
from tinycore.tensor.storage.liveness import give_gradients

__all__ = ["clip_grad_norm_", "clip_grad_value_"]

TINY = 1e-6
"""Added to the norm, so that gradients of zero are not divided by zero."""


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale all gradients by one factor, so that their total norm is at most `max_norm`.

    The norm is of all elements as one vector, to the power `norm_type`, or the greatest magnitude
    for infinity; it is computed in float32 at least and returned as it was before (https://
    arxiv.org/abs/1211.5063). Gradients that are not finite stay so. Tensors without a gradient are
    left out. Raises ArgumentError for a negative `max_norm` or a `norm_type` that is not positive.

    >>> weight = Tensor([1.0, 1.0], requires_grad=True)
    >>> _ = (weight * Tensor([3.0, 4.0])).sum().backward()
    >>> nn.optim.clip_grad_norm_(weight, 1.0).item(), weight.grad.numpy().round(4)
    (5.0, array([0.6, 0.8], dtype=float32))
    """
    nonnegative("clip_grad_norm_", max_norm=max_norm)
    if not norm_type > 0:
        raise ArgumentError(f"clip_grad_norm_: norm_type must be positive, got {norm_type}")
    found = with_gradients(parameters)
    if not found:
        return Tensor(0.0)
    device = found[0][1].device
    total = global_norm([_precise(gradient).to(device) for _, gradient in found], norm_type)
    scale = (max_norm / (total + TINY)).minimum(1.0)
    scaled = [(_precise(g) * scale.to(g.device)).cast(g.dtype) for _, g in found]
    give_gradients([param for param, _ in found], scaled)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Bring every element of every gradient into [-clip_value, clip_value].

    Tensors without a gradient are left out. Raises ArgumentError for a negative `clip_value`.

    >>> weight = Tensor([1.0, 1.0], requires_grad=True)
    >>> _ = (weight * Tensor([3.0, -4.0])).sum().backward()
    >>> nn.optim.clip_grad_value_(weight, 3.5)
    >>> weight.grad.tolist()
    [3.0, -3.5]
    """
    nonnegative("clip_grad_value_", clip_value=clip_value)
    found = with_gradients(parameters)
    clipped = [gradient.clamp(-clip_value, clip_value) for _, gradient in found]
    give_gradients([param for param, _ in found], clipped)


def with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The parameters that have a gradient, each once, and the gradient."""
    given = [parameters] if isinstance(parameters, Tensor) else parameters
    distinct = {id(param): param for param in given}.values()
    return [(param, param.grad) for param in distinct if param.grad is not None]


def global_norm(gradients: list[Tensor], power: float) -> Tensor:
    """The norm of all elements as one vector, a tensor with no axes."""
    sizes = [gradient.abs() for gradient in gradients if gradient.numel()]
    if not sizes:
        return Tensor(0.0)
    if math.isinf(power):
        first, *others = [size.max() for size in sizes]
        for other in others:
            first = first.maximum(other)
        return first
    first, *others = [(size**power).sum() for size in sizes]
    return first.usum(*others) ** (1 / power)


def _precise(gradient: Tensor) -> Tensor:
    """In float32 at least, and apart from the graph that made it."""
    return gradient.detach().cast(least_upper_dtype(gradient.dtype, dtypes.float32))
