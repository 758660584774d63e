"""Rows of a profile, made of what a `Recorder` has noted, in the thread that writes the file.

The program that is recorded notes numbers and tuples alone. Numbers of memory, texts of graphs and
JSON are made here, many events at a time.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from tiny_viz.store import Batch
from tiny_viz.summary import printable
from tinycore._stamp import DECISIVE_SETTINGS
from tinycore.uop.text import to_text

__all__ = ["Event", "Rows"]

MOST_POINTS: Final = 8192
"""Points of the bytes in use over time, for each device."""

HEAD: Final = np.dtype("u4, u4, f8, f8")
"""Layout of what is noted of a launch, before the numbers of its memory of 4 bytes each: kernel,
thread, seconds, end."""
BORN: Final = np.dtype("u4, u4, u8, u4, u4, u4, f8")
"""Layout of memory that was seen first: its number, that of its base or 0, offset, kind, kernel,
slot, time."""
DIED: Final = np.dtype("u4, f8")
"""Layout of the end of memory: its number, time."""
REPLAYED: Final = np.dtype("u4, u4, u1, f8, f8")
"""Layout of a replay: step, thread, whether it was observed, begin, seconds."""
BIRTH: Final = Struct("=IIQIIId").pack
DEATH: Final = Struct("=Id").pack
REPLAY: Final = Struct("=IIBdd").pack
LONGEST: Final = 1e9
"""Seconds that a recording may take: more would not go into the integers of a database."""

Event = tuple[Any, ...]


@cache
def packing(slots: int) -> Callable[..., bytes]:
    """Packing of a launch with so many slots, as `HEAD` says."""
    return Struct(f"=IIdd{slots}I").pack


class Noted(NamedTuple):
    """Events of a part of the time, each kind in the order in which they came."""

    deaths: MutableSequence[bytes]
    """As in `DIED`."""
    launches: MutableSequence[bytes]
    """As in `HEAD`, with the numbers of the memory in the slots."""
    births: MutableSequence[bytes]
    """As in `BORN`."""
    replays: MutableSequence[bytes]
    """As in `REPLAYED`."""
    kinds: MutableSequence[Event]
    """(number, device, dtype, bytes) of memory."""
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
        """No events: what comes often are bytes, of which no tuple, or number, is an object."""
        return cls([], [], [], [], *[deque() for _ in cls._fields[4:]])


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
        self.kinds: dict[int, tuple[str, str, int]] = {}
        """Device, dtype and bytes of memory, by the number of the kind."""
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
        self.kinds.update((number, tuple(kind)) for number, *kind in noted.kinds)
        yield "launches", self.launched(noted.launches)
        yield "replays", self.replayed(noted.replays)
        ends = self.ends(noted.deaths)
        born, views = self.births(noted.births)
        yield "views", views
        died = [(*row[:5], ends[row[0]], *row[6:]) for row in self.ended(ends)]
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

    def launched(self, launches: Sequence[bytes]) -> list[Event]:
        """Rows of launches."""
        size = HEAD.itemsize
        heads = np.frombuffer(b"".join([noted[:size] for noted in launches]), HEAD)
        kernel, thread, seconds, end = columns(heads)
        finish, duration = self.times(end, seconds)
        memory = [noted[size:] for noted in launches]
        numbers = range(self.launches + 1, self.launches + 1 + len(launches))
        self.launches += len(launches)
        return rows(numbers, finish - duration, duration, kernel, thread, memory)

    def times(self, ends: Any, seconds: Any) -> tuple[Any, Any]:
        """Ends and durations in nanoseconds; a clock may tell what is no duration.

        Nothing takes longer than since the recording began, or less than no time.
        """
        since = np.clip(np.nan_to_num(ends - self.began), 0.0, LONGEST)
        took = np.clip(np.nan_to_num(seconds), 0.0, since)
        return (since * 1e9).astype(np.int64), (took * 1e9).astype(np.int64)

    def replayed(self, replays: Sequence[bytes]) -> list[Event]:
        """Rows of replays."""
        step, thread, observed, began, seconds = columns(np.frombuffer(b"".join(replays), REPLAYED))
        finish, duration = self.times(began + seconds, seconds)
        numbers = range(self.replays + 1, self.replays + 1 + len(replays))
        self.replays += len(replays)
        return rows(numbers, finish - duration, duration, step, thread, observed)

    def births(self, births: Sequence[bytes]) -> tuple[list[Event], list[Event]]:
        """Rows of allocations that were not seen before, and of views."""
        born, views, written = [], [], self.written
        *numbers, times = columns(np.frombuffer(b"".join(births), BORN))
        start, _ = self.times(times, 0.0)
        for number, base, offset, kind, kernel, slot, at in rows(*numbers, start):
            device, dtype, size = self.kinds[kind]
            if base:
                views.append((number, base, offset, size))
            else:
                row = number, device, dtype, size, at, None, kernel, slot in written[kernel]
                self.living[number] = row
                born.append(row)
        return born, views

    def ends(self, deaths: Sequence[bytes]) -> dict[int, int]:
        """Times at which memory has died, by its number."""
        number, times = columns(np.frombuffer(b"".join(deaths), DIED))
        at, _ = self.times(times, 0.0)
        return dict(rows(number, at))

    def ended(self, numbers: Iterable[int]) -> list[Event]:
        """Rows of the allocations among memory that has died: views have none."""
        return [row for n in numbers if (row := self.living.pop(n, None)) is not None]

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


def file_of(origin: str) -> str:
    """The file of an origin in text, `add /home/me/train.py:31`."""
    return origin.partition(" ")[2].rpartition(":")[0]


def columns(table: Any) -> list[Any]:
    """The columns of an array of rows."""
    return [table[name] for name in table.dtype.names]


def rows(*given: Any) -> list[Event]:
    """Rows of columns, each an array or a sequence."""
    plain = [each.tolist() if isinstance(each, np.ndarray) else each for each in given]
    return [*zip(*plain, strict=True)]


def settings_text(values: Sequence[Any]) -> str:
    """Settings of `recorder.settings_now` as lines NAME=value, for `passes.made_apart`."""
    *own, processors, are_kept = values
    lines = [f"{name}={value}" for name, value in zip(DECISIVE_SETTINGS, own, strict=True)]
    return "\n".join([*lines, f"PROCESSORS={processors}", f"TUNED={int(are_kept)}"])
