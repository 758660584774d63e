"""`HCQGraph`: launches over several queues and devices, encoded once and resubmitted.

Each device has a static queue of programs and one for each engine that copies. Launches of a queue
may overlap if their memory does not: a launch that touches what an earlier one wrote comes after a
barrier, or if that was on another queue, after a wait for a signal. A submission changes only what
differs from the last one: arguments in memory, addresses of copies, and the timeline values in the
commands.

A queue begins when all earlier work is done on every device whose memory it touches, and each
device's timeline advances when all queues that touch its memory are done. There are two instances
of commands and arguments, so that the host prepares a run while the previous one executes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, overload

from tiny_hcq.allocator import HCQTransfer
from tiny_hcq.program import HCQArgsState, HCQProgram
from tiny_hcq.queue import Access, HWQueue, dependencies, pattern, waits
from tiny_hcq.words import HCQBuffer, HCQSignal, Moment, Number, Symbol, Word
from tinycore.errors import OutOfMemory, UnsupportedError
from tinycore.plugin import Launch
from tinycore.trace import Trace

if TYPE_CHECKING:
    from tiny_hcq.compiled import HCQCompiled

trace: Final = Trace("device")

_PASSED: Final = attrgetter("passed")
KERNELS: Final = 0
_SCRATCH: Final = "memory that threads spill to"
_OUTSIDE: Final = "memory that somebody else owns"


class Node:
    """One launch of a graph, with its present buffers and values."""

    __slots__ = ("axes", "buffers", "groups", "lane", "program", "symbols", "values")

    def __init__(self, launch: Launch) -> None:
        program, buffers, values = launch
        if not isinstance(program, HCQProgram | HCQTransfer):
            raise UnsupportedError(f"a graph of queues cannot hold {program!r}: run it by itself")
        self.program = program
        self.buffers: list[HCQBuffer] = list(buffers)
        self.values = list(values)
        self.lane = self._lane()
        """Device that executes it, and the number of its queue."""
        self.symbols = tuple(Symbol(f"address of slot {n}") for n in range(len(self.buffers)))
        self.groups = self.counted_groups()
        varying = program.info.grid_extents if isinstance(program, HCQProgram) else ()
        self.axes = {n: Symbol(f"groups, axis {n}") for n, extent in enumerate(varying) if extent}
        """Symbols of the sizes of those axes of the grid that depend on values."""

    def counted_groups(self) -> tuple[int, int, int]:
        """The groups that the values ask for; a copy has one."""
        program = self.program
        return program.info.groups(self.values) if isinstance(program, HCQProgram) else (1, 1, 1)

    @property
    def grid(self) -> tuple[Number, ...]:
        """The groups of a launch in commands that are submitted for any values."""
        return tuple(
            Word(self.axes[n]) if n in self.axes else size for n, size in enumerate(self.groups)
        )

    def _lane(self) -> LaneKey:
        """The queue of a program's device; for a copy, a copy engine of its source."""
        if not isinstance(self.program, HCQTransfer):
            return self.program.device, KERNELS
        source, (dst, src) = self.program.source, self.buffers
        return source, 1 + source.copy_engine(dst, src) if source.has_copy_queue else KERNELS

    @property
    def name(self) -> str:
        """Name for people: the kernel's; "" for a copy."""
        return self.program.info.name if isinstance(self.program, HCQProgram) else ""

    @property
    def devices(self) -> set[HCQCompiled]:
        """Devices it runs on, or whose memory it touches."""
        return {self.lane[0], *(buffer.owner for buffer in self.buffers)}

    @property
    def accesses(self) -> list[Access]:
        """The memory it accesses, by slots, and its scratch."""
        found = [self.access(slot) for slot in range(len(self.buffers))]
        if isinstance(self.program, HCQProgram) and self.program.scratch_bytes:
            found.append(Access((_SCRATCH, self.program.device), 0, 1, True))
        return found

    def access(self, slot: int) -> Access:
        """The memory that it touches by a slot."""
        program, buffer = self.program, self.buffers[slot]
        written = program.WRITTEN if isinstance(program, HCQTransfer) else program.info.written
        root = buffer.root
        outside = root.external
        start = buffer.address if outside else buffer.address - root.address
        # A device whose backend does not say what it writes may write everything.
        writes = not written or slot in written
        return Access(_OUTSIDE if outside else id(root), start, buffer.size, writes)


