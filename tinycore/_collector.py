"""A pause of Python's cycle collector, for work that makes a great many objects and no cycles.

Floor 0. Imports `_locks`. The collector looks at every living object again and again
while a graph grows, and finds nothing: nodes refer to their sources only, so they die by their
counts. It takes a quarter of the time of scheduling.
"""

from __future__ import annotations

import gc
from typing import Final

from tinycore._locks import in_child


class Pause:
    """`with without_collecting:` holds the collector back; any number of threads may be inside.

    The last to leave turns it on again, if one who came has turned it off. Steps are atomic, and
    no lock is taken, for which a signal handler might wait.
    """

    def __init__(self) -> None:
        self.inside: list[None] = []
        self.was_on = False

    def __enter__(self) -> None:
        self.inside.append(None)
        if gc.isenabled():
            self.was_on = True
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self.inside.pop()
        if not self.inside and self.was_on:
            self.was_on = False
            gc.enable()


without_collecting: Final = Pause()


def begin_anew() -> None:
    """Reset the pause in a forked process, which has none of the threads that were inside."""
    if without_collecting.was_on:
        gc.enable()
    without_collecting.__init__()  # type: ignore[misc]


in_child(begin_anew)
