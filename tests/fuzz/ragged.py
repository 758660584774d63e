"""Random programs over sizes around those of tiles, against torch: `python -m tests.fuzz.ragged`.

Sizes lie at and beside multiples of vectors and tiles, so loops have rests, single steps, or none.
A program multiplies, normalizes, folds and turns matrices, writes results into what they were
computed from, and steps weights against gradients. Every other program is compiled for a processor
that is not here, where it is enough that plans are found and compiled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy

from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import Fuzzer, Verdict, run, without_a_line
from tests.fuzz.writes import Program, compiled
from tinycore import Tensor
from tinycore.config import settings

RAGGED_SIZES: Final = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 20, 23, 24, 31, 32, 33, 36, 40, 47, 48, 49),
    *(56, 63, 64, 65, 66, 70, 96, 100, 127, 128, 130),
)
OF_PRODUCTS: Final = (
    "{m} @ {n}", "({m} @ {n}).relu()", "{m} @ {n} + {row}", "({m} @ {n}).softmax(-1)",
    "{m} @ {n} * {x}",
)  # fmt: skip
OF_MATRICES: Final = (
    "{x} + {y}.T", "{y}.T * 2 - {x}", "{x} * {x}.sum(1, keepdim=True) * 0.1", "{x}.softmax(0)",
    "{x}.logsumexp(1, keepdim=True) + {x}", "{x} - {x}.mean(0, keepdim=True)",
    "{x}.cumsum(1) * 0.1", "{x}.cumsum(0) * 0.1", "({x} * {x}).mean(0, keepdim=True) * {x}",
    "{x}.tanh() + {row}", "{x} / (1 + ({x} * {x}).mean(1, keepdim=True)).sqrt()",
    "{x} @ ({y} @ {x}) * 0.01", "({x}.T @ {x}).softmax(-1).sum(0) * {x}",
)  # fmt: skip
"""Values of the shape of {x}; {y} has that of its transpose."""
PROCESSORS: Final = (
    *("CPU:LLVM", "NULL:LLVM:x86_64,skylake-avx512", "CPU:LLVM", "NULL:LLVM:x86_64"),
    *("CPU:LLVM", "NULL:LLVM:aarch64"),
)
MATRICES: Final = 7
"""Lines that make matrices."""


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = Draw(seed)
    rows, inner, columns = (draw.pick(RAGGED_SIZES) for _ in range(3))
    shapes = {
        "m": (rows, inner), "n": (inner, columns), "row": (1, columns), "x": (rows, columns),
        "w": (rows, columns), "y": (columns, rows), "v": (columns, rows),
    }  # fmt: skip
    lines = [f"{name} = leaf({seed % 1000 + n}, {s})" for n, (name, s) in enumerate(shapes.items())]
    known = ["x", "w"]
    for number in range(draw.between(1, 4)):
        names = {"x": draw.pick(known), "y": draw.pick(("y", "v")), "m": "m", "n": "n"}
        text = draw.pick((*OF_PRODUCTS, *OF_MATRICES)).format(**names, row="row")
        kind = draw.random()
        if kind < 0.3:
            lines.append(f"z{number} = {text}")
            known.append(f"z{number}")
        elif kind < 0.6:
            lines.append(f"{draw.pick(('x', 'w'))}.copy_({text})")
        elif kind < 0.75:
            lines.append(f"v.copy_(v + {draw.pick(known)}.T)")
        else:
            name = draw.pick(("w", "y"))
            text = draw.pick(OF_MATRICES).format(**names | {"x": "w", "y": "y"}, row="row")
            text = text if name in text else f"({text}) * {name}.T"
            lines.append(f"learn({name}, lambda {name}: (({text}) * x).mean())")
    return Program(seed, tuple(lines))


def quarters(seed: int, shape: tuple[int, ...]) -> Any:
    """Small multiples of a quarter, whose sums are exact for long."""
    return numpy.random.default_rng(seed).integers(-4, 5, shape).astype("float32") / 4


def run_here(found: Program) -> dict[str, Any]:
    """The matrices of tinycore after a program, none on a device that computes nothing."""

    def learn(weight: Tensor, loss_of: Callable[[Tensor], Tensor]) -> None:
        leaf = weight.detach().requires_grad_()
        weight.copy_(weight - loss_of(leaf).gradient(leaf)[0])

    scope: dict[str, Any] = {"leaf": lambda *given: Tensor(quarters(*given)), "learn": learn}
    for line in found.lines:
        exec(compiled(line), scope)
    tensors = {name: value for name, value in scope.items() if isinstance(value, Tensor)}
    Tensor.realize(*tensors.values())
    computes = not settings.DEV.startswith("NULL")
    return {name: value.numpy() for name, value in tensors.items() if computes}


def run_by_torch(found: Program) -> dict[str, Any]:
    """The matrices of torch after a program."""
    import torch  # noqa: PLC0415  needed here only

    def learn(weight: Any, loss_of: Callable[[Any], Any]) -> None:
        leaf = weight.clone().requires_grad_()
        weight.sub_(*torch.autograd.grad(loss_of(leaf), leaf))

    scope: dict[str, Any] = {"leaf": lambda *given: torch.tensor(quarters(*given)), "learn": learn}
    for line in found.lines:
        exec(compiled(line), scope)
    return {name: value.numpy() for name, value in scope.items() if isinstance(value, torch.Tensor)}


def check(found: Program) -> Verdict:
    """The same numbers as torch's, up to rounding."""
    try:
        here = run_here(found)
    except Exception:
        return Verdict("raised", traceback.format_exc())
    there = run_by_torch(found)
    for name, value in here.items():
        most = 1e-3 * max(1.0, float(abs(there[name]).max()))
        if not numpy.allclose(value, there[name], rtol=1e-3, atol=most, equal_nan=True):
            return Verdict("value", f"{name}: off by {abs(value - there[name]).max()}")
    return Verdict("")


def smaller(found: Program) -> Iterator[Program]:
    """The program without one of its lines; the matrices stay."""
    for fewer in without_a_line(found.lines, MATRICES):
        yield Program(found.seed, fewer)


def shown(found: Program, verdict: Verdict) -> str:
    """The program with its seed, and its error."""
    return "\n".join((f"# seed {found.seed}: {verdict.kind}: {verdict.message}", *found.lines))


FUZZER: Final = Fuzzer(
    "tests.fuzz.ragged", __doc__, program, check, shown, smaller, devices=PROCESSORS
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
