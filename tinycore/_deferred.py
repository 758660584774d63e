"""`deferred`: something in a module that is imported at the first need, not before.

Floor 0. The only place in the core that imports a module by its name.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from tinycore.errors import PluginError

__all__ = ["Deferred", "deferred", "module_named"]

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def module_named(name: str) -> Any:
    """The module `package.module`, imported if it is not there yet."""
    return importlib.import_module(name)


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

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it."""
        return self.resolve()(*arguments, **options)

    def __repr__(self) -> str:
        return f"deferred({self.reference!r})"


def deferred(reference: str) -> Deferred:
    """What `"package.module:attribute"` names, callable now and imported when it is called."""
    return Deferred(reference)
