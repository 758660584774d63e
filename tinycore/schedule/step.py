"""`Step`, one launch of a recipe.

Floor 3.
"""

from __future__ import annotations

from typing import NamedTuple

from tinycore.uop.node import UOp


class Step(NamedTuple):
    """One launch: what to compute, and the numbers of the memory for its slots, outputs first."""

    ast: UOp
    places: tuple[int, ...]
    metadata: tuple[str, ...]
    kernel: UOp
