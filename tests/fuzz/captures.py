"""Random functions, run as they are and under TinyJit: `python -m tests.fuzz.captures`.

A world is a module as text: values and tensors in globals, closures, attributes, classes,
containers, defaults and partials, and a function that reads, writes and leaves things there. It is
called some times, and between the calls anything may change. What is seen afterwards (results of
all calls, state, gradients, what was left) must be the same with and without TinyJit, unless that
raises JitError; also after it has. Where that stopped a call, it drew all, some or none of the
random numbers of the call, and the next ones are drawn from there in both runs.
"""

from __future__ import annotations

import contextvars
import math
import random
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run
from tinycore import Tensor, TinyJit
from tinycore.errors import GradientError, JitError
from tinycore.tensor.methods.stream import stream

MOST_CALLS: Final = 6

WORLD: Final = """
import functools, os, threading, types
import numpy
from tinycore import Tensor, TinyJit

k, LAST, count = 2.0, None, 0
os.environ["CAPTURES_K"] = "2"
array = numpy.array([1.0, 2.0, 3.0], numpy.float32)
raw = bytearray(b"\\x02\\x03")
box = {"k": 2.0, "last": None, "deep": [1.0, {"k": 2.0}]}
history, flags, chosen = [], {"raise": False}, {1.0}
s = Tensor([1.0, 2.0, 3.0]).realize()
w = Tensor([0.5, 1.0, -1.0], requires_grad=True).realize()
table = {"s": Tensor([3.0, 2.0, 1.0]).realize()}
rows = [Tensor([1.0, 1.0, 1.0]).realize(), Tensor([2.0, 2.0, 2.0]).realize()]

class Slots:
    __slots__ = ("k", "t", "last")
    def __init__(self):
        self.k, self.t, self.last = 2.0, Tensor([1.0, 0.0, 1.0]).realize(), None

class Base:
    shared = 2.0
    def twice(self, x):
        return x * self.shared

class Inner(Base):
    def __init__(self):
        self.k, self.t, self.last, self.unread = 2.0, Tensor([2.0, 0.0, 1.0]).realize(), None, 0
    @property
    def half(self):
        return self.k / 2

inner, slots = Inner(), Slots()
space = types.SimpleNamespace(inner=inner, k=2.0, last=None, items=[inner], count=0)

def helper(x):
    return x * k + inner.k

def touch(value):
    for item in value.values() if type(value) is dict else value:
        if isinstance(item, Tensor):
            item += 1
        elif isinstance(item, (dict, list, tuple)):
            touch(item)

@functools.lru_cache
def cached(n):
    return n * 2.0

def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

def hidden(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

class Called:
    def __init__(self, function):
        self.function = function
    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)
"""
"""Code around every function."""

VALUES: Final = {
    "k": "k = {}",
    "c": "change(c={})",
    "box['k']": "box['k'] = {}",
    "box['deep'][1]['k']": "box['deep'][1]['k'] = {}",
    "box['deep'][0]": "box['deep'][0] = {}",
    "inner.k": "inner.k = {}",
    "inner.half": "inner.k = {}",
    "inner.shared": "Inner.shared = {}",
    "space.inner.k": "space.inner.k = {}",
    "space.k": "space.k = {}",
    "space.items[0].shared": "Base.shared = {}",
    "slots.k": "slots.k = {}",
    "default": "innermost.__defaults__ = ({},)",
    "float(os.environ['CAPTURES_K'])": "os.environ['CAPTURES_K'] = str({})",
    "float(os.getenv('CAPTURES_K'))": "os.environ['CAPTURES_K'] = str({})",
    "float(raw[0])": "raw[0] = int(abs({}))",
    "max(chosen)": "chosen.clear(); chosen.add({})",
    "cached(box['k'])": "box['k'] = {}",
    "getattr(space, 'k')": "space.k = {}",
}
"""Plain values that a function reads, and how each is changed from outside."""

