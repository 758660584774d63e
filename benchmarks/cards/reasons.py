"""Reasons why a plan stays below what it should reach, from what was counted of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.cards.count import Counts
from benchmarks.cards.judge import Verdict
from benchmarks.cards.machines import Card

__all__ = ["GOAL", "reason_of"]

GOAL: Final = 0.7
"""Share of the limit that a plan should reach."""
BY_PART: Final[Mapping[str, str]] = {
    "matrix": "matrix instructions wait for their operands",
    "arithmetic": "more is computed than the problem asks for, such as indices and conversions",
    "special functions": "exponentials and the like take longer than products",
    "issue": "more instructions are begun than those that compute: addresses, loads, conversions",
    "near memory": "shared memory and the near cache are busy longer than what computes: tiles of "
    "a thread or a subgroup are small for what they load",
    "textures": "texture units give operands more slowly than they are multiplied: tiles of a "
    "thread are small for what it reads",
    "cache": "groups read more from the shared cache than memory gives in that time: operands are "
    "read again by many groups, or pieces in part",
    "memory": "values go to memory between kernels, or operands come from there again",
    "latency": "too few bytes are under way for the time that memory takes",
}
"""Reasons why a plan is below its limit, by the part of the card that it keeps busy longest."""


def reason_of(
    share: float,
    slowest: tuple[Counts, Verdict],
    kernels: int,
    card: Card,
    launches_share: float,
    widened: float = 1.0,
) -> str:
    """Why a plan is below the goal, in words; "" where it is not.

    `launches_share` is that of the slowest of its kernels in the time of all, `widened` the part of
    the peak of halves that is left where they are added up in float32.
    """
    if share >= GOAL:
        return ""
    counts, verdict = slowest
    reasons = []
    if counts.groups < card.units:
        reasons.append(f"{counts.groups} groups for {card.units} units")
    if (reached := min(map(card.reached_by, counts.matrix), default=1.0)) < 1:
        reasons.append(f"its matrix instructions reach {reached} of the peak")
    if widened < 1:
        reasons.append(
            f"halves are multiplied and added up in float32, at {widened:.2f} of the peak of "
            "float16, whose sums would be halves"
        )
    if kernels > 1 and launches_share < GOAL:
        reasons.append(f"{kernels} kernels, which exchange values through memory")
    if counts.conflicts >= 2:
        reasons.append(f"a bank of shared memory serves {counts.conflicts:.1f} threads in turn")
    return "; ".join([*reasons, BY_PART[verdict.slowest]])
