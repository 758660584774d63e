"""Threads, forks, signals and exits: what computes goes on computing, and nothing hangs."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from tinycore import Tensor, TinyJit
from tinycore.dtype import dtypes
from tinycore.uop import node
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

SECONDS = 60
"""Time limit, which no program here nearly takes."""


def output_of(program: str, tmp_path: Path, **variables: str) -> str:
    """Output of a program in a process of its own. Fails if it hangs, crashes or complains."""
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = os.environ | {"VERIFY": "0"} | variables
    done = subprocess.run(
        [sys.executable, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Threads


def test_two_threads_that_build_one_node_get_one_node() -> None:
    found: list[list[UOp]] = []
    barrier = threading.Barrier(4)

    def build() -> None:
        barrier.wait()
        x = UOp.variable("x", 0, 9)
        found.append([x + UOp.index(number % 1000) * 3 for number in range(20_000)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=build) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert all(len(set(map(id, nodes))) == 1 for nodes in zip(*found, strict=True))


def test_nodes_that_die_in_several_threads_leave_no_entries() -> None:
    def build(start: int) -> None:
        for number in range(start, start + 3000):
            UOp(Op.CONST, dtypes.index, (), -(10**9) - number % 50) + UOp.index(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(build, (0, 10, 20, 30)))

    mine = [key for key in list(node.nodes) if key[0] is Op.CONST and is_marked(key[3])]
    assert mine == []


def is_marked(value: object) -> bool:
    return isinstance(value, int) and -(10**9) - 50 < value <= -(10**9)


def test_threads_that_train_at_once_do_not_disturb_each_other() -> None:
    def train(rate: float) -> list[float]:
        weight = Tensor([1.0, 2.0, 3.0], requires_grad=True).realize()
        found = []
        for _ in range(8):
            loss = (weight * weight).sum()
            (gradient,) = loss.gradient(weight)
            weight.assign(weight.detach() - gradient * rate).realize()
            found.append(round(loss.item(), 3))
        return found

    rates = (0.1, 0.2, 0.3, 0.05)
    alone = [train(rate) for rate in rates]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(train, rates)) == alone


def test_a_capture_sees_the_launches_of_its_own_thread_only() -> None:
    inside, launched = threading.Event(), threading.Event()
    runs = Mock(side_effect=itertools.count(1))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = (x * 2).realize()
        if runs() == 2:
            inside.set()
            assert launched.wait(SECONDS)
        return (y + 1).realize()

    def other() -> float:
        assert inside.wait(SECONDS)
        value = float((Tensor([5.0]).realize() * 3).item())
        launched.set()
        return value

    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(other)
        results = [step(Tensor([float(i)]).realize()).item() for i in range(4)]
        assert beside.result() == 15.0

    assert results == [1.0, 3.0, 5.0, 7.0]
    assert step.captured is not None
    assert len(step.captured.items) == 2


def captured_beside(
    inside: Callable[[Tensor], Tensor], beside: Callable[[], object]
) -> tuple[TinyJit[..., Tensor], list[float]]:
    """Five calls of a function, the second of which waits inside for what another thread does."""
    began, ended = threading.Event(), threading.Event()
    runs = Mock(side_effect=itertools.count(1))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        result = inside(x)
        if runs() == 2:
            began.set()
            assert ended.wait(SECONDS)
        return (result + 1).realize()

    def other() -> None:
        assert began.wait(SECONDS)
        try:
            beside()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(other)
        results = [float(step(Tensor([float(i)]).realize()).item()) for i in range(5)]
        done.result()
    assert step.last is not None
    assert step.last.invalidations == 0  # the second call was captured for good
    return step, results


def test_writes_that_another_thread_writes_down_meanwhile_are_no_part_of_a_capture() -> None:
    state = Tensor([0.0]).realize()
    step, results = captured_beside(lambda x: x * 2, lambda: state.assign(state + 1))

    assert results == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert state.tolist() == [1.0]
    assert step.captured is not None
    assert len(step.captured.items) == 1


def test_tensors_that_another_thread_replaces_meanwhile_do_not_end_a_capture() -> None:
    held = Tensor([0.0]).realize()
    step, results = captured_beside(lambda x: x * 2, lambda: held.replace(Tensor([5.0]).realize()))

    assert results == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert held.tolist() == [5.0]
    assert step.captured is not None


def test_gradients_that_another_thread_computes_meanwhile_are_no_part_of_a_capture() -> None:
    weight = Tensor([3.0], requires_grad=True).realize()
    step, results = captured_beside(lambda x: x * 2, lambda: (weight * weight).sum().backward())

    assert results == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0]
    assert step.captured is not None
    assert len(step.captured.items) == 1


@pytest.mark.parametrize("gradient", [None, Tensor([1.0])], ids=["none", "another"])
def test_gradients_that_another_thread_sets_meanwhile_are_no_part_of_a_capture(
    gradient: Tensor | None,
) -> None:
    weight = Tensor([3.0], requires_grad=True).realize()
    (weight * weight).sum().backward()
    step, results = captured_beside(lambda x: x * 2, lambda: setattr(weight, "grad", gradient))

    assert results == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert weight.grad is gradient
    assert step.captured is not None
    assert len(step.captured.items) == 1


def test_a_write_inside_a_capture_is_not_done_by_the_capture_of_another_thread() -> None:
    total = Tensor([0.0]).realize()

    def inside(x: Tensor) -> Tensor:
        total.assign(total + x)
        return x * 2

    def beside() -> None:
        other = TinyJit(lambda x: (x * 3).realize())
        assert [other(Tensor([float(i)]).realize()).item() for i in range(4)] == [0, 3, 6, 9]

    step, results = captured_beside(inside, beside)

    assert results == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert total.tolist() == [10.0]
    assert step.captured is not None


# Processes


FORK = """
import os
from tinycore import Tensor
x = Tensor.ones(512, 512).contiguous().realize()
print((x @ x).sum().item(), flush=True)
child = os.fork()
if child == 0:
    y = Tensor.ones(512, 512).contiguous().realize()
    print((y @ x).sum().item(), (y * 3).mean().item(), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(status, (x + 1).mean().item())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_computes(tmp_path: Path) -> None:
    assert output_of(FORK, tmp_path) == "134217728.0\n134217728.0 3.0\n0 2.0\n"


SPAWN = """
import multiprocessing
from tinycore import Tensor

def work(x):
    return (x * 2).sum()

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (result,) = pool.map(work, [Tensor([1.0, 2.0])])
    print((result + 1).item())
"""


@pytest.mark.slow
def test_tensors_travel_to_spawned_processes_and_back(tmp_path: Path) -> None:
    assert output_of(SPAWN, tmp_path) == "7.0\n"


EXIT = """
import threading
from tinycore import Tensor

def work():
    x = Tensor.ones(256, 256).contiguous().realize()
    while True:
        x = (x @ x).sigmoid().realize()

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
(Tensor.ones(300, 300).contiguous() @ Tensor.ones(300, 300)).realize()
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_process_exits_with_work_in_flight(tmp_path: Path) -> None:
    assert output_of(EXIT, tmp_path) == "done\n"


INTERRUPTED = """
import signal
from tinycore import Tensor
signal.signal(signal.SIGINT, signal.default_int_handler)
x = Tensor.ones(64, 64).contiguous().realize()
print("ready", flush=True)
caught = number = 0
while caught < 5:
    try:
        while True:
            number += 1
            (x @ (x + number)).softmax().realize()
    except KeyboardInterrupt:
        caught += 1
        print("caught", flush=True)
print((x * 2).sum().item(), (x @ x).sum().item(), (x + 0.125).mean().item(), flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_leaves_the_device_usable(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert lines.get(timeout=SECONDS) == "ready\n"
        for number in range(5):
            time.sleep(0.05 + 0.07 * number)
            interrupt(process, lines)
        rest = lines.get(timeout=SECONDS)
    finally:
        process.kill()
        reader.join()

    assert rest == "8192.0 262144.0 1.125\n"


def interrupt(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Interrupt until it is noticed, as people do: Python drops what it raises in a finalizer."""
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(queue.Empty):
            assert lines.get(timeout=SECONDS / 10) == "caught\n"
            return
    pytest.fail("ten interrupts went unnoticed")


IMPORT = """
import sys
from tinycore import Tensor
heavy = ("numpy", "tinycore.engine", "tinycore.schedule", "tinycore.device", "tinycore.lower")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.slow
def test_importing_tensor_imports_neither_numpy_nor_the_engine(tmp_path: Path) -> None:
    assert output_of(IMPORT, tmp_path) == "[]\n"


LEAK = """
import gc, resource
from tinycore import GlobalCounters, Tensor
from tinycore.uop import node

def steps(count):
    global x
    for number in range(count):
        x = (x * 0.5 + 1).realize()
    gc.collect()
    return GlobalCounters.mem_used, len(node.nodes)

x = Tensor([1.0, 2.0]).realize()
first = steps(500)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
later = steps(2000)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(first == later, (after - before) * 1024 < 4e6)
"""


@pytest.mark.slow
def test_memory_is_flat_over_many_steps(tmp_path: Path) -> None:
    assert output_of(LEAK, tmp_path) == "True True\n"


IMPORTING = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from tinycore._deferred import deferred

begun = threading.Event()
sys.modules["begun"] = begun
value = deferred("slow_module:VALUE")
thread = threading.Thread(target=value.resolve)
thread.start()
begun.wait(60)
child = os.fork()
if not child:
    os._exit(0 if value.resolve() == 7 else 1)
end = time.monotonic() + 30
while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
    time.sleep(0.01)
if done == (0, 0):
    os.kill(child, 9)
thread.join()
print(done == (child, 0))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_the_imports_of_other_threads(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import sys, time\nsys.modules['begun'].set()\ntime.sleep(0.3)\nVALUE = 7\n"
    )
    words = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout == "True\n", done.stderr
