"""Patterns compiled to Python: all rules of one op become one function.

Floor 1. Each pattern becomes a list of steps (tests and local assignments), one list per order in
which commutative sources are tried. Neighboring lists share their common beginning, and the whole
is printed as nested `if`s: cheap tests on ops come first, so most nodes are rejected at once.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.uop.pattern import Pattern, Rule

Matcher: TypeAlias = Callable[[UOp], UOp | None]
Step: TypeAlias = tuple[str, str]
"""("test", expression) or ("bind", statement)."""

ANY_ARGUMENT: Final = object()
"""The `arg` of a pattern that does not look at the argument."""

ROOT: Final = "root"
"""The parameter of a rule beside its captures: the matched node."""

serial = count()


def compile_matcher(
    name: str, op: Op, rules: Sequence[Rule], tell: Callable[[Rule, UOp, UOp], None] | None = None
) -> Matcher:
    """The function that tries `rules` in order on a node of this op and returns the first result.

    With `tell`, it calls that with the rule, the node and the result whenever a rule fires.
    """
    source, names = matcher_source(op, rules, recording=tell is not None)
    names["tell"] = tell
    filename = f"<rules {name} {op.name} {next(serial)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), names)
    matcher: Matcher = names["match"]
    return matcher


def matcher_source(op: Op, rules: Sequence[Rule], *, recording: bool) -> tuple[str, dict[str, Any]]:
    """The text of the function `match(root)`, and the global names it uses."""
    writer = Writer(op)
    branch = Branch()
    for number, rule in enumerate(rules):
        writer.names[f"rule{number}"] = rule.function
        writer.names[f"object{number}"] = rule
        for order in orders(rule.pattern):
            steps, captures = writer.steps(order)
            branch.add(steps, leaf(number, rule, captures, recording=recording))
    lines = ["def match(root):", *branch.lines(1), "    return None", ""]
    return "\n".join(lines), writer.names


def leaf(number: int, rule: Rule, captures: dict[str, str], *, recording: bool) -> list[str]:
    """The lines that call a rule and return what it returns."""
    known = captures | {ROOT: ROOT}
    arguments = ", ".join(known[name] for name in rule.parameters)
    lines = [f"new = rule{number}({arguments})", "if new is not None and new is not root:"]
    if recording:
        lines.append(f"    tell(object{number}, root, new)")
    return [*lines, "    return new"]


def orders(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern with the sources of its commutative ops in every order worth trying."""
    if pattern.src is None:
        yield pattern
        return
    for src in arranged(pattern.src):
        yield pattern.with_src(src)
        if pattern.commutes and src[0] is not src[1]:
            yield pattern.with_src((src[1], src[0]))


def arranged(src: tuple[Pattern, ...]) -> Iterator[tuple[Pattern, ...]]:
    """All combinations of the orders of several patterns."""
    if not src:
        yield ()
        return
    for first in orders(src[0]):
        for others in arranged(src[1:]):
            yield (first, *others)


