"""The environment of a captured function: changes are seen, put there again, or refused."""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import math
import pickle
import random
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tinycore import Tensor, TinyJit, nn
from tinycore.errors import JitError
from tinycore.tensor.guards.guard import Guard


def host(*values: float) -> Tensor:
    return Tensor([float(v) for v in values]).realize()


FACTORS = (2.0, 2.0, 2.0, 2.0, 2.0, 5.0, 5.0, 5.0, 5.0, 2.0, 5.0)
"""Each often enough for a replay by compiled guards, before another one comes."""


def obeys(step: Callable[[Tensor], Tensor], change: Callable[[float], object]) -> None:
    """The step multiplies by a factor that is changed from outside."""
    for factor in FACTORS:
        change(factor)
        assert step(host(3)).item() == 3 * factor


# --- decorators and callables


def decorated(decorate: Callable[[Any], Any]) -> tuple[Any, Callable[[float], object]]:
    space = types.SimpleNamespace(k=2.0)

    def f(x: Tensor) -> Any:
        return x * space.k

    return decorate(f), lambda k: setattr(space, "k", k)


def without_wraps(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        return function(x)

    return call


class Called:
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    "decorate",
    [
        lambda f: f,
        Tensor.train(),
        lambda f: Tensor.train()(Tensor.test()(f)),
        functools.partial,
        lambda f: functools.partial(lambda g, x: g(x), f),
        without_wraps,
        Called,
        lambda f: Called(f).__call__,
        TinyJit,
        lambda f: functools.wraps(f)(lambda *given: f(*given) + 0),
    ],
)
def test_decorators_hide_nothing(decorate: Callable[[Any], Any]) -> None:
    step, change = decorated(decorate)

    obeys(TinyJit(step), change)


def test_arguments_of_a_partial() -> None:
    step = functools.partial(lambda x, k: x * k, k=2.0)
    obeys(TinyJit(step), lambda k: step.keywords.update(k=k))


def test_defaults() -> None:
    def f(x: Tensor, k: float = 2.0, *, one: float = 1.0) -> Tensor:
        return x * k * one

    def change(k: float) -> None:
        f.__defaults__ = (k,)

    obeys(TinyJit(f), change)


def test_attributes_of_a_class_and_slots() -> None:
    class Shared:
        k = 2.0

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.k

    class Slots:
        __slots__ = ("k",)

        def __init__(self) -> None:
            self.k = 2.0

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.k

    def change(k: float) -> None:
        Shared.k = k

    shared = Shared()
    obeys(shared.run, change)
    slotted = Slots()
    obeys(slotted.run, lambda k: setattr(slotted, "k", k))


def test_attributes_of_a_class_of_another_metaclass() -> None:
    class Meta(type):
        pass

    class Shared(metaclass=Meta):
        k = 2.0

    def change(k: float) -> None:
        Shared.k = k

    obeys(TinyJit(lambda x: x * Shared.k), change)


def test_static_and_class_methods() -> None:
    class Shared:
        k = 2.0

        @staticmethod
        def scaled(x: Tensor) -> Tensor:
            return x * Shared.k

        @classmethod
        def kept(cls, x: Tensor) -> Tensor:
            return cls.scaled(x)

    def change(k: float) -> None:
        Shared.k = k

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return Shared.kept(x) + 0

    obeys(step, change)


def test_an_optimizer_behind_a_decorator() -> None:
    weight = host(1)
    optimizer = nn.optim.SGD([weight], lr=0.1, momentum=0.9)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    for _ in range(3):
        step(host(1))
    optimizer.momentum = 0.0
    before = [weight.item()]
    for _ in range(3):
        step(host(1))
        before.append(weight.item())

    assert numpy.allclose(numpy.diff(before), -0.1)


# --- containers and what they hold


def in_a_dict() -> tuple[Any, Any]:
    box = {"k": 2.0}
    return lambda x: x * box["k"], lambda k: box.update(k=k)


def in_a_list() -> tuple[Any, Any]:
    box = [1.0, [2.0]]
    inner: Any = box[1]
    return lambda x: x * inner[0], lambda k: inner.__setitem__(0, k)


