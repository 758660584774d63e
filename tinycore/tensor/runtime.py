"""`Runtime`: the interface of the frontend to the engine.

Floor 5. The seam between `Tensor` and what runs it. `use` replaces the runtime, which is how the
tests run the same tensors on the plain evaluator of `tiny_testing.reference`. `TinyJit` alone
goes past it, to the engine's launches, so it needs the engine's own runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from tinycore._deferred import deferred, numpy
from tinycore.dtype import DType
from tinycore.uop.node import UOp
from tinycore.uop.shape import DeviceLike

if TYPE_CHECKING:
    from tinycore.device.protocols import SupportsExchange
    from tinycore.schedule.canonical import CanonicalGraph
    from tinycore.schedule.items import ScheduleItem
    from tinycore.schedule.retention import OnResult, Realized, RetentionPolicy

HostArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
Refresh = Callable[[], HostArray]
"""Gives the new content of a buffer, for a captured step that is about to be replayed."""


class Runtime(Protocol):
    """Interface to the floors below for tensors. Arrays hold the bytes of `to_numpy_dtype`."""

    def default_device(self) -> str:
        """The device of tensors that name none."""

    def canonicalize(self, device: DeviceLike) -> DeviceLike:
        """The full spelling of the name of a device, or of several. Raises UnknownDevice."""

    def from_host(
        self, array: HostArray, dtype: DType, device: DeviceLike, refresh: Refresh | None = None
    ) -> UOp:
        """A new BUFFER with the elements of a C-contiguous array; `array` may be reused on return.

        A step being captured calls `refresh` before each replay and writes the result.
        """

    def repeat(self, action: Callable[[], None], fingerprint: Hashable) -> None:
        """A step being captured does this again before each replay, in order with each `refresh`.

        Runs of a function that differ in `fingerprint` do not do the same.
        """

    def to_host(self, buffer: UOp) -> HostArray:
        """The content of a realized BUFFER or BUFFER_VIEW, copied to a flat array."""

    def shared(self, buffer: UOp) -> HostArray | None:
        """The memory of a realized BUFFER or BUFFER_VIEW, as a flat array that keeps it alive.

        None where the host cannot address it.
        """

    def wrap(
        self,
        pointer: int,
        size: int,
        dtype: DType,
        device: str,
        owner: object,
        start: int = 0,
    ) -> UOp:
        """A new BUFFER over `size` elements at an address of the device, or, where its pointers
        name buffer objects, from byte `start` of one on.

        `owner` is kept alive as long as the memory may be used. Raises UnsupportedError on a device
        that cannot use memory it did not allocate.
        """

    def version(self, buffer: UOp) -> UOp:
        """A new BUFFER over the memory of another one."""

    def exchange_kind(self, device: DeviceLike) -> tuple[int, int] | None:
        """The DLDevice of a device, as (type, number); None if it does not support DLPack."""

    def takes(self, device: DeviceLike, kind: int, number: int) -> bool:
        """True if a device works on memory of a DLDevice."""

    def device_for(self, kind: int, number: int) -> str | None:
        """A device that uses memory of a DLDevice, the default one if it does; else None."""

    def exchange(self, device: DeviceLike) -> SupportsExchange | None:
        """Ordered exchange of a device's memory with streams; None if unsupported."""

    def lend(self, buffer: UOp) -> tuple[HostArray, int]:
        """A realized BUFFER or BUFFER_VIEW as a flat array that keeps it and lies where others find
        it, which the host may not read; and the pointer to its allocation.
        """

    def realize(
        self,
        canonical: CanonicalGraph,
        policy: RetentionPolicy,
        others: Sequence[UOp] = (),
        on_result: OnResult | None = None,
    ) -> Realized:
        """Compute the roots of a canonical graph; map nodes that now are memory to that memory.

        `on_result` is called with the result before this returns. If existing memory is written to
        and an interrupt arrives in between, it is called once all is computed, by `finish` at the
        latest. The result has the roots, and of the nodes below `others`, which live on, those that
        `policy` selects from all nodes with memory. The policy is called once for all graphs that
        differ in their buffers only.
        """

    def finish(self) -> None:
        """Complete the work that an interrupt left undone, if it wrote to existing memory."""

    def kernelize(self, roots: list[UOp], policy: RetentionPolicy) -> dict[UOp, UOp]:
        """The nodes that `policy` replaces by kernels, cut from the graph as they would run."""

    def schedule(self, canonical: CanonicalGraph) -> list[ScheduleItem]:
        """The kernels of the roots in dependency order, not run."""

    def describe(self, buffer: UOp) -> str:
        """A few words on a BUFFER, for `repr`."""


ENGINE: Final[Callable[[], Runtime]] = deferred("tinycore.engine.engine:Engine")
"""The engine, which takes as long to import as the frontend: at the first tensor, not before."""


class Holder:
    """The runtime in use: the engine, unless a test installs another."""

    active: Runtime | None = None


def use(runtime: Runtime) -> None:
    """Make `runtime` the one that all tensors use from now on."""
    Holder.active = runtime


def runtime() -> Runtime:
    """The runtime in use."""
    if Holder.active is None:
        Holder.active = ENGINE()
    return Holder.active
