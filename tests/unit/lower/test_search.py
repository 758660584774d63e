"""Candidates of a search: whatever is generated is legal, and computes the same."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy
import pytest

from tests.unit.lower.test_tile import CPU, GRAPHS, run
from tests.unit.schedule.graphs import buffer, kernels, matmul, total
from tinycore.config import Context
from tinycore.errors import ArgumentError, FileFormatError
from tinycore.lower.draft import PROPOSAL
from tinycore.lower.legality import Loops
from tinycore.lower.plan import plan_for
from tinycore.lower.plan_neighbors import (
    SIZES,
    Candidate,
    candidate_by,
    candidate_of,
    default,
    neighbors,
    starts,
    ways,
)
from tinycore.lower.steps.stage import Stage
from tinycore.lower.tile import (
    Bind,
    Fuse,
    Peel,
    Plan,
    Reorder,
    Split,
    Step,
    apply_checked,
    apply_plan,
    apply_verified,
    plan_from_text,
    plan_to_text,
)
from tinycore.render import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

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


@pytest.mark.parametrize("name", GRAPHS)
def test_plan_is_read_back_from_its_text(name: str) -> None:
    ast = ast_of(name)
    for start in starts(ast, CPU):
        assert start is not None
        for candidate in near(ast, start, CPU, 0):
            assert plan_from_text(plan_to_text(candidate.plan)) == candidate.plan


@pytest.mark.parametrize("text", ["", "3", "(3,)", "(Split((1,), 2)", "(Split((1,)),)", "() ()"])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError):
        plan_from_text(text)


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


VECTOR, UNROLL, PARTIAL, PARALLEL = (
    AxisKind.VECTOR, AxisKind.UNROLL, AxisKind.PARTIAL, AxisKind.PARALLEL,
)  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "step", "why"),
    [
        ((), Split((9,), 4), "there is no loop (9,)"),
        ((), Split((0,), 15), "steps of 15 do not cut a loop of 14"),
        ((), Split((0,), 1), "steps of 1 do not cut"),
        ((Bind((0,), UNROLL),), Split((0,), 2), "loop (0,) is unroll already"),
        ((), Bind((0,), PARTIAL), "a loop of kind loop does not become partial"),
        ((), Bind((0,), AxisKind.GRID), "a loop of kind loop does not become grid"),
        ((), Bind((3,), PARALLEL), "a loop of kind reduce does not become parallel"),
        ((), Bind((1,), PARALLEL), "threads share the outermost loop"),
        ((), Bind((1,), VECTOR), "37 lanes are no power of two"),
        (
            (Split((1,), 8), Bind((1, 1), VECTOR), Split((3,), 8)),
            Bind((3, 1), VECTOR),
            "lanes of another loop already",
        ),
        ((), Reorder(((1,), (7,))), "there is no loop (7,)"),
        ((Bind((0,), PARALLEL),), Reorder(((1,), (0,))), "stays outermost"),
        ((), Fuse((1,), (0,)), "the loops are not neighbors"),
        ((), Fuse((0,), (3,)), "not closed together"),
        ((), Peel((0,), (5, 5)), "are no steps between 0 and 14"),
        ((), Peel((3,), (24,)), "are no steps between 0 and 24"),
    ],
)
def test_illegal_step_is_told_why(plan: Plan, step: Step, why: str) -> None:
    ast = kernels(matmul(buffer(14, 24), buffer(24, 37)))[-1].arg.ast

    problem = step.objection(Loops(apply_checked(ast, plan, CPU)), CPU)

    assert problem is not None
    assert why in problem
    with pytest.raises(ArgumentError, match="cannot be done"):
        apply_checked(ast, (*plan, step), CPU)


def test_more_copies_than_a_search_is_worth_are_refused_there_only() -> None:
    ast = kernels(matmul(buffer(14, 24), buffer(24, 37)))[-1].arg.ast
    plan = Bind((0,), UNROLL), Bind((1,), UNROLL)

    with pytest.raises(ArgumentError, match="518 copies are too many"):
        apply_checked(ast, plan, CPU)
    assert apply_verified(ast, plan, CPU) is apply_plan(ast, plan)


def test_loop_that_fills_a_stage_is_not_written_out() -> None:
    ast = kernels(matmul(buffer(14, 24), buffer(24, 64)))[-1].arg.ast
    tile: Plan = (Split((1,), 16), Bind((1, 1), VECTOR), Reorder(((1, 0), (0,), (1, 1))))
    staged = (*tile, Stage((1, 0), (((((3,), 1),)), ((((1, 1), 1),)))))

    problem = Bind((1, 0), UNROLL).objection(Loops(apply_checked(ast, staged, CPU)), CPU)

    assert problem == "scratch memory is filled inside of it, which copies would share"


def test_shared_sum_needs_threads_that_meet() -> None:
    ast = kernels(total(buffer(10, 64), 1))[-1].arg.ast
    (loop,) = {r for n in ast.toposort() if n.op is Op.REDUCE for r in n.src[1:]}
    share = Bind((*loop.arg.number, 1), AxisKind.GROUP)

    assert candidate_of(ast, (Split(loop.arg.number, 32), share), GRID) is not None
    assert candidate_of(ast, (Split(loop.arg.number, 12), share), GRID) is None
