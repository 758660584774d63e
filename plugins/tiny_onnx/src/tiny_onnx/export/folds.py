"""Reductions: sums of products as MatMul and Conv, maxima of windows as MaxPool.

A product of tensors is a sum over the elementwise product of two operands that repeat along other
axes. Written out it would take memory for every single product, so it is recognized here: by the
axes that each operand has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tiny_onnx.export.views import Axis, Role, View, Views, whole
from tiny_onnx.export.writer import KERNELS, Side, Sides, Writer
from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element
from tinycore.uop.shape import Shape
from tinycore.uop.size import is_size

__all__ = ["Folds"]

REDUCTIONS: Final = {
    Op.ADD: "ReduceSum", Op.MUL: "ReduceProd", Op.MAX: "ReduceMax", Op.MIN: "ReduceMin",
}  # fmt: skip
ON_BOOL: Final = {Op.ADD: Op.MAX, Op.MUL: Op.MIN}
MOST_SPATIAL: Final = 3
"""Axes along which runtimes slide windows."""


class Factor(NamedTuple):
    """One operand of a product."""

    view: View
    axes: tuple[bool, ...]
    """True for the axes of the product along which its elements differ."""


class Folds:
    """Reductions of views."""

    def __init__(self, writer: Writer, views: Views) -> None:
        self.writer = writer
        self.views = views

    def reduced(self, node: UOp, view: View, factors: Sequence[View]) -> View:
        """A view of a REDUCE_AXIS; `factors` are the operands if it folds a product."""
        op, axes = node.arg
        shape = node.src[0].shape
        found = None
        if any(not is_size(side) and side == 0 for side in shape):
            return self.empty(node, op)
        if op is Op.ADD and len(factors) == 2 and node.dtype is not dtypes.bool:
            found = self.contracted(node, shape, set(axes), factors)
        elif op is Op.MAX and view.windows:
            found = self.pooled(node, view, shape, set(axes))
        return found or self.plain(node, view, shape, op, axes)

    def empty(self, node: UOp, op: Op) -> View:
        """A fold over no elements, or one without results."""
        value = self.writer.number(neutral_element(op, node.dtype), node.dtype)
        name = self.writer.expanded(value, node.dtype, (), node.shape)
        return whole(name, node.dtype, node.shape)

    def plain(self, node: UOp, view: View, shape: Shape, op: Op, axes: Sequence[int]) -> View:
        """A reduction of the value's own axes, and what axes along which it is alike make of it."""
        writer, dtype = self.writer, node.dtype
        if any(axis.role != Role.WHOLE for a in axes if (axis := view.axes[a])):
            view = self.views.without_windows(view)
        if op is Op.MUL and any(view.axes[a] is None and shape[a] != 1 for a in axes):
            view = self.views.settled(view, shape, axes)
        bases = [axis.base for a in axes if (axis := view.axes[a])]
        name = view.name
        if bases and op in (Op.ADD, Op.MUL) and dtypes.is_int(dtype):
            return self.wrapping(node, view, shape, op, axes)
        if bases:
            if dtype is dtypes.bool:
                op = ON_BOOL.get(op, op)
            over = writer.constant(bases)
            name = writer.computed(REDUCTIONS[op], dtype, name, others=[over], keepdims=1)
        if op is Op.ADD:
            name = self.times(name, node, [shape[a] for a in axes if view.axes[a] is None])
        sides = tuple([1 if b in bases else side for b, side in enumerate(view.sides)])
        left = tuple([None if a in axes else axis for a, axis in enumerate(view.axes)])
        return View(name, dtype, sides, left, view.windows)

    def wrapping(self, node: UOp, view: View, shape: Shape, op: Op, axes: Sequence[int]) -> View:
        """A sum or product of integers. onnxruntime folds them as floats of 64 bits, which neither
        wrap nor are exact: a sum is a MatMul here, and a product one of halves.
        """
        writer = self.writer
        real = [a for a in axes if view.axes[a]]
        kept = [a for a in range(len(shape)) if view.axes[a] and a not in axes]
        count = product(shape, real)
        name = self.views.arranged(view, shape, [*[[a] for a in kept], real])
        if op is Op.ADD:
            ones = writer.expanded(writer.number(1, node.dtype), node.dtype, (), (count,))
            name = writer.computed("MatMul", node.dtype, name, ones)
            name = self.times(name, node, [shape[a] for a in axes if not view.axes[a]])
        else:
            (left,), axis = self.views.fixed("REDUCE_AXIS", count), writer.constant([len(kept)])
            while left > 1:
                half = left // 2
                parts = [
                    writer.add(
                        "Slice", name, writer.sizes([start]), writer.sizes([start + length]), axis
                    )
                    for start, length in ((0, half), (half, half), (2 * half, left - 2 * half))
                ]
                name = writer.computed("Mul", node.dtype, *parts[:2])
                if left % 2:
                    name = writer.add("Concat", name, parts[2], axis=len(kept))
                left = half + left % 2
        before = (*[shape[a] for a in kept], *([1] if op is Op.MUL else []))
        return self.named(name, node, before, shape, kept)

    def times(self, name: str, node: UOp, sides: Sequence[Side]) -> str:
        """A sum over axes along which all elements are alike."""
        count = math.prod(sides)
        if not is_size(count) and count == 1:
            return name
        if node.dtype is dtypes.bool:
            return name
        number = self.writer.cast(self.writer.size(count), dtypes.int64, node.dtype)
        return self.writer.computed("Mul", node.dtype, name, number)

    # --- products

    def contracted(
        self, node: UOp, shape: Shape, axes: set[int], views: Sequence[View]
    ) -> View | None:
        """The sum of a product as MatMul or Conv; None where it is no product of tensors."""
        left, right = (Factor(v, tuple(map(bool, v.axes))) for v in views)
        is_matrix = [
            any(f.axes[a] and not g.axes[a] and a not in axes for a in range(len(shape)))
            for f, g in ((left, right), (right, left))
        ]
        shared = [a for a in axes if left.axes[a] and right.axes[a]]
        if not any(is_matrix) or not shared:
            return None
        for image, weight in ((left, right), (right, left)):
            found = self.convolved(node, shape, axes, image, weight)
            if found is not None:
                return found
        return self.multiplied(node, shape, axes, left, right)

    def multiplied(
        self, node: UOp, shape: Shape, axes: set[int], left: Factor, right: Factor
    ) -> View:
        """A MatMul, of which axes are batches, rows, columns or steps of the sum."""
        unnamed = [a for a in axes if not left.axes[a] and not right.axes[a]]
        left, right = (
            self.alone_summed(node, f, g, shape, axes) for f, g in ((left, right), (right, left))
        )
        every = range(len(shape))
        batch = [a for a in every if left.axes[a] and right.axes[a] and a not in axes]
        steps = [a for a in every if left.axes[a] and right.axes[a] and a in axes]
        rows = [a for a in every if left.axes[a] and not right.axes[a] and a not in axes]
        columns = [a for a in every if right.axes[a] and not left.axes[a] and a not in axes]
        batches = [[a] for a in batch]
        name = self.writer.computed(
            "MatMul",
            node.dtype,
            self.views.arranged(left.view, shape, [*batches, rows, steps]),
            self.views.arranged(right.view, shape, [*batches, steps, columns]),
        )
        before = (*[shape[a] for a in batch], product(shape, rows), product(shape, columns))
        order = [*batch, *rows, *columns]
        name = self.times(name, node, [shape[a] for a in unnamed])
        return self.named(name, node, before, shape, order)

    def alone_summed(
        self, node: UOp, factor: Factor, other: Factor, shape: Shape, axes: set[int]
    ) -> Factor:
        """A factor summed over the axes that it alone has."""
        alone = [a for a in axes if factor.axes[a] and not other.axes[a]]
        if not alone:
            return factor
        view = self.plain(node, factor.view, shape, Op.ADD, alone)
        return Factor(view, tuple(map(bool, view.axes)))

    def named(
        self, name: str, node: UOp, before: Sides, shape: Shape, order: Sequence[int]
    ) -> View:
        """A result whose axes are these of the operand, merged as `before` says."""
        sides = tuple([shape[a] for a in order])
        name = self.writer.reshaped(name, before, sides)
        axes: list[Axis | None] = [None] * len(shape)
        for place, a in enumerate(order):
            axes[a] = Axis(place)
        return View(name, node.dtype, sides, tuple(axes))

    def convolved(
        self, node: UOp, shape: Shape, axes: set[int], image: Factor, weight: Factor
    ) -> View | None:
        """A Conv, if one factor shows windows that the other has a number for each element of."""
        view, every = image.view, range(len(shape))
        if not 1 <= len(view.windows) <= MOST_SPATIAL or weight.view.windows:
            return None
        starts = self.in_role(view, Role.START)
        offsets = self.in_role(view, Role.OFFSET)
        fits = all(a in axes and weight.axes[a] for a in offsets.values())
        fits &= all(a not in axes and not weight.axes[a] for a in starts.values())
        fits &= all(image.axes[a] == weight.axes[a] for a in axes)
        if not fits or node.dtype not in KERNELS["Conv"] or starts.keys() != offsets.keys():
            return None
        plain = [a for a in every if a not in (*starts.values(), *offsets.values())]
        batch = [a for a in plain if image.axes[a] and not weight.axes[a]]
        groups = [a for a in plain if image.axes[a] and weight.axes[a] and a not in axes]
        channels = [a for a in plain if image.axes[a] and a in axes]
        filters = [a for a in plain if weight.axes[a] and not image.axes[a] and a not in axes]
        bases, count = sorted(view.windows), product(shape, groups)
        if is_size(count):
            return None
        pixels = self.image(view, shape, [batch, [*groups, *channels]])
        kernel = self.views.arranged(
            weight.view, shape, [groups, filters, channels, *[[offsets[b]] for b in bases]]
        )
        inner = [shape[offsets[b]] for b in bases]
        sides = (count, product(shape, filters), product(shape, channels), *inner)
        kernel = self.writer.reshaped(
            kernel, sides, (count * product(shape, filters), product(shape, channels), *inner)
        )
        name = self.writer.add(
            "Conv", pixels, kernel, group=int(count), **self.sliding(view, bases)
        )
        outer = [shape[starts[b]] for b in bases]
        before = (product(shape, batch), count * product(shape, filters), *outer)
        order = [*batch, *groups, *filters, *[starts[b] for b in bases]]
        unnamed = [shape[a] for a in axes if not image.axes[a]]
        return self.named(self.times(name, node, unnamed), node, before, shape, order)

    # --- windows

    def in_role(self, view: View, role: str) -> dict[int, int]:
        """The axis of the node in a role, by the axis of the value."""
        return {axis.base: a for a, axis in enumerate(view.axes) if axis and axis.role == role}

    def sliding(self, view: View, bases: Sequence[int]) -> dict[str, list[int]]:
        """The attributes of an operator on windows."""
        windows = [view.windows[base] for base in bases]
        return {
            "kernel_shape": [window.offsets for window in windows],
            "strides": [window.stride for window in windows],
            "dilations": [window.dilation for window in windows],
        }

    def image(self, view: View, shape: Shape, groups: Sequence[Sequence[int]]) -> str:
        """The value as batch, channels and the axes with windows, as long as all windows."""
        named = [axis.base for group in groups for a in group if (axis := view.axes[a])]
        bases = sorted(view.windows)
        others = [b for b in range(len(view.sides)) if b not in named and b not in bases]
        order = [*named, *others, *bases]
        name, sides = view.name, tuple([view.sides[b] for b in order])
        if order != sorted(order):
            name = self.writer.add("Transpose", name, perm=order)
        lengths = [view.sides[base] for base in bases]
        name = self.writer.reshaped(
            name, sides, (*[product(shape, group) for group in groups], *lengths)
        )
        for place, base in enumerate(bases):
            window, length = view.windows[base], view.sides[base]
            span = (window.offsets - 1) * window.dilation
            starts = (length - span - 1) // window.stride + 1
            if starts != window.starts:  # fewer windows than there are
                end = (window.starts - 1) * window.stride + span + 1
                name = self.writer.add(
                    "Slice", name, self.writer.sizes([0]), self.writer.sizes([end]),
                    self.writer.constant([place + len(groups)]),
                )  # fmt: skip
        return name

    def pooled(self, node: UOp, view: View, shape: Shape, axes: set[int]) -> View | None:
        """A MaxPool, if all elements of windows are folded, and nothing else."""
        starts, offsets = self.in_role(view, Role.START), self.in_role(view, Role.OFFSET)
        folded = {a for a in axes if view.axes[a]}
        if folded != set(offsets.values()) or starts.keys() != offsets.keys():
            return None
        if len(starts) > MOST_SPATIAL or node.dtype not in KERNELS["MaxPool"]:
            return None
        bases = sorted(view.windows)
        channels = [a for a, axis in enumerate(view.axes) if axis and axis.role == Role.WHOLE]
        pixels = self.image(view, shape, [[], channels])
        name = self.writer.add("MaxPool", pixels, **self.sliding(view, bases))
        before = (1, product(shape, channels), *[shape[starts[b]] for b in bases])
        return self.named(name, node, before, shape, [*channels, *[starts[b] for b in bases]])


def product(shape: Shape, axes: Sequence[int]) -> Side:
    """The number of elements of some axes."""
    return math.prod([shape[a] for a in axes])
