"""Search for kernels that become one, among those of a schedule: one search for every kind.

Floor 3. A group begins with a kernel and admits others: strips of rows (`row_fusion.py`), rows on a
grid (`row_inlining.py`), chains of products (`product_chains.py`). Members of a chain need not be
neighbors: kernels between them run before the chain if they read nothing that it writes, and after
it if they read its results. Of the groups that begin with a kernel, the longest is fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tinycore.schedule.access import Launch
from tinycore.schedule.candidates import Memory, Refusal
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit
from tinycore.schedule.row_fusion import FusionGroup
from tinycore.schedule.row_inlining import RowKernel, folds_rows
from tinycore.trace import Trace

trace = Trace("schedule")

MOST_LOOKED_AT: Final = 16
"""Kernels among which those of a group are searched for."""

Group = FusionGroup | ProductChain | RowKernel
"""Kernels that become one: neighbors, or others as well."""


def fuse_rows(memory: Memory) -> list[Launch]:
    """The kernels of a schedule after fusion."""
    launches, place = [*memory.launches], 0
    while place < len(launches):
        place += not fuse_at(launches, place, memory)
    return launches


def begin(launch: Launch, memory: Memory, chains: bool) -> Group | Refusal:
    """The group that a kernel begins: strips of rows, if wanted a chain of products, or rows on a
    grid."""
    if not memory.is_new(launch) or not memory.is_nest(launch):
        return Refusal.NEST
    if (limits := device_limits(memory.device(launch))) is None:
        return Refusal.CLOSED
    if limits.grid is None:
        return FusionGroup(launch, limits, memory) if launch.is_plain else Refusal.NEST
    if chains and (unit := first_unit(launch, limits)) is not None:
        return ProductChain(launch, limits, memory, unit)
    if not launch.is_row:  # a single element is a row, too
        return Refusal.NEST
    return RowKernel(launch, limits, memory) if folds_rows(launch) else Refusal.ROWS


def fuse_at(launches: list[Launch], place: int, memory: Memory, chains: bool = True) -> bool:
    """Replace the longest group that begins at a place by one kernel, and move what is between its
    members before or after it. False if none begins there."""
    window = launches[place : place + MOST_LOOKED_AT]
    while len((found := longest(window, memory, chains))[0]) > 1:
        members, after, group = found
        assert not isinstance(group, Refusal)
        end, whole = window.index(members[-1]), fused_before(group, memory)
        if isinstance(whole, Launch):
            tell("one kernel", members, f"a {group.kind}")
            before = [other for other in window[:end] if other not in (*members, *after)]
            late = [other for other in window[:end] if other in after]
            launches[place : place + end + 1] = [*before, whole, *late]
            return True
        if whole:
            tell(f"no {group.kind}", members, whole)
        window = window[: end if whole else 1]
    # a sum of squares of a row is a product, too
    return isinstance(found[2], ProductChain) and fuse_at(launches, place, memory, False)


def fused_before(group: Group, memory: Memory) -> Launch | str:
    """The kernel that a group becomes, or a refusal, as another one of the same kernels did."""
    members = group.members
    places = tuple(dict.fromkeys(place for member in members for place in member.places))
    number = {place: n for n, place in enumerate(places)}
    kernels = tuple([(member.ast, *map(number.get, member.places)) for member in members])
    kept = frozenset(map(number.get, memory.kept(members)))
    key = group.kind, memory.nodes[places[0]].device, kernels, kept
    if key not in memory.fused:
        memory.fused[key] = group.fused(), places
    whole, before = memory.fused[key]
    if isinstance(whole, str):
        return whole
    now = dict(zip(before, places, strict=True))
    values = tuple([each for member in members for each in member.groups])
    return Launch(whole.ast, tuple([now[place] for place in whole.places]), values)


def tell(what: str, launches: Iterable[Launch], why: str) -> None:
    """A line of DEBUG=3 on some kernels."""
    if trace.on:
        names = " | ".join(kernel_name(launch.ast) for launch in launches)
        trace(f"{'row fusion':<16} {what}: {names}: {why}")


def longest(
    window: Sequence[Launch], memory: Memory, chains: bool
) -> tuple[list[Launch], list[Launch], Group | Refusal]:
    """The members of the longest group that the first of some kernels begins, those between them
    that read what they write, and the group, which runs after all that it depends on."""
    first, *others = window
    group = begin(first, memory, chains)
    members, after, written, late = [first], list[Launch](), first.written, frozenset[int]()
    for launch in others:
        is_new = memory.is_new(launch)
        if isinstance(group, Refusal):
            refusal: Refusal | None = group
        elif not (is_new and memory.is_nest(launch)):
            refusal = Refusal.NEST
        elif memory.device(launch) != memory.device(first):
            refusal = Refusal.DEVICE
        else:
            refusal = Refusal.UNRELATED if launch.read & late else group.admit(launch)
        if refusal is None:
            members.append(launch)
            written |= launch.written
        elif isinstance(group, Refusal) or not is_new or group.are_neighbors:
            tell("two kernels", (members[-1], launch), refusal.value)
            break
        elif launch.read & (late | written):
            after.append(launch)
            late |= launch.written
    return members, after, group
