"""Compute random expressions of tensors in random layouts over processes, and compare with NumPy.

    mpiexec -n 2 python layouts.py 30

The word is the number of expressions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

import tiny_mpi
from tinycore import Tensor, TinyJit
from tinycore.groups import group

RANKS = tiny_mpi.ranks()
SIZE = len(RANKS)
DEVICES = tiny_mpi.mesh(2, SIZE // 2) if SIZE == 4 else RANKS
"""Devices that tensors are spread over: two rows of four processes, else all in one."""

UNARY: list[tuple[Callable[..., Tensor], Callable[..., Any]]] = [
    (lambda x: x * 2 - 1, lambda x: x * 2 - 1),
    (lambda x: x.relu(), lambda x: numpy.maximum(x, 0)),
    (lambda x: x.transpose(0, 1), lambda x: x.T),
    (lambda x: x.flip(1), lambda x: x[:, ::-1]),
    (lambda x: x - x.max(axis=1, keepdim=True), lambda x: x - x.max(axis=1, keepdims=True)),
    (lambda x: x / (x.abs().sum() + 1), lambda x: x / (numpy.abs(x).sum() + 1)),
    (lambda x: x.reshape(-1).reshape(*x.shape), lambda x: x),
    (lambda x: x.cumsum(axis=0), lambda x: x.cumsum(axis=0)),
]
BINARY: list[tuple[Callable[..., Tensor], Callable[..., Any]]] = [
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: x * y, lambda x, y: x * y),
    (lambda x, y: x @ y, lambda x, y: x @ y),
    (lambda x, y: x.cat(y, dim=0)[: x.shape[0]], lambda x, y: x),
    (lambda x, y: (x > y).where(x, y), lambda x, y: numpy.where(x > y, x, y)),
]


def placed(x: Any, numbers: numpy.random.Generator) -> Tensor:
    """A tensor in parts along an axis, in copies, of one's own part, or on one device."""
    kinds = (None, 0, 1)
    kind = numbers.integers(4)
    if SIZE == 4:
        axes = kinds[numbers.integers(3)], kinds[numbers.integers(3)]
        return Tensor(x).shard(DEVICES, axis=axes)
    if kind == 3:
        part = len(x) // SIZE
        return tiny_mpi.from_parts(x[group().rank * part :][:part])
    return Tensor(x).shard(DEVICES, axis=kinds[kind])


def main() -> None:
    """Compare."""
    for seed in range(int(sys.argv[1])):
        numbers = numpy.random.default_rng(seed)
        side = SIZE * int(numbers.integers(1, 4))
        arrays = [numbers.integers(-3, 4, (side, side)).astype(numpy.float32) for _ in range(2)]
        steps = [
            (int(numbers.integers(len(UNARY))), int(numbers.integers(len(BINARY))))
            for _ in range(3)
        ]

        def computed(x: Tensor, y: Tensor, steps: list[tuple[int, int]] = steps) -> Tensor:
            for one, two in steps:
                x = BINARY[two][0](UNARY[one][0](x), y)
            return x.realize()

        expected = arrays[0]
        for one, two in steps:
            expected = BINARY[two][1](UNARY[one][1](expected), arrays[1])
        given = [placed(x, numbers).realize() for x in arrays]
        captured = TinyJit(computed)
        functions: list[Callable[..., Tensor]] = [computed, captured, captured, captured]
        for function in functions:
            found = function(*given).numpy()
            numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=str(seed))
        told = group().all_gather(found)
        assert (told == told[0]).all(), seed
    print("same")


main()
