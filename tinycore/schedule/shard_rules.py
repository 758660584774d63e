"""Sharding rules: how each op is done shard by shard, one row per op.

Floor 3. A rule gets a node of full shape and its sources, each already a MULTI of shards or, if it
is on no device, a plain node; it gives the MULTI of the results. It decides along which axis they
are sharded, and which operands are resharded for that. See `shard.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.schedule.collectives import (
    all_reduced,
    can_lie_along,
    copied,
    device_node,
    filled,
    gathered,
    joined,
    laid_along,
    multi,
    piece,
    stored,
    with_size,
)
from tinycore.schedule.kernel import base_of, numel
from tinycore.schedule.storage import is_stored
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, Op, neutral_element, registers
from tinycore.uop.shape import Shape, names_of

Sources = list[UOp]
Rule = Callable[[UOp, Sources], UOp]

RULES: Final[dict[Op, Rule]] = {}
"""How each op is done part by part. A rule gets the node and its sources, already done."""
rule: Final = registers(RULES)
"""Register a function as the way to do some ops part by part."""


def each(node: UOp, sources: Sources, axis: int | None, arg: Any = None) -> UOp:
    """The node done on each device with the parts it has."""
    count = max(len(s.src) for s in sources if s.op is Op.MULTI)
    arg = node.arg if arg is None else arg
    found = [
        UOp(node.op, node.dtype, tuple([part(s, k) for s in sources]), arg) for k in range(count)
    ]
    return multi(found, axis)


def part(source: UOp, number: int) -> UOp:
    """What a device has of a source; what is on no device, as a bound variable, it has whole."""
    if source.op is Op.MULTI:
        return source.src[number]
    if source.device_or_none is not None:
        raise DeviceError(
            f"a value on {source.device} meets one on several devices; move it with .shard(devices)"
        )
    return source


# --- sources, and what changes no element


@rule(Op.MULTI)
def of_multi(node: UOp, sources: Sources) -> UOp:
    """The parts as they are."""
    return node.with_src(tuple(sources))


@rule(Op.CONST, Op.ARANGE)
def of_constant(node: UOp, sources: Sources) -> UOp:
    """The same on every device; a part of it is cut without any copy."""
    return multi([node.with_src((device_node(d),)) for d in names_of(node.device)], None)


@rule(Op.CONTIGUOUS, Op.DETACH, Op.CONTIGUOUS_BACKWARD, Op.CALL, Op.VALUE)
def of_identity(node: UOp, sources: Sources) -> UOp:
    """Part by part."""
    return each(node, sources, sources[0].arg)


@rule(Op.COPY)
def of_copy(node: UOp, sources: Sources) -> UOp:
    """To a group: part to part from one of the same size, else everything to every device."""
    (source, _), devices = sources, names_of(node.device)
    if source.op is not Op.MULTI:
        return multi([fresh(source, d) for d in devices], None)
    if len(source.src) == len(devices):
        return multi([fresh(s, d) for s, d in zip(source.src, devices, strict=True)], source.arg)
    return multi([gathered(source, d) for d in devices], None)


def fresh(x: UOp, device: str) -> UOp:
    """The value on a device, in memory that nothing else is."""
    found = copied(x, device)
    return stored(x) if found is x else found


@rule(*ALU)
def of_arithmetic(node: UOp, sources: Sources) -> UOp:
    """Where the first operand in parts lies; the others are laid beside it."""
    axis = next((s.arg for s in sources if s.op is Op.MULTI and s.arg is not None), None)
    return each(node, [laid_along(s, axis) if s.op is Op.MULTI else s for s in sources], axis)


# --- movement


@rule(*(MOVEMENT - {Op.SHRINK, Op.FLIP}))
def of_movement(node: UOp, sources: Sources) -> UOp:
    """Part by part, after laying the source along an axis that comes through whole if need be."""
    (source,) = sources
    count = len(source.src)
    for axis in layouts(source):
        after = None if axis is None else axis_after(node, source.shape, axis, count)
        if axis is None or after is not None:
            break
    return each(node, [laid_along(source, axis)], after, local_argument(node, after, count))


def layouts(source: UOp) -> Iterator[int | None]:
    """Layouts to try: the present one, along other axes, whole."""
    yield source.arg
    if source.arg is not None:
        for axis in range(len(source.shape)):
            if can_lie_along(source.shape, axis, len(source.src)):
                yield axis
        yield None


def axis_after(node: UOp, shape: Shape, axis: int, count: int) -> int | None:
    """Where the parts along an axis lie after a movement; None where it mixes them."""
    arg = node.arg
    match node.op:
        case Op.RESHAPE:
            return axis_reshaped(shape, arg, axis, count)
        case Op.PERMUTE:
            return list(arg).index(axis)
        case Op.EXPAND:
            return axis
        case Op.PAD:
            return axis if arg[axis] == (0, 0) else None
        case Op.SHRINK:
            return axis if arg[axis] == (0, shape[axis]) else None
        case Op.FLIP:
            return None if arg[axis] else axis
        case _:  # SKEW, UNSKEW
            return None if axis in (arg.axis, arg.window_axis) else axis


def axis_reshaped(old: Shape, new: Shape, axis: int, count: int) -> int | None:
    """The axis of the new shape that falls into the same parts as one of the old shape.

    As much lies outside of it, and it has a multiple of `count` elements.
    """
    outside = math.prod(old[:axis])
    for candidate in range(len(new)):
        if math.prod(new[:candidate]) == outside and can_lie_along(new, candidate, count):
            return candidate
    return None


def local_argument(node: UOp, axis: int | None, count: int) -> Any:
    """The argument of a movement on a part of what lies along `axis` of the result."""
    if axis is None or node.op not in (Op.RESHAPE, Op.EXPAND, Op.SHRINK):
        return node.arg
    size = node.shape[axis] // count
    if node.op is Op.SHRINK:
        return (*node.arg[:axis], (0, size), *node.arg[axis + 1 :])
    return with_size(node.arg, axis, size)


@rule(Op.SHRINK)
def of_shrink(node: UOp, sources: Sources) -> UOp:
    """As any movement; a small box across the parts is gathered from those it touches."""
    (source,) = sources
    axis, count = source.arg, len(source.src)
    if axis is None or node.arg[axis] == (0, source.shape[axis]):
        return of_movement(node, sources)
    start, stop = node.arg[axis]
    if not 0 < (stop - start) * count <= source.shape[axis] or 0 in node.shape:
        return of_movement(node, sources)
    size = source.shape[axis] // count
    touched = []
    for number, shard in enumerate(source.src):
        low, high = (min(max(end - number * size, 0), size) for end in (start, stop))
        if low < high:
            box = (*node.arg[:axis], (low, high), *node.arg[axis + 1 :])
            touched.append(UOp(Op.SHRINK, shard.dtype, (shard,), box))
    found = [stored(joined([copied(t, s.device) for t in touched], axis)) for s in source.src]
    return multi(found, None)


@rule(Op.FLIP)
def of_flip(node: UOp, sources: Sources) -> UOp:
    """Part by part; along the axis of the parts they also change places."""
    (source,) = sources
    flipped = each(node, sources, source.arg)
    if source.arg is None or not node.arg[source.arg]:
        return flipped
    places = zip(reversed(flipped.src), source.src, strict=True)
    return multi([copied(part, s.device) for part, s in places], source.arg)


# --- folds and rows


@rule(Op.REDUCE_AXIS)
def of_reduce(node: UOp, sources: Sources) -> UOp:
    """Part by part; along the axis of the parts, the devices' results are folded as well."""
    (source,) = sources
    op, axes = node.arg
    if source.arg not in axes:
        return each(node, sources, source.arg)
    return all_reduced(op, each(node, sources, None).src)


