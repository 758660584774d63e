"""Running folds: one kernel each that goes through the axis once, planned for lanes and rows."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.lower.test_tile import run
from tests.unit.schedule.graphs import DEVICE, buffer, kernels
from tiny_testing.kernels import element, load, store
from tinycore import Context, Tensor, Variable
from tinycore.errors import GradientError, VerifyError
from tinycore.lower.plan import plan_for
from tinycore.render.base import Limits
from tinycore.tensor import graph
from tinycore.tensor.methods import prefix_scan
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.verify import verify

AVX2 = Limits(vector_bytes=32, vector_registers=16)


def scan(*shape: int, axis: int, op: Op = Op.ADD) -> UOp:
    """The kernel of a scan."""
    ast: UOp = kernels(graph.scan(buffer(*shape), op, axis))[-1].arg.ast
    return ast


@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX, Op.MIN])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plan_changes_no_scan(axis: int, op: Op) -> None:
    ast = scan(9, 11, 19, axis=axis, op=op)

    numpy.testing.assert_array_equal(run(ast, plan_for(ast, AVX2)), run(ast, ()))


def test_each_element_is_read_and_written_once() -> None:
    """An axis folded so far in a number of steps that grows as the axis does."""
    ast = scan(7, 1000, axis=1)
    moved = [n for n in ast.toposort() if n.op in (Op.LOAD, Op.STORE)]

    assert [r.extent for n in moved for r in sorted(n.ranges, key=lambda r: r.arg)] == [7, 1000] * 2
    assert kernels(graph.scan(buffer(7, 1000), Op.ADD, 1))[-1].arg.name == "scan_7_1000"


def test_columns_are_lanes_and_rows_go_together() -> None:
    down, along = scan(64, 128, axis=0), scan(64, 128, axis=1)

    kinds = {step.kind for step in plan_for(down, AVX2) if hasattr(step, "kind")}
    assert kinds == {AxisKind.VECTOR, AxisKind.UNROLL}
    kinds = {step.kind for step in plan_for(along, AVX2) if hasattr(step, "kind")}
    assert kinds == {AxisKind.UNROLL}


def test_what_follows_a_scan_reads_it_from_memory() -> None:
    found = kernels(graph.scan(buffer(4, 5), Op.ADD, 1) * buffer(4, 5))

    assert [kernel.arg.name for kernel in found] == ["scan_4_5", "elementwise_4_5"]


def test_a_scan_goes_in_order() -> None:
    i = UOp.range(8, 0)
    value = load(element(1, numbers := buffer(8).dtype, 8, i), numbers)
    change = store(element(0, numbers, 8, i), UOp(Op.SCAN, numbers, (value, i), Op.ADD))

    with pytest.raises(VerifyError, match="ORDERED"):
        verify(UOp.sink(UOp(Op.END, change.dtype, (change, i))), "kernel")


@pytest.mark.parametrize("shape", [(1, 30), (3, 25), (25, 3), (2, 5, 26)])
def test_pieces_of_a_long_axis(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Few rows: the axis is cut, and pieces of pieces too."""
    monkeypatch.setattr(prefix_scan, "LONGEST_SCAN", 4)
    monkeypatch.setattr(prefix_scan, "MANY_ROWS", 8)
    numbers = numpy.random.default_rng(3).integers(-9, 9, shape).astype(numpy.int32)
    with Context(DEV="PYTHON"):
        for axis in range(len(shape)):
            x = Tensor(numbers)
            assert (x.cumsum(axis).numpy() == numbers.cumsum(axis)).all()
            expected = numpy.maximum.accumulate(numbers, axis)
            assert (x.cummax(axis)[0].numpy() == expected).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scan_of_equal_numbers_begins_anew_in_each_row(axis: int) -> None:
    """The folded value depends on no other loop, and yet each row has sums of its own."""
    ones = UOp(Op.CONST, buffer(1).dtype, (DEVICE,), 1.0)
    whole = graph.expand(graph.reshape(ones, (1, 1, 1)), (9, 11, 19))
    ast = kernels(graph.scan(whole, Op.ADD, axis))[-1].arg.ast
    expected = numpy.ones((9, 11, 19)).cumsum(axis)

    for plan in ((), plan_for(ast, AVX2)):
        numpy.testing.assert_array_equal(run(ast, plan).reshape(9, 11, 19), expected)


def test_an_axis_whose_length_only_a_launch_knows() -> None:
    numbers = numpy.arange(24, dtype=numpy.float32).reshape(6, 4)
    with Context(DEV="PYTHON"):
        x = Tensor(numbers).realize()
        for length in (2, 5):
            found = x[: Variable("n", 1, 6).bind(length)].cumsum(0).sum(1)
            expected = numbers[:length].cumsum(0).sum(1)
            assert found.contiguous().numpy()[:length].tolist() == expected.tolist()


def test_only_sums_have_a_derivative() -> None:
    x = Tensor([1.0, 2.0, 3.0], device="PYTHON")
    peak = Tensor.from_uop(graph.scan(x.uop, Op.MAX, 0))

    with pytest.raises(GradientError, match="no derivative"):
        peak.sum().gradient(x)
