"""Symbolic sizes: `Variable` and `Size`, integers known at launch, in shapes and bounds.

Floor 1. A Variable bound to a number is a Size; arithmetic on Sizes gives Sizes or plain ints. A
Size stands wherever an int may stand in a shape, an offset or a bound, and programs made for it
serve every value of its variables. A comparison is answered by the bounds where they decide it for
all values, else by the numbers that the variables hold: the answer is a condition, which whoever
keeps what follows from it checks again for other numbers (`noting`).
See docs/decisions/0027-symbolic-shapes.md.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral
from typing import Any, Final, NamedTuple, NoReturn, TypeGuard, cast

from tinycore._deferred import deferred
from tinycore._locks import replaced
from tinycore._tracebacks import shown_at_caller
from tinycore.dtype import DType, DTypeLike, dtypes, integer_for, to_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError, JitError, ShapeError
from tinycore.uop.node import Launched, UOp
from tinycore.uop.op import Op
from tinycore.uop.text import inline, register_argument

# The rules and the arithmetic of expressions are needed where sizes vary, and nowhere else.
evaluate: Final = deferred("tinycore.uop.evaluate:evaluate")
simplified: Final[Callable[[UOp], UOp]] = deferred("tinycore.uop.symbolic:simplified")

Values = tuple[tuple[str, int], ...]
"""The numbers that variables are bound to, in the order of the names of their nodes."""

HOLDS: Final = "="
"""Separator between a variable's name and its number, in the name of a bound node."""
APART: Final = "#"
"""Separator before the number that distinguishes variables of the same name."""
GIVEN_MARK: Final = "@"
"""Mark before the number of a binding that a captured function is given."""
MARKS: Final = {ord(mark): f"%{ord(mark):02X}" for mark in f"%{HOLDS}{APART}{GIVEN_MARK}"}


class Sealed(threading.local):
    """Count of open captures of this thread that forbid reading the numbers."""

    depth = 0


seals: Final = Sealed()


@contextmanager
def sealed() -> Iterator[None]:
    """Inside, `Size.value` raises JitError: a replay would not see another number."""
    with replaced(seals, "depth", seals.depth + 1):
        yield


# --- conditions


class Condition(NamedTuple):
    """A comparison of two sizes, decided by the numbers that variables held.

    The answer is `truth`, where `difference` less than `low` or more than `high` means no.
    """

    left: Size | int
    sign: str
    right: Size | int
    difference: Size
    low: float
    high: float
    truth: bool

    def holds(self, numbers: Mapping[str, int]) -> bool:
        """True if the answer is the same for other numbers, by the names of nodes."""
        value = self.difference.holding(numbers).known()
        return (self.low <= value <= self.high) is self.truth

    def told(self, numbers: Mapping[str, int]) -> str:
        """The comparison, and the numbers for which it was decided, as text."""
        left, right = (str(n.free()) if is_size(n) else str(n) for n in (self.left, self.right))
        found = f"{left} {self.sign} {right}"
        names = [n.arg[0] for n in variables_in(self.difference.expression)]
        held = ", ".join(f"{shown_name(n)}={numbers[n]}" for n in names if n in numbers)
        return f"{found if self.truth else f'not {found}'}, and here {held}"


Conditions = dict[Condition, None]


class Noting(threading.local):
    """The recordings of conditions that are open in this thread."""

    def __init__(self) -> None:
        self.open: list[Conditions] = []


notes: Final = Noting()


@contextmanager
def noting() -> Iterator[Conditions]:
    """Inside, what comparisons find out about numbers is added to the dict that this gives."""
    found: Conditions = {}
    with replaced(notes, "open", [*notes.open, found]):
        yield found


# --- variables


Operation = Callable[[UOp, UOp], UOp]
QUOTIENTS: Final = (UOp.__floordiv__, UOp.__mod__)


def operator(op: Operation, swapped: bool = False) -> Callable[[Any, Any], Any]:
    """The method of an operator of `Arithmetic`."""

    def method(size: Arithmetic, other: Any) -> Any:
        return size.computed(op, other, swapped)

    return method


