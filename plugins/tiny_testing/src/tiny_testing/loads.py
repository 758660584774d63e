"""Tiles of a matrix unit's operand in shared memory, loaded by lanes that each name a piece.

An instruction of the reference accelerator's own, as a plugin brings one: data for plans, the rows
that lanes name in kernels, and a step of the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from tinycore.dtype import PointerDType
from tinycore.render.base import pointer_of
from tinycore.tiling import row_at
from tinycore.uop.matrix import Fragment, OperandLoad
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import register_argument

__all__ = ["TileLoad"]


@dataclass(frozen=True)
class TileLoad(OperandLoad):
    """Lane l names piece `l // sides` of row `l % sides`; lanes get what the unit's map says.

    A piece is `row_bytes` that lie together in memory: along k, or where `is_turned` across it.
    """

    is_turned: bool = False

    def operand(self, value: UOp, held: Fragment, loops: dict[str, UOp], lane: UOp) -> UOp | None:
        """The node of a value in shared memory; None if its pieces do not lie together."""
        is_load = value.op is Op.LOAD and len(value.src) == 1
        if not is_load or pointer_of(value.src[0]).op is not Op.DEFINE_LOCAL:
            return None
        piece = self.row_bytes // held.dtype.itemsize
        for is_turned in (False, True) if held.dtype.itemsize == self.turned_bytes else (False,):
            down, across = (loops[axis] for axis in axes_of(held, is_turned))
            if down.op is not Op.RANGE or across.op is not Op.RANGE:
                continue
            number = lane % (down.extent * across.extent // piece)
            places = {down: number % down.extent, across: number // down.extent * piece}
            if (row := row_at(value.src[0], places, across, self.row_bytes)) is not None:
                load = replace(self, is_turned=is_turned)
                return UOp(Op.INSTRUCTION, held.vector, (row,), load)
        return None

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        kind = node.src[0].dtype
        is_shared = isinstance(kind, PointerDType) and kind.space == "local"
        return None if is_shared else f"{self.name} reads shared memory, not {kind!r}"

    def step(
        self, node: UOp, access: Callable[..., Any], program: Sequence[UOp]
    ) -> Callable[[Any], None]:
        """The reference interpreter's step."""
        piece = self.row_bytes // node.dtype.scalar().itemsize
        product = next(n for n in program if n.op is Op.MATRIX and node in n.src[:2])
        unit = product.arg
        held = unit.fragment("ab"[product.src.index(node)])
        lanes, elements = numpy.arange(unit.threads)[:, None], numpy.arange(held.count)[None]
        down, across = axes_of(held, self.is_turned)
        row, column = (held.map.place(axis, lanes, elements) for axis in (down, across))
        named = row + column // piece * unit.size(down)
        reads, pointer = access(node.src[0], piece, "reads"), pointer_of(node.src[0])

        def load(frame: Any) -> None:
            memory = frame.values[pointer]
            pieces = frame.by_subgroup(reads.places(frame, memory, None), unit.threads, self.name)
            where = frame.by_thread(pieces[..., named, column % piece])
            frame.values[node] = memory.read(frame, where)

        return load


def axes_of(held: Fragment, is_turned: bool) -> tuple[str, str]:
    """The axes of an operand, that along which pieces lie last."""
    other = held.axes.replace("k", "")
    return ("k", other) if is_turned else (other, "k")


register_argument(TileLoad)
