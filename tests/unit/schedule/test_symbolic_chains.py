"""Product chains over lengths that are known at launch only, as those of a cache of keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy
import pytest

from tests.unit.schedule.chains import (
    HOST,
    TOLERANCES,
    Array,
    attention,
    card_with,
    check,
    launches,
    operands,
    plain,
)
from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import Rewriter
from tiny_testing.grading import accelerator
from tinycore import Context, Tensor, TinyJit, Variable
from tinycore.builtin.interpreter import PythonRenderer
from tinycore.lower.pipeline import lower
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.op import Op
from tinycore.uop.size import Size

pytestmark = pytest.mark.sample(3)

MOST = 96
LENGTHS = (50, 1, 96, 64, 17)


def filled(unit: MatrixUnit, x: Tensor, length: int) -> Tensor:
    """A cache of which nothing beyond a length is a number."""
    numbers = plain(x).copy()
    numbers[..., length:, :] = numpy.nan
    return Tensor(numbers, device=HOST).cast(unit.a).realize().to("CARD").realize()


def below(length: int) -> Array:
    found: Array = numpy.tril(numpy.ones((length, length), bool))
    return found


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention written out."""
    return ((query @ key.transpose(-2, -1)) / math.sqrt(query.shape[-1])).softmax(-1) @ value


