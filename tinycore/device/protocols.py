"""The interface of a backend: allocators, compilers, programs, and the device runtime.

Floor 1, beside `uop`. Imports `dtype`. These are protocols: a backend inherits from nothing.

**Who validates.** The core. Sizes are positive, spans lie inside their memory, slots and values
match `ProgramInfo`, a handle comes from the same device and is not freed yet. An implementation
checks only what the core cannot know, such as a status the driver returns.

**Threads.** Any thread may call, several at once, except that the core serializes the calls of
`alloc` and `free` of one device. What a device cannot do from several threads it locks itself.
Importing a plugin starts no thread.

**Order.** What is asked of one device happens as if in the order in which it was asked: a launch
sees the writes and launches before it. `Program.__call__` and `Allocator.write` may return early;
`Allocator.read` and `DeviceRuntime.synchronize` wait. Two devices know nothing of each other's
order: the core waits for the one before it asks the other, save where the capability `queues` says
that devices wait for each other.

**Lifetime.** A `DeviceRuntime` is opened once per device and process, and closed at exit at the
latest. Its memory and programs are not used after `close`, and may be dropped after it. Memory is
freed once; a handle made by `offset` is never freed, and is not used after the handle it came from.
Before memory is freed the core has waited for the device. A forked child does not use devices its
parent opened.

**Errors.** `OutOfMemory` when memory is short, `DeviceUnavailable` from opening,
`CompilerUnavailable` from a toolchain, `CompileError` from a compiler with its log,
`UnsupportedError` for an ability that is missing, `DeviceError` for all other failures of a device,
its text naming the call and the status. A message says what to do. `free`, `synchronize` after a
failure, and `close` do not raise.

**Abilities.** What not every device can do is a protocol of its own (`Supports...`) under a
capability word. A backend declares the word; the core checks the methods once, when it opens the
device, and calls them only where the word is declared. CAPABILITIES lists the words. An ability of
a compiler has no word, as a backend may have several compilers: having the method is declaring it.

**Not promised yet.** Memory that several devices address. It will come as a capability, never as
new methods of the protocols below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from tinycore.device.extent import Extent
from tinycore.dtype import dtypes

Handle: TypeAlias = Any
"""A span of device memory: whatever the allocator returns, opaque to everyone else."""

ALIGNMENT_BYTES: Final = 64
"""Least alignment of `Allocator.alloc`."""

RendererType_co = TypeVar("RendererType_co", covariant=True)


class Allocator(Protocol):
    """Device memory. Sizes and offsets are bytes."""

    def alloc(self, size: int) -> Handle:
        """`size` bytes (at least 1), aligned to ALIGNMENT_BYTES, uninitialized.

        Raises OutOfMemory; the core then frees what it keeps for reuse and asks once more.
        """
        ...

    def free(self, handle: Handle) -> None:
        """Give memory back. The core has waited for every launch that uses it. Never raises."""
        ...

    def write(self, dst: Handle, src: memoryview) -> None:
        """Copy host bytes (contiguous, format B) to the start of `dst`; `src` is free then."""
        ...

    def read(self, dst: memoryview, src: Handle) -> None:
        """Fill host bytes (contiguous, writable, format B) from the start of `src`; waits."""
        ...

    def offset(self, handle: Handle, size: int, start: int) -> Handle:
        """The `size` bytes from `start` on, as a handle that shares the memory."""
        ...


@runtime_checkable
class SupportsMap(Protocol):
    """Capability `host_memory`, of an allocator: the host can address device memory."""

    def map(self, handle: Handle, size: int) -> memoryview:
        """The first `size` bytes, writable and without a copy. The core has synchronized."""
        ...


@runtime_checkable
class SupportsExternalPointer(Protocol):
    """Capability `external_pointer`, of an allocator: memory that somebody else owns."""

    def wrap(self, pointer: int, size: int) -> Handle:
        """A handle to `size` bytes at a device address; it is never freed."""
        ...


@runtime_checkable
class SupportsImages(Protocol):
    """Capability `image`, of an allocator: memory of pixels, which kernels read and write by column
    and row.

    Renderers say in `Limits.image` how large one may be.
    """

    def image(self, height: int, width: int, channel_bytes: int) -> Handle:
        """Allocate pixels of four floats of 4 or 2 bytes, not cleared; freed by `free`.

        `write` and `read` take all pixels, row by row with nothing in between, however the device
        lays them. `offset`, `map` and copies between devices are not asked of an image. Raises
        OutOfMemory.
        """
        ...


@runtime_checkable
class SupportsExternalImages(Protocol):
    """An allocator that wraps images which another library owns.

    For the capabilities `image` and `external_pointer`; without it such memory is refused.
    """

    def wrap_image(self, pointer: int, height: int, width: int, channel_bytes: int) -> Handle:
        """An image over memory at an address, with the row pitch of `image`.

        Its owner gives it back. Raises DeviceError where it cannot be used.
        """
        ...


@runtime_checkable
class SupportsPeerCopy(Protocol):
    """Capability `peer_copy`, of an allocator: copies between two devices of the same backend."""

    def copy_from(self, dst: Handle, src: Handle, size: int, source: DeviceRuntime) -> None:
        """Copy to `dst` the first `size` bytes of `src`, memory of `source`, which has
        synchronized.

        Has copied when it returns.
        """
        ...


@runtime_checkable
class SupportsQueues(Protocol):
    """Capability `queues`, of a DeviceRuntime: devices of the same backend wait for each other.

    With the capability `graph` as well, a graph takes launches of all of them, and copies.
    """

    def copier(self, size: int, source: DeviceRuntime) -> Program:
        """A program that copies `size` bytes; its buffers are the destination, of this device, and
        the source, of `source`, which is reached through the same interface.

        Calling it happens in order on both devices: after all that was asked of either, before all
        that is asked of either later. It may return early.
        """
        ...


@runtime_checkable
class SupportsReach(Protocol):
    """A DeviceRuntime with the capability `queues` that says which devices it can wait for.

    Without it, all that are open through the same interface wait for each other.
    """

    def reaches(self, source: DeviceRuntime) -> bool:
        """True if this device and another of the backend can wait for each other."""
        ...


@runtime_checkable
class SupportsExchange(Protocol):
    """Capability `exchange`, of a DeviceRuntime: other libraries use its memory, and it theirs, by
    DLPack, in order with streams of theirs.

    `Backend.dlpack` says what kind of device it is there. A stream is a number as DLPack has it for
    that kind, such as a handle, or 1 and 2 for the default ones of CUDA; None is the default.
    """

    @property
    def exchange_stream(self) -> int | None:
        """Stream that is named to whoever lends memory: what it was asked comes before that of this
        stream, which `wait_for` then waits for.
        """
        ...

    def address(self, handle: Handle) -> tuple[int, int]:
        """Pointer to an allocation as other libraries know it, and the byte at which a handle
        begins there.
        """
        ...

    def let_wait(self, stream: int | None) -> None:
        """Let a stream wait for all present work of this device. The host may wait instead."""
        ...

    def wait_for(self, stream: int | None) -> None:
        """Let all later work of this device wait for the present work of a stream."""
        ...


class Compiler(Protocol):
    """Turns source into a binary. Needs no device."""

    name: str
    """As in DEV: CLANG."""
    key: str
    """Everything but the source, and the code of the class's own package, that determines the
    binary: version, flags, target, and which build of a program or library it uses
    (`file_identity`). A cache key.
    """

    def compile(self, source: str) -> bytes:
        """The binary. Raises CompileError with the compiler's log."""
        ...


