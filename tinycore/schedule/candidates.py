"""Candidates of fusion: kernels of a schedule, the memory that they use, and why some stay apart.

Floor 3. `fusion_search.py` searches. What any `Group` asks of a kernel is here; what is asked of
loops and costs is up to its kind: `row_fusion.py`, `row_inlining.py` and `product_chains.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from tinycore.render.base import Limits
from tinycore.schedule.access import Launch, written_by
from tinycore.schedule.kernel import custom_of
from tinycore.schedule.nests import KernelGroups
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Refusal(Enum):
    """Why a kernel does not join the group before it, as DEBUG=3 says it."""

    NEST = "one of them is not a single nest of plain loops that writes new memory"
    DEVICE = "they run on different devices"
    CLOSED = "the device cannot be opened"
    FULL = "as many kernels are fused already as may be"
    UNRELATED = "the second reads too little of what the first touches"
    OVERWRITTEN = "the second writes what the first reads or writes"
    PRODUCTS = "as many matrix products are fused already as may be"
    ROWS = "the second reads rows of the first other than the one being written"
    COLUMNS = "what one of them folds does not lie side by side"
    CACHE = "no strip of rows fits the cache"
    UNIT = "one of them is a product that the matrix unit computes by whole tiles"
    ALONE = "threads of the device's groups share no sums"
    COST = "its rows are too few for the units of the device: apart they take fewer clocks"


@dataclass
class Memory:
    """The memory of a schedule by its number, and who uses it."""

    launches: Sequence[Launch]
    nodes: Sequence[UOp]
    """Memory by number."""
    parameters: int
    persistent: frozenset[int]
    """Memory beyond the first `parameters` that is read when all steps are done."""
    groups: KernelGroups
    """The values of all kernels."""
    fused: dict[Hashable, tuple[Launch | str, tuple[int, ...]]] = field(default_factory=dict)
    """Kernels or refusals that groups became, by their kernels and the memory these have in common;
    and the memory of the first such group."""

    @cached_property
    def numbers(self) -> dict[UOp, int]:
        """The number of each memory."""
        return {node: number for number, node in enumerate(self.nodes)}

    @cached_property
    def uses(self) -> Counter[int]:
        """The number of kernels that use each memory."""
        return Counter(place for launch in self.launches for place in launch.places)

    def kept(self, members: Sequence[Launch]) -> frozenset[int]:
        """The memory of fused kernels that others use, or that is read when all are done."""
        inside = Counter(place for member in members for place in member.places)
        return frozenset([p for p in inside if p in self.persistent or self.uses[p] > inside[p]])

    def is_new(self, launch: Launch) -> bool:
        """True if a kernel writes only memory that the schedule allocates."""
        return all(p >= self.parameters and self.nodes[p].op is Op.BUFFER for p in launch.written)

    def is_open(self, launch: Launch) -> bool:
        """True if such a kernel is not fused yet, and its values are known: none by hand."""
        is_known = len(launch.groups) == 1 and custom_of(launch.groups[0].first) is None
        return is_known and self.is_new(launch)

    def device(self, launch: Launch) -> str:
        """The device of a kernel."""
        return self.nodes[launch.places[0]].single_device


class Group:
    """Kernels that become one over loops that they share; it begins with one and admits others."""

    kind = ""
    are_neighbors = True
    """True if nothing else may run between them."""
    most = 8
    """Most kernels, by the time that lowering takes."""

    def __init__(self, first: Launch, limits: Limits, memory: Memory) -> None:
        self.members, self.limits, self.memory = [first], limits, memory

    def admit(self, launch: Launch) -> Refusal | None:
        """Add a kernel if it may be one with the others and gains by it; else say why not."""
        if not (self.memory.is_open(launch) and self.is_nest(launch)):
            return Refusal.NEST
        if self.memory.device(launch) != self.memory.device(self.members[0]):
            return Refusal.DEVICE
        if len(self.members) >= self.most:
            return Refusal.FULL
        if not (launch.read & written_by(self.members) or self.is_related(launch)):
            return Refusal.UNRELATED
        # nothing orders members but what they read
        if any(launch.written & m.touched for m in self.members):
            return Refusal.OVERWRITTEN
        if (refusal := self.refusal(launch)) is None:
            self.members.append(launch)
        return refusal

    def is_nest(self, launch: Launch) -> bool:
        """True if the loops of a kernel are of the kind that this group shares."""
        return launch.is_row

    def is_related(self, launch: Launch) -> bool:
        """True if a kernel that reads no results of members gains by being one with them."""
        return False

    def refusal(self, launch: Launch) -> Refusal | None:
        """Why loops or costs keep a kernel apart; None if they do not."""
        raise NotImplementedError

    def fused(self) -> Launch | str:
        """The members as one kernel; as text, why they are none."""
        raise NotImplementedError
