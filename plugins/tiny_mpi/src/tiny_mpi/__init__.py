"""Groups of processes for tinycore, by MPI. Importing this module loads no MPI.

`mpiexec -n 4 python train.py` starts four processes of one program. Their devices are RANK:0 to
RANK:3, which `ranks()` lists: `tensor.shard(tiny_mpi.ranks(), axis=0)`.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy

from tinycore import Tensor
from tinycore.errors import ShapeError
from tinycore.groups import Array, group

__all__ = ["from_parts", "gathered", "ranks"]

Layer = TypeVar("Layer")


def ranks() -> tuple[str, ...]:
    """The devices of all processes, in the order of ranks."""
    return tuple([f"RANK:{rank}" for rank in range(group().size)])


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


def gathered(layer: Layer) -> Layer:
    """A layer whose parameters, that lie in parts, are gathered in each process for one use.

    The gradients go to the parts. So is a layer computed that is stored in parts: `gathered(f)(x)`.
    """
    found = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, Tensor):
            if value.sharded_axis is not None:
                setattr(found, name, value.shard(value.devices).contiguous())
        elif hasattr(value, "__dict__"):
            setattr(found, name, gathered(value))
    return found
