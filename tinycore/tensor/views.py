"""Views of unrealized values, so that a write reaches all of them.

Floor 5. A view of memory is found by its node (`tinycore.tensor.aliases`): two tensors over one
BUFFER are the same elements. A node that is still to be computed says nothing of the kind, since
equal computations are one node, so those that were made as views of such a tensor share a Value.
See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from tinycore.errors import AliasError
from tinycore.tensor import graph
from tinycore.tensor.aliases import VIEW_OPS
from tinycore.uop.node import UOp
from tinycore.uop.op import SAME_VALUE, Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

FEWEST: Final = 16
"""Views that are noted before the first look at which of them still live."""


class Value:
    """The base of some views: a node that has no memory, and the tensors that show it."""

    __slots__ = ("base", "most", "noted", "refusal")

    def __init__(self, base: UOp, first: weakref.ref[Core], refusal: str | None = None) -> None:
        self.base = base
        self.refusal = refusal
        self.noted = [first]
        self.most = FEWEST
        """Number of notes at which those of dead tensors are dropped."""

    def enter(self, reference: weakref.ref[Core]) -> None:
        """One more tensor."""
        self.noted.append(reference)
        if len(self.noted) > self.most:
            self.noted = [r for r in self.noted if (t := r()) is not None and t._value is self]
            self.most = max(FEWEST, 2 * len(self.noted))

    def tensors(self) -> list[Core]:
        """The tensors that live and still show it."""
        found = [t for r in self.noted if (t := r()) is not None and t._value is self]
        return list({id(t): t for t in found}.values())  # one that left and came back is once


def place_in(node: UOp, base: UOp) -> UOp:
    """A view without its DETACHs and OWNs: where in `base` its elements are.

    Raises AliasError where it shows one element several times, or elements that are not there.
    """
    steps: list[UOp] = []
    below = node
    while below is not base:
        if below.op not in VIEW_OPS or repeats(below):
            raise AliasError(
                f"write: a tensor of shape {node.shape} that was made by {name_of(below)} shows "
                "elements more than once, or such as are not there. Write to the tensor that it "
                "was made of, or to a copy: clone()"
            )
        if below.op not in SAME_VALUE:
            steps.append(below)
        below = below.src[0]
    view = base
    for step in reversed(steps):
        view = step if step.src[0] is view else step.with_src((view,))
    return view


def shows_repeated(node: UOp, base: UOp) -> bool:
    """True if a view shows an element of its base more than once, or elements not in it."""
    while node is not base and node.op in VIEW_OPS:
        if repeats(node):
            return True
        node = node.src[0]
    return False


def repeats(node: UOp) -> bool:
    """True if a movement op shows an element of its source twice, or elements not in it."""
    if node.op is Op.SKEW:
        return bool(node.shape[node.arg.window_axis] != 1)
    return node.op in (Op.EXPAND, Op.PAD, Op.UNSKEW)


def name_of(node: UOp) -> str:
    """The method that a user knows an op by."""
    return VIEW_NAMES.get(node.op, node.op.name.lower())


VIEW_NAMES: Final = {Op.SKEW: "unfold", Op.UNSKEW: "unfold"}


def is_detached(node: UOp, base: UOp) -> bool:
    """True if a view is one through which no gradient flows."""
    while node is not base:
        if node.op is Op.DETACH:
            return True
        node = node.src[0]
    return False


def is_shared(base: UOp) -> bool:
    """True if all tensors over a node show the same elements: it is memory, or only theirs."""
    return graph.is_memory(base) or graph.is_copy(base)
