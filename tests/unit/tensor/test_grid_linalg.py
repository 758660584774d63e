"""Products, einsum and attention over empty, single, odd and large shapes, with torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, integers, numbers
from tinycore import GlobalCounters
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import Tensor

F = torch.nn.functional
FLOAT = [dtypes.float32]
HALVES = [dtypes.float16, dtypes.bfloat16]

# --- matrix products

PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (1,)),
    ((0,), (0,)),
    ((3,), (2, 3, 5)),
    ((1, 1), (1, 7)),
    ((5, 1), (1, 3)),
    ((2, 0), (0, 3)),
    ((0, 4), (4, 3)),
    ((4, 2, 0), (0, 2)),
    ((1, 2, 3), (4, 3, 2)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((0, 2, 3), (3, 4)),
    ((7, 13), (13, 5)),
]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(lambda x, y: x @ y, None, numbers(*a), numbers(*b, seed=1), dtypes_used=FLOAT)


def test_spellings_of_a_product() -> None:
    x, y = Tensor(numbers(2, 3)), Tensor(numbers(3, 2, seed=1))
    expected = (x @ y).tolist()

    assert x.dot(y).tolist() == x.matmul(y).tolist() == expected
    assert y.matmul(x, reverse=True).tolist() == expected


def test_a_large_product(target: str) -> None:
    size = 20 if target == "PYTHON" else 257

    compare(
        lambda x, y: x @ y,
        None,
        numbers(size, size + 2),
        numbers(size + 2, size - 1, seed=1),
        dtypes_used=FLOAT,
        scale=30,
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_halves(dtype: Any) -> None:
    compare(lambda x, y: x @ y, None, numbers(3, 33), numbers(33, 4), dtypes_used=[dtype], scale=4)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "int64"])
def test_products_of_integers_wrap(kind: str) -> None:
    x, y = integers(3, 40, low=-128, high=127), integers(40, 2, low=-128, high=127, seed=1)
    x, y = x.astype(kind), y.astype(kind)

    ours = Tensor(x) @ Tensor(y)

    assert ours.numpy().dtype == x.dtype
    assert (ours.numpy() == x @ y).all()


def test_products_of_bools_are_any_of_all() -> None:
    x, y = numpy.eye(3, dtype=bool), numpy.array([[True], [False], [True]])

    assert (Tensor(x) @ Tensor(y)).tolist() == (x @ y).tolist()
    assert (Tensor(x[:, :0]) @ Tensor(y[:0])).tolist() == [[False]] * 3


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        (dtypes.int8, dtypes.uint8, dtypes.int16),
        (dtypes.int32, dtypes.float16, dtypes.float16),
        (dtypes.bool, dtypes.int8, dtypes.int8),
        (dtypes.float16, dtypes.bfloat16, dtypes.float32),
        (dtypes.float32, dtypes.float64, dtypes.float64),
    ],
    ids=str,
)
def test_operands_are_promoted(left: Any, right: Any, found: Any) -> None:
    product = Tensor([[1, 0], [1, 1]], dtype=left) @ Tensor([[1], [1]], dtype=right)

    assert product.dtype is found
    assert product.tolist() == [[1], [2]]


def test_the_dtype_sums_are_kept_in() -> None:
    x = Tensor([[100, 100, 100]], dtype=dtypes.int8)

    wide = x.dot(x.T, dtype=dtypes.int32)

    assert (wide.dtype, wide.item()) == (dtypes.int32, 30_000)
    assert x.matmul(x.T, dtype=dtypes.float32).item() == 30_000.0
    assert Tensor.einsum("ij,kj->ik", x, x, dtype=dtypes.int64).item() == 30_000
    assert x.linear(x.T, dtype=dtypes.float16).dtype is dtypes.float16


# --- einsum

FORMULAS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij, jk -> ki", [(3, 4), (4, 5)]),
    ("ji", [(3, 4)]),
    ("", [()]),
    (",ij->ji", [(), (2, 3)]),
    ("i,j", [(3,), (4,)]),
    ("ij,kl->", [(2, 3), (4, 5)]),
    ("ij,kl->jk", [(2, 3), (4, 5)]),
    ("ijj->ji", [(2, 3, 3)]),
    ("iii", [(3, 3, 3)]),
    ("iij,jkk->ik", [(2, 2, 3), (3, 4, 4)]),
    ("Aj,jB", [(3, 4), (4, 5)]),
    ("...", [(2, 3)]),
    ("...->", [(2, 3)]),
    ("i...->...i", [(2, 3, 4)]),
    ("...i,...i", [(2, 3), (3,)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
    ("ij,jk,k->i", [(2, 3), (3, 4), (4,)]),
    ("ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 3), (3, 5)]),
    ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]),
    ("ij,ij->ij", [(3, 4), (1, 4)]),
    ("ij,jk->ik", [(0, 3), (3, 2)]),
    ("ij,jk->ik", [(2, 0), (0, 3)]),
    ("bhqd,bhkd,bhke->bhqe", [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)]),
]


@pytest.mark.parametrize(("formula", "shapes"), FORMULAS, ids=str)
def test_einsum(formula: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]

    compare(
        lambda *x: Tensor.einsum(formula, *x),
        lambda *x: torch.einsum(formula, *x),
        *inputs,
        dtypes_used=FLOAT,
        scale=4,
    )


def test_einsum_takes_a_list_and_other_dtypes() -> None:
    x, y = integers(2, 3), integers(3, 2, seed=1)

    assert (Tensor.einsum("ij,jk", [Tensor(x), Tensor(y)]).numpy() == x @ y).all()
    flags = Tensor.einsum("ij,jk->ik", Tensor(x > 0), Tensor(y > 0))
    assert flags.tolist() == ((x > 0) @ (y > 0)).tolist()
    compare(
        lambda a, b: Tensor.einsum("ij,jk,j->ik", a, b, a.sum(0)),
        lambda a, b: torch.einsum("ij,jk,j->ik", a, b, a.sum(0)),
        numbers(2, 9),
        numbers(9, 2, seed=1),
        dtypes_used=HALVES,
        scale=8,
    )


def test_a_chain_is_contracted_pair_by_pair(target: str) -> None:
    """24**3 multiplications and additions for each of two products, not 24**4 for the chain."""
    size = 24 if target != "PYTHON" else 8
    x = [Tensor(numbers(size, size, seed=i)).realize() for i in range(3)]

    GlobalCounters.reset()
    Tensor.einsum("ij,jk,kl->il", *x).realize()

    assert GlobalCounters.global_ops < 8 * size**3


@pytest.mark.parametrize(
    ("formula", "count", "error"),
    [
        ("ij,jk->ik", 1, ArgumentError),
        ("ij->", 2, ArgumentError),
        ("ij,jk->ik->i", 2, ArgumentError),
        ("ij->ii", 1, ArgumentError),
        ("ij->k", 1, ArgumentError),
        ("i.j->ij", 1, ArgumentError),
        ("i..j->ij", 1, ArgumentError),
        ("...i...", 1, ArgumentError),
        ("i-j->ij", 1, ArgumentError),
        ("i1->i", 1, ArgumentError),
        ("ijk->i", 1, ShapeError),
        ("i->i", 1, ShapeError),
        ("ii->i", 1, ShapeError),
        ("ij,ji->", 2, ShapeError),
    ],
)
def test_formulas_that_do_not_fit(formula: str, count: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="einsum"):
        Tensor.einsum(formula, *[Tensor.zeros(2, 3)] * count)


# --- attention

ATTENTION: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "one": ([(1, 1, 1, 1)] * 3, {}),
    "flat": ([(5, 3), (7, 3), (7, 2)], {}),
    "no_batch": ([(0, 2, 5, 3), (0, 2, 7, 3), (0, 2, 7, 2)], {}),
    "no_query": ([(1, 2, 0, 3), (1, 2, 7, 3), (1, 2, 7, 2)], {}),
    "causal_wide": ([(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 2)], {"is_causal": True}),
    "causal_tall": ([(1, 2, 5, 4), (1, 2, 3, 4), (1, 2, 3, 2)], {"is_causal": True}),
    "shared_heads": ([(1, 6, 5, 3), (1, 2, 7, 3), (1, 2, 7, 2)], {"enable_gqa": True}),
    "shared_causal": (
        [(2, 4, 3, 3), (2, 1, 3, 3), (2, 1, 3, 3)],
        {"enable_gqa": True, "is_causal": True},
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.sample(4)
def test_attention(name: str) -> None:
    shapes, options = ATTENTION[name]

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, **options),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        *[numbers(*shape, seed=i) for i, shape in enumerate(shapes)],
        dtypes_used=FLOAT,
        scale=4,
    )


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_of_a_query_that_sees_nothing(kind: str) -> None:
    """It gets zeros, and so do all gradients that pass through it."""
    mask = numpy.random.default_rng(0).random((2, 1, 5, 6)) < 0.5
    mask[0, 0, 2], mask[1, 0, 0] = False, False
    given = mask if kind == "bool" else numpy.where(mask, 0.3, -numpy.inf)

    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(given).cast(kind_of(kind, q))),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(given)),
        numbers(2, 2, 5, 4),
        numbers(2, 2, 6, 4, seed=1),
        numbers(2, 2, 6, 3, seed=2),
        dtypes_used=FLOAT,
        scale=4,
    )


def kind_of(kind: str, like: Tensor) -> Any:
    return dtypes.bool if kind == "bool" else like.dtype


def test_attention_of_halves() -> None:
    compare(
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        *[numbers(1, 2, 5, 8, seed=i) for i in range(3)],
        dtypes_used=[dtypes.float16],
        scale=3,
    )


def test_attention_drops_weights_in_training_only() -> None:
    x = Tensor(numbers(1, 1, 4, 3))
    plain = x.scaled_dot_product_attention(x, x).tolist()

    assert x.scaled_dot_product_attention(x, x, dropout_p=0.5).tolist() == plain
    with Tensor.train():
        assert x.scaled_dot_product_attention(x, x, dropout_p=0.5).tolist() != plain
        assert x.scaled_dot_product_attention(x, x, dropout_p=1.0).abs().sum().item() == 0


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 2, 5, 4), (1, 2, 6, 3), (1, 2, 6, 3)],
        [(1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 5, 3)],
        [(1, 2, 5, 4), (1, 3, 6, 4), (1, 3, 6, 3)],
    ],
    ids=str,
)
def test_attention_of_shapes_that_do_not_fit(shapes: list[tuple[int, ...]]) -> None:
    q, k, v = (Tensor.zeros(*shape) for shape in shapes)

    with pytest.raises(ShapeError):
        q.scaled_dot_product_attention(k, v)


# --- linear and sequential


def test_linear_with_one_axis_and_without_bias() -> None:
    x, w, b = numbers(2, 3), numbers(3, seed=1), numbers(3, seed=2)

    compare(lambda x, w, b: x.linear(w, b), lambda x, w, b: x * w + b, x, w, b, dtypes_used=FLOAT)
    compare(
        lambda x, w: x.linear(w), lambda x, w: x @ w, x, numbers(3, 4, seed=1), dtypes_used=FLOAT
    )
    with pytest.raises(ShapeError, match="dot"):
        Tensor(x).linear(Tensor.zeros(4, 3))


def test_sequential_of_nothing() -> None:
    x = Tensor([1.0])

    assert x.sequential([]) is x
