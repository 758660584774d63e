"""Texts that are written side by side, and with drafts, are those that are written alone."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import tiny_models

from tiny_llm import LanguageModel, Sampling
from tiny_llm.batch import Batch
from tiny_llm.lookup import Lookup
from tiny_llm.text import Options, Text
from tinycore import Device
from tinycore.errors import ArgumentError

GREEDY = Sampling(temperature=0)
OPEN = Sampling(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    config = tiny_models.config_of("llama")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_models.write_gguf(path, config, tiny_models.weights_of(config), "Q8_0")
    model = LanguageModel.load(path, context=300, lanes=4)
    model.tokenizer.ends = frozenset()  # random weights would end by chance
    return model


def alone(model: LanguageModel, ids: list[int], sampling: Sampling, limit: int) -> list[int]:
    for lane in model.lanes:
        lane.shorten(0)
    pieces = model.generate(ids, sampling, limit=limit)
    return [piece.token for piece in pieces if piece.token is not None]


def test_a_draft_is_what_followed_the_same_tokens() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 9, 2, 3])
    assert lookup.draft(7) == [4, 5, 9]
    assert lookup.draft(2) == [4, 5]
    assert lookup.draft(-1) == []

    lookup.learn(3, 3)
    assert lookup.draft(7) == [4, 5, 9, 2, 3]
    lookup.learn(5, 0)
    assert lookup.draft(7) == []  # it pauses
    for token in (7, 2, 3):
        lookup.add(token)
    assert lookup.draft(7) == [7, 2, 3]  # of the newest occurrence
    assert lookup.counts == (8, 3)
    assert Lookup([1, 2]).draft(7) == []


@pytest.mark.slow
def test_drafts_change_no_token(model: LanguageModel) -> None:
    random = numpy.random.default_rng(1)
    accepted = 0
    for trial in range(12):
        part = random.integers(0, 256, random.integers(2, 9)).tolist()
        ids = (part * 20)[: int(random.integers(5, 60))]
        sampling = GREEDY if trial % 3 else replace(OPEN, temperature=0.2, seed=trial)
        limit = int(random.integers(1, 60))
        expected = alone(model, ids, sampling, limit)
        model.lanes[0].shorten(0)
        pieces = list(model.generate(ids, sampling, limit=limit, speculate=True))
        assert [piece.token for piece in pieces[:-1]] == expected
        assert pieces[-1].speed is not None
        assert pieces[-1].speed.generated == len(expected)
        accepted += pieces[-1].speed.accepted
        held = model.lanes[0].held
        assert held == (ids + expected)[: len(held)]
    assert accepted > 20


@pytest.mark.slow
@pytest.mark.parametrize("speculate", [False, True])
def test_texts_that_join_and_leave_a_batch_are_those_written_alone(
    model: LanguageModel, speculate: bool
) -> None:
    random = numpy.random.default_rng(2)
    asked = []
    for number in range(16):
        ids = random.integers(0, 256, random.choice([1, 3, 20, 130, 200])).tolist()
        sampling = GREEDY if number % 2 else replace(OPEN, seed=number)
        asked.append((ids, sampling, int(random.integers(1, 30))))
    expected = [alone(model, *each) for each in asked]
    batch = Batch(model, speculate)
    found: dict[int, list[int]] = {number: [] for number in range(len(asked))}
    numbers: dict[Text, int] = {}
    waiting, most, dropped = list(found), 0, 0
    while waiting or len(batch):
        if waiting and random.random() < 0.5:
            ids, sampling, limit = asked[waiting[0]]
            if sampling.seed is None:  # what was computed in other parts has other last bits
                for lane in model.lanes:
                    lane.shorten(len(lane.held) if lane.is_taken else 0)
            text = batch.add(ids, Options(sampling, limit))
            if text is not None:
                numbers[text] = waiting.pop(0)
        most = max(most, len(batch))
        for text, piece in batch.step():
            if piece.token is not None:
                found[numbers[text]].append(piece.token)
        if len(batch) == 4 and dropped < 2:
            gone = next(text for text in numbers if text.reason is None)
            batch.drop(gone)
            del numbers[gone]
            dropped += 1
    cut = sum(found[number] != tokens for number, tokens in enumerate(expected))
    assert all(
        found[number] == tokens[: len(found[number])] for number, tokens in enumerate(expected)
    )
    assert cut <= dropped
    assert most == 4


@pytest.mark.slow
def test_a_batch_tells_what_it_cannot_take(model: LanguageModel) -> None:
    batch = Batch(model)
    with pytest.raises(ArgumentError, match="no tokens"):
        batch.add([], Options(GREEDY))
    asked = [False]
    for _ in range(4):
        assert batch.add([1, 2], Options(GREEDY, until=lambda: asked[0])) is not None
    assert batch.add([1, 2], Options(GREEDY)) is None
    asked[0] = True
    assert [piece.reason for _, piece in batch.step()] == ["ended"] * 4
    assert len(batch) == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_row_has_the_same_scores_beside_others(model: LanguageModel, size: int) -> None:
    toolchain = Device[Device.DEFAULT].toolchain
    if toolchain is None or "clang" not in toolchain.compiler.key.lower():  # type: ignore[redundant-expr]
        pytest.skip("compilers other than clang choose between FMA and two roundings by shape")
    ids = numpy.random.default_rng(3).integers(0, 256, 48).tolist()
    lane = model.take_lane(())
    assert lane is not None
    alone = [model.advance(lane, ids[: end + 1]) for end in range(48)]
    lane.shorten(0)
    together = [model._part(lane, ids[start : start + size]) for start in range(0, 48, size)]
    model.free_lane(lane)
    assert numpy.array_equal(numpy.concatenate(together), numpy.stack(alone))
