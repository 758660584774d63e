"""Families of ops along axes: reductions, statistics, running folds, softmax, sorting.

`b` is the builder throughout.
"""

from __future__ import annotations

import math
from typing import Final

from tests.fuzz.programs.builder import Builder
from tests.fuzz.programs.form import Rounding, Value
from tests.fuzz.programs.moving import filled
from tinycore.dtype import dtypes, sum_acc_dtype
from tinycore.uop.shape import Shape


def some_axes(b: Builder, shape: Shape) -> tuple[list[int], str]:
    """Axes to fold, and how they are written: None, one (perhaps negative) or a tuple."""
    everything = list(range(len(shape)))
    if not shape or b.draw.chance(0.25):
        return everything, "None"
    if b.draw.chance(0.6):
        axis = b.draw.pick(everything)
        return [axis], str(axis - len(shape) if b.draw.chance(0.4) else axis)
    axes = b.draw.subset(everything)
    return axes, str(tuple(axes))


def folded(shape: Shape, axes: list[int], keep: bool) -> Shape:
    """The shape after folding."""
    if keep:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def one_axis(b: Builder, x: Value) -> tuple[int, int]:
    """An axis, and how it is written."""
    axis = b.draw.below(len(x.shape))
    return axis, axis - len(x.shape) if b.draw.chance(0.4) else axis


def summing(b: Builder) -> None:
    """sum, mean, prod of floats."""
    kind = b.draw.pick(["sum", "sum", "sum", "mean", "mean", "prod"])
    x = b.floating(-1.5 if kind == "prod" else -8, 1.5 if kind == "prod" else 8, convert=False)
    axes, text = some_axes(b, x.shape)
    count = math.prod(x.shape[a] for a in axes)
    if (kind == "prod" and count > 24) or (kind == "mean" and not count):
        return
    keep = b.draw.chance(0.4)
    most = {"sum": count * max(abs(x.low), abs(x.high)), "mean": 8, "prod": 1.5**count}[kind]
    tail = ", keepdim=True" if keep else ""
    axes_text = str(tuple(axes)) if text == "None" and kind != "prod" else text
    theirs = f"{x.name}.{kind}({axes_text}{tail})" if axes else x.name
    if kind == "prod":
        theirs = f"product({x.name}, {tuple(axes)}, {keep})"
    b.compute(
        f"{x.name}.{kind}({text}{tail})",
        theirs,
        [x],
        folded(x.shape, axes, keep),
        x.dtype,
        -most,
        most,
        Rounding.ROUNDED if kind == "mean" else Rounding.WHOLE,
        views=True,
    )


def integer_summing(b: Builder) -> None:
    """sum, prod, max, min, any, all of integers or bools."""
    x = b.integer() if b.draw.chance(0.7) else b.boolean(b.shape())
    kind = b.draw.pick(["sum", "sum", "prod", "max", "min", "any", "all", "mean"])
    axes, text = some_axes(b, x.shape)
    empty = not math.prod(x.shape[a] for a in axes)
    if empty and kind in ("max", "min", "mean"):
        return
    keep = b.draw.chance(0.4)
    theirs = {
        "sum": f"{x.name}.long().sum({tuple(axes)}, {keep})" if axes else f"{x.name}.long()",
        "prod": f"product({x.name}.long(), {tuple(axes)}, {keep})",
        "max": f"{x.name}.amax({tuple(axes)}, {keep})",
        "min": f"{x.name}.amin({tuple(axes)}, {keep})",
        "any": f"{x.name}.bool().any({tuple(axes)}, {keep})" if axes else f"{x.name}.bool()",
        "all": f"{x.name}.bool().all({tuple(axes)}, {keep})" if axes else f"{x.name}.bool()",
        "mean": f"real({x.name}).mean({tuple(axes)}, {keep})" if axes else f"real({x.name})",
    }[kind]
    dtype = sum_acc_dtype(x.dtype) if kind in ("sum", "prod") else x.dtype
    dtype = dtypes.bool if kind in ("any", "all") else dtype
    dtype = dtypes.float32 if kind == "mean" else dtype
    low, high = (
        (x.low, x.high)
        if kind in ("max", "min", "mean")
        else ((0, 1) if dtype is dtypes.bool else (dtypes.min(dtype), dtypes.max(dtype)))
    )
    b.compute(
        f"{x.name}.{kind}({text}, keepdim={keep})",
        theirs,
        [x],
        folded(x.shape, axes, keep),
        dtype,
        float(low),
        float(high),
        Rounding.ROUNDED if kind == "mean" else Rounding.EXACT,
        views=True,
    )


