"""A queue of work that is never re-entered: what is asked meanwhile waits until its turn.

Python gives memory back where it likes: a tensor that is collected may ask for a buffer to be
destroyed while a pass is being recorded, by the same thread, which no lock keeps out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from tiny_webgpu._lib import inherited, is_inherited
from tinycore.plugin import recursive_lock

__all__ = ["Turns"]

T = TypeVar("T")


class Turns(Generic[T]):
    """A lock for `with`, that a thread may take again; what was put off is done after the
    outermost.
    """

    def __init__(self, settle: Callable[[T], None]) -> None:
        self._settle = settle
        self._lock = recursive_lock()
        self._depth = 0
        self._waiting: deque[T] = deque()

    def put_off(self, thing: T) -> None:
        """Settle something as soon as nothing is under way: now, or at the end of this turn."""
        if is_inherited():
            return
        self._waiting.append(thing)
        with self:
            pass

    def __enter__(self) -> None:
        if is_inherited():
            raise inherited()
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            while self._depth == 1 and self._waiting:
                self._settle(self._waiting.popleft())
        finally:
            self._depth -= 1
            self._lock.release()
