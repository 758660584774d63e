"""Random gradients through writes, against torch: `python -m tests.fuzz.slopes`.

A program computes values from two tensors that require gradients, writes them into memory
and into what is not computed yet, whole and in part, reads some in between or not, and takes the
gradient of a sum. It must be that of torch. Where torch says that a value which a derivative needs
was overwritten, it must be refused here, too, or be what finite differences say. What is refused
here and not there is counted: a derivative of what no tensor holds any more is not computed anew.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.peers import numpy_api, torch_api
from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run, without_a_line
from tests.fuzz.writes import Program, compiled
from tinycore import Tensor
from tinycore.errors import GradientError

WEIGHT_SIZE: Final = 3
STEP: Final = 1e-4
"""Step of finite differences."""
WEIGHTS: Final = ("w1", "w2")
START: Final = (
    "w1 = leaf([0.5, -1.0, 2.0])",
    "w2 = leaf([1.5, 1.0, -0.5])",
)
MADE: Final = (
    "Tensor.zeros(3)",
    "Tensor([0.0, 1.0, 2.0])",
    "Tensor([1.0, 2.0, -1.0]).realize()",
    "Tensor([1.0, 2.0, -1.0]).clone()",
    "w1 * 2",
    "w2 * w1",
)
"""Targets of writes."""
COMPUTED: Final = (
    "{a} * {b}", "{a} * {b}", "{a} + {b}", "{a} - {b}", "{a} * 2", "{a} * {a}", "{a} + 1",
    "{a}.clone()", "({a} + 1) * ({a} + 1)", "{a} * {a}.sum()", "{a}.detach() * {b}",
    "{a} * {b}.sum()",
    "({a} > 0).where({a}, {b})", "{a} * 0.5",
)  # fmt: skip
WRITES: Final = (
    "{x}.assign({a})", "{x}.assign({a} * {b})", "{x}[0:2] = {a}[1:3]", "{x}[1] = {a}.sum()",
    "{x} += {a}", "{x} *= {a}", "{x} *= 2", "{x}[1:3] += {a}[0:2]", "{x}[0:2].assign({a}[0:2])",
    "{x}.add_({a})", "{x}.mul_({a})", "{x}[...] = {a}", "{x}[0:1] = 3", "{x}.zero_()",
    "{x}[::2] *= {a}[0:2]", "{x}.copy_({a})",
)  # fmt: skip
READS: Final = ("show({a})", "show({a}.sum())", "show({a} + 1)", "keep({a} + 0)")


class Slopes(NamedTuple):
    """Outcome of a program: the gradients of the leaves, or who refused them."""

    gradients: tuple[Any, ...]
    refused: str


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = Draw(seed)
    lines = list(START)
    values, written = list(WEIGHTS), []
    for number in range(draw.between(1, 2)):
        lines.append(f"x{number} = {draw.pick(MADE)}")
        written.append(f"x{number}")
    for number in range(draw.between(3, 9)):
        every = [*values, *written, *written]
        a, b, x = draw.pick(every), draw.pick(every), draw.pick(written)
        kind = draw.random()
        if kind < 0.35:
            lines.append(f"y{number} = " + draw.pick(COMPUTED).format(a=a, b=b))
            values.append(f"y{number}")
        elif kind < 0.75:
            lines.append(draw.pick(WRITES).format(a=a, b=b, x=x))
        elif kind < 0.82:
            lines.append(f"v{number} = {x}[{draw.pick(('0:2', '1:3', '::2'))}]")
            lines.append(f"v{number} *= {a}[0:2]")
        elif kind < 0.88:
            lines.append(f"store({draw.pick(WEIGHTS)}, {a})")
        else:
            lines.append(draw.pick(READS).format(a=draw.pick([*values, *written])))
    every = [*values[2:], *written]
    terms = [f"({name} * {n + 1}).sum()" for n, name in enumerate(draw.subset(every))]
    lines.append(f"loss = {' + '.join(terms)}")
    if draw.chance(0.5):
        lines.append("show(loss)")
    return Program(seed, tuple(lines))


def ours(found: Program) -> Slopes:
    """The gradients of tensors."""
    kept: list[Tensor] = []
    scope: dict[str, Any] = {
        "Tensor": Tensor,
        "leaf": lambda data: Tensor(data, requires_grad=True).realize(),
        "show": lambda x: x.tolist(),
        "keep": kept.append,
        "store": lambda w, x: w.assign(x.detach() * 0.5),
    }
    for line in found.lines:
        exec(compiled(line), scope)
    try:
        scope["loss"].backward()
        return Slopes(tuple(listed(scope[name].grad) for name in WEIGHTS), "")
    except GradientError as error:
        return Slopes((), str(error))


def listed(gradient: Any) -> Any:
    """A gradient as numbers; zeros for none."""
    return [0.0] * WEIGHT_SIZE if gradient is None else gradient.tolist()


def theirs(found: Program) -> Slopes:
    """The gradients of torch."""
    import torch  # noqa: PLC0415  needed here only

    def store(w: Any, x: Any) -> None:
        with torch.no_grad():
            w.copy_(x.detach() * 0.5)

    scope = torch_api([])
    make = scope["Tensor"]
    scope |= {
        "leaf": lambda data: make(data).requires_grad_(),
        "show": lambda x: None,
        "keep": lambda x: None,
        "store": store,
    }
    try:
        for line in found.lines:
            exec(compiled(line), scope)
        scope["loss"].backward()
    except RuntimeError as error:
        return Slopes((), str(error))
    return Slopes(tuple(listed(scope[name].grad) for name in WEIGHTS), "")


def differences(found: Program) -> tuple[Any, ...] | None:
    """The gradients as finite differences; None where the loss has a kink or a jump."""
    here = moved(found, WEIGHTS[0], 0, 0.0)
    sides = numpy.array(
        [
            [
                [(moved(found, name, place, step) - here) / step for place in range(WEIGHT_SIZE)]
                for name in WEIGHTS
            ]
            for step in (STEP, -STEP)
        ]
    )
    after, before = sides
    return tuple(sides.mean(0)) if numpy.allclose(after, before, rtol=0.05, atol=0.05) else None


def moved(found: Program, name: str, place: int, step: float) -> float:
    """The loss where one element of a leaf is another one."""
    scope = numpy_api([])
    make = scope["Tensor"]
    plain = make.make
    make.make = lambda data, dtype: plain(data, "float64")
    scope |= {
        "leaf": lambda data: plain(data, "float64"),
        "show": lambda x: None,
        "keep": lambda x: None,
        "store": lambda w, x: w.assign(x * 0.5),
    }
    for line in found.lines:
        exec(compiled(line), scope)
        if line.startswith(f"{name} = leaf"):
            scope[name][place : place + 1] += step
    return float(scope["loss"].item())


def check(found: Program) -> Verdict:
    """Outcome of a program, and its errors; the kinds of `RIGHT_OUTCOMES` are no failures."""
    try:
        mine = ours(found)
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    expected = theirs(found)
    if mine.refused:
        is_told = "written to in place" in mine.refused
        if expected.refused and (is_told or "does not require grad" in expected.refused):
            return Verdict("both", mine.refused)  # also where the loss comes from no leaf
        return Verdict("refused" if is_told else "odd", mine.refused)
    if not expected.refused:
        return told(mine.gradients, expected.gradients, "torch")
    if any("detach" in line or "store" in line for line in found.lines):
        return Verdict("alone")
    expected_slopes = differences(found)
    if expected_slopes is None:
        return Verdict("alone")
    return told(mine.gradients, expected_slopes, "finite differences")


def told(found: Sequence[Any], expected: Sequence[Any], who: str) -> Verdict:
    """True if gradients are those of torch or of the evaluator."""
    for name, one, other in zip(WEIGHTS, found, expected, strict=True):
        if not numpy.allclose(one, other, rtol=1e-3, atol=1e-3):
            return Verdict("value", f"{name}: {one}, {who} {other}")
    return Verdict("")


def smaller(found: Program) -> Iterator[Program]:
    """The program without one of its lines; the leaves and the loss stay."""
    *lines, loss = found.lines
    for fewer in without_a_line(tuple(lines), len(START)):
        yield Program(found.seed, (*fewer, loss))


def shown(found: Program, verdict: Verdict) -> str:
    """The program with its seed, and its error."""
    return "\n".join((f"# seed {found.seed}: {verdict.kind}: {verdict.message}", *found.lines))


RIGHT_OUTCOMES: Final = ("", "both", "refused", "alone")
"""Kinds of outcomes; "alone" where torch refuses, and nobody else can say, as at a kink."""

FUZZER: Final = Fuzzer(
    "tests.fuzz.slopes",
    __doc__,
    program,
    check,
    shown,
    smaller,
    frozenset(RIGHT_OUTCOMES),
    devices=FRONTEND,
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
