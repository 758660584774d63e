"""Writes in place happen once: interrupts, signals, launches that fail, threads and fork.

Samples; `python -m tests.once` interrupts every line, as does ONCE=all here.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.interrupts import interrupt, moments_of
from tinycore import Tensor, TinyJit
from tinycore.engine.captured_step import capture
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.run import recordings
from tinycore.errors import OutOfMemory
from tinycore.tensor.capture.change_sets import ChangeSet, tracking_changes
from tinycore.tensor.storage.change_tracking import change_sets, scope, undo
from tinycore.tensor.storage.writes import atomic_writes
from tinycore.uop.size import notes, noting, sealed, seals

SEED = random.SystemRandom().getrandbits(32)
XDG = "error: XDG_RUNTIME_DIR is invalid or not set in the environment.\n"
"""Message of a driver of Vulkan in software, whoever uses it."""
SAMPLE = [] if os.environ.get("ONCE") == "all" else ["--lines", "8"]


def run(*arguments: str) -> str:
    """Output of `python -m tests.once`. Fails where something was wrong, or it hangs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.once", "--seed", str(SEED), *arguments],
        env=os.environ | {"VERIFY": "0", "DEV": "CPU"},
        capture_output=True,
        text=True,
        timeout=None if not SAMPLE else 300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_each_write_done_once_or_not_at_all() -> None:
    print(run(*SAMPLE))


@pytest.mark.slow
def test_a_launch_that_fails_leaves_each_write_done_once_or_not_at_all() -> None:
    print(run("--errors"))


@pytest.mark.slow
def test_ctrl_c_leaves_each_write_done_once_or_not_at_all() -> None:
    print(run("--signals", "4"))


Opened = tuple[Callable[[], AbstractContextManager[object]], Callable[[], object]]

OPENED: dict[str, Opened] = {
    "a recording of launches": (capture, lambda: recordings.open),
    "a seal on the values of sizes": (sealed, lambda: seals.depth),
    "conditions on variables": (noting, lambda: notes.open),
    "changes of tensors": (partial(tracking_changes, ChangeSet()), lambda: set(change_sets)),
    "a scope of computed values": (partial(tracking_changes, ChangeSet()), lambda: scope.owner),
    "former values": (partial(atomic_writes, list), lambda: undo.logs),
}
"""State that a capture opens, with a test whether it is open."""


@pytest.mark.parametrize("name", OPENED)
def test_an_interrupt_at_any_line_leaves_nothing_of_a_capture_open(name: str) -> None:
    opened, now = OPENED[name]
    before = now()

    def work() -> None:
        with opened():
            assert now() != before

    moments = moments_of(work)
    left = {interrupt(work, moment): now() for moment in moments}

    assert len(moments) > 3
    assert [place for place, found in left.items() if found != before] == []


def test_a_signal_handler_that_computes_during_a_write_leaves_the_others_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [Tensor([1.0] * n, device="PYTHON").realize() for n in (2, 3)]
    launch, calls, found = CompiledRunner.launch, count(), list[float]()

    def signalled(runner: CompiledRunner, *arguments: Any) -> float | None:
        if next(calls) == 1:  # the first write is done, the second begins
            signal.raise_signal(signal.SIGUSR1)
        return launch(runner, *arguments)

    def handle(*_: object) -> None:
        found.extend((Tensor([5.0], device="PYTHON") + 1).tolist())

    monkeypatch.setattr(CompiledRunner, "launch", signalled)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        Tensor.realize(*[state.assign(state + 1) for state in states])
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found == [6.0]
    assert [state.tolist() for state in states] == [[2.0, 2.0], [2.0, 2.0, 2.0]]


@pytest.mark.device("CPU")
def test_what_does_not_fit_leaves_a_write_for_the_next_try() -> None:
    state = Tensor([0.0], device="CPU").realize()
    for batch in (1 << 46, 4):
        state.assign(state + 1)
        x = Tensor([1.0], device="CPU").realize().expand(batch).contiguous()
        if batch == 4:
            Tensor.realize(state, x)
        else:
            with pytest.raises(OutOfMemory):
                Tensor.realize(state, x)

    assert state.tolist() == [2.0]


def read(state: Tensor, found: list[list[float]]) -> None:
    """Read a tensor."""
    found.append(state.tolist())


def test_two_threads_that_read_one_pending_write_do_it_once() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for _ in range(20):
        state = Tensor([1.0, 2.0]).realize()
        state.assign(state + 1)
        found: list[list[float]] = []
        threads = [threading.Thread(target=read, args=(state, found)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [[2.0, 3.0]] * 3
    sys.setswitchinterval(interval)


FORKING = """
import faulthandler, os, sys, threading, time
from tinycore import Tensor
from tinycore.errors import DeviceError
x = (Tensor([1.0, 2.0]) + 1).realize()
x.tolist()
stop = []
def work():
    number = 0
    while not stop:
        number += 1
        (Tensor([1.0] * (number % 50 + 1)) + number).realize().tolist()
def fork():
    child = os.fork()
    if child:
        end = time.monotonic() + 60
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, 9)
        assert done == (child, 0), done
        return
    faulthandler.dump_traceback_later(50)
    try:
        right = (x + 1).tolist() == [3.0, 4.0]
    except DeviceError as error:
        right = sys.argv[2] == "says" and "after fork" in str(error)
    sys.exit(not right)
thread = threading.Thread(target=work)
thread.start()
try:
    for _ in range(int(sys.argv[1])):
        time.sleep(0.01)
        fork()
finally:
    stop.append(1)
    thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("device", "children", "does"),
    [
        pytest.param("CPU", 8, "computes", marks=pytest.mark.device("CPU")),
        ("PYTHON", 5, "computes"),
        pytest.param("HCQ+CPU", 3, "says", marks=pytest.mark.device("CPU")),
        pytest.param("CL", 3, "says", marks=pytest.mark.device("CL")),
        pytest.param("WEBGPU", 3, "says", marks=pytest.mark.device("WEBGPU")),
    ],
)
@pytest.mark.slow
def test_a_child_of_a_threaded_program_computes_or_says_why_not(
    device: str, children: int, does: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(children), does],
        env=os.environ | {"VERIFY": "0", "DEV": device},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr.replace(XDG, "")) == (0, "")


def test_a_capture_in_one_thread_leaves_the_writes_of_another_alone() -> None:
    stop = threading.Event()
    wrong: list[Exception] = []

    def capture() -> None:
        while not stop.is_set():
            try:
                TinyJit(lambda x: x + 1)(Tensor([1.0]))
            except Exception as error:
                wrong.append(error)

    other = threading.Thread(target=capture)
    other.start()
    found = []
    for _ in range(5):
        state, one = Tensor([0.0]).realize(), Tensor([[1.0]]).realize()
        for _ in range(10):
            state.assign(state + (one @ one).reshape(1)).realize()
        found.append(state.tolist())
    stop.set()
    other.join(60)

    assert found == [[10.0]] * 5
    assert not wrong
