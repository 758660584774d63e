"""Subclasses of Tensor: what they override is what other methods and operators call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinycore import Tensor

Expression = Callable[[Any], Any]
CALLED: dict[str, Expression] = {
    "neg": lambda x: -x,
    "abs": abs,
    "bitwise_not": lambda x: ~x,
    "reshape": lambda x: x.view(2, 1),
    "clamp": lambda x: x.clip(0, 1),
    "silu": lambda x: x.swish(),
    "add": lambda x: x + 1,
    "sub": lambda x: x - 1,
    "mul": lambda x: x * 2,
    "div": lambda x: x / 2,
    "idiv": lambda x: x // 2,
    "mod": lambda x: x % 2,
    "pow": lambda x: x**2,
    "matmul": lambda x: x @ x,
    "bitwise_and": lambda x: x & 1,
    "bitwise_or": lambda x: x | 1,
    "bitwise_xor": lambda x: x ^ 1,
    "lshift": lambda x: x << 1,
    "rshift": lambda x: x >> 1,
    "eq": lambda x: x == 1,
    "ne": lambda x: x != 1,
}
"""An expression that calls a method by another name."""


@pytest.mark.parametrize("name", CALLED)
def test_another_name_of_a_method_calls_what_overrides_it(name: str) -> None:
    calls = []

    def override(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(name)
        return getattr(Tensor, name)(self, *given, **named)

    x: Any = type("Below", (Tensor,), {name: override})([1, 2])
    CALLED[name](x)

    assert calls == [name]


def reversed_operators() -> list[tuple[str, Expression]]:
    """Methods behind operators whose left operand is a number."""
    return [
        ("add", lambda x: 1 + x),
        ("sub", lambda x: 1 - x),
        ("mul", lambda x: 2 * x),
        ("div", lambda x: 2 / x),
        ("idiv", lambda x: 2 // x),
        ("mod", lambda x: 2 % x),
        ("pow", lambda x: 2**x),
    ]


@pytest.mark.parametrize(("name", "expression"), reversed_operators())
def test_a_number_on_the_left_calls_what_overrides_a_method(
    name: str, expression: Expression
) -> None:
    calls = []

    def override(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(name)
        return getattr(Tensor, name)(self, *given, **named)

    expression(type("Below", (Tensor,), {name: override})([1, 2]))

    assert calls == [name]


IN_PLACE = {
    "idiv": "__ifloordiv__",
    "mod": "__imod__",
    "matmul": "__imatmul__",
    "bitwise_and": "__iand__",
    "bitwise_or": "__ior__",
    "bitwise_xor": "__ixor__",
    "lshift": "__ilshift__",
    "rshift": "__irshift__",
}
"""Operators in place, by the methods behind them."""


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_operator_in_place_calls_what_overrides_a_method(name: str) -> None:
    def override(self: Any, *_: Any, **__: Any) -> Any:
        return self * 0 + 7

    x: Any = type("Below", (Tensor,), {name: override})([[1, 2], [3, 4]])

    assert getattr(x, IN_PLACE[name])(x).tolist() == [[7, 7], [7, 7]]


class Doubled(Tensor):
    """A tensor whose `exp` is twice as great."""

    __slots__ = ()

    def exp(self) -> Any:
        return super().exp() * 2


class Attributed(Tensor):
    """A tensor that may have attributes, and so methods of its own."""


def test_calls_of_other_classes_are_no_templates_of_each_other() -> None:
    """Methods are traced once for tensors alike, whose class is a part of that."""
    numbers = [1.0, 2.0, 3.0]
    plain, other = Tensor(numbers).logsumexp().item(), Doubled(numbers).logsumexp().item()
    assert plain != other

    for _ in range(4):
        assert Tensor(numbers).realize().logsumexp().item() == plain
        found = Doubled(numbers).realize().logsumexp()
        assert (type(found), found.item()) == (Doubled, other)


def test_a_method_of_one_tensor_is_called_by_others() -> None:
    for number in range(5):
        x: Any = Attributed([1.0, 2.0]).realize()
        if number == 4:
            x.sum = lambda axis, keepdim: Tensor([10.0])
        assert x.mean().item() == (5.0 if number == 4 else 1.5)


def test_a_method_that_is_replaced_is_called_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x, exp = Tensor([1.0, 2.0]).realize(), Tensor.exp
    before = [x.logsumexp().item() for _ in range(4)]
    monkeypatch.setattr(Tensor, "exp", lambda self: exp(self) * 2)
    assert x.logsumexp().item() > before[0] + 0.5
    monkeypatch.undo()

    assert x.logsumexp().item() == before[0]
