"""Guards: checks that the environment of a captured function is unchanged.

Floor 5. A guard is a list of boxes. Each box is found among the values of an earlier one, reads its
own values (`guard_readers.py`), and compares them by their roles. `guard_code.py` compiles the
comparison of identities, which decides most replays.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tinycore.tensor.guard_code import Source, compiled_guard
from tinycore.tensor.guard_keys import (
    ATOM,
    CONTENT,
    FORM,
    OBJECT,
    Role,
    Values,
    alike,
    constant_key,
    is_plain,
)
from tinycore.tensor.tensor import Tensor


class Box(NamedTuple):
    """A container: its path, its reader, and its values at the capture."""

    parent: int
    place: int
    kind: type
    scope: Callable[[Any], Any] | None
    read: Callable[[Any], Values]
    ids: tuple[int, ...]
    roles: tuple[Role, ...]
    store: Callable[[Any, int, Any], None] | None
    path: str
    labels: tuple[str, ...]
    source: Source | None

    def values(self, container: Any) -> Values:
        """Read the current values of a container."""
        return self.read(container if self.scope is None else self.scope(container))

    def holds(self, values: Values) -> bool:
        """True if values have the same meaning as before; most are the same objects."""
        return len(values) == len(self.ids) and all(
            id(value) == number or meets(role, value)
            for value, number, role in zip(values, self.ids, self.roles, strict=True)
        )

    def where(self, place: int) -> str:
        """A value's place in words."""
        label = self.labels[place]
        return self.path if label in ("", ".__wrapped__") else join_path(self.path, label)


def meets(role: Role, value: Any) -> bool:
    """True if a value satisfies its role."""
    if role.means == ATOM:
        return alike(role.of, value)
    if role.means == CONTENT:
        return type(value) is role.of
    return role.means == FORM and form_of_value(value) == role.of


def form_of_value(value: Any) -> Any:
    """The form of a tensor, or of containers of tensors and plain values; None for others."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.dtype, value.device
    if isinstance(value, (list, tuple)):
        return type(value), tuple([form_of_value(item) for item in value])
    if isinstance(value, dict):
        return dict, tuple(value), tuple([form_of_value(item) for item in value.values()])
    return (constant_key(value),) if is_plain(value) else None


def join_path(path: str, label: str) -> str:
    """A place in a place, in words."""
    if label[:1] in ".[":
        return path + label if path else f"the function{label}"
    return f"{label} of {path}" if path else label


class Guard:
    """Check that a function's environment is as it was at the capture."""

    def __init__(self, boxes: tuple[Box, ...], referred: list[Any], more: Values) -> None:
        self.boxes, self.more = boxes, more
        self.rows = [
            (box.parent, box.place, box.kind, box.scope, box.read, [*box.ids], box) for box in boxes
        ]
        """Fields of each box that `find` reads, in one tuple."""
        self.is_possible = True
        """True if all objects that must be found again exist."""
        self.is_same: Callable[[Values], bool] | None = None
        """A quick `find` from the first replay on (`guard_code.py`). Its False decides nothing."""
        self.kept: list[Any] = []
        """References to these: weak where they can be."""
        mine = weakref.ref(self)

        def died(_: Any) -> None:
            if (guard := mine()) is not None:
                guard.is_possible = False

        for value in referred:
            try:
                self.kept.append(weakref.ref(value, died))
            except TypeError:
                self.kept.append(value)

    def holds(self, roots: Values) -> bool:
        """True if nothing has changed. Used if `is_same` says no, or does not exist yet."""
        if self.find(roots) is None:
            return False
        if self.is_same is None:
            self.is_same = compiled_guard(self.boxes)
        return True

    def find(self, roots: Values) -> list[Values] | None:
        """The values of all boxes, those of the roots first; None if something has changed."""
        if not self.is_possible:
            return None
        found: list[Values] = [(*roots, *self.more) if self.more else roots]
        keep = found.append
        try:
            for parent, place, kind, scope, read, ids, box in self.rows:
                container = found[parent][place]
                if type(container) is not kind:
                    return None
                values = read(container if scope is None else scope(container))
                if [*map(id, values)] != ids and not box.holds(values):
                    return None
                keep(values)
        except (AttributeError, KeyError, IndexError, RuntimeError):
            return None
        return found

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Yield the expected plain values and objects, with descriptions of their places."""
        for box in self.boxes:
            for place, (role, number) in enumerate(zip(box.roles, box.ids, strict=True)):
                if role.means == ATOM:
                    yield (
                        box.where(place),
                        constant_key(role.of) if is_comparable(role.of) else None,
                    )
                elif role.means == OBJECT:
                    yield box.where(place), ("object", number)


def is_comparable(value: Any) -> bool:
    """True if a plain value can be shown."""
    return not isinstance(value, types.CodeType)
