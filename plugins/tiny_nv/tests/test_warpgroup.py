"""wgmma on an executor of PTX: units whose operands four warps read in shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy
import pytest
from executor.bulk import rounded
from executor.warpgroup import MatrixDescriptor as Decoded
from executor.warpgroup import accumulator
from matrix_programs import Sources, for_few_threads, noted, small_integers
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card

from tiny_nv.arch import arch_of, limits_of, widest_of
from tiny_nv.product_groups import Wait, product_groups, sum_registers, waits_before
from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.spills import spilled_bytes
from tiny_nv.warpgroup import DESCRIPTOR, WARPGROUP, descriptor_bits
from tinycore import Context, Device, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.plugin import register, unregister
from tinycore.schedule import operand_layout
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

MNEMONIC = "wgmma.mma_async"
COPY = "cp.async.bulk.tensor.2d"
CALL = {"NVRTC": "copy_box(temp", "PTX": COPY}
"""Text that begins to copy a box, by the language."""
THREADS = numpy.arange(128)[:, None]


@pytest.fixture
def sources() -> Iterator[Sources]:
    with noted() as found:
        yield found


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"))
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Hopper with one multiprocessor that the executor plays, asked for what it alone has."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(for_few_threads(backend_of(Simulated((Card(),)))))
    with Context(DEV=f"CUDA:{request.param}:sm_90a"):
        yield
    unregister("CUDA")


@pytest.mark.parametrize("name", WARPGROUP)
def test_lanes_hold_the_sums_that_the_manual_says(name: str) -> None:
    unit = WARPGROUP[name].unit
    held = unit.fragment("out")
    elements = numpy.arange(held.count)[None]

    for axis, expected in zip("mn", accumulator(unit.n), strict=True):
        found = numpy.broadcast_to(held.map.place(axis, THREADS, elements), expected.shape)
        assert numpy.array_equal(found, expected)


@pytest.mark.parametrize("row_bytes", [32, 64, 128])
def test_a_descriptor_is_read_as_it_was_meant(row_bytes: int) -> None:
    descriptor = replace(DESCRIPTOR, row_bytes=row_bytes)
    places = Decoded.decode(descriptor_bits(descriptor) | 4096 >> 4).places(64, 32)

    expected = [[descriptor.place(row, column, 1) for column in range(32)] for row in range(64)]
    assert (places - 4096).tolist() == expected


def test_a_descriptor_of_rows_across_k_is_read_as_it_was_meant() -> None:
    descriptor = replace(DESCRIPTOR, panel_bytes=8192)
    decoded = Decoded.decode(descriptor_bits(descriptor) | 4096 >> 4)
    places = decoded.places_across(256, 16, 2)[:, ::2]

    expected = [[2 * descriptor.place(row, step, 2) for step in range(16)] for row in range(256)]
    assert (places - 4096).tolist() == expected


def test_a_descriptor_of_rows_by_pieces_is_read_as_it_was_meant() -> None:
    descriptor = replace(DESCRIPTOR, row_bytes=16, panel_bytes=6000 << 4)
    places = Decoded.decode(descriptor_bits(descriptor) | 4112 >> 4).places(64, 32)

    expected = [[descriptor.place(row, column, 1) for column in range(32)] for row in range(64)]
    assert (places - 4112).tolist() == expected


def test_only_the_hopper_that_is_asked_for_has_them() -> None:
    hopper, other = (limits_of(arch_of(name)).matrix for name in ("sm_90a", "sm_90"))

    assert {unit.name for unit in set(hopper) - set(other)} == set(WARPGROUP)
    assert set(other) < set(hopper)
    assert limits_of(replace(arch_of("sm_90a"), number=100)).matrix == other


def factor(rows: int, columns: int, dtype: DType, is_turned: bool, seed: int = 0) -> Tensor:
    """A matrix of small integers, its transpose in memory where it is turned."""
    values = small_integers(rows, columns, seed=seed).astype("f")
    held = Tensor(values.T.copy() if is_turned else values).cast(dtype).realize()
    return held.T if is_turned else held


def test_a_hopper_is_compiled_for_as_what_no_other_card_is() -> None:
    assert [widest_of(f"sm_{number}") for number in (80, 89, 90, 100)] == [
        *("sm_80", "sm_89", "sm_90a", "sm_100")
    ]
    register(backend_of(Simulated((Card(),))))
    try:
        with Context(DEV="CUDA:PTX"):
            assert Device["CUDA"].toolchain.arch == "sm_90a"
        with Context(DEV="CUDA:PTX:sm_90"):
            assert Device["CUDA"].toolchain.arch == "sm_90"
    finally:
        unregister("CUDA")


@pytest.mark.sample(4)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    "size", [(128, 128, 256), (64, 64, 96), (64, 64, 192), (100, 130, 136)], ids=str
)
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_a_product_is_numpys(dtype: DType, size: tuple[int, int, int], sources: Sources) -> None:
    m, n, k = size
    x, y = factor(m, k, dtype, False), factor(k, n, dtype, True, seed=1)
    sources.texts.clear()

    found = x.matmul(y, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, small_integers(m, k) @ small_integers(k, n, seed=1))
    assert [MNEMONIC in text for text in sources.texts] == [True]
    assert any(call in sources.texts[0] for call in CALL.values())
    assert "fence.proxy.async" not in sources.texts[0]  # no thread stores an operand


@pytest.mark.sample(4)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("turned", [(False, False), (True, True), (True, False)], ids=str)
@pytest.mark.parametrize("size", [(128, 256, 256), (104, 72, 136), (64, 128, 144)], ids=str)
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_operands_may_lie_across_k(
    dtype: DType, size: tuple[int, int, int], turned: tuple[bool, bool], sources: Sources
) -> None:
    m, n, k = size
    x, y = factor(m, k, dtype, turned[0]), factor(k, n, dtype, turned[1], seed=1)
    sources.texts.clear()

    found = x.matmul(y, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, small_integers(m, k) @ small_integers(k, n, seed=1))
    (text,) = sources.texts
    flags = (int(turned[0]), int(not turned[1]))
    assert set(re.findall(r", 1, 1, (\d), (\d);", text)) == {tuple(map(str, flags))}
    assert any(call in text for call in CALL.values())
    assert "fence.proxy.async" not in text


@pytest.mark.sample(1)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("k", "waits"), [(64, ["0"]), (256, ["0", "1"])])
def test_products_of_a_stage_are_one_group_and_those_of_a_loop_under_way(
    k: int, waits: list[str], sources: Sources
) -> None:
    x, y = factor(64, k, dtypes.half, False), factor(k, 64, dtypes.half, True, seed=1)
    sources.texts.clear()

    found = x.matmul(y, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, small_integers(64, k) @ small_integers(k, 64, seed=1))
    (text,) = sources.texts
    assert (text.count(MNEMONIC), text.count("wgmma.commit_group")) == (4, 1)
    assert sorted(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d);", text)) == waits


UNIT = WARPGROUP["wgmma_m64n64k16_f16"].unit


def product(operand: UOp, total: UOp) -> UOp:
    """A product of an operand with itself, added to a sum."""
    return UOp(Op.MATRIX, UNIT.fragment("out").vector, (operand, operand, total), UNIT)


def rows_of(*between: UOp, again: bool = False) -> list[int]:
    """Lengths of the rows that two products make which add to one sum, one behind the other."""
    operand = UOp.const(dtypes.float16, 1)
    register = UOp(Op.DEFINE_REG, UNIT.fragment("out").vector.ptr(1, "register"), (), 0)
    held = UOp(
        Op.LOAD,
        UNIT.fragment("out").vector,
        (UOp(Op.INDEX, register.dtype, (register, UOp.index(0))),),
    )
    first = product(operand, held)
    last = product(operand, first)
    others = [UOp(Op.STORE, dtypes.void, (held.src[0], first))] if again else []
    rows = product_groups((held, first, *between, last, *others))
    return sorted(map(len, rows.values()))


def test_products_are_waited_for_where_their_sum_is_needed() -> None:
    operand, zeros = UOp.const(dtypes.float16, 1), UOp.const(dtypes.float32, 0)
    kind = UNIT.fragment("out").vector
    first = product(operand, UOp(Op.VECTORIZE, kind, (zeros,) * kind.count))
    other = product(UOp.const(dtypes.float16, 2), first.src[2])
    uses = [UOp(Op.EXTRACT, dtypes.float32, (one,), (0,)) for one in (first, other)]

    found = waits_before((*first.src, first, other, *uses), are_kept=True)

    assert {use: [(a.product, a.left) for a in found[use]] for use in found} == {
        uses[0]: [(first, 1)],
        uses[1]: [(other, 0)],
    }


def test_a_sum_that_is_stored_is_waited_for_at_the_end_of_a_loop() -> None:
    operand, loop = UOp.const(dtypes.float16, 1), UOp.range(4, 0)
    kind = UNIT.fragment("out").vector
    register = UOp(Op.DEFINE_REG, kind.ptr(1, "register"), (), 0)
    index = UOp(Op.INDEX, register.dtype, (register, UOp.index(0)))
    one = product(operand, UOp(Op.LOAD, kind, (index,)))
    stored = UOp(Op.STORE, dtypes.void, (index, one))
    end = UOp(Op.END, dtypes.void, (stored, loop))
    uops = (register, index, loop, one.src[2], operand, one, stored, end)

    assert waits_before(uops, are_kept=True) == {end: (Wait(one, register, 0),)}
    assert waits_before(uops, are_kept=False) == {stored: (Wait(one, None, 0),)}


def test_a_product_is_computed_where_its_sum_alone_is_stored() -> None:
    kind = UNIT.fragment("out").vector
    register = UOp(Op.DEFINE_REG, kind.ptr(1, "register"), (), 0)
    index = UOp(Op.INDEX, register.dtype, (register, UOp.index(0)))
    held = UOp(Op.LOAD, kind, (index,))
    one = product(UOp.const(dtypes.float16, 1), held)
    stored, again = UOp(Op.STORE, dtypes.void, (index, one)), UOp(Op.LOAD, kind, (index,), "again")
    lane = UOp(Op.EXTRACT, dtypes.float32, (one,), (0,))

    assert sum_registers((register, index, held, one, stored)) == {one: register}
    assert sum_registers((register, index, held, one, again, stored)) == {}
    assert sum_registers((register, index, held, one, lane, stored)) == {}
    assert sum_registers((held, one, UOp(Op.END, dtypes.void, (held,)), stored)) == {}


def test_sums_of_a_chain_are_moved_nowhere() -> None:
    with Context(DEV="NULL:PTX:sm_90a"):
        q, k, v = (Tensor.empty(1, 16, 2048, 64, dtype=dtypes.bfloat16) for _ in "qkv")
        renderer = Device["NULL"].toolchain.renderer
        (item,) = q.scaled_dot_product_attention(k, v).schedule()
        text = renderer.render(lower(item.ast, renderer, "attention"))
    behind = text.rpartition("wgmma.wait_group.sync.aligned 0;")[2].partition("bra ")[0]

    assert behind.count("mov.b32") == 2  # maxima of two rows


def test_rows_of_products_end_where_something_stands_between() -> None:
    register = UOp(Op.DEFINE_REG, UNIT.fragment("out").vector.ptr(1, "register"), (), 0)
    place = UOp(Op.INDEX, register.dtype, (register, UOp.index(0)))
    stored = UOp(Op.STORE, dtypes.void, (place, UOp.const(UNIT.fragment("out").vector, 0)))

    assert rows_of() == [2]
    assert rows_of(UOp(Op.BARRIER, dtypes.void)) == [1, 1]
    assert rows_of(stored) == [1, 1]
    assert rows_of(again=True) == [1, 1]


@pytest.mark.sample(2)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    "dtype", [dtypes.fp8e4m3, dtypes.fp8e5m2, dtypes.int8], ids=lambda dtype: dtype.name
)
def test_a_product_of_bytes_is_numpys(dtype: DType, sources: Sources) -> None:
    a, b = small_integers(100, 144), small_integers(70, 144, seed=1)
    x, y = (Tensor(v.astype("f")).cast(dtype).realize() for v in (a, b))
    total = dtypes.int32 if dtype is dtypes.int8 else dtypes.float32
    sources.texts.clear()

    found = x.matmul(y.T, dtype=total).numpy()

    assert numpy.array_equal(found, a @ b.T)
    assert [MNEMONIC in text for text in sources.texts] == [True]
    assert any(call in sources.texts[0] for call in CALL.values())


def normal(rows: int, columns: int, seed: int = 0) -> numpy.ndarray:
    """Numbers whose fractions have more bits than a unit takes, and some that are a tie."""
    found = numpy.random.default_rng(seed).standard_normal((rows, columns)).astype("f")
    found[:, ::5] = (found[:, ::5].view("u4") & 0xFFFFE000 | 0x1000).view("f")
    return found


@pytest.mark.sample(4)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("size", "is_copied"),
    [((128, 128, 256), True), ((64, 64, 32), False), ((100, 130, 136), True)],
    ids=str,
)
def test_single_operands_are_rounded_to_the_nearest(
    size: tuple[int, int, int], is_copied: bool, sources: Sources
) -> None:
    """By the copies of boxes, or by the threads that store where a product is one step."""
    m, n, k = size
    a, b = normal(m, k), normal(n, k, seed=1)
    x, y = (Tensor(v).realize() for v in (a, b))
    sources.texts.clear()

    with Context(ALLOW_TF32=1):
        found = x.matmul(y.T).numpy()

    nearest = [rounded(v.view("u4")).view("f").astype("d") for v in (a, b)]
    numpy.testing.assert_allclose(found, nearest[0] @ nearest[1].T, rtol=1e-5, atol=1e-5)
    (text,) = sources.texts
    assert f"{MNEMONIC}.sync.aligned.m64n" in text
    assert any(call in text for call in CALL.values()) == is_copied


@pytest.mark.usefixtures("card")
def test_single_operands_that_threads_would_round_take_a_unit_of_a_warp(sources: Sources) -> None:
    a, b = normal(64, 128), normal(64, 128, seed=1)
    x, y = (Tensor(v).realize() for v in (a, b))
    sources.texts.clear()

    with Context(ALLOW_TF32=1):
        found = (x * 0.5).matmul(y.T).numpy()

    numpy.testing.assert_allclose(found, 0.5 * a @ b.T, rtol=2e-2, atol=2e-2)
    assert not any(MNEMONIC in text for text in sources.texts)


@pytest.mark.sample(3)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("turned", [(False, False), (True, True), (True, False)], ids=str)
@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.fp8e4m3, dtypes.int8], ids=lambda dtype: dtype.name
)
def test_what_no_unit_reads_across_k_is_copied_along_it(
    dtype: DType,
    turned: tuple[bool, bool],
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operand_layout, "READS_ALONG_SUM", 64)
    m, n, k = 64, 128, 160
    x, y = factor(m, k, dtype, turned[0]), factor(k, n, dtype, turned[1], seed=1)
    sources.texts.clear()

    with Context(ALLOW_TF32=1):
        total = dtypes.int32 if dtype is dtypes.int8 else dtypes.float32
        found = x.matmul(y, dtype=total).numpy()

    assert numpy.array_equal(found, small_integers(m, k) @ small_integers(k, n, seed=1))
    assert len(sources.texts) == 1 + turned[0] + (not turned[1])  # compiled in any order
    (product,) = (text for text in sources.texts if MNEMONIC in text)
    assert "reduce" in product


@pytest.mark.sample(1)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("is_across", [False, True])
def test_operands_that_are_no_tensor_are_stored_by_threads_and_fenced(
    is_across: bool, sources: Sources
) -> None:
    """Rows of 326 halves lie 652 bytes apart, which are no pieces of 16."""
    m, n, k = (120, 250, 90) if is_across else (64, 64, 326)
    x = factor(m, k, dtypes.half, is_across)
    y = factor(k, n, dtypes.half, True, seed=1)
    sources.texts.clear()

    found = x.matmul(y, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, small_integers(m, k) @ small_integers(k, n, seed=1))
    *_, text = sources.texts
    assert MNEMONIC in text
    assert not any(call in text for call in CALL.values())
    assert "fence.proxy.async" in text


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["NVRTC", "PTX"])
def test_nvidias_assembler_takes_a_large_product(
    nvrtc: None, writer: str, sources: Sources
) -> None:
    kinds = (dtypes.bfloat16, dtypes.fp8e4m3, dtypes.int8, dtypes.float32)
    totals = (dtypes.float32, dtypes.float32, dtypes.int32, dtypes.float32)
    with Context(DEV=f"NULL:{writer}:sm_90a", CCACHE=0, ALLOW_TF32=1):
        for kind, total in zip(kinds, totals, strict=True):
            x, y = (Tensor.empty(4096, 4096, dtype=kind).realize() for _ in range(2))
            x.matmul(y.T, dtype=total).realize()
    compiler = NvrtcCompiler("sm_90a") if writer == "NVRTC" else PtxCompiler("sm_90a")

    for text, steps in zip(sources.texts, (16, 32, 32, 8), strict=True):
        assert MNEMONIC in text
        assert f"m64n256k{steps}" in text
        assert not spilled_bytes(compiler.built(text)[1])


def attended(*given: Tensor, mask: Tensor | None = None) -> numpy.ndarray:
    """Attention in double precision."""
    q, k, v = (x.float().numpy().astype("d") for x in given)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = numpy.where(mask.numpy(), scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return numpy.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def halves(*shape: int, dtype: DType = dtypes.bfloat16, seed: int = 0) -> Tensor:
    found = numpy.random.default_rng(seed).standard_normal(shape).astype("f")
    return Tensor(found).cast(dtype).realize()


@pytest.mark.sample(3)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    "size",
    [
        *((128, 192, 64), (100, 128, 64), (64, 200, 64)),
        *((64, 64, 128), (200, 128, 128), (64, 100, 256)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.bfloat16], ids=lambda dtype: dtype.name)
def test_sums_are_an_operand_of_the_next_product(
    dtype: DType, size: tuple[int, int, int], sources: Sources
) -> None:
    rows, seen, width = size
    q, *others = (halves(2, n, width, dtype=dtype, seed=n) for n in (rows, seen, seen + 1))
    k, v = others[0], others[1][:, :seen].contiguous().realize()
    sources.texts.clear()

    found = q.scaled_dot_product_attention(k, v).float().numpy()

    numpy.testing.assert_allclose(found, attended(q, k, v), rtol=2e-2, atol=2e-2)
    text = next(text for text in sources.texts if MNEMONIC in text)
    assert text.count(f"{MNEMONIC}.sync.aligned.m64n64k16.f32") >= 8
    share = (".maxntid 128, 3, 1", "__launch_bounds__(384)")
    assert any(bounds in text for bounds in share) == (size == (200, 128, 128))


@pytest.mark.parametrize(
    ("width", "rows", "is_masked"),
    [(64, 128, False), (64, 128, True), (128, 192, False), (128, 64, True)],
)
def test_groups_of_chains_have_rows_by_their_registers(
    width: int, rows: int, is_masked: bool
) -> None:
    limits = limits_of(arch_of("sm_90a"), takes_maps=True)
    with Context(DEV="NULL:PTX:sm_90a"):
        q, k, v = (Tensor.empty(4, 16, 2048, width, dtype=dtypes.half) for _ in range(3))
        mask = Tensor.empty(2048, 2048, dtype=dtypes.half) if is_masked else None
        (item,) = q.scaled_dot_product_attention(k, v, attn_mask=mask).schedule()

    assert f"split(2 by {rows} guarded)" in " ".join(map(str, plan_for(item.ast, limits)))


@pytest.mark.usefixtures("card")
def test_such_results_are_stored_with_heads_side_by_side(sources: Sources) -> None:
    q, k, v = (halves(1, 64, 2, 64, seed=seed).transpose(1, 2) for seed in range(3))

    found = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(1, 64, 128).float()

    expected = attended(q, k, v).transpose(0, 2, 1, 3).reshape(1, 64, 128)
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=2e-2, atol=2e-2)
    assert sum(MNEMONIC in text for text in sources.texts) == 1


@pytest.mark.sample(2)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("width", [64, 128])
def test_a_mask_hides_whole_blocks_of_such_an_operand(width: int) -> None:
    q, k, v = (halves(1, 256, width, seed=seed) for seed in range(3))
    mask = Tensor(numpy.tril(numpy.ones((256, 256), bool)))

    found = q.scaled_dot_product_attention(k, v, is_causal=True).float().numpy()

    numpy.testing.assert_allclose(found, attended(q, k, v, mask=mask), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("width", "is_causal"), [(64, False), (128, False), (64, True)])
def test_gradients_of_such_chains_are_torchs(width: int, is_causal: bool, sources: Sources) -> None:
    torch = pytest.importorskip("torch")
    given = [halves(1, 256 if is_causal else 128, width, seed=seed) for seed in range(4)]
    exact = [torch.from_numpy(x.float().numpy()).requires_grad_(True) for x in given]
    attention = torch.nn.functional.scaled_dot_product_attention
    result = attention(*exact[:3], is_causal=is_causal)
    expected = torch.autograd.grad(result, exact[:3], exact[3])
    q, k, v = (x.detach().requires_grad_(True) for x in given[:3])
    sources.texts.clear()

    result = q.scaled_dot_product_attention(k, v, is_causal=is_causal)
    (result * given[3]).sum().backward()

    for mine, theirs in zip((q.grad, k.grad, v.grad), expected, strict=True):
        assert mine is not None
        apart = numpy.abs(mine.float().numpy() - theirs.numpy()).max()
        assert apart < 2e-2 * float(theirs.abs().max())
    assert sum(MNEMONIC in text for text in sources.texts) >= 3
