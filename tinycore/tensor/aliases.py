"""The alias index: from a base buffer to the living tensors that are views of it.

Floor 5. An assignment asks the index instead of all living tensors. Tensors enter the group of
their base (the node under slices and reshapes) at the next query, and only those that are new or
have changed since the last one. A group holds neither tensors nor nodes alive; it is keyed by
the id of the base, so each entry is checked again when it is read.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from tinycore._locks import in_child, lock
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

VIEW_OPS: Final = MOVEMENT | {Op.DETACH, Op.OWN}
"""Ops whose result is a view of their source."""
MOST_NEW: Final = 4096
"""Tensors created between two queries; with more, the next query rebuilds all groups."""


def base_of_view(node: UOp) -> UOp:
    """The node that a view shows the elements of, below all movement ops, DETACHs and OWNs."""
    while node.op in VIEW_OPS:
        node = node.src[0]
    return node


def buffers_below(node: UOp) -> list[UOp]:
    """The BUFFERs that a node is a view of, in a fixed order."""
    base = base_of_view(node)
    while base.op is Op.ASSIGN:  # what is written may be computed from other memory
        base = base_of_view(base.src[0])
    if base.op is Op.MULTI:
        return [buffer for part in base.src for buffer in buffers_below(part)]
    return [base] if base.op is Op.BUFFER else [n for n in base.toposort() if n.op is Op.BUFFER]


class AliasIndex:
    """Groups of tensors by the base of their views; `living` gives all tensors."""

    def __init__(
        self,
        living: Callable[[], Iterable[weakref.ref[Any]]],
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.living = living
        self.lock: AbstractContextManager[Any] = lock() if guard is None else guard
        self.new: deque[weakref.ref[Any]] = deque()
        self.groups: dict[int, list[weakref.ref[Any]]] = defaultdict(list)
        self.count = 0
        """Entries in all groups, some of which are stale."""
        self.living_count = 0
        """Tensors that lived at the last rebuild."""
        self.is_known = True
        self.is_whole = True
        """True if the last rebuild of the groups was finished, with no interrupt."""
        in_child(self.renew)

    def renew(self) -> None:
        """In a forked child: rebuild, since another thread may have been changing the groups."""
        self.is_whole = False

    def note(self, *references: weakref.ref[Any]) -> None:
        """Record tensors that are new, or have another node now."""
        self.new.extend(references)
        if len(self.new) > MOST_NEW:
            self.is_known = False
            self.new.clear()

    def of(self, base: UOp) -> list[Core]:
        """The living tensors that are views of `base`."""
        with self.lock:
            self.group()
            known = self.groups.get(id(base), ())
            found: dict[int, weakref.ref[Any]] = {}
            shown: dict[int, Core] = {}
            for reference in known:
                tensor = reference()
                if tensor is not None and base_of_view(tensor.uop) is base:
                    found[id(tensor)], shown[id(tensor)] = reference, tensor
            if not found:
                self.groups.pop(id(base), None)
            elif len(found) < len(known):
                self.groups[id(base)] = list(found.values())
            self.count += len(found) - len(known)
        return list(shown.values())

    def group(self) -> None:
        """Put new tensors in their groups, or rebuild all groups if too many are new."""
        if self.is_known and self.is_whole:
            self.place_new()
            if self.count <= 2 * MOST_NEW + self.living_count:
                return
        self.is_whole, self.is_known = False, True
        self.groups.clear()
        self.new.clear()
        self.count = 0
        for reference in list(self.living()):
            self.place(reference)
        self.living_count = self.count
        self.is_whole = True

    def place_new(self) -> None:
        """Put new tensors into their groups; each counts as new until then."""
        new = self.new
        while waiting := new.copy():
            for reference in dict(zip(map(id, waiting), waiting, strict=True)).values():
                self.place(reference)
            try:
                for _ in waiting:
                    new.popleft()
            except IndexError:  # too many have come from another thread meanwhile
                return

    def place(self, reference: weakref.ref[Any]) -> None:
        """Put a tensor in its group, if it lives."""
        if (tensor := reference()) is not None:
            self.groups[id(base_of_view(tensor.uop))].append(reference)
            self.count += 1
