"""Fuse: two loops become one, as in Halide and TVM; OpenMP calls it collapse.

Floor 3'. Rows of an image in shared memory that lie apart by more than their length are fused with
what is between them: then every element is a whole number of steps from the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.errors import ArgumentError
from tinycore.lower.loops import Number, closer_of, counter_of, text_of, with_other_loops
from tinycore.lower.predicate import gate_stores
from tinycore.lower.steps.split import MASKED
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify


@dataclass(frozen=True)
class Fuse:
    """Fuse two loops, the inner right inside the outer, to one; it keeps the number of `outer`.

    With `pitch`, a step of `outer` is so many steps of the fused loop, which has `steps` of them.
    Those beyond either loop store nothing. They read what lies there of arrays that a group shares,
    whose rows must be as far apart, and of buffers what the last step in range reads.
    """

    outer: Number
    inner: Number
    pitch: int = 0
    steps: int = 0

    def __str__(self) -> str:
        pitch = f" to {self.steps} by {self.pitch}" if self.pitch else ""
        return f"fuse({text_of(self.outer, self.inner)}{pitch})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with one counter in place of `outer * extent(inner) + inner`.

        Raises ArgumentError for a pitch that leaves steps out, for loops of different nests or
        kinds, and for those whose length is known at launch only.
        """
        outer, inner = counter_of(kernel, self.outer), counter_of(kernel, self.inner)
        is_nest = outer is not inner and closer_of(kernel, outer) == closer_of(kernel, inner)
        if not (is_nest and outer.kind is inner.kind and outer.is_fixed and inner.is_fixed):
            raise ArgumentError(f"{self}: no two loops of one nest, kind and fixed length")
        size = self.pitch or inner.extent
        fused = UOp.range(self.steps or outer.extent * size, self.outer, outer.kind)
        places = {outer: fused // size, inner: fused % size}
        if self.pitch:
            if size < inner.extent or fused.extent < outer.extent * size - size + inner.extent:
                raise ArgumentError(f"{self}: loops of {outer.extent} by {inner.extent} have more")
            kernel = with_rows(kernel, outer, inner, fused, size)
            inside = [place < loop.extent for loop, place in places.items()]
            kernel = gate_stores(kernel, inside[0] & inside[1], inner)
            places = {
                loop: UOp(Op.MIN, place.dtype, (place, UOp.index(loop.extent - 1)), MASKED)
                for loop, place in places.items()
            }
        kernel = with_other_loops(kernel, {outer: (fused,), inner: ()}, places)
        return rewrite(kernel, simplify, name="simplify fused loops")


def with_rows(kernel: UOp, outer: UOp, inner: UOp, fused: UOp, pitch: int) -> UOp:
    """The kernel whose loads of shared arrays count rows of a pitch by one loop.

    Raises ArgumentError for an array whose rows lie otherwise, or that ends before the last step.
    """
    found: dict[UOp, UOp] = {}
    for index in kernel.every(Op.INDEX):
        array = pointer_of(index)
        if array.op is not Op.DEFINE_LOCAL or index.src[1].ranges.isdisjoint((outer, inner)):
            continue
        moved = index.src[1].substitute({inner: fused - outer * pitch})
        place = rewrite(moved, simplify, name="simplify a row")
        last = getattr(array.dtype, "size", 0) - 1
        if outer in place.ranges or inner in place.ranges or place.bounds[1] > last:
            raise ArgumentError(f"rows of an array in shared memory are not {pitch} steps apart")
        found[index] = index.with_src((index.src[0], place, *index.src[2:]))
    return kernel.substitute(found)
