"""Host memory as device memory."""

import gc
from types import SimpleNamespace

import pytest

from tiny_cpu import _lib
from tiny_cpu.memory import CpuAllocator
from tinycore.errors import OutOfMemory

SMALL, LARGE = 100, 8 << 20


@pytest.mark.parametrize("size", [1, SMALL, 1 << 20, LARGE])
def test_blocks_are_aligned_to_a_cache_line(size: int) -> None:
    assert CpuAllocator().alloc(size).address % 64 == 0


def test_large_blocks_start_at_a_huge_page() -> None:
    assert CpuAllocator().alloc(LARGE).address % (2 << 20) == 0


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_is_written_is_read(size: int) -> None:
    allocator = CpuAllocator()
    handle, content, found = allocator.alloc(size), bytes(range(100)), bytearray(100)

    allocator.write(handle, memoryview(content))
    allocator.read(memoryview(found), handle)

    assert found == content


def test_a_part_shares_its_bytes() -> None:
    allocator = CpuAllocator()
    handle = allocator.alloc(SMALL)
    part = allocator.offset(allocator.offset(handle, 50, 20), 10, 5)

    allocator.write(part, memoryview(b"0123456789"))

    assert part.address == handle.address + 25
    assert bytes(allocator.map(handle, SMALL)[25:35]) == b"0123456789"


def test_a_map_is_the_memory_itself() -> None:
    allocator = CpuAllocator()
    handle, found = allocator.alloc(SMALL), bytearray(3)

    allocator.map(handle, SMALL)[:3] = b"abc"
    allocator.read(memoryview(found), handle)

    assert found == b"abc"


def test_memory_of_others_is_used_in_place() -> None:
    allocator = CpuAllocator()
    owner, found = allocator.alloc(SMALL), bytearray(2)

    allocator.write(allocator.wrap(owner.address, 2), memoryview(b"ok"))
    allocator.read(memoryview(found), owner)

    assert found == b"ok"


def test_devices_copy_to_each_other() -> None:
    one, other = CpuAllocator(), CpuAllocator()
    source, target = one.alloc(SMALL), other.alloc(SMALL)
    one.write(source, memoryview(b"there"))

    other.copy_from(target, source, 5, None)

    assert bytes(other.map(target, 5)) == b"there"


@pytest.mark.parametrize("size", [1 << 46, 1 << 80])
def test_more_than_there_is_raises_out_of_memory(size: int) -> None:
    with pytest.raises(OutOfMemory, match=f"no {size:,} bytes of memory left"):
        CpuAllocator().alloc(size)


@pytest.mark.slow
def test_a_view_outlives_the_handle() -> None:
    allocator = CpuAllocator()
    handle = allocator.alloc(LARGE)
    view = allocator.map(handle, LARGE)
    view[-1] = 7

    allocator.free(handle)
    del handle
    gc.collect()

    assert view[-1] == 7


def test_a_block_is_given_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[object] = []
    libc = _lib._libc

    def free(pointer: object) -> None:
        freed.append(pointer)
        libc.free(pointer)

    recorder = SimpleNamespace(posix_memalign=libc.posix_memalign, free=free)
    monkeypatch.setattr(_lib, "_libc", recorder)
    allocator = CpuAllocator()
    handle = allocator.alloc(SMALL)
    part = allocator.offset(handle, 10, 10)

    allocator.free(handle)
    assert not freed  # `part` still sees it
    del part, handle
    gc.collect()

    assert len(freed) == 1


def test_a_freed_handle_cannot_be_launched_with() -> None:
    allocator = CpuAllocator()
    handle = allocator.alloc(SMALL)

    allocator.free(handle)

    assert handle.address < 0
