"""Steps of views: which movement shows the elements of a base, and whether they may be written.

Floor 5. What tensors share a base is told by their storage (`tinycore.tensor.storage.storage`).
See docs/aliasing.md.
"""

from __future__ import annotations

from typing import Final

from tinycore.errors import AliasError
from tinycore.tensor import graph
from tinycore.tensor.aliases import VIEW_OPS
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import PARTIAL_WRITES, SAME_VALUE, Op


def movement_above(node: UOp, base: UOp) -> list[UOp] | None:
    """The nodes by which a view shows a base, or what that reshapes, the last one first.

    None for what is no view of it.
    """
    content = base_of(base)
    steps: list[UOp] = []
    while node is not base and node is not content:
        if node.op not in VIEW_OPS:
            return None
        steps.append(node)
        node = node.src[0]
    return steps


def place_in(node: UOp, base: UOp) -> UOp:
    """A view without its DETACHs and OWNs: where in `base` its elements are.

    Raises AliasError where it shows one element several times, or elements that are not there.
    """
    steps = movement_above(node, base)
    refused = [node] if steps is None else [*filter(repeats, steps)]
    if steps is None or refused:
        op = refused[0].op
        made_by = VIEW_NAMES.get(op, op.name.lower())
        raise AliasError(
            f"write: a tensor of shape {node.shape} that was made by {made_by} shows "
            "elements more than once, or such as are not there. Write to the tensor that it was "
            "made of, or to a copy: clone()"
        )
    view = graph.reshape(base, (steps[-1].src[0] if steps else node).shape)
    for step in reversed(steps):
        if step.op not in SAME_VALUE:
            view = step if step.src[0] is view else step.with_src((view,))
    return view


def shows_repeated(node: UOp, base: UOp) -> bool:
    """True if a view shows an element of its base more than once, or elements not in it."""
    return any(map(repeats, movement_above(node, base) or ()))


def repeats(node: UOp) -> bool:
    """True if a movement op shows an element of its source twice, or elements not in it."""
    if node.op is Op.SKEW:
        return bool(node.shape[node.arg.window_axis] != 1)
    return node.op in (Op.EXPAND, Op.PAD, Op.UNSKEW)


VIEW_NAMES: Final = {Op.SKEW: "unfold", Op.UNSKEW: "unfold"}
"""The methods that a user knows some ops by."""


def is_shared(base: UOp) -> bool:
    """True if all tensors over a node show the same elements: it is memory, or only theirs."""
    op = base.op
    return op is Op.BUFFER or (op in SHARED and (graph.is_memory(base) or graph.is_copy(base)))


SHARED: Final = graph.MEMORY | PARTIAL_WRITES | {Op.CONTIGUOUS, Op.MULTI, Op.RESHAPE}
"""Ops of nodes that may be memory, or a copy that will have some."""
