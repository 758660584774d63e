"""Stage: copy the operand of a tile to scratch or shared memory (packing; TVM's cache_read).

Floor 3'. `Stage` packs a panel, pads an image or transposes a matrix, depending on its dimensions.
The operand is found by its loops, never by name: it is the largest value that varies with the loops
of the dimensions, and with no other loop inside of the place where the copy is made.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.loops import THREADS, Number, arrays_of, loops_of, text_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Ahead, AxisKind, Op, Part
from tinycore.uop.symbolic import simplified

WITHIN: Final = (AxisKind.UNROLL, AxisKind.PARTIAL, AxisKind.VECTOR, AxisKind.PAIR)
"""Kinds of loops that are innermost in generated code."""
ALIASING_BYTES: Final = 4096
"""Distance of addresses that map to the same set of a cache of 32 KB with 8 ways."""
LINE_BYTES: Final = 64
"""Bytes of a processor's cache line."""

MOST_SCRATCH: Final = 2 << 20
"""Most bytes of an array; where threads share no memory, arrays are on the stack, which has
8 MB in threads of the CPU."""

WORD_BYTES: Final = 4
"""Bytes of a word of shared memory."""
BANKS_BYTES: Final = 128
"""Bytes of shared memory that contain one word of each bank."""
LEAST_PIECE_BYTES: Final = 16
"""Least bytes that a swizzle keeps contiguous: the widest access of a thread."""

Dimension = tuple[tuple[Number, int], ...]
"""One dimension of a stage: a position is the sum of these loops times these factors."""


@dataclass(frozen=True)
class Stage:
    """Copy values that vary with the loops of `dimensions` to scratch memory, inside the loop `at`.

    The array is row-major in these dimensions, with `padding` unused elements behind each row, so
    that rows start in different banks and are read without conflicts. With `at` None the copy
    precedes all loops. The loops that fill the array are numbered (first loop of the dimension,
    Part.FILL, array).

    With `swizzle`, neighboring rows use different banks without padding: that many pieces of a row,
    of `piece_bytes` each, are permuted by XOR with the row number (see `swizzled`).

    With `panel`, rows are divided into panels of that many elements: the parts of all rows in a
    panel are contiguous, and are swizzled as rows. Where they are not, `padding` is unused rows
    behind each panel.

    Loops that lie `inside` are no part of what is copied, though the nest has them around `at`.

    With `copies` there are that many arrays, which the steps of `at` use in rotation: a group fills
    one while it reads others (multi-buffering, see `cooperative.filled_ahead`).

    With `interleaved` that many neighboring rows lie element by element beside one another (VNNI).

    Values that were widened from a type in `narrow` are staged in that type, and widened when they
    are read.
    """

    at: Number | None
    dimensions: tuple[Dimension, ...]
    padding: int = 0
    copies: int = 1
    narrow: tuple[DType, ...] = ()
    swizzle: int = 0
    piece_bytes: int = LEAST_PIECE_BYTES
    panel: int = 0
    interleaved: int = 1
    inside: tuple[Number, ...] = ()

    def __str__(self) -> str:
        layout = "][".join("+".join(map(term_text, d)) for d in self.dimensions)
        padded = f", rows padded by {self.padding}" if self.padding else ""
        padded += (
            f", {self.swizzle} x {self.piece_bytes} bytes of a row swizzled" if self.swizzle else ""
        )
        padded += f", panels of {self.panel}" if self.panel else ""
        padded += f", {self.interleaved} rows interleaved" if self.interleaved > 1 else ""
        padded += f", outside of {text_of(*self.inside)}" if self.inside else ""
        turns = f", {self.copies} in turn" if self.copies > 1 else ""
        kinds = f", as {' '.join(d.name for d in self.narrow)}" if self.narrow else ""
        return f"stage([{layout}] at {text_of(self.at or ())}{padded}{turns}{kinds})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError where no value fits."""
        return stage(simplified(kernel, "before a stage"), self)

    @property
    def axes(self) -> frozenset[Number]:
        """The numbers of all loops of the dimensions."""
        return frozenset(axis for dimension in self.dimensions for axis, _ in dimension)


