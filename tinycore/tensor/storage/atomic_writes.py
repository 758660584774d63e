"""Atomic writes: a group of in-place writes of which all are recorded or none.

Floor 5. A write waits in the node of a tensor until something is computed. Where several belong
together, as those of an optimizer's step, an exception between two of them rolls back those that
were recorded before it, by an undo log. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tinycore._locks import replaced
from tinycore._signals import deferred
from tinycore.tensor import graph
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.gradient_sources import origin
from tinycore.tensor.autograd.versions import WRITTEN
from tinycore.tensor.core import Core
from tinycore.tensor.storage.change_tracking import UndoLog, undo
from tinycore.tensor.storage.storage import exchange
from tinycore.uop.node import UOp


@contextmanager
def atomic_writes(tensors: Callable[[], Iterable[Core]]) -> Iterator[None]:
    """Roll back the writes of the block to `tensors()`, and to all their views, if an exception
    leaves it. The program's own signal handlers see none of the writes, or all.
    """
    log = UndoLog()
    with deferred(everything=False), replaced(undo, "logs", (*undo.logs, log)):
        try:
            yield
        except GeneratorExit:  # it was interrupted before the block began, and is dropped now
            raise
        except BaseException:
            roll_back(log, tensors())
            raise


def roll_back(log: UndoLog, tensors: Iterable[Core]) -> None:
    """Give tensors, and all tensors that alias them, their former values."""
    storages = {log.views.get(t, t._view).storage for t in tensors}
    for tensor, view in log.views.items():
        if view.storage in storages:
            tensor._move(view)
    exchange({s: present(log.values[s]) for s in storages & log.values.keys()})


def present(value: UOp) -> UOp:
    """A former value, over memory in place of writes that were done since: they are not undone, and
    not done again. Of several in a row only the last is known to be done; memory that any has
    overwritten is a former version.
    """
    shown = value.substitute(history.done(value.toposort()))
    return shown.substitute(
        {
            node: graph.reshape(versions.in_latest(origin(node)), node.shape)
            for node in shown.toposort()
            if node.op in WRITTEN and versions.is_former(node)
        }
    )
