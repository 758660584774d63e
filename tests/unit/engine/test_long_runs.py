"""Runs that take long: an interrupt between two launches leaves what was there as it was."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest

from tinycore import Context, Device, Tensor, TinyJit, nn
from tinycore.device.buffer import Buffer
from tinycore.engine import captured_step, device_graph, transactions
from tinycore.errors import OutOfMemory

pytestmark = pytest.mark.skipif(
    Device.DEFAULT == "PYTHON", reason="launches of PYTHON are not native"
)


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run and replay counts as a long one, and each launch as a part of it."""
    monkeypatch.setattr(transactions, "LONG_OPERATIONS", 0)
    monkeypatch.setattr(captured_step, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(captured_step, "PIECE_SECONDS", 0.0)


def interrupt(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Let Ctrl-C come before the launch of this number, counted over all runs."""
    begun = 0

    def progress(items: Iterable[Any], what: str, count: int) -> Iterator[Any]:
        nonlocal begun
        for item in items:
            if begun == place:
                begun += 1
                signal.raise_signal(signal.SIGINT)
            begun += 1
            yield item

    monkeypatch.setattr(transactions, "progress", progress)
    monkeypatch.setattr(captured_step, "progress", progress)


class Trainer:
    """A small network with statistics, its optimizer, and a step that overwrites both."""

    def __init__(self, is_captured: bool) -> None:
        Tensor.manual_seed(0)
        self.layers = [nn.Linear(4, 8), nn.BatchNorm(8), Tensor.relu, nn.Linear(8, 2)]
        self.optimizer = nn.optim.Adam(nn.state.get_parameters(self.layers), lr=0.1)
        self.x, self.y = Tensor.rand(16, 4).realize(), Tensor.randint(16, high=2).realize()
        self.step = TinyJit(self.once) if is_captured else self.once

    @Tensor.train()
    def once(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.x.sequential(self.layers).cross_entropy(self.y).backward()
        return loss.realize(*self.optimizer.schedule_step())

    def state(self) -> dict[str, Any]:
        found = nn.state.get_state_dict([self.layers, self.optimizer])
        return {name: x.tolist() for name, x in found.items()}


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("is_captured", [False, True])
def test_an_interrupted_step_is_done_or_not_begun(
    monkeypatch: pytest.MonkeyPatch, is_captured: bool, number: int
) -> None:
    draw = random.Random(number)
    calls = draw.randrange(5)
    right, tried = Trainer(is_captured), Trainer(is_captured)
    for trainer in (right, tried):
        for _ in range(calls):
            trainer.step()
    before = tried.state()
    after = (right.step().item(), right.state())[1]

    with monkeypatch.context() as patch:
        interrupt(patch, draw.randrange(12))
        with pytest.raises(KeyboardInterrupt):
            tried.step()

    found = tried.state()  # what was recorded, and not computed, is computed by reading it
    if is_captured and calls > 1:
        assert found == before
    if found == before:
        tried.step()
    assert tried.state() == after


def interrupted_at_return(work: Callable[[], object], number: int) -> KeyboardInterrupt | None:
    """The interrupt, with its traceback, that comes as a function below a transaction returns."""
    returns = count()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code  # what ends a generator that nobody iterates any more is ignored
        is_near = Path(code.co_filename).name in ("transactions.py", "contextlib.py")
        is_near = is_near and code.co_name != "<genexpr>"
        if is_near and event == "return" and next(returns) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt as interrupt:
        return interrupt
    finally:
        sys.settrace(before)
    return None


def test_an_interrupt_that_is_kept_restores_nothing_later() -> None:
    """An interactive session keeps the last one, and what its traceback refers to."""
    for number in count():
        x = Tensor([1.0, 2.0]).realize()
        x.assign(x + 1)
        kept = interrupted_at_return(x.realize, number)
        x.assign(Tensor([5.0, 6.0]).realize()).realize()
        is_last = kept is None
        del kept
        assert x.tolist() == [5.0, 6.0], number
        if is_last:
            break
    assert number > 5


@pytest.mark.parametrize("is_captured", [False, True])
def test_without_memory_for_copies_a_step_is_done_as_ever(
    monkeypatch: pytest.MonkeyPatch, is_captured: bool
) -> None:
    def full(copy: Buffer, of: Buffer) -> NoReturn:
        raise OutOfMemory("the device is full")

    right, tried = Trainer(is_captured), Trainer(is_captured)
    for _ in range(3):
        right.step()
        with monkeypatch.context() as patch:
            patch.setattr(Buffer, "copy_from", full)
            tried.step()
    assert tried.state() == right.state()


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 20), (1e9, 1)])
def test_launches_of_a_piece_are_a_graph(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    counts: list[int] = []

    def progress(items: Iterable[Any], what: str, count: int) -> Iterable[Any]:
        counts.append(count)
        return items

    @TinyJit
    def step(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x + 1).realize()
        return x

    monkeypatch.setattr(captured_step, "PIECE_SECONDS", seconds)
    monkeypatch.setattr(captured_step, "progress", progress)
    x = Tensor([1.0]).realize()
    assert [step(x).item() for _ in range(4)] == [21.0] * 4
    assert {*counts} == {most}


def test_progress_ends_with_a_launch_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def progress(items: Iterable[Any], what: str, count: int) -> Iterator[Any]:
        try:
            yield from items
        finally:
            told.append("ended")

    def fail(_launch: object) -> NoReturn:
        raise RuntimeError("the card is lost")

    x = Tensor([1.0, 2.0]).realize()
    x.assign(x + 1)
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "progress", progress)
        patch.setattr(transactions, "call", fail)
        with pytest.raises(RuntimeError, match="lost") as kept:
            x.realize()
        assert told == ["ended"]
        del kept
    assert x.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("setting", [{}, {"JIT": 2}], ids=str)
@pytest.mark.parametrize("is_long", [False, True])
def test_a_replay_by_several_calls_is_done_or_not_begun(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, int], is_long: bool
) -> None:
    """Memory that it writes to, and values that it leaves in attributes."""

    class Counter:
        def __init__(self) -> None:
            self.seen = Tensor([0.0]).realize()
            self.sums = [Tensor.zeros(n).contiguous().realize() for n in (3, 4)]

        @TinyJit
        def add(self, x: Tensor) -> None:
            Tensor.realize(*[total.assign(total + x) for total in self.sums])
            self.seen = self.sums[0].mean().realize()

        def state(self) -> list[float]:
            return [self.seen.item(), *[total.mean().item() for total in self.sums]]

    if not is_long:
        monkeypatch.setattr(captured_step, "LONG_SECONDS", 1e9)
    monkeypatch.setattr(device_graph, "SHORTEST", 99)  # each launch is a call by itself
    counter, x = Counter(), Tensor([1.0]).realize()
    for place in range(6):
        for _ in range(3):
            counter.add(x)
        begun = count()

        def interrupted(run: Callable[..., Any], place: int, begun: Iterator[int]) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                if next(begun) == place:
                    signal.raise_signal(signal.SIGINT)
                return run(*given, **named)

            return call

        before = counter.state()
        with monkeypatch.context() as patch, Context(**setting):
            for kind in (device_graph.Alone, device_graph.Single):
                patch.setattr(kind, "run", interrupted(kind.run, place, begun))
            with contextlib.suppress(KeyboardInterrupt):
                counter.add(x)
        assert counter.state() in (before, [n + 1 for n in before])
        assert place >= 3 or next(begun) > place, "the interrupt came"


@pytest.mark.parametrize("place", range(4))
def test_a_replay_that_is_not_atomic_copies_nothing_and_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Memory has what it wrote until then, which a later replay overwrites."""
    caches = [Tensor.zeros(4).contiguous().realize() for _ in range(3)]

    def fill(x: Tensor) -> Tensor:
        for cache in caches:
            cache[1:3] = x
            cache.realize()
        return (x + 1).realize()

    step = TinyJit(fill, atomic=False)
    for number in (1, 2, 3):
        step(Tensor([float(number)]).realize())
    copied = pickle.loads(pickle.dumps(step))
    assert not copied.captures[0].step.atomic
    assert not copy.copy(step).atomic
    copies: list[Buffer] = []
    monkeypatch.setattr(Buffer, "copy_from", lambda copy, of: copies.append(of))
    x = Tensor([9.0]).realize()
    with monkeypatch.context() as patch:
        interrupt(patch, place)
        with pytest.raises(KeyboardInterrupt):
            step(x)

    assert not copies
    assert [cache.tolist()[1] for cache in caches] == [9.0] * place + [3.0] * (3 - place)
    assert step(x).tolist() == [10.0]
    assert [cache.tolist() for cache in caches] == [[0.0, 9.0, 9.0, 0.0]] * 3
