"""Reductions: sums, extremes, statistics, softmax.

Floor 5. `axis` is an axis, several, or None for all; `keepdim` keeps folded axes with size 1.
Sums are accumulated in at least 32 bits; narrow floats are rounded once, at the end, while bools
and narrow integers stay in the wider type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from tinycore.dtype import DType, DTypeLike, Scalar, dtypes, float_layout, sum_acc_dtype, to_dtype
from tinycore.errors import ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import counter_dtype, floating_dtype, resolve_axes, resolve_axis
from tinycore.tensor.methods.activations import Activations
from tinycore.tensor.methods.templates import templated
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element
from tinycore.uop.size import is_size

Axes = int | Sequence[int] | None


class Reduce(Activations):
    """Many elements to one."""

    __slots__ = ()

    def _fold(self, name: str, op: Op, axis: Axes, keepdim: bool) -> Self:
        """The axes folded by an op of the table.

        Raises IndexRangeError for an axis it has not, ShapeError for the extreme of no elements.
        """
        node, own = self.uop, self.uop.shape
        axes = resolve_axes(name, axis, len(own))
        if 0 not in own:
            node = graph.fold(node, op, axes)
        elif 0 in (shape := tuple([1 if a in axes else n for a, n in enumerate(own)])):
            node = graph.reshape(node, shape)
        elif op in (Op.MAX, Op.MIN):
            raise ShapeError(f"{name}: no elements along axes {axes} of shape {own}")
        else:
            node = graph.full(shape, self.dtype, neutral_element(op, self.dtype), self.device)
        return self._from_node(graph.value(node if keepdim else graph.drop_axes(node, axes)))

    def sum(self, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Self:
        """The sum; 0 of no elements. With `dtype` it is accumulated and returned in that.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.sum().item(), x.sum(0).tolist(), x.sum(1, keepdim=True).tolist()
        (10, [4, 6], [[3], [7]])
        """
        return self._accumulated("sum", Op.ADD, axis, keepdim, dtype)

    def prod(
        self, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        """The product; 1 of no elements. With `dtype` it is accumulated and returned in that.

        >>> Tensor([[1, 2], [3, 4]]).prod(1).tolist()
        [2, 12]
        """
        return self._accumulated("prod", Op.MUL, axis, keepdim, dtype)

    def _accumulated(
        self, name: str, op: Op, axis: Axes, keepdim: bool, dtype: DTypeLike | None
    ) -> Self:
        """A fold in a dtype, or in a wide one and rounded to the own one if that is of floats."""
        result = self.cast(dtype or sum_acc_dtype(self.dtype))._fold(name, op, axis, keepdim)
        is_own = dtype is None and dtypes.is_float(self.dtype)
        return result.cast(self.dtype) if is_own else result

    def max(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The greatest element; equal ones share the gradient. Raises ShapeError of no elements.

        >>> x = Tensor([[1, 5], [7, 3]])
        >>> x.max().item(), x.max(0).tolist(), x.max((0, 1), keepdim=True).tolist()
        (7, [7, 5], [[7]])
        """
        return self._fold("max", Op.MAX, axis, keepdim)

    def min(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The least element; equal ones share the gradient. Raises ShapeError of no elements.

        >>> Tensor([[1, 5], [7, 3]]).min(1).tolist()
        [1, 3]
        """
        return self._fold("min", Op.MIN, axis, keepdim)

    def any(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """True if some element is nonzero; False of no elements.

        >>> x = Tensor([[0, 1], [0, 0]])
        >>> x.any().item(), x.any(1).tolist()
        (True, [True, False])
        """
        if self.numel() == 0:
            return self.cast(dtypes.bool).sum(axis, keepdim).cast(dtypes.bool)
        return self.cast(dtypes.bool).max(axis, keepdim)

    def all(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """True if every element is nonzero; True of no elements.

        >>> x = Tensor([[1, 1], [1, 0]])
        >>> x.all().item(), x.all(1).tolist()
        (False, [True, False])
        """
        return self.cast(dtypes.bool).logical_not().any(axis, keepdim).logical_not()

    def allclose(
        self, other: Self, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """True if all elements are close, as one bool.

        >>> Tensor([1.0, 2.0]).allclose(Tensor([1.0, 2.0 + 1e-6])).item()
        True
        """
        return self.isclose(other, rtol, atol, equal_nan).all()

    # --- statistics

    def _count(self, axes: Sequence[int]) -> int:
        """Number of elements that are reduced into one."""
        sizes = [self.shape[a] for a in axes]
        return math.prod(sizes)

    @templated
    def mean(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """The average as a float; NaN of no elements.

        >>> Tensor([[1, 2], [3, 5]]).mean(1).tolist()
        [1.5, 4.0]
        """
        x = self._as_float()
        wide = x.cast(sum_acc_dtype(x.dtype))
        count = self._count(resolve_axes("mean", axis, self.ndim))
        return (wide.sum(axis, keepdim) / count).cast(x.dtype)

    def var(self, axis: Axes = None, keepdim: bool = False, correction: Scalar = 1) -> Self:
        """The variance: squared distances from the mean, divided by max(0, count - correction).

        >>> x = Tensor([1.0, 3.0, 5.0, 7.0])
        >>> x.var(correction=0).item(), Tensor([1.0, 3.0]).var().item()
        (5.0, 2.0)
        """
        return self.var_mean(axis, keepdim, correction)[0]

    def var_mean(
        self, axis: Axes = None, keepdim: bool = False, correction: Scalar = 1
    ) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> variance, mean = Tensor([1.0, 3.0]).var_mean()
        >>> variance.item(), mean.item()
        (2.0, 2.0)
        """
        variance, mean = self._moments(axis, keepdim, correction)
        dtype = self._as_float().dtype
        return variance.cast(dtype), mean.cast(dtype)

    def _moments(self, axis: Axes, keepdim: bool, correction: Scalar) -> tuple[Self, Self]:
        """The variance and the mean in at least float32."""
        axes = resolve_axes("var", axis, self.ndim)
        apart, mean, degrees = self._from_mean(axes, correction)
        variance = apart.square().sum(axes, keepdim) / degrees
        return variance, mean if keepdim else mean._without(axes)

    def _from_mean(
        self, axes: Sequence[int], correction: Scalar
    ) -> tuple[Self, Self, Self | float]:
        """Distances from the mean in at least float32, the mean, and max(0, count - correction)."""
        x = self._as_float()
        wide = x.cast(sum_acc_dtype(x.dtype))
        mean, count = wide.mean(axes, keepdim=True), self._count(axes)
        if is_size(count):  # a launch gives it, as a number of this dtype
            return wide - mean, mean, (wide.ufix(count) - correction).maximum(0)
        return wide - mean, mean, max(0.0, float(count - correction))

    def std(self, axis: Axes = None, keepdim: bool = False, correction: Scalar = 1) -> Self:
        """The standard deviation, the root of `var`.

        >>> Tensor([1.0, 5.0]).std(correction=0).item()
        2.0
        """
        return self.std_mean(axis, keepdim, correction)[0]

    def std_mean(
        self, axis: Axes = None, keepdim: bool = False, correction: Scalar = 1
    ) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> deviation, mean = Tensor([1.0, 5.0]).std_mean(correction=0)
        >>> deviation.item(), mean.item()
        (2.0, 3.0)
        """
        axes = resolve_axes("std", axis, self.ndim)
        apart, mean, degrees = self._from_mean(axes, correction)
        root = math.sqrt(degrees) if isinstance(degrees, float) else degrees.sqrt()
        found, dtype = (apart._length(axes) / root, mean), self._as_float().dtype
        deviation, mean = found if keepdim else [x._without(axes) for x in found]
        return deviation.cast(dtype), mean.cast(dtype)

    def _without(self, axes: Sequence[int]) -> Self:
        """Without axes of size 1."""
        return self._from_node(graph.drop_axes(self.uop, axes))

    def _length(self, axes: Sequence[int]) -> Self:
        """sqrt(sum of squares) along axes, which stay: of sums that neither over- nor underflow.

        Blue, "A portable Fortran program to find the Euclidean norm of a vector" (1978). The
        gradient at 0 is 0.
        """
        layout = float_layout(self.dtype)
        up = 2.0 ** (-layout.least_exponent * 3 // 4)
        plain, small, large = [(self * s).square().sum(axes, True) for s in (1.0, up, 1 / up)]
        tiny = plain < 2.0 ** (layout.least_exponent + layout.mantissa_bits + 3)
        root = tiny.where(small, plain.isinf().where(large, plain)).sqrt()
        length = root * tiny.where(1 / up, plain.isinf().where(up, 1.0))
        return length._called(slope_of_length, self)

    # --- places of extremes

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Index of the greatest element: the first of equals, and NaN before any number.

        Without `axis` the place in the flat tensor. Raises ShapeError of no elements.

        >>> x = Tensor([[1, 9], [9, 3]])
        >>> x.argmax().item(), x.argmax(1).tolist()
        (1, [1, 0])
        """
        return self._argbest("argmax", axis, keepdim, greatest=True)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Index of the least element: the first of equals, and NaN before any number.

        Without `axis` the place in the flat tensor. Raises ShapeError of no elements.

        >>> x = Tensor([[4, 2], [1, 3]])
        >>> x.argmin().item(), x.argmin(1).tolist()
        (2, [1, 0])
        """
        return self._argbest("argmin", axis, keepdim, greatest=False)

    def _argbest(self, name: str, axis: int | None, keepdim: bool, greatest: bool) -> Self:
        """The first index of the extreme, in the default integer."""
        if axis is None:
            found = self.reshape(-1)._argbest(name, 0, False, greatest)
            return found.reshape((1,) * self.ndim) if keepdim else found
        place = resolve_axis(name, axis, self.ndim)
        if not self.ndim:
            return self.const_like(0, dtypes.default_int)
        best = self.max(place, keepdim=True) if greatest else self.min(place, keepdim=True)
        hit = self.eq(best)
        if dtypes.is_float(self.dtype):
            hit = hit | self.isnan()
        size = self.shape[place]
        numbers = self._positions(place)
        return hit.where(numbers, size).min(place, keepdim)

    def _positions(self, axis: int) -> Self:
        """The index of each element along one axis, in a shape that broadcasts."""
        numbers = graph.arange(self.shape[axis], counter_dtype(self.shape[axis]), self.device)
        return self._from_node(
            graph.reshape(numbers, tuple([n if a == axis else 1 for a, n in enumerate(self.shape)]))
        )

    # --- softmax

    def _shifted(self, axis: Axes, dtype: DTypeLike | None) -> Self:
        """The tensor less its greatest element along the axes, in at least float32."""
        x = self._as_float() if dtype is None else self.cast(to_dtype(dtype))
        wide = x.cast(sum_acc_dtype(x.dtype))
        return wide - wide.max(axis, keepdim=True).detach()

    def _softmax_dtype(self, name: str, axis: Axes, dtype: DTypeLike | None) -> DType:
        """The dtype of the result. Raises DTypeError unless it is a float, and for a wrong axis."""
        resolve_axes(name, axis, self.ndim)
        target = self._as_float().dtype if dtype is None else to_dtype(dtype)
        floating_dtype(name, target)
        return target

    @templated
    def softmax(self, axis: Axes = -1, dtype: DTypeLike | None = None) -> Self:
        """exp(a) / sum(exp(a)) along an axis, without overflow; `dtype` is the result's.

        Raises DTypeError for a dtype that is no float.

        >>> Tensor([[0.0, 0.0], [1000.0, 0.0]]).softmax().tolist()
        [[0.5, 0.5], [1.0, 0.0]]
        """
        target = self._softmax_dtype("softmax", axis, dtype)
        if not self.numel():
            return self.cast(target)
        power = self._shifted(axis, dtype).exp()
        return (power / power.sum(axis, keepdim=True)).cast(target)

    @templated
    def log_softmax(self, axis: Axes = -1, dtype: DTypeLike | None = None) -> Self:
        """The logarithm of `softmax`, accurate also where that underflows.

        >>> Tensor([1000.0, 0.0]).log_softmax().tolist()
        [0.0, -1000.0]
        """
        target = self._softmax_dtype("log_softmax", axis, dtype)
        if not self.numel():
            return self.cast(target)
        below = self._shifted(axis, dtype)
        return (below - below.exp().sum(axis, keepdim=True).log()).cast(target)

    def softmin(self, axis: Axes = -1, dtype: DTypeLike | None = None) -> Self:
        """`softmax` of -a.

        >>> Tensor([[0.0, 0.0], [1000.0, 0.0]]).softmin().tolist()
        [[0.5, 0.5], [0.0, 1.0]]
        """
        return (-self._as_float()).softmax(axis, dtype)

    @templated
    def logsumexp(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """log(sum(exp(a))), without overflow; -inf of no elements.

        >>> Tensor([1000.0, 1000.0]).logsumexp(keepdim=True).numpy().round(2)
        array([1000.69], dtype=float32)
        """
        x = self._as_float()
        if not x.numel():
            return x.sum(axis, keepdim).log()
        wide = x.cast(sum_acc_dtype(x.dtype))
        peak = wide.max(axis, keepdim=True).detach()
        peak = peak.isinf().where(0.0, peak)
        total = (wide - peak).exp().sum(axis, keepdim=True).log() + peak
        kept = (
            total.uop
            if keepdim
            else graph.drop_axes(total.uop, resolve_axes("logsumexp", axis, self.ndim))
        )
        return self._from_node(kept).cast(x.dtype)


def slope_of_length(g: UOp, call: UOp) -> list[Reduce]:
    """d sqrt(sum of a**2) = a da / sqrt(sum of a**2)."""
    length, a, slope = (Reduce._from_node(n) for n in (call, call.src[1], g))
    return [length.eq(0).where(0.0, slope) * (a / length.eq(0).where(1.0, length))]
