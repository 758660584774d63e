"""`Loops`: queries on a kernel by which tile steps check their legality.

Floor 3'. Strategies are written to propose legal plans only. A plan from elsewhere, from a search
or the disk, is applied by `tile.apply_checked`, which asks each step for its objection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.lower.dims import is_known_at_launch
from tinycore.lower.loops import Number, fills_of
from tinycore.lower.predicate import loops_around_stores
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, AxisKind, Op

PLAIN_KINDS: Final = (AxisKind.LOOP, AxisKind.REDUCE)
"""Loops that nothing was decided about yet."""


@dataclass(frozen=True)
class Loops:
    """The loops of a kernel, with the nodes that close, store and fill in them."""

    kernel: UOp

    @cached_property
    def nodes(self) -> list[UOp]:
        """Every node."""
        return list(self.kernel.toposort())

    @cached_property
    def by_number(self) -> dict[Number, UOp]:
        """Every loop."""
        return {n.number: n for n in self.nodes if n.op is Op.RANGE}

    def closers(self, counter: UOp) -> list[UOp]:
        """The nodes that close a loop."""
        return [n for n in self.nodes if n.op in CLOSERS and counter in n.src[1:]]

    def undecided(self, axis: Number, varies: bool = False) -> str | None:
        """Why a loop cannot be changed; `varies` permits a symbolic length."""
        counter = self.by_number.get(axis)
        if counter is None:
            return f"there is no loop {axis}"
        if not counter.is_fixed and not (varies and is_known_at_launch(counter.src[0])):
            return f"how often loop {axis} runs is known at launch only"
        if counter.kind not in PLAIN_KINDS:
            return f"loop {axis} is {counter.kind.value} already"
        return None

    @cached_property
    def around_stores(self) -> set[Number]:
        """The loops that every store is in."""
        return {r.number for r in loops_around_stores(self.kernel)}

    @cached_property
    def filling(self) -> set[Number]:
        """The loops that fill scratch memory."""
        return {r.number for n in self.fills for r in n.src[1].src[1:]}

    @cached_property
    def fills(self) -> list[UOp]:
        """Scratch memory behind its fill."""
        return fills_of(self.kernel)

    def is_filled_inside(self, counter: UOp) -> bool:
        """True if scratch memory is filled again in each step of a loop."""
        return any(n.op is Op.AFTER and counter in n.ranges for n in self.nodes)

    def is_outermost(self, counter: UOp) -> bool:
        """True if a loop encloses the whole kernel."""
        root = self.kernel.src[0]
        return len(self.kernel.src) == 1 and root.op is Op.END and root.src[1] is counter
