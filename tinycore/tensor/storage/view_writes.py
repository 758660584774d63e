"""Writes through views: their place in a storage, and its new value.

Floor 5. The value of a storage is memory, a copy of its own, or not in memory yet. It gets a new
one: an ASSIGN to memory, an INSERT of a part. Every view of it derives its own from that.
See docs/aliasing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinycore.errors import AliasError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.autograd import history
from tinycore.tensor.autograd.grad import LEAF
from tinycore.tensor.storage.storage import Storage
from tinycore.tensor.storage.views import is_shared, movement_above, place_in, shows_repeated
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, unique
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
    storage = tensor._view.storage
    if at is None and storage is tensor._view and shows_repeated(storage.value, storage.base):
        storage.write(graph.value(storage.value))  # computed in less memory, but no view of another
    node = tensor.uop if at is None else at
    place, storage = target_of(tensor, node)
    base = storage.base
    if place is not node and any(step.op is Op.DETACH for step in movement_above(node, base) or ()):
        value = value.alu(Op.DETACH)
    owned = [base_of(t.uop) for t in storage.tensors()] if storage.is_owned else ()
    numbers = {n.arg: unique().arg for n in owned if not history.shows_data(n)}  # are computed
    if graph.is_memory(base):
        memory = node if graph.is_memory(node) else base
        change = value if memory is node else graph.insert(memory, place, value)
        asks = any(t.requires_grad and history.shows_data(t.uop) for t in storage.tensors())
        new = graph.assign(memory, change, LEAF if asks else None)
    elif graph.is_copy(base):  # not memory yet, but of this tensor and its views alone
        whole_fixed(base.shape)
        new = graph.copied(value) if place is base else graph.insert(base, place, value)
    elif place is base:
        new = value.alu(Op.VALUE)
    else:
        whole_fixed(base.shape)
        memory = in_own_memory(base)
        change = graph.insert(memory, place.substitute({base: memory}), value)
        new = graph.assign(memory, change)
    show(storage, new, numbers)


def target_of(tensor: Core, node: UOp) -> tuple[UOp, Storage]:
    """The place that a view of a tensor has in the base of its storage, and the storage.

    Raises AliasError where an element is shown more than once, or as other bytes.
    """
    storage = tensor._view.storage
    if not is_shared(storage.base):
        if storage.refusal is not None:
            raise AliasError(storage.refusal)
        place_in(tensor.uop, storage.value)  # refused though what it was made of is gone
        storage = tensor._settle()
    return place_in(node, storage.base), storage


def show(storage: Storage, new: UOp, numbers: Mapping[object, int] | None = None) -> None:
    """Replace the base of a storage by another node; nodes of one tensor get other numbers."""
    value, base = storage.value, storage.base
    if base_of(value) is base or value is base:  # one RESHAPE at most, or each write would add some
        new = graph.reshape(base_of(new), value.shape)
    else:
        new = value.substitute({base: graph.reshape(new, base.shape)})
    views = {t: t._view.renumbered(numbers) for t in storage.tensors()} if numbers else {}
    storage.write(new, views)


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
