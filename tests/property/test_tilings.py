"""Random plans, legal or not: a kernel computes what plain loops compute, or a step is refused."""

from __future__ import annotations

from random import Random

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.test_grid import GROUPS, lowered
from tests.unit.lower.test_tile import CPU, GRAPHS, buffers_after
from tests.unit.lower.test_varying import COMPUTED, MOST, ast_of, run
from tests.unit.schedule.graphs import kernels
from tinycore import Tensor
from tinycore.errors import ArgumentError
from tinycore.lower.loops import counters
from tinycore.lower.tile import (
    Bind,
    Fuse,
    Peel,
    Reorder,
    Split,
    Step,
    Tail,
    Unite,
    apply_plan,
)
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

KINDS = [
    AxisKind[name]
    for name in ("GRID", "BLOCK", "LANE", "GROUP", "VECTOR", "UNROLL", "PARTIAL", "PARALLEL")
]


def last_kernel(x: Tensor) -> UOp:
    ast: UOp = kernels(x.uop)[-1].arg.ast
    return ast


def softmax() -> UOp:
    return last_kernel(Tensor.empty(6, 16, device="PYTHON").realize().softmax(-1))


def two_sums() -> UOp:
    x = Tensor.empty(5, 8, device="PYTHON").realize()
    return last_kernel(x.sum(-1, keepdim=True) * 2 + x.exp().sum(-1, keepdim=True))


def random_kernel(random: Random) -> UOp:
    match random.randrange(3):
        case 0:
            return random.choice((softmax, two_sums))()
        case 1:
            return ast_of(random.choice(COMPUTED))
    ast: UOp = kernels(random.choice([*GRAPHS.values()])())[-1].arg.ast
    return ast


def random_step(kernel: UOp, random: Random) -> Step:
    """A step over loops of a kernel, whatever they are."""
    loops = counters(kernel)
    loop, other = random.choice(loops), random.choice(loops)
    number, some = loop.number, random.sample(loops, random.randint(1, min(3, len(loops))))
    numbers = tuple(r.number for r in some)
    edges = random.sample(range(1, max(loop.extent, 3)), random.randint(1, 2))
    steps: tuple[Step, ...] = (
        Unite(numbers),
        Reorder(numbers),
        Peel(number, tuple(sorted(edges))),
        Split(number, random.randint(1, 8), random.choice([*Tail])),
        Bind(number, random.choice(KINDS)),
        Fuse(number, other.number),
    )
    return random.choice(steps)


@pytest.mark.sample(20)
@pytest.mark.parametrize("part", range(40))
def test_a_random_plan_computes_the_same_or_is_refused(part: int) -> None:
    for seed in range(part * 10, part * 10 + 10):
        random = Random(seed)
        kernel, limits = random_kernel(random), random.choice([GROUPS, CPU])
        plan: list[Step] = []
        tiled = kernel
        try:
            for _ in range(random.randint(1, 3)):
                plan.append(random_step(tiled, random))
                tiled = apply_plan(tiled, plan[-1:])
            applied(kernel, plan, limits)
            linear = lowered(kernel, limits, tuple(plan))
        except ArgumentError:
            continue
        plain = lowered(kernel, limits, ())
        print(seed, *plan)
        if not kernel.every(Op.DEFINE_VAR):
            found = [(buffers_after(linear), buffers_after(plain))]
        else:
            found = [(run(linear, n), run(plain, n)) for n in (1, 63, MOST)]
        for buffers in found:
            for one, other in zip(*buffers, strict=True):
                numpy.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "step",
    [
        Unite(((0,), (1,))),
        Unite(((0,), (2,))),
        Unite(((3,),)),
        Peel((3,), (1,)),
        Fuse((0,), (0,)),
        Fuse((0,), (2,)),
        Fuse((1,), (2,)),
        Fuse((0,), (3,)),
    ],
    ids=str,
)
def test_steps_over_loops_of_other_nests_are_refused(step: Step) -> None:
    i, j, k = UOp.range(8, 0), UOp.range(8, 1), UOp.range(8, 2, AxisKind.REDUCE)
    n = UOp.range(UOp.variable("n", 1, 9), 3)
    size = 8 * 8 * 9
    x = UOp(Op.DEFINE_GLOBAL, Tensor.empty(1).dtype.ptr(size), (), 1)
    out = UOp(Op.DEFINE_GLOBAL, Tensor.empty(1).dtype.ptr(size), (), 0)
    value = x.at(i * 8 + k).load(x.dtype.base)  # type: ignore[attr-defined]
    total = UOp(Op.REDUCE, value.dtype, (value, k), Op.ADD)
    one = out.at((i * 8 + j) * 9 + n).store(total)
    kernel = UOp.sink(UOp(Op.END, one.dtype, (one, i, j, n)))

    with pytest.raises(ArgumentError):
        apply_plan(kernel, (step,))
