"""The base class of optimizers, and groups of them.

Floor 6. Imports the public API, the settings and the errors.
An optimizer's state is tensors, so one step is one graph: `schedule_step` builds it and returns
what must be realized, `step` realizes it, and a TinyJit captures it whole. Sums are kept in float32
at least, whatever the parameter's dtype. State is memory from the beginning: were it constants in
the first step, that would be another graph than the second, and both would have to be scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from reprlib import repr as shorten
from typing import TYPE_CHECKING, Any, Final

from tinycore import Tensor, dtypes
from tinycore.config import settings
from tinycore.dtype import least_upper_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError, GradientError
from tinycore.nn.state import get_parameters
from tinycore.nn.summary import described
from tinycore.tensor.interop.foreign_names import unknown_name
from tinycore.tensor.storage.writes import atomic_writes
from tinycore.uop.shape import DeviceLike

__all__ = ["Keep", "Optimizer", "OptimizerGroup", "nonnegative", "norm"]


OF_TORCH: Final = {
    "lr": "group[i].lr, each optimizer's own; group.rates lists them",
    "param_groups": "optimizer.lr, the rate of all params; OptimizerGroup has a rate for each of "
    "its optimizers",
    "state_dict": "nn.state.get_state_dict(optimizer)",
    "load_state_dict": "nn.state.load_state_dict(optimizer, state)",
    "add_param_group": "OptimizerGroup(optimizer, another)",
}
"""Attributes of torch's optimizers."""


