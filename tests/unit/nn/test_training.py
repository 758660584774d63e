"""A training run that is saved, loaded and continued is the run that was not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.unit.tensor.helpers import numbers
from tinycore import Context, Tensor, TinyJit, nn
from tinycore.nn.optim import (
    LAMB,
    SGD,
    Adam,
    GradScaler,
    Muon,
    Optimizer,
    OptimizerGroup,
    compute_in,
    lr_scheduler,
)
from tinycore.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_save,
)

BATCHES = numbers(6, 6, 3).astype(numpy.float32)


class Run:
    """A model and everything that changes it: what a checkpoint holds is this object's state."""

    def __init__(self, make: Callable[[Any], Optimizer]) -> None:
        self.model: list[Any] = [nn.Linear(3, 4), nn.BatchNorm(4), Tensor.relu, nn.Linear(4, 1)]
        self.optimizer = make(self.model)
        self.warmup = lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 5)
        self.scaler = GradScaler(8.0, growth_interval=2)

    def step(self, x: Tensor) -> Tensor:
        """One step in half precision, with all that belongs to it."""
        with Context(TRAINING=1):
            self.optimizer.zero_grad()
            with compute_in(self.model, "float16"):
                found = x.half().sequential(self.model)
            loss = (found.float() - x.sum(1, keepdim=True)).square().mean()
            self.scaler.scale(loss).backward()
            return loss.realize(
                *self.scaler.schedule_step(self.optimizer),
                *self.scaler.schedule_update(),
                *self.warmup.schedule_step(),
            )


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "adam": lambda model: Adam(get_parameters(model), lr=0.05),
    "group": lambda model: OptimizerGroup(
        Muon([model[0].weight], lr=0.05),
        LAMB([model[0].bias, *get_parameters(model[1])], lr=0.05),
        SGD(get_parameters(model[3]), 0.05, 0.9, nesterov=True),
    ),
}


def bits(run: Run) -> dict[str, bytes]:
    """All of the state, to the last bit."""
    return {name: tensor.numpy().tobytes() for name, tensor in get_state_dict(run).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = Run(OPTIMIZERS[name])
    step = TinyJit(whole.step)
    for batch in BATCHES[:3]:
        step(Tensor(batch))
    safe_save(get_state_dict(whole), tmp_path / "checkpoint")
    losses = [step(Tensor(batch)).item() for batch in BATCHES[3:]]

    resumed = Run(OPTIMIZERS[name])
    load_state_dict(resumed, safe_load(tmp_path / "checkpoint"), verbose=False)
    step = TinyJit(resumed.step)

    assert [step(Tensor(batch)).item() for batch in BATCHES[3:]] == losses
    assert bits(resumed) == bits(whole)


def test_a_checkpoint_has_everything_that_a_run_changes() -> None:
    run = Run(OPTIMIZERS["adam"])
    before = bits(run)
    for batch in BATCHES[:2]:
        run.step(Tensor(batch))
    after = bits(run)

    stayed = {name.split(".")[-1] for name in before if before[name] == after[name]}
    assert stayed <= {"successes"}  # two steps in a row that went well count as none
    assert {name.split(".")[0] for name in before} == {
        "model",
        "optimizer",
        "warmup",
        "scaler",
    }
