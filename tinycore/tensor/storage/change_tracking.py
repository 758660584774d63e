"""Change tracking: which tensors a thread changes during a capture or a group of atomic writes.

Floor 5. A capture has a change set (`change_sets.py`), to which threads report here. A write that
the function has written down is computed in its capture, not by another thread. Atomic writes are
rolled back by an undo log. See docs/threads.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tinycore.uop.node import UOp

if TYPE_CHECKING:
    from tinycore.tensor.capture.change_sets import ChangeSet
    from tinycore.tensor.core import Core
    from tinycore.tensor.storage.storage import Storage, View


change_sets: Final[set[ChangeSet]] = set()
"""The change sets of captures in progress in all threads."""


class Scope(threading.local):
    """The capture that a thread is in. `scope` is the one instance."""

    owner: ChangeSet | None = None
    """Its changes, which also owns the values that nodes hold in it."""
    ends_gradients = False
    """True if what it computes is differentiated inside: not so in the first run of a function."""


scope: Final = Scope()


def record_changes(tensors: Iterable[Core]) -> None:
    """Record that this thread is about to change the nodes of tensors."""
    for change_set in list(change_sets):
        for tensor in tensors:
            change_set.note_change(tensor)


def record_made(tensor: Core) -> None:
    """Record that this thread has made a tensor."""
    for change_set in list(change_sets):
        change_set.note_made(tensor)


def changed_elsewhere() -> set[int]:
    """The ids of tensors that captures of other threads have made or changed."""
    others = [s.changed for s in list(change_sets) if s is not scope.owner]
    return set().union(*others)  # at once, in C


def tensors_elsewhere() -> set[int]:
    """The ids of tensors that no value computed by this thread may enter: those of captures of
    other threads, and in a capture those that others have made since it began.
    """
    found, own = changed_elsewhere(), scope.owner
    return found if own is None else found.union({*list(own.made)} - own.changed)


class UndoLog:
    """The former values of what a thread has written to since the log was opened."""

    def __init__(self) -> None:
        self.values: dict[Storage, UOp] = {}
        self.views: dict[Core, Storage | View] = {}
        """Tensors that show something else since."""


class Undo(threading.local):
    """The undo logs of the atomic writes that this thread is in. `undo` is the one instance."""

    logs: tuple[UndoLog, ...] = ()


undo: Final = Undo()
