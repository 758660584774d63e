"""The registry of living tensors, and atomic replacement of their nodes.

Floor 5. A write or a realization changes the graphs of all tensors that show a value, in one step
that no interrupt divides.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial, wraps
from itertools import compress, repeat
from operator import attrgetter, call, is_not
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from tinycore._locks import recursive_lock
from tinycore.tensor import graph
from tinycore.tensor.aliases import AliasIndex, base_of_view
from tinycore.tensor.change_tracking import (
    change_sets,
    leave_done_writes,
    log_writes,
    record_changes,
    record_gradient,
    tensors_elsewhere,
    undo_logs,
)
from tinycore.tensor.history import history
from tinycore.tensor.versions import versions
from tinycore.tensor.views import Value, is_shared
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

P = ParamSpec("P")
R = TypeVar("R")

living: Final[dict[int, weakref.ref[Core]]] = {}
"""Every living tensor, by id, in order of creation."""


walking: Final = recursive_lock()
"""Held while a thread refers to tensors of others, which live no longer than their own wants it to
one that looks for them: what would read memory, or outlives a captured function.
"""


def while_walking(function: Callable[P, R]) -> Callable[P, R]:
    """A function that looks at living tensors, whose references are gone before `walking` is free.

    Its result must hold no tensor of another thread.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with walking:
            return function(*args, **kwargs)

    return call


alias_index: Final = AliasIndex(living.values, walking)
"""Living tensors by the base that they show."""


def live_tensors() -> list[Core]:
    """Every living tensor, in order of creation."""
    found: list[Any] = [*map(call, list(living.values()))]
    return [*compress(found, map(is_not, found, repeat(None)))]


class WaitingIndex:
    """The living tensors that are more than memory, in order of creation.

    Every run asks for them, and a program may hold thousands of tensors that are memory. So looked
    at are only those that were waiting at the last query, and those made or changed since.
    """

    def __init__(self) -> None:
        self.lock = walking
        """Held by queries and while a tensor gets another node: else a query could forget it."""
        self.candidates: dict[weakref.ref[Core], None] = {}
        """All that wait, and others, in order of creation."""
        self.is_whole = True
        """False if a query must look at all living tensors again."""

    def enter(self, reference: weakref.ref[Core]) -> None:
        """Note a new tensor that waits, which is among the living already."""
        self.candidates[reference] = None
        if len(self.candidates) > MOST_CANDIDATES:
            with self.lock:
                self.is_whole = False
                self.candidates.clear()

    def note(self, references: Iterable[weakref.ref[Core]]) -> None:
        """Note tensors that are about to get other nodes; the caller holds the lock."""
        if not self.candidates.keys() >= {*references}:  # where it belongs is known to `living`
            self.is_whole = False

    def query(self) -> list[Core]:
        """The tensors themselves."""
        with self.lock:
            if not self.is_whole:
                self.candidates.clear()
                found = [t for t in buffers_left_out(live_tensors()) if is_waiting(t.uop)]
                self.candidates.update({living[id(t)]: None for t in found})
                self.is_whole = True
                return found
            found = []
            for reference in list(self.candidates):
                if (tensor := reference()) is not None:
                    node = tensor.uop
                    while node.op is RESHAPE:  # is_waiting, which every run asks
                        node = node.src[0]
                    if node.op is not BUFFER:
                        found.append(tensor)
                        continue
                self.candidates.pop(reference, None)
            return found


MOST_CANDIDATES: Final = 4096
"""Candidates of the index; with more, the next query looks at all living tensors."""
waiting_index: Final = WaitingIndex()


def waiting_tensors() -> list[Core]:
    """Living tensors that are more than one buffer under some shape."""
    return waiting_index.query()


def tensors_over(memory: Iterable[UOp]) -> list[Core]:
    """Living tensors that are views of some BUFFERs, or more than memory."""
    found = {id(tensor): tensor for tensor in waiting_tensors()}
    for buffer in memory:
        found |= {id(tensor): tensor for tensor in alias_index.of(buffer)}
    return list(found.values())


def tensors_shown_in(nodes: Collection[UOp]) -> list[Core]:
    """Living tensors that are among some nodes, or whose former content is."""
    versions = history.versions_in(nodes)
    found = tensors_over(history.memory_among(nodes))
    owned = [t for t in found if t.uop.op is Op.OWN]
    roots, _ = history.unroll([t.uop for t in owned])  # memory may stand for its graph there
    graphs = dict(zip(map(id, owned), roots, strict=True))
    return [t for t in found if t.uop in nodes or graphs.get(id(t)) in nodes or [*versions(t.uop)]]


def may_be_former(nodes: Iterable[UOp]) -> bool:
    """True if some nodes may be what a tensor showed before a write."""
    pending = history.pending
    return any(n.op is Op.OWN or pending.overwrites(n) or versions.is_former(n) for n in nodes)


def is_waiting(node: UOp) -> bool:
    """True if a node is more than one buffer under some shape."""
    while node.op is RESHAPE:
        node = node.src[0]
    return node.op is not BUFFER


def buffers_left_out(tensors: list[Core]) -> Iterable[Core]:
    """Tensors without those that are plain BUFFERs: a first look, all of it in C."""
    return compress(tensors, map(is_not, map(OP, tensors), repeat(BUFFER)))


OP: Final = attrgetter("uop.op")
BUFFER, RESHAPE = Op.BUFFER, Op.RESHAPE


def become(tensors: Sequence[Core], nodes: Sequence[UOp]) -> None:
    """Write to tensors: `exchange`, which atomic writes undo if they fail."""
    if undo_logs:
        log_writes(tensors)
    exchange(tensors, nodes)


