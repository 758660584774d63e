"""Where the tensors of these tests run: layers on every target, what is made of them on one.

Optimizers, schedulers, recurrent layers and the like are compositions of tensor operations, each of
which `tests/unit/tensor` proves on every target; running them all again would only take time.
`test_training.py` runs the whole of a training step everywhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tensor.conftest import (
    chosen,
    is_sampled,
    mark_other_targets,
    pytest_runtest_call,
    target,
)

__all__ = ["pytest_runtest_call", "target"]

ON_ONE_TARGET = frozenset(
    {
        "test_attention.py",
        "test_clipping.py",
        "test_initializers.py",
        "test_lr_scheduler.py",
        "test_optim.py",
        "test_precision.py",
        "test_recurrent.py",
    }
)
CHEAPEST = "CPU:LLVM"
"""Compiles without starting a process."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but one target of the files above."""
    one = CHEAPEST if CHEAPEST in chosen() else chosen()[0]
    folder = Path(__file__).parent
    left_out = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and item.path.parent == folder
        and (
            not is_sampled(item)
            or (item.path.name in ON_ONE_TARGET and item.callspec.params["target"] != one)
        )
    ]
    if left_out:
        gone = set(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in gone]
    mark_other_targets(items, folder)
