"""The accelerator: queue, memory, renderer, compiler, graph and device, each a part of its own.

A fault replaces one part by a subclass; see `faults.py`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy

from tiny_testing.loads import TileLoad
from tinycore.device.backend import Backend
from tinycore.device.protocols import (
    ALIGNMENT_BYTES,
    DeviceRuntime,
    Launch,
    Program,
    ProgramInfo,
    Toolchain,
)
from tinycore.device.registry import Device
from tinycore.dtype import PointerDType, dtypes
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import Interface, recursive_lock
from tinycore.render.base import Limits, LinearKernel, Renderer
from tinycore.uop.instruction import Instruction
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.parse import program_from_text

__all__ = [
    "CORRECT",
    "Accelerator",
    "Block",
    "Compiler",
    "Kept",
    "Memory",
    "Parts",
    "Queue",
    "Rewriter",
    "Span",
    "backend_of",
    "external_memory",
]

CAPACITY_BYTES: Final = 1 << 30
VECTOR_BYTES: Final = 16
"""A vector in memory begins at a multiple of this, as cards want it."""
DEVICES: Final = 2
UNIT: Final = MatrixUnit(
    *("multiply_16x8x16", 16, 8, 16, dtypes.float16, dtypes.float16, dtypes.float32, 32),
    *("k2 k4 m1 m2 m4 | k1 m8 k8", "k2 k4 n1 n2 n4 | k1 k8", "n2 n4 m1 m2 m4 | n1 m8"),
    load=TileLoad("load_tiles", turned_bytes=2),
)
LIMITS: Final = Limits(
    grid=(65_535, 65_535, 65_535),
    grid_varies=True,
    block=(256, 256, 64),
    block_threads=256,
    shared_bytes=16 << 10,
    image=(16_384, 16_384),
    subgroup=32,
    shuffles=(dtypes.float32, dtypes.int32, dtypes.uint32),
    matrix=(UNIT,),
)
REGISTER_BYTES: Final = 64
"""Size from which an array of a thread is in memory instead of registers."""
THREADS_AT_ONCE: Final = 64
"""Threads with scratch of their own."""
INTERPRETER: Final = "PYTHON"
"""The backend that runs the programs."""


# --- the queue


class Queue:
    """Commands, executed in order by a thread; `asked` counts them, `done` is the signal."""

    def __init__(self) -> None:
        self.asked = 0
        self.done = 0
        self.failure: Exception | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition(recursive_lock())
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="accelerator", daemon=True)
        self._thread.start()

    def ask(self, command: Callable[[], None]) -> int:
        """Have a command done after those before it; the signal's value when it is."""
        with self._changed:
            self._commands.append(command)
            self.asked += 1
            self._changed.notify_all()
            return self.asked

    def wait(self, value: int) -> None:
        """Wait until the signal has a value. Raises DeviceError, once, when a command failed."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= value)
            failure, self.failure = self.failure, None
        if failure is not None:
            raise DeviceError(f"a command of the queue failed: {failure}") from failure

    def close(self) -> None:
        """Let the thread end when all is done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._commands or self._closed)
                if not self._commands:
                    return
                command = self._commands.popleft()
            failure = None
            try:
                command()
            except Exception as error:  # told by whoever waits
                failure = error
            with self._changed:
                self.failure = self.failure or failure
                self.done += 1
                self._changed.notify_all()


# --- memory


@dataclass(eq=False)
class Block:
    """An allocation: what the interpreter calls its memory, and its size."""

    memory: Any
    size: int
    is_image: bool = False
    is_freed: bool = False
    address: int = 0
    """Address of memory owned by others; our own starts at a multiple of any vector."""


@dataclass(frozen=True, eq=False)
class Span:
    """A part of a block: the handle that the core gets."""

    block: Block
    start: int
    size: int


