"""Random programs of leaves, against torch: `python -m tests.fuzz.leaves`.

A program makes tensors that ask for gradients: memory, computed values, detached ones, parts, equal
ones, copies, and parameters of optimizers. It computes, writes, realizes and reads, takes gradients
of first and second order in between, captures functions and trains. All values and all gradients
must be those of torch. It is written line by line while torch runs it: what torch refuses is left
out. What is refused here alone is counted.
"""

from __future__ import annotations

import copy
import pickle
import traceback
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy

from tests.fuzz.programs.draw import Draw
from tests.fuzz.runner import FRONTEND, Fuzzer, Verdict, run, without_a_line
from tests.fuzz.writes import Program, compiled
from tinycore import Context, Tensor, TinyJit
from tinycore.errors import GradientError, JitError
from tinycore.nn.optim import SGD, Adam, AdamW

DTYPE: Final = "float64"
GREATEST: Final = 1e4
"""Largest magnitude of values: beyond that a program is cut short."""
OPERATIONS: Final = (
    "{a} * 2", "{a} * 2", "{a} + 1", "{a} * {b}", "{a} * {b}", "{a} + {b}", "{a} - {b}",
    "{a} * {a}", "{a} * {b}.sum()", "{a}.detach() * {b}", "twin({a})", "narrow({a}) * {b}",
    "({a} > 1).where({a}, {b} * 3)",
)  # fmt: skip
SHOWN: Final = (
    "{a}[0:2]", "{a}[2:4]", "{a}[::2]", "{a}[1:3]", "{a}[:]", "{a}.reshape(2, 2)", "{a}[1:]",
    "{a}.detach()", "{a}.reshape(4)",
)  # fmt: skip
IN_PLACE: Final = (
    "write({a}, {b})", "write({a}, {b} * 2)", "add({a}, {b})", "scale({a}, 0.5)",
    "put({a}, slice(0, 1), {b}.sum())", "put({a}, slice(None, None, 2), 3.0)", "scale({a}, {b})",
    "put({a}, slice(0, 2), {b}.reshape(-1)[0:2])", "write({a}, {b}.detach())", "quietly({a}, {b})",
)  # fmt: skip
CAPTURED: Final = (
    "lambda a: done(a * 2)",
    "lambda a: done(a * {b} + 1)",
    "lambda a: slope((a * a * {b}).sum(), {w})",
    "lambda a: slope(({w} * {w} * {w}).sum(), {w}, 2) * a",
    "lambda a: trained({o}, {w}, a)",
    "lambda a: summed({w}, a)",
)  # fmt: skip


class Skipped(Exception):
    """A line that means something else in torch."""


def numbers_of(found: Any) -> Any:
    """The elements of a tensor; 0 where there is none."""
    if found is None:
        return 0.0
    return numpy.array(found.tolist())


def cut_off(x: Any) -> bool:
    """True if a view of torch would have no gradient after its base is written to as data."""
    return not (x.is_leaf or x._base is None or x._base.requires_grad)


