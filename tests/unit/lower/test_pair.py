"""Pairs: two steps of a sum of narrow products, folded at once."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_matrix_product import converted_product
from tests.unit.lower.test_stage import stages_of
from tests.unit.lower.test_tile import run
from tinycore import Tensor
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer, PythonRuntime
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.expand import expand
from tinycore.lower.math import lower_pairs
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.pair import Pair, fits_int16
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import Bind, Plan, Reorder, Split, apply_plan
from tinycore.plugin import ProgramInfo
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.rewrite import rewrite

PAIRS = Limits(vector_bytes=32, vector_registers=16, threads=2, pair_bytes=32)
ROWS, COLUMNS, INNER = (0,), (1,), (3,)


def pairs_of(plan: Plan) -> list[Pair]:
    return [step for step in plan if isinstance(step, Pair)]


def computed(
    ast: UOp, plan: Plan, rows: int, inner: int, columns: int, stored: int | None = None
) -> None:
    """Run a product of int8 in the interpreter under a plan, and compare it with NumPy's.

    Of the left matrix `stored` columns are in memory, all unless said, and repeated.
    """
    linear = lower(ast, PythonRenderer(), "product", plan)
    binary = PythonCompiler().compile(PythonRenderer().render(linear))
    runtime = PythonRuntime(0, "")
    program = runtime.load(binary, ProgramInfo("product", 3, (), parallel=linear.parallel))
    generator = numpy.random.default_rng(0)
    a, b = (
        generator.integers(-128, 128, shape, dtype=numpy.int8)
        for shape in ((rows, inner if stored is None else stored), (inner, columns))
    )
    handles = [runtime.allocator.alloc(size) for size in (rows * columns * 4, a.size, b.size)]
    for handle, data in zip(handles[1:], (a, b), strict=True):
        runtime.allocator.write(handle, memoryview(data.tobytes()))
    program(handles, [], wait=True)
    found = bytearray(rows * columns * 4)
    runtime.allocator.read(memoryview(found), handles[0])
    result = numpy.frombuffer(found, numpy.int32).reshape(rows, columns)
    wide = numpy.broadcast_to(a.astype(numpy.int32), (rows, inner))
    numpy.testing.assert_array_equal(result, wide @ b.astype(numpy.int32))


def dots(ast: UOp, plan: Plan) -> set[int]:
    """Numbers of lanes of a kernel's DOTs."""
    return {n.dtype.count for n in expand(apply_plan(ast, plan)).toposort() if n.op is Op.DOT}


# The step


@pytest.mark.parametrize("inner", [2, 6, 7, 33])
def test_pairs_of_single_numbers(inner: int) -> None:
    ast = converted_product(5, inner, 4, "int8")

    computed(ast, (Pair(INNER),), 5, inner, 4)
    assert dots(ast, (Pair(INNER),)) == {1}


@pytest.mark.parametrize("inner", [6, 7])
def test_pairs_in_lanes_over_columns(inner: int) -> None:
    ast = converted_product(5, inner, 16, "int8")
    plan = (Split(COLUMNS, 8), Bind((1, 1), AxisKind.VECTOR), Pair(INNER))

    computed(ast, plan, 5, inner, 16)
    assert dots(ast, plan) == {8}


def test_a_factor_that_both_steps_of_a_pair_share() -> None:
    left = Tensor.empty(5, 1, dtype="int8", device="PYTHON").expand(5, 6)
    right = Tensor.empty(6, 16, dtype="int8", device="PYTHON")
    ast = left.matmul(right, dtype="int32").schedule()[-1].ast
    plan = (Split(COLUMNS, 8), Bind((1, 1), AxisKind.VECTOR), Pair(INNER))

    computed(ast, plan, 5, 6, 16, stored=1)
    assert dots(ast, plan) == {8}


def test_pairs_in_lanes_over_the_sum() -> None:
    ast = converted_product(5, 37, 3, "int8")
    plan = (Pair(INNER), Split((3, 0), 8), Bind((3, 0, 1), AxisKind.VECTOR))

    computed(ast, plan, 5, 37, 3)
    assert dots(ast, plan) >= {8}


def test_pairs_compose_with_stages() -> None:
    ast = converted_product(13, 9, 27, "int8")
    panel = Stage((1, 0), ((((3, 0), 1),), (((1, 1), 1),), (((3, 1), 1),)))
    plan = (Split(COLUMNS, 8), Bind((1, 1), AxisKind.VECTOR), Reorder(((1, 0), ROWS)))

    computed(ast, (*plan, Pair(INNER), panel), 13, 9, 27)


