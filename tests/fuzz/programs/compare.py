"""Run a program on both sides and compare."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

from tests.fuzz.programs.facts import underflow_of, unit_of
from tests.fuzz.programs.form import Program, Value, ours_of
from tests.fuzz.programs.mirror import Mirror, as_arrays, compiled
from tests.fuzz.programs.twins import realizes_twins
from tests.fuzz.runner import Verdict
from tinycore import Tensor, TinyJit, dtypes
from tinycore.errors import GradientError

Array = NDArray[Any]
Found = dict[str, tuple[Array, Any]]
"""Compared values by name, each with its dtype."""

SAMPLES = (4, 12)
"""Runs of the mirror with random errors, made when a value is not right to the last few bits; more
of them when few do not explain it.
"""

DEVIATIONS = 8.0
"""Tolerance of a value, in root-mean-square deviations of the samples."""

LAST_BITS = 4.0
"""Units of roundoff of the result that need no explanation."""


def failure(kind: str, where: str, message: str) -> Verdict:
    """The error, and its place: a value, an output's shape or dtype, an exception."""
    return Verdict(kind, f"{kind} of {where}: {message}")


class Expected:
    """Values of a program in torch, and how far roundoff may be from them, once it is asked."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.data = as_arrays(program)
        self.overflow = False
        """True if a float16 may have overflowed on the way of a sample."""
        self.squares: dict[str, Array] = {}
        self.samples = 0

    @cached_property
    def truth(self) -> dict[str, Array]:
        """The compared values."""
        return Mirror(self.program).run(self.data)

    def allowed(self, samples: int) -> dict[str, Array]:
        """Bound of the rounding error of each element, from so many samples; infinite where they
        disagree on NaN.
        """
        self.squares = self.squares or {n: numpy.zeros(a.shape) for n, a in self.truth.items()}
        while self.samples < samples:
            self.samples += 1
            mirror = Mirror(self.program, self.samples)
            moved = mirror.run(self.data)
            self.overflow |= mirror.overflow
            for name, exact in self.truth.items():
                with numpy.errstate(all="ignore"):
                    a, c = moved[name].astype(numpy.float64), exact.astype(numpy.float64)
                    same = (a == c) | (numpy.isnan(a) & numpy.isnan(c))
                    step = numpy.where(same, 0.0, (a - c) ** 2)
                self.squares[name] += numpy.where(numpy.isnan(step), numpy.inf, step)
        return {n: DEVIATIONS * numpy.sqrt(s / self.samples) for n, s in self.squares.items()}


def check(
    program: Program, run: Callable[..., Found] | None = None, expected: Expected | None = None
) -> Verdict:
    """Run both interpretations on the default device; what differs first. `run` computes the one
    here in another way, from the program and the content of its inputs.

    Kinds: "value", "form" of a shape or dtype, "raised", or "mirror" of the expectation itself; and
    "refused" where a gradient goes through what `realize` made a leaf (docs/coming-from.md).
    """
    expected = expected or Expected(program)
    data = expected.data
    try:
        truth = expected.truth
    except Exception:
        return failure("mirror", "the generator", traceback.format_exc(limit=-3))
    try:
        found = (run or run_here)(program, data)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if is_ended(error):
            return Verdict("refused", what)
        return failure("raised", type(error).__name__, f"{what}\n{traceback.format_exc(limit=-6)}")
    wrong = [v for v in program.compared if not near(v, found[v.name], truth[v.name], 0.0)]
    if not wrong:
        return Verdict("")
    for value in wrong:
        if (told := misshapen(value, found[value.name])) is not None:
            return told
    for samples in SAMPLES:
        if not wrong:
            return Verdict("")
        try:
            spread = expected.allowed(samples)
        except Exception:
            return failure("mirror", "a sample", traceback.format_exc(limit=-3))
        wrong = [
            v
            for v in wrong
            if not (expected.overflow and dtypes.is_float(v.dtype))
            and not near(v, found[v.name], truth[v.name], spread[v.name])
        ]
    for value in wrong:
        allowed = spread[value.name]
        known = numpy.isfinite(allowed)
        try:
            is_twin = program.needs_gradients() and realizes_twins(program, scope_of(program, data))
        except GradientError as error:  # `run` may be of another kind, such as an exported model
            if is_ended(error):
                return Verdict("refused", f"{type(error).__name__}: {error}")
            raise
        if not is_twin:
            return difference(value, found[value.name], truth[value.name], allowed, known)
    return Verdict("")


def is_ended(error: Exception) -> bool:
    """True if an error says that a gradient would end at a realized tensor."""
    return isinstance(error, GradientError) and "realize() ended the gradient" in str(error)


def run_here(program: Program, data: dict[str, Array]) -> Found:
    """The compared values and their dtypes, computed by tensors."""
    scope = scope_of(program, data)
    exec(compiled("\n".join(ours_of(program.steps))), scope)
    values = [scope[v.name] for v in program.compared]
    if program.together and values:
        Tensor.realize(*values)
    return {v.name: (t.numpy(), t.dtype) for v, t in zip(program.compared, values, strict=True)}


def scope_of(program: Program, data: dict[str, Array]) -> dict[str, Any]:
    """The names that a program starts with."""
    inputs = {i.name: Tensor(data[i.name], dtype=i.dtype) for i in program.inputs}
    return {"Tensor": Tensor, "TinyJit": TinyJit, "dtypes": dtypes, **inputs}


def misshapen(value: Value, found: tuple[Array, Any]) -> Verdict | None:
    """A wrong shape or dtype."""
    array, dtype = found
    if array.shape == value.shape and dtype is value.dtype:
        return None
    return failure(
        "form",
        value.name,
        f"{array.shape} of {dtype!r} instead of {value.shape} of {value.dtype!r}",
    )


def near(value: Value, found: tuple[Array, Any], truth: Array, allowed: Array | float) -> bool:
    """True if every element is as near to the exact one as it must be."""
    if misshapen(value, found) is not None:
        return False
    return bool(right(value, found[0], truth, allowed).all())


def right(value: Value, array: Array, truth: Array, allowed: Array | float) -> Array:
    """Mask of elements that are near enough; where the allowed distance is not finite, all are."""
    if not dtypes.is_float(value.dtype):
        return numpy.asarray((array.astype(truth.dtype) == truth) | (numpy.asarray(allowed) > 0))
    floor = LAST_BITS * unit_of(value.dtype) * numpy.abs(truth) + 2 * underflow_of(value.dtype)
    with numpy.errstate(all="ignore"):
        wide = array.astype(numpy.float64)
        same = (wide == truth) | (numpy.isnan(wide) & numpy.isnan(truth))
        close = numpy.abs(wide - truth) <= floor + allowed
    return numpy.asarray(same | close | ~numpy.isfinite(numpy.asarray(allowed)))


def difference(
    value: Value, found: tuple[Array, Any], truth: Array, allowed: Array, known: Array
) -> Verdict:
    """The first element that is wrong."""
    wrong = ~right(value, found[0], truth, allowed) & known
    place = tuple(int(i) for i in numpy.argwhere(wrong)[0]) if value.shape else ()
    return failure(
        "value",
        value.name,
        f"element {place} of {value.shape} {value.dtype.name} is {found[0][place]} instead of "
        f"{truth[place]}, allowed distance {allowed[place]:.3g}; {int(wrong.sum())} of "
        f"{value.size} are wrong",
    )
