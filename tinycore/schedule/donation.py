"""Buffer donation: a kernel writes its result over an operand that it reads for the last time.

Floor 3. In-place reuse, in the terms of XLA donation. Legal where the kernel reads each element of
the operand only to compute the element of its result at the same place, and no later step reads the
operand. The kernel then has one parameter for both, as the kernel of an assignment has, so the
promise that parameters do not overlap stays true. Reuse happens only at the steps where most memory
is live: anywhere else it gains nothing, and the kernel would be one more to compile.
See docs/decisions/0026-memory-plan.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel
from tinycore.schedule.launch import elements
from tinycore.schedule.memory import Life, live_bytes
from tinycore.schedule.row_fusion import row_limits
from tinycore.uop.node import UOp
from tinycore.uop.op import RECURRENCES, AxisKind, Op

NOT_ELEMENTWISE: Final = RECURRENCES | frozenset(
    {Op.AFTER, Op.SCAN, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.SPECIAL, Op.BARRIER}
)
"""Ops of kernels that do more than compute each element of a result on its own."""
SHORT_REDUCTION: Final = 16
"""Terms of a reduction up to which a kernel is bound by memory, not by arithmetic."""
TILE_ROWS: Final = 4
"""Rows of the smallest register tile that is as fast as any."""


class Reuse(NamedTuple):
    """In-place reuse: the result `defined` of a step takes the memory of its operand `dying`."""

    step: int
    dying: int
    defined: int


def find_reuses(
    steps: Sequence[Step],
    memory: Sequence[UOp],
    lives: Mapping[int, Life],
) -> list[Reuse]:
    """In-place reuses that lower peak memory.

    Steps are visited by live bytes, most first, until the next one is below the peak that is left.
    """
    handoffs = find_handoffs(lives)
    live = live_bytes(lives.values(), len(steps))
    found: list[Reuse] = []
    most = 0
    for number in sorted(range(len(steps)), key=lambda n: -live[n]):
        if live[number] <= most:
            break
        less = 0
        if number in handoffs and (
            pair := next(legal_pairs(steps[number], memory, *handoffs[number]), None)
        ):
            found.append(Reuse(number, *pair))
            less = lives[pair[0]].room
        most = max(most, live[number] - less)
    return [one for one in found if live[one.step] > most]


def find_handoffs(lives: Mapping[int, Life]) -> dict[int, tuple[list[int], list[int]]]:
    """Steps that are the last use of some values and the definition of others: (dying, defined)."""
    dying: dict[int, list[int]] = defaultdict(list)
    defined: dict[int, list[int]] = defaultdict(list)
    for place, life in lives.items():
        dying[life.last].append(place)
        defined[life.first].append(place)
    return {step: (dying[step], defined[step]) for step in dying.keys() & defined.keys()}


def legal_pairs(
    step: Step, memory: Sequence[UOp], dying: Sequence[int], defined: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """(operand, result) pairs that may share memory in a step, the largest first."""
    alike = [
        (old, new)
        for old in dying
        for new in defined
        if step.places.count(old) == step.places.count(new) == 1
        and old != new
        and memory[old].dtype is memory[new].dtype
        and memory[old].device == memory[new].device
        and memory[old].shape == memory[new].shape
    ]  # fmt: skip
    if not alike or step.ast.op is Op.COPY:
        return
    accesses = Accesses(step.ast, row_limits(memory[alike[0][0]].device))
    if not accesses.is_plain:
        return
    alike.sort(key=lambda pair: -math.prod(memory[pair[0]].shape))
    for old, new in alike:
        if accesses.allow(step.places.index(old), step.places.index(new)):
            yield old, new


class Accesses:
    """The accesses of a kernel; `limits` are those of a device that runs loops, else None."""

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
        """True if the kernel is one nest of loops with iterations in any order."""
        return len(self.ends) == 1 and not any(n.op in NOT_ELEMENTWISE for n in self.nodes)

    def allow(self, old: int, new: int) -> bool:
        """True if the result in slot `new` may be stored over the operand in slot `old`."""
        stores = [n for n in self.nodes if n.op is Op.STORE and n.src[0] in self.indexes[new]]
        if len(stores) != 1 or len(self.indexes[old]) != 1:
            return False
        (store,), (read,) = stores, self.indexes[old]
        if read.src[1:] != store.src[0].src[1:] or len(read.src) != 2:
            return False
        return (
            self.is_read_before_write(read, store)
            and self.is_stored_once(store)
            and self.fits(store)
        )

    def is_read_before_write(self, read: UOp, store: UOp) -> bool:
        """True if an element is loaded only for the value stored in its place, in no reduction."""
        users = [n for n in self.nodes if read in n.src]
        value = set(store.src[1].toposort())
        reduced = UOp.sink(*[n.src[0] for n in self.nodes if n.op is Op.REDUCE]).toposort()
        return all(n.op is Op.LOAD and n in value for n in users) and read not in set(reduced)

    def is_stored_once(self, store: UOp) -> bool:
        """True if the loops store each element exactly once."""
        loops = self.ends[0].src[1:]
        if any(r.arg.kind is not AxisKind.LOOP or not r.is_fixed for r in loops):
            return False
        return set(loops) == store.src[0].ranges and self.steps == elements(store.src[0])

    @property
    def steps(self) -> int:
        """Iterations of the loops over outputs."""
        return math.prod(r.extent for r in self.ends[0].src[1:])

    def fits(self, store: UOp) -> bool:
        """True if reuse costs no speed.

        A tail that is shifted inwards would compute elements twice, which is wrong in place, so
        vectors and tiles must divide the loops.
        """
        sizes = [r.extent for r in self.ends[0].src[1:]]
        terms = math.prod(n.vmax + 1 for n in self.nodes if n.op is Op.RANGE) // self.steps
        if self.limits is None:
            return bool(terms <= SHORT_REDUCTION)
        lanes = max(self.limits.vector_bytes // store.src[1].dtype.itemsize, 1)
        if terms <= SHORT_REDUCTION:
            return bool(self.steps % lanes == 0)
        return sizes[-1] % lanes == 0 and all(n % TILE_ROWS == 0 for n in sizes if n > TILE_ROWS)


def reuse_in_place(step: Step, dying: int, defined: int) -> Step:
    """A step with one slot for an operand and the result stored over it."""
    old, new = step.places.index(dying), step.places.index(defined)
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
