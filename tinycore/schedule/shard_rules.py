"""Sharding rules: each op on shards, one row per op.

Floor 3. A rule gets a node of full shape and its sources, each already a MULTI of shards or, if it
is on no device, a plain node; it gives the MULTI of the results. It decides along which axis they
are sharded, and which operands are resharded for that. A MULTI of partial results, which are still
to be folded over the devices, has the op of that fold in place of an axis. See `shard.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.schedule.collectives import (
    all_gather,
    concatenate,
    copy_to,
    expanded_constant,
    in_new_memory,
    multi,
    narrow,
    reshard,
    with_entry,
)
from tinycore.schedule.kernel import numel
from tinycore.schedule.storage import REARRANGING, is_stored
from tinycore.uop.movement import axis_after, base_of, is_divisible, moved
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import ALU, MOVEMENT, Op, neutral_element, registers
from tinycore.uop.shape import DeviceLike, members_of
from tinycore.uop.size import are_ints

Sources = list[UOp]
Rule = Callable[[UOp, Sources], UOp]

SHARD_RULES: Final[dict[Op, Rule]] = {}
"""The rule of each op, which gets the node and its sharded sources."""
rule: Final = registers(SHARD_RULES)
"""Register a function as the rule of some ops."""


def each(node: UOp, sources: Sources, axis: int | Op | None, arg: Any = None) -> UOp:
    """The node applied to the shards of each device."""
    count = max(len(s.src) for s in sources if s.op is Op.MULTI)
    arg = node.arg if arg is None else arg
    found = [
        UOp(node.op, node.dtype, tuple([part(s, k) for s in sources]), arg) for k in range(count)
    ]
    return multi(found, axis)


def part(source: UOp, number: int) -> UOp:
    """The shard of a source; a source on no device, as a bound variable, is whole."""
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
    """The shards as they are."""
    return node.with_src(tuple(sources))


@rule(Op.CONST, Op.ARANGE, Op.BIND)
def of_constant(node: UOp, sources: Sources) -> UOp:
    """Copies on all devices: slicing one of a constant, or a bound size, needs no transfer."""
    return multi([node.with_src((device_node(d),)) for d in members_of(node.device)], None)


@rule(Op.CONTIGUOUS, Op.DETACH, Op.OWN, Op.CONTIGUOUS_BACKWARD, Op.CALL, Op.VALUE)
def of_identity(node: UOp, sources: Sources) -> UOp:
    """Shard by shard."""
    return each(node, sources, sources[0].arg)


@rule(Op.COPY)
def of_copy(node: UOp, sources: Sources) -> UOp:
    """To a group: shard by shard from a group of the same size, else all to every device."""
    (source, _), devices = sources, members_of(node.device)
    if source.op is not Op.MULTI:
        return multi([fresh(source, d) for d in devices], None)
    if len(source.src) == len(devices):
        return multi([fresh(s, d) for s, d in zip(source.src, devices, strict=True)], source.arg)
    return multi([all_gather(source, d) for d in devices], None)


def fresh(x: UOp, device: DeviceLike) -> UOp:
    """The value on a device, in new memory."""
    found = copy_to(x, device)
    return in_new_memory(x) if found is x else found


@rule(*ALU, Op.SCAN_AXIS, Op.MERGE_AXIS)
def of_elements(node: UOp, sources: Sources) -> UOp:
    """In the layout of the first sharded operand; the others are resharded.

    A value that is scanned along the sharded axis, or has its sorted runs there, is gathered.
    """
    axis = next((s.arg for s in sources if s.op is Op.MULTI and s.arg is not None), None)
    is_scanned = node.op is Op.SCAN_AXIS and axis == node.arg[1]
    if is_scanned or (node.op is Op.MERGE_AXIS and axis == len(node.shape) - 2):
        axis = None
    return each(node, [reshard(s, axis) if s.op is Op.MULTI else s for s in sources], axis)


# --- movement


@rule(*(MOVEMENT - {Op.SHRINK, Op.FLIP}))
def of_movement(node: UOp, sources: Sources) -> UOp:
    """Shard by shard, after resharding along an axis that the movement preserves if necessary."""
    (source,) = sources
    count = len(source.src)
    for axis in layouts(source):
        after = None if axis is None else axis_after(node, source.shape, axis, count)
        if axis is None or after is not None:
            break
    return each(node, [reshard(source, axis)], after, local_argument(node, after, count))


def layouts(source: UOp) -> Iterator[int | None]:
    """Layouts to try: the present one, other axes, replicated."""
    yield source.arg
    if source.arg is not None:
        for axis in range(len(source.shape)):
            if is_divisible(source.shape, axis, len(source.src)):
                yield axis
        yield None


def local_argument(node: UOp, axis: int | None, count: int) -> Any:
    """The argument of a movement on one shard, for a result sharded along `axis`."""
    if axis is None or node.op not in (Op.RESHAPE, Op.EXPAND, Op.SHRINK):
        return node.arg
    size = node.shape[axis] // count
    return with_entry(node.arg, axis, (0, size) if node.op is Op.SHRINK else size)


@rule(Op.SHRINK)
def of_shrink(node: UOp, sources: Sources) -> UOp:
    """Like any movement; a small box across shards is gathered from those it touches."""
    (source,) = sources
    axis, count = source.arg, len(source.src)
    if axis is None or node.arg[axis] == (0, source.shape[axis]):
        return of_movement(node, sources)
    start, stop = node.arg[axis]
    # Of a box larger than a shard, copies on all devices would be larger than the shards; of one
    # of symbolic size nobody knows which shards it touches.
    if (
        not are_ints((start, stop))
        or not 0 < (stop - start) * count <= source.shape[axis]
        or 0 in node.shape
    ):
        return of_movement(node, sources)
    size = source.shape[axis] // count
    touched = []
    for number, shard in enumerate(source.src):
        low, high = (min(max(end - number * size, 0), size) for end in (start, stop))
        if low < high:
            touched.append(moved(Op.SHRINK, shard, with_entry(node.arg, axis, (low, high))))
    found = [
        in_new_memory(concatenate([copy_to(t, s.device) for t in touched], axis))
        for s in source.src
    ]
    return multi(found, None)


@rule(Op.FLIP)
def of_flip(node: UOp, sources: Sources) -> UOp:
    """Shard by shard; along the sharded axis shards also swap devices."""
    (source,) = sources
    flipped = each(node, sources, source.arg)
    if source.arg is None or not node.arg[source.arg]:
        return flipped
    places = zip(reversed(flipped.src), source.src, strict=True)
    return multi([copy_to(part, s.device) for part, s in places], source.arg)


# --- folds and rows


@rule(Op.REDUCE_AXIS)
def of_reduce(node: UOp, sources: Sources) -> UOp:
    """Shard by shard; along the sharded axis the results are partial."""
    (source,) = sources
    op, axes = node.arg
    return each(node, sources, op if source.arg in axes else source.arg)


@rule(Op.GATHER)
def of_gather(node: UOp, sources: Sources) -> UOp:
    """A sharded GATHER, where its rows or index are; each device takes from its rows of a table."""
    table, index = sources
    if table.arg == 0 and index.arg is not None and numel(table) <= numel(node):
        table = reshard(table, None)
    if table.arg is None:
        return each(node, [table, index], index.arg)
    index = reshard(index, None)
    if table.arg:
        return each(node, [table, index], len(index.shape) + table.arg - 1)
    fold = Op.OR if node.dtype is dtypes.bool else Op.ADD
    return each(node, [table, inside_parts(index, table.shape[0])], fold)


def inside_parts(index: UOp, size: int) -> UOp:
    """Indices along an axis that is divided into parts, as indices within each part.

    Indices of other parts become out of range.
    """
    step = size // len(index.src)
    found = []
    for number, part in enumerate(index.src):
        wide = part.cast(dtypes.int64)
        first = expanded_constant(wide.shape, wide.dtype, number * step, wide.device)
        found.append(wide - first)
    return multi(found, index.arg)


@rule(Op.SCATTER)
def of_scatter(node: UOp, sources: Sources) -> UOp:
    """Part by part along other axes; along the scattered one, each device its own elements."""
    x, index, rows = sources
    op, axis = node.arg
    beside = next((s.arg for s in (x, rows, index) if s.arg not in (None, axis)), None)
    if beside is not None and x.arg != axis:
        return each(node, [reshard(s, beside) for s in sources], beside)
    if x.arg is None and op is not None and axis in (rows.arg, index.arg):
        start = [x.src[0], *[neutral(s, op) for s in x.src[1:]]]
        laid = [reshard(s, axis) for s in (index, rows)]
        return each(node, [multi(start, None), *laid], op)
    index, rows = reshard(index, None), reshard(rows, None)
    if x.arg == axis:
        return each(node, [x, inside_parts(index, x.shape[axis]), rows], axis)
    return each(node, [x, index, rows], None)


def neutral(x: UOp, op: Op) -> UOp:
    """The neutral element of an op, in the shape of `x`."""
    return expanded_constant(x.shape, x.dtype, neutral_element(op, x.dtype), x.device)


# --- writing


@rule(Op.INSERT)
def of_insert(node: UOp, sources: Sources) -> UOp:
    """Part by part if the view shows elements of each part, or a box of known place; else as a
    whole.
    """
    x, view, value = sources
    if all(shows(v, s) for v, s in zip(view.src, x.src, strict=True)):
        return each(node, [x, view, reshard(value, view.arg)], x.arg)
    first, *others = steps_between(node.src[1], node.src[0])
    is_box = first.op is Op.SHRINK and are_ints(first.arg[x.arg])
    if is_box and all(step.op in REARRANGING for step in others):
        value = reshard(value, None)
        for step in reversed(others):
            value = undone(step, value)
        return inserted_across(x, first.arg, value)
    whole = reshard(x, None)
    views = [node.src[1].substitute({node.src[0]: s}) for s in whole.src]
    return each(node, [whole, multi(views, None), reshard(value, None)], None)


def steps_between(view: UOp, x: UOp) -> list[UOp]:
    """The movements that make a view of `x`, the first one first."""
    steps: list[UOp] = []
    while view is not x:
        steps.insert(0, view)
        view = view.src[0]
    return steps


def undone(step: UOp, value: UOp) -> UOp:
    """The inverse of a movement op, applied to `value` on every device."""
    arg = step.src[0].shape if step.op is Op.RESHAPE else step.arg
    if step.op is Op.PERMUTE:
        arg = tuple([step.arg.index(axis) for axis in range(len(step.arg))])
    return each(step, [value], None, arg)


def inserted_across(x: UOp, box: tuple[tuple[int, int], ...], value: UOp) -> UOp:
    """A value of the size of a box inserted; parts outside of the box are unchanged."""
    axis, results = x.arg, []
    start, stop = box[axis]
    for number, part in enumerate(x.src):
        size = part.shape[axis]
        first = number * size
        low, high = (min(max(end - first, 0), size) for end in (start, stop))
        if low >= high:
            results.append(part)
            continue
        mine = narrow(value.src[number], axis, first + low - start, first + high - start)
        view = moved(Op.SHRINK, part, with_entry(box, axis, (low, high)))
        if view is not part:
            mine = UOp(Op.INSERT, part.dtype, (part, view, mine))
        results.append(mine)
    return multi(results, axis)


def shows(view: UOp, x: UOp) -> bool:
    """True if a view is movement of `x` and nothing else."""
    while view is not x and view.op in MOVEMENT:
        view = view.src[0]
    return view is x


@rule(Op.ASSIGN)
def of_assign(node: UOp, sources: Sources) -> UOp:
    """Shard by shard, in the layout of the memory."""
    target, value = sources
    assert all(is_memory(s) for s in target.src), f"{node!r} is assigned to what is no memory"
    value = reshard(value, target.arg)
    found = [
        t if t is v else UOp(Op.ASSIGN, node.dtype, (t, v))
        for t, v in zip(target.src, value.src, strict=True)
    ]
    return multi(found, target.arg)


def is_memory(part: UOp) -> bool:
    """True if a shard is memory, or shards are, before or after an assignment."""
    base = base_of(part)
    if base.op is Op.MULTI:
        return all(map(is_memory, base.src))
    return is_stored(base) or base.op is Op.ASSIGN
