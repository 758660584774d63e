"""Plans by hand, checked as those of a search are."""

from __future__ import annotations

from collections.abc import Iterable

from tinycore.errors import ArgumentError
from tinycore.lower.legality import problem_of
from tinycore.lower.tile import Step, apply_plan
from tinycore.render.base import Limits
from tinycore.uop.node import UOp


def applied(kernel: UOp, plan: Iterable[Step], limits: Limits) -> UOp:
    """The kernel with every step done. Raises ArgumentError for one that no device can launch."""
    tiled = apply_plan(kernel, plan)
    if problem := problem_of(tiled, limits):
        raise ArgumentError(problem)
    return tiled
