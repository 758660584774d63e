"""Atomic writes: a group of in-place writes of which all are recorded or none.

Floor 5. A write waits in the node of a tensor until something is computed. Where several belong
together, as those of an optimizer's step, an exception between two of them rolls back those that
were recorded before it, by an undo log. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinycore._signals import deferred
from tinycore.tensor import graph, history, versions
from tinycore.tensor.change_tracking import open_log
from tinycore.tensor.core import Core
from tinycore.tensor.gradient_sources import origin
from tinycore.tensor.history import WRITTEN
from tinycore.tensor.storage import exchange
from tinycore.uop.node import UOp


class AtomicWrites:
    """Context manager that rolls back the writes to `tensors()`, and to all their views, when it is
    left by an exception. The program's own signal handlers see none of the writes, or all.
    """

    __slots__ = ("log", "signals", "tensors")

    def __init__(self, tensors: Callable[[], Iterable[Core]]) -> None:
        self.tensors = tensors

    def __enter__(self) -> None:
        self.signals = deferred(everything=False)
        self.signals.__enter__()
        self.log = open_log()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is not None:
                self.roll_back()
            del self.log
        finally:
            self.signals.__exit__(None, None, None)

    def roll_back(self) -> None:
        """Give the tensors, and all tensors that alias them, their former values."""
        log = self.log
        storages = {log.views.get(t, t._view).storage for t in self.tensors()}
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
    versioned = (n for n in shown.toposort() if n.op in WRITTEN)
    former = [node for node in versioned if versions.is_former(origin(node))]
    return shown.substitute(
        {node: graph.reshape(versions.in_latest(origin(node)), node.shape) for node in former}
    )
