"""Handlers of real signals that compute: no deadlock, and every write is done once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from tests.fuzz.signals import Signals, sent
from tinycore import Tensor, linalg
from tinycore._locks import Busy, Turn
from tinycore._signals import deferred, handlers
from tinycore.tensor.signatures import at_once

POSIX = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers are POSIX")

TRAINING = """
import faulthandler, random, signal, sys
import numpy
from tinycore import Tensor, TinyJit, nn
from tinycore.nn.state import get_parameters, get_state_dict, safe_save

captured, seed, steps = sys.argv[1] == "captured", int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(seed)
seen = 0

class Model:
    def __init__(self):
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)
        drawn = numpy.random.RandomState(0)
        for parameter in get_parameters(self):
            parameter.assign(drawn.randn(*parameter.shape).astype("float32") * 0.3).realize()

    def __call__(self, x):
        return self.second(self.first(x).relu())

def losses(disturbed):
    model = Model()
    optimizer = nn.optim.Adam(get_parameters(model), lr=0.01)
    state = get_state_dict(model)

    def step(x, y):
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).cross_entropy(y).backward()
            optimizer.step()
            return loss.realize()

    def handle(number, frame):
        global seen
        kind = choose.randrange(5)
        if kind == 0:
            [value.numpy() for value in state.values()]
        elif kind == 1:
            safe_save(state, sys.argv[4])
        elif kind == 2:
            (Tensor.arange(choose.randint(1, 40)) * choose.randint(1, 9)).sum().item()
        elif kind == 3:
            model(Tensor.ones(choose.randint(1, 9), 8)).numpy()
        else:  # larger than what one thread copies
            Tensor.ones(1 << 18).contiguous().numpy()
        seen += 1
        if running:
            signal.setitimer(signal.ITIMER_REAL, choose.choice([0.0005, 0.001, 0.003, 0.01]))

    running, call, found = disturbed, TinyJit(step) if captured else step, []
    drawn = numpy.random.RandomState(1)
    begin = 2 if captured else 0  # what is read between two calls of a capture may be refused
    for number in range(steps):
        if disturbed and number == begin:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        count = 4 if captured else drawn.randint(1, 5)
        x = Tensor(drawn.rand(count, 8).astype("float32"))
        found.append(call(x, Tensor(drawn.randint(0, 5, count).astype("int32"))).item())
    running = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    return found

faulthandler.dump_traceback_later(150, exit=True)
undisturbed = losses(False)
assert numpy.allclose(losses(True), undisturbed, rtol=1e-4)
print(seen)
"""


def signals_seen(kind: str, seed: int, steps: int, folder: Path) -> int:
    words = [sys.executable, "-c", TRAINING, kind, str(seed), str(steps), str(folder / "saved")]
    done = subprocess.run(
        words,
        env=os.environ | {"VERIFY": "0"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_handler_that_computes_during_training_changes_nothing(tmp_path: Path, seed: int) -> None:
    assert signals_seen("eager", seed, 60, tmp_path) > 20


@POSIX
@pytest.mark.slow
def test_a_handler_that_computes_beside_captured_steps_changes_nothing(tmp_path: Path) -> None:
    assert signals_seen("captured", 0, 300, tmp_path) > 5


@POSIX
def test_a_handler_is_called_after_what_it_must_not_see() -> None:
    order: list[str] = []

    @at_once
    def work() -> None:
        signal.raise_signal(signal.SIGUSR1)
        order.append("worked")

    before = signal.signal(signal.SIGUSR1, lambda number, frame: order.append("handled"))
    try:
        work()
        mine = signal.getsignal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert order == ["worked", "handled"]
    assert getattr(mine, "__name__", "") == "<lambda>"  # it is set again


def raise_inside(order: list[str]) -> None:
    with deferred():
        signal.raise_signal(signal.SIGINT)
        order.append("after")


@POSIX
def test_a_handler_that_raises_keeps_no_other_from_being_called() -> None:
    came: list[int] = []

    def fail(number: int, _: object) -> None:
        came.append(number)
        raise ZeroDivisionError

    numbers = [signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.signal(number, fail) for number in numbers]
    try:
        with pytest.raises(ZeroDivisionError), deferred(everything=False):
            deque(map(signal.raise_signal, numbers))
    finally:
        [signal.signal(n, handler) for n, handler in zip(numbers, before, strict=True)]

    assert came == numbers


@POSIX
def test_a_handler_that_is_set_meanwhile_stays() -> None:
    def later(*_: object) -> None: ...

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with deferred(everything=False):
            signal.signal(signal.SIGUSR1, later)
        found = signal.getsignal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found is later


@POSIX
def test_a_handler_sees_an_operation_done_or_not_begun() -> None:
    x, total, seen = Tensor([1.0, 2.0]).realize(), Tensor([0.0]).realize(), []

    def read(*_: object) -> None:
        seen.append(total.tolist())

    signals = Signals(0, read, share=1.0)
    with sent(signals):
        total += x.sum()
        x *= 2
        total += x.sum()

    assert total.tolist() == [9.0]
    assert seen
    assert set(map(tuple, seen)) <= {(0.0,), (3.0,), (9.0,)}


STEPS = """
import random, sys
import numpy
from tests.fuzz.signals import Signals, sent
from tinycore import Tensor, nn
from tinycore.nn.state import get_state_dict

