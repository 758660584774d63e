"""Fills that are boxes of a buffer: which are found, what their maps say, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from interpreted import computed
from pairs import PAIR

from tiny_nv.async_copies import AsyncCopy, CommitGroup, WaitGroup
from tiny_nv.boxes import Side, bound_of, coordinates_of, undivided
from tiny_nv.matrix import INSTRUCTIONS
from tiny_nv.operand_loads import MatrixDescriptor
from tiny_nv.phases import Phases, TensorCopy, WaitPhase, cluster_of, maps_of
from tiny_nv.tensor_map import TensorMap
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import result_on, trial_named
from tiny_testing.suite.judge import Verdict
from tiny_testing.suite.shared import boxed_plan
from tinycore import Tensor
from tinycore.builtin.plan import Plan as InterpreterPlan
from tinycore.dtype import dtypes
from tinycore.engine.compile import Binary, info_of
from tinycore.engine.program_cache import plain_info, restored
from tinycore.errors import DeviceError, UnsupportedError, VerifyError
from tinycore.lower.legality import problem_of
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.stage import nest_of
from tinycore.lower.tile import Bind, Plan, Stage, apply_plan
from tinycore.plugin import ProgramInfo, deferred
from tinycore.render.base import Limits, LinearKernel, pointer_of
from tinycore.render.cstyle import CStyle
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.parse import program_from_text
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify

CARD = Limits(
    vector_bytes=16,
    access_alignment=16,
    threads=1,
    grid=(1 << 20, 1 << 16, 1 << 16),
    block=(256, 256, 64),
    block_threads=256,
    block_wanted=32,
    shared_bytes=64 << 10,
    subgroup=32,
    copies=deferred("tiny_nv.copied_fills:begin_copies"),
    fills=deferred("tiny_nv.boxes:fill_by_boxes"),
)
MMA = replace(next(iter(INSTRUCTIONS.values())).unit, load=None)
Program = tuple[UOp, ...]
Kind = Op | type
"""An op, or what an instruction of tiny_nv does."""
IN_CLUSTERS = deferred("pairs:fill_in_pairs")
ROOMY = replace(CARD, block=(512, 512, 512), block_threads=512, shared_bytes=227 << 10)
DEPTH = 32
"""Steps of a sum that are staged at a time: rows of 64 bytes."""


class Language(CStyle):
    """A language that writes no text."""

    builtins = {"grid": "g{0}", "block": "b{0}"}  # noqa: RUF012


def product(rows: int, inner: int, columns: int, dtype: str = "float16") -> UOp:
    """The kernel of a product whose both operands lie along the sum."""
    left = Tensor.empty(rows, inner, dtype=dtype, device="PYTHON")
    right = Tensor.empty(columns, inner, dtype=dtype, device="PYTHON")
    return left.matmul(right.T, dtype="float32").schedule()[-1].ast


def plan(ast: UOp, depth: int = DEPTH, swizzle: int = 4, **sizes: int) -> Plan:
    """Both operands of a tile staged, a step of the sum at a time."""
    axes = [r.arg.number for r in nest_of(ast)]
    return boxed_plan(axes, depth, dtypes.float16, swizzle=swizzle, **sizes)


def lowered(ast: UOp, limits: Limits = CARD, steps: Plan | None = None) -> LinearKernel:
    steps = plan(ast) if steps is None else steps
    assert problem_of(apply_plan(ast, steps), limits) is None
    return lower(ast, Language(limits), "product", steps)


def kind_of(node: UOp) -> Kind:
    return type(node.arg) if node.op is Op.INSTRUCTION else node.op


def copies_of(linear: LinearKernel) -> list[UOp]:
    return [u for u in linear.uops if kind_of(u) is TensorCopy]


def number_of(linear: LinearKernel, kind: Kind) -> int:
    return sum(kind_of(u) is kind for u in linear.uops)


def ends_of(linear: LinearKernel) -> set[int]:
    """Numbers of copies that end a phase."""
    return {u.arg.copies for u in linear.uops if kind_of(u) is Phases}


# --- what is found


def test_operands_of_a_product_are_boxes_of_two_tensors() -> None:
    linear = lowered(product(64, 256, 96))

    assert maps_of(linear) == (
        TensorMap(1, dtypes.float16, (256, 64), (512,), (32, 16), 64),
        TensorMap(2, dtypes.float16, (256, 96), (512,), (32, 8), 64),
    )
    assert number_of(linear, Phases) == 3  # one for each copy of the stages
    assert ends_of(linear) == {2}
    assert number_of(linear, WaitPhase) == 1
    assert number_of(linear, Op.BARRIER) == 2  # before the loop, and in each step
    assert not any(isinstance(u.arg, AsyncCopy | CommitGroup | WaitGroup) for u in linear.uops)


def test_a_step_waits_and_then_fills_what_the_step_before_read() -> None:
    ops = [kind_of(u) for u in lowered(product(64, 256, 96)).uops]
    loop = ops[ops.index(Op.RANGE) :]

    assert ops.index(Phases) < ops.index(Op.BARRIER) < ops.index(TensorCopy)
    assert ops[: ops.index(Op.RANGE)].count(TensorCopy) == 4  # two steps of two operands
    assert loop.count(TensorCopy) == 2
    assert loop.index(WaitPhase) < loop.index(Op.BARRIER) < loop.index(TensorCopy)


def test_sizes_are_those_that_gates_say() -> None:
    linear = lowered(product(50, 200, 90))

    assert [found.sizes for found in maps_of(linear)] == [(200, 50), (200, 90)]


def test_parts_of_a_tensor_begin_at_their_first_row() -> None:
    whole = Tensor.empty(80, 256, dtype="float16", device="PYTHON")
    right = Tensor.empty(96, 256, dtype="float16", device="PYTHON")
    ast = whole[16:].matmul(right.T, dtype="float32").schedule()[-1].ast
    linear = lowered(ast)
    first = next(u for u in copies_of(linear) if u.arg.map.sizes == (256, 80))

    assert [found.sizes for found in maps_of(linear)] == [(256, 80), (256, 96)]
    assert int(first.src[4].vmin) == 16
    assert int(first.src[4].vmax) == 80 - 16


def test_boxes_begin_at_no_place_before_the_tensor() -> None:
    sides = [Side(1, 32, {}), Side(256, 16, {})]
    block = UOp.range(4, 0)

    assert coordinates_of(block * 512 + 32, sides) == [UOp.index(32), block * 2]
    assert coordinates_of(block * -512 + 32, sides) is None


@pytest.mark.parametrize(("beyond", "expected"), [(8, 40), (9, None)])
def test_a_gate_says_a_size_where_it_decides_on_whole_pieces(
    beyond: int, expected: int | None
) -> None:
    piece, inside = UOp.range(8, 0), UOp.range(beyond, 1)

    assert bound_of(piece < 5, piece * 8 + inside) == expected
    assert bound_of(piece < 5, piece + inside) is None
    assert bound_of(piece.eq(5), piece * 8) is None


def test_a_gate_of_a_quotient_says_a_size_of_what_is_divided() -> None:
    step, inside = UOp.range(3, 0), UOp.range(64, 1)
    gate = step * 4 + inside // 16 < 9

    assert bound_of(undivided(gate), step * 64 + inside) == 144
    assert undivided(step < 2) is (step < 2)
    assert undivided(inside // 16 + step // 2 < 3) is (inside // 16 + step // 2 < 3)


def test_each_copy_is_asked_for_by_one_thread_where_there_is_a_step() -> None:
    linear = lowered(product(64, 256, 96))
    gates = [to_text(u.src[0].src[2]) for u in copies_of(linear)]

    assert all("block0" in gate for gate in gates)
    assert all("(2 * 0" in g or "CMPLT" in g for g in gates[4:])


def test_a_batch_is_a_longer_tensor() -> None:
    left = Tensor.empty(4, 64, 256, dtype="float16", device="PYTHON")
    right = Tensor.empty(4, 96, 256, dtype="float16", device="PYTHON")
    ast = left.matmul(right.transpose(1, 2), dtype="float32").schedule()[-1].ast
    linear = lowered(ast)

    assert [found.sizes for found in maps_of(linear)] == [(256, 4 * 64), (256, 4 * 96)]


@pytest.mark.parametrize(
    ("depth", "pieces", "swizzle"), [(16, 2, 32), (32, 4, 64), (64, 8, 128)], ids=str
)
def test_each_swizzle_of_a_stage_is_one_of_the_device(
    depth: int, pieces: int, swizzle: int
) -> None:
    ast = product(64, 512, 96)
    linear = lowered(ast, CARD, plan(ast, depth, pieces))

    assert {found.swizzle for found in maps_of(linear)} == {swizzle}
    arrays = [pointer_of(u.src[0]) for u in copies_of(linear)]
    assert {linear.alignments[array] for array in arrays} == {8 * swizzle}
    assert all(linear.shared_layout[array] % (8 * swizzle) == 0 for array in arrays)


def across(columns: int, rows: int = 256) -> tuple[UOp, Plan]:
    """A product whose right operand lies across the sum, staged in panels of 64 columns."""
    left = Tensor.empty(64, rows, dtype="float16", device="PYTHON")
    right = Tensor.empty(rows, columns, dtype="float16", device="PYTHON")
    ast = left.matmul(right, dtype="float32").schedule()[-1].ast
    steps = plan(ast, 64, 8, columns=128)
    *_, column, inner = (r.arg.number for r in nest_of(ast))
    turned = ((((*inner, 1), 1),), (((*column, 1), 1),))
    return ast, tuple(
        replace(step, dimensions=turned, panel=64)
        if isinstance(step, Stage) and step.dimensions[0][0][0] == (*column, 1)
        else step
        for step in steps
        if columns > 128 or not (isinstance(step, Bind) and step.axis == (*column, 0))
    )


@pytest.mark.parametrize("columns", [384, 128, 360])
def test_panels_of_rows_are_boxes_one_behind_the_other(columns: int) -> None:
    ast, steps = across(columns)
    linear = lowered(ast, ROOMY, steps)
    of_right = [u for u in copies_of(linear) if u.arg.map.slot == 2]

    assert maps_of(linear)[1] == TensorMap(
        2, dtypes.float16, (columns, 256), (2 * columns,), (64, 64), 128
    )
    assert ends_of(linear) == {3}
    places = [int(u.src[0].src[1].vmin) for u in of_right[:2]]
    assert places == [0, 64 * 64]
    assert [int(u.src[3].vmin) for u in of_right[:2]] == [0, 64]


def test_products_under_way_are_kept_off_by_a_step() -> None:
    load = MatrixDescriptor("rows")
    unit = replace(MMA, load=load)
    limits = replace(ROOMY, matrix=(unit,))
    ast = product(64, 1024, 64)
    linear = lower(ast, Language(limits), "product", plan_for(ast, limits))
    start = [u.op for u in linear.uops].index(Op.RANGE)
    before = [u for u in linear.uops[:start] if kind_of(u) is TensorCopy]
    barriers = [u.arg for u in linear.uops if u.op is Op.BARRIER]

    assert len(before) == 2 * 2  # of four copies of two operands one is read, and one may be
    assert barriers == [None, load.behind]
    loop = [kind_of(u) for u in linear.uops[start:]]
    last = len(loop) - 1 - loop[::-1].index(Op.MATRIX)
    assert loop.index(Op.BARRIER) < last < loop.index(TensorCopy)  # products begin first


def test_groups_of_a_cluster_copy_parts_of_what_they_have_in_common() -> None:
    unit = replace(MMA, load=MatrixDescriptor("rows"))
    limits = replace(ROOMY, matrix=(unit,), fills=IN_CLUSTERS)
    ast = product(1024, 1024, 64)
    linear = lower(ast, Language(limits), "product", plan_for(ast, limits))
    alone = [u for u in copies_of(linear) if u.arg.cluster == 1]
    shared = [u for u in copies_of(linear) if u.arg.cluster == PAIR]

    assert cluster_of(linear) == PAIR
    assert len(alone) * PAIR == len(shared)
    assert len({u.arg for u in alone}) == len({u.arg for u in shared}) == 1
    assert all("grid0" in to_text(u.src[0].src[2]) for u in shared)
    assert not any("grid0" in to_text(u.src[1].src[2]) for u in shared)
    assert ends_of(linear) == {1 + PAIR}
    one = replace(limits, fills=CARD.fills)
    assert cluster_of(lower(ast, Language(one), "product", plan_for(ast, one))) == 1


# --- what is none

PRODUCT = product(64, 256, 96)
TALL = product(1024, 256, 96)
UNCHANGED = {
    "a device without": (PRODUCT, replace(CARD, fills=None), plan(PRODUCT)),
    "buffers that start anywhere": (PRODUCT, replace(CARD, buffers_aligned=False), plan(PRODUCT)),
    "another swizzle": (PRODUCT, CARD, plan(PRODUCT, swizzle=2)),
    "one copy": (PRODUCT, CARD, plan(PRODUCT, copies=1)),
    "copies that begin within a swizzle": (PRODUCT, CARD, plan(PRODUCT, columns=4)),
    "a box of 512 rows": (TALL, ROOMY, plan(TALL, rows=512)),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_is_no_box_is_copied_by_threads(name: str) -> None:
    linear = lowered(*UNCHANGED[name])

    assert not copies_of(linear)
    assert not maps_of(linear)


def test_rows_of_an_odd_stride_are_no_tensor() -> None:
    assert not copies_of(lowered(product(64, 252, 96)))


def test_places_that_results_show_cut_to_the_last_one_are_no_size() -> None:
    """Rows beyond the end are read again for results that are stored: a copy would make them 0."""
    ast = product(50, 256, 96)
    row = nest_of(ast)[0]
    store = next(n for n in ast.toposort() if n.op is Op.STORE)
    shown = store.with_src((store.src[0], store.src[1].substitute({row: row.minimum(40)})))

    assert not lowered(ast.substitute({store: shown}), steps=plan(ast)).effects


# --- what the interpreter does with them


@pytest.mark.parametrize("size", [(64, 256, 96), (50, 200, 88)], ids=str)
def test_products_of_boxes_are_those_of_numbers(size: tuple[int, int, int]) -> None:
    ast = product(*size)
    linear, (found, left, right) = computed(ast, plan(ast), CARD)
    rows, inner, columns = size

    assert copies_of(linear)
    expected = left.reshape(rows, inner) @ right.reshape(columns, inner).T
    assert (found.reshape(rows, columns) == expected).all()


DESCRIBED = replace(MMA, load=MatrixDescriptor("rows"))
UNDER_WAY = replace(ROOMY, matrix=(DESCRIBED,))
"""A device whose unit reads operands in shared memory by itself, and behind the next barrier."""
CLUSTERS = replace(UNDER_WAY, fills=IN_CLUSTERS)


@pytest.mark.sample(4)
@pytest.mark.parametrize("limits", [UNDER_WAY, CLUSTERS], ids=["alone", "clusters"])
@pytest.mark.parametrize("rows", [256, 500], ids=str)
def test_products_of_a_unit_that_reads_by_itself_are_those_of_numbers(
    limits: Limits, rows: int
) -> None:
    ast = product(rows, 256, 64)
    linear, (found, left, right) = computed(ast, plan_for(ast, limits), limits)

    assert copies_of(linear)
    assert cluster_of(linear) == (PAIR if limits is CLUSTERS else 1)
    expected = left.reshape(rows, 256) @ right.reshape(64, 256).T
    assert (found.reshape(rows, 64) == expected).all()


def without(kind: Kind, which: int) -> Callable[[Program], Program]:
    """A program without one of its nodes of a kind."""

    def change(uops: Program) -> Program:
        left_out = [number for number, u in enumerate(uops) if kind_of(u) is kind][which]
        return (*uops[:left_out], *uops[left_out + 1 :])

    return change


FAULTY = {
    "no wait": (without(WaitPhase, 0), "before the copy to it was waited for"),
    "no barrier in a step": (without(Op.BARRIER, 1), "that another thread reads: no barrier"),
    "no barrier at first": (without(Op.BARRIER, 0), "that another thread has written: no barrier"),
    "no phases": (without(Phases, 0), "a barrier is used before it has phases"),
    "a copy is missing": (without(TensorCopy, 0), "waits for ever for a phase"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_pipeline_of_boxes_that_would_race_or_hang_is_found(name: str) -> None:
    change, problem = FAULTY[name]
    ast = product(64, 256, 96)
    with pytest.raises(DeviceError, match=problem):
        computed(ast, plan(ast), CARD, change)


def unexpected(uops: Program) -> Program:
    """A program whose first box for a cluster is expected by no group."""
    first = next(u for u in uops if kind_of(u) is TensorCopy and u.arg.cluster > 1)
    to, told, *others = first.src
    never = UOp.const(dtypes.bool, False)
    changed = first.with_src((to, told.with_src((*told.src[:2], never)), *others))
    return tuple(
        node for u in uops for node in ([never, changed.src[1], changed] if u is first else [u])
    )


FAULTY_CLUSTERS = {
    "no barrier in a step": (without(Op.BARRIER, 1), "that another thread reads: no barrier"),
    "no barrier at first": (without(Op.BARRIER, 0), "that another thread has written: no barrier"),
    "a copy is missing": (without(TensorCopy, 1), "waits for ever for a phase"),
    "a copy is not expected": (unexpected, "waits for ever for a phase"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FAULTY_CLUSTERS)
def test_a_pipeline_of_a_cluster_that_would_race_or_hang_is_found(name: str) -> None:
    change, problem = FAULTY_CLUSTERS[name]
    ast = product(256, 512, 64)
    with pytest.raises(DeviceError, match=problem):
        computed(ast, plan_for(ast, CLUSTERS), CLUSTERS, change)


def test_parts_of_clusters_are_not_launched() -> None:
    ast = product(256, 512, 64)
    linear = lower(ast, Language(CLUSTERS), "product", plan_for(ast, CLUSTERS))
    with pytest.raises(DeviceError, match=f"3 groups, and clusters have {PAIR}"):
        InterpreterPlan("product", linear.uops).frame(1 << 16, (3, 1, 1))


@pytest.mark.slow
def test_a_fill_of_what_a_product_under_way_reads_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fills one step ahead too far, which is right where a barrier waits for all products."""

    def passing(uops: Program) -> Program:
        barriers = [u for u in uops if u.op is Op.BARRIER]
        return tuple(u.replace(arg=1) if u is barriers[1] else u for u in uops)

    ast = product(256, 512, 64)
    chosen = plan_for(ast, UNDER_WAY)
    monkeypatch.setattr(MatrixDescriptor, "behind", 0)
    computed(ast, chosen, UNDER_WAY)
    with pytest.raises(DeviceError, match="that a product under way may read"):
        computed(ast, chosen, UNDER_WAY, passing)


