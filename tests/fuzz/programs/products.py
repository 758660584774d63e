"""Families of ops that multiply and add up: matrices, einsum, convolution, pooling, attention.

Also the losses. Sizes are small: these ops are dear to compile.
"""

from __future__ import annotations

import math
from typing import Final

from tests.fuzz.programs.builder import MOST_ELEMENTS, Builder
from tests.fuzz.programs.draw import Content
from tests.fuzz.programs.facts import common
from tests.fuzz.programs.form import Rounding, Value
from tinycore.dtype import DType, dtypes
from tinycore.uop.shape import Shape


def matrices(b: Builder) -> None:
    """dot of any ranks, linear."""
    x = b.floating(-4, 4, lambda s: 0 < len(s) < 4, lambda: b.shape(1, 3), convert=False)
    if not 0 < len(x.shape) < 4:
        return
    inner, columns = x.shape[-1], b.draw.between(1, 6)
    kind = b.draw.pick(["matrix", "matrix", "vector", "batched", "linear"])
    if kind == "linear":
        w, bias = (b.like(s, x.dtype, -4, 4) for s in ((inner, columns), (columns,)))
        b.compute(
            f"{x.name}.linear({w.name}, {bias.name})",
            f"{x.name} @ {w.name} + {bias.name}",
            [x, w, bias],
            (*x.shape[:-1], columns),
            x.dtype,
            -16.0 * inner - 4,
            16.0 * inner + 4,
            Rounding.WHOLE,
        )
        return
    shape: Shape = (inner,) if kind == "vector" else (inner, columns)
    if kind == "batched" and len(x.shape) == 3:
        shape = (b.draw.pick([1, x.shape[0]]), *shape)
    y = b.like(shape, None, -4, 4)
    result = x.shape[:-1] + shape[-1:] * (len(shape) > 1)
    if math.prod(result) * inner > 4000:
        return
    text = f"{x.name} @ {y.name}" if b.draw.chance(0.5) else f"{x.name}.matmul({y.name})"
    b.compute(text, text, [x, y], result, common(x, y), -16.0 * inner, 16.0 * inner, Rounding.WHOLE)


FORMULAS: Final = (
    "ij,jk->ik", "ij,kj->ik", "i,j->ij", "ij,ij->", "bij,bjk->bik", "bij,kj->bik", "ij->ji",
    "ij->i", "ii->i", "ii->", "ijk,jl->ilk", "bhqd,bhkd->bhqk", "i,i", "ij,j", "ij,jk,kl->il",
    "...i,...i->...", "ijk->kj",
)  # fmt: skip


def einsums(b: Builder) -> None:
    """einsum of one to three operands."""
    formula = b.draw.pick(FORMULAS)
    dtype = b.draw.pick([None, dtypes.float32])
    sizes = {c: b.draw.between(1, 4) for c in "abcdefghijklmnopqrstuvwxyz"}
    left, _, right = formula.partition("->")
    operands, dots = [], b.shape(0, 2, zero=False)
    for letters in left.split(","):
        named = tuple(sizes[c] for c in letters.replace(".", ""))
        operands.append(b.like((*dots, *named) if "..." in letters else named, dtype, -2, 2))
    if math.prod(dots) > 60:
        return
    names = ", ".join(v.name for v in operands)
    if "->" not in formula:
        letters = left.replace(",", "")
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    shape = (*(dots if "..." in right else ()), *(sizes[c] for c in right.replace(".", "")))
    most = 2.0 ** len(operands) * 64
    b.compute(
        f"Tensor.einsum({formula!r}, {names})",
        f"torch.einsum({formula!r}, {names})",
        operands,
        shape,
        common(*operands),
        -most,
        most,
        Rounding.WHOLE,
        views=True,
    )


def image(b: Builder, channels: int, rank: int) -> Value:
    """A float value with a batch, channels and spatial axes."""

    def fresh() -> Shape:
        return (b.draw.between(1, 2), channels, *(b.draw.between(3, 6) for _ in range(rank)))

    return b.floating(
        -4,
        4,
        lambda s: (
            len(s) == rank + 2 and s[1] == channels and min(s[2:]) >= 3 and math.prod(s) <= 300
        ),
        fresh,
        convert=False,
    )


