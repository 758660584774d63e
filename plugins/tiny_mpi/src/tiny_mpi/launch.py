"""The place of this process in what `mpiexec` started, and its group; MPI is loaded for several."""

from __future__ import annotations

import os
from functools import cache
from typing import Final, NamedTuple

from tiny_mpi.threads import Board, ThreadGroup
from tinycore.groups import Group
from tinycore.plugin import deferred

__all__ = ["Place", "place", "started"]

world: Final = deferred("tiny_mpi.mpi_group:world")

VARIABLES: Final = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)
"""Variables of MPICH with its relatives, and of Open MPI: rank, size, and those of a machine."""


class Place(NamedTuple):
    """Number of a process among all, and among those of its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def place() -> Place:
    """The place of this process; that of one alone where no launcher of MPI started it."""
    for rank, size, local_rank, local_size in VARIABLES:
        if rank in os.environ and size in os.environ:
            numbers = int(os.environ[rank]), int(os.environ[size])
            here = int(os.environ.get(local_rank, "0")), int(os.environ.get(local_size, "1"))
            return Place(*numbers, *here)
    return Place()


@cache
def started() -> Group:
    """The processes that `mpiexec` started, or this one alone."""
    found: Group = world() if place().size > 1 else ThreadGroup(0, Board(1))
    return found
