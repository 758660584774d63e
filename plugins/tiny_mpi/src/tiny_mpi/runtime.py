"""Runtime of RANK: the devices of all processes of a group, `RANK:k` that of rank k.

Every process runs the same program, and builds the same graphs over the devices of all. Of what is
scheduled it runs the kernels of its own device, and takes part in the copies to and from it; the
rest is left to the others. So what works on several devices of one machine works on several
processes: tensors in parts or in copies (`Tensor.shard`), their gradients, optimizers, TinyJit. It
is how JAX computes on several hosts (SPMD, multi-controller).

What another process sends is received before something touches its memory (`arrivals.py`).

A value that is read (`numpy`, `item`) comes from the process that has it, so all must read it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy

from tiny_mpi.arrivals import Arrivals, Place, SupportsBuckets
from tiny_mpi.backend import underlying
from tiny_mpi.launch import place
from tinycore.config import cpu_count
from tinycore.config import settings as core_settings
from tinycore.errors import GroupError
from tinycore.groups import Group, group
from tinycore.plugin import Allocator, DeviceRuntime, Graph, Handle, Launch, Program, ProgramInfo

if TYPE_CHECKING:
    from tiny_mpi.cards import Direct

__all__ = ["RankRuntime", "count", "open_rank", "reading_alone"]

reading_alone: Final = ContextVar("reading_alone", default=False)
"""True while a process reads what it has, and the others do not."""


@dataclass(frozen=True)
class Absent:
    """Memory of another process."""

    size: int


class AbsentProgram:
    """A program that another process runs."""

    def __call__(
        self, buffers: Sequence[Handle], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Leave it to the other."""
        return 0.0 if wait else None


class AbsentGraph:
    """Launches that another process runs."""

    def __call__(self, *, wait: bool = False) -> float | None:
        """Leave them to the other."""
        return 0.0 if wait else None

    def set_buffer(self, launch: int, slot: int, handle: Handle) -> None:
        """Leave it to the other."""

    def set_value(self, launch: int, position: int, value: int) -> None:
        """Leave it to the other."""


class AbsentRuntime:
    """The device of another process."""

    def __init__(self) -> None:
        self.allocator = AbsentAllocator()

    def load(self, binary: bytes, info: ProgramInfo) -> Program:
        """A program that does nothing here."""
        return AbsentProgram()

    def graph(self, launches: Sequence[Launch]) -> Graph:
        """A graph that does nothing here."""
        return AbsentGraph()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to release."""


class AbsentAllocator:
    """Memory of which nothing is here."""

    def alloc(self, size: int) -> Absent:
        """Any size."""
        return Absent(size)

    def image(self, height: int, width: int, channel_bytes: int) -> Absent:
        """An image of any size."""
        return Absent(height * width * 4 * channel_bytes)

    def free(self, handle: Absent) -> None:
        """Nothing to free."""

    def write(self, dst: Absent, src: memoryview) -> None:
        """Leave it to the other."""

    def read(self, dst: memoryview, src: Absent) -> None:
        """Raise GroupError: `RankAllocator` reads by the process that has the memory."""
        raise GroupError("memory of another process was read without it")

    def offset(self, handle: Absent, size: int, start: int) -> Absent:
        """A part."""
        return Absent(size)


class RankAllocator:
    """Memory of the device of one rank, as a process sees it."""

    def __init__(
        self,
        rank: int,
        owned: Allocator | AbsentAllocator,
        arrivals: Arrivals,
        direct: Direct | None = None,
    ) -> None:
        self.rank = rank
        self.direct = direct
        """Way of memory of the device to others, where it need not go by the host."""
        self.owned: Any = owned
        self.arrivals = arrivals
        self.processes: Any = arrivals.processes
        if not hasattr(owned, "image"):
            self.image = None  # type: ignore[assignment]

    def alloc(self, size: int) -> Place:
        """Memory of the device."""
        return Place(self.owned.alloc(size), 0, size)

    def image(self, height: int, width: int, channel_bytes: int) -> Place:
        """An image of the device."""
        made = self.owned.image(height, width, channel_bytes)
        return Place(made, 0, height * width * 4 * channel_bytes)

    def free(self, place: Place) -> None:
        """Free memory; what is still on its way to it goes nowhere."""
        self.arrivals.forget(place)
        self.owned.free(place.handle)

    def offset(self, place: Place, size: int, start: int) -> Place:
        """A part."""
        return place.part(self.owned.offset(place.handle, size, start), size, start)

    def write(self, dst: Place, src: memoryview) -> None:
        """Copy from the host."""
        self.arrivals.settle([dst])
        self.owned.write(dst.handle, src)

    def read(self, dst: memoryview, src: Place) -> None:
        """Read in the process that has it, and tell all."""
        if self.processes.rank == self.rank:
            self.arrivals.settle([src])
            if self.direct is not None:
                self.direct.settle()
            self.owned.read(dst, src.handle)
        if self.processes.size > 1 and not reading_alone.get():
            told = self.processes.broadcast(numpy.frombuffer(dst, numpy.uint8), self.rank)
            dst[:] = told.data

    def copy_from(self, dst: Place, src: Place, size: int, source: Any) -> None:
        """Copy from the device of a rank to that of another: one sends, one is to receive."""
        own, sender = self.processes.rank, source.allocator
        if sender.rank == self.rank:
            self.copy_here(dst, src, size)
        elif own == sender.rank:
            sender.arrivals.settle([src])
            if sender.direct is not None:
                sender.direct.send(src.handle, size, self.rank)
                return
            content = numpy.empty(size, numpy.uint8)
            sender.owned.read(content.data, src.handle)
            together = isinstance(self.processes, SupportsBuckets)
            (self.processes.post if together else self.processes.send)(content, self.rank)
        elif own == self.rank:
            self.arrivals.settle([dst])
            if self.direct is not None:
                self.direct.receive(dst.handle, size, sender.rank)
            else:
                self.arrivals.expect(dst, sender.rank, size)

    def copy_here(self, dst: Place, src: Place, size: int) -> None:
        """Copy within one device, if it is that of this process."""
        if isinstance(self.owned, AbsentAllocator):
            return
        self.arrivals.settle([src, dst])
        content = memoryview(bytearray(size))
        self.owned.read(content, self.owned.offset(src.handle, size, 0))
        self.owned.write(dst.handle, content)


class RankProgram:
    """A program, which waits for what is to arrive in its memory."""

    def __init__(self, program: Program, arrivals: Arrivals) -> None:
        self.program, self.arrivals = program, arrivals

    def __call__(
        self, buffers: Sequence[Place], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch it."""
        self.arrivals.settle(buffers)
        return self.program([place.handle for place in buffers], values, wait=wait)


