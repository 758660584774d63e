"""Elementwise arithmetic, comparison and selection.

Floor 5. Integers wrap, and one divided by 0 gives 0; floats follow IEEE 754. See
docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any, Literal, Self

from tinycore._deferred import numpy
from tinycore.dtype import Scalar, dtypes
from tinycore.errors import ArgumentError, DTypeError
from tinycore.tensor.checks import NUMBER_TYPES
from tinycore.tensor.interop.ufuncs import applied, called
from tinycore.tensor.methods.operands import COMPARED, Operands, no_bools, operators
from tinycore.tensor.methods.remainder import floor_quotient, remainder
from tinycore.tensor.signatures import renamed
from tinycore.uop.op import SHIFTS, Op


class Elementwise(Operands):
    """One result element per element."""

    __slots__ = ()

    # --- arithmetic

    def add(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a + b; logical or between bools.

        >>> x = Tensor([1, 2])
        >>> (x + 10).tolist(), (10 - x).tolist(), (x * Tensor([[1], [2]])).tolist()
        ([11, 12], [9, 8], [[1, 2], [2, 4]])
        """
        return self._binary("add", Op.ADD, x, reverse)

    def sub(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a - b. Raises DTypeError between bools."""
        left, right = self._pair("sub", x)
        no_bools("sub", left.dtype)
        return self._made_by(Op.SUB, *((right, left) if reverse else (left, right)))

    def mul(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a * b; logical and between bools."""
        return self._binary("mul", Op.MUL, x, reverse)

    def div(
        self,
        x: Self | Scalar,
        reverse: bool = False,
        rounding_mode: Literal["trunc", "floor"] | None = None,
    ) -> Self:
        """a / b as floats.

        With `rounding_mode` "trunc" or "floor" the quotient is rounded; integers then stay
        integers, and one divided by 0 gives 0. Raises ArgumentError for another `rounding_mode`.

        >>> x = Tensor([7, -7])
        >>> (x / 2).tolist(), x.div(2, rounding_mode="trunc").tolist(), (x // 2).tolist()
        ([3.5, -3.5], [3, -3], [3, -4])
        """
        if rounding_mode not in (None, "trunc", "floor"):
            raise ArgumentError(
                f"div: rounding_mode {rounding_mode!r} is none of None, 'trunc', 'floor'"
            )
        if rounding_mode is None and dtypes.is_float(self.dtype):
            first, second = self._pair("div", x)
            if first.dtype is self.dtype:
                return self._made_by(Op.FDIV, *((second, first) if reverse else (first, second)))
        pair = self._in_floats("div", x) if rounding_mode is None else self._broadcasted("div", x)
        left, right = reversed(pair) if reverse else pair
        if rounding_mode is None:
            return left.alu(Op.FDIV, right)
        no_bools("div", left.dtype)
        if dtypes.is_int(left.dtype):
            return left.alu(Op.FLOORDIV if rounding_mode == "floor" else Op.IDIV, right)
        return floor_quotient(left, right) if rounding_mode == "floor" else (left / right).trunc()

    def usum(self, *others: Self | Scalar) -> Self:
        """The sum of this tensor and all others, broadcast.

        >>> x, y = Tensor([1, 2]), Tensor([10, 20])
        >>> x.usum(y, 100).tolist(), x.uprod(y, 100).tolist()
        ([111, 122], [1000, 4000])
        """
        return reduce(Elementwise.add, others, self)

    def uprod(self, *others: Self | Scalar) -> Self:
        """The product of this tensor and all others, broadcast."""
        return reduce(Elementwise.mul, others, self)

    def idiv(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """floor(a / b), in the operands' dtype. An integer divided by 0 gives 0."""
        return self.div(x, reverse, rounding_mode="floor")

    def mod(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a - b * floor(a / b): the remainder with the sign of b; 0 of an integer and 0.

        >>> x = Tensor([7, -7])
        >>> (x % 3).tolist(), x.fmod(3).tolist()
        ([1, 2], [1, -1])
        """
        left, right = self._broadcasted("mod", x)
        no_bools("mod", left.dtype)
        if reverse:
            left, right = right, left
        if dtypes.is_int(left.dtype):
            return left.alu(Op.FLOORMOD, right)
        rest = left.fmod(right)
        wrong_sign = (rest.ne(0)) & ((rest < 0).ne(right < 0))
        return wrong_sign.where(rest + right, rest)

    def fmod(self, x: Self | Scalar) -> Self:
        """a - b * trunc(a / b): the remainder with the sign of a; 0 of an integer and 0.

        The remainder of floats is exact, but 0 if |a / b| reaches 2**40 (2**72 for float64).
        """
        left, right = self._broadcasted("fmod", x)
        no_bools("fmod", left.dtype)
        if dtypes.is_int(left.dtype):
            return left.alu(Op.MOD, right)
        return remainder(left._as_float(), right._as_float())

    def neg(self) -> Self:
        """-a; the opposite of a bool. Unsigned integers wrap."""
        return self.logical_not() if self.dtype is dtypes.bool else self.alu(Op.NEG)

    def abs(self) -> Self:
        """The magnitude; the derivative at 0 is 0."""
        if dtypes.is_unsigned(self.dtype) or self.dtype is dtypes.bool:
            return self
        if not dtypes.is_float(self.dtype):
            return self.alu(Op.MAX, self.neg())
        return (self < 0).where(-self, self.eq(0).where(0, self))

    __abs__ = renamed(abs)

    def reciprocal(self) -> Self:
        """1 / a as a float."""
        return self._as_float().alu(Op.RECIPROCAL)

    def maximum(self, x: Self | Scalar) -> Self:
        """The greater of two; NaN if either is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist(), Tensor([1, 5]).minimum(3).tolist()
        ([3, 5], [1, 3])
        """
        return self._binary("maximum", Op.MAX, self._limit(Op.MAX, x))

    def minimum(self, x: Self | Scalar) -> Self:
        """The lesser of two; NaN if either is NaN."""
        return self._binary("minimum", Op.MIN, self._limit(Op.MIN, x))

    def _limit(self, op: Op, x: Self | Scalar) -> Self | Scalar:
        """A limit; the last number of this dtype for an integer outside that no element is beyond.
        Raises DTypeError for one that all are beyond.
        """
        bound, is_least = self._comparable(x), op is Op.MAX
        if isinstance(bound, float) and math.isinf(bound) and bound != x:
            if (bound > 0) is is_least:
                raise DTypeError(
                    f"a limit of {x} is outside of {self.dtype!r}; cast the tensor first"
                )
            x = (dtypes.min if is_least else dtypes.max)(self.dtype)
        return x

    # --- bits

    def bitwise_and(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a & b of integers or bools. Raises DTypeError for floats.

        >>> x = Tensor([0b1100])
        >>> (x & 0b1010).tolist(), (x | 0b1010).tolist(), (x ^ 0b1010).tolist(), (~x).tolist()
        ([8], [14], [6], [-13])
        """
        return self._bitwise("bitwise_and", Op.AND, x, reverse)

    def bitwise_or(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a | b of integers or bools."""
        return self._bitwise("bitwise_or", Op.OR, x, reverse)

    def bitwise_xor(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a ^ b of integers or bools."""
        return self._bitwise("bitwise_xor", Op.XOR, x, reverse)

    def bitwise_not(self) -> Self:
        """~a of integers; the opposite of a bool."""
        if self.dtype is dtypes.bool:
            return self.logical_not()
        all_bits = -1 if not dtypes.is_unsigned(self.dtype) else int(dtypes.max(self.dtype))
        return self._bitwise("bitwise_not", Op.XOR, all_bits)

    def lshift(self, x: Self | int, reverse: bool = False) -> Self:
        """a shifted left by b bits, b modulo the width. Raises DTypeError for floats and bools.

        >>> (Tensor([1, 3]) << 2).tolist(), (Tensor([-8, 9]) >> 2).tolist()
        ([4, 12], [-2, 2])
        """
        return self._bitwise("lshift", Op.SHL, x, reverse)

    def rshift(self, x: Self | int, reverse: bool = False) -> Self:
        """a shifted right by b bits, b modulo the width, keeping the sign."""
        return self._bitwise("rshift", Op.SHR, x, reverse)

    def _bitwise(self, name: str, op: Op, x: Self | Scalar, reverse: bool = False) -> Self:
        """An op on bits. Raises DTypeError for floats, and for shifts of bools."""
        left, right = self._pair(name, x)
        if dtypes.is_float(left.dtype) or (left.dtype is dtypes.bool and op in SHIFTS):
            raise DTypeError(
                f"{name}: needs integers, got {self.dtype!r} and {self.ufix(x).dtype!r}"
            )
        return self._made_by(op, *((right, left) if reverse else (left, right)))

    # --- comparison and logic

    def eq(self, x: Self | Scalar) -> Self:
        """a == b, as bools.

        >>> x = Tensor([1, 2])
        >>> (x == 2).tolist(), (x != 2).tolist(), (x < 2).tolist()
        ([False, True], [True, False], [True, False])
        """
        return self._compared("eq", Op.CMPEQ, x)

    def ne(self, x: Self | Scalar) -> Self:
        """a != b, as bools."""
        return self._compared("ne", Op.CMPNE, x)

    def _compared(self, name: str, op: Op, x: Self | Scalar, reverse: bool = False) -> Self:
        """A comparison; of signed integers with uint64 an exact one."""
        x = self._comparable(x)
        if not self._differs_in_sign(x):
            return self._binary(name, op, x, reverse)
        left, right = (self.ufix(x), self) if reverse else (self, self.ufix(x))
        negative = (right if left.dtype is dtypes.uint64 else left) < 0
        bits = left.cast(dtypes.uint64)._binary(name, op, right.cast(dtypes.uint64))
        holds = op is Op.CMPNE or (op is Op.CMPLT and right.dtype is dtypes.uint64)
        return negative | bits if holds else negative.logical_not() & bits

    def _differs_in_sign(self, x: Self | Scalar) -> bool:
        """True if one is uint64 and the other signed, which promote to a float."""
        if not isinstance(x, Operands) or x.dtype is self.dtype:
            return False
        a, b = self.dtype, x.dtype
        return (a is dtypes.uint64 and b.kind == "int") or (b is dtypes.uint64 and a.kind == "int")

    def logical_not(self) -> Self:
        """True where a is zero (or False)."""
        if self.dtype is dtypes.bool:
            return self.alu(Op.CMPNE, self.const_like(True))
        return self.eq(0)

    def _less(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a < b, as bools; b < a when reversed."""
        return self._compared("less", Op.CMPLT, x, reverse)

    def _less_or_equal(self, x: Self | Scalar, reverse: bool = False) -> Self:
        """a <= b, as bools: false where either is NaN."""
        x = self._comparable(x)
        if self._differs_in_sign(x):
            return self._less(x, not reverse).logical_not()
        left, right = self._pair("less_or_equal", x)
        if reverse:
            left, right = right, left
        if dtypes.is_float(left.dtype):
            return self._made_by(Op.OR, left.alu(Op.CMPLT, right), left.alu(Op.CMPEQ, right))
        return self._made_by(Op.CMPLT, right, left).logical_not()

    def where(self, x: Self | Scalar, y: Self | Scalar) -> Self:
        """`x` where this bool tensor holds, else `y`, in their common dtype.

        Raises DTypeError when the condition is not bool.

        >>> x = Tensor([-1, 2])
        >>> (x > 0).where(x, 0).tolist()
        [0, 2]
        """
        if self.dtype is not dtypes.bool:
            raise DTypeError(
                f"where: the condition must be bool, got {self.dtype!r}; compare it with something"
            )
        beside = x if isinstance(x, Elementwise) else y
        if isinstance(beside, Elementwise) and self._is_like(beside, promote=True):
            other = y if beside is x else x
            if type(other) in NUMBER_TYPES or (
                isinstance(other, Elementwise) and self._is_like(other, promote=True)
            ):
                first, second = beside._pair("where", other)
                sides = (first, second) if beside is x else (second, first)
                return self._made_by(Op.WHERE, self.uop, *sides)
        yes, no = self._choices(x, y)
        condition, yes, no = self._broadcasted("where", yes, no, promote=False)
        return condition.alu(Op.WHERE, yes, no)

    def masked_fill(self, mask: Self, value: Self | Scalar) -> Self:
        """`value` where the bool mask holds, else this tensor. Raises as `where` does.

        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 0).tolist()
        [0, 2, 0]
        """
        return mask.where(value, self)

    # --- rounding

    def trunc(self) -> Self:
        """Elements rounded toward zero."""
        return self.alu(Op.TRUNC) if dtypes.is_float(self.dtype) else self

    def floor(self) -> Self:
        """Elements rounded down."""
        whole = self.trunc()
        return self if whole is self else (self < whole).where(whole - 1, whole)

    def ceil(self) -> Self:
        """Elements rounded up."""
        whole = self.trunc()
        return self if whole is self else (self > whole).where(whole + 1, whole)

    def round(self) -> Self:
        """Elements rounded to the nearest integer, halves to the even one.

        >>> x = Tensor([-2.5, 0.5, 1.5])
        >>> x.round().tolist(), x.trunc().tolist(), x.floor().tolist(), x.ceil().tolist()
        ([-2.0, 0.0, 2.0], [-2.0, 0.0, 1.0], [-3.0, 0.0, 1.0], [-2.0, 1.0, 2.0])
        """
        if not dtypes.is_float(self.dtype):
            return self
        whole = self.trunc()
        rest, half = (self - whole).abs(), whole * 0.5
        away = (rest > 0.5) | (rest.eq(0.5) & half.ne(half.trunc()))
        return away.where((self < 0).where(whole - 1, whole + 1), whole)

    # --- operators

    __neg__ = renamed(neg)
    __invert__ = renamed(bitwise_not)

    __add__, __radd__ = operators(add)
    __sub__, __rsub__ = operators(sub)
    __mul__, __rmul__ = operators(mul)
    __truediv__, __rtruediv__ = operators(div)
    __floordiv__, __rfloordiv__ = operators(idiv)
    __mod__, __rmod__ = operators(mod)
    __and__, __rand__ = operators(bitwise_and)
    __or__, __ror__ = operators(bitwise_or)
    __xor__, __rxor__ = operators(bitwise_xor)
    __lshift__, __rlshift__ = operators(lshift)
    __rshift__, __rrshift__ = operators(rshift)
    __lt__, __gt__ = operators(_less)
    __le__, __ge__ = operators(_less_or_equal)

    def __eq__(self, x: object) -> Self:  # type: ignore[override]
        return self.eq(x) if isinstance(x, COMPARED) else NotImplemented  # type: ignore[arg-type]

    def __ne__(self, x: object) -> Self:  # type: ignore[override]
        return self.ne(x) if isinstance(x, COMPARED) else NotImplemented  # type: ignore[arg-type]

    __hash__ = Operands.__hash__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return applied(self, ufunc, method, inputs, named)

    def __array_function__(
        self, function: Any, types: Iterable[type[Any]], given: Any, named: Any
    ) -> Any:
        if not all(issubclass(kind, (Elementwise, numpy.ndarray)) for kind in types):
            return NotImplemented
        return called(Elementwise, function, given, named)
