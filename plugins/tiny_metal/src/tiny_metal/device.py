"""An open GPU: its queue, what it was asked to do, and the toolchain that makes its programs."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from tiny_metal import BACKEND, _lib
from tiny_metal._lib import NIL, Object, Pool
from tiny_metal.arch import LANGUAGES, NEWEST, Arch, limits_of, parsed
from tiny_metal.copier import Awaited, LocalCopier, PeerCopier
from tiny_metal.graph import EncodedGraph, IndirectGraph, SpanningGraph, graph_of
from tiny_metal.memory import MetalAllocator, MetalMemory
from tiny_metal.probe import GpuInfo, gpus, reason
from tiny_metal.program import MetalProgram, MslCompiler, library_of, told
from tiny_metal.render import Msl, MslWithBfloat
from tinycore.errors import CompileError, DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import DeviceRuntime, Launch, ProgramInfo, Toolchain, recursive_lock

__all__ = ["MetalDevice", "toolchain"]

LOCK: Final = recursive_lock()
"""Held while a command buffer is filled and given, so that their order is that of the calls; one
for all GPUs, as whoever waits for one also waits for those that it waits for."""

DEFAULT_ARCH: Final = "apple7"
"""Target family without a GPU or ARCH: M1, which all later ones support."""
MOST_IN_FLIGHT: Final = 48
"""Command buffers that may be unfinished: a queue has room for 64."""
_FAILED: Final = 5
_OUT_OF_MEMORY: Final = 8
_PROBE: Final = """\
#include <metal_stdlib>
using namespace metal;
kernel void probe(device {0} *data0 [[buffer(0)]]) {{ data0[0] = ({0})(float(data0[0]) + 1.0f); }}
"""


@dataclass(frozen=True)
class Work:
    """A command buffer that was given to the GPU and may not have ended."""

    commands: Object
    what: str
    kept: object
    """Stays alive until the end."""
    after: Awaited | None
    signal: tuple[Object, int] | None
    """MTLSharedEvent, and the value that it has at the end."""


def toolchain(arch: str = "") -> Toolchain[Msl]:
    """MSL for an architecture. Raises CompilerUnavailable for one that is not known."""
    found = parsed(arch or DEFAULT_ARCH)
    kind = MslWithBfloat if found.has_bfloat else Msl
    return Toolchain("MSL", str(found), kind(limits_of(found)), MslCompiler(found))


class MetalDevice:
    """An open GPU, which does what it is asked in order."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        self.metal = _lib.metal()
        self.send = self.metal.send
        found = gpus()
        for place, (device, _) in enumerate(found):
            if place != index:
                self.send(device, "release")
        if index >= len(found):
            names = ", ".join(f"METAL:{i} {info.name}" for i, (_, info) in enumerate(found))
            raise DeviceUnavailable(
                f"there is no METAL:{index}; there are: {names}" if found else reason()
            )
        self.handle: Object
        self.info: GpuInfo
        self.handle, self.info = found[index]
        self._closed = False
        self.lock = LOCK
        self.is_alone = len(found) == 1
        """True if the Mac has no other GPU."""
        self._running: deque[Work] = deque()
        self.submitted = 0
        """Number of submitted command buffers."""
        self._failure: DeviceError | None = None
        self._failed: set[int] = set()
        """Numbers of the command buffers that failed, from 1 on."""
        self.holds_graphs = not self.info.is_virtual
        """True if pipelines support indirect command buffers."""
        self.queue = self.send(self.handle, "newCommandQueue")
        if self.queue == NIL:
            self.send(self.handle, "release")
            raise DeviceUnavailable(f"{self.info.name} gives no command queue")
        self.language = self._newest_language()
        self.arch = str(Arch(self.info.family, self.language))
        self.allocator = MetalAllocator(self)

    def _newest_language(self) -> tuple[int, int]:
        """The newest version of the language whose kernels the system compiles.

        The version follows the system, not the GPU, and bfloat both: a small kernel tells.
        """
        problem: CompileError | None = None
        for version in LANGUAGES:
            kind = "bfloat" if version == NEWEST else "half"
            try:
                self.send(library_of(self, _PROBE.format(kind), version), "release")
            except CompileError as error:
                problem = error
            else:
                return version
        raise DeviceUnavailable(
            f"{self.info.name} compiles no kernel in MSL 2.2 or later: {problem}"
        )

    # --- objects

    def release(self, what: Object) -> None:
        """Give an object back; nothing once closed."""
        if not self._closed:
            self.send(what, "release")

    def keep(self, owner: object, what: Object) -> None:
        """Give an object back with its owner."""
        weakref.finalize(owner, self.release, what).atexit = False

    # --- memory of other libraries

    exchange_stream: Final = None
    """DLPack has no streams for Metal: whoever lends or takes memory waits for its own queue."""

    def address(self, memory: MetalMemory) -> tuple[int, int]:
        """The address of the MTLBuffer that a span lies in, and the byte where the span starts."""
        return int(_lib.ffi.cast("uintptr_t", memory.buffer)), memory.start

    def let_wait(self, stream: int | None) -> None:
        """Wait for all that was asked, since the queues of other libraries cannot."""
        self.synchronize()

    def wait_for(self, stream: int | None) -> None:
        """Wait for torch, which lends memory that its queue has yet to fill.

        Other libraries have waited when they lend.
        """
        torch = sys.modules.get("torch")
        if torch is not None and torch.backends.mps.is_available():
            torch.mps.synchronize()

    # --- work

    def submit(
        self,
        encode: Callable[[Object], None],
        what: str,
        wait: bool = False,
        kept: object = None,
        after: Awaited | None = None,
        signal: tuple[Object, int] | None = None,
    ) -> float | None:
        """Have the GPU do what `encode` puts into a command buffer, after all that was asked.

        `kept` stays alive until it is done; `after` and `signal` say what `encode` waits for and
        signals. With `wait`, wait for the end and return the seconds it took.
        """
        with self.lock, Pool(self.metal):
            commands = self.send(self.queue, "commandBuffer")
            if commands == NIL:
                raise DeviceError(f"{self.info.name} gives no command buffer for {what}")
            encode(commands)
            self.send(commands, "commit")
            self.send(commands, "retain")
            self._running.append(Work(commands, what, kept, after, signal))
            self.submitted += 1
            if not wait:
                while len(self._running) > MOST_IN_FLIGHT:
                    self._finish_oldest()
                return None
            while len(self._running) > 1:
                self._finish_oldest()
            self._let_begin(self._running[0])
            self.send(commands, "waitUntilCompleted")
            began = float(self.send(commands, "GPUStartTime"))
            ended = float(self.send(commands, "GPUEndTime"))
            self.synchronize()
            return ended - began

    def _let_begin(self, work: Work) -> bool:
        """Wait for the other GPU that a command buffer waits for; False without its results.

        Metal delivers no signal of a command buffer that failed. The host signals in its place, so
        that nothing waits for ever.
        """
        if work.after is None:
            return True
        other, number, is_input = work.after
        other.wait_until_ended(number)
        return not is_input or (number not in other._failed and other._failure is None)

    def _finish_oldest(self) -> None:
        """Wait for the oldest command buffer, and note how it ended."""
        work = self._running[0]
        has_input = self._let_begin(work)
        self.send(work.commands, "waitUntilCompleted")
        self._running.popleft()
        number = self.submitted - len(self._running)
        failure = self._failure_of(work)
        if failure is not None and work.signal is not None:
            self.send(work.signal[0], "setSignaledValue:", work.signal[1])
        if failure is None and not has_input:
            assert work.after is not None
            other = work.after.device.info.name
            failure = DeviceError(f"{self.info.name}: {work.what} has no data, {other} failed")
        if failure is not None:
            self._failed.add(number)
            self._failure = self._failure or failure
        self.send(work.commands, "release")

    def _failure_of(self, work: Work) -> DeviceError | None:
        """The error of a command buffer that ended; None if there is none."""
        if self.send(work.commands, "status") != _FAILED:
            return None
        error = self.send(work.commands, "error")
        short = error != NIL and self.send(error, "code") == _OUT_OF_MEMORY
        kind = OutOfMemory if short else DeviceError
        return kind(f"{self.info.name} failed in {work.what}: {told(self, error)}")

    @contextmanager
    def encoder(self, commands: Object, kind: str = "computeCommandEncoder") -> Iterator[Object]:
        """An encoder of a command buffer; it is ended whatever happens, as Metal demands."""
        made = self.send(commands, kind)
        try:
            yield made
        finally:
            self.send(made, "endEncoding")

    def blit(
        self, source: Object, start: int, target: Object, target_start: int, size: int
    ) -> None:
        """Copy between buffers, in order with launches."""

        def encode(commands: Any) -> None:
            selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
            with self.encoder(commands, "blitCommandEncoder") as encoder:
                self.send(encoder, selector, source, start, target, target_start, size)

        self.submit(encode, f"a copy of {size:,} bytes")

    def wait_until_ended(self, number: int) -> None:
        """Wait until so many of the command buffers that were given have ended."""
        with self.lock, Pool(self.metal):
            while self.submitted - len(self._running) < number:
                self._finish_oldest()

    def graph(self, launches: Sequence[Launch]) -> EncodedGraph | IndirectGraph | SpanningGraph:
        """Launches and copies of this GPU and of others, ready to be run by one call."""
        return graph_of(self, launches)

    def copier(self, size: int, source: DeviceRuntime) -> LocalCopier | PeerCopier:
        """A program that copies `size` bytes from this GPU or another, in order on both."""
        assert isinstance(source, MetalDevice)
        return LocalCopier(self, size) if source is self else PeerCopier(self, size, source)

    def synchronize(self) -> None:
        """Wait until everything asked is done. Raises DeviceError, once, for what failed."""
        with self.lock:
            if self._running:
                with Pool(self.metal):
                    while self._running:
                        self._finish_oldest()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def load(self, binary: bytes, info: ProgramInfo) -> MetalProgram:
        """Compile a source for the GPU. Raises CompileError with the compiler's log."""
        return MetalProgram(self, binary, info)

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities of the backend that this GPU has."""
        lacking = set() if self.info.shares_memory else {"host_memory"}
        if self.is_alone:
            lacking.add("queues")
        return BACKEND.capabilities - lacking

    def close(self) -> None:
        """Wait, and release what the device has."""
        if self._closed:
            return
        with suppress(DeviceError):
            self.synchronize()
        self.release(self.queue)
        self.release(self.handle)
        self._closed = True
