"""Products by matrix units: as NumPy has them, whatever the unit, the tiles and what is around."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy
import pytest

from tests.unit.lower.legal import applied
from tests.unit.lower.matrices import (
    DOT,
    LOADED,
    MFMA,
    MMA,
    MMA_BFLOAT,
    MMA_INT8,
    OUTER,
    SIMDGROUP,
    UNITS,
    WMMA,
)
from tests.unit.lower.test_matrix_product import converted_product
from tiny_testing.kernels import Array
from tiny_testing.loads import TileLoad
from tinycore import Context, Tensor, dtypes
from tinycore.device import Buffer, Device
from tinycore.dtype import DType, PointerDType
from tinycore.engine.compile import info_of
from tinycore.errors import ArgumentError
from tinycore.lower import fragments
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.steps.tensorize import rounded_operand
from tinycore.lower.tile import (
    Bind,
    Plan,
    Reorder,
    Split,
    Stage,
    Tensorize,
)
from tinycore.render.base import Limits, LinearKernel, Renderer, pointer_of
from tinycore.schedule.limits import cut_for
from tinycore.uop.evaluate import evaluate
from tinycore.uop.host_bytes import decode, encode
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

CARD = Limits(
    threads=1,
    vector_bytes=16,
    access_alignment=16,
    grid=((1 << 31) - 1, 65_535, 65_535),
    block=(1024, 1024, 64),
    block_threads=1024,
    block_wanted=256,
    shared_bytes=96 << 10,
    subgroup=32,
    matrix=(MMA, MMA_BFLOAT, MMA_INT8),
)
ROWS, COLUMNS, INNER = (0,), (1,), (3,)
LAUNCHED = (Bind((*ROWS, 0), AxisKind.GRID), Bind((*COLUMNS, 0), AxisKind.GRID))
SIZES = [(16, 16, 16), (64, 64, 64), (256, 64, 256), (37, 50, 29), (100, 33, 129), (8, 128, 300)]


def computed(ast: UOp, plan: Plan) -> tuple[LinearKernel, list[Array]]:
    """A kernel under a plan, and its buffers after it ran in the interpreter on small integers."""
    device = Device["PYTHON"]
    toolchain = device.toolchain
    linear = lower(ast, toolchain.renderer, "product", plan)
    binary = toolchain.compiler.compile(toolchain.renderer.render(linear))
    program = device.runtime.load(binary, info_of(linear, len(linear.buffers)))
    generator = numpy.random.default_rng(0)
    buffers, held = [], []
    for pointer in linear.buffers:
        assert isinstance(pointer.dtype, PointerDType)
        dtype = pointer.dtype.base.scalar()
        numbers = generator.integers(-3, 4, pointer.dtype.size)
        held.append(numbers)
        content = encode(numbers.astype(numpy.float32), dtype)
        buffers.append(Buffer.from_cpu("PYTHON", content))
    program([b.handle for b in buffers], [], wait=True)
    out = linear.buffers[0].dtype
    assert isinstance(out, PointerDType)
    return linear, [decode(buffers[0].numpy(), out.base), *held[1:]]


def check(ast: UOp, plan: Plan, size: tuple[int, int, int], uses_unit: bool = True) -> LinearKernel:
    """Compare a product with NumPy's; integers of such sizes are exact in every type."""
    rows, inner, columns = size
    linear, (found, left, right) = computed(ast, plan)
    assert numpy.array_equal(
        found.reshape(rows, columns), left.reshape(rows, inner) @ right.reshape(inner, columns)
    )
    assert any(u.op is Op.MATRIX for u in linear.uops) == uses_unit
    return linear


def product_for(unit: MatrixUnit, size: tuple[int, int, int]) -> UOp:
    return converted_product(*size, unit.a.name)


def card_with(*units: MatrixUnit) -> Limits:
    return replace(CARD, matrix=units, subgroup=units[0].threads)


# --- the step


@pytest.mark.parametrize("unit", [u for u in UNITS if u.m > 1], ids=lambda unit: unit.name)
def test_a_unit_multiplies_as_its_maps_say(unit: MatrixUnit) -> None:
    size = (2 * unit.m, 3 * unit.k, 2 * unit.n)
    ast = product_for(unit, size)
    (reduction,) = (n for n in ast.toposort() if n.op is Op.REDUCE)
    plan = (Tensorize(ROWS, COLUMNS, reduction.src[1].arg.number, unit), *LAUNCHED)

    check(ast, plan, size)


