"""Random functions that several threads capture and replay at the same time.

    python -m tests.fuzz.threads --count 40 --seed 0 --device CPU

Each thread makes functions of a few kinds, calls them as they are and under TinyJit, and compares
results and what they leave outside with NumPy's: threads share a weight that nobody writes, and
have all else for themselves. Nothing may be refused but writes that do not fit, whose group then
leaves nothing written. Threads switch as often as Python lets them, but when is
not told by the seed: a failure may take several runs to show again.
"""

from __future__ import annotations

import contextvars
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeAlias

import numpy

from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run
from tinycore import Tensor, TinyJit, Variable, nn
from tinycore.errors import ShapeError
from tinycore.tensor.storage.writes import atomic_writes

THREADS: Final = 4
FUNCTIONS: Final = 2
"""Functions that each thread makes, one after the other."""
SWITCH_SECONDS: Final = 1e-6

Array: TypeAlias = Any


class Case(NamedTuple):
    """A function, the same on arrays of NumPy, and pairs of what they leave outside."""

    step: Callable[[Tensor], Any]
    numbers: Callable[[Array], Any]
    left: Callable[[], list[tuple[Tensor, Array]]] = list


def host(*values: float) -> Tensor:
    """A tensor in memory."""
    return Tensor([float(value) for value in values]).realize()


def constant(weight: Tensor, array: Array) -> Case:
    """Arithmetic with the shared weight."""
    return Case(
        lambda x: (x * weight * 2 + weight.sum()).realize(),
        lambda x: x * array * 2 + array.sum(),
    )


def alike(weight: Tensor, array: Array) -> Case:
    """Values of the weight alone, which all threads compute by equal graphs."""

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (weight * 5).realize()
        return x + scaled, ((weight * 3).exp2() + x).realize()

    return Case(step, lambda x: (x + array * 5, numpy.exp2(array * 3) + x))


def hoisted(weight: Tensor, array: Array) -> Case:
    """The same, where replays leave out what no argument changes."""
    pruned = TinyJit(lambda x: x + (weight * 5).contiguous() + weight.exp2().realize(), prune=True)
    return Case(pruned, lambda x: x + array * 5 + numpy.exp2(array))


def state(weight: Tensor, array: Array) -> Case:
    """Memory that is written in whole and in part."""
    total, seen = host(0, 0, 0), numpy.zeros(3, numpy.float32)

    def step(x: Tensor) -> Tensor:
        total[1:] = total[:2] + x * weight
        return total * 2

    def numbers(x: Array) -> Array:
        seen[1:] = seen[:2] + x * array
        return seen * 2

    return Case(step, numbers, lambda: [(total, seen)])


def gradients(weight: Tensor, array: Array) -> Case:
    """Gradients that are left outside."""
    own, seen = host(1, 2).requires_grad_(), numpy.zeros(2, numpy.float32)

    def step(x: Tensor) -> Tensor:
        own.grad = None
        loss = (own * x * weight).square().sum()
        loss.backward()
        return loss

    def numbers(x: Array) -> Array:
        seen[:] = 2 * numpy.array([1, 2]) * (x * array) ** 2
        return ((numpy.array([1, 2]) * x * array) ** 2).sum()

    return Case(step, numbers, lambda: [] if own.grad is None else [(own.grad, seen)])


def training(weight: Tensor, array: Array) -> Case:
    """Steps of an optimizer."""
    own, seen = host(1, 2).requires_grad_(), numpy.array([1.0, 2.0], numpy.float32)
    optimizer = nn.optim.SGD([own], lr=0.125)

    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = (own * x).square().sum().backward()
            optimizer.step()
        return loss

    def numbers(x: Array) -> Array:
        loss = ((seen * x) ** 2).sum()
        seen[:] -= 0.25 * seen * x * x
        return loss

    return Case(step, numbers, lambda: [(own, seen)])


