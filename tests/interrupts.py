"""KeyboardInterrupt at a chosen line of some work, as if Ctrl-C had come just then."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any


@cache
def exits_of(code: CodeType) -> frozenset[int]:
    """Where a `with` is left in an orderly way: `__exit__(None, None, None)`.

    A trace sees its line once more there. The interpreter looks for no signal before it is called.
    """
    steps = list(dis.get_instructions(code))
    nothing = [s.opname == "LOAD_CONST" and s.argval is None for s in steps]
    found = set()
    for place in range(len(steps)):
        if nothing[place : place + 3] == [True] * 3:
            found.add(steps[place].offset)
            while place and steps[place - 1].opname in ("NOP", "SWAP"):
                place -= 1
                found.add(steps[place].offset)
    return frozenset(found)


class Lines:
    """Counts the lines that run, and raises KeyboardInterrupt in the place of one."""

    def __init__(self, stop: int) -> None:
        self.left = stop
        self.place = ""
        """Where the interrupt came."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        """What `sys.settrace` takes."""
        if event == "line" and frame.f_lasti not in exits_of(frame.f_code):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def interrupt(work: Callable[[], object], line: int) -> str:
    """Do some work with an interrupt at line number `line`; where that was, "" if it came after.

    An interrupt inside of a weak reference's callback is told and forgotten by Python itself.
    """
    lines = Lines(line)
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return lines.place


def lines_of(work: Callable[[], object]) -> int:
    """How many lines some work runs."""
    lines = Lines(1 << 60)
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        work()
    finally:
        sys.settrace(before)
    return (1 << 60) - lines.left
