"""Kinds of memory: by who writes and who reads it, and by how the host reaches it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from delayed_copies import DelayedCopies
from queue_machine import CopyCommands, QueuedDevice, add, number_in, zero

from tiny_hcq import Place, fence
from tinycore import Context
from tinycore.device import host_copies
from tinycore.errors import UnsupportedError

Make = Callable[..., QueuedDevice]
SIZE = 50_000


def test_a_driver_is_told_what_memory_is_for(device: QueuedDevice) -> None:
    places = device.allocator.places
    assert places == {Place.SIGNALS: 1}

    memory = device.allocator.alloc(8)
    assert places[Place.LOCAL] == 1
    device.allocator.write(memory, memoryview(bytes(8)))
    assert places[Place.STAGING] == 1
    device.function(add, 1, 1)([memory], [1])
    assert places[Place.COMMANDS] == 1


def test_a_driver_with_two_kinds_of_memory_says_visible_or_not(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocator as drivers for plugin API versions before 1.12 have it."""
    asked = []
    allocator, known = device.allocator, device.allocator.allocate_at

    def allocate(size: int, visible: bool) -> object:
        asked.append(visible)
        return known(size, Place.STAGING if visible else Place.LOCAL)

    monkeypatch.delattr(type(allocator), "allocate_at")
    monkeypatch.setattr(allocator, "allocate", allocate)

    allocator.alloc(8)
    allocator.alloc_visible(8)
    allocator.alloc_visible(8, Place.SIGNALS)

    assert asked == [False, True, True]


@pytest.mark.parametrize("seed", [None, 1])
def test_memory_that_the_host_reaches_by_calls(make: Make, seed: int | None) -> None:
    device, other = make(windows=True, seed=seed), make(seed=seed)
    device.TIMELINE_LIMIT = 20  # type: ignore[misc]
    memory, there = zero(device), zero(other)
    program = device.function(add, 1, 1)
    graph = device.graph([(program, [memory], [1]), (program, [memory], [10])])

    for number in range(10):
        program([memory], [number])
        graph.set_value(1, 0, 100 * number)
        graph()
        other.copier(8, device)([there, memory])
    second = zero(device)
    graph.set_buffer(0, 0, second)
    graph()

    assert number_in(device, memory) == 45 + 10 + 4500 + 900
    assert number_in(device, second) == 1
    assert number_in(other, there) == 45 + 10 + 4500
    assert program([memory], [1], wait=True) is not None
    assert device.calls > 0
    with pytest.raises(UnsupportedError, match="does not see"):
        device.allocator.map(device.allocator.alloc_visible(8), 8)


def test_memory_that_is_read_slowly_is_copied_by_a_queue(device: QueuedDevice) -> None:
    slow = device.allocator.alloc_visible(SIZE, Place.COMMANDS)
    fast = device.allocator.alloc_visible(SIZE, Place.STAGING)
    content, found = os.urandom(SIZE), bytearray(SIZE)
    assert (slow.readable, slow.offset(8, 8).readable, fast.readable) == (False, False, True)
    copied = []
    for memory in (slow, fast):
        device.allocator.write(memory, memoryview(content))
        device.synchronize()
        before = device.engines[1].executed
        device.allocator.read(memoryview(found), memory)
        copied.append(device.engines[1].executed > before)
        assert found == content

    assert copied == [True, False]


def test_much_is_written_to_a_busy_device_without_waiting_for_it(device: QueuedDevice) -> None:
    size = 1 << 16
    memory = device.allocator.alloc_visible(size, Place.STAGING)
    content, found = os.urandom(size), bytearray(size)
    device.allocator.write(memory, memoryview(bytes(size)))
    device.allocator.staging_buffers = 64
    program = device.function(add, 1, 1)
    gate = device.new_signal()
    device.compute_queue().wait(gate, 1).submit()
    program([memory], [5])

    device.allocator.write(memory, memoryview(content))  # a wait would end in an error

    threading.Timer(0.05, lambda: setattr(gate, "value", 1)).start()
    device.allocator.read(memoryview(found), memory)
    assert found == content


def test_a_device_that_copies_nothing_is_waited_for(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that shares all memory with the host."""
    monkeypatch.delattr(CopyCommands, "copy")
    memory = device.allocator.alloc_visible(1 << 16, Place.COMMANDS)
    program, counter = device.function(add, 1, 1), device.allocator.alloc_visible(8)
    device.allocator.write(counter, memoryview(bytes(8)))
    for number in range(50):
        program([counter], [number])
    content, found = os.urandom(1 << 16), bytearray(1 << 16)

    device.allocator.write(memory, memoryview(content))

    assert device.is_idle
    device.allocator.read(memoryview(found), memory)
    assert found == content
    assert number_in(device, counter) == sum(range(50))


def test_large_copies_pin_the_memory_of_the_host(device: QueuedDevice) -> None:
    device.allocator.pins = True
    memory = device.allocator.alloc(SIZE)
    content, found = os.urandom(SIZE), bytearray(SIZE)

    device.allocator.write(memory, memoryview(content))
    device.allocator.read(memoryview(found), memory)

    assert found == content
    assert device.allocator.pinned == 0
    assert device.allocator.places[Place.STAGING] == 0
    device.allocator.write(memory, memoryview(content[:100]))
    assert device.allocator.places[Place.STAGING] == 1


def test_a_fence_leaves_no_lock_behind() -> None:
    thread = threading.Thread(target=fence)
    fence()
    thread.start()
    thread.join(5)

    assert not thread.is_alive()


@pytest.mark.parametrize("buffers", [1, 2, 3, 7])
def test_staging_buffers_go_in_order_however_long_their_copies_take(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch, buffers: int
) -> None:
    copies = DelayedCopies(monkeypatch)
    monkeypatch.setattr(host_copies, "LEAST_BYTES", 1)
    device.allocator.staging_buffers = buffers
    memory = device.allocator.alloc(SIZE)
    content, found = bytearray(os.urandom(SIZE)), bytearray(SIZE)
    then = bytes(content)
    with Context(CPU_COUNT=4):
        device.allocator.write(memory, memoryview(content))
        assert not copies.under_way
        content[:] = bytes(SIZE)
        device.allocator.read(memoryview(found), memory)

    assert not copies.under_way
    assert found == then
    assert device.allocator.places[Place.STAGING] <= buffers
    assert next(copies.begun) == 2 * -(-SIZE // device.allocator.staging_bytes)


@pytest.mark.parametrize("reads", [False, True])
def test_an_interrupt_waits_for_copies_under_way(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    device.allocator.staging_buffers = 8
    memory, content = device.allocator.alloc(SIZE), bytearray(SIZE)
    device.allocator.write(memory, memoryview(content))
    copies, known = itertools.count(), device.allocator.copy
    under_way = list[int]()

    def slowly(target: memoryview, source: memoryview) -> None:
        under_way.append(1)
        time.sleep(0.02)
        under_way.pop()

    def interrupted(*arguments: Any) -> Any:
        if next(copies) == 4:
            raise KeyboardInterrupt
        return known(*arguments)

    monkeypatch.setattr(host_copies, "move", slowly)
    monkeypatch.setattr(host_copies, "LEAST_BYTES", 1)
    monkeypatch.setattr(device.allocator, "copy", interrupted)
    write, read = device.allocator.write, device.allocator.read
    with Context(CPU_COUNT=4), pytest.raises(KeyboardInterrupt):
        read(memoryview(content), memory) if reads else write(memory, memoryview(content))

    assert not under_way
