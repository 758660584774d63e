"""Row fusion: kernels that go through their rows together compute what they did apart."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tinycore import Context, Variable
from tinycore.dtype import PointerDType
from tinycore.engine.counters import GlobalCounters
from tinycore.schedule.access import Launch, footprint, row_size
from tinycore.schedule.candidates import Refusal
from tinycore.schedule.row_fusion import MOST_PRODUCTS
from tinycore.tensor import Tensor
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

pytestmark = pytest.mark.device("CPU")
"""Strips are for devices that run loops."""


def numbers(*shape: int, seed: int = 0) -> Any:
    """Random float32."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def launches(result: Tensor) -> int:
    """Number of kernels that compute a result."""
    return len(result.schedule())


def own_bytes(result: Tensor) -> int:
    """The memory that the kernels of a result have for themselves."""
    defined = {
        n
        for item in result.schedule()
        for n in item.ast.toposort()
        if n.op is Op.DEFINE_LOCAL and isinstance(n.dtype, PointerDType)
    }
    return sum(n.dtype.size * n.dtype.itemsize for n in defined)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(64, 100), (33, 31), (2, 3, 5, 16), (4099, 3)])
def test_softmax_is_one_kernel(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    result = Tensor(x).realize().softmax(-1)

    assert launches(result) == 1
    expected = torch.tensor(x).double().softmax(-1).numpy()
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=2e-6, atol=1e-8)


def test_strips_of_one_row_have_no_loop_over_the_rows_of_a_strip() -> None:
    (item,) = Tensor(numbers(4099, 3)).realize().softmax(-1).schedule()
    ends = [n for n in item.ast.toposort() if n.op is Op.END]

    assert [len(end.src) - 1 for end in ends] == [1, 1, 1]  # each closes a loop


@pytest.mark.parametrize(("columns", "rows"), [(4096, 1), (256, 4), (64, 16)])
def test_rows_without_products_stay_in_the_nearest_cache(columns: int, rows: int) -> None:
    (item,) = Tensor(numbers(4096, columns)).realize().softmax(-1).schedule()
    (outer,) = [n for n in item.ast.src[0].src[1:] if n.op is Op.RANGE]

    assert outer.extent == 4096 // rows


def test_rows_of_products_of_each_head_share_what_they_read() -> None:
    q, k, v = (Tensor(numbers(8, 512, 64, seed=n)).realize() for n in range(3))
    (item,) = q.scaled_dot_product_attention(k, v).schedule()
    heads, strips = [n for n in item.ast.src[0].src[1:] if n.op is Op.RANGE]

    assert heads.extent == 8
    assert strips.extent <= 512 // 8, "a tile has eight rows at most"


def test_few_long_rows_with_weights_are_one_kernel() -> None:
    x, weight, bias = (Tensor(numbers(*shape)).realize() for shape in ((8, 4096), (4096,), (4096,)))

    assert launches(x.layernorm() * weight + bias) == 1


def exponentials(*results: Tensor) -> int:
    """Number of exponentials in the one kernel that computes some results."""
    (item,) = results[0].schedule(*results[1:])
    return sum(node.op is Op.EXP for node in item.ast.toposort())


def test_costly_values_are_computed_once_for_nests_of_other_loops() -> None:
    x = numbers(16, 24)
    powers = Tensor(x).realize().exp()
    sums, doubled = powers.reshape(16, 4, 6).sum(-1), powers * 2

    assert exponentials(sums, doubled) == 1
    expected = numpy.exp(x.astype(float))
    numpy.testing.assert_allclose(sums.numpy(), expected.reshape(16, 4, 6).sum(-1), rtol=1e-5)
    numpy.testing.assert_allclose(doubled.numpy(), expected * 2, rtol=1e-5)


def test_costly_values_of_other_rows_are_computed_again() -> None:
    x = numbers(24, 24)
    powers = Tensor(x).realize().exp()
    sums = powers.sum(1, keepdim=True)
    turned = powers.transpose(0, 1) * sums

    assert exponentials(sums, turned) == 2
    expected = numpy.exp(x.astype(float))
    numpy.testing.assert_allclose(turned.numpy(), expected.T * expected.sum(1)[:, None], rtol=1e-5)


