"""Training in half precision: master weights, and a loss scaled to fit (arXiv:1710.03740).

Floor 6. Imports the public API, `nn.state` and the errors.
Weights stay in float32, where small steps add up; the model computes with copies in float16 or
bfloat16. In float16 small gradients would vanish, so the loss is multiplied by a great number and
the gradients are divided by it. The number is found on the way: it falls where gradients overflow,
and that step is left out; it grows again after many that did not. No number is read back to decide
it, so that a TinyJit captures the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tinycore import Tensor, dtypes
from tinycore.dtype import DTypeLike, least_upper_dtype, to_dtype
from tinycore.errors import ArgumentError, DTypeError, GradientError
from tinycore.nn.optim.optimizer import Optimizer
from tinycore.nn.state import get_parameters
from tinycore.tensor.storage.liveness import give_gradients
from tinycore.tensor.storage.writes import atomic_writes
from tinycore.uop.shape import DeviceLike

__all__ = ["GradScaler", "compute_in"]


@contextmanager
def compute_in(model: object, dtype: DTypeLike) -> Iterator[None]:
    """The model's parameters in another float dtype, for the forward pass inside the block.

    After the block they are what they were, and `backward` gives them gradients of their own
    dtype, through the cast. What is no parameter, such as running statistics, stays. Call
    `backward` after the block, and compute the loss in float32:
    `loss = scores.float().cross_entropy(labels)`.

    Raises DTypeError for a dtype that is no float.

    >>> layer = nn.Linear(2, 1)
    >>> with nn.optim.compute_in(layer, "float16"):
    ...     scores = layer(Tensor.ones(1, 2, dtype="float16"))
    >>> scores.dtype, layer.weight.dtype
    (dtypes.float16, dtypes.float32)
    """
    target = to_dtype(dtype)
    if not dtypes.is_float(target):
        raise DTypeError(f"compute_in: parameters are floats, not {target!r}")
    distinct = {id(tensor): tensor for tensor in get_parameters(model)}.values()
    masters = [(t, Tensor(t)) for t in distinct if t.is_param and dtypes.is_float(t.dtype)]
    try:
        for param, master in masters:
            param.replace(master.cast(target))
        yield
    finally:
        for param, master in masters:
            param.replace(master)


class GradScaler:
    """An adaptive loss scale; steps whose gradients overflow are skipped.

        scaler.scale(loss).backward()
        clip_grad_norm_(scaler.unscale_(optimizer), 1.0)  # if wanted
        loss.realize(*scaler.schedule_step(optimizer), *scaler.schedule_update())

    `factor` (1,) is the scale. It is multiplied by `growth_factor` after `growth_interval` steps
    without overflow, unless that were infinite, and by `backoff_factor` after one with;
    `successes` (1,) counts between. Both are state to be saved.

    Raises ArgumentError for a scale that is not positive and finite, a growth of 1 and below, a
    backoff outside (0, 1), or an interval below 1.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        device: DeviceLike | None = None,
    ) -> None:
        sound = {
            "init_scale": (init_scale, 0 < init_scale < math.inf),
            "growth_factor": (growth_factor, 1 < growth_factor < math.inf),
            "backoff_factor": (backoff_factor, 0 < backoff_factor < 1),
            "growth_interval": (growth_interval, growth_interval >= 1),
        }
        for name, (value, fits) in sound.items():
            if not fits:
                raise ArgumentError(f"GradScaler: {name} is out of range, got {value}")
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval = growth_interval
        self.factor = Tensor.full((1,), init_scale, dtypes.float32, device).is_param_(False)
        self.successes = Tensor.full((1,), 0, dtypes.int32, device).is_param_(False)
        self._finite: dict[int, Tensor] = {}  # by id of an optimizer, from its unscaling to update
        self._stepped: set[int] = set()  # ids of optimizers, from their steps to update

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in float32 at least; call `backward` on it."""
        wide = loss.cast(least_upper_dtype(loss.dtype, dtypes.float32))
        return wide * self.factor.cast(wide.dtype).reshape((1,) * loss.ndim).to(loss.device)

    def unscale_(self, optimizer: Optimizer) -> list[Tensor]:
        """Divide the gradients of an optimizer by the scale; its parameters.

        They become float32 at least. `schedule_step` does it, unless it was done before, to clip.
        Raises GradientError when it was done since the last update, or there are no gradients.
        """
        if id(optimizer) in self._finite:
            raise GradientError("unscale_: these gradients were unscaled since the last update")
        params = [param for param in optimizer.params if param.grad is not None]
        if not params:
            raise GradientError("unscale_: no parameter has a gradient; call `backward()` before")
        gradients = [self._unscaled(param.grad) for param in params if param.grad is not None]
        verdicts = [g.isfinite().all().reshape(1).to(self.factor.device) for g in gradients]
        noted = partial(self._finite.__setitem__, id(optimizer), _all(verdicts))
        give_gradients(params, gradients, noted)
        return optimizer.params

    def _unscaled(self, gradient: Tensor) -> Tensor:
        """A gradient divided by the scale."""
        gradient = gradient.detach()
        wide = gradient.cast(least_upper_dtype(gradient.dtype, dtypes.float32))
        return wide / self.factor.cast(wide.dtype).reshape((1,) * wide.ndim).to(wide.device)

    def schedule_step(self, optimizer: Optimizer) -> list[Tensor]:
        """Assign what the optimizer's step changes, unless gradients overflowed; all to realize.

        Where it raises, gradients that it has unscaled are as they were. Raises GradientError as
        the optimizer's does, and for a second step since the last update.
        """
        key, former = id(optimizer), [(p, p.grad) for p in optimizer.params if p.grad is not None]
        if key in self._stepped:
            raise GradientError(
                "step: this optimizer has stepped since the last update; call `update()` after "
                "the steps, also where an error or Ctrl-C came before it"
            )
        is_unscaled = key in self._finite
        try:
            if not is_unscaled:
                self.unscale_(optimizer)
            self._stepped.add(key)
            finite = self._finite[key]
            return [finite, *optimizer.schedule_step(finite)]
        except BaseException:
            self._stepped.discard(key)
            if not is_unscaled:
                params, gradients = [p for p, _ in former], [g for _, g in former]
                give_gradients(params, gradients, partial(self._finite.pop, key, None))
            raise

    def step(self, optimizer: Optimizer) -> None:
        """Change the optimizer's parameters, unless gradients overflowed, now."""
        Tensor.realize(*self.schedule_step(optimizer))

    def schedule_update(self) -> list[Tensor]:
        """Assign the scale of the next step, and return what must be realized.

        Raises GradientError when no gradients were unscaled since the last time.
        """
        if not self._finite:
            raise GradientError("update: no gradients were unscaled; call `step` before")
        finite = _all(list(self._finite.values()))
        counted = self.successes + 1
        due = counted >= self.growth_interval
        grown = self.factor * self.growth_factor
        grown = (due & grown.isfinite()).where(grown, self.factor)
        with atomic_writes(lambda: [self.factor, self.successes]):
            self.factor.assign(finite.where(grown, self.factor * self.backoff_factor))
            self.successes.assign((finite & ~due).where(counted, 0))
            self._finite.clear()
            self._stepped.clear()
        return [self.factor, self.successes]

    def update(self) -> None:
        """Find the scale of the next step, now."""
        Tensor.realize(*self.schedule_update())


def _all(verdicts: list[Tensor]) -> Tensor:
    """True if all of them hold."""
    first, *others = verdicts
    for other in others:
        first = first & other
    return first
