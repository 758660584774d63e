"""Memory planning of a captured step: all temporaries share one block per device.

Floor 4. Each schedule of the step has a memory plan of its own. Here the temporaries of all
schedules are packed together by their lifetimes, and with them the results of one schedule that
only later ones read: buffers whose node died during the capture, so that no tensor refers to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from tinycore.device.buffer import Buffer
from tinycore.dtype import dtypes
from tinycore.engine.run import ExecItem, Recording
from tinycore.schedule.memory import Life, pack


def plan_memory(recording: Recording, kept: Collection[Buffer]) -> tuple[ExecItem, ...]:
    """The launches of a capture on packed temporaries; `kept` buffers are not moved."""
    lives = lifetimes(recording, set(kept))
    by_device: dict[str, list[Buffer]] = defaultdict(list)
    for buffer in lives:
        by_device[buffer.device].append(buffer)
    exchange: dict[Buffer, Buffer] = {}
    for device, found in by_device.items():
        plan = pack([lives[buffer] for buffer in found])
        block = Buffer(device, plan.size_bytes, dtypes.uint8)
        for buffer, offset in zip(found, plan.offsets, strict=True):
            exchange[buffer] = block.view(buffer.size, buffer.dtype, offset)
    return tuple(
        [
            replace(item, bufs=tuple([exchange.get(b, b) for b in item.bufs]))
            for item in recording.items
        ]
    )


def lifetimes(recording: Recording, kept: set[Buffer]) -> dict[Buffer, Life]:
    """The live range of each temporary: first and last launch that uses it. Images are left out."""
    forgotten = {buffer for node, buffer in recording.persistent if node() is None}
    temporary = (recording.temporary | forgotten) - kept
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, item in enumerate(recording.items):
        for slot, buffer in enumerate(item.bufs):
            if buffer.base in forgotten:
                temporary.discard(buffer.base)  # a view of it is read too
            if buffer not in first and slot not in item.written:
                temporary.discard(buffer)
            first.setdefault(buffer, number)
            last[buffer] = number
    alone = temporary - {b for b in temporary if b.image is not None}
    return {b: Life(b.nbytes, first[b], last[b]) for b in first if b in alone}
