"""Levels 2 and 3: launches whose size follows from the values that they are given.

Loops of symbolic length become groups of a grid where `Limits.grid_varies` is stated, and
stay loops elsewhere; both compute the same, and leave what is beyond the length as it was.
"""

from __future__ import annotations

from typing import Final

import numpy

from tiny_testing.kernels import element, load, store
from tiny_testing.suite.case import Level, NotApplicable, case
from tiny_testing.suite.kernels import grid_limits, integers, loaded_kernel, results, zeros
from tiny_testing.suite.order import content, graph_of
from tiny_testing.suite.subject import Array, Subject
from tinycore.device.protocols import Program
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.steps.bind import Bind
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

__all__ = [
    "test_a_graph_launches_the_groups_of_its_values",
    "test_a_launch_has_the_groups_of_its_value",
    "test_loops_of_symbolic_length",
]

MOST_STEPS: Final = 300
ELEMENTS: Final = MOST_STEPS + 100
"""Size of memory, larger than the computed part."""
ROWS: Final = 8
LENGTHS: Final = (1, 2, 63, 64, 65, 299, MOST_STEPS, 7)
I32: Final = dtypes.int32


def length() -> UOp:
    """A variable of a launch: the number of computed elements."""
    return UOp.variable("n", 1, MOST_STEPS)


def tripling(subject: Subject) -> Program:
    """A program of as many groups as `length` says, each of which triples one element.

    A group beyond those would triple an element that is to stay. A loop, where grids do not vary.
    """
    varies = subject.limits.grid is not None and subject.limits.grid_varies
    place = UOp.range(length(), 0)
    value = load(element(1, I32, ELEMENTS, place), I32) * 3
    change = store(element(0, I32, ELEMENTS, place), value)
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, place)))
    plan = (Bind((0,), AxisKind.GRID),) if varies else ()
    linear = lower(kernel, subject.toolchain.renderer, "tripling", plan)
    assert bool(linear.sizes) is varies, "a loop of symbolic length was not launched as groups"
    return loaded_kernel(subject, linear, 2)


def tripled(x: Array, count: int) -> Array:
    """The content that such a program leaves."""
    found = zeros(len(x))
    found[:count] = x[:count] * 3
    return found


@case(Level.COMPUTE)
def test_a_launch_has_the_groups_of_its_value(subject: Subject) -> None:
    """As many groups are launched as the value of a variable needs, no more and no fewer."""
    limits, _ = grid_limits(subject)
    if not limits.grid_varies:
        raise NotApplicable("its limits do not state that grids vary: loops stay in a thread")
    program = tripling(subject)
    x = integers(ELEMENTS)
    for count in LENGTHS:
        found, _ = results(subject, program, [zeros(ELEMENTS), x], [count])
        wrong = numpy.flatnonzero(found != tripled(x, count))
        assert not len(wrong), (
            f"of the groups for {count} elements some are missing or too many: element {wrong[0]} "
            f"is {found[wrong[0]]}"
        )


@case(Level.COMPUTE)
def test_loops_of_symbolic_length(subject: Subject) -> None:
    """Loops over outputs and over a sum are as long as a variable says, planned for a device."""
    n = length()
    row, column = UOp.range(ROWS, 0), UOp.range(n, 1)
    step = UOp.range(n, 2, AxisKind.REDUCE)
    elements = ROWS * MOST_STEPS
    factor = load(element(1, I32, elements, row * MOST_STEPS + step), I32)
    total = UOp(Op.REDUCE, I32, (factor, step), Op.ADD)
    own = load(element(1, I32, elements, row * MOST_STEPS + column), I32)
    change = store(element(0, I32, elements, row * MOST_STEPS + column), own + total)
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, row, column)))
    linear = lower(kernel, subject.toolchain.renderer, "varying")
    program = loaded_kernel(subject, linear, 2)
    x = integers(elements).reshape(ROWS, MOST_STEPS)
    for count in LENGTHS:
        found, _ = results(subject, program, [zeros(elements), x], [count])
        expected = zeros(elements).reshape(ROWS, MOST_STEPS)
        part = x[:, :count]
        expected[:, :count] = part + part.sum(axis=1, dtype=numpy.int32, keepdims=True)
        shown = found.reshape(ROWS, MOST_STEPS)
        wrong = numpy.argwhere(shown != expected)
        assert not len(wrong), (
            f"with loops of {count} steps {len(wrong)} elements are wrong; that of row "
            f"{wrong[0][0]}, column {wrong[0][1]} is {shown[tuple(wrong[0])]}"
        )


@case(Level.ORDER, "graph")
def test_a_graph_launches_the_groups_of_its_values(subject: Subject) -> None:
    """A replay launches the groups of the values that it was given last, more or fewer."""
    program = tripling(subject)
    x = integers(ELEMENTS)
    with subject.memory(x.tobytes()) as source, subject.memory(x.nbytes) as target:
        graph = graph_of(subject, [(program, [target, source], [5])])
        for count in (5, 200, 1, MOST_STEPS, 64):
            subject.allocator.write(target, memoryview(zeros(len(x)).tobytes()))
            graph.set_value(0, 0, count)
            graph()
            found = content(subject, target, len(x))
            wrong = numpy.flatnonzero(found != tripled(x, count))
            assert not len(wrong), (
                f"a replay for {count} elements launched other groups: element {wrong[0]} is "
                f"{found[wrong[0]]}"
            )
