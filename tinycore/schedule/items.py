"""Launches before compilation: `Step` over numbered memory, `ScheduleItem` over buffers.

Floor 3. The sources of a KERNEL node are all its dependencies, so every topological order of a
graph is a legal order of its launches; `order.py` chooses a better one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinycore.device.buffer import Buffer
from tinycore.schedule.device_memory import buffer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


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


def kernels_below(root: UOp) -> list[UOp]:
    """The KERNELs of a graph cut by `kernelize`, in topological order."""
    order = root.toposort(lambda n: n.op is not Op.BUFFER)
    return [n for n in order if n.op is Op.KERNEL]


def schedule(roots: Iterable[UOp]) -> list[ScheduleItem]:
    """The pending launches of roots cut by `kernelize`, in topological order."""
    return [
        ScheduleItem(n.arg.ast, tuple(map(buffer_of, n.src[: n.arg.slots])), n.arg.metadata, n)
        for n in kernels_below(UOp.sink(*roots))
    ]