def in_a_nested_object() -> tuple[Any, Any]:
    outer = types.SimpleNamespace(inner=types.SimpleNamespace(k=2.0))
    return lambda x: x * outer.inner.k, lambda k: setattr(outer.inner, "k", k)


def in_a_class_below() -> tuple[Any, Any]:
    class Base:
        k = 2.0

    class Derived(Base):
        pass

    derived = Derived()
    numbers = iter(range(len(FACTORS)))

    def change(k: float) -> None:
        (Base, Derived, derived)[min(next(numbers) // 2, 2)].k = k

    return lambda x: x * derived.k, change


def in_a_set() -> tuple[Any, Any]:
    box = {2.0}

    def change(k: float) -> None:
        box.clear()
        box.add(k)

    return lambda x: x * next(iter(box)), change


def in_an_array() -> tuple[Any, Any]:
    array = numpy.array([2.0], numpy.float32)
    return lambda x: x * Tensor(array), lambda k: array.__setitem__(0, k)


def in_a_called_function() -> tuple[Any, Any]:
    scope: dict[str, Any] = {"__name__": "helpers", "k": 2.0}
    exec("def helper(x): return x * k", scope)
    helper = scope["helper"]
    return lambda x: helper(x) + 0, lambda k: scope.update(k=k)


def in_a_method_of_an_object() -> tuple[Any, Any]:
    class Inner:
        factor = 2.0

        def times(self, x: Tensor) -> Tensor:
            return x * self.factor

    inner = [Inner()]

    def change(k: float) -> None:
        Inner.factor = k

    return lambda x: inner[0].times(x) + 0, change


MAKERS = (
    in_a_dict,
    in_a_list,
    in_a_nested_object,
    in_a_class_below,
    in_a_set,
    in_an_array,
    in_a_called_function,
    in_a_method_of_an_object,
)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_values_in_containers(make: Callable[[], tuple[Any, Any]]) -> None:
    step, change = make()

    obeys(TinyJit(step), change)


def test_an_item_that_moves_to_the_list_beside() -> None:
    one, other, factor = [2.0], [3.0, 5.0], 7.0
    lists = [[one, other], [[], [one[0], *other]], [[2.0, 3.0], [5.0]]]
    both = types.SimpleNamespace(lists=lists[0])
    step = TinyJit(lambda x: x * sum(both.lists[0]) + sum(both.lists[1]) * factor)

    for number in (0, 0, 0, 1, 1, 1, 2, 2, 2, 0):
        both.lists = lists[number]
        right = 3 * sum(lists[number][0]) + sum(lists[number][1]) * factor
        assert step(host(3)).item() == right


def test_a_closure_that_gives_way_to_a_function_without() -> None:
    factor = 2.0
    helpers = [lambda x: x * factor, lambda x: x * 5.0]
    box = [helpers[0]]
    step = TinyJit(lambda x: box[0](x) + 0)

    for number in (0, 0, 0, 1, 1, 1, 0):
        box[0] = helpers[number]
        assert step(host(3)).item() == (6.0, 15.0)[number]


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: Tensor) -> Tensor:
        import os  # noqa: PLC0415  as functions do

        return x * float(os.environ["FACTOR"]) + 0 * float(os.getenv("FACTOR", "1"))

    obeys(TinyJit(step), lambda k: monkeypatch.setenv("FACTOR", str(k)))


@pytest.mark.parametrize("zero", [0.0, 0j])
def test_the_sign_of_a_zero(zero: complex) -> None:
    around = zero
    step = TinyJit(lambda x, k: x * math.copysign(2, k.real) + math.copysign(1, around.imag))
    for number in (zero, -zero, zero.conjugate(), -zero):
        for around in (zero, -zero):
            for _ in range(3):
                result = step(Tensor([1.0]), number)
            assert result.tolist() == [
                math.copysign(2, number.real) + math.copysign(1, around.imag)
            ]


def test_an_attribute_of_a_function() -> None:
    def scaled(x: Tensor) -> Tensor:
        factor: float = scaled.factor  # type: ignore[attr-defined]
        return x * factor

    def plain(x: Tensor) -> Tensor:
        factor: float = plain.factor  # type: ignore[attr-defined]
        offset: float = plain.offset  # type: ignore[attr-defined]
        return x * factor + offset

    plain.offset = 0.0  # type: ignore[attr-defined]
    plain.unused = [1.0]  # type: ignore[attr-defined]

    obeys(TinyJit(lambda x: scaled(x) + 0), lambda k: setattr(scaled, "factor", k))
    obeys(TinyJit(plain), lambda k: setattr(plain, "factor", k))


def test_a_closure_variable_that_is_given_a_value_later() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
        factor = 0.0

        def step(x: Tensor) -> Tensor:
            try:
                return x * factor
            except NameError:
                return x * 1.0

        def fill(number: float) -> None:
            nonlocal factor
            factor = number

        del factor
        return step, fill

    function, fill = make()
    step = TinyJit(function)
    assert [step(host(3)).item() for _ in range(4)] == [3.0] * 4

    fill(2.0)

    assert [step(host(3)).item() for _ in range(4)] == [6.0] * 4


def test_a_module_of_which_code_names_nothing() -> None:
    module = types.ModuleType(__name__)
    step = TinyJit(lambda x, unused=module: x * (2.0 if unused else 3.0))

    assert [step(host(3)).item() for _ in range(4)] == [6.0] * 4
    assert len(step.captures) == 1


def test_an_object_that_is_gone_is_not_taken_for_one_in_its_place() -> None:
    class Token:
        pass

    token = Token()
    guard = Guard((), [token])
    assert guard.holds(())

    del token

    assert not guard.holds(())


def test_context_variables_and_data_of_threads() -> None:
    chosen: contextvars.ContextVar[float] = contextvars.ContextVar("chosen")
    data = threading.local()

    obeys(TinyJit(lambda x: x * chosen.get(1.0)), chosen.set)
    obeys(TinyJit(lambda x: x * data.k), lambda k: setattr(data, "k", k))


def test_a_context_variable_that_is_given_a_value() -> None:
    chosen: contextvars.ContextVar[float] = contextvars.ContextVar("chosen")
    step = TinyJit(lambda x: x * chosen.get(1.0))
    assert [step(host(3)).item() for _ in range(4)] == [3.0] * 4

    chosen.set(2.0)

    assert [step(host(3)).item() for _ in range(4)] == [6.0] * 4


def test_the_default_of_a_context_variable_is_looked_into() -> None:
    box = types.SimpleNamespace(scale=2.0)
    options: contextvars.ContextVar[Any] = contextvars.ContextVar("options", default=box)
    step = TinyJit(lambda x: x * options.get().scale)

    obeys(step, lambda k: setattr(box, "scale", k))


def test_arguments_that_are_looked_into() -> None:
    box = types.SimpleNamespace(values=[2.0])
    step = TinyJit(lambda x, box: x * box.values[0])
    obeys(lambda x: step(x, box), lambda k: box.values.__setitem__(0, k))

    content = bytearray(b"\x02")
    scaled = TinyJit(lambda x, content: x * float(content[0]))
    obeys(lambda x: scaled(x, content), lambda k: content.__setitem__(0, int(k)))


def test_what_no_code_names_may_change() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.scale = 2.0

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            return x * self.scale

    trainer = Trainer()
    for i in range(80):
        trainer.losses.append(trainer.step(host(i)).item())

    assert trainer.losses == [2.0 * i for i in range(80)]
    assert len(trainer.step.captures) == 1


def test_a_large_array_around_the_function_is_refused_unless_it_cannot_change() -> None:
    array = numpy.ones(5000, numpy.float32)
    step = TinyJit(lambda x: x + Tensor(array))
    step(Tensor.ones(5000).contiguous())
    with pytest.raises(JitError, match="large NumPy array around it"):
        step(Tensor.ones(5000).contiguous())

    array.setflags(write=False)
    step.reset()
    for _ in range(3):
        assert step(Tensor.ones(5000).contiguous())[0].item() == 2


# --- objects and their lives


def test_a_method_of_an_object_without_weak_references() -> None:
    class Slots:
        __slots__ = ("weight",)

        def __init__(self) -> None:
            self.weight = host(2)

        @TinyJit
        def run(self, x: Tensor) -> Tensor:
            return x * self.weight

    one = Slots()
    assert [one.run(host(i)).item() for i in range(4)] == [0, 2, 4, 6]


def test_a_capture_keeps_no_object_alive() -> None:
    class Node:
        def __init__(self) -> None:
            self.weight = host(2)
            self.children = [types.SimpleNamespace(parent=self, k=3.0)]

        @TinyJit
        def run(self, x: Tensor) -> Any:
            return x * self.weight * self.children[0].k * self.children[0].parent.weight

    node = Node()
    for i in range(3):
        assert node.run(host(i)).item() == 12 * i
    gone = weakref.ref(node)
    del node
    gc.collect()

    assert gone() is None


# --- what is left outside


def run_both(make: Callable[[], tuple[Any, Any]], calls: int = 6) -> None:
    """A function, and what is to be seen after each call, with and without TinyJit."""
    plain, seen = make()
    expected = []
    for i in range(calls):
        plain(host(i + 1.0))
        expected.append(seen())
    function, seen = make()
    step = TinyJit(function)
    found = []
    for i in range(calls):
        step(host(i + 1.0))
        found.append(seen())
    assert found == expected
    assert step.captured is not None


def gradients_outside() -> tuple[Any, Any]:
    weight = Tensor([2.0], requires_grad=True).realize()
    optimizer = nn.optim.SGD([weight], lr=0.1)

    def forward_backward(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (weight * x).square().sum()
        loss.backward()
        return loss

    def seen() -> float:
        with Tensor.train():
            optimizer.step()
        return float(weight.item())

    return forward_backward, seen


def gradients_emptied_outside() -> tuple[Any, Any]:
    weight = Tensor([2.0], requires_grad=True).realize()

    def forward_backward(x: Tensor) -> Tensor:
        return (weight * x).square().sum().backward()

    def seen() -> float:
        assert weight.grad is not None
        found = float(weight.grad.item())
        weight.grad = None
        return found

    return forward_backward, seen


def last_in_a_dict() -> tuple[Any, Any]:
    box: dict[str, Any] = {}
    kept: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        box["last"] = x * 2
        return x + 1

    def seen() -> list[float]:
        kept.append(box["last"])
        return [float(t.item()) for t in kept]

    return step, seen


def last_in_an_attribute() -> tuple[Any, Any]:
    box = types.SimpleNamespace(last=None)

    def step(x: Tensor) -> Tensor:
        box.last = x * 2
        return x + 1

    return step, lambda: [box.last.item()]


def last_in_a_variable() -> tuple[Any, Any]:
    last = None

    def step(x: Tensor) -> None:
        nonlocal last
        last = (x * 3).realize()

    return step, lambda: last.item() if last is not None else None


def two_in_variables() -> tuple[Any, Any]:
    first = second = None

    def step(x: Tensor) -> None:
        nonlocal first, second
        first, second = (x * 3).realize(), (x * 5).realize()

    return step, lambda: [x.item() if x is not None else None for x in (first, second)]


def last_in_a_global() -> tuple[Any, Any]:
    space: dict[str, Any] = {"last": None}
    code = "def step(x):\n    global last\n    last = (x * 3).realize()\n"
    exec(code, space)
    return space["step"], lambda: None if space["last"] is None else space["last"].item()


@pytest.mark.parametrize(
    "make",
    [
        gradients_outside,
        gradients_emptied_outside,
        last_in_a_dict,
        last_in_an_attribute,
        last_in_a_variable,
        last_in_a_global,
        two_in_variables,
    ],
    ids=lambda make: make.__name__,
)
def test_tensors_left_outside_are_put_there_by_replays(
    make: Callable[[], tuple[Any, Any]],
) -> None:
    run_both(make)


@pytest.mark.parametrize("make", [lambda *t: [*t], lambda *t: {"pair": t}])
def test_containers_of_tensors_left_outside_are_refused(make: Callable[..., Any]) -> None:
    box, old = types.SimpleNamespace(last=None), host(3)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        box.last = make(x * 2, old)
        return x + 1

    step(host(1))
    for i in range(3):
        with pytest.raises(JitError, match=r"box.last in each call .*stores single tensors only"):
            step(host(i))


def test_adding_to_gradients_is_refused() -> None:
    weight = Tensor([2.0], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (weight * x).sum().backward()

    step(host(1))
    kept = weight.grad
    with pytest.raises(JitError, match=r"zero_grad\(\)"):
        step(host(1))
    assert kept is not None


def test_a_list_that_grows_is_refused() -> None:
    history: list[Tensor] = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        history.append(x * 2)
        return x + 1

    step(host(1))
    for _ in range(3):
        with pytest.raises(JitError, match=r"closure variable history in each call .* other items"):
            step(host(1))


def test_a_counter_is_refused() -> None:
    box = types.SimpleNamespace(count=0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        box.count += 1
        return x + 1

    step(host(1))
    with pytest.raises(JitError, match=r"closure variable box.count in each call .from 1 to 2"):
        step(host(1))


python_numbers, numpy_numbers = random.Random(1), numpy.random.default_rng(1)

DRAWN: dict[str, Callable[[], float]] = {
    "a function of random": lambda: random.uniform(0.0, 1.0),
    "a method of random's generator": random.random,
    "a generator of random": lambda: python_numbers.uniform(0.0, 1.0),
    "a function of numpy.random": lambda: numpy.random.uniform(0.0, 1.0),
    "a generator of numpy.random": lambda: numpy_numbers.uniform(0.0, 1.0),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_number_drawn_by_the_host_is_refused_though_it_decides_alike(name: str) -> None:
    draw = DRAWN[name]
    step = TinyJit(lambda x: x * 2 if draw() < 2 else x)
    step(host(1))

    with pytest.raises(JitError, match="draws random numbers of Python or NumPy"):
        step(host(1))


def test_numbers_drawn_in_the_first_call_only_are_taken() -> None:
    weights: list[Tensor] = []

    @TinyJit
    def step(x: Tensor) -> Tensor:
        if not weights:
            weights.append(host(numpy_numbers.random()))
        return x * weights[0]

    found = [step(host(i)).item() for i in range(4)]

    assert found == pytest.approx([i * found[1] for i in range(4)])


def ones() -> Iterator[float]:
    while True:
        yield 1.0


@pytest.mark.parametrize("items", [ones(), itertools.cycle([1.0]), iter([1.0] * 9)])
def test_an_iterator_is_refused_though_its_items_are_alike(items: Iterator[float]) -> None:
    around = TinyJit(lambda x: x * next(items))
    given = TinyJit(lambda x, items: x * next(items))

    for step, arguments in ((around, ()), (given, (items,))):
        step(host(1), *arguments)
        with pytest.raises(JitError, match="finds an iterator around it"):
            step(host(1), *arguments)


def test_a_changed_container_among_the_arguments_is_refused() -> None:
    step = TinyJit(lambda box: box.update(b=box["a"] * 2))
    step({"a": host(1)})

    with pytest.raises(JitError, match="changed what argument"):
        step({"a": host(1)})


def test_what_is_left_where_nobody_looks_is_refused() -> None:
    left = weakref.WeakKeyDictionary[Any, Any]()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        left[step] = x * 2
        return x + 1

    step(host(1))
    with pytest.raises(JitError, match="behind in a place"):
        step(host(1))


# --- refused captures


def test_a_refused_capture_is_not_replayed() -> None:
    box = {"n": host(0)}

    @TinyJit
    def step(x: Tensor) -> Tensor:
        box["n"] = (box["n"] + x).realize()
        return box["n"] * 1

    assert step(host(1)).item() == 1
    for _ in range(4):
        with pytest.raises(JitError, match="put another one in its place"):
            step(host(1))


def test_an_exception_inside_leaves_writes_and_a_later_capture() -> None:
    box = types.SimpleNamespace(fails=False)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        x.assign(x + 1)
        if box.fails:
            raise ValueError("stop")
        return x * 2

    x = host(1)
    step(x)
    box.fails = True
    with pytest.raises(ValueError, match="stop"):
        step(x)
    assert x.tolist() == [3.0]
    box.fails = False
    assert [step(x).item() for _ in range(4)] == [8, 10, 12, 14]
    assert x.tolist() == [7.0]


def test_a_value_read_inside_leaves_writes_to_arguments() -> None:
    @TinyJit
    def step(x: Tensor) -> float:
        x.assign(x + 1)
        return float(x.item())

    base = host(1, 2)
    with pytest.raises(JitError, match="returned"):
        step(base[0:1])
    assert base.tolist() == [2.0, 2.0]


# --- random numbers


def draws(function: Callable[[Tensor], Any], calls: int = 5) -> list[list[float]]:
    Tensor.manual_seed(5)
    return [[t.item() for t in function(host(i))] for i in range(calls)]


def test_random_numbers_are_drawn_in_the_order_of_the_function() -> None:
    def step(x: Tensor) -> tuple[Tensor, ...]:
        first, unused, second = Tensor.rand(1), Tensor.rand(3), Tensor.rand(1)
        late = second.realize() + x
        return late, first * 1, x + unused.shape[0]

    assert draws(TinyJit(step)) == draws(step)


def test_a_seed_inside_is_obeyed() -> None:
    def step(x: Tensor) -> tuple[Tensor, ...]:
        before = Tensor.rand(1) + x
        Tensor.manual_seed(7)
        return before, Tensor.rand(1) + x

    assert draws(TinyJit(step)) == draws(step)


def test_seeds_of_one_hash_are_two_seeds() -> None:
    """-1 and -2 have the same hash in CPython, and the second call would be taken for the first."""
    seeds = iter((-1, -2, -3))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        Tensor.manual_seed(next(seeds))
        return Tensor.rand(1) + x

    step(Tensor([1.0]).realize())
    with pytest.raises(JitError, match="took other data from the host"):
        step(Tensor([1.0]).realize())


def test_a_pickled_capture_draws_anew() -> None:
    step = TinyJit(lambda x: x + Tensor.rand(4))
    for _ in range(2):
        step(Tensor.zeros(4).contiguous())
    again = pickle.loads(pickle.dumps(step))
    drawn = [tuple(again(Tensor.zeros(4).contiguous()).tolist()) for _ in range(4)]

    assert len(set(drawn)) == 4


def test_numbers_drawn_before_the_capture_stay() -> None:
    weight = Tensor([1.0], requires_grad=True).realize()
    noise = Tensor.rand(1) * weight

    def step(x: Tensor) -> tuple[Tensor, ...]:
        return (noise + x,)

    jitted = TinyJit(step)
    found = [jitted(host(0))[0].item() for _ in range(5)]

    assert found == [noise.item()] * 5


# --- arguments


def test_the_argument_at_fault_is_named() -> None:
    weight = host(2)
    step = TinyJit(lambda a, *, b: a + b[1] * weight)
    for i in range(3):
        step(host(i), b=[host(1), host(2)])
    with pytest.raises(JitError, match=r"argument \['b'\]\[1\] of"):
        step(host(1), b=[host(1), weight])

    other = TinyJit(lambda a, *, b: a + b[1] * weight)
    other(host(1), b=[host(1), host(2)])
    with pytest.raises(JitError, match=r"as argument \['b'\]\[1\] what it also reaches"):
        other(host(1), b=[host(1), weight])


def test_the_gradient_of_an_argument_is_an_argument() -> None:
    step = TinyJit(lambda p: p - p.grad * 0.5)
    for i in range(5):
        p = Tensor([4.0], requires_grad=True).realize()
        p.grad = host(i)
        assert step(p).item() == 4 - i / 2


def test_which_argument_has_a_gradient_is_noticed() -> None:
    def step(p: Any, q: Any) -> Any:
        return q.grad * 10 if p.grad is None else p.grad + 0

    jitted = TinyJit(step)
    for with_gradient in (0, 0, 0, 1, 1, 1, 0):
        given = [Tensor([4.0], requires_grad=True).realize() for _ in range(2)]
        given[with_gradient].grad = host(3)
        assert jitted(*given).item() == (30 if with_gradient else 3)


def test_a_frozen_weight_whose_content_is_not_read_is_noticed() -> None:
    weight = Tensor([2.0], requires_grad=True).realize()

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (weight * x.detach()).sum().backward()
        return x + 1

    jitted = TinyJit(step)
    for flag in (True, True, True, False, False, False, True, True, True):
        weight.requires_grad = flag
        jitted(host(3))
        assert (weight.grad is not None) is flag


def test_a_frozen_weight_is_noticed() -> None:
    first, second = (Tensor([2.0], requires_grad=True).realize() for _ in range(2))

    def step(x: Tensor) -> Tensor:
        first.grad = second.grad = None
        (first * second * x).sum().backward()
        return x + 1

    jitted = TinyJit(step)
    for _ in range(3):
        jitted(host(1))
    second.requires_grad = False
    for i in range(3):
        jitted(host(i))
        assert first.grad is not None
        assert first.grad.item() == 2 * i
        assert second.grad is None


def test_a_gradient_that_was_seen_is_not_overwritten() -> None:
    weight = Tensor([2.0, 3.0], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        return (weight * x).sum().backward()

    def gradient() -> Tensor:
        assert weight.grad is not None
        return weight.grad

    for i in range(4):
        step(host(i, i))
    reused = gradient()
    step(host(4, 4))
    kept, part, lazy = gradient(), gradient()[0:1], gradient() * 10
    assert reused.tolist() == [3.0, 3.0]
    for i in range(5, 8):
        step(host(i, i))
    assert (kept.tolist(), part.tolist(), lazy.tolist()) == ([4.0, 4.0], [4.0], [40.0, 40.0])
    assert gradient().tolist() == [7.0, 7.0]
    view = gradient()[1:2]
    step(host(8, 8))
    assert view.tolist() == [7.0]
    weight.grad = None
    step(host(9, 9))
    assert gradient().tolist() == [9.0, 9.0]


@pytest.mark.parametrize("way", ["left", "returned"])
def test_a_view_of_a_tensor_that_is_replaced_is_refused(way: str) -> None:
    space: Any = types.SimpleNamespace(last=host(1), other=host(0))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        former: Tensor = space.last.detach()
        space.last = x * 2
        if way == "left":
            space.other = former
            return x + 1
        return former

    step(host(1))
    with pytest.raises(JitError, match="put another one in its place"):
        step(host(2))


def test_a_tensor_may_be_replaced_by_a_view_of_itself() -> None:
    space = types.SimpleNamespace(last=host(1, 2))

    @TinyJit
    def step(x: Tensor) -> Tensor:
        space.last = space.last.detach()
        return x + 1

    assert [step(host(n, n)).tolist() for n in range(4)] == [[n + 1.0] * 2 for n in range(4)]
    assert space.last.tolist() == [1.0, 2.0]


def test_a_gradient_that_another_captured_function_was_given_is_not_overwritten() -> None:
    weight = Tensor([2.0, 3.0], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        return (weight * x).sum().backward()

    @TinyJit
    def look(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        assert w.grad is not None
        return w.grad[1:2], (x * 2).realize()

    seen = []
    for i in range(6):
        step(host(i, i))
        seen.append(look(weight, host(i))[0])

    assert [part.tolist() for part in seen] == [[float(i)] for i in range(6)]


def test_a_gradient_that_was_not_seen_is_overwritten_in_whatever_shapes_it_was_made() -> None:
    weight = Tensor([[2.0, 3.0], [4.0, 5.0]], requires_grad=True).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        weight.grad = None
        return (weight.reshape(4).reshape(1, 4) * x).sum().backward()

    for i in range(4):
        step(host(i))
    left = weight._grad  # which does not count as reading it
    step(host(7))

    assert weight._grad is left
    assert weight.grad is not None
    assert weight.grad.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_a_replay_does_not_lose_a_gradient_that_is_there() -> None:
    weight = Tensor([2.0], requires_grad=True).realize()
    step = TinyJit(lambda x: (weight * x).sum().backward())
    for i in range(4):
        weight.grad = None
        step(host(i))

    step(host(5))

    assert weight.grad is not None
    assert weight.grad.item() == 3 + 5


def test_what_was_looked_at_is_not_kept() -> None:
    """A class that lives in a function goes with the step, and so does the memory around it."""

    def made() -> weakref.ref[Tensor]:
        weight = Tensor([2.0]).realize()

        class Slotted:
            __slots__ = ("k",)

            def __init__(self) -> None:
                self.k = 3.0

            def scaled(self, x: Tensor) -> Tensor:
                return x * weight * self.k

        layer = Slotted()
        step = TinyJit(lambda x: layer.scaled(x) + 0)
        for _ in range(3):
            assert step(Tensor([1.0]).realize()).tolist() == [6.0]
        return weakref.ref(weight)

    gone = made()
    gc.collect()

    assert gone() is None
