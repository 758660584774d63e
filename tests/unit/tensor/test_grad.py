"""Gradients: who gets one, higher orders, and numerical checks of every rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from tests.unit.tensor.helpers import compare, numbers
from tinycore.config import Context
from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor import Tensor
from tinycore.tensor.autograd.grad import GRADIENT_RULES, STOPS
from tinycore.uop.op import ALU, COMPARISON, MOVEMENT, Op


def test_backward_fills_grad() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)

    (x * x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]


def test_backward_adds_up() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)

    for _ in range(2):
        (x * 3).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


def test_without_marks_every_living_float_gets_a_gradient() -> None:
    x = Tensor([1.0, 2.0])
    y = x * 3

    y.sum().backward()

    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad.tolist(), y.grad.tolist()) == ([3.0, 3.0], [1.0, 1.0])


def test_with_marks_only_the_marked() -> None:
    x, data = Tensor([1.0], requires_grad=True), Tensor([2.0])

    (x * data).sum().backward()

    assert x.grad is not None
    assert data.grad is None


def test_the_gradient_of_relu_needs_its_result_only() -> None:
    x = Tensor.empty(4)
    y = x.relu()
    (slope,) = (y * 2).sum().gradient(x)

    assert x.uop not in slope.uop.toposort(lambda node: node is not y.uop)


def test_the_gradient_of_relu_at_edges() -> None:
    values = [-1.0, -0.0, 0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-45]
    expected = torch.tensor(values, requires_grad=True)
    expected.relu().sum().backward()  # type: ignore[no-untyped-call]
    x = Tensor(values)
    with Context(FLUSH_SUBNORMALS=0):
        found = x.relu().sum().gradient(x)[0].tolist()

    assert expected.grad is not None
    assert found == expected.grad.tolist()


def test_layers_of_relu_store_one_value_each() -> None:
    """Nothing of before a relu is in memory until the gradient."""
    w = [Tensor.empty(64, 64).realize() for _ in range(3)]
    x = Tensor.empty(256, 64).realize()
    for weight in w:
        x = (x @ weight).relu()
    items = x.sum().gradient(*w)[0].schedule()
    large = {buffer for item in items for buffer in item.bufs if buffer.size == 256 * 64}

    assert len(large) <= 1 + 2 * len(w)  # the input, and of each layer the result and its gradient


def test_a_refused_gradient_stays_none() -> None:
    x = Tensor([1.0], requires_grad=False)

    (x * 2).sum().backward()

    assert x.grad is None
    assert x.is_param is False


def test_is_param_is_another_spelling() -> None:
    x = Tensor([1.0]).is_param_()

    assert x.requires_grad is True
    x.is_param = False
    assert x.requires_grad is False


def test_equal_constants_have_gradients_of_their_own() -> None:
    x, y = Tensor(2.0, requires_grad=True), Tensor(2.0, requires_grad=True)
    a, b = Tensor.ones(2, requires_grad=True), Tensor.ones(2, requires_grad=True)

    (x * y).backward()
    (a * b * b).sum().backward()

    assert [t.grad.tolist() for t in (x, y, a, b) if t.grad is not None] == [
        2.0,
        2.0,
        [1.0, 1.0],
        [2.0, 2.0],
    ]


def test_detach_stops_the_gradient() -> None:
    x = Tensor([3.0])

    (gradient,) = (x * x.detach()).sum().gradient(x)

    assert gradient.tolist() == [3.0]


def test_gradient_of_what_does_not_matter_is_zero() -> None:
    x, y = Tensor([1.0]), Tensor([2.0, 3.0])

    assert [g.tolist() for g in (x * 2).sum().gradient(x, y)] == [[2.0], [0.0, 0.0]]


def test_gradient_given_from_outside() -> None:
    x = Tensor([1.0, 2.0])

    (gradient,) = (x * x).gradient(x, gradient=Tensor([1.0, 10.0]))

    assert gradient.tolist() == [2.0, 40.0]


def test_reading_a_value_before_backward_changes_nothing() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()

    assert y.item() == 5.0
    y.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]


def test_higher_orders() -> None:
    x = Tensor([2.0], dtype=dtypes.float64)
    y = x * x * x * x

    derivatives = []
    for _ in range(4):
        (y,) = y.sum().gradient(x)
        derivatives.append(y.item())

    assert derivatives == [32.0, 48.0, 48.0, 24.0]


SECOND: list[Callable[[Tensor], Tensor]] = [
    Tensor.tanh,
    Tensor.sigmoid,
    Tensor.exp,
    Tensor.sin,
    Tensor.sqrt,
    lambda x: x.softmax(),
    lambda x: x.prod(),
    lambda x: x.cumprod(0),
    lambda x: x[::2],
    lambda x: x.reshape(2, 3).permute(1, 0) @ x.reshape(2, 3),
    lambda x: x.std(),
    lambda x: x.log_softmax().max(),
    lambda x: x.reshape(1, 1, 6).conv2d(x[:3].reshape(1, 1, 3), padding=1, stride=2),
    lambda x: x.reshape(1, 1, 6).conv_transpose2d(x[:3].reshape(1, 1, 3), stride=2),
    lambda x: x[[0, 0, 5]] * x[[1, 2, 3]],
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("function", SECOND, ids=range(len(SECOND)))
def test_second_derivatives_agree_with_differences(function: Callable[[Tensor], Tensor]) -> None:
    def slope(array: numpy.ndarray) -> Tensor:
        x = Tensor(array)
        y = function(x)
        weights = Tensor(numbers(*y.shape, seed=1))
        (gradient,) = (y * weights).sum().gradient(x)
        return (
            (gradient * Tensor(numbers(6, seed=2))).sum()
            if array is not start
            else second(gradient, x)
        )

    def second(gradient: Tensor, x: Tensor) -> Tensor:
        return (gradient * Tensor(numbers(6, seed=2))).sum().gradient(x)[0]

    start = numbers(6, low=0.4, high=1.6)
    exact = slope(start).numpy()
    step = 1e-6 * numpy.eye(6)
    differences = [(slope(start + d).item() - slope(start - d).item()) / 2e-6 for d in step]

    numpy.testing.assert_allclose(exact, differences, rtol=1e-5, atol=1e-6)


NEVER_FLOATS = COMPARISON | {
    *(Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD),
    *(Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR, Op.THREEFRY),
}
"""Ops whose results are bools or integers, which have no gradient whatever the op."""


@pytest.mark.parametrize("op", [op for op in Op if op in ALU | MOVEMENT], ids=repr)
def test_every_op_has_a_derivative_or_a_stated_reason_for_none(op: Op) -> None:
    assert [op in GRADIENT_RULES, op in STOPS, op in NEVER_FLOATS].count(True) == 1


def test_fanout_and_long_chains() -> None:
    x = Tensor([0.5], dtype=dtypes.float64)
    y = x
    for _ in range(3000):
        y = y * 1.0001 + 0.0

    (gradient,) = y.sum().gradient(x)

    assert gradient.item() == pytest.approx(1.0001**3000)


@pytest.mark.slow
def test_mlp_against_torch() -> None:
    labels = numpy.array([0, 2, 1, 1])

    def ours(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return (x.linear(w, b).relu() @ v).cross_entropy(Tensor(labels))

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ w + b).relu() @ v, torch.tensor(labels))

    compare(ours, theirs, numbers(4, 5), numbers(5, 6), numbers(6), numbers(6, 3))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_gradients_have_the_dtype_of_their_tensor(dtype: object) -> None:
    x = Tensor([1.0, 2.0], dtype=dtype)  # type: ignore[arg-type]

    (gradient,) = (x * x).sum().gradient(x)

    assert gradient.dtype is dtype
    assert gradient.tolist() == [2.0, 4.0]


def test_mistakes_are_told_at_the_call() -> None:
    x = Tensor([1.0, 2.0])

    with pytest.raises(GradientError, match=r"\(2,\) is not one number"):
        x.backward()
    with pytest.raises(GradientError, match="int32"):
        Tensor([1]).sum().backward()
    with pytest.raises(GradientError, match="int32"):
        x.sum().gradient(Tensor([1]))
    with pytest.raises(GradientError, match="shape"):
        x.backward(Tensor([1.0]))
    with pytest.raises(GradientError, match="requires_grad"):
        Tensor([1], requires_grad=True)


def test_computing_one_tensor_leaves_the_gradients_of_others() -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    middle = (x * x).contiguous()
    total = middle.sum(keepdim=True)

    (middle / total).realize()
    total.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_backward_of_something_realized_says_why_not() -> None:
    x = Tensor([2.0], requires_grad=True)
    y = (x * x).sum().realize()

    with pytest.raises(GradientError, match="before realize"):
        y.backward()