def by_function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.scaled_dot_product_attention(key, value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of each position to those before."""
    return query.scaled_dot_product_attention(key, value, is_causal=True)


@pytest.mark.sample(9)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", [by_function, by_hand], ids=lambda f: f.__name__)
def test_keys_may_be_as_many_as_a_launch_says(
    unit: MatrixUnit, how: Callable[..., Tensor], length: int
) -> None:
    query, key, value = operands(unit, (2, 40, 16), (2, MOST, 16), (2, MOST, 16))
    n = Variable("length", 1, MOST).bind(length)
    result = how(query, *(filled(unit, x, length)[:, :n] for x in (key, value)))

    cut = (plain(x)[:, :length] for x in (key, value))
    check(result, unit, attention(plain(query), *cut))


@pytest.mark.sample(9)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", [by_function, causal, by_hand], ids=lambda f: f.__name__)
def test_queries_and_keys_may_be_as_many_as_a_launch_says(
    unit: MatrixUnit, how: Callable[..., Tensor], length: int
) -> None:
    given = operands(unit, *[(2, MOST, 16)] * 3)
    n = Variable("length", 1, MOST).bind(length)
    result = how(*(filled(unit, x, length)[:, :n] for x in given))

    query, key, value = (plain(x)[:, :length] for x in given)
    visible = below(length) if how is causal else None
    check(result, unit, attention(query, key, value, visible))


@pytest.mark.parametrize("length", [33, 96])
def test_queries_alone_may_be_as_many_as_a_launch_says(unit: MatrixUnit, length: int) -> None:
    query, key, value = operands(unit, (2, MOST, 16), (2, 40, 16), (2, 40, 16))
    n = Variable("length", 1, MOST).bind(length)
    result = filled(unit, query, length)[:, :n].scaled_dot_product_attention(key, value)

    check(result, unit, attention(plain(query)[:, :length], plain(key), plain(value)))


def test_one_capture_replays_all_lengths_of_a_cache(unit: MatrixUnit) -> None:
    rows, at = 4, Variable("at", 0, 28)
    keys, values = operands(unit, *[(2, 32, 16)] * 2)
    keys, values = (filled(unit, x, 0) for x in (keys, values))
    seen: list[list[Array]] = [[], []]

    @TinyJit
    def step(query: Tensor, key: Tensor, value: Tensor, start: Size) -> Tensor:
        keys[:, start : start + rows] = key
        values[:, start : start + rows] = value
        stop = start + rows
        places = Tensor.arange(32, device="CARD")[:stop]
        visible = places <= Tensor.arange(rows, device="CARD").unsqueeze(1) + start
        return query.scaled_dot_product_attention(keys[:, :stop], values[:, :stop], visible)

    for number in range(5):
        query, key, value = operands(unit, *[(2, rows, 16)] * 3, scale=1.0 + number)
        for before, new in zip(seen, (key, value), strict=True):
            before.append(plain(new))
        found = plain(step(query, key, value, at.bind(rows * number)))
        mask = below(rows * (number + 1))[-rows:]
        every = [numpy.concatenate(x, axis=1) for x in seen]
        expected = attention(plain(query), every[0], every[1], mask)
        tolerance = 4 * TOLERANCES[unit.a]
        numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert len(step.captures) == 1


def test_causal_rows_go_through_the_keys_that_they_see_alone(unit: MatrixUnit) -> None:
    n = Variable("length", 1, 256).bind(200)
    given = operands(unit, *[(2, 256, 16)] * 3)
    result = causal(*(x[:, :n] for x in given))
    (item,) = (item for item in result.schedule() if item.ast.op is not Op.COPY)
    linear = lower(item.ast, PythonRenderer(card_with(unit)), "chain")

    loops = [u for u in linear.uops if u.op is Op.RANGE and u.src[0].op is not Op.CONST]
    bounds = {n.op for loop in loops for n in loop.src[0].toposort()}
    assert {Op.SPECIAL, Op.DEFINE_VAR} <= bounds


def test_launches_of_one_size_have_no_chains_of_others(unit: MatrixUnit) -> None:
    limits = replace(card_with(unit), grid_varies=False)
    parts = replace(CORRECT, name="FIXED", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        query, key, value = (
            x.to(HOST).to("FIXED").realize()
            for x in operands(unit, (2, 40, 16), (2, MOST, 16), (2, MOST, 16))
        )
        n = Variable("length", 1, MOST).bind(50)
        result = query.scaled_dot_product_attention(key[:, :n], value[:, :n])

        assert launches(result) > 1
        expected = attention(plain(query), *(plain(x)[:, :50] for x in (key, value)))
        tolerance = TOLERANCES[unit.a]
        numpy.testing.assert_allclose(plain(result), expected, rtol=tolerance, atol=tolerance)


CACHE = 256
MASKS = ["none", "bool", "added", "of one row"]


def decoded(unit: MatrixUnit, length: int, mask: str) -> tuple[Array, Array]:
    """Attention of few queries to a cache on a card of 16 units, and what it should be."""
    query, key, value = operands(unit, (2, 4, 2, 16), *[(2, 2, CACHE, 16)] * 2)
    random = numpy.random.default_rng(length)
    visible: Array | None = None
    given: Tensor | None = None
    n = Variable("length", 1, CACHE).bind(length)
    if mask != "none":
        shape = (1, 1, 1, CACHE) if mask == "of one row" else (2, 4, 2, CACHE)
        visible = random.random(shape) > 0.3
        visible[..., 0] = True
        if mask == "added":
            visible = numpy.where(visible, random.standard_normal(shape), -numpy.inf)
            visible = visible.astype(numpy.float32)
        given = Tensor(visible, device="FEW").realize()[..., :n]
        visible = visible[..., :length]
    keys, values = (filled(unit, x, length).to(HOST).to("FEW").realize() for x in (key, value))
    result = (
        query.to(HOST)
        .to("FEW")
        .realize()
        .scaled_dot_product_attention(keys[..., :n, :], values[..., :n, :], given, enable_gqa=True)
    )
    shared = [numpy.repeat(plain(x)[..., :length, :], 2, axis=1) for x in (key, value)]
    return plain(result), attention(plain(query), shared[0], shared[1], visible)


@pytest.mark.sample(9)
@pytest.mark.parametrize("length", [200, 1, 256, 64])
@pytest.mark.parametrize("mask", MASKS)
def test_few_queries_see_parts_of_a_cache_at_once(unit: MatrixUnit, length: int, mask: str) -> None:
    limits = replace(card_with(unit), units=16)
    parts = replace(CORRECT, name="FEW", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts), Context(VERIFY=1):
        found, expected = decoded(unit, length, mask)
        tolerance = TOLERANCES[unit.a]
        numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_few_queries_of_a_cache_are_the_kernels_of_its_parts(unit: MatrixUnit) -> None:
    limits = replace(card_with(unit), units=16)
    parts = replace(CORRECT, name="FEW", renderer=lambda: Rewriter(limits), limits=limits)
    with accelerator(parts):
        query, key, value = (
            x.to(HOST).to("FEW").realize()
            for x in operands(unit, (2, 4, 1, 16), *[(2, 2, CACHE, 16)] * 2)
        )
        n = Variable("length", 1, CACHE).bind(100)
        result = query.scaled_dot_product_attention(
            key[..., :n, :], value[..., :n, :], enable_gqa=True
        )
        asts = [item.ast for item in result.schedule() if item.ast.op is not Op.COPY]
        linear = lower(asts[0], PythonRenderer(limits), "chain")

        assert len(asts) <= 4  # the parts, and means of their results by their totals
        assert any(u.op is Op.MATRIX for u in linear.uops)
