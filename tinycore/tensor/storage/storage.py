"""Storages: what tensors show, and the only thing that a write changes.

Floor 5. A storage is a group of aliases: its value is a node, and all its views derive theirs from
it, so that one attribute store is a write that each of them sees. Two tensors over the same memory
have the same storage, however they were made; equal values that are still to be computed do not.
Which movement shows the elements of a base, and whether they may be written, is told by the steps
of a view. See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain, count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from tinycore._locks import recursive_lock
from tinycore.errors import AliasError
from tinycore.tensor import graph
from tinycore.tensor.aliases import VIEW_OPS, base_of_view, buffers_below
from tinycore.tensor.autograd.versions import living
from tinycore.tensor.storage.change_tracking import change_sets, record_changes, undo
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import PARTIAL_WRITES, SAME_VALUE, Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

walking: Final = recursive_lock()
"""Held while a thread refers to tensors of others, which live no longer than their own wants it to
one that looks for them: what would read memory, or outlives a captured function.
"""
waiting: Final[dict[int, weakref.ref[Storage]]] = {}
"""Storages that are more than memory, and some that were, by number."""
of_memory: Final[dict[int, weakref.ref[Storage]]] = {}
"""Storages of memory, and of copies that will have some, by the id of their base."""
of_parts: Final[WeakValueDictionary[int, Storage]] = WeakValueDictionary()
"""Storages of memory on several devices, by the ids of its BUFFERs, and some that were."""
numbers: Final = count()


class Storage:
    """A group of aliases. It is the view of itself that shows all."""

    owned: Sequence[UOp] = ()
    __slots__ = tuple("__weakref__ is_owned is_viewed number refusal value views".split())

    def __init__(self, value: UOp) -> None:
        self.value = value
        """The present version: an immutable node."""
        self.views: dict[int, weakref.ref[Core]] = {}
        """The living tensors that show it, by id."""
        self.refusal: str | None = None
        """The message of a write to what is no memory and shows other elements."""
        self.is_viewed = False
        """True if tensors may show a part of it."""
        self.is_owned = False
        """True if tensors may show it as nodes of their own, which graphs of former memory have."""
        self.number = next(numbers)

    @property
    def storage(self) -> Storage:
        """Itself."""
        return self

    @property
    def base(self) -> UOp:
        """The memory or copy that it shows; of any other value the value itself."""
        base = base_of_view(self.value)
        return base if base.op in graph.MEMORY or is_shared(base) else self.value

    def tensors(self) -> list[Core]:
        """The living tensors that show it."""
        views = list(self.views.values())
        return [t for r in views if (t := r()) is not None and t._view.storage is self]

    def alone(self) -> Core | None:
        """The one tensor that shows it, if that shows a part of what is no memory, each element
        once at most.
        """
        if not self.is_viewed:
            return None
        tensors = self.tensors()
        if len(tensors) != 1 or tensors[0]._view is self or graph.is_memory(self.base):
            return None
        return None if shows_repeated(tensors[0].uop, self.value) else tensors[0]

    def root(self) -> UOp:
        """The node that is computed for it."""
        return self.value if (tensor := self.alone()) is None else tensor.uop

    def write(self, value: UOp, views: Mapping[Core, Storage | View] = {}) -> None:
        """Take another value, and let tensors be other views; failing atomic writes undo it."""
        for log in undo.logs:
            log.values.setdefault(self, self.value)
            for tensor in views:
                log.views.setdefault(tensor, tensor._view)
        exchange({self: value}, views)

    def enter(self, value: UOp, base: UOp) -> Storage:
        """Enter the tensor under the memory that it shows, or is about to show; returns itself."""
        if is_shared(base) and storage_at(base) is None:
            self.own(base)
        if base.op is Op.MULTI:
            of_parts.update({id(part): self for part in buffers_below(base)})
        if is_waiting(value):
            self.wait()
        return self

    def own(self, base: UOp) -> None:
        """Be the storage of some memory."""
        key = id(base)
        of_memory[key] = weakref.ref(self, partial(of_memory.pop, key))

    def wait(self) -> None:
        """Be among those that the next query looks at."""
        number = self.number
        if number not in waiting:
            waiting[number] = weakref.ref(self, partial(waiting.pop, number))

    def leave(self, base: UOp) -> None:
        """Forget the memory that it showed before; queries pass over a storage of memory alone."""
        value = self.value
        if not (self.is_owned or is_waiting(value)):
            waiting.pop(self.number, None)
        known = of_memory.get(id(base))
        if known and known() is self and base is not base_of_view(value):
            del of_memory[id(base)]

    def over(self, whole: UOp) -> UOp:
        """All of a version."""
        return whole

    def renumbered(self, numbers: object) -> Storage:
        """Itself: it shows no node of one tensor."""
        return self

    def forget(self) -> None:
        """Nothing is derived here."""


class View:
    """The elements that a tensor shows of a storage: a path of movement ops, DETACHs and OWNs."""

    __slots__ = ("_path", "last", "owned", "storage")

    def __init__(self, storage: Storage, whole: UOp, node: UOp, steps: list[UOp]) -> None:
        self.storage = storage
        self._path: list[graph.Movement] | None = None
        self.last: tuple[UOp, UOp] | None = whole, node  # which another thread may end by now
        storage.is_viewed = True
        self.owned = [graph.identity(n.arg) for n in reversed(steps) if n.op is OWN]
        """The identities by which ended gradients know tensors; they live as long as it."""
        if self.owned:
            with walking:
                storage.is_owned = True
                storage.wait()

    @property
    def value(self) -> UOp:
        """Its node, derived from the present version."""
        whole = self.storage.value
        last = self.last
        if last is not None and last[0] is whole:
            return last[1]
        node = self.over(whole)
        self.last = whole, node
        return node

    def over(self, whole: UOp) -> UOp:
        """Its node for a version of the storage."""
        first, *rest = self.path
        return graph.moved_along(graph.reshape(whole, first.shape), rest)

    @property
    def path(self) -> list[graph.Movement]:
        """The shape under which it shows its storage, and the movement from there on."""
        last = self.last  # which is forgotten after the path is known
        if self._path is None:
            assert last is not None, "it is known from the first version"
            whole, node = last
            steps = movement_above(node, whole) or []
            nodes = steps[-1].src[0] if steps else node, *reversed(steps)
            self._path = [graph.Movement(n.op, n.arg, n.shape) for n in nodes]
        return self._path

    def renumbered(self, numbers: Mapping[object, int]) -> View:
        """The same view by nodes of one tensor that have other numbers."""
        view = copy(self)
        view.last = None
        view._path = [s._replace(argument=numbers.get(s.argument, s.argument)) for s in self.path]
        view.owned = [graph.identity(numbers.get(n.arg, n.arg)) for n in self.owned]
        return view

    def forget(self) -> None:
        """Keep no former version alive."""
        if self.path:
            self.last = None


def exchange(values: Mapping[Storage, UOp], views: Mapping[Core, Storage | View] = {}) -> None:
    """Give storages other values, and tensors other views of them, all or none: no interrupt comes
    between two of them.
    """
    if change_sets:
        record_changes([tensor for storage in values for tensor in storage.tensors()])
    former = [*map(VALUE, values)], [*map(VIEW, views)]  # whose end may run Python
    with walking:  # else a query could forget one
        for storage, value in values.items():
            storage.enter(value, base_of_view(value))
        shown = map(setattr, views, VIEWS, views.values())
        deque(chain(map(setattr, values, VALUES, values.values()), shown), maxlen=0)  # all is C
        for storage, old in zip(values, former[0], strict=True):
            storage.leave(base_of_view(old))
    for storage in values:
        for tensor in storage.tensors() if storage.is_viewed else ():
            tensor._view.forget()


def view_in(storage: Storage, node: UOp) -> Storage | View | None:
    """The view of a storage that a node is; None if it is none."""
    value = storage.value
    if node is value:
        return storage
    steps = movement_above(node, value)
    return None if steps is None else View(storage, value, node, steps)


def view_of(node: UOp) -> Storage | View:
    """The storage of the memory that a node shows, or the view of one; else a new storage."""
    if node.op not in SHOWING:
        new = Storage(node)
        new.wait()
        return new
    base = base_of_view(node)
    storage = storage_at(base) or new_storage(node, base)
    return view_in(storage, node) or Storage(node).enter(node, base)


def new_storage(node: UOp, base: UOp) -> Storage:
    """The first storage of the base of a node."""
    value = graph.below_own(node)
    if is_shared(base):
        value = node if base_of(node) is base else base
        if base.op is BUFFER:  # as of each result of a replay
            storage = Storage(value)
            storage.own(base)
            return storage
    return Storage(value).enter(value, base)


def storage_at(base: UOp) -> Storage | None:
    """The storage of some memory, or copy that will have some."""
    if (reference := of_memory.get(id(base))) is None or (found := reference()) is None:
        return None
    # an interrupted write may have left what another node at the same place has
    return found if base_of_view(found.value) is base else None


def storages_over(memory: UOp) -> list[Storage]:
    """The storages of a BUFFER, and of memory that it is a part of."""
    found = [storage_at(memory), of_parts.get(id(memory))]
    return [s for s in found if s is not None and memory in buffers_below(s.base)]


def waiting_storages() -> list[Storage]:
    """The storages that are more than memory for all that show them, in order of creation."""
    with walking:  # a list of numbers makes no object that ends storages
        return living(filter(None, map(waiting.get, sorted(waiting))))


def is_waiting(node: UOp) -> bool:
    """True if a node is more than one buffer under some shape."""
    return base_of(node).op is not BUFFER


def waiting_tensors() -> list[Core]:
    """Living tensors that show more than one buffer under some shape."""
    return [tensor for storage in waiting_storages() for tensor in storage.tensors()]


# --- steps of views


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
BUFFER, OWN = Op.BUFFER, Op.OWN
VALUE, VIEW = attrgetter("value"), attrgetter("_view")
VALUES, VIEWS = repeat("value"), repeat("_view")
SHOWING: Final = VIEW_OPS | SHARED
"""Ops of nodes that may show memory."""
