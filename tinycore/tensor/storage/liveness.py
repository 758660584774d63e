"""Living tensors: which show some nodes, and replacement of nodes in all their graphs.

Floor 5. A realization changes the graphs of all storages that have what was computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view, buffers_below, views_below
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.grad import origin
from tinycore.tensor.autograd.versions import WRITTEN, home_of_value
from tinycore.tensor.storage.change_tracking import change_sets, scope, tensors_elsewhere
from tinycore.tensor.storage.storage import (
    Storage,
    exchange,
    is_shared,
    storage_at,
    storages_over,
    view_of,
    waiting_storages,
    walking,
)
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, candidates_above
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

P = ParamSpec("P")
R = TypeVar("R")


def while_walking(function: Callable[P, R]) -> Callable[P, R]:
    """A function that looks at living tensors, whose references are gone before `walking` is free.

    Its result must hold no tensor of another thread.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with walking:
            return function(*args, **kwargs)

    return call


def tensors_over(
    nodes: Iterable[UOp], is_asked: Callable[[Storage], bool] = lambda _: True
) -> list[Core]:
    """Living tensors that are views of the BUFFERs among some nodes, in the version there or the
    present one, or more than memory, and asked for then.
    """
    found = {s: None for s in waiting_storages() if is_asked(s)}
    for node in nodes:
        for version in (node, versions.current(node)) if node.op is Op.BUFFER else ():
            if (storage := storage_at(version)) is not None:
                found[storage] = None
    return [tensor for storage in found for tensor in storage.tensors()]


@while_walking
def buffers_of_parameters(
    memory: Iterable[UOp], asks: Callable[[Core], bool | None] = attrgetter("requires_grad")
) -> list[UOp]:
    """The BUFFERs and identities of tensors over some memory that ask for a gradient."""
    return buffers_shown(filter(asks, tensors_over(memory)))


def buffers_shown(tensors: Iterable[Core]) -> list[UOp]:
    """The views and bases that tensors are, with the BUFFERs of memory, and the identities of those
    with OWNs; not what they are computed from.
    """
    return [
        n
        for t in tensors
        for base in views_below(t.uop)
        for n in (base, *(buffers_below(base) if base.op in WRITTEN else t._view.owned[-1:]))
    ]


@while_walking
def tensors_shown_in(nodes: Collection[UOp]) -> list[Core]:
    """Living tensors of floats that are among some nodes, or whose former content is."""
    equal, before = history.parts_in(nodes)
    bases = {*map(base_of_view, nodes)}

    def may_be(storage: Storage) -> bool:
        base = base_of_view(storage.value)
        return base in bases or base.op in WRITTEN or storage.is_owned

    found = tensors_over([*map(origin, nodes), *versions.with_values()], may_be)
    return [t for t in found if t.dtype.kind == "float" and (equal(t) or before(t._shown))]


def give_gradients(
    tensors: Sequence[Core], gradients: Sequence[Core], *others: Callable[[], object]
) -> None:
    """Give tensors other gradients, and call `others`, which are functions of C: no interrupt comes
    between two of them.
    """
    if own := scope.owner:
        for tensor in tensors:
            own.note_gradient(tensor)
    former = [tensor._grad for tensor in tensors]  # whose end may run Python
    pairs = zip(tensors, gradients, strict=True)
    steps: list[Callable[[], Any]] = [partial(setattr, t, "_grad", g) for t, g in pairs]
    deque(map(call, steps + list(others)), maxlen=0)
    del former


@while_walking
def replace_nodes(replacements: dict[UOp, UOp], owners: Collection[int] = frozenset()) -> None:
    """Replace nodes by their values in the graphs of all living tensors.

    Where tensors that are no views of each other come to show the same memory by that, it belongs
    to those among `owners`, which are ids; the others keep the value. Captures compute their values
    themselves, and share memory with no other thread but for writes that are done; a storage that
    no tensor shows yet may be of one of them.
    """
    changed = {old: new for old, new in replacements.items() if old is not new}
    if not changed:
        return
    storages = waiting_storages()
    written = [s for n in changed if n.op is Op.BUFFER and (s := storage_at(n))]  # by replays
    storages += [s for s in written if s not in storages]
    if change_sets:
        shown = [(s, list(s.views)) for s in storages]  # before a capture is asked what it has made
        elsewhere = tensors_elsewhere()
        theirs = {s for s, views in shown if not views or not elsewhere.isdisjoint(views)}
        done = {old: new for old, new in changed.items() if old.op is Op.ASSIGN}
        replace_in([s for s in storages if s in theirs], done, owners)
        storages = [s for s in storages if s not in theirs]
    replace_in(storages, changed, owners)


