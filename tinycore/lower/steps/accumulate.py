"""Accumulate: the sums of a row of outputs in a buffer, inside the reduced loops.

Floor 3'. Summing the columns of a matrix one after the other reads far-apart elements in every
step. With the sums in a buffer, a few whole rows at a time are read and added to it in a near
cache: TVM's `cache_write` with a reorder.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, arrays_of, counter_of, numbered, text_of
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, Part, neutral_element


@dataclass(frozen=True)
class Accumulate:
    """Keep the sums over the loops `reduced` in an array with one element per step of `outputs`.

    The loops `reduced` then run outside of `outputs`, and each step adds to the whole array; other
    reduced loops stay inside. For every loop of `outputs` there are new ones that clear and update
    the array, numbered (loop, Part.HELD, 0) and
    (loop, Part.HELD, 1); the loop itself reads the sums.
    """

    outputs: tuple[Number, ...]
    reduced: tuple[Number, ...]

    def __str__(self) -> str:
        return f"accumulate({text_of(*self.outputs)} in {text_of(*self.reduced)})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError if no sum is over these loops."""
        outputs = [counter_of(kernel, number) for number in self.outputs]
        around = [counter_of(kernel, number) for number in self.reduced]
        sums = [n for n in kernel.every(Op.REDUCE) if set(around) <= set(n.src[1:])]
        if not sums or any(other in n.toposort()[:-1] for n in sums for other in sums):
            raise ArgumentError(f"{self} holds nothing: no sums side by side are over its loops")
        arrays = {n: array_of(n, outputs, k) for k, n in enumerate(sums, len(arrays_of(kernel)))}
        cleared = closed([clearing(n, a, outputs) for n, a in arrays.items()])
        steps = [updating(n, a, outputs, around, cleared) for n, a in arrays.items()]
        updated = closed(steps, *around)
        return kernel.substitute(
            {n: place(a.after(updated), outputs).load(n.dtype) for n, a in arrays.items()}
        )


def array_of(total: UOp, outputs: list[UOp], number: int) -> UOp:
    """The array of the held values of a REDUCE."""
    size = iterations_of(outputs)
    return UOp(Op.DEFINE_LOCAL, total.dtype.ptr(size, "local"), (), number)


def place(array: UOp, outputs: list[UOp]) -> UOp:
    """The element of an array for the present step of the loops."""
    index = UOp.index(0)
    for counter in outputs:
        index = index * counter.extent + counter
    return array.at(index)


def clearing(total: UOp, array: UOp, outputs: list[UOp]) -> UOp:
    """The STORE that clears one element."""
    own = [numbered(r, Part.HELD, 0) for r in outputs]
    outside = sorted(total.ranges.difference(outputs), key=lambda r: r.number)
    anew = array.after(*outside)
    start = UOp.const(total.dtype, neutral_element(total.arg, total.dtype))
    return place(anew, own).store(start)


def updating(total: UOp, array: UOp, outputs: list[UOp], around: list[UOp], cleared: UOp) -> UOp:
    """The STORE that adds the value of a step of the loops around to one element."""
    own = {r: numbered(r, Part.HELD, 1) for r in outputs}
    left = tuple(s for s in total.src[1:] if s not in around)
    value = total.with_src((total.src[0], *left)) if left else total.src[0]
    inside = place(array.after(cleared, *around), list(own.values()))
    present = inside.load(total.dtype)
    return inside.store(present.alu(total.arg, value.substitute(own)))


def closed(stores: list[UOp], *around: UOp) -> UOp:
    """Adjacent stores, closed over the loops around and their own, the outermost first."""
    places = [s.src[0].src[1] for s in stores]
    own = dict.fromkeys(r for p in places for r in sorted(p.ranges, key=lambda r: r.number))
    return UOp.group(*stores).end(*around, *own)