@runtime_checkable
class SupportsAssembly(Protocol):
    """A compiler that can show the machine code it makes. DEBUG=7 prints that."""

    def assembly(self, source: str) -> str:
        """The machine code that `compile` makes of the source, as text for people.

        Raises CompileError with the compiler's log.
        """
        ...


@dataclass(frozen=True)
class Toolchain(Generic[RendererType_co]):
    """A renderer with the compiler that takes its source, both for one architecture."""

    name: str
    arch: str
    renderer: RendererType_co
    compiler: Compiler


@dataclass(frozen=True)
class ProgramInfo:
    """Facts about a program that a device needs to launch it."""

    name: str
    """The entry point."""
    buffers: int
    """Number of buffers that it takes."""
    values: tuple[str, ...] = ()
    """The variables given at launch, by name, in the order in which values are passed."""
    parallel: int = 1
    """Steps of the loop that may be shared out among threads, the most where their number varies;
    1 when there is none."""
    grid: tuple[int, int, int] = (1, 1, 1)
    """Groups to launch per axis, the most where their number varies: see `groups`."""
    block: tuple[int, int, int] = (1, 1, 1)
    """Threads in a group per axis."""
    shared_bytes: int = 0
    """Memory that the threads of a group share."""
    written: frozenset[int] = frozenset()
    """The buffers it writes to, by position."""
    grid_extents: tuple[Extent | None, ...] = ()
    """The groups per axis as they follow from the values of a launch, None for an axis of a fixed
    size; empty where all are fixed. Only where `Limits.grid_varies`."""
    parallel_extent: Extent | None = None
    """`parallel` as it follows from the values of a launch. Only where `Limits.parallel_varies`."""
    extras: tuple[str, ...] = ()
    """Texts for each launch by instructions of the backend, in order: see `Effect.extra`."""

    def groups(self, values: Sequence[int]) -> tuple[int, int, int]:
        """Groups to launch per axis with these values; at least one."""
        if not self.grid_extents:
            return self.grid
        x, y, z = (
            most if extent is None else extent.of(values)
            for most, extent in zip(self.grid, self.grid_extents, strict=True)
        )
        return x, y, z

    def steps(self, values: Sequence[int]) -> int:
        """Iterations of the loop that threads may share, with these values."""
        extent = self.parallel_extent
        return self.parallel if extent is None else extent.of(values)


