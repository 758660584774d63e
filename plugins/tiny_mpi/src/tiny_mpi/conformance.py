"""The conformance suite of groups: what every group of processes promises, as functions to call.

    from tiny_mpi.conformance import CHECKS, MISTAKES

Each of CHECKS is called in all processes of one group, and raises AssertionError where it is wrong.
Each of MISTAKES is called in all processes of a group of its own, of two or more, and must raise
GroupError in all of them, with the texts that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy

from tiny_mpi.calls import FOLDS
from tinycore.errors import ArgumentError, DTypeError, ShapeError, TinycoreError
from tinycore.groups import Array, Group

__all__ = ["CHECKS", "MISTAKES", "Mistake"]

NUMBERS: Final = "int8 uint8 int32 int64 uint64 float16 float32 float64".split()
SHAPES: Final[tuple[tuple[int, ...], ...]] = ((), (0,), (1,), (5,), (3, 4), (2, 1, 3))
RANDOM_CALLS: Final = 150
CROSSING_BYTES: Final = 4 << 20
"""Size of messages that two ranks send to each other before either receives."""


def array_of(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """The array of a rank: small numbers, whose sums and products of four are exact."""
    numbers = numpy.random.default_rng((seed, rank, len(shape)))
    return numpy.asarray(numbers.integers(1, 4, shape)).astype(dtype)


def same(found: Array, expected: Array) -> None:
    """Raises AssertionError unless arrays have one dtype and shape, and the same elements."""
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert (found == expected).all(), (found, expected)


def reduced(arrays: list[Array], fold: str) -> Array:
    """The fold of arrays, by NumPy."""
    result = arrays[0].copy()
    for array in arrays[1:]:
        result = numpy.asarray(FOLDS[fold](result, array)).astype(result.dtype)
    return result


def folds(group: Group) -> None:
    """`all_reduce` and `reduce_scatter`, of all dtypes, shapes and folds."""
    for dtype in NUMBERS:
        for shape in SHAPES:
            for fold in FOLDS:
                all_reduced(group, shape, dtype, fold, 0)
                reduce_scattered(group, shape, dtype, fold, 0)


def all_reduced(group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int) -> None:
    """One `all_reduce`."""
    arrays = [array_of(rank, shape, dtype, seed) for rank in range(group.size)]
    same(group.all_reduce(arrays[group.rank], fold), reduced(arrays, fold))


def reduce_scattered(
    group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int
) -> None:
    """One `reduce_scatter`."""
    whole = (group.size, *shape)
    arrays = [array_of(rank, whole, dtype, seed) for rank in range(group.size)]
    expected = numpy.asarray(reduced(arrays, fold)[group.rank])
    same(group.reduce_scatter(arrays[group.rank], fold), expected)


def gathered(group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int) -> None:
    """One `all_gather`."""
    arrays = [array_of(rank, shape, dtype, seed) for rank in range(group.size)]
    same(group.all_gather(arrays[group.rank]), numpy.stack(arrays))


def broadcast_from(group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int) -> None:
    """One `broadcast`."""
    root = seed % group.size
    own = array_of(group.rank, shape, dtype, seed)
    same(group.broadcast(own, root), array_of(root, shape, dtype, seed))


def exchanged(group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int) -> None:
    """One `all_to_all`."""
    whole = (group.size, *shape)
    arrays = [array_of(rank, whole, dtype, seed) for rank in range(group.size)]
    expected = numpy.stack([array[group.rank] for array in arrays])
    same(group.all_to_all(arrays[group.rank]), expected)


def passed_on(group: Group, shape: tuple[int, ...], dtype: str, fold: str, seed: int) -> None:
    """A message of each rank to another, in a ring of a random stride."""
    stride = seed % group.size
    group.send(array_of(group.rank, shape, dtype, seed), (group.rank + stride) % group.size)
    source = (group.rank - stride) % group.size
    same(group.recv(source), array_of(source, shape, dtype, seed))


KINDS: Final = (
    all_reduced,
    reduce_scattered,
    gathered,
    broadcast_from,
    exchanged,
    passed_on,
)


def random_calls(group: Group) -> None:
    """Many calls in a row, of random kinds, dtypes and shapes."""
    numbers = numpy.random.default_rng(group.size)
    for seed in range(RANDOM_CALLS):
        kind = KINDS[numbers.integers(len(KINDS))]
        shape = tuple(int(n) for n in numbers.integers(0, 9, numbers.integers(4)))
        dtype, fold = str(numbers.choice(NUMBERS)), str(numbers.choice([*FOLDS]))
        kind(group, shape, dtype, fold, seed)
        if numbers.random() < 0.2:
            group.barrier()


def any_dtype(group: Group) -> None:
    """Arrays that are only moved have any dtype but objects."""
    for dtype in ("bool", "complex64", "datetime64[s]", "S3"):
        gathered(group, (2, 3), dtype, "", 0)
        passed_on(group, (2, 3), dtype, "", 1)


def byte_order(group: Group) -> None:
    """Numbers in the byte order of another machine are folded as numbers, and stay in it."""
    for dtype in (">f4", "<f4", ">i8", ">f2", ">u2"):
        all_reduced(group, (3,), dtype, "sum", 0)
        reduce_scattered(group, (3,), dtype, "max", 0)
        passed_on(group, (3,), dtype, "", 1)


def same_bits(group: Group) -> None:
    """A sum of floats is rounded in the same way in all processes."""
    own = numpy.random.default_rng(group.rank).standard_normal(1000).astype(numpy.float32)
    sums = group.all_gather(group.all_reduce(own).view(numpy.int32))
    assert (sums == sums[0]).all()


def order_of_messages(group: Group) -> None:
    """Messages of one rank to another are received in order, in their own shapes."""
    to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for number in range(20):
        group.send(numpy.full((number,), number, numpy.int32), to)
    for number in range(20):
        same(group.recv(source), numpy.full((number,), number, numpy.int32))


def crossing_messages(group: Group) -> None:
    """Two ranks send large messages to each other before they receive."""
    content = numpy.full(CROSSING_BYTES, group.rank, numpy.uint8)
    for rank in range(group.size):
        group.send(content, rank)
    for rank in range(group.size):
        same(group.recv(rank), numpy.full(CROSSING_BYTES, rank, numpy.uint8))


def memory(group: Group) -> None:
    """Operands stay as they are, in any layout; results are memory of their own."""
    whole = numpy.arange(12.0).reshape(4, 3)
    given = whole.T[:, ::2]
    kept = given.copy()
    for call in (group.all_reduce, group.all_gather, group.broadcast):
        result = call(given)
        result[...] = -1
        same(whole, numpy.arange(12.0).reshape(4, 3))
    same(group.all_gather(given)[0], kept)
    group.send(given, group.rank)
    whole[...] = 0
    same(group.recv(group.rank), kept)


def wrong_arguments(group: Group) -> None:
    """Wrong arguments are refused before anything is sent, so that calls after them fit."""
    x = numpy.ones((group.size, 2))
    attempts: list[tuple[type[TinycoreError], Callable[[], object]]] = [
        (ArgumentError, lambda: group.all_reduce(x, "mean")),
        (ArgumentError, lambda: group.broadcast(x, group.size)),
        (ArgumentError, lambda: group.send(x, -1)),
        (ArgumentError, lambda: group.recv(group.size)),
        (ShapeError, lambda: group.reduce_scatter(numpy.ones((group.size + 1, 2)))),
        (ShapeError, lambda: group.all_to_all(numpy.ones(()))),
        (DTypeError, lambda: group.all_reduce(x > 0)),
        (ArgumentError, lambda: group.all_gather([1.0])),  # type: ignore[arg-type]
        (ArgumentError, lambda: group.all_gather(numpy.array([group]))),
    ]
    for expected, attempt in attempts:
        try:
            attempt()
        except expected:
            continue
        raise AssertionError(f"{expected.__name__} was not raised")
    same(group.all_reduce(x), x * group.size)


CHECKS: Final[dict[str, Callable[[Group], None]]] = {
    check.__name__: check
    for check in (
        folds,
        random_calls,
        any_dtype,
        byte_order,
        same_bits,
        order_of_messages,
        crossing_messages,
        memory,
        wrong_arguments,
    )
}
"""Checks by name."""


@dataclass(frozen=True)
class Mistake:
    """A program that is wrong, and the texts that the error of each process has."""

    run: Callable[[Group], Any]
    texts: tuple[str, ...]


def ones(*shape: int, dtype: str = "float32") -> Array:
    """An array of ones."""
    return numpy.ones(shape, dtype)


def other_order(group: Group) -> None:
    """Rank 1 calls another collective."""
    if group.rank == 1:
        group.barrier()
    else:
        group.all_to_all(ones(group.size))


def receive_or_meet(group: Group) -> None:
    """Rank 0 receives what rank 1 does not send."""
    if group.rank == 0:
        group.recv(1)
    group.barrier()


def end_early(group: Group) -> None:
    """Rank 1 does not wait for the others."""
    if group.rank != 1:
        group.barrier()


MISTAKES: Final = {
    "shape": Mistake(
        lambda group: group.all_reduce(ones(3 + (group.rank == 1))),
        ("rank 0 all_reduce of float32[3], sum", "rank 1 all_reduce of float32[4], sum"),
    ),
    "dtype": Mistake(
        lambda group: group.all_gather(ones(2, dtype="f8" if group.rank == 1 else "f4")),
        ("rank 0 all_gather of float32[2]", "rank 1 all_gather of float64[2]"),
    ),
    "fold": Mistake(
        lambda group: group.all_reduce(ones(2), "max" if group.rank == 1 else "sum"),
        ("rank 0 all_reduce of float32[2], sum", "rank 1 all_reduce of float32[2], max"),
    ),
    "root": Mistake(
        lambda group: group.broadcast(ones(2), int(group.rank == 1)),
        ("rank 0 broadcast of float32[2], root 0", "rank 1 broadcast of float32[2], root 1"),
    ),
    "order": Mistake(
        other_order,
        ("rank 0 all_to_all of float32[", "rank 1 barrier"),
    ),
    "receives": Mistake(
        lambda group: group.recv((group.rank + 1) % group.size),
        ("rank 0 in recv from 1", "rank 1 in recv from"),
    ),
    "collective": Mistake(
        receive_or_meet,
        ("rank 0 in recv from 1", "rank 1 in barrier"),
    ),
    "ended": Mistake(
        end_early,
        ("rank 1 has ended its program",),
    ),
}
"""Mistakes by name."""
