"""Random programs of views and writes: `python -m tests.fuzz.writes --count 20000`.

A program makes some tensors, computed or not, views of them and values from them, writes
to any of these, and reads, realizes and drops others in between. What it reads must be what the
model says (`places.py`), and what NumPy and torch say, where all that it does is the same there.
A program is a list of lines of Python over the public API; failing ones are printed as a script.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import Any, Final, NamedTuple

import numpy

from tests.fuzz.peers import Unlike, numpy_api, torch_api
from tests.fuzz.places import Places, api
from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run, without_a_line
from tinycore import Device, Tensor
from tinycore.errors import AliasError

DTYPES: Final = (
    ("float32", 0.6), ("int32", 0.14), ("float64", 0.06), ("uint8", 0.06), ("bool", 0.08),
    ("int8", 0.03), ("int64", 0.03),
)  # fmt: skip
SHAPES: Final = (
    ((3,), 2.0), ((4,), 2.0), ((6,), 1.0), ((2, 3), 3.0), ((3, 3), 2.0), ((4, 2), 1.5),
    ((2, 2, 2), 1.5), ((1, 4), 0.5), ((2, 1, 3), 0.5), ((), 0.3), ((1,), 0.3), ((12,), 0.5),
)  # fmt: skip
WIDE: Final = ("float32", "float64", "int32", "int64")
"""Dtypes whose sums have the same one."""
LARGEST: Final = 1000.0
"""Values are limited to this, so that all of them are exact."""


class Program(NamedTuple):
    """Lines over the names `Tensor`, `show` and `slope`."""

    seed: int
    lines: tuple[str, ...]


class Writer:
    """Writes a program, running it on the model as it goes."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.lines: list[str] = []
        self.scope: dict[str, Any] = api(Places, [])
        self.counter = 0

    # --- names

    def live(self) -> dict[str, Places]:
        """The living tensors."""
        return {name: x for name, x in self.scope.items() if isinstance(x, Places)}

    def any(self, suits: Callable[[Places], bool] = lambda x: True) -> str:
        """The name of a tensor, later ones rather than earlier; a new one where none suits."""
        found = [name for name, x in self.live().items() if suits(x)]
        if not found:
            return self.fresh()
        return self.draw.weighted([(name, 1 + place) for place, name in enumerate(found)])

    def of(self, name: str) -> Places:
        """The tensor of a name."""
        found: Places = self.scope[name]
        return found

    def name(self) -> str:
        """A new name, or one whose tensor goes."""
        live = self.live()
        if len(live) > 4 and self.draw.chance(0.12):
            return self.draw.pick(list(live))
        return self.new_name()

    def new_name(self) -> str:
        """A name that was not used yet."""
        self.counter += 1
        return f"x{self.counter}"

    def say(self, line: str) -> None:
        """One more line, run on the model."""
        self.lines.append(line)
        with contextlib.suppress(AliasError):
            exec(compiled(line), self.scope)

    # --- making

    def number(self, dtype: str) -> str:
        """A constant of a dtype."""
        if dtype == "bool":
            return self.draw.pick(("True", "False"))
        least = 0 if dtype == "uint8" else -4
        return str(self.draw.between(least, 9)) + (".0" if dtype.startswith("float") else "")

    def fresh(self) -> str:
        """A new tensor of numbers: memory, what is to be computed, or constants."""
        shape, dtype = self.draw.weighted(SHAPES), self.draw.weighted(DTYPES)
        name = self.new_name()
        if self.draw.chance(0.2):
            made = self.draw.pick(
                (
                    f"Tensor.zeros({listed(shape)}, dtype={dtype!r})",
                    f"Tensor.full({shape}, {self.number(dtype)}, dtype={dtype!r})",
                )
            )
            if shape == ():
                made = f"Tensor.full((), {self.number(dtype)}, dtype={dtype!r})"
            self.say(f"{name} = {made}")
            return name
        count = int(numpy.prod(shape))
        low = {"bool": 0, "uint8": 0}.get(dtype, -4)
        high = {"bool": 1}.get(dtype, 9)
        numbers = [self.draw.between(low, high) for _ in range(count)]
        data = numpy.array(numbers, dtype).reshape(shape).tolist()
        end = self.draw.weighted((("", 1.0), (".realize()", 1.5), (".clone()", 0.3)))
        self.say(f"{name} = Tensor({data}, dtype={dtype!r}){end}")
        return name

    def value(self, shape: tuple[int, ...], dtype: str) -> str:
        """An expression that can be written to a place of a shape and dtype."""
        if self.draw.chance(0.25):
            return self.number(dtype)
        name = self.any(lambda x: broadcasts(x.shape, shape))
        x = self.of(name)
        if not broadcasts(x.shape, shape):
            return self.number(dtype)
        return self.cast(
            self.bounded(self.computed(name)) if self.draw.chance(0.6) else name, dtype
        )

    def cast(self, expression: str, dtype: str) -> str:
        """An expression, converted if need be."""
        found: Places = eval(compiled(expression, "eval"), dict(self.scope))
        if found.dtype == dtype:
            return expression
        if dtype in ("uint8", "int8") or found.dtype == "float64":
            expression = f"({expression}).clamp({0 if dtype == 'uint8' else -9}, 9)"
        return f"({expression}).cast({dtype!r})" if dtype != "bool" else f"({expression}) > 1"

    def bounded(self, expression: str) -> str:
        """An expression, limited where its numbers grow too large."""
        found: Places = eval(compiled(expression, "eval"), dict(self.scope))
        return f"({expression}).clamp(-9, 9)" if greatest(found) > LARGEST else expression

    def computed(self, name: str) -> str:
        """An expression that is no view, of the shape of a tensor."""
        x = self.of(name)
        other = self.any(lambda y: y.dtype == x.dtype and broadcasts(y.shape, x.shape))
        fits = self.of(other).dtype == x.dtype and broadcasts(self.of(other).shape, x.shape)
        other = other if fits else name
        if x.dtype == "bool":
            return self.draw.pick((f"{name} ^ True", f"{name} & {other}", f"{name} | {other}"))
        options = [
            f"{name} + {other}",
            f"{name} - {other}",
            f"{name} * {other}",
            f"{name} + 1",
            f"{name} * 2 + 1",
            f"{name}.clone()",
            f"{name} + {name}.sum()" if x.dtype in WIDE else f"{name} + 2",
            f"({name} > 2).where({name}, {other if self.of(other).shape == x.shape else name})",
        ]
        if x.dtype in ("float32", "float64") and x.shape:
            options.append(f"slope({name})")
        return self.draw.pick(options)

    def compute(self) -> None:
        """A new value."""
        name = self.any(lambda x: x.places.size > 0)
        x = self.of(name)
        expression = self.computed(name)
        if x.ndim and self.draw.chance(0.4):
            axis, sign = self.draw.below(x.ndim), "|" if x.dtype == "bool" else "+"
            expression = self.draw.pick(
                (
                    f"{name}[{self.rows(x.shape[0])}]",
                    f"{name}.cat({name}, dim={axis})",
                    f"{name}.pad((1, 0))" if x.dtype != "bool" else f"{name}.clone()",
                    f"{name}.sum({axis})" if x.dtype in WIDE else f"{name}.clone()",
                    f"{name}.expand({listed((2, *x.shape))}) {sign} {name}",
                )
            )
        if int(numpy.prod(eval(expression, dict(self.scope)).shape)) > 48:
            return
        end = self.draw.weighted((("", 4.0), (".realize()", 1.0), (".contiguous()", 0.5)))
        made = self.bounded(expression)
        self.say(f"{self.name()} = {f'({made}){end}' if end else made}")

    # --- views

    def view(self) -> None:
        """A view of a tensor."""
        name = self.any(lambda x: x.places.size > 0)
        self.say(f"{self.name()} = {self.viewed(name)}")

    def viewed(self, name: str) -> str:
        """An expression that shows elements of a tensor."""
        x = self.of(name)
        shape, rank = x.shape, x.ndim
        options = [
            f"{name}.reshape({self.other_shape(shape)})",
            f"{name}.unsqueeze({self.draw.between(0, rank)})",
            f"{name}.detach()",
            f"{name}.squeeze()",
            f"{name}.flatten()",
            f"Tensor({name}, dtype={x.dtype!r})",
        ]
        if not x.is_number:
            options.append(f"{name}.contiguous()")
        if rank:
            axis = self.draw.below(rank)
            order = self.draw.sample(range(rank), rank)
            options += [
                f"{name}[{self.box(shape)}]",
                f"{name}[{self.box(shape)}]",
                f"{name}[{self.box(shape)}]",
                f"{name}.permute({listed(order)})",
                f"{name}.T",
                f"{name}.flip({axis})",
                f"{name}.transpose({axis}, {self.draw.below(rank)})",
                f"{name}.split({self.draw.between(1, max(1, shape[axis]))}, {axis})[0]",
                f"{name}.expand({listed((2, *shape))})",
                f"{name}.shrink({self.pairs(shape)})",
                f"{name}.unfold({axis}, {self.draw.between(1, min(2, shape[axis]))}, 1)",
            ]
        if rank >= 2 and min(shape[:2]) > 0:
            options.append(f"{name}.diagonal()")
        return self.draw.pick(options)

    def other_shape(self, shape: tuple[int, ...]) -> str:
        """Another shape of as many elements."""
        rest, sizes = int(numpy.prod(shape)), []
        while rest > 1 and self.draw.chance(0.7):
            fitting = [n for n in (1, 2, 3, 4) if rest % n == 0]
            sizes.append(self.draw.pick(fitting))
            rest //= sizes[-1]
        return listed((*sizes, rest))

    def pairs(self, shape: tuple[int, ...]) -> str:
        """A box with at least one element."""
        starts = [self.draw.below(n) for n in shape]
        return str(
            tuple((s, self.draw.between(s + 1, n)) for s, n in zip(starts, shape, strict=True))
        )

    def box(self, shape: tuple[int, ...]) -> str:
        """A basic index with at least one element."""
        entries: list[str] = []
        for size in shape[: self.draw.between(1, len(shape))]:
            start = self.draw.below(size)
            stop = self.draw.between(start + 1, size)
            step = self.draw.weighted((("", 5.0), (":2", 1.0), (":3", 0.3)))
            entries.append(
                self.draw.weighted(
                    (
                        (str(start), 1.5),
                        (str(start - size), 0.5),
                        (f"{start}:{stop}{step}", 4.0),
                        (f":{stop}{step}", 1.0),
                        (f"{start}:{step}", 1.0),
                        ("::-1", 0.7),
                        (f"{stop - 1}::-1", 0.5),
                        ("::-2", 0.4),
                        (":", 0.7),
                    )
                )
            )
        if self.draw.chance(0.1):
            entries.insert(self.draw.below(len(entries) + 1), "None")
        if self.draw.chance(0.15):
            entries.append("...")
        return ", ".join(entries)

    def rows(self, size: int) -> str:
        """Different positions on an axis, as a list or a tensor."""
        rows = self.draw.sample(range(size), self.draw.between(1, min(size, 3)))
        rows = [row - size if self.draw.chance(0.2) else row for row in rows]
        return self.draw.pick((f"{rows}", f"Tensor({rows}, dtype='int32')"))

    # --- writes

    def write(self) -> None:
        """A write to a tensor, or to a part of it."""
        name = self.any(lambda x: x.places.size > 0)
        if not self.of(name).places.size:
            return
        ways = (self.put, 3.0), (self.assign, 2.0), (self.change, 3.0), (self.method, 1.5)
        self.draw.weighted((*ways, (self.pick, 1.5)))(name)

    def put(self, name: str) -> None:
        """x[box] = value."""
        x = self.of(name)
        box = self.box(x.shape) if x.shape else "..."
        part = eval(f"{name}[{box}]", dict(self.scope))
        self.say(f"{name}[{box}] = {self.source(name, part)}")

    def source(self, name: str, part: Places) -> str:
        """A value to write: often what overlaps the part that is written."""
        x = self.of(name)
        if part.repeats:
            return self.number(x.dtype)
        if x.shape and self.draw.chance(0.35):
            for _ in range(6):
                view = self.viewed(name)
                shown: Places = eval(view, dict(self.scope))
                if broadcasts(shown.shape, part.shape):
                    return view if self.draw.chance(0.6) or x.dtype == "bool" else f"{view} + 1"
        return self.value(part.shape, x.dtype)

    def assign(self, name: str) -> None:
        """x.assign(value), x[box].assign(value)."""
        x = self.of(name)
        target = name
        if x.shape and self.draw.chance(0.6):
            target = self.viewed(name)
            if target.endswith(".contiguous()"):
                target = name
        part: Places = eval(target, dict(self.scope))
        end = self.draw.weighted(((".realize()", 1.0), ("", 5.0)))
        self.say(f"{target}.assign({self.source(name, part)}){end}")

    def change(self, name: str) -> None:
        """x += value, x[box] *= value."""
        x = self.of(name)
        target, part = name, x
        if x.shape and self.draw.chance(0.5):
            target = f"{name}[{self.box(x.shape)}]"
            part = eval(target, dict(self.scope))
        if x.dtype == "bool":
            sign = self.draw.pick(("&=", "|=", "^="))
            self.say(f"{target} {sign} {self.source(name, part)}")
            return
        value = self.source(name, part)
        sign = self.draw.pick(("+=", "-=", "*="))
        found: Places = eval(value, dict(self.scope)) if "x" in value else Places(eval(value))
        if sign == "*=" and greatest(part) * greatest(found) > LARGEST:
            sign = "-="
        self.say(f"{target} {sign} {value}")
        if greatest(self.of(name)) > LARGEST:
            self.say(f"{name}.clamp_(0, 9)")

    def method(self, name: str) -> None:
        """A method that writes."""
        x = self.of(name)
        target, part = name, x
        if x.shape and self.draw.chance(0.4):
            target = f"{name}[{self.box(x.shape)}]"
            part = eval(target, dict(self.scope))
        if x.dtype == "bool" and not part.repeats:
            self.say(f"{target}.copy_({self.value(part.shape, 'bool')})")
            return
        if part.repeats:
            self.say(f"{target}.fill_({self.number(x.dtype)})")
            return
        options = [
            f"add_({self.value(part.shape, x.dtype)})",
            f"copy_({self.value(part.shape, x.dtype)})",
            f"fill_({self.number(x.dtype)})",
            "zero_()",
            "neg_()" if x.dtype != "uint8" else "add_(1)",
            "abs_()" if x.dtype != "uint8" else "mul_(1)",
            "clamp_(0, 5)",
            f"masked_fill_({target} > 3, {self.number(x.dtype)})",
        ]
        self.say(f"{target}.{self.draw.pick(options)}")

    def pick(self, name: str) -> None:
        """x[rows] = value, x[mask] = number, x[rows] += value."""
        x = self.of(name)
        if not x.shape:
            return
        if x.dtype != "bool" and self.draw.chance(0.4):
            self.say(f"{name}[{name} > {self.draw.between(0, 4)}] = {self.number(x.dtype)}")
            return
        axis = self.draw.below(x.ndim)
        rows = ":, " * axis + self.rows(x.shape[axis])
        part: Places = eval(f"{name}[{rows}]", dict(self.scope))
        sign = "=" if x.dtype == "bool" else self.draw.pick(("=", "=", "+="))
        self.say(f"{name}[{rows}] {sign} {self.value(part.shape, x.dtype)}")

    def repeat(self) -> None:
        """The same write several times, and values from between them, computed later or never."""
        name = self.any(lambda x: x.dtype != "bool" and x.places.size > 0 and not x.repeats)
        x = self.of(name)
        if x.dtype == "bool" or not x.places.size or x.repeats:
            return
        target = f"{name}[{self.box(x.shape)}]" if x.shape and self.draw.chance(0.3) else name
        part: Places = eval(target, dict(self.scope))
        if part.repeats:
            return
        write = self.draw.pick(
            (f"{target} += 1", f"{target}.assign({target} + 1)", f"{target}.add_(2)")
        )
        for _ in range(self.draw.between(2, 4)):
            self.say(write)
            kept = self.draw.pick(
                (f"{name}.clone()", f"{name} + 0", f"{name} * 2", f"{target} + 1")
            )
            self.say(f"{self.new_name()} = {kept}")
            if self.draw.chance(0.3):
                self.look()
            if name not in self.live() or self.of(name) is not x:
                return

    # --- the rest

    def look(self) -> None:
        """Read, realize, drop or replace something."""
        name, other = self.any(), self.any()
        same = self.of(name).shape == self.of(other).shape
        self.say(
            self.draw.weighted(
                (
                    (f"show({name})", 4.0),
                    (f"{name}.realize()", 2.5),
                    (f"Tensor.realize({name}, {other})", 1.5),
                    (f"{name}.kernelize()", 0.3),
                    (f"{name}.replace({other})" if same else f"show({other})", 0.4),
                    (f"del {name}" if len(self.live()) > 2 else f"show({name})", 2.0),
                )
            )
        )

    def program(self, seed: int) -> Program:
        """All of it."""
        for _ in range(self.draw.between(1, 2)):
            self.fresh()
        steps = (
            (self.fresh, 0.5),
            (self.view, 4.0),
            (self.compute, 1.5),
            (self.write, 4.0),
            (self.repeat, 0.4),
            (self.look, 2.0),
        )
        for _ in range(self.draw.between(4, 14)):
            self.draw.weighted(steps)()
        names = list(self.live())
        for name in self.draw.sample(names, len(names)):
            self.say(f"show({name})")
        return Program(seed, tuple(self.lines))


