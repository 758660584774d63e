"""Random choices that are the same on every Python and platform, and the data of inputs.

Everything is made of `Random.random()`, the one method of which Python promises the same
sequence for the same seed in every version.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from tinycore.dtype import DType, dtypes
from tinycore.uop.shape import Shape

Item = TypeVar("Item")

SIGNIFICANT_BITS = {
    dtypes.bfloat16: 8,
    dtypes.float16: 11,
    dtypes.float32: 24,
    dtypes.float64: 40,
}
"""Bits of input numbers: as many as the dtype holds, so that nothing is rounded."""


class Draw:
    """A stream of random choices."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random

    def below(self, count: int) -> int:
        """One of 0 .. count - 1."""
        return int(self.random() * count)

    def between(self, low: int, high: int) -> int:
        """One of low .. high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """One of several, each as likely."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[Item, float]]) -> Item:
        """One of several, as likely as its weight."""
        rest = self.random() * sum(weight for _, weight in items)
        for item, weight in items:
            rest -= weight
            if rest < 0:
                return item
        return items[-1][0]

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """`count` different ones, in random order."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def subset(self, items: Sequence[Item]) -> list[Item]:
        """Any of them, at least one, in their order."""
        chosen = set(self.sample(range(len(items)), self.between(1, len(items))))
        return [item for place, item in enumerate(items) if place in chosen]


class Content(enum.Enum):
    """Kinds of elements of an input."""

    NUMBERS = "numbers of the interval, with all the bits of their dtype"
    WHOLE = "whole numbers of the interval, both ends included"
    DISTINCT = "whole numbers of the interval, none twice along the first axis"


@dataclass(frozen=True)
class Input:
    """A tensor that a program starts from."""

    name: str
    shape: Shape
    dtype: DType
    content: Content
    low: float
    high: float
    seed: int

    def data(self) -> NDArray[numpy.generic]:
        """The elements: float64, int64 or bool, each of which the dtype represents exactly."""
        draw, count = Draw(self.seed), math.prod(self.shape)
        if self.content is Content.NUMBERS:
            drawn: list[float] = [self.number(draw) for _ in range(count)]
        elif self.content is Content.WHOLE:
            drawn = [draw.between(int(self.low), int(self.high)) for _ in range(count)]
        else:
            drawn = list(self.distinct(draw, count))
        kind = "float64" if dtypes.is_float(self.dtype) else "int64"
        kind = "bool" if self.dtype is dtypes.bool else kind
        return numpy.array(drawn, dtype=kind).reshape(self.shape)

    def number(self, draw: Draw) -> float:
        """A float of the interval, a whole number of steps that the dtype represents."""
        exponent = math.frexp(max(abs(self.low), abs(self.high)))[1]
        step = math.ldexp(1, exponent - SIGNIFICANT_BITS[self.dtype])
        first, last = -int(-self.low // step), int(self.high // step)
        return draw.between(first, last) * step

    def distinct(self, draw: Draw, count: int) -> list[int]:
        """Columns of different numbers, row by row."""
        rows = self.shape[0] if self.shape else 1
        numbers = range(int(self.low), int(self.high) + 1)
        columns = [draw.sample(numbers, rows) for _ in range(count // rows if rows else 0)]
        return [column[row] for row in range(rows) for column in columns]