def test_a_dot_product_has_loops_around_and_no_lanes() -> None:
    linear = check(product_for(DOT, (3, 12, 5)), (Tensorize(None, None, INNER, DOT),), (3, 12, 5))
    assert not [u for u in linear.uops if u.op is Op.SPECIAL]


def test_a_unit_of_one_thread_has_the_lanes_of_a_vector() -> None:
    size = (3, 6, 24)
    linear = check(product_for(OUTER, size), (Tensorize(None, COLUMNS, INNER, OUTER),), size)
    (matrix,) = (u for u in linear.uops if u.op is Op.MATRIX)
    assert matrix.dtype is dtypes.int32.vec(8)


def test_sums_of_several_steps_stay_in_the_unit() -> None:
    size = (16, 64, 8)
    plan = (Tensorize(ROWS, COLUMNS, INNER, MMA), Bind((*INNER, 0), AxisKind.UNROLL))
    linear = check(product_for(MMA, size), plan, size)

    assert sum(u.op is Op.MATRIX for u in linear.uops) == 4
    assert not any(u.op is Op.ADD and u.dtype.kind == "float" for u in linear.uops)


def test_neighbors_are_loaded_at_once() -> None:
    size = (16, 16, 8)
    linear = check(product_for(MMA, size), (Tensorize(ROWS, COLUMNS, INNER, MMA),), size)
    loads = [u for u in linear.uops if u.op is Op.LOAD and u.dtype.scalar() is dtypes.float16]

    assert sorted(u.dtype.count for u in loads) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_tiles_in_a_row_share_the_fragments_of_their_operand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, fragment = list[UOp](), fragments.fragment

    def noted(value: UOp, *others: Any) -> UOp:
        made.append(value)
        return fragment(value, *others)

    monkeypatch.setattr(fragments, "fragment", noted)
    size = (3 * MMA.m, MMA.k, 5 * MMA.n)
    unrolled = (Bind((*ROWS, 0), AxisKind.UNROLL), Bind((*COLUMNS, 0), AxisKind.UNROLL))
    linear = check(product_for(MMA, size), (Tensorize(ROWS, COLUMNS, INNER, MMA), *unrolled), size)

    assert sum(u.op is Op.MATRIX for u in linear.uops) == 3 * 5
    assert len(made) == len(set(made)) == 3 + 5


def test_a_split_with_a_rest_leaves_the_rest_to_multiply_adds() -> None:
    size = (20, 37, 11)
    linear = check(product_for(MMA, size), (Tensorize(ROWS, COLUMNS, INNER, MMA), *LAUNCHED), size)
    assert any(u.op in (Op.MUL, Op.MULACC) and u.dtype.kind == "float" for u in linear.uops)


def test_the_left_matrix_may_come_second() -> None:
    left, right = (Tensor.empty(16, 16, dtype="float16", device="PYTHON") for _ in range(2))
    product = (right.T.cast("float32").unsqueeze(0) * left.cast("float32").unsqueeze(1)).sum(-1)
    ast = product.schedule()[-1].ast
    plan = plan_for(ast, CARD)
    linear, (found, first, second) = computed(ast, plan)

    assert any(u.op is Op.MATRIX for u in linear.uops)
    expected = second.reshape(16, 16) @ first.reshape(16, 16)
    assert numpy.array_equal(found.reshape(16, 16), expected)


def greatest() -> Tensor:
    left, right = (Tensor.empty(16, 16, 16, dtype="float16", device="PYTHON") for _ in range(2))
    return (left.cast("float32") * right.cast("float32")).max(2)


def sum_of_sums() -> Tensor:
    left, right = (Tensor.empty(16, 16, 16, dtype="float16", device="PYTHON") for _ in range(2))
    return (left.cast("float32") + right.cast("float32")).sum(2)


def both_move() -> Tensor:
    left, right = (Tensor.empty(16, 16, 16, dtype="float16", device="PYTHON") for _ in range(2))
    return (left.cast("float32") * right.cast("float32")).sum(2)


