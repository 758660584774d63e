"""Atomic writes: a group of in-place writes of which all are recorded or none.

Floor 5. A write waits in the node of a tensor until something is computed. Where several belong
together, as those of an optimizer's step, an exception between two of them rolls back those that
were recorded before it, by an undo log. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType

from tinycore._signals import deferred, handlers
from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.change_tracking import open_log
from tinycore.tensor.core import Core
from tinycore.tensor.history import history
from tinycore.tensor.liveness import become


class AtomicWrites:
    """Context manager that rolls back the writes to `tensors()`, and to all their views, when it is
    left by an exception. The program's own signal handlers see none of the writes, or all.
    """

    __slots__ = ("log", "signals", "tensors")

    def __init__(self, tensors: Callable[[], Iterable[Core]]) -> None:
        self.tensors = tensors

    def __enter__(self) -> None:
        self.signals = deferred(handlers())
        self.signals.__enter__()
        self.log = open_log()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None:
                self.roll_back()
            del self.log
        finally:
            self.signals.__exit__(None, None, None)

    def roll_back(self) -> None:
        """Give the tensors, and all tensors that alias them, their former nodes."""
        former = dict(self.log)
        written = {base_of_view(former[id(t)].node) for t in self.tensors() if id(t) in former}
        changed = [
            f
            for f in former.values()
            if f.tensor.uop is not f.node and base_of_view(f.node) in written
        ]
        withdrawn = [f.tensor.uop for f in changed]
        become([f.tensor for f in changed], [f.node for f in changed])
        for tensor, _, value, base in changed:
            tensor._value = value
            if value is not None and base is not None:
                value.base = base
        for node in withdrawn:
            history.cancel_pending(node)
        for f in changed:
            history.mark_pending(f.node)
