"""Faults of declarations, compilers and memory."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any, Final, NoReturn

from tiny_testing.accelerator.device import (
    CORRECT,
    Accelerator,
    Block,
    Compiler,
    Memory,
    Parts,
    Queue,
    Span,
)
from tiny_testing.accelerator.faults.fault import FAULTS, Fault, declare, found_by
from tinycore.errors import DeviceError, OutOfMemory, UnsupportedError
from tinycore.plugin import Interface

# --- the declaration and the compiler


declare(
    "missing_float32",
    "float32 is not declared.",
    "test_the_dtypes_that_every_program_needs",
    CORRECT.capabilities - {"float32"},
)
declare(
    "empty_claim",
    "host_memory is declared, and there is no `map`.",
    "test_opening_finds_what_is_declared",
    CORRECT.capabilities | {"host_memory"},
)
FAULTS["wordless_probe"] = Fault(
    "wordless_probe",
    "The probe of an interface says no, and not why.",
    replace(CORRECT, interfaces={**CORRECT.interfaces, "KERNEL": Interface(probe=lambda: "no")}),
    "test_each_interface_answers_for_itself",
)


@found_by("test_an_interface_that_is_not_there_is_told")
class AnyInterface(Accelerator):
    """The device opens through whatever interface is named."""

    def __init__(self, index: int, interface: str, parts: Parts) -> None:
        super().__init__(index, "", parts)


@found_by("test_a_program_that_is_none_is_a_compile_error")
class SilentCompiler(Compiler):
    """The compiler takes everything, and leaves the error to the launch."""

    def compile(self, source: str) -> bytes:
        """The text, unread."""
        return source.encode()


@found_by("test_a_toolchain_says_what_it_is")
class KeylessCompiler(Compiler):
    """The compiler's key is empty, so the disk cache confuses it with others."""

    key = ""


# --- memory


@found_by("test_what_is_written_is_read[4096]")
class OffByOneCopy(Memory):
    """A write leaves out its last byte."""

    def write(self, dst: Span, src: memoryview) -> None:
        """All but one."""
        super().write(dst, src[:-1] if src.nbytes > 1 else src)


@found_by("test_a_copy_changes_only_its_bytes[5]")
class PaddedCopy(Memory):
    """A write is rounded up to words, and changes what lies behind."""

    def write(self, dst: Span, src: memoryview) -> None:
        """Write up to three bytes more."""
        more = min(-src.nbytes % 4, dst.size - src.nbytes)
        super().write(dst, memoryview(bytes(src) + bytes(more)))


@found_by("test_the_source_is_free_after_a_write")
class UnstagedCopy(Memory):
    """A write copies later from the host's memory, which has changed by then."""

    def write(self, dst: Span, src: memoryview) -> None:
        """Copy without staging, after the caller goes on."""

        def late() -> None:
            time.sleep(0.02)
            self.inner.write(self.place(dst), src)

        self.queue.ask(late)


