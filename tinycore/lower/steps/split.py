"""Split and Peel: cut a loop into steps, with a tail strategy, or into consecutive loops.

Floor 3'. The split of Halide and TVM; `Tail` names what Halide calls a TailStrategy. Peel is index
set splitting: a gate that compares the counter with a peeling point is constant in each part.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import Final

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError
from tinycore.lower.loops import (
    Consecutive,
    Number,
    closer_of,
    counter_of,
    fills_of,
    overwrites_what_it_reads,
    peeled,
    text_of,
    with_other_loops,
)
from tinycore.lower.predicate import gate_loads, gate_stores, gate_sums
from tinycore.uop.node import UOp
from tinycore.uop.op import DIVISIONS, AxisKind, Op, Part

OUTER: Final = 0
"""Number of the loop that counts steps, in the path of a Split's loops."""
INNER: Final = 1
"""Number of the loop within a step."""
REST: Final = 2
"""Number of the remainder loop."""
MASKED: Final = "masked"
"""The `arg` of a MIN that keeps an index in range in steps whose results are masked."""

MOST_PEELED: Final = 5
"""Parts of a loop at most, each of which is compiled: two steps at either end, and what is
between."""


class Tail(enum.Enum):
    """Tail strategy: how a Split handles extents that the factor does not divide."""

    AUTO = "auto"
    """SHIFT for an output, unless the kernel overwrites what it reads; then, and in a reduction, a
    remainder loop, (axis, 2), or GUARD for an output of symbolic length."""
    SHIFT = "shifted"
    """The last step starts early. An output is computed twice there; in a reduction the tail has a
    loop of its own, (axis, 2), of full length, whose steps that were folded before are masked. A
    loop of symbolic length may be shorter than one step, which is guarded then. An output that is
    overwritten after it was read has a remainder instead."""
    GUARD = "guarded"
    """Steps beyond the end read what the last step in range reads, and store or add nothing. All
    steps have the same code, as threads of a grid need it, and none is computed twice."""
    GATE = "gated"
    """Like GUARD, but steps beyond the end load nothing and take 0 instead. Loads of vectors along
    the loop stay whole if the end is that of a vector."""


