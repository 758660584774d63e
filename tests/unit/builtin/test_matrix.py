"""MATRIX in the interpreter: products by lane maps, and what a card would not forgive."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.builtin.test_interpreter import at, buffer, end, load, special, store
from tests.unit.lower.matrices import MMA, WMMA
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer, PythonRuntime
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.plugin import ProgramInfo
from tinycore.render.base import LinearKernel
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

OUT = buffer(0, 16 * 16)


def ones_by(unit: MatrixUnit, a: UOp | None = None) -> UOp:
    """A product of matrices of 1, or of one whose fragments are `a`, stored by each lane."""
    fragments = [UOp.const(unit.fragment(name).vector, 1) for name in ("a", "b", "out")]
    if a is not None:
        fragments[0] = a
    return UOp(Op.MATRIX, unit.fragment("out").vector, tuple(fragments), unit)


def run(lines: list[UOp]) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]:
    text = PythonRenderer().render(LinearKernel("by_hand", tuple(lines)))
    runtime = PythonRuntime(0, "")
    program = runtime.load(PythonCompiler().compile(text), ProgramInfo("by_hand", 1, ()))
    handle = runtime.allocator.alloc(16 * 16 * 4)
    program([handle], [])
    return handle.view(numpy.float32).copy()


def lines_of(*roots: UOp) -> list[UOp]:
    order: dict[UOp, None] = {}
    for root in roots:
        order.update(dict.fromkeys(root.toposort(lambda node: node not in order)))
    return list(order)


def stored(value: UOp, thread: UOp) -> UOp:
    first = UOp(Op.EXTRACT, dtypes.float32, (value,), (0,))
    return store(at(OUT, thread), first)


def test_a_sum_goes_on_from_its_third_operand() -> None:
    thread = special("block0", 32)
    found = run(lines_of(stored(ones_by(MMA), thread)))

    assert found[:32].tolist() == [17.0] * 32


def test_several_subgroups_multiply_each_its_own() -> None:
    thread, other = special("block0", 32), special("block1", 4)
    value = other.cast(dtypes.float16)
    a = UOp(Op.VECTORIZE, dtypes.float16.vec(8), (value,) * 8)
    found = run(lines_of(stored(ones_by(MMA, a), other * 32 + thread)))

    assert found[:128].reshape(4, 32).tolist() == [[1.0 + 16 * row] * 32 for row in range(4)]


def test_a_group_of_part_of_a_subgroup_is_refused() -> None:
    with pytest.raises(DeviceError, match="subgroups of 32 threads, a group of 48"):
        run(lines_of(stored(ones_by(MMA), special("block0", 48))))


def test_lanes_that_hold_one_element_hold_one_value() -> None:
    thread = special("block0", 32)
    value = thread.cast(dtypes.float16)
    a = UOp(Op.VECTORIZE, dtypes.float16.vec(16), (value,) * 16)

    with pytest.raises(DeviceError, match="hold different values"):
        run(lines_of(stored(ones_by(WMMA, a), thread)))


def test_a_part_of_a_subgroup_that_multiplies_is_found() -> None:
    thread = special("block0", 32)
    rounds = UOp.range(thread + 1, 0)
    x = load(at(OUT, thread))
    body = stored(ones_by(MMA), thread)

    with pytest.raises(DeviceError, match="reached by a part of a subgroup"):
        run([*lines_of(thread, x, rounds), *lines_of(body)[0:], end(rounds, body)])
