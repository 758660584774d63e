"""Launches of compiled kernels, one at a time, and what they did wrong."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Final

from cffi import FFI
from emulation.faults import (
    BarrierFault,
    Fault,
    IllegalAddress,
    LaunchFault,
    RaceFault,
)

from shader.compiler import Compiled, Function

__all__ = ["Executor", "Memory", "Span", "UndefinedFault"]

Dims = tuple[int, int, int]

ffi: Final = FFI()
ffi.cdef("""
    struct region { uint64_t start, bytes; uint64_t *stamps;
        uint32_t serial, writable, number, is_threadgroup; };
    struct launch {
        void (*entry)(void **, const void *);
        void **buffers;
        struct region *regions;
        uint64_t region_count;
        uint32_t groups[3], threads[3];
        uint64_t seed;
        uint8_t *stacks;
        uint32_t has_barriers;
        uint32_t kind, thread, group, other_thread, other_group, is_write, other_is_write, bytes;
        uint64_t address;
        uint32_t region, line;
        const char *what;
    };
    void msl_run(struct launch *launch);
    void *mmap(void *address, size_t size, int protection, int flags, int file, int64_t offset);
    int munmap(void *address, size_t size);
    int mprotect(void *address, size_t size, int protection);
""")

OUTSIDE, READ_ONLY, RACE, DIVERGED, UNDEFINED = range(1, 6)
STACK_BYTES: Final = 256 << 10
MOST_THREADS: Final = 1024
WATCHED_BYTES: Final = 1 << 20
"""Larger memory is not watched for races: 24 bytes are kept of each of its bytes."""
PAGE: Final = mmap.PAGESIZE
GARBAGE: Final = 0xCB
_PRIVATE: Final = 0x22
_READ_WRITE: Final = 3


class UndefinedFault(Fault):
    """Undefined behavior of the language: a quotient by zero, a shift too far, a misaligned access,
    ...
    """


@cache
def libc() -> Any:
    """The functions of C."""
    return ffi.dlopen(None)


def pages(size: int) -> int:
    """The address of fresh pages that hold so many bytes."""
    place = libc().mmap(ffi.NULL, -(-size // PAGE) * PAGE, _READ_WRITE, _PRIVATE, -1, 0)
    if int(ffi.cast("intptr_t", place)) == -1:
        raise MemoryError(f"{size} bytes of memory for a mock GPU")
    return int(ffi.cast("uintptr_t", place))


class Memory:
    """Memory of a buffer, with a page behind it that nothing may touch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._whole = -(-size // PAGE) * PAGE + PAGE
        self.address = pages(self._whole)
        libc().mprotect(ffi.cast("void *", self.address + self._whole - PAGE), PAGE, 0)
        ffi.buffer(ffi.cast("char *", self.address), size)[:] = bytes([GARBAGE]) * size
        self.serial = 0
        self.stamps = 0

    def watch(self) -> None:
        """Be looked at for races in one more launch."""
        if self.size > WATCHED_BYTES:
            return
        if self.serial == 0xFFFF:
            self._forget()
        if not self.stamps:
            self.stamps = pages(self.size * 24)
        self.serial += 1

    def _forget(self) -> None:
        if self.stamps:
            libc().munmap(ffi.cast("void *", self.stamps), -(-self.size * 24 // PAGE) * PAGE)
        self.stamps = self.serial = 0

    def free(self) -> None:
        """Give the pages back."""
        self._forget()
        libc().munmap(ffi.cast("void *", self.address), self._whole)
        self.address = 0


@dataclass
class Span:
    """Memory bound to a slot, and the byte where it starts."""

    memory: Memory
    start: int = 0


@dataclass
class Executor:
    """Runs kernels, one launch at a time.

    The order of groups and threads is drawn anew for each.
    """

    seed: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)
    stacks: int = 0
    libraries: dict[str, Any] = field(default_factory=dict)
    array_memory: dict[tuple[str, str], Memory] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))

    def launch(
        self,
        compiled: Compiled,
        function: Function,
        buffers: Mapping[int, Span],
        groups: Dims,
        threads: Dims,
    ) -> None:
        """Run all threads of all groups. Raises Fault, saying which thread did what."""
        with _RUNNING:
            self._launch(compiled, function, buffers, groups, threads)

    def _launch(
        self,
        compiled: Compiled,
        function: Function,
        buffers: Mapping[int, Span],
        groups: Dims,
        threads: Dims,
    ) -> None:
        if threads[0] * threads[1] * threads[2] > MOST_THREADS:
            raise LaunchFault(f"{function.name}: {threads} are too many threads in a group")
        missing = [p.name for p in function.parameters if p.slot not in buffers]
        if missing:
            raise LaunchFault(f"{function.name}: no buffer is bound to {', '.join(missing)}")
        library = self._library(compiled)
        regions, names = self._regions(compiled, library, function, buffers)
        addresses = {slot: span.memory.address + span.start for slot, span in buffers.items()}
        slots = [addresses.get(slot, 0) for slot in range(31)]
        table = ffi.new("void *[31]", [ffi.cast("void *", address) for address in slots])
        given = ffi.new("struct region[]", regions)
        if not self.stacks:
            self.stacks = pages(STACK_BYTES * MOST_THREADS)
        launch = ffi.new("struct launch *")
        launch.entry = library.addressof(f"{function.name}_trampoline")
        launch.buffers, launch.regions, launch.region_count = table, given, len(regions)
        launch.groups, launch.threads = groups, threads
        launch.seed = (next(self.numbers) << 8 | self.seed) if self.seed else 0
        launch.stacks = ffi.cast("uint8_t *", self.stacks)
        launch.has_barriers = compiled.meets
        library.run(launch)
        if launch.kind:
            raise fault_of(launch, function, names)

    def _library(self, compiled: Compiled) -> Library:
        key = str(compiled.path)
        if key not in self.libraries:
            self.libraries[key] = Library(compiled)
        found: Library = self.libraries[key]
        return found

    def _regions(
        self,
        compiled: Compiled,
        library: Library,
        function: Function,
        buffers: Mapping[int, Span],
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Memory that a kernel may touch: its buffers, each once, and arrays of the group."""
        found: dict[int, tuple[Memory, bool, str]] = {}
        for parameter in function.parameters:
            memory = buffers[parameter.slot].memory
            known = found.get(memory.address)
            writable = not parameter.is_read_only or (known is not None and known[1])
            name = parameter.name if known is None else f"{known[2]} and {parameter.name}"
            found[memory.address] = (memory, writable, name)
        regions, names = [], list[str]()
        for memory, writable, name in found.values():
            memory.watch()
            regions.append(region_of(memory, memory.address, writable, False, len(names)))
            names.append(f"{name} ({memory.size:,} bytes)")
        for array in compiled.arrays:
            memory = self._array(compiled, array.name, array.size)
            memory.watch()
            start = library.base + array.address
            regions.append(region_of(memory, start, True, True, len(names)))
            names.append(f"threadgroup array {array.name} ({array.size:,} bytes)")
        return regions, names

    def _array(self, compiled: Compiled, name: str, size: int) -> Memory:
        """Shadow memory of an array of the group: who touched it."""
        key = (str(compiled.path), name)
        if key not in self.array_memory:
            self.array_memory[key] = Memory(size)
        return self.array_memory[key]


_RUNNING: Final = threading.Lock()
"""Arrays of a group are one for all groups of a library, so one launch runs at a time."""


class Library:
    """A shared library that was opened."""

    def __init__(self, compiled: Compiled) -> None:
        self.opened = ffi.dlopen(str(compiled.path), 2)
        self.run = self.opened.msl_run
        self.base = int(ffi.cast("uintptr_t", self.run)) - compiled.anchor

    def addressof(self, name: str) -> Any:
        """A function of the library."""
        if name not in _declared:
            ffi.cdef(f"void {name}(void **buffers, const void *at);")
            _declared.add(name)
        return ffi.addressof(self.opened, name)


_declared: Final[set[str]] = set()


def region_of(
    memory: Memory, start: int, writable: bool, is_threadgroup: bool, number: int
) -> dict[str, Any]:
    """A region as the runtime takes it."""
    return {
        "start": start,
        "bytes": memory.size,
        "stamps": ffi.cast("uint64_t *", memory.stamps),
        "serial": memory.serial,
        "writable": writable,
        "number": number,
        "is_threadgroup": is_threadgroup,
    }


def fault_of(launch: Any, function: Function, names: Sequence[str]) -> Fault:
    """The fault of a launch, in words."""
    who = f"{function.name}: thread {launch.thread} of group {launch.group}"
    action = "writes" if launch.is_write else "reads"
    if launch.kind == DIVERGED:
        line = launch.other_is_write
        other = f"waits at line {line}" if line else "has ended or waits elsewhere"
        return BarrierFault(
            f"{who} waits at a barrier (line {launch.line}) that thread {launch.other_thread} "
            f"never reaches: it {other}"
        )
    if launch.kind == UNDEFINED:
        what = ffi.string(launch.what).decode()
        return UndefinedFault(f"{who}: {what} (line {launch.line})")
    if launch.kind == OUTSIDE:
        near = nearest(launch, names)
        return IllegalAddress(f"{who} {action} {launch.bytes} bytes {near}")
    name = names[launch.region]
    if launch.kind == READ_ONLY:
        return IllegalAddress(f"{who} writes {launch.bytes} bytes of {name}, which is only read")
    other = "writes" if launch.other_is_write else "reads"
    return RaceFault(
        f"{who} {action} {launch.bytes} bytes at byte {launch.address} of {name}, which thread "
        f"{launch.other_thread} of group {launch.other_group} {other} with no barrier between"
    )


def nearest(launch: Any, names: Sequence[str]) -> str:
    """An address beside the memory it is nearest to."""

    def distance(number: int) -> int:
        region = launch.regions[number]
        begin, end = int(region.start), int(region.start) + int(region.bytes)
        return min(abs(int(launch.address) - begin), abs(int(launch.address) - end))

    if not names:
        return f"at {launch.address:#x}; nothing is bound"
    number = min(range(len(names)), key=distance)
    return f"at byte {launch.address - launch.regions[number].start} of {names[number]}"
