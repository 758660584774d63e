"""The next token: the likeliest, or drawn among those that options leave."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy
import pytest

from tiny_llm import Sampling
from tiny_llm.sampling import Sampler
from tinycore.errors import ArgumentError

OPEN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
CHANCES = numpy.array([0.1, 0.4, 0.2, 0.3])
SCORES = numpy.log(CHANCES)


def drawn(count: int = 400, **options: Any) -> Counter[int]:
    sampler = Sampler(Sampling(**(OPEN | {"seed": 3} | options)))
    return Counter(sampler.choose(SCORES, []) for _ in range(count))


def test_temperature_zero_takes_the_likeliest() -> None:
    assert drawn(temperature=0) == {1: 400}


def test_draws_follow_the_chances() -> None:
    found = drawn(4_000)

    assert all(abs(found[n] / 4_000 - chance) < 0.03 for n, chance in enumerate(CHANCES))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.65}, {1, 3}),
        ({"top_p": 0.0}, {1}),
        ({"min_p": 0.6}, {1, 3}),
        ({"min_p": 1.0}, {1}),
    ],
    ids=str,
)
def test_unlikely_tokens_are_left_out(options: dict[str, Any], kept: set[int]) -> None:
    assert drawn(**options).keys() == kept


def test_equal_seeds_draw_equal_tokens() -> None:
    sequences = []
    for seed in (5, 5, 6):
        sampler = Sampler(Sampling(**OPEN, seed=seed))
        sequences.append([sampler.choose(SCORES, []) for _ in range(30)])

    assert sequences[0] == sequences[1] != sequences[2]


def test_repetition_avoids_recent_tokens_of_either_sign() -> None:
    sampler = Sampler(Sampling(temperature=0, repetition=3.0, window=2))

    assert sampler.choose(numpy.array([4.0, 3.0, -1.0]), [0]) == 1
    assert sampler.choose(numpy.array([-1.0, -2.0, -2.5]), [0]) == 1
    assert sampler.choose(numpy.array([4.0, 3.0, -1.0]), [0, 1, 1]) == 0  # out of the window


def test_scores_that_are_no_numbers_are_never_chosen() -> None:
    scores = numpy.array([numpy.nan, 0.0, -numpy.inf])

    assert Sampler(Sampling(temperature=0)).choose(scores, []) == 1
    assert Sampler(Sampling(**OPEN)).choose(scores, []) == 1


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"top_p": 2}, {"min_p": -0.1}, {"repetition": 0}, {"seed": -1}],
    ids=str,
)
def test_options_out_of_bounds_are_told(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="must be from"):
        Sampling(**options)


def test_greedy_texts_need_no_generator() -> None:
    sampler = Sampler(Sampling(temperature=0))
    sampler.choose(SCORES, [])

    assert "random" not in vars(sampler)
