"""Access analysis of a kernel over numbered memory: reads and writes, row by row.

Floor 3. Row fusion (`row_fusion.py`) asks the same questions for each candidate of a group, so all
answers are memoized.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from tinycore.dtype import PointerDType
from tinycore.render.base import pointer_of
from tinycore.schedule.dependence import KernelGroup
from tinycore.uop.affine import coefficient, interval
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

LINE_BYTES: Final = 64
"""Bytes that all rows read again and that are in the nearest cache anyway."""

Spans = dict[int, tuple[int, int]]
"""Byte ranges touched, by memory number."""


@dataclass(eq=False)
class Launch:
    """A kernel to be: its graph, and the groups of values that it computes."""

    ast: UOp
    places: tuple[int, ...]
    """The memory number of each slot."""
    groups: tuple[KernelGroup, ...] = ()
    kernel: UOp | None = None
    """The KERNEL of an earlier call that waits to run, which has no groups."""

    @cached_property
    def end(self) -> UOp:
        """The END around everything, or the STORE of a kernel without loops."""
        return self.ast.src[0]

    @cached_property
    def loops(self) -> tuple[UOp, ...]:
        """The loops over outputs, outermost first."""
        return self.end.src[1:] if self.end.op is Op.END else ()

    @cached_property
    def by_op(self) -> dict[Op, list[UOp]]:
        """The nodes of each op, in topological order."""
        found: dict[Op, list[UOp]] = defaultdict(list)
        for node in self.ast.toposort():
            found[node.op].append(node)
        return found

    @property
    def folds(self) -> list[UOp]:
        """The reductions."""
        return self.by_op[Op.REDUCE]

    @cached_property
    def accesses(self) -> dict[UOp, int]:
        """Every INDEX into a slot, and the memory number of that slot."""
        pointers = {n: pointer_of(n) for n in self.by_op[Op.INDEX]}
        slots = {n: int(p.arg) for n, p in pointers.items() if p.op is Op.DEFINE_GLOBAL}
        return {n: self.places[slot] for n, slot in slots.items()}

    @cached_property
    def touched(self) -> frozenset[int]:
        """The memory it reads or writes."""
        return frozenset(self.accesses.values())

    @cached_property
    def written(self) -> frozenset[int]:
        """The memory it writes; the output of a copy comes first."""
        return frozenset(self.places[:1]) if self.ast.op is Op.COPY else self.accessed_by(Op.STORE)

    @cached_property
    def read(self) -> frozenset[int]:
        """The memory it reads."""
        return frozenset(self.places[1:]) if self.ast.op is Op.COPY else self.accessed_by(Op.LOAD)

    def accessed_by(self, op: Op) -> frozenset[int]:
        """The memory of all LOADs, or of all STOREs."""
        found = (n.src[0] for n in self.by_op[op])
        return frozenset([self.accesses[index] for index in found if index in self.accesses])

    @property
    def is_plain(self) -> bool:
        """True if the kernel is one nest of plain, fixed loops that reads nothing it writes."""
        return self.end.op is Op.END and self.is_row

    @cached_property
    def is_row(self) -> bool:
        """True if the kernel is such a nest, or stores a single element."""
        found = self.by_op
        is_fixed = not found[Op.DEFINE_VAR] and all(r.is_fixed for r in found[Op.RANGE])
        return is_fixed and self.is_varying_row

    @cached_property
    def is_varying_row(self) -> bool:
        """True if the kernel is `is_row` but that lengths may be known at launch only."""
        if len(self.ast.src) != 1 or self.written & self.read:
            return False
        found = self.by_op
        if any(r.arg.kind is not AxisKind.LOOP for r in self.loops):
            return False
        if len(found[Op.END]) > 1 or found[Op.AFTER] or found[Op.DEFINE_LOCAL]:
            return False
        return all(r.arg.kind is not AxisKind.ORDERED for r in found[Op.RANGE])

    def stays(self, index: UOp, depth: int) -> bool:
        """True if an INDEX stays within the current row of the outer `depth` loops."""
        return row_size(index.src[1], elements(index), self.loops[:depth]) is not None

    @cached_property
    def footprints(self) -> dict[int, tuple[Spans, Spans]]:
        """Memoized answers of `footprint`."""
        return {}

    def footprint(self, depth: int) -> tuple[Spans, Spans]:
        """(bytes re-read by every row of the outer `depth` loops, bytes read by one row only).

        Without such loops all of it is one row.
        """
        if (found := self.footprints.get(depth)) is None:
            reread: Spans = {}
            own: Spans = {}
            for access, number in self.accesses.items():
                start, stop = interval(access.src[1], self.loops[:depth])
                start, stop = max(start, 0), min(stop, elements(access))
                size = pointer_of(access).dtype.itemsize
                is_own = not depth or self.loops[depth - 1] in access.src[1].ranges
                kind = own if is_own else reread
                widen(kind, number, (start * size, stop * size))
            found = self.footprints[depth] = reread, own
        return found


def written_by(launches: Iterable[Launch]) -> frozenset[int]:
    """The memory that some kernels write."""
    return frozenset().union(*(launch.written for launch in launches))


def footprint(
    members: Iterable[Launch], depth: int, without: frozenset[int] = frozenset()
) -> tuple[int, int]:
    """(bytes that every row re-reads, bytes that one row reads) of several kernels together, but
    for some memory."""
    found: tuple[Spans, Spans] = {}, {}
    for member in members:
        for kind, spans in zip(found, member.footprint(depth), strict=True):
            for number in spans.keys() - without:
                widen(kind, number, spans[number])
    reread, own = ([*map(size_of, spans.values())] for spans in found)
    return sum(n for n in reread if n > LINE_BYTES), sum(own)


def size_of(span: tuple[int, int]) -> int:
    """The bytes of a span."""
    return span[1] - span[0]


def widen(spans: Spans, number: int, span: tuple[int, int]) -> None:
    """Extend the touched bytes of some memory by a span."""
    start, stop = spans.get(number, span)
    spans[number] = min(start, span[0]), max(stop, span[1])


@lru_cache(4096)
def row_size(offset: UOp, size: int, rows: tuple[UOp, ...]) -> int | None:
    """Elements of a row if an offset in memory of some size is row-major over the loops `rows` and
    stays inside of its row, or None."""
    count = math.prod(r.extent for r in rows)
    if size % count:
        return None
    stride = size // count
    for counter in reversed(rows):
        if coefficient(offset, counter) != stride:
            return None
        stride *= counter.extent
    zero = offset.substitute({r: UOp.index(0) for r in rows})
    rest = rewrite(zero, simplify, name="simplify within a row")
    return size // count if rest.vmin >= 0 and rest.vmax < size // count else None


def elements(index: UOp) -> int:
    """The size of the memory that an INDEX addresses."""
    pointer = pointer_of(index).dtype
    assert isinstance(pointer, PointerDType)
    return int(pointer.size)
