"""Search for kernels that become one, among those of a schedule: one search for every kind.

Floor 3. A group begins with a kernel and admits others: strips of rows (`row_fusion.py`), rows on a
grid (`row_inlining.py`), chains of products (`product_chains.py`). Members of a chain need not be
neighbors: kernels between them run before the chain if they read nothing that it writes, and after
it if they read its results. Of the groups that begin with a kernel, the longest is fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tinycore.schedule import explain
from tinycore.schedule.access import Launch, written_by
from tinycore.schedule.candidates import Group, Memory, Refusal
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit
from tinycore.schedule.row_fusion import FusionGroup
from tinycore.schedule.row_inlining import RowKernel, folds_rows

MOST_LOOKED_AT: Final = 16
"""Kernels among which those of a group are searched for."""


def fuse_rows(memory: Memory) -> list[Launch]:
    """The kernels of a schedule after fusion."""
    launches, place = [*memory.launches], 0
    while place < len(launches):
        place += not fuse_at(launches, place, memory)
    return launches


def begun(launch: Launch, memory: Memory) -> Iterator[Group | Refusal]:
    """The groups that a kernel may begin: strips of rows, a chain of products or rows on a grid;
    why it begins none."""
    if not memory.is_open(launch):
        yield Refusal.NEST
    elif (limits := device_limits(memory.device(launch))) is None:
        yield Refusal.CLOSED
    elif limits.grid is None:
        yield FusionGroup(launch, limits, memory) if launch.is_plain else Refusal.NEST
    else:
        if (unit := first_unit(launch, limits)) is not None:
            yield ProductChain(launch, limits, memory, unit)
        # a sum of squares of a row is a product, too, and a single element is a row
        if not launch.is_row:
            yield Refusal.NEST
        elif limits.block_wanted == 1 or not limits.sums_are_shared:
            yield Refusal.ALONE
        else:
            yield RowKernel(launch, limits, memory) if folds_rows(launch) else Refusal.ROWS


def fuse_at(launches: list[Launch], place: int, memory: Memory) -> bool:
    """Replace the longest group that begins at a place by one kernel, and move what is between its
    members before or after it. False if none begins there."""
    window = launches[place : place + MOST_LOOKED_AT]
    for group in begun(window[0], memory):
        if isinstance(group, Refusal):
            tell("two kernels", window[:2], group.value)
            continue
        late, members = fill(group, window[1:]), group.members
        while len(members) > 1:
            whole, end = fused_before(group, memory), window.index(members[-1])
            if isinstance(whole, Launch):
                tell("one kernel", members, f"a {group.kind}")
                others = [other for other in window[:end] if other not in members]
                before = [other for other in others if other not in late]
                after = [other for other in others if other in late]
                launches[place : place + end + 1] = [*before, whole, *after]
                return True
            if whole:
                tell(f"no {group.kind}", members, whole)
            members.pop()
    return False


def fill(group: Group, others: Iterable[Launch]) -> list[Launch]:
    """Fill a group with all that it admits of the kernels after its first one; those between them
    that read what members write, or one another, and so run after the group."""
    late, written = list[Launch](), group.members[0].written
    for launch in others:
        is_late = not written_by(late).isdisjoint(launch.read)
        refusal = Refusal.UNRELATED if is_late else group.admit(launch)
        if refusal is None:
            written |= launch.written
        elif group.are_neighbors or not group.memory.is_new(launch):
            tell("two kernels", (group.members[-1], launch), refusal.value)
            break
        elif is_late or launch.read & written:
            late.append(launch)
    return late


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
    if explain.trace.on:
        names = " | ".join(kernel_name(launch.ast) for launch in launches)
        explain.tell("row fusion", f"{what}: {names}: {why}")
