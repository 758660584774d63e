"""Cases of each function: pieces of code that every namespace of the standard runs.

The first of each also runs in the interpreter. Elementwise functions are in test_elementwise.py.
"""

from __future__ import annotations

import array
import math
from typing import Any, Final

import numpy

from tests.unit.array_api.cases_of_dtypes import INSPECTED, TYPED
from tests.unit.array_api.cases_of_matrices import LINEAR, PRODUCTS
from tests.unit.array_api.comparing import DTYPES, Case, drawn, make

NAN: Final = [2.0, math.nan, -1.0, 3.0]


def reductions(name: str, *dtypes: str, **options: Any) -> tuple[Case, ...]:
    """A reduction over all, some and no axes, in several dtypes, of 0-d and of empty arrays."""

    def reduce(xp: Any, x: Any, **how: Any) -> Any:
        return getattr(xp, name)(x, **how, **options)

    empty = () if name in ("max", "min") else (lambda xp: reduce(xp, xp.zeros((2, 0, 3)), axis=1),)
    return (
        lambda xp: reduce(xp, drawn(xp, 3, 4)),
        lambda xp: [reduce(xp, drawn(xp, 3, 4, dtype=dtype), axis=0) for dtype in dtypes],
        lambda xp: reduce(xp, drawn(xp, 2, 3, 4), axis=(0, -1)),
        lambda xp: reduce(xp, drawn(xp, 2, 3, 4), axis=(1,), keepdims=True),
        lambda xp: reduce(xp, drawn(xp, 2, 3), keepdims=True),
        lambda xp: reduce(xp, make(xp, NAN, "float64")),
        lambda xp: reduce(xp, xp.asarray(2.5)),
        *empty,
    )


def best(name: str) -> tuple[Case, ...]:
    """`argmax` and `argmin`: one axis at a time, the first of equals."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 3, 4)),
        lambda xp: [getattr(xp, name)(drawn(xp, 5, 4, dtype=d), axis=0) for d in DTYPES[1:]],
        lambda xp: getattr(xp, name)(drawn(xp, 2, 3, 4), axis=-2, keepdims=True),
        lambda xp: getattr(xp, name)(drawn(xp, 2, 3), keepdims=True),
        lambda xp: getattr(xp, name)(make(xp, NAN, "float64")),
        lambda xp: getattr(xp, name)(xp.asarray(2.5)),
    )


def running(name: str) -> tuple[Case, ...]:
    """Running folds."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 6)),
        lambda xp: [getattr(xp, name)(drawn(xp, 6, dtype=d)) for d in DTYPES[1:]],
        lambda xp: getattr(xp, name)(drawn(xp, 2, 3, 4), axis=1),
        lambda xp: getattr(xp, name)(drawn(xp, 2, 3), axis=-1, include_initial=True),
        lambda xp: getattr(xp, name)(drawn(xp, 5, dtype="int8"), dtype=xp.float32),
        lambda xp: getattr(xp, name)(xp.zeros((0, 2)), axis=0, include_initial=True),
    )


def sorting(name: str) -> tuple[Case, ...]:
    """Stable orders, both ways."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 7)),
        lambda xp: [getattr(xp, name)(drawn(xp, 9, dtype=d)) for d in DTYPES[1:]],
        lambda xp: getattr(xp, name)(drawn(xp, 3, 5), axis=0, descending=True),
        lambda xp: getattr(xp, name)(drawn(xp, 2, 5), axis=-1, descending=False, stable=True),
        lambda xp: getattr(xp, name)(xp.zeros((2, 0))),
    )


def unique(name: str) -> tuple[Case, ...]:
    """Sets of distinct elements."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 3, 3)),
        lambda xp: [
            getattr(xp, name)(drawn(xp, 2, 6, dtype=d)) for d in ("bool", "int8", "uint64")
        ],
        lambda xp: getattr(xp, name)(make(xp, [math.nan, 1.0, math.nan, -math.inf], "float32")),
        lambda xp: getattr(xp, name)(xp.asarray(3)),
        lambda xp: getattr(xp, name)(xp.zeros((0, 2))),
    )


def filled(name: str) -> tuple[Case, ...]:
    """Arrays of one number."""
    return (
        lambda xp: getattr(xp, name)((2, 3)),
        lambda xp: [getattr(xp, name)(4, dtype=getattr(xp, d)) for d in DTYPES],
        lambda xp: getattr(xp, name)(()),
        lambda xp: getattr(xp, name)((0, 2)),
    )


