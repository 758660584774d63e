"""Command graphs: an indirect command buffer, or, where there is none, one encoder for all.

A graph of several GPUs has such a part for each of them, between the copies.

Commands of an indirect command buffer are on the GPU's side already: a run costs the host one
command. Each has a barrier, so that it sees what those before it wrote. Values of variables lie in
a buffer, as such commands take no bytes. What changes from run to run is put in once the run before
has ended, as the GPU reads commands while it runs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tiny_metal._lib import NIL, Object, Pool, ffi
from tiny_metal.copier import LocalCopier, PeerCopier
from tiny_metal.memory import MetalMemory
from tiny_metal.program import MetalProgram
from tinycore.errors import UnsupportedError
from tinycore.plugin import Launch

if TYPE_CHECKING:
    from tiny_metal.device import MetalDevice

__all__ = ["EncodedGraph", "IndirectGraph", "SpanningGraph", "graph_of"]

_DISPATCHES: Final = 32
"""MTLIndirectCommandTypeConcurrentDispatch."""
_READ_AND_WRITE: Final = 3
_VALUES_ALIGNMENT: Final = 256
"""Alignment of buffers in `constant` memory: AMD's and Intel's GPUs need that much."""
_FARTHEST: Final = 1 << 32
"""Limit of buffer offsets in indirect commands."""
PIPELINES_FIRST: Final = frozenset({"apple7", "apple8"})
"""GPUs that fault on an indirect command unless its pipeline was set on the encoder before."""


class Step:
    """A launch of a graph, as it is now."""

    __slots__ = ("buffers", "program", "values", "values_start")

    def __init__(
        self, program: MetalProgram, buffers: Sequence[MetalMemory], values: Sequence[int]
    ) -> None:
        self.program = program
        self.buffers = list(buffers)
        self.values = list(values)
        self.values_start = 0


def graph_of(
    device: MetalDevice, launches: Sequence[Launch]
) -> EncodedGraph | IndirectGraph | SpanningGraph:
    """A graph of launches and copies. Raises UnsupportedError for those of another backend."""
    for program, _, _ in launches:
        if not isinstance(program, MetalProgram | LocalCopier | PeerCopier):
            raise UnsupportedError(f"a graph holds programs of GPUs of the Mac, not {program!r}")
    if all(isinstance(one, MetalProgram) and one.device is device for one, _, _ in launches):
        return graph_of_one(device, launches)
    return SpanningGraph(launches)


def graph_of_one(device: MetalDevice, launches: Sequence[Launch]) -> EncodedGraph | IndirectGraph:
    """A graph of programs of one GPU."""
    steps = [Step(program, buffers, values) for program, buffers, values in launches]  # type: ignore[arg-type]
    if steps and all(step.program.is_indirect for step in steps) and reachable(steps):
        indirect = indirect_commands(device, steps)
        if indirect is not None:
            return IndirectGraph(device, steps, indirect)
    return EncodedGraph(device, steps)


def reachable(steps: Sequence[Step]) -> bool:
    """True if every span's offset is below the limit of indirect commands."""
    return all(memory.start < _FARTHEST for step in steps for memory in step.buffers)


def indirect_commands(device: MetalDevice, steps: Sequence[Step]) -> Object | None:
    """An empty indirect command buffer, to be released; None where the GPU has none."""
    send = device.send
    with Pool(device.metal):
        described = device.metal.new("MTLIndirectCommandBufferDescriptor")
        slots = max(len(step.buffers) + bool(step.values) for step in steps)
        send(described, "setCommandTypes:", _DISPATCHES)
        send(described, "setInheritBuffers:", 0)
        send(described, "setInheritPipelineState:", 0)
        send(described, "setMaxKernelBufferBindCount:", max(slots, 1))
        selector = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
        made = send(device.handle, selector, described, len(steps), 0)
        send(described, "release")
    return None if made == NIL else made


def named(steps: Sequence[Step]) -> str:
    """The kernels of a graph."""
    names = dict.fromkeys(step.program.info.name for step in steps)
    return f"a graph of {', '.join(names)}"


