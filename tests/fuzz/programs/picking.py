"""Families of ops with index tensors: reading and writing rows, gather, scatter, one-hot.

Indices that write name no place twice, as torch leaves open which of them wins.
"""

from __future__ import annotations

import math
from typing import Final

from tests.fuzz.programs.builder import MOST_ELEMENTS, Builder
from tests.fuzz.programs.draw import Content
from tests.fuzz.programs.form import Rounding, Value
from tests.fuzz.programs.moving import any_with_axes, filled, same
from tinycore.dtype import dtypes
from tinycore.uop.shape import Shape


def index_tensor(b: Builder, size: int, shape: Shape | None = None) -> tuple[Value, str]:
    """An integer tensor of places along an axis of `size`, and how it is written."""
    live = [
        v
        for v in b.live.values()
        if dtypes.is_int(v.dtype) and 0 < v.size <= 40 and (shape is None or v.shape == shape)
        if size <= dtypes.max(v.dtype)  # or the remainder would be by a number that has wrapped
    ]
    if live and b.draw.chance(0.35):
        value = b.draw.pick(live)
        return value, f"({value.name} % {size})" if value.low < 0 or value.high >= size else (
            value.name
        )
    sizes = b.shape(0, 2) if shape is None else shape
    dtype = b.draw.pick([dtypes.int32, dtypes.int32, dtypes.int64])
    value = b.input(sizes, dtype, -size, size - 1, Content.WHOLE)
    return value, value.name


def rows(b: Builder) -> None:
    """x[i], x[:, i], x[i, j], x[i, 1:, j] with index tensors."""
    x = b.anything(filled, lambda: b.shape(1, zero=False))
    if not filled(x.shape):
        return
    first = b.draw.below(len(x.shape))
    index, text = index_tensor(b, x.shape[first])
    entries = [":"] * first + [text]
    indexed, inputs, shape = [first], [x, index], index.shape
    if first + 1 < len(x.shape) and b.draw.chance(0.35):
        second = b.draw.between(first + 1, len(x.shape) - 1)
        other, text = index_tensor(b, x.shape[second], index.shape)
        entries += [":"] * (second - first - 1) + [text]
        indexed, inputs = [first, second], [*inputs, other]
    rest = [n for a, n in enumerate(x.shape) if a not in indexed]
    apart = len(indexed) == 2 and indexed[1] > indexed[0] + 1
    result = (*shape, *rest) if apart else (*rest[:first], *shape, *rest[first:])
    if math.prod(result) > MOST_ELEMENTS or len(result) > 5:
        return
    ours = f"{x.name}[{', '.join(entries)}]"
    b.compute(ours, ours, inputs, result, x.dtype, min(0, x.low), max(0, x.high), Rounding.EXACT)


def gathering(b: Builder) -> None:
    """gather along an axis."""
    x = b.anything(filled, lambda: b.shape(1, zero=False))
    if not filled(x.shape):
        return
    axis = b.draw.below(len(x.shape))
    shape = tuple(
        b.draw.between(1, 4) if a == axis else b.draw.between(1, n) for a, n in enumerate(x.shape)
    )
    if math.prod(shape) > 200:
        return
    index, text = index_tensor(b, x.shape[axis], shape)
    theirs = f"{x.name}.gather({axis}, {text} % {x.shape[axis]})"
    b.compute(
        f"{x.name}.gather({axis}, {text})",
        theirs,
        [x, index],
        shape,
        x.dtype,
        x.low,
        x.high,
        Rounding.EXACT,
    )


def scattering(b: Builder) -> None:
    """scatter, and its reductions."""
    x = b.anything(lambda s: filled(s) and math.prod(s) <= 120, lambda: b.shape(1, 3, zero=False))
    if not filled(x.shape) or x.size > 120 or x.dtype is dtypes.bool:
        return
    kind = b.draw.pick(["set", "set", "add", "sum", "mean", "amax", "amin"])
    axis = 0 if kind == "set" else b.draw.below(len(x.shape))
    shape = tuple(b.draw.between(1, n) for n in x.shape)
    content = Content.DISTINCT if kind == "set" else Content.WHOLE
    index = b.input(shape, dtypes.int32, 0, x.shape[axis] - 1, content)
    source = same(b, x, lambda s: s == shape, shape)
    low, high = min(x.low, source.low), max(x.high, source.high)
    arguments = f"{axis}, {index.name}, {source.name}"
    if kind == "set":
        ours = f"{x.name}.scatter({arguments})"
        theirs = ours
    elif kind == "add":
        ours = f"{x.name}.scatter({arguments}, reduce='add')"
        theirs = f"{x.name}.scatter_add({arguments})"
    else:
        own = b.draw.chance(0.5)
        if kind == "mean" and not dtypes.is_float(x.dtype):
            return
        ours = f"{x.name}.scatter_reduce({arguments}, {kind!r}, include_self={own})"
        theirs = f"scattered({x.name}, {arguments}, {kind!r}, {own})"
    if kind in ("add", "sum"):
        count = shape[axis] + 1
        low, high = min(low * count, low), max(high * count, high)
    b.compute(
        ours,
        theirs,
        [x, index, source],
        x.shape,
        x.dtype,
        low,
        high,
        Rounding.EXACT if kind in ("set", "amax", "amin") else Rounding.WHOLE,
    )


def one_hot(b: Builder) -> None:
    """one_hot of an integer."""
    size = b.draw.between(1, 6)
    index, text = index_tensor(b, size)
    if len(index.shape) > 3 or index.size * size > MOST_ELEMENTS:
        return
    if text == index.name and index.low < 0:
        text = f"({text} % {size})"
    b.compute(
        f"{text}.one_hot({size})",
        f"functional.one_hot({text}, {size})",
        [index],
        (*index.shape, size),
        dtypes.int32,
        0,
        1,
        Rounding.EXACT,
    )


def masks(b: Builder) -> None:
    """x[mask] = number, and masked choices of parts."""
    x = any_with_axes(b)
    if x is None or not x.size:
        return
    mask = b.boolean(x.shape)
    c = b.draw.between(-3, 3) if not dtypes.is_unsigned(x.dtype) else 1
    if x.dtype is dtypes.bool:
        return
    b.compute(
        f"{x.name}.masked_fill({mask.name}, {c})",
        f"{x.name}.masked_fill({mask.name}, {c})",
        [x, mask],
        x.shape,
        x.dtype,
        min(x.low, c),
        max(x.high, c),
        Rounding.EXACT,
    )


FAMILY: Final = ((rows, 6), (gathering, 3), (scattering, 4), (one_hot, 1.5), (masks, 1.5))
"""Ops, and how often."""
