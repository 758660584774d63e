"""Neighboring kernels over the same rows, made one kernel that goes through them strip by strip.

Floor 3. The maxima, the sums and the quotients of a softmax are three kernels: a sum must be whole
before it is divided by. But row i of each needs row i of the others only. So a few rows go through
all three while they are in a near cache, and what no one else reads, such as the scores of
attention, has memory for these few rows only, of the thread's own. Which kernels fit is a question
of addresses alone. See docs/decisions/0033-strips.md.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tinycore.dtype import PointerDType, dtypes
from tinycore.render.base import Limits, pointer_of
from tinycore.schedule.launch import Launch, Spans, elements, widen
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

MOST_MEMBERS: Final = 8
MOST_PRODUCTS: Final = 2
"""Members that fold the same weights for each row. More would share no more than the rows between
them, and a kernel of many like layers takes as long to lower as all of them."""
FEWEST_STRIPS: Final = 16
"""Strips are made narrower than the cache asks for until there are so many to share out."""
WORTH_SHARING_BYTES: Final = 64 << 10
"""What kernels touch from which on their strips are shared among threads."""
MOST_BYTES: Final = 1 << 20
"""Memory of a thread's own for one strip."""
COSTLY: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.THREEFRY})
"""Ops that cost more than a place in a near cache."""
LEAST_SHARED: Final = 1 / 8
"""The part of what a kernel touches that others must have read, if it reads nothing they made."""
LINE_BYTES: Final = 64
MOST_AGAIN: Final = 1.25
"""How much of a near cache every row may read again; beside what fills it there is little else."""
FEWEST_ROWS: Final = 8
"""Rows of a strip in which a value is read again for each of them, as rows of a matmul do."""


