"""Random programs around a captured function: `python -m tests.fuzz.surroundings`.

The function reads numbers and tensors from places of all kinds, writes to tensors, leaves and moves
them. Between its calls the program changes what is there, holds values that wait, takes snapshots,
averages, copies objects, and looks at anything at random times. All that it sees must be the same
with and without TinyJit, up to a call that is refused.
"""

from __future__ import annotations

import random
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tests.fuzz.captures import same_content
from tests.fuzz.runner import Fuzzer, Verdict, run, without_a_line
from tinycore import Tensor, TinyJit
from tinycore.errors import GradientError, JitError

SETUP: Final = """
import array, collections, contextvars, copy, ctypes, dataclasses, enum, functools, io, operator
import types
import numpy
from tinycore import Tensor

def row(*values):
    return Tensor(list(values)).realize()

class Plain:
    def factor(self):
        return 2.0
    @property
    def half(self):
        return self.k / 2

class Below(Plain):
    shared = 2.0

class Slots:
    __slots__ = ("k", "class", "__own", "t")
    def own(self):
        return self.__own
    def set_own(self, value):
        self.__own = value

class Named(dict): pass
class Listed(list): pass
class Paired(tuple): pass
class Number(float): pass
class Text(str): pass
class Weighted(Tensor): pass

@dataclasses.dataclass
class Options:
    k: float = 2.0
    t: object = None

class Kind(enum.Enum):
    ONE = 1
    def factor(self):
        return 2.0

def caught(value):
    try:
        return value.k
    except AttributeError:
        return 1.0

def matched(value):
    match value:
        case Options(k=2.0):
            return 2.0
    return 3.0

def inner(factor=2.0):
    return factor * getattr(inner, "k", 1.0)

def closed():
    k, t = 2.0, row(1.0, 0.5)
    def get(): return k
    def put(value):
        nonlocal k
        k = value
    def tensor(): return t
    def exchange(value):
        nonlocal t
        t = value
    return get, put, tensor, exchange

class Model:
    def __init__(self):
        self.w = row(2.0, 1.0)
        self.step = JIT(self.run)
    def run(self, x):
        return x * self.w + k

k, last, name = 2.0, None, "k"
plain, below, slots, options, space = Plain(), Below(), Slots(), Options(), types.SimpleNamespace()
plain.k = slots.k = space.k = below.k = 2.0
slots.set_own(2.0)
setattr(slots, "class", 2.0)
absent = Plain()
named, listed, paired, number, text = Named(), Listed(), Paired(), Number(1.0), Text("a")
weighted = Weighted([1.0, 2.0]).realize()
named.k = listed.k = paired.k = number.k = text.k = weighted.k = 2.0
module = types.ModuleType("module")
module.k = 2.0
inside = {"k": 2.0}
view = types.MappingProxyType(inside)
objects = numpy.array([1.0, [2.0]], object)
records = numpy.array([(2.0, 1)], [("a", "f8"), ("b", "i4")])
numbers, raw, whole = array.array("d", [2.0]), bytearray(b"\\x02"), ctypes.c_int(2)
shown, file = memoryview(raw), io.BytesIO(b"\\x02")
variable = contextvars.ContextVar("variable", default=2.0)
nest, ring = {"a": [1.0, {"k": 2.0}]}, collections.deque([2.0, 1.0], maxlen=2)
getter, partial = operator.attrgetter("k"), functools.partial(inner, 2.0)
get, put, tensor_of, exchange = closed()
w = Tensor([0.5, 1.0], requires_grad=True).realize()
s = row(1.0, 2.0)
space.t, slots.t, options.t, plain.t = row(2.0, 1.0), row(3.0, 1.0), row(1.0, 3.0), row(0.5, 2.0)
named["last"] = None
named.t, named["t"] = row(1.0, 4.0), row(4.0, 1.0)
rows = [row(1.0, 1.0), row(2.0, 2.0), row(3.0, 3.0)]
shift = collections.deque([row(1.0, 2.0), row(2.0, 1.0)], maxlen=2)
space.last = space.pair = None
model = Model()
held, average, losses = [], row(0.0, 0.0), []
"""
"""Code before every function."""