class LaunchTime(NamedTuple):
    """The time of a launch of a graph, in seconds of the host's `time.perf_counter`."""

    name: str
    """The kernel's; "copy" for a copy."""
    device: str
    begin: float
    end: float


LaneKey: TypeAlias = "tuple[HCQCompiled, int]"
"""A device, and the number of a queue: KERNELS, or 1 and more for engines that copy."""


class Lane(NamedTuple):
    """A static queue with a signal of its progress, and the devices it touches."""

    queue: HWQueue
    signal: HCQSignal
    devices: set[HCQCompiled]


class Instance:
    """Commands of a run, with memory for arguments, and the patches for the next run."""

    def __init__(self, nodes: Sequence[Node], devices: Sequence[HCQCompiled]) -> None:
        self.arguments: list[HCQArgsState | None] = [None] * len(nodes)
        self.memory: list[HCQBuffer] = []
        self.lanes: dict[LaneKey, Lane] = {}
        self.pending: dict[HCQCompiled, Pending] = {}
        """Names for the text of an error."""
        self.version = 0
        """Version of the order of launches that its commands were built for."""
        self.known: dict[Symbol, int] = {}
        """Values of symbols in the last submission."""
        self.last: list[Moment] = []
        """When its last run is done, on each device."""
        self.changed_buffers: set[tuple[int, int]] = set()
        """Launches and slots whose arguments are not written yet."""
        self.changed_values: set[tuple[int, int]] = set()
        """Launches and positions of variables whose values are not written yet."""
        self.times: list[tuple[HCQSignal, HCQSignal]] = []
        """For each launch signals with the times of its beginning and end, in a profile."""
        for device in devices:
            self._place_arguments(nodes, device)

    def _place_arguments(self, nodes: Sequence[Node], device: HCQCompiled) -> None:
        """Allocate the arguments of all programs of one device in one block of the graph."""
        programs = [
            (number, node, node.program)
            for number, node in enumerate(nodes)
            if isinstance(node.program, HCQProgram) and node.program.device is device
        ]
        if not programs:
            return
        starts, size = [], 0
        for _, _, program in programs:
            size += -size % program.ARGUMENT_ALIGNMENT
            starts.append(size)
            size += program.argument_bytes
        most = max(program.ARGUMENT_ALIGNMENT for _, _, program in programs)
        memory = device.allocator.alloc_visible(size + most)
        self.memory.append(memory)
        first = -memory.address % most
        for (number, node, program), start in zip(programs, starts, strict=True):
            place = memory.offset(first + start, program.argument_bytes)
            self.arguments[number] = program.arguments(place, node.buffers, node.values)

    @property
    def is_under_way(self) -> bool:
        """True if queues may still read its memory."""
        return not all(map(_PASSED, self.last))

    def apply(self, nodes: Sequence[Node]) -> None:
        """Write the arguments that changed since its last run."""
        for number, slot in self.changed_buffers:
            if (arguments := self.arguments[number]) is not None:
                arguments.set_buffer(slot, nodes[number].buffers[slot])
                arguments.flush()
        self.changed_buffers.clear()
        for number, position in self.changed_values:
            if (arguments := self.arguments[number]) is not None:
                arguments.set_value(position, nodes[number].values[position])
                arguments.flush()
        self.changed_values.clear()


class Pending(Sequence[str]):
    """Names of a run's launches on a device that are not known to be done, evaluated when read.

    A launch is known to be done once another queue has waited for it.
    """

    def __init__(self, instance: Instance, nodes: Sequence[Node], device: HCQCompiled) -> None:
        self._instance = weakref.ref(instance)  # what is remembered of runs keeps no graph
        self._launches = [
            (number, node.lane, node.name)
            for number, node in enumerate(nodes)
            if node.lane[0] is device
        ]

    def _names(self) -> tuple[str, ...]:
        instance = self._instance()
        lanes = {} if instance is None else instance.lanes
        done = {key: lane.signal.value for key, lane in lanes.items()}
        names = (name for number, key, name in self._launches if number >= done.get(key, 0))
        return tuple(dict.fromkeys(names))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names()[index]

    def __len__(self) -> int:
        return len(self._names())