@found_by("test_what_is_written_is_read[8388613]")
class ChunkedCopy(Memory):
    """A write in chunks of 4 MiB forgets the last one."""

    def write(self, dst: Span, src: memoryview) -> None:
        """Write whole chunks alone, if there are several."""
        chunk = 4 << 20
        super().write(dst, src[: src.nbytes // chunk * chunk] if src.nbytes > chunk else src)


@found_by("test_a_view_shares_memory[4]")
class AlignedOffset(Memory):
    """A view begins at a multiple of 64 bytes, whatever was asked."""

    def offset(self, handle: Span, size: int, start: int) -> Span:
        """The start, rounded down."""
        return super().offset(handle, size, start // 64 * 64)


@found_by("test_blocks_do_not_overlap")
class OverlappingBlocks(Memory):
    """Small blocks are cut from a page at steps rounded down, so neighbors overlap."""

    page: Block | None = None
    cursor = 0

    def alloc(self, size: int) -> Span:
        """A part of the page, for small sizes."""
        if size >= 1024:
            return super().alloc(size)
        self.page = self.page or super().alloc(1 << 16).block
        start = self.cursor
        self.cursor += size // 32 * 32
        return Span(self.page, start, size)

    def free(self, handle: Span) -> None:
        """Nothing, for the page."""
        if handle.block is not self.page:
            super().free(handle)


@found_by("test_freed_memory_comes_back")
class Leak(Memory):
    """Freed memory is not given back."""

    def free(self, handle: Span) -> None:
        """Nothing."""


@found_by("test_exhaustion_raises_out_of_memory[2**60]")
class SwallowedOutOfMemory(Memory):
    """A smaller block is handed out where there is no room."""

    def alloc(self, size: int) -> Span:
        """Something in any case."""
        try:
            return super().alloc(size)
        except OutOfMemory:
            return super().alloc(64)


@found_by("test_exhaustion_raises_out_of_memory[2**62]")
class WrongError(Memory):
    """An error that the core does not take for lack of memory is raised where there is no room."""

    def alloc(self, size: int) -> Span:
        """Raise an error of another class."""
        try:
            return super().alloc(size)
        except OutOfMemory as error:
            raise DeviceError(f"status -61: {error}") from error


@found_by("test_memory_works_after_exhaustion")
class LostContext(Memory):
    """After memory was short once, nothing is written any more."""

    is_lost = False

    def alloc(self, size: int) -> Span:
        """Allocate, and note when memory is short."""
        try:
            return super().alloc(size)
        except OutOfMemory:
            self.is_lost = True
            raise

    def write(self, dst: Span, src: memoryview) -> None:
        """Write, unless memory was short before."""
        if not self.is_lost:
            super().write(dst, src)


@found_by("test_several_threads_copy")
class SharedStaging(Memory):
    """All threads stage their copies in the same memory."""

    staged = b""

    def write(self, dst: Span, src: memoryview) -> None:
        """Write what the last thread has staged."""
        self.staged = bytes(src)
        time.sleep(0.001)
        super().write(dst, memoryview(self.staged)[: src.nbytes])


# --- exchange


@found_by("test_peer_copies")
class ShortPeerCopy(Memory):
    """A copy between devices moves whole pages only."""

    def copy_from(self, dst: Span, src: Span, size: int, source: Any) -> None:
        """Copy whole pages, without the rest."""
        super().copy_from(dst, src, (size - 1) // 4096 * 4096, source)


numbers: Final = itertools.count()
"""Numbers of devices and blocks, by the time at which they came."""


@found_by("test_a_device_that_is_opened_later_is_reached")
class LateStranger(Memory):
    """A device does not see memory that was there before it was opened."""

    def __init__(self, queue: Queue, inner: Any) -> None:
        super().__init__(queue, inner)
        self.opened = next(numbers)
        self.made: dict[Block, int] = {}

    def alloc(self, size: int) -> Span:
        """Allocate, and number the block."""
        span = super().alloc(size)
        self.made[span.block] = next(numbers)
        return span

    def copy_from(self, dst: Span, src: Span, size: int, source: Any) -> None:
        """A fault, where the memory came first."""
        if source.allocator.made[src.block] < self.opened:
            raise DeviceError(f"a fault: {size} bytes of another device are not mapped here")
        super().copy_from(dst, src, size, source)


class Unreached(Memory):
    """Memory of another device cannot be mapped, which is said: the host copies."""

    def copy_from(self, dst: Span, src: Span, size: int, source: Any) -> None:
        """Within one device only."""
        if source.allocator is not self:
            self.refuse(size)
        super().copy_from(dst, src, size, source)

    def refuse(self, size: int) -> NoReturn:
        """Raise the error that the core takes for this."""
        raise UnsupportedError(f"{size} bytes of another device cannot be mapped here")


@found_by("test_copies_from_device_to_device")
class WrongRefusal(Unreached):
    """An error that the core does not take for it says that another device is not reached."""

    def refuse(self, size: int) -> NoReturn:
        """Raise an error of another class."""
        raise DeviceError(f"{size} bytes of another device cannot be mapped here")


@found_by("test_external_memory_is_written_in_place")
class CopiedPointer(Memory):
    """Memory at an address is copied when it is wrapped."""

    def wrap(self, pointer: int, size: int) -> Span:
        """A block of its own."""
        outside = super().wrap(pointer, size)
        inside = self.alloc(size)
        self.copy_from(inside, outside, size, None)  # type: ignore[arg-type]
        return inside


@found_by("test_parts_of_memory_have_addresses")
class WholeLent(Accelerator):
    """A part is said to begin where its allocation does."""

    def address(self, handle: Span) -> tuple[int, int]:
        """The address of the allocation, without the start of the part."""
        return super().address(handle)[0], 0


@found_by("test_device_memory_is_passed_to_other_libraries_and_back")
class LentCopy(Accelerator):
    """Other libraries are given a copy."""

    def address(self, handle: Span) -> tuple[int, int]:
        """Address of what the memory holds now."""
        self.synchronize()
        self.lent = handle.block.memory.copy()
        return int(self.lent.ctypes.data), handle.start