TENSORS: Final = {
    "s": "s = {}",
    "table['s']": "table['s'] = {}",
    "rows[0]": "rows[0] = {}",
    "rows[1]": "rows[1] = {}",
    "inner.t": "inner.t = {}",
    "slots.t": "slots.t = {}",
    "w.detach()": "w.assign({})",
    "Tensor(array)": "array[:] = {}.numpy()",
}
"""Tensors that a function reads, and how each is exchanged."""

MEMORY: Final = ("s", "table['s']", "rows[0]", "inner.t", "slots.t", "x")
"""Targets of a function's writes."""

FRESH: Final = (
    "Tensor(array)",
    "Tensor([3.0, 1.0, 2.0])",
    "Tensor([3.0, 1.0, 2.0]).realize()",
    "Tensor.zeros(3).contiguous()",
    "Tensor.full((3,), 2.0, buffer=True)",
    "{a}.clone()",
    "({a} * 2).realize()",
    "Tensor.rand(3).realize()",
)
"""New memory, which the function may write to."""

LEFT: Final = (
    "box['last'] = {a}",
    "space.last = {a}",
    "inner.last = [{a}, {a} * 2]",
    "slots.last = {{'a': {a}, 'name': 'a'}}",
    "LAST = {a}",
    "kept = {a}",
    "inner.last = x",
    "box['last'] = {a}.realize()",
    "space.last = s[0:2]",
)
"""Statements that leave tensors outside."""

EFFECTS: Final = (
    "history.append({a})",
    "space.count += 1",
    "count += 1",
    "box['last'] = ({a} if box['last'] is None else box['last'] + {a}).realize()",
    "s = s + {a}",
    "table['new' + str(len(table))] = {a}",
    "w.grad = None",
    "raw[1] = 7",
    "inner.unread = 0",
    "history = [{a}]",
    "bag['b'] = {a}",
    "if 'n' in box: box['n'] += 1",
)
"""Statements that are mostly refused, or done once."""

BETWEEN: Final = (
    "s.assign(s * 0.5 + 1)",
    "rows[0].assign(rows[1])",
    "w.grad = None",
    "box['last'] = None",
    "space.last = None",
    "flags['raise'] = True",
    "flags['raise'] = False",
    "flags['raise'] = False",
    "inner.unread += 1",
    "unseen = 5",
    "Tensor.manual_seed(3)",
    "w.requires_grad = not w.requires_grad",
    "keep(w.grad)",
    "keep(box['last'])",
    "keep(w.grad[0:1] if w.grad is not None else None)",
    "keep(w.grad * 2 if w.grad is not None else None)",
    "table['s'][0:1] = 5",
    "w.assign(w * 0.5)",
    "box['deep'] = [1.0, {'k': 2.0}]",
    "inner.t = inner.t",
    "touch(results[-1:])",
    "touch(results)",
    "touch([box['last'], inner.last])",
    "touch([w.grad])",
)
"""Statements between calls, other than changes of values and tensors."""

WRAPS: Final = (
    "{}", "{}", "{}", "Tensor.train()({})", "wrapped({})", "hidden({})", "Called({})",
    "functools.partial({})", "functools.partial({}, default=2.0)", "Tensor.train()(wrapped({}))",
    "wrapped(functools.partial({}))", "Called({}).__call__",
)  # fmt: skip


@dataclass
class World:
    """A function with its environment, and its calls."""

    seed: int
    text: str
    """The function; the environment of every one is WORLD."""
    calls: list[tuple[list[str], str]] = field(default_factory=list)
    """Statements before each call, and its arguments."""

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}", self.text]
        for before, arguments in self.calls:
            lines += [f"# {'; '.join(before)}", f"# step({arguments})"]
        return "\n".join(lines)


