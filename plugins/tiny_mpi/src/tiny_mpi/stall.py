"""Waiting in one process for others, so that a mistake ends in an error and not in a hang.

A process that has waited for a second tells the others what it waits for, and looks at what they
told. A cycle of processes that wait for each other, one that has ended, one that is dead, and a
wait that is longer than MPI_TIMEOUT each raise GroupError, in every process that waits.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Final

from mpi4py import MPI

from tiny_mpi.calls import Call
from tiny_mpi.settings import settings
from tiny_mpi.waits import State, cycle_text, waits_for
from tinycore.errors import GroupError

__all__ = ["Stalls"]

SPIN_SECONDS: Final = 200e-6
"""Time in which a wait leaves the processor to others, and does not sleep."""
LONGEST_SLEEP: Final = 1e-3
STALL_SECONDS: Final = 1.0
"""Time after which a wait looks for its reason."""
LOOK_SECONDS: Final = 0.25
"""Time between looks; a reason must be there at two in a row, as what is told takes time."""


class Stalls:
    """The waits of a process, and what others told about theirs."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.states = dict.fromkeys(range(self.size), State())
        self.owners: list[tuple[str, int]] = comm.allgather((socket.gethostname(), os.getpid()))
        self.reports: list[MPI.Request] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Work to be done again and again while this process waits."""
        self.is_long = False
        """True while it waits for longer than computing takes."""

    def wait(self, is_done: Callable[[], bool], call: Call) -> None:
        """Wait for what this call asks for. Raises GroupError where it cannot be fulfilled."""
        began, looked, suspicion = time.monotonic(), 0.0, ""
        while not is_done():
            waited = time.monotonic() - began
            self.is_long = waited > STALL_SECONDS
            self.meanwhile()
            if waited < SPIN_SECONDS:
                os.sched_yield()
                continue
            time.sleep(min(waited / 20, LONGEST_SLEEP))
            if self.is_long and waited - looked > LOOK_SECONDS:
                looked, reason = waited, self.reason(call)
                if reason and reason == suspicion and not is_done():
                    raise GroupError(reason)
                suspicion = reason
                if waited > settings.MPI_TIMEOUT:
                    raise GroupError(
                        f"rank {self.rank} waited {waited:.0f} s in {call}: {self.told()}. "
                        "MPI_TIMEOUT is the longest wait"
                    )
        self.is_long = False
        if self.states[self.rank].call is not None:
            self.tell(State())

    def reason(self, call: Call) -> str:
        """Reason why a call cannot return, after telling and hearing; "" if none is known."""
        if self.states[self.rank].call != call:
            self.tell(State(call))
        self.hear()
        for rank in waits_for(call, self.states):
            if rank == self.rank:
                continue
            if self.states[rank].ended:
                return f"rank {self.rank} waits in {call}, and rank {rank} has ended its program"
            if self.is_dead(rank):
                host, process = self.owners[rank]
                return (
                    f"rank {rank} (process {process} on {host}) has died, and rank {self.rank} "
                    f"waits for it in {call}"
                )
        return cycle_text(self.rank, self.states)

    def told(self) -> str:
        """Activity of the others, as far as it is known."""
        return ", ".join(
            f"rank {rank} {'waits in ' + str(state.call) if state.call else 'computes'}"
            for rank, state in self.states.items()
            if rank != self.rank
        )

    def tell(self, state: State) -> None:
        """Tell all others; returns at once."""
        self.states[self.rank] = state
        self.reports = [request for request in self.reports if not request.Test()]
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.reports += [self.comm.isend(state, dest=rank) for rank in others]

    def hear(self) -> None:
        """Read what others have told."""
        status = MPI.Status()
        while self.comm.iprobe(status=status):
            self.states[status.source] = self.comm.recv(source=status.source)

    def is_dead(self, rank: int) -> bool:
        """True if the process of a rank is gone, as far as can be seen from this machine."""
        host, process = self.owners[rank]
        if host != socket.gethostname():
            return False
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return os.path.exists("/proc/self/stat")
        except ProcessLookupError:
            return True
