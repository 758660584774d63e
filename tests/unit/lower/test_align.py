"""Vector accesses: provably aligned where the device needs it, and still the same kernel."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

import pytest

from tests.unit.lower.test_grid import GROUPS, assert_same
from tests.unit.lower.test_shared import SMALL, ast_of, empty, product
from tests.unit.lower.test_tile import GRAPHS, buffers_after
from tests.unit.schedule.graphs import kernels
from tiny_testing.kernels import element, load, store
from tinycore import Tensor
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.render.base import Limits, LinearKernel, Renderer, pointer_of
from tinycore.uop.affine import divisor
from tinycore.uop.evaluate import evaluate
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

ALIGNED = replace(GROUPS, threads=1, access_alignment=16)
SHARING = replace(SMALL, access_alignment=16)


class OnlyMoves(Renderer):
    """A language that loads and stores vectors, and has no arithmetic on them."""

    vector_ops: ClassVar[bool] = False


def accesses(linear: LinearKernel) -> list[tuple[UOp, int, UOp]]:
    """Index, lanes and memory of every access to memory."""
    found = []
    for u in linear.uops:
        if u.op in (Op.LOAD, Op.STORE) and pointer_of(u.src[0]).op is not Op.DEFINE_REG:
            kind = u.dtype if u.op is Op.LOAD else u.src[1].dtype
            found.append((u.src[0].src[1], kind.count, pointer_of(u.src[0])))
    return found


def widest(linear: LinearKernel, op: Op = Op.DEFINE_GLOBAL) -> int:
    return max(lanes for _, lanes, memory in accesses(linear) if memory.op is op)


def values_of(index: UOp, generator: random.Random) -> list[int]:
    """Values of an index for some values of its loops and threads."""
    counters = [n for n in UOp.sink(index).toposort() if n.op in (Op.RANGE, Op.SPECIAL)]
    return [
        int(evaluate(index, {c: generator.randrange(c.src[0].arg) for c in counters}))
        for _ in range(20)
    ]


def assert_aligned(linear: LinearKernel) -> None:
    generator = random.Random(0)
    for index, lanes, memory in accesses(linear):
        if lanes > 1:
            assert all(v % lanes == 0 for v in values_of(index, generator)), (index, memory)


MATMULS = {"whole": (64, 64, 64), "ragged": (51, 65, 66), "odd rows": (64, 33, 64)}


@pytest.mark.sample(3)
@pytest.mark.parametrize("sizes", MATMULS)
@pytest.mark.parametrize("limits", [ALIGNED, SHARING], ids=["loads", "shared"])
def test_accesses_of_a_matmul_are_aligned(sizes: str, limits: Limits) -> None:
    linear = assert_same(product(*MATMULS[sizes]), limits)
    assert_aligned(linear)


def test_what_is_aligned_stays_a_vector() -> None:
    assert widest(assert_same(product(64, 64, 64), ALIGNED)) == 4
    assert widest(assert_same(product(64, 64, 64), SHARING), Op.DEFINE_LOCAL) == 4


def test_without_a_need_nothing_is_cut() -> None:
    shifted = ast_of(empty(65)[1:] + 1)
    assert widest(assert_same(shifted, replace(ALIGNED, access_alignment=1))) == 4
    assert widest(assert_same(shifted, replace(ALIGNED, access_alignment=4))) == 4


def test_a_shifted_load_is_cut_and_its_store_is_not() -> None:
    linear = assert_same(ast_of(empty(65)[1:] + 1), ALIGNED)
    assert [lanes for _, lanes, _ in accesses(linear)] == [1, 1, 1, 1, 4]


def test_a_load_shifted_by_half_a_vector_is_two_halves() -> None:
    linear = assert_same(ast_of(empty(66)[2:] + 1), ALIGNED)
    assert [lanes for _, lanes, _ in accesses(linear)] == [2, 2, 4]


def test_accesses_of_a_convolution_are_aligned() -> None:
    images, weights = empty(2, 4, 18, 18), empty(8, 4, 3, 3)
    assert_aligned(assert_same(ast_of(images.conv2d(weights)), SHARING))


def test_buffers_that_start_anywhere_are_accessed_by_elements() -> None:
    linear = assert_same(product(64, 64, 64), replace(SHARING, buffers_aligned=False))
    assert widest(linear) == 1
    assert widest(linear, Op.DEFINE_LOCAL) == 4


def test_gates_and_alternatives_are_kept_by_every_part() -> None:
    quad = dtypes.float32.vec(4)
    counter = UOp.range(8, 0)
    start = counter * 4 + 1
    place = element(1, dtypes.float32, 33, start, gate=start < 17)
    other = UOp(
        Op.VECTORIZE, quad, tuple([UOp.const(dtypes.float32, lane + 0.5) for lane in range(4)])
    )
    target = element(0, dtypes.float32, 40, counter * 4 + 2, gate=counter < 7)
    change = store(target, load(place, quad, other))
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, counter)))
    cut = lower(kernel, Renderer(replace(ALIGNED, grid=None)), "kernel", ())

    assert [lanes for _, lanes, _ in accesses(cut)] == [1, 1, 1, 1, 2, 2]
    whole = lower(kernel, Renderer(Limits()), "kernel", ())
    for found, expected in zip(buffers_after(cut), buffers_after(whole), strict=True):
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (lambda i: i * 12, 4),
        (lambda i: i * 12 + 6, 2),
        (lambda i: i * 8 + UOp.index(16), 8),
        (lambda i: (i * 8) % 24, 8),
        (lambda i: (i * 8) // 2, 4),
        (lambda i: i // 4 * 4, 4),
        (lambda i: (i * 8).minimum(40), 8),
        (lambda i: (i < 3).where(i * 4, UOp.index(2)), 2),
        (lambda i: i, 1),
        (lambda i: (i * 4) // 3, 1),
        (lambda i: UOp.index(0), 16),
    ],
)
def test_divisor_of_an_index(text: object, expected: int) -> None:
    counter = UOp.range(100, 0)
    assert divisor(text(counter), 16) == expected  # type: ignore[operator]


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_without_arithmetic_on_vectors_compute_the_same(name: str) -> None:
    ast = kernels(GRAPHS[name]())[-1].arg.ast
    linear = lower(ast, OnlyMoves(ALIGNED), "kernel")
    loops = lower(ast, Renderer(ALIGNED), "kernel", ())

    assert not [u for u in linear.uops if u.op in ALU and u.dtype.count > 1]
    for found, expected in zip(buffers_after(linear), buffers_after(loops), strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_lanes_of_a_matmul_are_scalars_between_vectors() -> None:
    a, b = Tensor.empty(64, 64, device="PYTHON"), Tensor.empty(64, 64, device="PYTHON")
    linear = lower(ast_of(a.realize() @ b.realize()), OnlyMoves(ALIGNED), "kernel")

    assert not [u for u in linear.uops if u.op in ALU and u.dtype.count > 1]
    assert widest(linear) == 4
