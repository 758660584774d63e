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
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

LIBRARIES: Final = sys.stdlib_module_names
OWN: Final = ("llm", "cli", "testing")
"""Packages of tinycore that are looked into, as programs are."""
LAYERS: Final = "tinycore.nn"
"""Packages of classes whose attributes all decide what their objects do."""

BY_NAME: Final = frozenset({"getattr", "setattr", "hasattr", "attrgetter", "methodcaller"})
"""Functions that take the name of an attribute as text."""
ATTRIBUTES: Final = frozenset(
    {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"}
)
GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
TEXT: Final = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING"})


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
    makes_text = False
    for part in pieces(code):
        for step in dis.get_instructions(part):
            if step.opname in GLOBALS:
                scope.add(step.argval)
            elif step.opname in ATTRIBUTES:
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                modules.add(step.argval)
            makes_text |= step.opname in TEXT
            if step.opname == "STORE_ATTR":
                stored.add(step.argval)
        words.update(
            word for word in part.co_consts if isinstance(word, str) and word.isidentifier()
        )
    by_name = bool((scope | attributes) & BY_NAME)
    is_open = "vars" in scope or "__dict__" in attributes or (by_name and makes_text)
    attributes |= words if by_name else set()
    return Named(
        frozenset(scope), frozenset(attributes), frozenset(stored), frozenset(modules), is_open
    )


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
        self.attributes: set[str] = set()
        self.stored: set[str] = set()
        self.modules: set[str] = set()
        self.scopes: dict[int, dict[str, None]] = {}
        """Globals by the number of the dict that they are in."""
        self.is_open = False

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
        known |= dict.fromkeys(name for name in sorted(named.globals) if name in scope)
        if code in self.codes:
            return
        self.codes.add(code)
        self.attributes |= named.attributes
        self.stored |= named.stored
        self.modules |= named.modules
        self.is_open |= named.is_open

    def makes(self, name: str) -> bool:
        """True if some code names a global of this name, such as a class."""
        return any(name in scope for scope in self.scopes.values())

    def imported(self) -> tuple[Any, ...]:
        """Modules that code imports while it runs, and `os.environ` if it reads that."""
        found = [sys.modules.get(name) for name in sorted(self.modules) if self.opens(name)]
        environment = not self.attributes.isdisjoint(("environ", "getenv"))
        return (*filter(None, found), *((os.environ,) if environment else ()))

    def has(self, name: str) -> bool:
        """True if an attribute may be looked at."""
        return self.is_open or name in self.attributes

    def globals_of(self, scope: dict[str, Any]) -> tuple[str, ...]:
        """The globals that functions of a module name."""
        return tuple(self.scopes.get(id(scope), ()))
