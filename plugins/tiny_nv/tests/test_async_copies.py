"""Asynchronous copies: a group fills shared memory behind its back, and waits for each in time.

The interpreter watches shared memory in such kernels: what is read before its copy was waited for,
or before a barrier, or written while others still read it, is a DeviceError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest
from interpreted import checked_product, computed

from tiny_nv.async_copies import AsyncCopy, CommitGroup, WaitGroup
from tiny_nv.matrix import INSTRUCTIONS
from tinycore import Context, Tensor
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError, UnsupportedError, VerifyError
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import nest_of
from tinycore.lower.tile import Bind, Plan, Split, Stage, Tail
from tinycore.plugin import deferred
from tinycore.render.base import LATE, Limits, LinearKernel, pointer_of
from tinycore.render.cstyle import CStyle, MatrixCall
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.parse import program_from_text
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify

UNITS = {
    found.unit.a: replace(found.unit, load=None)
    for found in INSTRUCTIONS.values()
    if found.unit.a in (dtypes.float16, dtypes.bfloat16, dtypes.int8)
}
MMA = UNITS[dtypes.float16]
COPYING = Limits(
    vector_bytes=16,
    access_alignment=16,
    grid=((1 << 31) - 1, 65_535, 65_535),
    block=(1024, 1024, 64),
    block_threads=1024,
    block_wanted=256,
    shared_bytes=96 << 10,
    subgroup=32,
    matrix=tuple(UNITS.values()),
    copies=deferred("tiny_nv.copied_fills:begin_copies"),
)
LONG = (64, 256, 64)
"""A product of 8 steps, more than there are copies."""
SIZES = [(16, 16, 16), (64, 64, 64), (37, 50, 29), (100, 33, 129), (8, 128, 300), LONG]
Program = tuple[UOp, ...]
CALL = MatrixCall("mma({0}, {1}, {2})")


def those_of(uops: Program, kind: Op | type) -> list[UOp]:
    """Nodes of an op, or of an instruction of tiny_nv."""
    return [u for u in uops if u.op is kind or type(u.arg) is kind]


def product_for(unit: MatrixUnit, size: tuple[int, int, int]) -> UOp:
    """The kernel of a product, its operands in memory as they are."""
    rows, inner, columns = size
    left = Tensor.empty(rows, inner, dtype=unit.a, device="PYTHON")
    right = Tensor.empty(inner, columns, dtype=unit.a, device="PYTHON")
    return left.matmul(right, dtype=unit.out).schedule()[-1].ast


def with_copies(ast: UOp, copies: int) -> Plan:
    """The plan for a card without such copies, with stages of so many."""
    plan = plan_for(ast, replace(COPYING, copies=None))
    return tuple(
        replace(s, copies=copies) if isinstance(s, Stage) and s.at is not None else s for s in plan
    )


def check(
    unit: MatrixUnit, size: tuple[int, int, int], limits: Limits, plan: Plan | None = None
) -> LinearKernel:
    return checked_product(product_for(unit, size), size, limits, plan)


# --- what it computes


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_products_of_all_sizes(size: tuple[int, int, int], copies: int) -> None:
    check(MMA, size, COPYING, with_copies(product_for(MMA, size), copies))


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", UNITS.values(), ids=lambda unit: unit.name)
def test_products_of_all_units_are_planned(unit: MatrixUnit) -> None:
    check(unit, LONG, COPYING)


def test_a_step_has_one_barrier_and_copies_what_lies_side_by_side() -> None:
    uops = check(MMA, LONG, COPYING, with_copies(product_for(MMA, LONG), 3)).uops
    kinds: list[object] = [type(u.arg) if u.op is Op.INSTRUCTION else u.op for u in uops]
    order: list[object] = [Op.RANGE, WaitGroup, Op.BARRIER, Op.MATRIX]

    assert len(those_of(uops, Op.BARRIER)) == 1
    assert [u.arg.left for u in those_of(uops, WaitGroup)] == [1]
    assert len(those_of(uops, CommitGroup)) == 3
    assert {u.arg.elements for u in those_of(uops, AsyncCopy)} == {8}
    assert [*map(kinds.index, order)] == sorted(map(kinds.index, order))
    assert program_from_text(to_text(uops)) == uops


def test_an_operand_that_is_turned_is_copied_by_single_elements() -> None:
    inner, rows, columns = 64, 130, 72
    left, right = (Tensor.empty(n, inner, device="PYTHON") for n in (rows, columns))
    ast = left.matmul(right.T).schedule()[-1].ast
    limits = replace(
        COPYING,
        matrix=(),
        units=1,
        unit_threads=2048,
        unit_registers=64 << 10,
        thread_registers=255,
        shared_bytes=64 << 10,
        unit_shared_bytes=128 << 10,
    )
    linear, (found, *given) = computed(ast, plan_for(ast, limits), limits)
    a, b = (n.reshape(-1, inner) for n in given)

    assert {u.arg.elements for u in those_of(linear.uops, AsyncCopy)} <= {1, 4}
    assert those_of(linear.uops, AsyncCopy)
    assert numpy.array_equal(found.reshape(rows, columns), a @ b.T)


def test_what_no_copy_can_do_is_stored_by_its_thread() -> None:
    """Halves that go to separate places: no copy is of two bytes."""
    ast = product_for(MMA, LONG)
    linear, _ = computed(ast, with_copies(ast, 2), COPYING)
    stores = [u for u in those_of(linear.uops, Op.STORE) if u.src[1].op is Op.EXTRACT]
    to_shared = [u for u in stores if pointer_of(u.src[0]).op is Op.DEFINE_LOCAL]

    assert to_shared
    assert not any(u.arg == LATE for u in to_shared)
    assert those_of(linear.uops, AsyncCopy)  # of the other operand


def test_loops_around_the_sum_begin_anew() -> None:
    """Each step of an outer loop waits until the last has read what it fills first."""
    row, column, inner = (r.arg.number for r in nest_of(product_for(MMA, (64, 128, 64))))
    plan: Plan = (
        *(Split(row, 16), Split(column, 16), Bind((*row, 1), AxisKind.BLOCK)),
        *(Bind((*column, 1), AxisKind.BLOCK), Split(inner, 16, Tail.GUARD)),
        Stage((*inner, 0), ((((*row, 1), 1),), (((*inner, 1), 1),)), copies=3),
        Bind((*row, 1, Part.FILL, 0), AxisKind.FILL),
        Bind((*inner, 1, Part.FILL, 0), AxisKind.FILL),
    )
    uops = check(MMA, (64, 128, 64), COPYING, plan).uops

    assert len(those_of(uops, Op.RANGE)) > 2
    assert len(those_of(uops, Op.BARRIER)) == 2


# --- what is found


def without(kind: Op | type) -> Callable[[Program], Program]:
    return lambda uops: tuple(u for u in uops if u not in those_of(uops, kind))


def weak_waits(uops: Program) -> Program:
    """Every wait leaves one group more."""
    return tuple(
        u.replace(arg=WaitGroup(u.arg.left + 1)) if isinstance(u.arg, WaitGroup) else u
        for u in uops
    )


def late_barriers(uops: Program) -> Program:
    """The barrier of a step stands behind its copies."""
    (barrier,) = those_of(uops, Op.BARRIER)
    last = max(uops.index(u) for u in those_of(uops, AsyncCopy))
    before, behind = (
        [u for u in part if u is not barrier] for part in (uops[: last + 1], uops[last + 1 :])
    )
    return (*before, barrier, *behind)


def late_copies(uops: Program) -> Program:
    """A group of copies is committed before they are begun, so that it has those of the last."""
    order = list(uops)
    ends = [i for i, u in enumerate(order) if isinstance(u.arg, CommitGroup)]
    for place in ends:
        before = (i for i in range(place) if i in ends or order[i].op is Op.BARRIER)
        order.insert(max(before, default=0) + 1, order.pop(place))
    return tuple(order)


FAULTS = {
    "no wait": (without(WaitGroup), "before the copy to it was waited for"),
    "a wait too weak": (weak_waits, "before the copy to it was waited for"),
    "no groups": (without(CommitGroup), "before the copy to it was waited for"),
    "copies in the next group": (late_copies, "before the copy to it was waited for"),
    "no barrier": (without(Op.BARRIER), "that another thread has written: no barrier"),
    "a barrier too late": (late_barriers, "that another thread reads: no barrier"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("copies", [2, 3, 4])
@pytest.mark.parametrize("name", FAULTS)
def test_a_wait_that_is_forgotten_is_found(name: str, copies: int) -> None:
    change, problem = FAULTS[name]
    ast = product_for(MMA, LONG)
    with pytest.raises(DeviceError, match=problem):
        computed(ast, with_copies(ast, copies), COPYING, change)


# --- what is refused


def copy_between(to: UOp, origin: UOp, elements: int) -> UOp:
    return UOp(Op.INSTRUCTION, dtypes.void, (to, origin), AsyncCopy(elements))


def test_copies_that_mean_nothing_are_illegal() -> None:
    shared = UOp(Op.DEFINE_LOCAL, dtypes.float16.ptr(8, "local"), (), 0)
    buffer = UOp(Op.DEFINE_GLOBAL, dtypes.float16.ptr(8), (), 0)
    to, origin = (UOp(Op.INDEX, p.dtype, (p, UOp.index(0))) for p in (shared, buffer))
    wrong = {
        "from global to local": copy_between(origin, to, 8),
        "4, 8 or 16 bytes, not 6": copy_between(to, origin, 3),
        "-1 groups": UOp(Op.INSTRUCTION, dtypes.void, (), WaitGroup(-1)),
    }
    for problem, node in wrong.items():
        with pytest.raises(VerifyError, match=problem):
            verify(node, "lowered")
    verify(copy_between(to, origin, 8), "lowered")


def linear_for(language: CStyle | PythonRenderer) -> LinearKernel:
    ast = product_for(MMA, LONG)
    with Context(VERIFY=1):
        return lower(ast, language, "product", with_copies(ast, 2))


def test_a_language_without_words_for_them_says_so() -> None:
    words = {"matrix": {MMA.name: CALL}, "builtins": {"grid": "g{0}", "block": "b{0}"}}
    language = type("Plain", (CStyle,), words)(COPYING)
    with pytest.raises(UnsupportedError, match="AsyncCopy"):
        language.render(linear_for(language))


def test_an_unused_seam_leaves_copies_of_stages_to_threads() -> None:
    linear = linear_for(PythonRenderer(replace(COPYING, copies=None)))

    assert not linear.effects
    assert any(u.arg == LATE for u in those_of(linear.uops, Op.STORE))


@pytest.mark.parametrize("copies", [2, 3])
def test_stages_are_waited_for_all_but_those_of_later_steps(copies: int) -> None:
    ast = product_for(MMA, LONG)
    plan = with_copies(ast, copies)
    uops = lower(ast, PythonRenderer(COPYING), "product", plan).uops

    assert {s.copies for s in plan if isinstance(s, Stage)} == {copies}
    assert {u.arg.left for u in those_of(uops, WaitGroup)} == {copies - 2}
