"""Operators of expressions, the same for nodes and for patterns of nodes.

Floor 1. `a * 2 + b` builds a node of nodes and a pattern of patterns, so that a pattern reads like
the expression that it matches.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from tinycore.uop.op import Op

Expression = TypeVar("Expression", bound="Operators[Any]")


class Operators(Generic[Expression]):
    """Python's operators in terms of `alu` and `operand`; other operands may be Python numbers."""

    __slots__ = ()

    def alu(self, op: Op, *others: Expression) -> Expression:
        """`op(self, *others)`."""
        raise NotImplementedError

    def operand(self, other: Any) -> Expression:
        """`other` as an operand of an operation with this."""
        raise NotImplementedError

    def swapped(self, op: Op, other: Any) -> Expression:
        """`op(other, self)`."""
        result: Expression = self.operand(other).alu(op, self)
        return result

    def __add__(self, other: Any) -> Expression:
        return self.alu(Op.ADD, self.operand(other))

    def __radd__(self, other: Any) -> Expression:
        return self.swapped(Op.ADD, other)

    def __sub__(self, other: Any) -> Expression:
        return self.alu(Op.SUB, self.operand(other))

    def __rsub__(self, other: Any) -> Expression:
        return self.swapped(Op.SUB, other)

    def __mul__(self, other: Any) -> Expression:
        return self.alu(Op.MUL, self.operand(other))

    def __rmul__(self, other: Any) -> Expression:
        return self.swapped(Op.MUL, other)

    def __truediv__(self, other: Any) -> Expression:
        return self.alu(Op.FDIV, self.operand(other))

    def __floordiv__(self, other: Any) -> Expression:
        return self.alu(Op.FLOORDIV, self.operand(other))

    def __mod__(self, other: Any) -> Expression:
        return self.alu(Op.FLOORMOD, self.operand(other))

    def __neg__(self) -> Expression:
        return self.alu(Op.NEG)

    def __and__(self, other: Any) -> Expression:
        return self.alu(Op.AND, self.operand(other))

    def __or__(self, other: Any) -> Expression:
        return self.alu(Op.OR, self.operand(other))

    def __xor__(self, other: Any) -> Expression:
        return self.alu(Op.XOR, self.operand(other))

    def __lshift__(self, other: Any) -> Expression:
        return self.alu(Op.SHL, self.operand(other))

    def __rshift__(self, other: Any) -> Expression:
        return self.alu(Op.SHR, self.operand(other))

    def __lt__(self, other: Any) -> Expression:
        return self.alu(Op.CMPLT, self.operand(other))

    def __gt__(self, other: Any) -> Expression:
        return self.swapped(Op.CMPLT, other)

    def __ge__(self, other: Any) -> Expression:
        result: Expression = (self < other).logical_not()
        return result

    def __le__(self, other: Any) -> Expression:
        result: Expression = (self > other).logical_not()
        return result

    def ne(self, other: Any) -> Expression:
        """a != b as an expression; `!=` itself compares objects."""
        return self.alu(Op.CMPNE, self.operand(other))

    def eq(self, other: Any) -> Expression:
        """a == b as an expression; `==` itself compares objects."""
        return self.alu(Op.CMPEQ, self.operand(other))

    def logical_not(self) -> Expression:
        """The opposite of a bool."""
        return self.ne(True)

    def maximum(self, other: Any) -> Expression:
        """The greater of two."""
        return self.alu(Op.MAX, self.operand(other))

    def minimum(self, other: Any) -> Expression:
        """The lesser of two."""
        return self.alu(Op.MIN, self.operand(other))
