"""Product chains: attention in one kernel, on devices whose matrix unit takes sums as operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.matrices import (
    MFMA,
    MMA_INT8,
    OUTER,
    SIMDGROUP,
    UNITS,
    WMMA,
    WMMA_BLOCKS,
)
from tests.unit.schedule.chains import (
    HALF,
    HOST,
    TOLERANCES,
    Array,
    attention,
    card_with,
    check,
    launches,
    numbers,
    operands,
    plain,
)
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, GlobalCounters, Tensor, TinyJit, Variable, dtypes
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.dtype import PointerDType
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.render.base import Limits
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Op

pytestmark = pytest.mark.sample(5)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention."""
    return query.scaled_dot_product_attention(key, value, is_causal=True)


SHAPES = [
    *((2, 64, 128, 16, 16), (3, 40, 64, 32, 24), (1, 128, 192, 16, 64), (2, 16, 48, 16, 8)),
    *((2, 64, 100, 16, 16), (1, 64, 39, 32, 32)),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_one_kernel(unit: MatrixUnit, shape: tuple[int, ...]) -> None:
    heads, rows, seen, width, columns = shape
    columns += -columns % unit.n
    query, key, value = operands(
        unit, (heads, rows, width), (heads, seen, width), (heads, seen, columns)
    )
    result = query.scaled_dot_product_attention(key, value)

    check(result, unit, attention(*map(plain, (query, key, value))))


PADDED = [(2, 40, 64, 40, 40), (1, 33, 39, 72, 72), (2, 32, 48, 40, 56)]


@pytest.mark.sample(8)
@pytest.mark.parametrize("shape", PADDED, ids=str)
def test_heads_that_no_steps_divide_are_padded(unit: MatrixUnit, shape: tuple[int, ...]) -> None:
    heads, rows, seen, width, columns = shape
    query, key, value = operands(
        unit, (heads, rows, width), (heads, seen, width), (heads, seen, columns)
    )
    visible = numpy.random.default_rng(3).random((rows, seen)) > 0.5
    visible[:, 0] = True
    mask = Tensor(visible, device="CARD").realize()
    result = query.scaled_dot_product_attention(key, value, attn_mask=mask)

    expected = attention(plain(query), plain(key), plain(value), visible)
    check(result, unit, expected)


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", [(2, 3, 40, 40), (1, 2, 33, 72)], ids=str)
def test_what_lies_behind_a_padded_head_is_not_read(
    unit: MatrixUnit, shape: tuple[int, int, int, int]
) -> None:
    batch, heads, length, width = shape
    given = [numbers(batch, length, heads, 3 * width) for _ in range(3)]
    for x in given:
        x[..., width:] = numpy.nan  # what follows a head in memory, and the first one of the next
    memory = [Tensor(x, device=HOST).cast(unit.a).realize().to("CARD").realize() for x in given]
    query, key, value = (x[..., :width].transpose(1, 2) for x in memory)
    result = query.scaled_dot_product_attention(key, value, is_causal=True)

    visible = numpy.tril(numpy.ones((length, length), bool))
    check(result, unit, attention(plain(query), plain(key), plain(value), visible))


MERGED = {
    "heads side by side": lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1),
    "rows before heads": lambda x: x.transpose(1, 2),
    "rows side by side": lambda x: x.transpose(-1, -2),
    "heads with a bias": lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) + 1,
}


@pytest.mark.sample(24)
@pytest.mark.parametrize("shape", [(3, 2, 40, 32), (1, 32, 32, 16)], ids=str)
@pytest.mark.parametrize("how", MERGED)
def test_results_are_stored_in_any_order_of_loops(
    unit: MatrixUnit, how: str, shape: tuple[int, int, int, int]
) -> None:
    batch, heads, length, width = shape
    given = operands(unit, *[(batch, length, heads, width)] * 3)
    query, key, value = (x.transpose(1, 2) for x in given)
    result = query.scaled_dot_product_attention(key, value, is_causal=True)

    visible = numpy.tril(numpy.ones((length, length), bool))
    expected = Tensor(attention(plain(query), plain(key), plain(value), visible), device=HOST)
    check(MERGED[how](result).contiguous(), unit, MERGED[how](expected).numpy())


