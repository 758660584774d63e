"""Tensors show versions of memory, whatever is computed when: lazy, realized before,
read in between, on a group of devices, inside of a captured function.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tinycore import Device, Tensor, TinyJit
from tinycore.errors import GradientError

Make = Callable[..., Tensor]
"""A tensor of numbers, in the way that a test is about."""
Look = Callable[[Tensor], object]
"""A use of a value in between: nothing, or it is computed."""

MAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: x,
    "realized": lambda x: x.realize(),
    "lazy": lambda x: x.clone(),
}
LOOKS: dict[str, Look] = {
    "nothing": lambda x: None,
    "reads": lambda x: x.tolist(),
    "kernelizes": lambda x: (x + 0).kernelize(),
}
GROUP = ("PYTHON:0", "PYTHON:1")


@pytest.fixture(params=["default", "group"])
def place(request: pytest.FixtureRequest) -> Any:
    return GROUP if request.param == "group" else Device.DEFAULT


@pytest.fixture(params=MAKES)
def make(request: pytest.FixtureRequest, place: Any) -> Make:
    def made(values: list[Any], requires_grad: bool = False) -> Tensor:
        found = Tensor(values, dtype="float32", device=place)
        found = MAKES[request.param](found)
        return found.requires_grad_() if requires_grad else found

    return made


@pytest.fixture(params=["nothing", "reads"])
def read(request: pytest.FixtureRequest) -> Look:
    """The uses that end no gradient."""
    return LOOKS[request.param]


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> Look:
    return LOOKS[request.param]


def gradient_of(x: Tensor) -> Any:
    assert x.grad is not None
    return x.grad.tolist()


# --- gradients through writes


def test_reading_a_loss_does_not_change_its_gradient(make: Make, read: Look) -> None:
    w, out = make([2.0], requires_grad=True), make([0.0, 0.0, 0.0])
    for i in range(3):
        out[i] = w.reshape(()) * (i + 1)
    loss = out.sum() + w.sum()

    read(loss)
    loss.backward()

    assert gradient_of(w) == [7.0]


def test_an_assigned_value_is_differentiated_after_it_was_read_twice(
    make: Make, read: Look
) -> None:
    x, memory = make([3.0], requires_grad=True), make([0.0])
    memory.assign(x * x)
    loss = (memory * 3).sum()

    read(loss)
    read(loss)
    read(memory)
    loss.backward()

    assert gradient_of(x) == [18.0]


def test_a_window_slides_over_memory_with_gradients_through_all_writes(
    make: Make, read: Look
) -> None:
    h, memory = make([1.0, 1.0], requires_grad=True), make([0.0] * 4)
    memory[0:2] = h * 2
    read(memory)
    memory[2:4] = memory[0:2] * 3
    read(memory)

    (memory * memory).sum().backward()

    assert gradient_of(h) == [80.0, 80.0]


def test_a_write_that_waits_leaves_the_operand_of_a_product_there(make: Make) -> None:
    x = make([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    x.assign(Tensor([5.0, 6.0], device=x.device))

    y.backward()

    assert x.tolist() == [5.0, 6.0]
    assert gradient_of(x) == [2.0, 4.0]
    assert y.item() == 5.0


def test_an_operand_that_was_overwritten_is_missed(place: Any) -> None:
    x = Tensor([1.0, 2.0], device=place).realize().requires_grad_()
    y = x * x
    x.assign(Tensor([5.0, 6.0], device=place)).realize()

    assert y.tolist() == [1.0, 4.0]
    with pytest.raises(GradientError, match="written to in place"):
        y.sum().backward()
    assert x.grad is None


def test_an_overwritten_value_that_only_passes_through_is_not_missed(place: Any) -> None:
    x = Tensor([1.0, 2.0], device=place).realize().requires_grad_()
    y = x + 1
    x.assign(Tensor([5.0, 6.0], device=place)).realize()

    y.sum().backward()

    assert gradient_of(x) == [1.0, 1.0]
    assert y.tolist() == [2.0, 3.0]


def drawn_gradients(seed: int, place: Any) -> list[Any]:
    """The gradients after random writes and reads, or the refusal, of a leaf and of its memory."""
    draw = random.Random(seed)
    leaf = Tensor([1.0, 2.0, 3.0, 4.0], device=place).realize().requires_grad_()
    memory = Tensor([0.5, -1.0, 2.0, 1.0], device=place).realize()
    waiting = memory * 2
    for _ in range(draw.randint(1, 5)):
        start = draw.randint(0, 2)
        kind = draw.choice(["part", "whole", "detached", "read", "waits", "realize"])
        if kind == "part":
            memory[start : start + 2] = leaf[start : start + 2] * draw.choice([2.0, -1.0])
        elif kind == "whole":
            memory.assign(memory * draw.choice([0.5, 3.0]) + leaf)
        elif kind == "detached":
            memory.assign(memory.detach() + leaf.detach())
        elif kind == "read":
            memory.tolist()
        elif kind == "waits":
            waiting = waiting + memory * leaf
        else:
            (memory * 3).realize()
    try:
        (waiting.sum() + (memory * memory).sum()).backward()
    except GradientError as error:
        return ["in place" in str(error), memory.tolist(), waiting.tolist()]
    return [None if x.grad is None else x.grad.tolist() for x in (leaf, memory)] + [
        memory.tolist(),
        waiting.tolist(),
    ]


@pytest.mark.parametrize("part", range(4))
def test_random_writes_have_the_gradients_on_a_group_that_they_have_on_one_device(
    part: int,
) -> None:
    for seed in range(part * 4, part * 4 + 4):
        assert drawn_gradients(seed, GROUP) == drawn_gradients(seed, "PYTHON"), seed


# --- aliases


def test_views_of_a_value_that_waits_see_each_other(make: Make, look: Look) -> None:
    y = make([1.0, 2.0, 3.0, 4.0]) + 1
    look(y)
    v = y.reshape(2, 2)
    v[0, 0] = 99
    w = y[1:3]
    y[2] = 55

    assert (y.tolist(), v.tolist(), w.tolist()) == ([99, 3, 55, 5], [[99, 3], [55, 5]], [3, 55])


def test_a_detached_tensor_is_a_view(make: Make, look: Look) -> None:
    x = make([1.0, 2.0])
    d = x.detach()
    x[0] = 9
    look(x)
    assert d.tolist() == [9, 2]
    d[0] = 8
    look(d)
    assert x.tolist() == [8, 2]


def test_a_value_derived_before_a_write_keeps_its_value(make: Make, look: Look) -> None:
    x = make([1.0, 2.0])
    before = x * 10
    x[0] = 7
    look(x)
    x.realize()

    assert before.tolist() == [10, 20]
    assert x.tolist() == [7, 2]


def test_equal_values_are_no_aliases(make: Make, look: Look) -> None:
    x = make([1.0, 2.0])
    p, q = x + 1, x + 1
    look(q)
    p[0] = 5
    look(p)

    assert (p.tolist(), q.tolist()) == ([5, 3], [2, 3])


def test_equal_writes_are_different_writes(make: Make, look: Look) -> None:
    x = make([0.0])
    kept = []
    for _ in range(4):
        x += 1
        kept.append(x * 1)
        look(x)

    assert [k.item() for k in kept] == [1, 2, 3, 4]
    assert x.item() == 4


# --- runs that fail, and long ones


def test_a_run_that_fails_applies_no_write_or_each_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make([0.0])
    for fails in (True, False):
        state.assign(state + 1)
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr("tinycore.engine.transactions.Transaction.finish", failing)
                patch.setattr("tinycore.engine.engine.run_schedule", failing)
                with pytest.raises(MemoryError):
                    state.realize()
            else:
                state.realize()

    assert state.tolist() == [2.0]


def failing(*_: object, **__: object) -> None:
    raise MemoryError


def test_state_that_no_gradient_flows_through_does_not_grow(place: Any) -> None:
    state = Tensor([0.0], device=place).realize()
    for _ in range(50):
        state.assign(state + 1)
        state.realize()
    before = len(state.uop.toposort())
    for _ in range(50):
        state.assign(state + 1)
        state.realize()

    assert state.tolist() == [100.0]
    assert len(state.uop.toposort()) == before


# --- captured


def captured(program: Callable[[Tensor], Any], start: list[float]) -> list[Any]:
    """The results of a program as called, as captured, and as replayed."""
    step = TinyJit(program)
    found = []
    for _ in range(4):
        result = step(Tensor(start).realize())
        found.append([part.tolist() for part in result])
    return found


def sees_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    v = y.reshape(2, 2)
    v[0, 0] = 99
    w = y[1:3]
    y[2] = 55
    return y.realize(), v.clone().realize(), w.clone().realize()


def keeps_before(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 0
    before = y * 10
    y[0] = 7
    y.realize()
    return before.realize(), y


def counts_twice(x: Tensor) -> tuple[Tensor, ...]:
    y, kept = x.clone(), []
    for _ in range(3):
        y += 1
        kept.append((y * 1).realize())
    return (*kept, y.realize())


def slides(x: Tensor) -> tuple[Tensor, ...]:
    h = x[:2].clone().requires_grad_()
    memory = Tensor.zeros(4).clone()
    memory[0:2] = h * 2
    memory[2:4] = memory[0:2] * 3
    (slope,) = (memory * memory).sum().gradient(h)
    return slope.realize(), memory.realize()


CAPTURED: dict[Any, list[Any]] = {
    sees_views: [[99, 3, 55, 5], [[99, 3], [55, 5]], [3, 55]],
    keeps_before: [[10, 20, 30, 40], [7, 2, 3, 4]],
    counts_twice: [[2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7]],
    slides: [[80, 160], [2, 4, 6, 12]],
}


@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.__name__)
def test_a_captured_function_means_what_it_says(program: Callable[[Tensor], Any]) -> None:
    found = captured(program, [1.0, 2.0, 3.0, 4.0])

    assert found == [CAPTURED[program]] * 4