class Group:
    """Kernels that go through their rows together."""

    def __init__(self, first: Launch, limits: Limits) -> None:
        self.limits = limits
        self.members = [first]
        self.shape = tuple(r.extent for r in first.loops)
        """The extents of the loops over rows, common to all members."""
        self.cut: tuple[int, int] | None = None
        """(loops over rows, rows of a strip), once there is a second member."""

    @property
    def made(self) -> frozenset[int]:
        """The memory that members write."""
        return frozenset().union(*(m.written for m in self.members))

    def admit(self, launch: Launch) -> bool:
        """Add a kernel if it can go through the rows with the others, and gains by it."""
        if len(self.members) >= MOST_MEMBERS or not self.is_near(launch):
            return False
        if is_product(launch) and sum(map(is_product, self.members)) >= MOST_PRODUCTS:
            return False
        pairs = zip(self.shape, (r.extent for r in launch.loops), strict=False)
        shape = tuple([a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
        members = [*self.members, launch]
        while shape:
            if stays_in_row(members, shape) and (cut := cut_rows(members, shape, self.limits)):
                self.members, self.shape, self.cut = members, shape, cut
                return True
            shape = shape[:-1]
        return False

    def is_near(self, launch: Launch) -> bool:
        """Whether a kernel reads what members write, or much of what they read."""
        if launch.read & self.made:
            return True
        read = frozenset().union(*(m.read for m in self.members))
        _, own = launch.footprint(1)
        shared = sum(size_of(span) for number, span in own.items() if number in read)
        return shared > 0 and shared >= LEAST_SHARED * sum(map(size_of, own.values()))

    def kernel(self, lasting: frozenset[int]) -> Launch:
        """The members as one kernel; memory that is not `lasting` becomes the thread's own."""
        assert self.cut is not None
        depth, rows = self.cut
        members = share_costly(self.members, depth)
        own = frozenset().union(*(m.written for m in members)) - lasting
        return Weaver(self.shape[:depth], rows, own).weave(members)


def is_product(launch: Launch) -> bool:
    """Whether every row of a kernel folds the same memory again, as a product with weights does."""
    again, _ = launch.footprint(1)
    folds = any(n.op is Op.REDUCE for n in launch.nodes)
    return folds and any(size_of(span) > LINE_BYTES for span in again.values())


def stays_in_row(members: Sequence[Launch], shape: tuple[int, ...]) -> bool:
    """Whether members read, of what others wrote, the row that they are at and no other."""
    made = frozenset().union(*(m.written for m in members))
    depth = len(shape)
    return all(
        made.isdisjoint(member.touched) or made & member.touched <= member.stays_in_rows(depth)
        for member in members
    )


def cut_rows(
    members: Sequence[Launch], shape: tuple[int, ...], limits: Limits
) -> tuple[int, int] | None:
    """(loops over rows, rows of a strip); None where no strip suits the cache.

    The innermost of the loops is the one that is cut into strips.
    """
    for depth in range(1, len(shape) + 1):
        again, row = footprint(members, depth)
        if again > limits.cache_bytes * MOST_AGAIN:
            return None
        # Rows that read the same again are worth a slower cache.
        room = min(2 * limits.cache_bytes, MOST_BYTES) if again else limits.cache_bytes // 2
        if row > room:
            continue
        *outer, last = shape[:depth]
        most = min(room // max(row, 1), last)
        if row * math.prod(shape[:depth]) > WORTH_SHARING_BYTES:
            most = min(most, last // max(FEWEST_STRIPS // math.prod(outer), 1))
        rows = max((n for n in range(1, most + 1) if last % n == 0), default=1)
        return None if again and rows < min(FEWEST_ROWS, last) else (depth, rows)
    return None


def footprint(members: Sequence[Launch], depth: int) -> tuple[int, int]:
    """(bytes that every row reads again, bytes of a row of its own) of some kernels."""
    again: Spans = {}
    own: Spans = {}
    for member in members:
        for kind, found in zip((again, own), member.footprint(depth), strict=True):
            for number, span in found.items():
                widen(kind, number, span)
    return sum(n for n in map(size_of, again.values()) if n > LINE_BYTES), sum(
        map(size_of, own.values())
    )


def size_of(span: tuple[int, int]) -> int:
    """The bytes of a span."""
    return span[1] - span[0]


def canonical(value: UOp, launch: Launch, depth: int) -> UOp:
    """A value in terms that two kernels have in common: memory, rows, loops in order."""
    names: dict[UOp, UOp] = {r: UOp.range(r.extent, n) for n, r in enumerate(launch.loops[:depth])}
    for node in value.toposort():
        if node.op is Op.RANGE and node not in names:
            names[node] = UOp.range(node.extent, len(names))
        elif node.op is Op.DEFINE_GLOBAL:
            names[node] = node.replace(arg=launch.places[node.arg])
    return value.substitute(names)


def costly_values(launch: Launch, depth: int) -> dict[UOp, UOp]:
    """The largest values made by a costly op, by what they are in common terms."""
    inside: set[UOp] = set()
    found: dict[UOp, UOp] = {}
    for node in reversed(launch.nodes):
        if node in inside:
            inside.update(node.src)
        elif node.op in COSTLY and set(launch.loops[:depth]) < node.ranges:
            found[canonical(node, launch, depth)] = node
            inside.update(node.src)
    return found


def share_costly(members: Sequence[Launch], depth: int) -> list[Launch]:
    """The members, with a costly value that two of them compute stored by a member of its own."""
    result: list[Launch] = []
    shared: dict[UOp, int] = {}
    values = [costly_values(member, depth) for member in members]
    count = Counter(key for found in values for key in found)
    for member, found in zip(members, values, strict=True):
        for key, value in found.items():
            if count[key] < 2:
                continue
            loops = [r for r in value.toposort() if r.op is Op.RANGE and r in value.ranges]
            loops = [*member.loops[:depth], *(r for r in loops if r not in member.loops[:depth])]
            if key not in shared:
                shared[key] = -1 - len(shared)
                result.append(storing(value, loops, shared[key], member))
            member = loading(member, value, loops, shared[key])
        result.append(member)
    return result


def row_major(loops: Sequence[UOp]) -> UOp:
    """The place of an element in memory laid out in the order of the loops."""
    place = UOp.index(0)
    for counter in loops:
        place = place * counter.extent + counter
    return rewrite(place, simplify, name="simplify a place")


def memory_like(value: UOp, loops: Sequence[UOp], slot: int) -> UOp:
    """A pointer to memory for every value over some loops."""
    size = math.prod(r.extent for r in loops)
    return UOp(Op.DEFINE_GLOBAL, value.dtype.ptr(size), (), slot)


def storing(value: UOp, loops: Sequence[UOp], place: int, member: Launch) -> Launch:
    """The kernel that only stores a value of a member."""
    slot = len(member.places)
    target = UOp(
        Op.INDEX, (memory := memory_like(value, loops, slot)).dtype, (memory, row_major(loops))
    )
    store = UOp(Op.STORE, dtypes.void, (target, value))
    plain = {r: UOp.range(r.extent, r.arg.number) for r in loops}
    end = UOp(Op.END, dtypes.void, (store, *loops)).substitute(plain)
    return Launch(UOp.sink(end), (*member.places, place))


def loading(member: Launch, value: UOp, loops: Sequence[UOp], place: int) -> Launch:
    """A member that loads a value that it computed."""
    memory = memory_like(value, loops, len(member.places))
    load = UOp(Op.LOAD, value.dtype, (UOp(Op.INDEX, memory.dtype, (memory, row_major(loops))),))
    return Launch(member.ast.substitute({value: load}), (*member.places, place))


class Weaver:
    """Makes one kernel of several."""

    def __init__(self, shape: tuple[int, ...], rows: int, own: frozenset[int]) -> None:
        *outer, last = shape
        self.outer = [UOp.range(size, number) for number, size in enumerate(outer)]
        self.strips = UOp.range(last // rows, len(outer))
        self.count = math.prod(shape)
        self.rows = rows
        self.own = own
        self.number = len(shape)
        self.slots: dict[int, UOp] = {}
        self.filled: dict[int, UOp] = {}
        """What has been written, and the pointer behind the loops that wrote it."""

    def weave(self, members: Sequence[Launch]) -> Launch:
        """The nests of all members in order, inside of loops over strips."""
        for member in members:  # outputs first
            for place in sorted(member.written - self.own):
                self.slot(place, member)
        ends = [self.nest(member) for member in members]
        body = UOp(Op.GROUP, dtypes.void, tuple(ends))
        loops = [r for r in (*self.outer, self.strips) if r.extent > 1]
        whole = UOp(Op.END, dtypes.void, (body, *loops)) if loops else body
        ast = rewrite(UOp.sink(whole), simplify, name="simplify strips")
        return Launch(ast, tuple(p for p in self.slots if p not in self.own))

    def slot(self, place: int, member: Launch) -> UOp:
        """The pointer to memory."""
        if place not in self.slots:
            old = next(pointer_of(n) for n, p in member.accesses.items() if p == place)
            kind = old.dtype
            assert isinstance(kind, PointerDType)
            mine = place in self.own
            number = sum((p in self.own) == mine for p in self.slots)
            size = kind.size // self.count * self.rows
            self.slots[place] = (
                UOp(Op.DEFINE_LOCAL, kind.base.ptr(size, "local"), (), number)
                if mine
                else old.replace(arg=number)
            )
        return self.slots[place]

    def nest(self, member: Launch) -> UOp:
        """The loops of one member over a strip."""
        depth = len(self.outer)
        inner = self.fresh(self.rows, AxisKind.LOOP)
        renamed = dict(zip(member.loops, self.outer, strict=False))
        renamed[member.loops[depth]] = self.strips * self.rows + inner
        rows = member.loops[: depth + 1]
        own = [inner] if self.rows > 1 else []
        done: dict[UOp, UOp] = {}
        for node in member.nodes:
            if node.op is Op.RANGE:
                if node not in renamed:
                    renamed[node] = self.fresh(node.extent, node.arg.kind)
                done[node] = renamed[node]
            elif node.op is Op.INDEX:
                done[node] = self.index(member, node, rows, inner, done)
            elif node.op is Op.END:
                loops = (*own, *(done[r] for r in member.loops[depth + 1 :]))
                body = done[node.src[0]]
                done[node] = UOp(Op.END, dtypes.void, (body, *loops)) if loops else body
            else:
                done[node] = node.with_src(tuple([done[s] for s in node.src]))
        end = done[member.end]
        for place in member.written:
            pointer = self.slots[place]
            self.filled[place] = UOp(Op.AFTER, pointer.dtype, (pointer, end))
        return end

    def fresh(self, extent: int, kind: AxisKind) -> UOp:
        """A loop with a number of its own."""
        self.number += 1
        return UOp.range(extent, self.number, kind) if extent > 1 else UOp.index(0)

    def index(
        self, member: Launch, access: UOp, rows: Sequence[UOp], inner: UOp, done: dict[UOp, UOp]
    ) -> UOp:
        """Where an access of a member finds its element in a strip."""
        place = member.accesses[access]
        slot = self.slot(place, member)
        pointer = self.filled.get(place, slot)
        where = done[access.src[1]]
        if place in self.own:
            rest = member.within(access, len(rows))
            within = rest.substitute({r: done[r] for r in rest.ranges})
            where = inner * (elements(access) // self.count) + within
        gate = tuple(done[s] for s in access.src[2:])
        return UOp(Op.INDEX, slot.dtype, (pointer, where, *gate))
