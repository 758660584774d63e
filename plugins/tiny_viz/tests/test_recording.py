"""Profiles: what is recorded, and what is told of it."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

import tinycore
from tiny_viz import limits
from tiny_viz.profile import profile
from tiny_viz.recorder import Recorder
from tiny_viz.rows import MOST_POINTS, Usage
from tiny_viz.store import connect
from tiny_viz.summary import summary_of, text_table
from tinycore import Context, Device, Tensor, TinyJit, cache
from tinycore.config import process, settings
from tinycore.engine.counters import profilers
from tinycore.engine.transactions import Transaction
from tinycore.errors import ArgumentError, FileFormatError

PROGRAM = """
from tinycore import Tensor
a = Tensor.rand(16, 16).realize()
for _ in range(3):
    (a @ a).softmax().realize()
"""
BLOCK = """import tinycore
from tinycore import Tensor
with tinycore.profile() as found:
    (Tensor([1.0, 2.0]) + 1).realize()
print(found)
"""
FORKING = """
import os
import sys
import tinycore
from tinycore import Tensor
from tinycore.engine.counters import profilers
a = Tensor([1.0, 2.0]).realize()
with tinycore.profile() as outer:
    (a + 1).realize()
    if (child := os.fork()) == 0:
        os.wait() if os.fork() else sys.exit()
        assert not profilers
        (a + 1).realize()
        with tinycore.profile() as own:
            (a * 2).realize()
        print(own, "then", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(outer)
"""
BLOCKS = """import threading
from tinycore import Context, Tensor
from tinycore.engine.counters import profilers
a = Tensor([1.0, 2.0]).realize()
made = Context(VIZ=1)
def compute():
    with made:
        (a * 3).realize()
with made:
    with Context(VIZ=1):
        (a + 1).realize()
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    (a - 1).realize()
assert not profilers
(a / 3).realize()
with Context(VIZ=0), made:
    pass
@made
def fail():
    a.exp2().realize()
    raise ZeroDivisionError
try:
    fail()
except ZeroDivisionError:
    with made:
        pass
"""
AROUND = """import os, tempfile, threading
from tinycore import Context, Tensor
entered, made, left = threading.Event(), threading.Event(), threading.Event()
def wait():
    with Context(VIZ=1):
        entered.set()
        made.wait()
    left.set()
threading.Thread(target=wait).start()
entered.wait()
with Context(VIZ=1):
    with Context(VIZ=1), Context(VIZ=0):
        (Tensor([1.0]) + 1).realize()  # imports this package
    made.set()
    left.wait()
    (Tensor([1.0]) * 3).exp2().realize()
place = os.getcwd()
gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
try:
    with Context(VIZ=1):
        pass
except FileNotFoundError:
    os.chdir(place)
with Context(VIZ=1):
    Tensor([1.0]).sin().realize()
"""
FAILING = """
from tinycore import Tensor
a = Tensor.rand(16, 16).realize()
raise ValueError("<b>no</b>")
"""


def query(path: Path, text: str) -> list[Any]:
    """The rows of a query on a profile."""
    with closing(connect(path)) as connection:
        return connection.execute(text).fetchall()


def memory_of_launches(path: Path) -> list[list[int]]:
    """The numbers of the memory in the slots of each launch."""
    return [[*memoryview(row).cast("I")] for (row,) in query(path, "SELECT memory FROM launches")]


@pytest.fixture(autouse=True)
def on_python() -> Any:
    """Kernels run in the interpreter, which needs no compiler."""
    with Context(DEV="PYTHON"):
        yield


def test_a_block_is_recorded(tmp_path: Path) -> None:
    a = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    with tinycore.profile(tmp_path / "one.tinyviz") as found:
        for _ in range(2):
            (a @ a).softmax().realize()

    kernels = summary_of(found.path).kernels
    assert {kernel.launches for kernel in kernels} == {2}
    origins = [origin for kernel in kernels for origin in kernel.origins]
    assert {method for method, _, _ in origins} == {"softmax", "matmul"}
    assert {Path(file).name for _, file, _ in origins} == {Path(__file__).name}
    assert "softmax test_recording.py:" in str(found)
    assert "<table>" in found._repr_html_()
    assert not profilers


def test_launches_tell_their_memory(tmp_path: Path) -> None:
    a = Tensor([1.0, 2.0]).realize()
    with profile(tmp_path / "one.tinyviz") as found:
        b = (a + 1).realize()
        c = (b * 2).realize()
        del b, c

    (out, source), (last, read) = memory_of_launches(found.path)
    assert out == read, "the second kernel reads what the first has written"
    assert query(found.path, "SELECT written FROM kernels") == [("[0]",)] * 2
    died = dict(query(found.path, "SELECT id, died NOT NULL FROM buffers"))
    assert died == {out: 1, source: 0, last: 1}


def test_replays_count_with_all_their_launches(tmp_path: Path) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x + 1).sum().realize()

    x = Tensor.arange(64).float().realize()
    with profile(tmp_path / "one.tinyviz") as found:
        for _ in range(20):
            step(x)

    replays = query(found.path, "SELECT observed, count(*) FROM replays GROUP BY observed")
    total = sum(count for _, count in replays)
    (kernel,) = summary_of(found.path).kernels
    assert total == 18, "after a run and the capture"
    assert dict(replays)[0] > 0
    assert kernel.launches == 20


def test_replays_of_a_step_that_is_gone_stay_its_own(tmp_path: Path) -> None:
    x = Tensor.arange(8).float().realize()
    with profile(tmp_path / "one.tinyviz") as found:
        kept = TinyJit(lambda x: (x + 1).realize())
        for number in range(2, 5):
            step = TinyJit(lambda x, n=number: (x * n).sum().realize())
            for _ in range(number + 2):
                step(x)
                kept(x)
            del step
            gc.collect()

    counts = query(found.path, "SELECT count(*) FROM replays WHERE NOT observed GROUP BY step")
    assert len(counts) == 4
    steps = [json.loads(text) for (text,) in query(found.path, "SELECT kernels FROM steps")]
    assert len({tuple(kernels) for kernels in steps}) == len(steps) == 4


def test_replays_of_a_step_in_two_threads_are_those_of_one_step(tmp_path: Path) -> None:
    x = Tensor.arange(8).float().realize()
    step = TinyJit(lambda x: (x + 1).realize())

    def replay() -> None:
        with Context(DEV="PYTHON"):
            for _ in range(9):
                step(x)

    with profile(tmp_path / "one.tinyviz") as found:
        replay()
        thread = threading.Thread(target=replay)
        thread.start()
        thread.join()

    replays = query(found.path, "SELECT step, thread, count(*) FROM replays GROUP BY step, thread")
    first, other = (thread for _, thread, _ in replays)
    assert replays == [(1, first, 7), (1, other, 9)]


def bytecodes(call: Callable[[], object]) -> int:
    """Bytecodes of this thread in a call, the fewest of some."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    found, before = [], sys.gettrace()
    for _ in range(6):
        count = 0
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(before)
        found.append(count)
    return min(found)


def test_recording_adds_few_bytecodes_to_a_launch_and_to_a_replay(tmp_path: Path) -> None:
    x = Tensor.arange(8).float().realize()
    step = TinyJit(lambda x: (x + 1).realize())
    calls: list[Callable[[], object]] = [lambda: x.add(1).realize(), lambda: step(x)]
    for call in calls * 3:
        call()
    plain = [bytecodes(call) for call in calls]
    with profile(tmp_path / "one.tinyviz"):
        for call in calls * 3:
            call()
        added = [bytecodes(call) - before for call, before in zip(calls, plain, strict=True)]

    assert added[0] < 350, "280 of 3,800 that a launch takes on a CPU"
    assert added[1] < 100, "70 of 1,100 that a replay takes on a CPU"


class Meeting:
    """As the first event comes, another thread makes the same launch and hands over all."""

    recorder: Recorder
    runner: Any
    thread: threading.Thread | None = None

    def come(self) -> None:
        """Let the other thread begin, and wait for it unless it waits for this one."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.meet)
            self.thread.start()
            self.thread.join(0.3)

    def meet(self) -> None:
        """Launch."""
        self.recorder.record(*self.runner)
        self.recorder.flush(waits=True)


class MeetingEvents(deque[Any], Meeting):
    """Events that come one by one."""

    def append(self, event: Any) -> None:
        self.come()
        super().append(event)


class MeetingMemory(list[Any], Meeting):
    """Events that are in a list."""

    def append(self, event: Any) -> None:
        self.come()
        super().append(event)


MEETINGS: dict[str, Any] = {"kernels": MeetingEvents, "events": MeetingMemory}


@pytest.mark.parametrize("kind", MEETINGS)
def test_threads_that_meet_at_a_first_launch_are_recorded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[Any] = []
    recorder = Recorder(tmp_path / "one.tinyviz", lambda devices: [])
    monkeypatch.setattr(recorder, "record", lambda *about: launched.append(about))
    recorder.start()
    (Tensor([1.0, 2.0]).realize() + 1).realize()
    monkeypatch.undo()
    met: Any = MEETINGS[kind]()
    met.recorder, met.runner = recorder, launched[-1]
    recorder.noted = recorder.noted._replace(**{kind: met})
    recorder.record(*launched[-1])
    assert met.thread is not None
    met.thread.join()

    assert recorder.stop()
    (kernel,) = summary_of(recorder.writer.path).kernels
    assert kernel.launches == 2
    one, other = memory_of_launches(recorder.writer.path)
    assert one == other
    assert dict(query(recorder.writer.path, "SELECT id, 1 FROM buffers")).keys() == {*one}


def test_a_failure_is_recorded_with_its_error(tmp_path: Path) -> None:
    found = profile(tmp_path / "one.tinyviz")
    with pytest.raises(ZeroDivisionError):
        fail_inside(found)

    (failure,) = summary_of(found.path).failures
    assert failure == "the program: ZeroDivisionError: of the user"


def fail_inside(found: profile) -> None:
    """Run a kernel, then fail, while a profile is recorded."""
    with found:
        (Tensor([1.0]).realize() + 1).realize()
        raise ZeroDivisionError("of the user")


def test_a_profile_of_other_threads_has_their_lines(tmp_path: Path) -> None:
    def compute() -> None:
        with Context(DEV="PYTHON"):
            (Tensor([1.0, 2.0]) * 3).realize()

    with profile(tmp_path / "one.tinyviz") as found:
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()

    assert "mul test_recording.py:" in str(found)


def test_profiles_may_overlap(tmp_path: Path) -> None:
    one, other = (profile(tmp_path / f"{name}.tinyviz") for name in ("one", "other"))
    one.__enter__()
    other.__enter__()
    (Tensor([1.0, 2.0]) * 3).realize()
    one.__exit__(None, None, None)
    (Tensor([1.0, 2.0]) * 4).realize()
    other.__exit__(None, None, None)

    assert [len(summary_of(each.path).kernels) for each in (one, other)] == [1, 2]
    assert "mul test_recording.py:" in str(other)
    assert process["VIZ"] == 0


def test_a_profile_that_begins_within_a_transaction_finds_untimed_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Device.plugins.find("CPU") is None:
        pytest.skip("the interpreter times each launch")
    found = profile(tmp_path / "one.tinyviz")
    launch = Transaction.launch

    def begin(self: Transaction, calls: Any) -> None:
        found.__enter__()
        launch(self, calls)

    with Context(DEV="CPU"):
        a = Tensor.zeros(4).contiguous().realize()
        a += 1
        monkeypatch.setattr(Transaction, "launch", begin)
        a.realize()
        monkeypatch.undo()
        found.__exit__(None, None, None)

    assert a.tolist() == [1.0] * 4
    assert sum(kernel.launches for kernel in summary_of(found.path).kernels) == 1


def test_a_profile_compiles_nothing_anew(tmp_path: Path) -> None:
    def compute() -> None:
        (Tensor([1.0, 2.0]) * 6.5).exp2().realize()

    compute()
    with profile(tmp_path / "one.tinyviz") as found:
        compute()

    assert query(found.path, "SELECT count(*) FROM compilations") == [(0,)]
    assert len(summary_of(found.path).kernels) == 1


def test_memory_of_views_and_equal_slots_is_told(tmp_path: Path) -> None:
    a = Tensor.arange(64).float().realize()
    with profile(tmp_path / "one.tinyviz") as found:
        part = a[16:32].contiguous().realize()
        (part + part).realize()
        (a.shrink(((8, 24),)) * a.shrink(((24, 40),))).realize()
        (a - a.mean()).std().realize()  # with temporaries, which are parts of a block

    views = {view: place for view, *place in query(found.path, "SELECT * FROM views")}
    sizes = dict(query(found.path, "SELECT id, bytes FROM buffers"))
    assert views
    for base, offset, size in views.values():
        assert 0 <= offset <= offset + size <= sizes[base]
    used = {number for memory in memory_of_launches(found.path) for number in memory}
    assert used <= views.keys() | sizes.keys()


def test_memory_over_time_has_a_bounded_number_of_points() -> None:
    usage = Usage()
    for part in range(10):
        numbers = range(part * 10_000, part * 10_000 + 10_000)
        changes = [change for n in numbers for change in ((n * 1000, 8), (n * 1000 + 400, -8))]
        usage.change(*zip(*changes, strict=True))
    usage.change([10**9], [100])

    points = [*zip(usage.at.tolist(), usage.most.tolist(), strict=True)]
    assert points == sorted(points)
    assert MOST_POINTS // 8 < len(points) <= MOST_POINTS
    assert points[-1] == (10**9, 100)
    assert {used for _, used in points[:-1]} == {8}, "the most in each part of the time"


@pytest.mark.parametrize("seed", range(8))
def test_memory_over_time_is_what_all_changes_make(seed: int) -> None:
    draw, usage, at, used = random.Random(seed), Usage(), 0, 0
    expected: dict[int, int] = {}
    for _ in range(draw.randrange(1, 9)):
        changes = []
        for _ in range(draw.randrange(1, 90)):
            at += draw.randrange(3)
            size = draw.randrange(-used, 90)
            used += size
            changes.append((at, size))
            expected[at] = max(expected.get(at, 0), used)
        usage.change(*zip(*changes, strict=True))

    assert usage.at.tolist() == [*expected]
    assert usage.most.tolist() == [*expected.values()]


ODD_TIMES = (0.0, None, -1e-9, -1.0, -3e9, -5e18, 5e18, math.inf, -math.inf, math.nan)
"""Times of a launch that a driver may tell, after a clock was set anew or wrapped around."""


@pytest.mark.parametrize("seconds", ODD_TIMES)
def test_a_time_that_is_none_costs_no_profile(seconds: float | None, tmp_path: Path) -> None:
    launched: list[Any] = []
    recorder = Recorder(tmp_path / "one.tinyviz", lambda devices: [])
    recorder.start()
    recorder.record, before = lambda *about: launched.append(about), recorder.record  # type: ignore[method-assign]
    (Tensor([1.0, 2.0]).realize() + 1).realize()
    for _, _, *about in launched:
        before(launched[-1][0], seconds, *about)
    assert recorder.stop()

    whole = int(dict(query(recorder.writer.path, "SELECT * FROM meta"))["nanoseconds"])
    rows = query(recorder.writer.path, "SELECT start, duration FROM launches")
    assert len(rows) == len(launched)
    assert all(0 <= start <= start + took <= whole for start, took in rows)
    assert text_table(summary_of(recorder.writer.path))


def test_limits_are_those_of_the_machine_not_of_plain_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SLOW", ())
    monkeypatch.setattr(cache, "get", lambda *key: None)
    monkeypatch.setattr(cache, "put", lambda *row: None)
    for name in ("products", "copies"):
        monkeypatch.setattr(limits, name, lambda device: 1.0 + settings.NOOPT)
    with Context(NOOPT=1):
        assert limits.measured("PYTHON") == (1.0, 1.0)


def test_limits_of_an_emulator_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLOW", ())
    monkeypatch.setattr(limits, "PATIENCE", 0.0)
    monkeypatch.setattr(cache, "get", lambda *key: None)
    monkeypatch.setattr(limits, "products", lambda device: pytest.fail("it would take minutes"))

    assert limits.measured("PYTHON") == (0.0, 0.0)


def test_an_empty_block_makes_no_file(tmp_path: Path) -> None:
    with profile(tmp_path / "one.tinyviz") as found:
        pass

    assert str(found) == "no kernel ran"
    assert not found.path.exists()
    with pytest.raises(ArgumentError, match="one block"), found:
        pass


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database")
    with pytest.raises(FileFormatError, match="is no profile"):
        connect(tmp_path / "text")
    with pytest.raises(FileFormatError, match="there is no profile"):
        connect(tmp_path / "absent")
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE x(y)").connection.close()
    with pytest.raises(FileFormatError, match="no profile of tinycore"):
        connect(tmp_path / "other")


def test_a_profile_with_other_tables_is_refused(tmp_path: Path) -> None:
    with profile(tmp_path / "one.tinyviz") as found:
        (Tensor([1.0]).realize() + 1).realize()
    with closing(sqlite3.connect(found.path)) as connection:
        connection.execute("CREATE VIEW x AS SELECT 1")

    with pytest.raises(FileFormatError, match="other tables"):
        connect(found.path)


def run_program(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder."""
    (folder / "program.py").write_text(text)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | {"DEV": "PYTHON"} | variables,
    )


