"""The file of a profile: a SQLite database, so a large one is read by its indices, piece by piece.

Times are nanoseconds since the recording began. A file is written by one `Writer`; whoever reads
it opens it by `connect`, which checks that its tables are those below and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from tinycore.errors import FileFormatError

__all__ = ["APPLICATION_ID", "TABLES", "VERSION", "Writer", "connect"]

APPLICATION_ID: Final = 0x74637669
"""Application id in the header of the SQLite file: "tcvi"."""
VERSION: Final = 4
SUFFIX: Final = ".tinyviz"
ROWS_AT_ONCE: Final = 1000
"""Rows of a statement: SQLite takes 32,766 values."""
Batch = tuple[str, Sequence[Any]]
"""A table, and rows for it."""

TABLES: Final = {
    "meta": "key TEXT PRIMARY KEY, value TEXT",
    "texts": "id INTEGER PRIMARY KEY, content TEXT",
    "kernels": (
        "id INTEGER PRIMARY KEY, name TEXT, device TEXT, queue TEXT, ops INTEGER, "
        "bytes INTEGER, operations TEXT, origins TEXT, graph INTEGER, source INTEGER, "
        "written TEXT, settings INTEGER"
    ),
    "launches": (
        "id INTEGER PRIMARY KEY, start INTEGER, duration INTEGER, kernel INTEGER, "
        "thread INTEGER, memory BLOB"
    ),
    "graphs": (
        "id INTEGER PRIMARY KEY, start INTEGER, graph INTEGER, policy TEXT, varying TEXT, "
        "kernels TEXT, settings INTEGER"
    ),
    "runs": "graph INTEGER PRIMARY KEY, count INTEGER",
    "steps": "id INTEGER PRIMARY KEY, kernels TEXT",
    "replays": (
        "id INTEGER PRIMARY KEY, start INTEGER, duration INTEGER, step INTEGER, thread INTEGER, "
        "observed INTEGER"
    ),
    "compilations": (
        "id INTEGER PRIMARY KEY, start INTEGER, duration INTEGER, name TEXT, device TEXT, "
        "cached INTEGER, thread INTEGER, graph INTEGER, source INTEGER"
    ),
    "buffers": (
        "id INTEGER PRIMARY KEY, device TEXT, dtype TEXT, bytes INTEGER, born INTEGER, "
        "died INTEGER, kernel INTEGER, written INTEGER"
    ),
    "usage": "device TEXT, at INTEGER, bytes INTEGER",
    "views": "id INTEGER PRIMARY KEY, base INTEGER, offset INTEGER, bytes INTEGER",
    "samples": "id INTEGER PRIMARY KEY, start INTEGER, thread INTEGER, place INTEGER",
    "places": "id INTEGER PRIMARY KEY, function TEXT, file TEXT, line INTEGER",
    "failures": (
        "id INTEGER PRIMARY KEY, start INTEGER, kernel TEXT, device TEXT, operations TEXT, "
        "origins TEXT, error TEXT, message TEXT, traceback TEXT"
    ),
    "files": "path TEXT PRIMARY KEY, content TEXT",
    "threads": "id INTEGER PRIMARY KEY, name TEXT",
    "rates": "device TEXT PRIMARY KEY, flops REAL, bytes REAL",
    "totals": (
        "kernel INTEGER PRIMARY KEY, launches INTEGER, measured INTEGER, nanoseconds REAL, "
        "least INTEGER, most INTEGER"
    ),
    "bins": (
        "level INTEGER, bin INTEGER, device TEXT, queue TEXT, busy INTEGER, launches INTEGER, "
        "kernel INTEGER, start INTEGER, finish INTEGER"
    ),
}
"""Every table with its columns; README.md says what each holds."""

INDICES: Final = {
    "launches_start": "launches(start)",
    "launches_kernel": "launches(kernel, duration)",
    "replays_start": "replays(start)",
    "samples_start": "samples(start)",
    "buffers_born": "buffers(born)",
    "bins_level": "bins(level, bin)",
}
CHANGES_OF_MEMORY: Final = (
    "SELECT born AS at, device, bytes FROM buffers UNION ALL "
    "SELECT died, device, -bytes FROM buffers WHERE died NOT NULL ORDER BY at"
)
"""Query of the bytes that each device gains or loses, in order of time."""
LEVELS: Final = (10, 14, 18)
"""Timelines of many launches are also kept in 2**level equal parts of the time."""


def connect(path: str | Path) -> sqlite3.Connection:
    """A profile, opened to be read. Raises FileFormatError for any other file."""
    place = Path(path)
    if not place.is_file():
        raise FileFormatError(f"there is no profile {place}")
    connection: sqlite3.Connection | None = None
    try:
        uri = f"{place.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        # a schema from elsewhere may hold views and triggers: it is compared before any query
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        check(connection, place)
    except sqlite3.DatabaseError as error:
        if connection is not None:
            connection.close()
        raise FileFormatError(f"{place} is no profile: {error}") from error
    except FileFormatError:
        if connection is not None:
            connection.close()
        raise
    return connection


def check(connection: sqlite3.Connection, place: Path) -> None:
    """Raise FileFormatError unless a database has the tables of a profile, and no others."""
    (kind,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if kind != APPLICATION_ID:
        raise FileFormatError(f"{place} is a SQLite database, but no profile of tinycore")
    if version != VERSION:
        raise FileFormatError(
            f"{place} has version {version} of the format, this tiny-viz reads {VERSION}: install "
            "the one that wrote it, or record again"
        )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"))
    expected = {name: statement for name, statement in statements() if name in found}
    if found != expected or not TABLES.keys() <= found.keys():
        raise FileFormatError(f"{place} has other tables than a profile of tinycore")


def statements() -> Iterable[tuple[str, str]]:
    """SQL of every table and index, by name."""
    for name, columns in TABLES.items():
        yield name, f"CREATE TABLE {name}({columns})"
    for name, columns in INDICES.items():
        yield name, f"CREATE INDEX {name} ON {columns}"


class Writer:
    """Writes a profile from a thread of its own, so that the program does not wait for the disk.

    The file is made at the first row, under a new name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: SimpleQueue[Callable[[], Iterable[Batch]] | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        """The thread that writes, once there is a file."""
        self._failure: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """True if there is a file."""
        return self.thread is not None

    def put(self, table: str, rows: Sequence[Any]) -> None:
        """Write rows, in the order of the columns, soon."""
        if rows:
            self.put_made(lambda: [(table, rows)])

    def put_made(self, make: Callable[[], Iterable[Batch]]) -> None:
        """Write the rows that a function makes, by table, in the thread that writes."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="tiny_viz writer", daemon=True)
            self.thread.start()
        if self._failure is None:
            self._queue.put(make)

    def close(self) -> None:
        """Write what is left, then totals and indices. Raises OSError if the file was not written.

        Does nothing for a file that was never begun.
        """
        if self.thread is None:
            return
        self._queue.put(None)
        self.thread.join()
        if self._failure is not None:
            raise OSError(f"the profile {self.path} is not complete: {self._failure}")

    def _work(self) -> None:
        try:
            with closing(self._create()) as connection:
                while (make := self._queue.get()) is not None:
                    with connection:
                        for table, rows in make():
                            insert(connection, table, rows)
                finish(connection)
        except Exception as error:  # the program goes on without a profile
            self._failure = error

    def _create(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self.path)
        connection.execute("PRAGMA page_size = 8192")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")  # a file is complete or of no use
        connection.execute("PRAGMA cache_size = -65536")  # 64 MB, for indices of many rows
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for name, statement in statements():
            if name in TABLES:
                connection.execute(statement)
        connection.commit()
        return connection


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[Any]) -> None:
    """Insert rows, many by each statement.

    Python gives its lock away in each, and has it back from a busy program 5 ms later.
    """
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        marks = f"({', '.join('?' * len(part[0]))})"
        connection.execute(
            f"INSERT OR REPLACE INTO {table} VALUES {', '.join([marks] * len(part))}",
            [*chain.from_iterable(part)],
        )


def finish(connection: sqlite3.Connection) -> None:
    """Make what is computed of all rows: totals, the timeline in parts, indices."""
    with connection:
        for name, statement in statements():
            if name in INDICES:
                connection.execute(statement)
        connection.execute(
            "INSERT INTO totals SELECT kernel, count(*), count(*), sum(duration), min(duration), "
            "max(duration) FROM launches GROUP BY kernel"
        )
        add_replays(connection)
        (end,) = connection.execute("SELECT max(start + duration) FROM launches").fetchone()
        (count,) = connection.execute("SELECT count(*) FROM launches").fetchone()
        for level in LEVELS if end else ():
            if count > 1 << level:
                add_bins(connection, level, end)


def add_replays(connection: sqlite3.Connection) -> None:
    """Add the launches of replays that were not observed one by one, at their median times."""
    import json  # noqa: PLC0415  at the end only

    query = (
        "SELECT steps.kernels, count(*) FROM replays JOIN steps ON steps.id = replays.step "
        "WHERE NOT observed GROUP BY step"
    )
    for kernels, count in connection.execute(query).fetchall():
        for kernel in json.loads(kernels):
            connection.execute(
                "UPDATE totals SET launches = launches + ?, nanoseconds = nanoseconds + ? "
                "WHERE kernel = ?",
                (count, count * median(connection, kernel), kernel),
            )


def median(connection: sqlite3.Connection, kernel: int) -> int:
    """The (lower) median of the times of a kernel, 0 for one that was not timed."""
    of = "FROM launches WHERE kernel = ?"
    (count,) = connection.execute(f"SELECT count(*) {of}", (kernel,)).fetchone()
    middle = f"SELECT duration {of} ORDER BY duration LIMIT 1 OFFSET ?"
    found = connection.execute(middle, (kernel, max(count - 1, 0) // 2)).fetchone()
    return found[0] if found else 0


def add_bins(connection: sqlite3.Connection, level: int, end: int) -> None:
    """Add the launches of each of 2**level equal parts of the time, by device and queue."""
    width = end // (1 << level) + 1
    connection.execute(
        "INSERT INTO bins SELECT ?, start / ? AS bin, device, queue, sum(duration), count(*), "
        "kernel, min(start), max(start + duration) FROM launches JOIN kernels ON "
        "kernels.id = launches.kernel GROUP BY bin, device, queue",
        (level, width),
    )
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"width {level}", str(width)))
