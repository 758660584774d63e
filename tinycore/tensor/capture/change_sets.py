"""Change sets: what happens to tensors while a function is captured.

Floor 5. A capture asks its change set which tensors and storages the function has made, changed,
given a gradient, and bound: no other tensor is looked at. See `change_tracking.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tinycore._locks import replaced
from tinycore.device.buffer import Buffer
from tinycore.engine.transactions import base_buffer
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor.aliases import buffers_below, is_realized
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.grad import homes_at
from tinycore.tensor.autograd.versions import NOBODY, Home, Homes
from tinycore.tensor.storage.change_tracking import change_sets, scope
from tinycore.tensor.storage.held_values import end_in
from tinycore.tensor.storage.storage import Storage, of_memory, storages_over
from tinycore.uop.node import UOp, unique

if TYPE_CHECKING:
    from tinycore.tensor.core import Core


def memory_below(node: UOp) -> list[Buffer]:
    """The buffers that a node shows or reads. A placeholder has none."""
    return [buffer_of(n) for n in buffers_below(node) if type(n.src[1].arg) is int]


def realized_buffers(node: UOp) -> list[Buffer]:
    """The buffers that a node shows, if nothing is left to be computed."""
    return memory_below(node) if is_realized(node) else []


class Before(NamedTuple):
    """A tensor before it was changed. It keeps no memory alive."""

    tensor: weakref.ref[Any]
    node: weakref.ref[UOp]
    memory: tuple[weakref.ref[Buffer], ...]
    """The buffers of its value, or those that this was to be computed from."""
    shape: tuple[Any, ...]
    waits: bool
    """True if it was more than memory, to be computed."""

    @classmethod
    def of(cls, tensor: Core) -> Before:
        """A tensor as it is now."""
        node = tensor.uop
        memory = tuple(map(weakref.ref, memory_below(node)))
        return cls(
            weakref.ref(tensor), weakref.ref(node), memory, node.shape, not is_realized(node)
        )

    def read(self) -> list[Buffer | None]:
        """These buffers; None for each that is gone."""
        return [reference() for reference in self.memory]


class Bound(NamedTuple):
    """Memory that a computation worked on. It keeps none alive."""

    home: Home
    """The home of the memory, which a run may give another version."""
    buffer: weakref.ref[Buffer]
    was_shown: bool
    """True if a storage showed it before."""

    def storages(self) -> list[Storage]:
        """The storages that show it now."""
        return [storage for node in self.home.present() for storage in storages_over(node)]


class ChangeSet:
    """Log of the tensors that a captured function makes and changes, by id."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        """Tensors that this thread has made or changed."""
        self.made: dict[int, weakref.ref[Core]] = {}
        """Tensors that any thread has made since it began."""
        self.before: dict[int, Before] = {}
        """Tensors from before that any thread has changed."""
        self.graded: dict[int, tuple[weakref.ref[Core], Before | None]] = {}
        """Tensors from before that this thread has given a gradient, and their former ones."""
        self.bound: dict[int, Bound] = {}
        """Memory that computations of this thread worked on, by the number of its BUFFER."""
        self.origins: dict[UOp, Homes] = {}
        """Sources of the BUFFERs that it wrote to, perhaps their own former content."""
        self.arrived, self.below, self.asked = NOBODY, NOBODY, NOBODY
        """Memory at which gradients arrived, where those ended, and their targets."""
        self.asks_all = False
        """True if one was asked for by all that require it."""
        self.start = unique().arg
        """BUFFERs from before have lower numbers."""
        self.shown = frozenset(of_memory)
        """Ids of memory that storages showed before."""

    def is_old(self, tensor: object) -> bool:
        """True if a tensor was there before it began."""
        found = self.made.get(id(tensor))
        return found is None or found() is not tensor

    def note_made(self, tensor: Core) -> None:
        """Record a new tensor, which may have the id of one that is gone."""
        number = id(tensor)
        self.made[number] = weakref.ref(tensor)
        self.graded.pop(number, None)
        self.before.pop(number, None)
        (self.changed.add if scope.owner is self else self.changed.discard)(number)

    def note_change(self, tensor: Core) -> None:
        """Record a tensor that is about to change."""
        if scope.owner is self:
            self.changed.add(id(tensor))
        if id(tensor) not in self.before and self.is_old(tensor):
            self.before[id(tensor)] = Before.of(tensor)

    def note_gradient(self, tensor: Core) -> None:
        """Record a tensor that is about to get another gradient, or none."""
        if id(tensor) not in self.graded and self.is_old(tensor):
            former = tensor._grad
            known = None if former is None else self.before.get(id(former)) or Before.of(former)
            self.graded[id(tensor)] = weakref.ref(tensor), known

    def note_bound(self, memory: Iterable[UOp]) -> None:
        """Record BUFFERs that a computation works on."""
        for node in memory:
            number: int = node.src[1].arg
            was_shown = number < self.start and id(node) in self.shown
            buffer = weakref.ref(base_buffer(buffer_of(node)))
            self.bound[number] = Bound(versions.home(node), buffer, was_shown)

    def note_slope(
        self, origins: Mapping[UOp, Iterable[UOp]], targets: Iterable[UOp] | None
    ) -> None:
        """Record that a gradient arrives at some memory, which targets, or all that ask, get."""
        self.arrived |= homes_at(origins)
        self.below |= homes_at(chain(*origins.values()))
        self.asked |= homes_at(targets or ())
        self.asks_all |= targets is None

    def moved(self) -> list[tuple[Before, Any]]:
        """Tensors from before that have other nodes now."""
        found = [(before, before.tensor()) for before in list(self.before.values())]
        return [(b, t) for b, t in found if t is not None and t.uop is not b.node()]

    def other_gradients(self) -> list[tuple[Any, Before | None]]:
        """Tensors from before that have another gradient now, each with its former one."""
        found = [(reference(), former) for reference, former in list(self.graded.values())]
        return [
            (tensor, former)
            for tensor, former in found
            if tensor is not None
            and (grad := tensor._grad)
            is not (former.tensor() if former is not None and grad is not None else former)
        ]

    def touched(self) -> list[Core]:
        """The living tensors that any thread has made or changed."""
        made = [reference() for reference in list(self.made.values())]
        found = [*made, *[before.tensor() for before in list(self.before.values())]]
        return [tensor for tensor in found if tensor is not None]


@contextmanager
def tracking_changes(change_set: ChangeSet, ends_gradients: bool = True) -> Iterator[None]:
    """Record what happens inside the block. Nodes hold values of its own there, which end with it:
    a replay would not compute those from outside again.
    """
    try:
        with (
            replaced(scope, "owner", change_set),
            replaced(scope, "ends_gradients", ends_gradients),
        ):
            try:  # an interrupt may come right after it is opened, or right before it is closed
                change_sets.add(change_set)
                yield
            finally:
                change_sets.discard(change_set)
    finally:
        change_sets.discard(change_set)
        end_in(change_set)
