"""Operand layout: copies of operands that suit matrix units and texture units.

Floor 3. Matrix units load vectors along the sum, or along the rows or columns of the result. The
images of a convolution offer neither: windows begin one element apart, and weights are contiguous
along the window, which is short. Such operands are copied once into a layout whose innermost axis
is one that all of them are summed over (NHWC, for images), and read many times.

Other layouts are those of a plugin (`Limits.layout`), whose units read operands in a way of their
own.

See docs/decisions/0064-operand-layout.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.render.base import Limits
from tinycore.schedule.limits import limits_of
from tinycore.schedule.partial_writes import loops_over
from tinycore.schedule.ranges import ZERO, Point, read_through
from tinycore.schedule.storage import is_leaf, rebuilt_above_leaves
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.movement import base_of, moved
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, SAME_VALUE, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.size import are_ints
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

LEAST_READS: Final = 128
"""Fewest reads of each element for which a copy in another layout pays."""
READS_ALONG_SUM: Final = 512
"""Fewest such reads of an operand that another unit could read in place at a quarter of the rate:
on an H200 a copy takes as long as 150 reads of a float32, or 370 of a byte."""
FOLLOWED: Final = (MOVEMENT - {Op.PAD, Op.UNSKEW}) | SAME_VALUE | {Op.CAST, Op.VALUE}
"""Ops between a product and memory: a padded value is stored anyway (`Reason.PADDED`)."""


def lay_out_operands(nodes: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """The nodes on single devices, with copies of operands whose layout does not suit the device.

    `nodes`, and the result, map nodes of the sharded graph to their nodes on single devices.
    """
    devices = {n.device_or_none for n in nodes.values() if n.op is Op.REDUCE_AXIS}
    if not any(d is not None and layout_of(limits_of(d)) for d in devices):
        return dict(nodes)
    return rebuilt_above_leaves(
        nodes, lambda _, new, __: laid_out(new) if new.op is Op.REDUCE_AXIS else new
    )


def layout_of(limits: Limits) -> Callable[..., dict[UOp, UOp]] | None:
    """The function that copies operands for a device; None where their layout does not matter."""
    return limits.layout or (copies_for_units if limits.units and limits.matrix else None)


@dataclass(frozen=True)
class Operand:
    """A factor of a product: the memory that it is read from, and the index."""

    top: UOp
    base: UOp
    point: Point
    """The index along each axis of the base, over the loops of the product."""

    @classmethod
    def of(cls, top: UOp, loops: Point) -> Operand:
        """The operand of a factor that is read at the counters of some loops."""
        base, point = top, loops
        while base.op in FOLLOWED and not (is_leaf(base_of(base)) or is_narrowed(base)):
            point = read_through(base, point).point if base.op in MOVEMENT else point
            base = base.src[0]
        return cls(top, base, tuple([rewrite(p, simplify, name="simplify a place") for p in point]))

    def axis_of(self, loop: UOp) -> int | None:
        """The axis whose index is a loop's counter itself; None if there is none."""
        axes = [axis for axis, index in enumerate(self.point) if loop in index.ranges]
        return axes[0] if len(axes) == 1 and self.point[axes[0]] is loop else None

    def vector_loop(self, lanes: int) -> UOp | None:
        """The loop along which the innermost axis is read by aligned vectors; None without one."""
        rows = [(i, n) for i, n in zip(self.point, self.base.shape, strict=True) if n != 1]
        index, length = rows[-1] if rows else (ZERO, 1)
        steps, start = terms_of(index)
        along = [r for r, step in steps.items() if step == 1 and r.op is Op.RANGE]
        others = [step for r, step in steps.items() if r not in along]
        sizes = (*others, start, length, *(r.extent for r in along))
        fits = are_ints(sizes) and all(n % lanes == 0 for n in sizes)
        return along[0] if len(along) == 1 and fits else None

    def copied_along(self, loop: UOp) -> UOp:
        """The factor, read from a copy whose innermost axis is that of a loop."""
        axis = self.axis_of(loop)
        assert axis is not None, "a loop that moves along one axis"
        order = (*(a for a in range(len(self.base.shape)) if a != axis), axis)
        copy = moved(Op.PERMUTE, self.base, order).alu(Op.CONTIGUOUS)
        back = moved(Op.PERMUTE, copy, [order.index(a) for a in range(len(order))])
        return self.top.substitute({self.base: back})


def is_narrowed(node: UOp) -> bool:
    """True for a value that is rounded to a narrower type, in which it is multiplied."""
    return node.op is Op.CAST and node.dtype.itemsize < node.src[0].dtype.itemsize


class ProductLoops(NamedTuple):
    """The loops of a product of more than one step."""

    sides: list[UOp]
    """Loops over the result."""
    summed: list[UOp]


