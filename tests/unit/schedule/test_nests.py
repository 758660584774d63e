"""Kernels of like regions are made once, and are the kernels of these very regions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tinycore import Tensor
from tinycore._lru import Lru
from tinycore.schedule import nests
from tinycore.schedule.nests import KernelGroups
from tinycore.uop.node import UOp

DEVICE = "PYTHON"


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Kernels that are lowered on their own, with no nests known at the start."""
    found: list[object] = []
    original = KernelGroups.loop_nest

    def noted(self: KernelGroups, group: object, *rest: object) -> UOp:
        found.append(group)
        return original(self, group, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(nests, "nests", Lru(1024))
    monkeypatch.setattr(KernelGroups, "loop_nest", noted)
    return found


def tensor(*values: float) -> Tensor:
    return Tensor(list(values), device=DEVICE).realize()


def test_equal_layers_are_made_once(made: list[object]) -> None:
    inputs = [tensor(n, -2.0, 3.0) for n in (0.5, 2.5, -3.5)]
    results = [(x * 1.5).maximum(0.25).contiguous() for x in inputs]

    expected = [[max(v * 1.5, 0.25) for v in (n, -2.0, 3.0)] for n in (0.5, 2.5, -3.5)]
    np.testing.assert_allclose([r.numpy() for r in results], expected, rtol=1e-6)
    assert len(made) == 1


def test_equal_steps_of_two_writes_are_made_once(made: list[object]) -> None:
    pairs = [(tensor(n, 2.0), tensor(1.0, n)) for n in (0.5, 3.0)]
    for moment, weight in pairs:
        moment.assign(moment * 0.5 + 1)
        weight.assign(weight - moment)
    Tensor.realize(*(x for pair in pairs for x in pair))

    assert [weight.tolist() for _, weight in pairs] == [[-0.25, -1.5], [-1.5, 1.0]]
    assert len(made) == 1


DIFFERENT: list[tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = [
    (lambda a, b: a - b, lambda a, b: b - a),
    (lambda a, b: a * 2 + 3, lambda a, b: a * 2 + 2),
    (lambda a, b: a * a + b, lambda a, b: a * b + b),
    (lambda a, b: a.cast("int32") + 2, lambda a, b: a.cast("int32") + 3),
    (lambda a, b: a.reshape(3, 1) + b, lambda a, b: a + b.reshape(3, 1)),
    (lambda a, b: a.flip(0) + b, lambda a, b: a + b),
    (lambda a, b: a[:2] + b[1:], lambda a, b: a[1:] + b[:2]),
    (lambda a, b: (a * 3).sum() + b, lambda a, b: (a * 3).max() + b),
    (lambda a, b: a * 1.5, lambda a, b: a * math.nan),
    (lambda a, b: a * 1.5, lambda a, b: a * math.inf),
    (lambda a, b: a * 1.5 + 0.25, lambda a, b: a * 0.0 + 0.25),
    (lambda a, b: (a > 0).where(2.5, b), lambda a, b: (a > 0).where(b, 2.5)),
]


@pytest.mark.parametrize("pair", DIFFERENT)
def test_what_differs_is_told_apart(
    pair: tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]],
) -> None:
    values = [1.0, -2.0, 3.0], [0.5, 4.0, -1.0]
    together = [f(tensor(*values[0]), tensor(*values[1])).numpy() for f in pair]
    alone = []
    for f in pair:
        nests.nests.clear()
        alone.append(f(tensor(*values[0]), tensor(*values[1])).numpy())

    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_zeros_of_either_sign_have_kernels_of_their_own() -> None:
    x = tensor(1.0, 2.0)

    signs = [math.copysign(1.0, (x > 0.5).where(zero, 1.0).tolist()[1]) for zero in (0.0, -0.0)]

    assert signs == [1.0, -1.0]


def test_the_one_unused_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nests.nests, "capacity", 2)
    for size in (2, 3, 2, 4, 5):
        (tensor(*range(size)) + 2.5).realize()

    assert len(nests.nests) == 2
