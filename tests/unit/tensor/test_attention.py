"""Attention against torch: masks, groups of heads, pieces, and what its gradient keeps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.grid import FULL
from tests.unit.tensor.helpers import compare, numbers
from tinycore._lru import Lru
from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.schedule import ScheduleItem, attention, compiled, disk, product_chains
from tinycore.tensor import Tensor
from tinycore.uop.proportional import MOST_KEPT

pytestmark = pytest.mark.sample(6)

F = torch.nn.functional
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def new_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules of these tests are their own: sizes that decide are not part of the key."""
    monkeypatch.setattr(compiled, "schedules", Lru(64))
    monkeypatch.setattr(disk, "schedule_key", lambda *_: None)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, target: str) -> None:
    """A few keys or queries at a time, and weights computed anew for the gradient.

    Elsewhere than on `FULL` with a mask only: pieces are graphs of operations tested there.
    """
    if target != FULL and "groups" not in request.node.name:
        pytest.skip("pieces are the same graphs on every device")
    monkeypatch.setattr(attention, "MOST_KEPT", 0)
    monkeypatch.setattr(attention, "PIECE_BYTES", 1)
    monkeypatch.setattr(attention, "LEAST_PIECE", 3)


def test_attention() -> None:
    inputs = [numbers(2, 2, 5, 4, seed=i) for i in range(3)]

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        *inputs,
    )
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *inputs,
    )


def test_attention_masks_and_groups() -> None:
    mask = numpy.tri(5, 6, dtype=bool)
    q, k, v = numbers(1, 4, 5, 4), numbers(1, 2, 6, 4, seed=1), numbers(1, 2, 6, 3, seed=2)

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask), enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.tensor(mask), enable_gqa=True
        ),
        q,
        k,
        v,
    )
    with pytest.raises(ArgumentError, match="is_causal"):
        Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(mask), is_causal=True)


@pytest.mark.parametrize("p", [-0.5, 1.5])
@pytest.mark.parametrize("is_training", [False, True])
def test_dropout_is_a_probability(p: float, is_training: bool) -> None:
    x = Tensor.zeros(1, 2, 4)

    with Tensor.train(is_training), pytest.raises(ArgumentError, match="a probability, got"):
        x.scaled_dot_product_attention(x, x, dropout_p=p)


@pytest.mark.parametrize("seen", [1, 3, 5, 7])
@pytest.mark.slow
def test_causal_attention_in_blocks(monkeypatch: pytest.MonkeyPatch, seen: int) -> None:
    monkeypatch.setattr(attention, "HIDING_ROWS", 2)
    monkeypatch.setattr(attention, "MOST_GROUPS", 3)

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        numbers(2, 5, 4),
        numbers(2, seen, 4, seed=1),
        numbers(2, seen, 3, seed=2),
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_keys(is_causal: bool) -> None:
    q, k, v = Tensor.ones(2, 3, 4), Tensor.ones(2, 0, 4), Tensor.ones(2, 0, 5)
    out = q.scaled_dot_product_attention(k, v, is_causal=is_causal)

    assert out.tolist() == [[[0.0] * 5] * 3] * 2
    assert out.sum().gradient(q)[0].tolist() == [[[0.0] * 4] * 3] * 2


@pytest.mark.parametrize("kept", [0, MOST_KEPT])
def test_queries_without_numbers(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """All keys suit them alike."""
    monkeypatch.setattr(attention, "MOST_KEPT", kept)
    q, k, v = Tensor.ones(3, 0), Tensor.ones(2, 0), Tensor([[1.0], [3.0]])
    out = q.scaled_dot_product_attention(k, v)

    assert out.tolist() == [[2.0]] * 3
    assert out.sum().gradient(v)[0].tolist() == [[1.5]] * 2
    assert q.scaled_dot_product_attention(k, Tensor.ones(2, 0)).shape == (3, 0)


def test_queries_that_see_nothing() -> None:
    """Rows of a mask without any hit give 0, and no gradient."""
    q, k, v = (Tensor(numbers(1, 3, 4, seed=i)) for i in range(3))
    mask = Tensor([[True, False, True], [False, False, False], [False, True, False]])
    out = q.scaled_dot_product_attention(k, v, mask)
    slopes = out.sum().gradient(q, k, v)

    assert out.numpy()[0, 1].tolist() == [0.0] * 4
    assert slopes[0].numpy()[0, 1].tolist() == [0.0] * 4
    assert all(numpy.isfinite(slope.numpy()).all() for slope in slopes)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("is_function", [False, True])
def test_strips_of_rows_keep_scores(
    monkeypatch: pytest.MonkeyPatch, target: str, is_function: bool, causal: bool
) -> None:
    """On a processor; the gradient computes scores again, also of what is written out."""
    if target != FULL:
        pytest.skip("strips are the same graphs on every device")
    monkeypatch.setattr(product_chains, "MOST_KEPT", 0)
    mask = Tensor.ones(64, 128, dtype=dtypes.bool).tril()

    def by_hand(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.transpose(-2, -1)) * 0.25
        return (mask.where(scores, -math.inf) if causal else scores).softmax(-1) @ v

    compare(
        (lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal))
        if is_function
        else by_hand,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        numbers(2, 64, 16),
        numbers(2, 128, 16, seed=1),
        numbers(2, 128, 16, seed=2),
        dtypes_used=(dtypes.float32,),
    )


