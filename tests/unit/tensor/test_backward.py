"""`backward` where the graph is hardly there."""

import pytest

from tinycore import Tensor
from tinycore.errors import GradientError


def test_sum_of_one_element_has_a_gradient() -> None:
    x = Tensor([3.0], requires_grad=True)
    x.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [1.0]


def test_realized_result_has_lost_its_graph() -> None:
    x = Tensor([3.0, 4.0], requires_grad=True)
    loss = (x * x).sum().realize()

    with pytest.raises(GradientError, match="its graph is gone"):
        loss.backward()


def test_op_without_a_derivative_says_so() -> None:
    x = Tensor([3.5], requires_grad=True)
    remainder = Tensor.from_uop(x.uop % x.uop)

    with pytest.raises(GradientError, match="FLOORMOD of floats has no derivative"):
        remainder.backward()