class Memory:
    """The accelerator's memory, of a fixed capacity, which the host does not address."""

    def __init__(self, queue: Queue, inner: Any) -> None:
        self.queue = queue
        self.inner = inner
        """The interpreter's allocator."""
        self.used = 0

    def alloc(self, size: int) -> Span:
        """`size` bytes. Raises OutOfMemory beyond the capacity."""
        if self.used + size > CAPACITY_BYTES:
            raise OutOfMemory(
                f"{size} bytes do not fit: {self.used} of {CAPACITY_BYTES} are in use; free some"
            )
        self.used += size
        return Span(Block(self.inner.alloc(size), size), 0, size)

    def image(self, height: int, width: int, channel_bytes: int) -> Span:
        """Pixels of four floats."""
        size = height * width * 4 * channel_bytes
        self.used += size
        made = self.inner.image(height, width, channel_bytes)
        return Span(Block(made, size, is_image=True), 0, size)

    def free(self, handle: Span) -> None:
        """Give memory back: what touches it from now on faults."""
        self.used -= handle.block.size
        handle.block.is_freed = True

    def write(self, dst: Span, src: memoryview) -> None:
        """Copy host bytes, staged, so the host may go on."""
        staged = bytes(src)
        self.queue.ask(lambda: self.inner.write(self.place(dst), memoryview(staged)))

    def read(self, dst: memoryview, src: Span) -> None:
        """Fill host bytes, after all earlier commands."""
        self.queue.wait(self.queue.asked)
        self.inner.read(dst, self.place(src))

    def offset(self, handle: Span, size: int, start: int) -> Span:
        """A part of a block."""
        return Span(handle.block, handle.start + start, size)

    def wrap(self, pointer: int, size: int) -> Span:
        """Memory at an address."""
        return Span(Block(self.inner.wrap(pointer, size), size, address=pointer), 0, size)

    def copy_from(self, dst: Span, src: Span, size: int, source: DeviceRuntime) -> None:
        """Copy from another accelerator, which has synchronized."""
        self.queue.wait(self.queue.asked)
        host = bytearray(size)
        self.inner.read(memoryview(host), self.place(src))
        self.inner.write(self.place(dst), memoryview(host))

    def place(self, handle: Span) -> Any:
        """The interpreter's name of a span; an image is always whole. Raises DeviceError."""
        if handle.block.is_freed:
            raise DeviceError(f"a fault: memory of {handle.block.size} bytes was freed before")
        if handle.block.is_image:
            return handle.block.memory
        return self.inner.offset(handle.block.memory, handle.size, handle.start)


def external_memory(content: bytes) -> tuple[int, object]:
    """Bytes at an address that the accelerator can use, and what owns them."""
    owner = ctypes.create_string_buffer(len(content) + ALIGNMENT_BYTES)
    address = ctypes.addressof(owner)
    address += -address % ALIGNMENT_BYTES
    ctypes.memmove(address, content, len(content))
    return address, owner


# --- renderer and compiler


def excess(a: numpy.ndarray[Any, Any], b: numpy.ndarray[Any, Any]) -> object:
    """The excess of one number over another; 0 if there is none."""
    return numpy.maximum(a - b, 0)


EXCESS: Final = Instruction(
    "excess", (dtypes.int32, dtypes.int32), dtypes.int32, f"{__name__}:excess"
)
"""An instruction that no other device has."""


class Rewriter(Renderer):
    """Writes programs as the interpreter reads them; faults change the nodes on the way."""

    name = "TEXT"
    instructions: ClassVar[Mapping[Instruction, str]] = {EXCESS: "excess({0}, {1})"}
    dims: Limits = LIMITS

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(self.dims if limits is None else limits)

    def render(self, kernel: LinearKernel) -> str:
        """The program as text."""
        known: dict[UOp, UOp] = {}
        line: list[UOp] = []
        for node in kernel.uops:
            rebuilt = node.with_src(tuple([known.get(s, s) for s in node.src]))
            line += self.changed(rebuilt)
            known[node] = line[-1]
        done = LinearKernel(kernel.name, tuple(self.ordered(line)))
        return str(interpreter().renderer.render(done))

    def changed(self, node: UOp) -> Sequence[UOp]:
        """The replacements of a node, the last of which takes its place."""
        return (node,)

    def ordered(self, line: list[UOp]) -> Sequence[UOp]:
        """The nodes in the order in which they are done."""
        return line


def interpreter() -> Toolchain[Any]:
    """The interpreter's toolchain."""
    return Device.backend(INTERPRETER).renderers[INTERPRETER]("")


class Compiler:
    """The interpreter's compiler under another name."""

    name = "TEXT"
    key = "accelerator 1"

    def compile(self, source: str) -> bytes:
        """The program as bytes. Raises CompileError."""
        return interpreter().compiler.compile(source)


