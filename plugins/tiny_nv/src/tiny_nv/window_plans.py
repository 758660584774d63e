"""Windows of images on wgmma: rows of an image in shared memory for all places of a window.

An implicit GEMM whose matrix is never made, not in shared memory either: a place of a window is the
image from another row of the array on. The array has parts of 8 channels, in each of which
neighboring elements of an image lie 16 bytes apart (the layout NC/8HW8), those at the ends of rows
too, so that places of several rows are one side of a product (`Fuse.pitch`). Threads turn an image
into that layout as they fill the array, from wherever it lies, through the gates of its border.
`windows.py` says which windows, and in what tiles.
See docs/decisions/0067-windows-where-they-lie.md of tinycore.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from tiny_nv.operand_loads import ATOM_BYTES
from tiny_nv.windows import Window, WindowTile, tiles_of_window
from tinycore.errors import ArgumentError
from tinycore.render.base import Limits
from tinycore.tiling import (
    GROUPS_BESIDE,
    Bind,
    Cost,
    Dimension,
    Draft,
    Fuse,
    KernelFacts,
    Number,
    Proposal,
    Reorder,
    Split,
    Stage,
    Tail,
    Tensorize,
    arrays_of,
    cycles_of_loads,
    dimension,
    fill_of,
    fits_group,
    innermost_group,
    operand_accesses,
    resident_groups,
    sides_of,
)
from tinycore.uop.affine import stride_ratio
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

__all__ = ["propose"]

WORD_BYTES: Final = 4
ALONE: Final = 2.0
"""Time of a group that is alone on its multiprocessor and waits for its own fills, relative to two
groups of which one computes while the other fills."""
FILTERS_BESIDE: Final = 8
"""Filters whose pieces threads store side by side, one for each bank of a piece's size."""
ABOVE_PUBLISHED: Final = 36 / 22.8
"""Rate of the cache that all units share, measured on an H200, relative to the published one: a
product read 13.0 GB in 1,482.7 us (benchmarks/results/2026-11-26-h200.md)."""
PRODUCTS_WRITTEN_OUT: Final = 64
"""Most products of a block of channels that are written out."""


class Loops(NamedTuple):
    """The loops of a convolution whose windows are one step apart; None are those of one step."""

    filters: UOp
    rows: UOp
    columns: UOp
    channels: UOp
    down: UOp | None
    along: UOp | None
    window: Window


def propose(facts: KernelFacts, limits: Limits) -> Iterator[Proposal]:
    """A convolution on each unit that reads shared memory by itself."""
    if not any(unit.is_described for unit in limits.matrix) or len(facts.reductions) != 1:
        return
    loops = convolution_of(facts)
    if loops is None or facts.overwrites:
        return
    for dtype in facts.reduced_types:
        for tile in tiles_of_window(limits, loops.window, dtype):
            name = f"{tile.unit.name} windows {tile.parts} of {tile.copies} on {tile.rows} rows"
            yield Proposal(
                name, None, cost_of(tile, limits), partial(use_windows, tile=tile, loops=loops)
            )


def cost_of(tile: WindowTile, limits: Limits) -> Cost:
    """Words read per multiply-add: from shared memory by the unit, or from the cache by groups,
    whichever take longer. A unit reads no faster than for a square tile."""
    unit = tile.unit
    size = unit.a.itemsize
    near = max(size / WORD_BYTES / unit.m + size / WORD_BYTES / unit.n, size / (2 * unit.m))
    near *= tile.waste * limits.unevenness(tile.groups)
    if resident_groups(limits, tile.threads, tile.registers) < GROUPS_BESIDE:
        near *= ALONE
    far = cycles_of_loads(limits, 0.0, tile.words) / ABOVE_PUBLISHED
    return Cost(max(near, far))


def convolution_of(facts: KernelFacts) -> Loops | None:
    """The loops of a sum of products of windows; None for any other sum."""
    sides = sides_of(facts)
    if sides is None:
        return None
    ways = ((sides.rows, sides.columns), (sides.columns, sides.rows))
    return next((found for way in ways if (found := convolution_of_sides(facts, *way))), None)


def convolution_of_sides(
    facts: KernelFacts, across: tuple[UOp, ...], places: tuple[UOp, ...]
) -> Loops | None:
    """The convolution with its filters on the side `across`, its outputs on the other; or None."""
    if len(places) < 2:
        return None
    rows, columns = places[-2:]
    images = [n.src[1] for n in operand_accesses(facts) if columns in n.ranges]
    down, along = (taps_of(facts, images, loop) for loop in (rows, columns))
    channels = [r for r in facts.reduced if r not in (*down, *along)]
    is_window = max(len(down), len(along)) <= 1 and down.keys().isdisjoint(along)
    if len(channels) != 1 or not is_window or not images:
        return None
    filters = max(across, key=lambda r: r.extent)
    loops = (filters, rows, columns, channels[0])
    window = Window.of(facts.outputs_launched, *loops, (down, along))
    return Loops(*loops, next(iter(down), None), next(iter(along), None), window)


def taps_of(facts: KernelFacts, places: list[UOp], output: UOp) -> dict[UOp, int]:
    """The loops over taps of a window that slides along an output loop, each with its dilation.

    A window is shorter than the output loop.
    """
    found: dict[UOp, int] = {}
    for loop in facts.reduced:
        gaps = {stride_ratio(place, output, loop) for place in places}
        gap = gaps.pop() if len(gaps) == 1 else None
        if gap and gap * (loop.extent - 1) < output.extent:
            found[loop] = gap
    return found


