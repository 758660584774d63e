"""The place of this process in what `mpiexec` started, and its group; MPI is loaded for several."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from tiny_mpi.settings import device_name, settings
from tiny_mpi.threads import Board, ThreadGroup
from tinycore.groups import Group
from tinycore.plugin import deferred

if TYPE_CHECKING:
    from tiny_mpi.cards import Control

__all__ = ["COLLECTIVES", "Place", "on_cards", "place", "started"]

COLLECTIVES: Final = "tinycore.collectives"
"""The group of entry points by which packages of devices offer collectives of their cards."""
world: Final = deferred("tiny_mpi.mpi_group:world")
card_group: Final = deferred("tiny_mpi.cards:CardGroup")
library: Final = deferred("tiny_mpi.nccl:Library")

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
    return on_cards(world()) if place().size > 1 else ThreadGroup(0, Board(1))


def on_cards(control: Control) -> Group:
    """The same processes by the library of their cards, where all have one; else `control`."""
    offers = entry_points(group=COLLECTIVES, name=device_name()[0])
    if not offers or not settings.MPI_CARDS:
        return control
    here = place()
    found: Any = next(iter(offers)).load()(here.local_rank, here.local_size)
    if not control.all_reduce(numpy.array([found is not None], numpy.int32), "min")[0]:
        return control
    path, open_card = found
    made: Group = card_group(control, library(path), open_card())
    return made
