"""Which steps of a recipe become one, going through their rows strip by strip.

Floor 3. See `strips.py` for how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.render.base import Limits
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.launch import Launch
from tinycore.schedule.step import Step
from tinycore.schedule.strips import Group
from tinycore.schedule.target import limits_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import is_group

Run = tuple[list[Step], Group | None]


def in_strips(
    steps: Sequence[Step], memory: Sequence[UOp], parameters: int, lasting: frozenset[int]
) -> list[Step]:
    """The steps, with neighbors made one where they can go through the same rows.

    `memory` is by number; of what is not among the first `parameters`, only what is `lasting` is
    read when all steps are done.
    """
    readers = Counter(place for step in steps for place in step.places)
    found: list[Step] = []
    for run, group in runs(steps, memory, parameters):
        if group is None or len(run) == 1:
            found += run
            continue
        inside = Counter(place for step in run for place in step.places)
        kept = frozenset(p for p in inside if p in lasting or readers[p] > inside[p])
        found.append(joined(run, group.kernel(kept), memory))
    return found


def runs(steps: Sequence[Step], memory: Sequence[UOp], parameters: int) -> Iterator[Run]:
    """Neighbors that fit together, and their group; a step that fits with none has no group."""

    def is_new(place: int) -> bool:
        return place >= parameters and memory[place].op is Op.BUFFER

    shared: dict[Hashable, Any] = {}
    run: list[Step] = []
    group: Group | None = None
    device = ""
    for step in steps:
        launch = Launch(step.ast, step.places, shared)
        fits = launch.is_plain and all(map(is_new, launch.written))
        here = memory[step.places[0]].device
        if group is not None and fits and here == device and group.admit(launch):
            run.append(step)
            continue
        if run:
            yield run, group
        run, device = [step], here
        limits = limits_for(device) if fits else None
        group = Group(launch, limits) if limits is not None else None
    if run:
        yield run, group


def limits_for(device: str) -> Limits | None:
    """What strips are cut by; None for a device whose kernels go through none."""
    if is_group(device):
        return None
    try:
        limits = limits_of(device)
    except DeviceError:
        return None  # it cannot compute here, but its kernels can be looked at
    return limits if limits.grid is None else None


def joined(run: Sequence[Step], launch: Launch, memory: Sequence[UOp]) -> Step:
    """One step in place of several."""
    sources = tuple(memory[place] for place in launch.places)
    metadata = tuple(dict.fromkeys(name for step in reversed(run) for name in step.metadata))
    kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(launch.ast, metadata))
    return Step(launch.ast, launch.places, metadata, kernel)