def greatest(x: Places) -> float:
    """The greatest magnitude of the elements."""
    return float(abs(x.value.astype("float64")).max()) if x.places.size else 0.0


def listed(sizes: Sequence[int]) -> str:
    """Sizes as arguments."""
    return ", ".join(map(str, sizes))


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True if a shape broadcasts to another, with no more axes."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False)
    )


def program(seed: int) -> Program:
    """The program of a seed."""
    return Writer(seed).program(seed)


# --- running


@lru_cache(maxsize=4096)
def compiled(line: str, mode: str = "exec") -> CodeType:
    """A line as code."""
    return compile(line, "<program>", mode)


def tensor_api(shown: list[Any], made: Any = Tensor) -> dict[str, Any]:
    """The names of a program over tensors."""
    return {
        "Tensor": made,
        "show": lambda x: shown.append(x.tolist()),
        "slope": slope,
        "AliasError": AliasError,
    }


def class_of(seed: int) -> Any:
    """The class that the program of a seed calls `Tensor`; one in eight is on two devices."""
    return Group(seed) if seed % 8 == 7 else Tensor


def slope(x: Tensor) -> Tensor:
    """The elements of a tensor, as the gradient of a sum."""
    w = Tensor.ones(*x.shape, dtype=x.dtype, device=x.device, requires_grad=True)
    return (w * x.detach()).sum().gradient(w)[0]


