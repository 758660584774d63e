"""The threads: every iteration once, whoever calls, also after a fork and at the very end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiny_cpu import pool as pools
from tiny_cpu.arch import Arch
from tiny_cpu.clang import ClangCompiler, is_clang_installed
from tiny_cpu.code import Code
from tiny_cpu.memory import CpuAllocator, HostMemory
from tiny_cpu.program import CpuProgram, Replay
from tinycore.config import Context
from tinycore.errors import FileFormatError
from tinycore.plugin import ProgramInfo

Load = Callable[..., CpuProgram]

EXTENTS = [1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 1001]


@pytest.fixture(params=[2, 3, 8])
def several_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A pool of its own with this many threads; more than there are processors must work too."""
    kept = pools._pools[:]
    pools._pools[:] = [pools.Pool(request.param)]
    with Context(CPU_COUNT=request.param):
        yield request.param
    pools._pools[:] = kept


def zeros(count: int) -> tuple[HostMemory, memoryview[float]]:
    """Memory for `count` floats, and a view of it."""
    allocator = CpuAllocator()
    handle = allocator.alloc(count * 4)
    allocator.write(handle, memoryview(bytes(count * 4)))
    return handle, allocator.map(handle, count * 4).cast("f")


TASKS = Path("/proc/self/task")


def switches(task: Path) -> int:
    """Number of times that a thread of this process went to sleep."""
    status = (task / "status").read_text()
    return int(re.findall(r"(?m)^voluntary_ctxt_switches:\s*(\d+)", status)[0])


@pytest.mark.sample(8)
@pytest.mark.parametrize("extent", EXTENTS)
def test_every_iteration_runs_once(load: Load, several_threads: int, extent: int) -> None:
    program = load("add", parallel=extent)
    data, numbers = zeros(extent + 1)

    for _ in range(20):
        program([data], [3])

    assert numbers.tolist() == [60.0] * extent + [0.0]


def test_work_is_shared_in_about_eight_chunks_a_thread(load: Load, several_threads: int) -> None:
    program = load("add", parallel=1_000_000)

    assert 6 * several_threads <= 1_000_000 / program.chunk <= 8 * several_threads


SLOW = """
int usleep(unsigned microseconds);
void slow(void *const *buffers, const long long *values, long long begin, long long end) {
  for (long long i = begin; i < end; i++) usleep(60000), ((float *)buffers[0])[i] += 1;
}
"""


class Alarm(BaseException):
    """As of a signal handler, in the middle of a kernel."""


@pytest.mark.skipif(not is_clang_installed(), reason="no clang 15 or newer, and no ziglang")
def test_a_signal_handler_ends_a_long_kernel(several_threads: int) -> None:
    """Between two slices; what is done then is done once, and the pool goes on with the next."""

    def ring(number: int, _frame: object) -> None:
        raise Alarm(number)

    binary = ClangCompiler(Arch.parse("native")).compile(SLOW)
    program = CpuProgram(binary, ProgramInfo("slow", buffers=1, parallel=64))
    data, numbers = zeros(64)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)  # in the first slice
        with pytest.raises(Alarm):
            program([data], [])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    done = numbers.tolist()
    assert {0.0, 1.0} == {*done}

    short = CpuProgram(binary, ProgramInfo("slow", buffers=1, parallel=5))
    short([data], [])
    assert numbers.tolist() == [n + (place < 5) for place, n in enumerate(done)]


def test_one_thread_starts_no_pool(load: Load) -> None:
    kept = pools._pools[:]
    pools._pools.clear()
    try:
        with Context(CPU_COUNT=1):
            program = load("add", parallel=100)
        data, numbers = zeros(100)
        program([data], [1])
        assert not pools._pools
        assert set(numbers) == {1.0}
    finally:
        pools._pools[:] = kept


def test_workers_that_fell_asleep_wake_up(load: Load, several_threads: int) -> None:
    program = load("add", parallel=1001)
    data, numbers = zeros(1001)

    for _ in range(5):
        time.sleep(0.01)
        program([data], [1])

    assert set(numbers) == {5.0}


@pytest.mark.sample(3)
def test_threads_of_python_take_turns(load: Load, several_threads: int) -> None:
    programs = [load("add", parallel=extent) for extent in EXTENTS]
    results: list[bool] = []

    def work() -> None:
        data, numbers = zeros(1001)
        for _ in range(200):
            for program in programs:
                program([data], [1])
        results.append(all(numbers[e - 1] == 200 * sum(x >= e for x in EXTENTS) for e in EXTENTS))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [True] * 4


@pytest.mark.sample(3)
def test_a_replay_runs_all_launches_in_order(load: Load, several_threads: int) -> None:
    programs = [load("add", parallel=extent) for extent in EXTENTS]
    data, numbers = zeros(1001)
    replay = Replay([(program, [data], [number]) for number, program in enumerate(programs)])

    for _ in range(30):
        assert replay(wait=True) is not None

    expected = [30.0 * sum(n for n, e in enumerate(EXTENTS) if i < e) for i in range(1001)]
    assert numbers.tolist() == expected


