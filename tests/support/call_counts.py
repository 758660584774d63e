"""The work of a program as a number that does not depend on the machine: calls of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["calls"]


def calls(function: Callable[[], object]) -> int:
    """The functions that a call calls in turn, in Python and in C."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
