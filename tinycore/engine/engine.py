"""`Engine`: what the frontend asks of scheduler, compiler and devices.

Floor 4. The one object that joins schedule, compiler and devices behind `tensor.runtime`, where a
subclass may take its place. Arrays hold the bytes of `to_numpy_dtype`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tinycore._deferred import numpy
from tinycore.device.buffer import Buffer
from tinycore.device.protocols import SupportsExchange
from tinycore.device.registry import Device, OpenDevice, at_close
from tinycore.device.target import device_and_index
from tinycore.dtype import DType, ImageDType, dtypes, to_numpy_dtype
from tinycore.engine import transactions
from tinycore.engine.captured_step import VaryingMemory
from tinycore.engine.compile import state_of_programs
from tinycore.engine.counters import profilers
from tinycore.engine.run import Runner, announce, is_watched, launch, recordings, run_schedule
from tinycore.engine.transactions import Transaction, base_buffer
from tinycore.errors import DeviceError, JitError, ShapeError
from tinycore.schedule.canonical import CanonicalGraph
from tinycore.schedule.compiled import BoundSchedule, schedule_for, schedules
from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.limits import is_image
from tinycore.schedule.memory_plan import Layout
from tinycore.schedule.pipeline import kernelize
from tinycore.schedule.retention import OnResult, Realized, Replacements, RetentionPolicy
from tinycore.uop.bindings import sizes_below
from tinycore.uop.node import UOp, made_anew, unique
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, devices_named, members_of, mesh_of, names_of

HostArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
Refresh = Callable[[], HostArray]
"""Gives the new content of a buffer, for a captured step that is about to be replayed."""

HOST_DEVICE_TYPE = 1
"""The DLDeviceType of memory that the processor addresses; it has the number 0 only."""

MOST_STATES = 8
"""States of settings for which a schedule keeps its programs."""


def exchanged(kind: int, device: str) -> tuple[int, int]:
    """The DLDevice of a kind of memory that a device works on."""
    return kind, 0 if kind == HOST_DEVICE_TYPE else device_and_index(device)[1]


class Engine:
    """Computes tensor graphs on the installed devices."""

    def default_device(self) -> str:
        """The device of tensors that name none."""
        return Device.DEFAULT

    def canonicalize(self, device: DeviceLike) -> DeviceLike:
        """The full spelling of the name of a device, or of several. Raises UnknownDevice.

        Raises DeviceError for a device that is named twice.
        """
        if isinstance(device, str):
            return Device.canonicalize(device)
        found = devices_named([self.canonicalize(member) for member in device])
        if len(set(names := names_of(found))) != len(names):
            raise DeviceError(f"{device!r} names a device twice; each holds one part of a tensor")
        if len({mesh_of(member) for member in members_of(found)}) > 1 or not names:
            raise DeviceError(f"{device!r} is no mesh, whose members have one shape, and devices")
        return found

    def from_host(
        self, array: HostArray, dtype: DType, device: DeviceLike, refresh: Refresh | None = None
    ) -> UOp:
        """A new BUFFER with the elements of a C-contiguous array, which may be reused on return.

        A step being captured calls `refresh` before each replay and writes the result; what it has
        without, it copies to where the function may write. For several devices the first gets them,
        and the others copies.
        """
        if not isinstance(device, str):
            first, *others = device
            whole = self.from_host(array, dtype, first, refresh)
            places = [UOp(Op.DEVICE, dtypes.void, (), name) for name in others]
            copies = [UOp(Op.COPY, dtype, (whole, place)) for place in places]
            return UOp(Op.MULTI, dtype, (whole, *copies))
        node = fresh_buffer(int(array.size), dtype, device)
        buffer = buffers[node] = Buffer(device, int(array.size), dtype)
        buffer.copyin(array.data)
        if recordings:
            if refresh is None:
                recordings.innermost.fill(node, array.data)
            else:
                recordings.innermost.repeated.append((buffer, refresh))
        return node

    def repeat(self, action: Callable[[], None], fingerprint: Hashable) -> None:
        """A captured step does this again before each replay; runs must agree in `fingerprint`."""
        if recordings:
            recordings.innermost.repeated.append((None, action))
            recordings.innermost.host.append(fingerprint)  # -1 and -2 have one hash

    def to_host(self, buffer: UOp) -> HostArray:
        """The content of a realized BUFFER or BUFFER_VIEW, copied to a flat array.

        Raises JitError inside a step being captured, which must not depend on what it computes.
        """
        found = memory_to_read(buffer)
        result = numpy.empty(found.size, to_numpy_dtype(found.dtype))
        if found.size:
            found.copyout(result.data)
        return result

    def shared(self, buffer: UOp) -> HostArray | None:
        """The memory of a realized BUFFER or BUFFER_VIEW, as a flat array that keeps it alive.

        None where the host cannot address it. Raises JitError inside a step being captured.
        """
        found = memory_to_read(buffer)
        return found.to_cpu() if found.is_mapped else None

    def wrap(
        self, pointer: int, size: int, dtype: DType, device: str, owner: object, start: int = 0
    ) -> UOp:
        """A new BUFFER over `size` elements, from byte `start` on of what the device finds at an
        address; `owner` is kept alive.

        A dtype of images is a layout of memory, which devices without images do not have. Raises
        UnsupportedError on devices without the capability `external_pointer`.
        """
        if not isinstance(dtype, ImageDType):
            node = fresh_buffer(size, dtype, device)
            buffers[node] = Buffer.external(device, pointer, size, dtype, owner, start=start)
            return node
        node = fresh_buffer(dtype, dtype.base, device)
        image = dtype if is_image(dtype, device) else None
        buffers[node] = Buffer.external(device, pointer, size, dtype.base, owner, image)
        return node

    def version(self, buffer: UOp) -> UOp:
        """A new BUFFER over the memory of another one."""
        found = made_anew(buffer)
        buffers[found] = buffer_of(buffer)
        return found

    def exchange_kind(self, device: DeviceLike) -> tuple[int, int] | None:
        """The DLDevice of a device, as (type, number); None if it does not support DLPack."""
        if not isinstance(device, str):
            return None
        kinds = Device.backend(device).dlpack_kinds
        return exchanged(kinds[0], device) if kinds else None

    def takes(self, device: DeviceLike, kind: int, number: int) -> bool:
        """True if a device works on memory of a DLDevice."""
        return (
            isinstance(device, str)
            and kind in Device.backend(device).dlpack_kinds
            and exchanged(kind, device) == (kind, number)
        )

    def device_for(self, kind: int, number: int) -> str | None:
        """A device that uses memory of a DLDevice, the default one if it does; else None."""
        for name in self._places():
            if kind == HOST_DEVICE_TYPE:
                number, device = 0, name
            else:
                device = Device.canonicalize(f"{device_and_index(name)[0]}:{number}")
            if self.takes(device, kind, number):
                return device
        return None

    def exchange(self, device: DeviceLike) -> SupportsExchange | None:
        """Ordered exchange of device memory with streams; None without capability `exchange`."""
        if not isinstance(device, str) or "exchange" not in Device[device].capabilities:
            return None
        return Device[device].runtime  # type: ignore[return-value]

    def lend(self, buffer: UOp) -> tuple[HostArray, int]:
        """A realized BUFFER or BUFFER_VIEW as a flat array that keeps it and lies where others find
        it, which the host may not read; and the pointer to its allocation.
        """
        return memory_to_read(buffer).lend()

    def _places(self) -> Iterator[str]:
        """The default device, then the others, which are searched only if it does not fit."""
        yield Device.DEFAULT
        yield from Device.get_available_devices()

    def kernelize(self, roots: list[UOp], policy: RetentionPolicy) -> dict[UOp, UOp]:
        """Cut the graph into the kernels that would run; the nodes that `policy` replaces by them.

        Raises ShapeError for symbolic shapes: the kernels would not know their numbers.
        """
        if sizes := sizes_below(roots):
            raise ShapeError(
                f"kernelize: the graph depends on {sizes[0]!r}, which a launch is given; realize() "
                "it instead"
            )
        return kernelize(roots, policy)

    def schedule(self, canonical: CanonicalGraph) -> list[ScheduleItem]:
        """The kernels of the roots in dependency order, not run."""
        bound = BoundSchedule(schedule_for(canonical, replace_none), canonical)
        return [
            replace(item, kernel=kernel)
            for item, kernel in zip(bound.items(), bound.kernels(), strict=True)
        ]

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
        varying = varying_parameters(canonical.memory)
        schedule = schedule_for(canonical, policy, on_disk=True, varying=varying)
        for profiler in profilers:
            profiler.scheduled(schedule, canonical, policy, varying)
        layout = schedule.layout(others, canonical)
        state = state_of_programs()
        runners = None if recordings else layout.runners.get(state)
        bound = BoundSchedule(schedule, canonical, layout, allocates=runners is not None)
        if recordings and (recording := recordings.innermost).holds:
            recording.temporary.update(bound.temporary)
            recording.persistent += bound.persistent
            recording.values |= canonical.bound
        computed = Realized(bound.results(), bound.cached_values())
        values, then = canonical.values, on_result or ignore_result
        if canonical.assigned:
            items = list(announce(bound.items(runners)))  # all compiled before one runs
            if runners is None:
                keep_runners(bound, layout, state, [item.runner for item in items])
            transactions.commit(Transaction(items, values, computed, then, canonical.memory))
        else:
            if runners is None or is_watched():
                keep_runners(bound, layout, state, run_schedule(bound.items(runners), values))
            else:
                for runner, bufs, step in zip(runners, bound.buffers(), bound.steps, strict=True):
                    launch(runner, bufs, values, step.metadata)
            then(computed)
        if recordings and varying is None and not bound.cached:
            recording = recordings.innermost
            shown = {b for node, b in recording.persistent if node() is not None} | recording.held
            gone = [b for _, b in recording.persistent if b not in shown]
            for memory in (*bound.temporary, *map(base_buffer, bound.temporary), *gone):
                memory.deallocate()  # replays have other memory: held, these would add up
        return computed

    def finish(self) -> None:
        """Complete the work that an interrupt left undone, if it wrote to existing memory."""
        transactions.finish_interrupted()

    def describe(self, buffer: UOp) -> str:
        """A few words on a BUFFER, for `repr`."""
        return repr(buffer_of(buffer))


def keep_runners(
    bound: BoundSchedule, layout: Layout, state: tuple[Any, ...], runners: Sequence[Runner]
) -> None:
    """Keep the programs of a schedule for its next use under the same settings."""
    if 0 < len(runners) == len(bound.steps):
        if len(layout.runners) >= MOST_STATES:
            layout.runners.clear()
        layout.runners[state] = tuple(runners)


def forget_runners(device: OpenDevice) -> None:
    """Drop the programs of all schedules, before the device of some is closed."""
    for schedule in list(schedules.values()):
        for layout in list(schedule.layouts.values()):
            layout.runners.clear()


at_close.append(forget_runners)


def ignore_result(computed: Realized) -> None:
    """The callback of a run whose result is not needed."""


def replace_none(roots: list[UOp], memory: Replacements) -> Realized:
    """The retention policy of callers that only look at the launches."""
    return Realized({}, {})


def varying_parameters(memory: Sequence[UOp]) -> frozenset[int] | None:
    """Numbers of the memory whose content differs between replays, in a capture that hoists."""
    if not recordings or (inputs := recordings.innermost.varying) is None:
        return None
    known = VaryingMemory(recordings.innermost, inputs)
    return frozenset(n for n, node in enumerate(memory) if known.has(buffer_of(node)))


def fresh_buffer(size: int | ImageDType, dtype: DType, device: str) -> UOp:
    """A new BUFFER of a number of elements, or in an image."""
    return UOp(Op.BUFFER, dtype, (UOp(Op.DEVICE, dtypes.void, (), device), unique()), size)


def memory_to_read(buffer: UOp) -> Buffer:
    """The memory of a BUFFER or BUFFER_VIEW that is about to be read. Raises JitError inside a step
    being captured, which must not depend on what it computes; a capture that does not refuse it
    notes what was read.
    """
    found = buffer_of(buffer)
    for recording in recordings.open[-1:]:
        if recording.refuses:
            raise JitError(
                "a value was read back (item, numpy, tolist ...) inside a function being captured "
                "by TinyJit; a replay could not do that. Return the tensor and read it outside."
            )
        recording.read.add(found)
    return found
