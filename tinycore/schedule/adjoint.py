"""The adjoint of sliding windows, rewritten to sliding windows where possible.

Floor 3. UNSKEW puts what belongs to place k of window o at i = o + k*dilation, and zero where there
is none. Read the other way, place i sees at k what windows of a padded image hold there, last place
first: y[i, k] = x[i - k*dilation]. So where x is a product of images, which are the same at every
place of a window, with weights, which are the same in every window, the gradient of a convolution
is a convolution: it reads a padded image, and no sum over channels is ever written down for every
place of every window.

Strided windows that are added up take the polyphase form, one dense convolution per phase of the
stride: with stride s, place k of window o lies at i = o*s + k, and with k = j*s + r that is
i = (o + j)*s + r, so for each phase r these are windows of stride 1 over every s-th place. No
element tests whether it lies in a window, and neighbors of a phase are vectorized.

The frontend writes a derivative with UNSKEW, so that its graph has each node that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tinycore.dtype import dtypes
from tinycore.schedule.storage import rebuilt_above_leaves
from tinycore.uop.movement import below_movement, moved, source_axis
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.size import are_ints

Change = Callable[[UOp, int], UOp]


def with_windows(nodes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """The nodes on single devices, over windows in place of UNSKEWs that are made of images.

    `nodes`, and the result, map nodes of the sharded graph to their nodes on single devices.
    """
    if all(node.op is not Op.UNSKEW for node in nodes.values()):
        return dict(nodes)
    return rebuilt_above_leaves(nodes, with_window)


def with_window(node: UOp, new: UOp, done: Mapping[UOp, UOp]) -> UOp:
    """A node over new sources: windows in place of an UNSKEW, or in a sum over one."""
    if node.op is Op.UNSKEW:
        return unskewed(new.src[0], node.arg)
    is_sum = node.op is Op.REDUCE_AXIS and node.arg[0] is Op.ADD
    return summed(node, new, done) if is_sum else new


def is_fixed(x: UOp, how: Skew) -> bool:
    """True if no size of an UNSKEW varies."""
    return are_ints((*x.shape, how.size))


def unskewed(x: UOp, how: Skew) -> UOp:
    """UNSKEW of a graph: windows of a padded image if it is made of these, else the op."""
    if how.stride == 1 and is_fixed(x, how):
        found = Spread(how).of(x, how.axis, how.window_axis)
        if found is not None:
            return found
    return moved(Op.UNSKEW, x, how)


def summed(node: UOp, new: UOp, done: Mapping[UOp, UOp]) -> UOp:
    """A sum over new sources; if it adds up places of windows, phase by phase, and rounded once."""
    (wide,) = node.src
    spread = wide.src[0] if wide.op is Op.CAST else wide
    if spread.op is not Op.UNSKEW or node.arg[1] != (spread.arg.window_axis,):
        return new
    how, x = spread.arg, done[spread.src[0]]
    if how.stride == 1 or how.dilation != 1 or not is_fixed(x, how):
        return new.with_src((unrounded(done[spread], wide),))
    axis, window, step = how.axis, how.window_axis, how.stride
    order = [a for a in range(len(x.shape)) if a not in (axis, window)] + [axis, window]
    phases = in_phases(moved(Op.PERMUTE, unrounded(x, wide), order), step, -(-how.size // step))
    whole = moved(Op.RESHAPE, phases, (*phases.shape[:-2], phases.shape[-2] * step, 1))
    whole = moved(Op.SHRINK, whole, [(0, n) for n in (*whole.shape[:-2], how.size, 1)])
    return moved(Op.PERMUTE, whole, [order.index(a) for a in range(len(order))])


def in_phases(x: UOp, step: int, size: int) -> UOp:
    """(.., windows, places) added up to (.., size, phase)."""
    *outer, count, places = x.shape
    steps, axis = -(-places // step), len(outer)
    x = moved(Op.PAD, x, [(0, 0)] * (axis + 1) + [(0, steps * step - places)])
    if steps == 1:
        return moved(Op.PAD, x, [(0, 0)] * axis + [(0, size - count), (0, 0)])
    x = moved(Op.RESHAPE, x, (*outer, count, steps, step))
    spread = unskewed(x, Skew(axis, axis + 1, 1, 1, size))
    return moved(
        Op.RESHAPE, moved(Op.REDUCE_AXIS, spread, (Op.ADD, (axis + 1,))), (*outer, size, step)
    )


class Spread:
    """One UNSKEW of stride 1 on its way down a graph, to the images in it."""

    def __init__(self, how: Skew) -> None:
        self.how = how
        self.known: dict[tuple[UOp, int], bool] = {}

    def of(self, node: UOp, axis: int, window: int) -> UOp | None:
        """UNSKEW of a node over two of its axes; None if image and weights cannot be separated."""
        if not self.varies(node, window):
            return self.windows(node, axis, window)
        first: int | None = axis
        second: int | None = window
        match node.op:
            case Op.MUL:
                return self.product(node.src, axis, window)
            case Op.PERMUTE | Op.RESHAPE:
                first, second = source_axis(node, axis), source_axis(node, window)
            case Op.EXPAND if node.src[0].shape[axis] == node.shape[axis]:
                pass
            case Op.REDUCE_AXIS if node.arg[0] is Op.ADD and not {axis, window} & {*node.arg[1]}:
                pass
            case Op.CAST:
                pass
            case _:
                return None
        if first is None or second is None:
            return None
        inner = self.of(node.src[0], first, second)
        return None if inner is None else over(node, inner, axis, self.how.size)

    def product(self, factors: tuple[UOp, ...], axis: int, window: int) -> UOp | None:
        """UNSKEW of a product of which one factor is the same in every window."""
        a, b = factors
        if self.varies(b, axis):
            a, b = b, a
        if self.varies(b, axis) or (spread := self.of(a, axis, window)) is None:
            return None
        return spread * moved(Op.EXPAND, below(b, axis, single), spread.shape)

    def windows(self, node: UOp, axis: int, window: int) -> UOp:
        """UNSKEW of a value equal at every place of a window: windows of the padded image."""
        places, size = node.shape[window], self.how.size
        reach = (places - 1) * self.how.dilation
        around = (reach, size - node.shape[axis])

        def padded(image: UOp, axis: int) -> UOp:
            pairs = [around if i == axis else (0, 0) for i in range(len(image.shape))]
            return moved(Op.PAD, image, pairs)

        image = below(below(node, window, single), axis, padded)
        shape = (*image.shape[:window], places, *image.shape[window + 1 :])
        how = Skew(axis, window, 1, self.how.dilation, size)
        seen = moved(Op.SKEW, moved(Op.EXPAND, image, shape), how)
        return moved(Op.FLIP, seen, [a == window for a in range(len(shape))])

    def varies(self, node: UOp, axis: int) -> bool:
        """True if a node may have different elements along an axis."""
        place = node, axis
        if place not in self.known:
            self.known[place] = node.shape[axis] != 1 and self.varies_anew(node, axis)
        return self.known[place]

    def varies_anew(self, node: UOp, axis: int) -> bool:
        """`varies` of a node, computed."""
        if node.op in ALU:
            return any(self.varies(s, axis) for s in node.src)
        if node.op is Op.EXPAND and node.src[0].shape[axis] == 1:
            return False
        found = source_axis(node, axis)
        return found is None or self.varies(node.src[0], found)


def below(node: UOp, axis: int, change: Change) -> UOp:
    """A node after a change of one of its axes, as far down as ops on other axes allow."""
    place = axis if node.op is Op.CAST else source_axis(node, axis)
    if place is None:
        return change(node, axis)
    inner = below(node.src[0], place, change)
    return over(node, inner, axis, inner.shape[place])


def over(node: UOp, inner: UOp, axis: int, size: int) -> UOp:
    """A node over a source in which the axis that becomes `axis` has another size."""
    if node.op in (Op.RESHAPE, Op.EXPAND):
        return moved(node.op, inner, (*node.shape[:axis], size, *node.shape[axis + 1 :]))
    return node.with_src((inner,))


def single(node: UOp, axis: int) -> UOp:
    """The first element along an axis on which all are equal."""
    shape = (*node.shape[:axis], 1, *node.shape[axis + 1 :])
    if node.op is Op.EXPAND and node.src[0].shape[axis] == 1:
        return moved(Op.EXPAND, node.src[0], shape)
    return moved(Op.SHRINK, node, [(0, size) for size in shape])


def unrounded(x: UOp, wide: UOp) -> UOp:
    """The terms of a sum in a wider float; those that were rounded from one are sums themselves.

    Then the sums over channels and over a window are one, which a kernel computes and rounds once.
    """
    base = below_movement(x)
    total = base.src[0] if base.op is Op.CAST else base
    is_sum = total.op is Op.REDUCE_AXIS and total.dtype is wide.dtype
    if not is_sum or not dtypes.is_float(x.dtype):
        return x.cast(wide.dtype)
    return total if x is base else moved(x.op, unrounded(x.src[0], wide), x.arg)
