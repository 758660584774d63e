"""Memory plan: which new memory is persistent, and where temporary values lie in one block.

Floor 3. Values that a living tensor may read later get memory of their own. The others of each
device share one block, so that values with disjoint lifetimes share bytes, with in-place reuse
where it makes the block smaller. The lifetime of a value extends from the first step that touches
it to the last. The largest value is placed first, each in the smallest gap between the values whose
lifetimes overlap with its own (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020). Then the value that ends highest is moved to the front of the order, again and
again, and the best plan is kept. A step's operands and results never share bytes: kernels are
promised that their buffers do not overlap. Values under in-place reuse are one value here. See
docs/floors/schedule.md.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tinycore.dtype import dtypes
from tinycore.render.base import Limits
from tinycore.schedule.access import Launch, elements, iterations_of
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import Kernel, image_of, nbytes, with_slots
from tinycore.schedule.limits import loop_limits
from tinycore.schedule.retention import Replacements
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import RECURRENCES, AxisKind, Op

ALIGNMENT: Final = 256
"""Bytes: offsets are multiples, which suits the vectors of every device."""
MOST_ATTEMPTS: Final = 64
"""Layouts of a block that are tried, of which the smallest is kept."""
MOST_WORK: Final = 1_000_000
"""Pairs of values compared in all attempts together: one attempt is quadratic in their number."""


class Life(NamedTuple):
    """The live range of a value: its bytes, and its first and last step."""

    size_bytes: int
    first: int
    last: int

    @property
    def room(self) -> int:
        """The size rounded up to the alignment."""
        return -(-self.size_bytes // ALIGNMENT) * ALIGNMENT


class Packed(NamedTuple):
    """Offsets of values in a block, and its size."""

    offsets: tuple[int, ...]
    size_bytes: int


def pack(lives: Sequence[Life]) -> Packed:
    """The smallest block that was found for some values."""
    least = peak_bytes(lives)
    beside = overlaps(lives)
    order = sorted(range(len(lives)), key=lambda n: (-lives[n].size_bytes, lives[n].first))
    best = found = place_in_order(lives, beside, order)
    for _ in range(min(MOST_ATTEMPTS, MOST_WORK // (len(lives) ** 2 + 1)) - 1):
        if best.size_bytes == least:
            break
        ends = [start + life.room for start, life in zip(found.offsets, lives, strict=True)]
        highest = ends.index(max(ends))
        order.remove(highest)
        order.insert(0, highest)
        found = place_in_order(lives, beside, order)
        if found.size_bytes < best.size_bytes:
            best = found
    return best


def overlaps(lives: Sequence[Life]) -> list[list[int]]:
    """For each value, the values whose live ranges overlap with its own."""
    return [
        [n for n, (_, first, last) in enumerate(lives) if first <= life.last and life.first <= last]
        for life in lives
    ]


def place_in_order(
    lives: Sequence[Life], beside: Sequence[Sequence[int]], order: Sequence[int]
) -> Packed:
    """Greedy placement: each value in order goes to the smallest gap that fits it."""
    taken: dict[int, tuple[int, int]] = {}
    for number in order:
        room = lives[number].room
        start = smallest_gap(sorted([taken[n] for n in beside[number] if n in taken]), room)
        taken[number] = start, start + room
    offsets = tuple([taken[n][0] for n in range(len(lives))])
    return Packed(offsets, max((end for _, end in taken.values()), default=0))


def smallest_gap(taken: Sequence[tuple[int, int]], room: int) -> int:
    """The start of the smallest gap that fits, else the end of the used part."""
    best, best_room, end = -1, 0, 0
    for start, stop in taken:
        if start > end:
            gap = start - end
            if gap >= room and (best < 0 or gap < best_room):
                best, best_room = end, gap
        end = max(end, stop)
    return end if best < 0 else best


def live_bytes(lives: Collection[Life], steps: int) -> list[int]:
    """The live bytes at each step."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.room
        change[life.last + 1] -= life.room
    return list(itertools.accumulate(change[:-1]))


def peak_bytes(lives: Collection[Life]) -> int:
    """The most live bytes at one step: the lower bound of every block."""
    steps = max((life.last for life in lives), default=-1) + 1
    return max(live_bytes(lives, steps), default=0)


# --- placement

trace = Trace("layout")

LEAST_LIVE_BYTES: Final = 64 << 10
"""Live bytes of a block from which in-place reuse is tried."""
LEAST_SAVING: Final = 1 / 32
"""Fraction of a block that in-place reuse must save: each costs another kernel to compile."""