def laid_out(node: UOp) -> UOp:
    """A reduction; if it is a sum of products, with operands in a layout that suits the device."""
    product = summed_product(node)
    if product is None or not are_ints(product.shape):
        return node
    loops = loops_over(product)
    operands = [Operand.of(factor, loops) for factor in product.src]
    axes = [axis for axis, size in enumerate(product.shape) if size != 1]
    own = ProductLoops(
        sides=[loops[axis] for axis in axes if axis not in node.arg[1]],
        summed=[loops[axis] for axis in axes if axis in node.arg[1]],
    )
    limits, work = limits_of(node.device), math.prod(product.shape)
    layout = layout_of(limits)
    copies = layout(operands, own, work, limits) if layout else {}
    if not copies:
        return node
    factors = tuple([copies.get(factor, factor) for factor in product.src])
    return node.substitute({product: product.with_src(factors)})


def copies_for_units(
    operands: list[Operand],
    loops: ProductLoops,
    work: int,
    limits: Limits,
    in_place: Operand | None = None,
) -> dict[UOp, UOp]:
    """The factors of a product that a matrix unit reads from copies, and those copies.

    There are some if the unit cannot load vectors of a factor, or requires another layout; none of
    the operand `in_place`.
    """
    unit = unit_for(operands, limits)
    if unit is None or not all(o.point for o in operands):
        return {}
    lanes = max(limits.vector_bytes // unit.a.itemsize, 1)
    along = [o.vector_loop(lanes) for o in operands]
    fitting = loops_in_common(operands, loops.summed, max(unit.k, lanes))
    if not (fitting if reads_along_sum(unit, limits) else None in along):
        return {}
    if fitting:
        wanted = layouts_along_sum(along, fitting, loops.sides)
    else:
        wanted = layouts_along_sides(operands, along, loops.sides, lanes)
    copied = {o: loop for o, loop in zip(operands, wanted, strict=True) if loop is not None}
    if in_place is not None:
        copied.pop(in_place, None)
    least = LEAST_READS if None in along else READS_ALONG_SUM
    if any(work < least * math.prod(o.base.shape) for o in copied):
        return {}
    return {o.top: o.copied_along(loop) for o, loop in copied.items()}


def unit_for(operands: list[Operand], limits: Limits) -> MatrixUnit | None:
    """The matrix unit of a device that multiplies the operands; None if there is none."""
    kinds = {o.base.dtype for o in operands}
    units = (u for u in limits.matrix if settings.ALLOW_TF32 or not u.rounds)
    return next((u for u in units if kinds == {u.a} == {u.b}), None)


def layouts_along_sum(
    along: list[UOp | None], fitting: list[UOp], sides: list[UOp]
) -> list[UOp | None]:
    """For each operand the loop of the sum along which it is copied; None if it is read in place.

    `along` are the loops along which vectors of the operands are loaded now.
    """
    are_vectors = None not in along
    loop = max(fitting, key=lambda r: (along.count(r) if are_vectors else 0, r.extent))
    # Operands that are contiguous along a side are transposed as they are loaded.
    in_place = {loop} if are_vectors else {loop, *sides}
    return [None if r in in_place else loop for r in along]


def layouts_along_sides(
    operands: list[Operand], along: list[UOp | None], sides: list[UOp], lanes: int
) -> list[UOp | None]:
    """For each operand the side of the result along which it is copied; None if read in place.

    Nothing is copied unless each operand has a side that it varies with alone.
    """
    own = [own_loop(o, operands, sides, lanes) for o in operands]
    if None in own:
        return [None] * len(operands)
    return [None if r in sides else loop for r, loop in zip(along, own, strict=True)]


def moves_with(operand: Operand, loop: UOp) -> bool:
    """True if the index of an operand varies with a loop."""
    return any(loop in index.ranges for index in operand.point)


def loops_in_common(operands: list[Operand], summed: list[UOp], multiple: int) -> list[UOp]:
    """The summed loops along which all operands may be contiguous."""
    return [
        r
        for r in summed
        if not r.extent % multiple and all(o.axis_of(r) is not None for o in operands)
    ]


def own_loop(operand: Operand, operands: list[Operand], sides: list[UOp], lanes: int) -> UOp | None:
    """The longest loop of the result, in whole vectors, with which this operand alone varies."""
    others = [o for o in operands if o is not operand]
    fitting = [
        r
        for r in sides
        if not r.extent % lanes
        and operand.axis_of(r) is not None
        and not any(moves_with(o, r) for o in others)
    ]
    return max(fitting, key=lambda r: r.extent, default=None)


def reads_along_sum(unit: MatrixUnit, limits: Limits) -> bool:
    """True if a unit reads operands from shared memory, and only in rows along the sum.

    For a unit that rounds operands, only if the device's own fills can round them.
    """
    by = unit.load
    is_ordered = by is not None and by.is_described and by.turned_bytes != unit.a.itemsize
    return is_ordered and (limits.fills is not None or not unit.rounds)


def summed_product(node: UOp) -> UOp | None:
    """The product that a sum adds up; None for another reduction."""
    if node.arg[0] is not Op.ADD:
        return None
    product = node.src[0]
    return product if product.op is Op.MUL else None
