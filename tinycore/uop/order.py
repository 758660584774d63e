"""The order of terms in a canonical sum, the same in every process.

Floor 1. What varies in outer loops comes first, so that compilers can hoist it: terms are ordered
by their innermost loop, then by what they are.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Order = tuple[tuple[int, ...], int, str, int]

LEAF_RANKS = {Op.DEFINE_VAR: 0, Op.SPECIAL: 1, Op.RANGE: 2}
OTHER = 3


def order_of(node: UOp) -> Order:
    """Sort key of a node: (innermost loop, kind of node, name, digest)."""
    try:
        found: Any = node._order
    except AttributeError:
        found = node.derive("_order", derived_order)
    return found  # type: ignore[no-any-return]


def derived_order(node: UOp) -> Order:
    """The order of one node, given those of its sources.

    The digest is a hash of the structure, made of integers only, for which Python's is repeatable.
    """
    what = crc32(f"{node.op.name} {node.arg!r}".encode())
    digest = hash((what, *[s._order[3] for s in node.src]))
    loop = max([s._order[0] for s in node.src], default=())
    if node.op is Op.RANGE:
        loop = max(loop, node.arg.number)
    name = (
        str(node.arg[0] if node.op is Op.DEFINE_VAR else node.arg) if node.op in LEAF_RANKS else ""
    )
    return loop, LEAF_RANKS.get(node.op, OTHER), name or node.op.name, digest
