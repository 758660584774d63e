"""The registry of living tensors, and atomic replacement of their nodes.

Floor 5. A write or a realization changes the graphs of all tensors that show a value, in one step
that no interrupt divides.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Container, Sequence
from itertools import compress, repeat
from operator import attrgetter, call, is_not
from typing import TYPE_CHECKING, Any, Final

from tinycore.tensor import graph
from tinycore.tensor.aliases import AliasIndex, base_of_view
from tinycore.tensor.change_tracking import change_sets, record_changes
from tinycore.tensor.history import history
from tinycore.tensor.views import Value, is_shared
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

living: Final[dict[int, weakref.ref[Core]]] = {}
"""Every living tensor, by id, in order of creation."""


alias_index: Final = AliasIndex(living.values)
"""Living tensors by the base that they show."""


def live_tensors() -> list[Core]:
    """Every living tensor, in order of creation."""
    found: list[Any] = [*map(call, list(living.values()))]
    return [*compress(found, map(is_not, found, NONE))]


def waiting_tensors() -> list[Core]:
    """Living tensors that are more than one buffer under some shape."""
    found, waiting = live_tensors(), []
    for tensor in compress(found, map(is_not, map(OP, found), BUFFER)):
        node = tensor.uop
        if node.op is Op.RESHAPE:  # most are memory in some shape
            (node,) = node.src
        if node.op is not Op.BUFFER and base_of(node).op is not Op.BUFFER:
            waiting.append(tensor)
    return waiting


OP: Final = attrgetter("uop.op")
NONE, BUFFER = repeat(None), repeat(Op.BUFFER)
"""Each as often as it is asked for."""


def become(tensors: Sequence[Core], nodes: Sequence[UOp]) -> None:
    """Give tensors other nodes as values, all or none: no interrupt comes between two of them."""
    if change_sets:
        record_changes(tensors)
    references = [living[id(tensor)] for tensor in tensors]
    alias_index.note(*references)
    deque(map(setattr, tensors, repeat("uop"), nodes), maxlen=0)  # one step, as all of it is C
    alias_index.note(*references)


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


def replace_nodes(replacements: dict[UOp, UOp], owners: Container[int] = frozenset()) -> None:
    """Replace nodes by their values in the graphs of all living tensors.

    Where tensors that are no views of each other come to show the same memory by that, it belongs
    to those among `owners`, which are ids; the others keep the value.
    """
    changed = {old: new for old, new in replacements.items() if old is not new}
    tensors = waiting_tensors() if changed else []
    if len(tensors) == 1 and (alone := tensors[0]).uop in changed:
        alone._value = None
        alone._become(changed[alone.uop])
    elif tensors:
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
        become(list(found), list(found.values()))
        for node in found.values():
            history.mark_pending(base_of_view(node))
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
                found[tensor] = UOp(Op.VALUE, tensor.dtype, (found[tensor],))
            else:
                apart.add(own)
    for own in apart:
        old, new = moved[own]
        moved[own] = old, UOp(Op.VALUE, new.dtype, (new,))
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