class EncodedGraph:
    """Launches that are put into one encoder at each run."""

    def __init__(self, device: MetalDevice, steps: list[Step]) -> None:
        self._device = device
        self._steps = steps
        self._name = named(steps)

    def set_buffer(self, launch: int, slot: int, handle: MetalMemory) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        self._steps[launch].buffers[slot] = handle

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        self._steps[launch].values[position] = value

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        device = self._device

        def encode(commands: Object) -> None:
            with device.encoder(commands) as encoder:
                for step in self._steps:
                    step.program.encode(encoder, step.buffers, step.values)

        return device.submit(encode, self._name, wait)


class IndirectGraph:
    """Launches in an indirect command buffer."""

    def __init__(self, device: MetalDevice, steps: list[Step], indirect: Object) -> None:
        self._device = device
        self._steps = steps
        self._name = named(steps)
        self._indirect = indirect
        device.keep(self, indirect)
        self._values = self._values_buffer()
        self._changed: set[tuple[int, int]] = set()
        """Launches and slots with another buffer since the last run."""
        self._changed_values: set[int] = set()
        self._last_run = 0
        self._pipelines = list(dict.fromkeys(step.program for step in steps))
        self._encode()
        self._resources = self._resident()

    def _values_buffer(self) -> MetalMemory | None:
        """Memory for the values of all launches, which say where theirs start; None without any."""
        size = 0
        for step in self._steps:
            step.values_start = size
            size += -(-8 * len(step.values) // _VALUES_ALIGNMENT) * _VALUES_ALIGNMENT
        if not size:
            return None
        made = self._device.allocator.shared(size)
        weakref.finalize(self, self._device.allocator.free, made).atexit = False
        return made

    def _encode(self) -> None:
        """Fill all commands."""
        send = self._device.send
        with Pool(self._device.metal):
            for number, step in enumerate(self._steps):
                command = send(self._indirect, "indirectComputeCommandAtIndex:", number)
                send(command, "setComputePipelineState:", step.program.pipeline)
                for slot, memory in enumerate(step.buffers):
                    place = (memory.buffer, memory.start, slot)
                    send(command, "setKernelBuffer:offset:atIndex:", *place)
                if self._values is not None and step.values:
                    place = (self._values.buffer, step.values_start, len(step.buffers))
                    send(command, "setKernelBuffer:offset:atIndex:", *place)
                    self._write_values(step)
                self._write_sizes(command, step)
                send(command, "setBarrier")

    def _write_sizes(self, command: Object, step: Step) -> None:
        sizes = (step.program.groups(step.values), step.program.threads)
        selector = "concurrentDispatchThreadgroups:threadsPerThreadgroup:"
        self._device.send(command, selector, *sizes)

    def _write_values(self, step: Step) -> None:
        assert self._values is not None
        packed = step.program.layout.pack(*step.values)
        ffi.memmove(self._values.host + step.values_start, packed, len(packed))

    def _resident(self) -> Any:
        """An array of all buffers that commands use, each once: the encoder must be told them."""
        every = [memory.buffer for step in self._steps for memory in step.buffers]
        if self._values is not None:
            every.append(self._values.buffer)
        return ffi.new("id[]", list(dict.fromkeys(every)))

    def set_buffer(self, launch: int, slot: int, handle: MetalMemory) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        if handle.start >= _FARTHEST:
            raise UnsupportedError(
                f"{handle!r} starts where no indirect command can name it: at {_FARTHEST:,} or more"
            )
        before = self._steps[launch].buffers[slot]
        self._steps[launch].buffers[slot] = handle
        if (before.buffer, before.start) != (handle.buffer, handle.start):
            self._changed.add((launch, slot))

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        if self._steps[launch].values[position] != value:
            self._steps[launch].values[position] = value
            self._changed_values.add(launch)

    def _apply_changes(self) -> None:
        """Put in what changed, once no run reads it any more."""
        if not self._changed and not self._changed_values:
            return
        send = self._device.send
        self._device.wait_until_ended(self._last_run)
        with Pool(self._device.metal):
            for launch, slot in self._changed:
                command = send(self._indirect, "indirectComputeCommandAtIndex:", launch)
                memory = self._steps[launch].buffers[slot]
                place = (memory.buffer, memory.start, slot)
                send(command, "setKernelBuffer:offset:atIndex:", *place)
            for launch in self._changed_values:
                step = self._steps[launch]
                self._write_values(step)
                if step.program.info.grid_extents:
                    command = send(self._indirect, "indirectComputeCommandAtIndex:", launch)
                    self._write_sizes(command, step)
        if self._changed:
            self._resources = self._resident()
        self._changed.clear()
        self._changed_values.clear()

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        device, send = self._device, self._device.send
        with device.lock:
            self._apply_changes()

            def encode(commands: Object) -> None:
                used = (self._resources, len(self._resources), _READ_AND_WRITE)
                every = (self._indirect, (0, len(self._steps)))
                with device.encoder(commands) as encoder:
                    send(encoder, "useResources:count:usage:", *used)
                    if device.info.family in PIPELINES_FIRST:
                        self._set_pipelines(encoder)
                    send(encoder, "executeCommandsInBuffer:withRange:", *every)

            seconds = device.submit(encode, self._name, wait, kept=self)
            self._last_run = device.submitted
            return seconds

    def _set_pipelines(self, encoder: Object) -> None:
        """Set each pipeline on the encoder, and launch nothing."""
        nothing = (0, 0, 0)
        for program in self._pipelines:
            self._device.send(encoder, "setComputePipelineState:", program.pipeline)
            sizes = (nothing, nothing)
            selector = "dispatchThreadgroups:threadsPerThreadgroup:"
            self._device.send(encoder, selector, *sizes)


class HeldCopy:
    """A copy of a graph, with its memory as it is now."""

    def __init__(self, launch: Launch) -> None:
        self._copier, buffers, _ = launch
        self._buffers = list(buffers)

    def set_buffer(self, launch: int, slot: int, handle: MetalMemory) -> None:
        """From now on, use `handle` in this slot."""
        self._buffers[slot] = handle

    def set_value(self, launch: int, position: int, value: int) -> None:
        """Nothing: a copy has no variables."""

    def __call__(self, *, wait: bool = False) -> float | None:
        """Copy. With `wait`, wait for the end and return the seconds."""
        return self._copier(self._buffers, (), wait=wait)


class SpanningGraph:
    """Launches of several GPUs, and copies.

    Launches between two copies share no memory where their GPUs differ, so they are held by GPU.
    """

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._parts: list[EncodedGraph | IndirectGraph | HeldCopy] = []
        self._places: dict[int, tuple[EncodedGraph | IndirectGraph | HeldCopy, int]] = {}
        """By the number of a launch: its part, and its number there."""
        between: dict[MetalDevice, list[int]] = {}
        for number, launch in enumerate(launches):
            program = launch[0]
            if isinstance(program, MetalProgram):
                between.setdefault(program.device, []).append(number)
                continue
            self._hold(launches, between)
            copy = HeldCopy(launch)
            self._parts.append(copy)
            self._places[number] = (copy, 0)
        self._hold(launches, between)

    def _hold(self, launches: Sequence[Launch], between: dict[MetalDevice, list[int]]) -> None:
        """Make parts of the launches since the last copy."""
        for device, numbers in between.items():
            made = graph_of_one(device, [launches[number] for number in numbers])
            self._parts.append(made)
            self._places |= {number: (made, place) for place, number in enumerate(numbers)}
        between.clear()

    def set_buffer(self, launch: int, slot: int, handle: MetalMemory) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        part, place = self._places[launch]
        part.set_buffer(place, slot, handle)

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        part, place = self._places[launch]
        part.set_value(place, position, value)

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        seconds = [part(wait=wait) for part in self._parts]
        return sum(one or 0.0 for one in seconds) if wait else None
