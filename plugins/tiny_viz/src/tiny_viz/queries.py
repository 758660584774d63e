"""Queries of the page on a profile, each answered by plain data for JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from tiny_viz.graphs import diagram_of_launches, diagram_of_text
from tiny_viz.passes import made_apart
from tiny_viz.store import LEVELS, connect
from tiny_viz.summary import totals, where
from tinycore.plugin import lock

__all__ = ["Queries"]

Given = Mapping[str, str]
MOST_SPANS: Final = 20_000
"""Spans of a queue that are sent one by one; of more, those of each pixel together."""
MOST_LAUNCHES: Final = 10_000
"""Launches in one graph."""
MOST_HOLDERS: Final = 200
MOST_SAMPLES: Final = 20_000
"""Samples that are looked at for a part of the time; of more, some by chance."""
MOST_PIXELS: Final = 8192
MOST_GRAPHS: Final = 5000


class Queries:
    """The queries on one profile, usable from several threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._connection = connect(path)
        self._lock = lock()
        self._made: dict[str, Any] = {}
        """Answers that took another process, by their question."""
        self.known: dict[str, Callable[[Given], Any]] = {
            "summary": self.summary,
            "timeline": self.timeline,
            "kernel": self.kernel,
            "passes": self.passes,
            "graph": self.graph,
            "nodes": self.nodes,
            "schedules": self.schedules,
            "schedule": self.schedule,
            "memory": self.memory,
            "holders": self.holders,
            "file": self.file,
            "failures": self.failures,
        }
        """By their paths."""

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def summary(self, given: Given) -> Any:
        """The program, all kernels with their totals, and how much there is of everything."""
        about = dict(self.rows("SELECT key, value FROM meta"))
        rates = {d: (f, b) for d, f, b in self.rows("SELECT device, flops, bytes FROM rates")}
        with self._lock:
            kernels = totals(self._connection, rates)
        (launches,) = self.rows("SELECT count(*) FROM launches")[0]
        (failures,) = self.rows("SELECT count(*) FROM failures")[0]
        return {
            "about": about,
            "nanoseconds": int(about.get("nanoseconds", 0)),
            "file": self.path.name,
            "rates": rates,
            "launches": launches,
            "failures": failures,
            "files": [path for (path,) in self.rows("SELECT path FROM files ORDER BY path")],
            "kernels": [
                {
                    "id": kernel.number,
                    "name": kernel.name,
                    "device": kernel.device,
                    "queue": kernel.queue,
                    "operations": kernel.operations,
                    "origins": kernel.origins,
                    "launches": kernel.launches,
                    "seconds": kernel.seconds,
                    "share": kernel.share,
                    "ops": kernel.ops,
                    "bytes": kernel.bytes,
                    "limit": kernel.limit,
                    "bound": kernel.bound,
                }
                for kernel in kernels
            ],
        }

    def timeline(self, given: Given) -> Any:
        """The spans between two times, by lane; those of one pixel together where they are many.

        A span is [start, duration, kernel or index of a label, launches].
        """
        first, last = int(given["from"]), int(given["to"])
        pixel = max((last - first) // min(int(given.get("pixels", 1000)), MOST_PIXELS), 1)
        lanes = [*self.device_lanes(first, last, pixel)]
        labels: list[str] = []
        for name, table, label in (
            ("replays", "replays", "'replay of step ' || step"),
            ("compilation", "compilations", "iif(cached, 'load ', 'compile ') || name"),
        ):
            found = self.rows(
                f"SELECT start, duration, {label} FROM {table} WHERE start < ? AND "
                "start + duration > ? ORDER BY start LIMIT ?",
                (last, first, MOST_SPANS),
            )
            if found:
                lanes.append({"name": name, "spans": labeled(found, labels)})
        lanes += self.python_lanes(first, last, pixel, labels)
        return {"lanes": lanes, "labels": labels}

    def device_lanes(self, first: int, last: int, pixel: int) -> Iterable[Any]:
        """A lane for each queue of each device."""
        queues = self.rows("SELECT DISTINCT device, queue FROM kernels ORDER BY device, queue DESC")
        (before,) = self.rows("SELECT max(most) FROM totals")[0]
        (count,) = self.rows(
            "SELECT count(*) FROM (SELECT 1 FROM launches WHERE start BETWEEN ? AND ? LIMIT ?)",
            (first, last, MOST_SPANS * 10 + 1),
        )[0]
        widths = {
            level: int(width)
            for level in LEVELS
            for (width,) in self.rows("SELECT value FROM meta WHERE key = ?", (f"width {level}",))
        }
        coarse = [level for level in LEVELS if widths.get(level, pixel + 1) <= pixel]
        for device, queue in queues:
            if count > MOST_SPANS * 10 and widths:
                level = coarse[0] if coarse else max(widths)
                spans = self.rows(
                    "SELECT start, finish - start, kernel, launches FROM bins WHERE level = ? AND "
                    "bin BETWEEN ? AND ? AND device = ? AND queue = ?",
                    (level, first // widths[level], last // widths[level], device, queue),
                )
            elif count > MOST_SPANS:
                spans = self.rows(
                    "SELECT min(start), max(start + duration) - min(start), kernel, count(*) FROM "
                    "launches JOIN kernels ON kernels.id = kernel WHERE start BETWEEN ? AND ? AND "
                    "device = ? AND queue = ? GROUP BY start / ?",
                    (first - (before or 0), last, device, queue, pixel),
                )
            else:
                spans = self.rows(
                    "SELECT start, duration, kernel, 1 FROM launches JOIN kernels ON kernels.id = "
                    "kernel WHERE start BETWEEN ? AND ? AND start + duration > ? AND device = ? "
                    "AND queue = ? ORDER BY start",
                    (first - (before or 0), last, first, device, queue),
                )
            yield {"name": f"{device} {queue}", "kernels": True, "spans": spans}

    def python_lanes(self, first: int, last: int, pixel: int, labels: list[str]) -> Iterable[Any]:
        """A lane for each thread: neighboring samples of the same line are one span."""
        found: dict[int, list[list[int]]] = defaultdict(list)
        numbers: dict[int, int] = {}
        query = "SELECT id FROM samples WHERE start {} ? ORDER BY start {}, id {} LIMIT 1"
        low = self.rows(query.format(">=", "", ""), (first - 10**8,))
        high = self.rows(query.format("<=", "DESC", "DESC"), (last,))
        chosen, step = some_of(low[0][0], high[0][0]) if low and high else ([], 1)
        rows = self.rows(
            "SELECT start, thread, place, function, file, line FROM json_each(?) JOIN samples ON "
            "samples.id = value JOIN places ON places.id = place ORDER BY samples.id",
            (json.dumps(chosen),),
        )
        for start, thread, place, function, file, line in rows:
            if place not in numbers:
                numbers[place] = len(labels)
                labels.append(f"{Path(file).name}:{line} {function}")
            spans = found[thread]
            if spans:
                spans[-1][1] = min(start - spans[-1][0], spans[-1][1] + 10**8 * step)
            if not spans or spans[-1][2] != numbers[place]:
                spans.append([start, pixel, numbers[place], 0])
            spans[-1][3] += 1
        names = dict(self.rows("SELECT id, name FROM threads"))
        for thread, spans in sorted(found.items()):
            yield {"name": f"Python {names.get(thread, thread)}", "spans": spans}

    def kernel(self, given: Given) -> Any:
        """The facts of a kernel that a profile has."""
        number = int(given["id"])
        found = self.rows(
            "SELECT name, device, queue, ops, bytes, operations, origins, graph, source "
            "FROM kernels WHERE id = ?",
            (number,),
        )
        if not found:
            raise ValueError(f"there is no kernel {number}")
        name, device, queue, ops, moved, operations, origins, graph, source = found[0]
        launches = self.rows(
            "SELECT id, start, duration FROM launches WHERE kernel = ? ORDER BY start LIMIT 2000",
            (number,),
        )
        return {
            "id": number,
            "name": name,
            "device": device,
            "queue": queue,
            "ops": ops,
            "bytes": moved,
            "operations": json.loads(operations),
            "origins": json.loads(origins),
            "graph": self.text(graph),
            "source": self.text(source),
            "launches": launches,
        }

    def text(self, number: int | None) -> str:
        """A long text."""
        found = self.rows("SELECT content FROM texts WHERE id = ?", (number,))
        return found[0][0] if found else ""

    def passes(self, given: Given) -> Any:
        """The passes of lowering a kernel, made anew, with differences, rules and proposals."""
        found = self.rows(
            "SELECT texts.content, device, source, settings FROM kernels JOIN texts ON texts.id = "
            "graph WHERE kernels.id = ?",
            (int(given["id"]),),
        )
        if not found:
            raise ValueError("a copy has no graph")
        *question, source, settings = found[0]
        made = self.made("tiny_viz.passes", question, settings)
        # a kernel that was made before, or came from the disk cache, has no source
        return made | {"same": made.get("source") == self.text(source) if source else None}

    def schedules(self, given: Given) -> Any:
        """Every graph of tensors that was scheduled, with its kernels and how often it ran."""
        known = self.kernel_numbers()
        rows = self.rows(
            "SELECT graphs.id, start, length(content) - length(replace(content, char(10), '')), "
            "kernels, count FROM graphs JOIN texts ON texts.id = graphs.graph LEFT JOIN runs ON "
            "runs.graph = graphs.id ORDER BY graphs.id LIMIT ?",
            (MOST_GRAPHS,),
        )
        names = ("id", "start", "nodes", "kernels", "runs")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        for graph in found:
            graph["kernels"] = [number_in(known, *k) for k in json.loads(graph["kernels"])]
        return found

    def kernel_numbers(self) -> dict[tuple[int, str], int]:
        """Kernels by their graph and origins, and, with "" for these, by their graph alone."""
        found: dict[tuple[int, str], int] = {}
        for number, graph, origins in self.rows("SELECT id, graph, origins FROM kernels"):
            found[graph, origins] = number
            found.setdefault((graph, ""), number)
        return found

    def schedule(self, given: Given) -> Any:
        """A graph of tensors, scheduled anew: values in memory, reasons, levels, passes."""
        found = self.rows(
            "SELECT content, policy, varying, kernels, settings FROM graphs JOIN texts ON texts.id "
            "= graph WHERE graphs.id = ?",
            (int(given["id"]),),
        )
        if not found:
            raise ValueError(f"there is no graph {given['id']}")
        content, policy, varying, kernels, settings = found[0]
        listed, known = json.loads(kernels), self.kernel_numbers()
        question = [content, policy, json.loads(varying)]
        made = self.made("tiny_viz.schedules", question, settings)
        ran = [self.text(graph) for graph, *_ in listed]
        return made | {
            "same": made.get("kernels") == ran,
            "kernels": [number_in(known, *kernel) for kernel in listed],
        }

    def made(self, module: str, question: Any, settings: int) -> Any:
        """The answer of another process under settings of the program, asked once."""
        key = json.dumps([module, question, settings])
        if key not in self._made:
            self._made[key] = made_apart(module, question, self.text(settings))
        return self._made[key]

    def nodes(self, given: Given) -> Any:
        """The graph of a kernel, laid out."""
        found = self.rows("SELECT graph FROM kernels WHERE id = ?", (int(given["id"]),))
        return diagram_of_text(self.text(found[0][0]) if found else "").plain()

    def graph(self, given: Given) -> Any:
        """Launches from one on, and the memory that connects them, laid out."""
        first, count = int(given.get("from", 1)), int(given.get("count", 200))
        rows = self.rows(
            "SELECT launches.id, kernel, name, origins, written, memory FROM launches JOIN kernels "
            "ON kernels.id = kernel WHERE launches.id >= ? ORDER BY launches.id LIMIT ?",
            (first, min(count, MOST_LAUNCHES)),
        )
        memory = {row[0]: numbers_in(row[-1]) for row in rows}
        used = json.dumps(sorted({number for numbers in memory.values() for number in numbers}))
        listed = "SELECT value FROM json_each(?)"
        views = self.rows(f"SELECT id, base FROM views WHERE id IN ({listed})", (used,))
        bases = dict(views)
        launches = [
            (
                number,
                kernel,
                name,
                where(json.loads(origins)),
                [
                    (bases.get(buffer, buffer), slot in json.loads(written))
                    for slot, buffer in enumerate(memory[number])
                ],
            )
            for number, kernel, name, origins, written, _ in rows
        ]
        whole = sorted({buffer for *_, bound in launches for buffer, _ in bound})
        buffers = self.rows(
            f"SELECT id, device, dtype, bytes FROM buffers WHERE id IN ({listed})",
            (json.dumps(whole),),
        )
        found = {number: (device, dtype, size) for number, device, dtype, size in buffers}
        return diagram_of_launches(launches, found).plain() | {"last": first + len(rows) - 1}

    def memory(self, given: Given) -> Any:
        """The bytes in use on each device over time: [time, bytes] of each change, or the most."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for device, at, used in self.rows("SELECT device, at, bytes FROM usage ORDER BY at"):
            found[device].append((at, used))
        return found

    def holders(self, given: Given) -> Any:
        """Holders of memory at a time: buffers, the largest first, and their first kernel."""
        at = int(given["at"])
        rows = self.rows(
            "SELECT buffers.id, buffers.device, dtype, buffers.bytes, born, died, kernel, "
            "buffers.written, name, origins FROM buffers LEFT JOIN kernels ON kernels.id = kernel "
            "WHERE born <= ? AND (died IS NULL OR died > ?) ORDER BY buffers.bytes DESC LIMIT ?",
            (at, at, MOST_HOLDERS),
        )
        names = "id device dtype bytes born died kernel written name".split()
        return [
            dict(zip(names, row, strict=False)) | {"origins": json.loads(row[-1] or "[]")}
            for row in rows
        ]

    def file(self, given: Given) -> Any:
        """The text of a file of the program."""
        found = self.rows("SELECT content FROM files WHERE path = ?", (given["path"],))
        return {"path": given["path"], "text": found[0][0] if found else ""}

    def failures(self, given: Given) -> Any:
        """Every failure."""
        names = "start kernel device operations origins error message traceback".split()
        rows = self.rows(f"SELECT {', '.join(names)} FROM failures ORDER BY start LIMIT 1000")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        for failure in found:
            for name in ("operations", "origins"):
                failure[name] = json.loads(failure[name])
        return found


def numbers_in(memory: bytes) -> Sequence[int]:
    """The numbers of the memory in the slots of a launch."""
    return memoryview(memory).cast("I")


def number_in(
    known: Mapping[tuple[int, str], int], graph: int, operations: str, origins: str
) -> int:
    """The number of a kernel of a schedule, 0 for one that never ran."""
    return known.get((graph, origins)) or known.get((graph, ""), 0)


def labeled(rows: Iterable[Any], labels: list[str]) -> list[list[int]]:
    """Spans whose labels are numbers in a list, which they are added to."""
    numbers: dict[str, int] = {}
    spans = []
    for start, duration, label in rows:
        if label not in numbers:
            numbers[label] = len(labels)
            labels.append(label)
        spans.append([start, duration, numbers[label], 1])
    return spans


def some_of(low: int, high: int) -> tuple[list[int], int]:
    """Numbers from `low` to `high`, of many one by chance out of every few, and how many these are.

    By chance, since samples of several threads take turns.
    """
    step = max(high - low + 1, 0) // MOST_SAMPLES + 1
    draw = Random(low).randrange
    return [min(start + draw(step), high) for start in range(low, high + 1, step)], step
