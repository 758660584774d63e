"""Plans change loops and never values: whatever the plan, a kernel computes the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy
import pytest

from tests.unit.schedule.graphs import buffer, kernels, matmul, permute, reshape, total
from tiny_testing.kernels import Array, element, load, store
from tinycore.device import Buffer, Device
from tinycore.dtype import dtypes
from tinycore.engine.compile import info_of
from tinycore.errors import ArgumentError
from tinycore.lower.loops import counters
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import (
    Bind,
    Fuse,
    Peel,
    Plan,
    Reorder,
    Split,
    Step,
    Tail,
    apply_plan,
)
from tinycore.render import Limits, LinearKernel
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import AxisKind, Op

CPU = Limits(vector_bytes=64, vector_registers=32, threads=2)


def softmax_tail() -> UOp:
    return (buffer(9, 20) * buffer(9, 20)).alu(Op.EXP2)


def window_sums() -> UOp:
    x = UOp(Op.EXPAND, dtypes.float32, (reshape(buffer(3, 40), (3, 40, 1)),), (3, 40, 5))
    return total(UOp(Op.SKEW, x.dtype, (x,), Skew(1, 2, 2, 1, 18)), 2)


def padded() -> UOp:
    x = buffer(6, 13)
    return UOp(Op.PAD, x.dtype, (x,), ((1, 2), (3, 0))).alu(Op.NEG)


def joined() -> UOp:
    a, b = buffer(40), buffer(24)
    wide = UOp(Op.PAD, a.dtype, (a,), ((0, 24),)) + UOp(Op.PAD, b.dtype, (b,), ((40, 0),))
    return total(wide.alu(Op.NEG), 0)


def column_sum() -> UOp:
    x = buffer(50, 7)
    return total(reshape(UOp(Op.SHRINK, x.dtype, (x,), ((0, 50), (3, 4))), (50,)), 0)


def padded_sum() -> UOp:
    x = buffer(6, 40)
    return total(UOp(Op.PAD, x.dtype, (x,), ((0, 0), (5, 3))), 1)


def in_place() -> UOp:
    weight = buffer(7, 11)
    return UOp(Op.ASSIGN, weight.dtype, (weight, weight * buffer(7, 11) + weight))


def two_outputs() -> UOp:
    x = buffer(6, 10)
    first = UOp(Op.CONTIGUOUS, x.dtype, (x + x,))
    return first * x


GRAPHS: dict[str, Callable[[], UOp]] = {
    "matmul": lambda: matmul(buffer(14, 24), buffer(24, 37)),
    "matmul transposed": lambda: matmul(buffer(14, 24), permute(buffer(37, 24), 1, 0)),
    "row sums": lambda: total(buffer(10, 67), 1),
    "column maxima": lambda: total(buffer(10, 67), 0, op=Op.MAX),
    "elementwise": softmax_tail,
    "transpose": lambda: UOp(Op.CONTIGUOUS, dtypes.float32, (permute(buffer(17, 12), 1, 0),)),
    "windows": window_sums,
    "pad": padded,
    "in place": in_place,
    "two outputs": two_outputs,
    "joined": joined,
    "column sum": column_sum,
    "padded sum": padded_sum,
    "statistics": lambda: total(buffer(4, 8, 6), 0, 2),
}


def buffers_after(linear: LinearKernel) -> list[Array]:
    """Buffers after a kernel on PYTHON, with random numbers before."""
    device = Device["PYTHON"]
    toolchain = device.toolchain
    binary = toolchain.compiler.compile(toolchain.renderer.render(linear))
    program = device.runtime.load(binary, info_of(linear, len(linear.buffers)))
    generator = numpy.random.default_rng(0)
    buffers = [
        Buffer.from_cpu("PYTHON", generator.standard_normal(b.dtype.size).astype("f"))  # type: ignore[attr-defined]
        for b in linear.buffers
    ]
    program([b.handle for b in buffers], [], wait=True)
    return [b.numpy() for b in buffers]


def run(ast: UOp, plan: Plan) -> Array:
    """The kernel's first output on PYTHON, whose loops are those of a CPU here."""
    return buffers_after(lower(ast, Device["PYTHON"].toolchain.renderer, "kernel", plan))[0]


