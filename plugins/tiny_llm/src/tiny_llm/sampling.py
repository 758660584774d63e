"""Choice of the next token from its scores: greedy, or drawn from the likely ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy

from tinycore.errors import ArgumentError

__all__ = ["Sampler", "Sampling"]

Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """Options of the choice of tokens. Temperature 0 takes the likeliest each time.

    `top_k` keeps so many of the likeliest, 0 all; `top_p` the fewest whose probabilities add up to
    it; `min_p` those with at least that share of the greatest probability. `repetition` divides the
    scores of the last `window` tokens, above 1 to avoid them. Equal seeds draw equal texts.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition: float = 1.0
    window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "temperature": (0, 100),
            "top_k": (0, 1 << 30),
            "top_p": (0, 1),
            "min_p": (0, 1),
            "repetition": (0.01, 100),
            "window": (0, 1 << 30),
            "seed": (0, (1 << 64) - 1),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ArgumentError(f"{name} must be from {least:g} to {most:g}, not {value}")


class Sampler:
    """Choices for one text."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    @cached_property
    def random(self) -> numpy.random.Generator:
        """The generator. NumPy imports it on demand, 3 MiB, and greedy texts never ask."""
        return numpy.random.default_rng(self.sampling.seed)

    def choose(self, scores: Array, before: Sequence[int]) -> int:
        """The next token: scores (vocabulary,), and the tokens before it."""
        s = self.sampling
        if s.temperature == 0 and s.repetition == 1:
            best = int(scores.argmax())  # the first NaN, where there is one
            if not math.isnan(scores[best]):
                return best
        scores = numpy.where(numpy.isnan(scores), -math.inf, scores).astype(numpy.float64)
        if s.repetition != 1 and s.window and before:
            recent = numpy.unique(numpy.array(before[-s.window :]))
            some = scores[recent]
            scores[recent] = numpy.where(some > 0, some / s.repetition, some * s.repetition)
        if s.temperature == 0:
            return int(scores.argmax())
        return self._drawn(scores)

    def _drawn(self, scores: Array) -> int:
        s = self.sampling
        if 0 < s.top_k < len(scores):
            likely = numpy.argpartition(scores, -s.top_k)[-s.top_k :]
        else:
            likely = numpy.arange(len(scores))
        order = likely[numpy.lexsort((likely, -scores[likely]))]
        weights = numpy.exp(scores[order] - scores[order[0]])
        weights /= weights.sum()
        kept = max(1, int(numpy.searchsorted(numpy.cumsum(weights), s.top_p)) + 1)
        kept = min(kept, int((weights >= s.min_p * weights[0]).sum()))
        # after the choice of tokens, as in llama.cpp: a high temperature brings no unlikely ones in
        hot = numpy.exp((scores[order[:kept]] - scores[order[0]]) / s.temperature)
        total = numpy.cumsum(hot)
        drawn = numpy.searchsorted(total, self.random.random() * total[-1], "right")
        return int(order[min(int(drawn), kept - 1)])
