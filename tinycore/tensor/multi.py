"""Multi-device tensors: sharded along an axis, or replicated.

Floor 5. Such a tensor has the shape of the whole and is used as any other; what each device does,
and what travels between them, is found when it is computed (`schedule/shard.py`).
See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from typing import Self

from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.core import canonical
from tinycore.tensor.grad import Gradients, rule
from tinycore.tensor.image_products import Images
from tinycore.tensor.storage import view_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, devices_named, is_group, names_of


class Multi(Images):
    """Spreading a tensor over devices."""

    __slots__ = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that hold or compute it, in the order of the parts."""
        return names_of(self.device)

    @property
    def sharded_axis(self) -> int | None:
        """The axis along which devices hold parts; None if each holds everything."""
        return graph.axis_of(self.uop) if is_group(self.device) else None

    def shard(self, devices: DeviceLike, axis: int | None = None) -> Self:
        """The tensor on several devices: in equal parts along an axis, or with None a copy on each.

        Returns the tensor itself if it is laid out so already; one in other parts is redistributed.
        Use it with tensors on the same devices; results are in parts if their operands are. Raises
        ShapeError for an axis that has no equal parts, DeviceError for a device that is unknown or
        named twice.

        >>> x = Tensor([[1, 2], [3, 4]]).shard(("PYTHON:0", "PYTHON:1"), axis=0)
        >>> x.shape, (x + 1).tolist()
        ((2, 2), [[2, 3], [4, 5]])
        """
        names = group_named("shard", devices)
        along = None if axis is None else resolve_axis("shard", axis, self.ndim)
        if along is not None:
            check_parts(self.shape, along, names)
        result = self._from_node(sharded(self.uop, names, along))
        if result.uop is self.uop:
            return self
        result.requires_grad = self.requires_grad
        return result

    def shard_(self, devices: DeviceLike, axis: int | None = None) -> Self:
        """Spread this tensor, and its gradient, over several devices; returns itself.

        Raises as `shard` does.
        """
        if (spread := self.shard(devices, axis).uop) is not self.uop:
            self._move(view_of(spread))
        if self.grad is not None:
            self.grad.shard_(devices, axis)
        return self

    def shard_like(self, y: Self) -> Self:
        """The tensor on the devices of another, in parts along the same axis.

        Raises ShapeError where the axis does not fall into as many parts.

        >>> x = Tensor([[1, 2], [3, 4]]).shard(("PYTHON:0", "PYTHON:1"), axis=0)
        >>> Tensor([[5], [6]]).shard_like(x).sharded_axis
        0
        """
        return self.shard(y.device, y.sharded_axis)


def group_named(name: str, devices: DeviceLike) -> tuple[str, ...]:
    """Full names of some devices. Raises ArgumentError for none, DeviceError for a repeated one."""
    if not devices:
        raise ArgumentError(f"{name}: needs at least one device, got {devices!r}")
    return names_of(canonical(devices_named(names_of(devices))))


def check_parts(shape: tuple[int, ...], axis: int, names: tuple[str, ...]) -> None:
    """Raises ShapeError unless an axis falls into equal parts, one for each device."""
    if not shape:
        raise ShapeError("shard: a tensor of shape () has no axis to cut; leave out `axis`")
    size, count = shape[axis], len(names)
    if size == 0 or size % count:
        raise ShapeError(
            f"shard: axis {axis} of shape {shape} has {size} elements, which is no multiple of "
            f"the {count} devices {', '.join(names)}. Pad it to {-(-max(size, 1) // count) * count}"
            ", or choose another axis or other devices."
        )


def sharded(x: UOp, names: tuple[str, ...], axis: int | None) -> UOp:
    """A node over devices, in equal parts along an axis or everything on each."""
    group = devices_named(names)
    if not is_group(group):
        return x if x.device == group else copy_to_device(graph.on_device(x, group), group)
    if x.device == group and graph.axis_of(x) == axis:
        return x
    if graph.is_constant(x):
        constant = graph.on_device(x, group)
        return constant if axis is None else in_memory(constant, names, axis)
    return UOp(Op.MULTI, x.dtype, tuple(shards_of(x, names, axis)), axis)


def shards_of(x: UOp, names: tuple[str, ...], axis: int | None) -> list[UOp]:
    """Shards of a node: the part of each device, in new memory."""
    found = []
    for number, name in enumerate(names):
        part = x if axis is None else part_of(x, axis, number, len(names))
        here = part.device == name
        found.append(UOp(Op.CONTIGUOUS, x.dtype, (part,)) if here else copy_to_device(part, name))
    return found


def part_of(x: UOp, axis: int, number: int, count: int) -> UOp:
    """One of `count` equal parts along an axis."""
    size = x.shape[axis] // count
    box = [(0, n) for n in x.shape]
    box[axis] = (number * size, (number + 1) * size)
    return graph.shrink(x, box)


def copy_to_device(x: UOp, device: DeviceLike) -> UOp:
    """The value copied to a device; itself if it is there."""
    return x if x.device == device else UOp(Op.COPY, x.dtype, (x, device_node(device)))


def in_memory(constant: UOp, names: tuple[str, ...], axis: int) -> UOp:
    """A constant in new memory, a part on each device."""
    shape = part_of(constant, axis, 0, len(names)).shape
    parts = [graph.new_buffer(shape, constant.dtype, name) for name in names]
    memory = UOp(Op.MULTI, constant.dtype, tuple(parts), axis)
    return UOp(Op.ASSIGN, constant.dtype, (memory, constant))


@rule(Op.MULTI)
def of_multi(node: UOp, g: UOp) -> Gradients:
    """Each part gets the gradient of its place; of replicas the first gets all of it."""
    if node.arg is None:
        return (copy_to_device(g, node.src[0].device), *[None] * (len(node.src) - 1))
    count = len(node.src)
    return tuple(
        [copy_to_device(part_of(g, node.arg, k, count), s.device) for k, s in enumerate(node.src)]
    )
