"""Plans for cards: they compute what they should, and their work is counted right."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # last: what is installed comes first

from benchmarks.cards.__main__ import launches_of  # noqa: E402
from benchmarks.cards.compiled import compiled_registers  # noqa: E402
from benchmarks.cards.count import (  # noqa: E402
    Access,
    accesses_of,
    copies_box,
    counts_of,
    in_waves,
    shared_loads,
    turns_of,
    without_repeats,
)
from benchmarks.cards.judge import in_turn, judged, resident_groups  # noqa: E402
from benchmarks.cards.machines import CARDS, Card  # noqa: E402
from benchmarks.cards.subjects import Subject, subjects_of  # noqa: E402
from tiny_testing.accelerator import CORRECT  # noqa: E402
from tiny_testing.accelerator.device import Rewriter  # noqa: E402
from tiny_testing.grading import accelerator  # noqa: E402
from tinycore import Context, Device, Tensor, dtypes  # noqa: E402
from tinycore.dtype import DType  # noqa: E402
from tinycore.errors import CompilerUnavailable, SettingError, UnknownDevice  # noqa: E402
from tinycore.lower.pipeline import lower  # noqa: E402
from tinycore.render.base import Limits, LinearKernel, Renderer  # noqa: E402
from tinycore.uop.op import Op  # noqa: E402

BY_NAME = {card.name: card for card in CARDS}
H200, M3, ADRENO = BY_NAME["H200"], BY_NAME["M3"], BY_NAME["Adreno 640"]
Array = numpy.ndarray


def renderer_of(card: Card) -> Renderer:
    """The renderer of a card, of whose plugin no device is needed; skips where that is absent."""
    with Context(DEV=f"NULL:{card.target}"):
        try:
            renderer: Renderer = Device["NULL"].toolchain.renderer
        except (CompilerUnavailable, SettingError, UnknownDevice) as error:
            pytest.skip(str(error))
    return renderer


def limits_of(card: Card) -> Limits:
    """Limits that plans for a card respect, as if a few groups kept it busy.

    Without boxes that a card copies itself, which the interpreter does not: plans with them are
    executed by tiny-nv's tests.
    """
    return replace(renderer_of(card).limits, threads=256, fills=None)


def lowered(card: Card, expression: Callable[[], Tensor]) -> LinearKernel:
    renderer = renderer_of(card)
    with Context(DEV=f"NULL:{card.target}"):
        return lower(expression().schedule()[-1].ast, renderer, "kernel")


def numbers(*shape: int) -> Array:
    return numpy.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(numpy.float32)


def product(dtype: DType, x: Tensor, y: Tensor) -> Tensor:
    return (x.cast(dtype).contiguous() @ y.cast(dtype).contiguous()).cast(dtypes.float32)


def convolution(x: Tensor, y: Tensor) -> Tensor:
    return x.reshape(1, 8, 12, -1).conv2d(y.reshape(-1)[:576].reshape(8, 8, 3, 3), padding=1)


SUBJECTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul float16": partial(product, dtypes.float16),
    "matmul float32": partial(product, dtypes.float32),
    "convolution": convolution,
    "sum of rows": lambda x, y: (x @ y).sum(1),
    "sum of columns": lambda x, y: x.sum(0),
    "sum": lambda x, y: y.sum(),
    "matvec": lambda x, y: x[:1] @ y,
    "border": lambda x, y: x.reshape(64, 8, 24).pad(((0, 0), (1, 1), (1, 1))),
}


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("card", [H200, M3, ADRENO], ids=lambda card: card.name)
def test_plans_for_cards_compute_what_numbers_say(card: Card, name: str) -> None:
    limits = limits_of(card)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    x, y = numbers(96, 128), numbers(128, 80)
    with accelerator(parts):
        found = SUBJECTS[name](Tensor(x, device="CARD"), Tensor(y, device="CARD")).numpy()
    expected = SUBJECTS[name](Tensor(x, device="PYTHON"), Tensor(y, device="PYTHON")).numpy()

    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("image", "weight", "options"),
    [
        pytest.param((2, 4, 22, 30), (16, 4, 3, 3), {}, id="3x3"),
        pytest.param((1, 4, 28, 28), (32, 4, 3, 3), {"padding": 1}, id="padded"),
        pytest.param((1, 4, 29, 29), (16, 4, 3, 3), {"stride": 2}, id="every second"),
        pytest.param((1, 4, 30, 26), (16, 4, 3, 3), {"dilation": 2}, id="places apart"),
        pytest.param((1, 4, 24, 20), (16, 4, 5, 1), {}, id="a column of 5"),
        pytest.param((2, 8, 16, 24), (8, 4, 3, 3), {"groups": 2}, id="groups"),
        pytest.param((1, 3, 17, 19), (20, 3, 3, 2), {}, id="odd sizes"),
    ],
)
def test_windows_that_overlap_in_registers_are_those_of_a_convolution(
    image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    limits = limits_of(ADRENO)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    x, w = numbers(*image), numbers(*weight)
    with accelerator(parts):
        found = Tensor(x, device="CARD").conv2d(Tensor(w, device="CARD"), **options).numpy()
    expected = Tensor(x, device="PYTHON").conv2d(Tensor(w, device="PYTHON"), **options).numpy()

    assert found.tobytes() == expected.tobytes()


def test_a_thread_loads_once_what_its_windows_share() -> None:
    """A column of windows of 3 places takes two loads more than there are windows, and no bank of
    shared memory is asked twice at once."""
    limits_of(ADRENO)
    image, weight = (Tensor.empty(*s, device="NULL") for s in ((4, 64, 58, 58), (64, 64, 3, 3)))
    kernel = lowered(ADRENO, lambda: image.conv2d(weight))
    loads = [a for a in accesses_of(kernel) if a.pointer.op is Op.DEFINE_LOCAL and not a.is_store]
    sums = [u for u in kernel.uops if u.op is Op.DEFINE_REG]
    outputs = sum(u.dtype.size * u.dtype.base.count for u in sums)  # type: ignore[attr-defined]

    assert 3 * outputs > 16 * len(loads)
    assert counts_of(kernel, ADRENO).conflicts == 1.0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_rows_that_begin_in_one_bank_are_stored_by_threads_side_by_side(dtype: DType) -> None:
    limits_of(ADRENO)
    queries, keys = (Tensor.empty(16, 256, 64, dtype=dtype, device="NULL") for _ in "qk")
    kernel = lowered(ADRENO, lambda: queries.matmul(keys.transpose(1, 2), dtype=dtypes.float32))

    assert counts_of(kernel, ADRENO).conflicts == 1.0


def test_a_pixel_has_four_numbers_of_any_type() -> None:
    limits_of(ADRENO)
    rows, weights = (
        Tensor.empty(*s, dtype=dtypes.float16, device="NULL") for s in ((4, 64), (4096, 64))
    )
    kernel = lowered(ADRENO, lambda: rows @ weights.T)
    counts = counts_of(kernel, ADRENO)

    assert counts.texels * counts.groups * 4 == 4 * 4096 * 64 * (1 / 2 + 1 / 4)


@pytest.mark.parametrize(
    "sizes", [(100, 40, 132), (50, 24, 260), (256, 16, 256), (64, 64, 64), (33, 20, 36)], ids=str
)
def test_tiles_that_fill_six_units_are_those_of_a_product(sizes: tuple[int, int, int]) -> None:
    limits = limits_of(ADRENO)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    rows, inner, columns = sizes
    x, y = numbers(rows, inner), numbers(inner, columns)
    with accelerator(parts):
        found = (Tensor(x, device="CARD") @ Tensor(y, device="CARD")).numpy()

    assert numpy.array_equal(found, x @ y)


def test_products_of_some_tiles_are_one_kernel_of_groups_for_all_units() -> None:
    """Partial results would go to memory, and take longer than units wait for the last."""
    limits_of(ADRENO)
    with Context(DEV=f"NULL:{ADRENO.target}"):
        launched = (Tensor.empty(256, 256) @ Tensor.empty(256, 256)).schedule()
        renderer = Device["NULL"].toolchain.renderer
        counts = counts_of(lower(launched[0].ast, renderer, "kernel"), ADRENO)

    assert len(launched) == 1
    assert 2 * ADRENO.units - counts.groups <= 1
    assert counts.texels


@pytest.mark.parametrize("card", [H200, M3], ids=lambda card: card.name)
def test_parts_of_a_product_are_summed_for_each_unit(card: Card) -> None:
    limits = replace(limits_of(card), units=4)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    x, y = numbers(32, 2048), numbers(2048, 48)
    with accelerator(parts):
        product = Tensor(x, device="CARD").realize() @ Tensor(y, device="CARD").realize()
        launched = [item for item in product.schedule() if item.ast.op is not Op.COPY]
        found = product.numpy()

    assert len(launched) == 2
    assert numpy.array_equal(found, x @ y)


@pytest.mark.sample(4)
@pytest.mark.parametrize("sizes", [(64, 256, 128), (61, 250, 128), (128, 200, 63)], ids=str)
@pytest.mark.parametrize("name", ["H200", "RX 7900 XTX"])
def test_lanes_share_sums_of_large_tiles_that_are_few(
    name: str, sizes: tuple[int, int, int]
) -> None:
    limits = replace(limits_of(BY_NAME[name]), threads=64)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    rows, inner, columns = sizes
    x, y = numbers(rows, inner), numbers(inner, columns)
    with accelerator(parts), Context(VERIFY=1):
        product = Tensor(x, device="CARD").realize() @ Tensor(y, device="CARD").realize()
        (item,) = product.schedule()
        kernel = lower(item.ast, Rewriter(limits), "kernel")
        found = product.numpy()

    assert any(u.op is Op.SHUFFLE for u in kernel.uops)
    assert numpy.array_equal(found, x @ y)


@pytest.mark.parametrize("name", ["H200", "RX 7900 XTX"])
def test_products_of_few_large_tiles_are_one_kernel(name: str) -> None:
    """Parts of sums that lanes share stay in registers; others would go to memory."""
    limits_of(BY_NAME[name])
    with Context(DEV=f"NULL:{BY_NAME[name].target}"):
        launched = (Tensor.empty(512, 512) @ Tensor.empty(512, 512)).schedule()
        kernel = lower(launched[0].ast, Device["NULL"].toolchain.renderer, "kernel")

    assert len(launched) == 1
    assert any(u.op is Op.SHUFFLE for u in kernel.uops)
    assert counts_of(kernel, BY_NAME[name]).conflicts < 1.5


def test_sums_of_few_terms_down_columns_are_shared_by_few_threads() -> None:
    """Each takes several terms, which are under way at once, and units have two groups each."""
    limits_of(H200)
    kernel = lowered(H200, lambda: Tensor.empty(8, 32, 4, 128).sum(1))
    counts = counts_of(kernel, H200)

    assert counts.in_flight > 4 * H200.joined_bytes - 1
    assert counts.groups > H200.units


@pytest.mark.parametrize("name", ["RX 7900 XTX", "M3"])
def test_two_groups_of_attention_are_resident_where_each_waits_for_copies(name: str) -> None:
    card = BY_NAME[name]
    limits_of(card)

    def attention() -> Tensor:
        q, k, v = (Tensor.empty(1, 32, 1024, 128, dtype=dtypes.bfloat16) for _ in "qkv")
        return q.scaled_dot_product_attention(k, v)

    kernel = lowered(card, attention)
    counts = counts_of(kernel, card)
    products = sum(unit.m * unit.n * unit.k * n for unit, n in counts.matrix.items())

    registers = compiled_registers(kernel, card.target) or counts.registers

    assert resident_groups(counts, card, registers) >= 2
    assert registers <= card.most_registers
    assert products * counts.groups == 32 * 1024 * 1024 * 2 * 128


def test_rows_of_a_softmax_are_those_of_a_processor() -> None:
    limits = limits_of(H200)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    x = numbers(40, 300)
    with accelerator(parts):
        found = Tensor(x, device="CARD").softmax(-1).numpy()

    powers = numpy.exp(x - x.max(1, keepdims=True))
    numpy.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-6)


def turns(words: list[int], item: int = 4) -> tuple[int, int]:
    address = numpy.array(words).reshape(1, 1, -1) * 4
    return turns_of(address, numpy.ones_like(address, bool), item, 32)


def test_banks_serve_one_word_each_in_a_turn() -> None:
    lanes = range(32)

    assert turns(list(lanes)) == (1, 1)
    assert turns([0 for _ in lanes]) == (1, 1)
    assert turns([2 * n for n in lanes]) == (2, 1)
    assert turns([32 * n for n in lanes]) == (32, 1)
    assert turns([33 * n for n in lanes]) == (1, 1)
    assert turns([4 * n for n in lanes], item=16) == (4, 4)
    assert turns([36 * n for n in lanes], item=16) == (4, 4)
    assert turns([32 * n for n in lanes], item=16) == (32, 4)


def test_work_of_a_product_is_counted_by_its_loops() -> None:
    limits_of(H200)
    a, b = (Tensor.empty(256, 128, dtype=dtypes.float16, device="NULL") for _ in "ab")
    kernel = lowered(H200, lambda: a @ b.T)
    counts = counts_of(kernel, H200)
    (unit,) = counts.matrix

    tiles = counts.groups * counts.matrix[unit]
    assert tiles * unit.m * unit.n * unit.k == 256 * 256 * 128
    assert counts.far_bytes >= (2 * 256 * 128 + 256 * 256) * 2
    assert counts.threads == numpy.prod(kernel.launch("block"))
    assert any(u.op is Op.MATRIX for u in kernel.uops)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["H200", "RX 7900 XTX", "M3"])
def test_no_banks_collide_where_operands_lie_as_lanes_hold_them(name: str, dtype: DType) -> None:
    limits_of(BY_NAME[name])
    a, b = (Tensor.empty(512, 512, dtype=dtype, device="NULL") for _ in "ab")
    right = b if name == "M3" else b.T  # lanes of its matrices hold neighbors of a row
    counts = counts_of(lowered(BY_NAME[name], lambda: a @ right), BY_NAME[name])

    assert counts.matrix
    assert counts.shared_turns == counts.shared_least


@pytest.mark.parametrize("name", ["H200", "RX 7900 XTX", "M3"])
def test_a_turned_fill_asks_for_no_bank_more_than_twice(name: str) -> None:
    limits_of(BY_NAME[name])
    a, b = (Tensor.empty(512, 512, dtype=dtypes.float16, device="NULL") for _ in "ab")
    counts = counts_of(lowered(BY_NAME[name], lambda: a @ b), BY_NAME[name])

    assert counts.conflicts < 1.3


def test_pixels_are_counted_apart_from_lines_of_buffers() -> None:
    """A thread of a tile of 16 columns and 8 rows reads four pixels a step. Shared memory is filled
    with a fourth as many pixels as it has rows, and lines of buffers are those that are stored."""
    limits_of(ADRENO)
    a, b = (Tensor.empty(512, 512, device="NULL") for _ in "ab")
    counts = counts_of(lowered(ADRENO, lambda: a @ b), ADRENO)
    verdict = judged(counts, ADRENO, 0.0, 192)

    outputs = 128 * counts.threads
    assert counts.texels == 512 * (4 * counts.threads + outputs // 512 // 4)
    assert counts.lines * ADRENO.line == 4 * outputs
    assert verdict.parts["textures"] == pytest.approx(
        counts.texels / ADRENO.texels * -(-counts.groups // ADRENO.units) / ADRENO.hertz
    )


def test_groups_are_resident_as_far_as_there_is_room() -> None:
    limits_of(H200)
    kernel = lowered(H200, lambda: Tensor.empty(4096, 4096).sum(1))
    counts = counts_of(kernel, H200)

    assert resident_groups(counts, H200, 32) == H200.threads // counts.threads
    assert resident_groups(counts, H200, 128) == H200.registers // (4 * 128 * counts.threads)
    counts.shared_bytes = 100 << 10
    assert resident_groups(counts, H200, 32) == 2


def test_a_partition_executes_one_subgroup_at_a_time() -> None:
    """A unit of an Adreno 640 has two for 64 lanes each."""
    assert [in_turn(n, ADRENO) for n in (1, 2, 3)] == [2, 2, 4]
    assert [in_turn(n, H200) for n in (1, 4, 5)] == [4, 4, 8]


def test_a_copy_is_as_fast_as_memory() -> None:
    limits_of(H200)
    size = 1 << 26
    kernel = lowered(H200, lambda: Tensor.empty(size) + 1)
    counts = counts_of(kernel, H200)
    verdict = judged(counts, H200, 8.0 * size, 32)

    assert counts.far_bytes == pytest.approx(8 * size)
    assert verdict.slowest in ("memory", "latency")
    assert verdict.seconds == pytest.approx(8 * size / H200.dram, rel=0.2)
    assert judged(counts, H200, 0.0, 32).seconds >= H200.latency


@pytest.mark.parametrize("inner", [256, 4096])
def test_no_box_is_read_past_the_end_of_a_sum(inner: int) -> None:
    limits_of(H200)
    a, b = (Tensor.empty(2048, inner, dtype=dtypes.bfloat16, device="NULL") for _ in "ab")
    kernel = lowered(H200, lambda: a @ b.T)
    counts = counts_of(kernel, H200)
    boxes = [u.arg.map for u in kernel.uops if copies_box(u) and u.src[0].ranges]
    steps = inner // boxes[0].box[0]

    read = counts.groups * steps * sum(box.box_bytes for box in boxes)
    assert counts.far_bytes == read + 2048 * 2048 * 2


def test_what_compilers_load_at_once_is_one_instruction() -> None:
    """Four rows of a thread lie side by side; `ld.shared.v4.f32` is what NVRTC 13 makes of them."""
    limits_of(H200)
    a, b = (Tensor.empty(2048, 2048, device="NULL") for _ in "ab")
    kernel = lowered(H200, lambda: a @ b)
    loads = [a for a in accesses_of(kernel) if a.pointer.op is Op.DEFINE_LOCAL and not a.is_store]
    single = sum(a.times for a in loads if a.item_bytes == 4)
    alone, joined = (counts_of(kernel, card) for card in (replace(H200, joined_bytes=0), H200))

    assert single > 0
    assert alone.instructions - joined.instructions == single * 3 // 4


def test_loads_of_a_window_that_others_hold_are_no_accesses() -> None:
    limits_of(H200)
    x, w = (Tensor.empty(*s, device="NULL") for s in ((32, 16, 58, 58), (64, 16, 3, 3)))
    found = accesses_of(lowered(H200, lambda: x.conv2d(w)))
    kept = without_repeats(found)

    def elements(accesses: list[Access]) -> set[tuple[object, int]]:
        """Elements that are loaded from shared memory, by what their places have in common."""
        bodies = shared_loads(accesses)
        return {
            (body, first + lane)
            for body, loads in bodies.items()
            for first, a in loads
            for lane in range(a.node.dtype.count)
        }

    assert len(kept) < len(found)
    assert elements(kept) == elements(found)


@pytest.mark.parametrize("name", ["H200", "RX 7900 XTX"])
def test_what_kernels_leave_for_each_other_stays_in_the_cache(name: str) -> None:
    card = replace(BY_NAME[name], latency=1e-9)  # memory waits for nothing
    limits_of(card)

    def build() -> Tensor:
        return Tensor.empty(128, 2048) @ Tensor.empty(2048, 2048)

    size, other = 128 * 2048 * 4, 2048 * 2048 * 4
    subject = Subject("product", build, 2.0 * 128 * 2048**2, 2.0 * size + other, "float32")
    parts, total = launches_of(subject, card)

    assert parts.verdict.parts["memory"] == pytest.approx((size + other) / card.dram)
    assert total.verdict.parts["memory"] == pytest.approx(size / card.dram)
    assert total.counts.far_bytes >= 2 * size


def test_a_wave_reads_what_places_of_a_window_share_once() -> None:
    image, weight, result = (8, 66, 66, 64), (64, 3, 3, 64), (8, 64, 64, 64)

    def windows() -> Tensor:
        x, w = (Tensor.empty(*s).permute(0, 3, 1, 2) for s in (image, weight))
        return x.conv2d(w)

    kernel = lowered(M3, windows)
    sizes = dict(enumerate(4 * math.prod(s) for s in (result, image, weight)))

    assert in_waves(kernel, 40, M3, sizes, 1e12) < 2 * sum(sizes.values())


def test_exponentials_of_scores_are_counted_on_a_unit_of_their_own() -> None:
    """Exponentials of a lane for 64 keys: one for each of 32 scores, and one for each of two rows,
    by which sums are scaled."""
    limits_of(H200)

    def attention() -> Tensor:
        q, k, v = (Tensor.empty(1, 16, 2048, 64, dtype=dtypes.bfloat16) for _ in "qkv")
        return q.scaled_dot_product_attention(k, v)

    kernel = lowered(H200, attention)
    counts = counts_of(kernel, H200)
    inverses = sum(u.op is Op.RECIPROCAL for u in kernel.uops)
    verdict = judged(counts, H200, 0.0, 106)

    assert counts.special == 2048 // 64 * (32 + 2) + inverses
    assert verdict.parts["special functions"] == pytest.approx(
        counts.special * counts.threads / 16 * -(-counts.groups // H200.units) / H200.hertz
    )


def test_a_product_that_is_added_or_subtracted_once_is_one_operation() -> None:
    limits_of(H200)

    def arithmetic(make: Callable[[Tensor], Tensor]) -> float:
        return counts_of(lowered(H200, lambda: make(Tensor.empty(1 << 20))), H200).arithmetic

    assert arithmetic(lambda x: x * 3 - 1) == arithmetic(lambda x: x * 3)
    lanes = H200.joined_bytes // dtypes.float32.itemsize
    assert arithmetic(lambda x: (x * 3 + 1) * (x * 3)) == arithmetic(lambda x: x * 3) + 2 * lanes


def test_copies_past_the_near_cache_read_each_place_of_a_window_anew() -> None:
    limits_of(H200)
    image, weight = (32, 64, 56, 56), (64, 64, 3, 3)

    def windows() -> Tensor:
        x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in (image, weight))
        return x.conv2d(w, padding=1)

    kernel = lowered(H200, windows)
    counts = counts_of(kernel, H200)
    copied = 2 * math.prod(image) * 4  # of places in a window, less at borders of groups

    assert any(type(u.arg).__name__ == "AsyncCopy" for u in kernel.uops)
    assert counts.far_bytes > copied


def test_the_best_of_a_space_of_tiles_is_no_slower_than_what_the_planner_takes() -> None:
    limits_of(ADRENO)
    (subject,) = (s for s in subjects_of(8) if s.name == "matmul 64x64x64 float32")
    (planned,), (best,) = (list(launches_of(subject, ADRENO, space)) for space in (0, 3))

    assert planned.space == 0
    assert best.space > best.tried == 3
    assert best.verdict.seconds <= planned.verdict.seconds