def test_costly_values_of_what_is_stored_beside_them_are_computed_after_it() -> None:
    x = numbers(16, 24)
    scaled = Tensor(x).realize() * 0.5 + 1
    powers = scaled.exp()
    doubled, sums = powers * 2, powers.reshape(16, 4, 6).sum(-1)
    Tensor.realize(scaled, doubled, sums)

    expected = numpy.exp(x.astype(float) * 0.5 + 1)
    numpy.testing.assert_allclose(doubled.numpy(), expected * 2, rtol=1e-5)
    numpy.testing.assert_allclose(sums.numpy(), expected.reshape(16, 4, 6).sum(-1), rtol=1e-5)


def test_rows_that_are_folded_in_two_steps() -> None:
    x = numbers(8, 4096)
    data = Tensor(x).realize()
    top = data.reshape(8, 64, 64).max(-1)
    powers = (data - top.max(-1, keepdim=True)).exp()
    Tensor.realize(powers, total := powers.sum(-1))

    expected = numpy.exp(x.astype(float) - x.max(-1, keepdims=True))
    numpy.testing.assert_allclose(powers.numpy(), expected, rtol=1e-5)
    numpy.testing.assert_allclose(total.numpy(), expected.sum(-1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 128), (5, 17)])
def test_layernorm_is_one_kernel(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    result = Tensor(x).realize().layernorm()

    assert launches(result) == 1
    expected = torch.nn.functional.layer_norm(torch.tensor(x).double(), shape[-1:]).numpy()
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "queries", "keys", "depth"),
    [(2, 64, 64, 16), (3, 48, 80, 8), (1, 128, 128, 32), (2, 37, 37, 5)],
)
def test_attention_is_one_kernel(
    heads: int, queries: int, keys: int, depth: int, causal: bool
) -> None:
    if causal and queries != keys:
        pytest.skip("a causal mask is square")
    arrays = [numbers(heads, n, depth, seed=s) for s, n in enumerate((queries, keys, keys))]
    q, k, v = (Tensor(a).realize() for a in arrays)
    result = q.scaled_dot_product_attention(k, v, is_causal=causal)

    assert launches(result) == 1
    query, key, value = (torch.tensor(a).double() for a in arrays)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    numpy.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_scores_have_memory_for_a_strip_only() -> None:
    q, k, v = (Tensor(numbers(1, 512, 16, seed=s)).realize() for s in range(3))
    result = q.scaled_dot_product_attention(k, v)

    assert own_bytes(result) <= 1 << 20
    gc.collect()  # else what another test left may be freed meanwhile
    before = GlobalCounters.mem_used
    result.realize()
    assert GlobalCounters.mem_used - before == 512 * 16 * 4


def test_strips_do_not_ask_for_gradients() -> None:
    """A value that no gradient flows through is a strip's own as well."""
    q, k, v = (Tensor(numbers(2, 64, 16, seed=s)).realize().detach() for s in range(3))
    before = GlobalCounters.kernel_count
    q.scaled_dot_product_attention(k, v).realize()

    assert GlobalCounters.kernel_count - before == 1


def test_what_others_read_keeps_its_memory() -> None:
    x = numbers(16, 24)
    data = Tensor(x).realize()
    top = data.max(1, keepdim=True)
    result = (data - top).exp().sum(1)
    Tensor.realize(top, result)

    numpy.testing.assert_array_equal(top.numpy(), x.max(1, keepdims=True))
    expected = numpy.exp(x.astype(float) - x.max(1, keepdims=True)).sum(1)
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_rows_of_others_are_not_read() -> None:
    x = numbers(32, 32)
    scaled = (Tensor(x).realize().softmax(1).contiguous().transpose(0, 1)).softmax(1)

    assert launches(scaled) == 2
    expected = torch.tensor(x).double().softmax(1).T.softmax(1).numpy()
    numpy.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-5)


def test_large_operands_that_every_row_reads_stay_apart() -> None:
    x, w = Tensor(numbers(64, 1024)).realize(), Tensor(numbers(1024, 4096)).realize()

    assert launches((x @ w).softmax(-1)) > 1


def test_parts_of_one_operand_count_apart() -> None:
    """A kernel that folds two parts of the same weights reads both of them again for each row."""
    x, w = Tensor(numbers(64, 16)).realize(), Tensor(numbers(2, 16, 32)).realize()
    (item,) = (x @ w[0] + (x + 1) @ w[1]).schedule()
    again, _ = footprint([Launch(item.ast, tuple(range(len(item.bufs))))], 1)

    assert again == 2 * 16 * 32 * 4


