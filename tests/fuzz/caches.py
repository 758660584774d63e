"""Random pairs of related programs over one cache: `python -m tests.fuzz.caches --count 5000`.

A program makes tensors, computes with them, trains weights, and reads, realizes, detaches, keeps or
drops values in between. Its neighbor differs in some of that: in what is read or realized, a size,
a number, an op, a dtype, a setting. The second program must show the same bits whatever ran before:
uncached; over a disk cache that the first one has filled, in a new process (every table in memory
is forgotten); and in this process with all that ran in it, over a disk cache that all programs
share, while tables forget entries between any two lines.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run
from tests.fuzz.writes import compiled
from tinycore import Context, Device, Tensor, TinyJit, Variable
from tinycore._locks import replaced
from tinycore._lru import Lru
from tinycore.engine.compile import programs
from tinycore.nn.optim import SGD, Adam, AdamW
from tinycore.schedule import disk

COLUMNS: Final = 4
HEAD: Final = 5
"""Lines that set numbers and make inputs."""

OF_ONE: Final = (
    "{a}.gelu()", "{a}.relu()", "{a}.tanh()", "{a}.exp()", "{a}.softmax(1)", "{a}.layernorm()",
    "{a}.flip(0)", "{a} * c", "{a} + c", "c - {a}", "{a} - {a}.mean(0)", "{a}.cumsum(0)",
    "{a}.max(0) - {a}", "{a}.contiguous() * c", "{a}.reshape(-1).reshape(n, 4)", "{a} * c + c",
    "({a} > c).where({a}, c)", "{a}.pad(((1, 1), (0, 0)))[1:-1]", "{a}.T.contiguous().T",
    "{a}.sum(1, keepdim=True) * {a}", "{a}[:, [1, 0, 3, 2]]", "{a} + Tensor.rand(n, 4)",
    "{a}.dropout(0.5)", "{a}.clone()", "{a}.float()", "{a}.cast('float16')", "{a} * -0.0",
    "{a} / c", "{a} * 1", "{a} + 0", "{a}.sigmoid() * {a}", "{a}.log_softmax(1)", "{a}.sort(0)[0]",
)  # fmt: skip
OF_TWO: Final = (
    "{a} + {b}", "{a} * {b}", "{a} - {b}", "{a} @ {s}", "({a} @ {s}).gelu()", "{b} @ {s} + {a}",
    "({a} < {b}).where({a}, {b})", "{a}.maximum({b})", "({a} @ {b}.T).softmax(1) @ {b}",
    "{a} + {b}.sum(0)", "{a} @ {s} @ {s}", "({a} + {b}).contiguous() + ({a} + {b})",
)  # fmt: skip
LOOKS: Final = (
    *("", "{a}.realize()", "{a}.numpy()", "{a}.realize()", "{a}.numpy()") * 3,
    "{a}.sum().item()", "{a}[0].numpy()", "{a}.T.numpy()",
    "{a} = {a}.detach()", "{a} = {a}.detach(); {a}.realize()", "{a} = {a}.detach(); {a}.numpy()",
    "{a} = {a}.contiguous()", "kept.append({a})", "kept.append({a}.detach())", "kept.clear()",
    "kept.append({a}[1])", "Tensor.realize({a}, {b})", "({a} + {b}).realize()", "{a}.kernelize()",
    "{a}.tolist()", "({a} * 2).numpy()", "{a} = {a}.detach().clone()", "kept.append({a} * {b})",
    "{a}.flip(0).realize()", "{a} = {a}.clone().realize()",
)  # fmt: skip
"""Statements that change no values but those of gradients, which both runs then show."""
TURNED: Final = {"{a}.realize()": "{a}.numpy()", "{a}.numpy()": "{a}.realize()"}
"""Looks after which the same graphs are over memory of tensors, or over cached values."""
MUTATIONS: Final = (
    "x0.assign({a}.detach())", "x0 += 1", "x0[0] = c", "x0.assign(x0 * 0.5)", "x0[1:3] *= c",
    "x0.assign({a}.detach() + x0)", "{a} = {a}.clone(); {a}[0] = 2",
)  # fmt: skip
LOSSES: Final = (
    "(({a} @ w0).softmax(1) @ w1).square().mean()", "({a} @ w0 @ w1).cross_entropy(labels)",
    "(({a} @ w0).gelu() * ({b} @ w1)).sum()", "(({a} @ w1).layernorm() @ w0).abs().mean()",
    "({a} @ w0 + c).square().sum()",
)  # fmt: skip
SHOWS: Final = (
    "show({a})", "show({a}.sum())", "show({a}[:length].sum())", "show({a}[1:length] * c)",
    "show({a}.argmax(1))", "show(shards({a}))", "show(replayed({a}))", "show({a} @ {s})",
    "show(w0.grad)", "show(w1)", "show(x0)",
)  # fmt: skip

SCALARS: Final = ("0.5", "2.0", "0.0", "-0.0", "1.0", "-1.0", "1", "3", "0.25")
SIZES: Final = ("4", "6", "8", "4", "6", "8", "64")
LENGTHS: Final = ("2", "3", "4")
INPUT_TYPES: Final = ("'float32'", "'float32'", "'float32'", "'float64'", "'float16'")
OPTIMIZERS: Final = ("SGD", "SGD", "Adam", "AdamW")
SETTINGS: Final[Mapping[str, tuple[Any, ...]]] = {
    "NOOPT": (0, 0, 0, 1),
    "RING": (1, 1, 0, 2),
    "TRAINING": (1, 1, 1, 1, 0),
    "DEFAULT_FLOAT": ("float32", "float32", "float16"),
    "ALLOW_TF32": (0, 0, 1),
}


class Line(NamedTuple):
    """A line as a template, the names in it, and what may stand in its place in a neighbor."""

    template: str
    names: Mapping[str, str]
    others: tuple[str, ...]

    def __str__(self) -> str:
        return self.template.format(**self.names)


class Program(NamedTuple):
    """Lines over the names of `scope_of`, and the settings that they run under."""

    lines: tuple[Line, ...]
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return "\n".join([f"# {dict(self.settings)}", *(s for s in map(str, self.lines) if s)])


class Pair(NamedTuple):
    """A program that fills a cache, and its neighbor."""

    seed: int
    first: Program
    second: Program


class Writer:
    """Writes the pair of a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.lines: list[Line] = []
        self.values = ["x0", "x1"]

    def say(self, options: tuple[str, ...], chosen: str = "", **names: str) -> None:
        """One of some lines."""
        squares = ("m0", "w0", "w1")
        given = {"a": self.recent(), "b": self.recent(), "s": self.draw.pick(squares)}
        self.lines.append(Line(chosen or self.draw.pick(options), given | names, options))

    def recent(self) -> str:
        """A value, mostly one of the last."""
        return self.draw.pick(self.values[-3:] if self.draw.chance(0.7) else self.values)

    def head(self) -> None:
        """Numbers, inputs, weights and their optimizer."""
        for name, options in (
            ("n", SIZES), ("c", SCALARS), ("length", LENGTHS), ("dtype", INPUT_TYPES),
        ):  # fmt: skip
            self.say(tuple([f"{name} = {option}" for option in options]))
        self.say(tuple([f"start({name}, dtype, n, length)" for name in OPTIMIZERS]))

    def value(self) -> None:
        """A new value."""
        kinds = OF_TWO if self.draw.chance(0.55) else OF_ONE
        name = f"h{len(self.values)}"
        self.say(tuple([f"{name} = {kind}" for kind in kinds]))
        self.values.append(name)
        if self.draw.chance(0.4):
            self.say(LOOKS, a=name)

    def features(self) -> None:
        """Values that no gradient flows through, looked at in some way, under layers that train."""
        self.value()
        name = self.values[-1]
        self.say(LOOKS, "{a} = {a}.detach()", a=name)
        self.say(LOOKS, a=name)
        self.step(a=name)

    def step(self, **names: str) -> None:
        """A step of training, once or several times."""
        update = "optimizer.zero_grad(); loss = {}; loss.backward(); optimizer.step(); show(loss)"
        options = tuple([update.format(loss) for loss in LOSSES])
        self.say(options, **names)
        for _ in range(self.draw.below(2)):
            self.lines.append(self.lines[-1])

    def look(self) -> None:
        """A value that is read, realized, detached, kept or dropped."""
        self.say(LOOKS)

    def mutate(self) -> None:
        """A write."""
        self.say(MUTATIONS)

    def show(self) -> None:
        """An observation."""
        self.say(SHOWS)

    def program(self) -> Program:
        """All of it."""
        self.head()
        kinds = (
            (self.value, 4.0),
            (self.look, 1.5),
            (self.step, 0.7),
            (self.features, 1.0),
            (self.mutate, 0.7),
            (self.show, 1.0),
        )
        for _ in range(self.draw.between(3, 7)):
            self.draw.weighted(kinds)()
        for name in self.draw.sample(self.values, 2):
            self.say(SHOWS[:2], a=name)
        chosen = [(name, self.draw.pick(values)) for name, values in SETTINGS.items()]
        return Program(tuple(self.lines), tuple(chosen))

    def neighbor(self, program: Program) -> Program:
        """A program with one to three differences."""
        lines, chosen = list(program.lines), dict(program.settings)
        for _ in range(self.draw.between(1, 3)):
            if self.draw.chance(0.1):
                name = self.draw.pick(tuple(SETTINGS))
                chosen[name] = self.draw.pick(SETTINGS[name])
                continue
            places = [i for i, line in enumerate(lines) if line.others is LOOKS]
            if not places or self.draw.chance(0.4):
                places = list(range(HEAD if self.draw.chance(0.3) else len(lines)))
            at = self.draw.pick(places)
            if self.draw.chance(0.25):
                names = {**lines[at].names, "a": self.draw.pick(("x0", "x1"))}
                lines.insert(max(at + 1, HEAD), Line(self.draw.pick(LOOKS), names, LOOKS))
            else:
                line = lines[at]
                new = TURNED.get(line.template, "") if self.draw.chance(0.6) else ""
                lines[at] = line._replace(template=new or self.draw.pick(line.others))
        return Program(tuple(lines), tuple(chosen.items()))


