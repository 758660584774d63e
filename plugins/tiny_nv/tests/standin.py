"""A driver of CUDA without a card: every function the plugin calls, checked as the driver checks.

It knows which handles live, which context a thread has made current, and what memory is whose; what
is wrong gets the status that the driver would return, and what only hardware would notice is
reported as a Mistake. Memory is real, and what is copied arrives. Kernels are handed to `execute`,
which may run them; without one they are only checked and noted. Statuses of one's choice are
returned by `fail`.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tiny_nv._errors import ERRORS
from tiny_nv._native import ffi

__all__ = ["Card", "Driver", "Launched", "Mistake"]

Dims: TypeAlias = tuple[int, int, int]

(
    INVALID_VALUE,
    OUT_OF_MEMORY,
    NOT_INITIALIZED,
    INVALID_DEVICE,
    INVALID_IMAGE,
    INVALID_CONTEXT,
    INVALID_PTX,
    INVALID_HANDLE,
    NOT_FOUND,
    OUT_OF_RESOURCES,
) = (1, 2, 3, 101, 200, 201, 218, 400, 500, 701)
FIRST_HANDLE: Final = 0x100
DEFAULT_STREAMS: Final = (1, 2)
"""Handles of the legacy default stream, and of that of each thread."""
PEERS_UNSUPPORTED, PEERS_ALREADY_ENABLED = 217, 704
FIRST_ADDRESS: Final = 0x7F00_0000_0000
ALIGNMENT: Final = 512
STATIC_SHARED: Final = 48 << 10
ELEMENT_BYTES: Final = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 11: 4}
"""By CUtensorMapDataType."""
WRITTEN_KINDS: Final = {**{kind: kind for kind in range(8)}, 8: 9, 9: 10, 11: 11}
"""As the 128 bytes have it, whose order has float32 without subnormal numbers at 8."""
SWIZZLED_BYTES: Final = {0: 0, 1: 32, 2: 64, 3: 128}
"""By CUtensorMapSwizzle."""


class Mistake(AssertionError):
    """A mistake that is undefined on a card."""


@dataclass(frozen=True)
class Card:
    """Properties of a card."""

    name: str = "A card that is not there"
    capability: tuple[int, int] = (9, 0)
    units: int = 4
    shared_bytes: int = 227 << 10
    memory_bytes: int = 1 << 30
    block_threads: int = 1024


@dataclass(frozen=True)
class Launched:
    """One launch of a kernel, in the order in which the stream had it."""

    image: bytes
    name: str
    grid: Dims
    block: Dims
    shared_bytes: int
    arguments: bytes


Execute: TypeAlias = Callable[["Driver", Launched], None]


@dataclass
class Function:
    """A kernel of a module."""

    module: int
    image: bytes
    name: str
    shared_bytes: int = STATIC_SHARED
    uses_static: int = 0


@dataclass
class Node:
    """A kernel in a graph."""

    launched: Launched
    before: tuple[int, ...]


@dataclass(frozen=True)
class EncodedMap:
    """A tensor map as cuTensorMapEncodeTiled is told of it, and what it writes.

    The fields of the 128 bytes are those that ptxas writes for tensormap.replace; a driver writes
    more, such as the promotion of lines, which no test knows.
    """

    kind: int
    address: int
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: int

    @property
    def is_valid(self) -> bool:
        """True if the driver takes it: CUDA driver API, "Tensor Map Object Management"."""
        if self.kind not in ELEMENT_BYTES or not 1 <= len(self.sizes) <= 5 or self.address % 16:
            return False
        row = self.box[0] * ELEMENT_BYTES[self.kind]
        span = SWIZZLED_BYTES.get(self.swizzle, -1)
        return (
            all(0 < x <= 1 << 32 for x in self.sizes)
            and all(0 < x < 1 << 40 and x % 16 == 0 for x in self.strides)
            and all(0 < x <= 256 for x in self.box)
            and all(0 < x <= 8 for x in self.steps)
            and row % 16 == 0
            and (span == 0 or row <= span)
        )

    @property
    def reach(self) -> int:
        """Bytes from the first element to behind the last."""
        element = ELEMENT_BYTES[self.kind]
        steps = (element, *self.strides)
        return sum((n - 1) * step for n, step in zip(self.sizes, steps, strict=True)) + element

    @property
    def encoded(self) -> bytes:
        """The 128 bytes."""
        data = bytearray(128)
        head = (len(self.sizes) - 1) << 4 | WRITTEN_KINDS[self.kind] << 7 | self.swizzle << 13
        struct.pack_into("<QI", data, 0, self.address, head)
        high = sum((stride >> 36) << 4 * i for i, stride in enumerate(self.strides))
        struct.pack_into("<I", data, 0x1C, high)
        steps = sum((step - 1) << 3 * i for i, step in enumerate(self.steps))
        struct.pack_into("<I", data, 0x34, steps)
        for i, stride in enumerate(self.strides):
            struct.pack_into("<I", data, 0x0C + 4 * i, stride >> 4 & 0xFFFFFFFF)
        for i, (size, box) in enumerate(zip(self.sizes, self.box, strict=True)):
            struct.pack_into("<I", data, 0x20 + 4 * i, size - 1)
            data[0x37 + i] = box - 1
        return bytes(data)


@dataclass(eq=False)
class Driver:
    """The functions of the driver, as attributes."""

    cards: tuple[Card, ...] = (Card(),)
    version: int = 13_000
    has_peers: bool = True
    """True if cards can address each other's memory."""
    execute: Execute | None = None
    launches: list[Launched] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    log: bytes = b""
    """Log of the assembler for every module; it fails unless that is empty."""
    sticky: int = 0
    """The status that every call returns once a kernel has lost the context."""
    memory: dict[int, tuple[int, bytearray]] = field(default_factory=dict)
    """Allocations by address: the card, and what it holds."""
    peers: set[tuple[int, int]] = field(default_factory=set)
    """Cards, each with one whose memory it may address."""
    pending: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    """Work of another library's streams, which is done when something waits for it."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Streams, each with one that it was let wait for."""

    def __post_init__(self) -> None:
        self._started = False
        self._numbers = itertools.count(FIRST_HANDLE)
        self._next_address = FIRST_ADDRESS
        self._current = threading.local()
        self._alive: dict[str, dict[int, Any]] = defaultdict(dict)
        self._retained: dict[int, int] = defaultdict(int)
        self._pinned: dict[int, Any] = {}
        self._capacity = {i: card.memory_bytes for i, card in enumerate(self.cards)}

    # --- what tests say and ask

    def fail(self, name: str, *statuses: int) -> None:
        """Have the next calls of a function return these statuses."""
        self.failures[name] += statuses

    def lose(self, status: int) -> None:
        """Have every later call return a status, as after an illegal address."""
        self.sticky = status

    @property
    def left(self) -> dict[str, int]:
        """Number of things of each kind that were not given back."""
        kinds = {kind: len(things) for kind, things in self._alive.items()}
        kinds |= {"memory": len(self.memory), "pinned": len(self._pinned)}
        return {kind: count for kind, count in kinds.items() if count}

    def span(self, address: int, size: int) -> memoryview:
        """Memory of a card, which must be of one allocation. Raises Mistake."""
        for start, (_, content) in self.memory.items():
            if start <= address < start + len(content):
                if address + size > start + len(content):
                    raise Mistake(f"{size} bytes at {address:#x} go beyond the allocation's end")
                return memoryview(content)[address - start : address - start + size]
        raise Mistake(f"{size} bytes at {address:#x} are in no allocation")

    # --- how a call is answered

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return self._checked(name, found) if name.startswith("cu") else found

    def _checked(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            self.calls[name] += 1
            if self.failures[name]:
                return self.failures[name].pop(0)
            if not self._started and name not in ("cuInit", "cuGetErrorName", "cuGetErrorString"):
                return NOT_INITIALIZED
            if self.sticky and name not in ("cuGetErrorName", "cuGetErrorString"):
                return self.sticky
            return function(*arguments)

        return called

    def _new(self, kind: str, thing: Any) -> Any:
        number = next(self._numbers)
        self._alive[kind][number] = thing
        return ffi.cast(kind, number)

    def _thing(self, kind: str, handle: Any) -> Any:
        return self._alive[kind].get(int(ffi.cast("uintptr_t", handle)))

    def _drop(self, kind: str, handle: Any) -> int:
        found = self._alive[kind].pop(int(ffi.cast("uintptr_t", handle)), None)
        return 0 if found is not None else INVALID_HANDLE

    def _card(self) -> int | None:
        return getattr(self._current, "card", None)

    # --- devices and contexts

    def cuInit(self, flags: int) -> int:  # noqa: N802
        self._started = True
        return 0 if self.cards else 100

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version[0] = self.version
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:  # noqa: N802
        known = self._pinned.setdefault(
            -status, ffi.new("char[]", ERRORS.get(status, "?").encode())
        )
        text[0] = known
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count[0] = len(self.cards)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device[0] = index
        return 0 if index < len(self.cards) else INVALID_DEVICE

    def cuDeviceGetName(self, name: Any, room: int, device: int) -> int:  # noqa: N802
        text = self.cards[device].name.encode()[: room - 1] + b"\0"
        ffi.memmove(name, text, len(text))
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:  # noqa: N802
        card = self.cards[device]
        known = {
            16: card.units,
            75: card.capability[0],
            76: card.capability[1],
            97: card.shared_bytes,
        }
        if attribute not in known:
            return INVALID_VALUE
        value[0] = known[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: int) -> int:  # noqa: N802
        size[0] = self.cards[device].memory_bytes
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:  # noqa: N802
        self._retained[device] += 1
        context[0] = ffi.cast("CUcontext", 0x1000 + device)
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        if not self._retained[device]:
            return INVALID_CONTEXT
        self._retained[device] -= 1
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        device = int(ffi.cast("uintptr_t", context)) - 0x1000
        if not self._retained.get(device):
            return INVALID_CONTEXT
        self._current.card = device
        return 0

    def cuDeviceCanAccessPeer(self, can: Any, device: int, peer: int) -> int:  # noqa: N802
        if device == peer or max(device, peer) >= len(self.cards):
            return INVALID_DEVICE
        can[0] = self.has_peers
        return 0

    def cuCtxEnablePeerAccess(self, context: Any, flags: int) -> int:  # noqa: N802
        card, peer = self._card(), int(ffi.cast("uintptr_t", context)) - 0x1000
        if card is None or flags or not self._retained.get(peer):
            return INVALID_CONTEXT
        if not self.has_peers or card == peer:
            return PEERS_UNSUPPORTED
        if (card, peer) in self.peers:
            return PEERS_ALREADY_ENABLED
        self.peers.add((card, peer))
        return 0

    # --- streams and events

    def cuStreamCreate(self, stream: Any, flags: int) -> int:  # noqa: N802
        return self._make("CUstream", stream, self._card())

    def _make(self, kind: str, place: Any, thing: Any) -> int:
        if self._card() is None:
            return INVALID_CONTEXT
        place[0] = self._new(kind, thing)
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:  # noqa: N802
        return self._drop("CUstream", stream)

    def cuStreamSynchronize(self, stream: Any) -> int:  # noqa: N802
        return self._stream(stream)

    def cuStreamQuery(self, stream: Any) -> int:  # noqa: N802
        return self._stream(stream)

    def foreign_stream(self, *work: Callable[[], None]) -> int:
        """A stream of another library that was asked to do something."""
        number = next(self._numbers)
        self._alive["CUstream"][number] = self._card() or 0
        self.pending[number] = list(work)
        return number

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> int:  # noqa: N802
        found = self._thing("CUevent", event)
        if found is None or flags:
            return INVALID_HANDLE
        if status := self._stream(stream):
            return status
        earlier = found.get("stream", 0)
        self.waits.append((int(ffi.cast("uintptr_t", stream)), earlier))
        for work in self.pending.pop(earlier, []):
            work()
        return 0

    def _stream(self, stream: Any) -> int:
        if int(ffi.cast("uintptr_t", stream)) in DEFAULT_STREAMS:
            return INVALID_CONTEXT if self._card() is None else 0
        if self._thing("CUstream", stream) is None:
            return INVALID_HANDLE
        return 0 if self._thing("CUstream", stream) == self._card() else INVALID_CONTEXT

    def cuEventCreate(self, event: Any, flags: int) -> int:  # noqa: N802
        return self._make("CUevent", event, {"flags": flags, "recorded": False})

    def cuEventDestroy_v2(self, event: Any) -> int:  # noqa: N802
        return self._drop("CUevent", event)

    def cuEventRecord(self, event: Any, stream: Any) -> int:  # noqa: N802
        found = self._thing("CUevent", event)
        if found is None:
            return INVALID_HANDLE
        found["recorded"], found["stream"] = True, int(ffi.cast("uintptr_t", stream))
        return self._stream(stream)

    def cuEventSynchronize(self, event: Any) -> int:  # noqa: N802
        return 0 if self._thing("CUevent", event) is not None else INVALID_HANDLE

    def cuEventElapsedTime(self, time: Any, start: Any, end: Any) -> int:  # noqa: N802
        events = [self._thing("CUevent", event) for event in (start, end)]
        if not all(e is not None and e["recorded"] and not e["flags"] & 2 for e in events):
            return INVALID_HANDLE
        time[0] = 0.25
        return 0

    # --- memory

    def cuMemAlloc_v2(self, address: Any, size: int) -> int:  # noqa: N802
        card = self._card()
        if card is None:
            return INVALID_CONTEXT
        if not size:
            return INVALID_VALUE
        used = sum(len(content) for owner, content in self.memory.values() if owner == card)
        if used + size > self._capacity[card]:
            return OUT_OF_MEMORY
        address[0] = self._next_address
        self.memory[self._next_address] = card, bytearray(b"\xa5" * size)
        self._next_address += (size // ALIGNMENT + 2) * ALIGNMENT
        return 0

    def cuMemFree_v2(self, address: int) -> int:  # noqa: N802
        return 0 if self.memory.pop(int(address), None) is not None else INVALID_VALUE

    def cuMemHostAlloc(self, address: Any, size: int, flags: int) -> int:  # noqa: N802
        held = ffi.new("char[]", size)
        address[0] = ffi.cast("void *", held)
        self._pinned[int(ffi.cast("uintptr_t", held))] = held
        return 0

    def cuMemFreeHost(self, address: Any) -> int:  # noqa: N802
        found = self._pinned.pop(int(ffi.cast("uintptr_t", address)), None)
        return 0 if found is not None else INVALID_VALUE

    def cuMemcpyHtoDAsync_v2(self, target: int, source: Any, size: int, stream: Any) -> int:  # noqa: N802
        if status := self._stream(stream):
            return status
        self.span(int(target), size)[:] = ffi.buffer(ffi.cast("char *", source), size)
        return 0

    def cuMemcpyDtoHAsync_v2(self, target: Any, source: int, size: int, stream: Any) -> int:  # noqa: N802
        if status := self._stream(stream):
            return status
        ffi.memmove(target, self.span(int(source), size), size)
        return 0

    def cuMemcpyPeerAsync(  # noqa: N802
        self, target: int, there: Any, source: int, here: Any, size: int, stream: Any
    ) -> int:
        if status := self._stream(stream):
            return status
        self.span(int(target), size)[:] = self.span(int(source), size)
        return 0

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: int) -> int:  # noqa: N802
        for start, (card, content) in self.memory.items():
            if start <= address < start + len(content):
                value[0] = card
                return 0
        return INVALID_VALUE

    # --- programs

    def cuModuleLoadDataEx(  # noqa: N802
        self, module: Any, image: Any, count: int, options: Any, values: Any
    ) -> int:
        content = bytes(ffi.buffer(image))
        if [options[i] for i in range(count)] != [5, 6]:
            return INVALID_VALUE
        if not content.startswith((b"\x7fELF", b"//", b".version")):
            return INVALID_IMAGE
        if not content.startswith(b"\x7fELF") and not content.endswith(b"\0"):
            raise Mistake("text of PTX that does not end in a zero byte")
        if self.log:
            ffi.memmove(values[0], self.log + b"\0", len(self.log) + 1)
            return INVALID_PTX
        return self._make("CUmodule", module, content)

    def cuModuleUnload(self, module: Any) -> int:  # noqa: N802
        return self._drop("CUmodule", module)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:  # noqa: N802
        image = self._thing("CUmodule", module)
        if image is None:
            return INVALID_HANDLE
        if name not in image:
            return NOT_FOUND
        number = int(ffi.cast("uintptr_t", module))
        return self._make("CUfunction", function, Function(number, image, name.decode()))

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> int:  # noqa: N802
        found = self._thing("CUfunction", function)
        if found is None:
            return INVALID_HANDLE
        known = {0: self.cards[self._card() or 0].block_threads, 1: found.uses_static}
        value[0] = known[attribute]
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:  # noqa: N802
        found = self._thing("CUfunction", function)
        if found is None:
            return INVALID_HANDLE
        if attribute != 8 or value > self.cards[self._card() or 0].shared_bytes:
            return INVALID_VALUE
        found.shared_bytes = value
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:  # noqa: N802
        *sizes, shared, stream, parameters, extra = rest
        if status := self._stream(stream):
            return status
        launched = self._launched(function, sizes, shared, parameters, extra)
        return launched if isinstance(launched, int) else self._run(launched)

    def _launched(
        self, function: Any, sizes: list[int], shared: int, parameters: Any, extra: Any
    ) -> Launched | int:
        found = self._thing("CUfunction", function)
        if found is None or found.module not in self._alive["CUmodule"]:
            return INVALID_HANDLE
        grid, block = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
        most = self.cards[self._card() or 0].block_threads
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= most or min(grid) < 1 or max(grid[1:]) > 65_535:
            return INVALID_VALUE
        if shared > found.shared_bytes:
            return INVALID_VALUE
        arguments = self.arguments_of(found, parameters, extra)
        if isinstance(arguments, int):
            return arguments
        return Launched(found.image, found.name, grid, block, shared, arguments)

    def arguments_of(self, found: Function, parameters: Any, extra: Any) -> bytes | int:
        """The arguments of a launch as PTX places them, one by one or from a block.

        A card's assembler aligns what is aligned by more than 8 bytes in its constants, which do
        not begin at such a place: no block of them is right, and CUDA finds it too long.
        """
        if (parameters == ffi.NULL) == (extra == ffi.NULL):
            return INVALID_VALUE
        places = self.parameters_of(found.image, found.name)
        if parameters != ffi.NULL:
            block = bytearray(max((offset + size for offset, size in places), default=0))
            for number, (offset, size) in enumerate(places):
                given = ffi.buffer(ffi.cast("char *", parameters[number]), size)
                block[offset : offset + size] = given
            return bytes(block)
        if [int(ffi.cast("intptr_t", extra[i])) for i in (0, 2, 4)] != [1, 2, 0]:
            return INVALID_VALUE
        if any(size > 8 for _, size in places):
            return OUT_OF_RESOURCES
        size = int(ffi.cast("size_t *", extra[3])[0])
        return bytes(ffi.buffer(ffi.cast("char *", extra[1]), size))

    def parameters_of(self, image: bytes, name: str) -> list[tuple[int, int]]:
        """Offset and size of each parameter of a kernel, as PTX counts; none for other images."""
        return []

    def _run(self, launched: Launched) -> int:
        self.launches.append(launched)
        if self.execute is not None:
            self.execute(self, launched)
        return 0

    # --- maps of tensors

    def cuTensorMapEncodeTiled(  # noqa: N802
        self, target: Any, kind: int, rank: int, address: Any, *rest: Any
    ) -> int:
        sizes, strides, box, steps, interleave, swizzle, promotes, outside = rest
        if int(ffi.cast("uintptr_t", target)) % 64:
            raise Mistake("a tensor map is written to a place that 64 does not divide")
        found = EncodedMap(
            kind,
            int(ffi.cast("uintptr_t", address)),
            tuple(sizes[i] for i in range(rank)),
            tuple(box[i] for i in range(rank)),
            tuple(steps[i] for i in range(rank)),
            tuple(strides[i] for i in range(rank - 1)),
            swizzle,
        )
        if (interleave, outside) != (0, 0) or promotes not in range(4) or not found.is_valid:
            return INVALID_VALUE
        self.span(found.address, found.reach)
        ffi.memmove(target, found.encoded, 128)
        return 0

    # --- graphs

    def cuGraphCreate(self, graph: Any, flags: int) -> int:  # noqa: N802
        return self._make("CUgraph", graph, {})

    def cuGraphDestroy(self, graph: Any) -> int:  # noqa: N802
        return self._drop("CUgraph", graph)

    def cuGraphAddKernelNode_v2(  # noqa: N802
        self, node: Any, graph: Any, before: Any, count: int, parameters: Any
    ) -> int:
        nodes = self._thing("CUgraph", graph)
        if nodes is None:
            return INVALID_HANDLE
        waits = tuple(int(ffi.cast("uintptr_t", before[i])) for i in range(count))
        if any(wait not in nodes for wait in waits):
            return INVALID_VALUE
        launched = self._of_node(parameters)
        if isinstance(launched, int):
            return launched
        number = next(self._numbers)
        nodes[number] = Node(launched, waits)
        node[0] = ffi.cast("CUgraphNode", number)
        return 0

    def _of_node(self, p: Any) -> Launched | int:
        sizes = [p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ]
        return self._launched(p.func, sizes, p.sharedMemBytes, p.kernelParams, p.extra)

    def cuGraphInstantiateWithFlags(self, made: Any, graph: Any, flags: int) -> int:  # noqa: N802
        nodes = self._thing("CUgraph", graph)
        return INVALID_HANDLE if nodes is None else self._make("CUgraphExec", made, dict(nodes))

    def cuGraphExecKernelNodeSetParams_v2(self, made: Any, node: Any, parameters: Any) -> int:  # noqa: N802
        nodes = self._thing("CUgraphExec", made)
        number = int(ffi.cast("uintptr_t", node))
        if nodes is None or number not in nodes:
            return INVALID_HANDLE
        if not any(number in graph for graph in self._alive["CUgraph"].values()):
            return INVALID_VALUE  # destroying a graph destroys the nodes that name what is changed
        launched = self._of_node(parameters)
        if isinstance(launched, int):
            return launched
        nodes[number] = Node(launched, nodes[number].before)
        return 0

    def cuGraphLaunch(self, made: Any, stream: Any) -> int:  # noqa: N802
        nodes = self._thing("CUgraphExec", made)
        if nodes is None:
            return INVALID_HANDLE
        if status := self._stream(stream):
            return status
        done: set[int] = set()
        while ready := [n for n, node in nodes.items() if n not in done and done >= {*node.before}]:
            for number in ready:
                done.add(number)
                if status := self._run(nodes[number].launched):
                    return status
        return 0

    def cuGraphExecDestroy(self, made: Any) -> int:  # noqa: N802
        return self._drop("CUgraphExec", made)
