"""Collectives of cards, by NCCL or a library with its functions (RCCL).

A package of a device offers them by an entry point in `tinycore.collectives`, named as the device:
a function that gives the path of the library and a function that opens a card by its number, or
None where there is no library. Processes agree on each call by the group that they were started in
(`control`), which names both sides where two differ, and notices a process that has died; the bytes
go from card to card. NCCL's documentation, "Using NCCL", says in which order calls have to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy

from tiny_mpi.calls import Call, check_array, check_fold, check_rank, check_rows
from tiny_mpi.nccl import BYTE_TYPE, DATA_TYPES, FOLD_NUMBERS, ID_BYTES, Library
from tinycore.errors import GroupError
from tinycore.groups import Array, Group

__all__ = ["Card", "CardGroup", "Control", "Direct"]

NARROW: Final = {"float16": "float32", "int16": "int32", "uint16": "uint32"}
"""Dtypes that are reduced in wider ones: two that the library does not know, and float16."""


class Control(Group, Protocol):
    """A group in which processes agree on calls."""

    def begin(self, name: str, x: Array | None, detail: str = "") -> Call:
        """The next collective, in which all agree. Raises GroupError, naming two calls, if not."""

    def wait(self, is_done: Callable[[], bool], call: Call) -> None:
        """Wait for what a call asks for. Raises GroupError where others do not come."""


class Card(Protocol):
    """A card: its memory, and the stream that does what it is asked in order."""

    stream: int
    """Address of the stream's handle."""

    def enter(self) -> None:
        """Make it the current card of this thread."""

    def alloc(self, size: int) -> int:
        """The address of memory."""

    def free(self, address: int) -> None:
        """Release memory."""

    def write(self, address: int, content: memoryview) -> None:
        """Copy from the host, in order with the stream; the host keeps the content meanwhile."""

    def read(self, content: memoryview, address: int) -> None:
        """Copy to the host what there is when the stream is idle, which it is."""

    def is_idle(self) -> bool:
        """True if the stream has done all that it was asked. Raises DeviceError if it failed."""


class Direct:
    """Memory of a device of this process, sent and received where it lies."""

    def __init__(self, group: CardGroup, device: Any) -> None:
        self.group, self.device = group, device

    def place(self, handle: Any) -> tuple[int, int]:
        """The address of memory, and the stream that uses it."""
        pointer, offset = self.device.address(handle)
        return pointer + offset, self.device.exchange_stream

    def send(self, handle: Any, size: int, to: int) -> None:
        """Send bytes, after what the device was asked before."""
        self.group.send_memory(*self.place(handle), size, to)

    def receive(self, handle: Any, size: int, source: int) -> None:
        """Receive bytes, before what the device is asked later."""
        self.group.receive_memory(*self.place(handle), size, source)

    def settle(self) -> None:
        """Wait for what was sent and received. Raises GroupError where others do not come."""
        self.group.settle(self.device.is_idle)


