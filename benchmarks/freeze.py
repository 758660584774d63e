"""Record of what each benchmark case does, and comparison of this tree with it.

    python -m benchmarks.freeze [--only PATTERN]     compare with the record
    python -m benchmarks.freeze --record             write it anew

A row has the launches of one warm call, the bytes that its kernels touch, and its peak of device
memory, plain and by TinyJit; on the device NULL, which runs nothing, under limits of a processor
with AVX-512, so no machine changes them. Golden plans are compared by launches, bytes of new memory
and text. What Python costs is a row for each case of `python_cost`: bytecodes, which no other work
on the machine changes, and processor time. Status 1 where anything is worse: more launches, bytes,
memory, or 3 % more bytecodes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "benchmarks" / "results" / "frozen.json"
PLANS: Final = ROOT / "tests" / "golden" / "plans"
HEAD: Final = re.compile(r"(?:^|\n)[^\n]*?: (\d+) launches, ([\d,]+) B of new memory")
MOST_COST: Final = 1.03
"""Most bytecodes of a call, as a multiple of those recorded: 1 / .97."""
TURNS: Final = 6

Row = dict[str, Any]
Record = dict[str, dict[str, Row]]


# --- launches, bytes, memory


def counts_of(pattern: str) -> Iterator[tuple[str, Row]]:
    """A row for each benchmark case that runs kernels; in a process on the device NULL."""
    from benchmarks.case import Case, Kind  # noqa: PLC0415  after the environment is set
    from benchmarks.cases import CASES  # noqa: PLC0415
    from tinycore.schedule.limits import cut_for  # noqa: PLC0415

    for case in CASES:
        if isinstance(case, Case) and case.kind is not Kind.TOOL and re.search(pattern, case.name):
            with cut_for(processor()):
                for way in ("plain", "TinyJit"):
                    yield f"{case.name}, {way}", count_of(case, way == "TinyJit")


def processor() -> Any:
    """The limits of a processor with AVX-512 and eight threads."""
    from tinycore.render import Limits  # noqa: PLC0415

    return Limits(
        vector_bytes=64, vector_registers=32, pair_bytes=64, threads=8,
        cache_bytes=2 << 20, stream_bytes=64 << 20,
    )  # fmt: skip


def count_of(case: Any, jit: bool) -> Row:
    """Launches, bytes and peak of one warm call."""
    from benchmarks.peers import PEERS  # noqa: PLC0415
    from benchmarks.worker import Work  # noqa: PLC0415
    from tinycore import GlobalCounters  # noqa: PLC0415

    gc.collect()
    before = GlobalCounters.mem_used
    work = Work(case, PEERS["tinycore-jit" if jit else "tinycore"]())
    gc.collect()
    GlobalCounters.reset()
    result = work.call()
    row = {
        "launches": GlobalCounters.kernel_count,
        "bytes": GlobalCounters.global_mem,
        "peak": GlobalCounters.mem_peak - before,
    }
    del work, result
    return row


def counted(pattern: str) -> dict[str, Row]:
    """The rows of all cases, found by a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "DEV": "NULL:PYTHON", "NULL_ALLOW_COPYOUT": "1", "CACHE_DIR": cache,
        }  # fmt: skip
        done = subprocess.run(
            (sys.executable, "-m", "benchmarks.freeze", "--count", "--only", pattern),
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return dict(map(json.loads, done.stdout.splitlines()))


def plans() -> dict[str, Row]:
    """The golden plans."""
    rows = {}
    for path in sorted(PLANS.glob("*/*.txt")):
        text = path.read_text("utf-8")
        heads = HEAD.findall(text)
        rows[path.relative_to(PLANS).as_posix()] = {
            "launches": sum(int(launches) for launches, _ in heads),
            "bytes": sum(int(size.replace(",", "")) for _, size in heads),
            "text": blake2b(text.encode(), digest_size=8).hexdigest(),
        }
    return rows


# --- Python


def costs(pattern: str) -> dict[str, Row]:
    """Bytecodes and microseconds of calls, each measured in a process of its own."""
    from benchmarks import python_cost  # noqa: PLC0415

    rows = {}
    for name in python_cost.CASES:
        if not re.search(pattern, name):
            continue
        with tempfile.TemporaryDirectory() as cache:
            process = python_cost.process_of(ROOT, name, cache)
            try:
                assert process.stdout is not None, "it is a pipe"
                codes = int(json.loads(process.stdout.readline()))
                seconds = min(python_cost.asked(process) for _ in range(TURNS))
            finally:
                process.kill()
                process.wait()
        rows[name] = {"bytecodes": codes, "microseconds": round(seconds * 1e6, 1)}
        print(f"{name}: {rows[name]}", file=sys.stderr)
    return rows


# --- the record


def found_now(pattern: str) -> Record:
    """Everything, of this tree."""
    return {"cases": counted(pattern), "plans": plans(), "python": costs(pattern)}


def differences(before: Record, now: Record) -> Iterator[tuple[bool, str]]:
    """Differences of two records: True for a worse one, and a line that tells it."""
    for part, rows in now.items():
        for name, row in rows.items():
            old = before.get(part, {}).get(name)
            if old is None:
                yield False, f"{part} | {name} | is new"
                continue
            for field, value in row.items():
                if value != old.get(field) and field != "microseconds":
                    yield compared(f"{part} | {name} | {field}", old.get(field), value)
    for part, rows in before.items():
        if part in now:
            yield from ((True, f"{part} | {n} | is gone") for n in rows if n not in now[part])


def compared(what: str, old: Any, new: Any) -> tuple[bool, str]:
    """A value that changed: whether it is worse, and a line."""
    if isinstance(new, str) or not old:
        return False, f"{what} | {old} | {new}"
    most = MOST_COST if what.endswith("bytecodes") else 1
    return new > old * most, f"{what} | {old:,} | {new:,} | {new / old:.3f}"


def times(before: Mapping[str, Row], now: Mapping[str, Row]) -> Iterator[str]:
    """Lines of processor time, which says something on one machine only."""
    for name, row in now.items():
        if old := before.get(name):
            ratio = row["microseconds"] / old["microseconds"]
            yield f"{name} | {old['microseconds']:,} us | {row['microseconds']:,} us | {ratio:.2f}"


def main() -> int:
    """0 where nothing is worse than recorded."""
    parser = argparse.ArgumentParser(prog="benchmarks.freeze", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the record anew")
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name matches")
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        for row in counts_of(given.only):
            print(json.dumps(row), flush=True)
        return 0
    now = found_now(given.only)
    if given.record:
        about = {"python": platform.python_version()}
        RECORD.write_text(json.dumps({"about": about, **now}, indent=1) + "\n", "utf-8")
        return 0
    before = json.loads(RECORD.read_text("utf-8"))
    if (python := before.pop("about")["python"]) != platform.python_version():
        print(f"bytecodes are those of Python {python}, and this is {platform.python_version()}")
    if given.only:
        before = {
            part: {name: row for name, row in rows.items() if name in now[part]}
            for part, rows in before.items()
        }
    found = list(differences(before, now))
    for worse, line in found:
        print(f"{'WORSE' if worse else 'other'} | {line}")
    print("\n".join(times(before["python"], now["python"])))
    return int(any(worse for worse, _ in found))


if __name__ == "__main__":
    raise SystemExit(main())