@rule(Op.SCAN_AXIS)
def of_scan(node: UOp, sources: Sources) -> UOp:
    """Part by part; what lies in parts along the axis itself, each device does whole."""
    (source,) = sources
    if source.arg == node.arg[1]:
        source = laid_along(source, None)
    return each(node, [source], source.arg)


@rule(Op.MERGE_AXIS)
def of_merge(node: UOp, sources: Sources) -> UOp:
    """Part by part; an axis of runs that lies in parts, each device does whole."""
    last = len(node.shape) - 2
    axis = sources[0].arg if sources[0].arg != last else None
    return each(node, [laid_along(source, axis) for source in sources], axis)


@rule(Op.GATHER)
def of_gather(node: UOp, sources: Sources) -> UOp:
    """Where the rows or the index lie; from a table cut into rows each device takes what it has."""
    table, index = sources
    if table.arg == 0 and index.arg is not None and numel(table) <= numel(node):
        table = laid_along(table, None)
    if table.arg is None:
        return each(node, [table, index], index.arg)
    index = laid_along(index, None)
    if table.arg:
        return each(node, [table, index], len(index.shape) + table.arg - 1)
    found = each(node, [table, inside_parts(index, table.shape[0])], None)
    return all_reduced(Op.OR if node.dtype is dtypes.bool else Op.ADD, found.src)