def losses(disturbed):
    draw = numpy.random.RandomState(0)
    model = nn.Linear(6, 8), Tensor.relu, nn.Linear(8, 5)
    weights = nn.state.get_parameters(model)
    optimizer = nn.optim.AdamW(weights, lr=0.1)
    for weight in weights:
        weight.assign(draw.randn(*weight.shape).astype("float32")).realize()
    state = [*get_state_dict(model).values(), *get_state_dict(optimizer).values()]

    def read(choose):
        for value in choose.sample(state, choose.choice((1, len(state)))):
            value.numpy()

    signals = Signals(int(sys.argv[1]), read, share=None if disturbed else 0.0)
    found = []
    with Tensor.train():
        for step in range(3):
            x, y = Tensor(draw.rand(4, 6).astype("float32")), Tensor(draw.randint(0, 5, 4))
            optimizer.zero_grad()
            loss = x.sequential(model).cross_entropy(y).backward()
            with sent(signals):
                optimizer.schedule_step() if step else optimizer.step()
            found.append(loss.item())
    return found + [number for value in state for number in value.flatten().tolist()]

assert numpy.allclose(losses(True), losses(False), rtol=1e-4), sys.argv
"""


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5])
def test_a_handler_at_any_step_of_training_changes_nothing(seed: int) -> None:
    words = [sys.executable, "-c", STEPS, str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr


AT_EXIT = """
import atexit, os, signal
from tinycore import Device, Tensor
atexit.register(os.kill, os.getpid(), signal.SIGUSR1)  # called after devices are closed
x = Tensor([1.0, 2.0]).realize()
signal.signal(signal.SIGUSR1, lambda *_: print(x.tolist(), flush=True))
os.kill(os.getpid(), signal.SIGUSR1)
"""


@POSIX
def test_no_handler_is_called_when_devices_are_closed_at_the_end() -> None:
    words = [sys.executable, "-c", AT_EXIT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0, 2.0]\n", "")


@POSIX
def test_ctrl_c_alone_is_not_deferred() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    order: list[str] = []
    try:
        assert handlers() == {}
        assert handlers(everything=True) == {signal.SIGINT: signal.default_int_handler}
        with pytest.raises(KeyboardInterrupt):
            raise_inside(order)
    finally:
        signal.signal(signal.SIGINT, before)

    assert order == ["after"]


@POSIX
def test_ctrl_c_is_not_deferred_beside_a_handler_of_the_program() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    keyboard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert handlers().keys() == {signal.SIGUSR1}
        assert handlers(everything=True).keys() == {signal.SIGUSR1, signal.SIGINT}
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGINT, keyboard)


def fail_after_a_signal(came: list[int]) -> None:
    with deferred(everything=False):
        signal.raise_signal(signal.SIGUSR1)
        assert not came
        raise MemoryError


@POSIX
def test_a_signal_that_comes_during_a_run_that_fails_is_handled() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with pytest.raises(MemoryError):
            fail_after_a_signal(came)
        assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_defer_nothing() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(handlers(everything=True)))
    thread.start()
    thread.join()

    assert found == [{}]


def test_a_turn_that_an_interrupted_frame_has_is_not_waited_for() -> None:
    turn = Turn()
    with turn.soon:
        with pytest.raises(Busy), turn.at_once:
            pass
        began = time.monotonic()
        with pytest.raises(Busy), turn.soon:
            pass

    assert time.monotonic() - began < 10
    with turn.at_once:
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of users are POSIX")
@pytest.mark.parametrize("name", ["qr", "det", "keccak"])
def test_a_handler_sees_a_method_of_a_library_done_or_not_begun(name: str) -> None:
    """Also those that `tinycore.linalg` puts on the class."""
    x = Tensor([1, 2, 3], dtype="uint8") if name == "keccak" else Tensor([[2.0, 1.0], [1.0, 3.0]])
    folder = str(Path(linalg.__file__).parent)
    inside = list[str]()

    def handle(_draw: object) -> None:
        frame = sys._getframe()
        while (outer := frame.f_back) is not None:
            frame = outer
            if frame.f_code.co_filename.startswith(folder):
                inside.append(frame.f_code.co_name)

    signals = Signals(0, handle, share=0.2)
    with sent(signals):
        getattr(x, name)()
    assert signals.count
    assert inside == []