def test_boxes_of_a_tensor_larger_than_its_buffer_fault() -> None:
    def longer(uops: Program) -> Program:
        first = next(u for u in uops if kind_of(u) is TensorCopy)
        columns, rows = first.arg.map.sizes
        longer = TensorCopy(replace(first.arg.map, sizes=(columns, rows + 1)))
        return tuple(u.replace(arg=longer) if u is first else u for u in uops)

    ast = product(64, 256, 96)
    with pytest.raises(DeviceError, match="smaller than its tensor"):
        computed(ast, plan(ast), CARD, longer)


def test_boxes_begin_where_their_swizzle_does() -> None:
    def moved(uops: Program) -> Program:
        first = next(u for u in uops if kind_of(u) is TensorCopy)
        to = first.src[0]
        place = to.with_src((to.src[0], UOp.index(8), *to.src[2:]))
        known = [u for u in (place.src[1],) if u not in uops]
        return tuple(
            node
            for u in uops
            for node in ([*known, first.with_src((place, *first.src[1:]))] if u is first else [u])
        )

    ast = product(64, 256, 96)
    with pytest.raises(DeviceError, match="at no multiple of 512 bytes"):
        computed(ast, plan(ast), CARD, moved)


# --- maps


WRONG = {
    "0 sizes": TensorMap(0, dtypes.float16, (), (), ()),
    "1 strides and a box of 1": TensorMap(0, dtypes.float16, (8, 8), (16,), (8,)),
    "sizes are 1 to": TensorMap(0, dtypes.float16, (0,), (), (8,)),
    "multiples of 16 bytes, not (24,)": TensorMap(0, dtypes.float16, (12, 8), (24,), (8, 8)),
    "rows of (16, 8) elements overlap": TensorMap(0, dtypes.float16, (16, 8), (16,), (8, 8)),
    "1 to 256 elements": TensorMap(0, dtypes.float16, (512,), (), (512,)),
    "multiples of 16 bytes, not 8": TensorMap(0, dtypes.float16, (8,), (), (4,)),
    "exchanges no pieces of rows of 64": TensorMap(0, dtypes.float16, (32,), (), (32,), 32),
    "a swizzle of 48 bytes": TensorMap(0, dtypes.float16, (8,), (), (8,), 48),
}


