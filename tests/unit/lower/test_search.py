"""Candidates of a search: whatever is generated is legal, and computes the same."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_tile import CPU, GRAPHS, run
from tests.unit.schedule.graphs import buffer, kernels, matmul, total
from tinycore.config import Context
from tinycore.errors import ArgumentError
from tinycore.lower.draft import PROPOSAL
from tinycore.lower.plan import plan_for
from tinycore.lower.plan_neighbors import (
    SIZES,
    Candidate,
    candidate_by,
    default,
    neighbors,
    starts,
    ways,
)
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import (
    Bind,
    Plan,
    Reorder,
    Split,
)
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

GRID = Limits(
    grid=(1 << 16,) * 3, block=(64, 64, 64), block_threads=64, block_wanted=16, shared_bytes=1 << 15
)
NEAR = 2
"""Number of neighbors of each plan that are run."""


def ast_of(name: str) -> UOp:
    ast = kernels(GRAPHS[name]())[-1].arg.ast
    assert isinstance(ast, UOp)
    return ast


def near(ast: UOp, start: Candidate, limits: Limits, seed: int) -> list[Candidate]:
    """Some neighbors, and some neighbors of one of them."""
    first = list(islice(neighbors(ast, start, limits, seed), NEAR))
    chosen = random.Random(seed).choice(first) if first else start
    return first + list(islice(neighbors(ast, chosen, limits, seed), NEAR))


@pytest.mark.sample(24)
@Context(VERIFY=0)  # half of the time; test_tile.py verifies plans of the same kinds
@pytest.mark.parametrize("limits", [CPU, GRID], ids=["loops", "grid"])
@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "matmul transposed"])
def test_every_candidate_computes_the_same(name: str, limits: Limits) -> None:
    ast = ast_of(name)
    expected = run(ast, ())
    for seed, start in enumerate((default(ast, limits), *starts(ast, limits))):
        assert start is not None
        for candidate in (start, *near(ast, start, limits, seed)):
            print(candidate.plan)
            found = run(ast, candidate.plan)
            numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("limits", "name"), [(CPU, "lanes 0"), (GRID, "threads 0")])
def test_neighbors_are_plans_of_other_sizes(limits: Limits, name: str) -> None:
    """A search varies each size that a strategy asks for, a few notches up and down."""
    ast = ast_of("matmul")
    start = default(ast, limits)
    tried = list(ways(start))
    size = start.sizes[name]

    place = SIZES.index(size)
    near = {*SIZES[place - 2 : place], *SIZES[place + 1 : place + 3], size // 2, 2 * size, 1}
    assert {other[name] for other in tried if name in other} == near
    assert {other for sizes in tried for other in sizes} == start.sizes.keys()
    assert len(list(neighbors(ast, start, limits))) > 2


@pytest.mark.parametrize("limits", [CPU, GRID], ids=["loops", "grid"])
@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_of_a_plan_give_the_same_plan_again(name: str, limits: Limits) -> None:
    ast = ast_of(name)
    plain = default(ast, limits)
    again = candidate_by(ast, plain.sizes, limits)

    assert plain.plan == plan_for(ast, limits)
    assert again is not None
    assert (again.plan, again.tiled, again.sizes) == (plain.plan, plain.tiled, plain.sizes)


@pytest.mark.parametrize("limits", [CPU, GRID], ids=["loops", "grid"])
def test_every_size_may_be_one(limits: Limits) -> None:
    """Sizes far below a strategy's own give a plan, or are refused; none breaks the strategy."""
    sums = kernels(total(buffer(100, 300), 0))[-1].arg.ast
    for ast in (sums, ast_of("matmul"), ast_of("transpose")):
        for start in (default(ast, limits), *starts(ast, limits)):
            assert start is not None
            kept = {name: size for name, size in start.sizes.items() if name.startswith(PROPOSAL)}
            found = [candidate_by(ast, {**kept, name: 1}, limits) for name in start.sizes]
            assert any(found)


def test_another_proposal_keeps_no_sizes_of_the_last() -> None:
    ast = ast_of("matmul")
    start = replace(default(ast, GRID), asked={"threads 0": 8})

    assert {"proposal 0": 1} in list(ways(start))
    assert {"threads 0": 8, "depth 0": 6} not in list(ways(start))


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ((Split((9,), 4),), "no loop 9"),
        ((Split((0,), 15),), "steps of 15 do not cut a loop of 14"),
        ((Bind((1,), AxisKind.VECTOR),), "37 lanes are no power of two"),
        ((Bind((1,), AxisKind.PARALLEL),), "threads share the outermost loop"),
        ((Bind((3,), AxisKind.GROUP),), "24 threads that share a sum are no power of two"),
        ((Bind((0,), AxisKind.BLOCK), Bind((1,), AxisKind.BLOCK)), "518 threads on 2 axes"),
    ],
)
def test_illegal_plan_is_told_why(plan: Plan, why: str) -> None:
    ast = kernels(matmul(buffer(14, 24), buffer(24, 37)))[-1].arg.ast

    with pytest.raises(ArgumentError, match=why):
        applied(ast, plan, GRID)


def test_loop_that_fills_a_stage_is_not_written_out() -> None:
    ast = kernels(matmul(buffer(14, 24), buffer(24, 64)))[-1].arg.ast
    tile: Plan = (Split((1,), 16), Bind((1, 1), AxisKind.VECTOR), Reorder(((1, 0), (0,), (1, 1))))
    staged = (*tile, Stage((1, 0), (((((3,), 1),)), ((((1, 1), 1),)))))

    applied(ast, staged, CPU)
    with pytest.raises(ArgumentError, match="filled in each of several threads or copies"):
        applied(ast, (*staged, Bind((1, 0), AxisKind.UNROLL)), CPU)


def test_candidates_with_too_many_copies_are_none() -> None:
    ast = kernels(matmul(buffer(64, 64), buffer(64, 640)))[-1].arg.ast

    assert candidate_by(ast, {"rows 0": 2}, CPU) is not None
    assert candidate_by(ast, {"rows 0": 64, "vectors 0": 40}, CPU) is None
