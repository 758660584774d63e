"""Versions of memory, and what is known of each beside its content.

Floor 5. Each BUFFER is one version, and a run that writes in place ends with the next. So a graph
over a BUFFER means the same whatever is written later: its leaf is a version, and not an address. A
version that was overwritten is a leaf whose content is gone. A derivative that needs its value is
refused; one that only passes through it is not. The former versions of the memory that a tensor
shows are that tensor at earlier times, to which gradients go, too.

A write is done once, so after a run its node is replaced by the next version. If the run only had
to read a value, the gradient must not end there: the version knows the node, below which walks for
gradients go on (`Made`), or what gradients that end there missed. See docs/aliasing.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from tinycore._locks import recursive_lock
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.runtime import runtime
from tinycore.tensor.storage.change_tracking import scope
from tinycore.tensor.storage.held_values import escaped
from tinycore.uop.node import Reads, UOp
from tinycore.uop.op import Op

T = TypeVar("T")


class Made(NamedTuple):
    """The graph by which a BUFFER, or a MULTI of some, was computed."""

    node: UOp
    sources: tuple[UOp, ...]
    """The BUFFERs that a gradient of the node goes to first."""
    inner: Mapping[UOp, UOp]
    """Nodes below that the same run computed, and their memory, as derivatives may need it."""
    reads: Reads
    """Sources of the run: what it read, and what the values held for it were read from."""
    size: int
    """A bound on the nodes in the graph, and those by which what it reads was computed."""
    marks: frozenset[UOp]
    """The nodes of the graph at which gradients end or go on below memory."""


class Home:
    """Identity of memory, whatever is written there, or of a value, whatever memory it gets: the
    nodes that have it at present, the present version of memory or those by which graphs know a
    value, and the memory of that value.
    """

    __slots__ = ("__weakref__", "alone", "memory", "nodes")

    def __init__(self, node: UOp) -> None:
        self.nodes = [weakref.ref(node)]
        self.memory: list[weakref.ref[UOp]] = []
        self.alone: Homes = frozenset([weakref.ref(self)])
        """A set of it alone."""

    def present(self) -> list[UOp]:
        """The living nodes among those, and memory."""
        return living([*self.nodes, *self.memory])


def living(references: Iterable[weakref.ref[T]]) -> list[T]:
    """The living objects of some weak references."""
    return [found for reference in references if (found := reference()) is not None]


Homes = frozenset[weakref.ref[Home]]
"""Memory, and identities of tensors, that are not kept alive by it."""
NOBODY: Final[Homes] = frozenset()


class Known:
    """Facts of a node that are no part of its content: they lie in the node."""

    __slots__ = ("ended", "home", "made", "value")

    def __init__(self, node: UOp) -> None:
        self.home = Home(node)
        """Home of memory that was written to, or that something was computed from, or of a tensor
        with nodes of its own, whatever memory that gets.
        """
        self.value: Home | None = None
        """Home of a value that several tensors may show, each in memory of its own."""
        self.made: Made | None = None
        """The graph by which memory was computed, through which gradients go on."""
        self.ended = NOBODY
        """Memory to which gradients that end here would have gone."""


NOTHING_KNOWN: Final = Known(UOp.sink())
"""Facts of a node of which none is known."""
BY_CALL: Final = NOTHING_KNOWN.home.alone
"""A home of nothing: among those where gradients ended, it tells that a captured call ended some,
which nobody asked for.
"""
lock: Final = recursive_lock()
"""Held while something becomes known of nodes."""


def known_of(node: UOp) -> Known:
    """Facts of a node, kept in it from now on."""
    found: Known = getattr(node, "_past", NOTHING_KNOWN)
    if found is NOTHING_KNOWN:
        with lock:
            found = getattr(node, "_past", NOTHING_KNOWN)
            if found is NOTHING_KNOWN:
                node._past = found = Known(node)
    return found


def home_of_value(node: UOp) -> Home | None:
    """The home of the value of a node, if that has one."""
    home: Home | None = getattr(node, "_past", NOTHING_KNOWN).value
    return home


def kept_of(memory: UOp) -> Made | None:
    """The graph by which memory was computed, if it is kept."""
    made: Made | None = getattr(memory, "_past", NOTHING_KNOWN).made
    return made


def made_of(memory: UOp) -> Made | None:
    """The same where gradients flow on to it; not so in a capture, whose replays find memory that
    was computed otherwise.
    """
    made = kept_of(memory)
    return None if made is None or scope.ends_gradients else made


def sources_of(node: UOp) -> tuple[UOp, ...]:
    """The nodes that gradients may flow to from a node: of memory, what it was computed by."""
    made = made_of(node)
    return node.src if made is None else (made.node,)


def ordered_through(root: UOp, enter: Callable[[UOp], bool] | None = None) -> dict[UOp, None]:
    """A node and all below it, also below memory, sources first; not below what fails `enter`."""
    order: dict[UOp, None] = {}
    stack: list[UOp | None] = [root]
    open_nodes: list[UOp] = []
    while stack:
        if (node := stack.pop()) is None:  # all below the last one that is open are done
            order[open_nodes.pop()] = None
        elif node not in order:
            open_nodes.append(node)
            stack.append(None)
            if enter is None or enter(node) or made_of(node):
                stack += sources_of(node)[::-1]
    return order


# --- homes

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
