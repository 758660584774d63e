"""Folds of a product: its kernel also folds the columns that each thread has in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy
import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.product_folds import FoldRefusal, tiles_of_row
from tinycore.uop.op import Op

CARD = replace(
    LIMITS,
    matrix=(),
    threads=256,
    vector_bytes=16,
    block_wanted=64,
    subgroup=64,
    units=2,
    unit_lanes=128,
    shared_rate=29.0,
    texture_rate=55.0,
    l2_rate=28.0,
)
Array = numpy.ndarray


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    """A card under the name CARD, whose texture units read one side of a product."""
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(CARD), limits=CARD)
    with accelerator(parts), Context(VERIFY=1):
        yield


def normal(*shape: int) -> Array:
    return numpy.random.default_rng(sum(shape)).standard_normal(shape).astype(numpy.float32)


def on_card(x: Array, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor(x, device="CARD").cast(dtype).realize()


def attended(q: Array, k: Array, v: Array, seen: Array | bool = True) -> Array:
    """Attention in float64; 0 where all is hidden."""
    q, k, v = (x.astype("d") for x in (q, k, v))
    scores = numpy.where(seen, q @ k.swapaxes(-2, -1) / q.shape[-1] ** 0.5, -numpy.inf)
    top = scores.max(-1, keepdims=True)
    weights = numpy.exp(scores - numpy.where(numpy.isfinite(top), top, 0))
    result: Array = weights / numpy.maximum(weights.sum(-1, keepdims=True), 1e-300) @ v
    return result


def items_of(result: Tensor) -> list[ScheduleItem]:
    """The kernels that compute a result."""
    return [item for item in result.schedule() if item.ast.op is not Op.COPY]


def hidden(rows: int, columns: int) -> Array:
    """A mask that hides all of a row, and all that a thread has of another."""
    seen = numpy.random.default_rng(rows).random((rows, columns)) < 0.6
    seen[3] = False
    seen[5, [t + 32 * n for n in range(columns // 32) for t in range(4)]] = False
    return seen


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (260, 256)], ids=str)
def test_attention_is_right(rows: int, columns: int, masking: str, dtype: DType) -> None:
    q, k, v = normal(4, rows, 8), normal(4, columns, 8), normal(4, columns, 16)
    masks = {"causal": numpy.tri(rows, columns, dtype=bool), "none": numpy.array(True)}
    seen: Array = masks.get(masking, hidden(rows, columns))
    mask = None
    if masking == "bool":
        mask = Tensor(seen, device="CARD")
    elif masking == "added":
        mask = on_card(numpy.where(seen, 0, -numpy.inf).astype("f"), dtype)
    query, key, value = (on_card(x, dtype) for x in (q, k, v))
    found = query.scaled_dot_product_attention(key, value, mask, is_causal=masking == "causal")
    scores = [i for i in items_of(found) if any(b.size == 4 * rows * columns for b in i.bufs)]
    q, k, v = (x.numpy().astype("d") for x in (query, key, value))
    expected = attended(q, k, v, seen)

    assert len(scores) == 2  # they are stored with their folds, and read as weights
    tolerance = 2e-3 if dtype is dtypes.float16 else 2e-6
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_heads_that_share_keys_are_folded() -> None:
    q, k, v = normal(1, 4, 128, 16), normal(1, 2, 128, 16), normal(1, 2, 128, 16)
    found = on_card(q).scaled_dot_product_attention(on_card(k), on_card(v), enable_gqa=True)

    assert sum(any(b.size == 4 * 128 * 128 for b in i.bufs) for i in items_of(found)) == 2
    expected = attended(q, k.repeat(2, 1), v.repeat(2, 1))
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=2e-6, atol=2e-6)


def test_a_score_that_is_no_number_is_seen_in_its_row_alone() -> None:
    q, k, v = normal(4, 128, 8), normal(4, 128, 8), normal(4, 128, 16)
    q[1, 7, 3] = numpy.nan
    found = on_card(q).scaled_dot_product_attention(on_card(k), on_card(v)).numpy()

    assert numpy.argwhere(numpy.isnan(found[..., 0])).tolist() == [[1, 7]]


def test_gradients_of_attention_are_right() -> None:
    given = [normal(4, 128, 8) + n for n in range(3)]

    def slopes(device: str) -> list[Array]:
        leaves = [Tensor(x, device=device, requires_grad=True) for x in given]
        query, key, value = leaves
        result = query.scaled_dot_product_attention(key, value)
        (result * result).sum().backward()
        return [x.grad.numpy() for x in leaves if x.grad is not None]

    for found, expected in zip(slopes("CARD"), slopes("PYTHON"), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def parted(x: Tensor, y: Tensor) -> Tensor:
    """A product, with columns as tiles, vectors of a thread, threads and lanes."""
    return (x @ y).contiguous().reshape(256, 2, 4, 8, 4)


FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "maxima": lambda x: x.max((2, 4)),
    "totals": lambda x: x.sum((2, 4)),
    "totals of squares": lambda x: (x * x).sum((2, 4)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_of_what_threads_have_is_part_of_a_product(name: str) -> None:
    a, b = (numpy.rint(normal(*s) * 3) for s in ((256, 16), (16, 256)))
    scores = parted(on_card(a), on_card(b))
    found = FOLDS[name](scores)
    expected = FOLDS[name](parted(Tensor(a, device="PYTHON"), Tensor(b, device="PYTHON")))

    assert len(items_of(found)) == 1
    assert (found.numpy() == expected.numpy()).all()


@pytest.mark.parametrize(
    "fold",
    [
        pytest.param(lambda x: x.max((3, 4)), id="columns of several threads"),
        pytest.param(lambda x: x.max((1, 2, 4)), id="columns of several tiles"),
        pytest.param(lambda x: x.max(4), id="columns that lie side by side"),
        pytest.param(lambda x: x.max((0, 2, 4)), id="rows"),
        pytest.param(lambda x: x.shrink(((0, 255), *[None] * 4)).max((2, 4)), id="some rows"),
    ],
)
def test_a_fold_of_others_is_not(fold: Callable[[Tensor], Tensor]) -> None:
    a, b = (numpy.rint(normal(*s) * 3) for s in ((256, 16), (16, 256)))
    found = fold(parted(on_card(a), on_card(b)))
    expected = fold(parted(Tensor(a, device="PYTHON"), Tensor(b, device="PYTHON")))

    assert len(items_of(found)) > 1
    assert (found.numpy() == expected.numpy()).all()


def test_a_product_whose_columns_lie_apart_is_folded_by_itself() -> None:
    """Texture units read no pixels along its columns; nothing else has such tiles."""
    a, b = (numpy.rint(normal(256, 16) * 3) for _ in range(2))
    found = parted(on_card(a), on_card(b).contiguous().T).max((2, 4))
    expected = parted(Tensor(a, device="PYTHON"), Tensor(b, device="PYTHON").T).max((2, 4))

    assert (found.numpy() == expected.numpy()).all()


@pytest.mark.parametrize(
    ("device", "dtype", "sizes", "expected"),
    [
        pytest.param("CARD", dtypes.float16, (1, 256, 256), (2, 4, 8, 4), id="tiles"),
        pytest.param("CARD", dtypes.bfloat16, (1, 256, 256), None, id="no texel of the type"),
        pytest.param("CARD", dtypes.float32, (1, 128, 128), None, id="too few for the units"),
        pytest.param("CARD", dtypes.float32, (16, 128, 256), None, id="more columns than rows"),
        pytest.param("CARD", dtypes.float32, (16, 256, 100), None, id="columns left over"),
        pytest.param("PYTHON", dtypes.float32, (16, 256, 256), None, id="no textures"),
    ],
)
def test_tiles_are_of_devices_with_textures_and_fill_their_units(
    device: str, dtype: DType, sizes: tuple[int, int, int], expected: tuple[int, ...] | None
) -> None:
    assert tiles_of_row(device, dtype, *sizes) == expected


def test_it_is_told_why_a_kernel_is_not_joined(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = on_card(normal(256, 16)), on_card(normal(16, 256))
    with Context(DEBUG=3):
        parted(a, b).max((3, 4)).schedule()

    assert FoldRefusal.LOOPS.value in capsys.readouterr().err