def test_a_replay_takes_new_buffers_and_values(load: Load) -> None:
    (one, first), (other, second) = zeros(10), zeros(10)
    program = load("add", parallel=10)
    replay = Replay([(program, [one], [1]), (program, [one], [2])])

    replay.set_buffer(1, 0, other)
    replay.set_value(0, 0, 5)
    replay()

    assert set(first) == {5.0}
    assert set(second) == {2.0}


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system how often threads ran")
def test_a_replay_wakes_nobody_for_kernels_that_are_not_shared(load: Load) -> None:
    program, (data, numbers) = load("add", parallel=1), zeros(1)
    replay = Replay([(program, [data], [1])] * 3)
    kept, before = pools._pools[:], set(TASKS.iterdir())
    pools._pools[:] = [pools.Pool(3)]
    try:
        workers = sorted(set(TASKS.iterdir()) - before)
        while not all(map(switches, workers)):
            time.sleep(0.01)
        asleep = list(map(switches, workers))
        for _ in range(20):
            replay()
        time.sleep(0.01)
        assert list(map(switches, workers)) == asleep
    finally:
        pools._pools[:] = kept

    assert len(asleep) == 2
    assert numbers[0] == 60.0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the system what threads do")
def test_a_replay_lets_workers_sleep_that_have_nothing_to_do(load: Load) -> None:
    shared, alone, (data, _) = load("add", parallel=1001), load("add"), zeros(1001)
    states: list[str] = []
    kept, before = pools._pools[:], set(TASKS.iterdir())
    pools._pools[:] = [pools.Pool(2)]
    try:
        (worker,) = set(TASKS.iterdir()) - before
        with Context(CPU_COUNT=2):
            replay = Replay([(shared, [data], [1]), *[(alone, [data], [1])] * 1_000_000])

        def work() -> None:
            for _ in range(10):
                replay()

        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            states.append((worker / "stat").read_text().rpartition(")")[2].split()[0])
            time.sleep(0.0005)
    finally:
        pools._pools[:] = kept

    assert states.count("S") > 8  # one or two of these are at the end


def test_an_empty_replay_does_nothing() -> None:
    Replay([])()


@pytest.mark.sample(4)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(load: Load, several_threads: int) -> None:
    program = load("add", parallel=1001)
    data, numbers = zeros(1001)
    program([data], [1])

    child = os.fork()
    if child == 0:
        signal.alarm(20)
        program([data], [1])
        os._exit(0 if set(numbers) == {2.0} and pools.pool().threads == several_threads else 1)

    assert os.waitpid(child, 0)[1] == 0
    program([data], [1])  # the parent's pool is as it was
    assert set(numbers) == {2.0}


@pytest.mark.sample(4)
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_leaves_the_pool_usable(load: Load, several_threads: int) -> None:
    program = load("add", parallel=50_000_000)
    data, numbers = zeros(50_000_000)
    timer = threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT))

    def until_interrupted() -> None:
        timer.start()
        while True:
            program([data], [1])

    with pytest.raises(KeyboardInterrupt):
        until_interrupted()
    timer.join()

    before = numbers[0], numbers[49_999_999]  # of a run that was ended between two slices
    program([data], [1])
    assert (numbers[0], numbers[49_999_999]) == (before[0] + 1, before[1] + 1)


SCRIPT = """
import threading
from tiny_cpu import pool
from tiny_cpu.arch import Arch
from tiny_cpu.clang import ClangCompiler, is_clang_installed
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.memory import CpuAllocator
from tiny_cpu.program import CpuProgram
from tinycore.config import settings
from tinycore.errors import FileFormatError
from tinycore.plugin import ProgramInfo
from tinycore.plugin import ProgramInfo
settings.CPU_COUNT = 4
binary = LlvmCompiler(Arch.parse("")).compile(SOURCE)
program = CpuProgram(binary, ProgramInfo("add", 1, ("amount",), parallel=1001))
data = CpuAllocator().alloc(4004)
def forever():
    while True:
        program([data], [1])
if DAEMON:
    threading.Thread(target=forever, daemon=True).start()
for _ in range(1000):
    program([data], [1])
print("done")
"""


@pytest.mark.sample(6)
@pytest.mark.parametrize("daemon", [False, True], ids=["alone", "beside a thread"])
def test_the_interpreter_ends_at_once_after_work(
    sources: dict[str, dict[str, str]], daemon: bool
) -> None:
    script = f"SOURCE = {sources['LLVM']['add']!r}\nDAEMON = {daemon}\n{SCRIPT}"

    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


# How it is made


@pytest.mark.parametrize("maker", ["clang", "llvm"])
def test_both_compilers_make_the_pool(
    maker: str, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    if maker == "clang" and not is_clang_installed():
        pytest.skip("no clang")
    make = pools.compile_by_clang if maker == "clang" else pools.compile_by_llvm
    code = Code(make(), "pool")
    code.keep_forever()
    monkeypatch.setattr(pools, "code_of_pool", lambda: code)
    monkeypatch.setattr(pools, "_pools", [pools.Pool(3)])
    data, numbers = zeros(1001)

    with Context(CPU_COUNT=3):
        load("add", parallel=1001)([data], [4])

    assert set(numbers) == {4.0}


def test_the_compiled_pool_is_kept_on_disk_when_it_is_loaded(
    clean_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = pools.code_of_pool.__wrapped__
    monkeypatch.setattr(pools, "is_clang_installed", lambda: False)
    right = pools.compile_by_llvm
    monkeypatch.setattr(pools, "compile_by_llvm", lambda: right()[:100])
    with pytest.raises(FileFormatError):
        make()

    monkeypatch.setattr(pools, "compile_by_llvm", right)
    symbols = make().symbols
    monkeypatch.setattr(pools, "compile_by_llvm", None)
    assert make().symbols.keys() == symbols.keys()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_portable_pool_serves_every_machine(machine: str) -> None:
    source = pools.portable_source(machine)

    assert "declare void @relax" not in source
    assert "x86_64" not in source
    assert ("pause" if machine == "x86_64" else "isb") in source
