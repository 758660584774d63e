"""Arrivals from other processes are in memory before they are used, and not awaited before."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from tiny_mpi.runtime import RankRuntime
from tinycore.errors import GroupError
from tinycore.groups import Array

Log = list[str]


class Sender:
    """A group in which rank 1 has sent to rank 0 what is asked for."""

    rank, size = 0, 1  # nothing is told to others

    def __init__(self, log: Log) -> None:
        self.sent: deque[Array] = deque()
        self.log = log

    def recv(self, source: int) -> Array:
        self.log.append("receive")
        return self.sent.popleft()


class Memory:
    """Device memory on the host, whose handles are arrays."""

    def alloc(self, size: int) -> Array:
        return numpy.zeros(size, numpy.uint8)

    def free(self, handle: Array) -> None:
        pass

    def offset(self, handle: Array, size: int, start: int) -> Array:
        return handle[start : start + size]

    def write(self, dst: Array, src: memoryview) -> None:
        dst[: len(src)] = numpy.frombuffer(src, numpy.uint8)

    def read(self, dst: memoryview, src: Array) -> None:
        dst[:] = src[: len(dst)].data


class Runtime:
    """A device whose program adds one to what it reads."""

    def __init__(self, log: Log) -> None:
        self.allocator, self.log = Memory(), log

    def load(self, binary: bytes, info: Any) -> Any:
        def program(buffers: Sequence[Array], values: Sequence[int], *, wait: bool = False) -> None:
            self.log.append("kernel")
            size = min(map(len, buffers))
            buffers[0][:size] = buffers[1][:size] + 1

        return program

    def graph(self, launches: Sequence[Any]) -> Any:
        kept = [(program, list(handles), values) for program, handles, values in launches]

        class Graph:
            def __call__(self, *, wait: bool = False) -> None:
                for program, handles, values in kept:
                    program(handles, values)

            def set_buffer(self, launch: int, slot: int, handle: Array) -> None:
                kept[launch][1][slot] = handle

        return Graph()

    def synchronize(self) -> None:
        pass

    close = synchronize


class Setting:
    """A device of rank 0, and a stream of bytes that rank 1 sends to it."""

    def __init__(self) -> None:
        self.log: Log = []
        self.group = Sender(self.log)
        self.runtime = RankRuntime(0, self.group, Runtime(self.log))  # type: ignore[arg-type]
        self.memory = self.runtime.allocator
        self.program = self.runtime.load(b"", None)  # type: ignore[arg-type]
        self.other = RankRuntime(1, self.group, Runtime([]))  # type: ignore[arg-type]

    def arrive(self, place: Any, content: Array) -> None:
        self.group.sent.append(content)
        self.memory.copy_from(place, None, len(content), self.other)  # type: ignore[arg-type]

    def content(self, place: Any) -> Array:
        found = numpy.empty(place.size, numpy.uint8)
        self.memory.read(found.data, place)
        return found


def test_kernels_that_do_not_need_it_run_before_it_is_received() -> None:
    setting = Setting()
    sent, near, far = (setting.memory.alloc(4) for _ in range(3))

    setting.arrive(sent, numpy.full(4, 7, numpy.uint8))
    setting.program([near, far], [])
    setting.program([far, near], [])
    setting.program([near, sent], [])

    assert setting.log == ["kernel", "kernel", "receive", "kernel"]
    assert setting.content(near).tolist() == [8] * 4


def test_a_graph_waits_for_what_its_launches_use_now() -> None:
    setting = Setting()
    sent, near, far = (setting.memory.alloc(4) for _ in range(3))
    graph = setting.runtime.graph([(setting.program, [near, sent], [])])
    setting.arrive(sent, numpy.full(4, 7, numpy.uint8))

    graph.set_buffer(0, 1, far)
    graph()
    assert setting.log == ["kernel"]
    graph.set_buffer(0, 1, sent)
    graph()

    assert setting.log == ["kernel", "receive", "kernel"]
    assert setting.content(near).tolist() == [8] * 4


def test_what_arrives_for_freed_memory_goes_nowhere() -> None:
    setting = Setting()
    gone, kept = setting.memory.alloc(4), setting.memory.alloc(4)
    setting.arrive(gone, numpy.full(4, 1, numpy.uint8))
    setting.arrive(kept, numpy.full(4, 2, numpy.uint8))

    setting.memory.free(gone)

    assert setting.content(kept).tolist() == [2] * 4
    assert gone.handle.tolist() == [0] * 4


def test_another_number_of_bytes_is_an_error() -> None:
    setting = Setting()
    place = setting.memory.alloc(4)
    setting.group.sent.append(numpy.zeros(3, numpy.uint8))
    setting.memory.copy_from(place, None, 4, setting.other)  # type: ignore[arg-type]

    with pytest.raises(GroupError, match=r"expects 4 bytes from rank 1, which sent uint8\[3\]"):
        setting.content(place)


@pytest.mark.parametrize("seed", range(60))
def test_random_uses_find_what_receiving_at_once_would_have_left(seed: int) -> None:
    numbers = random.Random(seed)
    setting, size = Setting(), 24
    blocks = [setting.memory.alloc(size) for _ in range(2)]
    truth = [numpy.zeros(size, numpy.uint8) for _ in range(2)]

    def part() -> tuple[Any, Array]:
        number, start = numbers.randrange(2), numbers.randrange(0, size, 2)
        length = numbers.randint(1, size - start)
        place = setting.memory.offset(blocks[number], length, start)
        return place, truth[number][start : start + length]

    for _ in range(60):
        place, true = part()
        content = numpy.frombuffer(numbers.randbytes(len(true)), numpy.uint8)
        match numbers.choice(("arrive", "arrive", "kernel", "graph", "write", "read")):
            case "arrive":
                setting.arrive(place, content)
                true[:] = content
            case "write":
                setting.memory.write(place, content.data)
                true[:] = content
            case "read":
                assert setting.content(place).tolist() == true.tolist(), seed
            case kind:
                source, read = part()
                shorter = min(len(true), len(read))
                if kind == "graph":
                    setting.runtime.graph([(setting.program, [place, source], [])])()
                else:
                    setting.program([place, source], [])
                true[:shorter] = read[:shorter] + 1

    for block, whole in zip(blocks, truth, strict=True):
        assert setting.content(block).tolist() == whole.tolist()
    assert not setting.group.sent