def random_plan(ast: UOp, generator: random.Random) -> Plan:
    """Up to five legal steps; at most one vector loop, and none beside it that shares its nodes."""
    plan: list[Step] = []
    for _ in range(generator.randint(1, 5)):
        tiled = apply_plan(ast, plan)
        ends = [n for n in tiled.toposort() if n.op is Op.END]
        outputs = [r for e in ends for r in e.src[1:]]
        reduced = [
            r for n in tiled.toposort() if n.op is Op.REDUCE for r in n.src[1:] if r.op is Op.RANGE
        ]
        loops = list(dict.fromkeys([*outputs, *reduced]))
        plain = [r for r in loops if r.arg.kind in (AxisKind.LOOP, AxisKind.REDUCE)]
        if not plain:
            break
        loop = generator.choice(plain)
        size = int(loop.vmax) + 1
        kinds = ["split", "split", "overlap", "unroll", "vector", "reorder", "merge", "peel"]
        kind = generator.choice(kinds)
        if kind == "split" and size > 3:
            plan.append(Split(loop.arg.number, generator.randint(2, min(size, 16))))
        elif kind == "overlap" and size > 3 and loop.arg.kind is AxisKind.REDUCE:
            plan.append(
                Split(number := loop.arg.number, by := generator.choice([2, 4]), Tail.SHIFT)
            )
            lanes = [(*number, 1), (*number, 2)][: 2 if size % by else 1]
            if not any(r.arg.kind is AxisKind.VECTOR for r in loops):
                plan += [Bind(part, AxisKind.VECTOR) for part in lanes]
        elif kind == "unroll" and size <= 8:
            partial = loop.arg.kind is AxisKind.REDUCE and generator.random() < 0.5
            plan.append(Bind(loop.arg.number, AxisKind.PARTIAL if partial else AxisKind.UNROLL))
        elif (
            kind == "vector"
            and size <= 16
            and not any(r.arg.kind is AxisKind.VECTOR for r in loops)
        ):
            plan.append(Bind(loop.arg.number, AxisKind.VECTOR))
        elif kind == "reorder":
            plan.append(
                Reorder(tuple(r.arg.number for r in generator.sample(outputs, len(outputs))))
            )
        elif kind == "peel" and size > 3:
            plan.append(Peel(loop.arg.number, tuple(sorted(generator.sample(range(1, size), 2)))))
        elif kind == "merge" and len(ends) == 1 and len(outputs) > 1:
            outer, inner = outputs[0], outputs[1]
            if outer.arg.kind is inner.arg.kind is AxisKind.LOOP:
                plan.append(Fuse(outer.arg.number, inner.arg.number))
    return tuple(plan)


@pytest.mark.parametrize("name", GRAPHS)
def test_heuristic_plan_computes_the_same(name: str) -> None:
    ast = kernels(GRAPHS[name]())[-1].arg.ast

    numpy.testing.assert_allclose(run(ast, plan_for(ast, CPU)), run(ast, ()), rtol=1e-5, atol=1e-5)


@pytest.mark.sample(9)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", GRAPHS)
def test_random_plan_computes_the_same(name: str, seed: int) -> None:
    ast = kernels(GRAPHS[name]())[-1].arg.ast
    plan = random_plan(ast, random.Random(f"{name} {seed}"))
    print(name, seed, plan)

    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5, atol=1e-5)


def test_uneven_output_split_starts_its_last_step_early() -> None:
    ast = kernels(buffer(10) * buffer(10))[0].arg.ast
    tiled = apply_plan(ast, (Split((0,), 4),))

    assert {r.arg.number: int(r.vmax) + 1 for r in counters(tiled)} == {(0, 0): 3, (0, 1): 4}


def test_uneven_split_of_a_kernel_that_works_in_place_has_a_loop_for_the_rest() -> None:
    weight = buffer(10)
    ast = kernels(UOp(Op.ASSIGN, weight.dtype, (weight, weight + weight)))[0].arg.ast
    tiled = apply_plan(ast, (Split((0,), 4),))

    assert {r.arg.number: int(r.vmax) + 1 for r in counters(tiled)} == {
        (0, 0): 2,
        (0, 1): 4,
        (0, 2): 2,
    }


def test_matmul_plan_has_a_register_tile_that_fits() -> None:
    ast = kernels(matmul(buffer(256, 256), buffer(256, 256)))[0].arg.ast
    tiled = apply_plan(ast, plan_for(ast, CPU))
    written = [int(r.vmax) + 1 for r in counters(tiled) if r.arg.kind is AxisKind.UNROLL]

    assert 16 <= math.prod(written) < CPU.vector_registers


def test_contiguous_loops_become_one() -> None:
    ast = kernels(buffer(3, 4, 5) + buffer(3, 4, 5))[0].arg.ast

    assert plan_for(ast, Limits()) == (Fuse((0,), (1,)), Fuse((0,), (2,)))


def test_small_kernels_stay_on_one_thread() -> None:
    ast = kernels(buffer(100) + buffer(100))[0].arg.ast

    assert not any(isinstance(s, Bind) and s.kind is AxisKind.PARALLEL for s in plan_for(ast, CPU))


