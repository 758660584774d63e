"""A device of queues for tests: memory of its own, two queues, each executed by a thread.

Commands are words that the threads decode, as hardware does: 32 bits wide for programs, 64 for
copies. The host sees only memory that was asked for as visible; a device sees its own, and what
was mapped for it; anything else is a fault. `chance` delays commands at random.
"""

from __future__ import annotations

import bisect
import functools
import queue
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal, Self

import numpy

from tiny_hcq import (
    HCQAllocator,
    HCQArgsState,
    HCQBuffer,
    HCQCompiled,
    HCQProgram,
    HWQueue,
    Number,
    Place,
    SignalPlace,
    halves,
)
from tinycore.builtin.interpreter import PythonProgram, toolchain
from tinycore.dtype import dtypes
from tinycore.errors import OutOfMemory, UnsupportedError
from tinycore.plugin import Backend, ProgramInfo

WAIT, SIGNAL, TIMESTAMP, BARRIER, EXEC, COPY, STOP = range(1, 8)
LENGTHS: Final = {"I": {WAIT: 5, SIGNAL: 5, TIMESTAMP: 3, BARRIER: 1, EXEC: 6, COPY: 7}} | {
    "Q": {WAIT: 3, SIGNAL: 3, TIMESTAMP: 2, BARRIER: 1, COPY: 4}
}
PAGE: Final = 4096
THREADS: Final = 32
"""Threads that run at once, each with scratch of its own."""
Function = Callable[[list[memoryview], tuple[int, ...]], None]


class Window:
    """Memory that the host reaches by calls, which are counted."""

    def __init__(self, memory: memoryview, device: QueuedDevice) -> None:
        self.memory = memory
        self.device = device

    def __getitem__(self, part: slice) -> bytes:
        assert None not in (part.start, part.stop)
        self.device.calls += 1
        return bytes(self.memory[part])

    def __setitem__(self, part: slice, content: bytes | memoryview) -> None:
        assert part.stop - part.start == len(content)
        self.device.calls += 1
        self.memory[part] = content

    def word(self, offset: int) -> int:
        self.device.calls += 1
        return self.memory[offset : offset + 8].cast("Q")[0]

    def set_word(self, offset: int, value: int) -> None:
        self.device.calls += 1
        self.memory[offset : offset + 8].cast("Q")[0] = value