def extremes(b: Builder) -> None:
    """max and min of floats."""
    kind = b.draw.pick(["max", "min"])
    x = b.floating(-99, 99, lambda s: 0 not in s, lambda: b.shape(zero=False), convert=False)
    if not x.size:
        return
    axes, text = some_axes(b, x.shape)
    keep = b.draw.chance(0.4)
    theirs = f"{x.name}.a{kind}({tuple(axes)}, {keep})" if axes else x.name
    b.compute(
        f"{x.name}.{kind}({text}, keepdim={keep})",
        theirs,
        [x],
        folded(x.shape, axes, keep),
        x.dtype,
        x.low,
        x.high,
        Rounding.EXACT,
        views=True,
    )


def places(b: Builder) -> None:
    """argmax and argmin, along an axis or over all of a tensor."""
    kind = b.draw.pick(["argmax", "argmin"])
    x = b.anything(filled, lambda: b.shape(1, zero=False))
    if not filled(x.shape):
        return
    axis, text = one_axis(b, x)
    keep, axes = b.draw.chance(0.3), [axis]
    if b.draw.chance(0.2):
        keep, axes = False, list(range(len(x.shape)))
        ours, theirs = f"{x.name}.{kind}()", f"first_{kind}({x.name}.flatten(), 0)"
    else:
        ours = f"{x.name}.{kind}({text}, keepdim={keep})"
        theirs = f"first_{kind}({x.name}, {text}, {keep})"
    b.compute(
        ours,
        theirs,
        [x],
        folded(x.shape, axes, keep),
        dtypes.int32,
        0,
        math.prod(x.shape) - 1,
        Rounding.EXACT,
    )


def statistics(b: Builder) -> None:
    """var, std, their means, norms."""
    kind = b.draw.pick(["var", "std", "var_mean", "std_mean", "normalize", "layernorm"])
    x = b.floating(-8, 8, filled, lambda: b.shape(1, zero=False), convert=False)
    if not filled(x.shape):
        return
    axis, text = one_axis(b, x)
    keep, correction = b.draw.chance(0.4), b.draw.below(2)
    shape = folded(x.shape, [axis], keep)
    if kind == "normalize":
        p = b.draw.pick([1, 2, 3])
        b.compute(
            f"{x.name}.normalize({p}, {text}, eps=0.5)",
            f"functional.normalize({x.name}, {p}, {text}, eps=0.5)",
            [x],
            x.shape,
            x.dtype,
            -1,
            1,
            slope=4,
        )
    elif kind == "layernorm":
        centered = f"({x.name} - {x.name}.mean({text}, keepdim=True))"
        variance = f"({x.name}.var({text}, False, keepdim=True) + 0.25)"
        theirs = f"{centered} / {variance}.sqrt()"
        b.compute(
            f"{x.name}.layernorm({text}, eps=0.25)",
            theirs,
            [x],
            x.shape,
            x.dtype,
            -32,
            32,
            absolute=16,
            slope=16,
        )
    elif x.shape[axis] - correction > 0 and (kind.startswith("var") or x.shape[axis] > 2):
        outputs = [(shape, x.dtype, 0.0, 140.0), (shape, x.dtype, -8.0, 8.0)]
        arguments = f"{text}, correction={correction}, keepdim={keep}"
        ours, theirs = f"{x.name}.{kind}({arguments})", f"torch.{kind}({x.name}, {arguments})"
        made = b.several(ours, theirs, [x], outputs[: 1 + ("mean" in kind)], absolute=8, slope=8)
        if kind.startswith("std"):
            b.frozen.add(made[0].name)  # of equal elements the derivative is 0 in torch, not NaN


