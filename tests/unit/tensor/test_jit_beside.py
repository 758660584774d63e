"""Programs beside a capture: values that wait, snapshots, tensors that change places.

Each program runs as it is and under TinyJit, and has to see the same.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tinycore import Tensor, TinyJit
from tinycore.errors import GradientError, JitError

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]
Program = Callable[[Jit], object]
same: dict[str, Program] = {}
"""Programs that are the same with and without TinyJit."""


def program(function: Program) -> Program:
    same[function.__name__] = function
    return function


def row(*values: float) -> Tensor:
    return Tensor(list(values)).realize()


def as_list(value: Tensor | None) -> object:
    return None if value is None else value.tolist()


def writer(jit: Jit) -> tuple[Tensor, Callable[[Tensor], None]]:
    memory = row(1.0)
    return memory, jit(lambda x: (memory.assign(memory + x * 2), None)[1])


# --- what waits for memory that a replay overwrites


@program
def a_value_that_waits(jit: Jit) -> object:
    memory, step = writer(jit)
    waiting = []
    for number in range(5):
        waiting.append(memory * 10)
        step(row(number))
    return [value.tolist() for value in waiting]


@program
def a_value_that_was_read(jit: Jit) -> object:
    memory, step = writer(jit)
    seen = []
    for number in range(5):
        value = memory * 10
        seen.append((value, value.tolist()))
        step(row(number))
    return [(value.tolist(), before) for value, before in seen]


@program
def snapshots(jit: Jit) -> object:
    memory, step = writer(jit)
    kept = []
    for number in range(6):
        step(row(number))
        kept.append(memory.detach().clone())
    return [value.tolist() for value in kept]


@program
def an_average(jit: Jit) -> object:
    memory, step = writer(jit)
    average = row(0.0)
    for number in range(6):
        step(row(number))
        average = average * 0.5 + memory.detach() * 0.5
    return average.tolist()


@program
def an_average_that_is_written(jit: Jit) -> object:
    memory, step = writer(jit)
    average = row(0.0)
    for number in range(6):
        step(row(number))
        average.assign(average * 0.5 + memory.detach() * 0.5)
    return average.tolist()


@program
def a_reader_of_an_argument(jit: Jit) -> object:
    step = jit(lambda x, y: (x.assign(x * 2 + y), None)[1])
    x, waiting = row(1.0), []
    for number in range(5):
        waiting.append(x + 1)
        step(x, row(number))
    return [value.tolist() for value in waiting], x.tolist()


@program
def a_gradient_that_passes(jit: Jit) -> object:
    weight, (memory, step) = Tensor([3.0], requires_grad=True).realize(), writer(jit)
    for number in range(4):
        step(row(number))
    scaled = weight * 5
    total = (scaled + memory).sum()
    step(row(9.0))
    total.backward()
    return total.item(), as_list(weight.grad)


@program
def a_view(jit: Jit) -> object:
    memory, step = writer(jit)
    shown, seen = memory.reshape(1, 1).detach(), []
    for number in range(5):
        step(row(number))
        seen.append(shown.tolist())
    return seen


@pytest.mark.parametrize("form", [Tensor.sum, Tensor.contiguous, Tensor.exp, lambda x: x])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_derivative_that_needs_what_a_replay_overwrote_is_refused(
    form: Callable[[Tensor], Tensor], is_read: bool
) -> None:
    weight, (memory, step) = Tensor([3.0], requires_grad=True).realize(), writer(TinyJit)
    for number in range(4):
        step(row(float(number)))  # as the last call has it, which is a replay
    value = form(weight * memory)
    before = as_list(value) if is_read else as_list(form(row(39.0)))
    step(row(9.0))

    with pytest.raises(GradientError, match="before it was written"):
        value.sum().backward()
    assert as_list(value) == before


# --- tensors that change places


@program
def the_same_tensor_in_a_place_that_is_emptied(jit: Jit) -> object:
    scope, fixed, seen = SimpleNamespace(last=None), row(5.0), []

    def run(x: Tensor) -> Tensor:
        scope.last = fixed
        return x + 1

    step = jit(run)
    for number in range(5):
        scope.last = None
        step(row(number))
        seen.append(scope.last is fixed)
    return seen


@program
def something_old_and_something_new(jit: Jit) -> object:
    scope, fixed, seen = SimpleNamespace(old=None, new=None), row(5.0), []

    def run(x: Tensor) -> Tensor:
        scope.old, scope.new = fixed, x + 1
        return x * 2

    step = jit(run)
    for number in range(5):
        step(row(number))
        seen.append((scope.old is fixed, scope.new.tolist()))
    return seen


def shift_register(scope: SimpleNamespace) -> Callable[[Tensor], None]:
    def run(x: Tensor) -> None:
        scope.first = scope.second
        scope.second = x * 2

    return run


def exchange(scope: SimpleNamespace) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        scope.first, scope.second = scope.second, scope.first
        return x + 1

    return run


def exchange_of_items(scope: SimpleNamespace) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        scope.items[0], scope.items[1] = scope.items[1], scope.items[0]
        return x + 1

    return run


def exchange_of_gradients(scope: SimpleNamespace) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        one, other = scope.items
        one.grad, other.grad = other.grad, one.grad
        return x + 1

    return run


def choice(scope: SimpleNamespace) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        scope.third = scope.second if scope.third is scope.first else scope.first
        return x + 1

    return run


@pytest.mark.parametrize(
    "make",
    [shift_register, exchange, exchange_of_items, exchange_of_gradients, choice],
)
def test_tensors_that_change_places_are_refused(
    make: Callable[[SimpleNamespace], Callable[[Tensor], object]],
) -> None:
    scope = SimpleNamespace(first=row(1.0), second=row(2.0), items=[row(3.0), row(4.0)])
    scope.third = scope.first
    scope.items[0].grad, scope.items[1].grad = row(5.0), row(6.0)
    step = TinyJit(make(scope))
    step(row(1.0))

    with pytest.raises(JitError, match="that was there before"):
        step(row(1.0))


# --- gradients that a call finds


def training(jit: Jit, failing: int, is_cleared_first: bool) -> object:
    """Steps of descent of which one fails after `backward`, and leaves a gradient to the next."""
    weight, seen = Tensor([2.0], requires_grad=True).realize(), []
    failures: list[bool] = []

    def run(x: Tensor) -> Tensor:
        if is_cleared_first:
            weight.grad = None
        loss = (weight * x).sum().backward()
        if failures:
            raise ValueError("stopped")
        assert weight.grad is not None
        weight.assign(weight.detach() - weight.grad * 0.1)
        if not is_cleared_first:
            weight.grad = None
        return loss

    step = jit(run)
    for number in range(8):
        failures[:] = [True] * (number == failing)
        try:
            seen.append(step(row(1.0 + number)).item())
        except ValueError:
            seen.append(None)
        seen.append(weight.item())
    return seen


@pytest.mark.parametrize("failing", range(5))
@pytest.mark.parametrize("is_cleared_first", [False, True])
def test_a_call_that_fails_leaves_its_gradient_to_the_next(
    failing: int, is_cleared_first: bool
) -> None:
    seen = training(TinyJit, failing, is_cleared_first)

    assert seen == training(lambda function: function, failing, is_cleared_first)


@program
def a_gradient_from_outside(jit: Jit) -> object:
    weight, seen = Tensor([2.0], requires_grad=True).realize(), []

    def run(x: Tensor) -> None:
        (weight * x).sum().backward()
        assert weight.grad is not None
        weight.assign(weight.detach() - weight.grad * 0.1)
        weight.grad = None

    step = jit(run)
    for number in range(6):
        if number == 4:
            (weight * 7).sum().backward()
        step(row(1.0 + number))
        seen.append((weight.item(), weight.grad))
    return seen


def test_gradients_end_at_results_in_every_call() -> None:
    first, second = (Tensor([v], requires_grad=True).realize() for v in (2.0, 3.0))
    step = TinyJit(lambda x: x * first)
    for _ in range(6):
        result = step(row(1.0))
        with pytest.raises(GradientError, match="ended the gradient"):
            (result * second).sum().backward()
        assert first.grad is second.grad is None


def test_gradients_to_arguments_end_at_results_in_every_call() -> None:
    step = TinyJit(lambda x, y: (x * 2, y.relu() * row(3.0)))
    for number in range(6):
        x, y = row(1.0 + number), row(2.0)
        one, other = step(x, y)
        for result, target in ((one, x), (other, y)):
            with pytest.raises(GradientError, match="ended the gradient"):
                (result * 2).sum().gradient(target)
        assert (one * 2 + y).sum().gradient(y)[0].tolist() == [1.0]


def test_gradients_to_arguments_end_at_results_of_a_pickled_capture() -> None:
    step = TinyJit(lambda x: x * 2)
    for _ in range(3):
        step(row(1.0))
    again, x = pickle.loads(pickle.dumps(step)), row(1.0)

    with pytest.raises(GradientError, match="ended the gradient"):
        (again(x) * 2).sum().gradient(x)


@program
def a_loss_of_a_result_that_has_no_gradient(jit: Jit) -> object:
    weight, seen = Tensor([3.0], requires_grad=True).realize(), []
    step = jit(lambda x: x * 2 + weight.detach())
    for number in range(6):
        weight.grad = None
        (step(row(number)) * weight).sum().backward()
        seen.append(as_list(weight.grad))
    return seen


# --- copies


class Model:
    def __init__(self) -> None:
        self.weight = row(2.0)
        self.captured = TinyJit(self.run)
        self.other = self.method

    def run(self, x: Tensor) -> Tensor:
        return x * self.weight

    @TinyJit
    def method(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("name", ["captured", "other", "method"])
@pytest.mark.parametrize("calls", [0, 1, 4])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_an_object_begins_anew(
    name: str, calls: int, copied: Callable[[Model], Model]
) -> None:
    model = Model()
    for _ in range(calls):
        getattr(model, name)(row(1.0))
    again = copied(model)
    again.weight.assign(row(5.0)).realize()

    assert [getattr(again, name)(row(1.0)).item() for _ in range(4)] == [5.0] * 4
    assert getattr(model, name)(row(1.0)).item() == 2.0


def test_a_copy_of_a_captured_function_begins_anew() -> None:
    step = TinyJit(lambda x: x + 1, prune=True)
    for _ in range(3):
        step(row(1.0))
    again = copy.copy(step)

    assert not again.captures
    assert (again.prune, again.guards, again.atomic) == (True, True, True)
    assert [again(row(1.0)).item() for _ in range(3)] == [2.0] * 3


@pytest.mark.parametrize("name", same)
def test_the_same_is_seen_with_and_without_tinyjit(name: str) -> None:
    run = same[name]

    assert run(TinyJit) == run(lambda function: function)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tensor([1.0, 2.0]).as_param(0),
        lambda: Tensor([1.0, 2.0]).as_param(0) + 1,
        lambda: Tensor.empty(3),
        lambda: Tensor([1.0, 2.0]).realize() * 3,
    ],
    ids=["a placeholder", "a body", "no memory yet", "a value to be computed"],
)
def test_a_tensor_that_has_nothing_to_do_with_a_function_is_no_part_of_its_capture(
    make: Callable[[], Tensor],
) -> None:
    held, total = make(), Tensor([0.0]).realize()
    step = TinyJit(lambda x: total.assign(total + x).realize() * 2)

    assert [step(Tensor([1.0])).tolist() for _ in range(4)] == [[2.0], [4.0], [6.0], [8.0]]
    assert step.captured is not None
    assert held.ndim == 1


@pytest.mark.parametrize("is_older", [False, True])
def test_writes_to_an_argument_and_to_state_are_done_in_one_order_in_all_calls(
    is_older: bool,
) -> None:
    made = [row(4.0, 8.0) for _ in range(2)]
    x, state = made if is_older else reversed(made)

    def step(x: Tensor) -> None:
        x *= 0.5
        state.assign(state * 0.25 + 1)

    captured = TinyJit(step)
    for _ in range(4):
        captured(x)

    assert x.tolist() == [4 * 0.5**4, 8 * 0.5**4]
    assert captured.captured is not None
