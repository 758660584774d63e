"""Static analysis of a function's code: the globals, attributes and imports that it names.

Floor 5. Only what a captured function and the functions that it may call name decides what they do;
everything else around them may change freely. Libraries are not looked into.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from tinycore.tensor.guards.guard import GLOBAL, Table

LIBRARIES: Final = sys.stdlib_module_names - {
    "argparse",
    "collections",
    "configparser",
    "queue",
    "string",
    "threading",
}
"""Modules that are not looked into; those whose objects hold what programs put there are."""
OWN: Final = ("llm", "cli", "testing")
"""Packages of tinycore that are looked into, as programs are."""
LAYERS: Final = "tinycore.nn"
"""Packages of classes whose attributes all decide what their objects do."""

BY_NAME: Final = {"getattr": 1, "setattr": 1, "hasattr": 1, "delattr": 1} | dict.fromkeys(
    ("attrgetter", "methodcaller"), 0
)
"""Functions that take the name of an attribute as text, and which argument that is."""
ALL_NAMES: Final = frozenset({"vars", "dir", "__dict__", "asdict", "astuple", "getmembers"})
"""Functions and attributes that reach all attributes of an object."""
ATTRIBUTES: Final = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"}
)
GLOBALS: Final = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
)


class Named(NamedTuple):
    """The names in one piece of code."""

    globals: frozenset[str]
    attributes: frozenset[str]
    stored: frozenset[str]
    """Attributes that it sets."""
    modules: frozenset[str]
    is_open: bool
    """True if it may reach attributes by names that are computed at run time."""


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Named:
    """The names in a function and in the functions inside of it."""
    scope, attributes, stored, modules = set(), set(), set(), set()
    words: set[str] = set()
    is_open = False
    for part in pieces(code):
        steps = list(dis.get_instructions(part))
        for number, step in enumerate(steps):
            if step.opname in GLOBALS:
                scope.add(step.argval)
            elif step.opname in ATTRIBUTES:
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                modules.add(step.argval)
            if step.opname == "STORE_ATTR":
                stored.add(step.argval)
            is_named = step.opname in GLOBALS or step.opname in ATTRIBUTES
            if is_named and step.argval in BY_NAME:
                words.update(words_in(part.co_consts))
                is_open |= not names_literally(steps[number + 1 :], BY_NAME[step.argval])
            is_open |= step.opname == "MATCH_CLASS"  # whose names are those of the class
    is_open |= not ALL_NAMES.isdisjoint(scope | attributes)
    return Named(
        frozenset(scope),
        frozenset(attributes | words),
        frozenset(stored),
        frozenset(modules),
        is_open,
    )


def words_in(values: Iterable[Any]) -> Iterator[str]:
    """The names of attributes in some constants; `a.b` names two."""
    for value in values:
        if isinstance(value, str):
            yield value
            yield from value.split(".")
        elif isinstance(value, (tuple, frozenset)):
            yield from words_in(value)


def names_literally(steps: Iterable[dis.Instruction], place: int) -> bool:
    """True if a function that was loaded is called with a constant as the argument of a place.

    Follows the depth of the stack up to the call; False where code branches before.
    """
    depth, is_literal = 0, False
    for step in steps:
        if step.opname in CALL_STEPS and step.arg == depth:
            return is_literal
        if step.opcode in JUMPS or step.opname.startswith("RETURN"):
            return False
        before, depth = depth, depth + dis.stack_effect(step.opcode, step.arg, jump=False)
        if before <= place:
            is_literal = step.opname == "LOAD_CONST" and before == place
    return False


CALL_STEPS: Final = frozenset({"PRECALL", "CALL"})
JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})


def pieces(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those nested in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from pieces(inner)


@functools.lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """True if a module belongs to Python, to tinycore, or to an installed package."""
    root, _, rest = module.partition(".")
    if root == "tinycore":
        return rest.partition(".")[0] not in OWN
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    installed = "site-packages" in file or "dist-packages" in file
    return root in LIBRARIES or installed


class Names:
    """All names in the functions met so far."""

    def __init__(self, home: str) -> None:
        self.home = home.partition(".")[0]
        """The package of the function, which is searched wherever it lies."""
        self.codes: set[types.CodeType] = set()
        self.attributes = {"default_factory"}  # which Python asks for missing keys
        self.stored: set[str] = set()
        self.modules: set[str] = set()
        self.scopes: dict[int, dict[str, None]] = {}
        """Globals by the number of the dict that they are in."""
        self.is_open = False
        self.absent: dict[frozenset[str], frozenset[str]] = {}
        """Sets of names that must be absent, which many objects share."""

    def opens(self, module: str) -> bool:
        """True if the code and the objects of a module are looked into."""
        if not is_library(module):
            return True
        root = module.partition(".")[0]
        return root == self.home and root not in LIBRARIES and root != "tinycore"

    def add(self, function: types.FunctionType) -> None:
        """The names in a function."""
        code, scope = function.__code__, function.__globals__
        named = names_of(code)
        known = self.scopes.setdefault(id(scope), {})
        known |= dict.fromkeys(sorted(named.globals))
        if code in self.codes:
            return
        self.codes.add(code)
        self.attributes |= named.attributes
        self.stored |= named.stored
        self.modules |= named.modules
        self.is_open |= named.is_open

    @property
    def count(self) -> int:
        """Number of functions and names met."""
        return len(self.codes) + len(self.attributes)

    def mention(self, getter: Any) -> None:
        """The names in an `attrgetter` or `methodcaller`."""
        made, given = getter.__reduce__()
        self.attributes |= {*words_in((*getattr(made, "args", ()), *given))}

    def makes(self, name: str) -> bool:
        """True if some code names a global of this name, such as a class."""
        return any(name in scope for scope in self.scopes.values())

    def imported(self) -> tuple[Any, ...]:
        """Modules that code imports while it runs, and `os.environ` if it reads that."""
        found = [sys.modules.get(name) for name in sorted(self.modules) if self.opens(name)]
        environment = not self.attributes.isdisjoint(("environ", "getenv"))
        return (*filter(None, found), *((os.environ,) if environment else ()))

    def table(
        self, present: Mapping[str, Any], later: Iterable[str] = (), whole: bool = False
    ) -> Table:
        """The names to be read of a dict of attributes, of which those in `later` may be missing.

        With `whole`, or where names are computed at run time, these are all.
        """
        names = [name for name in present if whole or self.has(name)]
        if whole or self.is_open:
            return Table(tuple(names), len(names), frozenset(), len(present))
        more = [name for name in later if name not in present]
        others = self.attributes.difference(present, more)
        return Table((*names, *more), len(names), self.interned(others))

    def interned(self, names: Iterable[str]) -> frozenset[str]:
        """A set of names, the same object for equal ones."""
        found = frozenset(names)
        return self.absent.setdefault(found, found)

    def has(self, name: str) -> bool:
        """True if an attribute may be looked at."""
        return self.is_open or name in self.attributes

    def globals_of(self, scope: dict[str, Any]) -> Table:
        """The globals that functions of a module name; absent are builtins, or nothing yet."""
        named = self.scopes.get(id(scope), {})
        names = tuple([name for name in named if name in scope])
        return Table(names, len(names), self.interned(named.keys() - names), None, GLOBAL)