@dataclass
class Branch:
    """Steps in order, and what to do after them: a tree in which neighbors share beginnings."""

    children: list[tuple[Step, Branch]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def add(self, steps: Sequence[Step], calls: list[str]) -> None:
        """Put `calls` under `steps`, joining the last path as far as it agrees."""
        branch = self
        for step in steps:
            if not branch.children or branch.children[-1][0] != step:
                branch.children.append((step, Branch()))
            branch = branch.children[-1][1]
        branch.children.append((("call", ""), Branch(calls=calls)))

    def lines(self, depth: int) -> Iterator[str]:
        """Python text, indented by `depth`."""
        margin = "    " * depth
        for (kind, text), below in self.children:
            if kind == "call":
                yield from (margin + line for line in below.calls)
            elif kind == "bind":
                yield margin + text
                yield from below.lines(depth)
            else:
                tests = [text]
                while len(below.children) == 1 and below.children[0][0][0] == "test":
                    tests.append(below.children[0][0][1])
                    below = below.children[0][1]
                yield f"{margin}if {' and '.join(tests)}:"
                yield from below.lines(depth + 1)


class Writer:
    """Translates patterns into steps; collects the global names that these need."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.names: dict[str, Any] = {}
        self.known: dict[Any, str] = {}

    def constant(self, value: Any, prefix: str) -> str:
        """A global name for a value."""
        if value not in self.known:
            name = value.name if isinstance(value, Op) else f"{prefix}{len(self.known)}"
            self.known[value] = name
            self.names[name] = value
        return self.known[value]

    def steps(self, pattern: Pattern) -> tuple[list[Step], dict[str, str]]:
        """The steps of one pattern, level by level, and the local name of each capture."""
        steps: list[Step] = []
        last: list[Step] = []
        captures: dict[str, str] = {}
        level = [(pattern, "root")]
        while level:
            below: list[tuple[Pattern, str]] = []
            for inner, place in level:
                if inner.name is not None and captures.setdefault(inner.name, place) != place:
                    steps.append(("test", f"{place} is {captures[inner.name]}"))
                steps += self.value_tests(inner, place)
            for inner, place in level:
                if inner.src is not None:
                    steps += self.sources(inner, place)
                    below += [(s, f"{place}_{i}") for i, s in enumerate(inner.src)]
                if inner.when is not None:
                    last.append(("test", f"{self.constant(inner.when, 'when')}({place})"))
            steps += [s for inner, place in below for s in self.op_tests(inner, place)]
            level = below
        return steps + last, captures

    def op_tests(self, pattern: Pattern, place: str) -> Iterator[Step]:
        """Tests of a source's op: the cheapest and most selective."""
        if pattern.ops is None:
            return
        if len(pattern.ops) == 1:
            yield "test", f"{place}.op is {self.constant(next(iter(pattern.ops)), 'op')}"
        else:
            yield "test", f"{place}.op in {self.constant(pattern.ops, 'ops')}"

    def value_tests(self, pattern: Pattern, place: str) -> Iterator[Step]:
        """Tests of a node's argument and dtype."""
        if pattern.arg is not ANY_ARGUMENT:
            value = pattern.arg
            text = repr(value) if type(value) in (bool, int) else self.argument(value)
            yield "test", f"{place}.arg == {text}"
        if pattern.dtypes:
            yield "test", f"{place}.dtype in {self.constant(pattern.dtypes, 'dtypes')}"
        if len(pattern.kinds) == 1:
            yield "test", f"{place}.dtype.kind == {pattern.kinds[0]!r}"
        elif pattern.kinds:
            yield "test", f"{place}.dtype.kind in {pattern.kinds!r}"

    def argument(self, value: Any) -> str:
        """A global name for an argument, which need not be hashable."""
        name = f"argument{len(self.names)}"
        self.names[name] = value
        return name

    def sources(self, pattern: Pattern, place: str) -> Iterator[Step]:
        """The count of sources, local names for those in the pattern, and tests of the rest."""
        assert pattern.src is not None
        wanted = len(pattern.src)
        names = [f"{place}_{i}" for i in range(wanted)]
        ops = {self.op} if place == "root" else pattern.ops or {None}
        certain = all(op is not None and op.arity == wanted for op in ops)
        if pattern.rest is not None:
            if wanted:
                yield "test", f"len({place}.src) >= {wanted}"
        elif not certain:
            yield "test", f"len({place}.src) == {wanted}"
        if names and pattern.rest is None:
            yield "bind", f"{', '.join(names)}{',' * (wanted == 1)} = {place}.src"
        else:
            yield from (("bind", f"{name} = {place}.src[{i}]") for i, name in enumerate(names))
        if pattern.rest is not None and not pattern.rest.is_anything:
            test = self.constant(pattern.rest, "rest")
            yield "test", f"all({test}.matches(s) for s in {place}.src[{wanted}:])"