class Arithmetic:
    """Python's operators in terms of `computed`; those of `uop/operators.py` are of nodes alone."""

    __slots__ = ()

    def computed(self, op: Operation, other: Any, swapped: bool = False) -> Any:
        """`op(self, other)`, or `op(other, self)` where they are swapped."""
        raise NotImplementedError

    __add__ = __radd__ = operator(UOp.__add__)
    __sub__, __rsub__ = operator(UOp.__sub__), operator(UOp.__sub__, swapped=True)
    __mul__ = __rmul__ = operator(UOp.__mul__)
    __floordiv__, __rfloordiv__ = (
        operator(UOp.__floordiv__),
        operator(UOp.__floordiv__, swapped=True),
    )
    __mod__, __rmod__ = operator(UOp.__mod__), operator(UOp.__mod__, swapped=True)

    def __neg__(self) -> Any:
        return 0 - self


@dataclass(frozen=True)
class Variable(Arithmetic):
    """An integer between `least` and `greatest` inclusive, which is bound anew for each launch.

    Bind it to a number where it is used in a shape, an offset or a bound: programs are made once
    for all numbers. Arithmetic on it gives an expression that holds no number, whose bounds can be
    asked for. `dtype` must be of integers and hold the bounds; launches take index integers. Raises
    ArgumentError for bounds that hold no number or are negative.

    >>> from tinycore import Tensor, Variable
    >>> length = Variable("length", 1, 8)
    >>> x = Tensor.arange(8)
    >>> [x[: length.bind(n)].sum().item() for n in (1, 4, 8)]
    [0, 6, 28]
    >>> (length * 2 + 1).greatest
    17
    """

    name: str
    least: int
    greatest: int
    dtype: DTypeLike | None = field(default=None, compare=False)

    @shown_at_caller
    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name:
            raise ArgumentError(f"Variable: a name is a text, got {self.name!r}")
        if not (is_integer(self.least) and is_integer(self.greatest)):
            raise ArgumentTypeError(
                f"Variable {self.name}: bounds are ints, got {self.least!r} and {self.greatest!r}"
            )
        if not 0 <= self.least <= self.greatest < 1 << 31:
            raise ArgumentError(
                f"Variable {self.name}: bounds {self.least} and {self.greatest}; "
                "they are 0 <= least <= greatest < 2**31"
            )
        if self.dtype is not None:
            dtype = to_dtype(self.dtype)
            if not dtypes.is_int(dtype) or self.greatest > dtypes.max(dtype):
                raise DTypeError(f"{self!r}: {dtype!r} does not hold its numbers; leave dtype out")

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
        name = f"{self.name.translate(MARKS)}{HOLDS}{int(value)}"
        return Size(UOp.variable(name, self.least, self.greatest), ((name, int(value)),))

    @property
    def unbound(self) -> Size:
        """The variable as an expression that holds no number."""
        return Size(UOp.variable(self.name.translate(MARKS), self.least, self.greatest), ())

    def computed(self, op: Operation, other: Any, swapped: bool = False) -> Any:
        """An operation on the expression, with an int, a Size or another Variable."""
        beside = other.unbound if isinstance(other, Variable) else other
        return self.unbound.computed(op, beside, swapped)


def integer_of(*numbers: Any) -> DType:
    """The default integer, or int64 where it may not hold some numbers."""
    return integer_for(*map(smallest, numbers), *map(greatest, numbers))


def shown_name(name: str) -> str:
    """The name of a node as its variable was called, with a number if the name is not unique."""
    for mark in (HOLDS, GIVEN_MARK):
        name = name.partition(mark)[0]
    base, apart, number = name.partition(APART)
    return unescaped(base) + apart + number


def unescaped(name: str) -> str:
    """A name without the escapes of `MARKS`."""
    for mark, escape in reversed(MARKS.items()):
        name = name.replace(escape, chr(mark))
    return name


def variable_of(node: UOp) -> Variable:
    """The Variable that a DEFINE_VAR is named for."""
    name, least, most = node.arg
    for mark in (HOLDS, GIVEN_MARK, APART):
        name = name.partition(mark)[0]
    return Variable(unescaped(name), least, most)


@lru_cache(4096)
def variables_in(expression: UOp) -> tuple[UOp, ...]:
    """The DEFINE_VARs in an expression, in the order in which a walk meets them."""
    return tuple(expression.every(Op.DEFINE_VAR))


