"""Writes through views: their target, and the new values of all its aliases.

Floor 5. A tensor is a view of its base: memory, a copy of its own, or a value that is not in memory
yet. The base gets the new value (an ASSIGN to memory, an INSERT of a part), and every view of it
becomes the same view of that. See docs/aliasing.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinycore.errors import AliasError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.grad import LEAF
from tinycore.tensor.history import history
from tinycore.tensor.liveness import alias_index, become, view_over
from tinycore.tensor.views import is_detached, is_shared, place_in
from tinycore.uop.node import UOp, is_gradient_leaf
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size

if TYPE_CHECKING:
    from tinycore.tensor.core import Core


def overwrite(tensor: Core, value: UOp, at: UOp | None = None) -> None:
    """Write a value where a tensor is, or in the part `at` of it, for all that show it.

    What is not computed yet and is written to in part becomes memory by that. Raises AliasError
    where an element is shown more than once, ShapeError for a part of what has no fixed size.
    """
    node = tensor.uop if at is None else at
    place, base, tensors = target_of(tensor, node)
    if place is not node and is_detached(node, base):
        value = UOp(Op.DETACH, value.dtype, (value,))
    if graph.is_memory(base):
        memory = node if graph.is_memory(node) else base
        change = value if memory is node else graph.insert(memory, place, value)
        mark = LEAF if any(t.requires_grad and not flows_on(t.uop) for t in tensors) else None
        show(tensor, tensors, base, graph.assign(memory, change, mark))
    elif graph.is_copy(base):  # not memory yet, but of this tensor and its views alone
        whole_fixed(base.shape)
        new = graph.copied(value) if place is base else graph.insert(base, place, value)
        show(tensor, tensors, base, new)
    elif place is base:
        show(tensor, tensors, base, UOp(Op.VALUE, value.dtype, (value,)))
    else:
        whole_fixed(base.shape)
        memory = in_own_memory(base)
        change = graph.insert(memory, place.substitute({base: memory}), value)
        show(tensor, tensors, base, graph.assign(memory, change))


def flows_on(node: UOp) -> bool:
    """True if a node is of one tensor that asked for a gradient which flows on from it."""
    return node.op is Op.OWN and not is_gradient_leaf(node)


def target_of(tensor: Core, node: UOp) -> tuple[UOp, UOp, list[Core]]:
    """The view that a tensor is of its base, the base, and all tensors that show the base.

    Raises AliasError where an element is shown more than once, or as other bytes.
    """
    base = base_of_view(tensor.uop)
    if is_shared(base):
        return place_in(node, base), base, alias_index.of(base)
    value = tensor._value
    if value is not None and value.refusal is not None:
        raise AliasError(value.refusal)
    if value is None or len(tensors := value.tensors()) == 1:
        if value is not None:
            place_in(tensor.uop, value.base)  # refused though what it was made of is gone
        tensor._value = None
        base = graph.below_own(tensor.uop)
        return place_in(node, base), base, [tensor]
    return place_in(node, value.base), value.base, tensors


def show(tensor: Core, tensors: list[Core], base: UOp, new: UOp) -> None:
    """Replace the value of `base`, which a tensor and others show."""
    history.mark_pending(new)
    new = graph.reshape(new, base.shape)
    value = tensor._value
    lasting = None if value is None or is_shared(base_of_view(new)) else value
    nodes = [t.uop for t in tensors]
    become(tensors, [new if n is base else view_over(n, base, new) for n in nodes])
    for other in tensors:
        other._value = lasting
    if lasting is not None:
        lasting.base = new


def in_own_memory(node: UOp) -> UOp:
    """A value in new memory."""
    return graph.store_value(graph.new_memory_like(node), node)


def whole_fixed(shape: Shape) -> None:
    """Raises ShapeError for a tensor of symbolic shape, which cannot be written to."""
    if any(isinstance(n, Size) for n in shape):
        raise ShapeError(
            f"assign: a tensor of shape {shape} has no memory of a fixed size. Write into a part "
            "of one of the greatest size, as in memory[:, start:stop].assign(value), and slice that"
        )
