"""Lifetimes of shared arrays: which may lie in the same memory, since their lives do not meet.

Floor 2. Interference as of registers in a compiler. Threads of a group run apart between barriers,
so a life ends at a barrier behind its last access: arrays interfere unless all threads meet between
them. In a loop they meet between its steps too, or the arrays interfere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tinycore.uop.instruction import reads_memory
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Path = tuple[int, ...]
"""Place of a node: its number in the program below each loop around it, outermost first."""


@dataclass
class Life:
    """The accesses of one array, in program order."""

    paths: list[Path] = field(default_factory=list)
    is_written_first: bool = False
    is_kept: bool = False
    """True if copies or matrix units access it by themselves, at times that are not those of
    their instructions."""


def arrays_apart(uops: Iterable[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each shared array those that may lie in the same memory."""
    lives, barriers = lives_of(uops)
    own = {array: life for array, life in lives.items() if not life.is_kept}
    return {
        array: frozenset(o for o in own if o is not array and are_apart(life, own[o], barriers))
        for array, life in own.items()
    }


def lives_of(uops: Iterable[UOp]) -> tuple[dict[UOp, Life], list[Path]]:
    """The life of each array that is accessed, and the places of barriers."""
    lives: dict[UOp, Life] = {}
    barriers: list[Path] = []
    around: list[int] = []
    for number, u in enumerate(uops):
        if u.op is Op.END:
            del around[len(around) - len(u.src) + 1 :]
        path = (*around, number)
        if u.op is Op.BARRIER and u.arg is None:
            barriers.append(path)
        for array in accessed(u):
            life = lives.setdefault(array, Life(is_written_first=u.op is Op.STORE))
            life.paths.append(path)
            # What has an alignment of its own is read by a unit, or written, meanwhile.
            is_plain = u.op is Op.STORE or (reads_memory(u) and not getattr(u.arg, "alignment", 0))
            life.is_kept |= not is_plain
        if u.op is Op.RANGE:
            around.append(number)
    return lives, barriers


def accessed(u: UOp) -> list[UOp]:
    """The shared arrays that a node accesses."""
    if u.op is Op.INDEX:
        return []
    found = (s.src[0] if s.op is Op.INDEX else s for s in u.src)
    return [array for array in dict.fromkeys(found) if array.op is Op.DEFINE_LOCAL]


def are_apart(one: Life, other: Life, barriers: Iterable[Path]) -> bool:
    """True if all threads meet between the accesses of two arrays, and between steps of the loop
    that both are in.
    """
    common = shared_prefix([*one.paths, *other.paths])
    depth = len(common)
    spans = sorted((min(p[depth] for p in life.paths), max(p[depth] for p in life.paths))
                   for life in (one, other))  # fmt: skip
    (first, last), (begin, end) = spans
    if last >= begin:
        return False
    meetings = [p[depth] for p in barriers if len(p) == depth + 1 and p[:depth] == common]
    if not any(last < at < begin for at in meetings):
        return False
    if not common:
        return True
    # In a loop the first one follows the second, and neither has a value of the step before.
    starts_anew = one.is_written_first and other.is_written_first
    return starts_anew and any(at < first or at > end for at in meetings)


def shared_prefix(paths: Sequence[Path]) -> Path:
    """The loops around all of some nodes."""
    first, last = min(paths), max(paths)
    depth = 0
    while depth < min(len(first), len(last)) - 1 and first[depth] == last[depth]:
        depth += 1
    return first[:depth]
