"""`HCQGraph`: launches of several queues and devices, built once and submitted again and again.

Floor 1. Imports `protocols`, `dependencies`. Each device has one static queue of programs and one
of copies. Where a launch needs what another queue does, that one signals and this one waits; within
a queue order is enough. A submission changes what differs from the last one: arguments in memory,
addresses of copies and the timelines' values in the commands.

A queue begins when all before is done on every device whose memory it touches, and each device's
timeline moves on when all queues that touch its memory are through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tinycore.device.hcq.dependencies import Access, dependencies, pattern, waits
from tinycore.device.hcq.memory import HCQBuffer
from tinycore.device.hcq.program import HCQArgsState, HCQProgram
from tinycore.device.hcq.queue import HWQueue
from tinycore.device.hcq.signal import HCQSignal, Moment
from tinycore.device.hcq.transfer import HCQTransfer
from tinycore.device.hcq.words import Symbol, Word
from tinycore.device.protocols import Launch
from tinycore.errors import UnsupportedError

if TYPE_CHECKING:
    from tinycore.device.hcq.compiled import HCQCompiled

__all__ = ["HCQGraph"]

_OUTSIDE: Final = "memory that somebody else owns"


class Node:
    """One launch of a graph, with what it works on at present."""

    __slots__ = ("arguments", "buffers", "program", "symbols", "values")

    def __init__(self, launch: Launch) -> None:
        program, buffers, values = launch
        if not isinstance(program, HCQProgram | HCQTransfer):
            raise UnsupportedError(f"a graph of queues cannot hold {program!r}: run it by itself")
        self.program = program
        self.buffers: list[HCQBuffer] = list(buffers)
        self.values = list(values)
        self.arguments: HCQArgsState | None = None
        self.symbols = tuple(Symbol(f"address of slot {n}") for n in range(len(self.buffers)))

    @property
    def lane(self) -> LaneKey:
        """Device that executes it: a program's own, a copy's source."""
        if isinstance(self.program, HCQTransfer):
            source = self.program.source
            return source, source.has_copy_queue
        return self.program.device, False

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
        """The memory it touches."""
        program = self.program
        written = program.WRITTEN if isinstance(program, HCQTransfer) else program.info.written
        found = []
        for slot, buffer in enumerate(self.buffers):
            root = buffer.root
            outside = root.external
            start = buffer.address if outside else buffer.address - root.address
            # A device whose backend does not say what it writes may write everything.
            writes = not written or slot in written
            found.append(Access(_OUTSIDE if outside else id(root), start, buffer.size, writes))
        return found


LaneKey: TypeAlias = "tuple[HCQCompiled, bool]"
"""A device, and whether it is its queue of copies."""


class Lane(NamedTuple):
    """A static queue with the signal that tells how far it is, and the devices it touches."""

    queue: HWQueue
    signal: HCQSignal
    devices: set[HCQCompiled]


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
        self._memory: list[HCQBuffer] = []
        self._last: list[Moment] = []
        self._changes: list[Callable[[], None]] = []
        self._moved = False
        self._timed = (device.new_signal(), device.new_signal())
        self._place_arguments()
        self._copies = [node for node in self._nodes if node.arguments is None]
        programs = (node.program for node in self._nodes)
        self._programs = {p for p in programs if isinstance(p, HCQProgram)}
        self._names = {device: self._names_on(device) for device in self.devices}
        self._accesses = [node.accesses for node in self._nodes]
        self._before = dependencies(self._accesses)
        self._pattern = pattern(self._accesses)
        self._lanes = self._build()

    def __del__(self) -> None:
        if last := getattr(self, "_last", ()):  # queues may still read what this holds
            self._device.keep((self._lanes, self._nodes), last)
        for buffer in getattr(self, "_memory", ()):
            moments = [moment for moment in last if moment.device is buffer.owner]
            buffer.owner.discard(buffer, moments[0] if moments else None)

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
        self._moved = True
        arguments = node.arguments
        if arguments is not None:
            self._changes.append(lambda: arguments.set_buffer(slot, handle))

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From the next submission on, launch number `launch` uses this value of its variable."""
        node = self._nodes[launch]
        node.values[position] = value
        arguments = node.arguments
        if arguments is not None:
            self._changes.append(lambda: arguments.set_value(position, value))

    # --- submission

    def __call__(self, *, wait: bool = False) -> float | None:
        """Submit all launches. With `wait`, wait for the end and return the seconds they took.

        Raises DeviceError when a device is lost.
        """
        began = perf_counter()
        with ExitStack() as stack:
            for device in self.devices:
                stack.enter_context(device.lock)
            for moment in self._last:
                moment.device.wait_for(moment)
            for device in self.devices:
                device.ready()
            self._apply_changes()
            self._submit()
            last = self._last
        if not wait:
            return None
        for moment in last:
            moment.device.wait_for(moment)
        begin, end = self._timed
        return end.seconds - begin.seconds if len(self.devices) == 1 else perf_counter() - began

    def _submit(self) -> None:
        known: dict[Symbol, int] = {}
        for device in self.devices:
            known.update(device.known)
            known[device.timeline_address] = device.timeline_signal.address
            known[device.timeline_number] = device.timeline_value
        for node in self._copies:
            for symbol, buffer in zip(node.symbols, node.buffers, strict=True):
                known[symbol] = buffer.address
        self._last = last = [device.upcoming() for device in self.devices]
        try:
            for device in self.devices:
                device.note(self._names[device])
                device.next_timeline()
            for _, signal, _ in self._lanes.values():
                signal.value = 0
            for queue, _, _ in self._lanes.values():
                queue.submit(known)
        except Exception as error:  # some queues wait for what was not submitted
            for device in self.devices:
                device.fail(f"the submission of a graph failed: {error}")
            raise
        by_device = dict(zip(self.devices, last, strict=True))
        for (device, _), lane in self._lanes.items():
            for other in lane.devices - {device}:
                other.watched_by(device, by_device[device])
                device.watched_by(other, by_device[other])
        for program in self._programs:
            program.last_launch = by_device[program.device]

    def _names_on(self, device: HCQCompiled) -> tuple[str, ...]:
        """The distinct names of the launches on a device."""
        nodes = [node for node in self._nodes if node.lane[0] is device]
        return tuple(dict.fromkeys(node.name for node in nodes))

    def _apply_changes(self) -> None:
        """Write what changed; build anew when other memory overlaps now than before."""
        for change in self._changes:
            change()
        self._changes.clear()
        if not self._moved:
            return
        self._moved = False
        for node in self._copies:
            node.lane[0].reach(node.buffers[0])
        if len(self._lanes) > 1:
            self._accesses = [node.accesses for node in self._nodes]
            found = pattern(self._accesses)
            if found != self._pattern:
                self._pattern = found
                self._order_anew(dependencies(self._accesses))

    def _order_anew(self, before: Sequence[frozenset[int]]) -> None:
        if any(new - old for new, old in zip(before, self._before, strict=True)):
            self._before = [a | b for a, b in zip(before, self._before, strict=True)]
            self._lanes = self._build()

    # --- building

    def _place_arguments(self) -> None:
        """Arguments of all programs of one device, in one piece of memory of the graph's own."""
        for device in self.devices:
            nodes = [n for n in self._nodes if getattr(n.program, "device", None) is device]
            programs = [(n, n.program) for n in nodes if isinstance(n.program, HCQProgram)]
            if not programs:
                continue
            starts, size = [], 0
            for _, program in programs:
                size += -size % program.ARGUMENT_ALIGNMENT
                starts.append(size)
                size += program.argument_bytes
            most = max(program.ARGUMENT_ALIGNMENT for _, program in programs)
            memory = device.allocator.alloc_visible(size + most)
            self._memory.append(memory)
            first = -memory.address % most
            for (node, program), start in zip(programs, starts, strict=True):
                place = memory.offset(first + start, program.argument_bytes)
                node.arguments = program.arguments(place, node.buffers, node.values)

    def _build(self) -> dict[LaneKey, Lane]:
        """The static queues, with their waits, bound where hardware can."""
        lanes = self._empty_lanes()
        keys = [node.lane for node in self._nodes]
        waiting = waits(keys, self._before)
        awaited = {launch for needed in waiting for launch in needed.values()}
        last = {key: number for number, key in enumerate(keys)}
        awaited |= set(last.values())
        self._begin(lanes)
        for number, (node, key) in enumerate(zip(self._nodes, keys, strict=True)):
            queue = lanes[key].queue
            for other, launch in waiting[number].items():
                queue.wait(lanes[other].signal, launch + 1)
            self._encode(queue.memory_barrier(), node)
            if number in awaited and len(lanes) > 1:
                queue.signal(lanes[key].signal, number + 1)
        self._end(lanes, last)
        for lane in lanes.values():
            lane.queue.bind()
        return lanes

    def _empty_lanes(self) -> dict[LaneKey, Lane]:
        touched: dict[LaneKey, set[HCQCompiled]] = {
            (device, False): {device} for device in self.devices
        }
        for node in self._nodes:
            touched.setdefault(node.lane, {node.lane[0]}).update(node.devices)
        return {
            (device, copies): Lane(
                device.copy_queue() if copies else device.compute_queue(),
                device.new_signal(),
                devices,
            )
            for (device, copies), devices in touched.items()
        }

    def _begin(self, lanes: dict[LaneKey, Lane]) -> None:
        for queue, _, devices in lanes.values():
            for device in sorted(devices, key=lambda one: one.number):
                queue.wait(device.symbolic_timeline, device.timeline_number - 1)
        lanes[self.devices[0], False].queue.timestamp(self._timed[0])

    def _encode(self, queue: HWQueue, node: Node) -> None:
        program = node.program
        if isinstance(program, HCQTransfer):
            program.source.reach(node.buffers[0])
            dst, src = node.symbols
            queue.copy(Word(dst), Word(src), program.size)
        else:
            assert node.arguments is not None
            queue.exec(program, node.arguments, program.info.grid, program.info.block)

    def _end(self, lanes: dict[LaneKey, Lane], last: dict[LaneKey, int]) -> None:
        """Each device's timeline moves on when all that touches the device is through."""
        for device in self.devices:
            queue = lanes[device, False].queue
            for key, lane in lanes.items():
                if key != (device, False) and device in lane.devices and key in last:
                    queue.wait(lane.signal, last[key] + 1)
            if device is self.devices[0]:
                queue.timestamp(self._timed[1])
            queue.signal(device.symbolic_timeline, device.timeline_number + 0)
