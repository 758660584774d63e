"""Inlining of kernels: a LOAD of what another kernel stores gives way to the stored value.

Floor 3. The one way to fuse kernels without memory between them (Halide's `compute_inline`, done on
finished kernels): rows on a grid (`row_inlining.py`) and chains of products (`product_chains.py`)
decide which kernels gain by it, and which loops they have in common.

Legality is a question of addresses alone, and asked here alone: a LOAD has the value that is stored
if its address is that of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinycore.render.base import Limits
from tinycore.schedule.access import Launch
from tinycore.schedule.candidates import Memory, Refusal
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify


class Inlining:
    """Kernels as one graph over common loops, with all memory by its number."""

    def __init__(self, first: Launch, limits: Limits, memory: Memory) -> None:
        """`first` is the first member, which is not added yet."""
        self.members, self.limits, self.memory = [first], limits, memory
        self.number = max((r.arg.number[0] for r in first.by_op[Op.RANGE]), default=0)
        """The greatest number of a loop."""
        self.stored: dict[int, tuple[UOp, UOp]] = {}
        """INDEX and value of each store, by memory number."""
        self.pointers: dict[int, UOp] = {}
        """Pointers to all memory, each numbered as it is."""

    def fresh(self, loop: UOp, kind: AxisKind) -> UOp:
        """A new loop of the same length as another."""
        self.number += 1
        return UOp.range(loop.src[0], self.number, kind)

    def refusal(self, launch: Launch, most: int) -> Refusal | None:
        """Why a kernel is no member whatever its loops, where there are `most`; None if it may be
        one."""
        if len(self.members) >= most:
            return Refusal.FULL
        if not launch.read & self.stored.keys():
            return Refusal.UNRELATED
        return Refusal.OVERWRITTEN if launch.written & self.pointers.keys() else None

    def add(self, launch: Launch, loops: Mapping[UOp, UOp]) -> bool:
        """Add a kernel with `loops` in place of its own, and new ones for those that are not named.

        False, and no store is added, if it reads what others store at other addresses.
        """
        if (done := self.inlined(launch, loops)) is None:
            return False
        for store in launch.by_op[Op.STORE]:
            index, value = (done[s] for s in store.src)
            self.stored[launch.accesses[store.src[0]]] = (index, value)
        return True

    def inlined(self, launch: Launch, loops: Mapping[UOp, UOp]) -> dict[UOp, UOp] | None:
        """Replacements of the nodes of a kernel; None if a LOAD has no value."""
        done = dict(loops)
        for node in launch.nodes:
            if node in done or node.op in (Op.END, Op.SINK):
                continue
            if node.op is Op.RANGE:
                done[node] = self.fresh(node, node.arg.kind)
                continue
            if node.op is Op.DEFINE_GLOBAL:
                place = launch.places[node.arg]
                new: UOp | None = self.pointers.setdefault(place, node.replace(arg=place))
                new = new if new is not None and new.dtype is node.dtype else None
            elif node.op is Op.LOAD and launch.accesses[node.src[0]] in self.stored:
                new = self.value(launch.accesses[node.src[0]], [done[s] for s in node.src])
            else:
                new = node.with_src(tuple([done[s] for s in node.src]))
                if node.op is Op.INDEX:
                    new = rewrite(new, simplify, name="simplify a place")
            if new is None:
                return None
            done[node] = new
        return done

    def value(self, place: int, sources: Sequence[UOp]) -> UOp | None:
        """The value of a LOAD of stored memory, given its INDEX, and what it gives where a gate is
        closed; None if it is stored at other loops."""
        (index, value), (read, *other) = self.stored[place], sources
        if read.src[1] is not index.src[1]:
            return None
        return read.src[2].where(value, other[0]) if other else value

    def store(self, place: int) -> UOp:
        """The STORE to some memory."""
        index, value = self.stored[place]
        return index.store(value)

    def kernel(self, end: UOp, stored: Sequence[int]) -> Launch:
        """The kernel of a nest that stores some memory, which its first slots are."""
        read = sorted(int(n.arg) for n in end.toposort() if n.op is Op.DEFINE_GLOBAL)
        slots = tuple(dict.fromkeys((*stored, *read)))
        numbered = {self.pointers[p]: self.pointers[p].replace(arg=n) for n, p in enumerate(slots)}
        return Launch(UOp.sink(end).substitute(numbered), slots)
