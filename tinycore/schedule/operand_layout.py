"""Operands of products on matrix units in memory along a summed axis; for textures along a side.

Floor 3. A unit is fed by vectors of memory along the sum, or along the rows or columns of the
result. Images of a convolution lie along neither: where a window begins moves by one element, and
weights lie along the window, which is short. Such operands are copied once, with an axis innermost
that all of them are summed over (the layout NHWC of images), and each is read many times.

Texture units without matrix units give threads one operand by pixels of four columns of the result.
Where neither operand lies so, the smaller one is copied: weights along their filters, keys along
the places of a sequence.

See docs/decisions/0064-operand-layout.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tinycore.config import settings
from tinycore.dtype import dtypes
from tinycore.render.base import Limits
from tinycore.render.windows import Window, tiles_of_window
from tinycore.schedule.limits import limits_of
from tinycore.schedule.partial_writes import loops_over
from tinycore.schedule.ranges import ZERO, Point, read_through
from tinycore.schedule.storage import is_leaf
from tinycore.uop.matrix import MatrixDescriptor, MatrixUnit
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, SAME_VALUE, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

LEAST_READS: Final = 128
"""Reads of each element from which a copy in another layout pays."""
READS_ALONG_SUM: Final = 512
"""The same for an operand that another unit reads as it lies, at a quarter of the rate: a copy of
float32 takes as long as 150 such reads on an H200, one of bytes as 370."""
TEXTURED_READS: Final = 64
"""The same for one that texture units read: by the rates of an Adreno 640 a copy of a float takes
as long as 33 multiply-adds gain whose operands do not come from shared memory alone."""
TEXEL: Final = 4
"""Elements of a pixel."""
LEAST_COLUMNS: Final = 2 * TEXEL
"""Columns of a product that a thread computes at least: images of a small batch lie along it, and
have fewer."""
TEXTURED: Final = (dtypes.float32, dtypes.float16)
FOLLOWED: Final = (MOVEMENT - {Op.PAD, Op.UNSKEW}) | SAME_VALUE | {Op.CAST, Op.VALUE}
"""Ops between a product and memory: a padded value is stored anyway (`Reason.PADDED`)."""


def lay_out_operands(nodes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """The graph of scheduling, by the nodes it was before, with copies where an operand needs one.

    `nodes` are those on single devices by what they were on groups of devices.
    """
    devices = {n.device_or_none for n in nodes.values() if n.op is Op.REDUCE_AXIS}
    if not any(d is not None and may_copy(limits_of(d)) for d in devices):
        return dict(nodes)
    done: dict[UOp, UOp] = {}
    for node in UOp.sink(*nodes.values()).toposort(lambda n: not is_leaf(n))[:-1]:
        new = node if is_leaf(node) else node.with_src(tuple([done[s] for s in node.src]))
        done[node] = laid_out(new) if node.op is Op.REDUCE_AXIS else new
    return {old: done[new] for old, new in nodes.items()}


def may_copy(limits: Limits) -> bool:
    """True for a card on which the layout of operands matters."""
    return suits_units(limits) or bool(limits.texture_rate)


def suits_units(limits: Limits) -> bool:
    """True for a card with units of matrices."""
    return bool(limits.units and limits.matrix)


@dataclass(frozen=True)
class Operand:
    """A factor of a product: the memory that it is read from, and where."""

    top: UOp
    base: UOp
    point: Point
    """By axis of the base: the index, of loops over the product."""

    @classmethod
    def of(cls, top: UOp, loops: Point) -> Operand:
        """The operand below a factor that is read at some loops."""
        base, point = top, loops
        while base.op in FOLLOWED and not (is_leaf(base_of(base)) or is_narrowed(base)):
            point = read_through(base, point).point if base.op in MOVEMENT else point
            base = base.src[0]
        return cls(top, base, tuple([rewrite(p, simplify, name="simplify a place") for p in point]))

    def axis_of(self, loop: UOp) -> int | None:
        """The axis that a loop moves along, alone and step by step; None where there is none."""
        axes = [axis for axis, index in enumerate(self.point) if loop in index.ranges]
        return axes[0] if len(axes) == 1 and self.point[axes[0]] is loop else None

    def vector_loop(self, lanes: int) -> UOp | None:
        """The loop along which rows are read by aligned vectors of elements."""
        rows = [(i, n) for i, n in zip(self.point, self.base.shape, strict=True) if n != 1]
        index, length = rows[-1] if rows else (ZERO, 1)
        steps, start = terms_of(index)
        along = [r for r, step in steps.items() if step == 1 and r.op is Op.RANGE]
        others = [step for r, step in steps.items() if r not in along]
        sizes = (*others, start, length, *(r.src[0].arg for r in along))
        fits = all(isinstance(n, int) and n % lanes == 0 for n in sizes)
        return along[0] if len(along) == 1 and fits else None

    def copied_along(self, loop: UOp) -> UOp:
        """The factor, read from a copy with the axis innermost that a loop moves along."""
        axis = self.axis_of(loop)
        assert axis is not None, "a loop that moves along one axis"
        order = (*(a for a in range(len(self.base.shape)) if a != axis), axis)
        copy = UOp(Op.CONTIGUOUS, self.base.dtype, (permuted(self.base, order),))
        back = permuted(copy, tuple([order.index(a) for a in range(len(order))]))
        return self.top.substitute({self.base: back})


def is_narrowed(node: UOp) -> bool:
    """True for a value in a narrower type than it was computed in: so it is multiplied."""
    return node.op is Op.CAST and node.dtype.itemsize < node.src[0].dtype.itemsize


def permuted(node: UOp, order: tuple[int, ...]) -> UOp:
    """A node with its axes in another order."""
    return UOp(Op.PERMUTE, node.dtype, (node,), order)


def laid_out(node: UOp) -> UOp:
    """A reduction, with operands that suit a unit of the device if it is a sum of products."""
    product = summed_product(node)
    if product is None or not all(isinstance(n, int) for n in product.shape):
        return node
    loops = loops_over(product)
    operands = [Operand.of(factor, loops) for factor in product.src]
    axes = [axis for axis, size in enumerate(product.shape) if size != 1]
    sides = [loops[axis] for axis in axes if axis not in node.arg[1]]
    summed = [loops[axis] for axis in axes if axis in node.arg[1]]
    copies = copies_of(operands, (sides, summed), math.prod(product.shape), limits_of(node.device))
    if not copies:
        return node
    factors = tuple([copies.get(factor, factor) for factor in product.src])
    return node.substitute({product: product.with_src(factors)})


def copies_of(
    operands: list[Operand], loops: tuple[list[UOp], list[UOp]], work: int, limits: Limits
) -> dict[UOp, UOp]:
    """The factors of a product that are read from copies; `loops` are its sides, and the summed.

    They are if one factor is read by no vectors, or if a unit takes them in another order alone.
    """
    if not suits_units(limits):
        return copies_for_textures(operands, loops[0], work)
    kinds = {o.base.dtype for o in operands}
    units = tuple([u for u in limits.matrix if settings.ALLOW_TF32 or not u.rounds])
    unit = next((u for u in units if kinds == {u.a} == {u.b}), None)
    if unit is None or not all(o.point for o in operands):
        return {}
    lanes = max(limits.vector_bytes // unit.a.itemsize, 1)
    along = [o.vector_loop(lanes) for o in operands]
    (sides, summed), is_ordered = loops, reads_along_sum(unit, limits)
    fitting = loops_in_common(operands, summed, max(unit.k, lanes))
    if not (fitting if is_ordered else None in along):
        return {}
    if fitting:
        is_read_so = None not in along
        loop = max(fitting, key=lambda r: (along.count(r) * is_read_so, r.src[0].arg))
        # One that is read along rows or columns of the result is turned as it is loaded.
        kept = {loop} if is_read_so else {loop, *sides}
        ways = [None if r in kept else loop for r in along]
    else:
        own = [own_loop(o, operands, sides, lanes) for o in operands]
        ways = [None if r in sides or None in own else o for r, o in zip(along, own, strict=True)]
    copied = {o: way for o, way in zip(operands, ways, strict=True) if way is not None}
    if (image := image_in_place(operands, loops, limits)) is not None:
        copied.pop(image, None)
    least = LEAST_READS if None in along else READS_ALONG_SUM
    if any(work < least * math.prod(o.base.shape) for o in copied):
        return {}
    return {o.top: o.copied_along(way) for o, way in copied.items()}


def image_in_place(
    operands: list[Operand], loops: tuple[list[UOp], list[UOp]], limits: Limits
) -> Operand | None:
    """The operand whose windows a unit reads where they lie, in a tile that a group shares."""
    for image, weights in (operands, operands[::-1]):
        window = window_of(image, weights, loops)
        if window is not None and any(tiles_of_window(limits, window, image.base.dtype)):
            return image
    return None


def window_of(
    image: Operand, weights: Operand, loops: tuple[list[UOp], list[UOp]]
) -> Window | None:
    """The sizes of a convolution whose windows are one step apart; None for another product."""
    sides, summed = loops
    places = [r for r in sides if moves_with(image, r) and not moves_with(weights, r)]
    filters = [r for r in sides if moves_with(weights, r) and not moves_with(image, r)]
    if len(places) < 2 or not filters:
        return None
    across, (rows, columns) = max(filters, key=steps_along), places[-2:]
    down, along = (taps_of(image, loop, summed) for loop in (rows, columns))
    channels = [r for r in summed if r not in (*down, *along)]
    if len(channels) != 1 or image.axis_of(channels[0]) is None or max(len(down), len(along)) > 1:
        return None
    images = math.prod(map(steps_along, sides)) // math.prod(
        map(steps_along, (across, rows, columns))
    )
    sizes = tuple(map(steps_along, (across, rows, columns, channels[0])))
    taps = tuple(steps_along(next(iter(found))) if found else 1 for found in (down, along))
    gaps = tuple(next(iter(found.values()), 1) for found in (down, along))
    return Window(
        images, sizes[0], sizes[1], sizes[2], sizes[3], (taps[0], taps[1]), (gaps[0], gaps[1])
    )


def taps_of(image: Operand, loop: UOp, summed: list[UOp]) -> dict[UOp, int]:
    """The summed loop that moves along the axis of a side, and steps of the side for each of its
    own; {} where they are no windows one step apart."""
    axes = [index for index in image.point if loop in index.ranges]
    if len(axes) != 1:
        return {}
    terms, _ = terms_of(axes[0])
    others = {r: step for r, step in terms.items() if r is not loop}
    if terms[loop] != 1 or not all(r in summed and step > 0 for r, step in others.items()):
        return {}
    return others


def steps_along(loop: UOp) -> int:
    """Steps of a loop."""
    return int(loop.src[0].arg)


def copies_for_textures(operands: list[Operand], sides: list[UOp], work: int) -> dict[UOp, UOp]:
    """The smallest operand that may lie along a side, read from a copy; {} where one lies so."""
    for operand in operands:
        loop = operand.vector_loop(TEXEL)
        others = [o for o in operands if o is not operand]
        is_read_so = loop in sides and operand.base.dtype in TEXTURED
        if is_read_so and loop is not None and not any(moves_with(o, loop) for o in others):
            return {}
    found = [(o, own_loop(o, operands, sides, TEXEL)) for o in operands]
    own = {
        o: loop
        for o, loop in found
        if loop is not None and loop.src[0].arg >= LEAST_COLUMNS and o.base.dtype in TEXTURED
    }
    if not own:
        return {}
    # Of two of a size the one along which results lie: they are stored by vectors then.
    chosen = min(own, key=lambda o: (math.prod(o.base.shape), -sides.index(own[o])))
    if work < TEXTURED_READS * math.prod(chosen.base.shape):
        return {}
    return {chosen.top: chosen.copied_along(own[chosen])}


def moves_with(operand: Operand, loop: UOp) -> bool:
    """True if an operand is read elsewhere in other steps of a loop."""
    return any(loop in index.ranges for index in operand.point)


def loops_in_common(operands: list[Operand], summed: list[UOp], multiple: int) -> list[UOp]:
    """The summed loops that all operands may lie along."""
    return [
        r
        for r in summed
        if not r.src[0].arg % multiple and all(o.axis_of(r) is not None for o in operands)
    ]


def own_loop(operand: Operand, operands: list[Operand], sides: list[UOp], lanes: int) -> UOp | None:
    """The longest loop of the result that an operand alone moves along, by whole vectors."""
    others = [o for o in operands if o is not operand]
    fitting = [
        r
        for r in sides
        if not r.src[0].arg % lanes
        and operand.axis_of(r) is not None
        and not any(moves_with(o, r) for o in others)
    ]
    return max(fitting, key=lambda r: r.src[0].arg, default=None)


def reads_along_sum(unit: MatrixUnit, limits: Limits) -> bool:
    """True if a unit reads operands in shared memory, and in rows along the sum alone.

    One that rounds them has them rounded as boxes are copied.
    """
    by = unit.load
    is_ordered = isinstance(by, MatrixDescriptor) and by.turned_bytes != unit.a.itemsize
    return is_ordered and (limits.tensor_copies or not unit.rounds)


def summed_product(node: UOp) -> UOp | None:
    """The product that a sum adds up; None where it is another reduction."""
    if node.arg[0] is not Op.ADD:
        return None
    product = node.src[0]
    return product if product.op is Op.MUL else None