def term_text(term: tuple[Number, int]) -> str:
    """A loop and its factor as text."""
    axis, factor = term
    return text_of(axis) if factor == 1 else f"{factor}*{text_of(axis)}"


def nest_of(kernel: UOp) -> list[UOp]:
    """The loops around the innermost value, outermost first: outputs, then reduced ones."""
    nodes = kernel.toposort()
    outputs = [r for n in reversed(nodes) if n.op is Op.END for r in n.src[1:]]
    reduced = [r for n in nodes if n.op is Op.REDUCE for r in loops_of(n)]
    return list(dict.fromkeys((*outputs, *reduced)))


def loops_around(kernel: UOp, at: Number | None) -> frozenset[UOp]:
    """The loops around the copy of a stage at the loop `at`."""
    if at is None:
        return frozenset()
    nest = [r for r in nest_of(kernel) if r.kind not in (*WITHIN, *THREADS)]
    place = next(i for i, r in enumerate(nest) if r.number == at)
    return frozenset(nest[: place + 1])


def staged_values(kernel: UOp, step: Stage) -> list[UOp]:
    """The values that a Stage copies: the largest that vary with its loops only."""
    loops = {r.number: r for r in kernel.every(Op.RANGE)}
    needed = frozenset(loops[axis] for axis in step.axes)
    around = loops_around(kernel, step.at)
    allowed = needed | {r for r in around if r.number not in step.inside}
    found: dict[UOp, None] = {}
    for user in kernel.toposort():
        for node in user.src:
            if is_value(node) and needed <= node.ranges <= allowed:
                # Largest: its user varies with more loops. An index that does is no use of its
                # value.
                outside = user.op is not Op.INDEX and not user.ranges <= allowed
                if outside or user.op in (Op.REDUCE, Op.STORE):
                    found[node] = None
    return [node for node in found if any(n.op is Op.LOAD for n in node.toposort())]


def is_value(node: UOp) -> bool:
    """True if a node computes a value that memory can hold; a DOT has one for two steps."""
    kinds = (Op.INDEX, Op.AFTER, Op.RANGE, Op.DOT)
    return node.op not in kinds and node.dtype not in (dtypes.index, dtypes.void, dtypes.bool)


def stage(kernel: UOp, step: Stage) -> UOp:
    """One Stage. Raises ArgumentError where no value fits the dimensions."""
    values = staged_values(kernel, step)
    if not values:
        raise ArgumentError(f"{step} stages nothing: no value moves with just these loops")
    first = len(arrays_of(kernel))
    narrow = {v: shared_form(v, step.narrow) for v in values}
    copied = list(dict.fromkeys(narrow.values()))
    arrays = {v: staged(v, step, number) for number, v in enumerate(copied, first)}
    arrays = {v: arrays[narrow[v]].cast(v.dtype) for v in values}
    return simplified(kernel.substitute(arrays), "stages")


def shared_form(value: UOp, types: tuple[DType, ...]) -> UOp:
    """The value of one of some narrow types that was widened to this one; else the value itself."""
    return next((v for dtype in types if (v := before_widening(value, dtype)) is not None), value)


def before_widening(value: UOp, dtype: DType) -> UOp | None:
    """The value of a narrow type that is widened to another; None if there is none."""
    if value.dtype.itemsize <= dtype.itemsize:
        return None
    if value.op is Op.CAST:
        return value.src[0] if value.src[0].dtype is dtype else None
    if value.op is Op.CONST:
        return UOp.const(dtype, 0) if str(value.arg) in ("0", "0.0") else None
    if value.op is Op.WHERE:
        yes, no = (before_widening(v, dtype) for v in value.src[1:])
        return None if yes is None or no is None else value.src[0].where(yes, no)
    return None


