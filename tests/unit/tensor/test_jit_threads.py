"""TinyJit beside other threads: what a capture leaves alone, and what leaves a capture alone."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy
import pytest

from tests.fuzz import threads
from tests.unit.tensor.helpers import live_tensors
from tinycore import Tensor, TinyJit, Variable, nn
from tinycore.tensor import core
from tinycore.tensor.capture import jit, proxies
from tinycore.tensor.capture.capturing_run import CapturingRun
from tinycore.tensor.capture.change_sets import ChangeSet
from tinycore.tensor.capture.proxies import ArgumentProxies
from tinycore.tensor.storage import change_tracking, liveness, realization, storage
from tinycore.tensor.storage.liveness import while_walking
from tinycore.tensor.storage.storage import walking
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.size import Size


def host(*values: float) -> Tensor:
    return Tensor([float(v) for v in values]).realize()


class Pause:
    """A point at which a thread waits while another does something."""

    def __init__(self) -> None:
        self.reached, self.left = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.left.wait(60)


def beside(work: Callable[[Pause], object], other: Callable[[], object]) -> None:
    """Do some work in another thread, and something else here where it pauses."""
    pause, raised = Pause(), list[Exception]()

    def run() -> None:
        try:
            work(pause)
        except Exception as error:
            raised.append(error)
        finally:
            pause.reached.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    assert pause.reached.wait(60)
    try:
        other()
    finally:
        pause.left.set()
        thread.join(60)
    assert raised == []


def captured(calls: int) -> None:
    """Call a new captured function, which reaches nothing of other threads."""
    step = TinyJit(lambda x: (x + 1).realize())
    for number in range(calls):
        assert step(host(number)).tolist() == [number + 1.0]


class Stopped(nn.optim.SGD):
    """An optimizer that pauses behind its first write, and fails behind its second."""

    def __init__(self, weights: list[Tensor], pause: Pause) -> None:
        super().__init__(weights, lr=0.5)
        self.pause, self.made = pause, 0

    def _rate(self, like: Tensor) -> Tensor:
        return self.lr

    def _parted(self, updates: list[Tensor]) -> Iterator[Tensor]:  # type: ignore[override]
        yield updates[0]
        self.pause()
        yield updates[1]
        raise ZeroDivisionError


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_step_that_fails_beside_a_capture_changes_no_weight(calls: int) -> None:
    weights = [host(1, 2).requires_grad_(), host(3, 4).requires_grad_()]
    (weights[0] * weights[1]).sum().backward()

    def train(pause: Pause) -> None:
        with suppress(ZeroDivisionError), Tensor.train():
            Stopped(weights, pause).step()

    beside(train, lambda: captured(calls))

    assert [weight.tolist() for weight in weights] == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_thread_reads_memory_before_its_own_writes_beside_a_capture(calls: int) -> None:
    weight, found = host(1, 2), list[list[float]]()

    def train(pause: Pause) -> None:
        product = (weight * 10).uop  # which no tensor shows
        weight.assign(weight + 1)
        pause()
        found.append(Tensor.from_uop(product).tolist())

    beside(train, lambda: captured(calls))

    assert found == [[10.0, 20.0]]
    assert weight.tolist() == [2.0, 3.0]


class Shelf:
    """An object around a function, which reaches its tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("reach", ["closure", "object", "argument", "view", "value"])
def test_a_write_of_another_thread_that_the_function_reads_is_done_once(
    reach: str, calls: int
) -> None:
    weight = host(1, 2)
    shelf, view, one = Shelf(weight), weight[1:], host(1, 1)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "closure": lambda x: weight * 2,
        "object": lambda x: shelf.tensor * 2,
        "argument": lambda x: x * 2,
        "view": lambda x: view.expand(2) * 2,
    }
    step = TinyJit(functions.get(reach) or (lambda x: later[0] * 2))
    later: list[Tensor] = [weight + 0]

    def write() -> None:
        weight.assign(weight * 3)
        later[:] = [weight + 0]

    for number in range(1, calls + 3):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        found = step(weight if reach == "argument" else one).tolist()
        content = [3.0**number, 2 * 3.0**number]
        assert found == [2 * c for c in (content if reach != "view" else content[1:] * 2)]
        assert weight.tolist() == content


def elsewhere(work: Callable[[], object]) -> None:
    """Do some work in another thread, to its end."""
    raised = list[Exception]()

    def run() -> None:
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join(60)
    assert raised == []


