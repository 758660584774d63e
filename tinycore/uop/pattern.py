"""Patterns, rules and rule sets, and their compilation to Python functions.

Floor 1. A pattern looks like the expression it matches: `(x * a) // b`. A `RuleSet` collects named
functions, each under a pattern, and turns them, per op and at first use, into one Python function
of nested `if`s that tries them in order of definition. docs/write-a-rule.md shows how to write one,
docs/decisions/0011-compiled-matchers.md has the measurements behind this form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tinycore.dtype import DType, Scalar
from tinycore.errors import ArgumentError
from tinycore.uop.matcher import ANY_ARGUMENT, ROOT, Matcher, compile_matcher
from tinycore.uop.node import UOp
from tinycore.uop.op import COMMUTATIVE, Op
from tinycore.uop.operators import Operators

Condition: TypeAlias = Callable[[UOp], bool]
RuleFunction: TypeAlias = Callable[..., UOp | None]
Tell: TypeAlias = Callable[["Rule", UOp, UOp], None]
Function = TypeVar("Function", bound=RuleFunction)

if TYPE_CHECKING:

    class Const(UOp):
        """The node that a `const` pattern captures, for annotations: its argument is a number."""

        arg: int

else:
    Const = UOp

INTEGER: Final = ("int", "uint", "index")
"""Kinds whose arithmetic is exact, apart from wrapping."""


@dataclass(frozen=True, eq=False)
class Pattern(Operators["Pattern"]):
    """Pattern of a node: each field left at its default allows everything.

    The same `name` twice in one pattern stands for one and the same node.
    """

    name: str | None = None
    ops: frozenset[Op] | None = None
    src: tuple[Pattern, ...] | None = None
    rest: Pattern | None = None
    """Pattern of every source after `src`; without it there are exactly as many as in `src`."""
    dtypes: tuple[DType, ...] = ()
    kinds: tuple[str, ...] = ()
    arg: Any = ANY_ARGUMENT
    when: Condition | None = None
    ordered: bool = False
    """True if the sources of a commutative op are tried only as written."""

    def __repr__(self) -> str:
        what = (
            self.name or "_" if self.ops is None else "|".join(sorted(op.name for op in self.ops))
        )
        argument = "" if self.arg is ANY_ARGUMENT else f"[{self.arg}]"
        inner = "" if self.src is None else f"({', '.join(map(repr, self.src))})"
        return what + argument + inner

    def named(self, name: str) -> Pattern:
        """The same pattern, capturing the node it matches."""
        return with_fields(self, name=name)

    @property
    def commutes(self) -> bool:
        """True if the two sources are also tried in exchanged order."""
        two = self.src is not None and len(self.src) == 2 and self.rest is None
        return two and not self.ordered and self.ops is not None and self.ops <= COMMUTATIVE

    @property
    def is_anything(self) -> bool:
        """True if every node matches."""
        return not (self.ops or self.src or self.dtypes or self.kinds or self.when) and (
            self.arg is ANY_ARGUMENT
        )

    def with_src(self, src: tuple[Pattern, ...]) -> Pattern:
        """The same pattern over other sources, to be tried only as written."""
        return with_fields(self, src=src, ordered=True)

    def matches(self, node: UOp) -> bool:
        """True if a node matches this pattern, which has no sources: the slow way, for `rest`."""
        return (
            (self.ops is None or node.op in self.ops)
            and (not self.dtypes or node.dtype in self.dtypes)
            and (not self.kinds or node.dtype.kind in self.kinds)
            and (self.arg is ANY_ARGUMENT or node.arg == self.arg)
            and (self.when is None or self.when(node))
        )

    def captures(self) -> Iterator[str]:
        """The names of this pattern and of those inside."""
        if self.name is not None:
            yield self.name
        for inner in self.src or ():
            yield from inner.captures()

    def alu(self, op: Op, *others: Pattern | Scalar) -> Pattern:
        """The pattern of `op` over this one and others."""
        return Pattern(ops=frozenset({op}), src=(self, *map(as_pattern, others)))

    def operand(self, other: Pattern | Scalar) -> Pattern:
        """A pattern from itself or from a number."""
        return as_pattern(other)

    def where(self, yes: Pattern | Scalar, no: Pattern | Scalar) -> Pattern:
        """`yes` where this bool holds, else `no`."""
        return self.alu(Op.WHERE, yes, no)

    def cast(self, name: str | None = None) -> Pattern:
        """This value converted to any dtype; `name` captures the CAST."""
        return with_fields(self.alu(Op.CAST), name=name)


def with_fields(pattern: Pattern, **changes: Any) -> Pattern:
    """The pattern with some fields changed."""
    return Pattern(**({slot: getattr(pattern, slot) for slot in Pattern.__match_args__} | changes))


def var(
    name: str | None = None,
    *,
    dtype: DType | Iterable[DType] = (),
    kind: str | Iterable[str] = (),
    when: Condition | None = None,
) -> Pattern:
    """Any node, of one of the dtypes and kinds if they are given, for which `when` holds."""
    return Pattern(name, dtypes=as_tuple(dtype, DType), kinds=as_tuple(kind, str), when=when)


def const(
    name: str | None = None,
    *,
    dtype: DType | Iterable[DType] = (),
    kind: str | Iterable[str] = (),
    arg: Any = ANY_ARGUMENT,
    when: Condition | None = None,
) -> Pattern:
    """A scalar CONST; `arg` compares by `==`, so 1 also stands for 1.0 and for True."""
    return node(Op.CONST, name=name, dtype=dtype, kind=kind, arg=arg, when=when, rest=var())


def node(
    ops: Op | Iterable[Op] | None,
    *src: Pattern | Scalar,
    name: str | None = None,
    dtype: DType | Iterable[DType] = (),
    kind: str | Iterable[str] = (),
    arg: Any = ANY_ARGUMENT,
    when: Condition | None = None,
    rest: Pattern | None = None,
    ordered: bool = False,
) -> Pattern:
    """A node of one of `ops` (None: any). Without `src` and `rest` its sources may be anything.

    With `src` alone there must be exactly those; `rest` allows any number more like it. Sources of
    a commutative op are tried in both orders unless `ordered`.
    """
    return Pattern(
        name,
        ops=None if ops is None else frozenset(as_tuple(ops, Op)),
        src=tuple(map(as_pattern, src)) if src or rest is not None else None,
        rest=rest,
        dtypes=as_tuple(dtype, DType),
        kinds=as_tuple(kind, str),
        arg=arg,
        when=when,
        ordered=ordered,
    )


def as_tuple(value: Any, single: type) -> tuple[Any, ...]:
    """One item or several, as a tuple."""
    return (value,) if isinstance(value, single) else tuple(value)


def as_pattern(value: Pattern | Scalar) -> Pattern:
    """A pattern from itself or from a number.

    True stands for the bool, an int for that integer of any width, and a float for that very float:
    `-0.0` is not `0.0`.
    """
    if isinstance(value, Pattern):
        return value
    if isinstance(value, bool):
        return const(kind="bool", arg=value)
    if isinstance(value, int):
        return const(kind=INTEGER, arg=value)
    text = value.hex()
    return const(kind="float", arg=value, when=lambda found: float(found.arg).hex() == text)


# --- rules


@dataclass(frozen=True, eq=False)
class Rule:
    """A named rewrite: where `pattern` matches, `function` may return what to put there."""

    name: str
    pattern: Pattern
    function: RuleFunction
    doc: str
    parameters: tuple[str, ...] = field(init=False)
    alone: RuleSet = field(init=False)
    """The set of this rule only."""

    def __post_init__(self) -> None:
        parameters = tuple(inspect.signature(self.function).parameters)
        known = {*self.pattern.captures(), ROOT}
        if unknown := [name for name in parameters if name not in known]:
            raise ArgumentError(
                f"rule {self.name!r} asks for {', '.join(unknown)}, but its pattern captures "
                f"{', '.join(sorted(known - {ROOT})) or 'nothing'}"
            )
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "alone", RuleSet(self.name, [self]))

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    def apply(self, node: UOp) -> UOp | None:
        """The result of this rule alone on a node, or None if it does not apply."""
        return self.alone.apply(node)


numbers: Final = count()


class RuleSet:
    """Rules under a name, tried in the order in which they were added.

    What a rule returns may depend on the node, and on nothing else.
    """

    def __init__(self, name: str, rules: Iterable[Rule] = ()) -> None:
        self.name = name
        self.rules: list[Rule] = list(rules)
        self.bit = 1 << next(numbers)
        """Marks the nodes that no rule here changes, in `UOp._normal`."""
        self.matchers = Matchers(self, None)
        """The matcher of each op, None where no rule can apply; compiled at first use."""
        self.sums: dict[RuleSet, RuleSet] = {}
        self.addends: tuple[RuleSet, ...] = ()
        """The sets that this one is the sum of."""
        self.covers = Covers(self)
        """Bits of `UOp._normal` that each imply that no rule here applies to a node of an op."""

    def __repr__(self) -> str:
        return f"<RuleSet {self.name}: {len(self.rules)} rules>"

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __add__(self, other: RuleSet) -> RuleSet:
        """The rules of both as they are now, those of `self` first. The same sum is one object."""
        if other not in self.sums:
            own = set(self.rules)
            added = [rule for rule in other.rules if rule not in own]
            total = RuleSet(f"{self.name}+{other.name}", [*self.rules, *added])
            total.addends = self, other
            self.sums[other] = total
        return self.sums[other]

    def rule(self, pattern: Pattern) -> Callable[[Function], Function]:
        """Add the decorated function as the rule for `pattern`; it may stand under several.

        Its parameters are names that the pattern captures, and, if it wants it, `root` for the
        matched node. It returns None where the rule does not apply after all.
        """

        def add(function: Function) -> Function:
            name = getattr(function, "__name__", "rule")
            self.rules.append(Rule(name, pattern, function, inspect.getdoc(function) or ""))
            self.matchers.clear()
            self.covers.clear()
            self.addends = ()
            self.sums.clear()
            self.bit = 1 << next(numbers)
            return function

        return add

    def of(self, op: Op) -> tuple[Rule, ...]:
        """The rules for one op."""
        return tuple([r for r in self.rules if r.pattern.ops is None or op in r.pattern.ops])

    def recording(self, tell: Tell) -> Matchers:
        """Matchers that report every rule that fires: the rule, the node before and after."""
        return Matchers(self, tell)

    def apply(self, node: UOp) -> UOp | None:
        """The result of the first rule that applies to this one node, or None."""
        matcher = self.matchers[node.op]
        return None if matcher is None else matcher(node)


compiled: Final[dict[tuple[Op, tuple[Rule, ...]], Matcher]] = {}
"""Matchers that rule sets share: sums of sets often have the same rules for an op."""


class Covers(dict[Op, int]):
    """By op, the bits of a rule set and of its addends that have the same rules for it."""

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self.rules = rules

    def __missing__(self, op: Op) -> int:
        own, bits = set(self.rules.of(op)), self.rules.bit
        for addend in self.rules.addends:
            if own == set(addend.of(op)):
                bits |= addend.covers[op]
        self[op] = bits
        return bits


class Matchers(dict[Op, "Matcher | None"]):
    """The compiled functions of a rule set by op, filled at first use."""

    def __init__(self, rules: RuleSet, tell: Tell | None) -> None:
        super().__init__()
        self.rules = rules
        self.tell = tell

    def __missing__(self, op: Op) -> Matcher | None:
        found = self.rules.of(op)
        if not found:
            matcher = None
        elif self.tell is not None:
            matcher = compile_matcher(self.rules.name, op, found, self.tell)
        elif (matcher := compiled.get((op, found))) is None:
            matcher = compiled[op, found] = compile_matcher(self.rules.name, op, found)
        self[op] = matcher
        return matcher
