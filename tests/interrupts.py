"""KeyboardInterrupt at a chosen line of some work, as if Ctrl-C had come just then."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple


@cache
def exits_of(code: CodeType) -> frozenset[int]:
    """Offsets at which a `with` is left in an orderly way: `__exit__(None, None, None)`.

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


class Moment(NamedTuple):
    """A line that runs during some work."""

    call: int
    """The number of the call of a function, or of a resumption of a generator, that runs it."""
    line: int
    """The number of the line among those that this call runs."""


def moments_of(work: Callable[[], object]) -> list[Moment]:
    """All lines that some work runs, in their order."""
    found: list[Moment] = []
    calls = 0

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal calls
        calls += 1
        call, lines, exits = calls, 0, exits_of(frame.f_code)

        def noted(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal lines
            if event == "line" and frame.f_lasti not in exits:
                lines += 1
                found.append(Moment(call, lines))
            return noted

        return noted

    traced(work, called)
    return found


def interrupt(work: Callable[[], object], moment: Moment) -> str:
    """Do some work with an interrupt at a moment; where that was, "" if it did not come to it.

    An interrupt inside of a weak reference's callback is told and forgotten by Python itself.
    """
    place = ""
    calls = lines = 0

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal calls
        calls += 1
        return struck if calls == moment.call else None  # the lines of others run at full speed

    def struck(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines, place
        if event == "line" and frame.f_lasti not in exits_of(frame.f_code):
            lines += 1
            if lines == moment.line:
                sys.settrace(None)
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return struck

    with suppress(KeyboardInterrupt):
        traced(work, called)
    return place


def traced(work: Callable[[], object], trace: Callable[..., Any]) -> None:
    """Do some work under a trace function."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
