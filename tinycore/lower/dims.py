"""Map GRID, BLOCK and GROUP loops to the indices a device launches with.

Floor 3'. A launch has up to three axes of groups and three of threads, each with a limit. Loops
that do not fit are folded: neighbors become one axis, which is taken apart again by division, and
one axis over the limit becomes several.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.loops import threads_of
from tinycore.lower.predicate import gate_stores
from tinycore.render.base import Dims, Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

AXES: Final = 3
MOST_TRIED: Final = 1 << 16
"""Divisors that are tried for the size of an axis: of 2**62 elements they would be billions."""
NO_GRID_LIMITS: Final = (1 << 62,) * AXES
"""For loops that a plan by hand gave to a grid, on a device that names no limits."""


def loops_to_launch(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with SPECIAL indices in place of GRID, BLOCK and GROUP loops.

    Axis 0 is the innermost loop; that of a GROUP comes before it. Raises UnsupportedError for a
    launch beyond what the device can do.
    """
    groups = [n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.GRID]
    groups.sort(key=lambda n: n.arg.number, reverse=True)
    threads = threads_of(kernel)
    if not groups and not threads:
        return kernel
    places, gates = launched(groups, "grid", limits.grid or NO_GRID_LIMITS)
    inside, more = launched(threads, "block", limits.block)
    for gate in gates + more:
        kernel = gate_stores(kernel, gate)
    return without_loops(kernel, places | inside)


def launched(counters: list[UOp], prefix: str, most: Dims) -> tuple[dict[UOp, UOp], list[UOp]]:
    """What each counter (the innermost first) becomes, and the gates that keep it in its extent."""
    axes = folded_axes([c.extent for c in counters], most)
    if axes is not None:
        places: dict[UOp, UOp] = {}
        rest = counters
        for axis, (count, size) in enumerate(axes):
            places |= taken_apart(special(prefix, axis, size), rest[:count])
            rest = rest[count:]
        return places, []
    total = math.prod(c.extent for c in counters)
    sizes = cut_to_fit(total, prefix, most)
    position, stride = UOp.index(0), 1
    for axis, size in enumerate(sizes):
        position, stride = position + special(prefix, axis, size) * stride, stride * size
    if stride == total:
        return taken_apart(position, counters), []
    return taken_apart(position.minimum(total - 1), counters), [position < total]


def launches(extents: list[int], prefix: str, most: Dims) -> bool:
    """Whether loops can become just as many groups or threads, whatever axes they are laid on."""
    if folded_axes(extents, most) is not None:
        return True
    try:
        return math.prod(cut_to_fit(math.prod(extents), prefix, most)) == math.prod(extents)
    except UnsupportedError:
        return False


def special(prefix: str, axis: int, size: int) -> UOp:
    """The index of a group or of a thread along an axis."""
    return UOp(Op.SPECIAL, dtypes.index, (UOp.index(size),), f"{prefix}{axis}")


def taken_apart(position: UOp, counters: list[UOp]) -> dict[UOp, UOp]:
    """The counters that a position in their nest stands for, the innermost first."""
    places = {}
    for counter in counters[:-1]:
        places[counter] = position % counter.extent
        position = position // counter.extent
    return places | {counters[-1]: position} if counters else {}


def folded_axes(extents: list[int], most: Dims) -> list[tuple[int, int]] | None:
    """How many neighbors each axis holds and its size, None where no such axes are within limits.

    As few are folded as possible, the smallest first.
    """
    axes = [(1, extent) for extent in extents]
    while len(axes) > AXES or any(size > m for (_, size), m in zip(axes, most, strict=False)):
        if len(axes) < 2:
            return None
        at = min(range(len(axes) - 1), key=lambda i: axes[i][1] * axes[i + 1][1])
        (count, size), (other, more) = axes[at : at + 2]
        axes[at : at + 2] = [(count + other, size * more)]
    return axes


def cut_to_fit(total: int, prefix: str, most: Dims) -> list[int]:
    """Sizes of axes for one that is too long; exactly as many where a divisor allows it."""
    sizes = []
    for limit in most:
        needed = -(-total // limit)
        exact = (n for n in range(needed, min(2 * needed, needed + MOST_TRIED)) if total % n == 0)
        rest = next(exact, needed)
        sizes.append(-(-total // rest))
        total = rest
    if total > 1:
        what = {"grid": "groups", "block": "threads in a group"}[prefix]
        raise UnsupportedError(
            f"a kernel needs {math.prod(sizes) * total} {what}; the device launches at most "
            f"{' x '.join(map(str, most))}. Compute in smaller parts, such as slices of the tensor."
        )
    return sizes


def without_loops(kernel: UOp, places: dict[UOp, UOp]) -> UOp:
    """The kernel with counters replaced, and closed by no END."""
    done: dict[UOp, UOp] = {}
    for node in kernel.toposort():
        new = node.with_src(tuple([done[s] for s in node.src]))
        if node.op is Op.END:
            ranges = tuple(done[r] for r in node.src[1:] if r not in places)
            new = new.with_src((new.src[0], *ranges)) if ranges else new.src[0]
        done[node] = places.get(node, new)
    return done[kernel]