# --- in pieces


def test_lengths_are_cut_evenly() -> None:
    assert attention.pieces(2048, 128) == [slice(0, 1024), slice(1024, 2048)]
    assert attention.pieces(1100, 128) == [slice(0, 550), slice(550, 1100)]
    assert attention.pieces(5, 1 << 20) == [slice(0, 5)]
    assert [s.stop - s.start for s in attention.pieces(400, 1 << 20)] == [100] * 4


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(("length", "seen"), [(7, 7), (4, 8), (1, 7), (7, 1)])
@pytest.mark.slow
def test_attention_in_pieces(length: int, seen: int) -> None:
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        numbers(2, length, 4),
        numbers(2, seen, 4, seed=1),
        numbers(2, seen, 5, seed=2),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(("length", "seen", "rows"), [(7, 7, 512), (4, 9, 2), (9, 4, 4)])
def test_causal_attention_in_pieces(
    monkeypatch: pytest.MonkeyPatch, length: int, seen: int, rows: int
) -> None:
    monkeypatch.setattr(attention, "HIDING_ROWS", rows)

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        numbers(2, length, 4),
        numbers(2, seen, 4, seed=1),
        numbers(2, seen, 3, seed=2),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 7), (3, 5, 1)])
def test_masks_that_are_added_have_gradients(shape: tuple[int, ...]) -> None:
    """Also masks that are repeated: along queries, keys, heads."""
    compare(
        lambda q, k, v, mask: q.scaled_dot_product_attention(k, v, mask),
        F.scaled_dot_product_attention,
        numbers(2, 3, 5, 4),
        numbers(2, 3, 7, 4, seed=1),
        numbers(2, 3, 7, 4, seed=2),
        numbers(*shape, seed=3),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("seen", [1, 7])
def test_a_mask_is_made_of_the_product_of_its_scores(seen: int) -> None:
    """Scores are computed anew, but not those that are a mask; one key has totals of one score."""
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, q @ k.transpose(-2, -1)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q @ k.transpose(-2, -1)),
        numbers(2, 5, 4),
        numbers(2, seen, 4, seed=1),
        numbers(2, seen, 3, seed=2),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.slow
def test_masks_and_groups_in_pieces() -> None:
    mask = numpy.tri(5, 8, k=2, dtype=bool) & (numbers(5, 8, seed=4) < 0.5)
    mask[:, 0] = True

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask), enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.tensor(mask), enable_gqa=True
        ),
        numbers(1, 4, 5, 4),
        numbers(1, 2, 8, 4, seed=1),
        numbers(1, 2, 8, 3, seed=2),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
def test_operands_are_repeated_in_pieces() -> None:
    """Axes before the last two are repeated, and gradients summed over them."""
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        numbers(2, 1, 5, 4),
        numbers(3, 7, 4, seed=1),
        numbers(2, 3, 7, 4, seed=2),
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
def test_queries_that_see_nothing_in_pieces() -> None:
    """Rows of a mask without any hit give 0 and no gradient, whatever pieces it is cut into."""
    q, k, v = Tensor(numbers(3, 4)), Tensor(numbers(7, 4, seed=1)), Tensor(numbers(7, 4, seed=2))
    mask = numpy.zeros((3, 7), bool)
    mask[0, 6] = mask[2, 0] = True
    out = q.scaled_dot_product_attention(k, v, Tensor(mask))
    slopes = [slope.numpy() for slope in (out * out).sum().gradient(q, k, v)]

    assert numpy.allclose(out.numpy(), [v.numpy()[6], [0] * 4, v.numpy()[0]])
    assert slopes[0][1].tolist() == [0.0] * 4
    assert all(numpy.isfinite(slope).all() for slope in slopes)


