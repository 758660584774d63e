"""A captured step: the recorded launches of one call, replayable on other inputs.

Floor 4. The frontend maps tensors and arguments to buffers (`tensor/captured.py`); here a step is a
list of launches over buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tinycore._locks import lock as new_lock
from tinycore._locks import replaced
from tinycore.config import in_force
from tinycore.device.buffer import Buffer
from tinycore.device.hooks import hooks
from tinycore.engine.counters import trace as trace_run
from tinycore.engine.device_graph import Part, Single, graph_parts
from tinycore.engine.hoisting import hoist_invariants
from tinycore.engine.memory_plan import plan_memory
from tinycore.engine.run import ExecItem, Recording, Repeated, recordings
from tinycore.trace import Trace

trace = Trace("jit")


@contextmanager
def capture(refuses: bool = True) -> Iterator[Recording]:
    """Record every launch of this thread inside the block, in order.

    Reading values back raises JitError, unless `refuses` is false.
    """
    recording = Recording(refuses)
    with replaced(recordings, "open", [*recordings.open, recording]):
        yield recording


@dataclass(eq=False)
class CapturedStep:
    """Launches, the buffers that were inputs, and the buffers that are results.

    `made` are the buffers allocated during the capture, which hold no earlier state. A pickled step
    includes the content of all other buffers, such as weights.
    """

    items: tuple[ExecItem, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    made: frozenset[Buffer] = frozenset()
    repeated: tuple[Repeated, ...] = ()
    """Host actions before each replay, such as drawing random numbers, in this order."""
    graphs: list[Part] | None = None
    """The launches as they are submitted, from the first replay on."""
    kept_results: list[Any] = field(default_factory=list)
    """Results of earlier replays whose memory may be used again (`tensor/recorded_call.py`)."""
    lock: threading.Lock = field(default_factory=new_lock)

    @classmethod
    def of(
        cls,
        recording: Recording,
        inputs: tuple[Buffer, ...],
        outputs: tuple[Buffer, ...],
        prune: bool = False,
    ) -> CapturedStep:
        """The step of a recording. It does not retain the memory of inputs and results.

        With `prune`, replay-invariant launches run now, and are left out of replays.
        """
        if prune:
            recording = hoist_invariants(recording, (*inputs, *outputs))
        launches = plan_memory(recording, {*inputs, *outputs})
        before = {b for item in recording.items for b in item.bufs}
        now = {b for item in launches for b in item.bufs}
        made = (recording.made & now) - set(inputs) | (now - before)
        changing = {b: Buffer.like(b) for b in (*inputs, *(b for b in outputs if b in made))}
        items = [
            replace(item, bufs=tuple([changing.get(b, b) for b in item.bufs])) for item in launches
        ]
        return cls(
            tuple(items),
            tuple([changing[b] for b in inputs]),
            tuple([changing.get(b, b) for b in outputs]),
            frozenset([changing.get(b, b) for b in made]),
            tuple([(b if b in now else None, action) for b, action in recording.repeated]),
        )

    @cached_property
    def fresh_outputs(self) -> tuple[Buffer, ...]:
        """Results without state: each replay gets new memory for them."""
        return tuple(b for b in dict.fromkeys(self.outputs) if b in self.made)

    @cached_property
    def used(self) -> frozenset[Buffer]:
        """Buffers that every replay uses: state, constants, and intermediates."""
        found = {b for item in self.items for b in item.bufs}
        return frozenset(found - set(self.inputs) - set(self.fresh_outputs))

    def free_intermediates(self) -> None:
        """Free the memory of intermediates and of earlier results, until the next replay."""
        with self.lock:
            self.graphs = None
            self.kept_results.clear()
            between = self.made - set(self.fresh_outputs)
            for buffer in between | {b.base for b in between if b.base is not None}:
                buffer.deallocate()

    def replay(
        self,
        inputs: Iterable[Buffer],
        numbers: Mapping[str, int],
        again: Mapping[Buffer, Buffer] | None = None,
    ) -> tuple[Buffer, ...]:
        """Run the step on other inputs; the results, in memory that no later replay touches.

        `again` gives memory of earlier results that may be overwritten.
        `JIT=2`, DEBUG=2 and hooks that are called for each kernel ask for one launch at a time.
        """
        exchange = dict(zip(self.inputs, inputs, strict=True))
        if again:
            exchange |= again
        for made in self.fresh_outputs:
            if made not in exchange:
                exchange[made] = Buffer.allocated_like(made)
        values = in_force()  # once for all that is asked below
        is_shown = values["DEBUG"] or values["TRACE"]
        if is_shown and trace.is_on(values):
            held = "".join(f", {name}={value}" for name, value in numbers.items())
            trace(f"replaying {len(self.items)} launches{held}")
        is_observed = (
            values["JIT"] >= 2
            or (is_shown and trace_run.is_on(values))
            or hooks.active("tinycore_kernel_ran")
        )
        with self.lock:
            if self.repeated:
                self.repeat()
            if is_observed:
                for item in self.items:
                    Single(item).run(exchange, numbers)
            else:
                parts = self.graphs
                if parts is None:
                    parts = self.graphs = graph_parts(self.items, numbers, exchange)
                for part in parts:
                    part.run(exchange, numbers)
        return tuple(map(exchange.get, self.outputs, self.outputs))

    def repeat(self) -> None:
        """Do the host's part of a replay."""
        for buffer, action in self.repeated:
            content = action()
            if buffer is not None:
                buffer.copyin(content.data.cast("B"))

    # --- pickle

    def __reduce__(self) -> tuple[object, ...]:
        order = dict.fromkeys(b for item in self.items for b in item.bufs)
        order |= dict.fromkeys((*self.inputs, *self.outputs, *self.made))
        for buffer in list(order):
            if buffer.base is not None:
                order[buffer.base] = None
        number = {b: n for n, b in enumerate(order)}
        empty = {*self.inputs, *self.made}
        empty.update(b for b, _ in self.repeated if b is not None)
        memory = [saved(b, number, b not in empty) for b in order]
        items = [(i.runner, tuple(number[b] for b in i.bufs), i.metadata) for i in self.items]
        places = [[number[b] for b in group] for group in (self.inputs, self.outputs, self.made)]
        repeated = [(None if b is None else number[b], action) for b, action in self.repeated]
        return loaded, (memory, items, *places, repeated)