@pytest.mark.parametrize(
    ("make", "problem"),
    [(greatest, "adds products"), (sum_of_sums, "not ADD"), (both_move, "moves along m")],
)
def test_what_is_no_product_is_refused(make: Callable[[], Tensor], problem: str) -> None:
    ast = make().schedule()[-1].ast
    counter = next(n for n in ast.toposort() if n.op is Op.REDUCE).src[1].arg.number
    with pytest.raises(ArgumentError, match=problem):
        applied(ast, (Tensorize(ROWS, COLUMNS, counter, MMA),), CARD)


@pytest.mark.parametrize(
    ("step", "limits", "problem"),
    [
        (Tensorize(ROWS, COLUMNS, (9,), MMA), CARD, "no loop"),
        (Tensorize(ROWS, None, INNER, MMA), CARD, "a loop for each of m and n"),
        (Tensorize(ROWS, COLUMNS, INNER, MMA), replace(CARD, block_threads=16), "too many"),
    ],
)
def test_what_a_device_has_not_is_refused(step: Tensorize, limits: Limits, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        applied(product_for(MMA, (16, 16, 16)), (step,), limits)


def test_loops_that_are_short_are_refused() -> None:
    step = Tensorize(ROWS, COLUMNS, INNER, MMA)
    with pytest.raises(ArgumentError, match="steps of 16 do not cut a loop of 8"):
        applied(product_for(MMA, (8, 16, 16)), (step,), CARD)


# --- plans


@pytest.mark.sample(5)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "unit", [MMA, MMA_BFLOAT, MMA_INT8, WMMA, MFMA], ids=lambda unit: unit.name
)
def test_products_of_all_sizes_are_planned_for_a_unit(
    unit: MatrixUnit, size: tuple[int, int, int]
) -> None:
    ast = product_for(unit, size)
    plan = plan_for(ast, card_with(unit))

    assert any(isinstance(step, Tensorize) for step in plan)
    applied(ast, plan, card_with(unit))
    check(ast, plan, size)


def test_a_unit_of_single_precision_is_used_for_it() -> None:
    ast = product_for(SIMDGROUP, (64, 32, 64))
    check(ast, plan_for(ast, card_with(SIMDGROUP)), (64, 32, 64))


def test_other_types_are_left_to_multiply_adds() -> None:
    ast = product_for(SIMDGROUP, (64, 32, 64))
    check(ast, plan_for(ast, CARD), (64, 32, 64), uses_unit=False)


def test_a_product_of_one_row_is_left_to_multiply_adds() -> None:
    ast = product_for(MMA, (2, 256, 256))
    assert not any(isinstance(step, Tensorize) for step in plan_for(ast, CARD))


def test_operands_are_staged_in_their_own_type() -> None:
    size = (256, 64, 256)
    ast = product_for(MMA, size)
    linear = check(ast, plan_for(ast, CARD), size)
    arrays = [u.dtype for u in linear.uops if u.op is Op.DEFINE_LOCAL]

    assert [a.base for a in arrays if isinstance(a, PointerDType)] == [dtypes.float16] * 2
    assert not any(u.op is Op.CAST and u.dtype is dtypes.float32 for u in linear.uops)


