"""The recorder: a launch profiler of the core that keeps every event for the file of a profile.

While it is active each launch is waited for, to be timed. Replays of a captured step, which are one
call for all launches, are observed launch by launch as often as that costs a few percent of their
time; of the others the begin and the end are kept.
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
from pathlib import Path
from typing import Any, Final

from tiny_viz.sampler import Sampler
from tiny_viz.store import TABLES, Writer
from tinycore import __version__
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.uop.text import to_text

__all__ = ["Recorder"]

BATCH: Final = 4096
"""Events that are handed to the writer at once."""
COST: Final = 0.02
"""Part of the time of replays that observing some of them may cost."""
UNOBSERVED: Final = 2
"""Replays of a step, after the first, that are timed as they are before it is observed again."""
MOST_BINDINGS: Final = 10_000
"""Places of memory that are known to be those of an earlier launch."""


class Replayed:
    """Statistics of the replays of one captured step."""

    __slots__ = ("budget", "fastest", "number", "observed", "replays", "started")

    def __init__(self, number: int) -> None:
        self.number = number
        self.replays = 0
        self.observed = 0.0
        """Seconds that the last observed replay took."""
        self.fastest = float("inf")
        self.budget = 0.0
        """Seconds that observing may cost now."""
        self.started = 0.0


class Held(weakref.ref[Any]):
    """A buffer that is in use."""

    __slots__ = ("identity", "number", "place")

    identity: int
    number: int
    """The number of its row, 0 for a view."""
    place: str
    """The number of its base, its offset and its size."""


class Recorder(LaunchProfiler):
    """Records what a program does from `start` to `stop`, into a file."""

    def __init__(self, path: Path, limits: Callable[[Sequence[str]], Sequence[Any]]) -> None:
        super().__init__()
        self.writer = Writer(path)
        self.limits = limits
        self.began = 0
        self.threads: dict[int, int] = {}
        self.texts: dict[str, int] = {}
        self.kernels: dict[tuple[int, Sequence[str]], int] = {}
        self.runners: list[Any] = []
        """Programs that were seen, held so that their ids stay valid."""
        self.sources: dict[int, int] = {}
        """By the id of a program, the number of its source."""
        self.steps: weakref.WeakKeyDictionary[Any, Replayed] = weakref.WeakKeyDictionary()
        self.current: Replayed | None = None
        self.buffers: dict[int, Held] = {}
        """Living buffers, by their ids."""
        self.bindings: dict[tuple[int, ...], tuple[int, Sequence[Any]]] = {}
        """Numbers of the memory of launches, by the ids of its references, which are held here."""
        self.counts = dict.fromkeys(("launches", "buffers", "bindings", "replays"), 0)
        self.rows: dict[str, deque[tuple[Any, ...]]] = {name: deque() for name in TABLES}
        """Rows that the writer has not got yet: `deque`s, which several threads may append to."""
        self.last = (0, 0)
        """Start and duration of the last launch."""
        self.living: dict[int, tuple[Any, ...]] = {}
        """Buffers that are in use, by number, as rows without the time of their end."""
        self.failures: list[Exception] = []
        self.files: set[str] = set()
        self.devices: set[str] = set()
        self.process = os.getpid()
        self.sampler = Sampler(self)

    # --- from begin to end

    def start(self) -> None:
        """Begin."""
        self.began = time.perf_counter_ns()
        profilers.append(self)
        self.sampler.start()

    def stop(self) -> bool:
        """End, and write the file. False if there was nothing to write: no kernel ran."""
        with contextlib.suppress(ValueError):
            profilers.remove(self)
        self.sampler.stop()
        if self.process != os.getpid():  # a fork of the recorded program
            return False
        if not self.counts["launches"] and not self.failures:
            return False
        for known in list(self.steps.values()):
            if known.started:
                self.end_observed(known)
        self.rows["buffers"].extend(self.living.values())
        self.flush()
        end = time.perf_counter_ns() - self.began
        self.write_meta(end)
        self.writer.close()
        return True

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
        put = self.writer.put
        put("meta", list(about.items()))
        put("rates", self.limits(sorted(self.devices)))
        put("files", [(path, text) for path in sorted(self.files) if (text := text_of(path))])

    def flush(self) -> None:
        """Hand what was collected to the writer."""
        for table, rows in self.rows.items():
            self.writer.put(table, [rows.popleft() for _ in range(len(rows))])

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
        end = time.perf_counter_ns() if ended is None else int(ended * 1e9)
        duration = int((seconds or 0.0) * 1e9)
        kernel = self.kernels.get((id(runner), metadata))
        if kernel is None:
            kernel = self.note_kernel(runner, metadata)
        start = end - duration - self.began
        key = [*map(self.buffers.get, map(id, bufs))]
        bound = self.bindings.get(tuple(map(id, key)))
        binding = self.note_binding(runner, bufs, key, kernel, start) if bound is None else bound[0]
        thread = self.thread()
        self.counts["launches"] = number = self.counts["launches"] + 1
        self.last = start, duration
        rows = self.rows["launches"]
        rows.append((number, start, duration, kernel, thread, binding))
        if len(rows) >= BATCH:
            self.flush()

    def observes(self, step: Any) -> bool:
        """True for the first replay of a step, and as often later as the cost allows."""
        known = self.steps.get(step)
        if known is None:
            known = self.steps[step] = Replayed(len(self.steps) + 1)
        now = time.perf_counter()
        if known.started:  # the replay before was observed: `replayed` was not called
            self.end_observed(known)
        known.replays += 1
        extra = known.observed - known.fastest
        if known.replays == 1 or (known.replays > UNOBSERVED + 1 and known.budget > extra):
            known.budget -= max(extra, 0.0) if known.replays > 1 else 0.0
            known.started = now
            return True
        return False

    def note(self, event: str, *facts: Any) -> None:
        """Add a replay, a compilation or a failure."""
        if event == "replayed":
            self.replayed(*facts)
        elif event == "compiled":
            self.compiled(*facts)
        elif event == "failed":
            self.failed(*facts)

    def end_observed(self, known: Replayed) -> None:
        """Note the end of an observed replay, with its last launch."""
        began, known.started = known.started, 0.0
        end = (sum(self.last) + self.began) / 1e9
        known.observed = max(end - began, 0.0)
        self.note_replay(known.number, began, known.observed, True)

    def replayed(self, step: Any, seconds: float) -> None:
        """Add a replay as a whole."""
        known = self.steps.get(step)
        if known is None:
            return
        known.fastest = min(known.fastest, seconds)
        known.budget += COST * seconds
        if known.replays <= UNOBSERVED + 1:
            self.note_step(known.number, step)
        self.note_replay(known.number, time.perf_counter() - seconds, seconds, False)

    def compiled(self, runner: Any, source: str, seconds: float) -> None:
        """Add a program that was made."""
        self.runners.append(runner)
        end = time.perf_counter_ns() - self.began
        duration = int(seconds * 1e9)
        graph, text = self.text(to_text(runner.ast)), self.text(source)
        if text:
            self.sources[id(runner)] = text
        row = (end - duration, duration, runner.name, runner.device, not source)
        self.rows["compilations"].append((None, *row, self.thread(), graph, text))

    def failed(self, kernel: str, device: str, metadata: Sequence[str], error: Exception) -> None:
        """Add the failure of a kernel, once for each error."""
        if any(error is known for known in self.failures):
            return
        self.failures.append(error)
        now = time.perf_counter_ns() - self.began
        operations, origins = self.told(metadata)
        shown = "".join(traceback.format_exception(error))
        about = (kernel, device, operations, origins, type(error).__name__, str(error), shown)
        self.rows["failures"].append((None, now, *about))

    # --- what rows refer to

    def thread(self) -> int:
        """The number of this thread."""
        own = threading.get_ident()
        found = self.threads.get(own)
        if found is None:
            found = self.threads[own] = len(self.threads) + 1
            alive = (t.name for t in threading.enumerate() if t.ident == own)
            self.rows["threads"].append((found, next(alive, "background")))
        return found

    def text(self, content: str) -> int:
        """The number of a long text, written once; 0 for none."""
        if not content:
            return 0
        found = self.texts.get(content)
        if found is None:
            found = self.texts[content] = len(self.texts) + 1
            self.rows["texts"].append((found, content))
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

    def note_kernel(self, runner: Any, metadata: Sequence[str]) -> int:
        """Write a kernel, and return its number."""
        number = self.kernels[id(runner), metadata] = len(self.kernels) + 1
        self.runners.append(runner)
        self.devices.add(runner.device)
        ast = getattr(runner, "ast", None)
        graph = 0 if ast is None else self.text(to_text(ast))
        queue = "copies" if ast is None else "kernels"
        work = runner.estimate
        about = (number, runner.name, runner.device, queue, work.ops, work.bytes)
        source = self.sources.get(id(runner), 0)
        self.rows["kernels"].append((*about, *self.told(metadata), graph, source))
        return number

    def note_binding(
        self, runner: Any, bufs: Sequence[Any], key: Sequence[Any], kernel: int, start: int
    ) -> int:
        """Write the memory of a launch, and return its number."""
        written, rows = runner.written, []
        for slot, (buffer, held) in enumerate(zip(bufs, key, strict=True)):
            place = (held or self.note_buffer(buffer, kernel, start, slot in written)).place
            rows.append(f"[{place},{int(slot in written)}]")
        self.counts["bindings"] = number = self.counts["bindings"] + 1
        self.rows["bindings"].append((number, f"[{','.join(rows)}]"))
        if None not in key:
            if len(self.bindings) >= MOST_BINDINGS:
                self.bindings.clear()
            self.bindings[tuple(map(id, key))] = number, key
        return number

    def note_buffer(self, buffer: Any, kernel: int, start: int, written: bool) -> Held:
        """Note a buffer that was not seen before; of a view its base, too."""
        held = self.buffers[id(buffer)] = Held(buffer, self.forget)
        held.identity, held.number, base = id(buffer), 0, buffer.base
        if base is None:
            self.counts["buffers"] = held.number = number = self.counts["buffers"] + 1
            row = (number, buffer.device, buffer.dtype.name, buffer.nbytes, max(start, 0))
            self.living[number] = *row, None, kernel, int(written)
        else:
            known = self.buffers.get(id(base)) or self.note_buffer(base, kernel, start, written)
            number = known.number
        held.place = f"{number},{buffer.offset},{buffer.nbytes}"
        return held

    def forget(self, held: Any) -> None:
        """Write when a buffer died."""
        self.buffers.pop(held.identity, None)
        if (row := self.living.pop(held.number, None)) is not None:
            now = time.perf_counter_ns() - self.began
            self.rows["buffers"].append((*row[:5], now, *row[6:]))

    def note_step(self, number: int, step: Any) -> None:
        """Write the kernels of a captured step, which it has when it was replayed."""
        known = [self.kernels.get((id(item.runner), item.metadata), 0) for item in step.items]
        self.rows["steps"].append((number, json.dumps([k for k in known if k])))

    def note_replay(self, step: int, began: float, seconds: float, observed: bool) -> None:
        """Write a replay."""
        self.counts["replays"] = number = self.counts["replays"] + 1
        start, duration = int(began * 1e9) - self.began, int(seconds * 1e9)
        row = (number, start, duration, step, self.thread(), int(observed))
        self.rows["replays"].append(row)


def text_of(path: str) -> str:
    """The text of a file of the user's program, "" if it cannot be read."""
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
