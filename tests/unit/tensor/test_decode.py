"""A transformer that decodes token by token, its cache growing by a Variable."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tinycore import Context, GlobalCounters, Tensor, TinyJit, Variable
from tinycore.engine.compile import programs
from tinycore.errors import IndexRangeError
from tinycore.schedule.compiled import schedules

WIDTH, HEADS, LAYERS, MOST, WORDS = 16, 2, 2, 24, 40
TOKENS = numpy.random.default_rng(1).integers(0, WORDS, (1, 6))


def weights(generator: numpy.random.Generator, *shape: int) -> Tensor:
    values = generator.standard_normal(shape) / numpy.sqrt(shape[0])
    return Tensor(values.astype(numpy.float32)).realize()


class Block:
    """Attention over a cache, then two linear maps."""

    def __init__(self, generator: numpy.random.Generator) -> None:
        self.maps = {name: weights(generator, WIDTH, WIDTH) for name in "qkvo"}
        self.up, self.down = weights(generator, WIDTH, 32), weights(generator, 32, WIDTH)
        shape = (1, HEADS, MOST, WIDTH // HEADS)
        self.keys, self.values = (Tensor.zeros(*shape).contiguous().realize() for _ in range(2))

    def __call__(self, x: Tensor, start: Any) -> Tensor:
        count = x.shape[1]
        parts = [x.layernorm() @ self.maps[name] for name in "qkv"]
        q, k, v = (p.reshape(1, count, HEADS, -1).transpose(1, 2) for p in parts)
        if start is None:
            seen = q.scaled_dot_product_attention(k, v, is_causal=True)
        else:
            self.keys[:, :, start : start + count] = k
            self.values[:, :, start : start + count] = v
            stop = start + count
            keys, values = self.keys[:, :, :stop], self.values[:, :, :stop]
            mask = Tensor.arange(stop) <= Tensor.arange(start, stop).reshape(count, 1)
            seen = q.scaled_dot_product_attention(keys, values, attn_mask=mask)
        x = x + seen.transpose(1, 2).reshape(1, count, WIDTH) @ self.maps["o"]
        return x + (x.layernorm() @ self.up).relu() @ self.down


class Model:
    """Words to scores of the next word."""

    def __init__(self) -> None:
        generator = numpy.random.default_rng(0)
        self.table = weights(generator, WORDS, WIDTH)
        self.blocks = [Block(generator) for _ in range(LAYERS)]

    def __call__(self, tokens: Tensor, start: Any = None) -> Tensor:
        x = self.table[tokens]
        for block in self.blocks:
            x = block(x, start)
        return (x @ self.table.T).realize()


position = Variable("position", 0, MOST - 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("jitted", [False, True])
def test_decoding_equals_the_forward_pass_and_compiles_no_more(jitted: bool) -> None:
    whole = Model()(Tensor(TOKENS)).numpy()[0]
    model = Model()
    step = TinyJit(model.__call__) if jitted else model
    known: list[tuple[int, int]] = []

    for place in range(TOKENS.shape[1]):
        word = Tensor(TOKENS[:, place : place + 1]).realize()
        scores = step(word, position.bind(place))
        numpy.testing.assert_allclose(scores.numpy()[0, 0], whole[place], 1e-4, 1e-5)
        known.append((len(programs), len(schedules)))

    assert known[2:] == known[1:-1], "a later token compiled or scheduled something"


def test_a_replay_of_another_length_is_one_call_of_the_device(target: str) -> None:
    if not target.startswith("CPU"):
        pytest.skip("only the CPU holds whole steps")
    model = Model()
    step = TinyJit(model.__call__)
    for place in range(3):
        step(Tensor(TOKENS[:, place : place + 1]), position.bind(place))
    assert step.captured is not None
    assert step.captured.graphs is not None

    assert len(step.captured.graphs) == 1
    assert len(step.captures) == 1


def test_decoding_again_from_the_start_with_the_same_capture() -> None:
    model = Model()
    step = TinyJit(model.__call__)
    words = [Tensor(TOKENS[:, place : place + 1]).realize() for place in range(4)]
    first = [step(word, position.bind(place)).numpy() for place, word in enumerate(words)]
    again = [step(word, position.bind(place)).numpy() for place, word in enumerate(words)]

    numpy.testing.assert_array_equal(first, again)


def test_a_prompt_and_then_tokens() -> None:
    whole = Model()(Tensor(TOKENS)).numpy()[0]
    model = Model()
    for start, stop in ((0, 4), (4, 5), (5, 6)):
        place = Variable("start", 0, MOST - 4).bind(start)
        scores = model(Tensor(TOKENS[:, start:stop]), place).numpy()[0]
        numpy.testing.assert_allclose(scores, whole[start:stop], 1e-4, 1e-5)


def test_counters_count_launches_of_replays() -> None:
    model = Model()
    step = TinyJit(model.__call__)
    counts = []
    for setting in (1, 1, 1, 2):
        with Context(JIT=setting):
            GlobalCounters.reset()
            step(Tensor(TOKENS[:, :1]).realize(), position.bind(0))
            counts.append(GlobalCounters.kernel_count)

    assert counts[1] == counts[2] == counts[3]


@pytest.mark.sample(4)
@pytest.mark.parametrize("jitted", [False, True])
def test_prompts_of_symbolic_length_and_then_tokens(jitted: bool) -> None:
    whole = Model()(Tensor(TOKENS)).numpy()[0]
    words = Tensor(numpy.pad(TOKENS, ((0, 0), (0, 6)))).realize()
    length, place = Variable("length", 1, 8), Variable("place", 0, MOST - 1)
    model = Model()
    first = TinyJit(lambda words, n: model(words[:, :n], 0)) if jitted else None
    step = TinyJit(model.__call__) if jitted else model

    for count in (2, 4, 3, 5, 4, 1):
        n = length.bind(count)
        scores = first(words, n) if first is not None else model(words[:, :n], 0)
        numpy.testing.assert_allclose(scores.numpy()[0], whole[:count], 1e-4, 1e-5)
        for start in range(count, TOKENS.shape[1]):
            word = Tensor(TOKENS[:, start : start + 1]).realize()
            scores = step(word, place.bind(start))
            numpy.testing.assert_allclose(scores.numpy()[0, 0], whole[start], 1e-4, 1e-5)


def test_a_cache_that_is_full_says_so(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no launches to capture")
    model = Model()
    step = TinyJit(model.__call__)
    place = Variable("place", 0, 4 * MOST)
    word = Tensor(TOKENS[:, :1]).realize()
    for start in range(3):
        step(word, place.bind(start))

    with pytest.raises(IndexRangeError, match=r"place=24\].* is not inside axis 2 of shape"):
        step(word, place.bind(MOST))
    step(word, place.bind(3))
    assert len(step.captures) == 1
