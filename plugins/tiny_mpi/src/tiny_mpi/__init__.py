"""Groups of processes for tinycore, by MPI. Importing this module loads no MPI.

`mpiexec -n 4 python train.py` starts four processes of one program. Their devices are RANK:0 to
RANK:3, which `ranks()` lists: `tensor.shard(tiny_mpi.ranks(), axis=0)`.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from tinycore import Tensor
from tinycore.groups import group

__all__ = ["gathered", "ranks"]

Layer = TypeVar("Layer")


def ranks() -> tuple[str, ...]:
    """The devices of all processes, in the order of ranks."""
    return tuple([f"RANK:{rank}" for rank in range(group().size)])


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
