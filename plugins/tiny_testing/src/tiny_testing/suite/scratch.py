"""Level 3: threads with arrays of their own, for which devices keep memory that grows with need.

Such memory is part of what commands were encoded with: a graph that was made before it
grew must not use what has been freed since.
"""

from __future__ import annotations

from typing import Final

import numpy

from tiny_testing.kernels import load, store
from tiny_testing.suite.case import Level, NotApplicable, case
from tiny_testing.suite.kernels import after, at, in_line, integers, loaded, special
from tiny_testing.suite.order import content, graph_of
from tiny_testing.suite.subject import Array, Subject
from tinycore.device.protocols import Program
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["test_a_graph_outlives_the_scratch_it_was_made_with", "test_threads_have_arrays"]

I32: Final = dtypes.int32
ARRAY_SIZES: Final = (24, 1024)
"""Elements of a thread's array: of a small program, and of one that comes later."""
GROUPS: Final = 5
BLOCK_BYTES: Final = 1 << 16
BLOCKS: Final = 16


def turning(subject: Subject, size: int) -> Program:
    """A program whose threads each turn `size` elements around in an array of their own.

    Raises NotApplicable where the language has no such arrays.
    """
    group = special("grid0", GROUPS) if subject.limits.grid else UOp.index(0)
    base = group * size
    array = UOp(Op.DEFINE_REG, I32.ptr(size, "register"), (), 0)
    source, target = (UOp(Op.DEFINE_GLOBAL, I32.ptr(GROUPS * size), (), slot) for slot in (1, 0))
    first, second = UOp.range(size, 0), UOp.range(size, 1)
    kept = store(at(array, first), load(at(source, base + first), I32))
    filled = UOp(Op.END, dtypes.void, (kept, first))
    moved = load(at(array, second * -1 + (size - 1)), I32)
    turned = UOp(Op.END, dtypes.void, (store(at(target, base + second), moved), second))
    uops = (*in_line(base, filled), *after(turned, filled))
    try:
        return loaded(subject, uops, 2, f"turning_{size}")
    except UnsupportedError as error:
        raise NotApplicable(f"threads have no arrays: {error}") from error


def turned(subject: Subject, x: Array, size: int) -> Array:
    """The elements that such a program leaves."""
    rows = x.reshape(GROUPS, size)
    if subject.limits.grid:
        return rows[:, ::-1].reshape(-1)
    return numpy.concatenate([rows[0, ::-1], rows[1:].reshape(-1)])


@case(Level.COMPUTE)
def test_threads_have_arrays(subject: Subject) -> None:
    """Each thread reads from an array of its own what it wrote there, wherever that lies."""
    for size in ARRAY_SIZES:
        program, x = turning(subject, size), integers(GROUPS * size)
        with subject.memory(x.tobytes()) as source, subject.memory(x.tobytes()) as target:
            program([target, source], [])
            found = content(subject, target, len(x))
        wrong = numpy.flatnonzero(found != turned(subject, x, size))
        assert not len(wrong), f"of arrays of {size} elements number {wrong[0] % size} is wrong"


@case(Level.ORDER, "graph")
def test_a_graph_outlives_the_scratch_it_was_made_with(subject: Subject) -> None:
    """A graph runs after a program that came later has made the memory of threads grow."""
    small, large = ARRAY_SIZES
    program, x = turning(subject, small), integers(GROUPS * small)
    blocks = []
    with subject.memory(x.tobytes()) as source, subject.memory(x.tobytes()) as target:
        graph = graph_of(subject, [(program, [target, source], [])])
        graph()
        subject.runtime.synchronize()
        later, y = turning(subject, large), integers(GROUPS * large)
        with subject.memory(y.tobytes()) as origin, subject.memory(y.tobytes()) as result:
            later([result, origin], [])
            found = content(subject, result, len(y))
            assert (found == turned(subject, y, large)).all(), "the later program is wrong"
        for number in range(BLOCKS):  # where the memory may have been that was too small
            blocks.append(subject.allocator.alloc(BLOCK_BYTES))
            subject.allocator.write(blocks[-1], memoryview(bytes([number]) * BLOCK_BYTES))
        subject.allocator.write(target, memoryview(x.tobytes()))
        graph()
        found = content(subject, target, len(x))
        kept = [subject.read(block, BLOCK_BYTES) for block in blocks]
    for block in blocks:
        subject.allocator.free(block)
    assert (found == turned(subject, x, small)).all(), "the graph that was made before is wrong"
    changed = [n for n, held in enumerate(kept) if held != bytes([n]) * BLOCK_BYTES]
    assert not changed, f"the graph wrote to blocks {changed} of {BLOCKS} that are not its own"
