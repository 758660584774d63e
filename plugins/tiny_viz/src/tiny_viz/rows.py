"""Rows of a profile, made of what a `Recorder` has noted, in the thread that writes the file.

The program that is recorded notes numbers and tuples alone. Numbers of memory, texts of graphs and
JSON are made here, many events at a time.
"""

from __future__ import annotations

import json
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np

from tiny_viz.store import Batch
from tiny_viz.summary import printable
from tinycore._stamp import DECISIVE_SETTINGS
from tinycore.device.buffer import Buffer, Lease
from tinycore.uop.text import to_text

__all__ = ["Event", "Rows"]

MOST_POINTS: Final = 8192
"""Points of the bytes in use over time, for each device."""

DEATH: Final = 2
"""Length of what is noted of the end of memory. That of a launch is longer."""
LONGEST: Final = 1e9
"""Seconds that a recording may take: more would not go into the integers of a database."""

Event = tuple[Any, ...]


class Shown(weakref.ref[Buffer]):
    """The stand-in for the lease of a buffer without one, such as a view."""

    __slots__ = ("about", "base", "identity")

    about: tuple[str, str, int, int]
    """Device, dtype, bytes, and offset in the base."""
    base: Any
    """The lease of its base, or what stands for that; None of memory that others own."""
    identity: int
    """The id of the buffer."""


class Noted(NamedTuple):
    """Events of a part of the time, each kind in the order in which they came."""

    events: MutableSequence[Event]
    """((kernel, thread), seconds, end, leases of its memory) of a launch, and (lease, time) of the
    end of memory. A view has a `Shown` for a lease."""
    replays: MutableSequence[Event]
    """(step, thread, whether they were observed, seconds and begin of each)."""
    kernels: MutableSequence[Event]
    """(number, runner, metadata, settings)."""
    compilations: MutableSequence[Event]
    """(runner, source, seconds, end, thread, settings)."""
    graphs: MutableSequence[Event]
    """(number, time, graph, policy, varying, origins, steps, settings)."""
    failures: MutableSequence[Event]
    """(time, kernel, device, metadata, error, message, traceback)."""

    @classmethod
    def none(cls) -> Noted:
        """No events."""
        return cls([], *[deque() for _ in cls._fields[1:]])