class Optimizer:
    """Base of optimizers: parameters to change, a learning rate, and a step.

    Tensors marked `is_param_(False)`, such as running statistics, are kept in `buffers`: they have
    no gradient, and a step realizes them. A tensor given twice is taken once. `lr` is a tensor (1,)
    that may be assigned to between steps (`optimizer.lr = 0.01` does), also under a TinyJit;
    `initial_lr` is the number it began with, where a tensor gave it too. State lives on `device`,
    which is the first parameter's unless given. `fused` keeps the state of all parameters in one
    tensor of each kind.

    A subclass implements `_updates`. Raises ArgumentError when there is nothing to optimize, or for
    a negative rate.
    """

    params: list[Tensor]
    buffers: list[Tensor]

    __repr__ = described

    __not_state__ = ("params", "buffers")
    """Attributes that `get_state_dict` leaves out: they belong to the model."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        device: DeviceLike | None = None,
        fused: bool = False,
    ) -> None:
        self._refuse_strange(params, lr)
        distinct = _distinct(params)
        self.params = [tensor for tensor in distinct if tensor.is_param]
        for tensor in self.params:  # so that `backward` leaves out what nobody trains, as inputs
            tensor.requires_grad_(True)
        self.buffers = [tensor for tensor in distinct if not tensor.is_param]
        if not self.params:
            raise ArgumentError(_without_parameters(len(distinct)))
        self.device = self.params[0].device if device is None else device
        self.fused, self.initial_lr = fused, nonnegative(type(self).__name__, lr=lr)
        self.lr = self._single(self.initial_lr)

    def _refuse_strange(self, params: object, lr: object) -> None:
        """Raises ArgumentTypeError unless given tensors, and a number or a tensor as rate."""
        name = type(self).__name__
        if not isinstance(lr, (int, float, Real, Tensor)):
            raise ArgumentTypeError(
                f"{name}: lr is {lr!r} of type {type(lr).__name__}; it must be a number"
            )
        if isinstance(params, (Tensor, str)) or not isinstance(params, Iterable):
            what = "[tensor]" if isinstance(params, Tensor) else "nn.state.get_parameters(model)"
            raise ArgumentTypeError(
                f"{name}: params is of type {type(params).__name__}; it must be a list of tensors, "
                f"such as {what}"
            )

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            if name == "lr" and "lr" in vars(self) and not isinstance(value, Tensor):
                self._refuse_strange([], value)
                self.lr.assign(Tensor.full_like(self.lr, value)).realize()
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> object:
            known = () if name.startswith("_") else dir(self)
            raise unknown_name(type(self).__name__, name, OF_TORCH, known)

    @property
    def rates(self) -> list[Tensor]:
        """All learning rates, for schedulers."""
        return [self.lr]

    @property
    def initial_rates(self) -> list[float]:
        """The numbers that `rates` began with."""
        return [self.initial_lr]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or, as an option, make it zero."""
        for param in self.params:
            param.grad = None if set_to_none or param.grad is None else param.grad.zeros_like()

    def step(self) -> None:
        """Change every parameter by its gradient, now.

        Whatever ends it, all parameters and state are changed once or not at all. Raises as
        `schedule_step` does.
        """
        Tensor.realize(*self.schedule_step())

    def schedule_step(self, proceed: Tensor | None = None) -> list[Tensor]:
        """Assign the changed parameters and state, and return all that must be realized.

        Whatever ends it, all are assigned or none. Parameters without a gradient, and their state,
        are left as they are. Where the bool `proceed` (1,) does not hold, everything keeps its
        value; see `GradScaler`. Raises GradientError outside training, which is entered by
        `Context(TRAINING=1)`, and when no parameter has a gradient, or with `fused` one has none.
        """
        with atomic_writes(lambda: [*self.params, *get_parameters(self)]):
            return self._assigned(proceed)

    def _assigned(self, proceed: Tensor | None) -> list[Tensor]:
        """`schedule_step`, which ends half-way where it raises."""
        if not settings.TRAINING:
            raise GradientError(
                "an optimizer steps only while training. Put the step inside "
                "`with Context(TRAINING=1):`"
            )
        chosen = self._with_gradients()
        params = [self.params[position] for position in chosen]
        gradients = [self._wide(param.grad.detach()) for param in params if param.grad is not None]
        values = [self._wide(param.detach()) for param in params]
        keep = Keep(None if proceed is None else proceed.to(self.device))
        places = [0] if self.fused else chosen
        updates = self._updates(places, self._joined(values), self._joined(gradients), keep)
        for param, value, update in zip(params, values, self._parted(updates), strict=True):
            changed = keep.unless_stopped(value, value - update)
            param.assign(changed.cast(param.dtype).to(param.device))
        return [*keep.assigned, *self.params, *self.buffers]

    def _updates(
        self, places: list[int], params: list[Tensor], gradients: list[Tensor], keep: Keep
    ) -> list[Tensor]:
        """Amounts to subtract from each parameter; state is assigned through `keep`.

        `places` says which of each kind of state belongs to it.
        """
        raise NotImplementedError

    def _with_gradients(self) -> list[int]:
        """The positions of the parameters that have a gradient.

        Raises GradientError where none has, or `fused` needs that of all.
        """
        chosen = [at for at, param in enumerate(self.params) if param.grad is not None]
        if not chosen or (self.fused and len(chosen) < len(self.params)):
            missing = next(at for at in range(len(self.params)) if at not in chosen)
            raise GradientError(
                f"parameter {missing} of {len(self.params)}, of shape "
                f"{self.params[missing].shape}, has no gradient: call `backward()` on a loss that "
                "depends on it, or leave it out"
                + (". Without fused=True it is left as it is" if chosen else "")
            )
        return chosen

    def _wide(self, tensor: Tensor) -> Tensor:
        """The tensor where the state lives, and precise enough to add small steps to."""
        return tensor.to(self.device).cast(least_upper_dtype(tensor.dtype, dtypes.float32))

    def _joined(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors that `_updates` works on, or all of them joined in one."""
        if not self.fused:
            return tensors
        first, *others = [tensor.flatten() for tensor in tensors]
        # in memory of its own: every parameter's new value is computed from all the old ones
        return [first.cat(*others).contiguous()]

    def _parted(self, updates: list[Tensor]) -> list[Tensor]:
        """The update of each parameter again."""
        if not self.fused:
            return updates
        parts = updates[0].split([param.numel() for param in self.params])
        return [part.reshape(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def _rate(self, like: Tensor) -> Tensor:
        """The learning rate in the precision of the values it scales."""
        return self.lr.cast(like.dtype)

    def _single(self, value: float) -> Tensor:
        """A tensor (1,) of state."""
        dtype = least_upper_dtype(dtypes.float32, *[param.dtype for param in self.params])
        made = Tensor.full((1,), value, dtype=dtype, device=self.device)
        return made.contiguous().realize().is_param_(False)

    def _zeros(self) -> list[Tensor]:
        """State of the shape of each parameter."""
        shaped = self._joined([self._wide(param) for param in self.params])
        made = [Tensor.zeros_like(like).contiguous() for like in shaped]
        Tensor.realize(*made)
        return [state.is_param_(False) for state in made]

    def _refuse_fused(self) -> None:
        if self.fused:
            raise ArgumentError(
                f"{type(self).__name__} treats each parameter by itself; leave out fused=True"
            )


class Keep:
    """The state that one step assigns, unless it is stopped."""

    def __init__(self, proceed: Tensor | None) -> None:
        self.proceed = proceed
        self.assigned: list[Tensor] = []

    def unless_stopped(self, old: Tensor, new: Tensor) -> Tensor:
        """The new value, or where the step is stopped the old one."""
        return new if self.proceed is None else self.proceed.where(new, old)

    def __call__(self, state: Tensor, value: Tensor) -> Tensor:
        """Assign a value to state, to be realized; the state."""
        self.assigned.append(state)
        return state.assign(self.unless_stopped(state, value))


def _without_parameters(given: int) -> str:
    """The message for an optimizer that has nothing to train, of so many tensors given."""
    if given:
        return (
            f"an optimizer needs at least one parameter, and requires_grad of all {given} tensors "
            "given is False. requires_grad_() makes one trainable."
        )
    return (
        "an optimizer needs at least one parameter, and none was given. Select those to train by "
        "`is_param`: requires_grad of a layer's weight is None until an optimizer takes it."
    )


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors without repetition. Raises ArgumentTypeError for what is no tensor."""
    found: list[Any] = list({id(tensor): tensor for tensor in tensors}.values())
    for number, tensor in enumerate(found):
        if isinstance(tensor, Mapping):
            raise ArgumentTypeError(
                f"parameter {number} is a dict, as torch's groups of parameters are. Here each "
                "group is an optimizer of its own: OptimizerGroup(SGD(first, lr=0.1), "
                "SGD(second, lr=0.01))"
            )
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(
                f"parameter {number} is {shorten(tensor)} of type {type(tensor).__name__}; an "
                "optimizer takes a list of tensors, such as nn.state.get_parameters(model)"
            )
    return found


class OptimizerGroup(Optimizer):
    """Several optimizers that step together, as one graph; `group[i]` is the i-th.

    Raises ArgumentError when none is given, or two of them change the same parameter.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ArgumentError("a group needs at least one optimizer, and none was given")
        self.optimizers: Sequence[Optimizer] = optimizers
        self.params = [param for optimizer in optimizers for param in optimizer.params]
        if len(_distinct(self.params)) < len(self.params):
            raise ArgumentError(
                "a parameter is in more than one optimizer of the group, whose step would change "
                "it by the same gradient again. Leave it to one of them"
            )
        self.buffers = _distinct(buffer for optimizer in optimizers for buffer in optimizer.buffers)

    @property
    def rates(self) -> list[Tensor]:
        """All learning rates, for schedulers."""
        return [rate for optimizer in self.optimizers for rate in optimizer.rates]

    @property
    def initial_rates(self) -> list[float]:
        """The numbers that `rates` began with."""
        return [rate for optimizer in self.optimizers for rate in optimizer.initial_rates]

    def __getitem__(self, position: int) -> Optimizer:
        return self.optimizers[position]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all optimizers' parameters, or, as an option, make them zero."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def _assigned(self, proceed: Tensor | None) -> list[Tensor]:
        """Tensors that the steps of all optimizers must realize. Raises as theirs do."""
        steps = [optimizer.schedule_step(proceed) for optimizer in self.optimizers]
        return _distinct(tensor for step in steps for tensor in step)


def norm(tensor: Tensor) -> Tensor:
    """The Euclidean length of all elements together."""
    return tensor.square().sum().sqrt()


def nonnegative(what: str, **numbers: float | Tensor) -> float:
    """The one number itself, or that of a tensor of one element as it is now.

    Raises ArgumentError when it is negative or no number at all.
    """
    ((name, number),) = numbers.items()
    if isinstance(number, Tensor):
        if number.numel() != 1:
            raise ArgumentError(f"{what}: {name} is one number, got shape {number.shape}")
        number = float(number.item())
    if not number >= 0:
        raise ArgumentError(f"{what}: {name} cannot be negative, got {number}")
    return number
