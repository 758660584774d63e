"""`check_gradients` lets right derivatives pass and finds wrong ones."""

from __future__ import annotations

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tiny_testing.gradients import check_gradients
from tinycore.errors import ArgumentError, GradientError
from tinycore.tensor import Tensor


def test_right_derivatives_pass() -> None:
    check_gradients(lambda x, y: ((x @ y).tanh(), x.softmax(1)), numbers(2, 3), numbers(3, 2))


def test_a_missing_part_is_found() -> None:
    with pytest.raises(GradientError, match=r"element \(\d,\) of input 0"):
        check_gradients(lambda x: x * x.detach(), [1.0, 2.0, 3.0])


def test_the_element_that_is_wrong_is_named() -> None:
    def wrong(x: Tensor) -> Tensor:
        return Tensor([False, False, True]).where(x.detach() ** 2, x**2)

    with pytest.raises(GradientError, match=r"element \(2,\) of input 0 is 0\.0"):
        check_gradients(wrong, [1.0, 2.0, 3.0])


def test_nothing_to_check() -> None:
    with pytest.raises(ArgumentError, match="inputs"):
        check_gradients(lambda: Tensor([1.0]))
    with pytest.raises(ArgumentError, match="float"):
        check_gradients(lambda x: x.argmax(), numpy.ones(3))
