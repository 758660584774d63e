"""Signal handlers that compute, and what they must not find half done.

Floor 0. Imports the standard library alone. A handler written in Python runs between any two steps
of the main thread. One that a program has set may compute: while a run is planned, made and
published it is deferred. See docs/threads.md.
"""

from __future__ import annotations

import signal
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from types import FrameType
from typing import Any, Final

WORDS: Final = "INT TERM HUP USR1 USR2 ALRM CHLD VTALRM PROF QUIT".split()
SIGNALS: Final = tuple(
    int(getattr(signal, f"SIG{word}")) for word in WORDS if hasattr(signal, f"SIG{word}")
)
"""Signals that programs handle; to ask for all there are takes 7 us."""
native: Final[Any] = sys.modules.get("_signal", signal)
handler_of: Final[Callable[[int], Any]] = native.getsignal
"""`signal.getsignal` without the enumerations that it makes of numbers, ten times as fast."""
set_handler: Final[Callable[[int, Any], Any]] = native.signal
"""`signal.signal` likewise."""
NOT_DEFERRED: Final = frozenset((0, 1, None, signal.default_int_handler))
"""Handlers that are not a program's own: the system's, of nobody, and Python's of Ctrl-C."""


class Deferred:
    """In place of a program's handlers: keeps the signals that come, each once, as the system."""

    def __init__(self) -> None:
        self.came: dict[int, FrameType | None] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came.setdefault(number, frame)


def handlers(*, everything: bool = False) -> dict[int, Any]:
    """The handlers to defer, by signal; none in other threads, where no handler runs.

    Python's own handler of Ctrl-C only raises, which every run bears, and ends long replays early:
    it is deferred with `everything` alone.
    """
    if get_ident() != threading.main_thread().ident or (not everything and has_no_handler()):
        return {}
    known = [*map(handler_of, SIGNALS)]
    return {
        number: handler
        for number, handler in compress(zip(SIGNALS, known, strict=True), map(callable, known))
        if not isinstance(handler, Deferred)
        and (everything or handler is not signal.default_int_handler)
    }


def has_no_handler() -> bool:
    """True if no handler is the program's own: one call of C, as each replay asks."""
    try:
        return NOT_DEFERRED.issuperset(map(handler_of, SIGNALS))
    except TypeError:  # a handler that has no hash
        return False


@contextmanager
def deferred(*, everything: bool = True) -> Iterator[None]:
    """Call the handlers of signals that come inside the block at its end, however it ends: see
    `handlers`.

    A handler that the block itself sets stays.
    """
    given, keeper = handlers(everything=everything), Deferred()
    try:
        for number in given:
            set_handler(number, keeper)
        yield
    finally:
        try:
            restore(given, keeper)
        finally:  # a handler that is restored may raise
            restore(given, keeper)
            deliver(given, keeper.came)


def silence() -> None:
    """Call none of the program's own handlers any more, as the process ends."""
    for number in handlers():
        set_handler(number, Deferred())


def restore(given: Mapping[int, Any], keeper: Deferred) -> None:
    """Set the handlers of signals again where a keeper is in their place."""
    for number, handler in given.items():
        if handler_of(number) is keeper:
            set_handler(number, handler)


def deliver(given: Mapping[int, Any], came: dict[int, FrameType | None]) -> None:
    """Call the handlers of signals that came, all of them though one may raise."""
    while came:
        number = next(iter(came))
        frame = came.pop(number)
        try:
            given[number](number, frame)
        except BaseException:
            deliver(given, came)
            raise