class Writer:
    """Writes the function of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[str] = []
        self.tensors: list[str] = []
        self.names = ["a"]
        self.made: list[str] = []
        """Names of new memory."""

    def pick(self, options: Any) -> Any:
        """One of some options."""
        return self.random.choice(list(options))

    def value(self) -> str:
        """A plain value that the function reads."""
        found = self.pick(VALUES)
        self.values.append(found)
        return str(found)

    def tensor(self) -> str:
        """A tensor of three elements that the function reads."""
        found = self.pick([*TENSORS, *self.names, *self.names])
        if found in TENSORS:
            self.tensors.append(found)
        return str(found)

    def expression(self) -> str:
        """A new value."""
        one = self.tensor()
        return str(
            self.pick(
                (
                    f"{one} * {self.value()}",
                    f"{one} + {self.value()}",
                    f"{one} * 0.5 + {self.tensor()}",
                    f"({one} - {self.tensor()}).relu()",
                    f"helper({one})",
                    f"inner.twice({one})",
                    f"space.items[0].twice({one})",
                    f"{one} + {one}.sum() * 0.25",
                    f"{one}.flip(0)",
                    f"{one} + Tensor.rand(3)",
                    f"({one} + 1).realize() * 2",
                    f"{one} + n",
                )
            )
        )

    def statement(self) -> None:
        """A line or some of the body."""
        kind = self.random.random()
        latest = self.names[-1]
        if kind < 0.42:
            name = f"a{len(self.names)}"
            is_memory = kind < 0.08
            made = self.pick(FRESH).format(a=latest) if is_memory else self.expression()
            self.lines.append(f"{name} = {made}")
            self.names.append(name)
            self.made += [name] * is_memory
        elif kind < 0.62:
            self.write(latest)
        elif kind < 0.74:
            self.lines.append(self.pick(LEFT).format(a=latest))
        elif kind < 0.77:
            self.lines.append(self.pick(EFFECTS).format(a=latest))
        elif kind < 0.88:
            if self.random.random() < 0.92:
                self.lines.append("w.grad = None")
            self.lines.append(f"(w * {latest}.detach()).sum().backward()")
        elif kind < 0.94:
            self.lines.append(f"if {self.value()} > 2: {latest} = {latest} * 2")
        elif kind < 0.97:
            self.lines.append("if flags['raise']: raise ValueError('stopped')")
        elif kind < 0.995:
            self.lines.append("Tensor.manual_seed(11)")
        else:
            self.lines.append(f"{latest} = {latest} + float({latest}.sum().item() > 0)")

    def write(self, value: str) -> None:
        """A write in place."""
        target = self.pick((*MEMORY, *self.made, *self.made))
        if target not in ("x", *self.made):
            self.tensors.append(target)
        source = value if target != "x" else "x * 0.5 + 1"
        self.lines.append(
            self.pick(
                (
                    f"{target}.assign({source})",
                    f"{target}.assign({target} * 0.5 + 1)",
                    f"{target}.assign({source}).realize()",
                    f"{target}[..., 0:1] = {target}[..., 1:2] + 1",
                    f"{target}[..., 1:3].assign({target}[..., 0:2])",
                    f"{target} += 1",
                    f"{target} *= 0.5",
                )
            )
        )

    def world(self, seed: int) -> World:
        """All of it."""
        for _ in range(self.random.randint(1, 6)):
            self.statement()
        latest = self.names[-1]
        result = self.pick(
            (latest, latest, f"{latest} + 1", f"({latest}, x)", f"{{'a': {latest}, 's': s}}",
             f"[{latest}, x[..., 0:2]]", "None", f"{latest} * {self.value()}")
        )  # fmt: skip
        body = "\n        ".join(
            ["global s, LAST, count, history", "nonlocal kept",
             "a = x if x.ndim == 1 else x.sum(0)", *self.lines, f"return {result}"]
        )  # fmt: skip
        wrap = self.pick(WRAPS)
        is_method = wrap == "{}" and self.random.random() < 0.3
        made = (
            "class Layer:\n    __slots__ = ()\n    @JIT\n    def run(self, *args, **kwargs):\n"
            "        return innermost(*args, **kwargs)\nlayer = Layer()\nstep = layer.run"
            if is_method
            else f"step = JIT({wrap.format('innermost')})"
        )
        text = f"""
def make():
    c, kept = 2.0, None
    def step(x, default=2.0, *, n=1.0, bag=None):
        {body}
    def change(**new):
        nonlocal c
        c = new["c"]
    return step, change, lambda: kept

