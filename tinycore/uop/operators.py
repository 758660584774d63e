"""Operators of expressions, the same for nodes and for patterns of nodes.

Floor 1. `a * 2 + b` builds a node of nodes and a pattern of patterns, so that a pattern reads like
the expression that it matches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tinycore.uop.op import Op

Expression = TypeVar("Expression", bound="Operators[Any]")


def binary(op: Op) -> Callable[[Operators[Expression], Any], Expression]:
    """The method `op(self, other)`."""

    def method(self: Operators[Expression], other: Any) -> Expression:
        return self.alu(op, self.operand(other))

    return method


def swapped(op: Op) -> Callable[[Operators[Expression], Any], Expression]:
    """The method `op(other, self)`."""

    def method(self: Operators[Expression], other: Any) -> Expression:
        result: Expression = self.operand(other).alu(op, self)
        return result

    return method


class Operators(Generic[Expression]):
    """Python's operators in terms of `alu` and `operand`; other operands may be Python numbers."""

    __slots__ = ()

    def alu(self, op: Op, *others: Expression) -> Expression:
        """`op(self, *others)`."""
        raise NotImplementedError

    def operand(self, other: Any) -> Expression:
        """`other` as an operand of an operation with this."""
        raise NotImplementedError

    __add__, __radd__ = binary(Op.ADD), swapped(Op.ADD)
    __sub__, __rsub__ = binary(Op.SUB), swapped(Op.SUB)
    __mul__, __rmul__ = binary(Op.MUL), swapped(Op.MUL)
    __truediv__ = binary(Op.FDIV)
    __floordiv__ = binary(Op.FLOORDIV)
    __mod__ = binary(Op.FLOORMOD)
    __and__ = binary(Op.AND)
    __or__ = binary(Op.OR)
    __xor__ = binary(Op.XOR)
    __lshift__ = binary(Op.SHL)
    __rshift__ = binary(Op.SHR)
    __lt__, __gt__ = binary(Op.CMPLT), swapped(Op.CMPLT)
    ne = binary(Op.CMPNE)
    """a != b as an expression; `!=` itself compares objects."""
    eq = binary(Op.CMPEQ)
    """a == b as an expression; `==` itself compares objects."""
    maximum = binary(Op.MAX)
    """The greater of two."""
    minimum = binary(Op.MIN)
    """The lesser of two."""

    def __neg__(self) -> Expression:
        return self.alu(Op.NEG)

    def __ge__(self, other: Any) -> Expression:
        result: Expression = (self < other).logical_not()
        return result

    def __le__(self, other: Any) -> Expression:
        result: Expression = (self > other).logical_not()
        return result

    def logical_not(self) -> Expression:
        """The opposite of a bool."""
        return self.ne(True)
