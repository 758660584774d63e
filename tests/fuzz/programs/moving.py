"""Families of ops that move elements: shapes, order, boxes, padding, joining, diagonals.

They take values of any dtype; what they make may be a view of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tests.fuzz.programs.builder import MOST_ELEMENTS, Builder
from tests.fuzz.programs.form import Rounding, Value
from tinycore.dtype import dtypes
from tinycore.uop.shape import Shape


def filled(shape: Shape) -> bool:
    """True if there is an element, and an axis."""
    return len(shape) > 0 and 0 not in shape


def moved(b: Builder, x: Value, ours: str, theirs: str, shape: Shape) -> None:
    """One step that moves elements."""
    b.compute(ours, theirs, [x], shape, x.dtype, x.low, x.high, Rounding.EXACT, views=True)


def any_with_axes(b: Builder, least: int = 1) -> Value | None:
    """A value with this number of axes."""
    x = b.anything(lambda s: len(s) >= least, lambda: b.shape(least))
    return x if len(x.shape) >= least else None


def reshaping(b: Builder) -> None:
    """reshape, flatten, unflatten, squeeze, unsqueeze."""
    x = b.anything()
    kind = b.draw.pick(["reshape", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"])
    if kind == "reshape":
        shape = regrouped(b, x.size) if x.size else (0, b.draw.between(0, 3))
        text = list(shape)
        if x.size and shape and b.draw.chance(0.4):
            text[b.draw.below(len(text))] = -1
        moved(b, x, f"{x.name}.reshape({tuple(text)})", f"{x.name}.reshape({tuple(text)})", shape)
    elif kind == "unsqueeze" and len(x.shape) < 5:
        axis = b.draw.between(-len(x.shape) - 1, len(x.shape))
        place = axis % (len(x.shape) + 1)
        text_ = f"{x.name}.unsqueeze({axis})"
        moved(b, x, text_, text_, (*x.shape[:place], 1, *x.shape[place:]))
    elif kind == "squeeze" and 1 in x.shape:
        axis = b.draw.pick([a for a, n in enumerate(x.shape) if n == 1])
        text_ = f"{x.name}.squeeze({axis})"
        moved(b, x, text_, text_, (*x.shape[:axis], *x.shape[axis + 1 :]))
    elif kind == "flatten" and len(x.shape) > 1:
        start = b.draw.below(len(x.shape) - 1)
        merged = math.prod(x.shape[start : start + 2])
        text_ = f"{x.name}.flatten({start}, {start + 1})"
        moved(b, x, text_, text_, (*x.shape[:start], merged, *x.shape[start + 2 :]))
    elif kind == "unflatten" and x.shape and x.size:
        axis = b.draw.below(len(x.shape))
        sizes = regrouped(b, x.shape[axis], 2) or (1,)
        text_ = f"{x.name}.unflatten({axis}, {sizes})"
        moved(b, x, text_, text_, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def regrouped(b: Builder, count: int, most_rank: int = 4) -> Shape:
    """A random shape of this number of elements."""
    factors, rest, prime = [], count, 2
    while rest > 1:
        while rest % prime == 0:
            factors.append(prime)
            rest //= prime
        prime += 1
    shape = [1] * b.draw.between(1 if count > 1 else 0, most_rank)
    for factor in factors:
        shape[b.draw.below(len(shape))] *= factor
    return tuple(shape)


def ordering(b: Builder) -> None:
    """permute, transpose, flip, roll."""
    x = any_with_axes(b)
    if x is None:
        return
    rank, shape = len(x.shape), x.shape
    kind = b.draw.pick(["permute", "permute", "transpose", "flip", "roll", "T", "roll all"])
    if kind == "permute":
        order = b.draw.sample(range(rank), rank)
        text = f"{x.name}.permute({tuple(order)})"
        moved(b, x, text, text, tuple(shape[a] for a in order))
    elif kind == "T" and rank == 2:
        moved(b, x, f"{x.name}.T", f"{x.name}.T", shape[::-1])
    elif kind == "transpose" and rank > 1:
        first, second = b.draw.sample(range(rank), 2)
        text = f"{x.name}.transpose({first}, {second - rank})"
        sizes = list(shape)
        sizes[first], sizes[second] = sizes[second], sizes[first]
        moved(b, x, text, text, tuple(sizes))
    elif kind == "flip":
        axes = tuple(b.draw.subset(range(rank)))
        moved(b, x, f"{x.name}.flip({axes})", f"{x.name}.flip({axes})", shape)
    elif kind == "roll":
        axis, shift = b.draw.below(rank), b.draw.between(-5, 5)
        text = f"{x.name}.roll({shift}, {axis})"
        moved(b, x, text, text, shape)
    elif kind == "roll all":
        text = f"{x.name}.roll({b.draw.between(-5, 5)})"
        moved(b, x, text, text, shape)


def repeating(b: Builder) -> None:
    """expand, repeat, repeat_interleave."""
    x = b.anything()
    kind = b.draw.pick(["expand", "expand", "repeat", "interleave"])
    if kind == "expand":
        if 1 not in x.shape and len(x.shape) > 3:
            return
        shape = tuple(b.draw.between(1, 5) if n == 1 and b.draw.chance(0.7) else n for n in x.shape)
        if b.draw.chance(0.3) and len(shape) < 4:
            shape = (b.draw.between(0 if b.draw.chance(0.1) else 1, 4), *shape)
        if math.prod(shape) <= MOST_ELEMENTS:
            moved(b, x, f"{x.name}.expand({shape})", f"{x.name}.expand({shape})", shape)
    elif kind == "repeat":
        counts = tuple(b.draw.weighted([(1, 4), (2, 3), (3, 2), (0, 0.2)]) for _ in x.shape)
        shape = tuple(n * c for n, c in zip(x.shape, counts, strict=True))
        if x.shape and math.prod(shape) <= MOST_ELEMENTS:
            moved(b, x, f"{x.name}.repeat({counts})", f"{x.name}.repeat({counts})", shape)
    elif x.shape:
        axis, count = b.draw.below(len(x.shape)), b.draw.between(1, 3)
        shape = (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1 :])
        if math.prod(shape) <= MOST_ELEMENTS:
            text = f"{x.name}.repeat_interleave({count}, {axis})"
            moved(b, x, text, text, shape)


def slicing(b: Builder) -> None:
    """x[...] of slices with steps, integers, None and an ellipsis; shrink, split."""
    x = any_with_axes(b)
    if x is None:
        return
    if b.draw.chance(0.2):
        pairs = [tuple(sorted((b.draw.between(0, n), b.draw.between(0, n)))) for n in x.shape]
        pairs = [(0, n) if a == c else (a, c) for (a, c), n in zip(pairs, x.shape, strict=True)]
        theirs = ", ".join(f"{a}:{c}" for a, c in pairs)
        moved(
            b,
            x,
            f"{x.name}.shrink({pairs})",
            f"{x.name}[{theirs}]",
            tuple(c - a for a, c in pairs),
        )
        return
    entries, shape = box(b, x.shape)
    theirs = f"sliced({x.name}, place[{', '.join(entries)}])"
    moved(b, x, f"{x.name}[{', '.join(entries)}]", theirs, shape)


def box(b: Builder, shape: Shape, negative: bool = True) -> tuple[list[str], Shape]:
    """The entries of a basic index, as text, and the shape of its result."""
    entries: list[str] = []
    result: list[int] = []
    for place, n in enumerate(shape):
        kind = b.draw.weighted([("all", 3), ("slice", 5), ("int", 2), ("none", 0.7), ("rest", 0.7)])
        if kind == "rest" and "..." not in entries:
            return [*entries, "..."], (*result, *shape[place:])
        if kind == "none" and len(result) < 4:
            entries.append("None")
            result.append(1)
        if kind == "int" and n:
            entries.append(str(b.draw.between(-n, n - 1)))
        elif kind == "slice":
            chosen = slice_of(b, n, negative)
            entries.append(
                ":".join(
                    "" if v is None else str(v) for v in (chosen.start, chosen.stop, chosen.step)
                )
            )
            result.append(len(range(*chosen.indices(n))))
        else:
            entries.append(":")
            result.append(n)
    return entries, tuple(result)


def slice_of(b: Builder, n: int, negative: bool) -> slice:
    """A slice that mostly takes something."""
    step = b.draw.weighted([(None, 5), (2, 2), (3, 1), (-1, 2 * negative), (-2, negative)])
    ends = sorted(b.draw.between(0, n) for _ in range(2))
    start, stop = ends if ends[0] < ends[1] else (0, n)
    if step is not None and step < 0:
        return slice(stop - 1 if b.draw.chance(0.5) else None, start - 1 if start else None, step)
    return slice(start or None, stop - n if stop < n and b.draw.chance(0.5) else stop, step)


def padding(b: Builder) -> None:
    """pad in its modes, and by negative amounts; pad_to."""
    x = any_with_axes(b)
    if x is None:
        return
    mode = b.draw.weighted([("constant", 5), ("reflect", 1), ("replicate", 1), ("circular", 1)])
    pairs = [(0, 0)] * len(x.shape)
    for axis in b.draw.subset(range(len(x.shape))):
        n = x.shape[axis]
        most = {"constant": 3, "reflect": n - 1, "circular": n, "replicate": 3 if n else 0}[mode]
        pairs[axis] = (
            b.draw.between(0, max(0, min(3, most))),
            b.draw.between(0, max(0, min(3, most))),
        )
        if mode == "constant" and b.draw.chance(0.15):
            pairs[axis] = (-b.draw.between(0, n // 2), pairs[axis][1])
    shape = tuple(before + n + after for (before, after), n in zip(pairs, x.shape, strict=True))
    if math.prod(shape) > MOST_ELEMENTS:
        return
    value = b.number() if b.draw.chance(0.4) and dtypes.is_float(x.dtype) else 0.0
    tail = "" if mode == "constant" and not value else f", mode={mode!r}"
    tail += f", value={value}" if mode == "constant" and value else ""
    low, high = min(x.low, value), max(x.high, value)
    b.compute(
        f"{x.name}.pad({pairs}{tail})",
        f"padded({x.name}, {pairs}, {mode!r}, {value})",
        [x],
        shape,
        x.dtype,
        low,
        high,
        Rounding.EXACT,
        views=True,
    )


def joining(b: Builder) -> None:
    """cat and stack of two or three values of one dtype."""
    x = any_with_axes(b)
    if x is None:
        return
    axis = b.draw.below(len(x.shape))
    if b.draw.chance(0.3) and len(x.shape) < 4:
        others = [same(b, x, lambda s: s == x.shape, x.shape) for _ in range(b.draw.between(1, 2))]
        shape = (*x.shape[:axis], len(others) + 1, *x.shape[axis:])
        joined(b, "stack", [x, *others], axis, shape)
        return

    def beside(s: Shape) -> bool:
        return len(s) == len(x.shape) and all(
            n == m for a, (n, m) in enumerate(zip(s, x.shape, strict=True)) if a != axis
        )

    others = []
    for _ in range(b.draw.between(1, 2)):
        fresh = (*x.shape[:axis], b.draw.between(0, 4), *x.shape[axis + 1 :])
        others.append(same(b, x, beside, fresh))
    total = sum(v.shape[axis] for v in (x, *others))
    joined(b, "cat", [x, *others], axis, (*x.shape[:axis], total, *x.shape[axis + 1 :]))


def same(b: Builder, x: Value, suits: Callable[[Shape], bool], shape: Shape) -> Value:
    """A value of the same dtype."""
    make = b.fresh_float if dtypes.is_float(x.dtype) else b.fresh_integer
    if x.dtype is dtypes.bool:
        return b.chosen(
            lambda v: v.dtype is x.dtype and suits(v.shape),
            lambda: b.input(shape, dtypes.bool, 0, 1),
        )
    return b.chosen(lambda v: v.dtype is x.dtype and suits(v.shape), lambda: make(shape, x.dtype))


def joined(b: Builder, kind: str, parts: list[Value], axis: int, shape: Shape) -> None:
    """cat or stack."""
    if math.prod(shape) > MOST_ELEMENTS:
        return
    names = ", ".join(v.name for v in parts)
    rest = ", ".join(v.name for v in parts[1:])
    b.compute(
        f"{parts[0].name}.{kind}({rest}, dim={axis})",
        f"torch.{kind}([{names}], {axis})",
        parts,
        shape,
        parts[0].dtype,
        min(0, *(v.low for v in parts)),
        max(0, *(v.high for v in parts)),
        Rounding.EXACT,
        views=True,
    )


def cutting(b: Builder) -> None:
    """split and chunk: several results."""
    x = b.anything(lambda s: len(s) > 0 and max(s) > 1, lambda: (4, 3))
    if not x.shape or max(x.shape) < 2:
        return
    axis = x.shape.index(max(x.shape))
    size = b.draw.between(-(-x.shape[axis] // 3), x.shape[axis])
    sizes = [min(size, x.shape[axis] - start) for start in range(0, x.shape[axis], size)]
    outputs = [((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype, x.low, x.high) for n in sizes]
    text = f"{x.name}.split({size}, {axis})"
    if len(outputs) > 1:
        b.several(text, text, [x], outputs, Rounding.EXACT, views=True)


def parts(b: Builder) -> None:
    """unfold, diagonal, diag, tril, triu, meshgrid."""
    kind = b.draw.pick(["unfold", "unfold", "diagonal", "diag", "tril", "triu", "meshgrid"])
    x = any_with_axes(b, 1 if kind in ("unfold", "diag", "meshgrid") else 2)
    if x is None:
        return
    rank = len(x.shape)
    if kind == "unfold":
        axis = b.draw.below(rank)
        if not x.shape[axis] or rank > 3:
            return
        size, step = b.draw.between(1, min(4, x.shape[axis])), b.draw.between(1, 3)
        count = (x.shape[axis] - size) // step + 1
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
        text = f"{x.name}.unfold({axis}, {size}, {step})"
        if math.prod(shape) <= MOST_ELEMENTS:
            moved(b, x, text, text, shape)
    elif kind == "diagonal":
        first, second = b.draw.sample(range(rank), 2)
        offset = b.draw.between(-2, 2)
        rows, columns = x.shape[first], x.shape[second]
        size = max(0, min(rows - max(0, -offset), columns - max(0, offset)))
        shape = (*[n for a, n in enumerate(x.shape) if a not in (first, second)], size)
        text = f"{x.name}.diagonal({offset}, {first}, {second})"
        moved(b, x, text, text, shape)
    elif kind == "diag" and rank == 1 and x.shape[0] <= 20:
        moved(b, x, f"{x.name}.diag()", f"{x.name}.diag()", x.shape * 2)
    elif kind in ("tril", "triu") and x.dtype is not dtypes.bool:
        text = f"{x.name}.{kind}({b.draw.between(-2, 2)})"
        low, high = min(0, x.low), max(0, x.high)
        b.compute(text, text, [x], x.shape, x.dtype, low, high, Rounding.EXACT, views=True)
    elif kind == "meshgrid" and rank == 1 and x.size <= 10:
        y = same(b, x, lambda s: len(s) == 1 and s[0] <= 10, (3,))
        indexing = b.draw.pick(["ij", "xy"])
        shape = (x.size, y.size) if indexing == "ij" else (y.size, x.size)
        b.several(
            f"{x.name}.meshgrid({y.name}, indexing={indexing!r})",
            f"torch.meshgrid({x.name}, {y.name}, indexing={indexing!r})",
            [x, y],
            [(shape, v.dtype, v.low, v.high) for v in (x, y)],
            Rounding.EXACT,
            views=True,
        )


def standing(b: Builder) -> None:
    """contiguous, detach, clone: the same value in another place of the graph."""
    x = b.anything()
    kind = b.draw.pick(["contiguous", "detach", "clone", "contiguous_backward"])
    theirs = {"detach": ".detach()"}.get(kind, ".clone()")
    value = b.compute(
        f"{x.name}.{kind}()",
        f"{x.name}{theirs}",
        [x],
        x.shape,
        x.dtype,
        x.low,
        x.high,
        Rounding.EXACT,
        views=kind != "clone",
    )
    if kind == "clone" and x.size:
        b.memory.add(value.name)


FAMILY: Final = (
    (reshaping, 7), (ordering, 6), (repeating, 4), (slicing, 7), (padding, 4), (joining, 5),
    (cutting, 1.5), (parts, 4), (standing, 3),
)  # fmt: skip
"""Ops, and how often."""
