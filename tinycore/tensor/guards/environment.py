"""The environment of a captured function: everything that its code can reach.

Floor 5. Reachable from a function are its closure, defaults and decorators, the globals and
attributes that its code names, their classes, containers and functions, and so on. Everything that
may affect its result becomes a box of a guard (`guard.py`). See docs/decisions/0028-captures.md.
"""

from __future__ import annotations

import functools
import operator
import pickle
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from tinycore.tensor.guards.guard import (
    ATOMS,
    CELL,
    GLOBAL,
    ITS_CLASS,
    METHOD_TYPES,
    Box,
    Guard,
    Reader,
    Role,
    Values,
    alike,
    form_of_value,
    has_form,
    is_a,
    is_plain,
    join_path,
    never,
)
from tinycore.tensor.guards.names import Names, home_of
from tinycore.tensor.guards.readers import class_readers, content_readers, is_unseen, object_readers
from tinycore.tensor.tensor import Tensor

MOST_CONTAINERS: Final = 4096
"""Containers that are looked into."""
GETTERS: Final = (operator.attrgetter, operator.methodcaller)


class Walk:
    """All boxes reachable from some roots."""

    def __init__(
        self, roots: Values, labels: Iterable[str], names: Names, left: Iterable[Change]
    ) -> None:
        """Walk; `left` are places to which the function puts tensors, and may do so again."""
        self.roots, self.names = roots, names
        self.free = {c.path: Role(has_form, form_of_value(c.before)) for c in left}
        self.seen: list[tuple[Box, Any, Values]] = []
        """Boxes, with their containers and values."""
        self.met: set[int] = set()
        self.queue: deque[tuple[int, int, Any, str, list[Reader]]] = deque()
        self.referred: list[Any] = []
        self.hidden: list[str] = []
        self.enter(0, roots, labels, "")
        if roots:
            self.queue.append((0, 0, roots[0], "", [names.surroundings()]))
        for _ in range(MOST_CONTAINERS):
            if self.queue:
                self.look(*self.queue.popleft())

    def look(self, parent: int, place: int, value: Any, path: str, readers: list[Reader]) -> None:
        """Record a container, its class, once, and its content for later."""
        kind = type(value)
        if self.is_new(kind):
            self.met.add(id(kind))
            where = f"class {kind.__name__}"
            found = class_readers(kind, self.names)
            self.queue.append((len(self.seen) + 1, ITS_CLASS, kind, where, found))
        for reader in readers:
            values = reader.read(value)
            roles = self.enter(len(self.seen) + 1, values, reader.labels, path)
            box = Box(parent, place, kind, reader, [*map(id, values)], roles, path)
            self.seen.append((box, value, values))

    def enter(self, number: int, values: Values, labels: Iterable[str], path: str) -> list[Role]:
        """Return the roles of a box's values, and queue the containers among them."""
        roles = []
        for place, (value, label) in enumerate(zip(values, labels, strict=True)):
            kind, where = type(value), join_path(path, label)
            role, readers = self.role(value, where)
            roles.append(role)
            if not readers and kind not in ATOMS and self.is_new(kind):
                readers = [Reader()]  # its class is looked at
            if readers:
                self.queue.append((number, place, value, where, readers))
            if isinstance(value, types.FunctionType):
                self.follow(number, place, value, where)
        return roles

    def is_new(self, kind: type) -> bool:
        """True for a class that is looked into and was not met yet."""
        return self.names.opens(home_of(kind)) and id(kind) not in self.met

    def role(self, value: Any, path: str) -> tuple[Role, list[Reader]]:
        """Return the role of a value, and the readers of its content where that is guarded too."""
        if path in self.free:
            return self.free[path], []
        kind = type(value)
        if kind in ATOMS:
            return Role(alike, value), []
        if isinstance(value, GETTERS):
            self.names.mention(value)
        own = object_readers(value, self.names)
        if is_plain(value):
            return Role(alike, value), own
        content = [] if isinstance(value, Tensor) else content_readers(value)
        if content and is_unseen(value):
            self.hidden.append(path)
        if content and (not own or kind in METHOD_TYPES):
            return Role(is_a, kind), content
        readers = [] if id(value) in self.met else content + own
        self.met.add(id(value))
        can_be_known = kind.__weakrefoffset__ != 0  # it must not be kept alive to be known again
        if isinstance(value, types.FunctionType):
            more = value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)
            can_be_known = bool(path) and not any(more)  # its code and the globals that this names
            if can_be_known and not self.opens(value):
                readers = []
        if readers and not can_be_known:
            return Role(is_a, kind), readers
        self.referred.append(value)
        return Role(never), readers

    def opens(self, function: types.FunctionType) -> bool:
        """True if the code of a function is looked into."""
        return self.names.opens(function.__globals__.get("__name__", ""))

    def follow(self, number: int, place: int, function: Any, path: str) -> None:
        """Queue the globals that a function's code names."""
        scope = function.__globals__
        if not self.opens(function):
            return
        self.names.add(function)
        if id(scope) not in self.met:
            self.met.add(id(scope))
            root = self.roots and getattr(self.roots[0], "__globals__", None)
            home = "" if not path or root is scope else f"module {scope.get('__name__')}"
            # Names that are not there are builtins, or nothing yet.
            wanted = self.names.globals_of(scope)
            rest = None if wanted is None else wanted - scope.keys()
            found = [self.names.table(scope, wanted, (), "__globals__", GLOBAL)]
            if rest != set():
                given = function.__builtins__
                found.append(self.names.table(given, rest, (), "__builtins__", "builtin "))
            self.queue.append((number, place, function, home, found))

    # --- what came of it

    @property
    def values(self) -> list[Any]:
        """All values that were read, some of them several times."""
        return [value for _, _, values in self.seen for value in values]

    def guard(self) -> Guard:
        """Return the guard that a replay checks."""
        return Guard([box for box, _, _ in self.seen], self.referred)

    def changes(self) -> list[Change]:
        """Return the values that changed in the containers that were read."""
        found: list[Change] = []
        for box, container, values in self.seen:
            try:
                now = box.reader.read(container)
            except Exception:
                found.append(Change(container, -1, box.path, values, container))
                continue
            for place, (one, other) in enumerate(zip(values, now, strict=True)):
                if one is not other and not alike(one, other):
                    can = can_be_put(container, box.reader.labels[place])
                    found.append(Change(container, place, box.where(place), one, other, can))
        return found

    def place_of(self, change: Change) -> tuple[int, int] | None:
        """The number of a box and the place in it that changed; None if it is not there now."""
        for number, (box, container, _) in enumerate(self.seen):
            if container is change.container:
                for place in range(len(box.ids)):
                    if box.where(place) == change.path:
                        return number, place
        return None

    def positions(self) -> list[bytes]:
        """The state of each random generator of Python and NumPy that the function reaches."""
        return [pickle.dumps(found) for found in random_generators(self.referred, self.names)]

    @property
    def iterators(self) -> list[Any]:
        """The iterators that it reaches, whose positions nobody can ask for."""
        found = [value for value in self.referred if isinstance(value, Iterator)]
        return [value for value in found if type(value).__module__ in OF_PYTHON]