def test_large_kernels_are_shared_among_threads() -> None:
    ast = kernels(buffer(1 << 20) + buffer(1 << 20))[0].arg.ast

    assert any(isinstance(s, Bind) and s.kind is AxisKind.PARALLEL for s in plan_for(ast, CPU))


def test_border_of_a_padded_copy_is_peeled_off() -> None:
    ast = kernels(padded())[0].arg.ast
    tiled = apply_plan(ast, plan_for(ast, CPU))

    assert any(isinstance(s, Peel) for s in plan_for(ast, CPU))
    assert any(r.arg.kind is AxisKind.VECTOR for r in counters(tiled))


def test_a_sum_over_joined_operands_has_lanes_in_each_part() -> None:
    """Seed 600392: one scalar sum over all of it, a hundred half-ulps off."""
    ast = kernels(joined())[-1].arg.ast
    plan = plan_for(ast, CPU)
    tiled = apply_plan(ast, plan)
    lanes = {r.arg.number for r in counters(tiled) if r.arg.kind is AxisKind.VECTOR}

    assert [s.at for s in plan if isinstance(s, Peel)] == [(40,)]
    assert {number[:2] for number in lanes} == {(1, 0), (1, 1)}
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5)


def test_a_sum_that_lanes_do_not_suit_is_several_sums() -> None:
    ast = kernels(column_sum())[-1].arg.ast
    plan = plan_for(ast, CPU)

    assert any(isinstance(s, Bind) and s.kind is AxisKind.PARTIAL for s in plan)
    numpy.testing.assert_allclose(run(ast, plan), run(ast, ()), rtol=1e-5)


def test_every_second_element_is_picked_out_of_whole_vectors() -> None:
    ast = kernels(window_sums())[-1].arg.ast
    linear = lower(ast, Device["PYTHON"].toolchain.renderer, "kernel", plan_for(ast, CPU))
    loads = [u for u in linear.uops if u.op is Op.LOAD and u.src[0].src[0].op is Op.DEFINE_GLOBAL]

    assert {u.dtype.count for u in loads} == {16}


@pytest.mark.parametrize("move", [1, 2, -1])
def test_lanes_of_a_gated_load_have_their_own_alternatives(move: int) -> None:
    i, j = UOp.range(4, 0), UOp.range(8, 1)
    here = i * 8 + j
    place = element(1, dtypes.float32, 64, i * 16 + j * move + (0 if move > 0 else 7))
    other = load(element(2, dtypes.float32, 32, here), dtypes.float32)
    value = load(place.with_src((*place.src, i < 2)), dtypes.float32, other)
    change = store(element(0, dtypes.float32, 32, here), value)
    ast = UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))

    numpy.testing.assert_array_equal(run(ast, (Bind((1,), AxisKind.VECTOR),)), run(ast, ()))


def test_steps_that_happen_in_order_may_be_named_in_their_order() -> None:
    i, k = UOp.range(5, 0), UOp.range(7, 1, AxisKind.ORDERED)
    place = element(0, dtypes.float32, 5, i)
    more = load(element(1, dtypes.float32, 35, i * 7 + k), dtypes.float32)
    change = store(place, load(place, dtypes.float32) * 0.5 + more)
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, i, k)))
    outer, inner = i.arg.number, k.arg.number

    assert apply_plan(kernel, (Reorder((outer, inner)),)) is kernel
    with pytest.raises(ArgumentError, match="steps that happen in order"):
        apply_plan(kernel, (Reorder((inner, outer)),))


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Bind((1,), AxisKind.UNROLL), "how often the loop runs is known at launch only"),
        (Bind((2,), AxisKind.BLOCK), "the loop is ordered already"),
        (Peel((0,), (5, 3)), "a part of 6 steps has none"),
        (Split((0,), -2), "steps of -2 do not cut a loop of 6"),
        (Fuse((0,), (3,), 5, 36), "loops of 6 by 6 have more"),
        (Fuse((0,), (3,), 7, 40), "loops of 6 by 6 have more"),
    ],
    ids=str,
)
def test_steps_that_would_change_values_are_refused(step: Step, problem: str) -> None:
    i, j, n = UOp.range(6, 0), UOp.range(6, 3), UOp.variable("n", 1, 9)
    varied, k = UOp.range(n, 1), UOp.range(7, 2, AxisKind.ORDERED)
    whole = store(element(0, dtypes.float32, 36, i * 6 + j), UOp.const(dtypes.float32, 1))
    others = store(element(2, dtypes.float32, 63, varied * 7 + k), UOp.const(dtypes.float32, 1))
    loops = [UOp(Op.END, dtypes.void, (whole, i, j)), UOp(Op.END, dtypes.void, (others, varied, k))]

    with pytest.raises(ArgumentError, match=problem):
        apply_plan(UOp.sink(*loops), (step,))
