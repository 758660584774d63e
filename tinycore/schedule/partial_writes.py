"""Partial writes: SCATTER and INSERT as in-place assignments of some elements.

Floor 3. Both say what a tensor is after some of its elements changed. Assigned to the very memory
that they change, a kernel writes those elements and touches no other. Anywhere else the unchanged
elements are first copied into new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinycore.dtype import ImageDType, dtypes
from tinycore.schedule.index_values import is_of_indices, with_numbers_of_fills
from tinycore.schedule.ranges import ZERO, Point, RegionReader, flatten, read_through, store_pixel
from tinycore.schedule.storage import above_leaves, is_leaf
from tinycore.uop.node import UOp
from tinycore.uop.op import PARTIAL_WRITES, AxisKind, Op
from tinycore.uop.size import greatest_shape


def is_partial(node: UOp) -> bool:
    """True if a node writes only a part of the memory it is assigned to."""
    if node.op is not Op.ASSIGN or node.src[1].op not in PARTIAL_WRITES:
        return False
    return node.src[1].src[0] is node.src[0]


def values_of(node: UOp) -> tuple[UOp, ...]:
    """The values that the kernel of a stored node computes, without memory that it only writes."""
    if not is_partial(node):
        return (node.src[1],) if node.op is Op.ASSIGN else (node,)
    change = node.src[1]
    return change.src[1:] if change.op is Op.SCATTER else change.src[2:]


def place_partial_writes(roots: Iterable[UOp], memory_for: Callable[[UOp], UOp]) -> dict[UOp, UOp]:
    """Every node below the roots, with each partial write assigned to the memory it changes.

    `memory_for` makes new memory with the shape and device of a node.
    """
    done: dict[UOp, UOp] = {}
    of_indices: dict[UOp, bool] = {}
    for node in above_leaves(roots):
        if is_partial(node):
            target = done[node.src[0]]
            done[node] = UOp(Op.ASSIGN, node.dtype, (target, write_into(node.src[1], done, target)))
        elif node.op in PARTIAL_WRITES:
            filled = UOp(Op.ASSIGN, node.dtype, (memory_for(node), done[node.src[0]]))
            done[node] = UOp(Op.ASSIGN, node.dtype, (filled, write_into(node, done, filled)))
        else:
            made = node if is_leaf(node) else node.with_src(tuple(done[s] for s in node.src))
            made = done[node] = with_numbers_of_fills(made, of_indices)
            of_indices[made] = is_of_indices(made, of_indices)
    return done


def write_into(node: UOp, done: dict[UOp, UOp], memory: UOp) -> UOp:
    """A partial write of `memory`; the view that an INSERT writes becomes a view of it."""
    first, second, third = node.src
    if node.op is Op.SCATTER:
        return node.with_src((memory, done[second], done[third]))
    return node.with_src((memory, second.substitute({first: memory}), done[third]))


def loops_over(node: UOp) -> Point:
    """A counter for each axis of a node's result; sequential for a scan, a merge, a SCATTER."""
    shape, ordered = node.shape, None
    if node.op is Op.SCAN_AXIS:
        ordered = node.arg[1]
    elif node.op is Op.MERGE_AXIS:
        ordered = len(shape) - 1
    if is_partial(node):
        shape = values_of(node)[-1].shape
        ordered = node.src[1].arg.axis if node.src[1].op is Op.SCATTER else None
    kinds = [AxisKind.ORDERED if axis == ordered else AxisKind.LOOP for axis in range(len(shape))]
    return tuple(
        UOp.range(size, axis, kind) if size != 1 else ZERO
        for axis, (size, kind) in enumerate(zip(shape, kinds, strict=True))
    )


def is_ordered(counter: UOp) -> bool:
    """True if the steps of a loop must happen in order."""
    return counter.arg.kind is AxisKind.ORDERED


def store(reader: RegionReader, node: UOp, point: Point, pointer: UOp) -> UOp:
    """The STORE of one output."""
    if isinstance(pointer.dtype, ImageDType):
        return store_pixel(reader, node, point, pointer)
    if not is_partial(node):
        (value,) = values_of(node)
        offset = flatten(point, greatest_shape(node.shape))
        return pointer.at(offset).store(reader.read(value, point))
    if node.src[1].op is Op.INSERT:
        return store_insert(reader, node.src[1], point, pointer)
    return store_scatter(reader, node.src[1], point, pointer)


def store_insert(reader: RegionReader, change: UOp, point: Point, pointer: UOp) -> UOp:
    """The STORE of an INSERT: a point of the view is a point of the memory it shows."""
    memory, node, value = change.src
    place = point
    while node is not memory:
        place = read_through(node, place).point
        node = node.src[0]
    return pointer.at(flatten(place, memory.shape)).store(reader.read(value, point))


def store_scatter(reader: RegionReader, change: UOp, point: Point, pointer: UOp) -> UOp:
    """The STORE of a SCATTER, after those of earlier steps of its loop."""
    (memory, index, rows), (op, axis) = change.src, change.arg
    if point[axis].op is Op.RANGE:
        pointer = pointer.after(point[axis])
    row = reader.read(index, point).cast(dtypes.index)
    inside = (row >= 0) & (row < memory.shape[axis])
    place = flatten((*point[:axis], row, *point[axis + 1 :]), memory.shape)
    target = pointer.at(place, inside)
    value = reader.read(rows, point)
    if op is not None:
        value = target.load(value.dtype, value.const_like(0)).alu(op, value)
    return target.store(value)
