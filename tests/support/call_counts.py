"""The work of a program as a number that does not depend on the machine: calls of functions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["calls", "uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """A part of a test in which nothing ends that other tests left in cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls(function: Callable[[], object]) -> int:
    """The functions that a call calls in turn, in Python and in C."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with uncollected():
        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(None)
    return count
