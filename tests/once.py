"""Statements that write in place, interrupted at every line of them: `python -m tests.once`.

For each line: was what it writes written once or not at all, are later calls right, does nothing
hang. Prints what was not, and counts. `--lines N --seed S` takes N lines of each statement by
chance; `--errors` makes each launch fail instead.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from tests.interrupts import Moment, interrupt, moments_of
from tinycore import Tensor, TinyJit, nn
from tinycore.engine import transactions
from tinycore.engine.run import ExecItem
from tinycore.errors import CompileError, OutOfMemory

SECONDS = 20
"""Time limit, which no statement nearly takes; then this process ends with its threads' stacks."""

Numbers = list[list[float]]


class Case(NamedTuple):
    """A statement, and how to see what it has written."""

    step: Callable[[], object]
    state: Callable[[], Numbers]


def assign() -> Case:
    """A write to a whole tensor, of which there are views and a value from before."""
    state = Tensor([1.0, 2.0]).realize()
    view = state.reshape(2, 1)

    def step() -> None:
        state.assign(state + 1).realize()

    return Case(step, lambda: [state.tolist(), view.reshape(2).tolist()])


def setitem() -> Case:
    """A write to a part."""
    state = Tensor([1.0, 2.0, 3.0]).realize()

    def step() -> None:
        state[1:] = state[1:] * 2
        state.realize()

    return Case(step, lambda: [state.tolist()])


def optimizer(kind: Callable[..., Any]) -> Case:
    """A step of training."""
    weights = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]
    x = Tensor([0.5, 0.25]).realize()
    rule = kind(weights, lr=0.25)

    def step() -> None:
        with Tensor.train():
            rule.zero_grad()
            ((weights[0] * x + weights[1]) ** 2).sum().backward()
            rule.step()

    kept = [t for t in nn.state.get_parameters(rule) if not any(t is w for w in weights)]

    def state() -> Numbers:
        return [t.reshape(-1).tolist() for t in (*weights, *kept)]

    return Case(step, state)


def backward() -> Case:
    """Gradients of two weights, added to those that they have."""
    weights = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]
    x = Tensor([0.5, 0.25]).realize()

    def step() -> None:
        (weights[0] * weights[1] * x).sum().backward()

    def state() -> Numbers:
        return [[] if w.grad is None else w.grad.tolist() for w in weights]

    return Case(step, state)


def clipped() -> Case:
    """Gradients of two weights, whose norm becomes half of what it is."""
    weights = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]
    (weights[0] * weights[1] * 64).sum().backward()

    def step() -> None:
        nn.optim.clip_grad_norm_(weights, 0.5 * sum(sum(g) for g in state()))

    def state() -> Numbers:
        return [w.grad.square().tolist() for w in weights if w.grad is not None]

    return Case(step, state)


def scheduler() -> Case:
    """A step of a schedule of two learning rates."""
    groups = [nn.optim.SGD([Tensor([1.0]).realize()], lr=lr) for lr in (1.0, 0.5)]
    rule = nn.optim.lr_scheduler.ExponentialLR(nn.optim.OptimizerGroup(*groups), gamma=0.5)
    return Case(rule.step, lambda: [rule.count.tolist(), *[rate.tolist() for rate in rule.rates]])


def scaler() -> Case:
    """A step of training with a scaled loss, and of the scale."""
    weights = [Tensor([1.0, 2.0], requires_grad=True).realize() for _ in range(2)]
    rule, scale = nn.optim.SGD(weights, lr=0.25), nn.optim.GradScaler(8.0, growth_interval=1)

    def step() -> None:
        if scale._stepped:  # interrupted before it was updated
            scale.update()
        rule.zero_grad()
        with Tensor.train():
            scale.scale((weights[0] * weights[1]).sum()).backward()
            scale.step(rule)
        scale.update()

    return Case(step, lambda: [w.tolist() for w in weights])


def loaded() -> Case:
    """Loading the weights of a model, each twice what it was."""
    model = [Tensor([1.0, 2.0]).realize(), Tensor([3.0]).realize()]

    def step() -> None:
        given = {str(n): (t * 2).realize() for n, t in enumerate(model)}
        nn.state.load_state_dict(model, given, verbose=False)

    return Case(step, lambda: [t.tolist() for t in model])


def captured(calls: int) -> Case:
    """A function under TinyJit that has been called so many times."""
    state = Tensor([1.0, 2.0]).realize()
    one = Tensor([1.0, 1.0]).realize()
    function = TinyJit(lambda x: state.assign(state + x).realize() * 1)
    for _ in range(calls):
        function(one)
    state.assign(state - calls).realize()
    return Case(lambda: function(one), lambda: [state.tolist()])


CASES: dict[str, Callable[[], Case]] = {
    "assign": assign,
    "setitem": setitem,
    "SGD": lambda: optimizer(nn.optim.SGD),
    "SGD with momentum": lambda: optimizer(lambda w, lr: nn.optim.SGD(w, lr=lr, momentum=0.5)),
    "Adam": lambda: optimizer(nn.optim.Adam),
    "backward": backward,
    "clip_grad_norm_": clipped,
    "scheduler": scheduler,
    "GradScaler": scaler,
    "load_state_dict": loaded,
    "TinyJit, first call": lambda: captured(0),
    "TinyJit, capture": lambda: captured(1),
    "TinyJit, replay": lambda: captured(2),
}
"""By name, what makes a fresh one."""