def usable(x: Value, channels: int, rank: int) -> bool:
    """True if `image` found one, and not something fitted from elsewhere."""
    return len(x.shape) == rank + 2 and x.shape[1] == channels and min(x.shape[2:]) >= 3


def convolution(b: Builder) -> None:
    """conv2d and conv_transpose2d over one or two axes, with groups, strides, dilations."""
    rank = b.draw.pick([1, 2, 2])
    groups = b.draw.pick([1, 1, 2])
    channels = groups * b.draw.between(1, 2)
    x = image(b, channels, rank)
    if not usable(x, channels, rank):
        return
    outputs = groups * b.draw.between(1, 2)
    kernel = tuple(b.draw.between(1, 3) for _ in range(rank))
    stride, dilation, padding = b.draw.between(1, 2), b.draw.pick([1, 1, 2]), b.draw.between(0, 1)
    backward = b.draw.chance(0.35)
    span = [dilation * (k - 1) + 1 for k in kernel]
    spatial = x.shape[2:]
    if backward:
        weight = b.like((channels, outputs // groups, *kernel), x.dtype, -2, 2)
        sizes = [(n - 1) * stride - 2 * padding + s for n, s in zip(spatial, span, strict=True)]
    else:
        weight = b.like((outputs, channels // groups, *kernel), x.dtype, -2, 2)
        sizes = [(n + 2 * padding - s) // stride + 1 for n, s in zip(spatial, span, strict=True)]
    shape = (x.shape[0], outputs, *sizes)
    if min(sizes) < 1 or math.prod(shape) > MOST_ELEMENTS:
        return
    bias = b.like((outputs,), x.dtype, -4, 4)
    name = "conv_transpose2d" if backward else "conv2d"
    arguments = f"groups={groups}, stride={stride}, dilation={dilation}, padding={padding}"
    most = 8.0 * channels * math.prod(kernel) + 4
    operands = f"{x.name}, {weight.name}, {bias.name}"
    b.compute(
        f"{x.name}.{name}({weight.name}, {bias.name}, {arguments})",
        f"functional.{name.replace('2d', f'{rank}d')}({operands}, {arguments})",
        [x, weight, bias],
        shape,
        x.dtype,
        -most,
        most,
        Rounding.WHOLE,
    )


def pooling(b: Builder) -> None:
    """avg_pool2d and max_pool2d, with padding, strides, dilation and ceil_mode."""
    x = image(b, b.draw.between(1, 2), 2)
    if len(x.shape) != 4 or min(x.shape[2:]) < 3 or not x.size:
        return
    kernel = (b.draw.between(1, 3), b.draw.between(1, 3))
    stride, padding = b.draw.between(1, 3), b.draw.between(0, min(kernel) // 2)
    upward = b.draw.chance(0.3)
    shape: Shape = x.shape[:2]
    for n, k in zip(x.shape[2:], kernel, strict=True):
        over = n + 2 * padding - k
        count = (-(-over // stride) if upward else over // stride) + 1
        if upward and (count - 1) * stride >= n + padding:
            count -= 1
        shape = (*shape, count)
    arguments = f"{kernel}, stride={stride}, padding={padding}, ceil_mode={upward}"
    if b.draw.chance(0.5):
        include = b.draw.chance(0.5)
        arguments += f", count_include_pad={include}"
        b.compute(
            f"{x.name}.avg_pool2d({arguments})",
            f"functional.avg_pool2d({x.name}, {arguments})",
            [x],
            shape,
            x.dtype,
            -4,
            4,
        )
    elif b.draw.chance(0.3):
        b.several(
            f"{x.name}.max_pool2d({arguments}, return_indices=True)",
            f"functional.max_pool2d({x.name}.detach(), {arguments}, return_indices=True)",
            [x],
            [(shape, x.dtype, -4, 4), (shape, dtypes.int32, 0, math.prod(x.shape[2:]) - 1)],
            Rounding.EXACT,
        )
        b.frozen.add(list(b.live)[-2])
    else:
        b.compute(
            f"{x.name}.max_pool2d({arguments})",
            f"max_pooled({x.name}, {shape}, {arguments})",
            [x],
            shape,
            x.dtype,
            -4,
            4,
            Rounding.EXACT,
        )


def attention(b: Builder) -> None:
    """scaled_dot_product_attention: plain, causal, masked, with shared heads."""
    batch, heads, length, width = 1, b.draw.pick([1, 2]), b.draw.between(1, 4), b.draw.between(1, 4)
    dtype: DType = b.draw.pick([dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16])
    kind = b.draw.pick(["plain", "causal", "bool", "float", "shared"])
    keys = length if kind == "causal" else b.draw.between(1, 4)
    shared = 2 if kind == "shared" else 1
    q = b.like((batch, heads * shared, length, width), dtype, -2, 2)
    k, v = (b.like((batch, heads, keys, width), dtype, -2, 2) for _ in range(2))
    inputs, tail = [q, k, v], ""
    if kind == "causal":
        tail = ", is_causal=True"
    elif kind == "shared":
        tail = ", enable_gqa=True"
    elif kind == "float":
        inputs.append(mask := b.like((length, keys), dtype, -2, 2))
        tail = f", {mask.name}"
    elif kind == "bool":
        mask = b.input((length, keys), dtypes.bool, 0, 1)
        inputs.append(mask)
        first = f"(Tensor.arange({keys}) == 0)"  # each row sees something
        tail = f", {mask.name} | {first}"
    names = ", ".join(x.name for x in (k, v))
    theirs = tail.replace("Tensor.arange", "torch.arange")
    b.compute(
        f"{q.name}.scaled_dot_product_attention({names}{tail})",
        f"attention({q.name}, {names}{theirs})",
        inputs,
        q.shape,
        dtype,
        -2,
        2,
        slope=16,
    )


def losses(b: Builder) -> None:
    """Losses of scores and labels, in each reduction."""
    reduction = b.draw.pick(["mean", "sum", "none"])
    tail = f"reduction={reduction!r}"
    x = b.floating(
        -4,
        4,
        lambda s: len(s) == 2 and 0 not in s and s[1] <= 9,
        lambda: (b.draw.between(1, 5), b.draw.between(1, 5)),
        convert=False,
    )
    if len(x.shape) != 2 or not x.size:
        return
    rows, classes = x.shape
    shape: Shape = (rows,) if reduction == "none" else ()
    most = 13.0 * (rows if reduction == "sum" else 1)
    labels = b.input((rows,), dtypes.int32, 0, classes - 1, Content.WHOLE)
    smoothing = b.draw.pick([0.0, 0.125])
    kind = b.draw.pick(["cross", "sparse", "nll", "binary", "logits"])
    call = f"functional.cross_entropy({x.name}, {labels.name}, {tail}, label_smoothing={smoothing})"
    if kind == "cross":
        ours = f"{x.name}.cross_entropy({labels.name}, {tail}, label_smoothing={smoothing})"
        b.compute(ours, call, [x, labels], shape, x.dtype, 0, most, absolute=most, slope=4)
    elif kind == "sparse":
        ours = (
            f"{x.name}.sparse_categorical_crossentropy({labels.name}, {tail}, "
            f"label_smoothing={smoothing})"
        )
        b.compute(ours, call, [x, labels], shape, x.dtype, 0, most, absolute=most, slope=4)
    elif kind == "nll":
        ours = f"{x.name}.nll_loss({labels.name}, {tail})"
        theirs = f"functional.nll_loss({x.name}, {labels.name}, {tail})"
        b.compute(ours, theirs, [x, labels], shape, x.dtype, -most, most)
    else:
        y = b.like(x.shape, x.dtype, 0, 1)
        p = b.fitted(x, 0.125, 0.875) if kind == "binary" else x
        name = "crossentropy" + "_logits" * (kind == "logits")
        theirs = "cross_entropy" + "_with_logits" * (kind == "logits")
        shape = x.shape if reduction == "none" else ()
        b.compute(
            f"{p.name}.binary_{name}({y.name}, {tail})",
            f"functional.binary_{theirs}({p.name}, {y.name}.clamp(0, 1), {tail})",
            [p, y],
            shape,
            x.dtype,
            -most * classes,
            most * classes,
            absolute=most * classes,
            slope=4,
        )


FAMILY: Final = (
    (matrices, 7), (einsums, 4), (convolution, 3), (pooling, 3), (attention, 2), (losses, 3),
)  # fmt: skip
"""Ops, and how often."""