def spilled_by(binary: bytes) -> int:
    """Bytes of a thread's arrays that registers do not hold."""
    if b"DEFINE_REG" not in binary:
        return 0
    kinds = [u.dtype for u in program_from_text(binary.decode()) if u.op is Op.DEFINE_REG]
    sizes = [k.size * k.base.size_bytes for k in kinds if isinstance(k, PointerDType)]
    return sum(size for size in sizes if size > REGISTER_BYTES)


def has_vectors(binary: bytes) -> bool:
    """True if a program loads or stores several elements of memory at once."""
    uops = program_from_text(binary.decode()) if b"vec(" in binary else ()
    moved = [u if u.op is Op.LOAD else u.src[1] for u in uops if u.op in (Op.LOAD, Op.STORE)]
    return any(value.dtype.count > 1 for value in moved)


# --- the device


@dataclass(frozen=True)
class Kept:
    """A loaded program."""

    device: Accelerator
    program: Program
    info: ProgramInfo
    has_vectors: bool
    spilled_bytes: int
    """Scratch that a thread needs."""

    def __call__(
        self, buffers: Sequence[Span], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Ask for a launch; with `wait`, the seconds it took."""
        return self.device.launch(self, list(buffers), list(values), wait)


def nothing() -> None:
    """Wait for a stream without work."""


streams: Final[dict[int | None, Callable[[], None]]] = {}
"""Streams of another library, by number: functions that wait for all work on them."""


class Accelerator:
    """An open accelerator. Raises DeviceUnavailable for a number that does not exist."""

    def __init__(self, index: int, interface: str, parts: Parts) -> None:
        if index >= DEVICES:
            raise DeviceUnavailable(
                f"{parts.name}:{index} is not there: the accelerator has {DEVICES} devices, "
                f"{parts.name} and {parts.name}:1"
            )
        if interface and interface not in parts.interfaces:
            raise DeviceUnavailable(
                f"{parts.name} is not reached through {interface}, but through "
                f"{', '.join(parts.interfaces)}"
            )
        self.parts = parts
        self.inner = Device.backend(INTERPRETER).open(0, "")
        self.queue = parts.queue()
        self.allocator = parts.memory(self.queue, self.inner.allocator)
        self.scratch: Span | None = None
        """Memory that threads spill to; it is replaced when a program needs more."""

    def need_scratch(self, size: int) -> None:
        """Ensure scratch of a number of bytes per thread."""
        before = self.scratch
        if not size or (before is not None and before.size >= size):
            return
        self.scratch = self.allocator.alloc(size)
        if before is not None:
            self.synchronize()
            self.allocator.free(before)

    def load(self, binary: bytes, info: ProgramInfo) -> Kept:
        """A program, ready to be launched."""
        threads = info.block[0] * info.block[1] * info.block[2]
        limits = self.parts.limits
        if threads > limits.block_threads or info.shared_bytes > limits.shared_bytes:
            raise DeviceError(
                f"{info.name} takes {threads} threads and {info.shared_bytes} shared bytes a "
                f"group; there are {limits.block_threads} and {limits.shared_bytes}"
            )
        spilled = spilled_by(binary)
        self.need_scratch(spilled * THREADS_AT_ONCE)
        return Kept(self, self.inner.load(binary, info), info, has_vectors(binary), spilled)

    def launch(
        self, kept: Kept, buffers: list[Span], values: list[int], wait: bool
    ) -> float | None:
        """Ask for a launch."""
        value = self.queue.ask(lambda: self.run(kept, buffers, values))
        if not wait:
            return None
        began = time.perf_counter()
        self.queue.wait(value)
        return time.perf_counter() - began

    def run(self, kept: Kept, buffers: Sequence[Span], values: Sequence[int]) -> None:
        """Do a launch: what the queue's thread does. Raises DeviceError for misaligned vectors."""
        starts = [b.block.address + b.start for b in buffers if not b.block.is_image]
        beyond = [start % VECTOR_BYTES for start in starts]
        if kept.has_vectors and any(beyond):
            raise DeviceError(
                f"misaligned address: {kept.info.name} accesses vectors, and its buffers begin "
                f"{beyond} bytes beyond multiples of {VECTOR_BYTES}"
            )
        if kept.spilled_bytes:
            self.spill(kept.spilled_bytes * THREADS_AT_ONCE)
        kept.program([self.argument(span) for span in buffers], values)

    def spill(self, size: int) -> None:
        """Write to the scratch, as threads do that keep arrays there. Raises DeviceError."""
        assert self.scratch is not None
        if self.scratch.size < size:
            raise DeviceError(f"a fault: {size} bytes spilled to {self.scratch.size} of scratch")
        self.allocator.inner.write(self.allocator.place(self.scratch), memoryview(bytes(size)))

    def argument(self, span: Span) -> Any:
        """The argument of a program for a span."""
        return self.allocator.place(span)

    exchange_stream: int | None = 1
    """Stream of the other library that is named when memory is taken."""

    def address(self, handle: Span) -> tuple[int, int]:
        """Address of an allocation in the interpreter, and the start of a span there."""
        array: Any = handle.block.memory
        return int(array.ctypes.data), handle.start

    def let_wait(self, stream: int | None) -> None:
        """The host waits, for any stream."""
        self.synchronize()

    def wait_for(self, stream: int | None) -> None:
        """Wait on the host for the work of a stream."""
        streams.get(stream, nothing)()

    def graph(self, launches: Sequence[Launch]) -> KeptGraph:
        """Launches held ready."""
        return self.parts.graph(self, launches)

    def synchronize(self) -> None:
        """Wait for all commands."""
        self.queue.wait(self.queue.asked)

    def close(self) -> None:
        """Wait, and end the thread."""
        self.queue.close()
        self.inner.close()


class KeptGraph:
    """Launches submitted by one call."""

    def __init__(self, device: Accelerator, launches: Sequence[Launch]) -> None:
        self.device = device
        self.launches = [(p, list(handles), list(values)) for p, handles, values in launches]

    def set_buffer(self, launch: int, slot: int, handle: Span) -> None:
        """From now on a launch uses another span."""
        self.launches[launch][1][slot] = handle

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on a launch uses another value."""
        self.launches[launch][2][position] = value

    def __call__(self, *, wait: bool = False) -> float | None:
        """Ask for all, in order; with `wait`, the seconds they took."""
        began = time.perf_counter()
        for program, handles, values in self.launches:
            program(handles, values)
        if not wait:
            return None
        self.device.synchronize()
        return time.perf_counter() - began


# --- put together


OWN_KIND: Final = 12
"""kDLExtDev of DLPack: a device that it does not know."""
PINNED_KIND: Final = 3
"""kDLCUDAHost of DLPack: memory of the host that it can use as well."""

CAPABILITIES: Final = frozenset(
    {"external_pointer", "peer_copy", "graph", "exchange", "image", "local_memory"}
    | {dtype.name for dtype in dtypes.all}
)


def no_probe() -> str:
    """Why the second interface is not available."""
    return "/dev/accelerator is missing: load its driver"


INTERFACES: Final = {
    "QUEUE": Interface(),
    "KERNEL": Interface(probe=no_probe),
    "MOCK": Interface(automatic=False),
}


@dataclass(frozen=True)
class Parts:
    """The parts of an accelerator."""

    name: str = "ACCELERATOR"
    queue: Callable[[], Queue] = Queue
    memory: Callable[[Queue, Any], Memory] = Memory
    renderer: Callable[[], Rewriter] = Rewriter
    compiler: Callable[[], Compiler] = Compiler
    device: Callable[[int, str, Parts], Accelerator] = Accelerator
    graph: Callable[[Accelerator, Sequence[Launch]], KeptGraph] = KeptGraph
    capabilities: frozenset[str] = field(default=CAPABILITIES)
    interfaces: Mapping[str, Interface] = field(default_factory=lambda: INTERFACES)
    limits: Limits = LIMITS
    """Threads and shared memory that a group can have."""

    def named(self, name: str) -> Parts:
        """The same under another name."""
        return replace(self, name=name)


CORRECT: Final = Parts()


def backend_of(parts: Parts = CORRECT) -> Backend:
    """The declaration of an accelerator made of some parts."""

    def toolchain(arch: str) -> Toolchain[Renderer]:
        return Toolchain("TEXT", arch, parts.renderer(), parts.compiler())

    return Backend(
        name=parts.name,
        api=(2, 0),
        interfaces=parts.interfaces,
        count=lambda: DEVICES,
        open=lambda index, interface: parts.device(index, interface, parts),
        renderers={"TEXT": toolchain},
        capabilities=parts.capabilities,
        priority=-1,
        dlpack=(OWN_KIND, PINNED_KIND) if "exchange" in parts.capabilities else None,
    )
