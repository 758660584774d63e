"""Optimizers: how a gradient changes a parameter.

Floor 6. Imports the public API, the settings and the errors.
An optimizer's state is tensors, so one step is one graph: `schedule_step` builds it and returns
what must be realized, `step` realizes it, and a TinyJit captures it whole. Sums are kept in float32
at least, whatever the parameter's dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinycore import Tensor, dtypes
from tinycore.config import settings
from tinycore.dtype import least_upper_dtype
from tinycore.errors import ArgumentError, GradientError

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "OptimizerGroup"]


class Optimizer:
    """What every optimizer has: parameters to change, a learning rate, and a step.

    Tensors marked `is_param_(False)`, such as running statistics, are kept in `buffers`: they have
    no gradient, and a step realizes them. A tensor given twice is taken once. `lr` is a tensor (1,)
    that may be assigned to between steps, also under a TinyJit. State lives on `device`, which is
    the first parameter's unless given.

    A subclass implements `_updates`. Raises ArgumentError when there is nothing to optimize.
    """

    params: list[Tensor]
    buffers: list[Tensor]

    def __init__(self, params: Iterable[Tensor], lr: float, device: str | None = None) -> None:
        distinct = _distinct(params)
        self.params = [tensor for tensor in distinct if tensor.is_param]
        for tensor in self.params:  # so that `backward` leaves out what nobody trains, as inputs
            tensor.requires_grad_(True)
        self.buffers = [tensor for tensor in distinct if not tensor.is_param]
        if not self.params:
            raise ArgumentError("an optimizer needs at least one parameter, and none was given")
        self.device = self.params[0].device if device is None else device
        self.lr = self._single(lr)

    def zero_grad(self) -> None:
        """Forget every parameter's gradient."""
        for param in self.params:
            param.grad = None

    def step(self) -> None:
        """Change every parameter by its gradient, now.

        Raises as `schedule_step` does.
        """
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Assign the changed parameters and state, and return all that must be realized.

        Raises GradientError outside training, which is entered by `Context(TRAINING=1)`, and when a
        parameter has no gradient.
        """
        if not settings.TRAINING:
            raise GradientError(
                "an optimizer steps only while training. Put the step inside "
                "`with Context(TRAINING=1):`"
            )
        gradients = [self._gradient(position) for position in range(len(self.params))]
        updates, state = self._updates(gradients)
        for param, update in zip(self.params, updates, strict=True):
            changed = self._wide(param.detach()) - update
            param.assign(changed.cast(param.dtype).to(param.device))
        return [*state, *self.params, *self.buffers]

    def _updates(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """What to subtract from each parameter, and the state that was assigned on the way."""
        raise NotImplementedError

    def _gradient(self, position: int) -> Tensor:
        gradient = self.params[position].grad
        if gradient is None:
            raise GradientError(
                f"parameter {position} of {len(self.params)}, of shape "
                f"{self.params[position].shape}, has no gradient: call `backward()` on a loss that "
                "depends on it, or leave it out"
            )
        return self._wide(gradient)

    def _wide(self, tensor: Tensor) -> Tensor:
        """The tensor where the state lives, and precise enough to add small steps to."""
        return tensor.to(self.device).cast(least_upper_dtype(tensor.dtype, dtypes.float32))

    def _single(self, value: float) -> Tensor:
        """A tensor (1,) of state."""
        state = Tensor.full((1,), value, dtype=dtypes.float32, device=self.device)
        return state.is_param_(False)

    def _zeros(self) -> list[Tensor]:
        """State of the shape of each parameter."""
        return [Tensor.zeros_like(self._wide(p)).is_param_(False) for p in self.params]


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


class OptimizerGroup(Optimizer):
    """Several optimizers that step together, as one graph; `group[i]` is the i-th."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers: Sequence[Optimizer] = optimizers
        self.params = [param for optimizer in optimizers for param in optimizer.params]
        self.buffers = _distinct(buffer for optimizer in optimizers for buffer in optimizer.buffers)

    def __getitem__(self, position: int) -> Optimizer:
        return self.optimizers[position]

    def zero_grad(self) -> None:
        """Forget the gradients of all optimizers' parameters."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def schedule_step(self) -> list[Tensor]:
        """What all optimizers' steps must realize."""
        return _distinct(tensor for each in self.optimizers for tensor in each.schedule_step())


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, after Nesterov if wanted, and weight decay.

    With g = gradient + weight_decay * parameter, the velocity is v = momentum * v + g, and the
    parameter changes by -lr * v, or by -lr * (g + momentum * v) after Nesterov. `classic` puts the
    learning rate into the velocity, v = momentum * v + lr * g, so that a change of `lr` does not
    scale what was gathered before.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
        device: str | None = None,
    ) -> None:
        super().__init__(params, lr, device)
        self.momentum, self.wd = momentum, weight_decay
        self.nesterov, self.classic = nesterov, classic
        self.b = self._zeros() if momentum else []

    def _updates(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        rate_inside, rate_outside = (self.lr, 1.0) if self.classic else (1.0, self.lr)
        updates = []
        for position, param in enumerate(self.params):
            step = gradients[position]
            if self.wd:
                step = step + self.wd * self._wide(param.detach())
            step = step * rate_inside
            if self.momentum:
                velocity = self.b[position]
                velocity.assign(self.momentum * velocity + step)
                step = step + self.momentum * velocity if self.nesterov else velocity
            updates.append(step * rate_outside)
        return updates, self.b


class AdamW(Optimizer):
    """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101).

    Running means m of the gradient and v of its square, with weights b1 and b2, are corrected for
    their start at zero; the parameter changes by -lr * (m / (sqrt(v) + eps) + weight_decay * p).
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        device: str | None = None,
    ) -> None:
        super().__init__(params, lr, device)
        self.b1, self.b2, self.eps, self.wd = b1, b2, eps, weight_decay
        self.b1_t, self.b2_t = self._single(1.0), self._single(1.0)
        self.m, self.v = self._zeros(), self._zeros()

    def _updates(self, gradients: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        self.b1_t.assign(self.b1_t * self.b1)
        self.b2_t.assign(self.b2_t * self.b2)
        updates = []
        for gradient, param, m, v in zip(gradients, self.params, self.m, self.v, strict=True):
            m.assign(self.b1 * m + (1 - self.b1) * gradient)
            v.assign(self.b2 * v + (1 - self.b2) * gradient.square())
            mean, square = m / (1 - self.b1_t), v / (1 - self.b2_t)
            step = mean / (square.sqrt() + self.eps)
            if self.wd:
                step = step + self.wd * self._wide(param.detach())
            updates.append(self.lr * step)
        return updates, [self.b1_t, self.b2_t, *self.m, *self.v]


class Adam(AdamW):
    """Adam (https://arxiv.org/abs/1412.6980): AdamW without weight decay."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        device: str | None = None,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay=0.0, device=device)
