"""The algorithm of prefix scans, on the tensor graph.

Floor 5. With enough rows to run in parallel, or a short axis, each row is scanned sequentially.
Otherwise the axis is cut into blocks: a scan inside each block, a scan over the totals of the
blocks, and a pass that combines both (reduce-then-scan). Folds that are no op of the table compute
each prefix of a short block by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tinycore.dtype import Scalar
from tinycore.tensor import graph
from tinycore.tensor.methods.pixels import is_fixed
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element

LONGEST_DIRECT: Final = 32
"""Axis size up to which every prefix is folded for itself."""
LONGEST_SCAN: Final = 512
"""Axis size up to which a scan is sequential, however few rows there are."""
MANY_ROWS: Final = 256
"""Number of rows that keeps a device busy with sequential scans."""
STEPS_TOGETHER: Final = 2
"""Doubling steps that are computed in one go: each further one doubles the reads."""

Prefixes = Callable[[UOp], UOp]
"""Every prefix of a short last axis, folded."""
Combine = Callable[[UOp, UOp], UOp]
"""Combination of the fold of some elements with that of the elements after them."""


def is_scanned(x: UOp, axis: int) -> bool:
    """True if an axis is scanned sequentially as it is."""
    if not is_fixed(x.shape) or x.shape[axis] <= LONGEST_SCAN:
        return True
    return math.prod(x.shape) // x.shape[axis] >= MANY_ROWS


def running_fold(x: UOp, op: Op) -> UOp:
    """The last axis folded so far by an op of the table."""

    def combine(before: UOp, after: UOp) -> UOp:
        return before.alu(op, after)

    def scanned(part: UOp) -> UOp:
        return graph.scan(part, op, len(part.shape) - 1)

    def doubling(part: UOp) -> UOp:
        return doubled(part, combine, neutral)

    neutral = neutral_element(op, x.dtype)
    if op is Op.MUL:  # whose derivative is that of every product by itself
        return scan_last_axis(x, doubling, combine, neutral, LONGEST_DIRECT)
    return scan_last_axis(x, scanned, combine, neutral, LONGEST_SCAN)


def scan_last_axis(
    x: UOp, prefixes: Prefixes, combine: Combine, neutral: Scalar, longest: int = LONGEST_DIRECT
) -> UOp:
    """The prefix scan of the last axis, by two ways to fold.

    An axis of at most `longest` is given to `prefixes` whole.
    """
    *outer, size = x.shape
    if size <= longest:
        return prefixes(x)
    piece = min(longest, math.isqrt(size - 1) + 1)
    count, last = -(-size // piece), len(outer)
    filled = graph.pad_with(x, [(0, 0)] * last + [(0, count * piece - size)], neutral)
    inner = prefixes(graph.reshape(filled, (*outer, count, piece)))
    ends = graph.shrink(inner, [*whole_axes(outer), (0, count), (piece - 1, piece)])
    ends = graph.reshape(ends, (*outer, count))
    totals = scan_last_axis(ends, prefixes, combine, neutral, longest)
    before = graph.expand(
        graph.reshape(shifted(totals, 1, neutral), (*outer, count, 1)), inner.shape
    )
    joined = graph.reshape(combine(before, inner), (*outer, count * piece))
    return graph.shrink(joined, [*whole_axes(outer), (0, size)])


def shifted(x: UOp, distance: int, value: Scalar) -> UOp:
    """The last axis shifted to the right; `value` enters, and the end is dropped."""
    *outer, size = x.shape
    kept = graph.shrink(x, [*whole_axes(outer), (0, max(0, size - distance))])
    return graph.pad_with(kept, [(0, 0)] * len(outer) + [(min(distance, size), 0)], value)


def prefix_windows(x: UOp, neutral: Scalar) -> UOp:
    """For each element of the last axis a window that ends there, along a new axis."""
    last, size = len(x.shape) - 1, x.shape[-1]
    filled = graph.pad_with(x, [(0, 0)] * last + [(size - 1, 0)], neutral)
    return graph.windows(filled, last, size)


def doubled(x: UOp, combine: Combine, neutral: Scalar) -> UOp:
    """Every prefix in log2(size) steps, each of which doubles how far an element sees back.

    W. D. Hillis & G. L. Steele, "Data parallel algorithms" (1986).
    """
    for step in range((x.shape[-1] - 1).bit_length()):
        if step and step % STEPS_TOGETHER == 0:
            x = x.alu(Op.CONTIGUOUS).alu(Op.CONTIGUOUS_BACKWARD)
        x = combine(shifted(x, 1 << step, neutral), x)
    return x


def whole_axes(sizes: list[int]) -> list[tuple[int, int]]:
    """Axes that are kept as they are."""
    return [(0, size) for size in sizes]
