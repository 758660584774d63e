"""Views: a value of the ONNX graph, and how the axes of a node of the tensor graph lie in it.

Movement ops are carried out on the description as far as possible: axes that repeat have no axis
in the value, since operators of ONNX broadcast; permutations wait for an operator that minds; and
sliding windows stay a description for convolution and pooling.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy

from tiny_onnx.export.writer import Side, Sides, Writer
from tinycore.dtype import DType
from tinycore.errors import UnsupportedError
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape
from tinycore.uop.size import is_size

__all__ = ["Axis", "Role", "View", "Views", "Window", "whole"]

INT64_MIN: Final = -(1 << 63)


class Role:
    """Role of an axis: it shows an axis of the value, or the starts or offsets of its windows."""

    WHOLE, START, OFFSET = "whole", "start", "offset"


class Axis(NamedTuple):
    """The axis `base` of a value, in a role."""

    base: int
    role: str = Role.WHOLE


class Window(NamedTuple):
    """Windows along an axis: `offsets` elements, `dilation` apart, at each of `starts` places."""

    starts: Side
    offsets: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class View:
    """A value of shape `sides`. For each axis of the node `axes` names one of the value, or None
    where all elements are alike. Axes of the value that are not named have length 1.
    """

    name: str
    dtype: DType
    sides: Sides
    axes: tuple[Axis | None, ...]
    windows: dict[int, Window] = field(default_factory=dict)

    @property
    def is_uniform(self) -> bool:
        """True if all elements are alike."""
        return not any(self.axes)


def whole(name: str, dtype: DType, sides: Sides) -> View:
    """A value as it is."""
    return View(name, dtype, sides, tuple(map(Axis, range(len(sides)))))


class Views:
    """Movement ops, and values brought into a layout, written only where that is needed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    # --- layouts

    def arranged(self, view: View, shape: Shape, groups: Sequence[Sequence[int]]) -> str:
        """The value with one axis for each group of axes of the node, in this order: the product of
        their lengths, 1 for those along which all elements are alike.
        """
        view = self.without_windows(view)
        named = [axis.base for group in groups for a in group if (axis := view.axes[a])]
        others = [base for base in range(len(view.sides)) if base not in named]
        order = [*named, *others]
        name = view.name
        if named != sorted(named):
            name = self.writer.add("Transpose", name, perm=order)
            before = tuple([view.sides[base] for base in order])
        else:
            before = view.sides
        after = tuple(
            [self.writer.product([shape[a] for a in group if view.axes[a]]) for group in groups]
        )
        return self.writer.reshaped(name, before, after)

    def compact(self, view: View, shape: Shape, repeated: Collection[int] = ()) -> str:
        """The value in the axes of the node, of length 1 where all elements are alike, but for the
        axes in `repeated`.
        """
        name = self.arranged(view, shape, [[axis] for axis in range(len(shape))])
        before = tuple([side if view.axes[a] else 1 for a, side in enumerate(shape)])
        after = tuple(
            [side if view.axes[a] or a in repeated else 1 for a, side in enumerate(shape)]
        )
        return self.writer.expanded(name, view.dtype, before, after)

    def full(self, view: View, shape: Shape) -> str:
        """The value in the shape of the node."""
        return self.compact(view, shape, range(len(shape)))

    def settled(self, view: View, shape: Shape, repeated: Collection[int] = ()) -> View:
        """The same view of a value whose axes are those of the node."""
        name = self.compact(view, shape, repeated)
        shown = [bool(view.axes[a]) or a in repeated for a in range(len(shape))]
        sides = tuple([side if shown[a] else 1 for a, side in enumerate(shape)])
        return View(
            name, view.dtype, sides, tuple([Axis(a) if s else None for a, s in enumerate(shown)])
        )

    def scalar(self, view: View) -> str:
        """The one number of a uniform view, of shape ()."""
        return self.writer.reshaped(view.name, view.sides, ())

    def without_windows(self, view: View) -> View:
        """Windows copied to an axis of starts and an axis of offsets."""
        while view.windows:
            base, window = max(view.windows.items())
            view = self.gathered(view, base, window)
        return view

    def gathered(self, view: View, base: int, window: Window) -> View:
        """The windows of one axis copied."""
        starts = self.writer.counted(window.starts)
        if window.stride != 1:
            starts = self.writer.add("Mul", starts, self.writer.constant(window.stride))
        offsets = self.writer.constant(numpy.arange(window.offsets) * window.dilation)
        column = self.writer.add("Unsqueeze", starts, self.writer.constant([1]))
        index = self.writer.add("Add", column, offsets)
        name = self.writer.add("Gather", view.name, index, axis=base)
        sides = (*view.sides[:base], window.starts, window.offsets, *view.sides[base + 1 :])

        def moved(axis: Axis | None) -> Axis | None:
            if axis is None or axis.base < base:
                return axis
            if axis.base == base:
                return Axis(base + (axis.role == Role.OFFSET))
            return axis._replace(base=axis.base + 1)

        windows = {b + (b > base): w for b, w in view.windows.items() if b != base}
        return View(name, view.dtype, sides, tuple(map(moved, view.axes)), windows)

    # --- movement ops

    def moved(self, node: UOp, view: View) -> View:
        """A view after a movement op."""
        shape = node.src[0].shape
        match node.op:
            case Op.RESHAPE:
                return self.reshape(view, shape, node.shape)
            case Op.PERMUTE:
                return replace(view, axes=tuple([view.axes[a] for a in node.arg]))
            case Op.EXPAND:
                axes = [
                    None if before == 1 and after != 1 else axis
                    for axis, before, after in zip(view.axes, shape, node.shape, strict=True)
                ]
                return replace(view, axes=tuple(axes))
            case Op.SHRINK:
                return self.shrink(view, shape, node.arg)
            case Op.PAD:
                return self.pad(view, shape, node.arg)
            case Op.FLIP:
                return self.flip(view, shape, node.arg)
            case Op.SKEW:
                return self.skew(view, shape, node.arg)
            case _:
                return self.unskew(view, shape, node.arg)

    def reshape(self, view: View, before: Shape, after: Shape) -> View:
        """Axes merged and split, within the value where they lie side by side."""
        groups = matched(before, after)
        repeated = {
            axis
            for old, new in groups
            if len(old) + len(new) > 2 and any(view.axes[a] for a in old)
            for axis in old
            if not view.axes[axis]
        }
        if repeated or not all(self.lies_together(view, old, new) for old, new in groups):
            view = self.settled(view, before, repeated)
        return self.regrouped(view, groups, after)

    def lies_together(self, view: View, old: Sequence[int], new: Sequence[int]) -> bool:
        """True if axes that become others lie side by side in the value, or need not."""
        axes = [view.axes[a] for a in old]
        if not any(axes) or (len(old) == len(new) == 1):
            return True
        bases = [axis.base for axis in axes if axis and axis.role == Role.WHOLE]
        named = sorted({axis.base for axis in view.axes if axis and view.sides[axis.base] != 1})
        if len(bases) != len(old) or not set(bases) <= set(named):
            return False
        first = named.index(bases[0])
        return named[first : first + len(bases)] == bases

    def regrouped(
        self, view: View, groups: list[tuple[list[int], list[int]]], after: Shape
    ) -> View:
        """A view whose groups of axes, side by side in the value, become others."""
        begins: dict[int, list[int]] = {}  # axes of the node by the axis of the value they begin at
        kept: dict[int, list[tuple[int, str]]] = {}
        for old, new in groups:
            axis = view.axes[old[0]]
            if axis is not None and axis.base in view.windows:
                kept.setdefault(axis.base, []).append((new[0], axis.role))
            elif axis is not None:
                begins[axis.base] = new
        axes: list[Axis | None] = [None] * len(after)
        sides: list[Side] = []
        windows: dict[int, Window] = {}
        for base in range(len(view.sides)):  # those within a group, and of length 1, go
            place = len(sides)
            for a, role in kept.get(base, ()):
                axes[a] = Axis(place, role)
            if base in view.windows:
                windows[place] = view.windows[base]
                sides.append(view.sides[base])
            for a in begins.get(base, ()):
                axes[a] = Axis(len(sides))
                sides.append(after[a])
        name = self.writer.reshaped(view.name, view.sides, tuple(sides))
        return View(name, view.dtype, tuple(sides), tuple(axes), windows)

    def shrink(self, view: View, shape: Shape, bounds: Sequence[tuple[Side, Side]]) -> View:
        """A box."""
        cut = {a: b for a, b in enumerate(bounds) if b != (0, shape[a]) and view.axes[a]}
        if any(axis.role != Role.WHOLE for a in cut if (axis := view.axes[a])):
            view = self.without_windows(view)
        bases = [axis.base for a in cut if (axis := view.axes[a])]
        if not bases:
            return view
        name = self.writer.add(
            "Slice",
            view.name,
            self.writer.sizes([start for start, _ in cut.values()]),
            self.writer.sizes([stop for _, stop in cut.values()]),
            self.writer.constant(bases),
        )
        sides = list(view.sides)
        for base, (start, stop) in zip(bases, cut.values(), strict=True):
            sides[base] = stop - start
        return replace(view, name=name, sides=tuple(sides))

    def pad(self, view: View, shape: Shape, widths: Sequence[tuple[Side, Side]]) -> View:
        """Zeros around."""
        padded = [a for a, width in enumerate(widths) if width != (0, 0)]
        if not padded:
            return view
        if any(not (axis := view.axes[a]) or axis.role != Role.WHOLE for a in padded):
            view = self.settled(view, shape, padded)
        sides = list(view.sides)
        pads: list[Side] = [0] * (2 * len(sides))
        for a in padded:
            axis = view.axes[a]
            assert axis is not None
            pads[axis.base], pads[axis.base + len(sides)] = widths[a]
            sides[axis.base] = sides[axis.base] + widths[a][0] + widths[a][1]
        name = self.writer.computed("Pad", view.dtype, view.name, others=[self.writer.sizes(pads)])
        return replace(view, name=name, sides=tuple(sides))

    def flip(self, view: View, shape: Shape, is_flipped: Sequence[bool]) -> View:
        """Axes reversed."""
        flipped = [a for a, reverse in enumerate(is_flipped) if reverse and view.axes[a]]
        if any(axis.role != Role.WHOLE for a in flipped if (axis := view.axes[a])):
            view = self.without_windows(view)
        bases = [axis.base for a in flipped if (axis := view.axes[a])]
        if not bases:
            return view
        all_of = self.writer.constant
        name = self.writer.add(
            "Slice", view.name, all_of([-1] * len(bases)), all_of([INT64_MIN] * len(bases)),
            all_of(bases), all_of([-1] * len(bases)),
        )  # fmt: skip
        return replace(view, name=name)

    def skew(self, view: View, shape: Shape, how: Skew) -> View:
        """Windows along an axis: y[o, k] = x[o*stride + k*dilation, k]."""
        offsets = shape[how.window_axis]
        axis, along = view.axes[how.axis], view.axes[how.window_axis]
        if axis is None and along is None:
            return view
        is_one = (offsets, how.size) == (1, 1)  # whose axes a reshape drops, and what it cuts off
        if along is None and axis is not None and not (is_size(offsets) or is_one):
            if axis.role != Role.WHOLE:
                view = self.without_windows(view)
                axis = view.axes[how.axis]
                assert axis is not None
            axes = list(view.axes)
            axes[how.axis] = Axis(axis.base, Role.START)
            axes[how.window_axis] = Axis(axis.base, Role.OFFSET)
            window = Window(how.size, offsets, how.stride, how.dilation)
            return replace(view, axes=tuple(axes), windows={**view.windows, axis.base: window})
        k, o = self.fixed("SKEW", shape[how.window_axis], shape[how.axis], how.size)[::2]
        index = numpy.arange(o)[:, None] * how.stride + numpy.arange(k) * how.dilation
        return self.picked(view, shape, how, index * k + numpy.arange(k))

    def unskew(self, view: View, shape: Shape, how: Skew) -> View:
        """The adjoint: y[i, k] = x[(i - k*dilation)/stride, k], or 0."""
        k, size, after = self.fixed("UNSKEW", shape[how.window_axis], shape[how.axis], how.size)
        offset = numpy.arange(after)[:, None] - numpy.arange(k) * how.dilation
        valid = (offset >= 0) & (offset % how.stride == 0) & (offset // how.stride < size)
        index = numpy.where(valid, offset // how.stride * k + numpy.arange(k), size * k)
        return self.picked(view, shape, how, index)

    def fixed(self, op: str, *sides: Side) -> list[int]:
        """Lengths that may not vary."""
        if any(map(is_size, sides)):
            raise UnsupportedError(
                f"{op} over an axis of varying length is not exported. Leave that axis out of "
                "dynamic_axes."
            )
        return [int(side) for side in sides]

    def picked(self, view: View, shape: Shape, how: Skew, index: numpy.ndarray) -> View:
        """Elements of the two axes of a Skew by their joint positions; one more has a zero."""
        rank, pair = len(shape), (how.axis, how.window_axis)
        rest = [a for a in range(rank) if a not in pair]
        view = self.settled(view, shape, pair)
        count = shape[how.axis] * shape[how.window_axis]
        name = self.arranged(view, shape, [*[[a] for a in rest], list(pair)])
        if index.max(initial=0) >= count:
            pads = self.writer.constant([0] * (2 * len(rest) + 1) + [1])
            name = self.writer.computed("Pad", view.dtype, name, others=[pads])
        name = self.writer.add("Gather", name, self.writer.constant(index), axis=len(rest))
        sides = tuple([shape[a] if view.axes[a] else 1 for a in rest])
        axes: list[Axis | None] = [None] * rank
        for place, a in enumerate(rest):
            axes[a] = Axis(place) if view.axes[a] else None
        axes[how.axis], axes[how.window_axis] = Axis(len(rest)), Axis(len(rest) + 1)
        return View(name, view.dtype, (*sides, *index.shape), tuple(axes))


def matched(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes of a shape, and those of another that have the same elements; axes of length 1 apart."""
    old = [a for a, side in enumerate(before) if is_size(side) or side != 1]
    new = [a for a, side in enumerate(after) if is_size(side) or side != 1]
    if any(not is_size(side) and side == 0 for side in before):
        return [(old, new)]
    ends: list[tuple[int, int]] = []
    products = {}
    total: Side = 1
    for place, a in enumerate(new):
        total = total * after[a]
        products[total] = place + 1
    total = 1
    for place, a in enumerate(old):
        total = total * before[a]
        if total in products:
            ends.append((place + 1, products[total]))
    groups, at = [], (0, 0)
    for end in ends:
        groups.append((old[at[0] : end[0]], new[at[1] : end[1]]))
        at = end
    if at != (len(old), len(new)):
        raise UnsupportedError(f"a reshape of {before} to {after} is not exported")
    return groups