@lru_cache(4096)
def renamed(expression: UOp, exchange: tuple[tuple[UOp, UOp], ...]) -> UOp:
    """An expression over other variables, in the normal form that it has over those."""
    return simplified(expression.substitute(dict(exchange)))


@lru_cache(4096)
def combined(op: Callable[[UOp, UOp], UOp], left: UOp, right: UOp) -> UOp:
    """The normal form of an operation: programs compute the same sizes again and again."""
    return simplified(op(left, right))


class Size(Arithmetic, Launched):
    """An integer that is known at launch: an expression over variables, and what they hold.

    Sizes are equal when their expressions and the numbers of their variables are. A Size is never
    equal to an int: it may be that int in one launch, and another one in the next.
    """

    __slots__ = ("number", "values")

    values: Values
    number: int | None
    """Its number, once it was read."""

    def __init__(self, expression: UOp, values: Values) -> None:
        self.expression = expression
        self.values = values
        self.number = None

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
        found = displayed(self)
        held = ", ".join(f"{name}={value}" for name, value in found.values)
        return f"{inline(found.expression)}[{held}]" if held else inline(found.expression)

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
        found = map(variable_of, variables_in(self.expression))
        return {variable.name: variable for variable in found}

    @property
    def value(self) -> int:
        """The present number.

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
        """The present number, readable also during a capture."""
        if self.number is None:
            held = dict(self.values)
            nodes = variables_in(self.expression)
            if missing := sorted({shown_name(n.arg[0]) for n in nodes if n.arg[0] not in held}):
                raise ArgumentError(
                    f"{self!r}: {', '.join(missing)} holds no number; bind it first"
                )
            environment = {n: held[n.arg[0]] for n in nodes}
            self.number = int(cast(int, evaluate(self.expression, environment)))
        return self.number

    def unbind(self) -> tuple[Variable, int]:
        """The variable and the number it holds. Raises ArgumentError for an expression."""
        if self.expression.op is not Op.DEFINE_VAR:
            raise ArgumentError(f"unbind: {self!r} is an expression, not one variable")
        return variable_of(self.expression), self.known()

    def free(self) -> Size:
        """The same expression, with its variables unbound."""
        return Size(self.expression, ())

    def holding(self, numbers: Mapping[str, int]) -> Size:
        """The same expression, with its variables bound to these numbers, by the names of nodes."""
        names = sorted(n.arg[0] for n in variables_in(self.expression))
        return Size(self.expression, tuple([(n, numbers[n]) for n in names if n in numbers]))

    def over(self, exchange: Mapping[UOp, UOp], numbers: Mapping[str, int]) -> Size:
        """The same expression over other variables; all that are not in `numbers` keep theirs."""
        nodes = variables_in(self.expression)
        pairs = tuple([(n, exchange[n]) for n in nodes if exchange.get(n, n) is not n])
        expression = renamed(self.expression, pairs) if pairs else self.expression
        return Size(expression, ()).holding({**dict(self.values), **numbers})

    # --- arithmetic

    def joined(self, other: Size) -> Values:
        """The numbers of the variables of both."""
        return tuple(sorted({*self.values, *other.values}))

    def computed(self, op: Operation, other: Any, swapped: bool = False) -> Any:
        """An operation with an int or another Size: a Size, or an int where it is constant.

        Raises DTypeError for a Size that may be beyond int64, in which launches compute it.
        """
        found = self.combined(op, other, swapped)
        if is_size(found) and (
            found.least == dtypes.int64.min or found.greatest == dtypes.int64.max
        ):
            raise DTypeError(f"{found!r} may exceed int64; give its Variables tighter bounds")
        return found

    def combined(self, op: Operation, other: Any, swapped: bool = False) -> Any:
        """The same, whatever its bounds."""
        if op in QUOTIENTS:
            check_divisor(self if swapped else other)
        if type(other) is int:
            values, node = self.values, UOp.index(other)
        elif isinstance(other, Size):
            values, node = self.joined(other), other.expression
        elif is_integer(other):
            values, node = self.values, UOp.index(int(other))
        else:
            return NotImplemented
        left, right = (node, self.expression) if swapped else (self.expression, node)
        return sized(combined(op, left, right), values)

    # --- order: answered by the bounds, else by the numbers, which is a condition

    def compared(self, other: Any, low: float, high: float, sign: str) -> Any:
        """True if self - other lies within bounds.

        Raises ArgumentError where that varies, and no number is held.
        """
        difference = self.combined(UOp.__sub__, other)
        if difference is NotImplemented:
            return NotImplemented
        least, most = smallest(difference), greatest(difference)
        if is_integer(other):  # which may be too far away for the difference to be in int64
            least, most = self.least - int(other), self.greatest - int(other)
        if least >= low and most <= high:
            return True
        if most < low or least > high:
            return False
        truth = low <= difference.known() <= high
        for found in notes.open:
            found[Condition(self, sign, other, difference.free(), low, high, truth)] = None
        return truth

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


FAR: Final = math.inf
Integral.register(Size)
register_argument(Size, lambda size: (size.expression, size.values))


def is_integer(value: object) -> bool:
    """True if a value is a plain integer, a NumPy one included."""
    return isinstance(value, Integral) and not isinstance(value, (bool, Size))


def displayed(size: Size) -> Size:
    """A Size over variables of the names that a message shows, told apart where there are more."""
    names: dict[str, UOp] = {}
    exchange: dict[UOp, UOp] = {}
    for node in variables_in(size.expression):
        name = base = shown_name(node.arg[0])
        while names.setdefault(name, node) is not node:
            name = f"{base}{APART}{len(names)}"
        exchange[node] = UOp.variable(name, *node.arg[1:])
    held = dict(size.values)
    numbers = {new.arg[0]: held[old.arg[0]] for old, new in exchange.items() if old.arg[0] in held}
    return size.over(exchange, numbers)


def sized(expression: UOp, values: Values) -> Any:
    """A simplified expression as a Size; as an int where it is constant."""
    if expression.op is Op.CONST:
        return expression.arg
    names = {n.arg[0] for n in variables_in(expression)}
    return Size(expression, tuple([pair for pair in values if pair[0] in names]))


def check_divisor(divisor: Any) -> None:
    """Raises ShapeError for a Size that may be 0, ZeroDivisionError for 0 itself."""
    if isinstance(divisor, Size) and divisor.least <= 0:
        raise ShapeError(f"{divisor!r} divides and may be 0; give its Variable a least value of 1")
    if not isinstance(divisor, Size) and divisor == 0:
        raise ZeroDivisionError("a Size divided by 0")


def is_size(value: object) -> TypeGuard[Size]:
    """True if a value is a Size; a value typed as an int may be one."""
    return isinstance(value, Size)


def are_ints(values: Iterable[object]) -> bool:
    """True if all values are plain ints: none is a Size, a bool or a number of NumPy."""
    return INTS.issuperset(map(type, values))


INTS: Final = frozenset({int})


def smallest(size: int) -> int:
    """The least value of an int or a Size."""
    return size.least if is_size(size) else size


def greatest(size: int) -> int:
    """The greatest value of an int or a Size."""
    return size.greatest if is_size(size) else size


def greatest_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with the greatest sizes of its axes: that of the memory which holds it."""
    return tuple([greatest(n) for n in shape])


def same_number(left: int, right: int) -> bool:
    """True if two sizes are equal now: by their expressions, else by their present numbers."""
    if left == right:
        return True
    return bool(is_size(left) or is_size(right)) and left >= right and left <= right


def quotient(sizes: Iterable[int], divisors: Iterable[int]) -> int:
    """The quotient of two products of sizes, common factors canceled."""
    left, below = list(sizes), []
    for divisor in divisors:
        if divisor in left:
            left.remove(divisor)
        else:
            below.append(divisor)
    return math.prod(left) // math.prod(below)


def known_number(size: int) -> int:
    """The number that a size has now; that it has this one is a condition."""
    if not is_size(size):
        return size
    number = size.known()
    same_number(cast(int, size), number)  # notes the condition
    return number


def positive_part(size: int) -> int:
    """The greater of a size and 0."""
    return size if smallest(size) >= 0 else max(size, 0)


def plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with its Sizes replaced by their present numbers."""
    return tuple([n.known() if is_size(n) else n for n in shape])
