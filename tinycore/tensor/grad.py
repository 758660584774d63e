"""Reverse-mode differentiation of the tensor graph.

Floor 5. `rules.py` has one rule per op; here is the walk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tinycore.dtype import dtypes
from tinycore.errors import GradientError
from tinycore.tensor.rules import GRADIENT_RULES
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

STOPS: Final = frozenset(
    {Op.BUFFER, Op.BUFFER_VIEW, Op.BIND, Op.CONST, Op.ARANGE, Op.DETACH, Op.BITCAST, Op.TRUNC}
)
"""Ops of floats whose sources get no gradient: leaves, and functions constant almost everywhere."""

LEAF: Final = "leaf"
"""The argument of an ASSIGN to a leaf that requires a gradient: the content written is data."""


def gradients(root: UOp, seed: UOp, targets: Iterable[UOp]) -> dict[UOp, UOp]:
    """The gradient of every target that `root` depends on, given that of `root`."""
    wanted = set(targets)
    order = [
        n
        for n in root.toposort(passes_gradient)
        if n.shape_or_none is not None or n.op is Op.CUSTOM
    ]
    useful = set()
    for node in order:
        if node in wanted or (passes_gradient(node) and any(s in useful for s in node.src)):
            useful.add(node)
    found = {root: seed}
    for node in reversed(order):
        if node not in useful or node not in found or not passes_gradient(node):
            continue
        for source, part in zip(node.src, GRADIENT_RULES[node.op](node, found[node]), strict=True):
            if part is not None and source in useful:
                found[source] = add_gradients(found[source], part) if source in found else part
    return {target: found[target] for target in wanted if target in found}


def add_gradients(a: UOp, b: UOp) -> UOp:
    """The sum of two gradients; a CUSTOM keeps those of its results separate."""
    return UOp.sink(*a.src, *b.src) if a.op is Op.SINK else a + b


def passes_gradient(node: UOp) -> bool:
    """True if a gradient of this node reaches its sources."""
    if node.op is Op.CUSTOM:
        return True
    if not dtypes.is_float(node.dtype) or node.op in STOPS:
        return False
    if node.op is Op.ASSIGN and node.arg is LEAF:
        return False
    if node.op not in GRADIENT_RULES:
        raise GradientError(f"{node.op.name} of floats has no derivative here; detach() its result")
    for source in node.src:  # noqa: SIM110  a generator costs twice as much
        if source.op is Op.KERNEL:
            return False
    return True