class Usage:
    """The bytes in use on a device over time: the most in each of a bounded number of equal times.

    Times are exact while there are few.
    """

    def __init__(self) -> None:
        self.used = 0
        self.width = 1
        self.at = self.most = np.zeros(0, np.int64)
        """Times, in order, and the most bytes in the part of each."""

    def change(self, at: Sequence[int], sizes: Sequence[int]) -> None:
        """Some bytes more, or fewer; changes come in order of time, but for a few."""
        times, changes = np.asarray(at, np.int64), np.asarray(sizes, np.int64)
        order = np.argsort(times, kind="stable")
        used = self.used + np.cumsum(changes[order])
        self.used = int(used[-1])
        joined = np.concatenate([self.at, times[order]])
        self.at = np.maximum.accumulate(joined)  # those that came late count as the last before
        self.most = np.concatenate([self.most, used])
        self.thin()

    def thin(self) -> None:
        """Keep the most of each part; where these are too many, take longer parts."""
        while np.count_nonzero(np.diff(parts := self.at // self.width)) >= MOST_POINTS:
            self.width *= 2
        order = np.lexsort((np.arange(len(parts)), self.most, parts))
        kept = order[np.flatnonzero(np.diff(parts, append=parts[-1] + 1))]
        self.at, self.most = self.at[kept], self.most[kept]


class Rows:
    """Makes rows. `began` is the time (`perf_counter`) at which the recording began."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.launches = self.replays = 0
        """The numbers of the last launch, and of the last replay."""
        self.texts: dict[str, int] = {}
        self.new_texts: list[Event] = []
        self.sources: dict[int, int] = {}
        """By the id of a program, the number of its source."""
        self.settings: dict[int, int] = {}
        """By the id of a program, the number of the settings under which it was compiled."""
        self.written: dict[int, frozenset[int]] = {}
        """By kernel, the slots that it writes."""
        self.memory: dict[int, int] = {}
        """Numbers of memory in use, by the ids of its leases."""
        self.next_memory = count(1)
        self.living: dict[int, Event] = {}
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
        launches, births, deaths = self.sorted_out(noted.events)
        yield "launches", self.launched(*launches)
        yield "replays", self.replayed(noted.replays)
        born, views = self.births(births)
        yield "views", views
        died = self.ended(deaths)
        yield "buffers", died
        self.use(born, died)
        yield "texts", self.new_texts
        self.new_texts = []

    def use(self, born: Sequence[Event], died: Sequence[Event]) -> None:
        """Add allocations and their ends to the bytes in use."""
        changes: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for rows, column, sign in ((died, 5, -1), (born, 4, 1)):
            for row in rows:
                at, sizes = changes[row[1]]
                at.append(row[column])
                sizes.append(sign * row[3])
        for device, (at, sizes) in changes.items():
            self.usage[device].change(at, sizes)

    def left(self) -> Iterator[Batch]:
        """The rows of what is in use at the end, and of the bytes over time."""
        yield "buffers", [*self.living.values()]
        yield (
            "usage",
            [
                (device, at, used)
                for device, usage in self.usage.items()
                for at, used in zip(usage.at.tolist(), usage.most.tolist(), strict=True)
            ],
        )

    def nanoseconds(self, time: float) -> int:
        """Since the recording began."""
        return int((time - self.began) * 1e9)

    def sorted_out(
        self, events: Sequence[Event]
    ) -> tuple[tuple[list[Event], list[bytes]], list[Event], list[Event]]:
        """Launches and their memory, births, and deaths, with numbers instead of leases."""
        heads, memory, births, deaths = [], [], list[Event](), []
        known = self.memory
        for event in events:
            if len(event) == DEATH:
                lease, time = event
                if number := known.pop(id(lease), 0):
                    deaths.append((number, time))
                continue
            head, seconds, end, leases = event
            for slot, lease in enumerate(leases):
                if id(lease) not in known:
                    births += self.born(lease, head[0], slot, end - (seconds or 0.0))
            heads.append((*head, seconds, end))
            memory.append(array("I", [known[id(lease)] for lease in leases]).tobytes())
        return (heads, memory), births, deaths

    def born(self, lease: Any, kernel: int, slot: int, time: float) -> Iterator[Event]:
        """Memory that a launch is the first to have, and its base: its number, that of its base or
        0, device, dtype, bytes, offset, and the launch."""
        if id(lease) in self.memory:
            return
        base, about = 0, None
        if isinstance(lease, Shown):
            about = lease.about
            if lease.base is not None:
                yield from self.born(lease.base, kernel, slot, time)
                base = self.memory[id(lease.base)]
        number = self.memory[id(lease)] = next(self.next_memory)
        yield number, base, *(about or about_lease(lease)), kernel, slot, time

    def launched(self, heads: Sequence[Event], memory: Sequence[bytes]) -> list[Event]:
        """Rows of launches."""
        kernel, thread, seconds, end = columns(heads, 4)
        finish, duration = self.times(end, seconds)
        numbers = range(self.launches + 1, self.launches + 1 + len(heads))
        self.launches += len(heads)
        return rows(numbers, finish - duration, duration, kernel, thread, memory)

    def times(self, ends: Any, seconds: Any) -> tuple[Any, Any]:
        """Ends and durations in nanoseconds; a clock may tell what is no duration.

        Nothing takes longer than since the recording began, or less than no time.
        """
        since = np.clip(np.nan_to_num(np.asarray(ends, float) - self.began), 0.0, LONGEST)
        took = np.clip(np.nan_to_num(np.asarray(seconds, float)), 0.0, since)
        return (since * 1e9).astype(np.int64), (took * 1e9).astype(np.int64)

    def replayed(self, replays: Sequence[Event]) -> list[Event]:
        """Rows of replays."""
        all_of = [(*about, *each) for *about, times in replays for each in times]
        step, thread, observed, seconds, began = columns(all_of, 5)
        finish, duration = self.times(np.array(began) + seconds, seconds)
        numbers = range(self.replays + 1, self.replays + 1 + len(all_of))
        self.replays += len(all_of)
        return rows(numbers, finish - duration, duration, step, thread, observed)

    def births(self, births: Sequence[Event]) -> tuple[list[Event], list[Event]]:
        """Rows of allocations that were not seen before, and of views."""
        born, views = [], []
        start, _ = self.times([event[-1] for event in births], 0.0)
        for event, at in zip(births, start.tolist(), strict=True):
            number, base, device, dtype, size, offset, kernel, slot, _ = event
            if base:
                views.append((number, base, offset, size))
            else:
                is_written = slot in self.written[kernel]
                row = number, device, dtype, size, at, None, kernel, is_written
                self.living[number] = row
                born.append(row)
        return born, views

    def ended(self, deaths: Sequence[Event]) -> list[Event]:
        """Rows of the allocations among memory that has died: views have none."""
        numbers, times = columns(deaths, DEATH)
        ends, _ = self.times(times, 0.0)
        found = [(self.living.pop(n, None), end) for n, end in rows(numbers, ends)]
        return [(*row[:5], end, *row[6:]) for row, end in found if row is not None]

    def kernel(
        self, number: int, runner: Any, metadata: Sequence[str], settings: Sequence[Any]
    ) -> Event:
        """A kernel, or a copy, which has no graph.

        Its settings are those under which it was compiled, else those of its first launch.
        """
        self.written[number] = runner.written
        ast = getattr(runner, "ast", None)
        graph = 0 if ast is None else self.text(to_text(ast))
        queue = "copies" if ast is None else "kernels"
        work = runner.estimate
        about = (number, runner.name, runner.device, queue, work.ops, work.bytes)
        written = json.dumps(sorted(runner.written))
        source = self.sources.get(id(runner), 0)
        held = self.settings.get(id(runner)) or self.text(settings_text(settings))
        return *about, *self.told(metadata), graph, source, written, held

    def compilation(
        self,
        runner: Any,
        source: str,
        seconds: float,
        end: float,
        thread: int,
        settings: Sequence[Any],
    ) -> Event:
        """A program that was made, or loaded from the disk cache, which tells no source."""
        duration = int(seconds * 1e9)
        graph, text = self.text(to_text(runner.ast)), self.text(source)
        self.settings[id(runner)] = self.text(settings_text(settings))
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
        settings: Sequence[Any],
    ) -> Event:
        """A graph of tensors that was scheduled, its nodes with their origins."""
        for origin in origins.values():
            self.files.add(file_of(origin))
        kernels = [(self.text(to_text(step.ast)), *self.told(step.metadata)) for step in steps]
        text = self.text(to_text(sink, {n: printable(o) for n, o in origins.items()}))
        row = (number, self.nanoseconds(time), text, policy, json.dumps(varying))
        return *row, json.dumps(kernels), self.text(settings_text(settings))

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


def about_lease(lease: Lease) -> tuple[str, str, int, int]:
    """Device, dtype, bytes and offset of memory."""
    kind, dtype = lease.kind, lease.dtype
    size = kind if isinstance(kind, int) else kind.size * dtype.itemsize
    return lease.pool.device, dtype.name, size, 0


def file_of(origin: str) -> str:
    """The file of an origin in text, `add /home/me/train.py:31`."""
    return origin.partition(" ")[2].rpartition(":")[0]


def columns(table: Sequence[Event], count: int) -> Sequence[Sequence[Any]]:
    """The columns of so many of some rows."""
    return [*zip(*table, strict=True)] or [()] * count


def rows(*given: Any) -> list[Event]:
    """Rows of columns, each an array or a sequence."""
    plain = [each.tolist() if isinstance(each, np.ndarray) else each for each in given]
    return [*zip(*plain, strict=True)]


def settings_text(values: Sequence[Any]) -> str:
    """Settings of `recorder.settings_now` as lines NAME=value, for `passes.made_apart`."""
    *own, processors, are_kept = values
    lines = [f"{name}={value}" for name, value in zip(DECISIVE_SETTINGS, own, strict=True)]
    return "\n".join([*lines, f"PROCESSORS={processors}", f"TUNED={int(are_kept)}"])
