"""Search for chains of products among the steps of a schedule.

Floor 3. The kernels of a chain need not be neighbors. Other kernels between them run before the
chain if they read nothing that it writes, and after the chain if they read its results.
`product_chains.py` defines chains. Of the chains that begin with a kernel, the longest is fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from tinycore.schedule.access import Launch, written_by
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace = Trace("schedule")

MOST_LOOKED_AT: Final = 16
"""Steps among which the kernels of a chain of products are searched for."""


class Run(NamedTuple):
    """Steps, and the kernel that computes all of them; None for steps by themselves."""

    steps: list[Step]
    fused: Launch | None = None


class Memory:
    """The memory of a schedule by its number, and who uses it."""

    def __init__(
        self,
        steps: Sequence[Step],
        nodes: Sequence[UOp],
        parameters: int,
        persistent: frozenset[int],
    ) -> None:
        self.nodes = nodes
        self.parameters = parameters
        self.persistent = persistent
        self.uses = Counter(place for step in steps for place in step.places)

    def kept(self, steps: Sequence[Step]) -> frozenset[int]:
        """The memory of fused steps that others use, or that is read when all are done."""
        inside = Counter(place for step in steps for place in step.places)
        return frozenset([p for p in inside if p in self.persistent or self.uses[p] > inside[p]])

    def is_new(self, launch: Launch) -> bool:
        """True if a kernel writes only memory that the schedule allocates."""
        return all(p >= self.parameters and self.nodes[p].op is Op.BUFFER for p in launch.written)

    def device(self, step: Step) -> str:
        """The device of a step."""
        return self.nodes[step.places[0]].single_device


def fuse_chain(runs: list[Run], place: int, memory: Memory) -> bool:
    """Replace some runs by others and the longest chain of products that the run at a place begins;
    False if it begins none.

    The chain is behind all that it depends on.
    """
    first, *others = runs[place : place + MOST_LOOKED_AT]
    if (chain := chain_of(first, memory)) is None:
        return False
    members, longest, told = first.steps[:], None, ""
    before: list[Run] = []
    after: list[Run] = []
    late: set[int] = set()
    for end, run in enumerate(others, place + 2):
        launches = [Launch(step.ast, step.places, chain.shared) for step in run.steps]
        read = frozenset().union(*(launch.read for launch in launches))
        if not all(map(memory.is_new, launches)):
            break
        if read.isdisjoint(late | chain.stored.keys()):
            before.append(run)
            continue
        is_near = memory.device(run.steps[0]) == memory.device(members[0])
        is_candidate = run.fused is None and is_near and read.isdisjoint(late)
        if is_candidate and chain.admit(launches[0]):
            members += run.steps
            if chain.column is None:
                continue
            whole = chain.fused(memory.kept(members))
            names = ", ".join(kernel_name(member.ast) for member in members)
            if isinstance(whole, Launch):
                told = f"one kernel: {names}: a chain of products"
                longest = end, [*before, Run(members[:], whole), *after]
            elif longest is None:
                told = f"no chain of products: {names}: {whole}"
        elif read & chain.scores:
            break
        else:
            after.append(run)
            late |= written_by(launches)
    if trace.on and told:
        trace(f"{'row fusion':<16} {told}")
    if longest is not None:
        runs[place : longest[0]] = longest[1]
    return longest is not None


def chain_of(run: Run, memory: Memory) -> ProductChain | None:
    """The chain of products that a step may begin; None if it cannot."""
    step = run.steps[0]
    limits = device_limits(memory.device(step))
    if run.fused is not None or limits is None:
        return None
    launch = Launch(step.ast, step.places)
    unit = first_unit(launch, limits)
    return None if unit is None or not memory.is_new(launch) else ProductChain(launch, limits, unit)
