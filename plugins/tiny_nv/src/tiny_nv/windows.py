"""Windows of images that a matrix unit reads where they lie: which, and in what tiles.

The one place that decides it: the scheduler asks before it copies an image along its channels
(`copies`, of `Limits.layout`), and the plan is made of the same answer (`window_plans.py`). A group
turns rows of an image, with those that windows reach beyond them, as it fills shared memory, once
for all places of a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiny_nv.operand_loads import ATOM_BYTES, MatrixDescriptor
from tinycore.dtype import DType
from tinycore.render.base import Limits
from tinycore.tiling import GROUPS_BESIDE, Operand, ProductLoops, copies_for_units, moves_with
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.sums import terms_of

__all__ = ["Window", "WindowTile", "copies", "tiles_of_window"]

LEAST_TAPS: Final = 4
"""Places of a window from which on an image that is shared for all of them is read less."""
MOST_WORK_OF_TILES: Final = 1.5
"""Most work of tiles, of the unit with most of them, relative to that of the product: beyond it
copies along channels cost less."""
MOST_PIECES: Final = 5
"""Most pieces of 8 channels of an image that a thread turns at once: their loads are all under way
together, and take a register each."""
SHAPES: Final = ((4, 1), (2, 2), (1, 3), (2, 1), (1, 2), (1, 1))
"""Units' worth of subgroups of a group along places, and tiles of each."""
OTHER_REGISTERS: Final = 64
"""Registers of a thread beside sums: those of ptxas are 128 where 64 are sums."""
BYTES_OF_A_WORD: Final = 4
TURNS_OF_WEIGHTS: Final = 2
"""Arrays of weights that blocks of channels use in turn, where copies are under way meanwhile."""


