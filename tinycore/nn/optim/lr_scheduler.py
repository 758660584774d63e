"""Learning-rate schedules.

Floor 6. Imports the public API and the errors.
A scheduler counts its steps in a tensor and assigns the optimizer's `lr`, also a tensor: a step
between replays of a TinyJit changes the rate that they read, and a step captured inside is taken by
every replay. A rate is a function of the count alone (`rate`), computed in the dtype of `lr`; only
`ReduceLROnPlateau` looks at results. Names, arguments and values are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from tinycore import Tensor, dtypes
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.initializers import positive_sizes
from tinycore.nn.optim.optimizer import Optimizer, nonnegative
from tinycore.tensor.interop.foreign_names import OF_LAYER, OF_SCHEDULERS, ForeignName, unknown_name
from tinycore.tensor.storage.writes import atomic_writes

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


class LRScheduler:
    """Base of schedulers: a count (1,) of steps, and learning rates that follow from it.

    The rates are set for count 0 when it is made. A subclass implements `rate`. State is `count`
    and `rates`; the numbers that rates begin with are the optimizer's `initial_rates`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.rates, self._initial = optimizer.rates, optimizer.initial_rates
        self.count = Tensor.zeros(1, dtype=dtypes.int32, device=self.rates[0].device)
        self.count.is_param_(False)
        Tensor.realize(*self._assigned())

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """The rate (1,) after `count` (1,) steps, computed in `dtype`."""
        raise NotImplementedError

    def schedule_step(self) -> list[Tensor]:
        """Assign the next rates, and return what must be realized."""
        with atomic_writes(lambda: [self.count, *self.rates]):
            self.count.assign(self.count + 1)
            return self._assigned()

    def step(self) -> None:
        """Go to the next rates, now."""
        Tensor.realize(*self.schedule_step())

    def get_last_lr(self) -> list[float]:
        """The rates now, as numbers: one of each optimizer.

        >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=0.5)
        >>> nn.optim.lr_scheduler.StepLR(optimizer, step_size=2).get_last_lr()
        [0.5]
        """
        return [float(rate.item()) for rate in self.rates]

    def _assigned(self) -> list[Tensor]:
        for rate, initial in zip(self.rates, self._initial, strict=True):
            new = self.rate(initial, self.count.to(rate.device), rate.dtype)
            rate.assign(new.cast(rate.dtype))
        return [self.count, *self.rates]


