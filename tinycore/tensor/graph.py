"""Builders of tensor-graph nodes, shared by the frontend and the gradient rules.

Floor 5. Operands have been checked: here nothing is raised, but for more elements than can be
counted. A builder that would change nothing returns its operand.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from threading import get_ident
from typing import Any, Final, NamedTuple

from tinycore._deferred import deferred
from tinycore.dtype import DType, Scalar, dtypes
from tinycore.errors import ShapeError
from tinycore.tensor.aliases import VIEW_OPS, base_of_view
from tinycore.uop.movement import base_of, source_below
from tinycore.uop.node import (
    Held,
    Reads,
    Skew,
    UOp,
    as_scalar,
    device_node,
    exchange,
    interned,
    is_gradient_leaf,
    ordered,
    unique,
)
from tinycore.uop.op import MOVEMENT, PARTIAL_WRITES, Merge, Op, Scatter, Write
from tinycore.uop.shape import Axes, Axis, DeviceLike, Shape, is_group, members_of
from tinycore.uop.size import Size, are_ints, greatest, greatest_shape

axis_of: Final[Callable[[UOp], Axis]] = deferred("tinycore.schedule.shard:axis_of")
axes_of: Final[Callable[[UOp], tuple[int | None, ...]]] = deferred(
    "tinycore.schedule.shard:axes_of"
)

Pair = tuple[int, int]

MOST_ELEMENTS: Final = dtypes.max(dtypes.int64)
MOST_BYTES: Final = dtypes.max(dtypes.int64)

# --- sources


def scalar(dtype: DType, value: Scalar, device: DeviceLike) -> UOp:
    """A constant of shape ()."""
    return UOp(Op.CONST, dtype, (device_node(device),), as_scalar(value, dtype))


def bound(size: int | Size, dtype: DType, device: DeviceLike) -> UOp:
    """An int, or a Size, as a number of shape ()."""
    if isinstance(size, Size):
        return UOp(Op.BIND, dtype, (device_node(device),), size)
    return scalar(dtype, size, device)


def full(shape: Shape, dtype: DType, value: Scalar, device: DeviceLike) -> UOp:
    """A constant of any shape; it takes no memory."""
    return shared_full(shape, dtype, value, device, "" if value else repr(value))


@lru_cache(256, typed=True)
def shared_full(shape: Shape, dtype: DType, value: Scalar, device: DeviceLike, zero: str) -> UOp:
    """`full`, whose last results are kept, as programs use the same constants again and again.

    `zero` tells 0.0 from -0.0, which are equal keys.
    """
    return broadcast_to(scalar(dtype, value, device), shape)


def full_like(x: UOp, value: Scalar, dtype: DType | None = None) -> UOp:
    """A constant of the shape, device and (unless given) dtype of `x`."""
    return full(x.shape, dtype or x.dtype, value, x.device)


def arange(size: int, dtype: DType, device: DeviceLike) -> UOp:
    """0, 1, ... size - 1."""
    return UOp(Op.ARANGE, dtype, (device_node(device),), *countable((size,)))


def new_buffer(shape: Shape, dtype: DType, device: DeviceLike) -> UOp:
    """New uninitialized memory; on each device of a group.

    For symbolic sizes it has their greatest values, and is a view of the first elements of each
    axis.
    """
    if (size := math.prod(greatest_shape(countable(shape))) * dtype.itemsize) > MOST_BYTES:
        raise ShapeError(f"shape {shape} of {dtype!r} takes {size:,} bytes; there are 2**63 - 1")
    if (whole := greatest_shape(shape)) != shape:
        return shrink(new_buffer(whole, dtype, device), [(0, n) for n in shape])
    if is_group(device):
        parts = [new_buffer(shape, dtype, member) for member in device]
        return UOp(Op.MULTI, dtype, tuple(parts))
    buffer = UOp(Op.BUFFER, dtype, (device_node(device), unique()), math.prod(shape))
    return reshape(buffer, shape)


def new_memory_like(x: UOp, dtype: DType | None = None) -> UOp:
    """New memory in the shape of `x`, in the same parts on its devices."""
    kind = dtype or x.dtype
    return in_parts(x.shape, kind, x.device, axes_of(x) if is_group(x.device) else ())


def in_parts(shape: Shape, kind: DType, device: DeviceLike, axes: Axes) -> UOp:
    """New memory on devices, in parts along an axis for each dimension of them.

    Raises ShapeError for parts of symbolic sizes.
    """
    if all(axis is None for axis in axes):
        return new_buffer(shape, kind, device)
    if greatest_shape(shape) != shape:
        raise ShapeError(
            f"memory in parts on {device} has no symbolic sizes, and shape {shape} has: cut the "
            "tensor to them after `shard`, or have a copy on each device (axis=None)"
        )
    members = members_of(device)
    part = part_shape(shape, axes[0], members)
    parts = [in_parts(part, kind, member, axes[1:]) for member in members]
    return UOp(Op.MULTI, kind, tuple(parts), axes[0])


def part_shape(shape: Shape, axis: int | None, members: Sequence[DeviceLike]) -> Shape:
    """The shape of equal parts along an axis, one for each member; the whole for None."""
    if axis is None:
        return shape
    return (*shape[:axis], shape[axis] // len(members), *shape[axis + 1 :])


# --- movement


class Movement(NamedTuple):
    """A movement op with its argument, and the shape after it."""

    op: Op
    argument: Any
    shape: Shape


def path_between(x: UOp, view: UOp) -> tuple[Movement, ...]:
    """The movement from a node to a view that was made of it."""
    path = []
    while view is not x:
        path.append(Movement(view.op, view.arg, view.shape))
        (view,) = view.src
    return tuple(reversed(path))


def moved_along(x: UOp, path: Iterable[Movement]) -> UOp:
    """The view of a node after the movement of another one of its shape."""
    dtype, device = x.dtype, x.device
    for op, argument, shape in path:
        x = interned(op, dtype, (x,), argument)
        x._shape, x._device = shape, device
    return x


def reshape(x: UOp, shape: Shape) -> UOp:
    """The elements of `x` in row-major order under another shape."""
    if x.shape == shape:
        return x
    node = interned(Op.RESHAPE, x.dtype, (x,), shape)
    node._shape = shape
    return node


def expand(x: UOp, shape: Shape) -> UOp:
    """Axes of size 1 repeated; the number of axes stays."""
    if x.shape == shape:
        return x
    node = interned(Op.EXPAND, x.dtype, (x,), countable(shape))
    node._shape = node.arg
    return node


def broadcast_to(x: UOp, shape: Shape) -> UOp:
    """`x` repeated to `shape`, axes aligned at the end.

    A size that is another expression than the one in `shape` has the same number now.
    """
    own = x.shape
    if own == shape:
        return x
    if are_ints((*own, *shape)):
        return moved_along(x, broadcast_path(own, shape))
    if not own:
        return expand(reshape(x, (1,) * len(shape)), shape)
    aligned = (1,) * (len(shape) - len(own)) + own
    node = reshape(x, aligned)
    if any(old not in (1, new) for old, new in zip(aligned, shape, strict=True)):
        sizes = [old if old == 1 else new for old, new in zip(aligned, shape, strict=True)]
        node = shrink(node, [(0, n) for n in sizes])
    return expand(node, shape)


@lru_cache(1024)
def broadcast_path(own: Shape, shape: Shape) -> tuple[Movement, ...]:
    """The movement that repeats a shape of ints to another."""
    aligned = (1,) * (len(shape) - len(own)) + own
    path = [Movement(Op.RESHAPE, aligned, aligned)] if aligned != own else []
    if aligned != shape:
        path.append(Movement(Op.EXPAND, countable(shape), shape))
    return tuple(path)


def permute(x: UOp, order: Sequence[int]) -> UOp:
    """Result axis i is source axis order[i]."""
    return (
        x
        if list(order) == list(range(len(order)))
        else UOp(Op.PERMUTE, x.dtype, (x,), tuple(order))
    )


def pad(x: UOp, pairs: Sequence[Pair]) -> UOp:
    """Zeros around."""
    if not any(a or b for a, b in pairs):
        return x
    countable([a + n + b for n, (a, b) in zip(x.shape, pairs, strict=True)])
    return UOp(Op.PAD, x.dtype, (x,), tuple(pairs))


def pad_with(x: UOp, pairs: Sequence[Pair], value: Scalar) -> UOp:
    """`value` around."""
    padded = pad(x, pairs)
    if value == 0 or padded is x:
        return padded
    inside = pad(full_like(x, True, dtypes.bool), pairs)
    return inside.where(padded, full_like(padded, value))


def shrink(x: UOp, pairs: Sequence[Pair]) -> UOp:
    """The box from start to stop on each axis."""
    is_whole = [*pairs] == [(0, size) for size in x.shape]
    return x if is_whole else UOp(Op.SHRINK, x.dtype, (x,), tuple(pairs))


def flip(x: UOp, axes: Iterable[int]) -> UOp:
    """Some axes reversed."""
    chosen = set(axes)
    if not any(greatest(x.shape[axis]) > 1 for axis in chosen):
        return x
    return UOp(Op.FLIP, x.dtype, (x,), tuple([axis in chosen for axis in range(len(x.shape))]))


def skew(x: UOp, how: Skew) -> UOp:
    """y[o, k] = x[o*stride + k*dilation, k]."""
    return UOp(Op.SKEW, x.dtype, (x,), how)


def unskew(x: UOp, how: Skew) -> UOp:
    """y[i, k] = x[(i - k*dilation)/stride, k], or 0."""
    return UOp(Op.UNSKEW, x.dtype, (x,), how)


def insert_axis(x: UOp, axis: int, size: int = 1) -> UOp:
    """A new axis before `axis`, along which the elements repeat."""
    shape = x.shape
    return expand(
        reshape(x, (*shape[:axis], 1, *shape[axis:])), (*shape[:axis], size, *shape[axis:])
    )


def drop_axes(x: UOp, axes: Iterable[int]) -> UOp:
    """Axes of size 1 removed."""
    gone = set(axes)
    return reshape(x, tuple([size for axis, size in enumerate(x.shape) if axis not in gone]))


def take_every(x: UOp, axis: int, step: int) -> UOp:
    """Every step-th element of one axis, from the first."""
    if step == 1:
        return x
    size = -(-x.shape[axis] // step)
    thin = insert_axis(x, len(x.shape))
    return reshape(
        skew(thin, Skew(axis, len(x.shape), step, 1, size)),
        (*x.shape[:axis], size, *x.shape[axis + 1 :]),
    )


def windows(x: UOp, axis: int, count: int, stride: int = 1, dilation: int = 1) -> UOp:
    """Sliding windows of `count` elements on one axis; a last axis runs inside each window."""
    size = (x.shape[axis] - dilation * (count - 1) - 1) // stride + 1
    wide = insert_axis(x, len(x.shape), count)
    return skew(wide, Skew(axis, len(x.shape), stride, dilation, size))


# --- bytes


def bitcast(x: UOp, dtype: DType) -> UOp:
    """The same bytes as another dtype. Of other width: the last axis grows or shrinks."""
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return x.bitcast(dtype)
    *outer, size = x.shape
    last, count = len(outer), max(old, new) // min(old, new)
    bits = x.bitcast(UNSIGNED[old])
    if old > new:
        parts = shifted_parts(insert_axis(bits, last + 1, count), Op.SHR, new)
        return reshape(parts.cast(UNSIGNED[new]), (*outer, size * count)).bitcast(dtype)
    pieces = reshape(bits, (*outer, size // count, count)).cast(UNSIGNED[new])
    return drop_axes(
        fold(shifted_parts(pieces, Op.SHL, old), Op.ADD, [last + 1]), [last + 1]
    ).bitcast(dtype)


UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
"""The unsigned integer of a size in bytes."""


def shifted_parts(x: UOp, op: Op, width: int) -> UOp:
    """Element i of the last axis shifted by i times `width` bytes: the least significant first."""
    steps = arange(x.shape[-1], x.dtype, x.device)
    return x.alu(op, broadcast_to(steps.alu(Op.MUL, full_like(steps, 8 * width)), x.shape))


# --- folding


def fold(x: UOp, op: Op, axes: Sequence[int]) -> UOp:
    """The given axes folded by `op` to size 1."""
    kept = tuple(sorted(axis for axis in set(axes) if x.shape[axis] != 1))
    return UOp(Op.REDUCE_AXIS, x.dtype, (x,), (op, kept)) if kept else x


def scan(x: UOp, op: Op, axis: int) -> UOp:
    """Each element folded by `op` with all before it along an axis."""
    return UOp(Op.SCAN_AXIS, x.dtype, (x,), (op, axis)) if x.shape[axis] != 1 else x


def merge(keys: UOp, values: UOp, how: Merge) -> UOp:
    """Values in the order of their keys, of which every `how.run` on the last axis are in order."""
    merged = UOp(Op.MERGE_AXIS, values.dtype, (keys, values), how)
    return reshape(merged, (*keys.shape[:-1], merged.shape[-2] * merged.shape[-1]))


def sum_to(x: UOp, shape: Shape) -> UOp:
    """Undo `broadcast_to`: repeated elements are added up. Narrow floats are added in float32."""
    extra = len(x.shape) - len(shape)
    axes = [
        *range(extra),
        *[a + extra for a, size in enumerate(shape) if size != x.shape[a + extra]],
    ]
    return reshape(wide_sum(x, axes), shape)


def wide_sum(x: UOp, axes: Sequence[int]) -> UOp:
    """A sum whose narrow floats are accumulated in float32 and rounded once."""
    return fold(widened(x), Op.ADD, axes).cast(x.dtype) if axes else x


def widened(x: UOp) -> UOp:
    """A value as the type in which it is added up: float32 for narrow floats."""
    return x.cast(dtypes.float32) if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else x


def gather(table: UOp, index: UOp) -> UOp:
    """Rows of the first axis; 0 where the index is out of range."""
    countable((*index.shape, *table.shape[1:]))
    return table.alu(Op.GATHER, index)


def take(x: UOp, index: UOp, axis: int) -> UOp:
    """y[i, j] = x[index[i, j], j] for axis 0, likewise for others; 0 where it is out of range."""
    if math.prod(x.shape[:axis] + x.shape[axis + 1 :]) == 1:
        return gather(reshape(x, (x.shape[axis],)), index)
    wide = index.cast(dtypes.int64)
    valid = full_like(wide, -1).alu(Op.CMPLT, wide) & wide.alu(
        Op.CMPLT, full_like(wide, x.shape[axis])
    )
    place, stride = full_like(wide, 0), 1
    for a in reversed(range(len(x.shape))):
        along = wide if a == axis else counted(index.shape, a, x.device)
        place = place + along.alu(Op.MUL, full_like(wide, stride))
        stride *= x.shape[a]
    return gather(reshape(x, (stride,)), valid.where(place, full_like(wide, -1)))


def counted(shape: Shape, axis: int, device: DeviceLike) -> UOp:
    """In each element of an int64 array, its position along an axis."""
    along = [shape[axis] if a == axis else 1 for a in range(len(shape))]
    return expand(reshape(arange(shape[axis], dtypes.int64, device), tuple(along)), shape)


def scatter(x: UOp, index: UOp, rows: UOp, op: Op | None, axis: int) -> UOp:
    """y = x, then y[index[i, j], j] op= rows[i, j], i in order, for axis 0, likewise for others.

    Indices out of range change nothing. Narrow floats are added and multiplied in float32.
    """
    if 0 in rows.shape:
        return x
    if op in (Op.ADD, Op.MUL) and (wide := widened(x)) is not x:
        return scatter(wide, index, widened(rows), op, axis).cast(x.dtype)
    return UOp(Op.SCATTER, x.dtype, (x, index, rows), Scatter(op, axis))


def insert(x: UOp, view: UOp, value: UOp) -> UOp:
    """x with `value` where `view`, made of x by movement that repeats nothing, shows it."""
    if view is x:
        return value
    if value.op is Op.INSERT and value.src[0] is view:  # a part of what the view shows
        return insert(x, *value.src[1:])
    return x.alu(Op.INSERT, view, value) if 0 not in value.shape else x


def replace_nodes(root: UOp, changed: dict[UOp, UOp]) -> UOp:
    """A graph with nodes replaced, in which the view of an INSERT still shows its target.

    A part of a value may have been computed on its own. Where to write has nothing to do with that.
    """
    order = ordered(root, None, changed)
    if changed.keys().isdisjoint(order):
        return root
    if any(node.op in MOVEMENT for node in changed):
        changed = dict(changed)
        for node in order:
            if node.op is INSERT and node not in changed and changed.keys() & shows(node):
                memory, view, content = node.src
                target = memory.substitute(changed)
                place = view.substitute({memory: target})
                changed[node] = node.with_src((target, place, content.substitute(changed)))
    new = dict(changed)
    exchange(order, new)
    if holding:
        pass_on(order, changed, new)
    return new.get(root, root)


def pass_on(order: Iterable[UOp], changed: Mapping[UOp, UOp], new: Mapping[UOp, UOp]) -> None:
    """Let nodes in the place of others hold what those held, but for those over other versions."""
    renewed = {node for node in changed if node.op is BUFFER}
    for node in order if renewed else ():
        if not renewed.isdisjoint(node.src) and node not in changed:
            renewed.add(node)
    shown = [n for m in changed.values() for n in m.toposort() if n.op is BUFFER]
    for node in new.keys() - changed.keys() - renewed:
        if type(held := node._memory) is Held:
            set_memory(new[node], held._replace(depends=Reads(shown, held.depends)))


holding: Final[dict[int, weakref.ref[UOp]]] = {}
"""The nodes that hold memory, by id."""


def set_memory(node: UOp, held: Held | None) -> None:
    """Let a node hold memory that has its value, or none."""
    key = id(node)
    node._memory = held
    if held is None:
        holding.pop(key, None)
    else:
        holding[key] = weakref.ref(node, partial(holding.pop, key))


def shows(insert: UOp) -> set[UOp]:
    """The nodes of the view of an INSERT, less its base."""
    memory, node, _ = insert.src
    found = set()
    while node is not memory:
        found.add(node)
        node = node.src[0]
    return found


def assign(memory: UOp, value: UOp, mark: str | None = None) -> UOp:
    """The memory after a value of its shape was written to it.

    If the value is that memory with some elements changed, only those are written.
    """
    shape, change = memory.shape, base_of(value)
    if change.op in PARTIAL_WRITES and base_of(change.src[0]) is base_of(memory):
        memory, value = change.src[0], change
    if memory.op is Op.RESHAPE and is_group(memory.device):  # under its shape the parts may differ
        memory = base_of(memory)
        value = reshape(value, memory.shape)
    return reshape(written(memory, value, mark), shape)


def written(memory: UOp, value: UOp, mark: str | None = None) -> UOp:
    """A new ASSIGN, unlike all before it: each write is done once, whatever its content."""
    node = interned(
        Op.ASSIGN, memory.dtype, (memory, value), Write(unique().arg, mark, get_ident())
    )
    node._shape = memory.shape
    return node


def store_value(memory: UOp, value: UOp) -> UOp:
    """A value in new memory, which may be larger where sizes vary."""
    if memory.op is not Op.SHRINK:
        return UOp(Op.ASSIGN, value.dtype, (memory, value))
    whole = memory.src[0]
    return shrink(assign(whole, insert(whole, memory, value)), memory.arg)


def copied(x: UOp) -> UOp:
    """The value of a node in memory that no equal node shares."""
    return UOp(Op.CONTIGUOUS, x.dtype, (x,), unique().arg)


def own(x: UOp) -> UOp:
    """A node that no equal one shares: gradients of it are those of its own uses."""
    return UOp(Op.OWN, x.dtype, (x,), unique().arg)


def identity(number: int) -> UOp:
    """The node that stands for the one tensor whose nodes made by `own` have a number."""
    return UOp(Op.UNIQUE, dtypes.void, (), number)


def leaf(x: UOp) -> UOp:
    """A node made by `own` at which gradients end."""
    return own(x.alu(Op.DETACH))


def below_own(x: UOp) -> UOp:
    """The node that those made by `own` or `leaf` show; any other node itself."""
    while x.op is Op.OWN:
        x = x.src[0].src[0] if is_gradient_leaf(x) else x.src[0]
    return x


def differentiable_base(x: UOp) -> UOp:
    """The node below reshapes and nodes made by `own`, to which gradients flow on."""
    return source_below(x, RESHAPED)


RESHAPED: Final = frozenset({Op.OWN, Op.RESHAPE})


def without_own(x: UOp) -> UOp:
    """A node without those made by `own`."""
    while (node := next((n for n in x.toposort() if n.op is Op.OWN), None)) is not None:
        x = x.substitute({node: node.src[0]})
    return x


def called(value: UOp, arguments: Sequence[UOp], gradient: Callable[..., Any]) -> UOp:
    """A value with a custom gradient: `gradient(g, node)` gives that of each argument."""
    return UOp(Op.CALL, value.dtype, (value, *arguments), gradient)


def value(x: UOp) -> UOp:
    """A node that is no view: for memory, present or future, its value alone."""
    base = base_of_view(x)
    return x.alu(Op.VALUE) if is_memory(base) or is_copy(base) else x


EQUAL: Final = "equal"
"""The argument of the VALUE of memory that another tensor was computed to."""


def equal_value(x: UOp) -> UOp:
    """The value of memory for a tensor of the same graph as the one that it belongs to.

    A view of it stays one of that.
    """
    if (base := base_of(x)) is not x:
        return reshape(equal_value(base), x.shape)
    if x.op in VIEW_OPS:
        return x.with_src((equal_value(x.src[0]),))
    return UOp(Op.VALUE, x.dtype, (x,), EQUAL)


def is_copy(x: UOp) -> bool:
    """True if a node was made by `copied`, with or without elements changed since."""
    while x.op in PARTIAL_WRITES:
        x = x.src[0]
    return is_alone(x)


def is_alone(x: UOp) -> bool:
    """True if a node was made by `copied`."""
    return x.op is CONTIGUOUS and isinstance(x.arg, int)


# --- questions

MEMORY: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW, Op.ASSIGN})
BUFFER, CONTIGUOUS, INSERT, MULTI = Op.BUFFER, Op.CONTIGUOUS, Op.INSERT, Op.MULTI


def countable(shape: Sequence[int]) -> Shape:
    """A shape whose elements int64 can number. Raises ShapeError for others."""
    if (count := math.prod(map(greatest, shape))) > MOST_ELEMENTS:
        raise ShapeError(
            f"shape {tuple(shape)} has {count:,} elements; there can be at most 2**63 - 1"
        )
    return tuple(shape)


def is_memory(x: UOp) -> bool:
    """True if a node is memory that can be written: a buffer, or one with assignments pending."""
    op = (base := base_of(x)).op
    return op in MEMORY or (op is MULTI and all(map(is_memory, base.src)))


def is_buffer(x: UOp) -> bool:
    """True if a node is a buffer under some shape, with nothing left to compute."""
    op = (base := base_of(x)).op
    return op is BUFFER or (op is MULTI and all(map(is_buffer, base.src)))


def viewed(node: UOp) -> Iterator[UOp]:
    """A node, and the base that it shows parts of, each element once."""
    yield node
    while node.op in MOVEMENT and node.op not in (Op.EXPAND, Op.PAD, Op.UNSKEW):
        if node.op is Op.SKEW and node.shape[node.arg.window_axis] != 1:
            return
        node = node.src[0]
        yield node


def is_constant(x: UOp) -> bool:
    """True if a graph is made of constants only, so that it can be rebuilt on any device."""
    return not any(n.op in (Op.BUFFER, Op.COPY, Op.MULTI) for n in x.toposort())


def on_device(x: UOp, device: DeviceLike) -> UOp:
    """A graph of constants rebuilt on a device; any other graph as it is."""
    if x.device == device or not is_constant(x):
        return x
    return x.substitute({device_node(x.device): device_node(device)})