class RankGraph:
    """Launches that are submitted together, after what is to arrive in their memory."""

    def __init__(
        self,
        runtime: Any,
        launches: Sequence[tuple[Any, Sequence[Place], Sequence[int]]],
        arrivals: Arrivals,
    ) -> None:
        self.arrivals = arrivals
        self.places: list[list[Place]] = [list(places) for _, places, _ in launches]
        self.graph: Graph = runtime.graph(
            [
                (program.program, [place.handle for place in places], values)
                for program, places, values in launches
            ]
        )

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them."""
        for places in self.places:
            self.arrivals.settle(places)
        return self.graph(wait=wait)

    def set_buffer(self, launch: int, slot: int, handle: Place) -> None:
        """Exchange memory."""
        self.places[launch][slot] = handle
        self.graph.set_buffer(launch, slot, handle.handle)

    def set_value(self, launch: int, position: int, value: int) -> None:
        """Change a number."""
        self.graph.set_value(launch, position, value)


class RankRuntime:
    """The device of one rank: a device of this process, or one of another.

    It stays with the group that there was when it was opened.
    """

    def __init__(self, rank: int, processes: Group, owned: DeviceRuntime | AbsentRuntime) -> None:
        self.owned = owned
        self.arrivals = Arrivals(processes, owned.allocator.write)
        offered = getattr(processes, "direct", None)
        self.direct: Direct | None = offered(owned) if offered else None
        self.allocator = RankAllocator(rank, owned.allocator, self.arrivals, self.direct)
        self.close = owned.close
        if not hasattr(owned, "graph"):
            self.graph = None  # type: ignore[assignment]
        if arch := getattr(owned, "arch", ""):
            self.arch = arch

    def synchronize(self) -> None:
        """Wait for the device, and for what it exchanges with others."""
        if self.direct is not None:
            self.direct.settle()
        self.owned.synchronize()

    def load(self, binary: bytes, info: ProgramInfo) -> Program:
        """A program of the device."""
        return RankProgram(self.owned.load(binary, info), self.arrivals)

    def graph(self, launches: Sequence[Any]) -> Graph:
        """A graph of the device."""
        return RankGraph(self.owned, launches, self.arrivals)


def count() -> int:
    """Number of processes in the group."""
    return group().size


def open_rank(index: int, interface: str) -> RankRuntime:
    """Open the device of a rank."""
    processes = group()
    if index != processes.rank:
        return RankRuntime(index, processes, AbsentRuntime())
    share_processors()
    backend = underlying()
    owned = backend.open(place().local_rank % max(1, backend.count()), "")
    return RankRuntime(index, processes, owned)


def share_processors() -> None:
    """Give each process of a machine its share of threads, unless CPU_COUNT or affinity does."""
    processors, sharing = cpu_count(), place().local_size
    if sharing > 1 and not core_settings.CPU_COUNT and processors == os.cpu_count():
        core_settings.CPU_COUNT = max(1, processors // sharing)
