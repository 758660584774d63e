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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from typing import Any, Final

from tinycore.tensor.guards.guard import BOX, OTHERS, Reader
from tinycore.tensor.methods.templates import templates

LIBRARIES: Final = sys.stdlib_module_names - set(
    "argparse collections configparser queue string threading".split()
)
"""Modules that are not looked into; those whose objects hold what programs put there are."""
OWN: Final = ("llm", "cli", "testing")
"""Packages of tinycore that are looked into, as programs are."""
LAYERS: Final = "tinycore.nn"
"""Packages of classes whose attributes all decide what their objects do."""

BY_NAME: Final = {"getattr": 1, "setattr": 1, "hasattr": 1, "delattr": 1} | dict.fromkeys(
    ("attrgetter", "methodcaller"), 0
)
"""Functions that take the name of an attribute as text, and which argument that is."""
ALL_NAMES: Final = frozenset("vars dir __dict__ asdict astuple getmembers".split())
"""Functions and attributes that reach all attributes of an object."""
EVALUATING: Final = frozenset({"eval", "exec", "globals"})
"""Functions that reach all globals, and what is below them."""
SCOPES: Final = frozenset({"__globals__", "f_globals"})
"""Attributes that do."""
BESIDE: Final = frozenset("environ getenv import_module __import__ sys".split())
"""Functions, modules and attributes that reach what no object around the code holds."""
ATTRIBUTE, GLOBAL, STORED, MODULE = "attribute", "global", "stored", "module"
NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"), (ATTRIBUTE,)),
    **dict.fromkeys(("DELETE_ATTR", "IMPORT_FROM"), (ATTRIBUTE,)),
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"), (GLOBAL,)),
    "LOAD_FROM_DICT_OR_GLOBALS": (GLOBAL,),
    "STORE_ATTR": (ATTRIBUTE, STORED),
}
"""Kinds of names in the instructions of Python, by the instruction."""


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Mapping[str, frozenset[str]]:
    """The names in a function and in the functions inside of it, by what they are of.

    A name of ALL_NAMES is an attribute, too, and one is among them where code may reach attributes
    by names that are computed at run time.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for part in pieces(code):
        steps = list(dis.get_instructions(part))
        for number, step in enumerate(steps, 1):
            for kind in NAMED.get(step.opname, ()):
                found[kind].add(step.argval)
            if step.opname in NAMED and (place := BY_NAME.get(step.argval)) is not None:
                found[ATTRIBUTE].update(words_in(part.co_consts))
                if not names_literally(steps[number:], place):
                    found[ATTRIBUTE] |= ALL_NAMES
            if step.opname == "MATCH_CLASS":  # whose names are those of the class
                found[ATTRIBUTE] |= ALL_NAMES
            if step.opname == "IMPORT_NAME":  # after the number of packages to go up, and a list
                found[MODULE].add("." * steps[number - 3].argval + step.argval)
    found[ATTRIBUTE] |= (ALL_NAMES | BESIDE) & found[GLOBAL]
    if not EVALUATING.isdisjoint(found[GLOBAL]):
        found[ATTRIBUTE] |= SCOPES
    return {kind: frozenset(names) for kind, names in found.items()}


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


def home_of(kind: type) -> str:
    """The module of a class, as text: for some classes in C `__module__` is that of instances."""
    return str(kind.__module__)


@functools.lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """True if a module belongs to Python, to tinycore, or to an installed package."""
    root, _, rest = module.partition(".")
    if root == "tinycore":
        return rest.partition(".")[0] not in OWN
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in LIBRARIES or "site-packages" in file or "dist-packages" in file


class Names:
    """All names in the functions met so far."""

    def __init__(self, home: str) -> None:
        root = home.partition(".")[0]
        self.home = None if root in LIBRARIES or root == "tinycore" else root
        """The package of the function, which is searched wherever it lies."""
        self.codes: set[types.CodeType] = set()
        self.known: defaultdict[str, set[str]] = defaultdict(set)
        """Names by what they are of."""
        self.known[ATTRIBUTE].add("default_factory")  # which Python asks for missing keys
        self.scopes: defaultdict[int, set[str]] = defaultdict(set)
        """Globals by the number of the dict that they are in."""

    def opens(self, module: str) -> bool:
        """True if the code and the objects of a module are looked into."""
        return not is_library(module) or module.partition(".")[0] == self.home

    def add(self, function: types.FunctionType) -> None:
        """The names in a function."""
        named = names_of(function.__code__)
        self.scopes[id(function.__globals__)] |= named.get(GLOBAL, frozenset())
        self.codes.add(function.__code__)
        for kind in (ATTRIBUTE, STORED):
            self.known[kind] |= named.get(kind, frozenset())
        for name in named.get(MODULE, ()):
            with suppress(ImportError):  # there is no such package
                found = resolve_name(name, function.__globals__.get("__package__") or "")
                self.known[MODULE] |= {found, found.partition(".")[0]}

    @property
    def count(self) -> int:
        """Number of functions and names met."""
        return len(self.codes) + len(self.known[ATTRIBUTE])

    def mention(self, getter: Any) -> None:
        """The names in an `attrgetter` or `methodcaller`."""
        made, given = getter.__reduce__()
        self.known[ATTRIBUTE].update(words_in((*getattr(made, "args", ()), *given)))

    def makes(self, name: str) -> bool:
        """True if some code names a global of this name, such as a class."""
        return any(name in scope for scope in self.scopes.values())

    def surroundings(self) -> Reader:
        """The reader of the modules that code imports while it runs, of changes of Tensor, and of
        `os.environ` if code reads that, whatever the container.
        """
        named = self.known[ATTRIBUTE]
        modules = {*self.known[MODULE]}
        if not named.isdisjoint(("import_module", "__import__")) or named >= {"sys", "modules"}:
            modules.update(filter(self.opens, [*sys.modules]))  # another thread may import
        lines = {name: f"modules.get({name!r}, missing)" for name in sorted(modules)}
        lines["a method of Tensor"] = "templates.version"
        if not named.isdisjoint(("environ", "getenv")):
            lines["os.environ"] = "environ"
        scope = {"modules": sys.modules, "environ": os.environ, "templates": templates}
        return Reader((*lines,), [*lines.values()], scope)

    def globals_of(self, scope: Mapping[str, Any]) -> set[str] | None:
        """The globals in a dict that code names; None where it may reach any, by a text."""
        return self.scopes[id(scope)] if self.known[ATTRIBUTE].isdisjoint(SCOPES) else None

    @property
    def wanted(self) -> set[str] | None:
        """The attributes that code names; None where it may reach any."""
        found = self.known[ATTRIBUTE]
        return found if found.isdisjoint(ALL_NAMES | SCOPES) else None

    def has(self, name: str) -> bool:
        """True if an attribute may be looked at."""
        return self.wanted is None or name in self.wanted

    def table(
        self,
        present: Mapping[str, Any],
        wanted: set[str] | None,
        later: Iterable[str] = (),
        source: str = "__dict__",
        prefix: str = ".",
    ) -> Reader:
        """The reader of a dict of attributes, which is that attribute of a container.

        It reads the names that are wanted, and those in `later`, which may be missing, and whether
        others are there; without `wanted`, all that are there.
        """
        names = [name for name in present if wanted is None or name in wanted]
        later = [name for name in later if name not in present and wanted is not None]
        found = frozenset(() if wanted is None else wanted.difference(names, later))
        lines = [f"{BOX}t = {BOX}.{source}", *[f"{BOX}t[{name!r}]" for name in names]]
        lines += [f"{BOX}t.get({name!r}, missing)" for name in later]
        labels = [prefix + name for name in (*names, *later)]
        if found or wanted is None:
            rest = f"{BOX}t.keys().isdisjoint({BOX}others)"
            lines.append(f"len({BOX}t) == {len(names)}" if wanted is None else rest)
            labels.append(OTHERS)
        return Reader((*labels,), lines, {f"{BOX}others": found})
