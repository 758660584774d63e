"""Optimizers with momentum: SGD, LARS and Muon.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from tinycore import Tensor
from tinycore.errors import ArgumentError
from tinycore.nn.optim.optimizer import Keep, Optimizer, nonnegative, norm
from tinycore.uop.shape import DeviceLike

__all__ = ["LARS", "SGD", "Muon"]

NEWTON_SCHULZ: Final = (3.4445, -4.775, 2.0315)
"""Coefficients of Muon's iteration, by Jordan: https://kellerjordan.github.io/posts/muon."""


class Descent(Optimizer):
    """Base of SGD, LARS and Muon, which keep a velocity: the direction in which the parameter goes.

    A subclass says how long a step may be (`_ratio`) and which way it leads (`_direction`).
    """

    momentum = 0.0
    wd = 0.0
    nesterov = False
    classic = False
    decay_first = True
    b: list[Tensor]

    def _ratio(self, param: Tensor, gradient: Tensor) -> Tensor | None:
        """Factor of one parameter's learning rate."""
        return None

    def _direction(self, step: Tensor) -> Tensor:
        """The step itself, or one of the same shape instead."""
        return step

    def _updates(
        self, places: list[int], params: list[Tensor], gradients: list[Tensor], keep: Keep
    ) -> list[Tensor]:
        velocities = [self.b[place] if self.b else None for place in places]
        return [
            self._update(param, gradient, velocity, keep)
            for param, gradient, velocity in zip(params, gradients, velocities, strict=True)
        ]

    def _update(
        self, param: Tensor, gradient: Tensor, velocity: Tensor | None, keep: Keep
    ) -> Tensor:
        rate = self._rate(param)
        ratio = self._ratio(param, gradient)
        scale = rate if ratio is None else rate * ratio
        step = gradient + self.wd * param if self.wd and self.decay_first else gradient
        step = step * scale if self.classic else step
        if velocity is not None:
            velocity = keep(velocity, self.momentum * velocity + step)
            step = step + self.momentum * velocity if self.nesterov else velocity
        step = self._direction(step)
        step = step if self.classic else step * scale
        return step if self.decay_first or not self.wd else step + rate * self.wd * param


class SGD(Descent):
    """Stochastic gradient descent with momentum, after Nesterov if wanted, and weight decay.

    With g = gradient + weight_decay * parameter, the velocity is v = momentum * v + g, and the
    parameter changes by -lr * v, or by -lr * (g + momentum * v) after Nesterov. `classic` puts the
    learning rate into the velocity, v = momentum * v + lr * g, so that a change of `lr` does not
    scale what was gathered before.

    >>> weight = Tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = nn.optim.SGD([weight], lr=0.5)
    >>> _ = (weight * weight).sum().backward()
    >>> with Tensor.train():
    ...     optimizer.step()
    >>> weight.tolist()
    [0.0, 0.0]
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
        device: DeviceLike | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, device, fused)
        self.momentum = nonnegative("SGD", momentum=momentum)
        self.wd = nonnegative("SGD", weight_decay=weight_decay)
        self.nesterov, self.classic = nesterov, classic
        self.b = self._zeros() if momentum else []


class LARS(Descent):
    """Layer-wise adaptive rate scaling (https://arxiv.org/abs/1708.03888).

    As SGD, but the rate of each parameter w with gradient g is multiplied by
    tcoef * |w| / (|g| + weight_decay * |w|), or by 1 where a norm is 0 or `tcoef` is. The paper is
    `classic`; else the product scales the velocity. Without `pre_wd` the decay does not go through
    the velocity but subtracts lr * weight_decay * w. `ns_steps` of Newton and Schulz make the step
    of a matrix orthogonal, see `Muon`.

    Raises ArgumentError for a number that is negative, or for `fused`.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        ns_steps: int = 0,
        ns_coefficients: tuple[float, ...] | None = None,
        nesterov: bool = False,
        classic: bool = True,
        pre_wd: bool = True,
        tcoef: float = 0.001,
        device: DeviceLike | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, device, fused)
        self._refuse_fused()
        self.momentum = nonnegative("LARS", momentum=momentum)
        self.wd = nonnegative("LARS", weight_decay=weight_decay)
        self.tcoef = nonnegative("LARS", tcoef=tcoef)
        self.ns_steps = ns_steps
        self.ns_coefficients = ns_coefficients or NEWTON_SCHULZ
        self.nesterov, self.classic, self.decay_first = nesterov, classic, pre_wd
        self.b = self._zeros() if momentum else []

    def _ratio(self, param: Tensor, gradient: Tensor) -> Tensor | None:
        if not self.tcoef:
            return None
        size, slope = norm(param), norm(gradient)
        ratio = self.tcoef * size / (slope + self.wd * size)
        return ((size > 0) & (slope > 0)).where(ratio, 1.0)

    def _direction(self, step: Tensor) -> Tensor:
        return _orthogonal(step, self.ns_steps, self.ns_coefficients)


class Muon(Descent):
    """Momentum, then orthogonalized (https://kellerjordan.github.io/posts/muon), for matrices.

    The velocity is that of SGD, after Nesterov unless told otherwise. `ns_steps` of the iteration
    of Newton and Schulz bring the singular values of the step near to 1, and the parameter changes
    by -lr * step, and by -lr * weight_decay times itself (https://arxiv.org/abs/2502.16982). A
    parameter of more axes is taken as a matrix with its first axis as rows.

    `adjust_lr_fn` multiplies the rate by a function of the rows and columns: "original" by
    sqrt(max(1, rows/columns)), "match_rms_adamw" by 0.2 * sqrt(max(rows, columns)).
    Raises ArgumentError for another word, for a number that is negative, or for `fused`.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor = 0.001,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        ns_coefficients: tuple[float, ...] = NEWTON_SCHULZ,
        nesterov: bool = True,
        device: DeviceLike | None = None,
        fused: bool = False,
        *,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(params, lr, device, fused)
        self._refuse_fused()
        if adjust_lr_fn not in MUON_SCALES:
            raise ArgumentError(
                f"Muon: adjust_lr_fn is one of {', '.join(map(repr, MUON_SCALES))}, "
                f"not {adjust_lr_fn!r}"
            )
        self.momentum = nonnegative("Muon", momentum=momentum)
        self.wd = nonnegative("Muon", weight_decay=weight_decay)
        self.ns_steps, self.ns_coefficients = ns_steps, ns_coefficients
        self.nesterov, self.decay_first, self.adjust_lr_fn = nesterov, False, adjust_lr_fn
        self.b = self._zeros() if momentum else []

    def _direction(self, step: Tensor) -> Tensor:
        orthogonal = _orthogonal(step, self.ns_steps, self.ns_coefficients)
        rows = step.shape[0] if step.ndim else 1
        scale = MUON_SCALES[self.adjust_lr_fn](rows, step.numel() // max(1, rows))
        return orthogonal if scale == 1 else orthogonal * scale


MUON_SCALES: dict[str | None, Callable[[int, int], float]] = {
    None: lambda rows, columns: 1.0,
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}
"""Factors of Muon's rate; the same words as torch's."""


def _orthogonal(step: Tensor, steps: int, coefficients: tuple[float, ...]) -> Tensor:
    """The nearest orthogonal matrix, roughly, of a step whose first axis is its rows."""
    if not steps:
        return step
    matrix = step.reshape(step.shape[0] if step.ndim else 1, -1)
    return matrix.newton_schulz(steps, coefficients).reshape(step.shape)
