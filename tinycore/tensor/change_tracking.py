"""Change tracking: which tensors a thread changes during a capture.

Floor 5. A capture looks at all living tensors for those that the function has changed. What other
threads change meanwhile, or give a gradient, is no part of it, and a write that the function has
written down is computed in its capture, not by another thread. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final


class ChangeSet:
    """The ids of tensors that one capture has changed, and to which others gave gradients."""

    def __init__(self) -> None:
        self.changed: set[int] = set()
        self.graded_elsewhere: set[int] = set()


change_sets: Final[dict[int, list[ChangeSet]]] = {}
"""The change sets of captures in progress, by the number of their thread."""


@contextmanager
def tracking_changes() -> Iterator[ChangeSet]:
    """Record the changes that this thread makes inside the block."""
    change_set, thread = ChangeSet(), get_ident()
    before = change_sets.get(thread, [])
    try:
        try:  # an interrupt may come right after it is opened, or right before it is closed
            change_sets[thread] = [*before, change_set]
            yield change_set
        finally:
            close(thread, before)
    finally:
        close(thread, before)


def close(thread: int, before: list[ChangeSet]) -> None:
    """Leave a thread the change sets that it had before."""
    if before:
        change_sets[thread] = before
    else:
        change_sets.pop(thread, None)


def record_changes(tensors: Iterable[object]) -> None:
    """Record that this thread changes the nodes of tensors."""
    for change_set in change_sets.get(get_ident(), ()):
        change_set.changed.update(map(id, tensors))


def record_gradients(tensors: Iterable[object]) -> None:
    """Record, for the captures of other threads, that this thread gives tensors gradients."""
    own, numbers = get_ident(), list(map(id, tensors))
    for thread, others in list(change_sets.items()):
        for change_set in others if thread != own else ():
            change_set.graded_elsewhere.update(numbers)


def changed_elsewhere() -> set[int]:
    """The ids of tensors that captures of other threads have changed."""
    own = get_ident()
    found = [w.changed for thread, some in list(change_sets.items()) if thread != own for w in some]
    return set().union(*found)
