"""The recorder: a launch profiler of the core that notes every event for the file of a profile.

While it is active each launch is waited for, to be timed. What it notes of every launch is a tuple
with the leases of its memory: which memory is new, and all else, is found later, in another thread.
Replays of a captured step, which are one call for all launches, are observed launch by launch as
often as that costs a few percent of their time; of the others the step itself notes begin and end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
from operator import attrgetter, itemgetter
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any, Final

from tiny_viz.rows import Event, Noted, Rows, Shown
from tiny_viz.sampler import Sampler
from tiny_viz.store import Writer
from tinycore import __version__
from tinycore._stamp import decisive_values
from tinycore.config import cpu_count, settings
from tinycore.device.buffer import Lease, at_end
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.plugin import in_child, lock
from tinycore.uop.origins import texts

__all__ = ["Recorder"]

BATCH: Final = 1 << 18
"""Events, or replays, that are handed to the writer at once: some 60 MB.

To make rows takes time that the program would have: of most programs it is done at their end.
"""
COST: Final = 0.02
"""Part of the time of replays that observing some of them may cost."""
UNOBSERVED: Final = 2
"""Replays of a step, after the first, that are timed as they are before it is observed again."""
MOST_UNOBSERVED: Final = 4096
"""Replays of a step that are timed as they are before the cost is reckoned again."""
TIME_OF_REPLAY: Final = itemgetter(0)
SAMPLE: Final = 64
"""Replays of which the fastest is taken."""
LEASE: Final = attrgetter("lease")


class Replayed:
    """Statistics of the replays of one captured step in one thread."""

    def __init__(self, number: int, thread: int) -> None:
        self.number, self.thread = number, thread
        self.step: Any = None
        """A weak reference, which tells when the step is gone."""
        self.times: list[tuple[float, float]] = []
        """Seconds and begin of replays that were not observed, not yet written."""
        self.notes: Iterator[Callable[..., None]] = iter(())
        """Callbacks that note the replays that will not be observed, one each."""
        self.granted = 0
        """Replays that were not observed since the last decision."""
        self.observed = 0.0
        """Seconds that the last observed replay took."""
        self.fastest = math.inf
        self.budget = 0.0
        """Seconds that observing may cost now."""
        self.started = 0.0

    def missing(self) -> float:
        """The replays that must pass until one may be observed again."""
        if not self.observed:
            return 0.0
        self.fastest = min([self.fastest, *map(TIME_OF_REPLAY, self.times[-SAMPLE:])])
        if self.fastest == math.inf:
            return UNOBSERVED - 1
        earned = max(COST * self.fastest, 1e-9)
        self.budget += earned * self.granted
        self.granted = 0
        extra = max(self.observed - self.fastest, 0.0)
        if extra <= self.budget:
            self.budget -= extra
            return 0.0
        return (extra - self.budget) / earned


class Scheduled:
    """A graph that was scheduled, held so that its id stays valid, and how often it has run."""

    __slots__ = ("number", "runs", "schedule")

    def __init__(self, number: int, schedule: Any) -> None:
        self.number = number
        self.schedule = schedule
        self.runs = count()
        """`next` of it counts a run, from any thread."""


class Recorder(LaunchProfiler):
    """Records what a program does from `start` to `stop`, into a file."""

    def __init__(self, path: Path, limits: Callable[[Sequence[str]], Sequence[Any]]) -> None:
        super().__init__()
        self.writer = Writer(path)
        self.limits = limits
        self.began = 0.0
        self.threads: dict[int, int] = {}
        self.kernels: dict[tuple[int, Sequence[str]], int] = {}
        self.heads: dict[tuple[int, Sequence[str], int], tuple[int, int]] = {}
        """The numbers of a kernel and a thread, by the ids of both."""
        self.runners: list[Any] = []
        """Programs that were seen, held so that their ids stay valid."""
        self.graphs: dict[int, Scheduled] = {}
        """By the ids of their schedules."""
        self.steps: dict[tuple[int, int], Replayed] = {}
        """By the ids of captured steps, and of threads."""
        self.views: dict[int, Shown] = {}
        """Buffers without leases, by their ids."""
        self.next_kernel, self.next_step = count(1), count(1)
        self.flushing = lock()
        self.noting = lock()
        """Held while a thread gives a number to a kernel, a graph or itself."""
        self.noted = Noted.none()
        """Events not yet handed to the writer. Several threads append to them: each of these calls
        is one step of Python."""
        self.rows: dict[str, deque[Event]] = {
            name: deque() for name in ("threads", "steps", "samples", "places")
        }
        """Rows, likewise."""
        self.last = 0.0
        """The end of the last launch."""
        self.failures: list[Exception] = []
        self.process = os.getpid()
        self.sampler = Sampler(self)

    # --- from begin to end

    def start(self) -> None:
        """Begin."""
        self.began = perf_counter()
        self.made = Rows(self.began)
        at_end.append(self.forget)
        profilers.append(self)
        self.sampler.start()

    def stop(self) -> bool:
        """End, and write the file. False if there was nothing to write: no kernel ran."""
        end = perf_counter() - self.began
        with contextlib.suppress(ValueError):
            profilers.remove(self)
            at_end.remove(self.forget)
        self.sampler.stop()
        if self.process != os.getpid():  # a fork of the recorded program
            return False
        if not self.has_events:
            return False
        for known in list(self.steps.values()):
            if known.started:
                self.end_observed(known)
        self.flush(waits=True)
        self.writer.put(
            "runs", [(known.number, next(known.runs)) for known in self.graphs.values()]
        )
        self.writer.put_made(self.made.left)
        self.write_meta(int(end * 1e9))
        self.writer.close()
        return True

    @property
    def has_events(self) -> bool:
        """True if there is something to write a file for."""
        return bool(self.last or self.failures)

    @property
    def is_full(self) -> bool:
        """True if so many events were noted that the writer should have them."""
        replays = sum(len(known.times) for known in list(self.steps.values()))
        return len(self.noted.events) + len(self.noted.replays) + replays >= BATCH

    def write_meta(self, end: int) -> None:
        """Write what is known of the program as a whole."""
        about = {
            "program": " ".join(sys.argv) or "python",
            "folder": str(Path.cwd()),
            "process": str(self.process),
            "python": sys.version.split()[0],
            "tinycore": __version__,
            "ended": time.strftime("%Y-%m-%d %H:%M:%S"),
            "nanoseconds": str(end),
        }
        self.writer.put("meta", list(about.items()))
        devices = sorted({runner.device for runner in self.runners})
        self.writer.put("rates", self.limits(devices))
        self.writer.put_made(
            lambda: [
                ("files", [(f, text) for f in sorted(self.made.files) if (text := text_of(f))])
            ]
        )

    def flush(self, waits: bool = False) -> None:
        """Hand what was collected to the writer, unless somebody is at it (then wait, if asked).

        What an event refers to is noted before it: so the events are taken first.
        """
        if not self.flushing.acquire(blocking=waits):  # another thread is at it, or a frame below
            return
        try:
            events = taken(self.noted.events)
            for known in list(self.steps.values()):
                self.noted.replays.append((known.number, known.thread, 0, taken(known.times)))
            noted = Noted(events, *map(taken, self.noted[1:]))
            self.writer.put_made(lambda: self.made.made(noted))
            for table, rows in self.rows.items():
                self.writer.put(table, taken(rows))
        finally:
            self.flushing.release()

    # --- what the core reports

    def record(
        self,
        runner: Any,
        seconds: float | None,
        bufs: Sequence[Any] = (),
        metadata: Sequence[str] = (),
        ended: float | None = None,
    ) -> None:
        """Add a launch."""
        self.last = ended = ended or perf_counter()
        head = self.heads.get((id(runner), metadata, get_ident()))
        if head is None:
            head = self.note_head(runner, metadata)
        leases: Any = (*map(LEASE, bufs),)
        if None in leases:
            leases = tuple([buffer.lease or self.view(buffer) for buffer in bufs])
        self.noted.events.append((head, seconds, ended, leases))

    def unobserved(self, step: Any) -> Callable[..., None] | None:
        """The first replay of a step is observed, and as many later as the cost allows."""
        known = self.steps.get((id(step), get_ident()))
        if known is not None and (note := next(known.notes, None)):
            return note
        return self.observed(step, known)

    def observed(self, step: Any, known: Replayed | None) -> Callable[..., None] | None:
        """Decide on a replay, and on those after it where it is not observed."""
        if known is None:
            known = self.note_replays(step)
        elif known.started:  # the replay before
            self.end_observed(known)
            if known.fastest == math.inf:
                self.note_step(known.number, step)
        if (missing := known.missing()) > 0.0:
            known.granted = int(min(missing, MOST_UNOBSERVED)) + 1
            known.notes = repeat(known.times.append, known.granted - 1)
            return known.times.append
        known.started = perf_counter()
        return None

    def note_replays(self, step: Any) -> Replayed:
        """Begin to note the replays of a step in this thread, as long as there is that step."""
        same = (known.number for (id_, _), known in list(self.steps.items()) if id_ == id(step))
        number = next(same, None) or next(self.next_step)
        key = id(step), get_ident()
        found = self.steps[key] = Replayed(number, self.thread())
        found.step = weakref.ref(step, lambda _: self.forget_step(key))
        return found

    def forget_step(self, key: tuple[int, int]) -> None:
        """Keep what was noted of a step that is gone, of which another may have the id."""
        if (known := self.steps.pop(key, None)) is not None:
            self.noted.replays.append((known.number, known.thread, 0, known.times))

    def scheduled(self, schedule: Any, *about: Any) -> None:
        """Add a run of a graph."""
        next((self.graphs.get(id(schedule)) or self.note_graph(schedule, *about)).runs)

    def note(self, event: str, *facts: Any) -> None:
        """Add a compilation or a failure."""
        if event == "compiled":
            runner, source, seconds = facts
            self.runners.append(runner)
            made = runner, source, seconds, perf_counter(), self.thread(), settings_now()
            self.noted.compilations.append(made)
        elif event == "failed":
            self.failed(*facts)

    def end_observed(self, known: Replayed) -> None:
        """Note the end of an observed replay, with its last launch."""
        began, known.started = known.started, 0.0
        known.observed = max(self.last - began, 0.0)
        observed = known.observed, began
        self.noted.replays.append((known.number, known.thread, 1, [observed]))

    def failed(self, kernel: str, device: str, metadata: Sequence[str], error: Exception) -> None:
        """Add the failure of a kernel, once for each error."""
        if any(error is known for known in self.failures):
            return
        self.failures.append(error)
        shown = "".join(traceback.format_exception(error))
        about = perf_counter(), kernel, device, metadata
        self.noted.failures.append((*about, type(error).__name__, str(error), shown))

    # --- what events refer to

    def thread(self) -> int:
        """The number of this thread."""
        own = get_ident()
        found = self.threads.get(own)
        if found is None:
            alive = (t.name for t in threading.enumerate() if t.ident == own)
            name = next(alive, "background")
            with self.noting:
                found = self.threads[own] = len(self.threads) + 1
            self.rows["threads"].append((found, name))
        return found

    def note_head(self, runner: Any, metadata: Sequence[str]) -> tuple[int, int]:
        """The numbers of a kernel and of this thread, which are noted."""
        kernel = self.kernels.get((id(runner), metadata)) or self.note_kernel(runner, metadata)
        found = self.heads[id(runner), metadata, get_ident()] = kernel, self.thread()
        return found

    def note_kernel(self, runner: Any, metadata: Sequence[str]) -> int:
        """Note a kernel, and return its number.

        It is found once it is noted: else another thread would hand the writer a launch without it.
        """
        with self.noting:
            if (number := self.kernels.get((id(runner), metadata))) is None:
                number = next(self.next_kernel)
                self.runners.append(runner)
                self.noted.kernels.append((number, runner, metadata, settings_now()))
                self.kernels[id(runner), metadata] = number
        return number

    def note_graph(self, schedule: Any, canonical: Any, policy: Any, varying: Any) -> Scheduled:
        """Note a graph of tensors with all that its schedule needs, once."""
        with self.noting:
            if (known := self.graphs.get(id(schedule))) is None:
                number = len(self.graphs) + 1
                name = f"{policy.__module__}:{policy.__qualname__}"
                origins = texts(canonical.originals)
                known_by = None if varying is None else sorted(varying)
                about = number, perf_counter(), schedule.sink, name, known_by, origins
                self.noted.graphs.append((*about, schedule.steps, settings_now()))
                known = self.graphs[id(schedule)] = Scheduled(number, schedule)
        return known

    def view(self, buffer: Any) -> Any:
        """The stand-in for the lease of a buffer without one, such as a view."""
        identity, base = id(buffer), buffer.base
        if (known := self.views.get(identity)) is None:
            made = Shown(buffer, self.forget_view)
            made.identity = identity
            made.base = None if base is None else base.lease or self.view(base)
            made.about = buffer.device, buffer.dtype.name, buffer.nbytes, buffer.offset
            known = self.views.setdefault(identity, made)
        return known

    def forget(self, lease: Lease) -> None:
        """Note when a lease has ended. What it gave back is not held until that is written."""
        lease.handle = None
        self.noted.events.append((lease, perf_counter()))

    def forget_view(self, view: Shown) -> None:
        """Note when a buffer without a lease has died."""
        if self.views.pop(view.identity, None) is not None:
            self.noted.events.append((view, perf_counter()))

    def note_step(self, number: int, step: Any) -> None:
        """Write the kernels of a captured step, which it has when it was replayed."""
        known = [self.kernels.get((id(item.runner), item.metadata), 0) for item in step.items]
        self.rows["steps"].append((number, json.dumps([k for k in known if k])))


def settings_now() -> tuple[Any, ...]:
    """Settings that decide schedules and sources: the values of `DECISIVE_SETTINGS`, the number of
    processors, and whether plans are those that searches have kept."""
    return (*decisive_values(), cpu_count(), bool(settings.BEAM or settings.TUNED))


def leave() -> None:
    """Stop recording in a forked child: the threads that write exist in the parent only."""
    profilers[:] = [profiler for profiler in profilers if not isinstance(profiler, Recorder)]


in_child(leave)


def taken(events: Any) -> Any:
    """The events so far, taken out of a list or a `deque`."""
    if isinstance(events, deque):
        return [events.popleft() for _ in range(len(events))]
    found = events[:]
    del events[: len(found)]
    return found


def text_of(path: str) -> str:
    """The text of a file of the user's program, "" if it cannot be read."""
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