def saved(buffer: Buffer, number: Mapping[Buffer, int], filled: bool) -> tuple[Any, ...]:
    """A buffer for pickle: its kind, base, and content."""
    content = None
    if filled and buffer.base is None and buffer.is_allocated:
        content = bytes(buffer.copyout(bytearray(buffer.nbytes)))
    base = None if buffer.base is None else (number[buffer.base], buffer.offset)
    return buffer.device, buffer.size, buffer.dtype, buffer.image, base, content


def loaded(
    memory: list[tuple[Any, ...]],
    items: list[tuple[Any, ...]],
    inputs: list[int],
    outputs: list[int],
    made: list[int],
    repeated: list[tuple[int | None, Any]],
) -> CapturedStep:
    """A step from its pickled form, its programs compiled for the devices of this process."""
    bufs: dict[int, Buffer] = {}

    def buffer(number: int) -> Buffer:
        if number not in bufs:
            device, size, dtype, image, base, content = memory[number]
            if base is not None:
                bufs[number] = buffer(base[0]).view(size, dtype, base[1])
            else:
                bufs[number] = Buffer(device, size, dtype, image=image)
            if content is not None:
                bufs[number].copyin(content)
        return bufs[number]

    launches = [
        ExecItem(runner, tuple(map(buffer, places)), metadata) for runner, places, metadata in items
    ]
    groups = [tuple(map(buffer, group)) for group in (inputs, outputs, made)]
    actions = [(None if b is None else buffer(b), action) for b, action in repeated]
    return CapturedStep(tuple(launches), groups[0], groups[1], frozenset(groups[2]), tuple(actions))
