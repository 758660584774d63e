"""Do two peers agree? Each sends a digest of its result, small whatever the result's size.

A digest holds some elements and a sum with random signs over all of them, so that neither a wrong
element here and there nor a part that was never computed goes unseen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy

__all__ = ["Digest", "digest", "disagreement", "outliers"]

_ELEMENTS: Final = 512
_BLOCK: Final = 1 << 20

Array = numpy.ndarray[Any, numpy.dtype[Any]]


@dataclass(frozen=True)
class Digest:
    """Compared part of a result."""

    shape: tuple[int, ...]
    elements: tuple[float, ...]
    root_mean_square: float
    signed_sum: float
    """The sum with random signs, divided by the root of the number of elements."""


def digest(array: Array) -> Digest:
    """The digest of a result."""
    flat = numpy.ascontiguousarray(array).reshape(-1)
    generator = numpy.random.default_rng(7)
    places = generator.integers(0, max(flat.size, 1), min(_ELEMENTS, flat.size))
    signs = generator.integers(0, 2, _BLOCK).astype(numpy.float64) * 2 - 1
    squares = total = 0.0
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(numpy.float64)
        squares += float(block @ block)
        total += float(block @ signs[: block.size])
    count = max(flat.size, 1)
    return Digest(
        tuple(array.shape),
        tuple(map(float, flat[places])),
        math.sqrt(squares / count),
        total / math.sqrt(count),
    )


def disagreement(one: Digest, other: Digest, tolerance: float) -> str:
    """Difference of two results in words; empty when they agree."""
    if [n for n in one.shape if n != 1] != [n for n in other.shape if n != 1]:
        return f"shape {one.shape} against {other.shape}"
    scale = max(one.root_mean_square, other.root_mean_square, 1e-30)
    if not math.isfinite(one.signed_sum) or not math.isfinite(other.signed_sum):
        return "an element is infinite or no number"
    pairs = zip(one.elements, other.elements, strict=True)
    apart = max((abs(a - b) for a, b in pairs), default=0.0) / scale
    total = abs(one.signed_sum - other.signed_sum) / scale
    if max(apart, total) > tolerance:
        return f"elements differ by {apart:.1e}, all together by {total:.1e} of their size"
    return ""


def outliers(digests: Mapping[str, Digest], tolerance: float) -> dict[str, str]:
    """Peers that differ from most others, and how. With two that differ, both are named."""
    told: dict[str, str] = {}
    for name, own in digests.items():
        others = {other: theirs for other, theirs in digests.items() if other != name}
        reasons = {other: disagreement(own, theirs, tolerance) for other, theirs in others.items()}
        against = [f"{other}: {reason}" for other, reason in reasons.items() if reason]
        if against and 2 * len(against) > len(others):
            told[name] = "disagrees with " + against[0]
    return told
