"""The interning table: an equal node is the existing one (hash consing).

Floor 1. The table holds nodes weakly, but a key holds the sources of its node. So an entry has to
go with its node, or no graph below it is ever freed, nor the device memory of its buffers.
No lock is taken: looking up, entering and removing what is dead are one step of the dictionary
each, whoever else is there. A node still has its sources when its entry goes and loses them after
that, so a graph that dies is taken down entry by entry, however deep it is.
"""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref as remove_dead  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tinycore.dtype import DType
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.uop.node import UOp

Key: TypeAlias = "tuple[Op, DType, tuple[UOp, ...], Any]"


class Reference(weakref.ref["UOp"]):
    """A weak reference to a node that knows its key in the table."""

    __slots__ = ("key",)

    key: Key


nodes: Final[dict[Key, Reference]] = {}
"""Every living node, by its op, dtype, sources and argument."""


def enter(key: Key, node: UOp) -> UOp:
    """Enter a new node into the table until it dies, unless another thread was first."""
    reference = Reference(node, forget)
    reference.key = key
    while (first := nodes.setdefault(key, reference)) is not reference:
        if (found := first()) is not None:
            return found
        remove_dead(nodes, key)
    return node


def forget(reference: weakref.ref[UOp]) -> None:
    """Remove the entry of a node that died, unless it belongs to a newer equal node."""
    remove_dead(nodes, reference.key)  # type: ignore[attr-defined]
