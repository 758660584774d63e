"""Versions of memory: each BUFFER is one, and a run that writes in place ends with the next.

Floor 5. So a graph over a BUFFER means the same whatever is written later: its leaf is a version,
and not an address. A version that was overwritten is a leaf whose content is gone. A derivative
that needs its value is refused; one that only passes through it is not. The former versions of the
memory that a tensor shows are that tensor at earlier times, to which gradients go, too.
See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Final, TypeVar

from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.runtime import runtime
from tinycore.tensor.storage.held_values import escaped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

T = TypeVar("T")


def living(references: Iterable[weakref.ref[T]]) -> list[T]:
    """The living objects of some weak references."""
    return [found for reference in references if (found := reference()) is not None]


class Home:
    """Identity of memory, whatever is written there, or of a value, whatever memory it gets: the
    nodes that have it at present, the present version of memory or those by which graphs know a
    value, and the memory of that value.
    """

    __slots__ = ("__weakref__", "memory", "nodes")

    def __init__(self, node: UOp) -> None:
        self.nodes = [weakref.ref(node)]
        self.memory: list[weakref.ref[UOp]] = []

    def present(self) -> list[UOp]:
        """The living nodes among those, and memory."""
        return living([*self.nodes, *self.memory])


homes: Final[weakref.WeakKeyDictionary[UOp, Home]] = weakref.WeakKeyDictionary()
"""The homes of versions of memory that was written to, or that something was computed from, and of
the identities of tensors with nodes of their own, whatever memory these get.
"""
values: Final[weakref.WeakKeyDictionary[UOp, Home]] = weakref.WeakKeyDictionary()
"""The homes of values by the nodes, and the memory, that have them: several tensors may show one,
each in memory of its own.
"""
former: Final[weakref.WeakSet[UOp]] = weakref.WeakSet()
"""Versions that were overwritten, as far as graphs read them."""


def home(version: UOp) -> Home:
    """The home of a version, or of a value."""
    table = homes if version.op in (Op.BUFFER, Op.UNIQUE) else values
    found = table.get(version)
    return table.setdefault(version, Home(version)) if found is None else found


def move(value: UOp, other: UOp) -> None:
    """Let another node, such as memory, have a value with a home, too."""
    if (known := values.get(value)) is not None and other is not value:
        values.setdefault(other, known)
        (known.memory if other.op in WRITTEN else known.nodes).append(weakref.ref(other))


def known_as(value: UOp) -> list[UOp]:
    """The nodes by which graphs know the value of a node, which may be among them."""
    known = values.get(value)
    return [] if known is None else living(known.nodes)


def references(memory: Iterable[UOp]) -> frozenset[weakref.ref[Home]]:
    """The homes of memory, which is not kept alive by them."""
    return frozenset(map(weakref.ref, map(home, memory)))


def renewed(memory: Iterable[UOp]) -> dict[UOp, UOp]:
    """The next version of each BUFFER; those given are former ones from now on."""
    found = {}
    for old in memory:
        found[old] = new = runtime().version(old)
        known = homes[new] = home(old)
        if type(past := getattr(old, "_past", None)) is frozenset:
            new._past = past
        if old in escaped:
            escaped.add(new)
        known.nodes = [weakref.ref(new)]
        former.add(old)
    return found


WRITTEN: Final = frozenset({Op.BUFFER, Op.MULTI, Op.ASSIGN})
"""Ops of versions of memory."""


def is_former(memory: UOp) -> bool:
    """True if a BUFFER that memory shows, or that was written to in place, is a former version."""
    return any(map(former.__contains__, buffers_below(memory)))


def in_latest(memory: UOp) -> UOp:
    """Memory with each BUFFER in its present version."""
    return memory.substitute({b: latest(b) for b in buffers_below(memory)})


def latest(version: UOp) -> UOp:
    """The present version of the memory of a BUFFER; a new one if that is gone."""
    found = current(version)
    return renewed([version])[version] if is_former(found) else found


def current(version: UOp) -> UOp:
    """The present version of the memory of a BUFFER; itself if that is gone."""
    known = homes.get(version)
    return version if known is None else next(iter(known.present()), version)
