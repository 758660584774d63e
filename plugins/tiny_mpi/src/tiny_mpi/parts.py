"""Tensors and layers in parts: one part in each process of a group."""

from __future__ import annotations

import copy
import math
from itertools import chain
from typing import Any, TypeVar

import numpy

from tinycore import Tensor
from tinycore.errors import ArgumentError, ShapeError
from tinycore.groups import Array, group
from tinycore.nn.paths import edges_below, leading_to
from tinycore.uop.shape import Axis, DeviceLike, mesh_of

__all__ = ["from_parts", "gathered", "mesh", "ranks"]

Layer = TypeVar("Layer")


def ranks() -> tuple[str, ...]:
    """The devices of all processes, in the order of ranks."""
    return tuple([f"RANK:{rank}" for rank in range(group().size)])


def mesh(*sides: int) -> DeviceLike:
    """The devices of all processes in rows: `mesh(2, 4)` is two rows of four, one after another.

    Neighbors are in the last dimension, so the most should be sent there. Raises ArgumentError
    unless the sides multiply to the number of processes.
    """
    devices: tuple[DeviceLike, ...] = ranks()
    if min(sides, default=0) < 1 or math.prod(sides) != len(devices):
        told = " x ".join(map(str, sides)) or "0"
        raise ArgumentError(f"mesh: {told} is not the number of processes, {len(devices)}")
    for side in sides[:0:-1]:
        devices = tuple([devices[start : start + side] for start in range(0, len(devices), side)])
    return devices


def from_parts(part: Array) -> Tensor:
    """The tensor of which each process has a part: (n, ...) in each -> (size * n, ...) on `ranks`.

    For data that each process reads for itself. Raises ShapeError where shapes differ.
    """
    processes = group()
    shape = numpy.array([part.ndim, *part.shape], numpy.int64)
    ranks_told = processes.all_gather(shape[:1])
    shapes = processes.all_gather(shape) if (ranks_told == part.ndim).all() else ranks_told
    if (other := numpy.flatnonzero((shapes != shapes[0]).any(axis=1))).size:
        raise ShapeError(
            f"from_parts: rank 0 has (axes, sizes) {shapes[0].tolist()}, rank {other[0]} "
            f"{shapes[other[0]].tolist()}; all parts must be of one shape"
        )
    whole = numpy.empty((processes.size, *part.shape), part.dtype)
    whole[processes.rank] = part  # the rest is left to the others
    return Tensor(whole.reshape(-1, *part.shape[1:])).shard(ranks(), axis=0)


def gathered(layer: Layer, mesh: DeviceLike | None = None, along: int = 0) -> Layer:
    """A layer whose parameters, that lie in parts, are gathered in each process for one use.

    With a mesh they are gathered along one of its dimensions, and stay in parts along others. The
    gradients go to the parts. So is a layer computed that is stored in parts: `gathered(f)(x)`.
    What leads to parameters is copied, as `copy.deepcopy` does; all else is shared.
    """
    edges = edges_below(layer, Tensor)
    leading = leading_to(Tensor, edges)
    copies: dict[int, Any] = {}
    for _, each in [("", layer), *chain.from_iterable(edges.values())]:
        unnamed = [getattr(each, name, None) for name in getattr(each, "__not_state__", ())]
        for value in [each, *unnamed]:
            if isinstance(value, Tensor):
                axes = axes_without(value.sharded_axis, mesh, along)
                is_whole = axes == value.sharded_axis or id(value) in copies
                whole = value if is_whole else value.shard(value.device, axes).contiguous()
                copies.setdefault(id(value), whole)
            elif id(value) not in leading:
                copies[id(value)] = value
    return copy.deepcopy(layer, copies)


def axes_without(axis: Axis, mesh: DeviceLike | None, along: int) -> Axis:
    """Axes of a tensor that is no longer in parts along a dimension of a mesh, or along any."""
    if mesh is None:
        return None
    several = [number for number, side in enumerate(mesh_of(mesh)) if side > 1]
    if not isinstance(axis, tuple):
        return None if several == [along] else axis
    return tuple([None if d == along else a for d, a in zip(several, axis, strict=True)])