def exchange(tensors: Sequence[Core], nodes: Sequence[UOp]) -> None:
    """Give tensors other nodes as values, all or none: no interrupt comes between two of them."""
    if change_sets:
        record_changes(tensors)
    references = [living[id(tensor)] for tensor in tensors]
    alias_index.note(*references)
    with waiting_index.lock:
        waiting_index.note(references)
        deque(map(setattr, tensors, repeat("uop"), nodes), maxlen=0)  # one step, as all of it is C
    alias_index.note(*references)


def give_gradients(
    tensors: Sequence[Core], gradients: Sequence[Core], *others: Callable[[], object]
) -> None:
    """Give tensors other gradients, and call `others`, which are functions of C: no interrupt comes
    between two of them.
    """
    if change_sets:
        for tensor in tensors:
            record_gradient(tensor)
    former = [tensor._grad for tensor in tensors]  # whose end may run Python
    pairs = zip(tensors, gradients, strict=True)
    steps: list[Callable[[], Any]] = [partial(setattr, t, "_grad", g) for t, g in pairs]
    deque(map(call, steps + list(others)), maxlen=0)
    del former


def view_over(view: UOp, base: UOp, new: UOp) -> UOp:
    """A view of `base` as the same view of `new`, with one RESHAPE at most next to that.

    Else each write would add two of them, and no step would be the graph of the step before.
    """
    changed, content = {base: new}, base_of(base)
    node = view
    while node is not base and node.src:
        if node.op is Op.RESHAPE and base_of(node) is content:
            changed[node] = graph.reshape(base_of(new), node.shape)
            break
        node = node.src[0]
    return view.substitute(changed)


@while_walking
def replace_nodes(replacements: dict[UOp, UOp], owners: Container[int] = frozenset()) -> None:
    """Replace nodes by their values in the graphs of all living tensors.

    Where tensors that are no views of each other come to show the same memory by that, it belongs
    to those among `owners`, which are ids; the others keep the value. Captures compute their values
    themselves, and share memory with no other thread but for writes that are done.
    """
    changed = {old: new for old, new in replacements.items() if old is not new}
    tensors = waiting_tensors() if changed else []
    if undo_logs:
        leave_done_writes(changed)
    if change_sets and (elsewhere := tensors_elsewhere()):
        done = {old: new for old, new in changed.items() if old.op is Op.ASSIGN}
        replace_in([t for t in tensors if id(t) in elsewhere], done, owners)
        tensors = [t for t in tensors if id(t) not in elsewhere]
    replace_in(tensors, changed, owners)


def replace_in(
    tensors: list[Core], changed: dict[UOp, UOp], owners: Container[int] = frozenset()
) -> None:
    """Replace nodes in the graphs of some tensors; `owners` are as for `replace_nodes`."""
    if not undo_logs and len(tensors) == 1 and (alone := tensors[0]).uop in changed:
        alone._value = None
        alone._become(changed[alone.uop])
    elif tensors and changed:
        values = shared_values(tensors)
        before = [t.uop for t in tensors]
        bases = [v.base for v in values]
        after = graph.replace_nodes(UOp.sink(*before, *bases), changed).src
        moved = dict(zip(values, zip(bases, after[len(before) :], strict=True), strict=True))
        found: dict[Core, UOp] = {}
        for tensor, old, new in zip(tensors, before, after, strict=False):
            if (own := tensor._value) is not None and own in moved:
                new = old.substitute(dict([moved[own]]))  # a view goes where all of them go
            if new is not old and tensor.uop is old:  # else its own thread has moved on
                found[tensor] = new
        memory = owned_apart(found, moved, owners)
        writers = [history.pending.writer(base_of_view(tensor.uop)) for tensor in found]
        exchange(list(found), list(found.values()))
        for node, thread in zip(found.values(), writers, strict=True):
            history.mark_pending(base_of_view(node), thread)
        for value, (_, base) in moved.items():
            value.base = base
        for tensor in memory:
            tensor._value = None


def owned_apart(
    found: dict[Core, UOp], moved: dict[Value, tuple[UOp, UOp]], owners: Container[int]
) -> list[Core]:
    """Leave memory to one tensor and its views, which are given; others keep the value alone.

    `found` and `moved`, what tensors and their common values are to be, change by that.
    """
    arrived: dict[UOp, list[Core]] = {}
    for tensor, node in found.items():
        if is_shared(base := base_of_view(node)) and not is_shared(base_of_view(tensor.uop)):
            arrived.setdefault(base, []).append(tensor)
    left: list[Core] = []
    apart: set[Value] = set()
    for tensors in arrived.values():
        owner = next((t for t in tensors if id(t) in owners), tensors[0])
        for tensor in tensors:
            own = tensor._value
            if tensor is owner or (own is not None and own is owner._value):
                left.append(tensor)
            elif own is None or own not in moved:
                found[tensor] = graph.equal_value(found[tensor])
            else:
                apart.add(own)
    for own in apart:
        old, new = moved[own]
        moved[own] = old, graph.equal_value(new)
    for tensor in found:
        if tensor._value is not None and tensor._value in apart:
            found[tensor] = tensor.uop.substitute(dict([moved[tensor._value]]))
    return left


def shared_values(tensors: list[Core]) -> list[Value]:
    """Values shared by several of these tensors; a value with no other tensor is released."""
    found: dict[Value, None] = {}
    for tensor in tensors:
        value = tensor._value
        if value is None or value in found:
            continue
        if len(value.tensors()) > 1:
            found[value] = None
        elif value.refusal is None:
            tensor._value = None
        else:
            value.base = tensor.uop
            found[value] = None
    return list(found)
