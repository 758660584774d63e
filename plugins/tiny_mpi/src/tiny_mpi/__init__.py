"""Groups of processes for tinycore, by MPI. Importing this module loads no MPI.

`mpiexec -n 4 python train.py` starts four processes of one program. Their devices are RANK:0 to
RANK:3, which `ranks()` lists: `tensor.shard(tiny_mpi.ranks(), axis=0)`.
"""

from __future__ import annotations

from tiny_mpi.launch import place

__all__ = ["ranks"]


def ranks() -> tuple[str, ...]:
    """The devices of all processes, in the order of ranks."""
    return tuple([f"RANK:{rank}" for rank in range(place().size)])
