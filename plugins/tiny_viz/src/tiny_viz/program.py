"""`VIZ=1 python program.py`: a recording of a whole program, which says at its end where it is."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tiny_viz.limits import limits_of
from tiny_viz.recorder import Recorder
from tiny_viz.store import SUFFIX
from tinycore.config import settings

__all__ = ["begin", "new_path"]

current: list[Recorder] = []
SHOWN_AT_END: Final = 2
"""The value of VIZ that serves the page when the program has ended."""


def begin() -> None:
    """Begin to record this program."""
    recorder = Recorder(new_path(), limits_of)
    current.append(recorder)
    recorder.start()
    atexit.register(end)
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if isinstance(error, Exception):
            recorder.failed("", "", (), error)
        before(kind, error, where)

    sys.excepthook = note


def end() -> None:
    """End the recording of this program, and say where it is."""
    shown = settings.VIZ == SHOWN_AT_END
    for recorder in current:
        try:
            if not recorder.stop():
                continue
        except OSError as error:
            print(f"tinycore: {error}", file=sys.stderr)
            continue
        path = recorder.writer.path
        print(f"tinycore: the profile of this program: tinycore viz {path}", file=sys.stderr)
        if shown:
            from tiny_viz.server import serve  # noqa: PLC0415  a program that only records needs none

            serve(path)
    current.clear()


def new_path(folder: Path | None = None) -> Path:
    """A new file for the profile of this program, in the current folder."""
    given = sys.argv[0] if sys.argv and sys.argv[0] != "-c" else ""
    name = Path(given).stem or "python"
    if name == "__main__":
        name = Path(given).parent.name
    now = time.strftime("%Y%m%d-%H%M%S")
    base = (folder or Path.cwd()) / f"{name}-{now}-{os.getpid()}"
    number = 0
    while (path := base.with_name(f"{base.name}{f'-{number}' if number else ''}{SUFFIX}")).exists():
        number += 1
    return path
