"""Each family, from folders and from GGUF files, gives the scores of plain NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import tiny_models

from tiny_llm import LanguageModel

pytestmark = pytest.mark.slow

IDS = numpy.random.default_rng(7).integers(0, 256, 21).tolist()


def all_scores(model: LanguageModel, ids: list[int]) -> Any:
    """The scores at the end of prompts that continue each other: in pieces of several lengths."""
    return {end: model.scores(ids[:end]) for end in (5, 6, 7, 8, 20, 21)}


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_family_gives_the_scores_of_numpy(family: str, tmp_path: Path) -> None:
    config = tiny_models.config_of(family)
    weights = tiny_models.weights_of(config)
    expected = tiny_models.reference(config, weights, IDS)
    folder = tiny_models.write_folder(tmp_path / "folder", config, weights)
    file = tiny_models.write_gguf(tmp_path / "file.gguf", config, weights)

    scores = all_scores(LanguageModel.load(folder, cache_dtype="float32", context=256), IDS)
    for end, found in scores.items():
        assert numpy.abs(found - expected[end - 1]).max() < 2e-4, end

    # a GGUF file does not state this scale: it is that of the width of heads
    if family == "gemma2":
        config["query_pre_attn_scalar"] = config["head_dim"]
        expected = tiny_models.reference(config, weights, IDS)
    scores = all_scores(LanguageModel.load(file, cache_dtype="float32", context=256), IDS)
    for end, found in scores.items():
        assert numpy.abs(found - expected[end - 1]).max() < 2e-4, end