def test_kernels_that_share_little_stay_apart() -> None:
    """Two long results of short rows: reading those again is nothing beside writing the others."""
    x = Tensor(numbers(256, 4)).realize()
    weights = [Tensor(numbers(4, 256, seed=n)).realize() for n in range(2)]
    short = [(x @ w).contiguous() for w in weights]
    wide = Tensor(numbers(256, 256)).realize()
    long = [(wide * 2).max(1).contiguous(), (wide @ Tensor(numbers(256, 4)).realize()).contiguous()]

    assert len(short[0].schedule(short[1])) == 2
    assert len(long[0].schedule(long[1])) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x,
    ],
)
def test_gradients_go_through_strips(function: Callable[[Any], Any]) -> None:
    data, weight = numbers(3, 12, 20), numbers(3, 12, 20, seed=1)
    ours, theirs = Tensor(data).realize(), torch.tensor(data).double().requires_grad_()
    (found,) = (function(ours) * Tensor(weight)).sum().gradient(ours)
    (function(theirs) * torch.tensor(weight)).sum().backward()

    assert theirs.grad is not None
    numpy.testing.assert_allclose(found.numpy(), theirs.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_what_is_asked_for_has_memory_when_it_is_scheduled_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = Tensor(numbers(52, 264)).realize()
    with Context(TRACE="schedule"):
        (item,) = x.softmax(-1).schedule()

    assert len(item.bufs) == 2
    assert "EXP float32 (52, 264) is in shared loops: dear" in capsys.readouterr().err


def test_a_row_is_where_the_address_stays() -> None:
    row, column = UOp.range(4, 0), UOp.range(6, 1)

    assert row_size(row * 6 + column, 24, (row,)) == 6
    assert row_size(column * 4 + row, 24, (row,)) is None
    assert row_size(row * 6 + column + 1, 24, (row,)) is None


def test_the_rows_of_equal_accesses_are_analyzed_once() -> None:
    x, y = (Tensor(numbers(8, 16, seed=seed)).realize() for seed in range(2))
    launch = launch_of(x + y)
    row_size.cache_clear()

    assert [launch.stays(index, 1) for index in launch.accesses] == [True] * 3
    assert row_size.cache_info().misses == 1


def test_a_kernel_that_overwrites_what_it_reads_is_not_plain() -> None:
    x = Tensor(numbers(8, 8)).realize()
    (item,) = x.assign(x + 1).schedule()

    assert not Launch(item.ast, tuple(range(len(item.bufs)))).is_plain


def test_a_kernel_is_plain_where_it_is_one_nest_of_loops() -> None:
    x = Tensor(numbers(8, 8)).realize()
    length = Variable("length", 1, 8).bind(5)
    one = launch_of(x + 1)
    held = x.softmax(1)  # sums in memory of its own

    assert one.is_plain
    assert not launch_of(x[:length] + 1).is_plain
    assert not launch_of(x.cumsum(0)).is_plain
    assert not launch_of(held).is_plain


def launch_of(result: Tensor) -> Launch:
    """The last launch that computes a tensor."""
    item = result.schedule()[-1]
    return Launch(item.ast, tuple(range(len(item.bufs))))


def test_what_is_written_is_read_again_where_no_loop_is_left() -> None:
    x = numbers(2, 4)
    data = Tensor(x).realize()
    square = data @ data.transpose(0, 1)
    result = square @ data
    Tensor.realize(square, result)

    numpy.testing.assert_allclose(square.numpy(), x @ x.T, rtol=1e-5)
    numpy.testing.assert_allclose(result.numpy(), x @ x.T @ x, rtol=1e-5)


def test_nests_that_transpose_what_others_transposed() -> None:
    """Seed 510403: only the first of two copies of a nest had its gathers replaced."""
    random = numpy.random.default_rng(0)
    data = random.permutation(4 * 8 * 8).reshape(4, 8, 8).astype(numpy.float16)
    weight = random.standard_normal((4, 8, 8)).astype(numpy.float16)
    ours, theirs = Tensor(data).realize(), torch.tensor(data).requires_grad_()
    (found,) = (ours.sort(1, True)[0] * Tensor(weight)).sum().gradient(ours)
    total = (theirs.sort(1, True)[0] * torch.tensor(weight)).sum()
    (expected,) = torch.autograd.grad(total, theirs)

    numpy.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_like_layers_are_like_kernels() -> None:
    """Two products of a long chain at a time go through the rows together, and are lowered once."""
    x = numbers(16, 32)
    weights = [numbers(32, 32, seed=n) / 6 for n in range(12)]
    result, expected = Tensor(x), x
    for weight in weights:
        result = (result @ Tensor(weight)).relu() + result
        expected = numpy.maximum(expected @ weight, 0) + expected
    kernels = [item.ast for item in result.schedule() if item.ast.op is Op.SINK]

    assert len(kernels) == len(weights) // MOST_PRODUCTS
    assert len(set(kernels)) == 1
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-3)


