"""The search of chains of products among the steps of a schedule.

Floor 3. The kernels of a chain need not be neighbors: others between them run before it if they
read nothing of theirs, and after it if they read its results. `product_chains.py` says what a chain
is; the longest one that is planned as such is taken, so that what a plan refuses stays apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tinycore.render.base import Limits
from tinycore.schedule.access import Launch
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit, refusal_by_plan
from tinycore.trace import Trace
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace = Trace("schedule")

MOST_LOOKED_AT: Final = 16
"""Steps among which the kernels of a chain of products are looked for."""

Kept = Callable[[Sequence[Step]], frozenset[int]]
Entry = tuple[list[Step], ProductChain | None]
"""A step alone, or the members of a chain of products."""


class FoundChain(NamedTuple):
    """A chain of products among some entries."""

    replaced: Sequence[Entry]
    entries: Sequence[Entry]
    """The same with the chain as one: after what it depends on, before what depends on it."""
    members: Sequence[Step]
    chain: ProductChain


class ChainSearch:
    """The entries from the first kernel of a chain of products on: its members, and the others."""

    def __init__(
        self, first: Step, launch: Launch, device: str, limits: Limits, unit: MatrixUnit
    ) -> None:
        self.chain = ProductChain(launch, device, limits, unit)
        self.device = device
        self.members = [first]
        self.before: list[Entry] = []
        self.after: list[Entry] = []
        self.written_after: set[int] = set()
        """Memory of those that read what the chain computes."""

    def take(self, entry: Entry, launches: Sequence[Launch], device: str) -> bool | None:
        """Add an entry: True for a new member, False for another step; None where it is neither."""
        run, made = entry
        read = frozenset().union(*(launch.read for launch in launches))
        is_late = not read.isdisjoint(self.written_after)
        if not is_late and read.isdisjoint(self.chain.places):
            self.before.append(entry)
            return False
        is_alone = made is None and not is_late and device == self.device
        if is_alone and self.chain.admit(launches[0]):
            self.members.append(run[0])
            return True
        if read & self.chain.scores:
            return None
        self.after.append(entry)
        self.written_after.update(*(launch.written for launch in launches))
        return False

    def with_chain(self, replaced: Sequence[Entry]) -> FoundChain:
        """The entries with the members as one."""
        first, *others = (Launch(step.ast, step.places) for step in self.members)
        whole = ProductChain(first, self.device, self.chain.limits, self.chain.unit)
        for launch in others:
            whole.admit(launch)
        members = list(self.members)
        entries = (*self.before, (members, whole), *self.after)
        return FoundChain(replaced, entries, members, whole)


def chain_from(
    entries: Sequence[Entry], memory: Sequence[UOp], parameters: int, kept_of: Kept
) -> FoundChain | None:
    """The longest chain of products that begins with the first of some entries, if one does."""
    (first, *_), made = entries[0]
    device = memory[first.places[0]].single_device
    limits = device_limits(device)
    if made is not None or limits is None or limits.grid is None or not limits.matrix:
        return None
    launch = Launch(first.ast, first.places)
    unit = first_unit(launch, limits)
    if unit is None or not is_new_memory(launch, memory, parameters):
        return None
    search = ChainSearch(first, launch, device, limits, unit)
    found: list[FoundChain] = []
    names, refusal = "", None
    for count, entry in enumerate(entries[1:], 2):
        launches = [Launch(step.ast, step.places, launch.shared) for step in entry[0]]
        if not all(is_new_memory(one, memory, parameters) for one in launches):
            break
        is_member = search.take(entry, launches, memory[entry[0][0].places[0]].single_device)
        if is_member is None:
            break
        if not is_member or search.chain.column is None:
            continue
        refusal = search.chain.refusal(kept_of(search.members))
        names = listed_names(search.members)
        if refusal is None:
            found.append(search.with_chain(entries[:count]))
    for longest in reversed(found):
        names, kept = listed_names(longest.members), kept_of(longest.members)
        refusal = refusal_by_plan(longest.chain.fuse(kept).ast, limits)
        if refusal is None:
            trace_chain(f"one kernel: {names}: a chain of products")
            return longest
    if refusal is not None:
        trace_chain(f"no chain of products: {names}: {refusal}")
    return None


def listed_names(members: Sequence[Step]) -> str:
    """The names of some kernels."""
    return ", ".join(kernel_name(member.ast) for member in members)


def trace_chain(line: str) -> None:
    """A line of DEBUG=3 on a chain of products."""
    if trace.on:
        trace(f"{'row fusion':<16} {line}")


def is_new_memory(launch: Launch, memory: Sequence[UOp], parameters: int) -> bool:
    """True if a kernel writes memory alone that the schedule makes."""
    return all(p >= parameters and memory[p].op is Op.BUFFER for p in launch.written)
