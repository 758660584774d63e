"""Runs that take long: an interrupt between two launches leaves what was there as it was."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tinycore import Device, Tensor, TinyJit, nn
from tinycore.engine import captured_step, transactions

pytestmark = pytest.mark.skipif(
    Device.DEFAULT == "PYTHON", reason="launches of PYTHON are not native"
)


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run and replay counts as a long one."""
    monkeypatch.setattr(transactions, "LONG_OPERATIONS", 0)
    monkeypatch.setattr(captured_step, "LONG_SECONDS", 0.0)


def interrupt(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Let Ctrl-C come before the launch of this number, counted over all runs."""
    begun = 0

    def progress(items: Iterable[Any], what: str, count: int) -> Iterator[Any]:
        nonlocal begun
        for item in items:
            if begun == place:
                begun += 1
                signal.raise_signal(signal.SIGINT)
            begun += 1
            yield item

    monkeypatch.setattr(transactions, "progress", progress)
    monkeypatch.setattr(captured_step, "progress", progress)


class Trainer:
    """A small network with statistics, its optimizer, and a step that overwrites both."""

    def __init__(self, is_captured: bool) -> None:
        Tensor.manual_seed(0)
        self.layers = [nn.Linear(4, 8), nn.BatchNorm(8), Tensor.relu, nn.Linear(8, 2)]
        self.optimizer = nn.optim.Adam(nn.state.get_parameters(self.layers), lr=0.1)
        self.x, self.y = Tensor.rand(16, 4).realize(), Tensor.randint(16, high=2).realize()
        self.step = TinyJit(self.once) if is_captured else self.once

    @Tensor.train()
    def once(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.x.sequential(self.layers).cross_entropy(self.y).backward()
        return loss.realize(*self.optimizer.schedule_step())

    def state(self) -> dict[str, Any]:
        found = nn.state.get_state_dict([self.layers, self.optimizer])
        return {name: x.tolist() for name, x in found.items()}


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("is_captured", [False, True])
def test_an_interrupted_step_is_done_or_not_begun(
    monkeypatch: pytest.MonkeyPatch, is_captured: bool, number: int
) -> None:
    draw = random.Random(number)
    calls = draw.randrange(5)
    right, tried = Trainer(is_captured), Trainer(is_captured)
    for trainer in (right, tried):
        for _ in range(calls):
            trainer.step()
    before = tried.state()
    after = (right.step().item(), right.state())[1]

    with monkeypatch.context() as patch:
        interrupt(patch, draw.randrange(12))
        with pytest.raises(KeyboardInterrupt):
            tried.step()

    found = tried.state()  # what was recorded, and not computed, is computed by reading it
    if is_captured and calls > 1:
        assert found == before
    if found == before:
        tried.step()
    assert tried.state() == after