def pair_of(seed: int) -> Pair:
    """The pair of a seed."""
    writer = Writer(seed)
    first = writer.program()
    return Pair(seed, first, writer.neighbor(first))


# --- running

Seen = list[tuple[Any, ...]]
"""The dtype, shape and bits of all that a program shows, and the kinds of errors that it raises."""


def numbers(seed: int, *shape: int) -> numpy.ndarray[Any, Any]:
    """Numbers of about one, which differ between seeds."""
    return numpy.random.default_rng(seed).uniform(-1.5, 1.5, shape).astype("float32")


def scope_of(seen: Seen) -> dict[str, Any]:
    """The names of a program."""
    scope: dict[str, Any] = {"Tensor": Tensor, "kept": [], "SGD": SGD, "Adam": Adam}
    devices = (Device.DEFAULT, f"{Device.DEFAULT}:1")

    def show(x: Tensor | None) -> None:
        found = None if x is None else x.numpy()
        seen.append(() if found is None else (found.dtype.name, found.shape, found.tobytes()))

    def start(optimizer: Any, dtype: str, rows: int, length: int) -> None:
        Tensor.manual_seed(5)
        made = [Tensor(numbers(i, rows, COLUMNS), dtype=dtype).realize() for i in range(2)]
        squares = [Tensor(numbers(i, COLUMNS, COLUMNS), dtype=dtype).realize() for i in range(2, 5)]
        weights = [x.requires_grad_(True) for x in squares[1:]]
        scope.update(x0=made[0], x1=made[1], m0=squares[0], w0=weights[0], w1=weights[1])
        scope["optimizer"] = optimizer(weights, lr=0.1)
        scope["labels"] = Tensor(numpy.arange(rows, dtype="int32") % COLUMNS).realize()
        scope["length"] = Variable("length", 1, 9).bind(length)
        scope["step"] = TinyJit(lambda x: (x @ scope["m0"]).gelu() + x.sum() * scope["c"])

    def replayed(x: Tensor) -> Tensor:
        given = x.detach().clone().realize()
        for _ in range(3):
            found: Tensor = scope["step"](given)
        return found

    def shards(x: Tensor) -> Tensor:
        return (x.detach().shard(devices, 0) * 2).sum(0).to(devices[0])

    scope.update(AdamW=AdamW, show=show, start=start, replayed=replayed, shards=shards)
    return scope


