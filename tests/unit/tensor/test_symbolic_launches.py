"""Sizes that are Variables: launched in parallel, for each value as large as it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy
import pytest

from tinycore import Tensor, TinyJit, Variable
from tinycore.device.registry import Device
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.run import lower_schedule

Array = numpy.ndarray[Any, numpy.dtype[numpy.float32]]

HEADS, MOST, WIDTH = 2, 96, 12
VALUES: Final = (1, 2, 31, 32, 33, 95, 96, 5)
GENERATOR = numpy.random.default_rng(0)


def random(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape).astype(numpy.float32)


KEYS, SEEN = random(HEADS, MOST, WIDTH), random(HEADS, MOST, WIDTH)
QUERY, ROWS, WEIGHT = random(HEADS, 1, WIDTH), random(HEADS, MOST), random(WIDTH, 16)


def softmax(x: Array) -> Array:
    powers = numpy.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def attended(size: int) -> Any:
    scores = (KEYS[:, :size] * QUERY).sum(-1) / numpy.sqrt(WIDTH)
    return numpy.einsum("hp,hpd->hd", softmax(scores), SEEN[:, :size])[:, None]


Size = Any
Case = tuple[Callable[..., Tensor], Callable[[int], Any]]

CASES: Final[dict[str, Case]] = {
    "elementwise": (
        lambda n, rows, **_: rows[:, :n] * 2 + 1,
        lambda n: ROWS[:, :n] * 2 + 1,
    ),
    "scores": (
        lambda n, keys, query, **_: (keys[:, :n] * query).sum(-1),
        lambda n: (KEYS[:, :n] * QUERY).sum(-1),
    ),
    "softmax": (
        lambda n, rows, **_: rows[:, :n].softmax(-1),
        lambda n: softmax(ROWS[:, :n]),
    ),
    "weighted sum": (
        lambda n, rows, seen, **_: (rows[:, :n].reshape(HEADS, n, 1) * seen[:, :n]).sum(1),
        lambda n: numpy.einsum("hp,hpd->hd", ROWS[:, :n], SEEN[:, :n]),
    ),
    "greatest": (
        lambda n, rows, **_: rows[1, :n].max(),
        lambda n: ROWS[1, :n].max(),
    ),
    "prefill": (
        lambda n, keys, weight, **_: keys[:, :n] @ weight,
        lambda n: KEYS[:, :n] @ WEIGHT,
    ),
    "attention": (
        lambda n, keys, seen, query, **_: query.scaled_dot_product_attention(
            keys[:, :n], seen[:, :n]
        ),
        attended,
    ),
    "both sides": (
        lambda n, rows, **_: rows[0, :n].reshape(n, 1) * rows[1, :n].reshape(1, n),
        lambda n: ROWS[0, :n, None] * ROWS[1, None, :n],
    ),
}


def tensors() -> dict[str, Tensor]:
    arrays = {"keys": KEYS, "seen": SEEN, "query": QUERY, "rows": ROWS, "weight": WEIGHT}
    return {name: Tensor(array).realize() for name, array in arrays.items()}


@pytest.mark.parametrize("case", CASES)
def test_every_value_of_a_variable_gives_what_numpy_gives(case: str) -> None:
    """Launched one by one and replayed, in an order in which sizes grow and shrink."""
    compute, expected = CASES[case]
    given = tensors()
    size = Variable("size", 1, MOST)
    step = TinyJit(lambda n: compute(n, **given).realize())
    for value in VALUES:
        bound = size.bind(value)
        want = expected(value)
        for found in (compute(bound, **given).numpy(), step(bound).numpy()):
            assert found.shape == want.shape
            numpy.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_a_captured_step_of_several_launches_follows_its_value() -> None:
    """A graph holds them: each replay tells it how many groups they have."""
    given = tensors()
    size = Variable("size", 1, MOST)

    @TinyJit
    def step(n: Size) -> tuple[Tensor, Tensor]:
        weights = given["rows"][:, :n].softmax(-1)
        doubled = (given["rows"][:, :n] * 2).contiguous().realize()
        return weights.realize(), doubled.sum(-1).realize()

    for value in VALUES:
        weights, total = step(size.bind(value))
        numpy.testing.assert_allclose(weights.numpy(), softmax(ROWS[:, :value]), rtol=1e-4)
        numpy.testing.assert_allclose(
            total.numpy(), 2 * ROWS[:, :value].sum(-1), rtol=1e-4, atol=1e-4
        )


def test_groups_or_threads_are_counted_from_the_value() -> None:
    """One launch of before had a thread for each head, or one for all."""
    rows = Tensor(random(4096)).realize()
    size = Variable("size", 1, 4096)
    *_, item = lower_schedule((rows[: size.bind(4096)] * 2 + 1).schedule())

    assert isinstance(item.runner, CompiledRunner)
    info = item.runner.info
    if Device[item.runner.device].toolchain.renderer.limits.grid is None:
        return  # a processor shares longer loops among its threads
    assert info.groups([4096])[0] == info.grid[0] > 1
    assert info.groups([1]) == (1, 1, 1)
