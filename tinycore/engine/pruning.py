"""Launches of a captured step that do the same in every replay: done once, and left out.

Floor 4. `TinyJit(prune=True)` asks for it. A launch stays if it reads an argument, a number of a
Variable, random numbers or memory that another one that stays writes, or if it writes a result or
memory from before. What the others wrote may have been overwritten since, as intermediate results
share memory; so they are done again, into memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tinycore.device.buffer import Buffer
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.run import ExecItem, Recording


def pruned(recording: Recording, fixed: Iterable[Buffer]) -> Recording:
    """A recording less what need not be done again. `fixed` are the inputs and the results."""
    moving = Moving(recording, fixed)
    once = [item for item in recording.items if not moving.includes(item)]
    own = {item.bufs[slot]: Buffer.like(item.bufs[slot]) for item in once for slot in item.written}

    def moved(item: ExecItem) -> ExecItem:
        bufs = [own.get(b) or view_of(b, own) for b in item.bufs]
        return replace(item, bufs=tuple(bufs))

    for item in once:
        moved(item).run()
    kept = [moved(item) for item in recording.items if moving.includes(item)]
    return replace(
        recording,
        items=kept,
        made=recording.made - own.keys(),
        passing=recording.passing - own.keys(),
    )


def view_of(buffer: Buffer, own: dict[Buffer, Buffer]) -> Buffer:
    """A buffer, or the same view of what has taken the place of its base."""
    base = None if buffer.base is None else own.get(buffer.base)
    return buffer if base is None else base.view(buffer.size, buffer.dtype, buffer.offset)


class Moving:
    """The memory whose content is not the same in each replay."""

    def __init__(self, recording: Recording, fixed: Iterable[Buffer]) -> None:
        self.recording = recording
        self.blocks = {b.base for b in recording.passing}
        used = {b for item in recording.items for b in item.bufs}
        drawn = (b for b, _ in recording.repeated if b is not None and b in used)
        self.memory = {self.whole(b) for b in (*fixed, *drawn)}
        before = -1
        while before != len(self.memory):
            before = len(self.memory)
            for item in filter(self.includes, recording.items):
                self.memory.update(self.whole(item.bufs[slot]) for slot in item.written)

    def whole(self, buffer: Buffer) -> Buffer:
        """What memory is told apart by: intermediate results by themselves, views by their base."""
        if buffer in self.recording.passing or buffer.base is None:
            return buffer
        return buffer.base

    def includes(self, item: ExecItem) -> bool:
        """Whether a launch must be done in each replay."""
        if isinstance(item.runner, CompiledRunner) and item.runner.info.values:
            return True
        return any(
            self.whole(b) in self.memory or self.whole(b) in self.blocks for b in item.bufs
        ) or any(not self.is_new(item.bufs[slot]) for slot in item.written)

    def is_new(self, buffer: Buffer) -> bool:
        """Whether memory was made during the capture, and is no view of other such memory."""
        made = buffer in self.recording.made
        return made and (buffer.base is None or buffer in self.recording.passing)
