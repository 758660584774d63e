"""Level 1: memory. Allocation, copies to the byte, views, exhaustion, leaks.

Against the backend's own allocator, past the pool that the core puts before it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy

from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.contract import refusal
from tiny_testing.suite.subject import Array, Subject
from tinycore.device.buffer import Buffer
from tinycore.device.protocols import ALIGNMENT_BYTES
from tinycore.dtype import dtypes
from tinycore.errors import OutOfMemory

__all__ = [
    "test_a_copy_changes_only_its_bytes",
    "test_a_read_fills_only_its_bytes",
    "test_a_view_of_a_view",
    "test_a_view_shares_memory",
    "test_blocks_do_not_overlap",
    "test_copies_between_buffers",
    "test_exhaustion_raises_out_of_memory",
    "test_freed_memory_comes_back",
    "test_mapped_memory_is_the_memory",
    "test_memory_is_aligned",
    "test_memory_works_after_exhaustion",
    "test_several_threads_copy",
    "test_the_source_is_free_after_a_write",
    "test_what_is_written_is_read",
]

COPY_SIZES: Final = (
    1,
    2,
    3,
    4,
    7,
    63,
    64,
    65,
    255,
    4095,
    4096,
    4097,
    65_537,
    1_000_003,
    (8 << 20) + 5,
)
TOO_MUCH: Final = (1 << 60, 1 << 62)
"""Bytes that no address space has."""
CHURN_BYTES: Final = 64 << 20
CHURN_ROUNDS: Final = 4096
"""AtomicWrites 256 GiB: more than a device has, so a leak runs out of memory."""
CHURN_SECONDS: Final = 2.0
RESIDENT_ROUNDS: Final = 24
RESIDENT_BYTES: Final = 32 << 20

SIZE_VARIANTS: Final = tuple(Variant(f"{size}", size) for size in COPY_SIZES)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes without a pattern."""
    return numpy.random.default_rng(size + seed).bytes(size)


@case(Level.MEMORY, over=SIZE_VARIANTS)
def test_what_is_written_is_read(subject: Subject, size: int) -> None:
    """Bytes come back as they were sent, at sizes around words, lines, pages and chunks.

    Sent once with every bit turned: a byte that no write reaches may hold the right value from
    whoever had the memory before, but never both of them.
    """
    sent = noise(size)
    turned = numpy.invert(numpy.frombuffer(sent, numpy.uint8)).tobytes()
    with subject.memory(size) as handle:
        for text in (turned, sent):
            subject.allocator.write(handle, memoryview(text))
            found = subject.read(handle, size)
            assert found == text, f"of {size} bytes number {first_wrong(found, text)} is wrong"


def first_wrong(found: bytes, sent: bytes) -> int:
    """First position at which two texts of bytes differ."""
    return next((i for i, (a, b) in enumerate(zip(found, sent, strict=True)) if a != b), -1)


@case(Level.MEMORY, over=(Variant(f"{n}", n) for n in (1, 5, 64, 4097)))
def test_a_copy_changes_only_its_bytes(subject: Subject, size: int) -> None:
    """A write that is shorter than its block leaves the rest of it."""
    old, new = noise(size + 256), noise(size, seed=1)
    with subject.memory(old) as handle:
        subject.allocator.write(handle, memoryview(new))
        found = subject.read(handle, size + 256)
    assert found[:size] == new, "what was written is not there"
    assert found[size:] == old[size:], f"a write of {size} bytes changed those behind it"


@case(Level.MEMORY, over=(Variant(f"{n}", n) for n in (1, 5, 64, 4097)))
def test_a_read_fills_only_its_bytes(subject: Subject, size: int) -> None:
    """A read fills the host memory given, and nothing around it."""
    sent = noise(size + 64)
    host = bytearray(b"\xa5" * (size + 128))
    with subject.memory(sent) as handle:
        subject.allocator.read(memoryview(host)[64 : 64 + size], handle)
    assert bytes(host[64 : 64 + size]) == sent[:size], "what was read is not what was written"
    assert set(host[:64]) | set(host[64 + size :]) == {0xA5}, "bytes around were written"