@pytest.mark.parametrize("seen", [96, 100])
def test_groups_share_columns_whose_sums_no_registers_hold(unit: MatrixUnit, seen: int) -> None:
    width, columns = 32, 128
    chained = unit.chained
    assert chained is not None
    few = chained.registers_of_chain((columns // 2,), (width,), 16)
    limits = replace(card_with(unit), thread_registers=few)
    parts = replace(CORRECT, name="NARROW", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        query, key, value = (
            x.to(HOST).to("NARROW").realize()
            for x in operands(unit, (2, 40, width), (2, seen, width), (2, seen, columns))
        )
        visible = numpy.random.default_rng(2).random((40, seen)) > 0.5
        visible[5] = False
        mask = Tensor(visible, device="NARROW").realize()
        result = query.scaled_dot_product_attention(key, value, attn_mask=mask)

        assert chained.registers_of_chain((columns,), (width,), 16) > few
        expected = attention(plain(query), plain(key), plain(value), visible)
        check(result, unit, expected, limits)


def by_unit(results: list[Tensor], unit: MatrixUnit) -> int:
    """The kernels that compute some results on the unit."""
    limits = card_with(unit)
    asts = [item.ast for item in Tensor.schedule(*results) if item.ast.op is not Op.COPY]
    linear = [lower(ast, PythonRenderer(limits), "kernel", plan_for(ast, limits)) for ast in asts]
    return sum(any(u.op is Op.MATRIX for u in kernel.uops) for kernel in linear)


def dropped(
    given: list[Tensor], visible: Array | None, p: float
) -> tuple[list[Tensor], Array, list[Array]]:
    """Attention with dropout and its gradients; in double precision by the same draw, too."""
    leaves = [x.detach().requires_grad_() for x in given[:3]]
    query, key, value, slope = (plain(x).astype(numpy.float64) for x in given)
    Tensor.manual_seed(3)
    kept = plain(given[0]._kept(p, (*query.shape[:-1], key.shape[-2])).cast(dtypes.float32))
    Tensor.manual_seed(3)
    with Context(TRAINING=1):
        result = leaves[0].scaled_dot_product_attention(
            leaves[1], leaves[2], dropout_p=p, is_causal=visible is not None
        )
        (result * given[3]).sum().backward()
    scores = query @ numpy.swapaxes(key, -1, -2) / numpy.sqrt(query.shape[-1])
    scores = scores if visible is None else numpy.where(visible, scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    used = weights * kept / (1 - p)
    slopes = slope @ numpy.swapaxes(value, -1, -2) * kept / (1 - p)
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True))
    slopes /= numpy.sqrt(query.shape[-1])
    expected = [
        slopes @ key,
        numpy.swapaxes(slopes, -1, -2) @ query,
        numpy.swapaxes(used, -1, -2) @ slope,
    ]
    found = [result, *(x.grad for x in leaves if x.grad is not None)]
    return found, used @ value, expected


@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_is_part_of_the_kernels(unit: MatrixUnit, is_causal: bool) -> None:
    given = operands(unit, (2, 48, 16), (2, 40, 16), (2, 40, 16), (2, 48, 16))
    visible = numpy.tril(numpy.ones((48, 40), bool)) if is_causal else None
    found, result, slopes = dropped(given, visible, 0.25)

    # A type that is not narrow has weights of the same type, which one kernel draws the mask with.
    assert unit is SIMDGROUP or by_unit(found, unit) == 3
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(plain(found[0]), result, rtol=2 * tolerance, atol=4 * tolerance)
    assert_close(unit, [plain(x) for x in found[1:]], slopes)


def arrays_of(result: Tensor, unit: MatrixUnit) -> int:
    """The arrays of operands in shared memory of the kernel that computes a result."""
    (item,) = (item for item in result.schedule() if item.ast.op is not Op.COPY)
    limits = card_with(unit)
    linear = lower(item.ast, PythonRenderer(limits), "chain", plan_for(item.ast, limits))
    shared = [u.dtype for u in linear.uops if u.op is Op.DEFINE_LOCAL]
    return sum(isinstance(d, PointerDType) and d.base is unit.a for d in shared)


def test_an_operand_of_both_products_is_staged_once() -> None:
    limits = card_with(HALF)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        query, key, value = operands(HALF, (2, 64, 32), (2, 128, 32), (2, 128, 32))
        apart = query.scaled_dot_product_attention(key, value)
        same = query.scaled_dot_product_attention(key, key)

        assert (arrays_of(apart, HALF), arrays_of(same, HALF)) == (2, 1)
        check(same, HALF, attention(*map(plain, (query, key, key))))


def test_causal_rows_go_through_the_keys_that_they_see_alone(unit: MatrixUnit) -> None:
    shape = (2, 256, 16)
    query, key, value = (numbers(*shape) for _ in range(3))
    value[:, -64:] = numpy.nan  # seen by the last rows alone: 0 times NaN would be NaN
    given = [Tensor(x, device=HOST).cast(unit.a).realize() for x in (query, key, value)]
    result = plain(attended(*(x.to("CARD").realize() for x in given)))

    mask = numpy.tril(numpy.ones((256, 256), bool))[:128, :128]
    seen = [plain(x)[:, :128] for x in given]
    expected = attention(seen[0], seen[1], seen[2], mask)
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(result[:, :128], expected, rtol=tolerance, atol=4 * tolerance)


def test_scores_too_large_for_exp_overflow_nowhere(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16), scale=40.0)
    result = query.scaled_dot_product_attention(key, value)

    check(result, unit, attention(*map(plain, (query, key, value))))


def test_the_greatest_score_may_come_last(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16))
    rising = key * (Tensor.arange(128, device="CARD").cast(unit.a).reshape(128, 1) / 16)
    key = rising.realize()
    result = query.scaled_dot_product_attention(key, value)

    check(result, unit, attention(*map(plain, (query, key, value))))


