"""Polyphase form of the adjoint of strided windows: one dense convolution per phase of the stride.

Floor 5. UNSKEW of stride s puts place k of window o at i = o*s + k. With k = j*s + r that is
i = (o + j)*s + r: for each phase r these are windows of stride 1 over every s-th place. No element
tests whether it lies in a window, and neighbors of a phase are vectorized.
"""

from __future__ import annotations

from tinycore.tensor import graph
from tinycore.tensor.adjoint import unskew
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import Op


def sum_to(x: UOp, shape: tuple[int, ...]) -> UOp:
    """Repetitions added up, to a shape of the same number of axes."""
    if x.op is Op.UNSKEW and shape[x.arg.window_axis] == 1:
        x = added_up(x.src[0], x.arg)
    return graph.sum_to(x, shape)


def added_up(x: UOp, how: Skew) -> UOp:
    """The sum over the window axis of UNSKEW, to size 1."""
    fixed = all(isinstance(size, int) for size in (*x.shape, how.size))
    if how.stride == 1 or how.dilation != 1 or not fixed:
        return graph.wide_sum(unskew(x, how), [how.window_axis])
    axis, window, step = how.axis, how.window_axis, how.stride
    order = [a for a in range(len(x.shape)) if a not in (axis, window)]
    x = graph.permute(x, [*order, axis, window])
    phases = in_phases(x, step, -(-how.size // step))
    whole = graph.reshape(phases, (*phases.shape[:-2], phases.shape[-2] * step))
    whole = graph.shrink(whole, [(0, n) for n in (*whole.shape[:-1], how.size)])
    whole = graph.reshape(whole, (*whole.shape, 1))
    return graph.permute(whole, [[*order, axis, window].index(a) for a in range(len(x.shape))])


def in_phases(x: UOp, step: int, size: int) -> UOp:
    """(.., windows, places) added up to (.., size, phase)."""
    *outer, count, places = x.shape
    steps = -(-places // step)
    x = graph.pad(x, [(0, 0)] * (len(outer) + 1) + [(0, steps * step - places)])
    if steps == 1:
        return graph.pad(x, [(0, 0)] * len(outer) + [(0, size - count), (0, 0)])
    axis = len(outer)
    x = graph.reshape(x, (*outer, count, steps, step))
    spread = graph.wide_sum(unskew(x, Skew(axis, axis + 1, 1, 1, size)), [axis + 1])
    return graph.reshape(spread, (*outer, size, step))