def banks_at_once(index: UOp, lanes: Iterable[int], width: int) -> int:
    """The most different words of one bank that lanes ask for, counted by their addresses.

    Loops are in their first step, threads of the group are those of its first subgroup.
    """
    assert isinstance(index.dtype, PointerDType)
    words: dict[int, set[int]] = defaultdict(set)
    counters = [n for n in index.src[1].toposort() if n.op in (Op.SPECIAL, Op.RANGE)]
    for lane in lanes:
        at = {c: UOp.index(lane if c.arg == "block0" else 0) for c in counters}
        element = rewrite(index.src[1].substitute(at), simplify).arg
        first = element * index.dtype.base.itemsize // 4
        for word in range(first, first + max(width // 4, 1)):
            words[word % 32].add(word)
    return max(map(len, words.values()))


@pytest.mark.sample(3)
@pytest.mark.parametrize("unit", [MMA, MMA_BFLOAT, MMA_INT8], ids=lambda unit: unit.name)
def test_a_subgroup_reads_every_bank_of_shared_memory_once(unit: MatrixUnit) -> None:
    size = (256, 128, 256)
    ast = product_for(unit, size)
    linear = lower(ast, Renderer(card_with(unit)), "product", plan_for(ast, card_with(unit)))
    shared = [
        n
        for n in linear.uops
        if n.op is Op.LOAD and pointer_of(n.src[0]).op is Op.DEFINE_LOCAL and n.dtype.count > 1
    ]

    assert shared
    assert {banks_at_once(n.src[0], range(32), n.dtype.size_bytes) for n in shared} == {1}


def tile_loads(linear: LinearKernel) -> list[UOp]:
    return [n for n in linear.uops if isinstance(n.arg, TileLoad)]


@pytest.mark.parametrize("size", [(64, 64, 64), (100, 33, 129)], ids=str)
@pytest.mark.parametrize("unit", LOADED, ids=lambda unit: unit.name)
def test_operands_are_loaded_by_tiles(unit: MatrixUnit, size: tuple[int, int, int]) -> None:
    ast = product_for(unit, size)
    with Context(VERIFY=1):
        linear = check(ast, plan_for(ast, card_with(unit)), size)

    assert {n.arg.name for n in tile_loads(linear)} == {"load_tiles"}
    operands = [s for n in linear.uops if n.op is Op.MATRIX for s in n.src[:2]]
    assert {*operands} == {*tile_loads(linear)}


def test_an_operand_by_columns_is_staged_as_it_lies_and_turned() -> None:
    unit, size = LOADED[0], (128, 64, 128)
    linear = check(
        product_for(unit, size), plan_for(product_for(unit, size), card_with(unit)), size
    )
    stores = [
        n.src[1].dtype.size_bytes
        for n in linear.uops
        if n.op is Op.STORE and pointer_of(n.src[0]).op is Op.DEFINE_LOCAL
    ]

    assert {n.arg.is_turned for n in tile_loads(linear)} == {False, True}
    assert set(stores) == {16}


@pytest.mark.parametrize("unit", LOADED, ids=lambda unit: unit.name)
def test_rows_of_a_tile_are_in_banks_of_their_own(unit: MatrixUnit) -> None:
    ast = product_for(unit, (256, 128, 256))
    linear = lower(ast, Renderer(card_with(unit)), "product", plan_for(ast, card_with(unit)))
    tiles = [range(first, first + 8) for first in range(0, 32, 8)]

    found = {banks_at_once(n.src[0], tile, 16) for n in tile_loads(linear) for tile in tiles}
    assert found == {1}


def test_types_that_are_only_stored_are_loaded_by_tiles_of_bits() -> None:
    ast = product_for(LOADED[1], (256, 64, 256))
    limits = card_with(LOADED[1])
    with Context(VERIFY=1):
        linear = lower(ast, Storing(limits), "product", plan_for(ast, limits))

    assert {n.dtype.scalar() for n in tile_loads(linear)} == {dtypes.uint16}


def test_fills_move_the_widest_vectors() -> None:
    ast = product_for(MMA, (256, 64, 256))
    linear = lower(ast, Renderer(CARD), "product", plan_for(ast, CARD))
    loads = [n for n in linear.uops if n.op is Op.LOAD and n.dtype.scalar() is dtypes.float16]
    filling = {n.dtype.size_bytes for n in loads if pointer_of(n.src[0]).op is Op.DEFINE_GLOBAL}

    assert filling == {16}


@pytest.mark.parametrize(
    ("swizzle", "piece", "problem"),
    [
        (3, 16, "rows of 64 bytes are no multiple of 3 pieces of 16 bytes"),
        (8, 16, "rows of 64 bytes are no multiple of 8 pieces of 16 bytes"),
    ],
)
def test_rows_that_cannot_be_swizzled_are_refused(swizzle: int, piece: int, problem: str) -> None:
    ast = product_for(MMA, (256, 64, 256))
    plan = plan_for(ast, CARD)
    changed = tuple(
        replace(s, swizzle=swizzle, piece_bytes=piece) if isinstance(s, Stage) else s for s in plan
    )
    with pytest.raises(ArgumentError, match=problem):
        applied(ast, changed, CARD)


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [(64, 64, 64), (120, 64, 128)], ids=str)
@pytest.mark.parametrize("piece", [16, 32])
@pytest.mark.parametrize("unit", [MMA, WMMA, SIMDGROUP], ids=lambda unit: unit.name)
def test_rows_are_swizzled_by_pieces_of_any_size(
    unit: MatrixUnit, piece: int, size: tuple[int, int, int]
) -> None:
    ast = product_for(unit, size)
    plan = tuple(
        replace(s, swizzle=2, piece_bytes=piece, padding=0) if isinstance(s, Stage) else s
        for s in plan_for(ast, card_with(unit))
    )
    linear = check(ast, plan, size)

    assert any(n.op is Op.XOR for n in linear.uops)


@pytest.mark.parametrize("piece", [16, 32])
def test_pieces_of_swizzled_rows_are_loaded_at_once(piece: int) -> None:
    """A lane holds 32 bytes of a row, which lie together in pieces."""
    size = (64, 64, 64)
    ast = product_for(WMMA, size)
    plan = tuple(
        replace(s, swizzle=2, piece_bytes=piece, padding=0) if isinstance(s, Stage) else s
        for s in plan_for(ast, card_with(WMMA))
    )
    linear = check(ast, plan, size)
    loads = [n for n in linear.uops if n.op is Op.LOAD]
    shared = [n for n in loads if pointer_of(n.src[0]).op is Op.DEFINE_LOCAL]

    assert {n.dtype.size_bytes for n in shared} == {piece}


class Storing(Renderer):
    """A language that only stores bfloat16."""

    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16})


