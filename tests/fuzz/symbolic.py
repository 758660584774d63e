"""Random programs with symbolic sizes, against NumPy: `python -m tests.fuzz.symbolic`.

A function of tensors and of one or two numbers slices caches by them, writes into these,
computes with sizes that they decide, and returns some values. It is called with bound Variables, as
it is and under TinyJit, and some also with numbers; each result must be what NumPy has for these.
The tensors of one program in eight are on two devices.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run
from tests.fuzz.writes import class_of
from tinycore import Tensor, TinyJit, Variable
from tinycore.errors import JitError

MOST: Final = 6
"""The size of the axis that numbers slice."""
WIDTH: Final = 3
CALLS: Final = 3

Array = numpy.ndarray[Any, numpy.dtype[Any]]

SLICES: Final = (
    ("{x}[:n]", "{x}[:n]", "n"),
    ("{x}[:n + m]", "{x}[:n + m]", "n + m"),
    ("{x}[m:m + n]", "{x}[m:m + n]", "n"),
    ("{x}[n - 1:]", "{x}[n - 1:]", "rest"),
    ("{x}.shrink(((m, m + n), None))", "{x}[m:m + n]", "n"),
    ("{x}.T[:, :n].T", "{x}.T[:, :n].T", "n"),
)
"""Parts of a cache of `MOST` rows: here, in NumPy, and how many rows they have."""
SAME: Final = (
    ("{v} * 2", "{v} * 2"),
    ("{v} + {w}", "{v} + {w}"),
    ("{v} * n", "{v} * n"),
    ("{v} + Tensor.arange({r}).reshape({r}, 1)", "{v} + numpy.arange({r}).reshape({r}, 1)"),
    ("{v}.softmax(0)", "softmax({v}, 0)"),
    ("{v}.softmax(1)", "softmax({v}, 1)"),
    ("{v} - {v}.mean(0)", "{v} - {v}.mean(0)"),
    ("{v} - {v}.max(0)", "{v} - {v}.max(0)"),
    ("{v}.flip(0)", "{v}[::-1]"),
    ("({v} @ {v}.T) @ {v} * 0.0625", "({v} @ {v}.T) @ {v} * 0.0625"),
    ("({v} @ {v}.T).tril() @ {v} * 0.0625", "numpy.tril({v} @ {v}.T) @ {v} * 0.0625"),
    ("({v} * 3).realize()", "{v} * 3"),
    ("({v} > 0).where({v}, 1.0)", "numpy.where({v} > 0, {v}, 1.0)"),
    ("{v}.contiguous()", "{v}"),
    ("{v}.reshape({r} * 3).reshape({r}, 3)", "{v}"),
)
"""Values with as many rows."""
FIXED: Final = (
    ("{v}.sum(0)", "{v}.sum(0)"),
    ("{v}.mean(0)", "{v}.mean(0)"),
    ("{v}.max(0)", "{v}.max(0)"),
    ("{v}.var(0, correction=0)", "{v}.var(0)"),
    ("{v}[-1]", "{v}[-1]"),
    ("{v}[0]", "{v}[0]"),
    ("{v}.pad(((0, 12 - {r}), None))", "numpy.pad({v}, ((0, 12 - {r}), (0, 0)))"),
    ("{v}.T @ {v}", "{v}.T @ {v}"),
    ("{v}.chunk(2)[0].sum(0)", "{v}[:-(-len({v}) // 2)].sum(0)"),
    ("{v}.argmax(0) * 1.0", "{v}.argmax(0) * 1.0"),
    ("({v} * (Tensor.arange({r}).reshape({r}, 1) < m)).sum(0)",
     "({v} * (numpy.arange({r}).reshape({r}, 1) < m)).sum(0)"),
    ("{v}.cat(c1[:2]).sum(0)", "numpy.concatenate([{v}, c1[:2]]).sum(0)"),
)  # fmt: skip
"""Values of a size that no number decides."""
STORES: Final = (
    ("c1[:n] = {v}", "c1[:n] = {v}"),
    ("c1[m:m + n] = {v}", "c1[m:m + n] = {v}"),
    ("c1[m:m + n].assign({v})", "c1[m:m + n] = {v}"),
    ("c1[:n] += {v}", "c1[:n] += {v}"),
    ("c2[:, m:m + n] = {v}.T", "c2[:, m:m + n] = {v}.T"),
    ("c2[:, :n] *= 0.5", "c2[:, :n] *= 0.5"),
    ("c1[n:n + 1] = x[:1]", "c1[n:n + 1] = x[:1]"),
    ("c1[m:m + 2] *= 2.0", "c1[m:m + 2] *= 2.0"),
)
"""Writes, the first of them of `n` rows."""


class Function(NamedTuple):
    """A body in both languages, over `x`, the caches `c1` and `c2`, and the numbers `n` and `m`."""

    seed: int
    ours: str
    theirs: str
    calls: tuple[tuple[int, int], ...]


def function(seed: int) -> Function:
    """The function of a seed."""
    draw = Draw(seed)
    lines: list[tuple[str, str]] = []
    rows: dict[str, str] = {}
    results: list[str] = []
    for number in range(draw.between(3, 9)):
        name, kind = f"v{number}", draw.random()
        if not rows or kind < 0.25:
            ours, theirs, size = draw.pick(SLICES)
            source = draw.pick(("x", "c1", "c1", "c2.T"))
            here, there = ours.format(x=source), theirs.format(x=source)
            lines.append((f"{name} = {here} * 1.0", f"{name} = {there} * 1.0"))
            rows[name] = f"({MOST + 6} - (n - 1))" if size == "rest" else f"({size})"
            continue
        v = draw.pick(list(rows))
        w = draw.pick([other for other in rows if rows[other] == rows[v]])
        if kind < 0.55:
            pair, size = draw.pick(SAME), rows[v]
            rows[name] = size
        elif kind < 0.8:
            pair, size = draw.pick(FIXED), rows[v]
            results.append(name)
        else:
            fits = [other for other in rows if rows[other] == "(n)"]
            ours, theirs = draw.pick(STORES if fits else STORES[5:])
            value = draw.pick(fits) if fits else v
            lines.append((ours.format(v=value), theirs.format(v=value)))
            continue
        made = [text.format(v=v, w=w, r=size) for text in pair]
        lines.append((f"{name} = {made[0]}", f"{name} = {made[1]}"))
    results += [name for name in rows if draw.chance(0.6)] or list(rows)[-1:]
    end = f"return [{', '.join(results)}]"
    calls = tuple((draw.between(1, MOST), draw.between(0, 4)) for _ in range(CALLS))
    bodies = ["\n".join((*(f"    {pair[k]}" for pair in lines), f"    {end}")) for k in (0, 1)]
    head = "def step(x, n, m):\n"
    return Function(seed, head + bodies[0], head + bodies[1], calls)


def softmax(x: Array, axis: int) -> Array:
    """As `Tensor.softmax`."""
    grown = numpy.exp(x - x.max(axis, keepdims=True))
    return numpy.asarray(grown / grown.sum(axis, keepdims=True))


def data(seed: int) -> tuple[Array, Array, Array]:
    """Input and caches: 12 rows, so that all slices are inside."""
    made = numpy.random.default_rng(seed)
    shapes = (MOST + 6, WIDTH), (MOST + 6, WIDTH), (WIDTH, MOST + 6)
    x, one, other = (made.integers(-8, 9, shape).astype(numpy.float32) / 8 for shape in shapes)
    return x, one, other


Results = list[list[Array]]

WAYS: Final = ("numbers", "variables", "TinyJit")
"""Kinds of arguments; numbers, whose kernels `tests.fuzz.programs` has, are for every 4th seed."""


def expected(found: Function) -> Results:
    """NumPy's results for each call, and the caches after it."""
    x, one, other = data(found.seed)
    scope: dict[str, Any] = {"numpy": numpy, "softmax": softmax, "c1": one, "c2": other}
    exec(code(found.theirs), scope)
    seen = []
    for n, m in found.calls:
        results = scope["step"](x, n, m)
        seen.append([numpy.array(r) for r in (*results, one, other)])
    return seen