@pytest.mark.parametrize("problem", WRONG)
def test_maps_that_no_device_takes(problem: str) -> None:
    assert problem in (WRONG[problem].problem() or "")


def test_a_swizzle_exchanges_pieces_of_a_line_by_the_number_of_the_line() -> None:
    found = TensorMap(0, dtypes.float16, (64, 64), (128,), (64, 16), 128)

    assert found.problem() is None
    assert found.place((0, 0)) == 0
    assert found.place((8, 1)) == 128  # piece 1 of line 1
    assert found.place((0, 7)) == 7 * 128 + 7 * 16
    assert found.place((1, 8)) == 8 * 128 + 2
    assert sorted(found.place((c, r)) for r in range(16) for c in range(64)) == list(
        range(0, 2048, 2)
    )


def test_a_program_says_its_maps_and_keeps_them_on_its_way_to_a_worker() -> None:
    linear = lowered(product(64, 256, 96))
    info = info_of(linear, 3)

    assert [TensorMap.from_json(text) for text in info.extras] == list(maps_of(linear))
    assert pickle.loads(pickle.dumps(Binary(b"code", info))).info == info
    assert restored(ProgramInfo, json.loads(json.dumps(plain_info(info)))) == info


# --- what is illegal, and refused


def copy_with(**changes: object) -> UOp:
    found = copies_of(lowered(product(64, 256, 96)))[0]
    return found.replace(**changes)