def test_types_that_are_only_stored_keep_their_bits_for_a_unit() -> None:
    ast = product_for(MMA_BFLOAT, (256, 64, 256))
    with Context(VERIFY=1):
        linear = lower(ast, Storing(CARD), "product", plan_for(ast, CARD))
    arrays = [u.dtype for u in linear.uops if u.op is Op.DEFINE_LOCAL]
    (operands,) = {tuple(s.dtype for s in u.src[:2]) for u in linear.uops if u.op is Op.MATRIX}

    assert [a.base for a in arrays if isinstance(a, PointerDType)] == [dtypes.uint16] * 2
    assert operands == (dtypes.uint16.vec(8), dtypes.uint16.vec(4))


def test_weights_of_attention_are_stored_narrow_for_a_unit() -> None:
    q, k, v = (Tensor.empty(2, 40, 32, dtype="float16", device="PYTHON") for _ in range(3))
    with cut_for(CARD):
        items = q.scaled_dot_product_attention(k, v).schedule()
    units = [any(isinstance(s, Tensorize) for s in plan_for(i.ast, CARD)) for i in items]
    assert sum(units) == 2

    with cut_for(replace(CARD, matrix=())):
        items = q.scaled_dot_product_attention(k, v).schedule()
    weights = [b.dtype for i in items for b in i.bufs if b.size == 2 * 40 * 40]
    assert set(weights) == {dtypes.float32}


def test_units_that_round_are_used_where_that_is_allowed() -> None:
    rounding = replace(SIMDGROUP, rounds=True)
    ast = product_for(SIMDGROUP, (64, 32, 64))
    check(ast, plan_for(ast, card_with(rounding)), (64, 32, 64), uses_unit=False)
    with Context(ALLOW_TF32=1):
        check(ast, plan_for(ast, card_with(rounding)), (64, 32, 64))


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        pytest.param(0x3F800FFF, 0x3F800000, id="down"),
        pytest.param(0x3F801000, 0x3F800000, id="a tie to even"),
        pytest.param(0x3F803000, 0x3F804000, id="a tie up to even"),
        pytest.param(0xBF801001, 0xBF802000, id="away from zero"),
        pytest.param(0x3FFFF800, 0x40000000, id="to the next power of two"),
        pytest.param(0x7F7FFFFF, 0x7F800000, id="to infinity"),
        pytest.param(0x7F800000, 0x7F800000, id="infinity"),
        pytest.param(0x7FC00000, 0x7FC00000, id="no number"),
        pytest.param(0x00001801, 0x00002000, id="a small one"),
    ],
)
def test_operands_are_rounded_to_the_nearest_that_a_unit_takes(bits: int, expected: int) -> None:
    found = rounded_operand(UOp.const(dtypes.uint32, bits).bitcast(dtypes.float32))
    assert evaluate(rewrite(found.bitcast(dtypes.uint32), simplify, name="bits")) == expected