def expected(make: Callable[[], Case]) -> list[Numbers]:
    """The states after 0, 1, 2 and 3 steps."""
    for _ in range(2):  # warm: what is compiled and looked up once is not interrupted here
        make().step()
    case = make()
    states = [case.state()]
    for _ in range(3):
        case.step()
        states.append(case.state())
    return states


def verdict(case: Case, states: list[Numbers]) -> str:
    """The mistake after an interrupted step; "" for none."""
    now = case.state()
    if now not in states[:2]:
        return f"holds {now}, want {states[0]} or {states[1]}"
    done = states.index(now)
    for _ in range(2):
        case.step()
    if (later := case.state()) != (want := states[done + 2]):
        return f"holds {later} two steps later, want {want}"
    return ""


def wrong_after(make: Callable[[], Case], states: list[Numbers], moment: Moment) -> tuple[str, str]:
    """The mistake after an interrupt at a line of a step, and where that was."""
    case = make()
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    place = ""
    try:
        place = interrupt(case.step, moment)
        return verdict(case, states), place
    except Exception as error:
        return f"then {type(error).__name__}: {error}", place
    finally:
        faulthandler.cancel_dump_traceback_later()


def interrupted(name: str, lines: int | None, source: random.Random) -> tuple[int, list[str]]:
    """Interrupt one statement at all lines, or some; how many, and what was wrong.

    What is remembered from step to step makes the next one run other lines: where an interrupt did
    not come, another line is taken, of the step as it runs now.
    """
    make = CASES[name]
    states = expected(make)
    known = moments_of(make().step)
    wanted = len(known) if lines is None else min(lines, len(known))
    left = source.sample(known, wanted)
    wrong, came = [], 0
    while came < wanted:
        moment = left.pop() if left else source.choice(known)
        found, place = wrong_after(make, states, moment)
        if place:
            came += 1
        else:
            known = moments_of(make().step)
        if found:
            wrong.append(f"{name}, {place or moment}: {found}")
    return came, wrong


def failing(name: str) -> tuple[int, list[str]]:
    """Let each launch of one statement fail; how many did, and what was wrong."""
    make = CASES[name]
    states = expected(make)
    wrong, number = [], 0
    for kind in (OutOfMemory, CompileError):
        for number in range(1, 1 << 10):
            case = make()
            with Failing(kind, number) as fault, contextlib.suppress(kind):
                case.step()
            if not fault.came:
                break
            if found := verdict(case, states):
                wrong.append(f"{name}, {kind.__name__} at launch {number}: {found}")
    return 2 * (number - 1), wrong


class Failing:
    """The launch with a number fails, as if the device had refused it."""

    def __init__(self, kind: type[Exception], number: int) -> None:
        self.kind, self.left, self.came = kind, number, False

    def __enter__(self) -> Self:
        self.runs = ExecItem.run, transactions.launch_of
        run, bind = self.runs

        def tried(*args: Any, **kwargs: Any) -> Any:
            self.count()
            return run(*args, **kwargs)

        def bound(*args: Any) -> Any:
            launch = bind(*args)

            def call() -> Any:
                self.count()
                return launch()

            return call

        ExecItem.run, transactions.launch_of = tried, bound  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *error: object) -> None:
        ExecItem.run, transactions.launch_of = self.runs  # type: ignore[method-assign]

    def count(self) -> None:
        """One more launch."""
        self.left -= 1
        if self.left == 0:
            self.came = True
            raise self.kind("a launch that was made to fail")


def signalled(name: str, times: int, source: random.Random) -> tuple[int, list[str]]:
    """Send this process SIGINT at moments by chance; how many came, and what was wrong."""
    make = CASES[name]
    states = expected(make)
    case = make()
    began = time.perf_counter()
    case.step()
    whole = time.perf_counter() - began
    wrong, came = [], 0
    for _ in range(times):
        case = make()
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        timer = threading.Thread(target=strike, args=(source.uniform(0, whole),), daemon=True)
        try:
            timer.start()
            while timer.is_alive():
                case.step()
                case = make()
            timer.join()
        except KeyboardInterrupt:
            came += 1
        try:
            if found := verdict(case, states):
                wrong.append(f"{name}, SIGINT: {found}")
        except Exception as error:
            wrong.append(f"{name}, SIGINT, then {type(error).__name__}: {error}")
        faulthandler.cancel_dump_traceback_later()
    return came, wrong


def strike(seconds: float) -> None:
    """SIGINT to this process, after a while."""
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Interrupt what is asked for; 1 where something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.once", description=__doc__)
    parser.add_argument("--lines", type=int, help="lines of each statement; all where absent")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--signals", type=int, help="real signals for each statement instead")
    parser.add_argument("--errors", action="store_true", help="let each launch fail instead")
    parser.add_argument("--only", choices=CASES, action="append")
    given = parser.parse_args()
    sys.unraisablehook = lambda _: None  # Python tells of interrupts in callbacks of references
    print(f"seed {given.seed}", flush=True)
    bad = 0
    for name in given.only or CASES:
        source = random.Random(given.seed)
        if given.errors:
            count, wrong = failing(name)
        elif given.signals:
            count, wrong = signalled(name, given.signals, source)
        else:
            count, wrong = interrupted(name, given.lines, source)
        bad += len(wrong)
        print(
            f"{name}: {count} interrupts, {len(wrong)} wrong", *wrong[:20], sep="\n  ", flush=True
        )
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
