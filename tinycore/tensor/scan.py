"""Running sums, products and extremes along an axis.

Floor 5. `running.py` says how they are computed: in a number of steps that grows as the axis does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from tinycore.dtype import dtypes, sum_acc_dtype
from tinycore.tensor import graph
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.reduce import Reduce
from tinycore.tensor.running import prefix_windows, running, running_fold
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Scan(Reduce):
    """Cumulative operations; the result has the shape of the operand."""

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """Running sums; bools and narrow integers are added in 32 bits, as in `sum`."""
        wide = self.cast(sum_acc_dtype(self.dtype))
        result = wide.folded_along("cumsum", Op.ADD, axis)
        return result.cast(self.dtype) if dtypes.is_float(self.dtype) else result

    def cumprod(self, axis: int) -> Self:
        """Running products; bools and narrow integers are multiplied in 32 bits."""
        wide = self.cast(sum_acc_dtype(self.dtype))
        result = wide.folded_along("cumprod", Op.MUL, axis)
        return result.cast(self.dtype) if dtypes.is_float(self.dtype) else result

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """The greatest element so far, and where it last stood; NaN is greater than any number."""
        return self.running_best("cummax", Op.MAX, axis)

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """The least element so far, and where it last stood; NaN is less than any number."""
        return self.running_best("cummin", Op.MIN, axis)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of running sums of exp(a); each piece has a peak of its own."""
        x = self.as_float()
        wide = x.cast(sum_acc_dtype(x.dtype))
        return wide.along(
            "logcumsumexp",
            axis,
            lambda node: running(node, self.logsumexp_so_far, self.logaddexp_of, -math.inf),
        ).cast(x.dtype)

    def logsumexp_so_far(self, node: UOp) -> UOp:
        """The logarithm of the sum of exp(a) over every prefix of the last axis."""
        return self.from_uop(prefix_windows(node, -math.inf)).logsumexp(-1).uop

    def logaddexp_of(self, a: UOp, b: UOp) -> UOp:
        """`logaddexp` of two nodes."""
        return self.from_uop(a).logaddexp(self.from_uop(b)).uop

    def running_best(self, name: str, op: Op, axis: int) -> tuple[Self, Self]:
        """Running extremes and their places; the gradient goes to those places."""
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim or not self.numel():
            return self, self.const_like(0, dtypes.default_int)
        stands = self.eq(self.folded_along(name, op, place))
        if dtypes.is_float(self.dtype):
            stands = stands | self.isnan()
        places = stands.where(self.positions(place), 0).folded_along(name, Op.MAX, place)
        places = places.contiguous()
        return self.from_uop(graph.take(self.uop, places.uop, place)), places

    def folded_along(self, name: str, op: Op, axis: int) -> Self:
        """Element i of the axis folded by the op with all before it."""
        return self.along(name, axis, lambda node: running_fold(node, op))

    def along(self, name: str, axis: int, function: Callable[[UOp], UOp]) -> Self:
        """A function of the last axis applied to any."""
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim or not self.numel():
            return self
        moved = self.movedim(place, -1)
        return self.from_uop(function(moved.uop)).movedim(-1, place)
