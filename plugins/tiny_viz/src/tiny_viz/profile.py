"""`tinycore.profile()`: a recording of a block of code, with a table of what took the time."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tiny_viz.limits import limits_of
from tiny_viz.recorder import Recorder
from tiny_viz.store import SUFFIX
from tiny_viz.summary import html_table, summary_of, text_table
from tinycore.config import process
from tinycore.errors import ArgumentError

__all__ = ["profile"]

active: Final[list[int]] = []
"""Values that VIZ had before each profile that is recorded now.

It is set for the whole process: launches of all threads are recorded, so are their origins.
"""


def discard(folder: str, process: int) -> None:
    """Remove a temporary folder, but not in a forked child: it is its parent's."""
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


class profile:  # noqa: N801  it is used like a function, as in other profilers
    """A context manager that records what its block does.

        with tinycore.profile() as found:
            model(x).realize()
        print(found)                      # the costliest kernels
        found.serve()                     # the page in a browser

    `path` is the file of the profile; without one it is a temporary file, removed with the object.
    A notebook shows it as a table with its timeline. Raises ArgumentError where there is such a
    file already.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        from tiny_viz import hooks  # noqa: F401, PLC0415  is the whole program recorded?

        if path is not None and Path(path).exists():
            raise ArgumentError(f"{path} exists already; a profile is a new file")
        self.path = Path(path) if path is not None else self._temporary()
        """The file, complete when the block has ended."""
        self._recorder: Recorder | None = None
        self.is_empty = True
        """True until kernels were recorded."""

    def _temporary(self) -> Path:
        folder = tempfile.mkdtemp(prefix="tinyviz-")
        weakref.finalize(self, discard, folder, os.getpid())
        return Path(folder) / f"profile{SUFFIX}"

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise ArgumentError("a profile records one block; make another one for the next")
        active.append(process["VIZ"])
        process["VIZ"] = process["VIZ"] or 1
        self._recorder = Recorder(self.path, limits_of)
        self._recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._recorder is not None
        # that of another one, if they overlap: the first is left at the end
        process["VIZ"] = active.pop()
        if isinstance(error, Exception):
            self._recorder.failed("", "", (), error)
        self.is_empty = not self._recorder.stop()

    def __str__(self) -> str:
        return "no kernel ran" if self.is_empty else text_table(summary_of(self.path))

    __repr__ = __str__  # which a terminal of IPython shows

    def _repr_html_(self) -> str:
        if self.is_empty:
            return "<p>no kernel ran</p>"
        from tiny_viz.timeline import timeline  # noqa: PLC0415  programs draw none

        return html_table(summary_of(self.path)) + timeline(self.path)

    def serve(self, *, opens: bool = True) -> None:
        """Serve the page of this profile, until Ctrl-C. Raises ArgumentError for an empty one."""
        if self.is_empty:
            raise ArgumentError("the profile is empty: no kernel ran in its block")
        from tiny_viz.server import serve  # noqa: PLC0415  tables need no server

        serve(self.path, opens=opens)
