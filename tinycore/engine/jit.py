"""A captured step: the launches of one call of a function, ready to run again on other inputs.

Floor 4. What tensors are and where they stand in arguments is the frontend's business
(`tensor/jit.py`); here a step is a list of launches over buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from tinycore.config import settings
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.engine.counters import trace as trace_run
from tinycore.engine.graph import Held, Single, parts_of
from tinycore.engine.realize import refreshed
from tinycore.engine.run import ExecItem, Recording, recordings
from tinycore.trace import Trace

trace = Trace("jit")


@contextmanager
def capture() -> Iterator[Recording]:
    """Note every launch made inside, in order."""
    recording = Recording()
    recordings.open.append(recording)
    try:
        yield recording
    finally:
        recordings.open.pop()


@dataclass(frozen=True)
class CapturedStep:
    """Launches, the buffers that were inputs, and the buffers that are results.

    `made` are the buffers that got their memory during the capture: they hold no state from before.
    """

    items: tuple[ExecItem, ...]
    values: Mapping[str, int]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    made: frozenset[Buffer] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @cached_property
    def fresh_outputs(self) -> tuple[Buffer, ...]:
        """Results without state: each replay gets new memory for them."""
        return tuple(b for b in dict.fromkeys(self.outputs) if b in self.made)

    @cached_property
    def refreshed(self) -> tuple[Buffer, ...]:
        """Buffers filled by the host anew for each replay, such as counters of random numbers."""
        used = dict.fromkeys(b for item in self.items for b in item.bufs)
        return tuple(b for b in used if b in refreshed)

    @cached_property
    def graphs(self) -> list[Held | Single]:
        """The launches, as many at once as devices take."""
        return parts_of(
            self.items, self.values, frozenset(self.inputs) | frozenset(self.fresh_outputs)
        )

    @property
    def parts(self) -> Iterable[Held | Single]:
        """What a replay runs: graphs, unless each launch is wanted for itself."""
        alone = settings.JIT >= 2 or trace_run.on or hooks.active("tinycore_kernel_ran")
        return map(Single, self.items) if alone else self.graphs

    def replay(self, inputs: Iterable[Buffer]) -> tuple[Buffer, ...]:
        """Run the step on other inputs; the results, in memory that no later replay touches.

        `JIT=2`, DEBUG=2 and hooks that are called for each kernel ask for one launch at a time.
        """
        exchange = dict(zip(self.inputs, inputs, strict=True))
        exchange |= {b: Buffer(b.device, b.size, b.dtype) for b in self.fresh_outputs}
        for buffer in self.refreshed:
            buffer.copyin(refreshed[buffer]().data.cast("B"))
        if trace.on:
            trace(f"replaying {len(self.items)} launches")
        with self.lock:
            for part in self.parts:
                part.run(exchange, self.values)
        return tuple([exchange.get(b, b) for b in self.outputs])
