"""Prefix scans along an axis: cumulative sums, products, extremes, logsumexp.

Floor 5. `prefix_scan.py` has the algorithm; its number of kernels grows slowly with the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

from tinycore.dtype import dtypes, sum_acc_dtype
from tinycore.tensor import graph
from tinycore.tensor.checks import resolve_axis
from tinycore.tensor.methods.prefix_scan import (
    is_scanned,
    prefix_windows,
    running_fold,
    scan_last_axis,
)
from tinycore.tensor.methods.reduce import Reduce
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Scan(Reduce):
    """Cumulative operations; the result has the shape of the operand."""

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """Running sums; bools and narrow integers are added in 32 bits, as in `sum`.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.cumsum().tolist(), x.cumsum(1).tolist()
        ([[1, 2], [4, 6]], [[1, 3], [3, 7]])
        """
        return self._running_total("cumsum", Op.ADD, axis)

    def cumprod(self, axis: int) -> Self:
        """Running products; bools and narrow integers are multiplied in 32 bits.

        >>> Tensor([1, 2, 3, 4]).cumprod(0).tolist()
        [1, 2, 6, 24]
        """
        return self._running_total("cumprod", Op.MUL, axis)

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """The greatest element so far, and where it last stood; NaN is greater than any number.

        >>> values, places = Tensor([3, 1, 4, 1, 5]).cummax()
        >>> values.tolist(), places.tolist()
        ([3, 3, 4, 4, 5], [0, 0, 2, 2, 4])
        """
        return self._running_best("cummax", Op.MAX, axis)

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """The least element so far, and where it last stood; NaN is less than any number.

        >>> values, places = Tensor([3, 1, 4, 1, 5]).cummin()
        >>> values.tolist(), places.tolist()
        ([3, 1, 1, 1, 1], [0, 1, 1, 3, 3])
        """
        return self._running_best("cummin", Op.MIN, axis)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of running sums of exp(a); each piece has its own maximum.

        >>> Tensor([0.0, 0.0, 0.0]).logcumsumexp().numpy().round(4)
        array([0.    , 0.6931, 1.0986], dtype=float32)
        """
        x = self._as_float()
        wide = x.cast(sum_acc_dtype(x.dtype))
        tensor = self._from_node
        return wide._along(
            "logcumsumexp",
            axis,
            lambda node: scan_last_axis(
                node,
                lambda part: tensor(prefix_windows(part, -math.inf)).logsumexp(-1).uop,
                lambda a, b: tensor(a).logaddexp(tensor(b)).uop,
                -math.inf,
            ),
        ).cast(x.dtype)

    def _running_total(self, name: str, op: Op, axis: int) -> Self:
        """Running sums or products, in the wide type; floats are rounded to theirs."""
        result = self.cast(sum_acc_dtype(self.dtype))._folded_along(name, op, axis)
        return result.cast(self.dtype) if dtypes.is_float(self.dtype) else result

    def _running_best(self, name: str, op: Op, axis: int) -> tuple[Self, Self]:
        """Running extremes and their indices; the gradient goes to these indices."""
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim or not self.numel():
            return self, self.const_like(0, dtypes.default_int)
        stands = self.eq(self._folded_along(name, op, place))
        if dtypes.is_float(self.dtype):
            stands = stands | self.isnan()
        places = stands.where(self._positions(place), 0)._folded_along(name, Op.MAX, place)
        places = places.contiguous()
        return self._from_node(graph.take(self.uop, places.uop, place)), places

    def _folded_along(self, name: str, op: Op, axis: int) -> Self:
        """Element i of the axis folded by the op with all before it."""
        place = resolve_axis(name, axis, self.ndim)
        if op is not Op.MUL and self.ndim and self.numel() and is_scanned(self.uop, place):
            return self._from_node(graph.value(graph.scan(self.uop, op, place)))
        return self._along(name, axis, lambda node: running_fold(node, op))

    def _along(self, name: str, axis: int, function: Callable[[UOp], UOp]) -> Self:
        """A function of the last axis applied to any."""
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim or not self.numel():
            return self._from_node(graph.value(self.uop))
        moved = self.movedim(place, -1)
        return self._from_node(graph.value(function(moved.uop))).movedim(-1, place)