def test_a_causal_mask_is_part_of_the_kernel(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 128, 16), (2, 128, 16), (2, 128, 16))
    result = query.scaled_dot_product_attention(key, value, is_causal=True)

    visible = numpy.tril(numpy.ones((128, 128), bool))
    check(result, unit, attention(plain(query), plain(key), plain(value), visible))


def test_a_query_that_sees_nothing_gets_zero(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16))
    visible = numpy.random.default_rng(1).random((64, 128)) > 0.5
    visible[5] = False
    visible[7, :64] = False  # nothing in the first block, something in the last
    visible[9, 64:] = False
    mask = Tensor(visible, device="CARD").realize()
    result = query.scaled_dot_product_attention(key, value, attn_mask=mask)

    check(result, unit, attention(plain(query), plain(key), plain(value), visible))
    assert not plain(result)[:, 5].any()


def test_a_mask_may_be_added(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16))
    added = numbers(2, 64, 128)
    added[:, 3] = -numpy.inf
    mask = Tensor(added, device="CARD").realize()
    result = query.scaled_dot_product_attention(key, value, attn_mask=mask)

    check(result, unit, attention(plain(query), plain(key), plain(value), added))


def test_infinite_values_are_not_read_beyond_the_last_key(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 100, 16), (2, 100, 16))
    wide = [x.cat(x[:, :28] * float("inf"), dim=1).contiguous().realize() for x in (key, value)]
    result = query.scaled_dot_product_attention(wide[0][:, :100], wide[1][:, :100])

    check(result, unit, attention(*map(plain, (query, key, value))))


def test_heads_may_share_keys(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (4, 64, 16), (2, 64, 16), (2, 64, 16))
    result = query.scaled_dot_product_attention(key, value, enable_gqa=True)

    shared = [numpy.repeat(plain(x), 2, axis=0) for x in (key, value)]
    check(result, unit, attention(plain(query), *shared))


