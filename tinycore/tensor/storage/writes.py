"""Writes through views: their place in a storage, its new value, and groups of them.

Floor 5. The value of a storage is memory, a copy of its own, or not in memory yet. It gets a new
one: an ASSIGN to memory, an INSERT of a part. Every view of it derives its own from that.

A write waits there until something is computed. Where several belong together, as those of an
optimizer's step, an exception between two of them rolls back those that were recorded before it, by
an undo log. See docs/aliasing.md and docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tinycore._locks import replaced
from tinycore._signals import deferred
from tinycore.errors import AliasError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.grad import LEAF, origin
from tinycore.tensor.storage.change_tracking import UndoLog, undo
from tinycore.tensor.storage.storage import (
    Storage,
    exchange,
    is_shared,
    movement_above,
    place_in,
    shows_repeated,
)
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


# --- all or none


@contextmanager
def atomic_writes(tensors: Callable[[], Iterable[Core]]) -> Iterator[None]:
    """Roll back the writes of the block to `tensors()`, and to all their views, if an exception
    leaves it. The program's own signal handlers see none of the writes, or all.
    """
    log = UndoLog()
    with deferred(everything=False), replaced(undo, "logs", (*undo.logs, log)):
        try:
            yield
        except GeneratorExit:  # it was interrupted before the block began, and is dropped now
            raise
        except BaseException:
            roll_back(log, tensors())
            raise


def roll_back(log: UndoLog, tensors: Iterable[Core]) -> None:
    """Give tensors, and all tensors that alias them, their former values."""
    storages = {log.views.get(t, t._view).storage for t in tensors}
    for tensor, view in log.views.items():
        if view.storage in storages:
            tensor._move(view)
    exchange({s: present(log.values[s]) for s in storages & log.values.keys()})


def present(value: UOp) -> UOp:
    """A former value, over memory in place of writes that were done since: they are not undone, and
    not done again. Of several in a row only the last is known to be done; memory that any has
    overwritten is a former version.
    """
    shown = value.substitute(history.done(value.toposort()))
    return shown.substitute(
        {
            node: graph.reshape(versions.in_latest(origin(node)), node.shape)
            for node in shown.toposort()
            if node.op in versions.WRITTEN and versions.is_former(node)
        }
    )
