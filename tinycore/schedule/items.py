"""Launches before compilation: `Step` over numbered memory, `ScheduleItem` over buffers.

Floor 3. The sources of a KERNEL node are all its dependencies, so every topological order of a
graph is a legal order of its launches; `order.py` chooses a better one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.uop.node import UOp


class Step(NamedTuple):
    """One launch of a schedule: its graph, and the memory number of each slot, outputs first."""

    ast: UOp
    places: tuple[int, ...]
    metadata: tuple[str, ...]
    kernel: UOp


@dataclass(slots=True, eq=False)
class ScheduleItem:
    """One launch bound to memory: `ast` says what to compute, `bufs` holds a Buffer per slot.

    Outputs come first. `kernel` is the node of the launch, in the graph that `kernelize` made.
    """

    ast: UOp
    bufs: tuple[Buffer, ...]
    metadata: tuple[str, ...]
    kernel: UOp
    runner: Any = None
    """The program, if an earlier run of the same schedule has found it."""
