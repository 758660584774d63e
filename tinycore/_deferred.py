"""`deferred`: something in a module that is imported at the first need, not before.

Floor 0. Imports `_locks`, `errors`. The only place in the core that imports a module by its name.
A fork waits for imports in progress: their locks would be held for ever in the child. `numpy` here
is NumPy, which takes as long to import as all of the core: who asks for the first of its functions
waits for it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from _thread import get_ident
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tinycore._locks import in_child, lock
from tinycore.errors import PluginError

if TYPE_CHECKING:
    import numpy

    NumpyArray = numpy.ndarray
    NumpyBool = numpy.bool_
    NumpyComplex = numpy.complexfloating
    NumpyScalar = numpy.generic

__all__ = [
    "Deferred",
    "DeferredModule",
    "NumpyArray",
    "NumpyBool",
    "NumpyComplex",
    "NumpyScalar",
    "deferred",
    "module_named",
    "numpy",
]

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


FORK_SECONDS: Final = 10.0
"""Longest time that a fork waits for the imports of other threads."""
importing: Final[list[int]] = []
"""The threads that import a module, once for each: in a forked child such a module stays locked."""
gate: Final = lock()
"""Held from before a fork until after it: no thread begins to import in between."""


def module_named(name: str) -> Any:
    """The module `package.module`, imported if it is not there yet."""
    thread = get_ident()
    if thread in importing:  # another fork must not hold up what a fork waits for
        importing.append(thread)
    else:
        with gate:
            importing.append(thread)
    try:
        return importlib.import_module(name)
    finally:
        with suppress(ValueError):  # a child of a fork has forgotten them
            importing.remove(thread)


def before_fork() -> None:
    """Wait until no other thread imports; none begins."""
    gate.acquire()
    end = time.monotonic() + FORK_SECONDS
    while any(thread != get_ident() for thread in importing) and time.monotonic() < end:
        time.sleep(0.001)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=gate.release)
    in_child(importing.clear)


class Deferred:
    """A function or class in a module that is imported at the first call."""

    __slots__ = ("_target", "reference")

    def __init__(self, reference: str) -> None:
        if not _REFERENCE.fullmatch(reference):
            raise PluginError(f'deferred({reference!r}) must be written "package.module:attribute"')
        self.reference = reference
        self._target: Any = None

    def resolve(self) -> Any:
        """The object itself. Raises what importing raises, or AttributeError if it is not there."""
        if self._target is None:
            module, _, attributes = self.reference.partition(":")
            target: Any = module_named(module)
            for attribute in attributes.split("."):
                target = getattr(target, attribute)
            self._target = target
        return self._target

    @property
    def modules(self) -> tuple[str, str]:
        """The module that is named, and the one that defines the object: where its code is."""
        return self.reference.partition(":")[0], module_of(self.resolve())

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it."""
        target = self._target or self.resolve()
        return target(*arguments, **options)

    def __repr__(self) -> str:
        return f"deferred({self.reference!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deferred) and self.reference == other.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    def __reduce__(self) -> tuple[type[Deferred], tuple[str]]:
        return Deferred, (self.reference,)


def module_of(function: Any) -> str:
    """The module that defines a function; of a `functools.partial`, that of its function."""
    return getattr(function, "func", function).__module__  # type: ignore[no-any-return]


def deferred(reference: str) -> Deferred:
    """A deferred reference to `"package.module:attribute"`: callable now, imported when called."""
    return Deferred(reference)


class DeferredModule:
    """A module that is imported when the first of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(module_named(self.__name__), attribute)
        setattr(self, attribute, found)
        return found


class ClassOfNumpy(type):
    """Metaclass of NumPy's classes for `isinstance`: before NumPy is imported, nothing is one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, getattr(sys.modules.get("numpy"), cls.__name__, ()))


if not TYPE_CHECKING:
    numpy = DeferredModule("numpy")
    NumpyArray = ClassOfNumpy("ndarray", (), {})
    NumpyBool = ClassOfNumpy("bool_", (), {})
    NumpyComplex = ClassOfNumpy("complexfloating", (), {})
    NumpyScalar = ClassOfNumpy("generic", (), {})
