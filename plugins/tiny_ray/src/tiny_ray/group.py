"""The workers of Ray Train as a group: they meet at an actor, and arrays go by Ray's objects.

The actor passes on references, never arrays. Where a worker dies, Ray Train ends the others, and
starts them all again.
"""

from __future__ import annotations

from typing import Any, Final

import ray
import ray.train
import ray.train.collective
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from tiny_mpi.threads import Board, BoardGroup
from tinycore.errors import GroupError, TinycoreError
from tinycore.groups import Array

__all__ = ["RayGroup", "is_worker", "workers"]

LONGEST_WAIT_SECONDS: Final = 300
"""Longest wait of a worker for others."""


def is_worker() -> bool:
    """True in a function that Ray Train runs in its workers."""
    try:
        return int(ray.train.get_context().get_world_size()) > 0
    except Exception:  # of several kinds, by the version of Ray
        return False


def workers() -> RayGroup:
    """All workers of this training. The first one makes the board, which ends with it."""
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    board = None
    if rank == 0:  # each worker may wait in one call, and say that it ends
        remote: Any = ray.remote  # options of actors are not in its annotations
        board = remote(num_cpus=0, max_concurrency=2 * size)(Board).remote(size)
    return RayGroup(rank, size, ray.train.collective.broadcast_from_rank_zero(board))


class RayGroup(BoardGroup):
    """A worker."""

    def __init__(self, rank: int, size: int, board: Any) -> None:
        super().__init__(rank, size)
        self.board = board

    def ask(self, question: str, *given: Any) -> Any:
        """The answer of the actor. Raises GroupError where it is gone, or takes too long."""
        asked = getattr(self.board, question).remote(self.rank, *given)
        try:
            return ray.get(asked, timeout=LONGEST_WAIT_SECONDS)
        except RayTaskError as error:
            if isinstance(error.cause, TinycoreError):
                raise error.cause from error
            raise
        except RayActorError as error:
            raise GroupError(f"rank {self.rank}: worker 0, where all meet, has died") from error
        except GetTimeoutError as error:
            call = next((str(each) for each in given), question)
            raise GroupError(
                f"rank {self.rank} waited {LONGEST_WAIT_SECONDS} s in {call}"
            ) from error

    def lent(self, x: Array) -> list[Any]:
        """A reference; in a list, so that Ray passes on it and not the array."""
        return [ray.put(x)]

    def fetched(self, lent: list[Any]) -> Array:
        """The array, in memory that is shared and read only."""
        found: Array = ray.get(lent[0], timeout=LONGEST_WAIT_SECONDS)
        return found
