"""Which living tensors show some memory, found without looking at all of them for each assignment.

Floor 5. Tensors are put in groups by what is under their slices and reshapes when somebody asks,
and then only those that are new or have changed since. A group holds neither tensors nor nodes
alive: it goes by the number of the node, so what is found in it is looked at again.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tinycore._locks import in_child, lock
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

SHOWING: Final = MOVEMENT | {Op.DETACH}
"""Ops whose result shows the elements of their source."""
MOST_NEW: Final = 4096
"""Tensors that may be made while nobody asks; then all are looked at, the next time."""


def under(node: UOp) -> UOp:
    """What a node shows the elements of."""
    while node.op in SHOWING:
        node = node.src[0]
    return node


def buffers_below(node: UOp) -> list[UOp]:
    """The BUFFERs that a node shows, or is over parts of, in a fixed order."""
    base = under(node)
    return [base] if base.op is Op.BUFFER else [n for n in base.toposort() if n.op is Op.BUFFER]


class Shown:
    """The groups of tensors; `living` gives all that there are."""

    def __init__(self, living: Callable[[], Iterable[weakref.ref[Any]]]) -> None:
        self.living = living
        self.lock = lock()
        self.new: deque[weakref.ref[Any]] = deque()
        self.groups: dict[int, list[weakref.ref[Any]]] = defaultdict(list)
        self.count = 0
        """Entries in all groups, some of which have died or moved on."""
        self.is_known = True
        self.is_whole = True
        """Whether all tensors were put in groups when that was done last, with no interrupt."""
        in_child(self.renew)

    def renew(self) -> None:
        """In a forked child: another thread may have been changing the groups."""
        self.is_whole = False

    def note(self, *references: weakref.ref[Any]) -> None:
        """Tensors that are new, or have another node now."""
        self.new.extend(references)
        if len(self.new) > MOST_NEW:
            self.is_known = False
            self.new.clear()

    def of(self, base: UOp) -> list[Core]:
        """The living tensors that only reshape, slice or permute `base`."""
        with self.lock:
            self.group()
            known = self.groups.get(id(base), ())
            found: dict[int, weakref.ref[Any]] = {}
            shown: list[Core] = []
            for reference in known:
                tensor = reference()
                if tensor is not None and id(tensor) not in found and under(tensor.uop) is base:
                    found[id(tensor)] = reference
                    shown.append(tensor)
            if not found:
                self.groups.pop(id(base), None)
            elif len(found) < len(known):
                self.groups[id(base)] = list(found.values())
            self.count += len(found) - len(known)
        return shown

    def group(self) -> None:
        """Put the new ones in their groups, or all where those are not known any more."""
        if self.is_known and self.is_whole:
            self.place_new()
            if self.count <= 2 * MOST_NEW:
                return
        self.is_whole, self.is_known = False, True
        self.groups.clear()
        self.new.clear()
        self.count = 0
        for reference in list(self.living()):
            self.place(reference)
        self.is_whole = True

    def place_new(self) -> None:
        """Put the new ones in their groups; each is new until it is there."""
        new = self.new
        try:
            while new:
                self.place(new[0])
                new.popleft()
        except IndexError:  # too many have come from another thread meanwhile
            return

    def place(self, reference: weakref.ref[Any]) -> None:
        """Put a tensor in its group, if it lives."""
        if (tensor := reference()) is not None:
            self.groups[id(under(tensor.uop))].append(reference)
            self.count += 1
