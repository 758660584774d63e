"""Hoisting of replay-invariant launches out of a captured step.

Floor 4. `TinyJit(prune=True)` asks for it; loop-invariant code motion with the replay as the loop.
A launch varies if it reads an argument, the number of a Variable, random numbers or the output of
another launch that varies, or if it writes a result or memory that existed before the capture.
Temporaries share memory, so the outputs of invariant launches may have been overwritten by now:
these launches run once more, into buffers of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tinycore.device.buffer import Buffer
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.run import ExecItem, Recording


def hoist_invariants(recording: Recording, fixed: Iterable[Buffer]) -> Recording:
    """A recording without its invariant launches. `fixed` are the inputs and the results."""
    varying = VaryingMemory(recording, fixed)
    once = [item for item in recording.items if not varying.includes(item)]
    own = {item.bufs[slot]: Buffer.like(item.bufs[slot]) for item in once for slot in item.written}

    def moved(item: ExecItem) -> ExecItem:
        bufs = [own.get(b) or view_of(b, own) for b in item.bufs]
        return replace(item, bufs=tuple(bufs))

    for item in once:
        moved(item).run()
    kept = [moved(item) for item in recording.items if varying.includes(item)]
    return replace(
        recording,
        items=kept,
        made=recording.made - own.keys(),
        temporary=recording.temporary - own.keys(),
    )


def view_of(buffer: Buffer, own: dict[Buffer, Buffer]) -> Buffer:
    """A buffer, or the same view of the replacement of its base."""
    base = None if buffer.base is None else own.get(buffer.base)
    return buffer if base is None else base.view(buffer.size, buffer.dtype, buffer.offset)


class VaryingMemory:
    """The set of memory whose content differs between replays, by fixpoint iteration."""

    def __init__(self, recording: Recording, fixed: Iterable[Buffer]) -> None:
        self.recording = recording
        self.blocks = {b.base for b in recording.temporary}
        used = {b for item in recording.items for b in item.bufs}
        drawn = (b for b, _ in recording.repeated if b is not None and b in used)
        self.memory = {self.whole(b) for b in (*fixed, *drawn)}
        before = -1
        while before != len(self.memory):
            before = len(self.memory)
            for item in filter(self.includes, recording.items):
                self.memory.update(self.whole(item.bufs[slot]) for slot in item.written)

    def whole(self, buffer: Buffer) -> Buffer:
        """The identity of memory: a temporary itself, the base of any other view."""
        if buffer in self.recording.temporary or buffer.base is None:
            return buffer
        return buffer.base

    def includes(self, item: ExecItem) -> bool:
        """True if a launch must run in each replay."""
        if isinstance(item.runner, CompiledRunner) and item.runner.info.values:
            return True
        return any(
            self.whole(b) in self.memory or self.whole(b) in self.blocks for b in item.bufs
        ) or any(not self.is_new(item.bufs[slot]) for slot in item.written)

    def is_new(self, buffer: Buffer) -> bool:
        """True if memory was allocated during the capture and is no view of other such memory."""
        made = buffer in self.recording.made
        return made and (buffer.base is None or buffer in self.recording.temporary)
