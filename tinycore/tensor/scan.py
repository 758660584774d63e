"""Running sums, products and extremes along an axis.

Floor 5. A short axis is one fold over sliding windows of the padded axis. A long one is cut into
pieces of about its square root: running folds inside pieces, a running fold over what the pieces
add up to, and both combined.
"""

from __future__ import annotations

import math
from typing import Self

from tinycore.dtype import dtypes, sum_acc_dtype
from tinycore.tensor import graph
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.reduce import Reduce
from tinycore.uop.op import Op, neutral_element

LONGEST_DIRECT = 64
"""Axis size up to which every prefix is folded for itself."""


class Scan(Reduce):
    """Cumulative operations; the result has the shape of the operand."""

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """Running sums; bools and narrow integers are added in 32 bits, as in `sum`."""
        wide = self.cast(sum_acc_dtype(self.dtype))
        result = wide.running("cumsum", Op.ADD, axis)
        return result.cast(self.dtype) if dtypes.is_float(self.dtype) else result

    def cumprod(self, axis: int) -> Self:
        """Running products; bools and narrow integers are multiplied in 32 bits."""
        wide = self.cast(sum_acc_dtype(self.dtype))
        result = wide.running("cumprod", Op.MUL, axis)
        return result.cast(self.dtype) if dtypes.is_float(self.dtype) else result

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """The greatest element so far, and where it last stood."""
        return self.running_best("cummax", Op.MAX, axis)

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """The least element so far, and where it last stood."""
        return self.running_best("cummin", Op.MIN, axis)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of running sums of exp(a); each prefix has a peak of its own."""
        place = resolve_axis("logcumsumexp", axis, self.ndim)
        if not self.numel() or not self.ndim:
            return self.as_float()
        size = self.shape[place]
        x = self.as_float().movedim(place, -1).unsqueeze(-2)
        rows = self.from_uop(graph.arange(size, dtypes.default_int, self.device))
        inside = rows.unsqueeze(1) >= rows
        return inside.where(x, -math.inf).logsumexp(-1).movedim(-1, place)

    def running_best(self, name: str, op: Op, axis: int) -> tuple[Self, Self]:
        """Running extremes and their places."""
        place = resolve_axis(name, axis, self.ndim)
        values = self.running(name, op, axis)
        if not self.ndim or not self.numel():
            return values, self.const_like(0, dtypes.default_int)
        stands = self.eq(values)
        if dtypes.is_float(self.dtype):
            stands = stands | self.isnan()
        return values, stands.where(self.positions(place), 0).running(name, Op.MAX, axis)

    def running(self, name: str, op: Op, axis: int) -> Self:
        """Element i of the axis folded with all before it."""
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim or not self.numel():
            return self
        return self.movedim(place, -1).running_last(op).movedim(-1, place)

    def running_last(self, op: Op) -> Self:
        """`running` along the last axis."""
        size, outer = self.shape[-1], self.shape[:-1]
        if size <= LONGEST_DIRECT:
            return self.prefixes(op)
        piece = min(LONGEST_DIRECT, math.isqrt(size - 1) + 1)
        count = -(-size // piece)
        neutral = neutral_element(op, self.dtype)
        filled = self.from_uop(
            graph.pad_with(self.uop, [(0, 0)] * len(outer) + [(0, count * piece - size)], neutral)
        )
        inner = filled.reshape((*outer, count, piece)).prefixes(op)
        totals = inner.between(inner.ndim - 1, piece - 1, piece).squeeze(-1)
        before = totals.running_last(op).between(totals.ndim - 1, 0, count - 1)
        before = self.from_uop(
            graph.pad_with(before.uop, [(0, 0)] * len(outer) + [(1, 0)], neutral)
        )
        left, right = inner.broadcasted("running", before.unsqueeze(-1))
        combined = left.alu(op, right)
        return combined.reshape((*outer, count * piece)).between(len(outer), 0, size)

    def prefixes(self, op: Op) -> Self:
        """Every prefix of the last axis folded for itself."""
        last, size = self.ndim - 1, self.shape[-1]
        pairs = [(0, 0)] * last + [(size - 1, 0)]
        filled = graph.pad_with(self.uop, pairs, neutral_element(op, self.dtype))
        folded = graph.fold(graph.windows(filled, last, size), op, [last + 1])
        return self.from_uop(graph.reshape(folded, self.shape))