def test_a_block_leaves_no_file_of_the_whole_program(tmp_path: Path) -> None:
    done = run_program(BLOCK, tmp_path)

    assert done.returncode == 0, done.stderr
    assert "add program.py:4" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_program_is_recorded(tmp_path: Path) -> None:
    done = run_program(PROGRAM, tmp_path, VIZ="1")

    (path,) = tmp_path.glob("*.tinyviz")
    assert f"tinycore viz {path}" in done.stderr
    assert " softmax program.py:5" in text_table(summary_of(path))
    assert path.stat().st_mode & 0o077 == 0


def test_a_failing_program_is_recorded(tmp_path: Path) -> None:
    done = run_program(FAILING, tmp_path, VIZ="1")

    (path,) = tmp_path.glob("*.tinyviz")
    assert done.returncode == 1
    assert summary_of(path).failures == ("the program: ValueError: <b>no</b>",)


def test_blocks_of_a_context_are_recorded_one_by_one(tmp_path: Path) -> None:
    done = run_program(BLOCKS, tmp_path)

    assert done.returncode == 0, done.stderr
    told = re.findall("the profile of this block: tinycore viz (.*)", done.stderr)
    assert len(told) == 2 == len([*tmp_path.glob("*.tinyviz")])
    first, last = (summary_of(path) for path in told)
    methods = [
        {origin[0] for kernel in each.kernels for origin in kernel.origins}
        for each in (first, last)
    ]
    assert methods == [{"add", "mul", "sub"}, {"exp2"}]
    assert last.failures == ("the program: ZeroDivisionError: ",)


