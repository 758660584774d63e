"""The loops of a linear program as a tree, and which of them can be axes of arrays.

Private to the interpreter. All steps of a loop can be done at once where they know of each other
only by what they fold into registers: `total = total + value`, the value not depending on the
total. The values are folded in the order of the steps, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tinycore.dtype import PointerDType
from tinycore.errors import UnsupportedError
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, REDUCTIONS, Op

__all__ = [
    "DEFINITIONS",
    "Fold",
    "Item",
    "Loop",
    "count_levels",
    "find_axes",
    "is_register",
    "nest_of",
]

DEFINITIONS: Final = frozenset(
    {Op.DEFINE_GLOBAL, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.DEFINE_VAR, Op.SPECIAL, Op.CONST}
)
"""Nodes whose value exists before the first step."""
AT_ONCE: Final = (
    ALU | DEFINITIONS | {Op.LOAD, Op.STORE, Op.INDEX, Op.PIXEL, Op.VECTORIZE, Op.EXTRACT, Op.GROUP}
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
    """A loop of the program."""

    counter: UOp
    body: list[Item] = field(default_factory=list)
    level: int | None = None
    """The array axis of its steps; None if they are sequential."""
    folds: dict[UOp, Fold] = field(default_factory=dict)
    """The register of each fold over the steps of this loop and of loops inside of it."""
    cleared: list[UOp] = field(default_factory=list)
    """Registers that every step writes before it reads them."""

    @property
    def loops(self) -> list[Loop]:
        """The loops right inside of it."""
        return [item for item in self.body if isinstance(item, Loop)]

    @property
    def inside(self) -> int:
        """Most steps of inner loops within one step of this one."""
        return max((x.counter.extent * x.inside for x in self.loops), default=1)


Item = UOp | Loop


def nest_of(name: str, uops: Iterable[UOp]) -> list[Item]:
    """The nodes of a program, those of a loop inside a `Loop`. Raises if a loop is not closed."""
    body: list[Item] = []
    enclosing: list[tuple[Loop, list[Item]]] = []
    for u in uops:
        if u.op is Op.RANGE:
            loop = Loop(u)
            body.append(loop)
            enclosing.append((loop, body))
            body = loop.body
        elif u.op is Op.END and enclosing and enclosing[-1][0].counter in u.src[1:]:
            body = enclosing.pop()[1]
        else:
            body.append(u)
    if enclosing:
        raise UnsupportedError(f"program {name} never closes the loop {enclosing[-1][0].counter!r}")
    return body


def is_register(u: UOp) -> bool:
    """True if a DEFINE is a register of one element."""
    return u.op is Op.DEFINE_REG and isinstance(u.dtype, PointerDType) and u.dtype.size == 1


def find_axes(items: Iterable[Item]) -> None:
    """Give a level to every loop that can be an axis, with all the loops inside of it."""
    for loop in items:
        if isinstance(loop, Loop):
            if can_be_axis(loop):
                set_levels(loop, 0)
            else:
                find_axes(loop.body)


def set_levels(loop: Loop, level: int) -> None:
    """Number nested loops from the outermost on."""
    loop.level = level
    for inner in loop.loops:
        set_levels(inner, level + 1)


def count_levels(items: Iterable[Item]) -> int:
    """Number of levels."""
    loops = [item for item in items if isinstance(item, Loop)]
    own = [loop.level + 1 for loop in loops if loop.level is not None]
    return max([0, *own, *(count_levels(loop.body) for loop in loops)])


def can_be_axis(loop: Loop) -> bool:
    """True if all steps can be done at once; records what becomes of the registers they write."""
    loop.folds.clear()
    loop.cleared.clear()
    if not all(can_be_axis(inner) for inner in loop.loops) or not same_for_all(loop.counter.src[0]):
        return False
    places = list(walk(loop))
    if not all(u.op in AT_ONCE and keeps_to_registers(u) for _, u in places):
        return False
    for register in dict.fromkeys(pointer_of(u.src[0]) for _, u in places if u.op is Op.STORE):
        touched = [(block, u) for block, u in places if touches(u, register)]
        if touched[0][1].op is Op.STORE and touched[0][0] is loop:
            loop.cleared.append(register)
        elif (fold := fold_in(touched, [u for _, u in places])) is not None:
            loop.folds[register] = fold
        else:
            return False
    return True


def walk(loop: Loop) -> Iterator[tuple[Loop, UOp]]:
    """Every node in a loop and the loops inside, in order, each with the loop it stands in."""
    for item in loop.body:
        if isinstance(item, Loop):
            yield from walk(item)
        else:
            yield loop, item


def same_for_all(end: UOp) -> bool:
    """True if the end of a loop is the same number for every thread, known before it begins."""
    return all(u.op in ALU or u.op in (Op.CONST, Op.DEFINE_VAR) for u in end.toposort())


def keeps_to_registers(u: UOp) -> bool:
    """True unless a node stores to memory other than a register of each thread, without a gate."""
    return u.op is not Op.STORE or (is_register(pointer_of(u.src[0])) and len(u.src[0].src) == 2)


def touches(u: UOp, register: UOp) -> bool:
    """True if a node reads or writes a register."""
    return u.op in (Op.LOAD, Op.STORE) and pointer_of(u.src[0]) is register


def fold_in(touched: list[tuple[Loop, UOp]], nodes: list[UOp]) -> Fold | None:
    """The fold that is all that is done to a register, if so it is."""
    if [u.op for _, u in touched] != [Op.LOAD, Op.STORE] or touched[0][0] is not touched[1][0]:
        return None
    (block, load), (_, store) = touched
    combine = store.src[1]
    together = combine.op in REDUCTIONS and combine in block.body and combine.src.count(load) == 1
    if not together or users(load, nodes) != [combine] or users(combine, nodes) != [store]:
        return None
    return Fold(load, combine, store)


def users(u: UOp, nodes: list[UOp]) -> list[UOp]:
    """The nodes that have this one as a source, counted by the executions of each."""
    return [node for node in nodes if u in node.src]
