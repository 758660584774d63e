"""Row inlining: kernels of a device with a grid that take in the folds of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy
import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, TinyJit, dtypes
from tinycore.engine.counters import GlobalCounters
from tinycore.render.base import Limits
from tinycore.schedule.candidates import Refusal
from tinycore.schedule.device_memory import buffer_of
from tinycore.uop.movement import base_of
from tinycore.uop.op import Op

CARD = replace(LIMITS, threads=1 << 10, block_wanted=64, vector_bytes=16)
Array = numpy.ndarray


def numbers(*shape: int) -> Array:
    return numpy.random.default_rng(sum(shape)).standard_normal(shape).astype(numpy.float32)


@pytest.fixture(params=["lanes", "shared memory", "scalars"])
def card(request: pytest.FixtureRequest) -> Iterator[Limits]:
    """A card under the name CARD, whose threads fold by shuffles or by shared memory."""
    changes = {"lanes": {}, "shared memory": {"shuffles": ()}, "scalars": {"vector_bytes": 0}}
    limits = replace(CARD, **changes[request.param])  # type: ignore[arg-type]
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        yield limits


def launches(result: Tensor) -> int:
    """The kernels that compute a result."""
    return sum(item.ast.op is not Op.COPY for item in result.schedule())


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layernorm": lambda x: x.layernorm(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "scaled": lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shape", [(40, 300), (9, 2, 64), (1, 1000), (5, 33), (3, 4096)], ids=str)
def test_what_folds_rows_is_one_kernel(card: Limits, name: str, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    result = ROWS[name](Tensor(x, device="CARD").realize())

    assert launches(result) == 1
    expected = ROWS[name](Tensor(x, device="PYTHON")).numpy()
    numpy.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_folds_that_others_read_are_stored_too(card: Limits) -> None:
    def folds(x: Tensor) -> tuple[Tensor, ...]:
        top = x.max(1, keepdim=True)
        powers = (x - top).exp()
        total = powers.sum(1, keepdim=True)
        return top, total, powers / total

    x = numbers(33, 72)
    given = Tensor(x, device="CARD").realize()
    before = GlobalCounters.kernel_count
    found = folds(given)
    Tensor.realize(*found)

    assert GlobalCounters.kernel_count - before == 1
    for one, other in zip(found, folds(Tensor(x, device="PYTHON")), strict=True):
        numpy.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)


def test_narrow_rows_are_rounded_as_in_memory(card: Limits) -> None:
    x = numbers(7, 256)
    found = Tensor(x, device="CARD").cast(dtypes.bfloat16).realize().layernorm()
    expected = Tensor(x, device="PYTHON").cast(dtypes.bfloat16).layernorm()

    numpy.testing.assert_allclose(
        found.cast(dtypes.float32).numpy(), expected.cast(dtypes.float32).numpy(), rtol=0.02
    )


def test_a_mask_of_the_row_reads_no_other(card: Limits) -> None:
    def masked(x: Tensor) -> Tensor:
        place = Tensor.arange(48, device=x.device)
        return (place <= place.reshape(48, 1)).where(x, -1e9).softmax(-1)

    x = numbers(2, 48, 48)
    found = masked(Tensor(x, device="CARD").realize())

    assert launches(found) == 1
    expected = masked(Tensor(x, device="PYTHON")).numpy()
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_squares_that_a_matrix_unit_could_sum_are_folds_of_rows() -> None:
    x = Tensor.empty(4, 512, 512, device="NULL")

    assert launches(x / x.square().mean(-1, keepdim=True).sqrt()) == 1


# --- which ones stay apart


def test_columns_are_folded_apart(card: Limits) -> None:
    x = numbers(64, 48)
    found = Tensor(x, device="CARD").realize().softmax(0)

    assert launches(found) == 3
    expected = Tensor(x, device="PYTHON").softmax(0).numpy()
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_a_product_is_no_fold_of_rows(card: Limits) -> None:
    x, y = (Tensor(numbers(64, 64), device="CARD").realize() for _ in "xy")
    product = x @ y

    assert launches((product - product.max(1, keepdim=True)).exp()) > 1


def test_what_reads_folds_of_other_rows_stays_apart(card: Limits) -> None:
    x = Tensor(numbers(32, 32), device="CARD").realize()

    assert launches(x / x.sum(1).reshape(1, 32)) == 2


def test_a_few_long_rows_are_spread_over_the_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = replace(CARD, units=100, l2_rate=16.0, threads=1 << 18)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts):
        few, many = (Tensor.empty(*shape, device="CARD") for shape in ((2, 30_000), (2000, 8000)))
        with Context(DEBUG=3):
            apart, one = (launches(x / x.abs().max(1, keepdim=True)) for x in (few, many))
    told = capsys.readouterr().err

    assert apart > one == 1
    assert Refusal.COST.value in told
    assert "one kernel: reduce_2000_8000" in told


def test_groups_that_share_no_sums_have_kernels_for_each_fold() -> None:
    limits = replace(CARD, shared_is_near=False, vector_bytes=0)
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts):
        assert launches(Tensor.empty(40, 301, device="CARD").softmax(-1)) == 3


def test_a_sum_that_no_argument_changes_is_left_out_of_replays(card: Limits) -> None:
    weight = Tensor(numbers(40, 300), device="CARD").realize()

    def step(x: Tensor) -> Tensor:
        return x / weight.square().sum(-1, keepdim=True).sqrt()

    plain, pruned = TinyJit(step), TinyJit(step, prune=True)
    given = [Tensor(numbers(40, 300) + i, device="CARD").realize() for i in range(4)]
    results = [(plain(x).numpy(), pruned(x).numpy()) for x in given]

    for x, (one, other) in zip(given, results, strict=True):
        numpy.testing.assert_allclose(one, step(x).numpy(), rtol=1e-5, atol=1e-6)
        numpy.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    memory = buffer_of(base_of(weight.uop))
    assert plain.captured is not None
    assert pruned.captured is not None
    assert any(memory in item.bufs for item in plain.captured.items)
    assert not any(memory in item.bufs for item in pruned.captured.items)


def test_sums_of_arguments_are_joined_without_those_of_weights(card: Limits) -> None:
    weight = Tensor(numbers(40, 300), device="CARD").realize()

    def step(x: Tensor) -> Tensor:
        return x.softmax(-1) * weight.softmax(-1) + x.sum(-1, keepdim=True)

    pruned = TinyJit(step, prune=True)
    for i in range(4):
        x = Tensor(numbers(40, 300) * (i + 1) / 4, device="CARD").realize()
        numpy.testing.assert_allclose(pruned(x).numpy(), step(x).numpy(), rtol=1e-5, atol=1e-6)

    assert pruned.captured is not None
    (item,) = pruned.captured.items
    folds = [n for n in item.runner.ast.toposort() if n.op is Op.REDUCE]  # type: ignore[attr-defined]
    assert len(folds) == 3  # two of the softmax of x, and its sum


def test_a_fold_beside_zeros_is_computed_at_one_point(card: Limits) -> None:
    """The one element of an axis that is padded has no other index than 0."""

    def beside(x: Tensor) -> Tensor:
        return x.logsumexp(-1, keepdim=True).pad(((0, 0), (1, 2)))

    x = numbers(40, 64)
    result = beside(Tensor(x, device="CARD").realize())

    assert launches(result) == 1
    numpy.testing.assert_allclose(result.numpy(), beside(Tensor(x, device="PYTHON")).numpy(), 1e-6)