class Program(Protocol):
    """A loaded program, launched by calling it."""

    def __call__(
        self, buffers: Sequence[Handle], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, wait for the end and return the seconds the device took."""
        ...


@runtime_checkable
class SupportsBinding(Protocol):
    """A program whose launch can be bound as one call of C. Having the method is declaring it.

    Where launches write to memory that tensors show, the core notes each with the call that makes
    it, so that no interrupt comes between: it happens once. Of other programs Ctrl-C waits for the
    end of the call; an exception of theirs says that nothing was launched.
    """

    def bound(self, buffers: Sequence[Handle], values: Sequence[int]) -> Callable[[], None]:
        """A launch as `functools.partial` of a C function, which has launched when it returns."""
        ...


class DeviceRuntime(Protocol):
    """An open device."""

    @property
    def allocator(self) -> Allocator:
        """Its allocator; always the same object."""
        ...

    def load(self, binary: bytes, info: ProgramInfo) -> Program:
        """Load a binary of any toolchain of this backend."""
        ...

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        ...

    def close(self) -> None:
        """Wait, then release the device. Not called twice."""
        ...


@runtime_checkable
class SupportsArch(Protocol):
    """A DeviceRuntime that names its architecture, as devices of its backend differ.

    Having the attribute is declaring it.
    """

    @property
    def arch(self) -> str:
        """Architecture of toolchains if DEV names no ARCH."""
        ...


Launch: TypeAlias = tuple[Program, Sequence[Handle], Sequence[int]]
"""A program with the memory in its slots and the values of its variables."""


class Graph(Protocol):
    """Launches held ready by the device. Not for two threads at once."""

    def set_buffer(self, launch: int, slot: int, handle: Handle) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        ...

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        ...

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        ...


@runtime_checkable
class SupportsGraph(Protocol):
    """Capability `graph`, of a DeviceRuntime: many launches submitted by one call."""

    def graph(self, launches: Sequence[Launch]) -> Graph:
        """Launches of this device's programs, ready to be run in order again and again; where the
        backend has the capability `queues`, of other devices' programs and copiers as well.

        They mean what the same launches one by one mean. Raises UnsupportedError for launches that
        a graph of this device cannot hold; they are then run one by one.
        """
        ...


@runtime_checkable
class SupportsVariety(Protocol):
    """Capability `varied`, of a DeviceRuntime: devices of its backend differ in abilities."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities of this device; only those that the backend declares are used."""
        ...


ABILITIES: Final[dict[str, type]] = {
    "host_memory": SupportsMap,
    "external_pointer": SupportsExternalPointer,
    "peer_copy": SupportsPeerCopy,
    "image": SupportsImages,
}
"""Capabilities that are methods of the allocator, checked when a device is opened."""

RUNTIME_ABILITIES: Final[dict[str, type]] = {
    "graph": SupportsGraph,
    "queues": SupportsQueues,
    "exchange": SupportsExchange,
    "varied": SupportsVariety,
}
"""Capabilities that are methods of the DeviceRuntime, checked when a device is opened."""

CAPABILITIES: Final[dict[str, str]] = {
    "host_memory": "the host reads and writes device memory in place",
    "external_pointer": "memory that another library owns can be used",
    "peer_copy": "two devices of this backend copy without the host",
    "graph": "many launches are asked for at once",
    "queues": "devices of this backend wait for each other without the host",
    "exchange": "its memory is passed to other libraries, in order with their streams",
    "varied": "devices of this backend differ; each says what it can do",
    "image": "kernels read and write images: pixels of four floats, by column and row",
    "local_memory": "threads of a group share memory and meet at barriers",
    **{dtype.name: f"kernels load, store and compute {dtype.name}" for dtype in dtypes.all},
}
"""Every word that a backend may declare, and its claim."""
