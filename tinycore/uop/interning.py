"""The table of living nodes: building a node twice finds the first one.

Floor 1. The table holds nodes weakly, but a key holds the sources of its node. So an entry has to
go with its node, or no graph below it is ever freed, nor the device memory of its buffers.
Looking a node up takes no lock, nor does entering one where none stood. Forgetting takes one, and
so does taking the place of a node that died, or two threads would each make a node of their own of
the same parts; it may be taken again by a thread that holds it, since nodes die wherever the
collector runs.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tinycore._locks import lock, recursive_lock
from tinycore.dtype import DType
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.uop.node import UOp

Key: TypeAlias = "tuple[Op, DType, tuple[UOp, ...], Any]"


class Reference(weakref.ref["UOp"]):
    """A weak reference to a node that knows the key under which it stands in the table."""

    __slots__ = ("key",)

    key: Key


nodes: Final[dict[Key, Reference]] = {}
"""Every living node by what it is made of."""
dead: Final[list[Reference]] = []
"""References whose entries have yet to go."""


changing: Final = recursive_lock()
"""Held while an entry is made or removed."""


forgetting: Final = lock()
"""Held while entries are being removed."""


def enter(key: Key, node: UOp) -> UOp:
    """Put a new node into the table, until it dies; the one of another thread if that was first."""
    reference = Reference(node, forget)
    reference.key = key
    if nodes.setdefault(key, reference) is reference:  # one step, whoever else tries
        return node
    with changing:
        earlier = nodes.get(key)
        if earlier is not None and (found := earlier()) is not None:
            return found
        nodes[key] = reference
    return node


def forget(reference: weakref.ref[UOp]) -> None:
    """Remove the entry of a node that died, and then those of sources that die of it.

    One after the other, not one inside the other: a graph may be deeper than any stack. An entry
    that belongs to a newer equal node stays.
    """
    last: Reference = reference  # type: ignore[assignment]
    dead.append(last)
    if forgetting.locked():
        return
    del last, reference
    with changing:
        if forgetting.locked():  # by a frame below this one
            return
        with forgetting:
            while dead:
                last = dead.pop()
                if nodes.get(last.key) is last:
                    del nodes[last.key]
                del last
