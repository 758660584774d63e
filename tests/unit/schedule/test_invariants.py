"""Replays of TinyJit(prune=True): values that never change are stored if they are dear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy
import pytest

from tiny_testing.accelerator import CORRECT
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tiny_testing.grading import accelerator
from tinycore import Tensor, TinyJit, Variable
from tinycore.uop.op import Op

CARD = replace(LIMITS, threads=1 << 10, block_wanted=64, vector_bytes=16)
Array = numpy.ndarray[Any, numpy.dtype[Any]]
Function = Callable[..., Tensor]


@pytest.fixture(params=["CARD", "PYTHON"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    parts = replace(CORRECT, name="CARD", renderer=lambda: Rewriter(CARD), limits=CARD)
    with accelerator(parts):
        yield request.param


def numbers(*shape: int, dtype: str = "float32") -> Array:
    drawn = numpy.random.default_rng(sum(shape)).integers(-8, 8, shape)
    return (drawn / (8 if dtype.startswith("float") else 1)).astype(dtype)


def replayed(device: str, function: Function, x: Array, *weights: Array) -> list[set[Op]]:
    """The ops on floats of each kernel of a replay, whose results are those of the function."""
    kept = [Tensor(w, device=device).realize() for w in weights]
    step = TinyJit(lambda x: function(x, *kept), prune=True)
    for i in range(4):
        given = Tensor(x + i, device=device).realize()
        expected = function(given, *kept).numpy()
        numpy.testing.assert_allclose(step(given).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert step.captured is not None
    asts = [item.runner.ast for item in step.captured.items]  # type: ignore[attr-defined]
    return [{n.op for n in ast.toposort() if n.dtype.kind == "float"} for ast in asts]


def test_an_exponential_of_a_weight_is_stored_once(device: str) -> None:
    (ops,) = replayed(device, lambda x, w: x * w.exp(), numbers(32, 32), numbers(32, 32))

    assert Op.EXP not in ops


def test_of_a_chain_the_last_value_that_never_changes_is_stored(device: str) -> None:
    x, w = numbers(32, 32), numbers(32, 32)
    (ops,) = replayed(device, lambda x, w: (x * (w.exp() + 1).log() + w).exp(), x, w)

    assert {Op.EXP, Op.LOG} & ops == {Op.EXP}


def test_a_cheap_value_stays_fused(device: str) -> None:
    x, w = numbers(32, 32), numbers(32, 32)
    (ops,) = replayed(device, lambda x, w: x - (w * 2 + 1) * w, x, w)

    assert Op.ADD in ops


def test_a_cast_stays_fused(device: str) -> None:
    narrow = numbers(32, 32, dtype="float16")
    (ops,) = replayed(device, lambda x, w: x * w.float(), numbers(32, 32), narrow)

    assert Op.CAST in ops


def test_a_wide_value_is_stored_before_its_cast(device: str) -> None:
    narrow = numbers(32, 32, dtype="float16")
    (ops,) = replayed(device, lambda x, w: x * w.exp().float(), numbers(32, 32), narrow)

    assert {Op.CAST, Op.EXP} & ops == {Op.CAST}


def test_a_scale_that_many_elements_read_is_stored(device: str) -> None:
    (ops,) = replayed(device, lambda x, s: x * (s * 2 + 1), numbers(64, 32), numbers(32))

    assert Op.ADD not in ops


def test_a_quantized_weight_is_read_as_it_is_by_one_row(device: str) -> None:
    quantized, scales = numbers(64, 64, dtype="int8"), numbers(64)
    ops = replayed(device, lambda x, q, s: x @ (q.float() * s), numbers(1, 64), quantized, scales)

    assert any(Op.CAST in found for found in ops)


def test_a_quantized_weight_is_unpacked_once_for_many_rows(device: str) -> None:
    quantized, scales = numbers(64, 64, dtype="int8"), numbers(64)
    ops = replayed(
        device, lambda x, q, s: x @ ((q.float() - 3) * s), numbers(64, 64), quantized, scales
    )

    assert not any(Op.CAST in found for found in ops)


def test_what_reads_the_same_weight_has_a_kernel_of_its_own(device: str) -> None:
    x, w = numbers(32, 32), numbers(32, 32)
    ops = replayed(device, lambda x, w: (w * 3).contiguous() * x + w, x, w)

    assert len(ops) == 1


def test_memory_that_the_function_writes_is_no_constant(device: str) -> None:
    state = Tensor(numbers(8), device=device).realize()
    expected = numbers(8)

    def step(x: Tensor) -> Tensor:
        state.assign(state + x)
        return (state.exp() * x).realize()

    pruned = TinyJit(step, prune=True)
    for i in range(5):
        x = numbers(8) + i
        expected = expected + x
        found = pruned(Tensor(x, device=device).realize()).numpy()
        numpy.testing.assert_allclose(found, numpy.exp(expected) * x, rtol=1e-5)


def test_numbers_of_a_variable_are_no_constants(device: str) -> None:
    weight = Tensor(numbers(16, 4), device=device).realize()
    n = Variable("n", 1, 16)
    step = TinyJit(lambda x, n: (x * weight[:n].exp().sum(0)).realize(), prune=True)

    for i in range(1, 8):
        x = Tensor(numbers(4), device=device).realize()
        found = step(x, n.bind(i)).numpy()
        expected = numbers(4) * numpy.exp(numbers(16, 4)[:i]).sum(0)
        numpy.testing.assert_allclose(found, expected, rtol=1e-5)
