"""Locks and attributes that an interrupt leaves as they were; a forked child finds them open.

Floor 0. Imports nothing of tinycore. A `with` over an object whose `__enter__` and `__exit__` are C
functions has no gap between taking and guarding in which a signal handler could run; an `acquire`
followed by `try` has one. A child of fork has only the thread that forked: what other threads held
would stay held for ever, so every lock made here is opened there.
See docs/threads.md.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from typing import Any, Final

Busy: Final = Empty
"""Raised on entering `Turn.at_once` or `Turn.soon` while another frame has the turn."""
TURN_SECONDS: Final = 0.1
"""Time to wait for a turn, which is held for microseconds, or while a device is waited for."""

locks: Final[dict[int, weakref.ref[Any]]] = {}
"""Every living lock and Turn that was made here, by id; a WeakSet would run more Python."""
writing: Final = threading.RLock()
"""Held by the one thread that writes to memory of tensors, until these show the change."""
renewals: Final[list[Callable[[], None]]] = []
"""Further actions to take in a forked child."""


def register(made: Any) -> None:
    """Register a lock to be released in every forked child, as long as it lives."""
    key = id(made)
    locks[key] = weakref.ref(made, partial(locks.pop, key))


register(writing)


def lock() -> threading.RLock:
    """A lock that its owner may acquire again; released in a forked child.

    A signal handler may interrupt its owner, and does not wait for it: what the lock guards is
    consistent between any two steps, or says that a frame below is at it.
    """
    made = threading.RLock()
    register(made)
    return made


recursive_lock: Final = lock
"""The name by which plugins ask for a lock that its owner may acquire again."""


def in_child(renewal: Callable[[], None]) -> None:
    """Register a function to be called in every forked child, after its locks are released."""
    renewals.append(renewal)


class Turn:
    """A lock to try: `with turn.at_once:` raises Busy where another frame has it.

    `with turn.soon:` does so after TURN_SECONDS. Not recursive: the thread that has the turn finds
    it busy, too, as in a signal handler, or where Python drops what it collects.
    """

    __slots__ = ("__weakref__", "at_once", "soon")

    at_once: AbstractContextManager[object]
    soon: AbstractContextManager[object]

    def __init__(self) -> None:
        self._at_fork_reinit()
        register(self)

    def _at_fork_reinit(self) -> None:
        tokens: SimpleQueue[object] = SimpleQueue()
        tokens.put(None)
        # `put` takes what `__exit__` is given: an item, and two arguments that it ignores
        self.soon = manager(staticmethod(partial(tokens.get, True, TURN_SECONDS)), tokens.put)
        self.at_once = manager(tokens.get_nowait, tokens.put)


def manager(enter: Callable[..., object], leave: Callable[..., None]) -> Any:
    """A context manager of two C functions, which no signal handler runs between."""
    return type("Manager", (), {"__slots__": (), "__enter__": enter, "__exit__": leave})()


@contextmanager
def replaced(box: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute to another value inside the block, and restore it afterwards."""
    before = getattr(box, name)
    try:
        try:  # an interrupt may come right after the change, or right before it is undone
            setattr(box, name, value)
            yield
        finally:
            setattr(box, name, before)
    finally:
        setattr(box, name, before)


def begin_anew() -> None:
    """Release all locks in a forked child: the threads that held them exist in the parent only."""
    for reference in list(locks.values()):
        if (made := reference()) is not None:
            made._at_fork_reinit()
    for renewal in renewals:
        renewal()


def renew_properties() -> None:
    """Release the locks of cached properties in a forked child: before Python 3.12 each has one."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("tiny")]
    found = [value for m in modules for value in list(getattr(m, "__dict__", {}).values())]
    kinds = {value for value in found if isinstance(value, type)}  # each module imports many
    for made in [value for kind in kinds for value in list(vars(kind).values())]:
        if isinstance(made, cached_property):
            vars(made)["lock"]._at_fork_reinit()


if sys.version_info < (3, 12):
    in_child(renew_properties)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)
