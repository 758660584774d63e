"""Kernels are told with the methods that a program called, and the line of the call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tinycore import Context, Tensor, TinyJit, nn
from tinycore.engine import compile as compiling
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.errors import CompileError
from tinycore.uop.origins import short


class Collected(LaunchProfiler):
    """The metadata of all launches, and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.errors: list[tuple[str, str]] = []

    def record(
        self,
        runner: object,
        seconds: float | None,
        bufs: Sequence[object] = (),
        metadata: Sequence[str] = (),
        ended: float | None = None,
    ) -> None:
        self.found.append(short(metadata))

    def note(self, event: str, *facts: Any) -> None:
        if event == "failed":
            kernel, _, metadata, _ = facts
            self.errors.append((kernel, short(metadata)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder: tiny-viz, where it is installed, records there what runs under VIZ."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def collected() -> Iterator[Collected]:
    found = Collected()
    profilers.append(found)
    with Context(VIZ=1, DEV="PYTHON"):
        yield found
    profilers.remove(found)


def line() -> int:
    """The line before the caller's."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno - 1


def test_a_kernel_has_the_methods_and_the_line(collected: Collected) -> None:
    a = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    (a @ a).softmax().realize()
    here = line()

    assert collected.found[-1] == f"matmul softmax test_origins.py:{here}"


def test_a_layer_is_told_by_its_class(collected: Collected) -> None:
    layer, x = nn.Linear(2, 2), Tensor([[1.0, 2.0]]).realize()
    for parameter in nn.state.get_parameters(layer):
        parameter.realize()
    layer(x).realize()
    here = line()

    assert collected.found[-1] == f"Linear test_origins.py:{here}"


def test_equal_graphs_of_two_lines_are_told_apart(collected: Collected) -> None:
    a = Tensor([1.0, 2.0]).realize()
    (a + 5).realize()
    first = line()
    (a + 5).realize()
    second = line()

    assert collected.found[-2:] == [f"add test_origins.py:{n}" for n in (first, second)]


def test_gradients_are_told_by_the_line_of_backward(collected: Collected) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    loss = (x * x).sum()
    loss.backward()
    here = line()
    assert x.grad is not None
    x.grad.realize()

    assert collected.found[-1] == f"backward test_origins.py:{here}"


def test_replays_tell_the_lines_of_their_capture(collected: Collected) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x + 3).realize()

    here = step_line(step)
    for _ in range(4):
        step(Tensor([1.0, 2.0]).realize())

    assert collected.found[-1] == f"add test_origins.py:{here}"


def step_line(step: object) -> int:
    """The line of the sum in `step`."""
    lines, first = inspect.getsourcelines(step.function)  # type: ignore[attr-defined]
    return first + next(n for n, text in enumerate(lines) if "+ 3" in text)


def test_a_kernel_that_cannot_be_compiled_is_told_with_its_line(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CompileError("it does not like this one")

    monkeypatch.setattr(compiling, "load_runner", refuse)
    a = Tensor([1.0, 2.0, 4.0]).realize()
    with pytest.raises(CompileError):
        (a * 1234.5).realize()
    here = line()

    assert collected.errors == [("elementwise_3", f"mul test_origins.py:{here}")]


def test_nothing_is_recorded_unless_somebody_shows_it() -> None:
    with Context(DEBUG=0, VIZ=0, TRACE=""):
        node = (Tensor([1.0, 2.0], device="PYTHON") + 11).uop

    assert node._origin is None


def test_debug_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    a = Tensor([1.0, 2.0], device="PYTHON").realize()
    with Context(DEBUG=2):
        (a * 3).realize()
        here = line()

    assert f"mul test_origins.py:{here}\n" in capsys.readouterr().err


def test_what_a_gradient_reads_again_is_told_by_the_line_that_made_it(collected: Collected) -> None:
    x = Tensor.arange(6).reshape(2, 3).float().realize().requires_grad_()
    scores = x.softmax()
    here = line()
    loss = (scores * scores).sum()
    loss.backward()
    there = line()
    assert x.grad is not None
    loss.realize(x.grad)

    told = " ".join(collected.found)
    assert f"softmax test_origins.py:{here}" in told
    assert f"backward test_origins.py:{there}" in told


def test_code_without_a_name_of_its_module_has_a_line() -> None:
    names = {"x": Tensor.ones(4).contiguous().realize()}

    with Context(VIZ=1):
        exec("y = x + 1", names)

    assert names["y"].uop._origin == ("Elementwise.__add__", "<string>", 1)


def test_methods_that_defer_signals_are_told_by_their_names(collected: Collected) -> None:
    x = Tensor([1.0, 2.0]).realize()
    x.detach().exp2().realize()
    here = line()

    assert collected.found[-1] == f"exp2 test_origins.py:{here}"
