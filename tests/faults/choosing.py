"""Mutants: what a source file becomes when one expression or statement of it is changed."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

PARTS: Final = ("schedule", "lower", "uop", "engine", "tensor")
"""The folders of the core that faults are put into."""

TURNED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
WRITTEN: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
ARITHMETIC: Final[dict[type[ast.operator], ast.operator]] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(), ast.FloorDiv: ast.Mult(),
    ast.BitOr: ast.BitAnd(), ast.BitAnd: ast.BitOr(),
}  # fmt: skip
OPPOSITES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
GREATEST_EXACT: Final = 16
"""A larger constant is a threshold, where one more is no fault: it is doubled or halved."""

NO_RULES: Final = frozenset(
    {"property", "cached_property", "staticmethod", "classmethod", "dataclass", "cache", "wraps"}
    | {"lru_cache", "overload", "abstractmethod", "contextmanager", "final", "override", "unique"}
)
"""Decorators that are part of the language, not entries of a table."""

SHOWING: Final = frozenset({"__repr__", "__str__", "__format__", "__rich__", "_repr_html_"})
"""Methods that write text for people."""

FOR_CHECKERS: Final = frozenset({"cast", "deferred", "TypeVar", "trace", "print", "warn"})
"""Calls whose arguments are types, names, or text for people."""

NO_KEYWORDS: Final = frozenset({"strict", "frozen", "slots", "name", "file", "stacklevel"})
"""Keyword arguments that guard or label, and whose loss changes nothing else."""


class Edit(NamedTuple):
    """A span of a file and what stands there instead."""

    kind: str
    start: int
    stop: int
    new: str | ast.expr
    node: ast.AST

    @property
    def text(self) -> str:
        """The text that stands there."""
        return self.new if isinstance(self.new, str) else f"({ast.unparse(self.new)})"


@dataclass(frozen=True)
class Fault:
    """One change of one file. Lines are counted from 1."""

    file: str
    line: int
    kind: str
    scope: str
    before: str
    after: str
    text: str
    lines: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Key that tells it from others, whatever lines are added above."""
        return self.file, self.scope, self.before, self.after

    def __str__(self) -> str:
        minus, plus = (
            "\n".join(f"{sign} {line}" for line in text.splitlines())
            for sign, text in (("  -", self.before), ("  +", self.after))
        )
        return (
            f"{self.file}:{self.line} in {self.scope or 'the module'}: {self.kind}\n{minus}\n{plus}"
        )