def test_what_follows_a_product_is_done_by_its_lanes() -> None:
    left, right = (Tensor.empty(64, 64, dtype="float16", device="PYTHON") for _ in range(2))
    bias = Tensor.empty(64, dtype="float32", device="PYTHON")
    ast = (left.matmul(right, dtype="float32") + bias).relu().cast("float16").schedule()[-1].ast
    linear, (found, first, second, third) = computed(ast, plan_for(ast, CARD))

    assert any(u.op is Op.MATRIX for u in linear.uops)
    expected = numpy.maximum(first.reshape(64, 64) @ second.reshape(64, 64) + third, 0)
    assert numpy.array_equal(found.reshape(64, 64), expected)


def test_many_products_are_groups_of_their_own() -> None:
    left, right = (Tensor.empty(3, 32, 32, dtype="float16", device="PYTHON") for _ in range(2))
    ast = left.matmul(right, dtype="float32").schedule()[-1].ast
    linear, (found, first, second) = computed(ast, plan_for(ast, CARD))

    assert any(u.op is Op.MATRIX for u in linear.uops)
    expected = first.reshape(3, 32, 32) @ second.reshape(3, 32, 32)
    assert numpy.array_equal(found.reshape(3, 32, 32), expected)


def test_a_convolution_is_a_product() -> None:
    x = Tensor.empty(1, 32, 18, 18, dtype="float16", device="PYTHON")
    w = Tensor.empty(32, 32, 3, 3, dtype="float16", device="PYTHON")
    ast = x.conv2d(w).schedule()[-1].ast
    plan = plan_for(ast, CARD)
    _, (found, first, second) = computed(ast, plan)

    assert any(isinstance(step, Tensorize) for step in plan)
    images = first.reshape(32, 18, 18)
    windows = numpy.lib.stride_tricks.sliding_window_view(images, (3, 3), (1, 2))
    expected = numpy.einsum("cyxij,ocij->oyx", windows, second.reshape(32, 32, 3, 3))
    # Sums in float16 are rounded once, at their end.
    assert numpy.array_equal(found.reshape(32, 16, 16), expected.astype(numpy.float16))


def test_the_text_of_a_plan_names_the_unit() -> None:
    plan = plan_for(product_for(MMA, (64, 64, 64)), CARD)

    assert "by mma_m16n8k16_f16)" in " ".join(map(str, plan))


def test_steps_before_and_after_keep_their_meaning() -> None:
    size = (64, 64, 64)
    plan: Plan = (
        *(Split(ROWS, 32), Split(COLUMNS, 32), Split(INNER, 32)),
        Tensorize((*ROWS, 1), (*COLUMNS, 1), (*INNER, 1), MMA),
        Reorder(((*COLUMNS, 0), (*ROWS, 0))),
        *[Bind((*axis, 1, 0), AxisKind.UNROLL) for axis in (ROWS, COLUMNS, INNER)],
        *[Bind((*axis, 0), AxisKind.GRID) for axis in (ROWS, COLUMNS)],
    )
    applied(product_for(MMA, size), plan, CARD)
    check(product_for(MMA, size), plan, size)


@pytest.mark.parametrize(("unit", "together"), [(MMA, 2), (WMMA, 1)])
def test_neighbors_that_a_lane_holds_are_stored_together(unit: MatrixUnit, together: int) -> None:
    limits = replace(CARD, matrix=(unit,), subgroup=unit.threads)
    x, y = (Tensor.empty(64, 64, dtype="float16", device="PYTHON") for _ in range(2))
    ast = x.matmul(y, dtype="float32").schedule()[-1].ast
    renderer = Device["PYTHON"].toolchain.renderer
    linear = lower(ast, renderer, "product", plan_for(ast, limits))
    stored = [u for u in linear.uops if u.op is Op.STORE]
    results = [u for u in stored if pointer_of(u.src[0]).op is Op.DEFINE_GLOBAL]

    assert {u.src[1].dtype.count for u in results} == {together}
