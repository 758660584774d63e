"""The random stream: repeatable, well spread, the same for every dtype."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import Array
from tinycore import TinyJit, Variable
from tinycore.dtype import DType, dtypes
from tinycore.errors import ArgumentError, DTypeError, SettingError, ShapeError
from tinycore.nn.state import safe_load, safe_save
from tinycore.tensor import Tensor, graph
from tinycore.tensor.methods import random, stream
from tinycore.uop.evaluate import threefry
from tinycore.uop.node import UOp


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


def test_the_seed_is_zero_where_none_is_given() -> None:
    Tensor.manual_seed()

    assert Tensor.randint(8, high=1000).tolist() == FIRST_OF_SEED_0


FIRST_OF_SEED_0 = [471, 228, 319, 24, 62, 257, 203, 514]


ONES = (1 << 64) - 1
KNOWN_ANSWERS = [
    (0, 0, 0x99BA4EFE_6B200159),
    (ONES, ONES, 0xBB002BE7_1CB996FC),
    (0x85A308D3_243F6A88, 0x03707344_13198A2E, 0x483DF7A0_C4923A9C),
]
"""(counter, key, result) of threefry2x32 with 20 rounds, from kat_vectors of Random123."""


def test_threefry_gives_the_published_answers() -> None:
    counters, keys, answers = (
        Tensor(numpy.array(column, numpy.uint64)) for column in zip(*KNOWN_ANSWERS, strict=True)
    )

    assert counters.threefry(keys).tolist() == answers.tolist()
    assert counters[:1].threefry(keys).shape == (3,)


def test_random_bits_counts_from_the_counter() -> None:
    key, counter = (Tensor(words, dtype=dtypes.uint32) for words in ([7, 9], [0xFFFFFFFF, 0]))
    words = [threefry(0xFFFFFFFF + i, 7 | 9 << 32) for i in range(3)]
    halves = [part for word in words for part in (word & 0xFFFFFFFF, word >> 32)]

    assert Tensor.random_bits(key, counter, 5).tolist() == halves[:5]
    assert Tensor.random_bits(key, counter, 0).shape == (0,)


def stream_of(seed: int, count: int) -> list[int]:
    """The first words of a seed, as this process computes them without kernels."""
    private = stream.Stream()
    private.seed(seed)
    return [threefry(counter, private.key) for counter in range(count)]


SPANS = [(5, 32), (1 << 16, 32), (1 << 32, 32), (3 << 30, 64), ((1 << 32) - 1, 64)]


@pytest.mark.parametrize(("span", "width"), SPANS, ids=str)
def test_randint_multiplies_a_fraction_by_the_span(span: int, width: int) -> None:
    drawn = Tensor.randint(6, low=-3, high=span - 3, dtype=dtypes.int64).tolist()
    words = stream_of(1234, 6)
    halves = [part for word in words for part in (word & 0xFFFFFFFF, word >> 32)]

    source = words if width == 64 else halves[:6]
    assert drawn == [(word * span >> width) - 3 for word in source]


@pytest.mark.parametrize("span", [(1 << 63) + 12345, 3 << 40, (1 << 64) - 1], ids=hex)
def test_randint_of_a_wide_span_uses_two_words_for_each_number(span: int) -> None:
    drawn = Tensor.randint(5, low=0, high=span, dtype=dtypes.uint64).tolist()
    words = stream_of(1234, 10)

    pairs = zip(words[:5], words[5:], strict=True)
    assert drawn == [(high << 64 | low) * span >> 128 for high, low in pairs]


INTEGERS = [dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64]
INTEGERS += [dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_randint_of_every_number_of_a_dtype(dtype: DType) -> None:
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype)) + 1
    x = Tensor.randint(200, low=low, high=high, dtype=dtype)
    share = (x.numpy().astype(numpy.float64) - low) / (high - low)

    assert x.dtype is dtype
    assert 0 <= share.min() < 0.05
    assert 0.95 < share.max() <= 1
    assert distance(share, lambda a: a) < ACCEPTED


def test_numbers_are_drawn_in_the_order_of_the_calls() -> None:
    first, second = Tensor.rand(3), Tensor.rand(3)
    later, sooner = second.tolist(), first.tolist()
    Tensor.manual_seed(1234)

    assert (Tensor.rand(3).tolist(), Tensor.rand(3).tolist()) == (sooner, later)


def test_devices_share_the_stream() -> None:
    x = Tensor.rand(4)
    Tensor.manual_seed(1234)

    assert Tensor.rand(4, device=f"{x.device}:1").tolist() == x.tolist()


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


FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]


def all_ones(count: int, device: str) -> UOp:
    """The greatest draw, every time."""
    return graph.full((count,), dtypes.uint64, ONES, device)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_greatest_draw_stays_inside(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "random_words", all_ones)

    assert Tensor.rand(3, dtype=dtype).double().numpy().max() < 1
    assert Tensor.uniform(3, low=5, high=5.5, dtype=dtype).double().numpy().max() < 5.5
    assert numpy.isfinite(Tensor.randn(3, dtype=dtype).double().numpy()).all()
    assert Tensor([0.0, 3.0, 3.0, 0.0]).multinomial(2, replacement=True).tolist() == [2, 2]


ACCEPTED = 1.95
"""Distance that one sample in a thousand exceeds (Kolmogorov 1933)."""


def distance(sample: Array, cumulative: Callable[[float], float]) -> float:
    """The greatest difference of the empirical distribution, times the root of the size."""
    count = sample.size
    expected = numpy.array([cumulative(float(a)) for a in numpy.sort(sample.reshape(-1))])
    steps = numpy.arange(count + 1) / count
    apart = max(abs(expected - steps[1:]).max(), abs(expected - steps[:-1]).max())
    return float(apart * math.sqrt(count))


def normal(a: float) -> float:
    """The cumulative normal distribution."""
    return (1 + math.erf(a / math.sqrt(2))) / 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_distributions(dtype: DType) -> None:
    assert distance(Tensor.rand(3000, dtype=dtype).numpy(), lambda a: a) < ACCEPTED
    assert distance(Tensor.randn(3000, dtype=dtype).numpy(), normal) < ACCEPTED
    uniform = Tensor.uniform(3000, low=-1, high=3, dtype=dtype).numpy()
    assert distance(uniform, lambda a: (a + 1) / 4) < ACCEPTED


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
    for draw in (Tensor.rand, Tensor.randn, Tensor.randint, Tensor.uniform, Tensor.normal):
        assert draw(0, 2).shape == (0, 2)
    for draw in (Tensor.glorot_uniform, Tensor.kaiming_uniform, Tensor.kaiming_normal):
        assert (draw(0, 0).shape, draw(3, 0).shape) == ((0, 0), (3, 0))
    assert Tensor.scaled_uniform(0).shape == (0,)


def test_randperm() -> None:
    assert sorted(Tensor.randperm(50).tolist()) == list(range(50))
    assert Tensor.randperm(50).tolist() != list(range(50))
    assert Tensor.randperm(0).shape == (0,)
    assert (Tensor.randperm(0).dtype, Tensor.randperm(1).tolist()) == (dtypes.int32, [0])


def test_long_permutations_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "LONGEST_RANKED", 4)
    words = stream_of(1234, 9)

    assert Tensor.randperm(9).tolist() == sorted(range(9), key=words.__getitem__)


def test_all_permutations_are_as_likely() -> None:
    drawn = numpy.array([Tensor.randperm(3).tolist() for _ in range(30)])
    counts = numpy.unique(drawn, axis=0, return_counts=True)[1]

    assert len(counts) == 6
    assert ((counts - 5) ** 2 / 5).sum() < 20.5  # chi-square, 5 degrees of freedom, 1 in 1000


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


def test_multinomial_without_replacement_draws_weight_zero_last() -> None:
    drawn = Tensor([[0.0, 0.2, 0.0, 0.7], [1e-30, 0.0, 0.0, 1e30]]).multinomial(4)

    assert [sorted(row[:2]) for row in drawn.tolist()] == [[1, 3], [0, 3]]
    assert [sorted(row) for row in drawn.tolist()] == [[0, 1, 2, 3]] * 2


def test_multinomial_without_replacement_follows_the_weights() -> None:
    """The first is drawn by weight, the second by the weights that are left."""
    weights = numpy.array([0.5, 0.3, 0.2])
    drawn = Tensor(numpy.tile(weights, (3000, 1))).multinomial(2).numpy()
    left = [weights[i] * weights[j] / (1 - weights[i]) for i, j in ((0, 1), (1, 2), (2, 0))]
    seen = [((drawn == pair).all(1)).mean() for pair in ((0, 1), (1, 2), (2, 0))]

    assert numpy.allclose(seen, left, atol=0.03)


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
    for wrong in ("x", 2, None):
        with pytest.raises(SettingError, match=f"TRAINING={wrong!r} is not understood"):
            Tensor.training = wrong  # type: ignore[assignment]
        assert not training()


def test_mistakes_are_told_at_the_call() -> None:
    with pytest.raises(DTypeError, match="rand"):
        Tensor.rand(2, dtype=dtypes.int32)
    with pytest.raises(DTypeError, match="randint"):
        Tensor.randint(2, dtype=dtypes.float32)
    with pytest.raises(ArgumentError, match="randint"):
        Tensor.randint(2, low=3, high=3)
    with pytest.raises(ShapeError, match="kaiming_uniform"):
        Tensor.kaiming_uniform()
    with pytest.raises(ArgumentError, match="randint"):
        Tensor.randint(2, low=0, high=257, dtype=dtypes.uint8)
    with pytest.raises(ArgumentError, match="uniform: needs low < high"):
        Tensor.uniform(2, low=1.0, high=1.0)
    with pytest.raises(ArgumentError, match="normal"):
        Tensor.normal(2, std=-1.0)
    for draw in (Tensor.rand, Tensor.randn, Tensor.randint, Tensor.uniform, Tensor.normal):
        with pytest.raises(ShapeError, match="negative"):
            draw(2, -1)
    with pytest.raises(ShapeError, match="randperm"):
        Tensor.randperm(-1)


def test_mistakes_with_weights_and_words_are_told_at_the_call() -> None:
    word = Tensor([1, 2], dtype=dtypes.uint32)
    with pytest.raises(ShapeError, match="multinomial"):
        Tensor.ones(2, 2, 2).multinomial()
    with pytest.raises(ShapeError, match="multinomial"):
        Tensor.ones(2).multinomial(0)
    with pytest.raises(DTypeError, match="threefry"):
        word.threefry(word)
    with pytest.raises(DTypeError, match="the counter must be uint32"):
        Tensor.random_bits(word, Tensor([1, 2]), 3)
    with pytest.raises(ShapeError, match="the key has shape"):
        Tensor.random_bits(word[:1], word, 3)
    with pytest.raises(ShapeError, match="negative"):
        Tensor.random_bits(word, word, -3)


def test_draw_of_symbolic_size_is_the_start_of_a_plain_one_and_harms_no_other() -> None:
    length = Variable("length", 1, 10)

    Tensor.manual_seed(3)
    plain = Tensor.rand(4, 3).tolist()
    Tensor.manual_seed(3)
    assert Tensor.rand(length.bind(4), 3).tolist() == plain
    assert len(Tensor.randint(length.bind(2)).tolist()) == 2
    assert len(Tensor.randn(length.bind(3)).tolist()) == 3
    with Tensor.train():
        kept = Tensor.ones(10).contiguous()[: length.bind(5)].dropout(0.5).tolist()
    assert set(kept) <= {0.0, 2.0}
    assert len(Tensor.rand(2).tolist()) == 2


def test_threads_that_draw_share_no_numbers() -> None:
    starts: list[int] = []
    source = stream.Stream()

    def draw() -> None:
        starts.extend(int(source.take(3)[1]) for _ in range(2000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)

    assert sorted(starts) == list(range(0, 3 * 8000, 3))


@pytest.mark.slow
def test_processes_draw_different_numbers_and_seeded_ones_the_same() -> None:
    program = (
        "import sys; from tinycore import Tensor\n"
        "if len(sys.argv) > 1: Tensor.manual_seed(int(sys.argv[1]))\n"
        "print(Tensor.rand(4, device='PYTHON').tolist())"
    )

    def drawn(*words: str) -> str:
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert drawn() != drawn()
    assert drawn("5") == drawn("5")


def test_a_state_of_the_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    Tensor.manual_seed(5)
    Tensor.rand(7)
    safe_save({"random": Tensor.get_rng_state()}, tmp_path / "state")
    drawn = Tensor.rand(3).tolist()
    Tensor.manual_seed(6)

    Tensor.set_rng_state(safe_load(tmp_path / "state")["random"])

    assert Tensor.rand(3).tolist() == drawn


def test_a_captured_step_gives_its_own_state_of_the_stream() -> None:
    @TinyJit
    def draw() -> tuple[Tensor, Tensor]:
        return Tensor.get_rng_state(), Tensor.rand(2)

    for _ in range(4):
        state, drawn = draw()
        after = Tensor.get_rng_state()
        Tensor.set_rng_state(state)
        assert Tensor.rand(2).tolist() == drawn.tolist()
        Tensor.set_rng_state(after)


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"needs the uint64 tensor of shape \(2,\)"):
        Tensor.set_rng_state(Tensor([1, 2, 3]))