class Bus:
    """Everything that has an address, of all devices of a group."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: list[HCQBuffer] = []
        self.next = 0x7F0000000000
        self.lock = threading.Lock()

    def place(
        self,
        size: int,
        device: QueuedDevice,
        place: Place = Place.LOCAL,
        content: memoryview | None = None,
    ) -> HCQBuffer:
        """New memory, filled with something that is neither zero nor right, or memory of the host's
        own.
        """
        memory = memoryview(bytearray(b"\xa5") * size) if content is None else content
        with self.lock:
            address, self.next = self.next, self.next + -(-size // PAGE) * PAGE + PAGE
            seen = place is not Place.LOCAL
            block = HCQBuffer(
                address,
                size,
                device,
                view=memory if seen and not device.windows else None,
                window=Window(memory, device) if seen and device.windows else None,
                readable=place is Place.STAGING,
                meta=memory,
            )
            self.starts.append(address)
            self.blocks.append(block)
        return block

    def remove(self, block: HCQBuffer) -> None:
        """Free it: commands that still touch it fault."""
        with self.lock:
            number = self.starts.index(block.address)
            del self.starts[number], self.blocks[number]

    def resolve(self, address: int, device: QueuedDevice, size: int = 0) -> memoryview:
        """The memory from an address to the end of its allocation, as a device sees it."""
        with self.lock:
            number = bisect.bisect_right(self.starts, address) - 1
            block = self.blocks[number] if number >= 0 else None
        if block is None or address + size > block.address + block.size:
            raise Fault(f"no memory at {address:#x}")
        if block.owner is not device and device not in block.mapped:
            raise Fault(f"{address:#x}, memory of {block.owner.name}, is not mapped here")
        memory: memoryview = block.meta
        return memory[address - block.address :]


class Fault(Exception):
    """A fault that the hardware finds in a command."""


class Stopped(Exception):
    """The device does nothing any more."""


class Engine(threading.Thread):
    """Executes the commands of one queue, in order; programs overlap until something stands between
    them, where the device says so.
    """

    def __init__(self, device: QueuedDevice, chance: random.Random | None) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.chance = chance
        self.running: list[threading.Thread] = []
        self.inbox: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self.executed = 0
        self.start()

    def run(self) -> None:
        """Until a STOP, or a fault."""
        try:
            while True:
                words = self.inbox.get()
                lengths = LENGTHS["I" if words.itemsize == 4 else "Q"]  # type: ignore[attr-defined]
                at = 0
                while at < len(words):
                    opcode = words[at]
                    if opcode == STOP:
                        return
                    length = lengths[opcode]
                    operands = list(words[at + 1 : at + length])
                    if lengths is LENGTHS["I"] and opcode != EXEC:
                        operands = pairs(operands)
                    self.delay()
                    self.execute(opcode, operands)
                    self.executed += 1
                    at += length
        except Fault as fault:
            self.device.reported = str(fault)
        except Stopped:
            pass

    def delay(self) -> None:
        """Nothing, or, one time in sixteen, up to a third of a millisecond."""
        if self.chance is not None and self.chance.random() < 1 / 16:
            time.sleep(self.chance.random() * 3e-4)

    def execute(self, opcode: int, operands: list[int]) -> None:
        """One command."""
        device = self.device
        if device.stalled:
            raise Stopped
        if opcode == EXEC:
            number, *places = operands
            run = functools.partial(self.launch, number, *pairs(places))
            if device.overlaps:
                self.running.append(threading.Thread(target=run, daemon=True))
                self.running[-1].start()
            else:
                run()
            return
        for thread in self.running:
            thread.join()
        self.running.clear()
        if opcode == COPY:
            dst, src, size = operands
            target = device.bus.resolve(dst, device, size)
            target[:size] = device.bus.resolve(src, device, size)[:size]
        elif opcode != BARRIER:
            self.synchronize(opcode, *operands)

    def launch(self, number: int, arguments: int, scratch: int) -> None:
        """Run a program, maybe beside others."""
        device = self.device
        try:
            if device.overlaps:
                self.delay()
            device.programs[number].run(device.bus.resolve(arguments, device), scratch)
        except Fault as fault:
            device.reported = str(fault)
            device.stalled = True

    def synchronize(self, opcode: int, address: int, value: int = 0) -> None:
        """A command on a signal."""
        signal = self.device.SIGNAL
        memory = self.device.bus.resolve(address, self.device, signal.BYTES)
        words = memory[: signal.BYTES].cast("Q")
        if opcode == SIGNAL:
            words[0] = value
        elif opcode == TIMESTAMP:
            words[signal.TIMESTAMP_OFFSET // 8] = time.perf_counter_ns()
        else:
            polls = 0
            while words[0] < value:
                if self.device.stalled or self.device.closing:
                    raise Stopped
                polls += 1
                time.sleep(0 if polls < 20 else 5e-5)


def pairs(words: list[int]) -> list[int]:
    """Numbers of 64 bits from their halves."""
    return [a | b << 32 for a, b in zip(words[::2], words[1::2], strict=True)]


class Commands(HWQueue):
    """The common part of both queues."""

    def __init__(self, device: QueuedDevice, engine: Engine) -> None:
        super().__init__()
        self.device = device
        self.engine = engine

    def command(self, opcode: int, *operands: Number) -> Self:
        """One command, its operands as wide as they are encoded."""
        self.append(opcode)
        for operand in operands:
            self.append(*(halves(operand) if self.FORMAT == "I" else (operand,)))
        return self

    def wait(self, signal: SignalPlace, value: Number) -> Self:
        return self.command(WAIT, signal.address, value)

    def signal(self, signal: SignalPlace, value: Number) -> Self:
        return self.command(SIGNAL, signal.address, value)

    def timestamp(self, signal: SignalPlace) -> Self:
        return self.command(TIMESTAMP, signal.address)

    def memory_barrier(self) -> Self:
        return self.append(BARRIER)

    def bind_words(self) -> memoryview | None:
        size = len(self.words) * 4 if self.FORMAT == "I" else len(self.words) * 8
        if not self.device.binds or not size:
            return None
        self.memory = self.device.allocator.alloc_visible(size)
        assert self.memory.view is not None
        words = self.memory.view.cast(self.FORMAT)
        for number, word in enumerate(self.words):
            words[number] = word
        return words

    def __del__(self) -> None:
        if hasattr(self, "memory"):
            self.device.discard(self.memory, None)

    def submit_words(self) -> None:
        bound = isinstance(self.words, memoryview)
        self.engine.inbox.put(self.words if bound else self.words[:])


class ComputeCommands(Commands):
    """Runs programs."""

    FORMAT: ClassVar[Literal["I", "Q"]] = "I"

    def exec(
        self,
        program: HCQProgram,
        args_state: HCQArgsState,
        grid: tuple[Number, ...],
        block: tuple[Number, ...],
    ) -> Self:
        assert isinstance(program, QueuedProgram)
        scratch: Number = self.device.scratch_address + 0 if program.spills else 0
        return self.append(
            EXEC, program.number, *halves(args_state.memory.address), *halves(scratch)
        )


class EveryCommand(ComputeCommands):
    """Commands of a device without a queue for copies."""

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        return self.command(COPY, dst, src, size)


class CopyCommands(Commands):
    """Copies memory."""

    def copy(self, dst: Number, src: Number, size: int) -> Self:
        return self.command(COPY, dst, src, size)


class QueuedProgram(HCQProgram):
    """A function over memory."""

    def __init__(
        self, device: QueuedDevice, info: ProgramInfo, function: Function, spills: int = 0
    ) -> None:
        super().__init__(device, info, scratch_bytes=spills)
        self.queued = device
        self.spills = spills
        self.function = function
        self.number = len(device.programs) + 1
        device.programs[self.number] = self

    def run(self, arguments: memoryview, scratch: int) -> None:
        """By the engine: read the arguments, spill, and run."""
        if self.spills:
            size = self.spills * THREADS
            self.queued.bus.resolve(scratch, self.queued, size)[:size] = bytes(size)
        count = self.info.buffers
        found = struct.unpack_from(f"={count}Q{len(self.info.values)}q", arguments)
        memories = [self.queued.bus.resolve(a, self.queued) for a in found[:count]]
        self.function(memories, found[count:])


class QueuedAllocator(HCQAllocator):
    """Memory of one device."""

    device: QueuedDevice

    def __init__(self, capacity: int) -> None:
        super().__init__(staging_bytes=1 << 12, staging_buffers=3)
        self.left = capacity
        self.places: Counter[Place] = Counter()
        self.pins = False
        self.pinned = 0
        self.mappings = 0
        self.peer_access = True
        """True if memory of other devices, and not only the host's, can be mapped."""
        self.strangers: set[HCQCompiled] = set()
        """Devices of which no memory can be mapped."""

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        raise AssertionError("this driver knows places of memory")

    def allocate_at(self, size: int, place: Place) -> HCQBuffer:
        if size > self.left:
            raise OutOfMemory(f"{size} bytes asked for, {self.left} left")
        self.left -= size
        self.places[place] += 1
        return self.device.bus.place(size, self.device, place)

    def pin(self, memory: memoryview) -> HCQBuffer | None:
        if not self.pins:
            return None
        self.pinned += 1
        return self.device.bus.place(memory.nbytes, self.device, content=memory.cast("B"))

    def unpin(self, buffer: HCQBuffer) -> None:
        self.pinned -= 1
        self.device.bus.remove(buffer)

    def release(self, buffer: HCQBuffer) -> None:
        self.left += buffer.size
        self.device.bus.remove(buffer)

    def map_peer(self, buffer: HCQBuffer) -> None:
        if buffer.owner in self.strangers or (buffer.host is None and not self.peer_access):
            raise UnsupportedError(f"no mapping of memory of {buffer.owner.name}")
        self.mappings += 1

    def unmap_peer(self, buffer: HCQBuffer) -> None:
        self.mappings -= 1