@pytest.mark.parametrize("groups", [2, 1])
@pytest.mark.parametrize("units", [1, 4])
def test_heads_that_share_keys_are_one_kernel_by_the_unit(
    unit: MatrixUnit, units: int, groups: int
) -> None:
    limits = replace(card_with(unit), units=units)
    parts = replace(CORRECT, name="SHARED", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts):
        query, key, value = (
            x.to(HOST).to("SHARED").realize()
            for x in operands(unit, (2, 4, 48, 16), (2, groups, 64, 16), (2, groups, 64, 16))
        )
        result = query.scaled_dot_product_attention(key, value, is_causal=True, enable_gqa=True)

        shared = [numpy.repeat(plain(x), 4 // groups, axis=1) for x in (key, value)]
        visible = numpy.tril(numpy.ones((48, 64), bool))
        check(result, unit, attention(plain(query), shared[0], shared[1], visible), limits)


def test_what_is_no_number_stays_so_in_its_row(unit: MatrixUnit) -> None:
    given = [numbers(2, 64, 16), numbers(2, 128, 16), numbers(2, 128, 16)]
    given[0][0, 3] = numpy.nan
    given[2][1, 70, 2] = numpy.inf
    query, key, value = (
        Tensor(x, device=HOST).cast(unit.a).realize().to("CARD").realize() for x in given
    )
    result = query.scaled_dot_product_attention(key, value)

    assert launches(result) == 1
    found = plain(result)
    assert numpy.isnan(found[0, 3]).all()
    assert numpy.isfinite(found[0, [*range(3), *range(4, 64)]]).all()
    assert (found[1, :, 2] == numpy.inf).all()
    assert numpy.isfinite(found[1, :, :2]).all()


def gradients(device: str, given: list[Tensor], mask: Tensor | None) -> tuple[list[Array], int]:
    """Gradients of attention on a device, and the kernels that compute them and the result."""
    query, key, value, slope = (x.to(device).realize().detach() for x in given)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    mask = None if mask is None else mask.to(device).realize()
    result = query.scaled_dot_product_attention(key, value, attn_mask=mask)
    (result * slope).sum().backward()
    found = [x.grad for x in leaves if x.grad is not None]
    count = launches(result.cat(*found, dim=-2)) - 1
    return [plain(x) for x in found], count


def assert_close(unit: MatrixUnit, found: list[Array], expected: list[Array]) -> None:
    """Gradients of a unit's type are those of float32, up to what its operands are rounded by."""
    for ours, theirs in zip(found, expected, strict=True):
        tolerance = 8 * TOLERANCES[unit.a]
        numpy.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_gradients_are_kernels_without_scores_in_memory(unit: MatrixUnit, is_masked: bool) -> None:
    given = operands(unit, (2, 528, 16), (2, 512, 16), (2, 512, 16), (2, 528, 16))
    visible = numpy.random.default_rng(3).random((528, 512)) > 0.5
    visible[5], visible[7, :64] = False, False
    mask = Tensor(visible, device=HOST) if is_masked else None
    found, count = gradients("CARD", given, mask)
    expected, _ = gradients(HOST, [x.to(HOST).float().realize() for x in given], mask)

    assert count <= 5
    assert_close(unit, found, expected)


@pytest.mark.slow
def test_gradients_of_lengths_that_no_tiles_divide(unit: MatrixUnit) -> None:
    given = operands(unit, (2, 100, 16), (2, 75, 16), (2, 75, 16), (2, 100, 16))
    found, count = gradients("CARD", given, None)
    expected, _ = gradients(HOST, [x.to(HOST).float().realize() for x in given], None)

    assert count <= 6
    assert_close(unit, found, expected)


@pytest.mark.slow
def test_gradients_of_wide_heads_are_kernels_of_their_own(unit: MatrixUnit) -> None:
    given = operands(unit, *[(1, 528, 128)] * 4)
    found, count = gradients("CARD", given, None)
    expected, _ = gradients(HOST, [x.to(HOST).float().realize() for x in given], None)

    # Both halves of an RDNA 3 wave hold operands: its two first products need 300 registers of 255.
    assert count <= (12 if unit is WMMA else 6)
    assert_close(unit, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_gradients_of_padded_heads_are_chains(unit: MatrixUnit, is_masked: bool) -> None:
    given = operands(unit, (2, 528, 40), (2, 512, 40), (2, 512, 40), (2, 528, 40))
    visible = numpy.random.default_rng(3).random((528, 512)) > 0.5
    mask = Tensor(visible, device=HOST) if is_masked else None
    found, count = gradients("CARD", given, mask)
    expected, _ = gradients(HOST, [x.to(HOST).float().realize() for x in given], mask)

    assert count <= 6
    assert_close(unit, found, expected)


def in_two_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of half of the queries to half of the keys, and of the others to all."""
    near = query[:, :512].scaled_dot_product_attention(key[:, :512], value[:, :512])
    return near.cat(query[:, 512:].scaled_dot_product_attention(key, value), dim=-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention_of", "chains"),
    [(attended, 3), (in_two_blocks, 6)],  # for each a result and two gradients
    ids=["causal", "two blocks"],
)
def test_gradients_of_blocks_are_chains_between_other_steps(
    unit: MatrixUnit, attention_of: Callable[..., Tensor], chains: int
) -> None:
    given = operands(unit, *[(1, 1024, 16)] * 4)
    results = []
    for device, kind in (("CARD", unit.a), (HOST, dtypes.float32)):
        query, key, value, slope = (x.to(HOST).cast(kind).to(device).realize() for x in given)
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        out = attention_of(*leaves)
        (out * slope).sum().backward()
        found = [x.grad for x in leaves if x.grad is not None]
        products = [item.ast for item in out.cat(*found, dim=-2).schedule()]
        sums = [sum(n.op is Op.REDUCE for n in ast.toposort()) for ast in products]
        results.append(([plain(x) for x in found], sums))
    (ours, sums), (theirs, _) = results

    assert sum(n > 1 for n in sums) == chains
    tolerance = 8 * TOLERANCES[unit.a]
    for one, other in zip(ours, theirs, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_captured_step_replays_it(unit: MatrixUnit) -> None:
    @TinyJit
    def step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.scaled_dot_product_attention(key, value).realize()

    for scale in (1.0, 2.0, 3.0, 4.0):
        given = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16), scale=scale)
        tolerance = 4 * TOLERANCES[unit.a]
        expected = attention(*map(plain, given))
        numpy.testing.assert_allclose(plain(step(*given)), expected, rtol=tolerance, atol=tolerance)


@contextmanager
def card_of_few(unit: MatrixUnit) -> Iterator[Limits]:
    """A card of 16 units under the name FEW, which few queries do not keep busy."""
    limits = replace(card_with(unit), units=16)
    parts = replace(CORRECT, name="FEW", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        yield limits


def operands_of_few(unit: MatrixUnit, length: int, seen: int, groups: int) -> list[Tensor]:
    """Queries, keys and values on FEW."""
    sizes = (2, 4, length, 16), *[(2, groups, seen, 16)] * 2
    return [x.to(HOST).to("FEW").realize() for x in operands(unit, *sizes)]


def of_few(
    unit: MatrixUnit, shape: tuple[int, int, int], mask: Array | None = None, causal: bool = False
) -> tuple[int, Array, Array]:
    """Attention of few queries, whose four heads share keys, on a card of 16 units: its kernels,
    and what it is beside what it should be."""
    length, seen, groups = shape
    with card_of_few(unit) as limits:
        query, key, value = operands_of_few(unit, length, seen, groups)
        given = None if mask is None else Tensor(mask, device="FEW").realize()
        options = {"is_causal": causal, "enable_gqa": groups < 4}
        result = query.scaled_dot_product_attention(key, value, given, **options)
        first = next(item.ast for item in result.schedule() if item.ast.op is not Op.COPY)
        linear = lower(first, PythonRenderer(limits), "chain", plan_for(first, limits))
        assert any(u.op is Op.MATRIX for u in linear.uops)
        shared = [numpy.repeat(plain(x), 4 // groups, axis=1) for x in (key, value)]
        visible = numpy.tril(numpy.ones((length, seen), bool)) if causal else mask
        wanted = attention(plain(query), shared[0], shared[1], visible)
        return launches(result), plain(result), wanted


FEW = [(1, 256, 2), (1, 192, 1), (3, 256, 4), (4, 512, 2), (16, 256, 1)]


@pytest.mark.sample(9)
@pytest.mark.parametrize("shape", FEW, ids=str)
def test_few_queries_see_parts_of_keys_at_once(unit: MatrixUnit, shape: tuple[int, ...]) -> None:
    count, found, expected = of_few(unit, (shape[0], shape[1], shape[2]))

    assert count <= 4  # the parts, and means of their results by their totals
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "detached": lambda x: x.detach(),
    "asking": lambda x: x.requires_grad_(),
    "repeated": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "permuted": lambda x: x.permute(0, 2, 1, 3),
    "flat": lambda x: x.flatten(),
}


@pytest.mark.parametrize("form", FORMS)
def test_few_queries_are_computed_in_the_form_that_is_asked_for(
    unit: MatrixUnit, form: str
) -> None:
    with card_of_few(unit):
        query, key, value = operands_of_few(unit, 2, 256, 2)
        asked = FORMS[form](query.scaled_dot_product_attention(key, value, enable_gqa=True))

        assert launches(asked) > 1
        GlobalCounters.reset()
        asked.realize()
        assert GlobalCounters.kernel_count > 1
        result = plain(asked)
        shared = [numpy.repeat(plain(x), 2, axis=1) for x in (key, value)]
        expected = FORMS[form](Tensor(attention(plain(query), *shared))).numpy()

    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_parts_of_which_a_query_sees_nothing_have_no_weight(unit: MatrixUnit) -> None:
    visible = numpy.random.default_rng(5).random((2, 4, 2, 256)) > 0.5
    visible[0, 1, 0, 64:] = False  # parts have 64 keys
    visible[0, 2, 1, :192] = False
    visible[1, 3, 1] = False  # nothing at all
    _, found, expected = of_few(unit, (2, 256, 2), visible)

    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert not found[1, 3, 1].any()


@pytest.mark.parametrize("shape", [(2, 4, 2, 256), (2, 256), (1, 1, 2, 256), (4, 1, 256)], ids=str)
def test_few_queries_have_masks_of_every_shape(unit: MatrixUnit, shape: tuple[int, ...]) -> None:
    added = numbers(*shape, scale=2.0)
    added[..., 70] = -numpy.inf
    _, found, expected = of_few(unit, (2, 256, 2), added)

    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_few_causal_queries_see_the_first_keys(unit: MatrixUnit) -> None:
    _, found, expected = of_few(unit, (3, 256, 2), causal=True)

    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_gradients_of_few_queries_are_those_of_every_key(unit: MatrixUnit) -> None:
    limits = replace(card_with(unit), units=16)
    parts = replace(CORRECT, name="FEW", renderer=lambda: Rewriter(limits), limits=limits)
    shapes = (2, 4, 2, 16), (2, 2, 256, 16), (2, 2, 256, 16), (2, 4, 2, 16)
    given = [x.to(HOST).realize() for x in operands(unit, *shapes)]
    found: list[list[Array]] = []
    with accelerator(parts):
        for device, kind in (("FEW", unit.a), (HOST, dtypes.float32)):
            query, key, value, slope = (x.cast(kind).realize().to(device).realize() for x in given)
            leaves = [x.detach().requires_grad_() for x in (query, key, value)]
            x, y, z = leaves
            result = x.scaled_dot_product_attention(y, z, enable_gqa=True)
            (result * slope).sum().backward()
            found.append([plain(x.grad) for x in leaves if x.grad is not None])

    assert_close(unit, *found)


REFUSED = {
    "fewer keys than a tile": (2, 64, 7, 16, 16),
    "heads that steps exceed by far": (2, 64, 128, 17, 16),
    "a single row": (2, 1, 128, 16, 16),
    "sums no registers hold": (2, 64, 128, 16, 2048),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("why", REFUSED)
def test_other_sizes_are_planned_as_before(unit: MatrixUnit, why: str) -> None:
    heads, rows, seen, width, columns = REFUSED[why]
    query, key, value = operands(
        unit, (heads, rows, width), (heads, seen, width), (heads, seen, columns)
    )
    result = query.scaled_dot_product_attention(key, value)

    assert launches(result) > 1
    tolerance = TOLERANCES[unit.a]
    expected = attention(*map(plain, (query, key, value)))
    numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance)


def test_scores_that_are_asked_for_are_stored(unit: MatrixUnit) -> None:
    query, key, value = operands(unit, (2, 64, 16), (2, 128, 16), (2, 128, 16))
    weights = (query.matmul(key.transpose(-2, -1), dtype=dtypes.float32)).softmax(-1)
    result = weights.cast(unit.a).matmul(value, dtype=dtypes.float32)
    Tensor.realize(weights, result)

    scores = plain(query).astype(numpy.float64) @ numpy.swapaxes(plain(key), -1, -2)
    expected = numpy.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    tolerance = TOLERANCES[unit.a]
    numpy.testing.assert_allclose(plain(weights), expected, rtol=1e-4, atol=1e-5)
    found, wanted = plain(result), expected @ plain(value)
    numpy.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_sums_are_operands_as_they_are_or_transposed_or_exchanged() -> None:
    in_order = tuple(range(8))
    assert (HALF.chained, HALF.sums_as_operand) == (HALF, (in_order, ()))
    assert (SIMDGROUP.chained, SIMDGROUP.sums_as_operand) == (SIMDGROUP, ((0, 1), ()))
    assert (MFMA.chained, MFMA.turned.sums_as_operand) == (MFMA.turned, (in_order[:4], ()))
    assert (WMMA_BLOCKS.chained, WMMA_BLOCKS.turned.sums_as_operand) == (
        *(WMMA_BLOCKS.turned, (in_order, ())),
    )
    halves = tuple(place for pair in zip(range(8), range(8, 16), strict=True) for place in pair)
    assert (WMMA.chained, WMMA.turned.sums_as_operand) == (WMMA.turned, (halves, (16,)))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_turned_twice_is_itself(unit: MatrixUnit) -> None:
    assert unit.turned.turned == unit


def test_units_whose_sums_lie_otherwise_have_no_chains() -> None:
    assert MMA_INT8.chained is OUTER.chained is None


def test_a_copy_of_what_a_chain_stores_comes_after_it(unit: MatrixUnit) -> None:
    """The copy is between the kernels of the chain, if it is asked for first."""
    query, key, value = operands(unit, *((8, 64, 32),) * 3)
    scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32)
    powers = (scores - scores.max(-1, keepdim=True)).exp()
    total = powers.sum(-1, keepdim=True)
    result = (powers / total).cast(unit.a).matmul(value, dtype=dtypes.float32)
    copied = total.to(HOST)
    kinds = [item.ast.op for item in copied.schedule(result)]
    Tensor.realize(copied, result)

    assert kinds[:2] == [Op.SINK, Op.COPY]
    numpy.testing.assert_allclose(copied.numpy(), total.numpy(), rtol=1e-6)


@pytest.mark.parametrize("is_cut_late", [False, True])
def test_a_chain_of_some_rows_stores_no_fold_of_all_rows(is_cut_late: bool) -> None:
    limits = replace(card_with(HALF), grid_varies=True)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    some = Variable("some", 1, 64).bind(40)
    with accelerator(parts), Context(VERIFY=1):
        query, key, value = operands(HALF, *((2, 64, 16),) * 3)
        query = query if is_cut_late else query[:, :some]
        scores = query.matmul(key.transpose(-2, -1), dtype=dtypes.float32)
        top = scores.max(-1, keepdim=True)
        powers = (scores - top).exp().cast(dtypes.float16)
        seen = powers[:, :some].matmul(value, dtype=dtypes.float32)
        before = GlobalCounters.kernel_count
        Tensor.realize(top, seen)
        kernels = GlobalCounters.kernel_count - before
        expected = plain(query) @ numpy.swapaxes(plain(key), -1, -2)

        numpy.testing.assert_allclose(plain(top)[..., 0], expected.max(-1), rtol=1e-5, atol=1e-5)
        assert (kernels == 1) is not is_cut_late
