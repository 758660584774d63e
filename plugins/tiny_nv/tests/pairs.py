"""Clusters of two groups, which small products of a test have room for."""

from __future__ import annotations

from tiny_nv.boxes import fill_by_boxes
from tinycore.tiling import Filling
from tinycore.uop.node import UOp

PAIR = 2


def fill_in_pairs(filling: Filling) -> dict[UOp, UOp]:
    """Copies of boxes (`Limits.fills`), those in common by two groups for each other."""
    return fill_by_boxes(filling, PAIR)