class HCQGraph:
    """Launches held ready. Made by `HCQCompiled.graph`. Not for two threads at once."""

    def __init__(self, device: HCQCompiled, launches: Sequence[Launch]) -> None:
        self._device = device
        self._nodes = [Node(launch) for launch in launches]
        devices = set().union(*(node.devices for node in self._nodes)) or {device}
        self.devices: tuple[HCQCompiled, ...] = tuple(sorted(devices, key=lambda one: one.number))
        if strange := [d.name for d in self.devices if d.peer_group != device.peer_group]:
            raise UnsupportedError(
                f"{device.name} cannot wait for {', '.join(strange)}, of another group of devices"
            )
        for other in self.devices:
            for one in self.devices:
                one.meet(other)
        self._timed = (device.new_signal(), device.new_signal())
        self._copies = [node for node in self._nodes if isinstance(node.program, HCQTransfer)]
        self._resized = [node for node in self._nodes if node.axes]
        programs = (node.program for node in self._nodes)
        self._programs = {p for p in programs if isinstance(p, HCQProgram)}
        self._moved: set[tuple[int, int]] = set()
        self._accesses = [node.accesses for node in self._nodes]
        self._uses = Counter(access.root for accesses in self._accesses for access in accesses)
        self._before = dependencies(self._accesses)
        self._pattern = pattern(self._accesses)
        self._version = 0
        self._instances: list[Instance] = []
        self._add_instance()

    def __del__(self) -> None:
        for instance in getattr(self, "_instances", ()):
            if last := instance.last:  # queues may still read what this holds
                self._device.keep((instance, self._nodes), last)
            by_device = {moment.device: moment for moment in last}
            for buffer in instance.memory:
                buffer.owner.discard(buffer, by_device.get(buffer.owner))
            for program in self._programs if last else ():  # which this has kept until now
                program.launched_until(by_device[program.device])

    # --- what changes

    def set_buffer(self, launch: int, slot: int, handle: HCQBuffer) -> None:
        """From the next submission on, launch number `launch` uses `handle` in this slot."""
        node = self._nodes[launch]
        if handle.owner is not node.buffers[slot].owner:
            raise UnsupportedError(
                f"slot {slot} of launch {launch} is memory of {node.buffers[slot].owner.name}, "
                f"not of {handle.owner.name}: capture the step anew for other devices"
            )
        node.buffers[slot] = handle
        self._moved.add((launch, slot))
        for instance in self._instances:
            instance.changed_buffers.add((launch, slot))

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From the next submission on, launch number `launch` uses this value of its variable."""
        node = self._nodes[launch]
        node.values[position] = value
        for instance in self._instances:
            instance.changed_values.add((launch, position))
        if node.axes:
            self._resize(node)

    def _resize(self, node: Node) -> None:
        """Launch as many groups as the values say, by other commands where words cannot."""
        before, node.groups = node.groups, node.counted_groups()
        has_words = self._instances[0].lanes[node.lane].queue.GRID_WORDS
        if before != node.groups and not has_words:
            self._version += 1

    # --- submission

    def __call__(self, *, wait: bool = False) -> float | None:
        """Submit all launches. With `wait`, wait for the end and return the seconds they took.

        Raises DeviceError when a device is lost.
        """
        began = perf_counter() if wait else 0.0
        if len(self.devices) == 1:
            with self.devices[0].lock:
                last = self._run()
        else:
            with ExitStack() as stack:
                for device in self.devices:
                    stack.enter_context(device.lock)
                last = self._run()
        if not wait:
            return None
        for moment in last:
            moment.device.wait_for(moment)
        begin, end = self._timed
        return end.seconds - begin.seconds if len(self.devices) == 1 else perf_counter() - began

    def profile(self) -> list[LaunchTime]:
        """Submit all launches, wait, and return when each of them ran.

        Timestamps stand around each, so launches of one queue do not overlap. Raises DeviceError
        when a device is lost.
        """
        with ExitStack() as stack:
            for device in self.devices:
                stack.enter_context(device.lock)
                device.ready()
            self._follow_moves()
            instance = Instance(self._nodes, self.devices)
            instance.times = [
                (node.lane[0].new_signal(), node.lane[0].new_signal()) for node in self._nodes
            ]
            self._build(instance)
            self._submit(instance)
        for moment in instance.last:
            moment.device.wait_for(moment)
        for buffer in instance.memory:
            buffer.owner.discard(buffer, None)
        return self._times_of(instance)

    def _times_of(self, instance: Instance) -> list[LaunchTime]:
        """The times of a run that is done, by the host's clock."""
        starts = {}
        for device in self.devices:
            ticks, nanoseconds = device.clock()
            starts[device] = nanoseconds / 1e9 - ticks / device.ticks_per_second
        return [
            LaunchTime(
                node.name or "copy",
                node.lane[0].name,
                starts[node.lane[0]] + begin.seconds,
                starts[node.lane[0]] + end.seconds,
            )
            for node, (begin, end) in zip(self._nodes, instance.times, strict=True)
        ]

    def _run(self) -> list[Moment]:
        """Submit all launches, with the locks held; when they are done on each device."""
        instance = self._take_instance()
        for device in self.devices:
            device.ready()
        if self._moved:
            self._follow_moves()
        if instance.changed_buffers or instance.changed_values:
            instance.apply(self._nodes)
        if instance.version != self._version:
            self._build(instance)
        self._submit(instance)
        return instance.last

    def _take_instance(self) -> Instance:
        """An instance whose last run is done; if there is none, wait for the older one."""
        instances = self._instances
        instance = instances[0]
        if instance.is_under_way:
            if len(instances) == 1:
                try:
                    return self._add_instance()
                except OutOfMemory:
                    trace(f"{self._device.name:<8} no memory for two runs of a graph at once")
            for moment in instance.last:
                moment.device.wait_for(moment)
        instances.append(instances.pop(0))
        return instance

    def _add_instance(self) -> Instance:
        instance = Instance(self._nodes, self.devices)
        self._instances.append(instance)
        self._build(instance)
        return instance

    def _submit(self, instance: Instance) -> None:
        known = instance.known
        for device in self.devices:
            known.update(device.known)
            known[device.timeline_address] = device.timeline_signal.address
            known[device.timeline_number] = device.timeline_value
        for node in self._copies:
            for symbol, buffer in zip(node.symbols, node.buffers, strict=True):
                known[symbol] = buffer.address
        for node in self._resized:
            for axis, symbol in node.axes.items():
                known[symbol] = node.groups[axis]
        instance.last = last = [device.upcoming() for device in self.devices]
        try:
            for device in self.devices:
                device.note(instance.pending[device])
                device.follows_compute = False
                device.timeline_value += 1
            if len(instance.lanes) > 1:
                for lane in instance.lanes.values():
                    lane.signal.value = 0
            for lane in instance.lanes.values():
                lane.queue.submit(known)
        except Exception as error:  # some queues wait for what was not submitted
            for device in self.devices:
                device.fail(f"the submission of a graph failed: {error}")
            raise
        if len(last) > 1:
            self._watch(instance)

    def _watch(self, instance: Instance) -> None:
        """Record which devices wait for each other."""
        by_device = dict(zip(self.devices, instance.last, strict=True))
        for (device, _), lane in instance.lanes.items():
            for other in lane.devices - {device}:
                other.watched_by(device, by_device[device])
                device.watched_by(other, by_device[other])

    # --- order

    def _follow_moves(self) -> None:
        """Recompute dependences where other memory overlaps now than before."""
        for node in self._copies:
            node.lane[0].reach(node.buffers[0])
        overlap = self._overlap_as_before()
        self._moved.clear()
        if overlap or len(self._nodes) == 1:
            return
        found = pattern(self._accesses)
        if found == self._pattern:
            return
        self._pattern = found
        before = dependencies(self._accesses)
        if any(new - old for new, old in zip(before, self._before, strict=True)):
            self._before = [a | b for a, b in zip(before, self._before, strict=True)]
            self._version += 1

    def _overlap_as_before(self) -> bool:
        """Record the accesses that moved; True if whole allocations only took the place of others,
        as in a replay with other inputs.
        """
        accesses, uses = self._accesses, self._uses
        renamed: dict[Hashable, Hashable] = {}
        counts: Counter[Hashable] = Counter()
        moves: list[Access] = []
        as_before = True
        for number, slot in self._moved:
            old, new = accesses[number][slot], self._nodes[number].access(slot)
            if old == new:
                continue
            accesses[number][slot] = new
            moves.append(new)
            counts[old.root] += 1
            same_span = (old.start, old.size) == (new.start, new.size)
            if not same_span or renamed.setdefault(old.root, new.root) != new.root:
                as_before = False
        as_before = (
            as_before
            and all(uses[root] == count for root, count in counts.items())
            and len(set(renamed.values())) == len(renamed)
            and all(uses[root] == 0 or root in renamed for root in renamed.values())
        )
        uses.subtract(counts)
        uses.update(new.root for new in moves)
        return as_before

    # --- building

    def _build(self, instance: Instance) -> None:
        """The static queues, with their waits, bound where hardware can."""
        lanes = self._empty_lanes()
        keys = [node.lane for node in self._nodes]
        waiting = waits(keys, self._before)
        awaited = {launch for needed in waiting for launch in needed.values()}
        last = {key: number for number, key in enumerate(keys)}
        awaited |= set(last.values())
        ended = dict.fromkeys(lanes, -1)
        """Launches of each lane before this number have ended, and their writes are seen."""
        self._begin(lanes)
        for number, (node, key) in enumerate(zip(self._nodes, keys, strict=True)):
            queue = lanes[key].queue
            for other, launch in waiting[number].items():
                queue.wait(lanes[other].signal, launch + 1)
            here = [launch for launch in self._before[number] if keys[launch] == key]
            if ended[key] < 0 or waiting[number] or max(here, default=-1) >= ended[key]:
                queue.memory_barrier()
                ended[key] = number
            if instance.times:
                queue.timestamp(instance.times[number][0])
            self._encode(queue, node, instance.arguments[number])
            if instance.times:
                queue.timestamp(instance.times[number][1])
            if number in awaited and len(lanes) > 1:
                queue.signal(lanes[key].signal, number + 1)
        self._end(lanes, last)
        for lane in lanes.values():
            lane.queue.bind()
        instance.lanes, instance.version = lanes, self._version
        instance.pending = {
            device: Pending(instance, self._nodes, device) for device in self.devices
        }

    def _empty_lanes(self) -> dict[LaneKey, Lane]:
        touched: dict[LaneKey, set[HCQCompiled]] = {
            (device, KERNELS): {device} for device in self.devices
        }
        for node in self._nodes:
            touched.setdefault(node.lane, {node.lane[0]}).update(node.devices)
        return {
            (device, number): Lane(
                device.copy_queues[number - 1]() if number else device.compute_queue(),
                device.new_signal(),
                devices,
            )
            for (device, number), devices in touched.items()
        }

    def _begin(self, lanes: dict[LaneKey, Lane]) -> None:
        for queue, _, devices in lanes.values():
            for device in sorted(devices, key=lambda one: one.number):
                queue.wait(device.symbolic_timeline, device.timeline_number - 1)
        lanes[self.devices[0], KERNELS].queue.timestamp(self._timed[0])

    def _encode(self, queue: HWQueue, node: Node, arguments: HCQArgsState | None) -> None:
        program = node.program
        if isinstance(program, HCQTransfer):
            program.source.reach(node.buffers[0])
            dst, src = node.symbols
            queue.copy(Word(dst), Word(src), program.size)
        else:
            assert arguments is not None
            grid = node.grid if queue.GRID_WORDS else node.groups
            queue.exec(program, arguments, grid, program.info.block)

    def _end(self, lanes: dict[LaneKey, Lane], last: dict[LaneKey, int]) -> None:
        """Let each device's timeline advance when all queues that touch its memory are done."""
        for device in self.devices:
            queue = lanes[device, KERNELS].queue
            for key, lane in lanes.items():
                if key != (device, KERNELS) and device in lane.devices and key in last:
                    queue.wait(lane.signal, last[key] + 1)
            if device is self.devices[0]:
                queue.timestamp(self._timed[1])
            queue.signal(device.symbolic_timeline, device.timeline_number + 0)