@pytest.mark.parametrize("pairs_inside", [True, False])
def test_fills_in_pairs_whatever_the_layout(pairs_inside: bool) -> None:
    ast = converted_product(13, 8, 27, "int8")
    steps, columns = (((3, 1), 1),), (((1, 1), 1),)
    inner = (columns, steps) if pairs_inside else (steps, columns)
    fill = [
        Bind((1, 1, Part.FILL, 0), AxisKind.VECTOR),
        Bind((3, 1, Part.FILL, 0), AxisKind.PAIR),
    ]
    plan: Plan = (
        Split(COLUMNS, 8),
        Bind((1, 1), AxisKind.VECTOR),
        Reorder(((1, 0), ROWS)),
        Pair(INNER),
        Stage((1, 0), ((((3, 0), 1),), *inner)),
        *fill,
    )

    applied(ast, plan, PAIRS)
    computed(ast, plan, 13, 8, 27)


def test_only_narrow_products_are_paired() -> None:
    wide = converted_product(5, 6, 7, "int32")
    largest = Tensor.empty(5, 6, dtype="int8", device="PYTHON").max(1).schedule()[-1].ast

    for ast in (wide, largest):
        loop = next(n for n in ast.toposort() if n.op is Op.REDUCE).src[1]
        with pytest.raises(ArgumentError, match="narrow products"):
            apply_plan(ast, (Pair(loop.arg.number),))


def test_what_fits_is_a_matter_of_bounds() -> None:
    byte = UOp.variable("x", 0, 255).cast(dtypes.int32)

    assert fits_int16(byte - 128)
    assert fits_int16(byte * 128)
    assert not fits_int16(byte * 256)


# The plan


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(96, 20, 64), (101, 33, 75), (96, 7, 64)])
def test_products_of_narrow_integers_are_paired(
    dtype: str, rows: int, inner: int, columns: int
) -> None:
    ast = converted_product(rows, inner, columns, dtype)
    plan = plan_for(ast, PAIRS)

    assert pairs_of(plan) == [Pair(INNER)]
    assert dots(ast, plan) >= {8}
    applied(ast, plan, PAIRS)
    if dtype == "int8":
        assert len(stages_of(plan)) == 2
        computed(ast, plan, rows, inner, columns)


def test_pairs_are_work_that_threads_share() -> None:
    plan = plan_for(converted_product(256, 256, 256, "int8"), PAIRS)

    assert Bind((0, 0), AxisKind.PARALLEL) in plan


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [("int32", PAIRS), ("uint16", PAIRS), ("int8", Limits(vector_bytes=32, pair_bytes=16))],
)
def test_what_no_instruction_folds_is_not_paired(dtype: str, limits: Limits) -> None:
    ast = converted_product(96, 20, 64, dtype)

    assert pairs_of(plan_for(ast, limits)) == []


def test_windows_along_an_image_are_not_paired() -> None:
    """With so few channels that results are not scattered, lanes lie along the image."""
    image = Tensor.empty(2, 3, 20, 20, dtype="int8", device="PYTHON")
    weight = Tensor.empty(16, 3, 3, 3, dtype="int8", device="PYTHON")
    ast = image.conv2d(weight, dtype="int32").schedule()[-1].ast

    assert pairs_of(plan_for(ast, PAIRS)) == []


@pytest.mark.slow
def test_windows_along_channels_are_paired() -> None:
    image = Tensor.empty(2, 32, 12, 12, dtype="int8", device="PYTHON")
    weight = Tensor.empty(16, 32, 3, 3, dtype="int8", device="PYTHON")
    ast = image.conv2d(weight, dtype="int32").schedule()[-1].ast
    plan = plan_for(ast, PAIRS)

    assert len(pairs_of(plan)) == 1
    numpy.testing.assert_array_equal(run(ast, plan), run(ast, ()))


# What is left for devices that have no such instruction


@pytest.mark.parametrize(("lanes", "is_lowered"), [(2, True), (8, False), (16, False), (32, True)])
def test_pairs_become_products_where_there_is_no_instruction(lanes: int, is_lowered: bool) -> None:
    vector = dtypes.int16.vec(lanes)
    a, b = (UOp(Op.VECTORIZE, vector, (UOp.const(dtypes.int16, n),) * lanes) for n in (2, 3))
    dot = UOp(Op.DOT, dtypes.int32.vec(lanes // 2), (a, b))

    lowered = rewrite(dot, lower_pairs(32), name="test")

    assert (lowered is not dot) is is_lowered


def test_products_of_equal_rows_are_not_staged_as_pairs() -> None:
    row = Tensor.empty(1, 145, dtype="int8", device="PYTHON").expand(128, 145)
    columns = Tensor.empty(145, 80, dtype="int8", device="PYTHON")
    ast: UOp = row.matmul(columns, dtype="int32").schedule()[-1].ast

    numpy.testing.assert_array_equal(run(ast, plan_for(ast, PAIRS)), run(ast, ()))
