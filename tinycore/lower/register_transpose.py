"""Register transposes: gathers that together read blocks become vector loads and shuffles.

Floor 3'. With lanes over rows and an unrolled loop over columns, each copy gathers one element of
every row. If the copies are neighbors in memory, the rows are loaded as vectors instead; the
operand of each copy is then a column of this square, which a few shuffles extract.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tinycore.dtype import PointerDType
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.sums import sum_of, terms_of


class Column(NamedTuple):
    """Gathers of one block that share their address, except for its constant part."""

    pointer: UOp
    address: UOp  # of the element in row 0, less its constant part
    stride: int  # from row to row
    lanes: int  # as many as rows

    def substitute(self, replaced: dict[UOp, UOp]) -> Column:
        """The column with some of its nodes replaced."""
        pointer, address = (n.substitute(replaced) for n in (self.pointer, self.address))
        return self._replace(pointer=pointer, address=address)


def transpose_loads(kernel: UOp) -> UOp:
    """The kernel with blocks of gathers turned into loads of rows and shuffles.

    A gather may read what another nest of the kernel writes, which has gathers itself: those are
    replaced first, and the rows are loaded after the nest in its new form.
    """
    gathers: dict[Column, dict[int, UOp]] = defaultdict(dict)
    for node in kernel.toposort():
        if node.op is Op.VECTORIZE and (found := column_of(node)) is not None:
            column, start = found
            gathers[column][start] = node
    replaced: dict[UOp, UOp] = {}
    for found_at, by_start in gathers.items():
        column = found_at.substitute(replaced)
        for first in block_starts(sorted(by_start), column.lanes):
            columns = transposed([row_of(column, first, row) for row in range(column.lanes)])
            replaced |= {by_start[first + i]: value for i, value in enumerate(columns)}
    return kernel.substitute(replaced) if replaced else kernel


def column_of(node: UOp) -> tuple[Column, int] | None:
    """The gather of a VECTORIZE, and its start; None for other nodes."""
    count = len(node.src)
    if count & (count - 1) or not all(s.op is Op.LOAD and len(s.src) == 1 for s in node.src):
        return None
    indices = [s.src[0] for s in node.src]
    terms, start = terms_of(indices[0].src[1])
    stride = terms_of(indices[1].src[1])[1] - start
    # Rows that overlap make no square of elements.
    if abs(stride) < count or pointer_of(indices[0]).op is not Op.DEFINE_GLOBAL:
        return None
    for row, index in enumerate(indices):
        if index.src[0] is not indices[0].src[0]:
            return None
        if terms_of(index.src[1]) != (terms, start + row * stride):
            return None
    return Column(indices[0].src[0], sum_of(terms, 0), stride, count), start


def block_starts(starts: list[int], count: int) -> list[int]:
    """The first of every `count` neighbors, each used once."""
    found: list[int] = []
    run: list[int] = []
    for start in starts:
        run = [*run, start] if run and start == run[-1] + 1 else [start]
        if len(run) == count:
            found.append(run[0])
            run = []
    return found


def row_of(column: Column, first: int, row: int) -> UOp:
    """The vector load of one row of a block."""
    place = column.address + (first + row * column.stride)
    index = column.pointer.at(place)
    assert isinstance(column.pointer.dtype, PointerDType)
    return index.load(column.pointer.dtype.base.vec(column.lanes))


def transposed(rows: list[UOp]) -> list[UOp]:
    """The columns of a square of vectors: blocks of 1, 2, 4, ... change places across the diagonal.

    Source: Eklundh, A fast computer method for matrix transposing, IEEE Trans. Computers, 1972.
    """
    count = len(rows)
    size = 1
    while size < count:
        upper = tuple(i if not i & size else count + i - size for i in range(count))
        lower = tuple(i + size if not i & size else count + i for i in range(count))
        mixed = list(rows)
        for i in (i for i in range(count) if not i & size):
            pair = (rows[i], rows[i + size])
            mixed[i] = UOp(Op.EXTRACT, pair[0].dtype, pair, upper)
            mixed[i + size] = UOp(Op.EXTRACT, pair[0].dtype, pair, lower)
        rows, size = mixed, 2 * size
    return rows