def computed(found: Function, way: str) -> Results:
    """Results of tensors for each call; of numbers, which have kernels of their own, for the first.
    They are computed together, or as they are read. Raises JitError for a function that is refused.
    """
    made = class_of(found.seed)
    x, one, other = (made(array).realize() for array in data(found.seed))
    scope: dict[str, Any] = {"Tensor": made, "c1": one, "c2": other}
    exec(code(found.ours), scope)
    step: Callable[..., list[Tensor]] = scope["step"]
    if way == "TinyJit":
        step = TinyJit(step)
    length, start = Variable("n", 1, MOST), Variable("m", 0, 4)
    seen = []
    for n, m in found.calls[: 1 if way == "numbers" else None]:
        numbers = (n, m) if way == "numbers" else (length.bind(n), start.bind(m))
        results = [*step(x, *numbers), one, other]
        if found.seed % 2:
            Tensor.realize(*results)
        seen.append([r.numpy() for r in results])
    return seen


def code(text: str) -> CodeType:
    """A function as code."""
    return compile(text, "<function>", "exec")


def check(found: Function) -> Verdict:
    """The kind of error, and how it was seen; "" if there is none, "refused" by TinyJit."""
    try:
        truth = expected(found)
    except Exception:
        return Verdict("odd", traceback.format_exc(limit=-2))
    kind = ""
    for way in WAYS[found.seed % 4 > 0 :]:
        try:
            results = computed(found, way)
        except JitError:
            kind = "refused"
            continue
        except Exception:
            return Verdict("raised", f"with {way}: {traceback.format_exc(limit=-4)}")
        for call, one, other in zip(found.calls, results, truth, strict=False):
            for place, (a, b) in enumerate(zip(one, other, strict=True)):
                close = a.shape == b.shape and numpy.allclose(a, b, rtol=1e-3, atol=1e-4)
                if not close:
                    text = f"with {way}, n, m = {call}: result {place} is {a.tolist()}"
                    return Verdict("value", f"{text} instead of {b.tolist()}")
    return Verdict(kind)


def shown(found: Function, verdict: Verdict) -> str:
    """The function with its seed and calls, and its error."""
    head = f"# seed {found.seed}: {verdict.kind}: {verdict.message}"
    return f"{head}\n{found.ours}\n# {found.calls}"


FUZZER: Final = Fuzzer(
    "tests.fuzz.symbolic",
    __doc__,
    function,
    check,
    shown,
    accepted=frozenset({"refused"}),
    devices=FRONTEND,
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
