"""Reductions become loops over registers: which share a pass, and what moves into another one."""

from __future__ import annotations

import numpy

from tiny_testing.kernels import Bench, element, load, store
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer, PythonRuntime
from tinycore.config import Context
from tinycore.device.protocols import Toolchain
from tinycore.dtype import dtypes
from tinycore.lower.loops import numbered
from tinycore.lower.registers import nests_of, passes_apart
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

PLAIN = Bench(PythonRuntime(0, ""), Toolchain("PYTHON", "", PythonRenderer(), PythonCompiler()))
DOUBLE = dtypes.float64


def folded(value: UOp, *loops: UOp) -> UOp:
    return UOp(Op.REDUCE, value.dtype, (value, *loops), Op.ADD)


def deep_and_shallow() -> UOp:
    """Over the same counter a sum of products of sums, and a plain sum."""
    i = UOp.range(3, 0)
    r, k, m = (UOp.range(n, number, AxisKind.REDUCE) for n, number in ((4, 1), (5, 2), (5, 3)))
    rows = [load(element(1, DOUBLE, 60, (i * 4 + r) * 5 + step), DOUBLE) for step in (k, m)]
    inner = [folded(row, step) for row, step in zip(rows, (k, m), strict=True)]
    deep = folded(inner[0] * inner[1], r)
    shallow = folded(load(element(2, DOUBLE, 12, i * 4 + r), DOUBLE), r)
    change = store(element(0, DOUBLE, 3, i), deep - shallow)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i)))


def test_a_loop_belongs_to_one_pass() -> None:
    apart = nests_of(passes_apart(deep_and_shallow()))

    owners = [r for loops, _, _ in apart for r in loops]

    assert len(owners) == len(set(owners))


def test_passes_of_different_depth_over_the_same_counter() -> None:
    numbers = numpy.random.default_rng(5)
    x, y = numbers.standard_normal((3, 4, 5)), numbers.standard_normal((3, 4))

    with Context(VERIFY=1):
        result = PLAIN.run(deep_and_shallow(), numpy.zeros(3), x, y)[0]

    numpy.testing.assert_allclose(result, (x.sum(2) ** 2).sum(1) - y.sum(1), 1e-12)


def test_an_online_pass_comes_after_all_that_its_deepest_sum_reads() -> None:
    loops = [UOp.range(4, number, AxisKind.REDUCE) for number in range(3)]
    once = numbered(loops[0], Part.ONLINE)
    value = load(element(1, DOUBLE, 4, loops[2]), DOUBLE)
    inner = folded(
        folded(value, loops[2]) * load(element(2, DOUBLE, 4, loops[1]), DOUBLE), loops[1]
    )
    deep = folded(inner * load(element(3, DOUBLE, 4, once), DOUBLE), once)
    shallow = folded(load(element(4, DOUBLE, 4, once), DOUBLE), once)
    kernel = UOp.sink(store(element(0, DOUBLE, 1, UOp.index(0)), deep - shallow))

    assert [*nests_of(kernel).values()][-1] == [deep, shallow]
