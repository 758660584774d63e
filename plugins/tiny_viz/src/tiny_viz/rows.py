"""Rows of a profile, made of what a `Recorder` has noted, in the thread that writes the file.

The program that is recorded notes numbers and tuples alone. Numbers of memory, texts of graphs and
JSON are made here, many events at a time.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Final, NamedTuple

from tiny_viz.store import Batch
from tiny_viz.summary import printable
from tinycore.uop.text import to_text

__all__ = ["Event", "Rows"]

MOST_POINTS: Final = 8192
"""Points of the bytes in use over time, for each device."""

HEAD: Final = 4
"""Numbers of a launch before those of its memory."""
NUMBER: Final = 4
"""Bytes of the number of memory in a file."""

Event = tuple[Any, ...]


class Noted(NamedTuple):
    """Events of a part of the time, each kind in the order in which they came."""

    deaths: MutableSequence[float]
    """number, time; one after the other."""
    launches: MutableSequence[float]
    """kernel, seconds, end, thread, numbers of the memory in its slots; one after the other."""
    births: MutableSequence[float]
    """number, that of the base or 0, offset, kind, time, kernel, slot; one after the other."""
    kinds: MutableSequence[Event]
    """(number, device, dtype, bytes) of memory."""
    kernels: MutableSequence[Event]
    """(number, runner, metadata, slots)."""
    compilations: MutableSequence[Event]
    """(runner, source, seconds, end, thread)."""
    graphs: MutableSequence[Event]
    """(number, time, graph, policy, varying, origins, steps)."""
    failures: MutableSequence[Event]
    """(time, kernel, device, metadata, error, message, traceback)."""

    @classmethod
    def none(cls) -> Noted:
        """No events: numbers of what comes often are in arrays, 8 bytes each."""
        return cls(array("d"), array("d"), array("d"), *[deque() for _ in cls._fields[3:]])


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
        self.used = used = self.used + size
        if (part := at // self.width) < self.last:
            part = self.last
        self.last, peaks = part, self.peaks
        if (known := peaks.get(part)) is None or known[0] <= used:
            peaks[part] = used, at
            if known is None and len(peaks) > MOST_POINTS:
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
        self.written: dict[float, frozenset[int]] = {}
        """By kernel, the slots that it writes."""
        self.slots: dict[float, int] = {}
        """By kernel, the number of its slots."""
        self.kinds: dict[float, tuple[str, str, int]] = {}
        """Device, dtype and bytes of memory, by the number of the kind."""
        self.living: dict[float, Event] = {}
        """Rows of allocations in use, without the time of their end."""
        self.usage: dict[str, Usage] = defaultdict(Usage)
        """By device."""
        self.files: set[str] = set()

    def made(self, noted: Noted) -> Iterator[Batch]:
        """The rows of some events."""
        yield "compilations", [self.compilation(*event) for event in noted.compilations]
        yield "kernels", [self.kernel(*event) for event in noted.kernels]
        yield "graphs", [self.graph(*event) for event in noted.graphs]
        yield "failures", [self.failure(*event) for event in noted.failures]
        self.kinds.update((number, tuple(kind)) for number, *kind in noted.kinds)
        yield "launches", self.launched(noted.launches)
        born, views = self.births(noted.births)
        yield "views", views
        died = self.deaths(noted.deaths)
        yield "buffers", died
        self.use(born, died)
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

    def launched(self, launches: Sequence[float]) -> list[Event]:
        """Rows of launches."""
        rows = []
        number, place, began, slots = self.launches, 0, self.began, self.slots
        whole = array("I", map(int, launches)).tobytes()
        while place < len(launches):
            number += 1
            kernel, seconds, end, thread = launches[place : place + HEAD]
            first, place = place + HEAD, place + HEAD + slots[kernel]
            duration = int(seconds * 1e9)
            start = int((end - began) * 1e9) - duration
            memory = whole[first * NUMBER : place * NUMBER]
            rows.append((number, start, duration, kernel, thread, memory))
        self.launches = number
        return rows

    def births(self, births: Sequence[float]) -> tuple[list[Event], list[Event]]:
        """Rows of allocations that were not seen before, and of views."""
        born, views, values = [], [], iter(births)
        for number, base, offset, kind, time, kernel, slot in zip(*[values] * 7, strict=True):
            device, dtype, size = self.kinds[kind]
            if base:
                views.append((number, base, offset, size))
            else:
                start, written = int((time - self.began) * 1e9), slot in self.written[kernel]
                row = number, device, dtype, size, max(start, 0), None, kernel, written
                self.living[number] = row
                born.append(row)
        return born, views

    def deaths(self, deaths: Sequence[float]) -> list[Event]:
        """Rows of allocations that have died."""
        died, values = [], iter(deaths)
        for number, time in zip(*[values] * 2, strict=True):
            if (row := self.living.pop(number, None)) is not None:  # views have none
                died.append((*row[:5], int((time - self.began) * 1e9), *row[6:]))
        return died

    def kernel(self, number: int, runner: Any, metadata: Sequence[str], slots: int) -> Event:
        """A kernel, or a copy, which has no graph."""
        self.written[number], self.slots[number] = runner.written, slots
        ast = getattr(runner, "ast", None)
        graph = 0 if ast is None else self.text(to_text(ast))
        queue = "copies" if ast is None else "kernels"
        work = runner.estimate
        about = (number, runner.name, runner.device, queue, work.ops, work.bytes)
        written = json.dumps(sorted(runner.written))
        return *about, *self.told(metadata), graph, self.sources.get(id(runner), 0), written

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
