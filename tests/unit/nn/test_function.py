"""`function`: results, gradients, implicit inputs, methods, captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinycore import Tensor, TinyJit, Variable, function, nn
from tinycore.errors import ArgumentError, ArgumentTypeError, GradientError
from tinycore.nn.state import get_parameters
from tinycore.uop.node import UOp


class Scale:
    """An object whose method is a function of it."""

    def __init__(self) -> None:
        self.w = Tensor([1.0, 2.0, 3.0])

    @function
    def __call__(self, x: Tensor) -> Tensor:
        """Its name is that of the method."""
        return x * self.w


def test_arguments_are_all_inputs() -> None:
    @function
    def f(a: Tensor, b: Tensor, *, shift: int = 0) -> Tensor:
        return a + b + shift

    a = Tensor([1, 2, 3])
    assert f(a, a).tolist() == [2, 4, 6]
    assert f(a, b=Tensor([4, 5, 6]), shift=1).tolist() == [6, 8, 10]
    assert f(a + 1, a * 2).tolist() == [4, 7, 10]


def test_a_method_may_use_its_object() -> None:
    scale = Scale()
    assert scale(Tensor([1.0, 2.0, 3.0])).tolist() == [1.0, 4.0, 9.0]
    assert (Scale.__call__.__name__, Scale.__call__.__doc__) == (
        "__call__",
        "Its name is that of the method.",
    )
    scale(Tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scale.w.grad is not None
    assert scale.w.grad.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("lazy", [False, True])
def test_memory_that_is_no_argument_is_refused(lazy: bool) -> None:
    w = Tensor([1.0, 2.0]).realize()
    read = w * 2 if lazy else w
    body: Callable[[Tensor], Tensor] = lambda x: x + read  # noqa: E731
    with pytest.raises(ArgumentError, match=r"1 implicit buffer\(s\) \(2 x .*allow_implicit=True"):
        function(body)(Tensor([1.0, 2.0]))
    f = function(body, allow_implicit=True)
    assert f(Tensor([1.0, 2.0])).tolist() == ([3.0, 6.0] if lazy else [2.0, 4.0])


def test_what_is_made_within_is_no_input() -> None:
    @function
    def f(x: Tensor) -> Tensor:
        noise = Tensor.rand(2).realize() + Tensor.rand(2)
        return x + Tensor([1.0, 2.0]) + Tensor.ones(2) + Tensor.arange(2) + noise * 0

    assert f(Tensor([1.0, 1.0])).tolist() == [3.0, 5.0]


def test_views_and_lazy_values_of_an_argument_are_known() -> None:
    cache = Tensor.zeros(2, 4).contiguous().realize()

    @function
    def f(whole: Tensor, x: Tensor) -> Tensor:
        whole[:, 0:2] = x
        return whole[:, 1:3] + whole

    x = Tensor([[5.0, 6.0], [7.0, 8.0]])
    with pytest.raises(Exception, match="broadcast"):
        f(cache, x)

    @function
    def g(whole: Tensor, x: Tensor) -> Tensor:
        whole[:, 0:2] = x
        return whole[:, 1:3]

    assert g(cache, x).tolist() == [[6.0, 0.0], [8.0, 0.0]]
    assert cache.tolist() == [[5.0, 6.0, 0.0, 0.0], [7.0, 8.0, 0.0, 0.0]]


def test_other_results_are_refused() -> None:
    for result in (3, None, [Tensor([1])], (Tensor([1]), 2)):
        with pytest.raises(ArgumentTypeError, match="must return a Tensor or a tuple of them"):
            function(lambda x, result=result: result)(Tensor([1]))


def test_what_the_body_raises_passes() -> None:
    @function
    def f(x: Tensor) -> Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        f(Tensor([1]))


@pytest.mark.parametrize("options", [{}, {"precompile": True, "precompile_backward": True}])
def test_tuples_and_their_gradients(options: dict[str, Any]) -> None:
    @function(**options)
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x @ w, (x @ w) * 2

    x, w = Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])
    first, second = f(x, w)
    assert (first.item(), second.item()) == (11.0, 22.0)
    (first + second).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    assert (x.grad.tolist(), w.grad.tolist()) == ([[9.0, 12.0]], [[3.0], [6.0]])


def test_precompiled_results_are_stored() -> None:
    def kernels(precompile: bool) -> int:
        f = function(lambda x: x @ x, precompile=precompile)
        return len((f(Tensor.rand(1000, 1000).realize()) + 1).schedule())

    assert (kernels(False), kernels(True)) == (1, 2)


def test_gradients_of_the_users() -> None:
    def halves(gradient: UOp, call: UOp) -> list[UOp | None]:
        assert len(call.src) == 3
        return [gradient * 0.5, None]

    f = function(lambda x, y: x * y + x, grad_fxn=halves)
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    f(x, y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.5]
    g = function(lambda x, y: x * y, grad_fxn=lambda gradient, call: [gradient])
    with pytest.raises(GradientError, match="gave 1 results for 2 tensors"):
        g(x, y).sum().gradient(x)


def test_gradients_of_the_users_for_tuples() -> None:
    def swapped(first: UOp, second: UOp, call: UOp) -> tuple[UOp, UOp]:
        return second * 10, first

    f = function(lambda u, v: (u + 1, v + 2), grad_fxn=swapped)
    u, v = Tensor([1.0, 1.0]), Tensor([1.0, 1.0])
    first, second = f(u, v)
    (first + second * 3).sum().backward()
    assert u.grad is not None
    assert v.grad is not None
    assert (u.grad.tolist(), v.grad.tolist()) == ([30.0, 30.0], [1.0, 1.0])


def test_writes_reach_the_argument() -> None:
    @function
    def f(x: Tensor) -> Tensor:
        x += 1
        return x * 2

    a = Tensor([1, 2, 3]).realize()
    assert f(a).tolist() == [4, 6, 8]
    assert a.tolist() == [2, 3, 4]


def test_sizes_of_variables_are_arguments() -> None:
    table = Tensor([10, 20, 30, 40]).realize()

    @function
    def f(rows: Tensor, x: Tensor, at: int) -> Tensor:
        return x + rows[at]

    position = Variable("position", 0, 3)
    for at in (0, 3):
        assert f(table, Tensor([1, 2]), position.bind(at)).tolist() == [
            1 + 10 * (at + 1),
            2 + 10 * (at + 1),
        ]


@pytest.mark.slow
def test_training_with_a_function_is_training_without() -> None:
    class Net:
        def __init__(self) -> None:
            self.layers = [nn.Linear(4, 8), nn.BatchNorm(8), Tensor.relu, nn.Linear(8, 3)]

        def __call__(self, x: Tensor) -> Tensor:
            return x.sequential(self.layers)

    class Wrapped(Net):
        @function
        def __call__(self, x: Tensor) -> Tensor:
            return x.sequential(self.layers)

    def losses(kind: type[Net]) -> list[float]:
        Tensor.manual_seed(3)
        net = kind()
        optimizer = nn.optim.Adam(get_parameters(net), lr=0.05)

        @TinyJit
        @Tensor.train()
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            return loss.realize(*optimizer.schedule_step())

        x, y = Tensor.rand(16, 4), Tensor.randint(16, low=0, high=3)
        return [step(x, y).item() for _ in range(6)]

    plain, functions = losses(Net), losses(Wrapped)
    assert plain[-1] < plain[0]
    np.testing.assert_allclose(functions, plain, rtol=1e-6)


def test_functions_nest() -> None:
    w = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    inner = function(lambda x: x + w, allow_implicit=True)
    outer = function(lambda a, b: inner(a.reshape(1, 2) + b.reshape(1, 2)), allow_implicit=True)
    a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    outer(a, b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.tolist(), b.grad.tolist()) == ([2.0, 2.0], [2.0, 2.0])