def failing(weight: Tensor, array: Array) -> Case:
    """Groups of writes, of which every other fails at its last one and leaves nothing written."""
    own, other = host(1, 2), host(3, 4)
    pair = numpy.array([1.0, 2.0], numpy.float32), numpy.array([3.0, 4.0], numpy.float32)

    def step(x: Tensor) -> Tensor:
        for last in (host(1, 2, 3), x):  # the first of which has another shape
            with suppress(ShapeError), atomic_writes(lambda: (own, other)):
                own.assign(other * weight - own)
                other[:1] = own[1:]
                other.assign(last - other)
        return own + other

    def numbers(x: Array) -> Array:
        own, other = pair
        own[:] = other * array - own
        other[:1] = own[1:]
        other[:] = x - other
        return own + other

    return Case(step, numbers, lambda: [(own, pair[0]), (other, pair[1])])


def sized(weight: Tensor, array: Array) -> Case:
    """Slices of the weight by a Variable, which has its own number in each thread."""
    length, count = Variable("length", 1, 2), [0]
    captured: Any = TinyJit(lambda x, n: weight[:n].sum() + x * 1)

    def numbers(x: Array) -> Array:
        return array[: count[0]].sum() + x

    def step(x: Tensor) -> Any:
        count[0] = count[0] % 2 + 1
        return captured(x, length.bind(count[0]))

    return Case(step, numbers)


KINDS: Final = (constant, alike, hoisted, state, gradients, training, sized, failing)


class Program(NamedTuple):
    """The kinds of functions of each thread, and the arguments of their calls."""

    seed: int
    plans: tuple[tuple[tuple[int, bool, tuple[tuple[float, float], ...]], ...], ...]


def program_of_threads(seed: int) -> Program:
    """The program of a seed."""
    source = random.Random(seed)

    def plan() -> tuple[int, bool, tuple[tuple[float, float], ...]]:
        calls = [
            (source.randint(-2, 2), source.randint(-2, 2)) for _ in range(source.randint(3, 6))
        ]
        return source.randrange(len(KINDS)), source.random() < 0.9, tuple(calls)

    plans = [tuple([plan() for _ in range(FUNCTIONS)]) for _ in range(THREADS)]
    return Program(seed, tuple(plans))


@contextmanager
def switching() -> Iterator[None]:
    """Let threads switch as often as Python can inside the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check(found: Program) -> Verdict:
    """Run the threads: the first result that is wrong, or exception."""
    weight, array = host(1, 2), numpy.array([1.0, 2.0], numpy.float32)
    start, verdicts = threading.Barrier(len(found.plans)), list[Verdict]()

    def work(plan: Any) -> None:
        try:
            start.wait(60)
            for kind, jitted, calls in plan:
                if (verdict := wrong(kind, jitted, calls, weight, array)).kind:
                    verdicts.append(verdict)
        except Exception:
            verdicts.append(Verdict("raised", traceback.format_exc(limit=-4)))

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, plan))
        for plan in found.plans
    ]
    with switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return verdicts[0] if verdicts else Verdict("")


def wrong(
    kind: int, jitted: bool, calls: tuple[tuple[float, float], ...], weight: Tensor, array: Array
) -> Verdict:
    """The mistake of one function; empty for none."""
    make = KINDS[kind]
    step, numbers, left = make(weight, array)
    if jitted and make not in (hoisted, sized):  # which are captured themselves
        step = TinyJit(step)
    for place, values in enumerate(calls):
        found = step(host(*values))
        wanted = numbers(numpy.array(values, numpy.float32))
        if not isinstance(found, tuple):
            found, wanted = (found,), (wanted,)
        for tensor, content in [*zip(found, wanted, strict=True), *left()]:
            if not numpy.allclose(tensor.numpy(), content, rtol=1e-4, atol=1e-4):
                text = f"{make.__name__}, call {place}: {tensor.numpy()}, want {content}"
                return Verdict("wrong", text)
    return Verdict("")


def shown(found: Program, verdict: Verdict) -> str:
    """The seed, and its error."""
    names = [[KINDS[kind].__name__ for kind, *_ in plan] for plan in found.plans]
    return f"seed {found.seed}: {verdict.kind}\n{verdict.message}\n{names}"


FUZZER: Final = Fuzzer(
    "tests.fuzz.threads", __doc__, program_of_threads, check, shown, devices=FRONTEND
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
