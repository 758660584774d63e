"""The loops of a linear program as a tree, and which of them can be an axis of arrays.

Private to the interpreter. All steps of an innermost loop can be done at once where they know of
each other only by what they fold into registers: `total = total + value`, the value not depending
on the total. Values are folded in the order of steps, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tinycore.dtype import PointerDType
from tinycore.errors import UnsupportedError
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, REDUCTIONS, Op

__all__ = [
    "ACCESSES",
    "DEFINITIONS",
    "Fold",
    "Loop",
    "is_register",
    "nest_of",
]

DEFINITIONS: Final = frozenset(
    {Op.DEFINE_GLOBAL, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.DEFINE_VAR, Op.SPECIAL, Op.CONST}
)
"""Nodes whose value exists before the first step."""
ACCESSES: Final = frozenset({Op.LOAD, Op.STORE})
"""Nodes whose first source is elements of memory that they access; an Effect says it itself."""
AT_ONCE: Final = (
    ALU | DEFINITIONS | ACCESSES | {Op.INDEX, Op.PIXEL, Op.VECTORIZE, Op.EXTRACT, Op.GROUP}
)
"""Ops allowed in a loop whose steps are done together."""


@dataclass(frozen=True)
class Fold:
    """Three nodes that fold a value into a register: the LOAD, the ALU node and the STORE."""

    load: UOp
    combine: UOp
    store: UOp

    @property
    def value(self) -> UOp:
        """The value that is folded."""
        first, second = self.combine.src
        return second if first is self.load else first


@dataclass(eq=False)
class Loop:
    """A loop of the program, or all of it, which has a SINK in place of a counter."""

    counter: UOp
    body: list[Item] = field(default_factory=list)

    @cached_property
    def folds(self) -> list[Fold] | None:
        """All that steps do to registers, if they can be done at once; None if they cannot."""
        nodes = [item for item in self.body if isinstance(item, UOp)]
        ends = self.counter.src
        if len(nodes) < len(self.body) or not ends or not same_for_all(ends[0]):
            return None
        if not all(u.op in AT_ONCE and keeps_to_registers(u) for u in nodes):
            return None
        registers = dict.fromkeys(pointer_of(u.src[0]) for u in nodes if u.op is Op.STORE)
        found = [fold_in(register, nodes) for register in registers]
        folds = [fold for fold in found if fold]
        return folds if len(folds) == len(found) else None


Item = UOp | Loop


def nest_of(name: str, uops: Iterable[UOp]) -> Loop:
    """The nodes of a program, those of a loop inside a `Loop`. Raises if a loop is not closed."""
    loop, around = Loop(UOp.sink()), list[Loop]()
    for u in uops:
        if u.op is Op.RANGE:
            around.append(loop)
            loop.body.append(inner := Loop(u))
            loop = inner
        elif u.op is Op.END and loop.counter in u.src[1:]:
            loop = around.pop()
        else:
            loop.body.append(u)
    if around:
        raise UnsupportedError(f"program {name} never closes the loop {loop.counter!r}")
    return loop


def is_register(u: UOp) -> bool:
    """True if a DEFINE is a register of one element."""
    return u.op is Op.DEFINE_REG and isinstance(u.dtype, PointerDType) and u.dtype.size == 1


def same_for_all(end: UOp) -> bool:
    """True if the end of a loop is the same number for every thread, known before it begins."""
    return all(u.op in ALU or u.op in (Op.CONST, Op.DEFINE_VAR) for u in end.toposort())


def keeps_to_registers(u: UOp) -> bool:
    """True unless a node stores to memory other than a register of each thread, without a gate."""
    return u.op is not Op.STORE or (is_register(pointer_of(u.src[0])) and len(u.src[0].src) == 2)


def fold_in(register: UOp, nodes: list[UOp]) -> Fold | None:
    """The fold that is all that is done to a register, if so it is."""
    touched = [u for u in nodes if u.op in ACCESSES and pointer_of(u.src[0]) is register]
    if [u.op for u in touched] != [Op.LOAD, Op.STORE]:
        return None
    load, store = touched
    combine = store.src[1]
    together = combine.op in REDUCTIONS and combine in nodes and combine.src.count(load) == 1
    if not together or users(load, nodes) != [combine] or users(combine, nodes) != [store]:
        return None
    return Fold(load, combine, store)


def users(u: UOp, nodes: list[UOp]) -> list[UOp]:
    """The nodes that have this one as a source, counted by the executions of each."""
    return [node for node in nodes if u in node.src]
