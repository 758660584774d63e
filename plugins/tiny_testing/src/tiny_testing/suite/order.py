"""Level 3: what is asked of a device happens as if in the order in which it was asked.

Launches and writes may return early; nothing here waits but where the contract says that
waiting happens. What devices of one backend promise each other (the capability `queues`) is in
`queues.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy

from tiny_testing.kernels import elementwise
from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.kernels import integers, loaded, zeros
from tiny_testing.suite.memory import in_threads, mapped
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor, TinyJit
from tinycore.device.buffer import Buffer
from tinycore.device.protocols import Graph, Handle, Program
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.uop.node import UOp

__all__ = [
    "test_a_captured_step_computes_what_it_did",
    "test_a_graph_computes_what_launches_do",
    "test_a_graph_keeps_the_order",
    "test_a_graph_overlaps_only_what_is_independent",
    "test_a_graph_says_how_long_it_took",
    "test_a_graph_takes_other_memory_and_values",
    "test_a_launch_sees_the_write_before_it",
    "test_a_read_waits_for_launches",
    "test_a_write_waits_for_launches",
    "test_copies_wait_for_launches",
    "test_launches_happen_in_order",
    "test_launches_of_a_graph_that_share_memory_are_ordered",
    "test_launches_overlap_only_where_they_are_independent",
    "test_replays_that_follow_each_other_keep_their_values",
    "test_synchronizing_waits",
    "test_thousands_of_launches",
    "test_threads_launch_at_the_same_time",
]

SIZE: Final = 1 << 16
"""Elements: enough that a launch is not over before the next call."""
DEEP: Final = 96
"""Launches that wait in a queue: enough that the last is not done when the next call is made."""
I32: Final = dtypes.int32


def step(subject: Subject, function: Callable[[UOp], UOp], size: int = SIZE) -> Program:
    """A program that computes every element of one buffer from another."""
    graph = elementwise(lambda x: [function(x)], [I32], size)
    kernel = lower(graph, subject.toolchain.renderer, "step")
    return loaded(subject, kernel.uops, 2, kernel.name)


def content(subject: Subject, handle: Handle, size: int = SIZE) -> Array:
    """The integers that a block holds."""
    return numpy.frombuffer(subject.read(handle, size * 4), numpy.int32)


def chained(x: Array, steps: int) -> Array:
    """Result of x * 3 + 1, done so many times over."""
    for _ in range(steps):
        x = x * 3 + 1
    return x


@case(Level.ORDER)
def test_launches_happen_in_order(subject: Subject) -> None:
    """Each launch of a chain sees what the one before it wrote."""
    program = step(subject, lambda x: x * 3 + 1)
    x = integers(SIZE)
    with subject.memory(x.tobytes()) as a, subject.memory(zeros(SIZE).tobytes()) as b:
        for turn in range(50):
            program([b, a] if turn % 2 == 0 else [a, b], [])
        found = content(subject, a)
    assert (found == chained(x, 50)).all(), "a launch did not see what the one before it wrote"


@case(Level.ORDER)
def test_a_launch_sees_the_write_before_it(subject: Subject) -> None:
    """A launch reads what was written just before, not what was there."""
    program = step(subject, lambda x: x + 1)
    with subject.memory(SIZE * 4) as source, subject.memory(SIZE * 4) as target:
        for turn in range(10):
            x = integers(SIZE, seed=turn)
            subject.allocator.write(source, memoryview(x.tobytes()))
            program([target, source], [])
            assert (content(subject, target) == x + 1).all(), f"turn {turn} read old content"


@case(Level.ORDER)
def test_a_write_waits_for_launches(subject: Subject) -> None:
    """A write does not change what a launch before it still reads."""
    program = step(subject, lambda x: x * 5)
    x, other = integers(SIZE), integers(SIZE, seed=1)
    blocks = [subject.allocator.alloc(SIZE * 4) for _ in range(9)]
    source, *targets = blocks
    subject.allocator.write(source, memoryview(x.tobytes()))
    for turn in range(DEEP):
        program([targets[turn % len(targets)], source], [])
    subject.allocator.write(source, memoryview(other.tobytes()))
    found = [content(subject, target) for target in targets]
    for block in blocks:
        subject.allocator.free(block)
    late = [n for n, array in enumerate(found) if (array != x * 5).any()]
    assert not late, f"launches {late} read what was written after they were asked for"


@case(Level.ORDER)
def test_a_read_waits_for_launches(subject: Subject) -> None:
    """A read sees all launches before it, however many."""
    program = step(subject, lambda x: x - 7)
    x = integers(SIZE)
    with subject.memory(x.tobytes()) as a, subject.memory(SIZE * 4) as b:
        for count in (1, 2, 9):
            subject.allocator.write(a, memoryview(x.tobytes()))
            for turn in range(count):
                program([b, a] if turn % 2 == 0 else [a, b], [])
            found = content(subject, b if count % 2 else a)
            assert (found == x - 7 * count).all(), f"a read after {count} launches came too early"


@case(Level.ORDER)
def test_copies_wait_for_launches(subject: Subject) -> None:
    """A copy from buffer to buffer happens between the launches around it."""
    program = step(subject, lambda x: x + 11)
    x = integers(SIZE)
    first, second = Buffer.from_cpu(subject.name, x), Buffer(subject.name, SIZE, I32)
    third = Buffer(subject.name, SIZE, I32)
    program([second.handle, first.handle], [])
    third.copy_from(second)
    program([second.handle, third.handle], [])
    assert (third.numpy() == x + 11).all(), "the copy did not wait for the launch before it"
    assert (second.numpy() == x + 22).all(), "a launch did not wait for the copy before it"


@case(Level.ORDER, "host_memory")
def test_synchronizing_waits(subject: Subject) -> None:
    """After `synchronize` the host sees in place what launches wrote."""
    program = step(subject, lambda x: x ^ 0x55)
    x = integers(SIZE)
    with subject.memory(x.tobytes()) as source, subject.memory(zeros(SIZE).tobytes()) as target:
        for _ in range(5):
            program([target, source], [])
        array = mapped(subject, target, SIZE * 4).view(numpy.int32)
        assert (array == x ^ 0x55).all(), "synchronize() returned before the launches were done"


@case(Level.ORDER)
def test_thousands_of_launches(subject: Subject) -> None:
    """Counters and queues of any length wrap: none of many small launches is lost."""
    program = step(subject, lambda x: x + 1, 64)
    with subject.memory(bytes(256)) as a, subject.memory(bytes(256)) as b:
        for turn in range(5000):
            program([b, a] if turn % 2 == 0 else [a, b], [])
        found = content(subject, a, 64)
    assert found.tolist() == [5000] * 64, f"of 5000 launches {found.min()} to {found.max()} count"


@case(Level.ORDER)
def test_threads_launch_at_the_same_time(subject: Subject) -> None:
    """Threads that launch at once, each on its own memory, do not disturb each other."""
    program = step(subject, lambda x: x * 3 + 1, 500)
    inputs = [integers(500, seed=n) for n in range(4)]
    blocks = [[subject.allocator.alloc(2000) for _ in "ab"] for _ in inputs]
    wrong: list[str] = []

    def work(number: int) -> None:
        a, b = blocks[number]
        try:
            subject.allocator.write(a, memoryview(inputs[number].tobytes()))
            for turn in range(40):
                program([b, a] if turn % 2 == 0 else [a, b], [])
            if (content(subject, a, 500) != chained(inputs[number], 40)).any():
                wrong.append(f"thread {number} computed something else")
        except Exception as error:  # reported by the thread that waits
            wrong.append(f"thread {number}: {type(error).__name__}: {error}")

    in_threads(work, len(inputs))
    for block in blocks:
        for handle in block:
            subject.allocator.free(handle)
    assert not wrong, "; ".join(wrong)


# --- many launches at once


def graph_of(subject: Subject, launches: Sequence[tuple[Program, Sequence[Handle], Any]]) -> Graph:
    """Launches held ready by the device."""
    found: Graph = subject.runtime.graph(launches)  # type: ignore[attr-defined]
    return found


@case(Level.ORDER, "graph")
def test_a_graph_computes_what_launches_do(subject: Subject) -> None:
    """A graph that is replayed again and again does what its launches do one by one."""
    first, second = step(subject, lambda x: x * 3 + 1), step(subject, lambda x: x - 4)
    x = integers(SIZE)
    with subject.memory(x.tobytes()) as a, subject.memory(SIZE * 4) as b:
        graph = graph_of(subject, [(first, [b, a], []), (second, [a, b], [])])
        expected = x
        for turn in range(5):
            graph()
            expected = expected * 3 + 1 - 4
            assert (content(subject, a) == expected).all(), f"replay {turn} differs"


@case(Level.ORDER, "graph")
def test_a_graph_keeps_the_order(subject: Subject) -> None:
    """Inside a graph, and between it and what is around it, everything happens in order."""
    program = step(subject, lambda x: x * 3 + 1)
    x, other = integers(SIZE), integers(SIZE, seed=1)
    with subject.memory(x.tobytes()) as a, subject.memory(SIZE * 4) as b:
        turns = [[b, a] if turn % 2 == 0 else [a, b] for turn in range(10)]
        graph = graph_of(subject, [(program, handles, []) for handles in turns])
        for turn in range(DEEP):
            program([b, a] if turn % 2 == 0 else [a, b], [])
        graph()
        graph()
        expected = chained(x, DEEP + 20)
        assert (content(subject, a) == expected).all(), "a launch of a graph came too early"
        subject.allocator.write(a, memoryview(other.tobytes()))
        graph()
        assert (content(subject, a) == chained(other, 10)).all(), "a graph did not see a write"


class Exchange:
    """Random launches between parts of a few blocks, and the content that they are to leave."""

    BLOCKS: Final = 4
    LAUNCHES: Final = 24

    def __init__(self, subject: Subject, seed: int) -> None:
        random = numpy.random.default_rng(seed)
        self.subject = subject
        self.blocks = [subject.allocator.alloc(SIZE * 4) for _ in range(self.BLOCKS)]
        self.content = [integers(SIZE, seed + n) for n in range(self.BLOCKS)]
        for block, numbers in zip(self.blocks, self.content, strict=True):
            subject.allocator.write(block, memoryview(numbers.tobytes()))
        programs = [step(subject, lambda x: x * 3 + 1, SIZE // parts) for parts in (1, 2)]
        self.moves: list[tuple[int, slice, int, slice]] = []
        self.launches: list[tuple[Program, list[Handle], Any]] = []
        for _ in range(self.LAUNCHES):
            target, source = [int(n) for n in random.permutation(self.BLOCKS)[:2]]
            cut = int(random.integers(2))
            to, of = [slice_of(cut, int(half)) for half in random.integers(2, size=2)]
            self.moves.append((target, to, source, of))
            handles = [self.part(target, to), self.part(source, of)]
            self.launches.append((programs[cut], handles, []))

    def part(self, block: int, part: slice) -> Handle:
        """A part of a block."""
        size = (part.stop - part.start) * 4
        return self.subject.allocator.offset(self.blocks[block], size, part.start * 4)

    def expect(self) -> None:
        """Do the launches once on the host."""
        for target, to, source, of in self.moves:
            self.content[target][to] = self.content[source][of] * 3 + 1

    def check(self) -> None:
        """Compare the blocks with the content expected, and free them."""
        found = [content(self.subject, block) for block in self.blocks]
        wrong = [n for n, x in enumerate(found) if (x != self.content[n]).any()]
        self.subject.runtime.synchronize()
        for block in self.blocks:
            self.subject.allocator.free(block)
        assert not wrong, f"blocks {wrong} of {self.BLOCKS} differ from launches done in order"


def slice_of(cut: int, half: int) -> slice:
    """All elements, or where they are cut in two one half."""
    return slice(half * SIZE // 2, (half + 1) * SIZE // 2) if cut else slice(0, SIZE)


SEEDS: Final = tuple(Variant(f"seed{n}", n) for n in range(3))


@case(Level.ORDER, over=SEEDS)
def test_launches_overlap_only_where_they_are_independent(subject: Subject, seed: int) -> None:
    """Launches that read and write parts of the same memory in turns leave what an order leaves."""
    exchange = Exchange(subject, seed)
    for program, handles, values in exchange.launches:
        program(handles, values)
    exchange.expect()
    exchange.check()


@case(Level.ORDER, "graph", over=SEEDS)
def test_a_graph_overlaps_only_what_is_independent(subject: Subject, seed: int) -> None:
    """So do those of a graph, where memory is written after others read it, part by part."""
    exchange = Exchange(subject, seed)
    graph = graph_of(subject, exchange.launches)
    for _ in range(3):
        graph()
        exchange.expect()
    exchange.check()


@case(Level.ORDER, "graph")
def test_a_graph_takes_other_memory_and_values(subject: Subject) -> None:
    """`set_buffer` and `set_value` change what the next replay uses, and nothing else."""
    n = UOp.variable("n", -1000, 1000)
    kernel = subject.bench.lower(elementwise(lambda x: [x + n.cast(I32)], [I32], 100))
    program = loaded(subject, kernel.uops, 2, kernel.name)
    x, y = integers(100), integers(100, seed=1)
    blocks = [subject.allocator.alloc(400) for _ in range(4)]
    a, b, c, d = blocks
    subject.allocator.write(a, memoryview(x.tobytes()))
    subject.allocator.write(c, memoryview(y.tobytes()))
    graph = graph_of(subject, [(program, [b, a], [10]), (program, [d, b], [-20])])
    graph()
    assert (content(subject, d, 100) == x - 10).all(), "the first replay is wrong"
    graph.set_buffer(0, 1, c)
    graph.set_value(1, 0, 500)
    graph()
    assert (content(subject, d, 100) == y + 510).all(), "a replay with other memory is wrong"
    graph()
    assert (content(subject, d, 100) == y + 510).all(), "what was set did not stay"
    subject.runtime.synchronize()
    for block in blocks:
        subject.allocator.free(block)


@case(Level.ORDER, "graph")
def test_replays_that_follow_each_other_keep_their_values(subject: Subject) -> None:
    """Values set for the next replay leave one that is under way unchanged."""
    n = UOp.variable("n", -1000, 1000)
    size = 1 << 8  # one thread computes it all
    kernel = subject.bench.lower(elementwise(lambda x: [x * 3 + n.cast(I32)], [I32], size))
    program = loaded(subject, kernel.uops, 2, kernel.name)
    x = integers(size)
    with subject.memory(x.tobytes()) as a, subject.memory(size * 4) as b:
        graph = graph_of(subject, [(program, [b, a], [0]), (program, [a, b], [0])])
        expected = x
        for turn in range(8):
            graph.set_value(0, 0, turn)
            graph.set_value(1, 0, -100 * turn)
            graph()
            expected = (expected * 3 + turn) * 3 - 100 * turn
        assert (content(subject, a, size) == expected).all(), "a replay took values of a later one"


@case(Level.ORDER, "graph")
def test_launches_of_a_graph_that_share_memory_are_ordered(subject: Subject) -> None:
    """Launches may overlap where none writes what another one touches, and nowhere else."""
    size, chance = 1 << 6, numpy.random.default_rng(1)
    kernel = subject.bench.lower(elementwise(lambda x, y: [x * 3 + y], [I32, I32], size))
    program = loaded(subject, kernel.uops, 3, kernel.name)
    expected = [integers(size, seed=seed) for seed in range(8)]
    blocks = [subject.allocator.alloc(size * 4) for _ in expected]
    for block, numbers in zip(blocks, expected, strict=True):
        subject.allocator.write(block, memoryview(numbers.tobytes()))
    steps = [chance.permutation(len(blocks))[:3].tolist() for _ in range(24)]
    graph = graph_of(subject, [(program, [blocks[n] for n in step], []) for step in steps])
    for _ in range(3):
        graph()
        for out, a, b in steps:
            expected[out] = expected[a] * 3 + expected[b]
    wrong = [
        number
        for number, (block, numbers) in enumerate(zip(blocks, expected, strict=True))
        if (content(subject, block, size) != numbers).any()
    ]
    assert not wrong, f"blocks {wrong} of {len(blocks)} differ: launches overlapped"
    subject.runtime.synchronize()
    for block in blocks:
        subject.allocator.free(block)


@case(Level.ORDER, "graph")
def test_a_graph_says_how_long_it_took(subject: Subject) -> None:
    """With `wait` a replay returns seconds, without it None."""
    program = step(subject, lambda x: x + 1)
    with subject.memory(SIZE * 4) as a, subject.memory(SIZE * 4) as b:
        graph = graph_of(subject, [(program, [b, a], []), (program, [a, b], [])])
        assert graph() is None
        seconds = graph(wait=True)
    assert isinstance(seconds, float), f"a replay with wait returns {seconds!r}"
    assert seconds >= 0


@case(Level.ORDER)
def test_a_captured_step_computes_what_it_did(subject: Subject) -> None:
    """A TinyJit step, captured and replayed on other inputs, equals the step run eagerly."""

    def work(x: Tensor, y: Tensor) -> Tensor:
        z = (x @ y).relu().realize()
        return (z + z.sum(axis=0)).realize()

    captured = TinyJit(work)
    for turn in range(5):
        x, y = (
            subject.tensor(integers(35, seed=turn * 2 + n).reshape(shape), I32)
            for n, shape in enumerate(((5, 7), (7, 5)))
        )
        assert (captured(x, y).numpy() == work(x, y).numpy()).all(), f"call {turn} differs"