class CardGroup:
    """The processes of a group, each with a card of its own.

    Sums of float16 are taken in float32. What `send` and `recv` pass is memory of the host, and
    goes by the control group; memory of the card goes directly (`direct`).
    """

    def __init__(self, control: Control, library: Library, card: Card) -> None:
        self.control, self.library, self.card = control, library, card
        self.rank, self.size = control.rank, control.size
        self.sent_bytes: Counter[int] = Counter()
        """Bytes of arrays and memory sent so far to each rank; their sizes are not counted."""
        self.scratch: dict[str, tuple[int, int]] = {}
        """Addresses and sizes of the memory that collectives go through."""
        own_id = library.new_id() if self.rank == 0 else bytes(ID_BYTES)
        told = control.broadcast(numpy.frombuffer(own_id, numpy.uint8))
        card.enter()
        self.comm: Any = library.join(self.size, told.tobytes(), self.rank)

    # --- collectives

    def all_reduce(self, x: Array, fold: str = "sum") -> Array:
        """The fold of the arrays of all, the same bits in each process."""
        check_fold(fold, x)
        given = widened(x)
        if given.dtype.name not in DATA_TYPES:
            return self.control.all_reduce(x, fold)
        call = self.control.begin("all_reduce", x, fold)
        kind = DATA_TYPES[given.dtype.name], FOLD_NUMBERS[fold]
        result = self.moved(call, given, given.shape, "ncclAllReduce", given.size, *kind)
        return result.astype(x.dtype, copy=False)

    def all_gather(self, x: Array) -> Array:
        """(...) -> (size, ...): the arrays of all, in the order of ranks."""
        call = self.control.begin("all_gather", check_array(x))
        return self.moved(call, x, (self.size, *x.shape), "ncclAllGather", x.nbytes, BYTE_TYPE)

    def reduce_scatter(self, x: Array, fold: str = "sum") -> Array:
        """(size, ...) -> (...): the row of this rank of what `all_reduce` gives."""
        check_fold(fold, x)
        check_rows("reduce_scatter", x, self.size)
        given = widened(x)
        if given.dtype.name not in DATA_TYPES:
            return self.control.reduce_scatter(x, fold)
        call = self.control.begin("reduce_scatter", x, fold)
        kind = DATA_TYPES[given.dtype.name], FOLD_NUMBERS[fold]
        count = given.size // self.size
        result = self.moved(call, given, given.shape[1:], "ncclReduceScatter", count, *kind)
        return result.astype(x.dtype, copy=False)

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """The array of one rank; those of the others say its shape and dtype."""
        check_rank("broadcast", root, self.size)
        call = self.control.begin("broadcast", check_array(x), f"root {root}")
        return self.moved(call, x, x.shape, "ncclBroadcast", x.nbytes, BYTE_TYPE, root)

    def all_to_all(self, x: Array) -> Array:
        """(size, ...) -> (size, ...): row j goes to rank j, row i of the result is from rank i."""
        check_rows("all_to_all", x, self.size)
        call = self.control.begin("all_to_all", x)
        return self.moved(call, x, x.shape, "", x.nbytes // self.size)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.control.barrier()

    def moved(
        self, call: Call, given: Array, shape: tuple[int, ...], name: str, count: int, *rest: int
    ) -> Array:
        """The result of a collective, of what is copied to the card and back.

        Without a name, each row of `count` bytes goes to another rank.
        """
        result = numpy.empty(shape, given.dtype)
        if not count:
            return result
        content = numpy.ascontiguousarray(given).reshape(-1).view(numpy.uint8)
        card = self.card
        card.enter()
        source, target = self.room("source", content.nbytes), self.room("target", result.nbytes)
        card.write(source, content.data)
        if name:
            self.library.call(name, source, target, count, *rest, self.comm, card.stream)
        else:
            self.library.exchange(source, target, count, self.size, self.comm, card.stream)
        self.wait(card.is_idle, call)
        card.read(result.reshape(-1).view(numpy.uint8).data, target)
        return result

    def room(self, name: str, size: int) -> int:
        """The address of memory that collectives go through, of this size or more."""
        address, room = self.scratch.get(name, (0, 0))
        if room < size:
            if room:
                del self.scratch[name]
                self.card.free(address)
            address = self.card.alloc(size)
            self.scratch[name] = address, size
        return address

    def wait(self, is_done: Callable[[], bool], call: Call) -> None:
        """Wait for cards; where others do not come, give up what is under way."""

        def is_ended() -> bool:
            self.library.check(self.comm)
            return is_done()

        try:
            self.control.wait(is_ended, call)
        except GroupError:
            self.library.abort(self.comm)
            raise

    # --- one to one

    def send(self, x: Array, to: int) -> None:
        """Send an array of the host; may return before it is received."""
        self.control.send(x, to)
        self.sent_bytes[to] += x.nbytes

    def post(self, x: Array, to: int) -> None:
        """Send an array of the host soon."""
        getattr(self.control, "post", self.control.send)(x, to)
        self.sent_bytes[to] += x.nbytes

    def recv(self, source: int) -> Array:
        """The next array that a rank sends to this one, in its shape and dtype."""
        return self.control.recv(source)

    def poll(self, source: int, count: int) -> None:
        """Go on with the next `count` arrays that a rank sends, as far as they have come."""
        if hasattr(self.control, "poll"):
            self.control.poll(source, count)

    # --- memory of cards

    def direct(self, device: Any) -> Direct | None:
        """A device whose memory the library knows; None for one that shows no addresses."""
        shows = all(hasattr(device, name) for name in ("address", "exchange_stream", "is_idle"))
        return Direct(self, device) if shows else None

    def send_memory(self, address: int, stream: int, size: int, to: int) -> None:
        """Send memory of the card by a stream, after telling its size."""
        self.control.send(numpy.array(size), to)
        self.sent_bytes[to] += size
        self.card.enter()
        self.library.transfer("ncclSend", address, size, to, self.comm, stream)

    def receive_memory(self, address: int, stream: int, size: int, source: int) -> None:
        """Receive memory of the card by a stream. Raises GroupError where another size is sent."""
        told = self.control.recv(source)
        if told.shape or told.dtype != numpy.int64 or told != size:
            what = f"{told} bytes" if not told.shape else f"{told.dtype}{list(told.shape)}"
            raise GroupError(
                f"rank {self.rank} expects {size} bytes from rank {source}, which sends {what}: "
                "they run different programs, or on different sizes"
            )
        self.card.enter()
        self.library.transfer("ncclRecv", address, size, source, self.comm, stream)

    def settle(self, is_idle: Callable[[], bool]) -> None:
        """Wait until a stream is idle. Raises GroupError where others do not come."""
        if not is_idle():
            self.wait(is_idle, Call("memory of cards"))


def widened(x: Array) -> Array:
    """An array of the dtype that it is reduced in, in the byte order of this machine."""
    return x.astype(NARROW.get(x.dtype.name, x.dtype.newbyteorder("=")), copy=False)
