"""Tensors of one value mean the same before and after some of them are realized.

Equal expressions are one node. Once one of the tensors that show it has memory, the others still
mean what they meant: a gradient that was theirs stays theirs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from call_counts import uncollected

import tinycore
from tests.fuzz.programs.draw import Draw
from tinycore import Context, Tensor
from tinycore.errors import GradientError
from tinycore.tensor.aliases import is_realized
from tinycore.tensor.autograd import versions

CORE = str(Path(tinycore.__file__).parent)
OPERATIONS = (
    "{a} * 2", "{a} + 1", "{a} * {b}", "{a} + {b}", "-{a}", "{a}.flip(0)",
    "{a}.detach()", "{a}[0:2]", "{a}[::2]", "{a}.reshape(2, 2)",
)  # fmt: skip
EVENTS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "realize": lambda a, b: a.realize(),
    "realize another": lambda a, b: b.realize(),
    "realize both": lambda a, b: a.realize(b),
    "read": lambda a, b: a.tolist(),
    "kernelize": lambda a, b: a.kernelize(),
    "kernelize both": lambda a, b: a.kernelize(b),
}


class Tape(NamedTuple):
    """A program without writes: expressions of tensors, many of them twice, and what is added up in
    a loss; then what happens before it is differentiated.
    """

    data: list[list[float]]
    lines: list[tuple[str, str, str, str]]
    """The name, the operation and the operands of each expression."""
    terms: dict[str, int]
    events: list[tuple[str, str, str]]

    @classmethod
    def drawn(cls, seed: int) -> Tape:
        draw = Draw(seed)
        data = [[float(draw.between(1, 3)) for _ in range(4)] for _ in range(draw.between(1, 2))]
        sizes = {f"x{number}": "4" for number in range(len(data))}
        lines: list[tuple[str, str, str, str]] = []
        for number in range(draw.between(4, 9)):
            name = f"y{number}"
            if lines and draw.chance(0.45):
                twin, *line = draw.pick(lines)
                lines.append((name, line[0], line[1], line[2]))
                sizes[name] = sizes[twin]
                continue
            a = draw.pick([*sizes])
            b = draw.pick([other for other in sizes if sizes[other] == sizes[a]])
            fitting = [o for o in OPERATIONS if sizes[a] == "4" or not ("[" in o or "re" in o)]
            operation = draw.pick(fitting)
            lines.append((name, operation, a, b))
            changed = {"[": "2", "(2": "2x2"}
            found = [size for mark, size in changed.items() if mark in operation]
            sizes[name] = found[0] if found else sizes[a]
        names = [line[0] for line in lines]
        terms = {name: draw.between(3, 9) for name in names if draw.chance(0.8)}
        events = [
            (draw.pick([*EVENTS]), draw.pick(names), draw.pick(names))
            for _ in range(draw.between(1, 5))
        ]
        return cls(data, lines, terms or {names[-1]: 3}, events)

    def expected(self, like: dict[str, Tensor]) -> dict[str, Any]:
        """The gradient of each tensor in torch, where those with one node are one tensor."""
        made: dict[str, torch.Tensor] = {
            f"x{n}": torch.tensor(numbers, requires_grad=True)
            for n, numbers in enumerate(self.data)
        }
        known: dict[int, torch.Tensor] = {id(like[name].uop): made[name] for name in made}
        for name, operation, a, b in self.lines:
            node = id(like[name].uop)
            if node not in known:
                result = computed(operation, made[a], made[b])
                known[node] = result.requires_grad_()  # a detached one, else it does
            made[name] = known[node]
        loss = torch.stack([(made[name] * weight).sum() for name, weight in self.terms.items()])
        found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            loss.sum(), [*made.values()], allow_unused=True
        )
        return {
            name: (torch.zeros_like(tensor) if gradient is None else gradient).tolist()
            for (name, tensor), gradient in zip(made.items(), found, strict=True)
        }

    def found(self, happens: bool) -> tuple[dict[str, Tensor], Tensor]:
        """The tensors of the program, and its loss, before or after the events."""
        made = {f"x{n}": Tensor(numbers).realize() for n, numbers in enumerate(self.data)}
        for name, operation, a, b in self.lines:
            made[name] = computed(operation, made[a], made[b])
        terms = [(made[name] * weight).sum() for name, weight in self.terms.items()]
        loss = terms[0]
        for term in terms[1:]:
            loss = loss + term
        for event, a, b in self.events if happens else ():
            EVENTS[event](made[a], made[b])
        return made, loss


def computed(operation: str, a: Any, b: Any) -> Any:
    """The result of an operation on tensors of either library."""
    if ".flip" in operation and isinstance(a, torch.Tensor):
        return a.flip((0,))
    return eval(operation.format(a="a", b="b"), {"a": a, "b": b})


def gradient_of(loss: Tensor, target: Tensor) -> Any:
    """The numbers of a gradient; None where it is refused."""
    try:
        return loss.gradient(target)[0].tolist()
    except GradientError:
        return None


def check(seed: int) -> tuple[int, int]:
    """Compare a random tape with torch; the number of gradients, and of those refused."""
    tape = Tape.drawn(seed)
    with Context(DEV="PYTHON"):
        made, loss = tape.found(happens=False)
        expected = tape.expected(made)
        lazy = {name: gradient_of(loss, tensor) for name, tensor in made.items()}
        assert lazy == expected, (seed, tape)
        made, loss = tape.found(happens=True)
        found = {name: gradient_of(loss, tensor) for name, tensor in made.items()}
        assert found == {n: None if found[n] is None else expected[n] for n in found}, (seed, tape)
        for name in {a for event, a, _ in tape.events if event == "realize"}:
            later = gradient_of(loss + (made[name] * 13).sum(), made[name])  # its own alone
            if later is not None and found[name] is not None:
                shown = torch.tensor(found[name]) + 13
                assert later == shown.tolist(), (seed, name, tape)
    return len(found), sum(gradient is None for gradient in found.values())


def test_random_twins_keep_their_gradients() -> None:
    counts = [check(seed) for seed in range(25)]

    total, refused = map(sum, zip(*counts, strict=True))
    assert refused < total / 2  # `realize` ends gradients: that is told, and not more than needed


@pytest.mark.slow
def test_many_random_twins_keep_their_gradients() -> None:
    for seed in range(1000, 1150):
        check(seed)


@pytest.mark.parametrize("seed", [406, 711, 1216, 1352, 2548, 3067, 3171, 3350])
def test_twins_that_are_kernelized_apart_keep_their_gradients(seed: int) -> None:
    check(seed)


def test_a_kernelized_value_that_is_written_to_before_it_is_computed_has_its_gradients() -> None:
    x, y = Tensor([0.5, 1.0]).realize(), Tensor([1.0, 2.0]).realize()
    value = x * 2
    value.kernelize()
    value[:1] = (x * y)[:1] * 3
    loss = value.sum()
    loss.tolist()

    assert loss.gradient(y)[0].tolist() == [1.5, 0.0]


@pytest.mark.parametrize("together", [False, True])
def test_uses_of_one_value_are_uses_of_both_twins_however_these_are_realized(
    together: bool,
) -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = x * 2, x * 2
    user = a * 3
    if together:
        b.realize(a)
    else:
        b.realize()
        a.realize()

    for twin in (a, b):
        assert user.sum().gradient(twin)[0].tolist() == [3.0, 3.0]
    found = (user + a * 5 + b * 7).sum().gradient(a, b)  # these uses came later
    assert [gradient.tolist() for gradient in found] == [[8.0, 8.0], [10.0, 10.0]]
    with pytest.raises(GradientError, match="ended"):
        user.sum().gradient(x)


def test_backward_finds_twins_with_memory_of_their_own() -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = x * 2, x * 2
    user = a * 3
    b.realize()
    a.realize()

    user.sum().backward()

    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.tolist() == b.grad.tolist() == [3.0, 3.0]


def test_graphs_that_know_a_value_and_those_that_know_its_memory_count_both() -> None:
    x, m = Tensor([1.0, 2.0]).realize(), Tensor([1.0, 1.0]).realize()
    y = x * 2
    kept = y * 3 + m
    m += 1
    m.realize()  # which computes `kept`, whose graph goes on to `x * 2`
    y.realize()

    assert (kept + y * 7).sum().gradient(y)[0].tolist() == [10.0, 10.0]


def test_a_twin_that_is_written_to_leaves_the_other_its_uses() -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = x * 2, x * 2
    user = a * 3
    b.realize()
    b += 1
    b.realize()
    a.realize()

    assert user.sum().gradient(a)[0].tolist() == [3.0, 3.0]
    assert (a.tolist(), b.tolist(), user.tolist()) == ([2.0, 4.0], [3.0, 5.0], [6.0, 12.0])
    b += 1  # another version of the memory of one of them
    assert (a * 1).tolist() == [2.0, 4.0]


def test_a_gradient_that_ended_at_a_detached_view_is_refused() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x * 2
    view = y.detach()
    z = (view * view).realize()
    y.realize()

    with pytest.raises(GradientError, match="ended"):
        z.sum().gradient(view)
    part = x.detach()[0:1]
    square = (part * part).realize()
    with pytest.raises(GradientError, match="ended"):
        square.sum().gradient(part)


def test_realize_gives_memory_to_a_view_of_an_equal_value() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    a, b = x + x, x + x
    square = b.reshape(2, 2)
    a.realize(square)

    for tensor in (a, b, square):
        assert is_realized(tensor.uop)
    square += 1
    assert a.tolist() == [2.0, 4.0, 6.0, 8.0]
    assert b.tolist() == [3.0, 5.0, 7.0, 9.0]


def test_gradients_beside_a_thread_that_makes_equal_values() -> None:
    x = Tensor([1.0, 2.0]).realize()
    ended = threading.Event()
    failed: list[BaseException] = []

    def make() -> None:
        number = 2.0
        while not ended.is_set():
            number += 1
            a, b = x * number, x * number
            b.realize(a)

    def differentiate() -> None:
        try:
            for _ in range(100):
                w = Tensor([3.0, 4.0], requires_grad=True)
                (w * w).sum().backward()
                assert w.grad is not None
        except BaseException as error:
            failed.append(error)
        ended.set()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run) for run in (make, differentiate)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert not failed


def test_a_run_costs_no_more_beside_many_values_that_several_tensors_show() -> None:
    def steps_beside(count: int) -> int:
        memory = [Tensor([1.0, 2.0]).realize() for _ in range(count)]
        equal = [[x * 2 for _ in range(2)] for x in memory]
        for one, other in equal:
            one.realize()
            other.realize()
        assert len(versions.values) >= count
        y = Tensor([3.0]).realize()
        assert (y + 1).realize().tolist() == [4.0]
        steps = [0]

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(CORE):
                return None  # a backend encodes a launch anew now and then
            frame.f_trace_opcodes = True
            steps[0] += event == "opcode"
            return trace

        with uncollected():
            sys.settrace(trace)
            (y + 1).realize()
            sys.settrace(None)
        return steps[0]

    steps_beside(1)
    assert steps_beside(100) <= steps_beside(10) + 500
