"""Multi-device tensors: sharded along an axis, or replicated.

Floor 5. Such a tensor has the shape of the whole and is used as any other; what each device does,
and what travels between them, is found when it is computed (`schedule/shard.py`).
See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.autograd.grad import Gradients, rule
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.core import canonical
from tinycore.tensor.methods.image_products import Images
from tinycore.tensor.storage.storage import view_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op
from tinycore.uop.shape import (
    Axes,
    Axis,
    DeviceLike,
    Shape,
    devices_named,
    is_group,
    members_of,
    mesh_of,
    names_of,
)
from tinycore.uop.size import are_ints


class Multi(Images):
    """Sharding of a tensor over devices, and copies of it on all."""

    __slots__ = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that hold or compute it, in the order of the parts."""
        return names_of(self.device)

    @property
    def sharded_axis(self) -> Axis:
        """The axis along which devices hold parts; None if each holds everything.

        On a mesh, a tuple with one for each of its dimensions.
        """
        return graph.axis_of(self.uop) if is_group(self.device) else None

    def shard(self, devices: DeviceLike, axis: Axis = None) -> Self:
        """The tensor on several devices: in equal parts along an axis, or with None a copy on each.

        Devices may be a mesh, as of two rows `(("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))`. Then
        `axis` is a tuple, as `(0, None)`: the rows have parts along axis 0, of which each device
        of a row has a copy. An axis alone stands for all dimensions.

        Returns the tensor itself if it is laid out so already; one in other parts is redistributed.
        Use it with tensors on the same devices; results are in parts if their operands are. Raises
        ShapeError for an axis that has no equal parts, DeviceError for a device that is unknown or
        named twice, and for rows of different lengths.

        >>> x = Tensor([[1, 2], [3, 4]]).shard(("PYTHON:0", "PYTHON:1"), axis=0)
        >>> x.shape, (x + 1).tolist()
        ((2, 2), [[2, 3], [4, 5]])
        """
        group = group_named("shard", devices)
        axes = axes_along(axis, self.ndim, devices)
        check_parts(self.shape, axes, group)
        result = self._from_node(sharded(self.uop, group, axes))
        if result.uop is self.uop:
            return self
        result.requires_grad = self.requires_grad
        return result

    def shard_(self, devices: DeviceLike, axis: Axis = None) -> Self:
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


def group_named(name: str, devices: DeviceLike) -> DeviceLike:
    """Full names of some devices. Raises ArgumentError for none, DeviceError for a repeated one."""
    if not devices:
        raise ArgumentError(f"{name}: needs at least one device, got {devices!r}")
    return canonical(devices_named(members_of(devices)))


def axes_along(axis: Axis, rank: int, devices: DeviceLike) -> Axes:
    """The axis for each dimension of devices with several members.

    Raises ArgumentError for another number of axes than there are dimensions.
    """
    mesh = mesh_of(devices) or (1,)
    given = axis if isinstance(axis, tuple) else (axis,) * len(mesh)
    if len(given) != len(mesh):
        raise ArgumentError(
            f"shard: axis={axis} is for {len(given)} dimensions of devices, and {devices!r} have "
            f"{len(mesh)}: {mesh}"
        )
    axes = [None if a is None else resolve_axis("shard", a, rank) for a in given]
    return tuple([a for a, count in zip(axes, mesh, strict=True) if count > 1])


def check_parts(shape: Shape, axes: Axes, devices: DeviceLike) -> None:
    """Raises ShapeError unless a shape has equal parts on devices."""
    counts: dict[int, int] = {}
    for axis, count in zip(axes, mesh_of(devices), strict=False):
        if axis is not None:
            counts[axis] = counts.get(axis, 1) * count
    if counts and not shape:
        raise ShapeError("shard: a tensor of shape () has no axis to cut; leave out `axis`")
    uneven = {a: n for a, n in counts.items() if shape[a] == 0 or shape[a] % n}
    if not uneven:
        return
    whole = [-(-max(n, 1) // counts.get(a, 1)) * counts.get(a, 1) for a, n in enumerate(shape)]
    told = ", and ".join(
        f"axis {a} of shape {shape} has {shape[a]} elements, which is no multiple of {n} devices"
        for a, n in uneven.items()
    )
    raise ShapeError(
        f"shard: {told}: axes {axes} are along {devices}. Pad it to {tuple(whole)}, or choose "
        "other axes or devices."
    )


def sharded(x: UOp, device: DeviceLike, axes: Axes) -> UOp:
    """A node over devices, in equal parts along an axis or everything on each."""
    if not axes:
        return x if x.device == device else copy_to_device(graph.on_device(x, device), device)
    if x.device == device and graph.axes_of(x) == axes:
        return x
    if graph.is_constant(x) and are_ints(x.shape):
        constant = graph.on_device(x, device)
        if all(axis is None for axis in axes):
            return constant
        memory = graph.in_parts(x.shape, x.dtype, device, axes)
        return UOp(Op.ASSIGN, x.dtype, (memory, constant))
    axis, members = axes[0], members_of(device)
    parts = [on_member(part_of(x, axis, k, members), m, axes[1:]) for k, m in enumerate(members)]
    return UOp(Op.MULTI, x.dtype, tuple(parts), axis)


def on_member(x: UOp, member: DeviceLike, axes: Axes) -> UOp:
    """A part for a member of a group, in new memory. Of one device it is cut before it is sent."""
    if x.device == member:
        x = x.alu(Op.CONTIGUOUS)
    elif not axes or len(mesh_of(x.device)) > 1:
        x = copy_to_device(x, member)
    return sharded(x, member, axes)


def part_of(x: UOp, axis: int | None, number: int, members: Sequence[DeviceLike]) -> UOp:
    """The equal part along an axis that one of the members of a group has; all for None."""
    part = enumerate(graph.part_shape(x.shape, axis, members))
    box = [(number * n, (number + 1) * n) if a == axis else (0, n) for a, n in part]
    return graph.shrink(x, box)


def copy_to_device(x: UOp, device: DeviceLike) -> UOp:
    """The value copied to a device; itself if it is there."""
    return x if x.device == device else x.alu(Op.COPY, device_node(device))


@rule(Op.MULTI)
def of_multi(node: UOp, g: UOp) -> Gradients:
    """Each part gets the gradient of its place; of replicas the first gets all of it."""
    devices = [s.device for s in node.src]
    if node.arg is None:
        return (copy_to_device(g, devices[0]), *[None] * (len(devices) - 1))
    parts = [part_of(g, node.arg, k, devices) for k in range(len(devices))]
    return tuple(map(copy_to_device, parts, devices))