def seen_by(program: Program, between: Callable[[], None] = lambda: None) -> Seen:
    """All that a program shows; `between` is called before each of its lines."""
    seen: Seen = []
    scope = scope_of(seen)
    with Context(**dict(program.settings)):
        for line in filter(None, map(str, program.lines)):
            between()
            try:
                exec(compiled(line), scope)
            except Exception as error:  # an error that both raise is no difference
                if "x0" not in scope:  # there is no such device
                    raise
                seen.append((line, type(error).__name__))
    return seen


FORGOTTEN: Final = ("engine", "lower", "schedule", "tensor", "uop")
"""The floors whose tables are forgotten."""


def tables() -> tuple[Callable[[], None], ...]:
    """Functions that empty the bounded tables of tinycore: dropping entries costs time alone."""
    return tables_among(len(sys.modules))


@lru_cache(1)
def tables_among(_count: int) -> tuple[Callable[[], None], ...]:
    """`tables` of the modules that are loaded, of which there are so many."""
    found: dict[int, Callable[[], None]] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(tuple(f"tinycore.{floor}." for floor in FORGOTTEN)):
            for value in vars(module).values():
                if isinstance(value, Lru):
                    found[id(value)] = value.clear
                elif (told := getattr(value, "cache_parameters", None)) and told()["maxsize"]:
                    found[id(value)] = value.cache_clear
    return tuple(found.values())


