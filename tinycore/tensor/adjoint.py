"""The adjoint of sliding windows, as sliding windows where possible.

Floor 5. UNSKEW puts what belongs to place k of window o at i = o + k*dilation, and zero where there
is none. Read the other way, place i sees at k what windows of a padded image hold there, last place
first: y[i, k] = x[i - k*dilation]. So where x is a product of images, which are the same at every
place of a window, with weights, which are the same in every window, the gradient of a convolution
is a convolution: it reads a padded image, and no sum over channels is ever written down for every
place of every window.

Strided windows take the polyphase form, one dense convolution per phase of the stride: with stride
s, place k of window o lies at i = o*s + k, and with k = j*s + r that is i = (o + j)*s + r, so for
each phase r these are windows of stride 1 over every s-th place. No element tests whether it lies
in a window, and neighbors of a phase are vectorized.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.uop.movement import source_axis
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import ALU, MOVEMENT, Op

Change = Callable[[UOp, int], UOp]


def unskew(x: UOp, how: Skew, ends: Collection[UOp] = ()) -> UOp:
    """UNSKEW of a graph: windows of a padded image if it is made of these, else the op.

    The nodes at `ends` are not gone below, nor is memory: a gradient that goes to one finds it.
    """
    fixed = all(isinstance(size, int) for size in (*x.shape, how.size))
    if fixed and how.stride == 1:
        found = Spread(how, ends).of(x, how.axis, how.window_axis)
        if found is not None:
            return found
    return graph.unskew(x, how)


class Spread:
    """One UNSKEW of stride 1 on its way down a graph, to the images in it."""

    def __init__(self, how: Skew, ends: Collection[UOp]) -> None:
        self.how, self.ends = how, ends
        self.known: dict[tuple[UOp, int], bool] = {}

    def of(self, node: UOp, axis: int, window: int) -> UOp | None:
        """UNSKEW of a node over two of its axes; None if image and weights cannot be separated."""
        if not self.varies(node, window):
            return self.windows(node, axis, window)
        inner: UOp | None = None
        match None if self.is_end(node) else node.op:
            case Op.PERMUTE:
                inner = self.of(node.src[0], node.arg[axis], node.arg[window])
                return None if inner is None else graph.permute(inner, node.arg)
            case Op.RESHAPE:
                places = source_axis(node, axis), source_axis(node, window)
                if None in places:
                    return None
                inner = self.of(node.src[0], *places)  # type: ignore[arg-type]
                return None if inner is None else graph.reshape(inner, self.wider(node, axis))
            case Op.EXPAND if node.src[0].shape[axis] == node.shape[axis]:
                inner = self.of(node.src[0], axis, window)
                return None if inner is None else graph.expand(inner, self.wider(node, axis))
            case Op.REDUCE_AXIS if node.arg[0] is Op.ADD and not {axis, window} & {*node.arg[1]}:
                inner = self.of(node.src[0], axis, window)
                return None if inner is None else graph.fold(inner, *node.arg)
            case Op.CAST:
                inner = self.of(node.src[0], axis, window)
                return None if inner is None else inner.cast(node.dtype)
            case Op.MUL:
                return self.product(node.src, axis, window)
        return None

    def product(self, factors: tuple[UOp, ...], axis: int, window: int) -> UOp | None:
        """UNSKEW of a product of which one factor is the same in every window."""
        a, b = factors
        if self.varies(b, axis):
            a, b = b, a
        if self.varies(b, axis) or (spread := self.of(a, axis, window)) is None:
            return None
        return spread * graph.expand(self.below(b, axis, single), spread.shape)

    def wider(self, node: UOp, axis: int) -> tuple[int, ...]:
        """The shape of a node with the axis as long as it is after UNSKEW."""
        return (*node.shape[:axis], self.how.size, *node.shape[axis + 1 :])

    def windows(self, node: UOp, axis: int, window: int) -> UOp:
        """UNSKEW of a value equal at every place of a window: windows of the padded image."""
        places, size = node.shape[window], self.how.size
        reach = (places - 1) * self.how.dilation
        around = (reach, size - node.shape[axis])

        def padded(image: UOp, axis: int) -> UOp:
            return graph.pad(
                image, [around if i == axis else (0, 0) for i in range(len(image.shape))]
            )

        image = self.below(self.below(node, window, single), axis, padded)
        shape = (*image.shape[:window], places, *image.shape[window + 1 :])
        how = Skew(axis, window, 1, self.how.dilation, size)
        return graph.flip(graph.skew(graph.expand(image, shape), how), [window])

    def below(self, node: UOp, axis: int, change: Change) -> UOp:
        """A node after a change of one of its axes, as far down as ops on other axes allow."""
        if node.op is Op.CAST and not self.is_end(node):
            return self.below(node.src[0], axis, change).cast(node.dtype)
        place = None if self.is_end(node) else source_axis(node, axis)
        if place is None:
            return change(node, axis)
        inner = self.below(node.src[0], place, change)
        shape = (*node.shape[:axis], inner.shape[place], *node.shape[axis + 1 :])
        if node.op is Op.RESHAPE:
            return graph.reshape(inner, shape)
        if node.op is Op.EXPAND:
            return graph.expand(inner, shape)
        return node.with_src((inner,))

    def is_end(self, node: UOp) -> bool:
        """True for a node that is not gone below."""
        return node in self.ends or graph.is_memory(node)

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


def is_place(x: UOp, axis: int) -> bool:
    """True for an axis of the places of a window."""
    if x.op is Op.SKEW and axis == x.arg.window_axis:
        return True
    if x.op is Op.MUL:
        return any(is_place(factor, axis) for factor in x.src)
    if x.op in (Op.CAST, Op.FLIP, Op.REDUCE_AXIS):
        return is_place(x.src[0], axis)
    source = source_axis(x, axis) if x.op in MOVEMENT else None
    return source is not None and is_place(x.src[0], source)


def unrounded(x: UOp) -> UOp:
    """A value before it was rounded to a narrower float.

    So the sums over channels and over a window are one, which a kernel computes and rounds once.
    """
    if x.op in MOVEMENT:
        source = unrounded(x.src[0])
        return UOp(x.op, source.dtype, (source,), x.arg)
    is_rounded = x.op is Op.CAST and x.src[0].dtype is dtypes.float32 and dtypes.is_float(x.dtype)
    return x.src[0] if is_rounded and x.dtype.itemsize < x.src[0].dtype.itemsize else x


def single(node: UOp, axis: int) -> UOp:
    """The first element along an axis on which all are equal."""
    shape = (*node.shape[:axis], 1, *node.shape[axis + 1 :])
    if node.op is Op.EXPAND and node.src[0].shape[axis] == 1:
        return graph.expand(node.src[0], shape)
    return graph.shrink(node, [(0, size) for size in shape])


def sum_to(x: UOp, shape: tuple[int, ...]) -> UOp:
    """Repetitions added up, to a shape of the same number of axes."""
    if x.op is Op.UNSKEW and shape[x.arg.window_axis] == 1:
        x = added_up(x.src[0], x.arg)
    axes = [axis for axis, size in enumerate(x.shape) if size != shape[axis]]
    wide = unrounded(x) if axes and all(is_place(x, axis) for axis in axes) else x
    return graph.sum_to(wide, shape).cast(x.dtype)


def added_up(x: UOp, how: Skew, ends: Collection[UOp] = ()) -> UOp:
    """The sum over the window axis of UNSKEW, to size 1."""
    fixed = all(isinstance(size, int) for size in (*x.shape, how.size))
    if how.stride == 1 or how.dilation != 1 or not fixed:
        return graph.wide_sum(unskew(x, how, ends), [how.window_axis])
    axis, window, step = how.axis, how.window_axis, how.stride
    order = [a for a in range(len(x.shape)) if a not in (axis, window)]
    x = graph.permute(x, [*order, axis, window])
    phases = in_phases(x, step, -(-how.size // step), ends)
    whole = graph.reshape(phases, (*phases.shape[:-2], phases.shape[-2] * step))
    whole = graph.shrink(whole, [(0, n) for n in (*whole.shape[:-1], how.size)])
    whole = graph.reshape(whole, (*whole.shape, 1))
    return graph.permute(whole, [[*order, axis, window].index(a) for a in range(len(x.shape))])


def in_phases(x: UOp, step: int, size: int, ends: Collection[UOp]) -> UOp:
    """(.., windows, places) added up to (.., size, phase)."""
    *outer, count, places = x.shape
    steps = -(-places // step)
    x = graph.pad(x, [(0, 0)] * (len(outer) + 1) + [(0, steps * step - places)])
    if steps == 1:
        return graph.pad(x, [(0, 0)] * len(outer) + [(0, size - count), (0, 0)])
    axis = len(outer)
    x = graph.reshape(x, (*outer, count, steps, step))
    spread = graph.wide_sum(unskew(x, Skew(axis, axis + 1, 1, 1, size), ends), [axis + 1])
    return graph.reshape(spread, (*outer, size, step))
