"""Perplexity: how well a model foresees a text, measured over windows as llama.cpp measures it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tiny_llm.model import LanguageModel
from tinycore.errors import ArgumentError

__all__ = ["Perplexity", "of_surprises", "perplexity", "surprises"]

Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Perplexity:
    """The exponential of the mean of -log p over `tokens`, and the standard error of it."""

    value: float
    error: float
    tokens: int

    def __str__(self) -> str:
        return f"perplexity {self.value:.4f} +- {self.error:.4f}, of {self.tokens} tokens"


def perplexity(model: LanguageModel, text: str | Sequence[int], window: int = 512) -> Perplexity:
    """The perplexity of a text, or of tokens, see `surprises`. Raises ArgumentError."""
    found = numpy.array([each for part in surprises(model, text, window) for each in part])
    return of_surprises(found)


def surprises(
    model: LanguageModel, text: str | Sequence[int], window: int = 512
) -> Iterator[list[float]]:
    """The -log p of the tokens in the second half of each whole window of a text.

    A window is computed by itself, so those of its first half are there to go by alone. A token
    that begins every text takes the place of the first. Raises ArgumentError for a text that is
    shorter than a window.
    """
    ids = model.prompt(text) if isinstance(text, str) else list(text)
    if not 4 <= window <= model.context:
        raise ArgumentError(f"window must be from 4 to {model.context}, not {window}")
    if len(ids) < window:
        raise ArgumentError(f"the text has {len(ids)} tokens, a window {window}; give more text")
    begin = begin_of(model)
    for start in range(0, len(ids) - window + 1, window):
        part = [*begin, *ids[start + len(begin) : start + window]]
        rows = numpy.concatenate(list(model.all_scores(part)))[window // 2 : -1]
        yield minus_logs(rows.astype(numpy.float64), part[window // 2 + 1 :]).tolist()


def begin_of(model: LanguageModel) -> list[int]:
    """The token that begins every text of a model, or none."""
    one, other = model.prompt("a"), model.prompt("b")
    return one[:1] if one[0] == other[0] else []


def minus_logs(scores: Array, tokens: Sequence[int]) -> Array:
    """-log p of tokens by scores (m, vocabulary): (m,)."""
    highest = scores.max(-1)
    totals = highest + numpy.log(numpy.exp(scores - highest[:, None]).sum(-1))
    found: Array = totals - scores[numpy.arange(len(tokens)), list(tokens)]
    return found


def of_surprises(found: Array) -> Perplexity:
    """The perplexity of -log p (n,)."""
    value = math.exp(found.mean())
    error = float(found.std()) / math.sqrt(max(1, len(found) - 1))
    return Perplexity(value, value * error, len(found))
