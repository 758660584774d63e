"""LRUAllocator: reuse by size, its bound, exhaustion, and what is counted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.interrupts import Moment, interrupt, moments_of
from tinycore import Variable
from tinycore.config import Context
from tinycore.device import pool as pool_module
from tinycore.device.buffer import Buffer
from tinycore.device.pool import LRUAllocator, MemoryStats, memory
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, DeviceError, OutOfMemory


@pytest.fixture
def no_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of these tests are small: nothing may wait because it is little."""
    monkeypatch.setattr(pool_module, "LEAST_SPARE_BYTES", 0)


@pytest.fixture
def allocator(toy_allocator: Any) -> Any:
    return toy_allocator(capacity=1000)


@pytest.fixture
def pool(allocator: Any) -> LRUAllocator:
    return LRUAllocator(allocator, "TOY")


def test_a_freed_block_serves_the_next_allocation_of_its_size(
    pool: LRUAllocator, allocator: Any
) -> None:
    first = pool.alloc(100)
    pool.free(first, 100)

    assert pool.alloc(100) is first
    assert allocator.allocations == [100]


def test_another_size_is_asked_of_the_device(pool: LRUAllocator, allocator: Any) -> None:
    pool.free(pool.alloc(100), 100)
    pool.alloc(101)

    assert allocator.allocations == [100, 101]


def test_without_lru_nothing_is_kept(pool: LRUAllocator, allocator: Any) -> None:
    with Context(LRU=0):
        pool.free(pool.alloc(100), 100)

    assert not allocator.live
    assert pool.cached == 0


def test_what_passes_between_pool_and_device_is_traced(
    pool: LRUAllocator, capsys: pytest.CaptureFixture[str]
) -> None:
    with Context(TRACE="memory", NO_COLOR=1):
        pool.free(pool.alloc(100), 100)
        pool.alloc(100)
        pool.free(pool.alloc(50), 50)
        pool.free_cache()

    assert capsys.readouterr().err.splitlines() == [
        "memory   TOY      100 B allocated",
        "memory   TOY      50 B allocated",
        "memory   TOY      50 B given back",
    ]


def test_exhaustion_releases_the_cache_and_tries_once_more(
    pool: LRUAllocator, allocator: Any
) -> None:
    pool.free(pool.alloc(800), 800)
    block = pool.alloc(900)

    assert len(block) == 900
    assert allocator.allocations == [800, 900]
    assert (pool.used, pool.cached) == (900, 0)


def test_real_exhaustion_says_what_is_in_use(pool: LRUAllocator) -> None:
    kept = pool.alloc(700)
    pool.free(pool.alloc(200), 200)

    with pytest.raises(OutOfMemory) as raised:
        pool.alloc(400)

    assert str(raised.value) == (
        "TOY has no room for 400 bytes: 700 are in use by this program, and 200 kept for reuse "
        "were "
        "released. (toy memory of 1000 bytes is full)"
    )
    assert len(kept) == 700


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_at_least_a_byte(pool: LRUAllocator, size: int) -> None:
    with pytest.raises(ArgumentError, match=f"a block of memory has at least 1 byte, not {size}"):
        pool.alloc(size)


@pytest.mark.usefixtures("no_spare")
def test_the_cache_is_never_larger_than_what_was_in_use(pool: LRUAllocator, allocator: Any) -> None:
    for size in (100, 90, 80, 70):  # one at a time: at most 100 bytes were in use at once
        pool.free(pool.alloc(size), size)

    assert pool.peak == 100
    assert pool.cached == 70
    assert sum(map(len, allocator.live.values())) == 70


@pytest.mark.usefixtures("no_spare")
def test_steps_of_several_sizes_hold_hardly_more_than_the_largest_needs(
    toy_allocator: Any,
) -> None:
    device = toy_allocator(capacity=1 << 20)
    pool = LRUAllocator(device, "TOY")
    weights, held = pool.alloc(1000), []
    for size in (600, 500, 400, 600, 550):
        pool.free(pool.alloc(size), size)
        held.append(sum(map(len, device.live.values())))

    assert len(weights) == 1000
    assert pool.peak == 1600
    assert max(held) <= 1.1 * pool.peak


@pytest.mark.usefixtures("no_spare")
def test_steps_of_one_size_ask_the_device_once(toy_allocator: Any) -> None:
    device = toy_allocator(capacity=1 << 20)
    pool = LRUAllocator(device, "TOY")
    weights = pool.alloc(1000)
    for _ in range(5):
        blocks = [pool.alloc(size) for size in (300, 200, 100)]
        for block in blocks:
            pool.free(block, len(block))

    assert len(weights) == 1000
    assert device.allocations == [1000, 300, 200, 100]


@pytest.mark.usefixtures("no_spare")
def test_the_size_unused_longest_goes_first(pool: LRUAllocator, allocator: Any) -> None:
    blocks = [pool.alloc(size) for size in (50, 40)]
    for block in blocks:
        pool.free(block, len(block))
    pool.free(pool.alloc(50), 50)  # 40 is now the one unused longest
    pool.free(pool.alloc(30), 30)

    assert sorted(map(len, allocator.live.values())) == [30, 50]


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_blocks_that_wait_for_long_go_back(allocator: Any) -> None:
    clock = Clock()
    pool = LRUAllocator(allocator, "TOY", clock=clock)
    blocks = [pool.alloc(size) for size in (300, 200, 200)]
    for block in blocks:
        pool.free(block, len(block))
    assert pool.cached == 700

    for clock.seconds in (30.0, 55.0):  # one of 200 bytes is in use again and again
        pool.free(pool.alloc(200), 200)
        assert pool.cached == 700
    clock.seconds = 65.0
    pool.free(pool.alloc(200), 200)

    assert pool.cached == 200
    assert sum(map(len, allocator.live.values())) == 200


