"""Copies of host memory by threads."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tinycore import Context
from tinycore._background import Crew
from tinycore.device import host_copies
from tinycore.device.host_copies import copied, host_copy


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    with Context(CPU_COUNT=3):
        yield


def test_a_large_copy_is_done_when_it_was_waited_for() -> None:
    source = memoryview(bytes(range(256)) * 4096)
    target = bytearray(len(source) + 5)

    wait = host_copy(memoryview(target), source)
    wait()
    wait()

    assert target == bytes(source) + bytes(5)
    assert wait is not copied


def test_a_small_copy_is_done_at_once() -> None:
    target = bytearray(8)

    assert host_copy(memoryview(target), memoryview(b"abcd")) is copied
    assert target == b"abcd" + bytes(4)


def test_one_processor_copies_at_once() -> None:
    source = memoryview(bytearray(host_copies.LEAST_BYTES))
    with Context(CPU_COUNT=1):
        assert host_copy(memoryview(bytearray(len(source))), source) is copied


def test_an_ending_interpreter_copies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: object, arguments: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    monkeypatch.setattr(host_copies, "threads", Crew)
    source, target = memoryview(bytearray(b"x" * (1 << 20))), bytearray(1 << 20)

    assert host_copy(memoryview(target), source) is copied
    assert target == source


def test_memory_is_kept_until_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(target: memoryview, source: memoryview) -> None:
        time.sleep(0.05)
        target[: len(source)] = source

    monkeypatch.setattr(host_copies, "move", slowly)
    source, target = bytearray(b"y" * (1 << 20)), bytearray(1 << 20)
    wait = host_copy(memoryview(target), memoryview(source))

    with pytest.raises(BufferError):
        source.clear()  # the copy has a view of it
    wait()

    assert target == source
