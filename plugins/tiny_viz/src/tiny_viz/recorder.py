"""The recorder: a launch profiler of the core that notes every event for the file of a profile.

While it is active each launch is waited for, to be timed. What it notes of every launch are numbers
in some bytes, of which `rows.py` makes rows in another thread. Replays of a captured step,
which are one call for all launches, are observed launch by launch as often as that costs a few
percent of their time; of the others the begin and the end are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any, Final

from tiny_viz.rows import BIRTH, DEATH, REPLAY, Event, Noted, Rows, packing
from tiny_viz.sampler import Sampler
from tiny_viz.store import Writer
from tinycore import __version__
from tinycore._stamp import decisive_values
from tinycore.config import cpu_count, settings
from tinycore.device.buffer import Buffer, at_end
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.plugin import in_child, lock
from tinycore.uop.origins import texts

__all__ = ["Recorder"]

BATCH: Final = 1 << 19
"""Launches, or replays, that are handed to the writer at once: some 40 MB.

To make rows takes time that the program would have: of most programs it is done at their end.
"""
COST: Final = 0.02
"""Part of the time of replays that observing some of them may cost."""
UNOBSERVED: Final = 2
"""Replays of a step, after the first, that are timed as they are before it is observed again."""


class Replayed:
    """Statistics of the replays of one captured step."""

    __slots__ = ("budget", "fastest", "number", "observed", "replays", "started", "step")

    def __init__(self, number: int, step: Any) -> None:
        self.number = number
        self.step = weakref.ref(step)
        """Tells it from a later one with the same id."""
        self.replays = 0
        self.observed = 0.0
        """Seconds that the last observed replay took."""
        self.fastest = float("inf")
        self.budget = 0.0
        """Seconds that observing may cost now."""
        self.started = 0.0


class Scheduled:
    """A graph that was scheduled, held so that its id stays valid, and how often it has run."""

    __slots__ = ("number", "runs", "schedule")

    def __init__(self, number: int, schedule: Any) -> None:
        self.number = number
        self.schedule = schedule
        self.runs = count()
        """`next` of it counts a run, from any thread."""


class Shown(weakref.ref[Buffer]):
    """A buffer without a lease of its own, such as a view, by the id that it is found by."""

    __slots__ = ("identity", "number")

    identity: int
    number: int


class Recorder(LaunchProfiler):
    """Records what a program does from `start` to `stop`, into a file."""

    def __init__(self, path: Path, limits: Callable[[Sequence[str]], Sequence[Any]]) -> None:
        super().__init__()
        self.writer = Writer(path)
        self.limits = limits
        self.began = 0.0
        self.threads: dict[int, int] = {}
        self.kernels: dict[tuple[int, Sequence[str]], int] = {}
        self.kinds: dict[tuple[str, int, int], int] = {}
        """Numbers of kinds of memory: a device, the id of a dtype, and elements."""
        self.runners: list[Any] = []
        self.dtypes: list[Any] = []
        """Programs, and dtypes, that were seen, held so that their ids stay valid."""
        self.graphs: dict[int, Scheduled] = {}
        """By the ids of their schedules."""
        self.steps: dict[int, Replayed] = {}
        """By the ids of captured steps."""
        self.memory: dict[int, int] = {}
        """Numbers of living buffers, by the ids of their leases."""
        self.views: dict[int, Shown] = {}
        """Buffers without leases, by their ids."""
        self.next_kernel, self.next_buffer, self.next_step = count(1), count(1), count(1)
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

        Memory dies after its last launch was noted, and is noted before its first: so deaths are
        taken first, and births after the launches.
        """
        if not self.flushing.acquire(blocking=waits):  # another thread is at it, or a frame below
            return
        try:
            noted = Noted(*map(taken, self.noted))
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
        kernel = self.kernels.get((id(runner), metadata))
        if kernel is None:
            kernel = self.note_kernel(runner, metadata)
        known = self.memory.get
        memory: list[Any] = [known(id(buffer.lease)) for buffer in bufs]
        if None in memory:
            began = ended - (seconds or 0.0)
            for slot, number in enumerate(memory):
                if number is None:
                    memory[slot] = self.note_buffer(bufs[slot], kernel, began, slot)
        thread = self.threads.get(get_ident()) or self.thread()
        launches = self.noted.launches
        launches.append(packing(len(memory))(kernel, thread, seconds or 0.0, ended, *memory))
        if len(launches) >= BATCH:
            self.flush()

    def observes(self, step: Any) -> bool:
        """True for the first replay of a step, and as often later as the cost allows."""
        known = self.steps.get(id(step))
        if known is None or known.step() is not step:
            known = self.steps[id(step)] = Replayed(next(self.next_step), step)
        if known.started:  # the replay before was observed: `replayed` was not called
            self.end_observed(known)
        known.replays += 1
        extra = known.observed - known.fastest
        if known.replays == 1 or (known.replays > UNOBSERVED + 1 and known.budget > extra):
            known.budget -= max(extra, 0.0) if known.replays > 1 else 0.0
            known.started = perf_counter()
            return True
        return False

    def note(self, event: str, *facts: Any) -> None:
        """Add a replay, a compilation, a graph or a failure."""
        if event == "scheduled":
            if (known := self.graphs.get(id(facts[0]))) is None:
                known = self.note_graph(*facts)
            next(known.runs)
        elif event == "replayed":
            self.replayed(*facts)
        elif event == "compiled":
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
        self.note_replay(known.number, began, known.observed, 1)

    def replayed(self, step: Any, seconds: float) -> None:
        """Add a replay as a whole."""
        known = self.steps.get(id(step))
        if known is None or known.step() is not step:
            return
        known.fastest = min(known.fastest, seconds)
        known.budget += COST * seconds
        if known.replays <= UNOBSERVED + 1:
            self.note_step(known.number, step)
        self.note_replay(known.number, perf_counter() - seconds, seconds, 0)

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

    def note_buffer(self, buffer: Any, kernel: int, time: float, slot: int) -> int:
        """The number of a buffer that was not seen before; it is noted, of a view its base, too."""
        number, lease = next(self.next_buffer), buffer.lease
        if lease is None:
            found = self.note_view(buffer, number)
        else:
            found = self.memory.setdefault(id(lease), number)
        if found != number:  # it is in two slots, or another thread was faster, or it is a view
            return found
        base, dtype = 0, buffer.dtype
        if (of := buffer.base) is not None:
            base = self.memory.get(id(of.lease)) or self.note_buffer(of, kernel, time, slot)
        about = buffer.device, id(dtype), buffer.size
        kind = self.kinds.get(about) or self.note_kind(about, dtype)
        self.noted.births.append(BIRTH(number, base, buffer.offset, kind, kernel, slot, time))
        return number

    def note_view(self, buffer: Any, number: int) -> int:
        """Enter a buffer without a lease, unless it is known; its number."""
        identity = id(buffer)
        if (known := self.views.get(identity)) is None:
            made = Shown(buffer, self.forget_view)
            made.identity, made.number = identity, number
            known = self.views.setdefault(identity, made)
        return known.number

    def note_kind(self, about: tuple[str, int, int], dtype: Any) -> int:
        """Note a device, a dtype and bytes, and return their number."""
        with self.noting:
            if (number := self.kinds.get(about)) is None:
                number = len(self.kinds) + 1
                device, _, size = about
                self.dtypes.append(dtype)
                self.noted.kinds.append((number, device, dtype.name, size * dtype.itemsize))
                self.kinds[about] = number
        return number

    def forget(self, lease: object) -> None:
        """Note when a lease has ended."""
        if number := self.memory.pop(id(lease), 0):
            self.noted.deaths.append(DEATH(number, perf_counter()))

    def forget_view(self, view: Shown) -> None:
        """Note when a buffer without a lease has died."""
        if self.views.pop(view.identity, None) is not None:
            self.noted.deaths.append(DEATH(view.number, perf_counter()))

    def note_step(self, number: int, step: Any) -> None:
        """Write the kernels of a captured step, which it has when it was replayed."""
        known = [self.kernels.get((id(item.runner), item.metadata), 0) for item in step.items]
        self.rows["steps"].append((number, json.dumps([k for k in known if k])))

    def note_replay(self, step: int, began: float, seconds: float, observed: int) -> None:
        """Note a replay."""
        thread, replays = self.threads.get(get_ident()) or self.thread(), self.noted.replays
        replays.append(REPLAY(step, thread, observed, began, seconds))
        if len(replays) >= BATCH:
            self.flush()


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