@pytest.mark.parametrize("begins", ["substitute_in", "tensor"])
def test_a_gradient_that_another_thread_sets_as_a_capture_begins_is_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    weight = host(1, 2).requires_grad_()
    (weight * 10).sum().backward()
    begin = getattr(ArgumentProxies, begins)

    def late(*arguments: object) -> object:
        elsewhere(lambda: setattr(weight, "grad", None))
        elsewhere(lambda: (weight * weight).sum().backward())
        return begin(*arguments)

    step = TinyJit(lambda x: (x * 2).realize())
    step(host(1))
    with monkeypatch.context() as patch:
        patch.setattr(ArgumentProxies, begins, late)
        step(host(2))
    gradient = weight.grad
    weight.assign(host(5, 6))

    assert step(host(3)).tolist() == [6.0]
    assert weight.grad is gradient is not None
    assert gradient.tolist() == [2.0, 4.0]


def test_a_capture_takes_no_value_that_another_thread_computes_meanwhile() -> None:
    weight = host(1, 2)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        scaled = weight * 5
        elsewhere((weight * 5).realize)
        return (scaled.realize() + x).realize()

    for number in range(4):
        content = [number + 1.0, number + 2.0]
        assert step(host(number, 0)).tolist() == [5 * content[0] + number, 5 * content[1]]
        weight.assign(weight + 1).realize()


def test_a_capture_gives_no_value_to_tensors_that_another_thread_makes_meanwhile() -> None:
    weight, kept = host(1, 2), queue.SimpleQueue[Tensor]()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        scaled = weight * 5
        elsewhere(lambda: kept.put(weight * 5))
        return (scaled.realize() + x).realize()

    for number in range(4):
        content = [number + 1.0, number + 2.0]
        assert step(host(number, 0)).tolist() == [5 * content[0] + number, 5 * content[1]]
        weight.assign(weight + 1).realize()

    assert [kept.get().tolist() for _ in range(2)] == [[5.0, 10.0], [10.0, 15.0]]


def test_a_value_from_before_that_another_thread_computes_meanwhile_is_not_computed_anew() -> None:
    weight, scaled = host(1, 2), host(0, 0)
    zero = (Tensor.zeros(64, 64).contiguous() @ Tensor.ones(64, 64)).sum()  # in the first call only

    @TinyJit
    def step(x: Tensor) -> Tensor:
        added = scaled + x + zero.contiguous()
        elsewhere(scaled.realize)
        return added.realize()

    step(host(0, 0))
    scaled.replace(weight * 5)
    for number in range(4):
        assert step(host(number, 0)).tolist() == [5.0 + number, 10.0]
        weight.assign(weight + 1).realize()


def test_calls_of_two_threads_have_their_own_numbers_of_a_variable() -> None:
    length, x = Variable("length", 1, 4), host(1, 2, 3, 4)
    inner = TinyJit(lambda n: x[:n].sum() + 0)

    def outer(n: Size, other: int) -> Tensor:
        found = x[:n].sum()
        elsewhere(lambda: inner(length.bind(other)))
        return found + 0

    step = TinyJit(outer)
    for number in range(4):
        assert step(length.bind(2), 4 - number).tolist() == 3.0


