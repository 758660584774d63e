"""`KernelFacts`: the access table of a kernel, which every planner asks.

Floor 3'. Loops, memory accesses, the stride of each access by each loop, reductions and work: what
TVM calls the features of a program. Each fact is computed once, at the first question; a step of a
plan makes another kernel, and so another table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.tile import overwrites_what_it_reads
from tinycore.uop.affine import coefficient
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPOUND, RECURRENCES, AxisKind, Op

WORK: Final = ALU | {Op.DOT, Op.LOAD, Op.STORE}
"""Ops that take time, but for those of addresses."""
PLAIN: Final = ("index", "bool", "void")
"""Kinds of types that no vector register is filled with."""


class KernelFacts:
    """Facts of a kernel, or of some statements of it, as the steps of a plan have made it so far.

    Arrays that are filled `elsewhere`, by other statements, count as memory.
    """

    def __init__(
        self, kernel: UOp, roots: tuple[UOp, ...], elsewhere: frozenset[UOp] = frozenset()
    ) -> None:
        self.kernel = kernel
        self.roots = roots
        self.elsewhere = elsewhere

    def below(self, root: UOp) -> list[UOp]:
        """A node and all below it, sources first, without the fills of arrays filled elsewhere."""
        if not self.elsewhere:
            return root.toposort()
        return root.toposort(lambda n: n.op is not Op.AFTER or n.src[0] not in self.elsewhere)

    @cached_property
    def nodes(self) -> list[UOp]:
        """All nodes, sources first."""
        return self.below(self.roots[0] if len(self.roots) == 1 else UOp.sink(*self.roots))

    # --- loops

    @cached_property
    def loops(self) -> list[UOp]:
        """The counters of all loops."""
        return [n for n in self.nodes if n.op is Op.RANGE]

    def loops_of_kind(self, kind: AxisKind) -> list[UOp]:
        """The counters of all loops of a kind."""
        return [r for r in self.loops if r.arg.kind is kind]

    @cached_property
    def outputs(self) -> list[UOp]:
        """The loops over outputs whose steps may happen in any order, outermost first.

        Loops of which only a launch knows the length stay as they are, and are not among them.
        """
        below = UOp.sink(*self.roots).toposort(lambda n: n.op in COMPOUND)
        ends = [n for n in below if n.op is Op.END]
        loops = [r for n in ends for r in n.src[1:] if r.is_fixed]
        return [r for r in loops if r.arg.kind is not AxisKind.ORDERED]

    @cached_property
    def reduced(self) -> list[UOp]:
        """The loops of fixed length over what is reduced, each once."""
        loops = [r for n in self.reductions for r in n.src[1:] if r.op is Op.RANGE]
        return list(dict.fromkeys(r for r in loops if r.is_fixed))

    @cached_property
    def is_fixed(self) -> bool:
        """Whether all loops are of fixed length; only then operands are kept and staged."""
        return all(n.is_fixed for n in self.kernel.toposort() if n.op is Op.RANGE)

    # --- accesses

    @cached_property
    def accesses(self) -> list[UOp]:
        """Every INDEX: what is loaded and stored."""
        return [n for n in self.nodes if n.op is Op.INDEX]

    @cached_property
    def stored(self) -> list[UOp]:
        """The INDEX of every STORE."""
        return [n.src[0] for n in self.nodes if n.op is Op.STORE]

    @cached_property
    def loads(self) -> frozenset[UOp]:
        """Every INDEX that a reduction reads."""
        return frozenset(n for r in self.reductions for n in self.below(r) if n.op is Op.INDEX)

    @staticmethod
    def stride(access: UOp, loop: UOp) -> int | None:
        """Elements between the places of neighboring steps of a loop; None where that varies."""
        return coefficient(access.src[1], loop)

    @cached_property
    def overwrites(self) -> bool:
        """Whether memory that is stored to is loaded, too: then no step may be done twice."""
        return any(map(overwrites_what_it_reads, self.roots))

    # --- values

    @cached_property
    def reductions(self) -> list[UOp]:
        """The REDUCE nodes."""
        return [n for n in self.nodes if n.op is Op.REDUCE]

    @cached_property
    def has_scan(self) -> bool:
        """Whether values of a loop's steps are folded one after the other."""
        return any(n.op in (Op.SCAN, Op.RECUR) for n in self.nodes)

    @cached_property
    def has_recurrence(self) -> bool:
        """Whether what a step gives decides what the next one reads: lanes would go apart."""
        return any(n.op in RECURRENCES for n in self.nodes)

    @cached_property
    def itemsize(self) -> int:
        """The bytes of the widest value loaded or computed."""
        values = [n.src[1] if n.op is Op.STORE else n for n in self.nodes]
        sizes = [
            n.dtype.itemsize
            for n in values
            if (n.op in ALU or n.op in (Op.LOAD, Op.CONST)) and n.dtype.kind not in PLAIN
        ]
        return max([*sizes, 1])

    @cached_property
    def are_side_by_side(self) -> bool:
        """Whether all reductions are over the same loops, and none is of another."""
        inner = {n for total in self.reductions for n in total.toposort() if n is not total}
        nests = {total.src[1:] for total in self.reductions}
        return inner.isdisjoint(self.reductions) and len(nests) == 1

    @cached_property
    def work(self) -> int:
        """Loads, stores and arithmetic in all steps of the loops, roughly."""
        return work_of(self.nodes)


def work_of(nodes: Iterable[UOp]) -> int:
    """Loads, stores and arithmetic of some nodes in all steps of their loops, roughly."""
    return sum(
        math.prod(r.extent for r in n.ranges)
        for n in nodes
        if n.dtype is not dtypes.index and n.op in WORK
    )
