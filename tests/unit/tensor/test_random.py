"""The random stream: repeatable, well spread, the same for every dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import Tensor


@pytest.fixture(autouse=True)
def seeded() -> None:
    Tensor.manual_seed(1234)


def test_equal_seeds_give_equal_numbers() -> None:
    first = [Tensor.rand(5).tolist(), Tensor.randn(5).tolist()]
    Tensor.manual_seed(1234)

    assert [Tensor.rand(5).tolist(), Tensor.randn(5).tolist()] == first
    assert Tensor.rand(5).tolist() != first[0]


def test_the_stream_is_fixed() -> None:
    """Changing these numbers changes what every seeded program computes."""
    Tensor.manual_seed(0)

    assert Tensor.randint(8, high=1000).tolist() == FIRST_OF_SEED_0


FIRST_OF_SEED_0 = [471, 228, 319, 24, 62, 257, 203, 514]


def test_numbers_are_drawn_in_the_order_of_the_calls() -> None:
    first, second = Tensor.rand(3), Tensor.rand(3)
    later, sooner = second.tolist(), first.tolist()
    Tensor.manual_seed(1234)

    assert (Tensor.rand(3).tolist(), Tensor.rand(3).tolist()) == (sooner, later)


def test_devices_share_the_stream() -> None:
    x = Tensor.rand(4)
    Tensor.manual_seed(1234)

    assert Tensor.rand(4, device=x.device + ":1").tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_narrow_floats_are_leading_bits_of_the_same_numbers(dtype: Any) -> None:
    wide = Tensor.rand(100).numpy()
    Tensor.manual_seed(1234)
    narrow = Tensor.rand(100, dtype=dtype).numpy()

    assert (narrow <= wide).all()
    assert (wide - narrow).max() <= 2.0 ** -(dtypes.finfo(dtype)[1] + 1)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_rand_stays_below_one(dtype: Any) -> None:
    x = Tensor.rand(5000, dtype=dtype).numpy()

    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.02
    assert abs(x.std() - 12**-0.5) < 0.02


DISTRIBUTIONS: list[tuple[Callable[[], Tensor], float, float]] = [
    (lambda: Tensor.randn(5000), 0, 1),
    (lambda: Tensor.normal(5000, mean=3, std=0.5), 3, 0.5),
    (lambda: Tensor.uniform(5000, low=-2, high=4), 1, 6 / 12**0.5),
    (lambda: Tensor.kaiming_uniform(50, 100, a=0), 0, (2 / 100) ** 0.5),
    (lambda: Tensor.kaiming_normal(50, 100, a=0), 0, (2 / 100) ** 0.5),
    (lambda: Tensor.glorot_uniform(50, 100), 0, (2 / 150) ** 0.5),
    (lambda: Tensor.scaled_uniform(50, 100), 0, (1 / 15000) ** 0.5),
]


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"), DISTRIBUTIONS, ids=range(len(DISTRIBUTIONS))
)
def test_mean_and_deviation(draw: Callable[[], Tensor], mean: float, deviation: float) -> None:
    x = draw().numpy()

    assert abs(x.mean() - mean) < 0.06 * deviation
    assert abs(x.std() / deviation - 1) < 0.05


def test_randint_covers_its_range() -> None:
    x = Tensor.randint(2000, low=-3, high=4)

    assert x.dtype is dtypes.int32
    assert sorted(set(x.tolist())) == list(range(-3, 4))
    assert Tensor.randint(3, low=0, high=1 << 40, dtype=dtypes.int64).numpy().max() > 1 << 32


def test_likes_shapes_and_empty() -> None:
    x = Tensor.zeros(2, 3, dtype=dtypes.float16)

    assert (x.rand_like().shape, x.rand_like().dtype, x.randn_like().dtype) == (
        (2, 3),
        dtypes.float16,
        dtypes.float16,
    )
    assert Tensor.rand(0, 2).shape == Tensor.randint(0, 2).shape == (0, 2)


def test_randperm() -> None:
    assert sorted(Tensor.randperm(50).tolist()) == list(range(50))
    assert Tensor.randperm(50).tolist() != list(range(50))
    assert Tensor.randperm(0).shape == (0,)


def test_multinomial_follows_the_weights() -> None:
    drawn = numpy.array(Tensor([0.1, 0.0, 0.6, 0.3]).multinomial(4000, replacement=True).tolist())

    assert numpy.allclose(
        numpy.bincount(drawn, minlength=4) / 4000, [0.1, 0.0, 0.6, 0.3], atol=0.03
    )


def test_multinomial_without_replacement_draws_each_once() -> None:
    drawn = Tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]).multinomial(3)

    assert [sorted(row) for row in drawn.tolist()] == [[0, 1, 2]] * 2
    with pytest.raises(ArgumentError, match="without replacement"):
        Tensor([1.0, 1.0]).multinomial(3)


def test_dropout_only_in_training() -> None:
    x = Tensor.ones(2000)

    assert x.dropout(0.3) is x
    with Tensor.train():
        kept = x.dropout(0.3).numpy()
        assert set(kept.tolist()) == {0.0, float(numpy.float32(1) / numpy.float32(0.7))}
        assert abs(kept.mean() - 1) < 0.1
        assert x.dropout(1.0).sum().item() == 0
    with pytest.raises(ArgumentError, match="dropout"):
        x.dropout(1.5)


def test_dropout_gradient_follows_the_mask() -> None:
    x = Tensor.ones(100)

    with Tensor.train():
        y = x.dropout(0.5)
    (gradient,) = y.sum().gradient(x)

    assert gradient.tolist() == y.tolist()


def training() -> bool:
    return Tensor.training


def test_training_mode() -> None:
    assert not training()
    with Tensor.train():
        assert training()
        with Tensor.test():
            assert not training()
    Tensor.training = True
    assert training()
    Tensor.training = False
    assert Tensor.train()(training)()


def test_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(DTypeError, match="rand"):
        Tensor.rand(2, dtype=dtypes.int32)
    with pytest.raises(DTypeError, match="randint"):
        Tensor.randint(2, dtype=dtypes.float32)
    with pytest.raises(ArgumentError, match="randint"):
        Tensor.randint(2, low=3, high=3)
    with pytest.raises(ShapeError, match="kaiming_uniform"):
        Tensor.kaiming_uniform()
