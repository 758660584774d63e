"""The list of passes: its order, what each decides and says, and what is refused after each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.schedule.graphs import assign, buffer, expand, matmul, permute, reshape, total
from tinycore import Context
from tinycore.dtype import dtypes
from tinycore.errors import VerifyError
from tinycore.render.base import Limits
from tinycore.schedule.limits import cut_for
from tinycore.schedule.memory_plan import Block, Layout
from tinycore.schedule.pipeline import PASS_NAMES, SCHEDULE_PIPELINE, kernelize, run_passes
from tinycore.schedule.retention import Realized
from tinycore.schedule.state import State
from tinycore.schedule.storage import Reason
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def after(name: str, *roots: UOp) -> State:
    """The state of some roots after a pass."""
    nodes = UOp.sink(*roots).toposort()
    parameters = tuple(n for n in nodes if n.op is Op.BUFFER)
    return run_passes(State(roots, parameters=parameters, known={n: n for n in nodes}), last=name)


def reason(node: UOp, *roots: UOp) -> Reason | None:
    """Why a node is stored."""
    return after("limit buffers", *roots).storage.reasons.get(node)


def check(name: str, state: State) -> None:
    """Run the check that follows a pass."""
    SCHEDULE_PIPELINE[PASS_NAMES.index(name)].check(state)


def test_the_order_of_passes() -> None:
    assert PASS_NAMES == (
        "shard", "partial writes", "attention", "windows", "operand layout", "choose storage",
        "limit buffers", "split reductions", "group", "hazards", "number memory", "order",
        "row fusion", "overlap", "emit kernels", "memory plan",
    )  # fmt: skip


# --- why a value is stored


def test_what_is_asked_for_is_stored() -> None:
    x = buffer(4, 8)
    kept = UOp(Op.CONTIGUOUS, x.dtype, (x + 1.0,))
    root = kept * 2.0

    assert reason(root, root) is Reason.ASKED
    assert reason(kept, root) is Reason.ASKED
    assert reason(kept.src[0], root) is None


def test_a_reduction_that_is_repeated_is_stored() -> None:
    x = buffer(4, 8)
    sums = total(x, 1)

    assert reason(sums, x - expand(reshape(sums, (4, 1)), (4, 8))) is Reason.SHARED_REDUCTION


def test_a_dear_value_that_a_reduction_repeats_is_stored() -> None:
    a, b = buffer(4, 8), buffer(8, 16)
    dear = a.alu(Op.EXP)

    assert reason(dear, matmul(dear, b)) is Reason.DEAR_REPEAT
    assert reason(a + 1.0, matmul(a + 1.0, b)) is None


def test_a_dear_value_that_is_used_twice_is_stored() -> None:
    x = buffer(4, 8)
    dear = x
    for _ in range(6):
        dear = dear.alu(Op.EXP)

    assert reason(dear, dear + 1.0, dear * 2.0) is Reason.DEAR_SHARED


def test_a_dear_value_whose_uses_meet_element_by_element_is_not_stored() -> None:
    x = buffer(4, 4)
    dear = x
    for _ in range(6):
        dear = dear.alu(Op.EXP)
    turned = UOp(Op.PERMUTE, dear.dtype, (dear,), (1, 0))

    assert reason(dear, (dear + 1.0) / (dear * 2.0)) is None
    assert reason(dear, dear + turned) is Reason.DEAR_SHARED


def test_a_long_chain_is_stored_on_the_way() -> None:
    x = chain = buffer(4)
    for number in range(200):
        chain = chain + (x * float(number))

    assert Reason.LONG_CHAIN in after("limit buffers", chain).storage.reasons.values()


def test_an_operand_of_a_gather_is_stored() -> None:
    table, index = buffer(8, 4) + 1.0, buffer(2, 4)
    row = UOp(Op.GATHER, table.dtype, (table, index.cast(dtypes.int32)), 0)

    assert reason(table, row) is Reason.OPERAND


# --- what DEBUG=3 says


def told(capsys: pytest.CaptureFixture[str], *roots: UOp) -> str:
    with Context(TRACE="schedule"):
        kernelize(roots)
    return capsys.readouterr().err


def test_every_stored_value_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    x = buffer(4, 8)
    text = told(capsys, x - expand(reshape(total(x, 1), (4, 1)), (4, 8)))

    assert "choose storage   2 values of" in text
    assert f"REDUCE_AXIS float32 (4, 1) is stored: {Reason.SHARED_REDUCTION.value}" in text
    assert "emit kernels        0 <Kernel reduce_4_8 (reduce_axis)>" in text


def test_the_level_of_every_stored_value_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    x = buffer(64, 256)
    root = x - expand(reshape(total(x, 1), (64, 1)), (64, 256))
    apart = told(capsys, root)
    with cut_for(Limits(vector_bytes=32, cache_bytes=1 << 20)), Context(TRACE="schedule"):
        kernelize([root], lambda _, memory: Realized({root: memory[root]}, {}))
    together = capsys.readouterr().err

    assert f"(64, 1) is global, kernel 0: {Reason.SHARED_REDUCTION.value}" in apart
    assert f"(64, 256) is global, kernel 1: {Reason.ASKED.value}" in apart
    assert f"(64, 1) is in shared loops, kernel 0: {Reason.SHARED_REDUCTION.value}" in together
    assert f"(64, 256) is global, kernel 0: {Reason.ASKED.value}" in together


def test_the_graph_is_printed_after_each_pass(capsys: pytest.CaptureFixture[str]) -> None:
    x = buffer(4, 8)
    with Context(TRACE="passes", NO_COLOR=1):
        after("memory plan", x - expand(reshape(total(x, 1), (4, 1)), (4, 8)))
    text = capsys.readouterr().err
    heads = [line for line in text.splitlines() if line.startswith("passes")]

    assert [head.partition(":")[0] for head in heads] == [f"passes   after {n}" for n in PASS_NAMES]
    assert f")  # stored: {Reason.SHARED_REDUCTION.value}\n" in text
    assert ")  # in kernel 0\n" in text
    assert "step 1, on memory" in text


def test_two_kernels_with_the_same_loops_are_told_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, y = buffer(4, 4), buffer(4, 4)
    text = told(capsys, x + 1.0, y * 2.0)
    moved = told(capsys, first := UOp(Op.CONTIGUOUS, x.dtype, (x + 1.0,)), permute(first, 1, 0) * x)

    assert "ADD float32 (4, 4) and MUL float32 (4, 4): they read no memory in common" in text
    assert "one reads the other through movement or a reduction" in moved


def test_a_saved_copy_is_told_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    square = buffer(4, 4)
    text = told(capsys, assign(square, permute(square, 1, 0)))

    assert f"(16,) is global, kernel 0: {Reason.SAVED.value}" in text


def test_nothing_is_told_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    kernelize([buffer(4) + 1.0])

    assert capsys.readouterr().err == ""


# --- what is refused


def test_a_root_without_memory_is_refused() -> None:
    state = after("choose storage", root := buffer(4) + 1.0)
    del state.storage.reasons[root]

    with pytest.raises(VerifyError, match="needs memory and has none"):
        check("choose storage", state)


def test_a_value_of_another_shape_is_refused() -> None:
    state = after("split reductions", root := buffer(4) + 1.0)
    wrong = {**state.rewritten, root: buffer(5) + 1.0}

    with pytest.raises(VerifyError, match=r"illegal after 'partial writes': .* has another shape"):
        check("split reductions", replace(state, rewritten=wrong))


def test_a_value_without_a_kernel_is_refused() -> None:
    state = after("group", root := buffer(4) + 1.0)
    state.groups.home[root].outputs.clear()

    with pytest.raises(VerifyError, match="no kernel stores"):
        check("group", state)


def test_a_result_of_another_shape_is_refused() -> None:
    state = after("emit kernels", root := buffer(4) + 1.0)
    other = after("emit kernels", last := buffer(5) + 1.0)

    with pytest.raises(VerifyError, match="illegal after 'emit kernels'"):
        check("emit kernels", replace(state, cut={root: other.cut[last]}))


def chain() -> State:
    """Two kernels, the second of which reads what the first one stored."""
    x = buffer(4, 8)
    return after("emit kernels", x - expand(reshape(total(x, 1), (4, 1)), (4, 8)))


def test_memory_that_is_read_before_it_is_written_is_refused() -> None:
    state = chain()

    check("order", state)
    with pytest.raises(VerifyError, match="which no kernel before has written"):
        check("order", replace(state, launches=state.launches[::-1]))


def test_values_that_live_at_once_in_the_same_bytes_are_refused() -> None:
    state = chain()
    first, second = (step.places[0] for step in state.steps)
    apart = Block("PYTHON", 512, ((first, 0), (second, 256)), 512)
    same = apart._replace(places=((first, 0), (second, 0)))

    check("memory plan", replace(state, layout=Layout({}, {}, (), (apart,))))
    with pytest.raises(VerifyError, match="illegal after 'memory plan': memory"):
        check("memory plan", replace(state, layout=Layout({}, {}, (), (same,))))


def test_an_assignment_in_place_passes_all_checks() -> None:
    x = buffer(4)

    assert len(after("emit kernels", assign(x, x + 1.0)).steps) == 1