def filled_like(name: str) -> tuple[Case, ...]:
    """Arrays of one number in the shape of another."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 2, 3, dtype="int16")),
        lambda xp: getattr(xp, name)(drawn(xp, 2), dtype=xp.bool),
        lambda xp: getattr(xp, name)(xp.zeros((0, 2))),
    )


def triangles(name: str) -> tuple[Case, ...]:
    """Triangles of matrices."""
    return (
        lambda xp: getattr(xp, name)(drawn(xp, 3, 4)),
        lambda xp: [getattr(xp, name)(drawn(xp, 2, 3, 4, dtype="int8"), k=k) for k in (-5, -1, 1)],
        lambda xp: getattr(xp, name)(xp.zeros((0, 3))),
    )


SHAPES: Final[dict[str, tuple[Case, ...]]] = {
    "broadcast_arrays": (
        lambda xp: xp.broadcast_arrays(drawn(xp, 3, 1), drawn(xp, 2, dtype="int8")),
        lambda xp: xp.broadcast_arrays(xp.asarray(1.5), xp.zeros((0, 2))),
    ),
    "broadcast_to": (
        lambda xp: xp.broadcast_to(drawn(xp, 3, 1), (2, 3, 2)),
        lambda xp: xp.broadcast_to(xp.asarray(True), (2,)),
        lambda xp: xp.broadcast_to(drawn(xp, 1), (0,)),
    ),
    "concat": (
        lambda xp: xp.concat([drawn(xp, 2, 3), drawn(xp, 2, 1)], axis=-1),
        lambda xp: xp.concat((drawn(xp, 2, dtype="int8"), drawn(xp, 1, dtype="uint8"))),
        lambda xp: xp.concat([drawn(xp, 2, 2), xp.asarray(3.0), drawn(xp, 0)], axis=None),
        lambda xp: xp.concat([drawn(xp, 2, 2, dtype="bool")]),
    ),
    "expand_dims": (
        lambda xp: [xp.expand_dims(drawn(xp, 2, 3), axis=axis) for axis in (0, 1, 2, -1, -3)],
        lambda xp: xp.expand_dims(xp.asarray(1), axis=0),
    ),
    "flip": (
        lambda xp: xp.flip(drawn(xp, 2, 3)),
        lambda xp: [xp.flip(drawn(xp, 2, 3, 2), axis=axis) for axis in (0, -1, (0, 2), (1,))],
        lambda xp: xp.flip(xp.asarray(1)),
    ),
    "moveaxis": (
        lambda xp: xp.moveaxis(drawn(xp, 2, 3, 4), 0, -1),
        lambda xp: xp.moveaxis(drawn(xp, 2, 3, 4, 1), (0, 3), (2, 0)),
        lambda xp: xp.moveaxis(drawn(xp, 2, 3, 4), (-1, 0), (0, 1)),
    ),
    "permute_dims": (
        lambda xp: xp.permute_dims(drawn(xp, 2, 3, 4), (2, 0, 1)),
        lambda xp: xp.permute_dims(xp.asarray(1), ()),
    ),
    "repeat": (
        lambda xp: xp.repeat(drawn(xp, 2, 3), 2),
        lambda xp: xp.repeat(drawn(xp, 2, 3), 3, axis=1),
        lambda xp: xp.repeat(drawn(xp, 2, 3), make(xp, [2, 0, 1], "int64"), axis=-1),
        lambda xp: xp.repeat(drawn(xp, 4), make(xp, [2], "int32")),
        lambda xp: xp.repeat(drawn(xp, 2, 2), 0, axis=0),
    ),
    "reshape": (
        lambda xp: xp.reshape(drawn(xp, 2, 6), (3, 4)),
        lambda xp: [xp.reshape(drawn(xp, 2, 6), (-1, 3), copy=c) for c in (None, True, False)],
        lambda xp: xp.reshape(xp.asarray(3), (1, 1)),
        lambda xp: xp.reshape(xp.zeros((0, 2)), (4, 0)),
    ),
    "roll": (
        lambda xp: xp.roll(drawn(xp, 2, 3), 2),
        lambda xp: xp.roll(drawn(xp, 3, 4), -1, axis=1),
        lambda xp: xp.roll(drawn(xp, 3, 4), (1, 7), axis=(0, -1)),
        lambda xp: xp.roll(drawn(xp, 3, 4), 1, axis=(0, 1)),
        lambda xp: xp.roll(xp.asarray(3), 1),
    ),
    "squeeze": (
        lambda xp: xp.squeeze(drawn(xp, 1, 2, 1), 0),
        lambda xp: xp.squeeze(drawn(xp, 1, 2, 1), (0, -1)),
    ),
    "stack": (
        lambda xp: xp.stack([drawn(xp, 2, 3), drawn(xp, 2, 3, seed=1)], axis=-1),
        lambda xp: xp.stack((drawn(xp, 2, dtype="int8"), drawn(xp, 2, dtype="int32"))),
        lambda xp: xp.stack([xp.asarray(True), xp.asarray(False)]),
    ),
    "tile": (
        lambda xp: xp.tile(drawn(xp, 2, 3), (2, 1)),
        lambda xp: xp.tile(drawn(xp, 2, 3), (2,)),
        lambda xp: xp.tile(drawn(xp, 3), (2, 2, 2)),
        lambda xp: xp.tile(drawn(xp, 3), ()),
        lambda xp: xp.tile(drawn(xp, 3), (0,)),
    ),
    "unstack": (
        lambda xp: xp.unstack(drawn(xp, 2, 3)),
        lambda xp: xp.unstack(drawn(xp, 2, 3), axis=-1),
        lambda xp: xp.unstack(xp.zeros((0, 2))),
    ),
}

CREATED: Final[dict[str, tuple[Case, ...]]] = {
    "arange": (
        lambda xp: xp.arange(5),
        lambda xp: [xp.arange(2, 9, 3), xp.arange(5, 0, -2), xp.arange(5, 2), xp.arange(0)],
        lambda xp: [xp.arange(0.0, 1.0, 0.25), xp.arange(3.5), xp.arange(1, 2, 0.5)],
        lambda xp: [xp.arange(4, dtype=getattr(xp, d)) for d in DTYPES[1:]],
        lambda xp: xp.arange(2, stop=6, step=2),
    ),
    "asarray": (
        lambda xp: xp.asarray([[1, 2], [3, 4]]),
        lambda xp: [xp.asarray(x) for x in (True, 3, 2.5, [True, False], [1, True], [1, 2.5], [])],
        lambda xp: [xp.asarray([1, 0], dtype=getattr(xp, d)) for d in DTYPES],
        lambda xp: [xp.asarray(xp.asarray([1, 2]), copy=copy) for copy in (None, True, False)],
        lambda xp: xp.asarray(numpy.arange(6, dtype="int16").reshape(2, 3).T),
        lambda xp: [xp.asarray(array.array(c, [1, 2])) for c in "bBhHiIfd"],
    ),
    "empty": (lambda xp: [xp.empty((2, 0)), xp.empty(0, dtype=xp.int8)],),
    "empty_like": (lambda xp: xp.empty_like(xp.zeros((0, 3), dtype=xp.int8)),),
    "eye": (
        lambda xp: xp.eye(3),
        lambda xp: [xp.eye(2, 4, k=k, dtype=xp.int32) for k in (-3, -1, 0, 2, 5)],
        lambda xp: [xp.eye(0), xp.eye(3, 0), xp.eye(2, dtype=xp.bool)],
    ),
    "from_dlpack": (
        lambda xp: xp.from_dlpack(numpy.asarray([[1.5, 2.5]])),
        lambda xp: [xp.from_dlpack(numpy.ones((2, 3), d).T) for d in DTYPES],
        lambda xp: xp.from_dlpack(xp.asarray([1, 2])),
        lambda xp: xp.from_dlpack(numpy.zeros((0, 2))),
    ),
    "full": (
        lambda xp: xp.full((2, 3), 2.5),
        lambda xp: [xp.full(2, x) for x in (True, 3, math.inf, math.nan)],
        lambda xp: [xp.full((), 1, dtype=getattr(xp, d)) for d in DTYPES[1:]],
        lambda xp: xp.full((0,), 3),
    ),
    "full_like": (
        lambda xp: xp.full_like(drawn(xp, 2, 3, dtype="int16"), 7),
        lambda xp: xp.full_like(drawn(xp, 2), 1, dtype=xp.uint8),
    ),
    "linspace": (
        lambda xp: xp.linspace(0.0, 1.0, 5),
        lambda xp: xp.linspace(1.0, -2.0, 4, endpoint=False),
        lambda xp: [xp.linspace(1, 5, n) for n in (0, 1, 2)],
        lambda xp: xp.linspace(-1.0, 1.0, num=9, dtype=xp.float32),
    ),
    "meshgrid": (
        lambda xp: xp.meshgrid(drawn(xp, 3), drawn(xp, 2)),
        lambda xp: xp.meshgrid(drawn(xp, 3), drawn(xp, 2), drawn(xp, 1), indexing="ij"),
        lambda xp: xp.meshgrid(drawn(xp, 3)),
    ),
    "ones": filled("ones"),
    "ones_like": filled_like("ones_like"),
    "tril": triangles("tril"),
    "triu": triangles("triu"),
    "zeros": filled("zeros"),
    "zeros_like": filled_like("zeros_like"),
}

FOUND: Final[dict[str, tuple[Case, ...]]] = {
    "argmax": best("argmax"),
    "argmin": best("argmin"),
    "argsort": sorting("argsort"),
    "sort": sorting("sort"),
    "count_nonzero": reductions("count_nonzero", *DTYPES),
    "nonzero": (
        lambda xp: xp.nonzero(drawn(xp, 3, 4)),
        lambda xp: xp.nonzero(drawn(xp, 9, dtype="bool")),
        lambda xp: xp.nonzero(xp.zeros((2, 2))),
        lambda xp: xp.nonzero(xp.zeros((0, 2))),
    ),
    "searchsorted": (
        lambda xp: xp.searchsorted(xp.asarray([1.0, 2.0, 2.0, 3.0]), drawn(xp, 2, 3)),
        lambda xp: [
            xp.searchsorted(xp.asarray([1, 2, 2, 4]), xp.asarray([0, 1, 2, 3, 4, 5]), side=side)
            for side in ("left", "right")
        ],
        lambda xp: xp.searchsorted(
            xp.asarray([3.0, 1.0, 2.0]), xp.asarray([1.5, 9.0]), sorter=xp.asarray([1, 2, 0])
        ),
        lambda xp: xp.searchsorted(xp.asarray([1.0, math.nan]), xp.asarray([math.nan, 5.0])),
        lambda xp: xp.searchsorted(xp.zeros((0,)), xp.asarray(1.0)),
    ),
    "where": (
        lambda xp: xp.where(drawn(xp, 3, dtype="bool"), drawn(xp, 2, 3), drawn(xp, 3, seed=1)),
        lambda xp: xp.where(
            drawn(xp, 2, dtype="bool"), drawn(xp, 2, dtype="int8"), drawn(xp, 2, dtype="uint8")
        ),
        lambda xp: xp.where(xp.asarray([True, False]), xp.asarray([1.5, 2.5]), 1),
        lambda xp: xp.where(xp.asarray([True, False]), 3, xp.asarray(4, dtype=xp.int8)),
        lambda xp: xp.where(xp.zeros((0, 2), dtype=xp.bool), xp.zeros((2,)), xp.zeros(())),
    ),
    "take": (
        lambda xp: xp.take(drawn(xp, 4, 3), xp.asarray([3, 0, 0]), axis=0),
        lambda xp: xp.take(drawn(xp, 4, 3), xp.asarray([-1, 1]), axis=-1),
        lambda xp: xp.take(drawn(xp, 4, dtype="bool"), xp.asarray([1], dtype=xp.uint8)),
        lambda xp: xp.take(drawn(xp, 4), xp.zeros((0,), dtype=xp.int64)),
    ),
    "take_along_axis": (
        lambda xp: xp.take_along_axis(drawn(xp, 3, 4), xp.asarray([[0], [-1], [2]])),
        lambda xp: xp.take_along_axis(drawn(xp, 3, 4), xp.asarray([[0, 1, 2, 0]]), axis=0),
        lambda xp: xp.take_along_axis(drawn(xp, 4), xp.zeros((0,), dtype=xp.int64)),
    ),
    "unique_all": unique("unique_all"),
    "unique_counts": unique("unique_counts"),
    "unique_inverse": unique("unique_inverse"),
    "unique_values": unique("unique_values"),
}

FOLDED: Final[dict[str, tuple[Case, ...]]] = {
    "all": reductions("all", *DTYPES),
    "any": reductions("any", *DTYPES),
    "max": reductions("max", *DTYPES[1:]),
    "min": reductions("min", *DTYPES[1:]),
    "mean": reductions("mean", "float32", "float64"),
    "sum": (
        *reductions("sum", *DTYPES[1:]),
        lambda xp: xp.sum(drawn(xp, 2, 3, dtype="int8"), dtype=xp.float32),
        lambda xp: xp.sum(make(xp, [100, 100, 100], "uint8"), dtype=xp.uint8),
    ),
    "prod": (
        *reductions("prod", *DTYPES[1:]),
        lambda xp: xp.prod(drawn(xp, 2, 3, dtype="int8"), dtype=xp.int16, axis=0),
    ),
    "std": reductions("std", "float32", "float64"),
    "var": (
        *reductions("var", "float32", "float64"),
        *reductions("var", correction=1.0)[:3],
        lambda xp: xp.var(drawn(xp, 2, 4), axis=0, correction=0.5),
    ),
    "cumulative_sum": running("cumulative_sum"),
    "cumulative_prod": running("cumulative_prod"),
    "diff": (
        lambda xp: xp.diff(drawn(xp, 3, 4)),
        lambda xp: xp.diff(drawn(xp, 3, 4, dtype="int8"), axis=0, n=2),
        lambda xp: xp.diff(drawn(xp, 5), prepend=xp.asarray([1.0]), append=drawn(xp, 2, seed=1)),
        lambda xp: [xp.diff(drawn(xp, 2), n=n) for n in (0, 1, 2, 3)],
        lambda xp: xp.diff(drawn(xp, 5, dtype="uint8")),
    ),
}

CASES: Final = {
    **SHAPES, **CREATED, **FOUND, **FOLDED, **PRODUCTS, **TYPED, **LINEAR, **INSPECTED,
}  # fmt: skip
"""Cases of each function that is not elementwise."""
