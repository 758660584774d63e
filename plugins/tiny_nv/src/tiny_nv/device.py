"""An open card: its context, its stream, and the toolchain that makes its programs.

The context is the primary one, which CUDA's runtime uses too: memory of torch and CuPy in this
process is memory here. The stream is one that waits for the legacy default stream and is waited for
by it, so that what they have asked for by default happens in order with what is asked for here.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tiny_nv import _lib
from tiny_nv._errors import LOST
from tiny_nv._lib import describe, ffi
from tiny_nv.arch import arch_of, limits_of, widest_of
from tiny_nv.graph import CudaGraph
from tiny_nv.memory import CudaAllocator
from tiny_nv.probe import CardInfo, cards, reason
from tiny_nv.program import CudaProgram, NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import Ptx
from tiny_nv.render import CudaC
from tinycore.errors import DeviceError, DeviceUnavailable, SharingError
from tinycore.plugin import Launch, ProgramInfo, Toolchain, lock

__all__ = ["CudaDevice", "ptx_toolchain", "toolchain"]

DEFAULT_ARCH: Final = "sm_80"
"""Target architecture without a card or ARCH: all later cards resemble it."""
REMEMBERED: Final = 64
"""Launches that an error may be about, the last ones."""
_WAITS_FOR_DEFAULT_STREAM: Final = 0
_LEGACY_DEFAULT: Final = 1
"""Number and handle of the default stream that waits for others, with DLPack and with CUDA."""
_ALREADY_ENABLED: Final = 704
_SLEEP: Final = 1
_NOT_READY: Final = 600
_UNTIMED: Final = 2


def toolchain(arch: str = "") -> Toolchain[CudaC]:
    """CUDA C compiled by nvrtc for an architecture. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    renderer = CudaC(limits_of(arch_of(name), takes_maps=True))
    return Toolchain("NVRTC", name, renderer, NvrtcCompiler(name))


def ptx_toolchain(arch: str = "") -> Toolchain[Ptx]:
    """PTX of our own for an architecture. Needs no compiler: the driver assembles it.

    Raises CompilerUnavailable for what is no architecture of NVIDIA.
    """
    name = arch or DEFAULT_ARCH
    renderer = Ptx(limits_of(arch_of(name), takes_maps=True), arch=name)
    return Toolchain("PTX", name, renderer, PtxCompiler(name))


def stream_of(number: int | None) -> Any:
    """The handle of a stream by its number in DLPack. Raises SharingError for 0."""
    if number == 0:
        raise SharingError(
            "stream 0 is ambiguous: name the legacy default stream 1, that of each thread 2"
        )
    return ffi.cast("CUstream", _LEGACY_DEFAULT if number is None else number)