innermost, change, left = make()
{made}
"""
        return World(seed, text, [self.call() for _ in range(MOST_CALLS)])

    def call(self) -> tuple[list[str], str]:
        """The changes before a call, and its arguments."""
        before = []
        if self.random.random() < 0.4 and self.values:
            before.append(VALUES[self.pick(self.values)].format(self.pick((1.0, 2.0, 2.0, 3.0))))
        if self.random.random() < 0.12 and self.tensors:
            new = "Tensor([4.0, 1.0, 2.0]).realize()"
            before.append(TENSORS.get(self.pick(self.tensors), "s = {}").format(new))
        if self.random.random() < 0.35:
            before.append(self.pick(BETWEEN))
        numbers = ", ".join(str(self.random.randint(-2, 4)) + ".0" for _ in range(3))
        x = f"Tensor([{numbers}]).realize()"
        choice = self.random.random()
        if choice < 0.06:
            x = f"Tensor([[{numbers}], [1.0, 2.0, 0.0]]).realize()"
        elif choice < 0.10:
            x = f"Tensor([{numbers}, 1.0, 2.0]).realize()[1:4]"
        elif choice < 0.14:
            x = "(s * 1).realize()"
        elif choice < 0.16:
            x = "s"
        more = ", bag={}" if "bag" in "".join(self.lines) else ""
        if self.random.random() < 0.1:
            more += ", n=2.0"
        if self.random.random() < 0.1:
            more += ", thread=True"
        return before, x + more


def world(seed: int) -> World:
    """The world of a seed."""
    return Writer(seed).world(seed)


# --- running


class Position(NamedTuple):
    """A position in the streams of random numbers: a seed, and the count of its numbers taken."""

    seed: int
    taken: int


@dataclass
class Seen:
    """Observations after one call, and the position of the random numbers before and after it."""

    outcome: str
    result: Any
    state: Any
    before: Position
    after: Position

    def may_stop_at(self, position: Position) -> bool:
        """True if some of the random numbers of this call are drawn up to a position."""
        if position.seed == self.before.seed and self.before.seed != self.after.seed:
            return position.taken >= self.before.taken  # stopped before it chose another seed
        is_seeded = self.before.seed != self.after.seed or self.after.taken < self.before.taken
        first = 0 if is_seeded else self.before.taken
        is_on_the_way = first <= position.taken <= self.after.taken
        return position == self.before or (position.seed == self.after.seed and is_on_the_way)


def plain(value: Any) -> Any:
    """A value without tensors."""
    if isinstance(value, Tensor):
        return "tensor", value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    return value


STATE: Final = (
    "s", "w", "w.grad", "table", "rows", "inner.t", "slots.t", "box", "space.last", "inner.last",
    "slots.last", "LAST", "left()", "history", "count", "space.count", "kept", "array", "results",
)  # fmt: skip


@cache
def code_of(line: str, mode: str = "exec") -> CodeType:
    """A line that many worlds have, compiled."""
    return compile(line, "world", mode)


def position_now() -> Position:
    """The position of the next random number."""
    return Position(*stream.position)


def move_to(position: Position) -> None:
    """Draw the next random number from a position."""
    stream.position = position.seed, position.taken


def seen_of(
    found: World, jit: Callable[[Any], Any], stopped: Mapping[int, Position] | None = None
) -> list[Seen]:
    """All calls, with the function as it is or captured.

    `stopped` has the positions that calls of another run left the random numbers at, by the number
    of the call: those that a call here may be stopped at are taken over.
    """
    kept: list[Any] = []
    results: list[Any] = []
    scope: dict[str, Any] = {"__name__": "captured_world", "JIT": jit, "results": results}
    scope |= {"kept": kept, "keep": kept.append}
    Tensor.manual_seed(found.seed)
    exec(code_of(WORLD), scope)
    exec(compile(found.text, f"world {found.seed}", "exec"), scope)
    seen = []
    for before, arguments in found.calls:
        for line in before:
            exec(code_of(line), scope)
        argument = eval(f"dict(x={arguments})", scope)
        scope["argument"] = argument["x"]
        x = argument.pop("x")
        begun = position_now()
        outcome, result = called(scope["step"], x, argument)
        ended = position_now()
        results.append(result)
        state = {name: plain(eval(code_of(name, "eval"), scope)) for name in STATE}
        state |= {"x": plain(x), "bag": plain(argument)}
        seen.append(Seen(outcome, plain(result), state, begun, ended))
        position = (stopped or {}).get(len(seen) - 1)
        if position is not None and seen[-1].may_stop_at(position):
            move_to(position)
    return seen


def called(step: Callable[..., Any], x: Tensor, options: dict[str, Any]) -> tuple[str, Any]:
    """The exception of a call, in this thread or another one, and its result."""
    found: list[tuple[str, Any]] = []
    in_thread = options.pop("thread", False)

    def call() -> None:
        try:
            found.append(("", step(x, **options)))
        except (GradientError, JitError, ValueError) as error:
            found.append((type(error).__name__, None))
        except Exception as error:
            found.append((f"{type(error).__name__} {error}", None))

    if in_thread:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(call,))
        thread.start()
        thread.join()
    else:
        call()
    return found[0]


def same_content(one: Any, other: Any) -> bool:
    """True if two observations are equal, but for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_content(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_content, one, other))
    if isinstance(one, float) and isinstance(other, float):
        both_nan = one != one and other != other
        return both_nan or math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    return type(one) is type(other) and bool(one == other)


