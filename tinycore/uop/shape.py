"""Shape and device inference for tensor-graph nodes.

Floor 1. The frontend checks operands before it builds a node, so here only what a node *is* counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from tinycore.dtype import ImageDType
from tinycore.uop.op import ALU, PARTIAL_WRITES, Merge, Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tinycore.uop.node import UOp

Shape = tuple[int, ...]
"""Sizes of the axes. One that a Variable gives at launch is a `Size`, which computes as an int."""

SAME_AS_FIRST = frozenset(
    {Op.COPY, Op.ASSIGN, Op.CONTIGUOUS, Op.DETACH, Op.OWN, Op.CONTIGUOUS_BACKWARD, Op.VALUE}
    | {Op.FLIP, Op.CALL, Op.SCAN_AXIS}
    | PARTIAL_WRITES
    | ALU
)
STATED = frozenset({Op.RESHAPE, Op.EXPAND})
SCALAR_NODES = frozenset({Op.CONST, Op.BIND})
ONE_AXIS = frozenset({Op.BUFFER, Op.ARANGE})
DEVICE, COPY, MULTI, BUFFER_VIEW = Op.DEVICE, Op.COPY, Op.MULTI, Op.BUFFER_VIEW

ELSEWHERE = frozenset({Op.COPY, Op.MULTI})
"""Ops whose device is another one than that of their first source."""

if TYPE_CHECKING:
    DeviceLike: TypeAlias = str | tuple["DeviceLike", ...]
else:  # checks of arguments read it, and go through meshes themselves
    DeviceLike = str | tuple[str, ...]
"""The name of a device, or a group: names of at least two, or a mesh, a group of equal groups."""

Axes: TypeAlias = tuple[int | None, ...]
"""The axis for each dimension of a mesh."""
Axis: TypeAlias = int | Axes | None
"""The axis that is cut into parts, or None for copies; one for each dimension of a mesh."""


def shape_of(node: UOp) -> Shape | None:
    """The shape of one node, or None for a node that is no tensor."""
    op, arg = node.op, node.arg
    if op in SAME_AS_FIRST:
        return node.src[0].shape_or_none
    if op in STATED:
        return tuple(arg)
    if op in SCALAR_NODES:
        return () if node.src else None
    if op in ONE_AXIS:
        return (arg.size,) if isinstance(arg, ImageDType) else (arg,)
    if op is BUFFER_VIEW:
        return (arg[0],)
    if op is MULTI:
        return side_by_side(node.src[0].shape, arg, len(node.src))
    if not node.src or (shape := node.src[0].shape_or_none) is None:
        return None
    return moved(op, arg, shape, node)


def moved(op: Op, arg: Any, shape: Shape, node: UOp) -> Shape | None:
    """The shape after an op that changes it."""
    match op:
        case Op.PERMUTE:
            return tuple([shape[axis] for axis in arg])
        case Op.PAD:
            return tuple(
                [before + size + after for size, (before, after) in zip(shape, arg, strict=True)]
            )
        case Op.SHRINK:
            return tuple([stop - start for start, stop in arg])
        case Op.SKEW | Op.UNSKEW:
            return (*shape[: arg.axis], arg.size, *shape[arg.axis + 1 :])
        case Op.REDUCE_AXIS:
            return tuple([1 if axis in arg[1] else size for axis, size in enumerate(shape)])
        case Op.MERGE_AXIS:
            return (*shape[:-1], merged_size(shape[-1], arg) // arg.piece, arg.piece)
        case Op.GATHER:
            rows = node.src[1].shape_or_none
            return None if rows is None else (*rows, *shape[1:])
        case _:
            return None


def merged_size(size: int, how: Merge) -> int:
    """Length of an axis after its runs were merged."""
    whole, rest = divmod(size, 2 * how.run)
    return whole * how.kept + min(rest, how.kept)


def side_by_side(part: Shape, axis: int | None, count: int) -> Shape:
    """The shape of so many equal parts along an axis; that of each where they are alike."""
    return tuple([n * count if a == axis else n for a, n in enumerate(part)])


def members_of(device: DeviceLike) -> tuple[DeviceLike, ...]:
    """The members of a group, which are groups in a mesh; a device is its only member."""
    return (device,) if isinstance(device, str) else device


def names_of(device: DeviceLike) -> tuple[str, ...]:
    """The names of a device, or of all devices of a group."""
    if isinstance(device, str):
        return (device,)
    return tuple([name for member in device for name in names_of(member)])


def devices_named(members: Sequence[DeviceLike]) -> DeviceLike:
    """The group of several members; one member alone is no group."""
    return members[0] if len(members) == 1 else tuple(members)


def mesh_of(device: DeviceLike) -> Shape:
    """Numbers of members: () for a device, (n,) for a group, (m, n) for a mesh, and on."""
    if isinstance(device, str) or not device:
        return ()
    return (len(device), *mesh_of(device[0]))


def is_group(device: DeviceLike) -> TypeGuard[tuple[DeviceLike, ...]]:
    """True for several devices."""
    return not isinstance(device, str)


def device_of(node: UOp) -> DeviceLike | None:
    """The device a tensor-graph node lives on, or the group; None where no source says."""
    op = node.op
    if op is DEVICE:
        device: DeviceLike = node.arg
        return device
    if op is COPY:
        return node.src[1].device_or_none
    if op is MULTI:
        return devices_named([s.device for s in node.src])
    return next((d for s in node.src if (d := s.device_or_none) is not None), None)
