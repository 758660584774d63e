"""Counts of what one launch of a linear kernel executes and moves.

Loops are counted by their steps. Addresses are computed for a few groups: from them come the turns
that shared memory takes (bank conflicts), the lines that each subgroup touches, what a group reads
of the shared cache, and what a wave of groups reads of memory. Registers are those of a scan over
the program, where no compiler says.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from benchmarks.cards.addresses import Places, extent_of, groups_of, places_of
from benchmarks.cards.compiled import texture_loads
from benchmarks.cards.machines import Card
from tinycore.dtype import ImageDType, PointerDType, dtypes
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.uop.matrix import MatrixUnit, OperandLoad
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, APPROXIMATE, COMPARISON, Op
from tinycore.uop.sums import terms_of

__all__ = [
    "Access",
    "Counts",
    "accesses_of",
    "counts_of",
    "in_waves",
    "shared_loads",
    "turns_of",
    "without_repeats",
]

SECTOR: Final = 32
"""Bytes of the smallest piece that a cache moves."""
SUBGROUP_OF_TILES: Final = 32
"""Lanes that name the rows of a load of tiles."""
WINDOW: Final = 8
"""Steps of a loop whose lines stay in the near cache."""
WORD: Final = 4
TEXEL: Final = 4
"""Numbers of a pixel."""
BROADCAST: Final = 64
"""Bytes in which all that a subgroup reads of shared memory may lie to be read faster."""
SLOW: Final = frozenset({Op.SQRT, Op.EXP2, Op.LOG2, Op.SIN, Op.RECIPROCAL, Op.FDIV, Op.EXP, Op.LOG})
"""Ops of the special function unit."""
SLOWNESS: Final = 8
"""Their cost, 16 lanes of 128, where that unit is no part of its own. Where it is, that of the
steps which refine exact ones."""
ORDERED: Final = COMPARISON | {Op.MAX, Op.MIN, Op.WHERE}
"""Ops of the unit that compares."""
HALF_BYTES: Final = 2
PAST_NEAR_CACHE: Final = 16
"""Bytes of an asynchronous copy that leaves out the near cache (`cp.async.cg`)."""
FREE: Final = frozenset({Op.CONST, Op.SPECIAL, Op.DEFINE_VAR, Op.RANGE})
LOOP_COST: Final = 2
"""Instructions of a step of a loop: its counter and the branch."""

Array = NDArray[Any]


@dataclass
class Access:
    """A LOAD, STORE, load of tiles, asynchronous copy or copy of a box, and the loops around it."""

    node: UOp
    index: UOp
    item_bytes: int
    loops: tuple[UOp, ...]
    is_store: bool

    @property
    def pointer(self) -> UOp:
        """The memory."""
        return pointer_of(self.index)

    @property
    def times(self) -> int:
        """Times that a thread does it."""
        return math.prod(extent_of(loop) for loop in self.loops)

    @property
    def steps(self) -> int:
        """Steps of the innermost loop that are looked at."""
        return min(extent_of(self.loops[-1]), WINDOW) if self.loops else 1


@dataclass
class Counts:
    """Work of one launch; of a group where nothing else is said."""

    groups: int
    threads: int
    shared_bytes: int
    registers: int
    """Registers of a thread, in words, by a scan of the program."""
    matrix: Counter[MatrixUnit] = field(default_factory=Counter)
    """Matrix instructions of all subgroups."""
    arithmetic: float = 0.0
    """Operations of a thread, those of slow ones counted by their cost."""
    special: float = 0.0
    """Operations of a thread on the special function unit, where that is a part of its own."""
    instructions: float = 0.0
    """Instructions of a thread."""
    shared_turns: float = 0.0
    """Turns of shared memory."""
    shared_clocks: float = 0.0
    """Clocks that a unit waits for them."""
    shared_least: float = 0.0
    """The same without conflicts of banks."""
    lines: float = 0.0
    """Lines of the near cache that the subgroups touch."""
    texels: float = 0.0
    """Pixels that threads read through texture units."""
    far_bytes: float = 0.0
    """Bytes between all groups and the shared cache."""
    in_flight: float = 0.0
    """Bytes of loads that a thread has under way at once."""
    overlaps: bool = False
    """True if fills of shared memory are under way while others are used."""

    @property
    def conflicts(self) -> float:
        """Turns of shared memory for each that it would take without conflicts of banks."""
        return self.shared_turns / self.shared_least if self.shared_least else 1.0


def walked(kernel: LinearKernel) -> Iterator[tuple[UOp, tuple[UOp, ...]]]:
    """Each node with the loops that are open, the outermost first."""
    held: list[UOp] = []
    for node in kernel.uops:
        if node.op is Op.END:
            held = [loop for loop in held if loop not in node.src[1:]]
        yield node, tuple(held)
        if node.op is Op.RANGE:
            held.append(node)


def accesses_of(kernel: LinearKernel) -> list[Access]:
    """Every access to memory; registers are none."""
    found = []
    for node, loops in walked(kernel):
        if node.op in (Op.LOAD, Op.STORE):
            if pointer_of(node.src[0]).op is Op.DEFINE_REG:
                continue
            dtype = node.dtype if node.op is Op.LOAD else node.src[1].dtype
            kind = pointer_of(node.src[0]).dtype
            size = kind.pixel_bytes if isinstance(kind, ImageDType) else dtype.size_bytes
            found.append(Access(node, node.src[0], size, loops, node.op is Op.STORE))
        elif isinstance(node.arg, OperandLoad) and node.arg.is_described:
            continue  # the unit reads what it names, at the rate at which it multiplies
        elif copies_box(node):
            found.append(Access(node, box_of(node), node.arg.map.box_bytes, loops, False))
        elif isinstance(node.arg, OperandLoad):  # each lane names a row of a tile
            found.append(Access(node, node.src[0], node.arg.row_bytes, loops, False))
        elif is_copy(node):
            for index, stores in ((node.src[0], True), (node.src[1], False)):
                item = pointer_of(index).dtype
                assert isinstance(item, PointerDType)
                size = item.base.size_bytes * int(node.arg.elements)
                found.append(Access(node, index, size, loops, stores))
    return found


def is_copy(node: UOp) -> bool:
    """True for an asynchronous copy by a thread, which tiny_nv has."""
    return type(node.arg).__name__ == "AsyncCopy"


def groups_left(node: UOp) -> int | None:
    """Groups of such copies that a wait leaves under way; None for what is no wait."""
    return int(node.arg.left) if type(node.arg).__name__ == "WaitGroup" else None


def copies_box(node: UOp) -> bool:
    """True for a copy of a box, which tiny_nv has."""
    return type(node.arg).__name__ == "TensorCopy"


def box_of(copy: UOp) -> UOp:
    """The INDEX of the box of such a copy, as if boxes lay one after the other in the buffer."""
    (_, _, buffer, *coordinates), box = copy.src, copy.arg.map
    place, boxes = UOp.index(0), 1
    for coordinate, size, extent in zip(coordinates, box.box, box.sizes, strict=True):
        place, boxes = place + coordinate // size * boxes, boxes * -(-extent // size)
    gates = copy.src[0].src[2:]
    return UOp(Op.INDEX, buffer.dtype, (buffer, place * math.prod(box.box), *gates))


def counts_of(kernel: LinearKernel, card: Card) -> Counts:
    """Work and traffic of a launch."""
    specials = [u for u in kernel.uops if u.op is Op.SPECIAL]
    groups, threads = groups_of(specials), math.prod(kernel.launch("block"))
    counts = Counts(groups, threads, kernel.shared_bytes, registers_of(kernel))
    boxes = {u.src[0].src[1]: u.arg.map.box_bytes for u in kernel.uops if copies_box(u)}
    counts.overlaps = bool(boxes) or any(map(groups_left, kernel.uops))
    subgroups = -(-threads // card.subgroup)
    textures = texture_loads(kernel, card.target)
    given = widened_by(kernel, textures)
    uses = Counter(source for u in kernel.uops for source in u.src)
    for node, loops in walked(kernel):
        times = math.prod(extent_of(loop) for loop in loops)
        if node.op is Op.MATRIX:
            counts.matrix[node.arg] += times * (threads // node.arg.threads)
            counts.instructions += times
        elif node.op in ALU and node.op not in FREE and node not in given:
            count_operation(counts, node, times, card, uses)
        elif node.op is Op.RANGE:
            counts.instructions += LOOP_COST * times * extent_of(node)
    accesses = without_repeats(accesses_of(kernel))
    counts.instructions += sum(a.times for a in accesses if a.node.op is not Op.INSTRUCTION)
    counts.instructions -= joined_loads(accesses, card)
    begun = max((left for u in kernel.uops if (left := groups_left(u))), default=0)
    loads = [a for a in accesses if not copies_box(a.node)]
    waits = (loops for node, loops in walked(kernel) if groups_left(node) is not None)
    waiting = {loop for loops in waits for loop in loops}
    flying = bytes_in_flight(loads, waiting)
    counts.in_flight = flying * (begun + 1) + sum(boxes.values()) / threads
    sample = sorted({0, groups // 2, groups - 1})
    nests: dict[tuple[UOp, tuple[UOp, ...], bool], list[Access]] = defaultdict(list)
    for access in accesses:
        nests[access.pointer, access.loops, access.is_store].append(access)
    for (pointer, loops, _), nest in nests.items():
        places = places_of(specials, sample, loops, nest[0].steps)
        local = pointer.op is Op.DEFINE_LOCAL
        sectors: list[Array] = []
        read = 0
        for access in nest:
            address, active = addressed(places, access)
            weight = access.times * part_begun(specials, access) / places.shape[1]
            if local:
                count_shared(counts, card, address, active, access.item_bytes, weight)
                continue
            if access.node in textures:
                pixels = max(access.node.dtype.count // TEXEL, 1)
                counts.texels += subgroups * card.subgroup * access.times * pixels
            elif access.node.op is not Op.INSTRUCTION:
                rows = in_subgroups(address, active, card.subgroup, access.item_bytes, card.line)
                least = subgroups * card.subgroup * access.item_bytes / card.line
                counts.lines += max(distinct(rows) / len(sample), least) * weight
            if not card.is_cached:  # each subgroup reads what it needs
                rows = in_subgroups(address, active, card.subgroup, access.item_bytes, SECTOR)
                counts.far_bytes += distinct(rows) / len(sample) * SECTOR * weight * groups
                continue
            found = pieces(address, active, access.item_bytes, SECTOR)
            if is_uncached(access):
                read += distinct(found.reshape(len(sample) * places.shape[1], -1))
            else:
                sectors.append(found.reshape(len(sample), -1))
        read += distinct(numpy.concatenate(sectors, axis=1)) if sectors else 0
        done = nest[0].times * part_begun(specials, nest[0])
        counts.far_bytes += read / len(sample) * SECTOR * done / places.shape[1] * groups
    return counts


def part_begun(specials: Sequence[UOp], access: Access) -> float:
    """Part of the steps of a loop in which a copy ahead of them is begun: none past the last.

    In relation to that of the steps that are looked at.
    """
    gates, loops = access.index.src[2:], access.loops
    if access.node.op is not Op.INSTRUCTION or not gates or not loops:
        return 1.0
    if (extent := extent_of(loops[-1])) <= access.steps:
        return 1.0
    _, active = addressed(places_of(specials, [0], loops, extent), access)
    begun = active.any(axis=2).mean(axis=0)
    return float(begun.mean() / max(begun[: access.steps].mean(), 1 / access.steps))


Body = tuple[UOp, tuple[UOp, ...], frozenset[tuple[UOp, int]]]
"""Memory, loops and terms that loads of shared memory share which differ by a constant."""


def shared_loads(accesses: Sequence[Access]) -> dict[Body, list[tuple[int, Access]]]:
    """Loads from shared memory with their first elements, by what they have in common."""
    bodies: dict[Body, list[tuple[int, Access]]] = defaultdict(list)
    for access in accesses:
        if access.node.op is Op.LOAD and access.pointer.op is Op.DEFINE_LOCAL:
            terms, first = terms_of(access.index.src[1])
            body = access.index.src[0], access.loops, frozenset(terms.items())
            bodies[body].append((first, access))
    return bodies


def without_repeats(accesses: Sequence[Access]) -> list[Access]:
    """The accesses without loads of shared memory whose elements wider loads of the body have.

    Compilers take them from there.
    """
    repeats: set[UOp] = set()
    for found in shared_loads(accesses).values():
        for first, access in found:
            lanes = access.node.dtype.count
            repeats.update(
                a.node
                for start, a in found
                if a.node.dtype.count < lanes and first <= start < first + lanes
            )
    return [access for access in accesses if access.node not in repeats]


def joined_loads(accesses: Sequence[Access], card: Card) -> int:
    """Loads from shared memory that a compiler makes part of another's instruction.

    Those that lie beside each other, as wide as is aligned, or any two that start at one address.
    """
    joined = 0
    for (_, _, terms), found in shared_loads(accesses).items():
        size = found[0][1].node.dtype.scalar().itemsize
        narrow = [(first, a) for first, a in found if a.item_bytes < card.joined_bytes]
        if not narrow:
            continue
        read = {first + lane for first, a in narrow for lane in range(a.node.dtype.count)}
        aligned = math.gcd(card.joined_bytes // size, *(step for _, step in terms))
        wide = 1 << (aligned & -aligned).bit_length() - 1
        least = len({place // wide for place in read})
        if card.joins_apart:
            least = -(-len(read) * size // card.joined_bytes)
        joined += max(len(narrow) - least, 0) * found[0][1].times
    return joined


def widened_by(kernel: LinearKernel, textures: frozenset[UOp]) -> set[UOp]:
    """Conversions of halves that texture units have made floats of: no operations."""
    found: set[UOp] = set()
    for node in kernel.uops:
        if node.op in (Op.EXTRACT, Op.BITCAST, Op.CAST):
            found.update({node} if node.src[0] in textures or node.src[0] in found else ())
    return found


def is_uncached(access: Access) -> bool:
    """True if an access leaves out the near cache: each reads anew what others read."""
    is_wide = is_copy(access.node) and access.item_bytes == PAST_NEAR_CACHE
    return is_wide or copies_box(access.node)


def count_operation(
    counts: Counts, node: UOp, times: int, card: Card, uses: Mapping[UOp, int]
) -> None:
    """Arithmetic of a thread; sums of an index and a constant are part of an address.

    Bits of another type are the same register. A product that is added once is no operation apart.
    """
    if node.op is Op.BITCAST and node.dtype.size_bytes == node.src[0].dtype.size_bytes:
        return
    if node.dtype.scalar() is dtypes.index:
        if node.op in (Op.ADD, Op.SUB) and any(s.op is Op.CONST for s in node.src):
            return
        counts.instructions += times
        counts.arithmetic += times * card.integer
        return
    operations: float = node.dtype.count * times
    kind = (node.src[0] if node.op is Op.CAST or node.op in COMPARISON else node).dtype
    fused = node.op in (Op.ADD, Op.SUB) and any(s.op is Op.MUL and uses[s] == 1 for s in node.src)
    cost = 0 if fused and kind.kind == "float" else SLOWNESS if node.op in SLOW else 1
    price = 1.0 if kind.kind == "float" else card.integer
    if node.op is Op.CAST and dtypes.float16 in (node.dtype, kind) and card.half_cast > 1:
        cost, price = card.half_cast, card.integer
        counts.instructions += (cost - 1) * operations
    elif node.op is Op.CAST and kind is dtypes.float32 and node.dtype.size_bytes == HALF_BYTES:
        operations, price = operations / card.converts, card.compared
    elif node.op in ORDERED and kind.kind == "float":
        price = card.compared
    elif node.op in SLOW and card.special:
        counts.special += operations
        counts.instructions += operations
        cost = 0 if node.arg == APPROXIMATE else SLOWNESS
    counts.arithmetic += cost * price * operations
    counts.instructions += min(cost, 1) * operations


def addressed(places: Places, access: Access) -> tuple[Array, Array]:
    """The first byte of each access, and which threads do it."""
    pointer = access.pointer.dtype
    if isinstance(pointer, ImageDType):
        column, row, *outside = (places.spread(s) for s in access.index.src[1:])
        address = (row.astype(numpy.int64) * pointer.width + column) * access.item_bytes
        active = numpy.ones(places.shape, bool)
        for inside in outside:
            active = active & inside.astype(bool)
        return address, active
    assert isinstance(pointer, PointerDType)
    address = places.spread(access.index.src[1]) * pointer.base.scalar().itemsize
    gates = access.index.src[2:]
    active = numpy.ones(places.shape, bool)
    for gate in gates:
        active = active & places.spread(gate).astype(bool)
    if isinstance(access.node.arg, OperandLoad):  # of two tiles half of the lanes name a row
        load: Any = access.node.arg
        named = access.node.dtype.size_bytes // load.word_bytes * load.rows
        active = active & (numpy.arange(places.shape[2]) % SUBGROUP_OF_TILES < named)
    return address.astype(numpy.int64), active


def pieces(address: Array, active: Array, item: int, piece: int) -> Array:
    """Numbers of the pieces of memory that threads touch; -1 where one does nothing."""
    parts = max(item // piece, 1)
    first = address[..., None] // piece + numpy.arange(parts)
    return numpy.where(active[..., None], first, -1)


def in_subgroups(address: Array, active: Array, subgroup: int, item: int, piece: int) -> Array:
    """The same, a row for each subgroup and step."""
    found = pieces(address, active, item, piece)
    groups, steps, threads, parts = found.shape
    missing = -threads % subgroup
    found = numpy.pad(found, ((0, 0), (0, 0), (0, missing), (0, 0)), constant_values=-1)
    return found.reshape(groups * steps * (threads + missing) // subgroup, subgroup * parts)


def distinct(rows: Array) -> int:
    """Number of different numbers in each row, added up; -1 is none."""
    ordered = numpy.sort(rows, axis=1)
    new = numpy.ones_like(ordered, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((new & (ordered >= 0)).sum())


def count_shared(
    counts: Counts, card: Card, address: Array, active: Array, item: int, weight: float
) -> None:
    """The turns of shared memory for an access of each thread."""
    turns, least = turns_of(address, active, item, card.subgroup, card.banks)
    groups = address.shape[0]
    counts.shared_turns += turns / groups * weight
    counts.shared_least += least / groups * weight
    rows = in_subgroups(address, active, card.subgroup, item, BROADCAST)
    is_broadcast = distinct(rows) <= len(rows)
    counts.shared_clocks += turns / groups * weight * (card.same if is_broadcast else card.turn)


def turns_of(
    address: Array, active: Array, item: int, subgroup: int, banks: int = 32
) -> tuple[int, int]:
    """Clocks that shared memory takes, and those it would take without conflicts of banks.

    A subgroup that accesses more bytes than the banks move is served in parts of it. In a part each
    bank gives one word in a clock, to all who want it.
    """
    words = max(item // WORD, 1)
    part = max(min(subgroup, banks // words), 1)
    missing = -address.shape[2] % part
    first = numpy.pad(address // WORD, ((0, 0), (0, 0), (0, missing)))
    does = numpy.pad(active, ((0, 0), (0, 0), (0, missing)))
    place = (first[..., None] + numpy.arange(words)).reshape(-1, part * words)
    wanted = numpy.repeat(does.reshape(-1, part), words, axis=1)
    place = numpy.sort(numpy.where(wanted, place, -1), axis=1)
    new = place >= 0
    new[:, 1:] &= place[:, 1:] != place[:, :-1]
    rows = numpy.nonzero(new)[0]
    loads = numpy.bincount(rows * banks + place[new] % banks, minlength=len(place) * banks)
    most = loads.reshape(-1, banks).max(axis=1)
    return int(most.sum()), int((-(-new.sum(axis=1) // banks)).sum())


def bytes_in_flight(accesses: Sequence[Access], waiting: Collection[UOp]) -> float:
    """Bytes that a thread asks for before it needs any of them: the loads of one body of a loop,
    and all asynchronous copies since the last wait, which loops `waiting` have in each step."""
    bodies: Counter[tuple[UOp, ...]] = Counter()
    for access in accesses:
        if access.pointer.op is not Op.DEFINE_GLOBAL or access.is_store:
            continue
        begun = is_copy(access.node)
        loops = tuple(r for r in access.loops if r in waiting) if begun else access.loops
        inner = math.prod(extent_of(r) for r in access.loops if r not in loops)
        bodies[loops] += access.item_bytes * inner
    deepest = [(math.prod(extent_of(loop) for loop in loops) * size, size)
               for loops, size in bodies.items()]  # fmt: skip
    return float(max(deepest)[1]) if deepest else 0.0


# --- what waves of groups read


MOST_STEPS: Final = 36
"""Steps of which all reads of a wave are looked at: places of a window read the same again. Of
more steps two are looked at, which stand for all."""


def in_waves(
    kernel: LinearKernel,
    resident: int,
    card: Card,
    sizes: Mapping[int, int],
    far: float,
    kept: Collection[int] = (),
) -> float:
    """Bytes of memory of a launch, of whose groups so many are resident at once.

    What a wave of groups reads several times comes from the shared cache, and so does what all read
    if all fits there. `sizes` are the bytes of buffers by slot; `kept` those that kernels of one
    problem leave for each other, which then stay in that cache.
    """
    least = float(sum(sizes.values()))
    if least <= card.cache_bytes:
        return least - sum(sizes[slot] for slot in kept)
    specials = [u for u in kernel.uops if u.op is Op.SPECIAL]
    groups = groups_of(specials)
    wave = min(resident, groups)
    first = (groups // wave) // 2 * wave
    numbers = range(first, min(first + wave, groups))
    total: Counter[UOp] = Counter()
    best: Counter[UOp] = Counter()
    nests: dict[tuple[UOp, tuple[UOp, ...]], list[Access]] = defaultdict(list)
    for access in accesses_of(kernel):
        if access.pointer.op is Op.DEFINE_GLOBAL:
            nests[access.pointer, access.loops].append(access)
    for (pointer, loops), nest in nests.items():
        steps = extent_of(loops[-1]) if loops else 1
        steps = steps if steps <= MOST_STEPS else 2
        places = places_of(specials, list(numbers), loops, steps)
        seen: set[int] = set()
        for access in nest:
            address, active = addressed(places, access)
            found = numpy.unique(pieces(address, active, access.item_bytes, SECTOR))
            seen.update(found[found >= 0].tolist())
        moved = len(seen) * SECTOR * nest[0].times // steps
        total[pointer] += moved
        best[pointer] = max(best[pointer], moved)
    fits = sum(best.values()) <= card.cache_bytes
    of_wave = sum((best if fits else total).values())
    return min(max(of_wave * groups / len(numbers), least), max(far, least))


# --- registers


def words_of(node: UOp) -> int:
    """Registers of 4 bytes that a value takes."""
    if node.op is Op.CONST or node.dtype is dtypes.void or isinstance(node.dtype, PointerDType):
        return 0
    if node.dtype.scalar() in (dtypes.index, dtypes.bool):
        return node.dtype.count
    return max(-(-node.dtype.size_bytes // WORD), 1)


def registers_of(kernel: LinearKernel) -> int:
    """The most registers in use at once, if values are computed where the program says.

    A sum of an index and a constant lives in the address; an element of a vector lives in it.
    """
    position = {node: number for number, node in enumerate(kernel.uops)}
    closes = {
        loop: position[end] for end in kernel.uops if end.op is Op.END for loop in end.src[1:]
    }
    last: dict[UOp, int] = {}
    for number, (node, loops) in enumerate(walked(kernel)):
        for source in operands(node):
            # What a loop reads of before it stays until the loop ends.
            around = [
                closes.get(r, number) for r in loops if position.get(source, number) < position[r]
            ]
            last[source] = max([number, last.get(source, 0), *around])
    held = sum(words_of_array(node) for node in kernel.uops if node.op is Op.DEFINE_REG)
    ends: Counter[int] = Counter()
    live = most = 0
    for number, node in enumerate(kernel.uops):
        words = 0 if is_folded(node) else words_of(node)
        if words and node in last:
            live += words
            ends[last[node]] += words
        most = max(most, live)
        live -= ends.pop(number, 0)
    return held + most + 2 * len(kernel.buffers)


def words_of_array(node: UOp) -> int:
    """Registers of a DEFINE_REG."""
    assert isinstance(node.dtype, PointerDType)
    return -(-node.dtype.size * node.dtype.base.size_bytes // WORD)


def is_folded(node: UOp) -> bool:
    """True if a value has no register of its own."""
    if node.op is Op.EXTRACT:
        return True
    constant = any(s.op is Op.CONST for s in node.src)
    return node.op is Op.ADD and node.dtype.scalar() is dtypes.index and constant


def operands(node: UOp) -> Iterator[UOp]:
    """Nodes that a node reads, through those that have no register of their own."""
    for source in node.src:
        if is_folded(source) or source.op is Op.INDEX:
            yield from operands(source)
        yield source
