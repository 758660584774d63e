"""`Variable` and `Size`: integers that a launch is given, in the shapes and bounds of tensors.

Floor 1. A Variable bound to a number is a Size; arithmetic on Sizes gives Sizes or plain ints. A
Size stands wherever an int may stand in a shape, an offset or a bound, and programs made for it
serve every value of its variables. So nothing may be decided by the value: a comparison is
answered where the bounds decide it for all values, and refused where they do not.
See docs/decisions/0027-symbolic-shapes.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, NoReturn, TypeGuard, cast

from tinycore._deferred import deferred
from tinycore.errors import ArgumentError, ArgumentTypeError, JitError, ShapeError
from tinycore.uop.node import Launched, UOp
from tinycore.uop.op import Op
from tinycore.uop.text import inline, register_argument

# The rules and the arithmetic of expressions are needed where sizes vary, and nowhere else.
evaluate: Final = deferred("tinycore.uop.evaluate:evaluate")
simplified: Final[Callable[[UOp], UOp]] = deferred("tinycore.uop.symbolic:simplified")

__all__ = ["Size", "Variable", "greatest", "greatest_shape", "is_size", "plain", "positive_part"]
__all__ += ["sealed", "smallest"]

Values = tuple[tuple[str, int], ...]
"""The numbers that variables are bound to, by name, in the order of the names."""


class Sealed(threading.local):
    """How many captures of this thread forbid to look at the numbers."""

    depth = 0


seals: Final = Sealed()


@contextmanager
def sealed() -> Iterator[None]:
    """Inside, `Size.value` raises JitError: a replay would not see another number."""
    seals.depth += 1
    try:
        yield
    finally:
        seals.depth -= 1


@dataclass(frozen=True)
class Variable:
    """An integer between `least` and `greatest` inclusive, which each launch is given anew.

    Bind it to a number where it is used in a shape, an offset or a bound: programs are made once
    for all numbers. Raises ArgumentError for bounds that hold no number or are negative.

    >>> from tinycore import Tensor, Variable
    >>> length = Variable("length", 1, 8)
    >>> x = Tensor.arange(8)
    >>> [x[: length.bind(n)].sum().item() for n in (1, 4, 8)]
    [0, 6, 28]
    """

    name: str
    least: int
    greatest: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ArgumentError(f"Variable: {self.name!r} is no name; kernels use it as one")
        if not 0 <= self.least <= self.greatest < 1 << 31:
            raise ArgumentError(
                f"Variable {self.name}: bounds {self.least} and {self.greatest}; "
                "they are 0 <= least <= greatest < 2**31"
            )

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.least}, {self.greatest})"

    def bind(self, value: int) -> Any:
        """A Size: this variable holding a number. For type checkers it is Any, to pass as an int.

        Raises ArgumentError for a number outside the bounds.
        """
        if not is_integer(value):
            raise ArgumentTypeError(f"bind: {self!r} takes an int, got {value!r}")
        if not self.least <= value <= self.greatest:
            raise ArgumentError(f"bind: {value} is outside the bounds of {self!r}")
        node = UOp.variable(self.name, self.least, self.greatest)
        return Size(node, ((self.name, int(value)),))


class Size(Launched):
    """An integer that is known at launch: an expression over variables, and what they hold.

    Sizes are equal when their expressions and the numbers of their variables are. A Size is never
    equal to an int: it may be that int in one launch, and another one in the next.
    """

    __slots__ = ("values",)

    values: Values

    def __init__(self, expression: UOp, values: Values) -> None:
        self.expression = expression
        self.values = values

    # --- identity

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Size):
            return NotImplemented
        return self.expression is other.expression and self.values == other.values

    def __hash__(self) -> int:
        return hash((self.expression, self.values))

    def __bool__(self) -> bool:
        return True  # as it is not equal to 0

    def __repr__(self) -> str:
        held = ", ".join(f"{name}={value}" for name, value in self.values)
        return f"{inline(self.expression)}[{held}]"

    def __reduce__(self) -> tuple[object, ...]:
        return Size, (self.expression, self.values)

    # --- facts

    @property
    def least(self) -> int:
        """The least value for any numbers of the variables."""
        return int(self.expression.vmin)

    @property
    def greatest(self) -> int:
        """The greatest value for any numbers of the variables."""
        return int(self.expression.vmax)

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables it is computed from, by name."""
        nodes = [n for n in self.expression.toposort() if n.op is Op.DEFINE_VAR]
        return {n.arg[0]: Variable(*n.arg) for n in nodes}

    @property
    def value(self) -> int:
        """The number it has now.

        Raises JitError inside a function being captured, where it would be frozen.
        """
        if seals.depth:
            raise JitError(
                f"the number that {self!r} has now was asked for inside a function being captured "
                "by TinyJit; a replay with another number would not see it. Compute with the Size "
                "itself, or pass the number as an argument of its own, for a capture per number."
            )
        return self.known()

    def known(self) -> int:
        """The number it has now, for those who must know it wherever they are."""
        variables = self.variables
        if missing := sorted(set(variables) - {name for name, _ in self.values}):
            raise ArgumentError(f"{self!r}: {', '.join(missing)} holds no number; bind it first")
        held = dict(self.values)
        environment = {
            UOp.variable(v.name, v.least, v.greatest): held[name] for name, v in variables.items()
        }
        return int(cast(int, evaluate(self.expression, environment)))

    def unbind(self) -> tuple[Variable, int]:
        """The variable and the number it holds. Raises ArgumentError for an expression."""
        if self.expression.op is not Op.DEFINE_VAR:
            raise ArgumentError(f"unbind: {self!r} is an expression, not one variable")
        return Variable(*self.expression.arg), self.known()

    def free(self) -> Size:
        """The same expression, its variables holding nothing."""
        return Size(self.expression, ())

    def holding(self, numbers: Mapping[str, int]) -> Size:
        """The same expression, its variables holding these numbers."""
        names = sorted(self.variables)
        return Size(self.expression, tuple([(n, numbers[n]) for n in names if n in numbers]))

    # --- arithmetic

    def joined(self, other: Size) -> Values:
        """The numbers of the variables of both. Raises ShapeError where they contradict."""
        if self.expression is other.expression and self.values == other.values:
            return self.values
        held = dict(self.values)
        for name, value in other.values:
            if held.setdefault(name, value) != value:
                raise ShapeError(
                    f"{name} is bound to {held[name]} in {self!r} and to {value} in {other!r}; "
                    "bind it to one number, or realize() what belongs to the other one first"
                )
        mine, theirs = self.variables, other.variables
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                raise ShapeError(
                    f"{mine[name]!r} and {theirs[name]!r} are two variables of one name"
                )
        return tuple(sorted(held.items()))

    def computed(self, op: Callable[[UOp, UOp], UOp], other: Any, swapped: bool = False) -> Any:
        """An operation with an int or another Size: a Size, or an int where it is constant."""
        if isinstance(other, Size):
            values, node = self.joined(other), other.expression
        elif is_integer(other):
            values, node = self.values, UOp.index(int(other))
        else:
            return NotImplemented
        left, right = (node, self.expression) if swapped else (self.expression, node)
        return sized(simplified(op(left, right)), values)

    def __add__(self, other: Any) -> Any:
        return self.computed(UOp.__add__, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.computed(UOp.__sub__, other)

    def __rsub__(self, other: Any) -> Any:
        return self.computed(UOp.__sub__, other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self.computed(UOp.__mul__, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self.computed(UOp.__floordiv__, nonzero(other))

    def __rfloordiv__(self, other: Any) -> Any:
        return nonzero(self).computed(UOp.__floordiv__, other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self.computed(UOp.__mod__, nonzero(other))

    def __rmod__(self, other: Any) -> Any:
        return nonzero(self).computed(UOp.__mod__, other, swapped=True)

    def __neg__(self) -> Any:
        return 0 - self

    # --- order: answered where bounds decide it

    def compared(self, other: Any, low: int, high: int, words: str) -> Any:
        """Whether self - other lies within bounds. Raises ShapeError where that varies."""
        difference = self.computed(UOp.__sub__, other)
        if difference is NotImplemented:
            return NotImplemented
        least, most = smallest(difference), greatest(difference)
        if least >= low and most <= high:
            return True
        if most < low or least > high:
            return False
        raise ShapeError(
            f"whether {self!r} {words} {other!r} differs from launch to launch: it lies in "
            f"{self.least}..{self.greatest}. Give the Variable bounds that decide it, or leave "
            "the symbolic shape: slice a tensor of greatest size, and mask"
        )

    def __lt__(self, other: Any) -> Any:
        return self.compared(other, -FAR, -1, "<")

    def __le__(self, other: Any) -> Any:
        return self.compared(other, -FAR, 0, "<=")

    def __gt__(self, other: Any) -> Any:
        return self.compared(other, 1, FAR, ">")

    def __ge__(self, other: Any) -> Any:
        return self.compared(other, 0, FAR, ">=")

    # --- where Python needs a number

    def refused(self) -> NoReturn:
        """Raises ArgumentTypeError: no number can stand for all launches."""
        raise ArgumentTypeError(
            f"a plain number is needed here, but {self!r} differs from launch to launch "
            f"({self.least}..{self.greatest}). This operation has no symbolic form: use a size "
            "that is fixed, or `.value` for the number it has now"
        )

    def __index__(self) -> int:  # noqa: PLE0305
        self.refused()

    def __int__(self) -> int:
        self.refused()

    def __float__(self) -> float:
        self.refused()

    def bit_length(self) -> int:
        """Raises ArgumentTypeError, as all that asks for one number."""
        self.refused()


FAR: Final = 1 << 62
Integral.register(Size)
register_argument(Size, lambda size: (size.expression, size.values), Size)


def is_integer(value: object) -> bool:
    """Whether something is a plain integer, a NumPy one included."""
    return isinstance(value, Integral) and not isinstance(value, (bool, Size))


def sized(expression: UOp, values: Values) -> Any:
    """A simplified expression as a Size; as an int where it is constant."""
    if expression.op is Op.CONST:
        return expression.arg
    names = {n.arg[0] for n in expression.toposort() if n.op is Op.DEFINE_VAR}
    return Size(expression, tuple([pair for pair in values if pair[0] in names]))


def nonzero(divisor: Any) -> Any:
    """A divisor. Raises ShapeError for a Size that may be 0, ZeroDivisionError for 0 itself."""
    if isinstance(divisor, Size) and divisor.least <= 0:
        raise ShapeError(f"{divisor!r} divides and may be 0; give its Variable a least value of 1")
    if not isinstance(divisor, Size) and divisor == 0:
        raise ZeroDivisionError("a Size divided by 0")
    return divisor


def is_size(value: object) -> TypeGuard[Size]:
    """Whether something is a Size; what is typed as an int may be one."""
    return isinstance(value, Size)


def smallest(size: int) -> int:
    """The least value of an int or a Size."""
    return size.least if is_size(size) else size


def greatest(size: int) -> int:
    """The greatest value of an int or a Size."""
    return size.greatest if is_size(size) else size


def greatest_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with the greatest sizes of its axes: that of the memory which holds it."""
    return tuple([greatest(n) for n in shape])


def positive_part(size: int) -> int:
    """The greater of a size and 0."""
    return size if smallest(size) >= 0 else max(size, 0)


def plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with the numbers that its Sizes have now."""
    return tuple([n.known() if is_size(n) else n for n in shape])