def test_a_loop_over_one_block_lets_old_ones_go_too(allocator: Any) -> None:
    clock, waits = Clock(), list[float]()
    pool = LRUAllocator(allocator, "TOY", lambda: waits.append(clock.seconds), clock)
    pool.free(pool.alloc(500), 500)
    assert pool.cached == 500
    for second in range(120):
        clock.seconds = float(second)
        pool.free(pool.alloc(10), 10)

    assert sum(map(len, allocator.live.values())) == 10
    assert waits == [60.0]


def test_no_block_is_old_that_is_in_use(allocator: Any) -> None:
    clock = Clock()
    pool = LRUAllocator(allocator, "TOY", clock=clock)
    block = pool.alloc(100)
    clock.seconds = 1000.0
    pool.free(block, 100)

    assert pool.cached == 100
    assert pool.alloc(100) is block


def test_the_device_is_waited_for_before_memory_goes_back(allocator: Any) -> None:
    events: list[str] = []
    pool = LRUAllocator(allocator, "TOY", lambda: events.append("wait"))
    pool.free(pool.alloc(10), 10)
    assert events == []
    pool.free_cache()

    assert events == ["wait"]
    assert not allocator.live


def test_a_device_that_failed_still_gives_memory_back(allocator: Any) -> None:
    def fail() -> None:
        raise DeviceError("hung")

    pool = LRUAllocator(allocator, "TOY", fail)
    pool.free(pool.alloc(10), 10)
    pool.free_cache()

    assert not allocator.live


def test_bytes_are_counted_over_all_devices(
    toy_allocator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStats()
    monkeypatch.setattr("tinycore.device.pool.memory", memory)
    one, other = LRUAllocator(toy_allocator(), "ONE"), LRUAllocator(toy_allocator(), "OTHER")
    block = one.alloc(64)
    other.alloc(8)

    assert memory.used == 72
    assert memory.per_device == {"ONE": 64, "OTHER": 8}
    one.free(block, 64)
    assert (memory.used, memory.cached) == (8, 64)


def test_a_block_freed_by_the_garbage_collector_inside_alloc_does_not_deadlock(
    toy_allocator: Any,
) -> None:
    pool: LRUAllocator

    class Collecting(toy_allocator):  # type: ignore[misc]
        def alloc(self, size: int) -> Any:
            if size == 20:  # as if the garbage collector ran now, in this thread
                pool.free(first, 10)
            return super().alloc(size)

    pool = LRUAllocator(Collecting(), "TOY")
    first = pool.alloc(10)
    pool.alloc(20)
    pool.free_cache()

    assert pool.used == 20


def test_after_close_nothing_is_given_and_nothing_taken(pool: LRUAllocator, allocator: Any) -> None:
    block = pool.alloc(10)
    pool.close()
    pool.free(block, 10)

    with pytest.raises(DeviceError, match="device TOY is closed"):
        pool.alloc(10)


def test_many_threads(toy_allocator: Any) -> None:
    pool = LRUAllocator(toy_allocator(), "TOY")

    def work() -> None:
        for _ in range(300):
            pool.free(pool.alloc(16), 16)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.free_cache()

    assert (pool.used, pool.cached) == (0, 0)
    assert not pool.allocator.live  # type: ignore[attr-defined]


def test_an_interrupt_at_any_line_leaves_the_pool_usable(toy_allocator: Any) -> None:
    def work(pool: LRUAllocator) -> None:
        blocks = [(pool.alloc(size), size) for size in (100, 100, 200)]
        for handle, size in blocks:
            pool.free(handle, size)
        pool.free_cache()

    def interrupted(moment: Moment) -> str:
        pool = LRUAllocator(toy_allocator(), "TOY")
        happened = interrupt(lambda: work(pool), moment)
        with Context(LRU=0):
            work(pool)
        done = threading.Thread(target=pool.alloc, args=(50,), daemon=True)
        done.start()
        done.join(timeout=10)
        assert not done.is_alive(), f"a lock stayed held after an interrupt at {happened}"
        assert pool.cached == 0
        return happened

    moments = moments_of(lambda: work(LRUAllocator(toy_allocator(), "TOY")))
    assert len(list(filter(None, map(interrupted, moments)))) > 100


def test_a_symbolic_size_is_refused_before_its_bytes_are_counted() -> None:
    size = Variable("size", 1, 9).bind(3)
    used = memory.used

    with pytest.raises(ArgumentTypeError):
        Buffer("PYTHON", size, dtypes.float32).ensure_allocated()
    assert memory.used == used


def test_memory_is_found_and_counted_while_an_interrupted_frame_changes_the_pool(
    allocator: Any,
) -> None:
    pool = LRUAllocator(allocator)
    kept = pool.alloc(64)
    with pool._turn.soon:  # a signal handler computes below
        beside = pool.alloc(128)
        pool.free(kept, 64)

    assert (pool.used, pool.cached, pool.peak) == (128, 64, 192)
    pool.free(beside, 128)
    assert (pool.used, pool.cached) == (0, 192)