def test_copies_that_mean_nothing_are_illegal() -> None:
    good = copy_with()
    to, barrier, pointer, *coordinates = good.src
    wrong = {
        "takes an Instruction or": copy_with(arg=None),
        "a coordinate for each dimension": copy_with(src=good.src[:-1]),
        "from global to local memory": copy_with(src=(to, barrier, barrier, *coordinates)),
        "coordinates are of type index": copy_with(
            src=(to, barrier, pointer, UOp.const(dtypes.int32, 0), coordinates[1])
        ),
        "1 to 256 elements": copy_with(arg=TensorCopy(replace(good.arg.map, box=(32, 512)))),
        "which groups expect them": copy_with(arg=replace(good.arg, cluster=PAIR)),
        "at least one copy, not 0": UOp(Op.INSTRUCTION, dtypes.void, (barrier,), Phases(0)),
        "one INDEX of shared uint64": UOp(Op.INSTRUCTION, dtypes.void, (to,), Phases(1)),
        "the INDEX of a barrier": UOp(Op.INSTRUCTION, dtypes.void, (barrier,), WaitPhase()),
    }
    verify(good, "lowered")
    for problem, node in wrong.items():
        with pytest.raises(VerifyError, match=problem):
            verify(node, "lowered")


def test_a_program_is_the_same_after_text() -> None:
    uops = lowered(product(64, 256, 96)).uops
    assert program_from_text(to_text(uops)) == uops


