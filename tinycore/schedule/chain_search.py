"""Search for chains of products among the steps of a schedule.

Floor 3. The kernels of a chain need not be neighbors. Other kernels between them run before the
chain if they read nothing that it writes, and after the chain if they read its results.
`product_chains.py` defines chains. Of the chains that begin with a kernel, the longest is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from tinycore.render.base import Limits
from tinycore.schedule.access import Launch
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit
from tinycore.trace import Trace
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace = Trace("schedule")

MOST_LOOKED_AT: Final = 16
"""Steps among which the kernels of a chain of products are searched for."""

Kept = Callable[[Sequence[Step]], frozenset[int]]
"""Function from fused steps to the memory of theirs that must be stored."""


class Entry(NamedTuple):
    """A step by itself, or the members of a chain of products."""

    steps: list[Step]
    chain: ProductChain | None = None


class Role(Enum):
    """The place of a step relative to a chain of products under construction."""

    MEMBER = "it continues the chain"
    OTHER = "it runs before or after the chain"
    END = "it reads scores but cannot be a member, so the chain ends before it"


class FoundChain(NamedTuple):
    """A chain of products among some entries."""

    replaced: Sequence[Entry]
    entries: Sequence[Entry]
    """The replaced entries, with the members as one: behind all that it depends on."""


class ChainSearch:
    """The entries from the first kernel of a chain of products on: its members, and the others."""

    def __init__(
        self, first: Step, launch: Launch, device: str, limits: Limits, unit: MatrixUnit
    ) -> None:
        self.chain = ProductChain(launch, device, limits, unit)
        self.device = device
        self.shared = launch.shared
        """Memoized answers of access analysis, shared by all launches."""
        self.members = [first]
        self.before: list[Entry] = []
        self.after: list[Entry] = []
        self.written_after: set[int] = set()
        """Memory that the entries of `after` write."""

    def take(self, entry: Entry, launches: Sequence[Launch], device: str) -> Role:
        """Add the next entry; nothing is added if the chain ends before it."""
        read = frozenset().union(*(launch.read for launch in launches))
        is_late = not read.isdisjoint(self.written_after)
        if not is_late and read.isdisjoint(self.chain.stored):
            self.before.append(entry)
            return Role.OTHER
        is_candidate = entry.chain is None and not is_late and device == self.device
        if is_candidate and self.chain.admit(launches[0]):
            self.members.append(entry.steps[0])
            return Role.MEMBER
        if read & self.chain.scores:
            return Role.END
        self.after.append(entry)
        self.written_after.update(*(launch.written for launch in launches))
        return Role.OTHER

    def with_chain(self, replaced: Sequence[Entry]) -> FoundChain:
        """The entries with the members as one."""
        first, *others = (Launch(step.ast, step.places) for step in self.members)
        whole = ProductChain(first, self.device, self.chain.limits, self.chain.unit)
        for launch in others:
            whole.admit(launch)
        entries = (*self.before, Entry([*self.members], whole), *self.after)
        return FoundChain(replaced, entries)


def chain_from(
    entries: Sequence[Entry], memory: Sequence[UOp], parameters: int, kept_of: Kept
) -> FoundChain | None:
    """The longest chain of products that begins with the first of some entries, if there is one."""
    search = search_from(entries[0], memory, parameters)
    if search is None:
        return None
    longest: FoundChain | None = None
    names, refusal, fused = "", None, ""
    for count, entry in enumerate(entries[1:], 2):
        launches = [Launch(step.ast, step.places, search.shared) for step in entry.steps]
        if not all(is_new_memory(launch, memory, parameters) for launch in launches):
            break
        role = search.take(entry, launches, memory[entry.steps[0].places[0]].single_device)
        if role is Role.END:
            break
        if role is Role.OTHER or search.chain.column is None:
            continue
        names, refusal = listed_names(search.members), search.chain.refusal(kept_of(search.members))
        if refusal is None:
            longest, fused = search.with_chain(entries[:count]), names
    if longest is not None:
        trace_chain(f"one kernel: {fused}: a chain of products")
    elif refusal is not None:
        trace_chain(f"no chain of products: {names}: {refusal}")
    return longest


def search_from(entry: Entry, memory: Sequence[UOp], parameters: int) -> ChainSearch | None:
    """The search for a chain that begins with the kernel of an entry; None if it cannot."""
    first = entry.steps[0]
    device = memory[first.places[0]].single_device
    limits = device_limits(device)
    if entry.chain is not None or limits is None or limits.grid is None or not limits.matrix:
        return None
    launch = Launch(first.ast, first.places)
    unit = first_unit(launch, limits)
    if unit is None or not is_new_memory(launch, memory, parameters):
        return None
    return ChainSearch(first, launch, device, limits, unit)


def listed_names(members: Sequence[Step]) -> str:
    """The names of some kernels."""
    return ", ".join(kernel_name(member.ast) for member in members)


def trace_chain(line: str) -> None:
    """A line of DEBUG=3 on a chain of products."""
    if trace.on:
        trace(f"{'row fusion':<16} {line}")


def is_new_memory(launch: Launch, memory: Sequence[UOp], parameters: int) -> bool:
    """True if a kernel writes only memory that the schedule allocates."""
    return all(p >= parameters and memory[p].op is Op.BUFFER for p in launch.written)
