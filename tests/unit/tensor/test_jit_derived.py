"""Captured functions of tensors of derived classes: what these override, their attributes, and the
classes of results.
"""

from __future__ import annotations

from typing import Any, Self

import pytest

from tinycore import Tensor, TinyJit
from tinycore.errors import JitError


class Scaled(Tensor):
    scale: float

    def relu(self) -> Self:
        return self * 3

    def scaled(self) -> Self:
        return self * self.scale


def scaled(number: float, scale: float = 2.0) -> Scaled:
    """A realized tensor with an attribute."""
    x = Scaled([number]).realize()
    x.scale = scale
    return x


def test_a_replay_computes_what_the_class_overrides() -> None:
    step = TinyJit(lambda x: x.relu().realize())

    assert [step(scaled(n)).tolist() for n in range(5)] == [[3.0 * n] for n in range(5)]
    assert [step(Tensor([n]).realize()).tolist() for n in (-1.0, 2.0, 3.0)] == [[0.0], [2.0], [3.0]]


def test_results_keep_their_class() -> None:
    step = TinyJit(lambda x, y: (Tensor.realize(a := x.relu(), b := y + 1), [a, b])[1])

    kinds = [list(map(type, step(scaled(n), Tensor([1.0]).realize()))) for n in range(5)]

    assert kinds == [[Scaled, Tensor]] * 5
    assert step.captured is not None


def test_attributes_of_an_argument_are_read_and_compared() -> None:
    step = TinyJit(lambda x: x.scaled().realize())

    assert [step(scaled(1.0)).tolist() for _ in range(4)] == [[2.0]] * 4
    assert [step(scaled(1.0, 5.0)).tolist() for _ in range(4)] == [[5.0]] * 4


def test_an_attribute_that_is_set_in_a_captured_function_is_refused() -> None:
    def turning(x: Any) -> Any:
        x.scale = -x.scale
        return x.scaled().realize()

    step, x = TinyJit(turning), scaled(1.0)

    assert [step(x).tolist() for _ in range(2)] == [[-2.0], [2.0]]
    with pytest.raises(JitError, match=r"set an attribute of its argument \[0\]"):
        step(x)