READ_NUMBERS: Final = (
    ("k", "k = {}"),
    ("plain.k", "plain.k = {}"),
    ("below.half", "below.k = {}"),
    ("below.shared", "Below.shared = {}", "below.shared = {}", "vars(below).pop('shared', None)"),
    ("below.factor()", "below.factor = lambda: {}", "vars(below).pop('factor', None)",
     "Below.factor = lambda self: {}", "Plain.factor = lambda self: {}"),
    ("getattr(absent, 'k', 2.0)", "absent.k = {}", "vars(absent).pop('k', None)"),
    ("(1.0 if getattr(absent, 'k', 0) is None else 2.0)", "absent.k = None", "absent.k = {}",
     "vars(absent).pop('k', None)"),
    ("float(hasattr(absent, 'k'))", "absent.k = {}", "vars(absent).pop('k', None)"),
    ("float(hasattr(Below, 'extra'))", "Plain.extra = {}", "Below.extra = 1"),
    ("caught(absent)", "absent.k = {}", "vars(absent).pop('k', None)", "Plain.k = {}"),
    ("float(callable(plain))", "Plain.__call__ = lambda self: {}"),
    ("matched(options)", "options.k = {}"),
    ("options.k", "options.k = {}", "options = Options({})"),
    ("slots.k", "slots.k = {}"),
    ("slots.own()", "slots.set_own({})"),
    ("getattr(slots, 'class')", "setattr(slots, 'class', {})"),
    ("getattr(space, name)", "space.k = {}"),
    ("inner()", "inner.k = {}", "vars(inner).pop('k', None)", "inner.__defaults__ = ({},)"),
    ("partial()", "inner.k = {}"),
    ("getter(plain)", "plain.k = {}"),
    ("abs(-2.0)", "abs = lambda _: {}", "globals().pop('abs', None)"),
    ("named.k", "named.k = {}"),
    ("listed.k", "listed.k = {}"),
    ("paired.k", "paired.k = {}"),
    ("number.k", "number.k = {}"),
    ("text.k", "text.k = {}"),
    ("weighted.k", "weighted.k = {}"),
    ("Kind.ONE.factor()", "Kind.factor = lambda self: {}"),
    ("module.k", "module.k = {}"),
    ("getattr(module, 'more', 2.0)", "module.more = {}", "vars(module).pop('more', None)"),
    ("view['k']", "inside['k'] = {}"),
    ("objects[1][0]", "objects[1][0] = {}"),
    ("float(records['a'][0])", "records[0] = ({}, 1)"),
    ("numbers[0]", "numbers[0] = {}"),
    ("float(shown[0])", "raw[0] = int({})"),
    ("float(whole.value)", "whole.value = int({})"),
    ("float(file.getvalue()[0])", "file.seek(0); file.write(bytes([int({})]))"),
    ("variable.get()", "variable.set({})"),
    ("nest['a'][1]['k']", "nest['a'][1]['k'] = {}", "nest = {{'a': [1.0, {{'k': {}}}]}}"),
    ("ring[0]", "ring.append({})", "ring.rotate()"),
    ("get()", "put({})"),
)  # fmt: skip
"""Numbers that the function reads, and how they are changed."""

PLACES: Final = (
    "s", "space.t", "slots.t", "options.t", "plain.t", "named.t", "named['t']", "rows[0]",
    "rows[1]", "rows[2]", "shift[0]", "shift[1]",
)  # fmt: skip
"""Places of tensors, of which all but `s` are also changed by assignment in the function."""

PUT: Final = ("space.last = {}", "space.pair = [{}, {}]", "named['last'] = {}", "last = {}")
EMPTIED: Final = ("space.last", "space.pair", "named['last']", "last")


class Program(NamedTuple):
    """A seed, the lines of the function, and those of the program that calls it."""

    seed: int
    body: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def function(self) -> str:
        """The text of the captured function."""
        inside = "\n    ".join(("global last, s", "y = x", *self.body, "return y"))
        return f"def run(x):\n    {inside}\nstep = JIT(run)"