@dataclass(frozen=True)
class Split:
    """Cut a loop into steps of `by`: (axis, 0) counts the steps, (axis, 1) within a step."""

    axis: Number
    by: int
    tail: Tail = Tail.AUTO

    def __str__(self) -> str:
        tail = "" if self.tail is Tail.AUTO else f" {self.tail.value}"
        return f"split({text_of(self.axis)} by {self.by}{tail})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with this step done. Raises ArgumentError for steps longer than the loop."""
        counter, by = counter_of(kernel, self.axis), self.by
        passes_end = self.tail in (Tail.GUARD, Tail.GATE)
        if by < 1 or (by > counter.extent and not passes_end):
            raise ArgumentError(f"{self}: steps of {by} do not cut a loop of {counter.extent}")
        is_reduced = counter.kind is AxisKind.REDUCE
        if not counter.is_fixed and not self.is_guarded(counter):
            return with_remainder(kernel, counter, by)
        if counter.is_fixed and counter.extent % by == 0:
            return replace_counter(kernel, counter, *parts(counter, counter.extent // by, by))
        closers = closer_of(kernel, counter)
        if not is_reduced and closers[0].op is Op.REDUCE:
            raise ArgumentError(f"{self}: a fold over a loop that is bound already has no rest")
        if passes_end:
            return guarded(kernel, counter, by, self.tail is Tail.GATE)
        if is_reduced:
            kernel = with_remainder(kernel, counter, by)
            return masked_tail(kernel, self.axis, by) if self.tail is Tail.SHIFT else kernel
        (end,) = closers
        # The last tile begins earlier and computes some elements again, to the same values: not if
        # it reads what it overwrites.
        is_shifted = not overwrites_what_it_reads(end)
        if not counter.is_fixed:
            return guarded(kernel, counter, by, is_shifted=is_shifted)
        if is_shifted:
            outer, inner, _ = parts(counter, -(-counter.extent // by), by)
            start = (outer * by).minimum(counter.extent - by)
            return replace_counter(kernel, counter, outer, inner, start + inner)
        return with_remainder(kernel, counter, by)

    def is_guarded(self, counter: UOp) -> bool:
        """True if the last step of a loop of symbolic length may pass its end."""
        return counter.kind is not AxisKind.REDUCE or self.tail is Tail.GUARD


@dataclass(frozen=True)
class Peel:
    """Split a loop into consecutive loops at some steps: (axis, 0), (axis, 1), ... in order."""

    axis: Number
    at: tuple[int, ...]

    def __str__(self) -> str:
        return f"peel({text_of(self.axis)} at {' '.join(map(str, self.at))})"

    def apply(self, kernel: UOp) -> UOp:
        """The kernel with the body once for each part, the loops inside of it copied.

        Raises ArgumentError for a part without steps, or whose number is known at launch only.
        """
        counter = counter_of(kernel, self.axis)
        edges = (0, *self.at, counter.extent)
        if sorted({*edges}) != [*edges] or not counter.is_fixed:
            raise ArgumentError(
                f"{self}: a part of {counter.extent} steps has none, or no fixed end"
            )
        number, kind = counter.arg
        parts = []
        for part, (start, stop) in enumerate(itertools.pairwise(edges)):
            here = UOp.range(stop - start, (*number, part), kind)
            parts.append(Consecutive((here,), here + start, (part,)))
        done = {c: peeled(c, counter, parts) for c in closer_of(kernel, counter)}
        return kernel.substitute(done)


def parts(counter: UOp, steps: int | UOp, by: int) -> tuple[UOp, UOp, UOp]:
    """The outer and the inner counter of a split, and the old counter in terms of them."""
    number, kind = counter.arg
    outer = UOp.range(steps, (*number, OUTER), kind)
    inner = UOp.range(by, (*number, INNER), kind)
    return outer, inner, outer * by + inner


def replace_counter(kernel: UOp, counter: UOp, outer: UOp, inner: UOp, value: UOp) -> UOp:
    """The kernel with `counter` replaced by two loops that together give `value`."""
    return with_other_loops(kernel, {counter: (outer, inner)}, {counter: value})


def guarded(
    kernel: UOp, counter: UOp, by: int, gates: bool = False, is_shifted: bool = False
) -> UOp:
    """A split whose last step passes the end, where it reads nothing if loads get `gates`.

    One that is shifted passes the end only where the loop is shorter than a step.
    """
    extent = counter.src[0]
    outer, inner, value = parts(counter, steps_of(counter, by), by)
    if is_shifted:
        value = (outer * by).minimum(extent - by).maximum(0) + inner
    masked = gate_sums if counter.kind is AxisKind.REDUCE else gate_stores
    if is_shifted and int(extent.vmin) >= by:
        return replace_counter(kernel, counter, outer, inner, value)
    if gates or may_be_empty(counter):
        kernel = gate_loads(kernel, value < extent, counter)
    kernel = masked(kernel, value < extent, counter)
    if not gates and (counter.is_fixed or not may_read_past(kernel, counter, value)):
        last = UOp.index(counter.extent - 1) if counter.is_fixed else extent - 1
        value = UOp(Op.MIN, value.dtype, (value, last), MASKED)
    return replace_counter(kernel, counter, outer, inner, value)


def steps_of(counter: UOp, by: int) -> int | UOp:
    """Steps of `by` that cover a loop; at least one."""
    if counter.is_fixed:
        return -(-counter.extent // by)
    steps = (counter.src[0] + (by - 1)) // by
    return steps.maximum(1) if may_be_empty(counter) else steps


def may_be_empty(counter: UOp) -> bool:
    """True if a loop of symbolic length may have no step at all."""
    return int(counter.src[0].vmin) < 1


def may_read_past(kernel: UOp, counter: UOp, value: UOp) -> bool:
    """True if steps past the end of a loop still read inside of buffers, and do no harm.

    That is so for a prefix that begins where its array does. The values read are arbitrary, so
    nothing may divide by them.
    """
    inside = [n for n in kernel.toposort() if counter in n.ranges]
    if any(n.op in DIVISIONS and n.dtype is not dtypes.index for n in inside):
        return False
    return all(is_within(n.src[0], counter, value) for n in inside if n.op is Op.LOAD)


def is_within(access: UOp, counter: UOp, value: UOp) -> bool:
    """True if an access is provably inside of its array when a counter is replaced by a value."""
    size = getattr(access.src[0].dtype, "size", 0)
    place = access.src[1].substitute({counter: value})
    return len(access.src) == 2 and place.vmin >= 0 and place.vmax < size


def masked_tail(kernel: UOp, axis: Number, by: int) -> UOp:
    """A split with a remainder as long as the other steps, whose first iterations are masked."""
    rest = counter_of(kernel, (*axis, REST))
    longer = UOp.range(by, *rest.arg)
    again = by - rest.extent
    kernel = gate_sums(kernel, longer >= again, rest)
    return with_other_loops(kernel, {rest: (longer,)}, {rest: longer - again})


def with_remainder(kernel: UOp, counter: UOp, by: int) -> UOp:
    """A split whose remainder is a second, shorter loop over a copy of the body.

    Raises ArgumentError where both would fill the same scratch memory.
    """
    if any(counter in fill.ranges for fill in fills_of(kernel)):
        raise ArgumentError(f"loop {text_of(counter.number)} has no rest: scratch is filled in it")
    extent = counter.extent if counter.is_fixed else counter.src[0]
    steps = extent // by
    outer, inner, value = parts(counter, steps, by)
    number, kind = counter.arg
    rest = UOp.range(extent - steps * by, (*number, REST), kind)
    both = (
        Consecutive((outer, inner), value),
        Consecutive((rest,), rest + steps * by, (Part.TAIL_COPY,)),
    )
    return kernel.substitute({c: peeled(c, counter, both) for c in closer_of(kernel, counter)})
