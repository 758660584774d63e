"""Gradients of memory that a replay writes to: right or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tinycore import Context, Tensor, TinyJit, nn
from tinycore.errors import GradientError, JitError
from tinycore.tensor.autograd import history
from tinycore.tensor.autograd.grad import ended_at
from tinycore.tensor.autograd.versions import Made, known_of
from tinycore.uop.node import Reads, made_anew

Step = Callable[..., Any]


def host(*values: float, asks: bool | None = None) -> Tensor:
    return Tensor([float(v) for v in values], requires_grad=asks).realize()


def gradient(value: Tensor, target: Tensor) -> list[float] | None:
    """The gradient of a weighted sum; None if it is refused."""
    try:
        found: list[float] = (value * host(3, 5)).sum().gradient(target)[0].tolist()
    except GradientError:
        return None
    return found


def assigned(state: list[Tensor], x: Tensor) -> None:
    state[0].assign(x * 2)


def assigned_and_realized(state: list[Tensor], x: Tensor) -> None:
    state[0].assign(x * 2).realize()


def partly_written(state: list[Tensor], x: Tensor) -> None:
    state[0][:1] = x[:1] * 2


def added_to(state: list[Tensor], x: Tensor) -> None:
    state[0] += x * 2


def multiplied(state: list[Tensor], x: Tensor) -> None:
    state[0].mul_(x)


def written_by_way_of_another(state: list[Tensor], x: Tensor) -> None:
    state[1].assign(x * 2)
    state[0].assign(state[1] * 3)


WAYS = (
    assigned, assigned_and_realized, partly_written, added_to, multiplied,
    written_by_way_of_another,
)  # fmt: skip


@pytest.mark.parametrize("asks", [None, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_of_state_that_replays_write_to_is_right_or_refused(
    way: Step, asks: bool | None
) -> None:
    state = [host(1, 1, asks=asks), host(1, 1)]
    other = [host(1, 1, asks=asks), host(1, 1)]
    step: TinyJit[[Tensor], None] = TinyJit(lambda x: way(state, x))

    for number in range(4):
        x = host(number + 1, 2)
        step(x)
        way(other, x)

        assert gradient(state[0], x) in (gradient(other[0], x), None)
        assert gradient(state[0], host(1, 2)) == [0, 0]


def test_a_gradient_of_an_argument_that_replays_write_to_is_refused() -> None:
    step: TinyJit[[Tensor, Tensor], Any] = TinyJit(lambda y, x: (y.assign(x * 2), None)[1])

    for number in range(4):
        x, y = host(number + 1, 2), host(0, 0)
        step(y, x)

        assert gradient(y, x) == (None if number else [6, 10])  # at first it runs as it is


def test_a_replay_tells_what_the_state_that_it_reads_was_computed_from_now() -> None:
    state = host(0, 0)
    write: TinyJit[[Tensor], Any] = TinyJit(lambda x: (state.assign(x * 2), None)[1])
    read: TinyJit[[Tensor], Tensor] = TinyJit(lambda x: (state * x).realize())

    for number in range(5):
        x = host(number + 1, 2)
        write(x)

        assert gradient(read(host(1, 1)), x) is None


@pytest.mark.parametrize("is_argument", [False, True])
def test_no_capture_differentiates_through_what_its_replays_find_computed_otherwise(
    is_argument: bool,
) -> None:
    source, state = host(1, 2), host(0, 0)

    def slope(y: Tensor) -> Tensor:
        return ((y if is_argument else state) * source).sum().gradient(source)[0].realize()

    step: TinyJit[..., Tensor] = TinyJit(slope)
    refused = 0
    for number in range(5):
        y = host(0, 0).assign(source.softmax() * number + source) if is_argument else host(0, 0)
        state.assign(source.softmax() * number + source)
        Tensor.realize((y + state).sum())
        wanted = slope(y).tolist()
        try:
            assert step(y).tolist() == pytest.approx(wanted)
        except GradientError:
            refused += 1

    assert refused == 4  # all but the first call, which runs as it is


@pytest.mark.parametrize("asks", [None, False])
def test_memory_is_not_computed_from_its_former_content(asks: bool | None) -> None:
    found = []
    for wrap in (lambda step: step, TinyJit):
        weight, x = host(1, 1, asks=asks), host(1, 2)

        def step(y: Tensor, weight: Tensor = weight, x: Tensor = x) -> Tensor:
            loss = ((weight * x - y) * (weight * x - y)).sum()
            weight.assign(weight - 0.1 * loss.gradient(weight)[0])
            return loss

        call = wrap(step)
        found.append([call(host(number, 1)).item() for number in range(5)])

    assert found[0] == pytest.approx(found[1])


def test_memory_that_knew_its_graph_forgets_it_when_a_replay_writes_to_it() -> None:
    state, source = host(1, 1), host(2, 3)
    step: TinyJit[[Tensor], Any] = TinyJit(lambda x: (state.assign(x * 3), None)[1])

    for _ in range(5):
        state.assign(state + source * source)
        assert (state * 1).tolist() == state.tolist()
        assert gradient(state, source) == [12, 30]
        step(host(1, 2))

        assert gradient(state, source) == [0, 0]


def test_a_result_that_was_computed_from_a_gradient_left_outside_is_replayed() -> None:
    weight = host(1, 2, asks=True)
    optimizer = nn.optim.SGD([weight])

    @TinyJit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        (weight * weight * x).sum().backward()
        assert weight.grad is not None
        return (weight.grad * weight.grad).sum().realize()

    assert [step(host(1, 2)).item() for _ in range(5)] == [68] * 5


def test_what_an_average_was_computed_from_does_not_add_up() -> None:
    average = host(0, 0)
    step: TinyJit[[Tensor], Any] = TinyJit(lambda x: (average.assign(average * 0.5 + x), None)[1])
    for number in range(300):
        step(host(number, 1))

    assert len(ended_at(average.uop)) < 200


def test_new_memory_is_not_taken_for_what_was_freed_in_its_place() -> None:
    memory, freed = host(1, 2).uop, made_anew(host(1, 2).uop)
    known_of(memory).made = Made(memory, (), {}, Reads([freed]), 1, frozenset())
    history.kept.add(memory)
    place = id(freed)
    del freed
    new = next(node for _ in range(1000) if id(node := made_anew(memory)) == place)

    assert history.renewed([new]) == {}


def taken_gradient(weight: Tensor) -> Tensor:
    found, weight.grad = weight.grad, None
    assert found is not None
    return found


def assigned_lazily(weight: Tensor) -> Tensor:
    return host(0, 0).assign(weight * 2)


def assigned_and_read(weight: Tensor) -> Tensor:
    found = assigned_lazily(weight)
    assert (found * 1).tolist() == (weight * 2).tolist()
    return found


PASTS = (lambda weight: weight * 2, lambda weight: (weight * 2).realize(), assigned_lazily,
         assigned_and_read)  # fmt: skip


@pytest.mark.parametrize("asks", [True, None])
@pytest.mark.parametrize("way", PASTS)
@pytest.mark.parametrize("is_argument", [True, False])
def test_a_gradient_inside_goes_on_below_what_was_computed_since_the_capture(
    way: Callable[[Tensor], Tensor], is_argument: bool, asks: bool | None
) -> None:
    weight = host(1, 2, asks=asks)
    state = host(1, 1)

    @TinyJit
    def step(y: Tensor) -> Tensor:
        other = y if is_argument else state
        if not asks:
            return (weight * other).sum().gradient(weight)[0].realize()
        weight.grad = None
        (weight * other).sum().backward()
        return taken_gradient(weight).realize()

    for _ in range(4):
        assert step(host(1, 1)).tolist() == [1, 1]
    if is_argument:
        found = step(way(weight)).tolist() if way is assigned_and_read else None
    else:
        state.assign(way(weight))
        assert way is not assigned_and_read or (state * 1).tolist() == [2, 4]
        found = step(host(1, 1)).tolist() if way is assigned_and_read else None
    if found is None:
        with pytest.raises(GradientError, match="realize"):
            step(way(weight) if is_argument else host(1, 1))
    else:
        assert found == [4, 8]
    state.assign(host(1, 1))
    assert step(host(3, 4)).tolist() == ([3, 4] if is_argument else [1, 1])


def test_a_gradient_inside_that_passes_through_memory_made_inside_is_refused_as_well() -> None:
    weight = host(1, 2)

    @TinyJit
    def step(y: Tensor) -> Tensor:
        between = (y * 3).realize()
        return (weight + between).sum().gradient(weight)[0].realize()

    assert [step(host(number, 1)).tolist() for number in range(4)] == [[1, 1]] * 4
    with pytest.raises(GradientError, match="realize"):
        step(weight * 2)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("is_argument", [False, True])
def test_parts_of_a_weight_on_several_devices_are_not_computed_from_each_other(
    axis: int | None, is_argument: bool
) -> None:
    devices = ("PYTHON:1", "PYTHON:2")
    losses = []
    for wrap in (lambda step: step, TinyJit):
        weight = host(1, 2, asks=True).shard(devices, axis=axis).realize()

        def step(x: Tensor, given: Tensor, weight: Tensor = weight) -> Tensor:
            weight = given if is_argument else weight
            loss = (x * weight).square().mean()
            weight.assign((weight - loss.gradient(weight)[0] * 0.1).detach())
            return loss.realize(weight)

        step = wrap(step)
        x = host(1, 3).shard(devices, axis=axis).realize()
        other = host(1, 2).shard(devices, axis=axis).realize()
        given = weight if is_argument else other
        losses.append([step(x, given).item() for _ in range(6)])

    assert losses[0] == losses[1]


def test_parts_of_state_on_several_devices_know_what_they_were_computed_from() -> None:
    devices = ("PYTHON:1", "PYTHON:2")
    x, state = (host(1, 2).shard(devices, axis=0).realize() for _ in range(2))
    step = TinyJit(lambda x: state.assign(state * 0.5 + x).realize())

    for _ in range(5):
        step(x)
        assert state.sum().gradient(state)[0].tolist() == [1, 1]
    with pytest.raises(GradientError, match="realize"):
        state.sum().gradient(x)


def test_what_is_detached_inside_may_have_a_past() -> None:
    weight, hidden = host(1, 2, asks=True), host(1, 1)

    @TinyJit
    def step(x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        new = (x * weight + hidden.detach()).tanh()
        slope = new.sum().gradient(weight)[0]
        return new.realize(), slope.realize()

    function = step.fxn
    assert function is not None
    for number in range(5):
        x = host(number, 1)
        wanted = [found.tolist() for found in function(x, hidden)]
        hidden, slope = step(x, hidden)

        assert [hidden.tolist(), slope.tolist()] == wanted
        assert (step.captured is not None) == bool(number)


def network() -> tuple[list[Tensor], nn.optim.Optimizer]:
    """Two parameters with their optimizer."""
    params = [host(1, 2, asks=True), host(0.5, -0.3, asks=True)]
    return params, nn.optim.SGD(params, lr=0.01)


def train_adversaries(wrap: Callable[[Step], Step], is_cleared: bool) -> list[float]:
    """Losses of two networks that train against each other, in steps of their own."""
    (scale, bias), generator = network()
    (weight, square), discriminator = network()

    def judge(z: Tensor, x: Tensor) -> Tensor:
        discriminator.zero_grad()
        fake = (scale * z + bias).detach()
        loss = ((fake - x) * weight).sum() + (weight * weight * square).sum()
        loss.backward()
        return loss.realize(*discriminator.schedule_step())

    def make(z: Tensor) -> Tensor:
        generator.zero_grad()
        if is_cleared:
            discriminator.zero_grad()  # whose parameters get gradients here, too
        loss = -((scale * z + bias) * weight).sum()
        loss.backward()
        return loss.realize(*generator.schedule_step())

    steps = wrap(judge), wrap(make)
    found = []
    with Context(TRAINING=1):
        for number in range(5):
            found.append(steps[0](host(number, 1), host(2, number)).item())
            found.append(steps[1](host(1, number)).item())
    return found


def train_in_parts(wrap: Callable[[Step], Step], is_written: bool) -> list[float]:
    """Losses of a network whose gradients are added up over three calls."""
    params, optimizer = network()

    def part(x: Tensor) -> Tensor:
        loss = (params[0] * params[0] * params[1] * x).sum()
        if not is_written:
            loss.backward()
            return loss.realize()
        for param, gradient in zip(params, loss.gradient(*params), strict=True):
            assert param.grad is not None
            param.grad.assign(param.grad + gradient)
        return loss.realize()

    for param in params if is_written else ():
        param.grad = param.zeros_like().realize()
    step = wrap(part)
    found = []
    with Context(TRAINING=1):
        for number in range(12):
            found.append(step(host(number, 1)).item())
            if number % 3 == 2:
                optimizer.step()
                for grad in [param.grad for param in params if param.grad is not None]:
                    grad.assign(grad.zeros_like())
    return found


@pytest.mark.parametrize("train", [train_adversaries, train_in_parts])
def test_gradients_of_several_captured_steps_are_spelled_as_the_message_says(
    train: Callable[[Callable[[Step], Step], bool], list[float]],
) -> None:
    with pytest.raises(JitError, match=r"other steps train.*p\.grad\.assign"):
        train(TinyJit, False)

    wanted = train(lambda step: step, False)
    assert train(lambda step: step, True) == pytest.approx(wanted)
    assert train(TinyJit, True) == pytest.approx(wanted)


# --- random programs


def draw(chance: random.Random, is_differentiating: bool) -> str:
    """A function over state `s` and arguments, as text."""
    names = ["s[0]", "s[1]", "s[2]", "x", "y"]
    lines = []
    for number in range(chance.randint(1, 4)):
        a, b, place = chance.choice(names), chance.choice(names), chance.choice([*names[:3], "y"])
        value = chance.choice(
            (f"{a} * {b}", f"{a} * 2", f"{a} + {b}", f"{a}.detach() * {b}", f"{a}.exp() * .1")
        )
        added = f"{place} += {value}" if place != "y" else f"y.assign(y + {value})"
        kind = chance.randrange(4 + 2 * is_differentiating)
        slope = f"({value} * {chance.choice(names) if kind > 3 else a}).sum().gradient({b})[0]"
        lines.append(
            (f"{place}.assign({value})", f"{place}[:1] = ({value})[:1]", added,
             f"v{number} = {value}", f"v{number} = {slope}", f"v{number} = {slope}.realize()")[kind]
        )  # fmt: skip
        if kind > 2:
            names.append(f"v{number}")
        elif chance.random() < 0.3:
            lines.append(chance.choice((f"{place}.realize()", "Tensor.realize(s[0], s[1])")))
    if chance.random() < 0.7 or not any("s[" in line.split("=")[0] for line in lines):
        lines.append(f"return ({chance.choice(names)} * 1.5).realize()")
    return "def step(x, y):\n" + "".join(f"    {line}\n" for line in lines)


def run(seed: int, wrap: Callable[[Step], Step], is_differentiating: bool = False) -> list[Any]:
    """Values and gradients after each call of two such functions, wrapped or not, up to one that
    differentiates inside and is refused.
    """
    chance = random.Random(seed)
    texts = [draw(chance, is_differentiating) for _ in range(2)]
    state = [host(1 + n, 2, asks=chance.choice([None, None, True, False])) for n in range(3)]
    steps: list[Step] = []
    for text in texts:
        scope: dict[str, Any] = {"s": state, "Tensor": Tensor}
        exec(text, scope)
        steps.append(wrap(scope["step"]))

    def drawn() -> Tensor:
        return host(chance.uniform(0.5, 1.5), chance.uniform(0.5, 1.5))

    given: list[Tensor] = []
    results: list[Tensor] = []
    found: list[Any] = []
    for number in range(9):
        step, x, y, factor = chance.choice(steps), drawn(), drawn(), drawn()
        given = [*given, x][-4:]
        if chance.random() < 0.3 and results:
            x = results[0]
        if chance.random() < 0.2:
            y.assign(state[0] * factor)
        if is_differentiating and number > 3 and chance.random() < 0.5:
            x = state[chance.randrange(3)] * drawn()
        try:
            result = step(x, y)
        except (GradientError, JitError):
            assert is_differentiating
            break
        results = [result] if result is not None else results
        if chance.random() < 0.15:
            state[chance.randrange(3)].assign(drawn() * state[0])
        values = [*state, y, *results]
        found += [value.tolist() for value in values]
        pairs = [(chance.choice(values), chance.choice([*given, factor, *values])) for _ in "123"]
        found += [gradient(value, target) for value, target in pairs]
    return found


@pytest.mark.parametrize(
    "seed", [*range(2), *[pytest.param(n, marks=pytest.mark.slow) for n in range(2, 25)]]
)
def test_captures_of_random_writes_differentiate_as_eager_calls_or_refuse(seed: int) -> None:
    wanted, found = run(seed, lambda step: step), run(seed, TinyJit)

    for one, other in zip(wanted, found, strict=True):
        if None not in (one, other):
            assert other == pytest.approx(one, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(
    "seed", [0, 9, *[pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40)]]
)
def test_captures_that_differentiate_inside_do_as_eager_calls_or_refuse(seed: int) -> None:
    wanted, found = (run(seed, wrap, is_differentiating=True) for wrap in (lambda f: f, TinyJit))

    for one, other in zip(wanted, found, strict=False):
        if None not in (one, other):
            assert other == pytest.approx(one, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize("is_argument", [True, False])
def test_a_call_makes_no_data_of_what_refuses_a_gradient(is_argument: bool) -> None:
    weight = Tensor([1.0, 2.0], requires_grad=True).realize()
    state = Tensor([0.0, 0.0], requires_grad=False).realize()
    given = TinyJit(lambda x, y: (y * x).realize())
    around = TinyJit(lambda x: (state * x).realize())
    for _ in range(4):
        state.assign(weight * 2)
        x = Tensor([1.0, 1.0]).realize()
        result = given(x, state) if is_argument else around(x)

        assert result.tolist() == [2.0, 4.0]

    with pytest.raises(GradientError, match="ended the gradient"):
        (state * weight).sum().backward()

    named = Tensor([0.0, 0.0], requires_grad=False).realize().assign(weight * 3).realize()
    (named * weight).sum().backward()  # data, as the user asked for it
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 6.0]


@pytest.mark.parametrize("is_written", [True, False])
def test_backward_of_all_through_what_a_call_computed_is_refused(is_written: bool) -> None:
    weight, state = Tensor([1.0, 2.0]).realize(), Tensor([0.0, 0.0]).realize()
    write = TinyJit(lambda x: state.assign(weight * x))
    step = TinyJit(lambda x: weight * x)
    x = Tensor([3.0, 3.0]).realize()
    for _ in range(4):
        result = (write if is_written else step)(x)

    with pytest.raises(GradientError, match="ended the gradient"):
        (result * 2).sum().backward()
    given = weight.grad
    assert given is None

    named = (result * 2).realize()  # where the program itself ends it, as in an eager one
    (named * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0, 12.0]

    weight.requires_grad_(False)
    x.requires_grad_(False)
    (result * 2).sum().backward()  # of what does not refuse it
    assert result.grad is not None
    assert result.grad.tolist() == [2.0, 2.0]


def test_state_that_is_computed_from_itself_alone_ends_nothing() -> None:
    # else each replay of an optimizer looks below all parameters for where gradients end
    w = Tensor([1.0, 2.0], requires_grad=True).realize()

    @TinyJit
    def step() -> Tensor:
        (slope,) = (w * w).sum().gradient(w)
        w.assign(w.detach() - 0.1 * slope)
        return w.sum()

    for _ in range(4):
        step()

    assert not ended_at(w.uop)