def use_windows(draft: Draft, tile: WindowTile, loops: Loops) -> bool:
    """Compute a block of filters and image rows per group; False if it does not fit."""
    try:
        return use_tile(draft, tile, loops)
    except ArgumentError:  # an image that is no function of its rows and columns, as a joined one
        return False


def use_tile(draft: Draft, tile: WindowTile, loops: Loops) -> bool:
    """Apply the steps of `use_windows`. Raises ArgumentError for a step that is not possible."""
    unit, window = tile.unit, tile.window
    filters = loops.filters.arg.number
    if tile.filters != window.filters:
        draft.do(Split(filters, tile.filters, Tail.GUARD))
        filters = (*filters, 1)
    rows, columns = loops.rows.arg.number, loops.columns.arg.number
    if tile.rows < window.height:
        draft.do(Split(rows, tile.rows))  # the last group begins early, and computes rows again
        rows = (*rows, 1)
    channels = loops.channels.arg.number
    draft.do(Split(channels, tile.channels))
    block, depth = (*channels, 0), (*channels, 1)
    if not draft.present(block):
        depth = channels if draft.present(channels) else depth
    down, along = (None if r is None else r.arg.number for r in (loops.down, loops.along))
    taps = [number for number in (down, along) if number is not None]
    draft.do(Reorder((*draft.present(block), *taps, depth)))
    outputs = [r.arg.number for r in draft.facts.launchable]
    inside = [filters, rows, columns]
    draft.do(*(Bind(n, AxisKind.GRID) for n in outputs if n not in inside))
    own = [*inside[-2:]]
    draft.do(Reorder((*(n for n in outputs if n not in own), *own)))
    at = block if draft.present(block) else innermost_group(draft)
    stage_image(draft, tile, at, (rows, columns, depth), (down, along), inside)
    stage_weights(draft, tile, at, (filters, depth), taps, inside)
    draft.do(Fuse(rows, columns, window.pitch, tile.places))
    if tile.parts > 1:
        draft.do(Split(rows, tile.copies * unit.m), Bind((*rows, 0), AxisKind.BLOCK))
        rows = (*rows, 1)
    draft.do(Tensorize(rows, filters, depth, unit))
    unrolled = [*draft.present((*rows, 0), (*depth, 0))]
    steps = tile.channels // unit.k
    for number in reversed(taps):
        steps *= {down: window.taps[0], along: window.taps[1]}[number]
        if steps <= PRODUCTS_WRITTEN_OUT:
            unrolled.append(number)
    draft.do(*(Bind(axis, AxisKind.UNROLL) for axis in unrolled))
    return fits_group(draft)


def stage_image(
    draft: Draft,
    tile: WindowTile,
    at: Number | None,
    axes: tuple[Number, Number, Number],
    taps: tuple[Number | None, Number | None],
    inside: list[Number],
) -> None:
    """Stage rows of an image, with the channels of an element in pieces of one swizzle atom."""
    rows, columns, depth = axes
    gaps, piece = tile.window.gaps, ATOM_BYTES // tile.unit.a.itemsize
    dimensions: list[Dimension] = [
        ((loop, 1), *(((tap, gap),) if tap is not None else ()))
        for loop, tap, gap in zip((rows, columns), taps, gaps, strict=True)
    ]
    dimensions.append(((depth, 1),))
    number = len(arrays_of(draft.kernel))
    others = tuple(n for n in inside if n not in axes)
    step = Stage(
        at,
        tuple(dimensions),
        padding=tile.unused,
        narrow=(tile.unit.a,),
        panel=piece,
        inside=others,
    )
    draft.do(step)
    down, along, channels = (r.arg.number for r in fill_of(draft, number).src[1:])
    draft.cut(channels, piece, AxisKind.VECTOR)
    deal(draft, [*draft.present((*channels, 0)), down, along])


def stage_weights(
    draft: Draft,
    tile: WindowTile,
    at: Number | None,
    axes: tuple[Number, Number],
    taps: list[Number],
    inside: list[Number],
) -> None:
    """Stage weights: for each tap of a window the channels of all filters, in pieces."""
    piece = ATOM_BYTES // tile.unit.a.itemsize
    number = len(arrays_of(draft.kernel))
    filters, depth = axes
    dimensions = (dimension(draft, *taps), ((filters, 1),), ((depth, 1),))
    step = Stage(
        at,
        dimensions,
        copies=tile.turns if draft.limits.copies else 1,
        narrow=(tile.unit.a,),
        panel=piece,
        inside=tuple(n for n in inside if n != filters),
    )
    draft.do(step)
    taps_at, rows, channels = (r.arg.number for r in fill_of(draft, number).src[1:])
    draft.cut(channels, piece, AxisKind.VECTOR)
    draft.do(Split(rows, FILTERS_BESIDE))
    deal(draft, [*draft.present((*rows, 0), taps_at, (*channels, 0)), (*rows, 1)])


def deal(draft: Draft, order: list[Number]) -> None:
    """Distribute a fill over the threads of a group, its last loop over neighboring ones."""
    draft.do(Reorder(tuple(order)), *(Bind(number, AxisKind.FILL) for number in order))
