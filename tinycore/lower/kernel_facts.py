"""`KernelFacts`: the access table of a kernel, from which strategies propose plans.

Floor 3'. Loops, memory accesses, the stride of each access by each loop, footprint, reuse, overlap,
reductions and work: what TVM calls the features of a program. Each fact is computed once, at the
first question; a step of a plan makes another kernel, and so another table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.lower.dims import is_known_at_launch
from tinycore.lower.loops import loops_of, overwrites_what_it_reads
from tinycore.lower.predicate import loops_around_stores
from tinycore.uop.affine import coefficient, interval, iterations_of, repetition
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPOUND, RECURRENCES, AxisKind, Op

WORK: Final = ALU | {Op.DOT, Op.LOAD, Op.STORE}
"""Ops that take time, other than those of addresses."""
VALUES: Final = ALU | {Op.LOAD, Op.CONST}
"""Ops whose results are in registers."""
NEVER_IN_VECTORS: Final = ("index", "bool", "void")
"""Kinds of types that no vector register is filled with."""
SMALL_LOOP: Final = 4
"""Steps of a loop that may be unrolled whole, as those over a window of a convolution."""
LEAST_REUSE: Final = 4
"""Least number of reads of an element for which a copy pays (docs/decisions/0029-staging.md)."""


class KernelFacts:
    """Facts of a kernel, or of some statements of it, after the steps of a plan so far.

    Arrays that other statements fill (`elsewhere`) count as memory.
    """

    def __init__(
        self,
        kernel: UOp,
        roots: tuple[UOp, ...],
        elsewhere: frozenset[UOp] = frozenset(),
        varies: bool = False,
    ) -> None:
        """`varies` says that a launch may follow loops of symbolic length: see `Limits`."""
        self.kernel = kernel
        self.roots = roots
        self.elsewhere = elsewhere
        self.varies = varies
        self.strides: dict[tuple[UOp, UOp], int | None] = {}

    def below(self, root: UOp) -> list[UOp]:
        """A node and all below it, sources first, without the fills of arrays filled elsewhere."""
        if not self.elsewhere:
            return root.toposort()
        return root.toposort(lambda n: n.op is not Op.AFTER or n.src[0] not in self.elsewhere)

    @cached_property
    def nodes(self) -> list[UOp]:
        """All nodes, sources first."""
        return self.below(UOp.sink(*self.roots))

    # --- loops

    @cached_property
    def loops(self) -> list[UOp]:
        """The counters of all loops."""
        return [n for n in self.nodes if n.op is Op.RANGE]

    def loops_of_kind(self, kind: AxisKind) -> list[UOp]:
        """The counters of all loops of a kind."""
        return [r for r in self.loops if r.kind is kind]

    @cached_property
    def outputs(self) -> list[UOp]:
        """The loops over outputs whose steps may happen in any order, outermost first.

        Loops whose length is known only at launch are included if launches can follow it
        (`varies`).
        """
        below = UOp.sink(*self.roots).toposort(lambda n: n.op in COMPOUND)
        ends = [n for n in below if n.op is Op.END]
        loops = [r for n in ends for r in n.src[1:] if self.may_cut(r)]
        return [r for r in loops if r.kind is not AxisKind.ORDERED]

    def may_cut(self, loop: UOp) -> bool:
        """True if a loop is of fixed length, or of one that launches follow."""
        return loop.is_fixed or (self.varies and is_known_at_launch(loop.src[0]))

    def nest_of(self, axis: UOp) -> list[UOp]:
        """The output loops around a loop or inside of it, and not in another part of a loop."""
        ends = [n for n in self.nodes if n.op is Op.END and axis in n.src[1:]]
        inner = [n for e in ends for n in e.src[0].toposort(lambda n: n.op in COMPOUND)]
        found = {r for e in ends for r in (*e.src[1:], *e.ranges)}
        found |= {r for n in inner if n.op is Op.END for r in n.src[1:]}
        return [r for r in self.outputs if r in found]

    @cached_property
    def launchable(self) -> list[UOp]:
        """The loops over outputs that may become threads of a grid, outermost first."""
        around = loops_around_stores(self.kernel)
        return [r for r in around if r.kind is AxisKind.LOOP and self.may_cut(r)]

    @property
    def outputs_launched(self) -> int:
        """Threads of a grid with one for each step of the launchable loops."""
        return iterations_of(self.launchable)

    @cached_property
    def has_order(self) -> bool:
        """True if a node is ordered after another: threads of a grid guarantee no order."""
        return any(n.op is Op.AFTER for n in self.kernel.toposort())

    @cached_property
    def reduced(self) -> list[UOp]:
        """The reduced loops, each once: those that may be cut."""
        loops = [r for n in self.reductions for r in loops_of(n)]
        return list(dict.fromkeys(r for r in loops if self.may_cut(r)))

    @cached_property
    def innermost(self) -> list[UOp]:
        """The innermost loop of each reduction, each once, in the order of the kernel."""
        last = (n.src[-1] for n in self.reductions)
        return list(dict.fromkeys(r for r in last if r.op is Op.RANGE))

    @cached_property
    def is_cuttable(self) -> bool:
        """True if every loop may be cut; only then operands are kept and packed."""
        return all(self.may_cut(n) for n in self.kernel.every(Op.RANGE))

    @cached_property
    def is_fixed(self) -> bool:
        """True if every loop is of fixed length."""
        return all(n.is_fixed for n in self.kernel.every(Op.RANGE))

    # --- accesses

    @cached_property
    def accesses(self) -> list[UOp]:
        """Every INDEX of a load or store."""
        return [n for n in self.nodes if n.op is Op.INDEX]

    @cached_property
    def stored(self) -> list[UOp]:
        """The INDEX of every STORE."""
        return [n.src[0] for n in self.nodes if n.op is Op.STORE]

    @cached_property
    def loads(self) -> frozenset[UOp]:
        """Every INDEX that a reduction reads."""
        return frozenset(n for r in self.reductions for n in self.below(r) if n.op is Op.INDEX)

    def stride(self, access: UOp, loop: UOp) -> int | None:
        """Distance in elements between accesses of neighboring steps; None if it varies."""
        key = access.src[1], loop
        if key not in self.strides:
            self.strides[key] = coefficient(*key)
        return self.strides[key]

    def repeats(self, access: UOp, loop: UOp, lanes: int) -> bool:
        """True if lanes along a loop read few neighboring elements, each for several of them."""
        again = repetition(access.src[1], loop)
        is_plain = again is not None and len(access.src) == 2
        return is_plain and lanes % (again or 1) == 0 and loop.extent % lanes == 0

    def is_window(self, access: UOp, output: UOp) -> bool:
        """True if neighboring outputs share elements, at other reduction steps: a sliding window.

        A packed panel would hold each shared element several times.
        """
        move = abs(self.stride(access, output) or 0) or math.inf
        steps = [(abs(self.stride(access, r) or 0), r.extent - 1) for r in self.reduced]
        return any(step < move * output.extent and step * last >= move for step, last in steps)

    def rows_overlap(self, axis: UOp, row: UOp) -> bool:
        """True if neighboring image rows read the same elements, as those of a window do."""
        return any(
            (apart := self.stride(access, row))
            and (step := self.stride(access, r))
            and apart % step == 0
            and abs(apart) < abs(step) * r.extent
            for access in self.accesses
            if axis in access.src[1].ranges
            for r in self.reduced
        )

    def interleaved(self, access: UOp, axis: UOp) -> list[UOp]:
        """The short output loop whose steps lie between those of another, if there is one."""
        beside = [r for r in self.outputs if r.is_fixed and self.stride(access, r) == 1]
        lies = self.stride(access, axis)
        return [r for r in beside if 1 < r.extent <= SMALL_LOOP and r.extent == lies]

    def footprint(self, loops: list[UOp]) -> int:
        """The bytes that reductions read in some loops, each access from first to last byte."""
        spans = (interval(n.src[1], n.src[1].ranges.difference(loops)) for n in self.loads)
        return sum(stop - start for start, stop in spans) * self.itemsize

    @cached_property
    def overwrites(self) -> bool:
        """True if memory that is stored to is also loaded: then no step may be executed twice."""
        return any(map(overwrites_what_it_reads, self.roots))

    # --- values

    @cached_property
    def reductions(self) -> list[UOp]:
        """The REDUCE nodes."""
        return [n for n in self.nodes if n.op is Op.REDUCE]

    @cached_property
    def reduced_types(self) -> frozenset[DType]:
        """The types of all values that reductions are computed from."""
        return frozenset(n.dtype for n in UOp.sink(*self.reductions).toposort())

    @cached_property
    def has_scan(self) -> bool:
        """True if a scan folds the values of a loop's steps, one after the other."""
        return any(n.op in (Op.SCAN, Op.RECUR) for n in self.nodes)

    @cached_property
    def has_recurrence(self) -> bool:
        """True if the result of a step decides the next step's loads: lanes would diverge."""
        return any(n.op in RECURRENCES for n in self.nodes)

    @cached_property
    def itemsize(self) -> int:
        """The bytes of the widest value loaded or computed."""
        return widest(n for n in self.nodes if n.op in VALUES)

    @cached_property
    def read_itemsize(self) -> int:
        """The bytes of the widest element that reductions read; 1 if they read none."""
        return max((n.dtype.itemsize for n in self.loads), default=1)

    @cached_property
    def moved_itemsize(self) -> int:
        """The bytes of the widest value loaded or stored."""
        stored = (n.src[1] for n in self.nodes if n.op is Op.STORE)
        return widest((*stored, *(n for n in self.nodes if n.op is Op.LOAD)))

    @cached_property
    def longest_reduction(self) -> int:
        """The steps of the longest reduction; 1 without any."""
        nests = map(loops_of, self.reductions)
        return max((iterations_of(n) for n in nests), default=1)

    @cached_property
    def simultaneous(self) -> int:
        """Most reductions that share their loops, or are copies of one by a loop that is unrolled,
        and so the registers for accumulators."""
        copies = iterations_of(self.loops_of_kind(AxisKind.UNROLL))
        return copies * max(Counter(node.src[1:] for node in self.reductions).values(), default=1)

    @cached_property
    def are_side_by_side(self) -> bool:
        """True if all reductions are over the same loops, and none is nested in another."""
        inner = {n for total in self.reductions for n in total.toposort() if n is not total}
        nests = {total.src[1:] for total in self.reductions}
        return inner.isdisjoint(self.reductions) and len(nests) == 1

    @cached_property
    def work(self) -> int:
        """Loads, stores and arithmetic in all steps of the loops, roughly."""
        return work_of(self.nodes)


def widest(values: Iterable[UOp]) -> int:
    """The bytes of the widest of some values that vector registers hold; 1 without any."""
    return max([v.dtype.itemsize for v in values if v.dtype.kind not in NEVER_IN_VECTORS] + [1])


def work_of(nodes: Iterable[UOp]) -> int:
    """Loads, stores and arithmetic of some nodes in all steps of their loops, roughly."""
    return sum(
        iterations_of(n.ranges) for n in nodes if n.dtype is not dtypes.index and n.op in WORK
    )
