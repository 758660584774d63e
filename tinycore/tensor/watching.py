"""Which tensors a thread changes while it captures a function.

Floor 5. A capture looks at all living tensors for those that the function has changed. What other
threads change meanwhile, or give a gradient, is no part of it, and a write that the function has
written down is computed in its capture, not by another thread. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final

__all__ = ["Watch", "changed_elsewhere", "note", "note_gradients", "watching"]


class Watch:
    """The ids of tensors that one capture has changed, and to which others gave gradients."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        self.graded_elsewhere: set[int] = set()


watches: Final[dict[int, list[Watch]]] = {}
"""Those of captures that are under way, by the number of their thread."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Inside, what this thread changes is noted."""
    watch, thread = Watch(), get_ident()
    watches.setdefault(thread, []).append(watch)
    try:
        yield watch
    finally:
        own = watches[thread]
        own.remove(watch)
        if not own:
            watches.pop(thread, None)


def note(tensors: Iterable[object]) -> None:
    """This thread gives tensors other nodes."""
    for watch in watches.get(get_ident(), ()):
        watch.changed.update(map(id, tensors))


def note_gradients(tensors: Iterable[object]) -> None:
    """This thread gives tensors gradients."""
    own, numbers = get_ident(), list(map(id, tensors))
    for thread, others in list(watches.items()):
        for watch in others if thread != own else ():
            watch.graded_elsewhere.update(numbers)


def changed_elsewhere() -> set[int]:
    """The ids of tensors that captures of other threads have changed."""
    own = get_ident()
    found = [w.changed for thread, some in list(watches.items()) if thread != own for w in some]
    return set().union(*found)