def forget(keeps_programs: bool) -> None:
    """Be as a new process: nothing is known but what is on disk, and maybe loaded programs, which
    take most of the time.
    """
    for clear in tables():
        if clear != programs.clear or not keeps_programs:
            clear()


@cache
def shared_folder() -> tempfile.TemporaryDirectory[str]:
    """The cache of this process's programs; it goes when the process ends."""
    return tempfile.TemporaryDirectory()


@contextlib.contextmanager
def caching(folder: str) -> Iterator[None]:
    """A disk cache in a folder, which keeps small graphs, too."""
    with Context(CCACHE=1, CACHE_DIR=folder, VERIFY=0), replaced(disk, "FEWEST_NODES", 1):
        yield


def check(pair: Pair) -> Verdict:
    """Differences of the second program's bits, on the default device.

    Kinds: "neighbor" over the first one's cache, "long" in this process; both are tried.
    """
    keeps_programs = pair.seed % 4 > 0
    with Context(CCACHE=0):
        forget(keeps_programs)
        expected = seen_by(pair.second)
    with tempfile.TemporaryDirectory() as folder, caching(folder):
        forget(keeps_programs)
        seen_by(pair.first)
        forget(keeps_programs)
        if told := first_difference(expected, seen_by(pair.second)):
            return Verdict("neighbor", told)
    draw = Draw(pair.seed)

    def evict() -> None:
        if draw.chance(0.1):
            draw.pick(tables())()

    with caching(shared_folder().name):
        told = first_difference(expected, seen_by(pair.second, evict))
    return Verdict("long", told) if told else Verdict("")


def first_difference(expected: Seen, seen: Seen) -> str:
    """The first observation that differs; "" if none does."""
    if len(expected) != len(seen):
        return f"{len(seen)} observations, uncached {len(expected)}"
    for number, (one, other) in enumerate(zip(expected, seen, strict=True)):
        if one != other:
            return f"observation {number}: {readable(other)}, uncached {readable(one)}"
    return ""


def readable(found: tuple[Any, ...]) -> str:
    """An observation for people."""
    if len(found) != 3:
        return str(found)
    dtype, shape, content = found
    return f"{dtype}{list(shape)} {numpy.frombuffer(content, dtype)[:6].tolist()}"


# --- telling


def smaller(pair: Pair) -> Iterator[Pair]:
    """The pair without one line of both, or of one of the two."""
    for at in reversed(range(HEAD, len(pair.first.lines))):
        yield pair._replace(first=without(pair.first, at), second=without(pair.second, at))
    for at in reversed(range(HEAD, len(pair.first.lines))):
        yield pair._replace(first=without(pair.first, at))
    for at in reversed(range(HEAD, len(pair.second.lines))):
        yield pair._replace(second=without(pair.second, at))


def without(program: Program, at: int) -> Program:
    """A program without a line."""
    return program._replace(lines=program.lines[:at] + program.lines[at + 1 :])


def shown(pair: Pair, verdict: Verdict) -> str:
    """A Python script that shows the failure."""
    return "\n".join(
        (
            f'"""Seed {pair.seed}: {verdict.kind}.\n\n{verdict.message}\n"""',
            "from tests.fuzz.caches import check_texts",
            f'print(check_texts({pair.seed}, """\n{pair.first}\n""", """\n{pair.second}\n"""))',
        )
    )


def check_texts(seed: int, first: str, second: str) -> Verdict:
    """Check a pair of programs given as text, each with its settings in a comment."""
    return check(Pair(seed, parsed(first), parsed(second)))


def parsed(text: str) -> Program:
    """A program from its text."""
    head, *lines = text.strip().splitlines()
    chosen = eval(head.removeprefix("#"))
    return Program(tuple([Line(escaped(s), {}, ()) for s in lines]), tuple(chosen.items()))


def escaped(line: str) -> str:
    """A line as a template without names."""
    return line.replace("{", "{{").replace("}", "}}")


FUZZER: Final = Fuzzer(
    "tests.fuzz.caches", __doc__, pair_of, check, shown, smaller, devices=FRONTEND
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
