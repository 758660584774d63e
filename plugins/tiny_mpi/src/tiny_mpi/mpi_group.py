"""Groups of processes by MPI."""

from __future__ import annotations

import atexit
import math
import sys
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy
from mpi4py import MPI

from tiny_mpi.buckets import Buckets
from tiny_mpi.calls import Call, check_array, check_fold, check_rank, check_rows, check_same
from tiny_mpi.settings import settings
from tiny_mpi.stall import Stalls
from tiny_mpi.waits import TRANSFER, State
from tinycore.groups import Array

__all__ = ["MpiGroup", "world"]

OPERATIONS: Final = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
SMALL_BYTES: Final = 1 << 14
"""Size up to which content is in the message that announces it."""
FIRST, REST = 1, 2
"""Tags of messages that announce arrays, and of those with much content."""
MOST_WAITING_BYTES: Final = 1 << 28
"""Bytes that are sent and not received, from which `send` waits."""
FAREWELL_SECONDS: Final = 1.0
"""Time that others get to tell their errors, before a failed process ends all."""


class MpiGroup:
    """The processes of a communicator.

    Sums of float16 are taken in float32. Unless this process ends well, it ends the others: an
    exception that nobody catches is printed, and calls MPI_Abort.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm.Dup()
        self.rank, self.size = comm.rank, comm.size
        self.stalls = Stalls(comm.Dup())
        self.calls: Counter[tuple[str, int | None]] = Counter()
        self.unsent: deque[tuple[MPI.Request, Array, Call]] = deque()
        self.buckets = Buckets(self.transmit)
        self.has_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        """True if another thread may send what stays in buckets."""
        self.incoming: dict[int, deque[tuple[MPI.Request | None, Array]]] = defaultdict(deque)
        """Arrays that were announced, by rank, and the requests of large ones."""
        self.expected: Counter[int] = Counter()
        """Number of arrays that are polled for, by rank."""
        self.early_bytes = 0
        """Bytes of arrays that were announced, and not yet asked for."""
        self.stalls.meanwhile = self.poll_all
        self.sent_bytes: Counter[int] = Counter()
        """Bytes of arrays sent so far by `send`, by rank; headers are not counted."""
        self.sent_messages: Counter[int] = Counter()
        """Number of messages that announced them, by rank."""
        atexit.register(self.end)
        self.earlier_hook, sys.excepthook = sys.excepthook, self.fail

    # --- collectives

    def all_reduce(self, x: Array, fold: str = "sum") -> Array:
        """The fold of the arrays of all, the same bits in each process."""
        check_fold(fold, x)
        call = self.begin("all_reduce", x, fold)
        given = computed(x)
        result = numpy.empty_like(given)
        self.stalls.wait(self.comm.Iallreduce(given, result, OPERATIONS[fold]).Test, call)
        return result.astype(x.dtype, copy=False)

    def all_gather(self, x: Array) -> Array:
        """(...) -> (size, ...): the arrays of all, in the order of ranks."""
        call = self.begin("all_gather", check_array(x))
        result = numpy.empty((self.size, *x.shape), x.dtype)
        self.stalls.wait(self.comm.Iallgather(raw(x), raw(result)).Test, call)
        return result

    def reduce_scatter(self, x: Array, fold: str = "sum") -> Array:
        """(size, ...) -> (...): the row of this rank of what `all_reduce` gives."""
        check_fold(fold, x)
        check_rows("reduce_scatter", x, self.size)
        call = self.begin("reduce_scatter", x, fold)
        given = computed(x)
        result = numpy.empty(x.shape[1:], given.dtype)
        request = self.comm.Ireduce_scatter_block(given, result, OPERATIONS[fold])
        self.stalls.wait(request.Test, call)
        return result.astype(x.dtype, copy=False)

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """The array of one rank; those of the others say its shape and dtype."""
        check_rank("broadcast", root, self.size)
        call = self.begin("broadcast", check_array(x), f"root {root}")
        result = numpy.array(x, order="C")
        self.stalls.wait(self.comm.Ibcast(raw(result), root).Test, call)
        return result

    def all_to_all(self, x: Array) -> Array:
        """(size, ...) -> (size, ...): row j goes to rank j, row i of the result is from rank i."""
        check_rows("all_to_all", x, self.size)
        call = self.begin("all_to_all", x)
        result = numpy.empty(x.shape, x.dtype)
        self.stalls.wait(self.comm.Ialltoall(raw(x), raw(result)).Test, call)
        return result

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.begin("barrier", None)

    def begin(self, name: str, x: Array | None, detail: str = "") -> Call:
        """The next collective, in which all agree. Raises GroupError, naming two calls, if not."""
        number = self.calls["collective", None]
        self.calls["collective", None] += 1
        call = Call.of(name, number, x, detail)
        own = numpy.array([call.digest, -call.digest], numpy.int64)
        most = numpy.empty_like(own)
        self.stalls.wait(self.comm.Iallreduce(own, most, MPI.MAX).Test, call)
        if most[0] != -most[1]:
            check_same(self.comm.allgather(call))
        return call

    def wait(self, is_done: Callable[[], bool], call: Call) -> None:
        """Wait for what a call asks for. Raises GroupError where others do not come."""
        self.stalls.wait(is_done, call)

    # --- one to one

    def send(self, x: Array, to: int) -> None:
        """Send an array; returns before it is received, unless much is under way."""
        self.post(x, to)
        self.buckets.empty()
        self.forget_sent(MOST_WAITING_BYTES)

    def post(self, x: Array, to: int) -> None:
        """Send an array soon, in one message with others: when the bucket is full, or this process
        waits for another, or after some milliseconds.
        """
        check_rank("send", to, self.size)
        call = self.next("send", to, check_array(x))
        self.sent_bytes[to] += x.nbytes
        most = settings.MPI_BUCKET if self.has_threads else 0
        if self.buckets.add(to, numpy.array(x, order="C"), call) >= most:
            self.buckets.empty()
            self.forget_sent(MOST_WAITING_BYTES)
        else:
            self.buckets.empty_soon()

    def transmit(self, to: int, arrays: list[Array], call: Call) -> None:
        """Send arrays as one message, in two parts if there is much. The buckets are locked."""
        self.unsent = deque(one for one in self.unsent if not one[0].Test())
        first = numpy.frombuffer(headers_of(arrays), numpy.uint8)
        content = raw(arrays[0]) if len(arrays) == 1 else numpy.concatenate([*map(raw, arrays)])
        if content.nbytes <= SMALL_BYTES:
            first = numpy.concatenate((first, content))
        self.unsent.append((self.comm.Isend(first, to, FIRST), first, call))
        if content.nbytes > SMALL_BYTES:
            self.unsent.append((self.comm.Isend(content, to, REST), content, call))
        self.sent_messages[to] += 1

    def forget_sent(self, most: int) -> None:
        """Drop what was received; wait for the oldest while more bytes than `most` were not."""
        while oldest := self.oldest_unsent(most):
            request, call = oldest
            self.stalls.wait(partial(self.is_received, request), call)

    def oldest_unsent(self, most: int) -> tuple[MPI.Request, Call] | None:
        """The oldest message on its way, if these are more bytes than `most`; drops the others."""
        with self.buckets.lock:
            self.unsent = deque(one for one in self.unsent if not one[0].Test())
            if sum(array.nbytes for _, array, _ in self.unsent) <= most:
                return None
            request, _, call = self.unsent[0]
            return request, call

    def is_received(self, request: MPI.Request) -> bool:
        """True if a message has come. No two threads may test one request, so all hold the lock."""
        with self.buckets.lock:
            return request.Test()

    def recv(self, source: int) -> Array:
        """The next array that a rank sends to this one, in its shape and dtype."""
        check_rank("recv", source, self.size)
        call = self.next("recv", source)
        self.expected[source] = max(1, self.expected[source])
        self.stalls.wait(lambda: self.has_come(source), call)
        request, result = self.incoming[source][0]
        if request is not None:
            self.stalls.wait(request.Test, replace(call, name=TRANSFER))
        self.incoming[source].popleft()
        self.expected[source] -= 1
        self.early_bytes -= result.nbytes
        return result

    def poll(self, source: int, count: int) -> None:
        """Go on with the next `count` arrays that a rank sends, as far as they have come."""
        self.expected[source] = count
        self.has_come(source)

    def poll_all(self) -> None:
        """Receive messages while this process waits: others may wait until they are taken."""
        self.buckets.empty()
        for source in self.expected:
            self.has_come(source)

    def has_come(self, source: int) -> bool:
        """True if the next array of a rank was announced, after receiving what was.

        No more than MPI_EARLY bytes are received that nobody asks for, unless processes seem to
        wait for each other.
        """
        incoming, status = self.incoming[source], MPI.Status()
        while len(incoming) < self.expected[source]:
            is_early = incoming and self.early_bytes >= settings.MPI_EARLY
            if is_early and not self.stalls.is_long:
                break
            message = self.comm.Improbe(source, FIRST, status)
            if message is None:
                break
            first = numpy.empty(status.Get_count(MPI.BYTE), numpy.uint8)
            message.Recv(first)
            headers, content = opened(first)
            size, request = sum(size for _, _, size in headers), None
            if size > SMALL_BYTES:
                content = numpy.empty(size, numpy.uint8)
                request = self.comm.Irecv(content, source, REST)
            self.early_bytes += size
            for dtype, shape, size in headers:
                incoming.append((request, content[:size].view(dtype).reshape(shape)))
                content = content[size:]
        return bool(incoming)

    def next(self, name: str, peer: int, x: Array | None = None) -> Call:
        """The next call of a kind with a rank."""
        number = self.calls[name, peer]
        self.calls[name, peer] += 1
        return Call.of(name, number, x, peer=peer)

    # --- the end

    def end(self) -> None:
        """Wait until all messages that this process sent were received, and tell the others that it
        ends.
        """
        try:
            self.buckets.empty()
            self.forget_sent(0)
        finally:
            self.stalls.tell(State(ended=True))

    def fail(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print an exception that nobody caught, and end all processes.

        A hook that was there before prints it in its way.
        """
        plain = self.earlier_hook is sys.__excepthook__
        told = "".join(traceback.format_exception(kind, error, trace)) if plain else ""
        # at once, else the lines of two processes are mixed
        sys.stderr.write(f"rank {self.rank} of {self.size} failed:\n{told}")
        sys.stderr.flush()
        if not plain:
            self.earlier_hook(kind, error, trace)
        time.sleep(FAREWELL_SECONDS)
        self.comm.Abort(1)