class Source:
    """A source file, and the faults that it may be given."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text, self.bytes = file, text, text.encode()
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def place(self, line: int, column: int) -> int:
        """The byte at which a position of the tree is."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The bytes of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.place(node.lineno, node.col_offset)
        return start, self.place(node.end_lineno, node.end_col_offset)

    def written(self, node: ast.expr | ast.stmt) -> str:
        """A node as it is written."""
        start, stop = self.span(node)
        return self.bytes[start:stop].decode()

    @cached_property
    def edits(self) -> dict[int, list[Edit]]:
        """Every edit that leaves a program which is another one, by the line it begins at."""
        found: dict[int, list[Edit]] = defaultdict(list)
        for edit in edits_below(self, self.tree):
            found[self.line_of(edit.start)].append(edit)
        return dict(found)

    def line_of(self, byte: int) -> int:
        """The line that a byte is in."""
        return self.bytes.count(b"\n", 0, byte) + 1

    @cached_property
    def scopes(self) -> list[tuple[int, int, str, ast.FunctionDef | ast.ClassDef]]:
        """Functions and classes, outer ones first: first line, last line, dotted name, node."""
        return list(scopes_below(self.tree, ""))

    def fault(self, edit: Edit) -> Fault | None:
        """The fault that an edit makes; None where the program stays the same or is none."""
        new = self.bytes[: edit.start] + edit.text.encode() + self.bytes[edit.stop :]
        text = new.decode()
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return None
        if ast.dump(tree) == ast.dump(self.tree):
            return None
        line = self.line_of(edit.start)
        around = [entry for entry in self.scopes if entry[0] <= line <= entry[1]]
        before, after = changed_lines(self.text, text)
        scope = around[-1][2] if around else ""
        lines, names = self.reached_by(edit.node, line)
        return Fault(self.file, line, edit.kind, scope, before, after, text, lines, names)

    def reached_by(self, node: ast.AST, line: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The lines that run what is changed, and the names of tables that are changed."""
        statement = self.statement_at(line)
        if isinstance(statement, ast.FunctionDef):  # a decorator, or a default
            return tuple(own_lines(statement)), (statement.name,)
        lines = tuple(range(statement.lineno, head_end(statement) + 1))
        if self.is_in_function(statement):
            return lines, ()
        whole = range(getattr(node, "lineno", line), (getattr(node, "end_lineno", line) or 0) + 1)
        return tuple(whole), tuple(bound_names(statement))

    def is_in_function(self, statement: ast.stmt) -> bool:
        """True if a statement runs when a function is called, not at import."""
        return any(
            isinstance(scope, ast.FunctionDef)
            and scope.body[0].lineno <= statement.lineno <= last
            and scope is not statement
            for _, last, _, scope in self.scopes
        )

    def statement_at(self, line: int) -> ast.stmt:
        """The innermost statement that a line is in."""
        found = [
            n
            for n in ast.walk(self.tree)
            if isinstance(n, ast.stmt) and first_line(n) <= line <= (n.end_lineno or n.lineno)
        ]
        return max(found, key=lambda n: (first_line(n), -(n.end_lineno or 0)))


def scopes_below(
    node: ast.AST, prefix: str
) -> Iterator[tuple[int, int, str, ast.FunctionDef | ast.ClassDef]]:
    """The functions and classes in a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            yield first_line(child), child.end_lineno or child.lineno, name, child
            yield from scopes_below(child, f"{name}.")
        else:
            yield from scopes_below(child, prefix)


def first_line(node: ast.stmt) -> int:
    """The line at which a statement begins, its decorators with it."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def head_end(node: ast.stmt) -> int:
    """The last line of a statement, or of the head of one that holds others."""
    body: list[ast.stmt] = getattr(node, "body", [])
    if not body:
        return node.end_lineno or node.lineno
    return max(node.lineno, body[0].lineno - 1)


def own_lines(function: ast.FunctionDef) -> list[int]:
    """The lines of the statements in a function."""
    return sorted({n.lineno for s in function.body for n in ast.walk(s) if isinstance(n, ast.stmt)})


def bound_names(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module or a class gives values to."""
    if isinstance(statement, ast.ClassDef):
        return [statement.name]
    targets: list[ast.expr] = getattr(statement, "targets", [])
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def changed_lines(old: str, new: str) -> tuple[str, str]:
    """The lines in which two texts differ, without the space around them."""
    before, after = old.splitlines(), new.splitlines()
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    before, after = before[same:], after[same:]
    while before and after and before[-1] == after[-1]:
        before.pop()
        after.pop()
    return ("\n".join(line.strip() for line in lines) for lines in (before, after))  # type: ignore[return-value]


# What may be changed


def edits_below(source: Source, node: ast.AST) -> Iterator[Edit]:
    """The edits of a node and of all that is in it."""
    for function in EDITS.get(type(node), ()):
        yield from function(source, node)
    for child in children(node):
        yield from edits_below(source, child)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Children of a node, but annotations, texts, errors and output for people."""
    if isinstance(node, ast.FunctionDef):
        calls = [d for d in node.decorator_list if isinstance(d, ast.Call)]
        yield from (argument for call in calls for argument in call.args)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_left_alone(child):
                yield child


def is_left_alone(node: ast.AST) -> bool:
    """True if a node is no part of what a program computes."""
    match node:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.FunctionDef():
            return node.name in SHOWING or any(
                "overload" in names_in(d) for d in node.decorator_list
            )
        case ast.If():
            return bool({"TYPE_CHECKING"} & set(names_in(node.test))) or is_traced(node.test)
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.keyword():
            return node.arg in NO_KEYWORDS
        case ast.IfExp():
            return is_text(node.body) or is_text(node.orelse)
        case ast.Call():
            return bool(FOR_CHECKERS & set(names_in(node.func)))
    return False


def is_text(node: ast.expr) -> bool:
    """True if an expression is a text as it is written, for people most likely."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.JoinedStr)


def is_traced(test: ast.expr) -> bool:
    """True if a condition asks for debug output."""
    return any(isinstance(n, ast.Attribute) and n.attr == "on" for n in ast.walk(test))


def names_in(node: ast.AST) -> list[str]:
    """The names and attributes in an expression."""
    found = (getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(node))
    return [name for name in found if isinstance(name, str)]


def replaced(source: Source, kind: str, node: ast.expr | ast.stmt, new: str | ast.expr) -> Edit:
    """The edit that puts something in place of a node."""
    return Edit(kind, *source.span(node), new, node)


def turned_comparisons(source: Source, node: ast.Compare) -> Iterator[Edit]:
    """< for <=, == for !=, and the like."""
    for left, op, right in zip(
        [node.left, *node.comparators], node.ops, node.comparators, strict=False
    ):
        start, stop = source.span(left)[1], source.span(right)[0]
        between = source.bytes[start:stop].decode()
        written = WRITTEN[type(op)]
        if written in between:
            text = between.replace(written, TURNED[type(op)], 1)
            yield Edit("comparison turned", start, stop, text, node)


def swapped_connectives(source: Source, node: ast.BoolOp) -> Iterator[Edit]:
    """`and` for `or`."""
    other = copy(node)
    other.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    yield replaced(source, "and/or swapped", node, other)


def changed_constants(source: Source, node: ast.Constant) -> Iterator[Edit]:
    """A number one more or less, a threshold twice or half, True for False."""
    if isinstance(node.value, bool):
        yield replaced(source, "truth turned", node, str(not node.value))
    elif isinstance(node.value, int):
        n = node.value
        others = (n * 2, n // 2) if n > GREATEST_EXACT else (n + 1, n - 1)
        for other in others:
            text = str(other) if other >= 0 else f"({other})"
            yield replaced(source, "constant changed", node, text)


def negated_conditions(source: Source, node: ast.If | ast.While | ast.IfExp) -> Iterator[Edit]:
    """`not` before a condition."""
    text = source.written(node.test)
    yield replaced(source, "condition negated", node.test, f"not ({text})")


def negated_filters(source: Source, node: ast.comprehension) -> Iterator[Edit]:
    """`not` before the condition of a comprehension, or none at all."""
    for test in node.ifs:
        yield replaced(source, "condition negated", test, f"not ({source.written(test)})")
        yield replaced(source, "condition dropped", test, "True")


def dropped_blocks(source: Source, node: ast.If) -> Iterator[Edit]:
    """Edits by which what is done under a condition is never done."""
    if not node.orelse:
        yield replaced(source, "statement dropped", node.test, "False")


def only_branches(source: Source, node: ast.IfExp) -> Iterator[Edit]:
    """One of two values, whatever the condition."""
    for branch in (node.body, node.orelse):
        yield replaced(source, "other branch", node, f"({source.written(branch)})")


def dropped_parts(source: Source, node: ast.BoolOp) -> Iterator[Edit]:
    """A condition of several, dropped."""
    for part in node.values:
        other = copy(node)
        other.values = [v for v in node.values if v is not part]
        value = other if len(other.values) > 1 else other.values[0]
        yield replaced(source, "condition dropped", node, value)


def dropped_statements(source: Source, node: ast.stmt) -> Iterator[Edit]:
    """A statement dropped that binds no name."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Continue():
            yield replaced(source, "statement dropped", node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield replaced(source, "statement dropped", node, "pass")


def changed_calls(source: Source, node: ast.Call) -> Iterator[Edit]:
    """A call dropped, its arguments swapped or left out, max for min."""
    plain = not any(isinstance(a, ast.Starred) for a in node.args)
    is_single = plain and len(node.args) == 1 and not node.keywords
    if is_single and isinstance(node.func, ast.Name) and not is_stream(node.args[0]):
        yield replaced(source, "call dropped", node, f"({source.written(node.args[0])})")
    is_bare = not node.args and not node.keywords
    if is_bare and isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        yield replaced(source, "call dropped", node, f"({source.written(node.func.value)})")
    for number in range(len(node.args) - 1 if plain else 0):
        if any(is_named(a) for a in node.args[number : number + 2]):
            continue  # another type, and an error at once
        other = copy(node)
        other.args = list(node.args)
        other.args[number : number + 2] = reversed(other.args[number : number + 2])
        yield replaced(source, "arguments swapped", node, other)
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in NO_KEYWORDS:
            other = copy(node)
            other.keywords = [k for k in node.keywords if k is not keyword]
            yield replaced(source, "argument dropped", node, other)
    if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        yield replaced(source, "opposite call", node.func, OPPOSITES[node.func.id])


def is_stream(node: ast.expr) -> bool:
    """True if an expression is a generator, whose parentheses may be those of a call."""
    return isinstance(node, ast.GeneratorExp)


def is_named(node: ast.expr) -> bool:
    """True if an expression is a text, an op or a dtype by name."""
    return is_text(node) or (isinstance(node, ast.Attribute) and is_module(node.value))


def is_module(node: ast.expr) -> bool:
    """True if an expression is likely to be a module or a class."""
    return isinstance(node, ast.Name) and (node.id[0].isupper() or node.id in MODULES)


MODULES: Final = frozenset(
    {"graph", "math", "numpy", "operator", "itertools", "functools", "time"}
) | {"dtypes"}


def changed_arithmetic(source: Source, node: ast.BinOp) -> Iterator[Edit]:
    """+ for -, * for //, | for &."""
    if (op := ARITHMETIC.get(type(node.op))) is not None:
        other = copy(node)
        other.op = op
        yield replaced(source, "arithmetic changed", node, other)


def dropped_entries(source: Source, node: ast.Dict | ast.Set | ast.List) -> Iterator[Edit]:
    """An entry of a table dropped."""
    values = node.values if isinstance(node, ast.Dict) else node.elts
    for number in range(len(values) if len(values) > 1 else 0):
        other = copy(node)
        if isinstance(node, ast.Dict):
            assert isinstance(other, ast.Dict)
            other.keys = node.keys[:number] + node.keys[number + 1 :]
            other.values = node.values[:number] + node.values[number + 1 :]
        else:
            assert not isinstance(other, ast.Dict)
            other.elts = node.elts[:number] + node.elts[number + 1 :]
        yield replaced(source, "entry dropped", node, other)


def dropped_rules(source: Source, node: ast.FunctionDef) -> Iterator[Edit]:
    """A function that is not entered in the table its decorator names."""
    for decorator in node.decorator_list:
        if not NO_RULES & set(names_in(decorator)):
            start, stop = source.span(decorator)
            yield Edit("entry dropped", start - 1, stop, "", decorator)


EDITS: Final[dict[type[ast.AST], tuple[Callable[[Source, Any], Iterable[Edit]], ...]]] = {
    ast.Compare: (turned_comparisons,),
    ast.BoolOp: (swapped_connectives, dropped_parts),
    ast.Constant: (changed_constants,),
    ast.If: (negated_conditions, dropped_blocks),
    ast.While: (negated_conditions,),
    ast.IfExp: (negated_conditions, only_branches),
    ast.comprehension: (negated_filters,),
    ast.Expr: (dropped_statements,),
    ast.AugAssign: (dropped_statements,),
    ast.Delete: (dropped_statements,),
    ast.Continue: (dropped_statements,),
    ast.Assign: (dropped_statements,),
    ast.Call: (changed_calls,),
    ast.BinOp: (changed_arithmetic,),
    ast.Dict: (dropped_entries,),
    ast.Set: (dropped_entries,),
    ast.List: (dropped_entries,),
    ast.FunctionDef: (dropped_rules,),
}
"""Edits of each type of node."""


# Choosing


def sources_in(root: Path, parts: Iterable[str] = PARTS) -> list[Source]:
    """The files of the core that faults are put into."""
    files = [file for part in parts for file in sorted((root / "tinycore" / part).rglob("*.py"))]
    return [Source(file.relative_to(root).as_posix(), file.read_text("utf-8")) for file in files]


def choose(sources: Iterable[Source], seed: int) -> Iterator[Fault]:
    """Faults in random order: a line of code, then a kind of edit, then one of that kind."""
    chance = random.Random(seed)
    lines = [(source, line) for source in sources for line in source.edits]
    chance.shuffle(lines)
    for source, line in lines:
        by_kind: dict[str, list[Edit]] = defaultdict(list)
        for edit in source.edits[line]:
            by_kind[edit.kind].append(edit)
        edit = chance.choice(by_kind[chance.choice(sorted(by_kind))])
        if (fault := source.fault(edit)) is not None:
            yield fault
