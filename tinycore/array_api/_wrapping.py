"""Functions made from a row: a name, the dtypes it takes, what computes it, a docstring.

Floor 6. All of them take arrays by position only, as the standard says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tinycore.array_api._promotion import Operand, array, promote_operands
from tinycore.tensor import Tensor

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Operand, Operand], Tensor]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Tensor])


def named(function: AnyFunction, name: str, doc: str) -> AnyFunction:
    """A function under the name and with the docstring by which users know it."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def unary(name: str, kind: str, compute: Unary, doc: str) -> Unary:
    """A function of one array of a kind of dtype."""

    def function(x: Tensor, /) -> Tensor:
        return compute(array(name, x, kind))

    return named(function, name, doc)


def binary(name: str, kind: str, compute: Callable[[Tensor, Tensor], Tensor], doc: str) -> Binary:
    """A function of two operands that are broadcast together; one of them may be a number."""

    def function(x1: Operand, x2: Operand, /) -> Tensor:
        left, right = promote_operands(name, kind, x1, x2)
        return compute(left, right)

    return named(function, name, doc)
