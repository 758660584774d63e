"""Products of matrices in a tensor graph: their operands, and steps element by element above them.

Floor 1. A product is the sum over the last axis of rows (.., rows, 1, steps) times columns
(.., 1, columns, steps), both in one type or another, which are summed in a wide one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tinycore.dtype import DType
from tinycore.uop.movement import moved
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op


@dataclass(frozen=True)
class Product:
    """A sum of products of matrices."""

    node: UOp
    """The sum in shape (.., rows, columns)."""
    rows: UOp
    columns: UOp
    batch: tuple[int, ...]
    """Sizes of the axes before the last two."""
    inside: tuple[UOp, ...]
    """The nodes between the operands and the sum."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of rows, columns and steps."""
        rows, _, steps = self.rows.shape[-3:]
        return rows, self.columns.shape[-2], steps

    @property
    def dtype(self) -> DType | None:
        """The type of both operands; None for several."""
        return self.rows.dtype if self.rows.dtype is self.columns.dtype else None


def product_at(node: UOp) -> Product | None:
    """The product that a node is, a sum with or without its axis of one; None for others."""
    total = node.src[0] if node.op is Op.RESHAPE else node
    if total.op is not Op.REDUCE_AXIS or total.src[0].op is not Op.MUL:
        return None
    value, last = total.src[0], len(total.shape) - 1
    if last < 2 or total.arg != (Op.ADD, (last,)) or node.shape != total.shape[:last]:
        return None
    (a, *above), (b, *beside) = map(operand_at, value.src)
    if not len(a.shape) == len(b.shape) == last + 1 or a.shape[-1] != b.shape[-1]:
        return None
    *batch, m, n, _ = value.shape
    for rows, columns in ((a, b), (b, a)):
        if (*rows.shape[-3:-1], *columns.shape[-3:-1]) == (m, 1, 1, n):
            inside = (*above, *beside, value, total)
            return Product(node, rows, columns, tuple(batch), inside)
    return None


def operand_at(side: UOp) -> tuple[UOp, ...]:
    """The operand of a factor, and what widens and repeats it."""
    above = []
    for op in (Op.EXPAND, Op.CAST):
        if side.op is op:
            above.append(side)
            (side,) = side.src
    return (side, *above)


def product_of(rows: UOp, columns: UOp, wide: DType) -> UOp:
    """Rows (.., r, steps) by columns (.., c, steps), summed in a wide type."""
    (*outer, r, steps), (*beside, c, _) = rows.shape, columns.shape
    batch = [b if a == 1 else a for a, b in zip(outer, beside, strict=True)]
    x = moved(Op.RESHAPE, rows, (*outer, r, 1, steps)).cast(wide)
    y = moved(Op.RESHAPE, columns, (*beside, 1, c, steps)).cast(wide)
    x, y = (moved(Op.EXPAND, n, (*batch, r, c, steps)) for n in (x, y))
    return moved(Op.RESHAPE, row_fold(x * y, Op.ADD), (*batch, r, c))


def row_fold(x: UOp, op: Op) -> UOp:
    """The fold of each row: the last axis has size 1."""
    return UOp(Op.REDUCE_AXIS, x.dtype, (x,), (op, (len(x.shape) - 1,)))


def matrix(operand: UOp, axis: int) -> UOp:
    """The operand of a product without its axis of one."""
    shape = list(operand.shape)
    del shape[axis]
    below = operand.src[0] if operand.op is Op.RESHAPE else operand
    found = below if below.shape == tuple(shape) else moved(Op.RESHAPE, operand, tuple(shape))
    return found.src[0].src[0] if is_turned(found) and is_turned(found.src[0]) else found


def turned(x: UOp) -> UOp:
    """The last two axes exchanged."""
    *outer, a, b = range(len(x.shape))
    order = (*outer, b, a)
    return x.src[0] if is_turned(x) else moved(Op.PERMUTE, x, order)


def is_turned(x: UOp) -> bool:
    """True if the last two axes of a value were exchanged, and no others."""
    *outer, a, b = range(len(x.shape))
    return x.op is Op.PERMUTE and x.arg == (*outer, b, a)


def elementwise_below(node: UOp) -> list[UOp]:
    """The elementwise steps that a value ends, without what they begin with."""
    return [n for n in node.toposort(lambda n: n.op in ALU) if n.op in ALU]


def ends_of(steps: Iterable[UOp]) -> list[UOp]:
    """The values that elementwise steps begin with, each once."""
    return list(dict.fromkeys(s for n in steps for s in n.src if s.op not in ALU))


def again(node: UOp, end: Callable[[UOp], UOp], known: dict[UOp, UOp]) -> UOp:
    """Elementwise steps on what `end` makes of the values that they begin with."""
    for n in node.toposort(lambda n: n.op in ALU and n not in known):
        if n not in known:
            known[n] = n.with_src(tuple([known[s] for s in n.src])) if n.op in ALU else end(n)
    return known[node]
