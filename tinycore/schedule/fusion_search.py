"""Search for kernels that become one, among the steps of a schedule: one search for every kind.

Floor 3. A group begins with a kernel and admits others: strips of rows (`row_fusion.py`), rows on a
grid (`row_inlining.py`), chains of products (`product_chains.py`). Members of a chain need not be
neighbors: kernels between them run before the chain if they read nothing that it writes, and after
it if they read its results. Of the groups that begin with a kernel, the longest is fused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from tinycore.dtype import dtypes
from tinycore.schedule.access import Launch
from tinycore.schedule.candidates import Memory, Refusal, Run
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel, kernel_name
from tinycore.schedule.limits import device_limits
from tinycore.schedule.product_chains import ProductChain, first_unit
from tinycore.schedule.row_fusion import FusionGroup
from tinycore.schedule.row_inlining import RowKernel, folds_rows
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

trace = Trace("schedule")

MOST_LOOKED_AT: Final = 16
"""Steps among which the kernels of a group are searched for."""

Group = FusionGroup | ProductChain | RowKernel
"""Kernels that become one: neighbors, or others as well."""


def fuse_rows(memory: Memory) -> list[tuple[Step, list[Step]]]:
    """The steps of a schedule after fusion, and the members of each."""
    shared: dict[Hashable, Any] = {}
    runs = [Run([step], Launch(step.ast, step.places, shared)) for step in memory.steps]
    place = 0
    while place < len(runs):
        place += not fuse_at(runs, place, memory)
    return [(fused_step(r, memory) if r.is_fused else r.steps[0], r.steps) for r in runs]


def fused_step(run: Run, memory: Memory) -> Step:
    """The step of a fused kernel in place of its members'."""
    launch, sources = run.launch, tuple([memory.nodes[n] for n in run.launch.places])
    metadata = tuple(dict.fromkeys(name for step in reversed(run.steps) for name in step.metadata))
    kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(launch.ast, metadata))
    return Step(launch.ast, launch.places, metadata, kernel)


def begin(run: Run, memory: Memory, chains: bool) -> Group | Refusal:
    """The group that a kernel begins: strips of rows, if wanted a chain of products, or rows on a
    grid."""
    launch, limits = run.launch, device_limits(memory.device(run))
    if limits is None:
        return Refusal.CLOSED
    if not memory.is_new(launch) or not memory.is_nest(run):
        return Refusal.NEST
    if limits.grid is None:
        return FusionGroup(launch, limits, memory) if launch.is_plain else Refusal.NEST
    if chains and (unit := first_unit(launch, limits)) is not None:
        return ProductChain(launch, limits, memory, unit)
    if not launch.is_row:  # a single element is a row, too
        return Refusal.NEST
    return RowKernel(launch, limits, memory) if folds_rows(launch) else Refusal.ROWS


def fuse_at(runs: list[Run], place: int, memory: Memory, chains: bool = True) -> bool:
    """Replace the longest group that begins at a place by one run, and move what is between its
    members before or after it. False if none begins there."""
    window = runs[place : place + MOST_LOOKED_AT]
    while len((found := longest(window, memory, chains))[0]) > 1:
        members, after, group = found
        assert not isinstance(group, Refusal)
        steps = [step for run in members for step in run.steps]
        end, whole = window.index(members[-1]), fused_before(group, steps, memory)
        if isinstance(whole, Launch):
            tell("one kernel", steps, f"a {group.kind}")
            before = [run for run in window[:end] if run not in members and run not in after]
            late = [run for run in window[:end] if run in after]
            runs[place : place + end + 1] = [*before, Run(steps, whole), *late]
            return True
        if whole:
            tell(f"no {group.kind}", steps, whole)
        window = window[: end if whole else 1]
    # a sum of squares of a row is a product, too
    return isinstance(found[2], ProductChain) and fuse_at(runs, place, memory, False)


def fused_before(group: Group, steps: Sequence[Step], memory: Memory) -> Launch | str:
    """The kernel that a group becomes, or a refusal, as another one of the same kernels did."""
    places = tuple(dict.fromkeys(place for step in steps for place in step.places))
    number = {place: n for n, place in enumerate(places)}
    kernels = tuple([(step.ast, *map(number.get, step.places)) for step in steps])
    kept = frozenset(map(number.get, memory.kept(steps)))
    key = group.kind, memory.nodes[places[0]].device, kernels, kept
    if key not in memory.fused:
        memory.fused[key] = group.fused(steps), places
    whole, before = memory.fused[key]
    if isinstance(whole, str):
        return whole
    now = dict(zip(before, places, strict=True))
    return Launch(whole.ast, tuple([now[place] for place in whole.places]))


def tell(what: str, steps: Iterable[Step], why: str) -> None:
    """A line of DEBUG=3 on some steps."""
    if trace.on:
        names = " | ".join(kernel_name(step.ast) for step in steps)
        trace(f"{'row fusion':<16} {what}: {names}: {why}")


def longest(
    window: Sequence[Run], memory: Memory, chains: bool
) -> tuple[list[Run], list[Run], Group | Refusal]:
    """The members of the longest group that the first of some runs begins, those between them that
    read what they write, and the group, which runs after all that it depends on."""
    first, *others = window
    group = begin(first, memory, chains)
    members, after, written, late = [first], list[Run](), first.launch.written, frozenset[int]()
    for run in others:
        launch, is_new = run.launch, memory.is_new(run.launch)
        if isinstance(group, Refusal):
            refusal: Refusal | None = group
        elif not (is_new and memory.is_nest(run)):
            refusal = Refusal.NEST
        elif memory.device(run) != memory.device(first):
            refusal = Refusal.DEVICE
        else:
            refusal = Refusal.UNRELATED if launch.read & late else group.admit(run)
        if refusal is None:
            members.append(run)
            written |= launch.written
        elif isinstance(group, Refusal) or not is_new or group.are_neighbors:
            tell("two kernels", (members[-1].steps[-1], run.steps[0]), refusal.value)
            break
        elif launch.read & (late | written):
            after.append(run)
            late |= launch.written
    return members, after, group