class Group:
    """Maker of tensors on two devices, in halves or twice, which programs call `Tensor`."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.devices = f"{Device.DEFAULT}:0", f"{Device.DEFAULT}:1"

    def _spread(self, x: Tensor) -> Tensor:
        axes = [axis for axis, size in enumerate(x.shape) if size % 2 == 0]
        halves = axes and self.draw.chance(0.75)
        return x.shard(self.devices, self.draw.pick(axes) if halves else None)

    def __call__(self, data: Any, dtype: str | None = None) -> Tensor:
        """A view of a tensor, or a new one of nested lists."""
        made = Tensor(data, dtype=dtype)
        return made if isinstance(data, Tensor) else self._spread(made)

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Tensor:
        """One number everywhere."""
        return self._spread(Tensor.full(shape, value, dtype=dtype))

    def zeros(self, *shape: int, dtype: str) -> Tensor:
        """Zeros."""
        return self.full(shape, 0, dtype)

    def arange(self, stop: Any) -> Tensor:
        """0, 1, .."""
        return Tensor.arange(stop, device=self.devices)

    def realize(self, *tensors: Tensor) -> None:
        """Compute some tensors."""
        Tensor.realize(*tensors)


Seen = list[tuple[str, Any]]
"""The exception and the shown values after each line."""


def seen_by(found: Program, names: Callable[[list[Any]], dict[str, Any]]) -> Seen:
    """Exceptions and observations of the lines of a program."""
    shown: list[Any] = []
    scope = names(shown)
    seen: Seen = []
    for line in found.lines:
        shown.clear()
        raised = ""
        try:
            exec(compiled(line), scope)
        except AliasError:
            raised = "AliasError"
        seen.append((raised, list(shown)))
    return seen


def model_api(shown: list[Any]) -> dict[str, Any]:
    """The names of a program over the model."""
    return api(Places, shown)


def check(found: Program) -> Verdict:
    """Errors of a program, on the default device.

    Kinds: "value", "raised", or "mirror" where the model is not what NumPy or torch say.
    """
    expected = seen_by(found, model_api)
    for names in (numpy_api, torch_api):
        if told := disagreement(found, expected, names):
            return Verdict("mirror", told)
    try:
        seen = seen_by(found, partial(tensor_api, made=class_of(found.seed)))
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    told = difference(found, expected, seen)
    return Verdict("value" if told else "", told)


def disagreement(
    found: Program, expected: Seen, names: Callable[[list[Any]], dict[str, Any]]
) -> str:
    """Difference of the model from another library, up to differences on purpose."""
    shown: list[Any] = []
    scope = names(shown)
    for line, (raised, values) in zip(found.lines, expected, strict=True):
        if raised:
            continue
        shown.clear()
        try:
            exec(compiled(line), scope)
        except (Unlike, RuntimeError, ValueError):  # a write to what that library shares or locks
            return ""
        if not same_values(values, list(shown)):
            return f"{names.__name__}: {line}: the model shows {values}, it shows {shown}"
    return ""


def difference(found: Program, expected: Seen, seen: Seen) -> str:
    """The first line that raises or shows something else."""
    for line, one, other in zip(found.lines, expected, seen, strict=True):
        if one[0] != other[0]:
            return f"{line}: raised {other[0] or 'nothing'} instead of {one[0] or 'nothing'}"
        if not same_values(one[1], other[1]):
            return f"{line}: {other[1]} instead of {one[1]}"
    return ""


def same_values(one: Any, other: Any) -> bool:
    """True if two nested lists of numbers are equal."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_values, one, other))
    return bool(one == other)


# --- telling


def smaller(found: Program) -> Iterator[Program]:
    """The program without one of its lines."""
    return (Program(found.seed, lines) for lines in without_a_line(found.lines))


def script(found: Program, failure: Verdict) -> str:
    """A Python script that shows the failure."""
    return "\n".join(
        (
            f'"""Seed {found.seed}: {failure.kind}.\n\n{failure.message}\n"""',
            "from tests.fuzz.writes import class_of, slope",
            f"Tensor = class_of({found.seed})",
            "show = lambda x: print(x.tolist())",
            *found.lines,
        )
    )


FUZZER: Final = Fuzzer(
    "tests.fuzz.writes", __doc__, program, check, script, smaller, devices=FRONTEND
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