def test_a_tensor_that_another_thread_makes_as_a_capture_begins_is_no_survivor_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, made = host(1, 2), list[Tensor]()
    begin = ArgumentProxies.substitute_in

    def late(*arguments: Any) -> Any:
        elsewhere(lambda: made.append(weight * 5))
        return begin(*arguments)

    step = TinyJit(lambda x: ((weight * 5).realize() + x).realize())
    step(host(0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(ArgumentProxies, "substitute_in", late)
        step(host(0, 0))
    weight.assign(weight + 1).realize()

    assert step(host(1, 0)).tolist() == [11.0, 15.0]
    assert made[0].tolist() == [5.0, 10.0]


@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("is_captured", [False, True])
def test_values_of_another_thread_do_not_enter_a_tensor_that_is_being_made(
    call: int, is_captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage of a tensor is found before the tensor shows it."""
    weight, found, done = host(1, 2), list[Tensor](), list[int]()
    value, record, calls = (weight * 5).uop, change_tracking.record_made, [0]

    def entered(tensor: Tensor) -> None:
        record(tensor)
        if tensor.uop is value and calls[0] == call and not done:
            done.append(call)
            elsewhere(other)

    def other() -> None:
        if is_captured:  # by a function that makes the value, too
            TinyJit(lambda x: (weight * 5).realize() + x)(host(1, 1))
        else:
            found.append(Tensor.from_uop(value).realize())

    step = TinyJit(lambda x: (weight * 5).realize() + x)
    monkeypatch.setattr(core, "record_made", entered)

    for calls[0] in range(4):
        assert step(host(calls[0], 0)).tolist() == [calls[0] + 5.0, 10.0]
    assert done == [call]


def test_a_tensor_that_another_thread_is_making_is_no_survivor_of_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, made, pause = host(1, 2), list[Tensor](), Pause()
    value, record, calls = (weight * 5).uop, change_tracking.record_made, [0]
    thread = threading.Thread(target=lambda: made.append(weight * 5))

    def entered(tensor: Tensor) -> None:
        if tensor.uop is value and threading.current_thread() is thread:
            pause()
        elif tensor.uop is value and calls[0] == 1:
            thread.start()
            assert pause.reached.wait(60)
        record(tensor)

    def made_by_then(*given: Any) -> Any:
        result = run(*given)
        if calls[0] == 1:
            pause.left.set()
            thread.join(60)
        return result

    step, run = TinyJit(lambda x: (weight * 5).realize() + x), CapturingRun.run
    monkeypatch.setattr(core, "record_made", entered)
    monkeypatch.setattr(CapturingRun, "run", made_by_then)
    for calls[0] in range(4):
        assert step(host(calls[0], 0)).tolist() == [calls[0] + 5.0, 10.0]

    assert made[0].tolist() == [5.0, 10.0]


def test_values_that_another_thread_left_to_be_computed_do_not_end_a_capture() -> None:
    state, copies = host(0, 0), list[Tensor]()
    step = TinyJit(lambda x: state.assign(state + x).realize() * 1)
    step(host(1, 1))
    elsewhere(lambda: copies.append((state * 10).flip(0)))

    for number in range(2, 6):
        assert step(host(1, 1)).tolist() == [number, number]

    assert copies[0].tolist() == [10.0, 10.0]


def test_a_gradient_that_somebody_holds_is_not_overwritten_though_another_thread_looked_at_it() -> (
    None
):
    weight = host(1, 2).requires_grad_()

    @TinyJit
    def step(x: Tensor) -> None:
        weight.grad = None
        (weight * x).sum().backward()

    @while_walking
    def look(pause: Pause) -> None:
        nodes = [tensor.uop for tensor in live_tensors()]
        threading.Timer(0.2, pause.left.set).start()
        pause()
        assert nodes

    for number in range(2):
        step(host(number, number))
    step(host(6, 6))
    beside(look, lambda: step(host(7, 7)))
    assert weight.grad is not None
    held = weight.grad.detach()
    step(host(8, 8))

    assert held.tolist() == [7.0, 7.0]


# --- training in other threads


class Records:
    """A thread that does a write, and records the next one while others see the first undone."""

    def __init__(self, weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weight, self.found = weight, list[list[float]]()
        self.has_recorded, self.may_read = threading.Event(), threading.Event()
        self.pause, publish = Pause(), liveness.replace_nodes

        def late(replaced: dict[UOp, UOp], *owners: Any) -> None:
            if any(node.op is Op.ASSIGN for node in replaced) and not self.pause.reached.is_set():
                self.pause()
            publish(replaced, *owners)

        monkeypatch.setattr(realization, "replace_nodes", late)

    def __call__(self, pause: Pause) -> None:
        self.weight.assign(self.weight * 2).realize()
        product = self.weight * 10
        self.weight.assign(self.weight + 1)
        self.has_recorded.set()
        assert self.may_read.wait(60)
        self.found += [product.tolist(), self.weight.tolist()]


def test_a_write_that_another_thread_records_as_a_capture_begins_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, length = host(1, 2), Variable("length", 1, 2)
    work, finish, argument = Records(weight, monkeypatch), realization.compute, host(3, 4)

    def compute(requested: Callable[[], list[UOp]]) -> dict[UOp, UOp]:
        if not work.pause.left.is_set():
            work.pause.left.set()
            assert work.has_recorded.wait(60)
        return finish(requested)

    def call() -> None:
        monkeypatch.setattr(proxies, "compute", compute)
        try:
            assert work.pause.reached.wait(60)
            assert TinyJit(lambda x, n: x[:n].sum())(argument, length.bind(2)).item() == 7
            assert weight.uop.op is Op.ASSIGN
        finally:
            work.pause.left.set()
            work.may_read.set()

    thread = threading.Thread(target=work, args=(Pause(),))
    thread.start()
    call()
    thread.join(60)

    assert work.found == [[20.0, 40.0], [3.0, 5.0]]


@pytest.mark.parametrize("call", [0, 1])
def test_a_write_that_a_captured_function_reads_is_done_behind_reads_of_another_thread(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, length, calls = host(1, 2), Variable("length", 1, 2), [0]
    step, product = TinyJit(lambda x, n: x[:n].sum() + weight.sum()), list[Tensor]()
    finish = proxies.finish_writes

    def write() -> None:
        product.append(weight * 10)
        weight.assign(weight + 1)

    def late(reached: Any) -> None:
        if calls[0] == call:
            elsewhere(write)
        finish(reached)

    monkeypatch.setattr(jit, "finish_writes", late)

    for calls[0] in range(4):
        assert step(host(3, 4), length.bind(2)).item() == (10 if calls[0] < call else 12)
    assert product[0].tolist() == [10.0, 20.0]


def has_taken_lock() -> bool:
    """True if nobody had the lock."""
    if taken := walking.acquire(blocking=False):
        walking.release()
    return taken


@pytest.mark.parametrize("kind", threads.KINDS)
def test_tensors_of_other_threads_are_looked_at_under_a_lock(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that its thread has dropped would still be computed beside what overwrites it."""

    def watch(holder: Any, name: str) -> None:
        function = getattr(holder, name)

        def call(*given: Any) -> Any:
            assert not in_thread(has_taken_lock), name
            return function(*given)

        monkeypatch.setattr(holder, name, call)

    for module in (storage, liveness, realization):
        watch(module, "waiting_storages")
    for name in ("moved", "touched"):
        watch(ChangeSet, name)
    calls = ((1, 2), (-1, 1), (2, 0), (1, 1))

    for is_captured in (False, True):
        found = threads.wrong(
            threads.KINDS.index(kind),
            is_captured,
            calls,
            host(1, 2),
            numpy.array([1, 2], numpy.float32),
        )
        assert found.message == ""


def in_thread(function: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_training_holds_in_other_threads() -> None:
    with Tensor.train():
        assert in_thread(lambda: Tensor.training)
        with Tensor.test():
            assert not in_thread(lambda: Tensor.training)
        dropped = in_thread(lambda: Tensor.ones(1000).dropout(0.5).sum().item())
    assert not in_thread(lambda: Tensor.training)
    assert dropped != 1000


def test_a_thread_may_have_a_mode_of_its_own() -> None:
    def evaluated() -> bool:
        with Tensor.test():
            return bool(Tensor.training)

    with Tensor.train():
        assert not in_thread(evaluated)
        assert in_thread(lambda: Tensor.training)


def test_blocks_of_threads_may_end_in_any_order() -> None:
    began, ends = threading.Event(), threading.Event()

    def train() -> None:
        with Tensor.train():
            began.set()
            ends.wait(10)

    thread = threading.Thread(target=train)
    with Tensor.train():
        thread.start()
        began.wait(10)
    assert Tensor.training, "the other thread still trains"
    ends.set()
    thread.join()
    assert not Tensor.training


def test_what_another_thread_makes_of_a_value_that_a_capture_computed_for_it_is_no_survivor() -> (
    None
):
    weight, found = host(1, 2), list[Tensor]()
    waiting = weight * 5

    def step(x: Tensor) -> Tensor:
        scaled = (weight * 5).realize()
        thread = threading.Thread(target=lambda: found.append(waiting + 1))
        thread.start()
        thread.join()
        return (x + scaled).realize()

    watched = TinyJit(step, guards=False)
    for number in range(5):
        if number < 2:
            waiting = weight * 5  # computed by the call, for the graph is equal
        assert watched(host(number, 1)).tolist() == [number + 5, 11]

    assert watched.captured is not None
    assert all(tensor.tolist() == [6, 11] for tensor in found)


def test_what_another_thread_makes_of_an_equal_value_is_no_reason_to_refuse_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, kept = Tensor([1.0, 2.0]).realize(), list[Tensor]()
    waiting = list[Tensor]()
    run = CapturingRun.run

    def make() -> None:
        kept.append(waiting.pop() + 1)

    def run_and_make(self: CapturingRun, *arguments: Any) -> Any:
        result = run(self, *arguments)
        if waiting:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        return result

    monkeypatch.setattr(CapturingRun, "run", run_and_make)
    step = TinyJit(lambda x: x + (weight * 5).realize())
    for n in range(5):
        if n == 1:  # the call that is captured
            waiting.append(weight * 5)
        assert step(Tensor([float(n), 0.0]).realize()).tolist() == [5.0 + n, 10.0]
    assert [x.tolist() for x in kept] == [[6.0, 11.0]]
