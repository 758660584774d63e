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
from typing import Final

from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.held_values import escaped
from tinycore.tensor.runtime import runtime
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Home:
    """Identity of memory, whatever is written there; `current` is its present version."""

    __slots__ = ("__weakref__", "current")

    def __init__(self, current: UOp) -> None:
        self.current = weakref.ref(current)


class Versions:
    """The homes of versions. `versions` is the one instance; it keeps no node alive."""

    def __init__(self) -> None:
        self.homes: weakref.WeakKeyDictionary[UOp, Home] = weakref.WeakKeyDictionary()
        """Versions of memory that was written to, or that something was computed from."""
        self.former: weakref.WeakSet[UOp] = weakref.WeakSet()
        """Versions that were overwritten, as far as graphs read them."""

    def home(self, version: UOp) -> Home:
        """The home of a version."""
        found = self.homes.get(version)
        return self.homes.setdefault(version, Home(version)) if found is None else found

    def renewed(self, memory: Iterable[UOp]) -> dict[UOp, UOp]:
        """The next version of each BUFFER; those given are former ones from now on."""
        found = {}
        for old in memory:
            found[old] = new = runtime().version(old)
            home = self.homes[new] = self.home(old)
            if type(past := getattr(old, "_past", None)) is frozenset:
                new._past = past
            if old in escaped:
                escaped.add(new)
            home.current = weakref.ref(new)
            self.former.add(old)
        return found

    def is_former(self, node: UOp) -> bool:
        """True if a BUFFER is a former version, or a part of a MULTI is."""
        if node.op is MULTI:
            return any(map(self.is_former, node.src))
        if node.op is RESHAPE:
            return self.is_former(node.src[0])
        return node.op is BUFFER and node in self.former

    def in_latest(self, memory: UOp) -> UOp:
        """Memory with each BUFFER in its present version."""
        return memory.substitute({b: self.latest(b) for b in buffers_below(memory)})

    def latest(self, version: UOp) -> UOp:
        """The present version of the memory of a BUFFER; a new one if that is gone."""
        found = self.current(version)
        return self.renewed([version])[version] if self.is_former(found) else found

    def current(self, version: UOp) -> UOp:
        """The present version of the memory of a BUFFER; itself if that is gone."""
        home = self.homes.get(version)
        found = None if home is None else home.current()
        return version if found is None else found


BUFFER, MULTI, RESHAPE = Op.BUFFER, Op.MULTI, Op.RESHAPE
versions: Final = Versions()