@dataclass(frozen=True)
class Layout:
    """The placement of new memory: in blocks, but for persistent memory and images."""

    results: Replacements
    cached: Replacements
    persistent: tuple[int, ...]
    blocks: tuple[Block, ...]
    steps: tuple[Step, ...]
    """The steps of the schedule, some of them with in-place reuse."""
    runners: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict, compare=False)
    """The programs of the steps once they have run, by the settings that decide them."""


class Block(NamedTuple):
    """Memory of one device shared by temporary values: (number, offset) of each."""

    device: str
    size_bytes: int
    places: tuple[tuple[int, int], ...]
    live_bytes: int
    """Peak memory: the most bytes live at one step."""
    reuses: tuple[Reuse, ...]
    holder: Mapping[int, int]
    """Results of in-place reuse, and the value whose offset each takes."""


def plan_memory(
    steps: Sequence[Step],
    memory: Sequence[UOp],
    parameters: int,
    results: Replacements,
    cached: Replacements,
    needed: Collection[UOp],
) -> Layout:
    """The layout of new memory when the nodes `needed` are read later.

    `memory` is by number, parameters first. Of the nodes with memory, `results` are replaced by it
    and the values of `cached` may be read from it.
    """
    results = {node: found for node, found in results.items() if node in needed}
    cached = {node: found for node, found in cached.items() if node in needed}
    shown = set(UOp.sink(*results.values(), *cached.values()).toposort())
    new = range(parameters, len(memory))
    images = {place for place in new if image_of(memory[place]) is not None}
    persistent = tuple([place for place in new if place in images or memory[place] in shown])
    lives = live_ranges(steps, memory, parameters)
    temporary: dict[str, dict[int, Life]] = defaultdict(dict)
    for place in sorted(lives.keys() - set(persistent)):
        temporary[memory[place].single_device][place] = lives[place]
    blocks = [plan_block(device, found, steps, memory) for device, found in temporary.items()]
    placed = list(steps)
    for block in blocks:
        for number, dying, defined in block.reuses:
            placed[number] = reuse_in_place(placed[number], dying, defined)
        if trace.on:
            trace_block(block, lives)
    return Layout(results, cached, persistent, tuple(blocks), tuple(placed))


