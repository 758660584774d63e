"""Atomic writes: all are recorded, or none; what was computed meanwhile stays computed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy
import pytest

from tinycore import Tensor
from tinycore.tensor.storage.change_tracking import undo
from tinycore.tensor.storage.storage import walking
from tinycore.tensor.storage.writes import atomic_writes


def memory() -> Tensor:
    return Tensor([1.0, 2.0]).contiguous().realize()


def test_writes_and_what_shows_them_are_rolled_back() -> None:
    x, y = memory(), memory()
    part = x[1:]
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x, y]):
        x.assign(x * 10)
        part.assign(Tensor([7.0]))
        raise ZeroDivisionError

    assert (x.tolist(), part.tolist(), y.tolist()) == ([1.0, 2.0], [2.0], [1.0, 2.0])
    x.assign(x + 1)
    assert (x.tolist(), part.tolist()) == ([2.0, 3.0], [3.0])


def test_writes_to_other_tensors_stay() -> None:
    x, other = memory(), memory()
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x]):
        other.assign(other + 1)
        x.assign(x + 1)
        raise ZeroDivisionError

    assert (x.tolist(), other.tolist()) == ([1.0, 2.0], [2.0, 3.0])


def test_a_view_that_waits_is_one_again() -> None:
    x = memory() * 1
    view = x[1:]
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x, view]):
        x.replace(Tensor([5.0, 6.0]))
        raise ZeroDivisionError

    view.assign(Tensor([9.0]))
    assert x.tolist() == [1.0, 9.0]


def test_a_write_that_was_done_inside_is_not_done_again() -> None:
    x = memory()
    x.assign(x + 1)
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x]):
        x.assign(x * 10)
        (x + 0).realize()  # does both
        x.assign(x * 10)
        raise ZeroDivisionError

    assert x.tolist() == [20.0, 30.0]


def test_a_write_that_waited_and_was_done_inside_is_not_done_again() -> None:
    x = memory()
    x.assign(x + 1)
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x]):
        x.realize()
        x.assign(x * 10)
        raise ZeroDivisionError

    assert x.tolist() == [2.0, 3.0]


def test_no_log_is_left_open() -> None:
    x = memory()
    with atomic_writes(lambda: [x]):
        assert len(undo.logs) == 1
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x]):
        raise ZeroDivisionError

    assert not undo.logs


def test_several_writes_in_a_row_that_were_done_inside_are_not_done_again() -> None:
    x, y = memory(), memory()
    x.assign(x + 1)
    y.assign(x + y)
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x, y]):
        y.assign(x + y)
        x.realize()
        y.assign(x + y)
        (x + y).realize()  # does all three
        x.assign(x * 2)
        raise ZeroDivisionError

    assert (x.tolist(), y.tolist()) == ([2.0, 3.0], [7.0, 11.0])


@pytest.mark.parametrize("seed", range(40))
def test_after_a_rollback_tensors_hold_what_they_once_held(seed: int) -> None:
    """Writes that were done inside stay, the others are gone, and none is done twice."""
    draw = random.Random(seed)
    x, y = memory(), memory()
    part = x[:1]
    actions: list[tuple[Callable[[], object], Callable[[Any, Any], tuple[Any, Any]]]] = [
        (lambda: x.assign(x * 2), lambda a, b: (a * 2, b)),
        (lambda: y.assign(x + y), lambda a, b: (a, a + b)),
        (lambda: part.assign(part + 1), lambda a, b: (a + numpy.eye(2)[0], b)),
        (lambda: y.assign(y * 0 + 3), lambda a, b: (a, b * 0 + 3)),
        (x.realize, lambda a, b: (a, b)),
        (y.tolist, lambda a, b: (a, b)),
        (lambda: Tensor.realize(x + y), lambda a, b: (a, b)),
    ]
    held = [(numpy.array([1.0, 2.0]), numpy.array([1.0, 2.0]))]

    def act(count: int) -> None:
        for _ in range(count):
            ours, meaning = draw.choice(actions)
            ours()
            held.append(meaning(*held[-1]))

    act(draw.randrange(4))
    first = len(held) - 1
    with suppress(ZeroDivisionError), atomic_writes(lambda: [x, y]):
        act(draw.randrange(1, 7))
        raise ZeroDivisionError

    assert x.tolist() in [a.tolist() for a, _ in held[first:]]
    assert y.tolist() in [b.tolist() for _, b in held[first:]]


class Interrupted(BaseException):
    """The exception of a signal handler."""


@contextmanager
def interrupt(step: int, files: tuple[str, ...]) -> Iterator[list[int]]:
    """Raise at a step of Python in some files; the steps that were done."""
    done = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        done[0] += event == "opcode"
        if done[0] == step:
            sys.settrace(None)
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        with suppress(Interrupted):
            yield done
    finally:
        sys.settrace(None)
        # a trace raises between taking and guarding, too
        walking._at_fork_reinit()  # type: ignore[attr-defined]


def test_a_block_that_an_interrupt_kept_from_beginning_undoes_no_later_write() -> None:
    """A block ends with the traceback of a Ctrl-C in the function that enters it."""
    x = Tensor([1.0, 2.0]).realize()
    block = atomic_writes(lambda: [x])
    block.__enter__()
    x.assign(Tensor([7.0, 8.0]))
    del block

    assert x.tolist() == [7.0, 8.0]


def test_an_interrupted_write_to_a_computed_tensor_that_asks_is_done_or_not_begun() -> None:
    files = ("tensor/storage/storage.py", "tensor/storage/writes.py")

    def written(step: int) -> tuple[int, Any]:
        x = Tensor([1.0, 2.0], requires_grad=True).realize()
        y = (x * 2).requires_grad_()
        with interrupt(step, files) as done:
            y.assign(y * 3)
        (y * y).sum().backward()
        found = [y.tolist(), *[None if t.grad is None else t.grad.tolist() for t in (y, x)]]
        return done[0], found

    steps, after = written(-1)
    assert after == [[6.0, 12.0], [12.0, 24.0], [72.0, 144.0]]
    before = [[2.0, 4.0], [4.0, 8.0], [8.0, 16.0]]
    for step in range(1, steps, 3):
        assert written(step)[1] in (before, after), step
