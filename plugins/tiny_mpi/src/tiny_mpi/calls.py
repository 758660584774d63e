"""Calls of a group as values, so that processes can compare them, and checks of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy

from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    GroupError,
    ShapeError,
)
from tinycore.groups import Array

__all__ = ["FOLDS", "Call", "check_array", "check_fold", "check_rank", "check_rows", "check_same"]

FOLDS: Final = {
    "sum": numpy.add,
    "prod": numpy.multiply,
    "min": numpy.minimum,
    "max": numpy.maximum,
}
"""Ways to reduce the arrays of several processes to one."""


@dataclass(frozen=True)
class Call:
    """A call of a collective, or of a send or a receive: what has to fit between processes."""

    name: str
    number: int = 0
    """Number of calls of its kind that this process made before."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    detail: str = ""
    peer: int | None = None
    """The rank at the other end, of a send or a receive; None for a collective."""

    @classmethod
    def of(
        cls, name: str, number: int, x: Array | None, detail: str = "", peer: int | None = None
    ) -> Call:
        """The call with an array, or with none."""
        if x is None:
            return cls(name, number, detail=detail, peer=peer)
        return cls(name, number, x.shape, str(x.dtype), detail, peer)

    def __str__(self) -> str:
        what = f" of {self.dtype}{list(self.shape)}" if self.dtype else ""
        detail = f", {self.detail}" if self.detail else ""
        end = "" if self.peer is None else f" {'to' if self.name == 'send' else 'from'} {self.peer}"
        return f"{self.name}{end}{what}{detail} (call {self.number})"

    @property
    def digest(self) -> int:
        """A positive number of 62 bits that tells it from others."""
        return int.from_bytes(blake2b(str(self).encode(), digest_size=8).digest()) >> 2


def check_array(x: object) -> Array:
    """An array. Raises ArgumentTypeError for anything else, and for an array of objects."""
    if not isinstance(x, numpy.ndarray) or x.dtype.hasobject:
        raise ArgumentTypeError(
            f"a group exchanges arrays of NumPy, not {type(x).__name__}; tensor.numpy() is one"
        )
    return x


def check_same(calls: Sequence[Call]) -> None:
    """Raises GroupError unless all ranks made the same call."""
    other = next((rank for rank, call in enumerate(calls) if call != calls[0]), None)
    if other is not None:
        raise GroupError(
            f"processes called different collectives: rank 0 {calls[0]}, rank {other} "
            f"{calls[other]}. All must call the same ones, in one order"
        )


def check_fold(fold: str, x: Array) -> None:
    """Raises ArgumentError for an unknown fold, DTypeError for an array that is no numbers."""
    check_array(x)
    if fold not in FOLDS:
        raise ArgumentError(f"fold {fold!r} is unknown; there are {', '.join(FOLDS)}")
    if x.dtype.kind not in "iuf":
        raise DTypeError(f"a {fold} over processes is one of numbers, not of {x.dtype}; cast first")


def check_rows(name: str, x: Array, size: int) -> None:
    """Raises ShapeError for an array that has not one row for each process."""
    if check_array(x).shape[:1] != (size,):
        raise ShapeError(f"{name}: needs one row for each of {size} processes, got shape {x.shape}")


def check_rank(name: str, rank: int, size: int) -> None:
    """Raises ArgumentError for a rank that is not in the group."""
    if not 0 <= rank < size:
        raise ArgumentError(f"{name}: there is no rank {rank} in a group of {size}")
