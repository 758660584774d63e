"""Texts of a tiny decoder: how they end, seeds, and what of a prompt is computed again."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy
import pytest
import tiny_models

from tiny_llm import LanguageModel, Piece, Sampling
from tinycore import Device, Tensor
from tinycore.device.buffer import Buffer
from tinycore.device.pool import memory
from tinycore.engine import captured_step
from tinycore.errors import ArgumentError, FileFormatError

pytestmark = pytest.mark.slow

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    config = tiny_models.config_of("qwen3")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_models.write_gguf(path, config, tiny_models.weights_of(config), "Q8_0")
    model = LanguageModel.load(path, context=40)
    model.tokenizer.ends = frozenset()  # random weights would end by chance
    return model


def text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_ends_are_told(model: LanguageModel) -> None:
    whole = list(model.generate("hello", OPEN))
    assert whole[-1].reason == "context"
    assert len([piece for piece in whole if piece.token is not None]) == 35

    limited = list(model.generate("hello", OPEN, limit=7))
    assert limited[-1].reason == "length"
    assert limited[-1].speed is not None
    assert (limited[-1].speed.prompt, limited[-1].speed.generated) == (5, 7)
    assert [piece.token for piece in limited[:7]] == [piece.token for piece in whole[:7]]

    letters = text(whole)
    stop = letters[5:8]
    stopped = list(model.generate("hello", OPEN, stop=[stop]))
    assert stopped[-1].reason == "stop"
    assert text(stopped) == letters[: letters.index(stop)]

    asked = iter([False, False, False])
    ended = list(model.generate("hello", OPEN, until=lambda: next(asked, True)))
    assert ended[-1].reason == "ended"
    assert len(ended) < 5


def test_what_a_prompt_shares_with_the_text_before_is_not_computed(model: LanguageModel) -> None:
    model.lanes[0].shorten(0)
    alone = model.scores(model.prompt("abcdefgh, again"))

    unseeded = replace(OPEN, seed=None)
    list(model.generate("abcdefgh, once", unseeded, limit=3))
    after = list(model.generate("abcdefgh, again", unseeded, limit=1))

    assert after[-1].speed is not None
    assert after[-1].speed.reused == len("abcdefgh, ")
    assert numpy.abs(model.scores(model.prompt("abcdefgh, again")) - alone).max() < 2e-2


def test_the_cache_grows_with_its_texts(tmp_path: Path) -> None:
    config = tiny_models.config_of("qwen3")
    path = tmp_path / "tiny.gguf"
    tiny_models.write_gguf(path, config, tiny_models.weights_of(config), "Q8_0")
    model = LanguageModel.load(path, context=400, cache_dtype="float32", lanes=2)
    texts = [[97 + number % 20 for number in range(count)] for count in (20, 300)]

    lanes = []
    for text in texts:
        lane = model.take_lane(text)
        assert lane is not None
        lanes.append(lane)
        before = model.cache.places
        while len(lane.held) < len(text):
            model.advance(lane, text)
    found = model.together([(lane, 98) for lane in lanes])

    assert (before, model.cache.places) == (256, 512)
    for text, scores in zip(texts, found, strict=True):
        expected = model.decoder(Tensor([[*text, 98]])).numpy()[-1]
        assert numpy.abs(scores - expected).max() < 1e-4

    grown = LanguageModel.load(path, context=400, lanes=2)
    grown._make_room(300)
    assert Device[Device.DEFAULT].allocator.cached == 0  # nor does what the smaller took wait


def test_a_prompt_takes_no_more_memory_in_a_deeper_network(tmp_path: Path) -> None:
    taken = []
    for depth in (2, 12):
        config = tiny_models.config_of("llama") | {"num_hidden_layers": depth}
        path = tmp_path / f"{depth}.gguf"
        tiny_models.write_gguf(path, config, tiny_models.weights_of(config), "Q8_0")
        model = LanguageModel.load(path, context=256)
        memory.reset_peak()
        before = memory.used
        for _ in range(2):  # the first call, and the capture
            model.advance(model.lanes[0], [97] * 256)
        taken.append(memory.peak - before)

    one_input = 128 * tiny_models.WIDTH * 4
    assert taken[1] < taken[0] + 3 * one_input


def test_captures_see_weights_that_are_written_to(model: LanguageModel) -> None:
    def scores() -> Any:
        model.lanes[0].shorten(0)
        return model.scores(model.prompt("abc"))

    before = [scores() for _ in range(3)][-1]
    norm = model.decoder.norm
    for factor in (2, 0.5):
        norm.assign(norm * factor)
        found = [scores() for _ in range(3)]
        wanted = before if factor < 1 else before * factor
        assert all(numpy.abs(each - wanted).max() < 1e-4 for each in found)

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'norm'"):
        model.decoder.norm = norm  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no setter"):
        model.decoder = model.decoder  # type: ignore[misc]


def test_threads_take_turns(model: LanguageModel) -> None:
    expected = text(list(model.generate("one", OPEN, limit=8)))
    found: list[str] = []

    def run() -> None:
        found.append(text(list(model.generate("one", OPEN, limit=8))))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [expected] * 4


def test_prompts_that_do_not_fit_are_told(model: LanguageModel) -> None:
    with pytest.raises(ArgumentError, match="the prompt has 41 tokens; the context takes 40"):
        next(model.generate("x" * 41))
    with pytest.raises(ArgumentError, match="no tokens"):
        next(model.generate(""))
    with pytest.raises(ArgumentError, match="tokens are from 0 to 257"):
        next(model.generate([258]))
    assert list(model.generate("x" * 40, OPEN))[-1].reason == "context"


def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    config = tiny_models.config_of("qwen3")
    weights = tiny_models.weights_of(config)
    for name, value in {
        "model.layers.1.mlp.up_proj.weight": None,
        "model.norm.weight": numpy.zeros(63, numpy.float32),
        "model.layers.0.self_attn.q_proj.weight": numpy.zeros((64, 64), numpy.float32),
    }.items():
        changed = {n: v for n, v in weights.items() if n != name}
        changed |= {} if value is None else {name: value}
        folder = tiny_models.write_folder(tmp_path / name, config, changed)
        with pytest.raises(FileFormatError, match=re.escape(f"tensor {name}")):
            LanguageModel.load(folder)


def test_an_interrupt_ends_a_long_part_of_a_prompt_at_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are not copied for that: the text is computed again from what is held."""
    before = text(list(model.generate("hello there", OPEN, limit=9)))
    monkeypatch.setattr(captured_step, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(captured_step, "PIECE_SECONDS", 0.0)
    launches = count()

    def progress(parts: list[Any], what: str, total: int) -> Iterator[Any]:
        for part in parts:
            if next(launches) == 5:
                raise KeyboardInterrupt
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(captured_step, "progress", progress)
        patch.setattr(Buffer, "copy_from", None)
        for _ in range(3):
            model.lanes[0].shorten(0)
            with contextlib.suppress(KeyboardInterrupt):
                list(model.generate("hello there", OPEN, limit=9))
    assert next(launches) > 5

    assert text(list(model.generate("hello there", OPEN, limit=9))) == before
