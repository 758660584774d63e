"""Checkpoints of tensors in a training of Ray Train."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import ray.train

from tiny_mpi.checkpoint import load, save
from tinycore import Tensor

__all__ = ["report", "resumed"]


def report(
    metrics: Mapping[str, Any], state: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None
) -> None:
    """Tell Ray Train how it goes, with a checkpoint of tensors. All workers call it.

    `facts` is what else `resumed` is to give back, such as the number of the step, as JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        save(folder, state, facts)
        ray.train.report(dict(metrics), checkpoint=ray.train.Checkpoint.from_directory(folder))


def resumed(state: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Give tensors their values of the last checkpoint, and return its facts; None without one.

    All workers call it. Raises as `tiny_mpi.checkpoint.load` does.
    """
    found = ray.train.get_checkpoint()
    if found is None:
        return None
    with found.as_directory() as folder:
        return load(folder, state)
