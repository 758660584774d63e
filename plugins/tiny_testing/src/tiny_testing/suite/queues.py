"""Level 3, between devices: the capability `queues`, by which devices wait for each other.

Nothing here waits for a device by the host until results are read: what is asked of one
device happens when the other one is ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tiny_testing.suite.case import Level, NotApplicable, Variant, case, second_device
from tiny_testing.suite.kernels import integers
from tiny_testing.suite.order import SIZE, chained, content, graph_of, step
from tiny_testing.suite.subject import Array, Subject
from tinycore import Device
from tinycore.device.open_device import OpenDevice
from tinycore.device.protocols import Handle, Program
from tinycore.errors import DeviceError, DeviceUnavailable

__all__ = [
    "test_a_copier_copies_within_and_between_devices",
    "test_a_copier_says_how_long_it_took",
    "test_a_graph_spans_devices",
    "test_devices_wait_for_each_other",
    "test_the_source_of_a_copy_may_be_written_at_once",
]

BUFFER_BYTES = SIZE * 4


class Pair:
    """The device under test and another one: two subjects, a program and some memory on each."""

    def __init__(self, here: Subject, there: Subject) -> None:
        self.subjects = (here, there)
        self.programs: list[Program] = [step(one, lambda x: x * 3 + 1) for one in self.subjects]
        self.memory: list[list[Handle]] = [
            [one.allocator.alloc(BUFFER_BYTES) for _ in range(2)] for one in self.subjects
        ]

    def copier(self, target: int) -> Program:
        """Copies to the one or the other from its neighbor."""
        found: Program = self.subjects[target].device.copier(
            BUFFER_BYTES, self.subjects[1 - target].device
        )
        return found

    def steps(self) -> list[tuple[Program, list[Handle], list[int]]]:
        """One round: computed here, copied there, computed there, copied back."""
        (a, b), (c, d) = self.memory
        return [
            (self.programs[0], [b, a], []),
            (self.copier(1), [c, b], []),
            (self.programs[1], [d, c], []),
            (self.copier(0), [a, d], []),
        ]

    def write(self, numbers: Array) -> None:
        """Fill the first memory."""
        self.subjects[0].allocator.write(self.memory[0][0], memoryview(numbers.tobytes()))

    def free(self) -> None:
        """Give all memory back."""
        for subject in self.subjects:
            subject.runtime.synchronize()
        for subject, handles in zip(self.subjects, self.memory, strict=True):
            for handle in handles:
                subject.allocator.free(handle)


def neighbor(subject: Subject) -> OpenDevice:
    """Another device of the backend. Raises NotApplicable when it has none."""
    other = f"{subject.target.device}:{1 if subject.target.index == 0 else 0}"
    try:
        found = Device[other]
    except DeviceError as error:
        if isinstance(error, DeviceUnavailable):
            second_device(subject.backend.count())
        raise NotApplicable(f"there is no other device: {error}") from error
    if not found.waits_for(subject.device):
        raise NotApplicable(f"{other} is open through another interface")
    return found


@contextmanager
def pair_of(subject: Subject) -> Iterator[Pair]:
    """The device and its neighbor, with their memory."""
    neighbor(subject)
    target = subject.target
    text = str(target).replace(target.name, f"{target.device}:{0 if target.index else 1}", 1)
    pair = Pair(subject, Subject(text))
    try:
        yield pair
    finally:
        pair.free()


QUEUE_SIZES = tuple(Variant(str(n), n) for n in (1, 3, 4096, 4097, (1 << 21) + 5))


@case(Level.ORDER, "queues", over=QUEUE_SIZES)
def test_a_copier_copies_within_and_between_devices(subject: Subject, size: int) -> None:
    """A copier copies exactly the bytes it is made for."""
    data = integers(size // 4 + 1).tobytes()[:size]
    others = [subject.device]
    with suppress(NotApplicable):
        others.append(neighbor(subject))
    for other in others:
        allocator = other.runtime.allocator
        with subject.memory(data) as source:
            target = allocator.alloc(size + 16)
            allocator.write(target, memoryview(b"\x33" * (size + 16)))
            part = allocator.offset(target, size, 8)
            other.copier(size, subject.device)([part, source], [])
            found = bytearray(size + 16)
            allocator.read(memoryview(found), target)
            other.runtime.synchronize()
            allocator.free(target)
        assert found[8:-8] == data, f"{size} bytes to {other.name} are wrong"
        assert found[:8] + found[-8:] == b"\x33" * 16, "bytes around the copy were changed"


@case(Level.ORDER, "queues")
def test_devices_wait_for_each_other(subject: Subject) -> None:
    """Launches on two devices, and copies between them, happen in the order asked for."""
    x = integers(SIZE)
    with pair_of(subject) as pair:
        pair.write(x)
        for turn in range(20):
            for program, handles, values in pair.steps():
                program(handles, values)
            if turn % 7 == 0:
                found = content(subject, pair.memory[0][0])
                assert (found == chained(x, 2 * turn + 2)).all(), f"turn {turn} differs"
        found = content(subject, pair.memory[0][0])
    assert (found == chained(x, 40)).all(), "a launch or a copy came too early"


@case(Level.ORDER, "queues")
def test_the_source_of_a_copy_may_be_written_at_once(subject: Subject) -> None:
    """Later writes to the source of a copy do not change what was copied."""
    x = integers(SIZE)
    with pair_of(subject) as pair:
        (a, b), (c, d) = pair.memory
        pair.write(x)
        for _ in range(8):
            pair.programs[0]([b, a], [])
            pair.copier(1)([c, b], [])
            pair.programs[0]([b, b], [])
        subject.allocator.write(b, memoryview(integers(SIZE, seed=1).tobytes()))
        pair.programs[1]([d, c], [])
        found = content(pair.subjects[1], d)
    assert (found == chained(x, 2)).all(), "a copy saw what was written after it"


@case(Level.ORDER, "queues")
def test_a_copier_says_how_long_it_took(subject: Subject) -> None:
    """With `wait` a copy returns seconds, without it None."""
    with pair_of(subject) as pair:
        copier, handles = pair.copier(1), [pair.memory[1][0], pair.memory[0][0]]
        assert copier(handles, []) is None
        seconds = copier(handles, [], wait=True)
    assert isinstance(seconds, float), f"a copy with wait returns {seconds!r}"
    assert seconds >= 0


@case(Level.ORDER, "graph", "queues")
def test_a_graph_spans_devices(subject: Subject) -> None:
    """A graph holds launches and copies of two devices, and takes other memory on both."""
    x = integers(SIZE)
    with pair_of(subject) as pair:
        steps: list[Any] = pair.steps()
        graph = graph_of(subject, steps * 3)
        pair.write(x)
        graph()
        graph()
        found = content(subject, pair.memory[0][0])
        assert (found == chained(x, 12)).all(), "a replay differs from its launches"
        with subject.memory(BUFFER_BYTES) as elsewhere:
            graph.set_buffer(11, 0, elsewhere)
            graph()
            assert (content(subject, elsewhere) == chained(x, 18)).all(), "it took no other memory"
            assert (content(subject, pair.memory[0][0]) == chained(x, 16)).all()