class LambdaLR(LRScheduler):
    """The initial rate times a function of the count.

    The function takes the count as a float tensor (1,) and computes the factor by tensor
    operations. A number would be the same for ever: raises ArgumentError for one.
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[Tensor], Tensor]) -> None:
        self._factor = lr_lambda
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """initial * lr_lambda(count)."""
        factor = self._factor(count.cast(dtype))
        if not isinstance(factor, Tensor):
            raise ArgumentError(f"LambdaLR: lr_lambda computes a tensor, got {factor!r}")
        return initial * factor


class StepLR(LRScheduler):
    """The rate times `gamma` after every `step_size` steps.

    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = nn.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(3):
    ...     scheduler.step()
    >>> optimizer.lr.item()
    0.5
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        positive_sizes("StepLR", step_size=step_size)
        self.step_size, self.gamma = step_size, _factor("StepLR", gamma)
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """initial * gamma**(count // step_size)."""
        return initial * self.gamma ** (count // self.step_size).cast(dtype)


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each milestone, a count of steps; twice for one named twice."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = list(milestones), _factor("MultiStepLR", gamma)
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """initial * gamma**(how many milestones are reached)."""
        reached = [(count >= milestone).cast(dtype) for milestone in self.milestones]
        return initial * self.gamma ** count.const_like(0, dtype).usum(*reached)


class ExponentialLR(LRScheduler):
    """The rate times `gamma` after every step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = _factor("ExponentialLR", gamma)
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """initial * gamma**count."""
        return initial * self.gamma ** count.cast(dtype)


class LinearLR(LRScheduler):
    """A warmup: the rate times a factor that goes straight from one number to another, and stays.

    `start_factor` at count 0, `end_factor` from `total_iters` on.

    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = nn.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    >>> scheduler.step()
    >>> optimizer.lr.item()
    0.75
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        positive_sizes("LinearLR", total_iters=total_iters)
        self.start_factor = nonnegative("LinearLR", start_factor=start_factor)
        self.end_factor = nonnegative("LinearLR", end_factor=end_factor)
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """The factor at a fraction of `total_iters`."""
        done = count.minimum(self.total_iters).cast(dtype) / self.total_iters
        return initial * (self.start_factor * (1 - done) + self.end_factor * done)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial rate to `eta_min` in `T_max` steps, and back up after it.

    https://arxiv.org/abs/1608.03983, without restarts.

    >>> optimizer = nn.optim.SGD([Tensor([1.0])], lr=1.0)
    >>> scheduler = nn.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    >>> scheduler.step()
    >>> round(optimizer.lr.item(), 4)
    0.8536
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,  # noqa: N803  the name in torch and in the paper
        eta_min: float = 0.0,
    ) -> None:
        positive_sizes("CosineAnnealingLR", T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """eta_min + (initial - eta_min) * (1 + cos(pi * count / T_max)) / 2."""
        # folded to [0, T_max], where the remaining part is exact however long the training was
        place = (count % (2 * self.T_max)).cast(dtype)
        remaining = (self.T_max - place).abs() / self.T_max
        return self.eta_min + (initial - self.eta_min) * eased(remaining)


class OneCycleLR(LRScheduler):
    """A rate that goes up to `max_lr` and down again, once (https://arxiv.org/abs/1708.07120).

    From max_lr / div_factor up in the first `pct_start` of `total_steps`, then down to the first
    rate / final_div_factor; with `three_phase`, down to the first rate as fast as it came, then to
    the last. `anneal_strategy` is "cos" or "linear". After `total_steps` the rate stays. The
    optimizer's own rate and its momentum are left out of it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        positive_sizes("OneCycleLR", total_steps=total_steps)
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"OneCycleLR: pct_start lies in [0, 1], got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"OneCycleLR: 'cos' or 'linear', not {anneal_strategy!r}")
        self._eased = eased if anneal_strategy == "cos" else straight
        first = nonnegative("OneCycleLR", max_lr=max_lr) / _factor("OneCycleLR", div_factor)
        last = first / _factor("OneCycleLR", final_div_factor)
        rise, end = float(pct_start * total_steps) - 1, float(total_steps - 1)
        corners = [(0.0, first), (rise, max_lr), (end, last)]
        if three_phase:
            corners.insert(2, (2 * rise, first))
        self._corners = corners
        super().__init__(optimizer)

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """The value between two corners, each a count and its rate."""
        place = count.cast(dtype)
        rate: Tensor | None = None
        for (start, before), (end, after) in reversed(list(pairwise(self._corners))):
            span = end - start
            remaining = ((end - place) / span if span else place * 0.0).clamp(0.0, 1.0)
            here = after + (before - after) * self._eased(remaining)
            rate = here if rate is None else (place <= end).where(here, rate)
        assert rate is not None
        return rate


class SequentialLR(LRScheduler):
    """One scheduler after another: `schedulers[i + 1]` starts at `milestones[i]`, at its count 0.

    All are made for the same optimizer; step only this one. Raises ArgumentError when they are
    not, when milestones do not rise, or are not one fewer than the schedulers.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
    ) -> None:
        self._check(optimizer, schedulers, milestones)
        self._turns = [scheduler.rate for scheduler in schedulers]  # not their counts: no state
        self.milestones = list(milestones)
        super().__init__(optimizer)

    @staticmethod
    def _check(
        optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} "
                f"milestones, got {len(milestones)}"
            )
        if any(after <= before for before, after in pairwise([0, *milestones])):
            raise ArgumentError(f"SequentialLR: milestones must rise from 1, got {milestones}")
        for position, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, LRScheduler):
                raise ArgumentError(
                    f"SequentialLR: scheduler {position} is a {type(scheduler).__name__}, whose "
                    "rate is no function of the count"
                )
            if any(a is not b for a, b in zip(scheduler.rates, optimizer.rates, strict=False)):
                raise ArgumentError(
                    f"SequentialLR: scheduler {position} was made for another optimizer"
                )

    def rate(self, initial: float, count: Tensor, dtype: DType) -> Tensor:
        """The rate of the scheduler whose turn it is."""
        first, *others = self._turns
        rate = first(initial, count, dtype)
        for start, turn in zip(self.milestones, others, strict=True):
            rate = (count >= start).where(turn(initial, count - start, dtype), rate)
        return rate