def world() -> MpiGroup:
    """All processes."""
    return MpiGroup(MPI.COMM_WORLD)


def computed(x: Array) -> Array:
    """An array of a dtype that MPI computes with, in row-major order."""
    wide = numpy.float32 if x.dtype == numpy.float16 else x.dtype.newbyteorder("=")
    return numpy.asarray(x, wide, order="C")  # `ascontiguousarray` gives an axis to scalars


def raw(x: Array) -> Array:
    """The bytes of an array in row-major order, of any dtype."""
    return numpy.ascontiguousarray(x).reshape(-1).view(numpy.uint8)


def headers_of(arrays: list[Array]) -> bytes:
    """The first part of the message that announces arrays: a line for each, and an empty one."""
    lines = [f"{x.dtype.str} {' '.join(map(str, x.shape))}\n" for x in arrays]
    return "".join([*lines, "\n"]).encode()


def opened(first: Array) -> tuple[list[tuple[numpy.dtype[Any], tuple[int, ...], int]], Array]:
    """The dtypes, shapes and sizes in bytes of arrays that a message announces, and its rest."""
    text, _, content = first.tobytes().partition(b"\n\n")
    found = []
    for line in text.decode().splitlines():
        word, *sides = line.split()
        dtype, shape = numpy.dtype(word), tuple(map(int, sides))
        found.append((dtype, shape, dtype.itemsize * math.prod(shape)))
    return found, numpy.frombuffer(bytearray(content), numpy.uint8)