def test_blocks_around_the_first_kernel_are_recorded_to_their_end(tmp_path: Path) -> None:
    done = run_program(AROUND, tmp_path)

    assert done.returncode == 0, done.stderr
    told = re.findall("the profile of this block: tinycore viz (.*)", done.stderr)
    launches = [sum(kernel.launches for kernel in summary_of(path).kernels) for path in told]
    assert launches == [2, 1]


def test_a_recorded_program_has_its_blocks_in_one_profile(tmp_path: Path) -> None:
    done = run_program(BLOCKS.replace("assert not profilers", ""), tmp_path, VIZ="1")

    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.tinyviz")
    assert sum(kernel.launches for kernel in summary_of(path).kernels) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
def test_a_forked_child_records_what_it_asks_for_alone(tmp_path: Path) -> None:
    done = run_program(FORKING, tmp_path, VIZ="1")

    assert done.returncode == 0, done.stderr
    child, _, parent = done.stdout.partition("then\n")
    assert " mul program.py:15" in child
    assert " add " not in child
    assert " add program.py:9" in parent
    (path,) = tmp_path.glob("*.tinyviz")
    assert [kernel.launches for kernel in summary_of(path).kernels] == [1]


SHOWN = """
from tinycore import Context, Tensor

for _ in range(2):
    with Context(VIZ=2):
        (Tensor([1.0]) + 1).realize()
"""


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent to a group of processes")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda program: os.killpg(program.pid, signal.SIGINT), 0),
        (lambda program: program.terminate(), 0),
        (lambda program: program.kill(), -9),
    ],
    ids=["ctrl-c", "terminated", "killed"],
)
def test_the_pages_of_all_blocks_are_served_until_the_program_is_ended(
    end: Callable[[subprocess.Popen[str]], None], status: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(SHOWN)
    variables = os.environ | {"DEV": "PYTHON", "BROWSER": "true"}
    command = [sys.executable, "program.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stderr is not None
        # a page that is not served ends the test, as does a server that stays
        watch = threading.Timer(90, os.killpg, (program.pid, signal.SIGKILL))
        watch.start()
        pages = []
        for line in program.stderr:
            pages += re.findall("is shown at (http.*)", line)
            if len(pages) == 2:
                break
        for page in pages:
            with urlopen(page, timeout=60) as answer:
                assert b"<html" in answer.read()
        end(program)
        assert program.wait(60) == status
        program.stderr.read()  # a program that is killed waits for no server
        assert watch.is_alive(), "a server has outlived the program"
        watch.cancel()
        for page in pages:
            with pytest.raises(URLError):
                urlopen(page, timeout=60)


def test_without_viz_nothing_of_this_package_is_imported(tmp_path: Path) -> None:
    show = "import sys; print(sorted(m for m in sys.modules if m.startswith('tiny_viz')))"
    done = run_program(f"{PROGRAM}{show}", tmp_path)

    assert done.stdout.strip() == "['tiny_viz', 'tiny_viz.hooks']"
    assert not list(tmp_path.glob("*.tinyviz"))