class ReduceLROnPlateau:
    """The rate times `factor` when a result has not improved for more than `patience` steps.

    Better is less with `mode` "min", more with "max": by `threshold` times the best ("rel"), or by
    `threshold` ("abs"). After a change `cooldown` steps are not counted. No rate falls below
    `min_lr`, nor is it changed by less than `eps`. State is `best`, `bad`, `resting` and `rates`.

    Raises ArgumentError for a factor outside (0, 1), or for another word.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not 0 < factor < 1:
            raise ArgumentError(f"ReduceLROnPlateau: factor lies in (0, 1), got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ArgumentError(
                "ReduceLROnPlateau: mode is 'min' or 'max' and threshold_mode 'rel' or 'abs', "
                f"got {mode!r} and {threshold_mode!r}"
            )
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.cooldown = factor, patience, cooldown
        self.min_lr, self.eps, self.rates = min_lr, eps, optimizer.rates
        device = self.rates[0].device
        worst = math.inf if mode == "min" else -math.inf
        self.best = Tensor.full((1,), worst, dtypes.float32, device).is_param_(False)
        self.bad = Tensor.full((1,), 0, dtypes.int32, device).is_param_(False)
        self.resting = Tensor.full((1,), 0, dtypes.int32, device).is_param_(False)

    def schedule_step(self, metrics: Tensor | float) -> list[Tensor]:
        """Assign what follows from one more result, and return what must be realized.

        Captured by a TinyJit, the result must be a tensor: a number would stay the same for ever.
        Raises ShapeError unless it is one number.
        """
        result = self._one(metrics)
        better = self._better(result)
        rests = self.resting > 0
        bad = (better | rests).where(0, self.bad + 1)
        due = bad > self.patience
        state = [self.best, self.bad, self.resting, *self.rates]
        with atomic_writes(lambda: state):
            for rate in self.rates:
                lower = (rate * self.factor).maximum(self.min_lr)
                change = due.to(rate.device) & (rate - lower > self.eps)
                rate.assign(change.where(lower, rate))
            self.best.assign(better.where(result, self.best))
            self.resting.assign(due.where(self.cooldown, (self.resting - 1).maximum(0)))
            self.bad.assign(due.where(0, bad))
        return state

    def step(self, metrics: Tensor | float) -> None:
        """Take one more result into account, now."""
        Tensor.realize(*self.schedule_step(metrics))

    def _one(self, metrics: Tensor | float) -> Tensor:
        given = metrics if isinstance(metrics, Tensor) else Tensor(float(metrics))
        if given.numel() != 1:
            raise ShapeError(f"ReduceLROnPlateau: a result is one number, got {given.shape}")
        return given.detach().reshape(1).cast(self.best.dtype).to(self.best.device)

    def _better(self, result: Tensor) -> Tensor:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            bar = self.best * (1 + sign * self.threshold)
        else:
            bar = self.best + sign * self.threshold
        return result < bar if self.mode == "min" else result > bar


def eased(remaining: Tensor) -> Tensor:
    """The factor from 1 to 0 along half a cosine: (1 - cos(pi * remaining)) / 2, exact near 0."""
    return (remaining * (math.pi / 2)).sin().square()


def straight(remaining: Tensor) -> Tensor:
    """The factor from 1 to 0 along a line."""
    return remaining


def _factor(what: str, number: float) -> float:
    """The number itself. Raises ArgumentError unless it is positive and finite."""
    if not 0 < number < math.inf:
        raise ArgumentError(f"{what}: a factor is positive and finite, got {number}")
    return number


for _name in ("state_dict", "load_state_dict"):
    _here = OF_LAYER[_name].replace("layer", "scheduler")
    setattr(LRScheduler, _name, ForeignName(f"{_name!r}; here it is {_here}"))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        known = () if name.startswith("_") else __all__
        raise unknown_name("nn.optim.lr_scheduler", name, OF_SCHEDULERS, known)
