"""Faults in a process that has imported the core: functions get the code of a changed source.

A function keeps its identity, so tables and closures that hold it run the changed code too. What
runs at import, a table or a decorator, cannot be changed this way: `swaps` says so.
"""

from __future__ import annotations

import ast
import builtins
import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from tests.faults.choosing import Source

MARK: Final = "__mark__"
"""The built-in function that marked statements call."""

OPTIMIZED: Final = 1
"""The flag of code that is a function's, not a module's or a class's."""

PLACE = tuple[str, str, int]
Swap = tuple[FunctionType, CodeType]
"""A function, and the code that it is to run."""


class Pair(NamedTuple):
    """Code before and after a change."""

    before: CodeType
    after: CodeType


class DifferentShape(Exception):
    """The functions in two sources are not the same ones."""


def place_of(code: CodeType) -> PLACE:
    """Key that tells a function of a tree from others."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def is_below(folder: Path, code: CodeType) -> bool:
    """True if code is of a file in a folder."""
    return code.co_filename.startswith(f"{folder}/")


def codes_in(code: CodeType) -> list[CodeType]:
    """The functions, classes and comprehensions directly in some code."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def pairs(before: CodeType, after: CodeType) -> Iterator[Pair]:
    """All code of two sources, by position."""
    yield Pair(before, after)
    inner = codes_in(before), codes_in(after)
    if [c.co_name for c in inner[0]] != [c.co_name for c in inner[1]]:
        raise DifferentShape(before.co_qualname)
    for pair in zip(*inner, strict=True):
        yield from pairs(*pair)


def own_parts(code: CodeType) -> tuple[Any, ...]:
    """Code of a function itself, without the functions in it."""
    constants = [(type(c), repr(c)) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


class Living:
    """The functions of a tree that this process holds."""

    def __init__(self, folder: Path) -> None:
        gc.unfreeze()
        self.functions: dict[PLACE, list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if type(found) is FunctionType and is_below(folder, found.__code__):
                self.functions[place_of(found.__code__)].append(found)
        gc.freeze()
        self.files = {file for file, _, _ in self.functions}

    def swaps(
        self, file: Path, before: str | ast.Module, after: str | ast.Module
    ) -> list[Swap] | None:
        """The functions that a changed source changes; None where an import is needed for it."""
        if str(file) not in self.files:
            return []  # not imported yet: the file itself is changed
        old, new = (compile(text, str(file), "exec", dont_inherit=True) for text in (before, after))
        try:
            found = list(pairs(old, new))
        except DifferentShape:
            return None
        changed = [pair for pair in found if own_parts(pair.before) != own_parts(pair.after)]
        if not all(pair.after.co_flags & OPTIMIZED for pair in changed):
            return None
        swaps = [
            (function, pair.after)
            for pair in found
            if pair.before != pair.after
            for function in self.functions.get(place_of(pair.before), ())
        ]
        free = [(f.__code__.co_freevars, code.co_freevars) for f, code in swaps]
        return swaps if all(mine == others for mine, others in free) else None


def exchange(swaps: Iterable[Swap]) -> None:
    """Give functions the code that they are to run."""
    for function, code in swaps:
        function.__code__ = code


# Marks: which statements a test executes


class Marking(ast.NodeTransformer):
    """Puts a call of the mark before statements."""

    def __init__(self, numbers: Mapping[tuple[int, int], Iterable[int]]) -> None:
        self.numbers = numbers

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Mark the statements in a node."""
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [s for found in statements for s in self.with_mark(found)])
        return node

    def with_mark(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """A statement, after the call of its mark where it has one."""
        for number in self.numbers.get((statement.lineno, statement.col_offset), ()):
            called = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(number)], [])
            yield ast.copy_location(ast.Expr(called), statement)
        yield statement


def marked(source: Source, numbers: Mapping[int, Iterable[int]]) -> ast.Module:
    """A source whose statements at some lines call the mark with the numbers of the lines."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for line, given in numbers.items():
        statement = source.statement_at(line)
        if source.is_in_function(statement):
            found[statement.lineno, statement.col_offset].update(given)
    tree = Marking(found).visit(ast.parse(source.text))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


def set_mark(called: Callable[[int], None]) -> None:
    """Have marked statements call a function."""
    setattr(builtins, MARK, called)