@case(Level.MEMORY)
def test_the_source_is_free_after_a_write(subject: Subject) -> None:
    """The host may reuse its bytes as soon as `write` returns."""
    sent = bytearray(noise(1 << 20))
    kept = bytes(sent)
    with subject.memory(len(sent)) as handle:
        subject.allocator.write(handle, memoryview(sent))
        sent[:] = bytes(len(sent))
        found = subject.read(handle, len(kept))
    assert found == kept, "bytes that changed after write() returned were copied"


@case(Level.MEMORY, over=(Variant(f"{n}", n) for n in (1, 2, 4, 8, 60, 64, 100, 256, 4096)))
def test_a_view_shares_memory(subject: Subject, start: int) -> None:
    """`offset` gives the bytes from any place on, for reading and for writing."""
    whole, part = noise(8192), noise(500, seed=1)
    with subject.memory(whole) as handle:
        view = subject.allocator.offset(handle, 500, start)
        assert subject.read(view, 500) == whole[start : start + 500], "a view reads other bytes"
        subject.allocator.write(view, memoryview(part))
        subject.runtime.synchronize()
        found = subject.read(handle, len(whole))
    assert found == whole[:start] + part + whole[start + 500 :], "a write to a view goes elsewhere"


@case(Level.MEMORY)
def test_a_view_of_a_view(subject: Subject) -> None:
    """Typed views of views of a Buffer show its elements from where they start."""
    numbers = numpy.arange(1000, dtype=numpy.int32)
    buffer = Buffer.from_cpu(subject.name, numbers)
    view = buffer.view(500, offset_bytes=400).view(10, offset_bytes=40)
    assert view.numpy().tolist() == numbers[110:120].tolist()
    view.copyin((numbers[:10] * -1).tobytes())
    assert buffer.numpy()[108:122].tolist() == [108, 109, *(-i for i in range(10)), 120, 121]


@case(Level.MEMORY)
def test_blocks_do_not_overlap(subject: Subject) -> None:
    """Many blocks that are alive together each keep what was written to them."""
    contents = [noise(37 * (n % 11) + 1, seed=n) for n in range(64)]
    handles = [subject.allocator.alloc(len(content)) for content in contents]
    for handle, content in zip(handles, contents, strict=True):
        subject.allocator.write(handle, memoryview(content))
    wrong = [
        n for n, (handle, content) in enumerate(zip(handles, contents, strict=True))
        if subject.read(handle, len(content)) != content
    ]  # fmt: skip
    for handle in handles:
        subject.allocator.free(handle)
    assert not wrong, f"blocks {wrong} of 64 do not hold what was written to them"


@case(Level.MEMORY)
def test_copies_between_buffers(subject: Subject) -> None:
    """One buffer copied to another of the device, and from a view to a view, to the byte."""
    for size in (1, 3, 4096, 100_001):
        numbers = numpy.frombuffer(noise(size), numpy.uint8)
        source = Buffer.from_cpu(subject.name, numbers)
        target = Buffer.from_cpu(subject.name, numpy.full(size + 8, 7, numpy.uint8))
        target.view(size, offset_bytes=4).copy_from(source)
        found = target.numpy()
        assert (found[4:-4] == numbers).all(), f"a copy of {size} bytes is wrong"
        assert found[:4].tolist() == found[-4:].tolist() == [7] * 4, "bytes around were changed"


@case(Level.MEMORY, over=(Variant(f"2**{n.bit_length() - 1}", n) for n in TOO_MUCH))
def test_exhaustion_raises_out_of_memory(subject: Subject, size: int) -> None:
    """More bytes than there can be are refused by OutOfMemory, which says how many."""
    gave = f"{size} bytes were allocated"
    error = refusal(OutOfMemory, lambda: subject.allocator.alloc(size), gave)
    assert str(error).strip(), "OutOfMemory without a message"
    buffer = Buffer(subject.name, size, dtypes.uint8)
    error = refusal(OutOfMemory, buffer.ensure_allocated, gave)
    assert f"{size:,}" in str(error), f"the message does not say how many bytes: {error}"