def check(found: World) -> Verdict:
    """The kind of error found, and how it was seen; empty if there is none.

    The kind of a world that was refused is "refused", of one whose plain run fails "odd".
    """
    try:
        expected = seen_of(found, lambda function: function)
    except Exception:
        return Verdict("odd", traceback.format_exc(limit=-2))
    if any(seen.outcome not in ("", "GradientError", "ValueError") for seen in expected):
        return Verdict("odd", str([seen.outcome for seen in expected]))
    try:
        captured = seen_of(found, TinyJit)
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    stopped = {n: seen.after for n, seen in enumerate(captured) if seen.outcome == "JitError"}
    if any(expected[number].after != position for number, position in stopped.items()):
        expected = seen_of(found, lambda function: function, stopped)
    refused = False
    reads = ".item()" in found.text
    for number, (one, other) in enumerate(zip(expected, captured, strict=True)):
        if refused and any("touch(" in line for line in found.calls[number][0]):
            return Verdict("refused")  # there is no result of what was refused
        if other.outcome == "JitError":
            if reads:
                return Verdict("refused")
            refused = True
            one.state["results"] = other.state["results"]
        elif not (one.outcome == other.outcome and same_content(one.result, other.result)):
            return Verdict("result", compare_runs(number, one, other))
        if refused:
            one.state["results"] = other.state["results"]
        if not same_content(one.state, other.state):
            if refused and other.outcome == "JitError":
                return Verdict("refused")  # what a stopped call did to containers is not undone
            return Verdict("state", compare_runs(number, one, other))
    return Verdict("refused" if refused else "")


def compare_runs(number: int, one: Seen, other: Seen) -> str:
    """Differences between two observations of a call."""
    lines = [f"call {number}: {one.outcome or 'returned'}, with TinyJit {other.outcome or 'too'}"]
    if not same_content(one.result, other.result):
        lines.append(f"  result: {one.result}, with TinyJit {other.result}")
    lines += [
        f"  {name}: {one.state[name]}, with TinyJit {other.state[name]}"
        for name in one.state
        if not same_content(one.state[name], other.state[name])
    ]
    return "\n".join(lines)


def shown(found: World, verdict: Verdict) -> str:
    """The world, and its error."""
    return f"seed {found.seed}: {verdict.kind}\n{verdict.message}\n{found}"


FUZZER: Final = Fuzzer(
    "tests.fuzz.captures",
    __doc__,
    world,
    check,
    shown,
    accepted=frozenset({"refused", "odd"}),
    printed=frozenset({"odd"}),
    devices=FRONTEND,
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
