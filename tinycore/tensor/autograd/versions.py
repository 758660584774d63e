"""Versions of memory: each BUFFER is one, and a run that writes in place ends with the next.

Floor 5. So a graph over a BUFFER means the same whatever is written later: its leaf is a version,
and not an address. A version that was overwritten is a leaf whose content is gone. A derivative
that needs its value is refused; one that only passes through it is not. The former versions of the
memory that a tensor shows are that tensor at earlier times, to which gradients go, too.
See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Final

from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd.past import (
    NOBODY,
    NOTHING_KNOWN,
    Home,
    Homes,
    home_of_value,
    known_of,
    living,
)
from tinycore.tensor.runtime import runtime
from tinycore.tensor.storage.held_values import escaped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

values: Final[dict[int, weakref.ref[UOp]]] = {}
"""The nodes whose value has a home, by id."""
former: Final[dict[int, weakref.ref[UOp]]] = {}
"""The versions that were overwritten, by id: mostly there are none, and gradients need not look."""


def home(version: UOp) -> Home:
    """The home of a version, or of a value."""
    known = known_of(version)
    if version.op in HOMED:
        return known.home
    if known.value is None:
        enter(version, known.home)
    return known.value or known.home


def enter(node: UOp, home: Home) -> None:
    """Let a node have the value with a home, unless it has another one's."""
    known, key = known_of(node), id(node)
    known.value = known.value or home
    values[key] = weakref.ref(node, partial(values.pop, key))


def move(value: UOp, other: UOp) -> None:
    """Let another node, such as memory, have a value with a home, too."""
    if (known := home_of_value(value)) and other is not value:
        enter(other, known)
        (known.memory if other.op in WRITTEN else known.nodes).append(weakref.ref(other))


def known_as(value: UOp) -> list[UOp]:
    """The nodes by which graphs know the value of a node, which may be among them."""
    known = home_of_value(value)
    return living(known.nodes) if known else []


def with_values() -> list[UOp]:
    """The living nodes whose value has a home."""
    return living(list(values.values()))


def references(memory: Iterable[UOp]) -> Homes:
    """The homes of memory, which is not kept alive by them."""
    return NOBODY.union(*[home(node).alone for node in memory])


def renewed(memory: Iterable[UOp]) -> dict[UOp, UOp]:
    """The next version of each BUFFER; those given are former ones from now on."""
    found = {}
    for old in memory:
        found[old] = new = runtime().version(old)
        known = known_of(new)
        known.home, known.ended = home(old), known_of(old).ended
        if old in escaped:
            escaped.add(new)
        known.home.nodes = [weakref.ref(new)]
        former[id(old)] = weakref.ref(old, partial(former.pop, id(old)))
    return found


HOMED: Final = frozenset({Op.BUFFER, Op.UNIQUE})
"""Ops of versions of memory, and of the identities of tensors."""
WRITTEN: Final = frozenset({Op.BUFFER, Op.MULTI, Op.ASSIGN})
"""Ops of versions of memory."""


def is_former(memory: UOp) -> bool:
    """True if a BUFFER that memory shows, or that was written to in place, is a former version."""
    return not former.keys().isdisjoint(map(id, buffers_below(memory)))


def in_latest(memory: UOp) -> UOp:
    """Memory with each BUFFER in its present version."""
    return memory.substitute({b: latest(b) for b in buffers_below(memory)})


def latest(version: UOp) -> UOp:
    """The present version of the memory of a BUFFER; a new one if that is gone."""
    found = current(version)
    return renewed([version])[version] if is_former(found) else found


def current(version: UOp) -> UOp:
    """The present version of the memory of a BUFFER; itself if that is gone."""
    home: Home = getattr(version, "_past", NOTHING_KNOWN).home
    return next(iter(home.present()), version)