def staged(value: UOp, step: Stage, number: int) -> UOp:
    """The LOAD of a staged value, behind the loops that fill its array."""
    loops = {r.number: r for r in value.ranges}
    places = [place_of(dimension, loops) for dimension in step.dimensions]
    fill = [
        UOp.range(int(place.vmax) + 1, (*dimension[0][0], Part.FILL, number))
        for dimension, place in zip(step.dimensions, places, strict=True)
    ]
    layout = layout_of([r.extent for r in fill], value.dtype.itemsize, step)
    if fill[-2:][0].extent % layout.interleaved:
        raise ArgumentError(f"{step}: {fill[-2].extent} rows are not interleaved by that many")
    turn = loops.get(step.at or ())
    copies = 1 if turn is None else step.copies
    start = UOp.index(0) if turn is None or copies == 1 else turn % copies * layout.size
    array = UOp(Op.DEFINE_LOCAL, value.dtype.ptr(layout.size * copies, "local"), (), number)
    content = by_place(value, step.dimensions, loops, fill)
    ahead = Ahead(copies) if copies > 1 else None
    store = element_of(array, fill, layout, start).store(content, ahead)
    filled = array.after(store.end(*fill))
    return element_of(filled, places, layout, start).load(value.dtype)


def place_of(dimension: Dimension, loops: dict[Number, UOp]) -> UOp:
    """Position along a dimension, from the counters of its loops."""
    return total(loops[axis] * factor for axis, factor in dimension)


def total(terms: Iterable[UOp]) -> UOp:
    """The sum of index expressions."""
    return sum(terms, UOp.index(0))


