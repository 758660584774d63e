"""Helpers of tests of tensors over several devices."""

from __future__ import annotations

from typing import Any

import numpy

from tinycore import Tensor, dtypes

CLOSE = 2e-5
"""Sums of some hundred float32 in another order differ by so much, relative and absolute."""

A = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
"""Numbers that tell where they lie."""


def group(count: int, name: str = "PYTHON") -> tuple[str, ...]:
    """The first devices of one kind."""
    return tuple(f"{name}:{number}" for number in range(count))


def mesh(rows: int, columns: int, name: str = "PYTHON") -> tuple[tuple[str, ...], ...]:
    """The first devices of one kind, in rows."""
    names = group(rows * columns, name)
    return tuple([names[row * columns :][:columns] for row in range(rows)])


def elsewhere(x: Tensor) -> str:
    """Another device of the same kind."""
    return x.devices[0].partition(":")[0] + ":5"


def index_of(x: Tensor, *values: int) -> Tensor:
    """Integers where a tensor is."""
    return Tensor(list(values), dtype=dtypes.int32).shard(x.device)


def assert_close(found: list[Any], right: list[Any]) -> None:
    """The same arrays, up to the order of sums."""
    for ours, theirs in zip(found, right, strict=True):
        numpy.testing.assert_allclose(ours, theirs, rtol=CLOSE, atol=CLOSE)
