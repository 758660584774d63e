"""Addresses that the threads of some groups access in some steps of a kernel's loops.

An index is computed for all threads at once. Loops around an access stand in the middle of their
steps, but for the innermost, of which a few steps in a row are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["Places", "extent_of", "places_of"]

Array = NDArray[Any]
HASH: Final = 0x9E3779B1
"""Multiplier that scatters what a load would give."""


def truncated(a: Array, b: Array) -> Array:
    """a / b, rounded toward zero."""
    return numpy.asarray(numpy.sign(a) * numpy.sign(b) * (abs(a) // abs(b)))


FUNCTIONS: Final[Mapping[Op, Callable[..., Any]]] = {
    Op.ADD: numpy.add,
    Op.SUB: numpy.subtract,
    Op.MUL: numpy.multiply,
    Op.MULACC: lambda a, b, c: a * b + c,
    Op.NEG: numpy.negative,
    Op.IDIV: truncated,
    Op.MOD: lambda a, b: a - b * truncated(a, b),
    Op.FLOORDIV: numpy.floor_divide,
    Op.FLOORMOD: numpy.mod,
    Op.MAX: numpy.maximum,
    Op.MIN: numpy.minimum,
    Op.AND: numpy.bitwise_and,
    Op.OR: numpy.bitwise_or,
    Op.XOR: numpy.bitwise_xor,
    Op.SHL: numpy.left_shift,
    Op.SHR: numpy.right_shift,
    Op.CMPLT: numpy.less,
    Op.CMPEQ: numpy.equal,
    Op.CMPNE: numpy.not_equal,
    Op.WHERE: numpy.where,
}


def extent_of(loop: UOp) -> int:
    """Steps of a loop, the most there can be."""
    return max(int(loop.src[0].bounds[1]), 1)


class Places:
    """Values of indices: an array of groups, steps and threads."""

    def __init__(self, env: Mapping[UOp, Array], shape: tuple[int, int, int]) -> None:
        self.known: dict[UOp, Array] = dict(env)
        self.shape = shape

    def of(self, node: UOp) -> Array:
        """The value of a node. Of a load it is a number without a pattern."""
        for inner in node.toposort(lambda n: n not in self.known and n.op is not Op.LOAD):
            if inner not in self.known:
                self.known[inner] = self._computed(inner)
        return self.known[node]

    def spread(self, node: UOp) -> Array:
        """The same, for each group, step and thread."""
        return numpy.broadcast_to(self.of(node), self.shape)

    def _computed(self, node: UOp) -> Array:
        if node.op is Op.CONST:
            return numpy.asarray(node.arg)
        if node.op in (Op.CAST, Op.BITCAST) and node.dtype.kind in ("int", "uint", "index", "bool"):
            return self.known[node.src[0]]
        function = FUNCTIONS.get(node.op)
        if function is not None:
            return numpy.asarray(function(*(self.known[s] for s in node.src)))
        if node.op is Op.LOAD and node.dtype.kind in ("int", "uint", "index"):
            place = self.of(node.src[0].src[1])
            return numpy.asarray(place * HASH >> 7 & 0xFFFF)
        if node.op in (Op.DEFINE_VAR, Op.RANGE):
            return numpy.asarray(int(node.bounds[1]))
        raise NotImplementedError(f"addresses depend on {node.op.name}")


def places_of(
    specials: Sequence[UOp],
    groups: Sequence[int],
    loops: Sequence[UOp],
    steps: int,
) -> Places:
    """Indices of all threads of some groups, in some steps of the innermost of some loops."""
    sizes = {u.arg: int(u.src[0].bounds[1]) for u in specials}
    env: dict[UOp, Array] = {}
    numbers, threads = numpy.asarray(groups).reshape(-1, 1, 1), 1
    for axis in range(3):
        threads *= sizes.get(f"block{axis}", 1)
    counted = numpy.arange(threads).reshape(1, 1, -1)
    for prefix, array in (("grid", numbers), ("block", counted)):
        left = array
        for axis in range(3):
            size = sizes.get(f"{prefix}{axis}", 1)
            for u in specials:
                if u.arg == f"{prefix}{axis}":
                    env[u] = left % size
            left = left // size
    for loop in loops[:-1]:
        env[loop] = numpy.asarray(extent_of(loop) // 2)
    if loops:
        extent = extent_of(loops[-1])
        first = max(min(extent // 2, extent - steps), 0)
        env[loops[-1]] = (first + numpy.arange(steps)).reshape(1, -1, 1)
    return Places(env, (len(groups), steps, threads))


def groups_of(specials: Sequence[UOp]) -> int:
    """Groups of a launch."""
    return math.prod(int(u.src[0].bounds[1]) for u in specials if u.arg.startswith("grid"))
