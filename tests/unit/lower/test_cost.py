"""Strategies propose plans, a cost ranks them: each is legal and computes the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_stage import AVX2, product
from tests.unit.lower.test_tile import run
from tinycore import Context, Tensor
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.lower.cost import cycles_of_shared_tile, cycles_of_step, cycles_of_thread
from tinycore.lower.pipeline import KERNEL_PIPELINE, expand_loops, lower
from tinycore.lower.plan import drafted, plan_for
from tinycore.lower.tile import Split, apply_plan
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

CASES: dict[str, Callable[[], Tensor]] = {
    "row sums": lambda: Tensor.empty(6, 40).sum(1),
    "column sums": lambda: Tensor.empty(40, 300).sum(0),
    "transposed": lambda: -Tensor.empty(20, 17).T,
    "running sums": lambda: Tensor.empty(5, 12).cumsum(1),
    "convolution": lambda: Tensor.empty(1, 3, 9, 14).conv2d(Tensor.empty(5, 3, 3, 3), padding=1),
    "elementwise": lambda: Tensor.empty(9, 21) + Tensor.empty(9, 1),
    "windows side by side": lambda: Tensor.empty(2, 6, 7, 9).conv_transpose2d(
        Tensor.empty(6, 4, 2, 2), stride=2
    ),
}


def kernel_of(case: str) -> UOp:
    """The last kernel of a case."""
    with Context(DEV="PYTHON"):
        ast: UOp = CASES[case]().schedule()[-1].ast
    return ast


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_dearer_proposals_are_legal_and_compute_the_same(case: str, rank: int) -> None:
    ast = kernel_of(case)
    plan = tuple(drafted(ast, AVX2, {"proposal 0": rank}).steps)

    applied(ast, plan, AVX2)
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, 4, 16])
def test_places_of_windows_side_by_side_are_a_loop_of_their_own(size: int) -> None:
    with Context(DEV="PYTHON"):
        x, w = Tensor.empty(2, 24, 16, 16), Tensor.empty(24, 16, size, size)
        (item,) = x.conv_transpose2d(w, stride=size).schedule()

    plan = plan_for(item.ast, AVX2)
    planned = expand_loops(apply_plan(item.ast, plan), Renderer(AVX2))

    assert size in {step.by for step in plan if isinstance(step, Split)}
    assert any(n.dtype.count == 8 for n in planned.every(Op.LOAD))
    assert all(len({*n.src}) == 1 for n in planned.every(Op.VECTORIZE)), "no lane is loaded alone"


def test_the_graph_is_printed_after_each_pass(capsys: pytest.CaptureFixture[str]) -> None:
    ast = product(4, 4, 4)
    with Context(TRACE="passes", NO_COLOR=1):
        lower(ast, PythonRenderer(), "product")
    lines = capsys.readouterr().err.splitlines()
    heads = [line.partition(":")[0] for line in lines if line.startswith("passes")]

    names = ["tile", *(step.name for step in KERNEL_PIPELINE)]
    assert heads == [f"passes   after {name} of product" for name in names]


def test_proposals_are_printed_with_their_costs(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(TRACE="plan"):
        plan_for(product(1, 40, 300), AVX2)
    said = [line.split("proposed ")[1] for line in capsys.readouterr().err.splitlines()[:-1]]

    assert [line.split(":")[0] for line in said][:2] == [
        "matrix-vector along 1",
        "matrix product along 1",
    ]
    costs = [float(line.split(": ")[1].split(" cycles")[0]) for line in said]
    assert costs == sorted(costs)


def test_what_is_read_more_often_costs_less() -> None:
    assert cycles_of_step(16, 8) < cycles_of_step(16, 10) < cycles_of_step(16, 17)
    assert cycles_of_step(16, 10) < cycles_of_step(16, 10, 128) < cycles_of_step(16, 10, 512)
    assert cycles_of_shared_tile(4, 4, 16) < cycles_of_shared_tile(4, 4, 4)
    assert cycles_of_shared_tile(1, 1, 4) < cycles_of_thread(256) < cycles_of_thread()
