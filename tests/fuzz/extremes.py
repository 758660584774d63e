"""Random gradients of extremes over computed values: `python -m tests.fuzz.extremes`.

A program computes values by products, sums and functions, takes a maximum, an order or a choice of
one of them, uses the values elsewhere as well, and reads some in between or not. Two things must
hold. Each element chosen passes on its gradient whole, however often a kernel computes the values
again: the gradients of zeros added to the values sum up to the number of elements chosen. And
in float32 the gradient of the leaf is that of torch in float64.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import Fuzzer, Verdict, run, without_a_line
from tests.fuzz.writes import compiled
from tinycore import Tensor

LEAF_DTYPES: Final = ("float32", "float32", "float32", "bfloat16", "float16")
LEAF_SHAPES: Final = ((2,), (7,), (33,), (4, 6), (8, 16), (3, 50), (2, 4, 4), (16, 64))
LEAF_VALUES: Final = (
    "{a} * {c}", "{a} * {c}", "{a} + {c}", "{a} - {c}", "{a} * {b}", "{a} + {b} * {c}",
    "{a} * {b} - {c}", "({a} * {c}).relu()", "(-({a} * {c}).abs()).exp()", "{a} / ({b} * {b} + 1)",
    "({a} * {c}).sigmoid()", "{a} * {a} - {b}", "({a} * {c}).tanh()", "{a}.flip(0) * {c} + {b}",
    "({a} - {a}.mean(-1, keepdim=True)) * {c}",
)  # fmt: skip
CHOICES: Final = (
    "{y}.max()", "{y}.min()", "{y}.amax(-1)", "{y}.amin(0)", "{y}.amax(-1) * 1",
    "{y}.sort(-1)[0]", "{y}.topk(2, -1)[0]", "{y}.cummax(-1)[0]", "{y}.cummin(0)[0]",
    "{y} * ({y} == {y}.amax(-1, keepdim=True))",
    "{y} * ({y} - {y}.amax(-1, keepdim=True) == 0)",
    "{y}.gather(-1, {y}.argmax(-1, keepdim=True))",
    "{y}.gather(-1, {y}.argmin(-1, keepdim=True))",
    "{y}.maximum({y}.flip(0))", "{y}.minimum({y}.amax(0))",
    "{y}.scatter_reduce(-1, {y}.argmin(-1, keepdim=True), {y}.flip(0)[..., :1], 'amax')",
    "{y}.scatter_reduce(-1, {y}.argmax(-1, keepdim=True)[:1], {y}.flip(0)[:1][..., :1], 'amin')",
    "{y}.scatter_reduce(0, {y}.argmax(0, keepdim=True)[..., :1], {y}[-1:][..., -1:], 'amax')",
)  # fmt: skip
"""The slopes of each sum up to the elements of the result; of masks, to the elements chosen."""
OTHER_USES: Final = (
    "{a}.relu().sum()",
    "({a} * 0.5).sum()",
    "(-{a}.abs()).exp().sum()",
    "({a} * {a}).mean()",
)


LARGEST_CHOSEN: Final = 1e3
"""Values beyond which a product of a program may overflow, or differ from that in float64."""


class Program(NamedTuple):
    """A program: its seed, lines, dtype, and the leaf."""

    seed: int
    lines: tuple[str, ...]
    dtype: str
    leaf: Any


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = Draw(seed)
    dtype, shape = draw.pick(LEAF_DTYPES), draw.pick(LEAF_SHAPES)
    leaf = numpy.reshape([draw.random() * 3 - 1.5 for _ in range(math.prod(shape))], shape)
    lines, values = [], ["x"]
    for number in range(draw.between(1, 5)):
        a, b = draw.pick(values[-3:]), draw.pick(values)
        made = draw.pick(LEAF_VALUES).format(a=a, b=b, c=round(draw.random() * 3 + 0.1, 1))
        lines.append(f"v{number} = {made}")
        values.append(f"v{number}")
        if draw.chance(0.1):
            lines.append(f"show(v{number})")
    lines.append(f"y = {values[-1]} + z")
    lines.append("m = " + draw.pick(CHOICES).format(y="y"))
    if draw.chance(0.4):
        lines.append(draw.pick(("show(m)", "show(m.sum())", "show(y.sum())", "show(y)")))
    lines.append("loss = m.sum()")
    for name in draw.subset([*values, "y"]):
        lines.append(f"other = {draw.pick(OTHER_USES).format(a=name)}")
        lines.append(f"loss = loss + {'other' if name != 'y' else 'other * 0'}")
    if draw.chance(0.4):
        lines.append("show(loss)")
    return Program(seed, tuple(lines), dtype, leaf)


def ours(found: Program) -> tuple[Any, Any, Any]:
    """The gradients of the leaf and of the zeros, and the elements chosen."""
    leaf = Tensor(found.leaf.tolist(), dtype=found.dtype, requires_grad=True).realize()
    zeros = Tensor(numpy.zeros(found.leaf.shape, "float32")).cast(found.dtype).realize()
    zeros.requires_grad_(True)
    scope: dict[str, Any] = {"x": leaf, "z": zeros, "show": lambda x: x.tolist()}
    for line in found.lines:
        exec(compiled(line), scope)
    if "loss" not in scope:
        raise NameError("a candidate without a loss")
    scope["loss"].backward()
    slopes = [t.grad.cast("float32").numpy() for t in (leaf, zeros) if t.grad is not None]
    return *slopes, scope["m"].cast("float32").numpy()


def theirs(found: Program) -> Any:
    """The gradient of the leaf by torch in float64."""
    import torch  # noqa: PLC0415  needed here only

    leaf = torch.tensor(found.leaf).requires_grad_()
    scope: dict[str, Any] = {"x": leaf, "z": torch.zeros(found.leaf.shape, dtype=torch.float64)}
    scope["show"] = lambda x: None
    for line in found.lines:
        exec(compiled(line), scope)
    scope["loss"].backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()


def check(found: Program) -> Verdict:
    """Verdict on the gradients of a program."""
    try:
        of_leaf, of_zeros, chosen = ours(found)
    except NameError:
        raise
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    if not numpy.isfinite(chosen).all() or abs(chosen).max() > LARGEST_CHOSEN:
        return Verdict("large")
    masked = any("==" in line for line in found.lines)
    total, count = of_zeros.sum(), chosen.size
    if masked:
        count = numpy.count_nonzero(of_zeros)
        if count < numpy.prod(found.leaf.shape[:-1]):
            return Verdict("lost", f"{count} elements chosen")
    if not numpy.allclose(total, count, rtol=1e-2 if found.dtype != "float32" else 1e-5):
        return Verdict("slope", f"{total}, not {count}")
    if found.dtype == "float32" and not numpy.allclose(
        of_leaf, expected := theirs(found), rtol=1e-3, atol=1e-3 * (1 + abs(expected).max())
    ):
        return Verdict("torch", f"{abs(of_leaf - expected).max()} apart")
    return Verdict("")


def shown(found: Program, verdict: Verdict) -> str:
    """A program that fails, as text."""
    head = f"# seed {found.seed}, {found.dtype}: {verdict.kind}: {verdict.message}"
    return "\n".join((head, f"# x has shape {found.leaf.shape}", *found.lines, ""))


def smaller(found: Program) -> Iterator[Program]:
    """Candidates with one line less."""
    for lines in without_a_line(found.lines):
        yield found._replace(lines=lines)


FUZZER: Final = Fuzzer(
    "tests.fuzz.extremes", __doc__, program, check, shown, smaller, frozenset({"large"})
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
