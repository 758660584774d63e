"""Rows of a profile, made of what a `Recorder` has noted, in the thread that writes the file.

The program that is recorded notes numbers and tuples alone. Numbers of memory, texts of graphs and
JSON are made here, many events at a time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Final, NamedTuple

from tiny_viz.store import Batch
from tiny_viz.summary import printable
from tinycore.uop.text import to_text

__all__ = ["Event", "Rows"]

MOST_BINDINGS: Final = 10_000
"""Places of memory that are known to be those of an earlier launch."""

MOST_POINTS: Final = 8192
"""Points of the bytes in use over time, for each device."""

Event = tuple[Any, ...]


class Noted(NamedTuple):
    """Events of a part of the time, each kind in the order in which they came."""

    deaths: MutableSequence[Event]
    """(number, time) of memory."""
    launches: MutableSequence[Event]
    """(kernel, seconds, end, thread, numbers of memory)."""
    births: MutableSequence[Event]
    """(number, number of the base or 0, offset, device, dtype, bytes, time, kernel, slot)."""
    kernels: MutableSequence[Event]
    """(number, runner, metadata)."""
    compilations: MutableSequence[Event]
    """(runner, source, seconds, end, thread)."""
    graphs: MutableSequence[Event]
    """(number, time, graph, policy, varying, origins, steps)."""
    failures: MutableSequence[Event]
    """(time, kernel, device, metadata, error, message, traceback)."""


class Usage:
    """The bytes in use on a device over time: the most in each of a bounded number of equal times.

    Times are exact while there are few.
    """

    def __init__(self) -> None:
        self.used = 0
        self.width = 1
        self.peaks: dict[int, tuple[int, int]] = {}
        """By the number of the part of the time, the most bytes in it, and when they were."""
        self.last = 0

    def change(self, at: int, size: int) -> None:
        """Some bytes more, or fewer; changes come in order of time, but for a few."""
        self.used += size
        self.last = part = max(at // self.width, self.last)
        self.peaks[part] = max(self.peaks.get(part, (0, 0)), (self.used, at))
        if len(self.peaks) > MOST_POINTS:
            self.coarsen()

    def coarsen(self) -> None:
        """Take twice the time for a part, until half of the parts are left."""
        while len(self.peaks) > MOST_POINTS // 2:
            self.width, self.last, before = 2 * self.width, self.last // 2, self.peaks
            self.peaks = {}
            for part, peak in before.items():
                self.peaks[part // 2] = max(self.peaks.get(part // 2, peak), peak)


class Rows:
    """Makes rows. `began` is the time (`perf_counter`) at which the recording began."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.launches = 0
        """The number of the last launch."""
        self.texts: dict[str, int] = {}
        self.new_texts: list[Event] = []
        self.sources: dict[int, int] = {}
        """By the id of a program, the number of its source."""
        self.written: dict[int, frozenset[int]] = {}
        """By kernel, the slots that it writes."""
        self.places: dict[int, str] = {}
        """By the number of memory in use, its base, offset and bytes."""
        self.living: dict[int, Event] = {}
        """Rows of allocations in use, without the time of their end."""
        self.usage: dict[str, Usage] = defaultdict(Usage)
        """By device."""
        self.bindings: dict[tuple[int, ...], int] = {}
        """Numbers of bindings, by kernel and memory."""
        self.last_binding = 0
        self.files: set[str] = set()

    def made(self, noted: Noted) -> Iterator[Batch]:
        """The rows of some events."""
        yield "compilations", [self.compilation(*event) for event in noted.compilations]
        yield "kernels", [self.kernel(*event) for event in noted.kernels]
        yield "graphs", [self.graph(*event) for event in noted.graphs]
        yield "failures", [self.failure(*event) for event in noted.failures]
        born = [self.birth(*event) for event in noted.births]
        yield from self.launched(noted.launches)
        died = [row for event in noted.deaths if (row := self.death(*event))]
        yield "buffers", died
        self.use([*filter(None, born)], died)
        yield "texts", self.new_texts
        self.new_texts = []

    def use(self, born: Sequence[Event], died: Sequence[Event]) -> None:
        """Add allocations and their ends to the bytes in use."""
        changes = [(row[4], row[1], row[3]) for row in born]
        changes += [(row[5], row[1], -row[3]) for row in died]
        for at, device, size in sorted(changes):
            self.usage[device].change(at, size)

    def left(self) -> Iterator[Batch]:
        """The rows of what is in use at the end, and of the bytes over time."""
        yield "buffers", [*self.living.values()]
        yield (
            "usage",
            [
                (device, at, used)
                for device, usage in self.usage.items()
                for used, at in usage.peaks.values()
            ],
        )

    def nanoseconds(self, time: float) -> int:
        """Since the recording began."""
        return int((time - self.began) * 1e9)

    def launched(self, launches: Sequence[Event]) -> Iterator[Batch]:
        """Launches, and bindings that were not seen before."""
        rows, new = [], []
        number, began, bindings = self.launches, self.began, self.bindings
        for kernel, seconds, end, thread, memory in launches:
            number += 1
            key = (kernel, *memory)
            if (binding := bindings.get(key)) is None:
                if len(bindings) >= MOST_BINDINGS:
                    bindings.clear()
                self.last_binding = binding = bindings[key] = self.last_binding + 1
                new.append((binding, self.binding(kernel, memory)))
            duration = int(seconds * 1e9)
            start = int((end - began) * 1e9) - duration
            rows.append((number, start, duration, kernel, thread, binding))
        self.launches = number
        yield "bindings", new
        yield "launches", rows

    def binding(self, kernel: int, memory: Sequence[int]) -> str:
        """The memory of a launch as JSON."""
        places, written = self.places, self.written[kernel]
        slots = [f"[{places[n]},{int(slot in written)}]" for slot, n in enumerate(memory)]
        return f"[{','.join(slots)}]"

    def birth(
        self,
        number: int,
        base: int,
        offset: int,
        device: str,
        dtype: str,
        size: int,
        time: float,
        kernel: int,
        slot: int,
    ) -> Event | None:
        """The row of memory that was not seen before, None for a view, which has a base."""
        self.places[number] = f"{base or number},{offset},{size}"
        if not base:
            born = max(self.nanoseconds(time), 0)
            written = int(slot in self.written[kernel])
            self.living[number] = number, device, dtype, size, born, None, kernel, written
        return None if base else self.living[number]

    def death(self, number: int, time: float) -> Event | None:
        """The row of memory that is not in use any more, None for a view."""
        del self.places[number]
        row = self.living.pop(number, None)
        return row and (*row[:5], self.nanoseconds(time), *row[6:])

    def kernel(self, number: int, runner: Any, metadata: Sequence[str]) -> Event:
        """A kernel, or a copy, which has no graph."""
        self.written[number] = runner.written
        ast = getattr(runner, "ast", None)
        graph = 0 if ast is None else self.text(to_text(ast))
        queue = "copies" if ast is None else "kernels"
        work = runner.estimate
        about = (number, runner.name, runner.device, queue, work.ops, work.bytes)
        return *about, *self.told(metadata), graph, self.sources.get(id(runner), 0)

    def compilation(
        self, runner: Any, source: str, seconds: float, end: float, thread: int
    ) -> Event:
        """A program that was made, or loaded from the disk cache, which tells no source."""
        duration = int(seconds * 1e9)
        graph, text = self.text(to_text(runner.ast)), self.text(source)
        if text:
            self.sources[id(runner)] = text
        start = self.nanoseconds(end) - duration
        row = (None, start, duration, runner.name, runner.device, not source)
        return *row, thread, graph, text

    def graph(
        self,
        number: int,
        time: float,
        sink: Any,
        policy: str,
        varying: Sequence[int] | None,
        origins: Mapping[Any, str],
        steps: Sequence[Any],
    ) -> Event:
        """A graph of tensors that was scheduled, its nodes with their origins."""
        for origin in origins.values():
            self.files.add(file_of(origin))
        kernels = [(self.text(to_text(step.ast)), *self.told(step.metadata)) for step in steps]
        text = self.text(to_text(sink, {n: printable(o) for n, o in origins.items()}))
        row = (number, self.nanoseconds(time), text, policy, json.dumps(varying))
        return *row, json.dumps(kernels)

    def failure(
        self, time: float, kernel: str, device: str, metadata: Sequence[str], *error: str
    ) -> Event:
        """An error."""
        return None, self.nanoseconds(time), kernel, device, *self.told(metadata), *error

    def text(self, content: str) -> int:
        """The number of a long text, written once; 0 for none."""
        if not content:
            return 0
        found = self.texts.get(content)
        if found is None:
            found = self.texts[content] = len(self.texts) + 1
            self.new_texts.append((found, content))
        return found

    def told(self, metadata: Sequence[str]) -> tuple[str, str]:
        """The operations of a kernel, and where a user asked for them, both as JSON."""
        operations = [word for word in metadata if " " not in word]
        origins = []
        for method, _, place in (word.partition(" ") for word in metadata):
            if place:
                file, _, line = place.rpartition(":")
                origins.append((method, file, int(line)))
                self.files.add(file)
        return json.dumps(operations), json.dumps(origins)


def file_of(origin: str) -> str:
    """The file of an origin in text, `add /home/me/train.py:31`."""
    return origin.partition(" ")[2].rpartition(":")[0]