def pitches_of(extents: list[int], itemsize: int, padding: int = 0) -> list[int]:
    """Pitch of each dimension in elements, rows padded by `padding`.

    A pitch that would map rows to the same few sets of a cache gets a line more.
    """
    pitches = [1]
    for extent in reversed(extents[1:]):
        pitch = pitches[0] * extent + (padding if len(pitches) == 1 else 0)
        aliases = pitch * itemsize % ALIASING_BYTES == 0
        pitches.insert(0, pitch + LINE_BYTES // itemsize if aliases else pitch)
    return pitches


@dataclass(frozen=True)
class Layout:
    """Pitches in panels of a staged array, and the pieces of a row that a swizzle exchanges."""

    pitches: list[int]
    size: int
    """Elements of the array."""
    panel: int
    """Elements of a row that lie together: all of it, if there is one panel."""
    panel_size: int
    """Elements of a panel."""
    swizzle: int
    piece: int
    period: int
    """Number of consecutive rows with the same swizzle: together they span all banks."""
    interleaved: int
    """Neighboring rows whose elements alternate in memory."""


def layout_of(extents: list[int], itemsize: int, step: Stage) -> Layout:
    """The layout that a Stage states. Raises ArgumentError for rows that have no such pieces."""
    panel = step.panel or extents[-1]
    if extents[-1] % panel:
        raise ArgumentError(f"{step}: rows of {extents[-1]} elements are no panels of {panel}")
    row_bytes = panel * itemsize
    if step.swizzle and row_bytes % (step.swizzle * step.piece_bytes):
        raise ArgumentError(
            f"{step}: rows of {row_bytes} bytes are no multiple of {step.swizzle} pieces of "
            f"{step.piece_bytes} bytes; pad them instead"
        )
    if step.swizzle or step.panel:
        # Rows of a power of two keep their pitch: the swizzle finds other banks and cache sets.
        sizes = [*extents[1:-1], panel]
        pitches = [math.prod(sizes[place:]) for place in range(len(extents))]
        size = (math.prod(extents[:-1]) + (0 if step.swizzle else step.padding)) * panel
    else:
        pitches = pitches_of(extents, itemsize, step.padding)
        size = pitches[0] * extents[0]
    whole, piece = extents[-1] // panel * size, step.piece_bytes // itemsize
    period = BANKS_BYTES // (step.piece_bytes * max(step.swizzle, 1))
    return Layout(pitches, whole, panel, size, step.swizzle, piece, period, step.interleaved)


def element_of(array: UOp, places: list[UOp], layout: Layout, start: UOp) -> UOp:
    """The index of the element at a position along each dimension, in an array."""
    *outer, column = places
    if layout.size > layout.panel_size:
        start += column // layout.panel * layout.panel_size
        column %= layout.panel
    if layout.swizzle:
        rows = zip(outer, layout.pitches, strict=False)
        row = total(place * (pitch // layout.panel) for place, pitch in rows)
        column = swizzled(column, row, layout)
    # Elements of one column of such rows are neighbors; the pitch is that of a plain row.
    if (beside := layout.interleaved) > 1:
        outer[-1], column = outer[-1] // beside * beside, column * beside + outer[-1] % beside
    parts = zip((*outer, column), layout.pitches, strict=True)
    return array.at(start + total(place * pitch for place, pitch in parts))


def swizzled(column: UOp, row: UOp, layout: Layout) -> UOp:
    """The column of an element in a swizzled row.

    If `swizzle` is the greatest common divisor of the pieces in a row and in all banks, rows that
    begin at the same bank are a multiple of the period apart: row // period distinguishes them, and
    the same piece of neighboring rows is in different banks. The permutation keeps pieces
    contiguous and is its own inverse.
    """
    turn = row // layout.period % layout.swizzle
    piece = column // layout.piece ^ turn
    return piece * layout.piece + column % layout.piece


def scratch_bytes(kernel: UOp) -> int:
    """Bytes of all staged arrays, with 4 bytes per element for types that a device may widen.

    Operands of matrix units are not widened.
    """
    nodes = kernel.toposort()
    units = [n.arg for n in nodes if n.op is Op.MATRIX]
    operands = {dtype for unit in units for dtype in (unit.a, unit.b)}
    total = 0
    for array in arrays_of(kernel):
        assert isinstance(array.dtype, PointerDType)
        is_operand = array.dtype.base in operands
        total += array.dtype.size * max(array.dtype.base.itemsize, 1 if is_operand else WORD_BYTES)
    return total


def by_place(
    value: UOp, dimensions: tuple[Dimension, ...], loops: dict[Number, UOp], fill: list[UOp]
) -> UOp:
    """The value as a function of positions in the array. Raises ArgumentError if it is none.

    The loop with factor 1 is the position minus the other loops, which must cancel out.
    """
    replacements = {}
    for dimension, place in zip(dimensions, fill, strict=True):
        leader = next((axis for axis, factor in dimension if factor == 1), None)
        if leader is None:
            raise ArgumentError(f"no loop of the dimension {dimension} has the factor 1")
        others = (loops[axis] * -factor for axis, factor in dimension if axis != leader)
        replacements[loops[leader]] = total((place, *others))
    content = simplified(value.substitute(replacements), "a stage")
    axes = {loops[axis] for axis, _ in itertools.chain.from_iterable(dimensions)}
    if content.ranges & axes:  # a bound may depend on an outer loop of a dimension alone
        digits = {
            r: d for n, p in zip(dimensions, fill, strict=True) for r, d in digits_of(n, p, loops)
        }
        content = simplified(value.substitute(digits), "a stage")
    if left := content.ranges & axes:
        numbers = ", ".join(str(r.number) for r in left)
        raise ArgumentError(f"a value is no function of its place: it depends on loops {numbers}")
    return content


def digits_of(
    dimension: Dimension, place: UOp, loops: dict[Number, UOp]
) -> Iterator[tuple[UOp, UOp]]:
    """The loops of a dimension as digits of a position along it; none if they are no digits."""
    parts = sorted(((f, loops[axis]) for axis, f in dimension), key=lambda part: part[0])
    size = 1
    for factor, loop in parts:
        if factor != size or not loop.is_fixed:
            return
        size *= loop.extent
    for factor, loop in parts:
        yield loop, place // factor % loop.extent
