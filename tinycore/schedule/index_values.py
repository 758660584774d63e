"""Values of indices alone, such as causal masks: arithmetic on ARANGE and constants.

Floor 3. A matrix unit of a card waits for what lanes load for each score, while a comparison of two
indices costs next to nothing. `Tensor.ones(n, n).tril()` is one as well: the memory that `ones`
fills is written if somebody asks for it, and the mask is computed from the number written there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinycore.uop.movement import below_movement
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, SAME_VALUE, Op

COMPUTED: Final = ALU | MOVEMENT | SAME_VALUE
BEGINNINGS: Final = frozenset({Op.CONST, Op.ARANGE})


def is_of_indices(node: UOp, known: Mapping[UOp, bool]) -> bool:
    """True if a value is computed from indices and constants; `known` has the answers below."""
    if node.op in BEGINNINGS:
        return True
    return node.op in COMPUTED and all(
        known.get(s, False) for s in node.src if s.shape_or_none is not None
    )


def is_made_of_indices(node: UOp) -> bool:
    """The same of a value alone."""
    known: dict[UOp, bool] = {}
    for below in node.toposort(lambda n: n.op in COMPUTED):
        known[below] = is_of_indices(below, known)
    return known[node]


def with_numbers_of_fills(node: UOp, known: Mapping[UOp, bool]) -> UOp:
    """Arithmetic on indices and on memory that is filled with a number, with that number instead.

    Other arithmetic stays: a first step that reads zeros is the same kernel as the steps after it.
    """
    if node.op not in ALU or not any(known.get(s) and not is_number(s) for s in node.src):
        return node
    sources = [s if known.get(s) else number_of_fill(s) for s in node.src]
    return node if None in sources else node.with_src(tuple([s for s in sources if s is not None]))


def number_of_fill(node: UOp) -> UOp | None:
    """The repeated number that memory was filled with, in the shape of a view of it."""
    if node.op in MOVEMENT:
        inner = number_of_fill(node.src[0])
        return None if inner is None else node.with_src((inner, *node.src[1:]))
    return node.src[1] if node.op is Op.ASSIGN and is_number(node.src[1]) else None


def is_number(node: UOp) -> bool:
    """True for one number at all places."""
    return below_movement(node).op is Op.CONST
