"""Perplexity of a tiny decoder is that of the scores of plain NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import tiny_models

from tiny_llm import LanguageModel
from tiny_llm.perplexity import perplexity
from tinycore.errors import ArgumentError

pytestmark = pytest.mark.slow


def test_perplexity_is_that_of_plain_numbers(tmp_path: Path) -> None:
    config = tiny_models.config_of("qwen3")
    weights = tiny_models.weights_of(config)
    folder = tiny_models.write_folder(tmp_path, config, weights)
    model = LanguageModel.load(folder, cache_dtype="float32", context=256)
    ids = numpy.random.default_rng(5).integers(0, 256, 70).tolist()
    logs = []
    for start in (0, 32):  # what is left is no window
        part = ids[start : start + 32]
        scores = tiny_models.reference(config, weights, part)
        p = numpy.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        logs += [-numpy.log(p[at, part[at + 1]]) for at in range(16, 31)]

    found = perplexity(model, ids, 32)

    assert found.tokens == 30
    assert abs(found.value / numpy.exp(numpy.mean(logs)) - 1) < 1e-4
    assert abs(found.error / found.value - numpy.std(logs) / 29**0.5) < 1e-3
    with pytest.raises(ArgumentError, match="70 tokens, a window 71"):
        perplexity(model, ids, 71)
    with pytest.raises(ArgumentError, match="from 4 to 256, not 257"):
        perplexity(model, ids, 257)