def test_a_language_without_words_for_them_says_so() -> None:
    linear = lowered(product(64, 256, 96))
    with pytest.raises(UnsupportedError, match="no instruction "):
        Language(CARD).render(linear)


# --- under any limits, and found by the suite


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(24))
def test_boxes_under_random_limits_are_those_of_numbers(seed: int) -> None:
    random = Random(seed)
    pick = random.choice
    limits = replace(
        pick((UNDER_WAY, CLUSTERS)),
        shared_bytes=pick((16 << 10, 48 << 10, 227 << 10)),
        units=pick((0, 1, 8, 64)),
        threads=pick((1, 64, 1024)),
        thread_registers=pick((0, 64, 255)),
        l2_bytes=pick((0, 1 << 10, 1 << 20)),
    )
    rows, inner, columns = (pick((16, 33, 64, 100, 256)) for _ in range(3))
    ast = product(rows, inner, columns)
    _, (found, left, right) = computed(ast, plan_for(ast, limits), limits)

    expected = left.reshape(rows, inner) @ right.reshape(columns, inner).T
    assert (found.reshape(rows, columns) == expected).all()


class Boxed(Rewriter):
    """The accelerator of the test kit with copies of boxes."""

    dims = replace(LIMITS, fills=CARD.fills)


class PlainBoxes(Boxed):
    """Boxes of tensors are copied row by row, whatever the swizzle that was asked for."""

    def changed(self, node: UOp) -> Program:
        """Without a swizzle."""
        if kind_of(node) is not TensorCopy:
            return (node,)
        return (node.replace(arg=TensorCopy(replace(node.arg.map, swizzle=0))),)


@pytest.mark.parametrize(
    ("renderer", "verdict"), [(Boxed, Verdict.PASSED), (PlainBoxes, Verdict.FAILED)]
)
def test_a_fault_of_boxes_is_found_by_its_trial(renderer: type[Rewriter], verdict: Verdict) -> None:
    trial = trial_named("test_boxes_are_copied_by_one_thread[float16-64x256x96]")

    assert result_on(replace(CORRECT, renderer=renderer), trial).judgement.verdict is verdict