class Window(NamedTuple):
    """The sizes of a convolution whose windows are one step apart."""

    images: int
    """Independent products: images, and groups of channels."""
    filters: int
    height: int
    width: int
    channels: int
    taps: tuple[int, int]
    """Places of a window along columns and rows of an image."""
    gaps: tuple[int, int]
    """Steps from one place to the next."""

    @classmethod
    def of(
        cls,
        outputs: int,
        filters: UOp,
        rows: UOp,
        columns: UOp,
        channels: UOp,
        taps: tuple[Mapping[UOp, int], Mapping[UOp, int]],
    ) -> Window:
        """The convolution of some loops; `taps`: loops along rows and columns, and their gaps."""
        depth, height, width = (int(loop.extent) for loop in (filters, rows, columns))
        down, along = (next(((int(r.extent), n) for r, n in t.items()), (1, 1)) for t in taps)
        images, sides = outputs // (depth * height * width), zip(down, along, strict=True)
        return cls(images, depth, height, width, int(channels.extent), *sides)

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns of an image that windows reach beyond the first place of the last."""
        (down, along), (below, beside) = self.taps, self.gaps
        return (down - 1) * below, (along - 1) * beside

    @property
    def pitch(self) -> int:
        """Elements from a row of an image in shared memory to the next one."""
        return self.width + self.reach[1]


@dataclass(frozen=True)
class WindowTile:
    """The tile of a group: neighboring places of whole rows of an image by filters."""

    window: Window
    unit: MatrixUnit
    parts: int
    """Parts along places, each of the unit's threads."""
    copies: int
    """Tiles of the unit in a part."""
    rows: int
    """Rows of the result."""
    channels: int
    """Channels that are in shared memory at once."""

    @property
    def filters(self) -> int:
        """Filters of a group."""
        return self.unit.n

    @property
    def places(self) -> int:
        """Places of a group, those between and behind rows included."""
        return self.parts * self.copies * self.unit.m

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.parts * self.unit.threads

    @property
    def groups(self) -> int:
        """Groups of a launch."""
        window = self.window
        return window.images * -(-window.filters // self.filters) * -(-window.height // self.rows)

    @property
    def staged_rows(self) -> int:
        """Rows of an image in shared memory."""
        return self.rows + self.window.reach[0]

    @property
    def unused(self) -> int:
        """Elements behind these rows, which places behind the last row read."""
        reach, pitch = self.window.reach, self.window.pitch
        return max(self.places + reach[0] * pitch + reach[1] - self.staged_rows * pitch, 0)

    @property
    def turns(self) -> int:
        """Arrays of weights."""
        return min(TURNS_OF_WEIGHTS, self.window.channels // self.channels)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a group."""
        weights = math.prod(self.window.taps) * self.filters * self.turns
        elements = self.staged_rows * self.window.pitch + self.unused + weights
        return elements * self.channels * self.unit.a.itemsize

    @property
    def waste(self) -> float:
        """Work of all tiles relative to the product."""
        window = self.window
        wanted = window.images * window.filters * window.height * window.width
        return self.groups * self.filters * self.places / wanted

    @property
    def registers(self) -> int:
        """Registers of a thread, roughly: its sums, what it turns at once, and addresses."""
        return self.copies * self.unit.m * self.unit.n // self.unit.threads + OTHER_REGISTERS

    @property
    def words(self) -> float:
        """Words that groups read and write for a multiply-add of the product."""
        window, size = self.window, self.unit.a.itemsize
        taps = math.prod(window.taps)
        image = self.staged_rows * window.pitch / (taps * self.places * self.filters)
        stored = 1 / (taps * window.channels)
        return ((1 / self.places + image) * self.waste + stored) * size / BYTES_OF_A_WORD


def suits_windows(unit: MatrixUnit) -> bool:
    """True for a unit that reads both operands by itself, from any piece of a row on."""
    load = unit.load
    return (
        isinstance(load, MatrixDescriptor)
        and load.operands == "ab"
        and load.turned_bytes == unit.a.itemsize == unit.b.itemsize
        and not unit.rounds
    )


def tiles_of_window(limits: Limits, window: Window, dtype: DType) -> Iterator[WindowTile]:
    """The tiles of a card in which it may compute a convolution from an image where it lies."""
    if math.prod(window.taps) < LEAST_TAPS or not limits.units:
        return
    for unit in limits.matrix:
        if unit.a is not dtype or not suits_windows(unit) or not unit.runs_on(limits.subgroup):
            continue
        for shape in SHAPES:
            if (tile := tile_of(limits, window, unit, shape)) is not None:
                yield tile


def tile_of(
    limits: Limits, window: Window, unit: MatrixUnit, shape: tuple[int, int]
) -> WindowTile | None:
    """The tile of a shape with most rows and channels; None if none fits a group or wastes work."""
    parts, copies = shape
    height, places = window.height, parts * copies * unit.m
    most = min((places - window.width) // window.pitch + 1, height)
    if most < 2 or parts * unit.threads > limits.block_threads:
        return None
    rows = -(-height // -(-height // most))
    piece = ATOM_BYTES // unit.a.itemsize
    for channels in (4 * unit.k, 2 * unit.k, unit.k):
        tile = WindowTile(window, unit, parts, copies, rows, channels)
        pieces = tile.staged_rows * window.pitch * channels // piece
        is_whole = window.channels % channels == 0
        room = limits.shared_bytes // GROUPS_BESIDE
        is_small = tile.shared_bytes <= room and pieces <= MOST_PIECES * tile.threads
        if (
            is_whole
            and is_small
            and tile.waste * limits.unevenness(tile.groups) <= MOST_WORK_OF_TILES
        ):
            return tile
    return None


def copies(
    operands: list[Operand], loops: ProductLoops, work: int, limits: Limits
) -> dict[UOp, UOp]:
    """Copies of operands for matrix units, but of no image whose windows are read where it lies."""
    in_place = image_in_place(operands, loops, limits)
    return copies_for_units(operands, loops, work, limits, in_place)


def image_in_place(operands: list[Operand], loops: ProductLoops, limits: Limits) -> Operand | None:
    """The image whose windows a unit reads from rows staged in shared memory, without a copy."""
    for image, weights in (operands, operands[::-1]):
        window = window_of(image, weights, loops)
        if window is not None and any(tiles_of_window(limits, window, image.base.dtype)):
            return image
    return None


def window_of(image: Operand, weights: Operand, loops: ProductLoops) -> Window | None:
    """The sizes of a convolution of stride 1; None for another product."""
    sides, summed = loops
    places = [r for r in sides if moves_with(image, r) and not moves_with(weights, r)]
    filters = [r for r in sides if moves_with(weights, r) and not moves_with(image, r)]
    if len(places) < 2 or not filters:
        return None
    across, (rows, columns) = max(filters, key=lambda r: int(r.src[0].arg)), places[-2:]
    down, along = (taps_of(image, loop, summed) for loop in (rows, columns))
    channels = [r for r in summed if r not in (*down, *along)]
    if len(channels) != 1 or image.axis_of(channels[0]) is None or max(len(down), len(along)) > 1:
        return None
    outputs = math.prod(int(r.src[0].arg) for r in sides)
    return Window.of(outputs, across, rows, columns, channels[0], (down, along))


def taps_of(image: Operand, loop: UOp, summed: list[UOp]) -> dict[UOp, int]:
    """The summed loop over taps along a side, and its dilation; {} without windows of stride 1."""
    axes = [index for index in image.point if loop in index.ranges]
    if len(axes) != 1:
        return {}
    terms, _ = terms_of(axes[0])
    others = {r: step for r, step in terms.items() if r is not loop}
    if terms[loop] != 1 or not all(r in summed and step > 0 for r, step in others.items()):
        return {}
    return others