def live_ranges(steps: Sequence[Step], memory: Sequence[UOp], parameters: int) -> dict[int, Life]:
    """The live range of each new memory, by number."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for place in step.places:
            first.setdefault(place, number)
            last[place] = number
    new = [place for place in first if place >= parameters]
    return {p: Life(nbytes(memory[p]), first[p], last[p]) for p in new}


def plan_block(
    device: str, lives: Mapping[int, Life], steps: Sequence[Step], memory: Sequence[UOp]
) -> Block:
    """The block of a device, with in-place reuse if that makes it smaller."""
    plain = pack_block(device, lives, {}, ())
    large = plain.live_bytes >= LEAST_LIVE_BYTES
    found = find_reuses(steps, memory, lives) if large else []
    if not found:
        return plain
    holder: dict[int, int] = {}
    for _, dying, defined in sorted(found):
        holder[defined] = holder.get(dying, dying)
    block = pack_block(device, lives, holder, found)
    return block if block.size_bytes <= plain.size_bytes * (1 - LEAST_SAVING) else plain


def pack_block(
    device: str, lives: Mapping[int, Life], holder: Mapping[int, int], found: Sequence[Reuse]
) -> Block:
    """A block in which some values share the memory of their `holder`."""
    whole = {place: life for place, life in lives.items() if place not in holder}
    for place, first in holder.items():
        last = max(whole[first].last, lives[place].last)
        whole[first] = whole[first]._replace(last=last)
    packed = pack(list(whole.values()))
    where = dict(zip(whole, packed.offsets, strict=True))
    live = peak_bytes(list(whole.values()))
    return Block(device, packed.size_bytes, tuple(where.items()), live, tuple(found), dict(holder))


def trace_block(block: Block, lives: Mapping[int, Life]) -> None:
    """A line of DEBUG=1 on a new block."""
    values = len(block.places) + len(block.holder)
    apart = sum(lives[place].size_bytes for place in (*dict(block.places), *block.holder))
    trace(
        f"{block.device:<8} {values} intermediate results in {block.size_bytes:,} B, "
        f"{block.live_bytes:,} B live at once, {apart:,} B if they shared none, "
        f"{len(block.holder)} in place of another"
    )


# --- buffer donation: a kernel writes its result over an operand that it reads for the last time

# In-place reuse, in the terms of XLA donation. Legal where the kernel reads each element of the
# operand only to compute the element of its result at the same place, and no later step reads the
# operand. The kernel then has one parameter for both, as the kernel of an assignment has, so the
# promise that parameters do not overlap stays true. Reuse happens only at the steps where most
# memory is live: anywhere else it gains nothing, and the kernel would be one more to compile.

NOT_ELEMENTWISE: Final = RECURRENCES | frozenset(
    {Op.AFTER, Op.SCAN, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.SPECIAL, Op.BARRIER}
)
"""Ops of kernels whose results do not depend on one element each."""
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
    launch, limits = Launch(step.ast, step.places), loop_limits(memory[alike[0][0]].single_device)
    if not is_elementwise(launch):
        return
    alike.sort(key=lambda pair: -math.prod(memory[pair[0]].shape))
    for old, new in alike:
        if may_overwrite(launch, old, new, limits):
            yield old, new


def is_elementwise(launch: Launch) -> bool:
    """True if a kernel is one nest of loops with iterations in any order."""
    return len(launch.by_op[Op.END]) == 1 and NOT_ELEMENTWISE.isdisjoint(n.op for n in launch.nodes)


def may_overwrite(launch: Launch, old: int, new: int, limits: Limits | None) -> bool:
    """True if the result in memory `new` may be stored over the operand in `old`; `limits` are
    those of a device that runs loops, else None."""
    accesses = launch.accesses
    stores = [n for n in launch.by_op[Op.STORE] if accesses.get(n.src[0]) == new]
    reads = [index for index, place in accesses.items() if place == old]
    if len(stores) != 1 or len(reads) != 1:
        return False
    (store,), (read,) = stores, reads
    if read.src[1:] != store.src[0].src[1:] or len(read.src) != 2:
        return False
    return (
        is_read_before_write(launch, read, store)
        and is_stored_once(launch, store)
        and is_as_fast(launch, store, limits)
    )


def is_read_before_write(launch: Launch, read: UOp, store: UOp) -> bool:
    """True if an element is loaded only for the value stored in its place, in no reduction."""
    users = [n for n in launch.nodes if read in n.src]
    value = set(store.src[1].toposort())
    reduced = UOp.sink(*[n.src[0] for n in launch.nodes if n.op is Op.REDUCE]).toposort()
    return all(n.op is Op.LOAD and n in value for n in users) and read not in set(reduced)


def is_stored_once(launch: Launch, store: UOp) -> bool:
    """True if the loops store each element exactly once."""
    loops, index = launch.loops, store.src[0]
    if any(r.arg.kind is not AxisKind.LOOP or not r.is_fixed for r in loops):
        return False
    return {*loops} == index.ranges and iterations_of(loops) == elements(index)


def is_as_fast(launch: Launch, store: UOp, limits: Limits | None) -> bool:
    """True if reuse costs no speed.

    A tail that is shifted inwards would compute elements twice, which is wrong in place, so vectors
    and tiles must divide the loops.
    """
    sizes, steps = [r.extent for r in launch.loops], iterations_of(launch.loops)
    terms = math.prod(r.vmax + 1 for r in launch.by_op[Op.RANGE]) // steps
    if limits is None:
        return bool(terms <= SHORT_REDUCTION)
    lanes = max(limits.vector_bytes // store.src[1].dtype.itemsize, 1)
    if terms <= SHORT_REDUCTION:
        return bool(steps % lanes == 0)
    return sizes[-1] % lanes == 0 and all(n % TILE_ROWS == 0 for n in sizes if n > TILE_ROWS)


def reuse_in_place(step: Step, dying: int, defined: int) -> Step:
    """A step with one slot for an operand and the result stored over it."""
    old, new = step.places.index(dying), step.places.index(defined)
    slots = {n.arg: n for n in step.ast.toposort() if n.op is Op.DEFINE_GLOBAL}
    ast, kept = with_slots(step.ast.substitute({slots[old]: slots[new]}), range(len(slots)))
    sources = (*(step.kernel.src[s] for s in kept), *step.kernel.src[len(slots) :])
    kernel = UOp(Op.KERNEL, dtypes.void, sources, Kernel(ast, step.metadata))
    return Step(ast, tuple([step.places[s] for s in kept]), step.metadata, kernel)
