"""A program computed by torch, in float64 and int64: the truth, and how far roundings may move it.

Run exactly, every float is a float64 and every integer an int64 that wraps to its dtype.
Run as a sample, each step is instead a nearby function of nearby operands: operands, results and
the gradients that flow back through both are moved by random relative errors of a few units of
roundoff of the coarsest dtype that takes part (stochastic arithmetic: J. Vignes, Mathematics and
Computers in Simulation 35, 1993; D. S. Parker, UCLA CSD-970002, 1997). The spread of some samples
is the rounding error that a value may have, conditioning and cancellation included; integers and
bools that differ between samples depend on a tie that no rounding can decide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

import numpy
from numpy.typing import NDArray

from tests.fuzz.programs.form import Kind, Program, Rounding, Step, Value
from tests.fuzz.programs.functions import namespace
from tinycore.dtype import DType, dtypes

ROUNDINGS = 4.0
"""Standard deviation of the errors of a sample, in units of roundoff."""

LEFT_OF_ZERO = 2.0**10
"""Units of roundoff up to which a number may be the rest of terms that cancel."""

HALF_LIMIT = 6e4
"""Magnitude from which float16 may overflow."""

Array = NDArray[Any]


@cache
def torch_module() -> Any:
    """torch, which only tests need."""
    import torch  # noqa: PLC0415  a dependency of tests, not of tinycore

    return torch


@cache
def compiled(text: str) -> CodeType:
    """The statements of a step."""
    return compile(text, text, "exec")


@cache
def functions() -> dict[str, Any]:
    """Functions that the lines of a mirror may call."""
    return namespace(torch_module())


@cache
def differentiable() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(moved, gated): a value moved by random errors, and one whose gradient can be shut off."""
    torch = torch_module()

    class Moved(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, error: Errors) -> Any:
            ctx.error = error
            return error.forward(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return Moved.apply(g, ctx.error.backward(g)), None

    class Gated(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any, gate: list[bool]) -> Any:
            ctx.gate = gate
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (g if ctx.gate[0] else None), None

    return Moved.apply, Gated.apply


class Errors:
    """The random errors of one operand or result of a step, and of the gradients through it."""

    def __init__(self, mirror: Mirror, step: Step, peak: list[float], absolute: float) -> None:
        self.mirror, self.step, self.peak, self.absolute = mirror, step, peak, absolute
        self.is_gradient = False

    def forward(self, x: Any) -> Any:
        """`x` moved; small whole numbers stay where the step computes with them exactly."""
        if self.is_gradient:
            return self.spread(x)
        # Subnormal numbers are rounded, or lost, however exact the operation is otherwise.
        moved, noise = self.moved(x), self.mirror.normal(x.shape)
        coarse = (x.abs() <= self.step.tiny / self.step.unit) & (x != 0)
        moved = moved + coarse * noise * self.step.tiny
        lost = (moved.abs() <= 2 * self.step.tiny) & (noise < 0)
        return torch_module().where(lost, torch_module().zeros_like(x), moved)

    def moved(self, x: Any) -> Any:
        """`x` as normal numbers of its dtype are moved."""
        torch, step = torch_module(), self.step
        if step.rounding is Rounding.EXACT:
            return x.view_as(x)
        if step.rounding is not Rounding.WHOLE:
            return self.spread(x)
        whole = (x == x.round()) & (x.abs() <= 1 / step.unit)
        return torch.where(whole, x, self.spread(x))

    def spread(self, x: Any) -> Any:
        """`x` with relative errors, and absolute ones where the step says so."""
        size = ROUNDINGS * self.step.unit
        shift = x * size + (self.absolute * size + self.step.tiny)
        return x + self.mirror.normal(x.shape) * shift.abs()

    def backward(self, g: Any) -> Errors:
        """The errors of a gradient: of an operand's also as large as the result's times a slope."""
        found = Errors(self.mirror, self.step, self.peak, self.step.slope * self.peak[0])
        found.is_gradient = True
        if g.numel():
            self.mirror.note_size(g, self.step.unit)
            self.peak[0] = max(self.peak[0], float(g.detach().abs().max()))
        return found


class Mirror:
    """One run of a program by torch: exact when `sample` is None, else with its random errors."""

    def __init__(self, program: Program, sample: int | None = None) -> None:
        self.program = program
        self.sample = sample
        self.overflow = False
        """True if some float16 came near its limit, also as a gradient on the way back."""
        self.generator = torch_module().Generator().manual_seed(sample or 0)
        self.gates: dict[str, list[bool]] = {}
        self.gradients = program.needs_gradients()
        self.step: Step | None = None
        self.peak = [0.0]

    def normal(self, shape: Any) -> Any:
        """Random numbers."""
        torch = torch_module()
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def run(self, data: dict[str, Array]) -> dict[str, Array]:
        """The compared values: float64, int64 or bool."""
        torch = torch_module()
        env: dict[str, Any] = {}
        with torch.set_grad_enabled(self.gradients):
            for start in self.program.inputs:
                x = torch.from_numpy(data[start.name].copy())
                env[start.name] = self.leaf(x)
            self.run_steps(self.program.steps, env)
        return {v.name: env[v.name].detach().numpy() for v in self.program.compared}

    def leaf(self, x: Any) -> Any:
        """A value that nothing is known to come from."""
        x = x.detach().clone()
        return x.requires_grad_() if self.gradients and x.is_floating_point() else x

    def run_steps(self, steps: tuple[Step, ...], env: dict[str, Any]) -> None:
        """Every step, adding its outputs to `env`."""
        realized = {n for step in steps for n in step.ends}
        for step in steps:
            if step.kind is Kind.REALIZE:
                for name in step.ends:
                    self.gates.get(name, [True])[0] = False
            elif step.kind is Kind.JIT:
                self.call(step, env)
            else:
                self.run_step(step, env, realized)

    def call(self, step: Step, env: dict[str, Any]) -> None:
        """The body of a function once for each call; results are leaves, as they are computed."""
        function = step.function
        assert function is not None
        outputs = iter(step.outputs)
        for call in function.calls:
            inner = {
                p.name: self.leaf(env[n]) for p, n in zip(function.parameters, call, strict=True)
            }
            self.run_steps(function.body, inner)
            for name in function.returned:
                env[next(outputs).name] = self.leaf(inner[name])

    def run_step(self, step: Step, env: dict[str, Any], realized: set[str]) -> None:
        """One statement between moved operands and moved results."""
        self.step, self.peak = step, [0.0]
        exact = step.kind is Kind.GRADIENT or (
            step.rounding is Rounding.EXACT and not self.gradients  # what repeats is added up there
        )
        noisy = self.sample is not None and not exact
        operands = {name: env[name] for name in step.inputs}
        scope = Scope(operands, self.moved if noisy else None)
        own = {"real": self.real, "truth": self.truth}
        exec(compiled(step.theirs), functions() | own | operands, scope)
        for value in step.outputs:
            x = fitted(scope[value.name], value)
            self.note_size(x, step.unit)
            x = self.moved(x, step.absolute) if noisy else x
            if value.name in realized and x.requires_grad:
                gate = self.gates[value.name] = [True]
                x = differentiable()[1](x, gate)
            env[value.name] = x

    def moved(self, x: Any, absolute: float = 0.0) -> Any:
        """A float moved by random errors of the current step."""
        if not x.is_floating_point():
            return x
        assert self.step is not None
        return differentiable()[0](x, Errors(self, self.step, self.peak, absolute))

    def real(self, x: Any) -> Any:
        """An operand as a float: large integers are rounded."""
        if x.is_floating_point():
            return x
        x = x.double()
        assert self.step is not None
        exact = bool((x.abs() <= 1 / self.step.unit).all())
        return x if exact or self.sample is None else self.moved(x)

    def truth(self, x: Any) -> Any:
        """Mask of numbers that are not zero; rounding errors of a zero are, in some samples."""
        if self.sample is None or not x.is_floating_point():
            return x.bool()
        assert self.step is not None
        left = (x.abs() <= LEFT_OF_ZERO * self.step.unit) & (self.sample % 2 == 0)
        return x.bool() & ~left

    def note_size(self, x: Any, unit: float) -> None:
        """Remember that a float16 is about to overflow."""
        if unit == 2.0**-11 and x.numel() and x.is_floating_point():
            self.overflow |= not float(x.detach().abs().max()) < HALF_LIMIT


class Scope(dict[str, Any]):
    """The names of a step; an operand is moved again at each use.

    In `v - v` two gradients flow back that cancel but for their roundings.
    """

    def __init__(self, operands: dict[str, Any], moved: Callable[[Any], Any] | None) -> None:
        super().__init__(operands)
        self.operands = frozenset(operands if moved else ())
        self.moved = moved

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return self.moved(value) if self.moved and name in self.operands else value


def fitted(x: Any, value: Value) -> Any:
    """A result as the mirror keeps it, of the shape it must have; integers wrap."""
    torch = torch_module()
    if tuple(x.shape) != value.shape:
        raise AssertionError(
            f"the mirror's {value.name} has shape {tuple(x.shape)} instead of {value.shape}"
        )
    if dtypes.is_float(value.dtype):
        return x.double()
    if value.dtype is dtypes.bool:
        assert x.dtype is torch.bool, f"the mirror's {value.name} is {x.dtype}"
        return x
    return wrapped(x.long(), value.dtype)


def wrapped(x: Any, dtype: DType) -> Any:
    """int64 numbers modulo the width of an integer dtype."""
    if dtype.itemsize == 8:
        return x
    size, least = 1 << dtype.bits, int(dtypes.min(dtype))
    return torch_module().remainder(x - least, size) + least


def as_arrays(program: Program) -> dict[str, Array]:
    """The data of all inputs."""
    return {start.name: numpy.asarray(start.data()) for start in program.inputs}