class CudaDevice:
    """An open card, which does what it is asked in order."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        found = cards()
        if index >= len(found):
            names = ", ".join(f"CUDA:{i} {card.name}" for i, card in enumerate(found))
            raise DeviceUnavailable(
                f"there is no CUDA:{index}; there are: {names}" if found else reason()
            )
        self.info: CardInfo = found[index]
        self.arch = widest_of(self.info.arch)
        self.driver = _lib.library()
        self._lost = ""
        self._closed = False
        self._recent: deque[str] = deque(maxlen=REMEMBERED)
        self.context = _lib.got(
            "CUcontext *", "cuDevicePrimaryCtxRetain", self.info.number, what=self.info.name
        )
        self.stream = self.got("CUstream *", "cuStreamCreate", _WAITS_FOR_DEFAULT_STREAM)
        self._events: list[Any] = []
        self._order: Any = None
        """Event by which streams wait for each other."""
        self._order_lock = lock()
        self._peers: set[int] = set()
        self.allocator = CudaAllocator(self)

    # --- calls

    def enter(self) -> None:
        """Select the context for this thread: others in this process choose theirs as well."""
        self.driver.cuCtxSetCurrent(self.context)

    def call(self, name: str, *arguments: Any, what: str = "") -> None:
        """Call a function of the driver in the card's context.

        Raises OutOfMemory and DeviceError; for a context that is lost, what lost it.
        """
        self.enter()
        status = getattr(self.driver, name)(*arguments)
        if status:
            self.fail(status, name, what)

    def got(self, kind: str, name: str, *arguments: Any, what: str = "") -> Any:
        """Result that a function stores through its first argument. Raises as `call` does."""
        place = ffi.new(kind)
        self.call(name, place, *arguments, what=what)
        return place[0]

    def quietly(self, name: str, *arguments: Any) -> None:
        """Call a function that gives something back, whatever it says; nothing once closed."""
        if not self._closed:
            self.enter()
            getattr(self.driver, name)(*arguments)

    def fail(self, status: int, name: str, what: str) -> None:
        """Raise OutOfMemory or DeviceError for the status of a call; what lost a lost context."""
        if self._lost:
            raise DeviceError(f"{self.info.name} was lost before {name} was called: {self._lost}")
        if status in LOST:
            ran = ", ".join(dict.fromkeys(self._recent)) or "no kernel"
            self._lost = (
                f"{name} reported {describe(status)}, of something that ran before it. Launched "
                f"since the card was last waited for: {ran}. CUDA takes no more calls in this "
                "process: start anew"
            )
            raise DeviceError(f"{self.info.name} is lost: {self._lost}")
        _lib.verify(status, name, what)

    # --- launches

    def launch(self, name: str, arguments: Sequence[Any]) -> None:
        """Launch a kernel; the context is current."""
        self._recent.append(name)
        status = self.driver.cuLaunchKernel(*arguments)
        if status:
            self.fail(status, "cuLaunchKernel", f"kernel {name}")

    def launch_graph(self, names: str, executable: Any) -> None:
        """Launch a graph; the context is current."""
        self._recent.append(names)
        status = self.driver.cuGraphLaunch(executable, self.stream)
        if status:
            self.fail(status, "cuGraphLaunch", names)

    def forget_launches(self) -> None:
        """Forget the launches kept for error messages: all of them have ended well."""
        self._recent.clear()

    def new_event(self, timed: bool = True) -> Any:
        """An event, to wait for or to measure by."""
        return self.got("CUevent *", "cuEventCreate", 0 if timed else _UNTIMED)

    @contextmanager
    def timed(self) -> Iterator[Callable[[], float]]:
        """Measure what is launched inside: calling what this gives waits, and says the seconds."""
        events = [self._events.pop() if self._events else self.new_event() for _ in range(2)]
        self.call("cuEventRecord", events[0], self.stream)

        def seconds() -> float:
            self.call("cuEventSynchronize", events[1])
            self.forget_launches()
            milliseconds = self.got("float *", "cuEventElapsedTime", *events)
            self._events += events
            return float(milliseconds) * 1e-3

        yield seconds
        self.call("cuEventRecord", events[1], self.stream)

    # --- what the core asks for

    def load(self, binary: bytes, info: ProgramInfo) -> CudaProgram:
        """Make a cubin ready to launch. Raises DeviceError for one of another architecture."""
        return CudaProgram(self, binary, info)

    def keep_module(self, program: CudaProgram, module: Any) -> None:
        """Unload a module with its program, once all that was launched has ended."""
        weakref.finalize(program, self._unload, module).atexit = False

    def _unload(self, module: Any) -> None:
        # cuModuleUnload waits for kernels of the module that still run.
        self.quietly("cuModuleUnload", module)

    def graph(self, launches: Sequence[Launch]) -> CudaGraph:
        """Launches of this card's programs, ready to be run by one call."""
        return CudaGraph(self, launches)

    # --- other libraries, and other cards

    @property
    def exchange_stream(self) -> int:
        """The stream, by its handle: who lends memory lets it wait."""
        return int(ffi.cast("uintptr_t", self.stream))

    def address(self, handle: int) -> tuple[int, int]:
        """Every address is one that other libraries know, a part's as well."""
        return handle, 0

    def let_wait(self, stream: int | None) -> None:
        """Let a stream of another library wait for all that was asked here."""
        self._order_streams(stream_of(stream), self.stream)

    def wait_for(self, stream: int | None) -> None:
        """Wait for all that a stream of another library was asked."""
        self._order_streams(self.stream, stream_of(stream))

    def _order_streams(self, later: Any, earlier: Any) -> None:
        """Let one stream wait for what the other has been asked so far; the host does not wait."""
        if later == earlier:
            return
        with self._order_lock:
            if self._order is None:
                self._order = self.new_event(timed=False)
            self.call("cuEventRecord", self._order, earlier)
            self.call("cuStreamWaitEvent", later, self._order, 0)

    def meet(self, other: CudaDevice) -> None:
        """Let copies between two cards go from one to the other, where the machine allows that.

        Without it CUDA copies through the host.
        """
        number = other.info.number
        if number == self.info.number or number in self._peers:  # a card is no peer of its own
            return
        self._peers.add(number)
        if self.got("int *", "cuDeviceCanAccessPeer", self.info.number, number):
            self.enter()
            status = self.driver.cuCtxEnablePeerAccess(other.context, 0)
            if status not in (0, _ALREADY_ENABLED):
                self.fail(status, "cuCtxEnablePeerAccess", other.info.name)

    def is_idle(self) -> bool:
        """True if the stream is empty. Raises DeviceError if what it was asked failed."""
        self.enter()
        status = self.driver.cuStreamQuery(self.stream)
        if status not in (0, _NOT_READY):
            self.fail(status, "cuStreamQuery", "")
        return not status

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self.call("cuStreamSynchronize", self.stream)
        self.forget_launches()

    def close(self) -> None:
        """Wait, and release what the device has. Other users keep the primary context."""
        if self._closed:
            return
        self.quietly("cuStreamSynchronize", self.stream)
        self.allocator.close()
        for event in (*self._events, *filter(None, [self._order])):
            self.quietly("cuEventDestroy_v2", event)
        self.quietly("cuStreamDestroy_v2", self.stream)
        self.driver.cuDevicePrimaryCtxRelease_v2(self.info.number)
        self._closed = True
