"""Optimizers that keep running moments of the gradient: Adam, AdamW and LAMB.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinycore import Tensor
from tinycore.errors import ArgumentError, ArgumentTypeError
from tinycore.nn.optim.optimizer import Keep, Optimizer, nonnegative, norm
from tinycore.tensor.methods.templates import templated
from tinycore.uop.shape import DeviceLike

__all__ = ["LAMB", "Adam", "AdamW"]


class AdamW(Optimizer):
    """The Adam method with decoupled weight decay (https://arxiv.org/abs/1711.05101).

    Running means m of the gradient and v of its square, with weights b1 and b2, are corrected for
    their start at zero; the parameter changes by -lr * (m / (sqrt(v) + eps) + weight_decay * p).
    `betas` are both weights, as torch has them. The count of steps is common to all parameters.
    Raises ArgumentError for a number that is negative, or for b1 or b2 of 1 and above.

    >>> weight = Tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = nn.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    >>> _ = (weight * weight).sum().backward()
    >>> with Tensor.train():
    ...     optimizer.step()
    >>> weight.numpy().round(4)
    array([ 0.9, -1.9], dtype=float32)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        device: DeviceLike | None = None,
        fused: bool = False,
        *,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, device, fused)
        b1, b2 = _both(self, b1, b2, betas)
        self.b1, self.b2 = _below_one(self, b1=b1), _below_one(self, b2=b2)
        self.eps = nonnegative(type(self).__name__, eps=eps)
        self.wd = nonnegative(type(self).__name__, weight_decay=weight_decay)
        self.b1_t, self.b2_t = self._single(1.0), self._single(1.0)
        self.m, self.v = self._zeros(), self._zeros()

    def _updates(
        self, places: list[int], params: list[Tensor], gradients: list[Tensor], keep: Keep
    ) -> list[Tensor]:
        keep(self.b1_t, self.b1_t * self.b1)
        keep(self.b2_t, self.b2_t * self.b2)
        updates, corrections = [], {}
        for dtype in {m.dtype for m in self.m}:
            corrections[dtype] = 1 - self.b1_t.cast(dtype), 1 - self.b2_t.cast(dtype)
        for place, gradient, param in zip(places, gradients, params, strict=True):
            m, v = self.m[place], self.v[place]
            keep(m, _moved(m, gradient, self.b1))
            keep(v, _moved_square(v, gradient, self.b2))
            step = _direction(m, v, *corrections[m.dtype], self.eps)
            step = step + self.wd * param if self.wd else step
            updates.append(self._rate(param) * self._trusted(param, step))
        return updates

    def _trusted(self, param: Tensor, step: Tensor) -> Tensor:
        """The step, as long as it should be for this parameter."""
        return step


class Adam(AdamW):
    """The Adam method (https://arxiv.org/abs/1412.6980): AdamW without weight decay."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        device: DeviceLike | None = None,
        fused: bool = False,
        *,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, 0.0, device, fused, betas=betas)


class LAMB(AdamW):
    """Layer-wise adaptive moments (https://arxiv.org/abs/1904.00962).

    As AdamW, but the step s of each parameter w is multiplied by |w| / |s|, or by 1 where a norm is
    0, and always with `adam`. Raises ArgumentError as AdamW does, and for `fused` without `adam`.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        device: DeviceLike | None = None,
        fused: bool = False,
        *,
        betas: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, device, fused, betas=betas)
        self.adam = adam
        if not adam:
            self._refuse_fused()

    def _trusted(self, param: Tensor, step: Tensor) -> Tensor:
        if self.adam:
            return step
        size, length = norm(param), norm(step)
        return step * ((size > 0) & (length > 0)).where(size / length, 1.0)


@templated
def _moved(mean: Tensor, gradient: Tensor, weight: float) -> Tensor:
    """The running mean of the gradient after a step."""
    return weight * mean + (1 - weight) * gradient


@templated
def _moved_square(mean: Tensor, gradient: Tensor, weight: float) -> Tensor:
    """The running mean of the square of the gradient after a step."""
    return weight * mean + (1 - weight) * gradient.square()


@templated
def _direction(mean: Tensor, square: Tensor, first: Tensor, second: Tensor, eps: float) -> Tensor:
    """The corrected mean of the gradient over the root of that of its square."""
    return (mean / first) / ((square / second).sqrt() + eps)


def _both(optimizer: Optimizer, b1: float, b2: float, betas: object) -> tuple[float, float]:
    """The weights of both means. Raises ArgumentTypeError unless `betas` are two numbers."""
    if betas is None:
        return b1, b2
    found = tuple(betas) if isinstance(betas, Iterable) else ()
    if len(found) != 2:
        raise ArgumentTypeError(f"{type(optimizer).__name__}: betas are two numbers, got {betas!r}")
    return found


def _below_one(optimizer: Optimizer, **weights: float) -> float:
    """The weight of a running mean itself. Raises ArgumentError outside [0, 1)."""
    ((name, weight),) = weights.items()
    if not 0 <= weight < 1:
        raise ArgumentError(f"{type(optimizer).__name__}: {name} lies in [0, 1), got {weight}")
    return weight
