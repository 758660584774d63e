"""Values spread over several devices, and how they travel between them.

Floor 3. A MULTI holds one value per device: parts that lie side by side along axis `arg`, or, with
`arg` None, the same value on each. Here it is laid out anew: parts are cut, copied and joined, and
partial results are folded. What comes out is COPY and arithmetic on single devices, scheduled as
any other. The ring follows Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (2009). See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tinycore.config import settings
from tinycore.dtype import DType, Scalar, dtypes
from tinycore.schedule.kernel import numel, with_shape
from tinycore.uop.node import UOp, as_scalar
from tinycore.uop.op import MOVEMENT, Op
from tinycore.uop.shape import Shape

SMALLEST_RING = 1 << 18
"""Elements from which a ring pays: below, its many small copies cost more than they save."""
FEWEST_IN_RING = 3
"""Devices from which a ring sends less than everyone sending everything to everyone."""

# --- nodes on one device


def device_node(device: str) -> UOp:
    """The DEVICE node of a name."""
    return UOp(Op.DEVICE, dtypes.void, (), device)


def filled(shape: Shape, dtype: DType, value: Scalar, device: str) -> UOp:
    """A constant of any shape."""
    scalar = UOp(Op.CONST, dtype, (device_node(device),), as_scalar(value, dtype))
    thin = with_shape(scalar, (1,) * len(shape))
    return thin if thin.shape == shape else UOp(Op.EXPAND, dtype, (thin,), shape)


def with_size(shape: Shape, axis: int, size: int) -> Shape:
    """A shape with another size of one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def piece(x: UOp, axis: int, start: int, stop: int) -> UOp:
    """The elements from start to stop of one axis."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    box = [(0, size) for size in x.shape]
    box[axis] = (start, stop)
    return UOp(Op.SHRINK, x.dtype, (x,), tuple(box))


def padded(x: UOp, axis: int, before: int, after: int) -> UOp:
    """Zeros around along one axis."""
    if not (before or after):
        return x
    around = [(0, 0)] * len(x.shape)
    around[axis] = (before, after)
    return UOp(Op.PAD, x.dtype, (x,), tuple(around))


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Parts on one device side by side.

    Not their padded sum: that would make 0.0 of -0.0.
    """
    total = sum(part.shape[axis] for part in parts)
    result, stop = padded(parts[0], axis, 0, total - parts[0].shape[axis]), 0
    for part, following in pairwise(parts):
        stop += part.shape[axis]
        inside = filled(with_size(part.shape, axis, stop), dtypes.bool, True, part.device)
        rest = padded(following, axis, stop, total - stop - following.shape[axis])
        result = padded(inside, axis, 0, total - stop).where(result, rest)
    return result


def stored(x: UOp) -> UOp:
    """The value in memory of its own, so that those who use it do not compute it again."""
    return UOp(Op.CONTIGUOUS, x.dtype, (x,))


def copied(x: UOp, device: str) -> UOp:
    """The value on a device: itself where it is there, a constant rebuilt, else a copy."""
    if x.device == device:
        return x
    base = x
    while base.op in MOVEMENT:
        base = base.src[0]
    if base.op in (Op.CONST, Op.ARANGE):
        return x.substitute({device_node(x.device): device_node(device)})
    return UOp(Op.COPY, x.dtype, (x, device_node(device)))


# --- layouts


def multi(parts: Sequence[UOp], axis: int | None) -> UOp:
    """One value of parts on different devices, side by side along an axis, or alike."""
    return UOp(Op.MULTI, parts[0].dtype, tuple(parts), axis)


def can_lie_along(shape: Shape, axis: int, count: int) -> bool:
    """Whether an axis falls into so many equal parts."""
    return shape[axis] > 0 and shape[axis] % count == 0


def part_of(x: UOp, axis: int, number: int, count: int) -> UOp:
    """One of `count` equal parts along an axis."""
    size = x.shape[axis] // count
    return piece(x, axis, number * size, (number + 1) * size)


def laid_along(value: UOp, axis: int | None) -> UOp:
    """A MULTI in another layout: cut where it is whole, gathered where it is wanted whole.

    From one axis to another each device sends every other one what that needs of its part.
    """
    devices, count = [s.device for s in value.src], len(value.src)
    if value.arg == axis:
        return value
    if axis is None:
        return multi([gathered(value, device) for device in devices], None)
    if value.arg is None:
        return multi([part_of(s, axis, k, count) for k, s in enumerate(value.src)], axis)
    found = [
        stored(joined([copied(part_of(s, axis, k, count), d) for s in value.src], value.arg))
        for k, d in enumerate(devices)
    ]
    return multi(found, axis)


def gathered(value: UOp, device: str) -> UOp:
    """The whole of a MULTI on one device, in memory that no part of it is."""
    if value.arg is not None:
        return stored(joined([copied(s, device) for s in value.src], value.arg))
    near = next((s for s in value.src if s.device == device), None)
    return stored(near) if near is not None else copied(value.src[0], device)


# --- folding over devices


def all_reduced(op: Op, parts: Sequence[UOp]) -> UOp:
    """On every device the fold of the parts on all of them, the same bits on each.

    The setting RING chooses how they travel.
    """
    size = numel(parts[0])
    large = len(parts) >= FEWEST_IN_RING and size >= SMALLEST_RING
    in_ring = size >= len(parts) and (settings.RING == ALWAYS or (settings.RING and large))
    return multi(by_ring(op, parts) if in_ring else by_all(op, parts), None)


ALWAYS = 2
"""The value of RING that asks for the ring whatever the size."""


def by_all(op: Op, parts: Sequence[UOp]) -> list[UOp]:
    """Every device gets all parts and folds them in the same order: n * (n - 1) copies."""
    results = []
    for part in parts:
        first, *others = [copied(p, part.device) for p in parts]
        for other in others:
            first = first.alu(op, other)
        results.append(first)
    return results


def by_ring(op: Op, parts: Sequence[UOp]) -> list[UOp]:
    """Each n-th travels around the ring twice, folded and then handed on: 2 * n * (n - 1) copies.

    Every device sends 2 * (n - 1) / n of the size, however many there are.
    """
    count, size = len(parts), numel(parts[0])
    flat = [with_shape(p, (size,)) for p in parts]
    devices = [p.device for p in parts]
    chunks: list[dict[int, UOp]] = []  # of each n-th, the fold by device
    for number in range(count):
        box = (size * number // count, size * (number + 1) // count)
        total = piece(flat[number], 0, *box)
        for step in range(1, count):
            here = (number + step) % count
            total = copied(total, devices[here]).alu(op, piece(flat[here], 0, *box))
        held = {here: total}
        for step in range(1, count):
            here = (number - 1 + step) % count
            held[here] = total = copied(total, devices[here])
        chunks.append(held)
    return [
        with_shape(stored(joined([held[k] for held in chunks], 0)), parts[0].shape)
        for k in range(count)
    ]
