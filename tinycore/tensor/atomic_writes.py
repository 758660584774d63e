"""Atomic writes: a group of in-place writes of which all are recorded or none.

Floor 5. A write waits in the node of a tensor until something is computed. Where several belong
together, as those of an optimizer's step, an exception between two of them rolls back those that
were recorded before it. See docs/threads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType

from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.core import Core
from tinycore.tensor.history import history
from tinycore.tensor.liveness import become, live_tensors


class AtomicWrites:
    """Context manager that rolls back the writes to `tensors()`, and to all their views, when it is
    left by an exception.
    """

    __slots__ = ("living", "nodes", "tensors", "values")

    def __init__(self, tensors: Callable[[], Iterable[Core]]) -> None:
        self.tensors = tensors

    def __enter__(self) -> None:
        self.living = live_tensors()
        self.nodes = [t.uop for t in self.living]
        shared = [(t, value) for t in self.living if (value := t._value) is not None]
        self.values = {id(t): (value, value.base) for t, value in shared}
        """The Value that a tensor shares with its views, and the base of that Value."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.roll_back()
        del self.living, self.nodes, self.values

    def roll_back(self) -> None:
        """Give the tensors, and all tensors that alias them, their former nodes."""
        before = dict(zip(map(id, self.living), self.nodes, strict=True))
        written = {base_of_view(before[id(t)]) for t in self.tensors() if id(t) in before}
        changed = [
            (tensor, node)
            for tensor, node in zip(self.living, self.nodes, strict=True)
            if tensor.uop is not node and base_of_view(node) in written
        ]
        withdrawn = [tensor.uop for tensor, _ in changed]
        become([tensor for tensor, _ in changed], [node for _, node in changed])
        for tensor, _ in changed:
            tensor._value, base = self.values.get(id(tensor), (None, None))
            if tensor._value is not None and base is not None:
                tensor._value.base = base
        for node in withdrawn:
            history.cancel_pending(node)
        for _, node in changed:
            history.mark_pending(node)
