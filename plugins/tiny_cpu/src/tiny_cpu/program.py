"""A compiled kernel on the CPU: what a launch costs beyond the kernel is one native call.

A launch packs addresses and values into bytes of its own, so several threads may launch one
program at once. `Replay` is a whole captured step: its launches lie ready in native memory, and
one call runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from struct import Struct
from time import perf_counter
from typing import Final

from tiny_cpu._lib import address_of, aligned_memory, as_function, view
from tiny_cpu.code import Code
from tiny_cpu.memory import HostMemory
from tiny_cpu.pool import RECORD, code_of_pool, pool
from tinycore.config import cpu_count
from tinycore.plugin import ALIGNMENT_BYTES, Launch, ProgramInfo

__all__ = ["CpuCopy", "CpuProgram", "Replay", "chunk_of"]

_CHUNKS_PER_THREAD: Final = 8
"""Enough that a thread which is held up delays nobody for long; few enough to cost nothing."""
_FINER: Final = 16
"""Divisor of the chunks of a kernel that may take long, since it is interrupted between them."""
_WORD_BYTES: Final = 8
ADDRESS: Final = attrgetter("address")
NO_VALUES: Final = b""
_SHARES: Final = Struct("=qq")
_SHARES_AT: Final = RECORD.size - _SHARES.size
"""Offset of extent and chunk in a RECORD."""
_SHARED_FROM_BYTES: Final = 1 << 18
"""Copies from this size on are shared out among threads."""


class CpuProgram:
    """A kernel with the ABI of tiny_cpu.render, loaded and ready."""

    def __init__(self, binary: bytes, info: ProgramInfo) -> None:
        self._code = Code(binary, info.name)
        self._prepare(info, self._code.symbols[info.name])

    def _prepare(self, info: ProgramInfo, entry: int) -> None:
        self.info = info
        self.entry = entry
        self.extent = max(info.parallel, 1)
        self.chunk = chunk_of(self.extent)
        self._varies = info.parallel_extent is not None
        self._is_quick = False
        """True once a launch took less than a slice of the pool."""
        self._call = as_function("kernel_entry", self.entry)
        self._pack_buffers = Struct(f"={info.buffers}Q").pack
        self._pack_values = Struct(f"={len(info.values)}q").pack

    def __call__(
        self, buffers: Sequence[HostMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Run the kernel to its end, unless a signal handler raises. Returns the seconds it took
        when `wait`."""
        addresses = self._pack_buffers(*map(ADDRESS, buffers))
        numbers = self._pack_values(*values) if values else NO_VALUES
        start = perf_counter() if wait else 0.0
        extent, chunk = self.shares(values) if self._varies else (self.extent, self.chunk)
        if chunk == extent:
            self._call(addresses, numbers, 0, extent)
        else:
            chunk = chunk if self._is_quick else -(-chunk // _FINER)
            self._is_quick = pool().run(self.entry, addresses, numbers, extent, chunk)
        return perf_counter() - start if wait else None

    def bound(self, buffers: Sequence[HostMemory], values: Sequence[int]) -> Callable[[], None]:
        """A launch as one native call."""
        addresses = self._pack_buffers(*map(ADDRESS, buffers))
        numbers = self._pack_values(*values)
        extent, chunk = self.shares(values)
        if chunk == extent:
            return partial(self._call, addresses, numbers, 0, extent)
        return pool().bound(self.entry, addresses, numbers, extent, chunk)

    def shares(self, values: Sequence[int]) -> tuple[int, int]:
        """The steps that threads share with these values, and how many one takes at a time."""
        if not self._varies:
            return self.extent, self.chunk
        extent = self.info.steps(values)
        return extent, chunk_of(extent)


class CpuCopy(CpuProgram):
    """A copy of `size` bytes, the second buffer into the first, as a launch like any other."""

    def __init__(self, size: int) -> None:
        info = ProgramInfo("copy", buffers=2, parallel=size, written=frozenset({0}))
        self._prepare(info, code_of_pool().symbols["tc_copy"])
        if size < _SHARED_FROM_BYTES:
            self.chunk = size


def chunk_of(extent: int) -> int:
    """Iterations that a thread takes at a time; all of them if there is one thread."""
    if extent == 1 or cpu_count() == 1:
        return extent
    return -(-extent // (pool().threads * _CHUNKS_PER_THREAD))


class Replay:
    """A graph of launches, run in order by one native call. Not for two threads at once."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = [
            (program, list(buffers), len(values)) for program, buffers, values in launches
        ]
        words = sum(len(buffers) + len(values) for _, buffers, values in launches)
        size = RECORD.size * len(launches) + _WORD_BYTES * words
        self._memory = aligned_memory(max(size, 1), ALIGNMENT_BYTES)
        memory = view(self._memory, size)
        arguments = RECORD.size * len(launches)
        self._arguments = memory[arguments:].cast("q")
        self._records = memory[:arguments]
        self._first_words: list[int] = []
        self._fill(launches, memory, address_of(self._memory) + arguments)

    def _fill(self, launches: Sequence[Launch], memory: memoryview, arguments: int) -> None:
        word = 0
        for number, (program, buffers, values) in enumerate(launches):
            assert isinstance(program, CpuProgram), "the core launches programs of this device here"
            first, split = arguments + word * _WORD_BYTES, len(buffers) * _WORD_BYTES
            record = (program.entry, first, first + split, *program.shares(values))
            RECORD.pack_into(memory, number * RECORD.size, *record)
            self._first_words.append(word)
            for argument in (*(buffer.address for buffer in buffers), *values):
                self._arguments[word] = argument
                word += 1

    def set_buffer(self, launch: int, slot: int, buffer: HostMemory) -> None:
        """From now on, launch number `launch` uses `buffer` in this slot."""
        self._launches[launch][1][slot] = buffer  # keeps the memory alive
        self._arguments[self._first_words[launch] + slot] = buffer.address

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        program, buffers, count = self._launches[launch]
        first = self._first_words[launch] + len(buffers)
        self._arguments[first + position] = value
        assert isinstance(program, CpuProgram)
        if program.info.parallel_extent is not None:
            shares = program.shares(self._arguments[first : first + count])
            _SHARES.pack_into(self._records, launch * RECORD.size + _SHARES_AT, *shares)

    def __call__(self, *, wait: bool = False) -> float | None:
        """Run every launch to its end. Returns the seconds it all took when `wait`."""
        start = perf_counter() if wait else 0.0
        pool().run_many(self._memory, len(self._launches))
        return perf_counter() - start if wait else None
