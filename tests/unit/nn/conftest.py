"""Targets of the tensors of these tests: layers on every target, what is made of them on one.

Optimizers, schedulers, recurrent layers and the like are compositions of tensor operations, each of
which `tests/unit/tensor` proves on every target, and files are read on the host; running them all
again would only take time.
`test_training.py` runs the whole of a training step everywhere.
"""

from __future__ import annotations

import pytest

from tests.unit.tensor.conftest import (
    HERE,
    pytest_collection_modifyitems,
    pytest_runtest_call,
    run_on,
    target,
    targets_of,
)

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_call", "target"]

ON_ONE_TARGET = frozenset(
    {
        "test_attention.py",
        "test_checkpoints.py",
        "test_clipping.py",
        "test_hostile_files.py",
        "test_idx.py",
        "test_npy.py",
        "test_initializers.py",
        "test_lr_scheduler.py",
        "test_optim.py",
        "test_precision.py",
        "test_recurrent.py",
        "test_safetensors.py",
        "test_torch_load.py",
    }
)
CHEAPEST = "CPU:LLVM"
"""Compiles without starting a process."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the files above on one target."""
    name = metafunc.definition.path.name
    one = CHEAPEST if CHEAPEST in HERE else HERE[0]
    run_on(metafunc, [one] if name in ON_ONE_TARGET else targets_of(name))