def replace_in(
    storages: list[Storage], changed: dict[UOp, UOp], owners: Collection[int] = frozenset()
) -> None:
    """Replace nodes in the values of some storages; `owners` are as for `replace_nodes`."""
    if not storages or not changed:
        return
    before = {s: s.value for s in storages}
    alone = {
        s: tensor
        for s, old in before.items()
        if old not in changed and (tensor := s.alone()) is not None
    }
    roots = before | {s: tensor.uop for s, tensor in alone.items()} if alone else before
    found = kept_apart(replaced_in(roots, changed), roots, changed, owners)
    viewed = move_values(found, alone, changed) if versions.values else {}
    publish({s: n for s, n in found.items() if s.value is before[s]}, alone)  # or it has moved on
    viewed = {tensor: tensor.uop for tensor in viewed}  # which their views keep from now on


def move_values(
    found: Mapping[Storage, UOp], alone: Mapping[Storage, Core], changed: dict[UOp, UOp]
) -> dict[Core, UOp]:
    """Let nodes that storages are about to show have the values of those before; the nodes."""
    for value in [v for old in changed for v in versions.known_as(old) if v.arg == graph.EQUAL]:
        versions.move(value, value.substitute(changed))  # in graphs that know it by its memory
    shown = {t: t.uop for s in found for t in s.tensors() if home_of_value(base_of(t.uop))}
    for tensor, before in shown.items():
        node = found[storage := tensor._view.storage]
        shown[tensor] = node if storage in alone else tensor._view.over(node)
        versions.move(base_of(before), base_of(shown[tensor]))
    return shown


def replaced_in(roots: dict[Storage, UOp], changed: dict[UOp, UOp]) -> dict[Storage, UOp]:
    """The values of storages with nodes replaced, as far as that changes them."""
    after = changed
    if rest := [n for n in roots.values() if n not in changed]:
        whole = UOp.sink(*candidates_above(rest, changed))
        replaced = graph.replace_nodes(whole, changed).src
        after = {**changed, **dict(zip(whole.src, replaced, strict=True))}
    return {s: new for s, n in roots.items() if (new := after.get(n, n)) is not n}


def publish(found: dict[Storage, UOp], alone: Mapping[Storage, Core]) -> None:
    """Give storages their values with nodes replaced, or tensors that showed a part `alone`."""
    exchange({s: node for s, node in found.items() if s not in alone})
    for storage, node in found.items():
        base = base_of_view(node)
        if storage in alone:
            alone[storage]._move(view_of(node))
        elif storage_at(base) not in (storage, None):  # of which its tensors are views now
            for tensor in storage.tensors():
                tensor._move(view_of(tensor.uop))


def kept_apart(
    found: dict[Storage, UOp],
    roots: dict[Storage, UOp],
    changed: dict[UOp, UOp],
    owners: Collection[int],
) -> dict[Storage, UOp]:
    """The same with memory for one of the storages that get it, an owner's; others, and the graphs
    made of what several showed, keep the value alone: they mean no tensor more than another.
    """
    if not versions.values and len(found) == 1:
        base = base_of_view(*found.values())
        if base.op is not Op.MULTI and storage_at(base) is None:
            return found  # as mostly
    arrived: dict[UOp, list[Storage]] = {}
    for storage, node in found.items():
        if is_shared(base := base_of_view(node)) and not is_shared(storage.base):
            arrived.setdefault(base, []).append(storage)
    owner_of: dict[UOp, Storage] = {}
    parts: set[UOp] = set()
    for base, storages in arrived.items():
        below = buffers_below(base)
        around = {s for part in below for s in storages_over(part) if s.base is not base}
        if around - {*storages} or not parts.isdisjoint(below):
            continue  # values that are equal on one of their devices have no owner
        parts.update(below)
        owned = [s for s in storages if not s.views.keys().isdisjoint(owners)]
        # a run that is published again has one
        owner_of[base] = storage_at(base) or (owned or storages)[0]
    apart: dict[UOp, UOp] = {}
    for old, new in changed.items():
        if (base := base_of_view(new)) in arrived:
            owner, value = owner_of.get(base), base_of_view(old)
            is_named = owner and not owner.views.keys().isdisjoint(owners)
            if (
                is_named
                and value.arg == graph.EQUAL
                and changed.keys().isdisjoint(buffers_below(value.src[0]))
            ):
                apart[old] = old
            elif arrived[base] != [owner] or any(
                map(graph.is_alone, versions.known_as(base_of(old)))
            ):
                apart[old] = graph.equal_value(new)
    if not apart:
        return found
    for old, new in apart.items():
        versions.home(base_of(old))
        versions.move(base_of(old), base_of(new))
    mine = {s: found[s] for s in owner_of.values() if s in found}
    others = {s: node for s, node in roots.items() if s not in mine}
    return mine | replaced_in(others, changed | apart)
