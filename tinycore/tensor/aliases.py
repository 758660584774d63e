"""Bases of views: the node that movement ops, DETACHs and OWNs show, and the BUFFERs below it.

Floor 5. Walks over nodes alone. See docs/aliasing.md.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op

VIEW_OPS: Final = MOVEMENT | {Op.DETACH, Op.OWN}
"""Ops whose result is a view of their source."""


def base_of_view(node: UOp) -> UOp:
    """The node that a view shows the elements of, below all movement ops, DETACHs and OWNs."""
    while node.op in VIEW_OPS:
        node = node.src[0]
    return node


def views_below(node: UOp, ops: Container[Op] = VIEW_OPS) -> list[UOp]:
    """A view, and those that it is made of by some ops, down to its base."""
    found = [node]
    while node.op in ops:
        node = node.src[0]
        found.append(node)
    return found


def buffers_below(node: UOp) -> list[UOp]:
    """The BUFFERs that a node is a view of, in a fixed order."""
    base = base_of_view(node)
    while base.op is Op.ASSIGN:  # what is written may be computed from other memory
        base = base_of_view(base.src[0])
    if base.op is Op.MULTI:
        return [buffer for part in base.src for buffer in buffers_below(part)]
    return [base] if base.op is Op.BUFFER else base.every(Op.BUFFER)


def parts_of(node: UOp) -> list[UOp]:
    """The parts of a node on each of its devices; itself on one."""
    if (base := base_of(node)).op is not Op.MULTI:
        return [node]
    return [part for member in base.src for part in parts_of(member)]


def is_realized(node: UOp) -> bool:
    """True if a node only shows memory without pending writes."""
    base = base_of_view(node)
    return base.op is Op.BUFFER or (base.op is Op.MULTI and all(map(is_realized, base.src)))