class Writer:
    """Writes the program of a seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.seed = random.Random(seed), seed
        self.pick = self.random.choice
        self.numbers = self.random.sample(READ_NUMBERS, 2)
        self.places = self.random.sample(PLACES, 3)

    def tensor(self) -> str:
        """A tensor that exists when the function begins, or what it has computed."""
        return self.pick((*self.places, "y", "tensor_of()"))

    def statement(self) -> str:
        """A line of the function."""
        one, other, third = self.random.sample(self.places, 3)
        written = self.pick((one, "tensor_of()", "x"))
        source = self.pick(("y", f"{written} * 0.5 + y", f"{other} + 1"))
        return self.pick(
            (
                f"y = y * {self.pick(self.numbers)[0]} + {self.tensor()}",
                f"y = y + {self.pick(self.numbers)[0]}",
                f"y = (y - {self.tensor()}).relu()",
                f"{written}.assign({source}){self.pick(('', '.realize()'))}",
                f"{one}[0:1] = {other}[1:2] + y[0:1]",
                self.pick(PUT).replace("{}", self.pick(("y", "y * 2", one, f"{one}.detach()"))),
                self.pick(
                    (
                        f"{one} = y * 2",
                        f"{one} = {other}",
                        f"{one}, {other} = {other}, {one}",
                        f"{one} = {other} if {one} is {third} else {third}",
                    )
                ),
                "w.grad = None; (w * y.detach()).sum().backward()",
                "(w * y.detach()).sum().backward(); w.assign(w.detach() - w.grad); w.grad = None",
            )
        )

    def change(self) -> str:
        """A change of what the function reads."""
        number = self.pick(("1.0", "2.0", "2.0", "3.0"))
        return self.pick(self.pick(self.numbers)[1:]).format(number)

    def event(self) -> str:
        """A line of the program."""
        one, other, _ = self.random.sample(self.places, 3)
        place = self.pick((one, "tensor_of()", "w.detach()"))
        weights = ((self.call, 6), (self.change, 3))
        made = self.random.choices([m for m, _ in weights], [c for _, c in weights])[0]
        if self.random.random() < 0.5:
            return made()
        empty = self.pick(EMPTIED)
        return self.pick(
            (
                f"held.append({place} * 10)",
                f"held.append({place}.clone())",
                f"held.append({place}.detach())",
                f"held.append({place}.reshape(2, 1).detach() + 1); held[-1].tolist()",
                f"average = average * 0.5 + {place} * 0.5",
                f"average.assign(average * 0.5 + {place} * 0.5)",
                f"see(held[{self.random.randrange(4)}] if len(held) > 4 else None)",
                f"see({place})",
                f"see({empty})",
                "see(average)",
                "see(w.grad)",
                f"losses.append((w * {place}).sum())",
                f"losses.append((w * {self.number()}).sum() + {place}.sum())",
                "see(losses[-1] if losses else None)",
                "w.grad = None; losses.pop().backward() if losses else None; see(w.grad)",
                f"{one} = row({self.number()}, {self.number()})",
                f"{one}, {other} = {other}, {one}",
                f"{one}.assign({other} + {self.number()})",
                f"{empty} = None",
                "exchange(row(5.0, 6.0))",
                f"see(model.step(row({self.number()}, 1.0)))",
                "model = copy.deepcopy(model)",
                f"model.w.assign(row({self.number()}, 2.0)).realize()",
            )
        )

    def call(self) -> str:
        """A call of the function."""
        x = f"row({self.number()}, {self.number()})"
        return self.pick(
            (f"see(step({x}))", f"held.append(step({x}))", f"x = {x}; step(x); see(x)")
        )

    def number(self) -> str:
        """A small number."""
        return f"{self.random.randint(-2, 4)}.0"

    def program(self) -> Program:
        """All of it. The first lines call the function until it is replayed."""
        body = tuple([self.statement() for _ in range(self.random.randint(1, 4))])
        events = [self.event() for _ in range(self.random.randint(4, 14))]
        first = [self.call() for _ in range(self.random.randint(0, 3))]
        ends = ["see(held)", "see(average)", "see(w)", "see(w.grad)", "see(rows)", "see(losses)"]
        ends += [f"see({place})" for place in (*self.places, "tensor_of()", *EMPTIED[:2], "last")]
        return Program(self.seed, body, (*first, *events, self.call(), *ends))


def program(seed: int) -> Program:
    """The program of a seed."""
    return Writer(seed).program()


def plain(value: Any) -> Any:
    """A value without tensors."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, Tensor) else value


class Sight(NamedTuple):
    """Observation of a program: the number of its line, and a value or an error."""

    line: int
    value: Any


def sights_of(found: Program, jit: Callable[[Any], Any]) -> Iterator[Sight]:
    """All that a program sees, with the function as it is or captured. A JitError ends it."""
    sights: list[Any] = []
    module = sys.modules["surrounded"] = types.ModuleType("surrounded")  # dataclasses look there
    scope = vars(module)
    scope |= {"JIT": jit, "see": lambda value: sights.append(plain(value))}
    exec(compile(SETUP, "setup", "exec"), scope)
    exec(compile(found.function, f"program {found.seed}", "exec"), scope)
    for number, line in enumerate(found.lines):
        try:
            exec(compile(line, f"line {number}", "exec"), scope)
        except JitError as error:
            yield Sight(number, error)
            return
        except GradientError:
            sights.append("GradientError")
        yield from [Sight(number, value) for value in sights]
        sights.clear()


def check(found: Program) -> Verdict:
    """The kind of error found, and how it was seen; empty if there is none.

    The kind of a program that was refused is "refused", of one that fails anyway "odd".
    """
    try:
        expected = list(sights_of(found, lambda function: function))
    except Exception:
        return Verdict("odd", traceback.format_exc(limit=-2))
    number = -1
    try:
        for number, sight in enumerate(sights_of(found, TinyJit)):
            if isinstance(sight.value, JitError):
                return Verdict("refused", str(sight.value))
            if number >= len(expected) or not same_content(tuple(expected[number]), tuple(sight)):
                if sight.value == "GradientError":
                    return Verdict("refused", "a gradient ends at a result")
                return Verdict(
                    "seen", f"{found.lines[sight.line]}\n{expected[number:][:1]}, {sight}"
                )
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    return Verdict("" if number + 1 == len(expected) else "seen")


def smaller(found: Program) -> Iterator[Program]:
    """The program with a line less."""
    for lines in without_a_line(found.lines):
        yield found._replace(lines=lines)
    for body in without_a_line(found.body):
        yield found._replace(body=body)


def shown(found: Program, verdict: Verdict) -> str:
    """The program, and its error."""
    lines = (f"seed {found.seed}: {verdict.kind}", verdict.message, found.function, *found.lines)
    return "\n".join(lines)


FUZZER: Final = Fuzzer(
    "tests.fuzz.surroundings",
    __doc__,
    program,
    check,
    shown,
    smaller,
    accepted=frozenset({"refused", "odd"}),
    printed=frozenset({"odd"}),
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
