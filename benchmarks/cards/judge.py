"""The time that a launch would take on each part of a card, beside the least that is possible.

A card is as fast as its slowest part: matrix instructions, arithmetic, instructions begun, near
memory (shared memory and the cache of a unit), texture units, the shared cache, memory. Where
nothing overlaps a fill of shared memory, since one group is resident and copies are not
asynchronous, they add up. Before all of them the first load is waited for: no launch takes less
than a memory's latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.cards.count import Counts
from benchmarks.cards.machines import Card

__all__ = ["Verdict", "in_turn", "judged", "resident_groups"]

REGISTERS_AT_ONCE: Final = 8
"""Registers of a thread are given out in steps of so many."""
LONGEST_GROUPS: Final = 32
"""Groups of a unit, whatever their size."""


@dataclass(frozen=True)
class Verdict:
    """Seconds of a launch, by part, and what the launch occupies."""

    parts: Mapping[str, float]
    resident: int
    """Groups that a unit has at once."""
    occupancy: float
    """Threads resident, of those there could be."""
    registers: int
    begun: float
    """Seconds until the first operand is there."""

    @property
    def slowest(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def seconds(self) -> float:
        """The time of a launch."""
        return self.begun + self.parts[self.slowest]


def resident_groups(counts: Counts, card: Card, registers: int) -> int:
    """Groups that a unit has at once: what fits its threads, registers and shared memory."""
    subgroups = -(-counts.threads // card.subgroup) * card.subgroup
    each = -(-max(registers, 1) // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    room = [card.threads // subgroups, card.registers // (4 * each * subgroups), LONGEST_GROUPS]
    if counts.shared_bytes:
        room.append(card.shared_bytes // counts.shared_bytes)
    return max(min(room), 1)


def in_turn(subgroups: int, card: Card) -> int:
    """Subgroups that a unit has time for until the last of some is done: its partitions execute one
    each at a time."""
    partitions = max(card.lanes // card.subgroup, 1)
    return -(-subgroups // partitions) * partitions


def judged(counts: Counts, card: Card, moved: float, registers: int) -> Verdict:
    """The times of a launch that moves some bytes of memory."""
    resident = resident_groups(counts, card, registers)
    most = math.ceil(counts.groups / card.units)
    busy = min(resident, most)
    matrix = sum(
        times * 2 * unit.m * unit.n * unit.k
        / (card.matrix.get(unit.a.name, card.vector_rate) / card.units / card.hertz)
        / card.reached_by(unit)
        for unit, times in counts.matrix.items()
    )  # fmt: skip
    subgroups = in_turn(-(-counts.threads // card.subgroup) * most, card) / most
    arithmetic = counts.arithmetic * subgroups * card.subgroup / card.lanes
    issued = counts.instructions * subgroups / card.issued
    special = counts.special * counts.threads / card.special if counts.special else 0.0
    lines = counts.lines * card.line_clocks
    near = (max if card.has_lds else sum)((counts.shared_clocks, lines))
    textures = counts.texels / card.texels if counts.texels else 0.0
    if not counts.overlaps and busy == 1 and counts.shared_bytes:
        matrix, arithmetic = matrix + near, arithmetic + near
    unit = most / card.hertz
    flying = busy * counts.threads * counts.in_flight * card.units
    waited = min(1.0, flying / (card.dram * card.latency)) if flying else 1.0
    parts = {
        "matrix": matrix * unit,
        "arithmetic": arithmetic * unit,
        "special functions": special * unit,
        "issue": issued * unit,
        "near memory": near * unit,
        "textures": textures * unit,
        "cache": counts.far_bytes / card.cache,
        "memory": moved / card.dram / max(waited, 1e-3),
    }
    if waited < 1 and parts["memory"] == max(parts.values()):
        parts["latency"] = parts.pop("memory")
    occupancy = busy * counts.threads / card.threads
    return Verdict(parts, resident, min(occupancy, 1.0), registers, card.latency)