def softmaxes(b: Builder) -> None:
    """softmax, log_softmax, logsumexp and the like."""
    kind = b.draw.pick(["softmax", "softmax", "log_softmax", "softmin", "logsumexp"])
    x = b.floating(-8, 8, filled, lambda: b.shape(1, zero=False), convert=False)
    if not filled(x.shape):
        return
    axis, text = one_axis(b, x)
    if kind == "logsumexp":
        keep = b.draw.chance(0.4)
        b.compute(
            f"{x.name}.logsumexp({text}, {keep})",
            f"{x.name}.logsumexp({text}, {keep})",
            [x],
            folded(x.shape, [axis], keep),
            x.dtype,
            -8,
            15,
            absolute=8,
            slope=4,
        )
        return
    least, most = (-23.0, 0.0) if kind == "log_softmax" else (0.0, 1.0)
    theirs = f"functional.{kind}({x.name}, {text})"
    b.compute(
        f"{x.name}.{kind}({text})",
        theirs,
        [x],
        x.shape,
        x.dtype,
        least,
        most,
        absolute=8 if kind == "log_softmax" else 0,
        slope=4,
    )


def running(b: Builder) -> None:
    """cumsum, cumprod, cummax, cummin, logcumsumexp."""
    kind = b.draw.pick(["cumsum", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
    if kind == "cumsum" and b.draw.chance(0.3):
        y = b.integer(lambda s: len(s) > 0, lambda: b.shape(1))
        if y.shape:
            _, text = one_axis(b, y)
            dtype = sum_acc_dtype(y.dtype)
            b.compute(
                f"{y.name}.cumsum({text})",
                f"{y.name}.cumsum({text})",
                [y],
                y.shape,
                dtype,
                float(dtypes.min(dtype)),
                float(dtypes.max(dtype)),
                Rounding.EXACT,
                views=True,
            )
        return
    bound = 1.25 if kind == "cumprod" else 8
    x = b.floating(-bound, bound, lambda s: len(s) > 0, lambda: b.shape(1), convert=False)
    if not x.shape:
        return
    axis, text = one_axis(b, x)
    size = x.shape[axis]
    if kind == "cumprod" and size > 24:
        return
    if kind in ("cummax", "cummin"):
        b.several(
            f"{x.name}.{kind}({text})",
            f"torch.{kind}({x.name}, {text})",
            [x],
            [(x.shape, x.dtype, x.low, x.high), (x.shape, dtypes.int32, 0, max(0, size - 1))],
            Rounding.EXACT,
            views=True,
        )
        return
    most = {"cumsum": 8.0 * size, "cumprod": 1.25**size, "logcumsumexp": 15.0}[kind]
    b.compute(
        f"{x.name}.{kind}({text})",
        f"torch.{kind}({x.name}, {text})",
        [x],
        x.shape,
        x.dtype,
        -most,
        most,
        Rounding.ROUNDED if kind[0] == "l" else Rounding.WHOLE,
        views=True,
        absolute=8 if kind[0] == "l" else 0,
        slope=4 if kind[0] == "l" else 0,
    )


def sorting(b: Builder) -> None:
    """sort, argsort, topk; stable."""
    x = b.anything(lambda s: filled(s) and max(s) <= 40, lambda: b.shape(1, zero=False))
    if not filled(x.shape) or x.dtype is dtypes.bool:
        return
    axis, text = one_axis(b, x)
    if x.shape[axis] > 40:
        return
    down = b.draw.chance(0.5)
    kind = b.draw.pick(["sort", "sort", "argsort", "topk"])
    numbers = (0, x.shape[axis] - 1)
    theirs = f"torch.sort({x.name}, stable=True, dim={text}, descending={down})"
    if kind == "argsort":
        b.compute(
            f"{x.name}.argsort({text}, {down})",
            f"{theirs}[1]",
            [x],
            x.shape,
            dtypes.int32,
            *numbers,
            Rounding.EXACT,
        )
        return
    shape = x.shape
    ours = f"{x.name}.sort({text}, {down})"
    if kind == "topk":
        k = b.draw.between(1, shape[axis])
        shape = (*shape[:axis], k, *shape[axis + 1 :])
        ours = f"{x.name}.topk({k}, {text}, {down})"
        theirs = f"[t.narrow({text}, 0, {k}) for t in {theirs}]"
    b.several(
        ours,
        theirs,
        [x],
        [(shape, x.dtype, x.low, x.high), (shape, dtypes.int32, *numbers)],
        Rounding.EXACT,
        views=True,
    )


FAMILY: Final = (
    (summing, 9), (integer_summing, 3), (extremes, 3), (places, 2), (statistics, 3), (softmaxes, 4),
    (running, 4), (sorting, 3),
)  # fmt: skip
"""Ops, and how often."""
