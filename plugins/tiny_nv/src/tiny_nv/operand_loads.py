"""Operands of matrix units from shared memory: ldmatrix, and what wgmma reads by itself.

Both are instructions of tinycore (`OperandLoad`). Where kernels use them is in
`operand_fragments.py`, what they do in the reference interpreter in `operand_steps.py`.

NVIDIA, "PTX ISA" 9.0, sections 9.7.14.5.15, "ldmatrix", and 9.7.15.5.1, "Matrix descriptors".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_nv.phases import Access, Program, Step
from tinycore.dtype import PointerDType
from tinycore.plugin import deferred
from tinycore.uop.matrix import BANKS_BYTES, Bit, Fragment, Number, OperandLoad, bits_below
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import register_argument

__all__ = ["ATOM_BYTES", "MatrixDescriptor", "MatrixLoad"]

ATOM_BYTES: Final = 16
"""Bytes of a piece of a row, which swizzles keep together."""

tiles_of: Final = deferred("tiny_nv.operand_fragments:tiles_of")
described: Final = deferred("tiny_nv.operand_fragments:described")
load_step: Final = deferred("tiny_nv.operand_steps:load_step")
described_step: Final = deferred("tiny_nv.operand_steps:described_step")


def problem_of(node: UOp) -> str | None:
    """The error in a node that reads an operand; None if there is none."""
    index = node.src[0] if len(node.src) == 1 else node
    kind = index.dtype
    if index.op is not Op.INDEX or len(index.src) != 2 or not isinstance(kind, PointerDType):
        return f"{node.arg.name} reads at one INDEX without a gate"
    if kind.space != "local" or kind.base is not node.dtype.scalar():
        return f"{node.dtype!r} is not loaded from {kind!r}"
    return None


@dataclass(frozen=True)
class MatrixLoad(OperandLoad):
    """An instruction by which a subgroup loads tiles of an operand (ldmatrix).

    It moves tiles of `rows` rows that each lie together in memory. Lane l names the address of row
    `l % rows` of tile `l // rows`; from every tile each lane gets the word of its number, row by
    row. Where `is_turned`, rows of a tile in memory are columns of what lanes get.
    """

    tiles: int = 4
    """The most tiles at once."""
    is_turned: bool = False

    rows: ClassVar[int] = 8
    word_bytes: ClassVar[int] = 4

    def tiles_of(self, held: Fragment, columns: str) -> tuple[Bit, ...] | None:
        """The steps from tile to tile of an operand; None if lanes hold it in another order."""
        rows = held.axes.replace(columns, "")
        size = held.dtype.itemsize
        along = [Bit(columns, 1 << place) for place in range(bits_below(self.row_bytes // size))]
        word = bits_below(self.word_bytes // size)
        down = [Bit(rows, 1 << place) for place in range(bits_below(self.rows))]
        tiles = [bit for bit in held.map.elements[word:] if bit is not None]
        is_ours = held.map.lanes == (*along[word:], *down)
        if not is_ours or held.map.elements != (*along[:word], *tiles):
            return None
        return tuple(tiles) if 1 << len(tiles) <= self.tiles else None

    def place(self, lane: Number, element: Number, size: int) -> tuple[Number, Number]:
        """Row, counted through all tiles, and column of the element that a lane gets."""
        word = self.word_bytes // size
        words = self.row_bytes // self.word_bytes
        tile, part = element // word, element % word
        row, column = lane // words, lane % words * word + part
        return (tile * self.rows + (column if self.is_turned else row)), (
            row if self.is_turned else column
        )

    def operand(self, value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp) -> UOp | None:
        """The node of a value for a lane; None if its tiles lie otherwise."""
        found: UOp | None = tiles_of(value, held, loops, lane, self)
        return found

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        words, rest = divmod(node.dtype.size_bytes, self.word_bytes)
        if rest or not 1 <= words <= self.tiles:
            return f"{self.name} loads words of {self.word_bytes} bytes, and not {node.dtype!r}"
        return problem_of(node)

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = load_step(node, access)
        return step


@dataclass(frozen=True)
class MatrixDescriptor(OperandLoad):
    """An operand that a unit reads in shared memory itself, where a lane says (wgmma).

    Rows lie along k, `row_bytes` each and without gaps: as many as a unit knows, or half or a
    quarter of it. Their pieces of 16 bytes are exchanged as a Stage with a swizzle of all of them
    does it, counted from an address that `alignment` divides. Rows across k, of elements of
    `turned_bytes`, lie in panels of `row_bytes`, `panel_bytes` from one to the next.
    Rows of one piece, 16 bytes, exchange none: they are the parts along k of longer rows, each in a
    panel of its own, so that an operand may begin at any row.
    A lane holds no elements but where the operand begins, which the unit's lane maps do not say.
    """

    row_bytes: int = 128
    panel_bytes: int = 0
    """Distance of panels where rows lie across k, or along it by pieces; 0 for whole rows."""

    is_described: ClassVar[bool] = True
    behind: ClassVar[int] = 1

    @property
    def is_turned(self) -> bool:
        """True if rows lie across k."""
        return self.panel_bytes > 0 and self.row_bytes > ATOM_BYTES

    @property
    def alignment(self) -> int:
        """Bytes after which the exchange of pieces repeats: 8 rows."""
        return 8 * self.row_bytes

    def place(self, row: Number, column: Number, size: int) -> Number:
        """Position, in elements of some size, of an element of the operand: its row and step."""
        if self.row_bytes == ATOM_BYTES:
            piece = ATOM_BYTES // size
            first = column // piece * (self.panel_bytes // size)
            place: Number = first + row * piece + column % piece
            return place
        if not self.is_turned:
            return self._place(row, column, size)
        panel, rest = divmod(row, self.row_bytes // size)
        at: Number = panel * (self.panel_bytes // size) + self._place(column, rest, size)
        return at

    def _place(self, row: Number, column: Number, size: int) -> Number:
        """Position in a panel of rows whose pieces are exchanged."""
        piece = ATOM_BYTES // size
        turn = row * self.row_bytes // BANKS_BYTES % (self.row_bytes // ATOM_BYTES)
        first = row * (self.row_bytes // size)
        at: Number = first + (column // piece ^ turn) * piece + column % piece
        return at

    def operand(self, value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp) -> UOp | None:
        """The descriptor of a value. Raises ArgumentError if none states its layout."""
        found: UOp = described(value, held, loops, self)
        return found

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        return problem_of(node)

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = described_step(node, access, program)
        return step


for kind in (MatrixLoad, MatrixDescriptor):
    register_argument(kind)
