"""Sorted runs merged: one kernel, in pieces that need no other, whatever the plan."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_tile import run
from tests.unit.schedule.graphs import buffer, kernels
from tiny_testing.kernels import Array
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes
from tinycore.errors import VerifyError
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Bind, Split
from tinycore.render.base import Limits
from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Merge, Op
from tinycore.uop.verify import verify

AVX2 = Limits(vector_bytes=32, vector_registers=16)
HOWS = [
    (96, Merge(8, 16, 8)),
    (96, Merge(8, 16, 16)),
    (48, Merge(32, 64, 16)),
    (32, Merge(32, 64, 16)),
    (112, Merge(32, 64, 8)),
    (160, Merge(16, 16, 8)),
    (112, Merge(16, 16, 16)),
    (72, Merge(1, 2, 2)),
]
"""Sizes of an axis, and how its runs are merged: some are ragged, some lose elements."""
DEVICES = ("PYTHON", "CPU")


def runs(rows: int, size: int, run: int, greatest: int = 9) -> Array:
    """Numbers of which every `run` in a row are in order; many are equal."""
    drawn = numpy.random.default_rng([rows, size, run]).integers(-9, greatest, (rows, size))
    for start in range(0, size, run):
        drawn[:, start : start + run].sort()
    return drawn.astype(numpy.int32)


def expected(keys: Array, values: Array, how: Merge) -> Array:
    """Every two runs sorted, by a sort that is stable."""
    parts = []
    for start in range(0, keys.shape[1], 2 * how.run):
        box = slice(start, start + 2 * how.run)
        order = numpy.argsort(keys[:, box], axis=1, kind="stable")[:, : how.kept]
        parts.append(numpy.take_along_axis(values[:, box], order, 1))
    return numpy.concatenate(parts, 1)


def merge_kernel(size: int, how: Merge, dtype: DType = dtypes.int32) -> UOp:
    """The kernel that merges runs of an array of three rows."""
    keys = buffer(3, size, dtype=dtype)
    ast: UOp = kernels(graph.merge(keys, keys, how))[-1].arg.ast
    return ast


@pytest.mark.sample(12)
@pytest.mark.parametrize("device", [pytest.param(d, marks=pytest.mark.device(d)) for d in DEVICES])
@pytest.mark.parametrize(("size", "how"), HOWS)
def test_values_go_along_with_their_keys(size: int, how: Merge, device: str) -> None:
    keys = runs(3, size, how.run)
    places = numpy.arange(3 * size, dtype=numpy.int32).reshape(3, size)
    x, y = Tensor(keys, device=device), Tensor(places, device=device)

    values = Tensor.from_uop(graph.merge(x.uop, y.uop, how)).numpy()
    merged = Tensor.from_uop(graph.merge(x.uop, x.uop, how)).numpy()

    assert (values == expected(keys, places, how)).all()
    assert (merged == expected(keys, keys, how)).all()


@pytest.mark.parametrize("greatest", [-8, 9])
def test_the_greatest_keys_of_a_dtype_are_keys_like_others(greatest: int) -> None:
    how, limits = Merge(16, 32, 8), numpy.iinfo(numpy.int32)
    keys = numpy.where(runs(2, 72, 16, greatest) < 0, limits.min, limits.max).astype(numpy.int32)
    places = numpy.arange(144, dtype=numpy.int32).reshape(2, 72)

    with Context(DEV="PYTHON"):
        found = Tensor.from_uop(graph.merge(Tensor(keys).uop, Tensor(places).uop, how)).numpy()
    assert (found == expected(keys, places, how)).all()


@pytest.mark.parametrize(("size", "how"), HOWS)
def test_a_plan_changes_no_merge(size: int, how: Merge) -> None:
    ast = merge_kernel(size, how, dtypes.float32)

    numpy.testing.assert_array_equal(run(ast, plan_for(ast, AVX2)), run(ast, ()))


@pytest.mark.parametrize("by", [2, 3])
def test_pieces_side_by_side_have_counts_of_their_own(by: int) -> None:
    ast = merge_kernel(112, Merge(32, 64, 8), dtypes.float32)
    plan = (Split((1,), by), Bind((1, 1), AxisKind.UNROLL))

    applied(ast, plan, AVX2)
    numpy.testing.assert_array_equal(run(ast, plan), run(ast, ()))


def test_keys_and_what_goes_along_are_merged_in_one_kernel() -> None:
    keys, values, how = buffer(256, dtype=dtypes.int64), buffer(256), Merge(64, 128, 32)
    (kernel,) = kernels(graph.merge(keys, keys, how), graph.merge(keys, values, how))

    assert kernel.arg.name == "recurrence_8_32"
    assert sum(n.op is Op.RECUR for n in kernel.arg.ast.toposort()) == 1


def test_bisection_takes_as_many_steps_as_a_run_has_bits() -> None:
    (search,) = [
        n for n in merge_kernel(4096, Merge(1024, 2048, 64)).toposort() if n.op is Op.ITERATE
    ]

    assert search.src[2].extent == 11


def test_as_many_kernels_as_levels() -> None:
    with Context(DEV="PYTHON"):
        x = Tensor(numpy.zeros(1 << 14, numpy.float32)).realize()
        found = [item.kernel.arg.name for item in x.argsort().schedule()]

    assert sum(name.startswith("recurrence") for name in found) == 14 - 4
    assert len(found) <= 14


def test_what_is_no_merge() -> None:
    keys = buffer(96)
    for how, other in [
        (Merge(24, 48, 8), keys),
        (Merge(16, 64, 8), keys),
        (Merge(16, 32, 1), keys),
        (Merge(16, 32, 64), keys),
        (Merge(16, 32, 8), buffer(48)),
    ]:
        with pytest.raises(VerifyError):
            verify(UOp(Op.MERGE_AXIS, keys.dtype, (keys, other), how), "tensor")


def test_recurrences_go_in_order_and_keep_their_dtype() -> None:
    zero, one = UOp.index(0), UOp.const(dtypes.int32, 1)
    ordered = UOp.range(4, 0, AxisKind.ORDERED)
    for sources, problem in [
        ((zero, zero, UOp.range(4, 0)), "ORDERED"),
        ((zero, one, ordered), "becomes"),
    ]:
        for op in (Op.RECUR, Op.ITERATE):
            with pytest.raises(VerifyError, match=problem):
                verify(UOp(op, dtypes.index, sources, 0), "kernel")
