"""Results that are written over what their kernel reads for the last time.

Floor 3. Where a kernel reads each element of a value only to compute the element of its result that
lies at the same place, and nobody needs that value afterwards, both can be the same memory. The
kernel then has one parameter for the two, as one that an assignment made: so what it is promised,
that its parameters do not overlap, stays true. It is done for the steps at which the most lives,
and for no others: they would be kernels of another kind, and gain nothing.
See docs/decisions/0026-memory-plan.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.launch import elements
from tinycore.schedule.memory import Life
from tinycore.schedule.step import Step
from tinycore.schedule.together import limits_for
from tinycore.uop.node import UOp
from tinycore.uop.op import RECURRENCES, AxisKind, Op

STRANGE: Final = RECURRENCES | frozenset(
    {Op.AFTER, Op.SCAN, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.SPECIAL, Op.BARRIER}
)
"""Ops of kernels that do more than compute each element of a result for itself."""
FEW: Final = 16
"""Terms of a fold up to which memory takes more time than arithmetic."""
TILE_ROWS: Final = 4
"""Rows of a tile of sums that is as fast as any."""


class Overwrite(NamedTuple):
    """A step whose result `made` takes the memory of `dying`, which it reads; both by number."""

    step: int
    dying: int
    made: int


def overwrites(
    steps: Sequence[Step],
    memory: Sequence[UOp],
    lives: Mapping[int, Life],
) -> list[Overwrite]:
    """What to write over what, so that the most of some values that live at once gets less."""
    turns = turning(lives)
    live = live_bytes(lives, len(steps))
    found: list[Overwrite] = []
    most = 0
    for number in sorted(range(len(steps)), key=lambda n: -live[n]):
        if live[number] <= most:
            break
        less = 0
        if number in turns and (pair := next(pairs(steps[number], memory, *turns[number]), None)):
            found.append(Overwrite(number, *pair))
            less = lives[pair[0]].room
        most = max(most, live[number] - less)
    return [one for one in found if live[one.step] > most]


def turning(lives: Mapping[int, Life]) -> dict[int, tuple[list[int], list[int]]]:
    """The steps at which some values die and others begin: these and those."""
    dying: dict[int, list[int]] = defaultdict(list)
    made: dict[int, list[int]] = defaultdict(list)
    for place, life in lives.items():
        dying[life.last].append(place)
        made[life.first].append(place)
    return {step: (dying[step], made[step]) for step in dying.keys() & made.keys()}


def live_bytes(lives: Mapping[int, Life], steps: int) -> list[int]:
    """The bytes that live at each step."""
    change = [0] * (steps + 1)
    for life in lives.values():
        change[life.first] += life.room
        change[life.last + 1] -= life.room
    live, total = [], 0
    for more in change[:-1]:
        total += more
        live.append(total)
    return live


def pairs(
    step: Step, memory: Sequence[UOp], dying: Sequence[int], made: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """What a step may write over what, the largest first."""
    alike = [
        (old, new)
        for old in dying
        for new in made
        if step.places.count(old) == step.places.count(new) == 1
        and old != new
        and memory[old].dtype is memory[new].dtype
        and memory[old].device == memory[new].device
        and memory[old].shape == memory[new].shape
    ]  # fmt: skip
    if not alike or step.ast.op is Op.COPY:
        return
    accesses = Accesses(step.ast, limits_for(memory[alike[0][0]].device))
    if not accesses.is_plain:
        return
    alike.sort(key=lambda pair: -math.prod(memory[pair[0]].shape))
    for old, new in alike:
        if accesses.allow(step.places.index(old), step.places.index(new)):
            yield old, new


class Accesses:
    """Where a kernel reads and writes; `limits` are those of a device that runs its loops."""

    def __init__(self, ast: UOp, limits: Limits | None) -> None:
        self.nodes = ast.toposort()
        self.limits = limits
        self.ends = [n for n in self.nodes if n.op is Op.END]
        self.indexes: dict[int, list[UOp]] = defaultdict(list)
        for node in self.nodes:
            if node.op is Op.INDEX:
                self.indexes[pointer_of(node).arg].append(node)

    @property
    def is_plain(self) -> bool:
        """Whether it is one nest of loops whose steps may be done in any order."""
        return len(self.ends) == 1 and not any(n.op in STRANGE for n in self.nodes)

    def allow(self, old: int, new: int) -> bool:
        """Whether what is stored in one slot may be the memory that is read in another."""
        stores = [n for n in self.nodes if n.op is Op.STORE and n.src[0] in self.indexes[new]]
        if len(stores) != 1 or len(self.indexes[old]) != 1:
            return False
        (store,), (read,) = stores, self.indexes[old]
        if read.src[1:] != store.src[0].src[1:] or len(read.src) != 2:
            return False
        return self.is_read_first(read, store) and self.is_done_once(store) and self.fits(store)

    def is_read_first(self, read: UOp, store: UOp) -> bool:
        """Whether an element is loaded for the value that is stored in its place, in no fold."""
        users = [n for n in self.nodes if read in n.src]
        value = set(store.src[1].toposort())
        folded = UOp.sink(*[n.src[0] for n in self.nodes if n.op is Op.REDUCE]).toposort()
        return all(n.op is Op.LOAD and n in value for n in users) and read not in set(folded)

    def is_done_once(self, store: UOp) -> bool:
        """Whether the loops lead a STORE to each element once."""
        loops = self.ends[0].src[1:]
        if any(r.arg.kind is not AxisKind.LOOP or not r.is_fixed for r in loops):
            return False
        return set(loops) == store.src[0].ranges and self.steps == elements(store.src[0])

    @property
    def steps(self) -> int:
        """How many elements of a result there are."""
        return math.prod(r.extent for r in self.ends[0].src[1:])

    def fits(self, store: UOp) -> bool:
        """Whether it is as fast: no step is done twice, so vectors and tiles must come out even."""
        sizes = [r.extent for r in self.ends[0].src[1:]]
        folds = math.prod(n.vmax + 1 for n in self.nodes if n.op is Op.RANGE) // self.steps
        if self.limits is None:
            return bool(folds <= FEW)
        lanes = max(self.limits.vector_bytes // store.src[1].dtype.itemsize, 1)
        if folds <= FEW:
            return bool(self.steps % lanes == 0)
        return sizes[-1] % lanes == 0 and all(n % TILE_ROWS == 0 for n in sizes if n > TILE_ROWS)


def overwriting(step: Step, dying: int, made: int) -> Step:
    """A step in which a result has the memory of a value that it reads: one slot less."""
    old, new = step.places.index(dying), step.places.index(made)
    slots = {n.arg: n for n in step.ast.toposort() if n.op is Op.DEFINE_GLOBAL}
    moved = {slots[old]: slots[new]}
    for number in range(old + 1, len(slots)):
        moved[slots[number]] = slots[number].replace(arg=number - 1)
    if new > old:
        moved[slots[old]] = moved[slots[new]]
    ast = step.ast.substitute(moved)
    kept = [slot for slot in range(len(slots)) if slot != old]
    sources = (*(step.kernel.src[s] for s in kept), *step.kernel.src[len(slots) :])
    kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(ast, step.metadata))
    return Step(ast, tuple([step.places[s] for s in kept]), step.metadata, kernel)