class Ours:
    """The names of a program over tensors."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.globals: dict[str, Any] = {}

    def scope(self) -> dict[str, Any]:
        """The globals of a program."""
        names = [name for name in dir(Ours) if not name.startswith("_") and name != "scope"]
        self.globals = {name: getattr(self, name) for name in names}
        return self.globals

    def data(self, *numbers: float) -> Any:
        return Tensor(list(numbers), dtype=DTYPE)

    def real(self, *numbers: float) -> Any:
        return self.data(*numbers).realize()

    def ask(self, x: Any) -> Any:
        return x.requires_grad_()

    def again(self, x: Any) -> None:
        x.requires_grad = False
        x.requires_grad = True

    def quietly(self, x: Any, value: Any) -> None:
        x.requires_grad = False
        x.assign(x * 2 + value.detach())
        x.requires_grad = True

    def param(self, x: Any) -> Any:
        return Tensor(x, requires_grad=True)

    def twin(self, x: Any) -> Any:
        found = x.clone()
        found.grad = None  # which is copied here, not in torch
        return found

    def narrow(self, x: Any) -> Any:
        return x.cast("float32").cast(DTYPE)

    def write(self, x: Any, value: Any) -> None:
        x.assign(value)

    def add(self, x: Any, value: Any) -> None:
        x += value

    def scale(self, x: Any, value: Any) -> None:
        x *= value

    def put(self, x: Any, index: Any, value: Any) -> None:
        x[index] = value

    def done(self, x: Any) -> Any:
        return x.realize()

    def realize(self, *tensors: Any) -> None:
        Tensor.realize(*tensors)

    def read(self, x: Any) -> None:
        self.shown.append(numbers_of(x))

    def copied(self, x: Any) -> Any:
        return copy.deepcopy(x)

    def sent(self, x: Any) -> Any:
        return pickle.loads(pickle.dumps(x))

    def back(self, loss: Any) -> None:
        loss.backward()

    def zero(self, x: Any) -> None:
        x.grad = None

    def slope(self, loss: Any, target: Any, order: int = 1) -> Any:
        for _ in range(order):
            (found,) = loss.gradient(target)
            loss = (found * found).sum()
        return found.detach().realize()

    def slopes(self, loss: Any, *targets: Any) -> None:
        self.shown += map(numbers_of, loss.gradient(*targets))

    def optimizer(self, kind: str, *params: Any, **options: Any) -> Any:
        made = {"sgd": SGD, "adam": Adam, "adamw": AdamW}[kind]
        return made(list(params), **options)

    def step(self, optimizer: Any) -> None:
        with Context(TRAINING=1):
            optimizer.step()

    def forget(self, optimizer: Any) -> None:
        optimizer.zero_grad()

    def capture(self, function: Callable[..., Any]) -> Any:
        return TinyJit(function)

    def trained(self, optimizer: Any, w: Any, a: Any) -> Any:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = (w * w * a).sum().backward()
            return loss.realize(*optimizer.schedule_step())

    def summed(self, w: Any, a: Any) -> Any:
        w.grad = None
        loss = (w * w * a).sum()
        loss.backward()
        return w.grad.detach().clone().realize()


class Theirs(Ours):
    """The same names over torch."""

    def __init__(self) -> None:
        super().__init__()
        import torch  # noqa: PLC0415  needed here only

        self.torch = torch
        self.unnamed: list[Any] = []
        """Tensors that detached results show, and no name of the program holds."""
        self.realized: list[Any] = []
        """Computed tensors that are memory here, into which data is written from then on."""
        self.ended: set[int] = set()
        """Places of computed tensors that are memory since a detached one there was realized."""
        self.steps: Counter[int] = Counter()
        """The count of steps of each optimizer, by id."""

    def _tensors(self) -> list[Any]:
        return [x for x in self.globals.values() if isinstance(x, self.torch.Tensor)]

    def data(self, *numbers: float) -> Any:
        return self.torch.tensor(numbers, dtype=self.torch.float64)

    def real(self, *numbers: float) -> Any:
        return self.data(*numbers)

    def ask(self, x: Any) -> Any:
        if x.requires_grad and not x.is_leaf:
            if x.untyped_storage().data_ptr() in self.ended:
                raise Skipped("a leaf here, as what is realized and asks then")
            x.retain_grad()
        return x.requires_grad_()

    def again(self, x: Any) -> None:
        if not x.is_leaf:
            raise Skipped("not a leaf")
        super().again(x)

    def quietly(self, x: Any, value: Any) -> None:
        if not (x.is_leaf and x.requires_grad):
            raise Skipped("not a leaf")
        self._written(x, value, lambda: x.copy_(x * 2 + value))

    def param(self, x: Any) -> Any:
        return x.detach().requires_grad_()

    def twin(self, x: Any) -> Any:
        return x.clone()

    def narrow(self, x: Any) -> Any:
        return x.float().double()

    def _written(self, x: Any, value: Any, how: Callable[[], Any]) -> None:
        roots = [x] if x._base is None else [x, x._base]
        place = x.untyped_storage().data_ptr()
        found = [*self._tensors(), *self.unnamed]
        shown = [t for t in found if t.untyped_storage().data_ptr() == place]
        if any(t.untyped_storage().data_ptr() == place for t in self.realized):
            raise Skipped("a write of data here")
        if any(root.is_leaf and root.requires_grad for root in roots):
            if any(not t.is_leaf and t._base is None for t in shown):
                raise Skipped("torch does not notice a write through a parameter of a value")
            if any(t.retains_grad or cut_off(t) for t in shown):
                raise Skipped("torch makes the gradients of such views anew, past what asks")
            with self.torch.no_grad():
                how()
            return
        if not x.requires_grad and any(t.requires_grad and not t.is_leaf for t in shown):
            raise Skipped("torch does not notice a write through a detached tensor")
        if any(t.retains_grad and t is not x and t._base is not None for t in shown):
            raise Skipped("torch makes the gradients of such views anew, past what asks")
        if any(t.requires_grad and t.is_leaf for t in shown):
            raise Skipped("a write of what a leaf shows")
        others = [t for t in shown if t is not x and t._base is None]
        if not x.requires_grad and others and getattr(value, "requires_grad", False):
            raise Skipped("a write through a detached tensor, which is one of a constant here")
        how()

    def _apart(self, value: Any) -> Any:
        return value.clone() if isinstance(value, self.torch.Tensor) else value

    def write(self, x: Any, value: Any) -> None:
        self._written(x, value, lambda: x.copy_(self._apart(value)))

    def add(self, x: Any, value: Any) -> None:
        self._written(x, value, lambda: x.add_(self._apart(value)))

    def scale(self, x: Any, value: Any) -> None:
        self._written(x, value, lambda: x.mul_(self._apart(value)))

    def put(self, x: Any, index: Any, value: Any) -> None:
        self._written(x, value, lambda: x.__setitem__(index, self._apart(value)))

    def done(self, x: Any) -> Any:
        return x.detach().clone()

    def realize(self, *tensors: Any) -> None:
        if any(not (x.is_leaf or x.retains_grad) for x in tensors):
            raise Skipped("ends the gradient")
        self.realized += [x for x in tensors if not x.is_leaf]
        self.ended |= {x.untyped_storage().data_ptr() for x in tensors if x.is_leaf}

    def read(self, x: Any) -> None:
        self.shown.append(numbers_of(x))

    def copied(self, x: Any) -> Any:
        if not x.is_leaf:
            raise Skipped("only leaves are copied")
        return copy.deepcopy(x)

    def sent(self, x: Any) -> Any:
        found = self.copied(x)
        found.grad = None
        return found

    def back(self, loss: Any) -> None:
        loss.backward(retain_graph=True)

    def _slopes(self, loss: Any, targets: Any, further: bool) -> Any:
        grad, zeros = self.torch.autograd.grad, self.torch.zeros_like
        retained = [(x, x.grad) for x in self._tensors() if x.retains_grad]
        found = grad(loss, targets, allow_unused=True, create_graph=further, retain_graph=True)
        for x, before in retained:
            x.grad = before  # which torch changes, as `backward` does
        return [zeros(t) if g is None else g for g, t in zip(found, targets, strict=True)]

    def slope(self, loss: Any, target: Any, order: int = 1) -> Any:
        for _ in range(order):
            (found,) = self._slopes(loss, [target], order > 1)
            loss = (found * found).sum()
        self.unnamed.append(found.detach())
        return found.detach()

    def slopes(self, loss: Any, *targets: Any) -> None:
        self.shown += map(numbers_of, self._slopes(loss, targets, False))

    def optimizer(self, kind: str, *params: Any, **options: Any) -> Any:
        optim = self.torch.optim
        made = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW}[kind]
        if any(not (p.is_leaf and p.requires_grad) for p in params):
            raise Skipped("not a leaf")
        if len({p.untyped_storage().data_ptr() for p in params}) < len(params):
            raise Skipped("parameters of the same memory")
        return made(list(params), **options)

    def step(self, optimizer: Any) -> None:
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            raise Skipped("nothing to do, which is refused here")
        params = [p for group in optimizer.param_groups for p in group["params"]]
        places = {p.untyped_storage().data_ptr() for p in params}
        for x in self._tensors():
            if x.untyped_storage().data_ptr() not in places:
                continue
            if x.retains_grad or cut_off(x):
                raise Skipped("torch makes the gradients of such views anew")
            if not x.is_leaf and x._base is None:
                raise Skipped("torch does not notice a write through a parameter of a value")
        taken = self.steps[id(optimizer)]
        counts = [optimizer.state[p].get("step", 0) for p in params if p.grad is not None]
        if not isinstance(optimizer, self.torch.optim.SGD) and any(n != taken for n in counts):
            raise Skipped("torch counts the steps of each parameter, and has a late one catch up")
        optimizer.step()
        self.steps[id(optimizer)] += 1

    def capture(self, function: Callable[..., Any]) -> Any:
        return lambda a: function(a.detach())

    def trained(self, optimizer: Any, w: Any, a: Any) -> Any:
        optimizer.zero_grad()
        loss = (w * w * a).sum()
        loss.backward()
        self.step(optimizer)
        return loss.detach()

    def summed(self, w: Any, a: Any) -> Any:
        w.grad = None
        (w * w * a).sum().backward()
        return w.grad.detach().clone()


class Writer:
    """Writes a program, running it on torch as it goes."""

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.lines: list[str] = []
        self.peer = Theirs()
        self.scope = self.peer.scope()
        self.names: list[str] = []
        self.used: set[str] = set()
        self.asked: list[str] = []
        self.leaves: list[str] = []
        self.trained: dict[str, str] = {}
        """The optimizers, each with one of its parameters."""
        self.captured: list[str] = []

    def say(self, line: str) -> bool:
        """One more line, unless torch refuses it or the numbers grow; True if it was taken."""
        try:
            exec(compiled(line), self.scope)
        except (RuntimeError, ValueError, IndexError, Skipped):
            return False
        self.lines.append(line)
        return True

    def make(self, expression: str, *operands: str) -> str | None:
        """One more tensor."""
        name = f"x{len(self.names)}"
        if not self.say(f"{name} = {expression}"):
            return None
        if not self.scope[name].numel():
            self.lines.pop()
            return None
        self.names.append(name)
        self.used.update(operands)
        return name

    def any(self) -> str:
        """The name of a tensor."""
        return self.draw.pick(self.names)

    def like(self, name: str) -> str:
        """The name of a tensor of the same shape."""
        shape = self.scope[name].shape
        return self.draw.pick([n for n in self.names if self.scope[n].shape == shape])

    def numbers(self, count: int = 4) -> str:
        """Numbers in source text, halves that are exact everywhere."""
        return ", ".join(str(self.draw.between(-4, 6) / 2) for _ in range(count))

    def loss(self, *first: str) -> str:
        """A sum over some tensors, in source text."""
        names = [*first, *(self.any() for _ in range(self.draw.between(1, 3)))]
        self.used.update(names)
        forms = ("({a} * {n}).sum()", "({a} * {a} * {n}).sum()")
        return " + ".join(
            self.draw.pick(forms).format(a=a, n=self.draw.between(1, 4)) for a in names
        )


def fresh(writer: Writer) -> None:
    """Memory, or numbers that are still to be moved there."""
    writer.make(f"{writer.draw.pick(('data', 'real'))}({writer.numbers()})")


def computed(writer: Writer) -> None:
    """A value, which may ask for a gradient at once, or be computed twice."""
    a = writer.any()
    b = writer.like(a)
    writer.used.update((a, b))
    asks = writer.draw.pick(("{}", "{}", "ask({})"))
    expression = asks.format(writer.draw.pick(OPERATIONS).format(a=a, b=b))
    for _ in range(writer.draw.between(1, 2)):
        name = writer.make(expression, a, b)
        if name is not None and expression.startswith("ask"):
            writer.asked.append(name)


def viewed(writer: Writer) -> None:
    """A view, which may ask for a gradient."""
    a = writer.any()
    asks = writer.draw.pick(("{}", "{}", "ask({})", "param({})"))
    expression = asks.format(writer.draw.pick(SHOWN).format(a=a))
    for _ in range(writer.draw.between(1, 2)):
        name = writer.make(expression, a)
        if name is not None and expression.startswith(("ask", "param")):
            writer.asked.append(name)


def asking(writer: Writer) -> None:
    """A tensor that nobody used yet asks for a gradient, or one that asks does so again."""
    unused = [n for n in writer.names if n not in writer.used]
    if unused and writer.draw.chance(0.8):
        name = writer.draw.pick(unused)
        if not writer.scope[name].requires_grad and writer.say(f"ask({name})"):
            writer.asked.append(name)
    elif writer.asked:
        writer.say(f"again({writer.draw.pick(writer.asked)})")


def copying(writer: Writer) -> None:
    """A copy by the standard library."""
    a = writer.any()
    writer.make(f"{writer.draw.pick(('copied', 'sent'))}({a})", a)


def writing(writer: Writer) -> None:
    """A write in place."""
    a = writer.any()
    b = writer.like(a)
    if writer.say(writer.draw.pick(IN_PLACE).format(a=a, b=b)):
        writer.used.update(writer.names)


def computing(writer: Writer) -> None:
    """Memory now, or numbers to look at."""
    a = writer.any()
    writer.say(writer.draw.pick(("realize({})", "read({})")).format(a))


def differentiating(writer: Writer) -> None:
    """Gradients, added up, of some targets or of second order."""
    if not writer.asked:
        return
    target, other = writer.draw.pick(writer.asked), writer.draw.pick(writer.asked)
    forms = ("back({l})", "back({l})", "slopes({l}, {t}, {o})", "read(slope({l}, {t}, 2))")
    line = writer.draw.pick(forms).format(l=writer.loss(target), t=target, o=other)
    writer.say(line)


def forgetting(writer: Writer) -> None:
    """A gradient is dropped."""
    if writer.asked:
        writer.say(f"zero({writer.draw.pick(writer.asked)})")


def training(writer: Writer) -> None:
    """An optimizer, or a step of one."""
    if writer.trained and writer.draw.chance(0.7):
        optimizer = writer.draw.pick(list(writer.trained))
        if writer.say(f"step({optimizer})"):
            writer.used.update(writer.names)
        if writer.draw.chance(0.5):
            writer.say(f"forget({optimizer})")
        return
    leaves = [n for n in writer.asked if writer.scope[n].is_leaf]
    if not leaves:
        return
    chosen = writer.draw.subset(leaves)
    options = writer.draw.pick(
        ("'sgd', {}, lr=0.25", "'sgd', {}, lr=0.25, momentum=0.5", "'adam', {}, lr=0.25",
         "'sgd', {}, lr=0.25, momentum=0.5, nesterov=True", "'adamw', {}, lr=0.25")
    )  # fmt: skip
    name = f"o{len(writer.trained)}"
    if writer.say(f"{name} = optimizer({options.format(', '.join(chosen))})"):
        writer.trained[name] = chosen[0]


def capturing(writer: Writer) -> None:
    """A captured function, called several times."""
    leaves = [n for n in writer.asked if writer.scope[n].is_leaf]
    form = writer.draw.pick(CAPTURED)
    if not leaves or ("{o}" in form and not writer.trained):
        return
    optimizer = writer.draw.pick(list(writer.trained)) if writer.trained else ""
    w = writer.trained[optimizer] if "{o}" in form else writer.draw.pick(leaves)
    count = int(writer.scope[w].numel())
    if writer.scope[w].ndim != 1:
        return
    function = form.format(b=writer.like(w), w=w, o=optimizer)
    name = f"f{len(writer.captured)}"
    if not writer.say(f"{name} = capture({function})"):
        return
    writer.captured.append(name)
    for _ in range(writer.draw.between(2, 4)):
        writer.make(f"{name}(real({writer.numbers(count)}))")
    writer.used.update(writer.names)


def written(writer: Writer) -> None:
    """Memory with a write that waits, most often of a value that asks for a gradient."""
    for _ in range(3):
        fresh(writer)
    for name in ("x1", "x2"):
        if writer.draw.chance(0.7) and writer.say(f"ask({name})"):
            writer.asked.append(name)
    writer.say(writer.draw.pick(IN_PLACE).format(a="x0", b=writer.draw.pick(("x1", "x2"))))
    writer.used.update(writer.names)
    for _ in range(2):
        reshaped(writer)


def reshaped(writer: Writer) -> None:
    """A view of all of a tensor asks for a gradient, most often in another shape."""
    a = writer.any()
    form = writer.draw.pick(("{a}.reshape(-1)", "{a}.reshape(2, 2)", "{a}[:]"))
    if writer.scope[a].numel() == 4 and (name := writer.make(f"ask({form.format(a=a)})", a)):
        writer.asked.append(name)


def seen(writer: Writer) -> None:
    """A captured function reads a tensor, whatever it is; nothing uses the result."""
    a = writer.any()
    b = writer.like(a)
    name = f"f{len(writer.captured)}"
    form = writer.draw.pick(("lambda a: done(a * {a} + 1)", "lambda a: done(a * {a} * {b})"))
    if writer.say(f"{name} = capture({form.format(a=a, b=b)})"):
        writer.captured.append(name)
        shape = ", ".join(map(str, writer.scope[a].shape))
        for _ in range(writer.draw.between(1, 3)):
            numbers = writer.numbers(int(writer.scope[a].numel()))
            writer.say(f"{name}(real({numbers}).reshape({shape}))")
        writer.used.update(writer.names)


STEPS: Final = (
    (fresh, 1.0), (computed, 5.0), (viewed, 4.0), (asking, 3.0), (copying, 0.7), (writing, 3.0),
    (computing, 2.0), (differentiating, 3.0), (forgetting, 0.7), (training, 1.5), (capturing, 0.7),
)  # fmt: skip
STEPS_OF_VIEWS: Final = (
    (reshaped, 5.0), (viewed, 1.0), (computed, 5.0), (seen, 1.5), (computing, 0.5),
    (differentiating, 0.5), (writing, 0.3),
)  # fmt: skip


def program_of(seed: int) -> Program:
    """The program of a seed; one in eight is about views of memory that a write waits for."""
    writer = Writer(seed)
    of_views = seed % 8 == 7
    if of_views:
        written(writer)
    else:
        for _ in range(2):
            fresh(writer)
    for _ in range(writer.draw.between(5, 30)):
        writer.draw.weighted(STEPS_OF_VIEWS if of_views else STEPS)(writer)
        values = [writer.scope[name].detach() for name in writer.names]
        if any(float(abs(x).max()) > GREATEST for x in values):
            break
    if writer.asked:
        writer.say(f"back({writer.loss(*writer.draw.subset(writer.asked))})")
    writer.say(f"names = {[*writer.names]}")
    writer.say(f"asked = {[*dict.fromkeys(writer.asked)]}")
    return Program(seed, tuple(writer.lines))


def results_of(names: Ours, found: Program) -> dict[str, Any]:
    """Numbers that a program read, all values at its end, and the gradients of what asked."""
    scope = names.scope()
    for line in found.lines:
        exec(compiled(line), scope)
    return results_in(names, scope)


def results_in(names: Ours, scope: dict[str, Any]) -> dict[str, Any]:
    """The same, of a program that has run over some names."""
    results: dict[str, Any] = {f"read {n}": x for n, x in enumerate(names.shown)}
    results |= {f"{name}.grad": numbers_of(scope[name].grad) for name in scope["asked"]}
    return results | {name: numbers_of(scope[name]) for name in scope["names"]}


def check(found: Program) -> Verdict:
    """The first value or gradient that is another one in torch, if there is any."""
    expected = expected_of(found)
    return Verdict("cut") if expected is None else compare_here(found, expected)


def expected_of(found: Program) -> dict[str, Any] | None:
    """Values of torch; None where it refuses a line, as in a program that is being reduced."""
    try:
        return results_of(Theirs(), found)
    except (RuntimeError, Skipped):
        return None


def compare_here(found: Program, expected: Mapping[str, Any]) -> Verdict:
    """The first value or gradient that is another one than expected."""
    try:
        results = results_of(Ours(), found)
    except JitError as error:
        return Verdict("uncaptured", str(error))
    except GradientError as error:
        known = ("in place", "ended the gradient", "ends at a tensor of shape", "has no gradient")
        return Verdict("refused" if any(k in str(error) for k in known) else "odd", str(error))
    except Exception:
        return Verdict("raised", traceback.format_exc(limit=-4))
    for name, one in expected.items():
        if not numpy.allclose(one, results[name], rtol=1e-4, atol=1e-4):
            return Verdict("value", f"{name}: {results[name]}, torch {one}")
    return Verdict("")


def smaller(found: Program) -> Iterator[Program]:
    """The program without one of its lines, or without the names of tensors at the end."""
    *lines, names, asked = found.lines
    for fewer in without_a_line(tuple(lines)):
        text = "".join(fewer)
        yield Program(found.seed, (*fewer, only(names, text), only(asked, text)))


def only(line: str, text: str) -> str:
    """A list of names less those that a program has not."""
    start, _, rest = line.partition(" = ")
    return f"{start} = {[name for name in literal_eval(rest) if f'{name} = ' in text]}"


def shown(found: Program, verdict: Verdict) -> str:
    """The program with its seed, and its error."""
    return "\n".join((f"# seed {found.seed}: {verdict.kind}: {verdict.message}", *found.lines))


REFUSED: Final = frozenset({"refused", "cut", "uncaptured"})
"""Kinds of outcomes that are no failure: refused here, left out, or by a capture."""

FUZZER: Final = Fuzzer(
    "tests.fuzz.leaves", __doc__, program_of, check, shown, smaller, REFUSED, devices=FRONTEND
)


if __name__ == "__main__":
    raise SystemExit(run(FUZZER))
