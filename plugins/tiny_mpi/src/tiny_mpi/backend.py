"""RANK: the devices of all processes of a group, `RANK:k` that of rank k.

Every process runs the same program, and builds the same graphs over the devices of all. Of what is
scheduled it runs the kernels of its own device, and takes part in the copies to and from it; the
rest is left to the others. So what works on several devices of one machine works on several
processes: tensors in parts or in copies (`Tensor.shard`), their gradients, optimizers, TinyJit. It
is how JAX computes on several hosts (SPMD, multi-controller).

A value that is read (`numpy`, `item`) comes from the process that has it, so all must read it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy

from tiny_mpi.launch import place
from tiny_mpi.settings import settings
from tinycore import Device
from tinycore.config import cpu_count
from tinycore.config import settings as core_settings
from tinycore.errors import GroupError, SettingError
from tinycore.groups import Array, Group, group
from tinycore.plugin import (
    Allocator,
    Backend,
    DeviceRuntime,
    Graph,
    Handle,
    Launch,
    Program,
    ProgramInfo,
    deferred,
)

__all__ = ["BACKEND", "RankRuntime", "open_rank", "reading_alone"]

PASSED_ON: Final = frozenset({"graph", "image", "local_memory"})
"""Abilities of a device that it keeps as a RANK; others concern memory that the host addresses, or
devices that wait for each other."""


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
        """Never called: `RankAllocator` asks the process that has it."""
        raise GroupError("memory of another process was read without it")

    def offset(self, handle: Absent, size: int, start: int) -> Absent:
        """A part."""
        return Absent(size)


class RankAllocator:
    """Memory of the device of one rank, as a process sees it."""

    def __init__(self, rank: int, owned: Allocator | AbsentAllocator) -> None:
        self.rank = rank
        self.owned: Any = owned
        self.alloc, self.free, self.offset = owned.alloc, owned.free, owned.offset
        self.write = owned.write
        self.image = getattr(owned, "image", None)

    def read(self, dst: memoryview, src: Handle) -> None:
        """Read in the process that has it, and tell all."""
        processes = group()
        if processes.rank == self.rank:
            self.owned.read(dst, src)
        if processes.size > 1 and not reading_alone.get():
            dst[:] = processes.broadcast(numpy.frombuffer(dst, numpy.uint8), self.rank).data

    def copy_from(self, dst: Handle, src: Handle, size: int, source: Any) -> None:
        """Copy from the device of a rank to that of another: one sends, one receives."""
        processes, sender = group(), source.allocator
        if sender.rank == self.rank:
            self.copy_here(dst, src, size)
        elif processes.rank == sender.rank:
            content = numpy.empty(size, numpy.uint8)
            sender.owned.read(content.data, src)
            processes.send(content, self.rank)
        elif processes.rank == self.rank:
            self.owned.write(dst, received(processes, sender.rank, size).data)

    def copy_here(self, dst: Handle, src: Handle, size: int) -> None:
        """Copy within one device, if it is that of this process."""
        if isinstance(self.owned, AbsentAllocator):
            return
        content = memoryview(bytearray(size))
        self.owned.read(content, self.owned.offset(src, size, 0))
        self.owned.write(dst, content)


def received(processes: Group, source: int, size: int) -> Array:
    """Bytes from a rank. Raises GroupError where it sent another number of them."""
    content = processes.recv(source)
    if content.nbytes != size or content.dtype != numpy.uint8:
        raise GroupError(
            f"rank {processes.rank} expects {size} bytes from rank {source}, which sent "
            f"{content.dtype}{list(content.shape)}: they run different programs, or on different "
            "sizes"
        )
    return content


class RankRuntime:
    """The device of one rank: a device of this process, or one of another."""

    def __init__(self, rank: int, owned: DeviceRuntime | AbsentRuntime) -> None:
        self.allocator = RankAllocator(rank, owned.allocator)
        self.load, self.synchronize, self.close = owned.load, owned.synchronize, owned.close
        self.graph = getattr(owned, "graph", None)
        if arch := getattr(owned, "arch", ""):
            self.arch = arch


@cache
def underlying() -> Backend:
    """The backend that RANK_DEVICE names, or else DEV, with the renderer named there as the first.

    Raises SettingError where it is not installed, or computes nothing.
    """
    wanted = settings.RANK_DEVICE or core_settings.DEV.partition(";")[0].rpartition("+")[2]
    name, *details = wanted.upper().split(":")
    if name in {"", "RANK"} or (name == "NULL" and not settings.RANK_DEVICE):
        name = "PYTHON" if Device.plugins.find("CPU") is None else "CPU"
    candidate = None if name == "NULL" else Device.plugins.find(name)
    if candidate is not None:
        candidate.load()
    if candidate is None or candidate.backend is None:
        raise SettingError(
            f"RANK is to compute on {name}, which is not installed, is broken or computes nothing. "
            f"Set RANK_DEVICE to one of {', '.join(n for n in Device.plugins.names if n != 'NULL')}"
        )
    found = candidate.backend
    named = {word: found.renderers[word] for word in details if word in found.renderers}
    return replace(found, renderers={**named, **found.renderers})


def count() -> int:
    """Number of processes in the group."""
    return group().size


def open_rank(index: int, interface: str) -> RankRuntime:
    """Open the device of a rank."""
    if index != group().rank:
        return RankRuntime(index, AbsentRuntime())
    share_processors()
    backend = underlying()
    return RankRuntime(index, backend.open(place().local_rank % max(1, backend.count()), ""))


def share_processors() -> None:
    """Give each process of a machine its share of threads, unless CPU_COUNT or affinity does."""
    processors, sharing = cpu_count(), place().local_size
    if sharing > 1 and not core_settings.CPU_COUNT and processors == os.cpu_count():
        core_settings.CPU_COUNT = max(1, processors // sharing)


def declared() -> Backend:
    """The declaration: the underlying device's renderers, dtypes and limits."""
    backend = underlying()
    dtypes = {word for word in backend.capabilities if word[-1].isdigit() or word == "bool"}
    return Backend(
        name="RANK",
        api=backend.api,
        open=open_rank,
        count=count,
        renderers=backend.renderers,
        capabilities=(backend.capabilities & PASSED_ON) | dtypes | {"peer_copy"},
        priority=-1,
        settings=deferred("tiny_mpi.settings:RankSettings"),
    )


BACKEND: Final = declared()
