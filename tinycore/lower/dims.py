"""Launch dimensions: GRID, BLOCK and GROUP loops become launch indices; symbolic sizes, extents.

Floor 3'. A launch has up to three axes of groups and three of threads, each with a limit. Loops
that do not fit are folded: neighboring loops share one axis, whose index is split again by
division, and an axis over the limit becomes several.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Final, NamedTuple

from tinycore.device.extent import VALUE, Extent
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.loops import threads_of, with_other_loops
from tinycore.lower.predicate import gate_stores
from tinycore.render.base import Dims, Limits
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.symbolic import simplified

AXES: Final = 3
"""Axes of a launch, in every API."""
MOST_TRIED: Final = 1 << 16
"""Divisors that are tried for the size of an axis: of 2**62 elements they would be billions."""
NO_GRID_LIMITS: Final = (1 << 62,) * AXES
"""For loops that a plan by hand gave to a grid, on a device that names no limits."""


OPERATOR_OF: Final = {
    Op.ADD: "+",
    Op.MUL: "*",
    Op.FLOORDIV: "//",
    Op.FLOORMOD: "%",
    Op.MIN: "min",
    Op.MAX: "max",
}
"""Spelling of the arithmetic of index expressions in the code of an Extent."""


def loops_to_launch(kernel: UOp, limits: Limits) -> UOp:
    """The kernel with SPECIAL indices in place of GRID, BLOCK and GROUP loops.

    Axis 0 is the innermost loop; a GROUP loop comes before it. Raises UnsupportedError for a launch
    beyond what the device can do, whatever the values of its variables.
    """
    groups, threads = groups_of(kernel), threads_of(kernel)
    if not groups and not threads:
        return kernel
    grid = launched(groups, "grid", limits.grid or NO_GRID_LIMITS)
    block = launched(threads, "block", limits.block)
    for gate in grid.gates + block.gates:
        kernel = gate_stores(kernel, gate)
    places = grid.places | block.places
    return with_other_loops(kernel, dict.fromkeys(places, ()), places)


def groups_of(kernel: UOp) -> list[UOp]:
    """The GRID loops, the innermost first: in the order of the nest that has most of them."""
    nodes = kernel.toposort()
    groups = [n for n in nodes if n.op is Op.RANGE and n.kind is AxisKind.GRID]
    nests = [[r for r in n.src[1:] if r in groups] for n in nodes if n.op is Op.END]
    nest = max(nests, key=len, default=[])
    if len(nest) == len(groups):
        return nest[::-1]
    return sorted(groups, key=lambda n: n.number, reverse=True)


def first_of_grid(kernel: UOp, limits: Limits) -> UOp | None:
    """The GRID loop that is the first axis of the launch, if one alone is."""
    groups = groups_of(kernel)
    axes = folded_axes([c.extent for c in groups], limits.grid or NO_GRID_LIMITS)
    return groups[0] if axes and axes[0] == (1, groups[0].extent) else None


def varying_sizes(kernel: UOp, limits: Limits) -> dict[str, UOp]:
    """The sizes of a kernel's launch that depend on variables: see `LinearKernel.sizes`.

    The kernel still has its loops.
    """
    sizes = launched(groups_of(kernel), "grid", limits.grid or NO_GRID_LIMITS).sizes
    for loop in kernel.every(Op.RANGE):
        if loop.kind is AxisKind.PARALLEL:
            sizes["parallel"] = loop.src[0]
    return {
        name: simplified(size, "sizes") for name, size in sizes.items() if size.op is not Op.CONST
    }


def is_known_at_launch(size: UOp) -> bool:
    """True if a size can be computed from the values of a kernel's variables at the launch."""
    leaves = (Op.CONST, Op.DEFINE_VAR)
    return all(n.op in leaves or n.op in OPERATOR_OF for n in size.toposort())


def extent_of(size: UOp, values: Sequence[str]) -> Extent:
    """A size over variables, at least 1, as an Extent for launches with these variables."""
    return Extent((*code_of(size, values), 1, "max"))


def code_of(size: UOp, values: Sequence[str]) -> tuple[int | str, ...]:
    """An expression over variables as the code of an Extent."""
    if size.op is Op.CONST:
        return (int(size.arg),)
    if size.op is Op.DEFINE_VAR:
        return (f"{VALUE}{values.index(size.arg[0])}",)
    left, right = (code_of(source, values) for source in size.src)
    return (*left, *right, OPERATOR_OF[size.op])


class Launched(NamedTuple):
    """Loops as indices of a launch."""

    places: dict[UOp, UOp]
    """Replacement of each counter."""
    gates: list[UOp]
    """Conditions that counters are within their extents."""
    sizes: dict[str, UOp]
    """The sizes of the axes, by the names of their indices."""


def launched(counters: list[UOp], prefix: str, most: Dims) -> Launched:
    """Map counters, the innermost first, to the axes of a launch."""
    axes = folded_axes([c.extent for c in counters], most)
    if axes is not None:
        places: dict[UOp, UOp] = {}
        sizes: dict[str, UOp] = {}
        rest = counters
        for axis, (count, size) in enumerate(axes):
            places |= taken_apart(special(prefix, axis, size), rest[:count])
            sizes[f"{prefix}{axis}"] = product(rest[:count])
            rest = rest[count:]
        return Launched(places, [], sizes)
    total = product(counters)
    strides = [*itertools.accumulate(cut_to_fit(int(total.vmax), prefix, most), operator.mul)]
    position, stride, sizes = UOp.index(0), 1, {}
    for axis, following in enumerate(strides):
        size = following // stride
        position += special(prefix, axis, size) * stride
        left = (total + (stride - 1)) // stride
        sizes[f"{prefix}{axis}"] = left.minimum(size) if axis < len(strides) - 1 else left
        stride = following
    if total.op is Op.CONST and total.arg == stride:
        return Launched(taken_apart(position, counters), [], sizes)
    # Threads past the end compute the last element again, and their stores are gated.
    gates = [position < total]
    return Launched(taken_apart(position.minimum(total - 1), counters), gates, sizes)


def product(counters: list[UOp]) -> UOp:
    """The steps of some loops together."""
    fixed = UOp.index(iterations_of(c for c in counters if c.is_fixed))
    return math.prod((c.src[0] for c in counters if not c.is_fixed), start=fixed)


def launches(extents: list[int], prefix: str, most: Dims) -> bool:
    """True if loops can become groups or threads, whatever axes they are mapped to."""
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
    """The counters of a position in their nest, the innermost first."""
    places = {}
    for counter in counters[:-1]:
        places[counter] = position % counter.src[0]
        position //= counter.src[0]
    return places | {counters[-1]: position} if counters else {}


def folded_axes(extents: list[int], most: Dims) -> list[tuple[int, int]] | None:
    """Launch axes as (neighbors folded, size), or None if no folding is within the limits.

    As few axes are folded as possible, the smallest first.
    """
    axes = [(1, extent) for extent in extents]
    while len(axes) > AXES or any(size > m for (_, size), m in zip(axes, most, strict=False)):
        if len(axes) < 2:
            return None
        # Only neighbors: a folded index is taken apart in the order of the counters.
        at = min(range(len(axes) - 1), key=lambda i: axes[i][1] * axes[i + 1][1])
        (count, size), (other, more) = axes[at : at + 2]
        axes[at : at + 2] = [(count + other, size * more)]
    return axes


def cut_to_fit(total: int, prefix: str, most: Dims) -> list[int]:
    """Sizes of axes for one that is too long; exact if a divisor allows it."""
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