def inside_parts(index: UOp, size: int) -> UOp:
    """Places along an axis of this size, which is cut into parts, as places inside each part.

    Those in other parts become places out of range.
    """
    step = size // len(index.src)
    found = []
    for number, part in enumerate(index.src):
        wide = part.cast(dtypes.int64)
        found.append(wide - filled(wide.shape, wide.dtype, number * step, wide.device))
    return multi(found, index.arg)


@rule(Op.SCATTER)
def of_scatter(node: UOp, sources: Sources) -> UOp:
    """Along axes beside the scattered one part by part; along that one, each device what it has."""
    x, index, rows = sources
    op, axis = node.arg
    beside = next((s.arg for s in (x, rows, index) if s.arg not in (None, axis)), None)
    if beside is not None and x.arg != axis:
        return each(node, [laid_along(s, beside) for s in sources], beside)
    if x.arg is None and op is not None and axis in (rows.arg, index.arg):
        start = [x.src[0], *[neutral(s, op) for s in x.src[1:]]]
        laid = [laid_along(s, axis) for s in (index, rows)]
        return all_reduced(op, each(node, [multi(start, None), *laid], None).src)
    index, rows = laid_along(index, None), laid_along(rows, None)
    if x.arg == axis:
        return each(node, [x, inside_parts(index, x.shape[axis]), rows], axis)
    return each(node, [x, index, rows], None)


def neutral(x: UOp, op: Op) -> UOp:
    """What changes nothing when folded in, in the shape of `x`."""
    return filled(x.shape, x.dtype, neutral_element(op, x.dtype), x.device)


# --- writing


@rule(Op.INSERT)
def of_insert(node: UOp, sources: Sources) -> UOp:
    """Part by part where the view shows each part's own elements, or a box; else in the whole."""
    x, view, value = sources
    if all(shows(v, s) for v, s in zip(view.src, x.src, strict=True)):
        return each(node, [x, view, laid_along(value, view.arg)], x.arg)
    steps = steps_between(node.src[1], node.src[0])
    if steps[0].op is Op.SHRINK and all(step.op in UNDONE for step in steps[1:]):
        value = laid_along(value, None)
        for step in reversed(steps[1:]):
            value = undone(step, value)
        return inserted_across(x, steps[0].arg, value)
    whole = laid_along(x, None)
    views = [node.src[1].substitute({node.src[0]: s}) for s in whole.src]
    return each(node, [whole, multi(views, None), laid_along(value, None)], None)


def steps_between(view: UOp, x: UOp) -> list[UOp]:
    """The movements that make a view of `x`, the first one first."""
    steps: list[UOp] = []
    while view is not x:
        steps.insert(0, view)
        view = view.src[0]
    return steps


UNDONE: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})
"""Movements that another of their kind undoes."""


def undone(step: UOp, value: UOp) -> UOp:
    """What a movement makes `value` of, on every device."""
    arg = step.src[0].shape if step.op is Op.RESHAPE else step.arg
    if step.op is Op.PERMUTE:
        arg = tuple([step.arg.index(axis) for axis in range(len(step.arg))])
    return each(step, [value], None, arg)


def inserted_across(x: UOp, box: tuple[tuple[int, int], ...], value: UOp) -> UOp:
    """A value of the size of a box put there; parts outside of the box stay what they are."""
    axis, results = x.arg, []
    start, stop = box[axis]
    for number, part in enumerate(x.src):
        size = part.shape[axis]
        first = number * size
        low, high = (min(max(end - first, 0), size) for end in (start, stop))
        if low >= high:
            results.append(part)
            continue
        mine = piece(value.src[number], axis, first + low - start, first + high - start)
        inner = (*box[:axis], (low, high), *box[axis + 1 :])
        view = UOp(Op.SHRINK, part.dtype, (part,), inner)
        whole = view.shape == part.shape
        results.append(mine if whole else UOp(Op.INSERT, part.dtype, (part, view, mine)))
    return multi(results, axis)


def shows(view: UOp, x: UOp) -> bool:
    """Whether a view is movement of `x` and nothing else."""
    while view is not x and view.op in MOVEMENT:
        view = view.src[0]
    return view is x


@rule(Op.ASSIGN)
def of_assign(node: UOp, sources: Sources) -> UOp:
    """Part by part, in the layout of the memory."""
    target, value = sources
    assert all(is_memory(s) for s in target.src), f"{node!r} is assigned to what is no memory"
    value = laid_along(value, target.arg)
    pairs = zip(target.src, value.src, strict=True)
    found = [t if t is v else UOp(Op.ASSIGN, node.dtype, (t, v)) for t, v in pairs]
    return multi(found, target.arg)


def is_memory(part: UOp) -> bool:
    """Whether a part is memory, or what was assigned to it."""
    base = base_of(part)
    return is_stored(base) or base.op is Op.ASSIGN
