"""`VIZ=1 python program.py`: a recording of a whole program, which says at its end where it is.

`with Context(VIZ=1)` records a block, for whatever thread enters the first until the last is left.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Final

from tiny_viz.limits import limits_of
from tiny_viz.profile import profile
from tiny_viz.recorder import Recorder
from tiny_viz.store import SUFFIX
from tinycore.config import settings
from tinycore.plugin import lock

__all__ = ["begin", "block", "new_path"]

current: list[Recorder] = []
shown: list[Path] = []
"""Profiles of blocks whose pages are served when the program has ended."""
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
    for recorder in current:
        try:
            if not recorder.stop():
                continue
        except OSError as error:
            print(f"tinycore: {error}", file=sys.stderr)
            continue
        tell(path := recorder.writer.path, "this program")
        if settings.VIZ == SHOWN_AT_END:
            show([path])
    current.clear()


def show(paths: Sequence[Path]) -> None:
    """Serve the pages of profiles at once, until Ctrl-C, or the program is told to end. Each has a
    process of its own: Python 3.12 starts no threads in one that ends.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = (sys.executable, "-m", "tinycore", "viz", "--until-input-ends")
    servers = [subprocess.Popen((*words, path), stdin=subprocess.PIPE) for path in paths]
    with suppress(KeyboardInterrupt):
        for server in servers:
            server.wait()
    for server in servers:
        server.communicate()  # closes its input, as the end of this process does, even by SIGKILL


class Blocks:
    """The blocks of `Context(VIZ=1)` that are open, in all threads, and their profile."""

    def __init__(self) -> None:
        self.open: defaultdict[int, list[BaseException | None]] = defaultdict(list)
        """By thread, the errors that were handled where its open blocks began. Blocks that were
        open in other threads when this was imported are not known, and end nothing."""
        self.profile: profile | None = None
        self.changing = lock()


blocks = Blocks()


def block(value: int, is_entered: bool) -> None:
    """Begin to record with the first block, and end with the last; a recorded program has all."""
    thread, error = get_ident(), sys.exc_info()
    with blocks.changing:
        if is_entered:
            if not blocks.open and not current:
                begun = profile(new_path())
                begun.__enter__()
                blocks.profile = begun
            blocks.open[thread].append(error[1])
            return
        if thread not in blocks.open:
            return
        if blocks.open[thread].pop() is error[1]:  # it is handled around the block
            error = None, None, None
        if not blocks.open[thread]:
            del blocks.open[thread]
        if blocks.open or (ended := blocks.profile) is None:
            return
        blocks.profile = None
    try:
        ended.__exit__(*error)
    except OSError as error:
        print(f"tinycore: {error}", file=sys.stderr)
        return
    if not ended.is_empty:
        tell(ended.path, "this block")
        if value == SHOWN_AT_END:
            if not shown:
                atexit.register(show, shown)
            shown.append(ended.path)


def tell(path: Path, recorded: str) -> None:
    """Say where a profile is."""
    print(f"tinycore: the profile of {recorded}: tinycore viz {path}", file=sys.stderr)


def new_path(folder: Path | None = None) -> Path:
    """A new file for the profile of this program, in the current folder."""
    given = Path(sys.argv[0] if sys.argv and sys.argv[0] != "-c" else "")
    name = given.stem or "python"
    if name == "__main__":
        name = given.parent.name
    now = time.strftime("%Y%m%d-%H%M%S")
    base = (folder or Path.cwd()) / f"{name}-{now}-{os.getpid()}"
    number = 0
    while (path := base.with_name(f"{base.name}{f'-{number}' if number else ''}{SUFFIX}")).exists():
        number += 1
    return path