class Change(NamedTuple):
    """A value that is another one now; place -1 for a container that has other values."""

    container: Any
    place: int
    path: str
    before: Any
    now: Any
    can_be_stored: bool = False
    """True if another value can be put there, too."""


def can_be_put(container: Any, label: str) -> bool:
    """True if another value can be put into a place of a container."""
    is_item = label.startswith("[") and label != "[...]"
    return label.startswith((".", GLOBAL, CELL)) or (
        is_item and isinstance(container, (list, dict, deque))
    )


class Environment:
    """The environment of a function or method: the objects that its code can reach."""

    def __init__(
        self,
        function: Callable[..., Any],
        owner: Callable[[], Any] | None = None,
        is_watched: bool = True,
    ) -> None:
        """Without `is_watched` the caller answers for all that the function finds around it."""
        self.own: Values = (function,) if is_watched else ()
        self.owner = owner if is_watched else None
        first = "" if isinstance(function, CALLED) else "self"
        self.labels = (first, "self")[: len(self.own) + (self.owner is not None)]
        inner = function.func if isinstance(function, functools.partial) else function
        self.names = Names(getattr(inner, "__module__", None) or "")

    def roots(self, objects: list[Any]) -> Values:
        """Return the roots of a walk: the function, its owner, and objects among the arguments."""
        own = self.own if self.owner is None else (*self.own, self.owner())
        return (*own, *objects) if objects else own

    def walk(self, objects: list[Any], left: Iterable[Change] = ()) -> Walk:
        """Walk the environment as it is now, again where code was met that names more."""
        labels = *self.labels, *[f"argument object {n}" for n in range(len(objects))]
        while True:
            count = self.names.count
            walk = Walk(self.roots(objects), labels, self.names, left)
            if self.names.count == count:
                return walk


CALLED: Final = (types.FunctionType, types.MethodType, functools.partial)
"""Callables without attributes of their own that matter."""


OF_PYTHON: Final = ("builtins", "itertools")
"""Modules of the iterators that nobody can look into."""
BOUND_METHODS: Final = (types.BuiltinMethodType, types.MethodType)


def random_generators(values: Iterable[Any], names: Names) -> list[Any]:
    """The generators of random numbers among values, their methods, and modules that code names."""
    found: dict[int, Any] = {}
    for value in values:
        owner = value.__self__ if isinstance(value, BOUND_METHODS) else value
        if isinstance(owner, types.ModuleType):
            name = owner.__name__
            if name in GENERATORS and (name != "numpy" or names.has("random")):
                owner = GENERATORS[name](owner)
        modules = [home_of(kind) for kind in type(owner).__mro__]
        draws = "random" in modules or any(m.startswith("numpy.random.") for m in modules)
        if draws and not isinstance(owner, random.SystemRandom):
            found[id(owner)] = owner
    return list(found.values())


GENERATORS: Final = {
    "random": operator.attrgetter("_inst"),
    "numpy.random": operator.attrgetter("mtrand._rand"),
    "numpy": operator.attrgetter("random.mtrand._rand"),
}
"""Modules that draw from a generator of their own, and how it is found there."""
