"""Command graphs: kernels with arguments of their own, queued in one go.

What a launch costs the host is mostly arguments and the driver being woken. Here arguments stay
set, and the driver is woken once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiny_cl._lib import Object, call, ffi
from tiny_cl.memory import ClMemory
from tiny_cl.program import ClProgram, seconds
from tinycore.errors import UnsupportedError
from tinycore.plugin import Launch

__all__ = ["ClGraph"]


class ClGraph:
    """Launches on one queue, which runs them in order."""

    def __init__(self, launches: Sequence[Launch], queue: Object) -> None:
        self._queue = queue
        self._held = []
        self._handles: dict[tuple[int, int], ClMemory] = {}
        """References to the objects that the launches use, which keep them alive."""
        for number, (program, buffers, values) in enumerate(launches):
            if not isinstance(program, ClProgram):
                raise UnsupportedError(f"a graph of CL holds its own programs, not {program!r}")
            held = program.prepared()
            held.give(buffers, values)
            self._held.append(held)
            self._handles |= {(number, slot): handle for slot, handle in enumerate(buffers)}

    def set_buffer(self, launch: int, slot: int, handle: ClMemory) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        self._handles[launch, slot] = handle
        self._held[launch].give_buffer(slot, handle)

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        self._held[launch].give_value(position, value)

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        if not wait or not self._held:
            for held in self._held:
                held.enqueue()
            call("clFlush", self._queue)
            return 0.0 if wait else None
        first, *others = self._held
        began = ended = ffi.new("cl_event *")
        first.enqueue(began)
        for held in others[:-1]:
            held.enqueue()
        if others:
            ended = ffi.new("cl_event *")
            others[-1].enqueue(ended)
        return seconds(began, ended)
