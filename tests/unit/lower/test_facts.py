"""The access table of a kernel: each fact found once, and anew after a step."""

from __future__ import annotations

from tests.unit.lower.test_tile import CPU
from tinycore import Context, Tensor
from tinycore.lower.draft import Draft
from tinycore.lower.kernel_facts import KernelFacts
from tinycore.lower.tile import Bind, Split
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind


def product() -> UOp:
    """The kernel of a matrix product of 8x32 and 32x16."""
    with Context(DEV="PYTHON"):
        return (Tensor.empty(8, 32) @ Tensor.empty(32, 16)).schedule()[-1].ast


def facts_of(kernel: UOp) -> KernelFacts:
    return KernelFacts(kernel, (kernel,))


def test_loops_and_what_is_reduced() -> None:
    facts = facts_of(product())

    assert [r.extent for r in facts.outputs] == [8, 16]
    assert [r.extent for r in facts.reduced] == [32]
    assert len(facts.reductions) == 1
    assert facts.is_fixed
    assert not facts.has_scan
    assert not facts.has_recurrence


def test_strides_of_each_access_by_each_loop() -> None:
    facts = facts_of(product())
    loops = (*facts.outputs, *facts.reduced)

    read = {tuple(facts.stride(n, r) for r in loops) for n in facts.loads}

    assert read == {(32, 0, 1), (0, 1, 16)}
    assert [tuple(facts.stride(n, r) for r in loops) for n in facts.stored] == [(16, 1, 0)]
    assert set(facts.accesses) == {*facts.loads, *facts.stored}
    assert not facts.overwrites


def test_work_counts_each_node_in_the_steps_of_its_own_loops() -> None:
    facts = facts_of(product())
    loads, products, stores = 8 * 32 + 32 * 16, 8 * 16 * 32, 8 * 16

    assert facts.itemsize == 4
    assert facts.work == loads + products + stores


def test_facts_are_found_once_for_each_kernel() -> None:
    draft = Draft(product(), CPU)
    before = draft.facts

    assert draft.facts is before
    assert before.nodes is before.nodes

    number = before.outputs[1].arg.number
    draft.do(Split(number, 4), Bind((*number, 1), AxisKind.VECTOR))

    assert draft.facts is not before
    assert [r.extent for r in draft.facts.loops_of_kind(AxisKind.VECTOR)] == [4]


def test_footprint_is_what_loops_read_from_end_to_end() -> None:
    facts = facts_of(product())  # 8x32 times 32x16
    rows, columns = facts.outputs
    (depth,) = facts.reduced

    assert facts.footprint([depth]) == 4 * (32 + 31 * 16 + 1)
    assert facts.footprint([rows, columns, depth]) == 4 * (8 * 32 + 32 * 16)