def kernels_of(result: Tensor) -> list[UOp]:
    """The graphs of the kernels that a kernelized result needs."""
    return [n.arg.ast for n in result.uop.toposort() if n.op is Op.KERNEL]


def test_kernelize_shows_what_runs() -> None:
    x = numbers(64, 64)
    result = (Tensor(x).realize().softmax(-1) @ Tensor(x).realize()).softmax(-1)
    run = [item.ast for item in result.schedule()]

    result.kernelize()

    assert kernels_of(result) == run
    assert [item.ast for item in result.schedule()] == run
    inner = torch.tensor(x).double().softmax(-1) @ torch.tensor(x).double()
    numpy.testing.assert_allclose(result.numpy(), inner.softmax(-1).numpy(), 1e-5, 1e-7)


def test_what_is_computed_from_a_kernelized_value_loads_it() -> None:
    x = numbers(64, 100)
    inner = Tensor(x).realize().softmax(-1)
    inner.kernelize()
    result = (inner * 2).sum(-1).kernelize()

    assert len(kernels_of(inner)) == 1
    assert len(kernels_of(result)) == 2
    numpy.testing.assert_allclose(result.numpy(), numpy.full(64, 2.0), 1e-5)
    numpy.testing.assert_allclose(inner.numpy().sum(-1), numpy.ones(64), 1e-5)


def test_kernelized_writes_keep_their_order() -> None:
    x, y = numbers(64, 32), numbers(64, 32, seed=1)
    target = Tensor(x).realize()
    before = target.softmax(-1)
    before.kernelize()
    target.assign(Tensor(y).realize().softmax(-1))
    target.kernelize()
    after = target.softmax(-1).kernelize()

    soft = [torch.tensor(v).double().softmax(-1) for v in (x, y)]
    numpy.testing.assert_allclose(after.numpy(), soft[1].softmax(-1).numpy(), 1e-5, 1e-7)
    numpy.testing.assert_allclose(target.numpy(), soft[1].numpy(), 1e-5, 1e-7)
    numpy.testing.assert_allclose(before.numpy(), soft[0].numpy(), 1e-5, 1e-7)


def test_kernels_whose_values_nobody_reads_are_left_out() -> None:
    x = Tensor([[5, 4, 9, 9]], dtype="uint8").clone()
    x[0:1, ...] = 6
    x[0:1, ...] *= x.squeeze()
    x[:1] -= x.flatten()  # is 0: what it subtracts from itself is not read

    assert x.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (lambda x: numbers(64, 100, seed=1), Refusal.UNRELATED),
        (lambda x: x.T.contiguous(), Refusal.ROWS),
    ],
)
def test_why_two_kernels_are_not_one_is_told(
    second: Callable[[Tensor], Any], reason: Refusal, capsys: pytest.CaptureFixture[str]
) -> None:
    first = (Tensor(numbers(64, 100)).realize() + 1).contiguous()
    other = second(first)
    other = other if isinstance(other, Tensor) else Tensor(other).realize().exp()
    with Context(TRACE="schedule"):
        count = len(first.schedule(other.sum(0)))
    text = capsys.readouterr().err

    assert count > 1
    assert f": {reason.value}" in text, text


def test_memory_that_is_copied_and_then_written_in_a_strip_is_written_last() -> None:
    start = numpy.arange(8, dtype=numpy.int32).reshape(2, 2, 2)
    copy = Tensor(start).realize().clone()
    view = copy.transpose(2, 1)
    view += 1
    view += 1

    read = (view + 0).realize()

    numpy.testing.assert_array_equal(copy.numpy(), start + 2)
    numpy.testing.assert_array_equal(read.numpy(), (start + 2).transpose(0, 2, 1))