class QueuedDevice(HCQCompiled):
    """A device of the test."""

    allocator: QueuedAllocator

    def __init__(
        self,
        index: int = 0,
        interface: str = "",
        *,
        bus: Bus | None = None,
        seed: int | None = None,
        binds: bool = True,
        copies: bool = True,
        overlaps: bool = False,
        directions: bool = False,
        windows: bool = False,
        argument_bytes: int = 1 << 12,
    ) -> None:
        """`directions`: one engine copies to what the host sees, another one all else. `windows`:
        the host reaches memory by calls alone.
        """
        self.windows = windows
        self.calls = 0
        self.bus = bus or shared
        self.binds = binds and not windows
        self.overlaps = overlaps
        self.programs: dict[int, QueuedProgram] = {}
        self.reported = ""
        self.stalled = self.closing = False
        seeds = [None] * 3 if seed is None else [seed, ~seed, seed + 1000]
        self.engines = [
            Engine(self, None if number is None else random.Random(number))
            for number in seeds[: 1 + copies + directions]
        ]
        allocator = QueuedAllocator(1 << 24)
        allocator.device = self
        super().__init__(
            f"QUEUED:{index}",
            allocator,
            lambda: (ComputeCommands if copies else EveryCommand)(self, self.engines[0]),
            (lambda: CopyCommands(self, self.engines[1])) if copies else None,
            further_copy_queues=[lambda: CopyCommands(self, self.engines[2])] if directions else [],
            peer_group=str(id(self.bus)),
            argument_bytes=argument_bytes,
        )

    def load(self, binary: bytes, info: ProgramInfo) -> QueuedProgram:
        program = PythonProgram(binary, info)

        def run(memories: list[memoryview], values: tuple[int, ...]) -> None:
            program([numpy.frombuffer(m, numpy.uint8) for m in memories], values)

        return QueuedProgram(self, info, run)

    def function(
        self,
        function: Function,
        buffers: int,
        values: int = 0,
        name: str = "function",
        spills: int = 0,
    ) -> QueuedProgram:
        """A program that is a function of the test; the first buffer is what it writes."""
        names = tuple(f"v{n}" for n in range(values))
        info = ProgramInfo(name, buffers, names, written=frozenset({0}))
        return QueuedProgram(self, info, function, spills)

    def copy_engine(self, dst: HCQBuffer, src: HCQBuffer) -> int:
        return int(len(self.engines) > 2 and dst.host is not None)

    def scratch_size(self, bytes_per_thread: int) -> int:
        return bytes_per_thread * THREADS

    def fault(self) -> str:
        return self.reported

    def release(self) -> None:
        self.closing = True
        for engine in self.engines:
            engine.inbox.put(memoryview(bytes([STOP, 0, 0, 0])).cast("I"))
            engine.join(5)


shared: Final = Bus()
"""Bus of the devices opened by name."""


def backend() -> Backend:
    """Devices QUEUED to QUEUED:3, on which tensors compute by the interpreter."""
    dtype_names: list[Any] = [dtype.name for dtype in dtypes.all]
    return Backend(
        name="QUEUED",
        api=(2, 0),
        count=lambda: 4,
        open=lambda index, interface: QueuedDevice(index, interface, seed=index),
        renderers={"PYTHON": toolchain},
        capabilities=frozenset({"graph", "queues", "peer_copy", "local_memory", *dtype_names}),
        priority=-1,
    )


def add(memories: list[memoryview], values: tuple[int, ...]) -> None:
    """Add a value to the number in the first buffer."""
    (number,) = struct.unpack_from("=q", memories[0])
    struct.pack_into("=q", memories[0], 0, number + values[0])


def number_in(device: QueuedDevice, memory: HCQBuffer) -> int:
    found = bytearray(8)
    device.allocator.read(memoryview(found), memory)
    return int.from_bytes(found, "little")


def zero(device: QueuedDevice) -> HCQBuffer:
    memory = device.allocator.alloc(8)
    device.allocator.write(memory, memoryview(bytes(8)))
    return memory
