"""Random programs with signals, whose handler reads tensors: `python -m tests.fuzz.signals`.

A program is one of `writes` or of `leaves`. From one of its lines on, it runs under a trace that
sends this process a signal at random steps inside of tinycore, at which Python looks for signals.
The handler reads and computes tensors of the program. What the program shows must be what it shows
undisturbed.
"""

from __future__ import annotations

import dis
import math
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy

import tinycore
from tests.fuzz import leaves, writes
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run, without_a_line
from tests.fuzz.writes import Program
from tinycore import Tensor
from tinycore.errors import AliasError, GradientError, JitError

LIBRARY: Final = str(Path(tinycore.__file__).parent)
SIGNAL_CHECKS: Final = frozenset(
    dis.opmap[name]
    for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
    if name in dis.opmap
)
"""Operations after which the interpreter looks for signals, as it does at the start of a frame."""
ENTERED: Final = 0.125
"""Part of the frames of tinycore that are looked into, each step of which is a call of Python."""
SIGNAL_RATES: Final = (0.4, 0.08, 0.024, 0.008)
"""Signals for each of these steps in such a frame."""
MOST_SENT: Final = 30
"""Signals for one program at most: each costs as much as one or two of its lines."""
MOST_READ: Final = 2
"""Tensors that a handler reads."""


class Signals:
    """Sends SIGUSR1 at random steps inside of tinycore, as a function for `sys.settrace`."""

    def __init__(
        self, seed: int, handler: Callable[[random.Random], object], share: float | None = None
    ) -> None:
        """`share` of the steps have a signal; one of SIGNAL_RATES unless it is given."""
        self.random = random.Random(seed)
        rate = self.random.choice(SIGNAL_RATES)
        self.rate = rate if share is None else share
        self.handler = handler
        self.is_handled = False
        self.count = 0
        self.passed = self.gap(ENTERED)
        """Frames that are passed by before one is looked into."""
        self.quiet = self.gap(self.rate)
        """Steps without a signal before one with it."""

    def gap(self, chance: float) -> int:
        """The number of tries that fail before one has the luck of a chance."""
        if not 0 < chance < 1:
            return 0 if chance else sys.maxsize
        return int(math.log(1 - self.random.random()) / math.log(1 - chance))

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY) or self.count >= MOST_SENT:
            return None
        if self.passed:
            self.passed -= 1
            return None
        self.passed = self.gap(ENTERED)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code, last = frame.f_code.co_code, 0

        def step(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "opcode":
                if code[last] in SIGNAL_CHECKS:
                    self.send()
                last = frame.f_lasti
            return step

        self.send()
        return step

    def send(self) -> None:
        """Send the signal, or not."""
        if self.quiet:
            self.quiet -= 1
        elif not self.is_handled and self.count < MOST_SENT:
            self.quiet = self.gap(self.rate)
            signal.raise_signal(signal.SIGUSR1)

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of the program: one at a time, and without the trace."""
        if self.is_handled:
            return
        self.is_handled, trace = True, sys.gettrace()
        sys.settrace(None)
        try:
            self.count += 1
            self.handler(self.random)
        finally:
            self.is_handled = False
            sys.settrace(trace)


def lines_disturbed(
    found: Program, signals: Signals
) -> Iterator[tuple[str, AbstractContextManager[None]]]:
    """The lines of a program, each with the signals to run it under: none in the first ones."""
    first = signals.random.randrange(len(found.lines))
    for number, line in enumerate(found.lines):
        yield line, sent(signals) if number >= first else nullcontext()


@contextmanager
def sent(signals: Signals) -> Iterator[None]:
    """Signals during the block."""
    before, trace = signal.signal(signal.SIGUSR1, signals.handle), sys.gettrace()
    try:
        sys.settrace(signals)
        yield
    finally:
        sys.settrace(trace)
        signal.signal(signal.SIGUSR1, before)


def reading(scope: dict[str, Any]) -> Callable[[random.Random], object]:
    """A handler that reads some tensors of a program, and what it computes from them."""

    def handler(draw: random.Random) -> None:
        found = [x for x in list(scope.values()) if isinstance(x, Tensor)]
        for tensor in draw.sample(found, min(len(found), draw.randint(1, MOST_READ))):
            draw.choice((Tensor.numpy, summed, Tensor.clone))(tensor)

    return handler


def summed(tensor: Tensor) -> None:
    """Compute something new from a tensor."""
    (tensor.cast("float32") * 2).sum().item()


def check_writes(found: Program) -> Verdict:
    """The first line of a program of writes that shows something else with signals."""
    shown: list[Any] = []
    scope = writes.tensor_api(shown)
    signals = Signals(found.seed, reading(scope))
    expected = writes.seen_by(found, writes.model_api)
    for (line, disturbed), (raised, values) in zip(
        lines_disturbed(found, signals), expected, strict=True
    ):
        shown.clear()
        refused = ""
        with disturbed:
            try:
                exec(writes.compiled(line), scope)
            except AliasError:
                refused = "AliasError"
        if refused != raised or not writes.same_values(values, shown):
            return Verdict("value", f"{line}: {refused or shown} instead of {raised or values}")
    return Verdict("")


def check_leaves(found: Program) -> Verdict:
    """The first value or gradient of a program of leaves that is not torch's with signals, though
    it is without.
    """
    expected = leaves.expected_of(found)
    if expected is None:
        return Verdict("cut")
    names = leaves.Ours()
    scope = names.scope()
    for line, disturbed in lines_disturbed(found, Signals(found.seed, reading(scope))):
        with disturbed:
            exec(writes.compiled(line), scope)
    results = leaves.results_in(names, scope)
    for name, one in expected.items():
        if not numpy.allclose(one, results[name], rtol=1e-4, atol=1e-4):
            if leaves.compare_here(found, expected).kind:
                return Verdict("cut", "is another value without signals")
            return Verdict("value", f"{name}: {results[name]}, torch {one}")
    return Verdict("")


def program(seed: int) -> Program:
    """The program of a seed."""
    return (leaves.program_of if seed % 2 else writes.program)(seed)


def check(found: Program) -> Verdict:
    """The first thing that signals change."""
    try:
        return (check_leaves if found.seed % 2 else check_writes)(found)
    except (GradientError, JitError) as error:  # as where the program itself reads there
        return Verdict("refused", str(error))
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-6))


def smaller(found: Program) -> Iterator[Program]:
    """The program without one of its lines."""
    if found.seed % 2:
        yield from leaves.smaller(found)
    else:
        yield from (Program(found.seed, lines) for lines in without_a_line(found.lines))


def shown(found: Program, verdict: Verdict) -> str:
    """The program with its seed, and its error."""
    return "\n".join((f"# seed {found.seed}: {verdict.kind}: {verdict.message}", *found.lines))


FUZZER: Final = Fuzzer(
    "tests.fuzz.signals",
    __doc__,
    program,
    check,
    shown,
    smaller,
    frozenset({"cut", "refused"}),
    devices=FRONTEND,
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