@pytest.mark.usefixtures("in_pieces")
def test_scores_far_apart_in_pieces() -> None:
    """Each piece has a maximum of its own."""
    q, k = numbers(4, 4), numbers(9, 4, seed=1)
    k[3:6] *= 300
    k[6:] *= 0.01

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        q,
        k,
        numbers(9, 4, seed=2),
        gradient=False,
        dtypes_used=(dtypes.float32,),
    )


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_narrow_floats_in_pieces(dtype: Any) -> None:
    """Scores are float32, also those that are computed anew."""
    exact = [numbers(6, 8, seed=seed) for seed in range(3)]
    narrow = [Tensor(x).cast(dtype) for x in exact]
    wide = [torch.tensor(x.float().numpy(), requires_grad=True) for x in narrow]
    out = narrow[0].scaled_dot_product_attention(narrow[1], narrow[2])
    slopes = (out.float() ** 2).sum().gradient(*narrow)
    expected = F.scaled_dot_product_attention(wide[0], wide[1], wide[2])
    (expected**2).sum().backward()  # type: ignore[no-untyped-call]

    assert out.dtype is dtype
    for found, truth in zip((out, *slopes), (expected, *(w.grad for w in wide)), strict=True):
        assert found.dtype is dtype
        assert truth is not None
        assert numpy.abs(found.float().numpy() - truth.detach().numpy()).max() < 0.03


@pytest.mark.usefixtures("in_pieces")
def test_the_second_derivative() -> None:
    x = [numbers(4, 2, seed=seed) for seed in range(3)]
    q, k, v = map(Tensor, x)
    (first,) = q.scaled_dot_product_attention(k, v).square().sum().gradient(q)
    found = first.square().sum().gradient(q, k, v)

    tq, tk, tv = (torch.tensor(a, requires_grad=True) for a in x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.scaled_dot_product_attention(tq[None], tk[None], tv[None]).square().sum()
    (slope,) = torch.autograd.grad(loss, tq, create_graph=True)
    expected = torch.autograd.grad(slope.square().sum(), (tq, tk, tv))

    for a, b in zip(found, expected, strict=True):
        assert numpy.allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("in_pieces")
def test_dropout_in_pieces_keeps_the_mean() -> None:
    """The weights that are left are scaled up; the gradient is that of what was left."""
    with Tensor.train():
        Tensor.manual_seed(5)
        q, k, v = Tensor.zeros(400, 2), Tensor.zeros(7, 2), Tensor.ones(7, 1)
        out = q.scaled_dot_product_attention(k, v, dropout_p=0.5)
        (slope,) = out.sum().gradient(v)
        Tensor.realize(out, slope)

    assert abs(out.mean().item() - 1) < 0.1
    assert math.isclose(slope.sum().item(), out.sum().item(), rel_tol=1e-5)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.slow
def test_no_scores_are_kept(
    monkeypatch: pytest.MonkeyPatch, is_causal: bool, dropout_p: float
) -> None:
    """A few pieces of all scores exist at a time, whether a gradient is wanted or not.

    So it is with dropout outside of training, where it does nothing.
    """
    length, heads, piece = 512, 2, 64
    monkeypatch.setattr(attention, "MOST_KEPT", piece * piece)
    monkeypatch.setattr(attention, "PIECE_BYTES", piece * 4 * 4)
    monkeypatch.setattr(attention, "LEAST_PIECE", piece)
    monkeypatch.setattr(attention, "HIDING_ROWS", piece)
    q, k, v, g = (Tensor.empty(heads, length, 2) for _ in range(4))
    out = q.scaled_dot_product_attention(k, v, dropout_p=dropout_p, is_causal=is_causal)
    slopes = (out * g).sum().gradient(q, k, v)

    assert most_live(out.schedule()) <= 3 * heads * length * piece
    assert most_live(out.schedule(*slopes)) <= 3 * heads * length * piece
    assert most_live(slopes[0].schedule(out, *slopes[1:])) <= 3 * heads * length * piece


def most_live(items: list[ScheduleItem]) -> int:
    """The most elements of intermediate results and others that are in use at a time."""
    uses: dict[Buffer, list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        for buffer in item.bufs:
            uses[buffer].append(number)
    return max(
        sum(buffer.size for buffer, numbers in uses.items() if numbers[0] <= n <= numbers[-1])
        for n in range(len(items))
    )


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [((4,), (4,), (4,)), ((3, 4), (5, 3), (5, 4)), ((3, 4), (5, 4), (6, 4))],
)
def test_shapes_that_do_not_fit(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="scaled_dot_product_attention: queries"):
        Tensor.zeros(*q).scaled_dot_product_attention(Tensor.zeros(*k), Tensor.zeros(*v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.03, None])
def test_scores_are_scaled_as_asked(scale: float | None, causal: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=causal, scale=scale)

    def peer(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale
        )

    compare(attend, peer, numbers(2, 5, 4), numbers(2, 5, 4, seed=1), numbers(2, 5, 4, seed=2))
