"""A sampler of Python: the line at which each thread of the program is, some times a second."""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tiny_viz.recorder import Recorder

__all__ = ["Sampler"]

SECONDS: Final = 0.01
BETWEEN: Final = sys.stdlib_module_names | {"tinycore", "tiny_cpu", "tiny_hcq", "tiny_viz"}
"""Packages that a program calls: the line that is told is outside of them."""
MOST_FRAMES: Final = 60
SAMPLES: Final = 100_000
"""Samples after which what was recorded is written: after some minutes or more.

Writing takes Python's lock from the program, so it is done seldom.
"""


class Sampler:
    """Samples, in a thread of its own, the innermost line outside of tinycore in each thread."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.places: dict[tuple[CodeType, int, str], int] = {}
        self.rows = recorder.rows["samples"]
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self.recorder.thread()  # the thread that begins is the first
        self._thread = threading.Thread(target=self._work, name="tiny_viz sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)

    def _work(self) -> None:
        while not self._stopped.wait(SECONDS):
            self.sample()
            if (len(self.rows) >= SAMPLES and self.recorder.has_events) or self.recorder.is_full:
                self.recorder.flush()

    def sample(self) -> None:
        """Note where each thread is. Frames are let go at once, as they hold what they use."""
        now = int((time.perf_counter() - self.recorder.began) * 1e9)
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # which holds `frames`: a cycle would keep all of them
        own = self.recorder.writer.thread
        for identity, number in list(self.recorder.threads.items()):
            # the number of a thread that has ended may be that of the writer now
            frame = None if own is not None and identity == own.ident else frames.get(identity)
            if frame is not None:
                self.rows.append((None, now, number, self.place(frame)))

    def place(self, frame: FrameType) -> int:
        """The number of the line of the program at which a thread is, and of what it called."""
        called = frame.f_code.co_qualname
        current: FrameType | None = frame
        for _ in range(MOST_FRAMES):
            if current is None:
                break
            package = current.f_globals.get("__name__", "").partition(".")[0]
            if package == "__main__" or package not in BETWEEN:
                break
            if package == "tinycore":
                called = current.f_code.co_qualname
            current = current.f_back
        shown = frame if current is None else current
        key = shown.f_code, shown.f_lineno or 0, called
        if (found := self.places.get(key)) is None:
            found = self.places[key] = len(self.places) + 1
            row = (found, called, shown.f_code.co_filename, key[1])
            self.recorder.rows["places"].append(row)
        return found