@case(Level.MEMORY)
def test_memory_works_after_exhaustion(subject: Subject) -> None:
    """A device that had no room goes on as before."""
    for _ in range(3):
        with suppress(OutOfMemory):
            subject.allocator.alloc(TOO_MUCH[0])
        sent = noise(1000)
        with subject.memory(sent) as handle:
            assert subject.read(handle, 1000) == sent, "memory is wrong after OutOfMemory"


@case(Level.MEMORY)
def test_freed_memory_comes_back(subject: Subject) -> None:
    """Memory taken and given back again and again does not run out, nor does the process grow."""
    began = time.perf_counter()
    for turn in range(CHURN_ROUNDS):
        try:
            handle = subject.allocator.alloc(CHURN_BYTES)
        except OutOfMemory as error:
            raise AssertionError(
                f"out of memory after {turn} blocks of {CHURN_BYTES >> 20} MiB, each freed before "
                f"the next: free() gives nothing back ({error})"
            ) from error
        subject.allocator.free(handle)
        if time.perf_counter() - began > CHURN_SECONDS:
            break
    block = noise(RESIDENT_BYTES)
    growth = 0
    for turn in range(RESIDENT_ROUNDS):
        with subject.memory(block):
            pass
        if turn == RESIDENT_ROUNDS // 3:
            growth = -resident_bytes()
    growth += resident_bytes()
    most = RESIDENT_BYTES * RESIDENT_ROUNDS // 3
    assert growth < most, f"the process grew by {growth >> 20} MiB: free() keeps what it gets"


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    with open("/proc/self/statm", encoding="ascii") as line:
        return int(line.read().split()[1]) * 4096


@case(Level.MEMORY)
def test_several_threads_copy(subject: Subject) -> None:
    """Threads that copy at the same time, each to a block of its own, do not disturb each other."""
    contents = [noise(20_000 + number, seed=number) for number in range(4)]
    handles = [subject.allocator.alloc(len(content)) for content in contents]
    wrong: list[str] = []

    def work(number: int) -> None:
        handle, sent = handles[number], contents[number]
        try:
            for _ in range(20):
                subject.allocator.write(handle, memoryview(sent))
                if subject.read(handle, len(sent)) != sent:
                    wrong.append(f"thread {number} read what it had not written")
        except Exception as error:  # reported by the thread that waits
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    in_threads(work, len(handles))
    for handle in handles:
        subject.allocator.free(handle)
    assert not wrong, "; ".join(wrong[:3])


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run a function in several threads at once, each with its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- where the host addresses the memory


def mapped(subject: Subject, handle: object, size: int) -> Array:
    """Device memory as an array of the host, without a copy."""
    subject.runtime.synchronize()
    view = subject.device.ability("host_memory").map(handle, size)
    return numpy.frombuffer(view, numpy.uint8)


@case(Level.MEMORY, "host_memory")
def test_mapped_memory_is_the_memory(subject: Subject) -> None:
    """The device reads what the host writes in place, and the other way around."""
    sent, other = noise(5000), noise(5000, seed=1)
    with subject.memory(sent) as handle:
        array = mapped(subject, handle, 5000)
        assert array.tobytes() == sent, "mapped memory does not hold what was written"
        assert array.flags.writeable, "mapped memory cannot be written"
        array[:] = numpy.frombuffer(other, numpy.uint8)
        assert subject.read(handle, 5000) == other, "what the host wrote in place is not read"
        subject.allocator.write(handle, memoryview(sent))
        assert mapped(subject, handle, 5000).tobytes() == sent, "a write does not show in place"


@case(Level.MEMORY, "host_memory")
def test_memory_is_aligned(subject: Subject) -> None:
    """Every block begins at a multiple of ALIGNMENT_BYTES."""
    handles = [subject.allocator.alloc(size) for size in (1, 3, 17, 64, 100, 5000)]
    starts = [mapped(subject, handle, 1).ctypes.data for handle in handles]
    for handle in handles:
        subject.allocator.free(handle)
    odd = [hex(start) for start in starts if start % ALIGNMENT_BYTES]
    assert not odd, f"blocks at {', '.join(odd)} are not aligned to {ALIGNMENT_BYTES} bytes"
