"""Interpolation: images read at places between their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tinycore import Tensor, dtypes

__all__ = ["sampled", "taken"]


def taken(image: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Pixels (N, C, P) of images (N, C, *sides) at whole places, one tensor (N, P) for each side.

    Places outside of the image read zero.
    """
    sides = [int(side) for side in image.shape[2:]]
    count, channels = int(image.shape[0]), int(image.shape[1])
    flat, inside = None, None
    for place, side in zip(places, sides, strict=True):
        within = (place >= 0) & (place < side)
        inside = within if inside is None else inside & within
        held = place.clip(0, side - 1)
        flat = held if flat is None else flat * side + held
    assert flat is not None
    assert inside is not None
    index = flat.cast(dtypes.int32).unsqueeze(1).expand(count, channels, flat.shape[1])
    read = image.reshape(count, channels, -1).gather(2, index)
    return inside.unsqueeze(1).where(read, 0)


def sampled(image: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Images (N, C, *sides) at places (N, P) for each side, between the pixels next to them."""
    low = [place.floor() for place in places]
    result = None
    for corner in product((0, 1), repeat=len(places)):
        weight = None
        for place, base, upper in zip(places, low, corner, strict=True):
            part = place - base if upper else 1 - (place - base)
            weight = part if weight is None else weight * part
        assert weight is not None
        pixels = taken(image, [base + upper for base, upper in zip(low, corner, strict=True)])
        term = pixels * weight.unsqueeze(1)
        result = term if result is None else result + term
    assert result is not None
    return result
