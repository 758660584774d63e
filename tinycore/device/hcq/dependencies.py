"""Dependencies between launches of a graph by memory overlap, transitively reduced.

Floor 1. Imports nothing. Launches are known by their number in the order in which they were asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

Lane = TypeVar("Lane", bound=Hashable)


class Access(NamedTuple):
    """Bytes of one allocation that a launch touches."""

    root: Hashable
    start: int
    size: int
    writes: bool


def dependencies(launches: Iterable[Sequence[Access]]) -> list[frozenset[int]]:
    """For each launch, the earlier launches that it depends on.

    It comes after the last writers of all it touches, and after the readers of what it writes.
    """
    found: list[frozenset[int]] = []
    live: dict[Hashable, list[tuple[int, Access]]] = defaultdict(list)
    for number, accesses in enumerate(launches):
        before: set[int] = set()
        for access in accesses:
            known = live[access.root]
            before.update(
                other
                for other, old in known
                if (old.writes or access.writes) and _overlap(old, access)
            )
        for access in accesses:
            known = live[access.root]
            if access.writes:  # whoever comes after this comes after what it hides
                known[:] = [one for one in known if not _covers(access, one[1])]
            known.append((number, access))
        found.append(frozenset(before - {number}))
    return found


def _overlap(a: Access, b: Access) -> bool:
    return a.start < b.start + b.size and b.start < a.start + a.size


def _covers(a: Access, b: Access) -> bool:
    return a.start <= b.start and b.start + b.size <= a.start + a.size


def pattern(launches: Iterable[Sequence[Access]]) -> tuple[tuple[int, int, int], ...]:
    """Overlap pattern of the launches' memory; equal patterns have equal dependencies."""
    names: dict[Hashable, int] = {}
    return tuple(
        (names.setdefault(access.root, len(names)), access.start, access.size)
        for accesses in launches
        for access in accesses
    )


def waits(lanes: Sequence[Lane], before: Sequence[Collection[int]]) -> list[dict[Lane, int]]:
    """For each launch the launches of other lanes to wait for, by lane: only the last one of each.

    A lane executes its launches in order. What an earlier wait implies, directly or by what that
    launch had waited for itself, is left out.
    """
    seen: dict[Lane, dict[Lane, int]] = defaultdict(dict)
    when: list[dict[Lane, int]] = []
    result: list[dict[Lane, int]] = []
    for number, (lane, earlier) in enumerate(zip(lanes, before, strict=True)):
        known = seen[lane]
        needed: dict[Lane, int] = {}
        for other in sorted(earlier, reverse=True):
            there = lanes[other]
            if there == lane or known.get(there, -1) >= other:
                continue
            needed[there] = other
            for further, last in when[other].items():
                known[further] = max(last, known.get(further, -1))
        known[lane] = number
        when.append(dict(known))
        result.append(needed)
    return result
