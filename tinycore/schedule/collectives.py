"""Collectives: all-gather, all-reduce and resharding of values on several devices.

Floor 3. A MULTI holds one value per device: shards along axis `arg`, or replicas where `arg` is
None. All of this becomes COPY and arithmetic on single devices, scheduled as any other. A large sum
is a reduce-scatter and an all-gather (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005), of two copies in a row each, where a ring would wait for
2 * (n - 1). See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from tinycore.config import settings
from tinycore.dtype import DType, Scalar, dtypes
from tinycore.schedule.kernel import numel, with_shape
from tinycore.uop.movement import below_movement, moved
from tinycore.uop.node import UOp, as_scalar, device_node
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape, is_group, names_of

Entry = TypeVar("Entry")
SMALLEST_IN_SHARDS = 1 << 18
"""Elements from which sums in shards pay: below, twice as many copies cost more than they save."""
FEWEST_IN_SHARDS = 3
"""Devices from which they send less than everyone sending everything to everyone."""

# --- nodes on one device


def expanded_constant(shape: Shape, dtype: DType, value: Scalar, device: DeviceLike) -> UOp:
    """A constant expanded to a shape."""
    scalar = UOp(Op.CONST, dtype, (device_node(device),), as_scalar(value, dtype))
    thin = with_shape(scalar, (1,) * len(shape))
    return moved(Op.EXPAND, thin, shape)


def with_entry(entries: tuple[Entry, ...], axis: int, entry: Entry) -> tuple[Entry, ...]:
    """A shape with another size of one axis, or a box with other ends."""
    return (*entries[:axis], entry, *entries[axis + 1 :])


def narrow(x: UOp, axis: int, start: int, stop: int) -> UOp:
    """The elements from start to stop of one axis."""
    box = with_entry(tuple([(0, size) for size in x.shape]), axis, (start, stop))
    return moved(Op.SHRINK, x, box)


def pad(x: UOp, axis: int, before: int, after: int) -> UOp:
    """The value padded with zeros along one axis."""
    around = with_entry(((0, 0),) * len(x.shape), axis, (before, after))
    return moved(Op.PAD, x, around)


def concatenate(parts: Sequence[UOp], axis: int) -> UOp:
    """The concatenation of values on one device along an axis.

    Not the sum of padded values: that would turn -0.0 into 0.0.
    """
    total = sum(part.shape[axis] for part in parts)
    result, stop = pad(parts[0], axis, 0, total - parts[0].shape[axis]), 0
    for part, following in pairwise(parts):
        stop += part.shape[axis]
        inside = expanded_constant(
            with_entry(part.shape, axis, stop), dtypes.bool, True, part.device
        )
        rest = pad(following, axis, stop, total - stop - following.shape[axis])
        result = pad(inside, axis, 0, total - stop).where(result, rest)
    return result


def in_new_memory(x: UOp) -> UOp:
    """The value in new memory, so that its users do not recompute it."""
    return x.alu(Op.CONTIGUOUS)


def copy_to(x: UOp, device: DeviceLike) -> UOp:
    """The value on a device: itself if it is there, a constant rebuilt, else a copy."""
    if x.device == device:
        return x
    base = below_movement(x)
    if base.op in (Op.CONST, Op.ARANGE):
        return x.substitute({device_node(x.device): device_node(device)})
    return UOp(Op.COPY, x.dtype, (x, device_node(device)))


# --- layouts


def multi(parts: Sequence[UOp], axis: int | Op | None) -> UOp:
    """The MULTI of shards along an axis, of replicas, or of partial results and their fold."""
    return UOp(Op.MULTI, parts[0].dtype, tuple(parts), axis)


def shard_of(x: UOp, axis: int, number: int, count: int) -> UOp:
    """One of `count` equal shards along an axis."""
    size = x.shape[axis] // count
    return narrow(x, axis, number * size, (number + 1) * size)


def reshard(value: UOp, axis: int | None) -> UOp:
    """A MULTI in another layout: replicas are sliced, shards are gathered.

    From one axis to another is an all-to-all: each device sends every other one its slice.
    """
    devices, count = [s.device for s in value.src], len(value.src)
    if value.arg == axis:
        return value
    if axis is None:
        return multi([all_gather(value, device) for device in devices], None)
    if value.arg is None:
        return multi([shard_of(s, axis, k, count) for k, s in enumerate(value.src)], axis)
    found = [
        in_new_memory(
            concatenate([copy_to(shard_of(s, axis, k, count), d) for s in value.src], value.arg)
        )
        for k, d in enumerate(devices)
    ]
    return multi(found, axis)


def all_gather(value: UOp, device: DeviceLike) -> UOp:
    """The whole of a MULTI on one device, in new memory."""
    if value.arg is not None:
        return in_new_memory(concatenate([copy_to(s, device) for s in value.src], value.arg))
    wanted = {*names_of(device)}
    near = next((s for s in value.src if wanted.issubset(names_of(s.device))), value.src[0])
    return in_new_memory(near) if near.device == device else copy_to(near, device)


# --- folding over devices


def folded(partial: UOp, axis: int | None) -> UOp:
    """Partial results folded over the devices, with the same bits on each device.

    With an axis each device gets its shard (a reduce-scatter), else everything (an all-reduce): by
    the setting RING as shards that are gathered then, of which each device sends 2 * (n - 1) / n of
    the size, or from all at once.
    """
    op, parts = partial.arg, partial.src
    count, size = len(parts), numel(parts[0])
    is_large = count >= FEWEST_IN_SHARDS and size >= SMALLEST_IN_SHARDS
    is_whole = axis is None and not is_group(parts[0].device)  # flat, parts inside would be mixed
    if is_whole and size >= count and (1 if is_large else ALWAYS) <= settings.RING:
        flat = [pad(with_shape(p, (size,)), 0, 0, -size % count) for p in parts]
        whole = reshard(multi(direct_reduce(op, flat, 0), 0), None)
        return multi([with_shape(narrow(p, 0, 0, size), parts[0].shape) for p in whole.src], None)
    return multi(direct_reduce(op, parts, axis), axis)


ALWAYS = 2
"""The value of RING by which sums of all sizes go in shards."""


def direct_reduce(op: Op, parts: Sequence[UOp], axis: int | None) -> list[UOp]:
    """Every device gets all values and reduces them in the same order: n * (n - 1) copies.

    With an axis it gets its shard of each: then each sends (n - 1) / n of the size.
    """
    results = []
    for number, part in enumerate(parts):
        here = [p if axis is None else shard_of(p, axis, number, len(parts)) for p in parts]
        first, *others = [copy_to(p, part.device) for p in here]
        for other in others:
            first = first.alu(op, other)
        results.append(first)
    return results
