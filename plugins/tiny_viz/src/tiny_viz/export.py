"""A profile in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from tiny_viz.store import CHANGES_OF_MEMORY, connect
from tiny_viz.summary import where
from tinycore.nn.files.atomic import replacing_file

__all__ = ["events", "write_trace"]


def write_trace(profile: str | Path, path: str | Path) -> int:
    """Write a profile as a trace, event by event; the number of events.

    Raises FileFormatError for a file that is no profile; the trace is whole or not there.
    """
    count = 0
    with closing(connect(profile)) as connection, replacing_file(path) as file:
        file.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
        for count, event in enumerate(events(connection), 1):
            file.write((b",\n" if count > 1 else b"") + json.dumps(event).encode())
        file.write(b"\n]}\n")
    return count


def events(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Every event of a profile: a process for each device, one for Python, a thread per queue."""
    devices = connection.execute("SELECT DISTINCT device FROM kernels ORDER BY 1")
    numbers = {device: number for number, (device,) in enumerate(devices, 2)}
    yield named("process_name", 1, 0, "Python")
    for device, number in numbers.items():
        yield named("process_name", number, 0, device)
        for thread, queue in enumerate(("kernels", "copies"), 1):
            yield named("thread_name", number, thread, queue)
    for number, name in connection.execute("SELECT id, name FROM threads"):
        yield named("thread_name", 1, number, name)
    yield from chain(
        launches(connection, numbers), compilations(connection), replays(connection),
        memory(connection, numbers),
    )  # fmt: skip


def named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """The name of a process or thread."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def span(
    name: str, process: int, thread: int, start: int, nanoseconds: int, **arguments: Any
) -> dict[str, Any]:
    """An event with a duration; times in microseconds."""
    about = {"ph": "X", "name": name, "pid": process, "tid": thread, "args": arguments}
    return about | {"ts": start / 1e3, "dur": nanoseconds / 1e3}


def launches(connection: sqlite3.Connection, numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The launches of kernels and the copies."""
    query = (
        "SELECT start, duration, name, device, queue, ops, bytes, operations, origins "
        "FROM launches JOIN kernels ON kernels.id = kernel ORDER BY launches.id"
    )
    for start, took, name, device, queue, ops, moved, operations, origins in connection.execute(
        query
    ):
        yield span(
            name,
            numbers[device],
            2 if queue == "copies" else 1,
            start,
            took,
            ops=ops,
            bytes=moved,
            operations=" ".join(json.loads(operations)),
            where=where(json.loads(origins), full=True),
        )


def compilations(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Kernels that were compiled, or loaded from the disk cache."""
    query = "SELECT start, duration, name, device, cached, thread FROM compilations"
    for start, took, name, device, cached, thread in connection.execute(query):
        verb = "load" if cached else "compile"
        yield span(f"{verb} {name}", 1, thread, start, took, device=device)


def replays(connection: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Replays of captured steps."""
    query = "SELECT start, duration, step, thread, observed FROM replays"
    for start, took, step, thread, observed in connection.execute(query):
        yield span(f"replay of step {step}", 1, thread, start, took, observed=bool(observed))


def memory(connection: sqlite3.Connection, numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The bytes in use on each device, after each change."""
    used = dict.fromkeys(numbers, 0)
    for at, device, change in connection.execute(CHANGES_OF_MEMORY):
        if device in used:
            used[device] += change
            yield {
                "ph": "C", "name": "memory", "pid": numbers[device], "ts": at / 1e3,
                "args": {"bytes": used[device]},
            }  # fmt: skip
