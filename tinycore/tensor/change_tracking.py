"""Change tracking: which tensors a thread changes during a capture or a group of atomic writes.

Floor 5. A capture has a change set (`change_sets.py`), to which threads report here. A write that
the function has written down is computed in its capture, not by another thread. Atomic writes are
rolled back by an undo log. See docs/threads.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Final

from tinycore.uop.node import UOp

if TYPE_CHECKING:
    from tinycore.tensor.change_sets import ChangeSet
    from tinycore.tensor.core import Core
    from tinycore.tensor.storage import Storage, View


change_sets: Final[dict[int, list[ChangeSet]]] = {}
"""The change sets of captures in progress, by the number of their thread."""


def open_sets() -> list[tuple[ChangeSet, bool]]:
    """All change sets, and whether they are of this thread."""
    own = get_ident()
    return [(s, thread == own) for thread, found in list(change_sets.items()) for s in found]


def record_changes(tensors: Iterable[Core]) -> None:
    """Record that this thread is about to change the nodes of tensors."""
    for change_set, is_own in open_sets():
        for tensor in tensors:
            change_set.note_change(tensor, is_own)


def record_made(tensor: Core) -> None:
    """Record that this thread has made a tensor."""
    for change_set, is_own in open_sets():
        change_set.note_made(tensor, is_own)


def record_gradient(tensor: Core) -> None:
    """Record that this thread is about to give a tensor a gradient, or to take it away."""
    for change_set in change_sets.get(get_ident(), ()):
        change_set.note_gradient(tensor)


def record_bound(memory: Iterable[UOp]) -> None:
    """Record the BUFFERs that a computation of this thread works on."""
    for change_set in change_sets.get(get_ident(), ()):
        change_set.note_bound(memory)


def changed_elsewhere() -> set[int]:
    """The ids of tensors that captures of other threads have made or changed."""
    return set().union(*[s.changed for s, is_own in open_sets() if not is_own])  # at once, in C


def tensors_elsewhere() -> set[int]:
    """The ids of tensors that no value computed by this thread may enter: those of captures of
    other threads, and in a capture those that others have made since it began.
    """
    made = [{*list(s.made)} - s.changed for s in change_sets.get(get_ident(), ())]
    return changed_elsewhere().union(*made)


class UndoLog:
    """The former values of what a thread has written to since the log was opened."""

    __slots__ = ("__weakref__", "values", "views")

    def __init__(self) -> None:
        self.values: dict[Storage, UOp] = {}
        self.views: dict[Core, Storage | View] = {}
        """Tensors that show something else since."""


undo_logs: Final[dict[tuple[int, int], weakref.ref[UndoLog]]] = {}
"""The undo logs of atomic writes in progress, by thread and id: an interrupted block leaves none
behind.
"""


def open_log() -> UndoLog:
    """A new undo log of this thread, which is written as long as it lives."""
    log = UndoLog()
    key = get_ident(), id(log)
    undo_logs[key] = weakref.ref(log, partial(undo_logs.pop, key))
    return log


def own_logs() -> list[UndoLog]:
    """The undo logs of this thread, the oldest first."""
    own = get_ident()
    found = [reference for (thread, _), reference in list(undo_logs.items()) if thread == own]
    return [log for reference in found if (log := reference()) is not None]


def log_write(storage: Storage) -> None:
    """Note a storage that this thread is about to write to, unless it has noted it before."""
    for log in own_logs():
        log.values.setdefault(storage, storage.value)


def log_move(tensor: Core) -> None:
    """Note a tensor that this thread is about to let show something else."""
    for log in own_logs():
        log.views.setdefault(tensor, tensor._view)
