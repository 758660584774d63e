"""Methods of torch and NumPy composed of other methods: norms, statistics, products, losses.

Floor 5. Names, arguments and edges are torch's. What has a shape that depends on data is computed
at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self, TypeVar

from tinycore.dtype import Scalar, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import Ints, counter_dtype, integer_dtype, resolve_axis
from tinycore.tensor.methods.losses import Losses, Reduction
from tinycore.tensor.methods.remainder import negative
from tinycore.uop.node import UOp

Axes = int | Sequence[int] | None


class Composed(Losses):
    """Methods by the names of torch and NumPy, composed of others."""

    __slots__ = ()

    # --- reductions

    def amax(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """`max` by the name that torch gives it: equals share the gradient."""
        return self.max(axis, keepdim)

    def amin(self, axis: Axes = None, keepdim: bool = False) -> Self:
        """`min` by the name that torch gives it."""
        return self.min(axis, keepdim)

    def median(self, axis: int | None = None, keepdim: bool = False) -> Self | tuple[Self, Self]:
        """The middle element in order, the lower of two; along an axis also its index.

        NaN if an element is NaN. Raises ShapeError for no elements.

        >>> Tensor([3, 1, 2, 9]).median().item()
        2
        >>> [t.tolist() for t in Tensor([[3, 1, 2], [4, 6, 5]]).median(1)]
        [[2, 5], [2, 2]]
        """
        if axis is None:
            values, _ = self.reshape(-1)._middle(0)
            return values.reshape(())
        place = resolve_axis("median", axis, self.ndim)
        if not self.ndim:
            return self.reshape(1).median(0)
        values, places = self._middle(place)
        return (values, places) if keepdim else (values.squeeze(place), places.squeeze(place))

    def _middle(self, axis: int) -> tuple[Self, Self]:
        """The lower median along an axis, which becomes of size 1, and its index."""
        size = self.shape[axis]
        if not size:
            raise ShapeError(f"median: no elements along axis {axis} of shape {self.shape}")
        ordered, places = self.sort(axis)
        middle = (size - 1) // 2
        value, place = (t._between(axis, middle, middle + 1) for t in (ordered, places))
        if not dtypes.is_float(self.dtype):
            return value, place
        last = ordered._between(axis, size - 1, size)  # NaN comes last, and takes the gradient
        return last.isnan().where(last, value), last.isnan().where(self.argmax(axis, True), place)

    def quantile(
        self, q: float | Sequence[float], axis: int | None = None, keepdim: bool = False
    ) -> Self:
        """Quantile: the sorted elements interpolated linearly at a share of the way.

        Several shares give one result each, along a new first axis. Raises ArgumentError for a
        share outside [0, 1], ShapeError for no elements.

        >>> Tensor([4.0, 1.0, 2.0]).quantile(0.25).item(), Tensor([0.0, 9.0]).quantile([0, 1]).shape
        (1.5, (2,))
        """
        place = 0 if axis is None else resolve_axis("quantile", axis, self.ndim)
        if axis is None or not self.ndim:
            flat = self.reshape(-1).quantile(q, 0) if self.ndim else self.reshape(1).quantile(q, 0)
            kept = (*flat.shape, *[1] * self.ndim)
            return flat.reshape(kept) if keepdim else flat
        shares = [float(s) for s in (q if isinstance(q, Sequence) else [q])]
        if any(not 0 <= s <= 1 for s in shares):
            raise ArgumentError(f"quantile: shares lie between 0 and 1, got {q}")
        if not self.shape[place]:
            raise ShapeError(f"quantile: no elements along axis {place} of shape {self.shape}")
        ordered, last = self._as_float().sort(place)[0], self.shape[place] - 1
        found = []
        for share in shares:
            low, high = math.floor(share * last), math.ceil(share * last)
            below, above = (ordered._between(place, n, n + 1) for n in (low, high))
            found.append(below if low == high else between(below, above, share * last - low))
        result = found[0].stack(*found[1:]) if isinstance(q, Sequence) else found[0]
        broken = ordered._between(place, last, last + 1)  # NaN comes last, and takes the gradient
        result = broken.isnan().where(broken, result)
        return result if keepdim else result.squeeze(result.ndim - self.ndim + place)

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
        """Count of each of 0, 1, ... in a row of integers, or the sum of their weights.

        Computes the tensor. Raises ShapeError for other than one axis, ArgumentError below 0.

        >>> Tensor([0, 2, 2]).bincount().tolist(), Tensor([1]).bincount(minlength=3).tolist()
        ([1, 0, 2], [0, 1, 0])
        """
        integer_dtype("bincount", self.dtype)
        if self.ndim != 1:
            raise ShapeError(f"bincount: needs one axis, got shape {self.shape}")
        host = self._host_array()
        if host.size and host.min() < 0:
            raise ArgumentError(f"bincount: {host.min()} is below 0")
        size = max(int(host.max()) + 1 if host.size else 0, minlength)
        kind = counter_dtype(self.shape[0]) if weights is None else weights.dtype
        start = self.zeros(size, dtype=kind, device=self.device)
        source = self.const_like(1, kind) if weights is None else weights
        return start.scatter_reduce(0, self, source, "sum") if size and host.size else start

    def unique(self) -> Self:
        """The distinct elements in order. Computes the tensor.

        >>> Tensor([[3, 1], [1, 2]]).unique().tolist()
        [1, 2, 3]
        """
        flat = self.reshape(-1)
        if not flat.shape[0]:
            return flat
        ordered = flat.sort()[0]
        first = self._from_node(graph.arange(flat.shape[0], dtypes.int32, self.device)).eq(0)
        return ordered.masked_select(first | ordered.ne(ordered.roll(1)))

    def searchsorted(self, values: Self, right: bool = False) -> Self:
        """Insertion points of values in this sorted row: before equals, or after them.

        NaN is greater than any number, as in `sort`. Raises ShapeError for other than one axis.

        >>> Tensor([1, 3, 3, 5]).searchsorted(Tensor([3, 6])).tolist()
        [1, 4]
        """
        if self.ndim != 1:
            raise ShapeError(f"searchsorted: needs one axis, got shape {self.shape}")
        wanted = values.unsqueeze(-1)
        before = (self <= wanted) if right else (self < wanted)
        if dtypes.is_float(wanted.dtype):
            before = before | (wanted.isnan() if right else wanted.isnan() & ~self.isnan())
        kind = counter_dtype(self.shape[0])
        return before.cast(kind).sum(-1, dtype=kind)

    # --- parts

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The parts along an axis, without it.

        >>> [t.tolist() for t in Tensor([[1, 2], [3, 4]]).unbind(1)]
        [[1, 3], [2, 4]]
        """
        axis = self._axis_with_size("unbind", dim)
        return tuple([self[(slice(None),) * axis + (n,)] for n in range(self.shape[axis])])

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` elements of an axis from `start`. Raises ShapeError where there are fewer.

        >>> Tensor([1, 2, 3, 4]).narrow(0, 1, 2).tolist()
        [2, 3]
        """
        axis = self._axis_with_size("narrow", dim)
        begin = start + self.shape[axis] if start < 0 else start
        if length < 0 or not 0 <= begin <= self.shape[axis] - length:
            raise ShapeError(
                f"narrow: {length} elements from {start} of axis {axis} of shape {self.shape}"
            )
        return self[(slice(None),) * axis + (slice(begin, begin + length),)]

    def index_select(self, dim: int, index: Self) -> Self:
        """Rows of an axis by a row of positions; out of range reads 0.

        >>> Tensor([[1, 2], [3, 4]]).index_select(1, Tensor([1, 1, 0])).tolist()
        [[2, 2, 1], [4, 4, 3]]
        """
        axis = self._axis_with_size("index_select", dim)
        return self[(slice(None),) * axis + (index,)]

    def index_add(self, dim: int, index: Self, source: Self, alpha: Scalar = 1) -> Self:
        """This tensor with the rows of `source`, times alpha, added where a row of positions says.

        >>> Tensor([1, 1, 1]).index_add(0, Tensor([0, 0]), Tensor([5, 6])).tolist()
        [12, 1, 1]
        """
        axis = self._axis_with_size("index_add", dim)
        shape = [-1 if a == axis else 1 for a in range(self.ndim)]
        places = index.reshape(shape).expand(source.shape)
        return self.scatter_reduce(axis, places, (source * alpha).cast(self.dtype), "sum")

    def tile(self, *reps: Ints) -> Self:
        """`repeat` with NumPy's rule for fewer numbers than axes: the last axes repeat.

        >>> Tensor([[1, 2]]).tile(2).tolist(), Tensor([1]).tile((2, 3)).shape
        ([[1, 2, 1, 2]], (2, 3))
        """
        counts = [int(n) for row in reps for n in (row if isinstance(row, Sequence) else [row])]
        return self.repeat(*[1] * (self.ndim - len(counts)), *counts)

    def diff(self, n: int = 1, axis: int = -1) -> Self:
        """Each element less the one before, n times over.

        >>> Tensor([1, 4, 9, 16]).diff().tolist(), Tensor([1, 4, 9, 16]).diff(2).tolist()
        ([3, 5, 7], [2, 2])
        """
        place, x = self._axis_with_size("diff", axis), self
        for _ in range(min(n, self.shape[place])):
            size = x.shape[place]
            later, sooner = x._between(place, 1, size), x._between(place, 0, max(0, size - 1))
            x = later.ne(sooner) if x.dtype is dtypes.bool else later - sooner
        return x

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Channels (.., C r r, H, W) as pixels (.., C, H r, W r). Raises ShapeError.

        >>> Tensor([[[1]], [[2]], [[3]], [[4]]]).pixel_shuffle(2).tolist()
        [[[1, 2], [3, 4]]]
        """
        r = upscale_factor
        if self.ndim < 3 or r < 1 or self.shape[-3] % (r * r):
            raise ShapeError(f"pixel_shuffle: factor {r} for a tensor of shape {self.shape}")
        *rest, channels, height, width = self.shape
        n = len(rest)
        parts = self.reshape(*rest, channels // (r * r), r, r, height, width)
        order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
        return parts.permute(order).reshape(*rest, channels // (r * r), height * r, width * r)

    # --- products

    def bmm(self, x: Self) -> Self:
        """`matmul` of two stacks of matrices. Raises ShapeError for other than three axes."""
        if self.ndim != 3 or x.ndim != 3:
            raise ShapeError(f"bmm: needs three axes each, got shapes {self.shape} and {x.shape}")
        return self.matmul(x)

    def outer(self, x: Self) -> Self:
        """Every element times every one of another tensor, as a matrix.

        >>> Tensor([1, 2]).outer(Tensor([3, 4, 5])).tolist()
        [[3, 4, 5], [6, 8, 10]]
        """
        return self.reshape(-1, 1) * x.reshape(1, -1)

    def kron(self, x: Self) -> Self:
        """The Kronecker product: every element times a whole other tensor, in blocks.

        >>> Tensor([1, 10]).kron(Tensor([1, 2])).tolist()
        [1, 2, 10, 20]
        """
        rank = max(self.ndim, x.ndim)
        a, b = (t.reshape((*[1] * (rank - t.ndim), *t.shape)) for t in (self, x))
        left = a.reshape([n for size in a.shape for n in (size, 1)])
        right = b.reshape([n for size in b.shape for n in (1, size)])
        shape = [n * m for n, m in zip(a.shape, b.shape, strict=True)]
        return (left * right).reshape(shape)

    def cross(self, x: Self, dim: int = -1) -> Self:
        """The vector product along an axis of size 3. Raises ShapeError for another size.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        a, b = self._broadcasted("cross", x)
        axis = a._axis_with_size("cross", dim)
        if a.shape[axis] != 3:
            raise ShapeError(f"cross: axis {axis} of shape {a.shape} is not of size 3")
        return a.roll(-1, axis) * b.roll(-2, axis) - a.roll(-2, axis) * b.roll(-1, axis)

    def trace(self) -> Self:
        """The sum of the diagonal of a matrix.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        return self.diagonal().sum(-1)

    # --- element by element

    def atan2(self, x: Self) -> Self:
        """The angle of the point (x, this), in [-pi, pi]; signs of zeros count.

        >>> Tensor([1.0, -1.0]).atan2(Tensor([0.0, -1.0])).numpy().round(4)
        array([ 1.5708, -2.3562], dtype=float32)
        """
        y, x = self._in_floats("atan2", x)
        far = y.isinf() & x.isinf()
        up, over = (far.where(t.sign(), t) for t in (y, x))
        steep = up.abs() > over.abs()
        below = steep.where(up, over)
        ratio = steep.where(over, up) / below.eq(0).where(1.0, below)
        flat = ratio.atan() + negative(x).where(y.const_like(math.pi).copysign(y), 0.0)
        flat = (negative(x) | ratio.ne(0)).where(flat, y.const_like(0.0).copysign(y))
        value = steep.where(y.const_like(math.pi / 2).copysign(y) - ratio.atan(), flat)
        value = (y.isnan() | x.isnan()).where(math.nan, value)
        return value._called(slopes_of_atan2, y, x)

    def hypot(self, x: Self) -> Self:
        """sqrt(a**2 + b**2) without overflow.

        >>> Tensor([3.0, 3e30]).hypot(Tensor([4.0, 4e30])).tolist()[0]
        5.0
        """
        a, b = self._in_floats("hypot", x)
        most = a.abs().maximum(b.abs())
        unit = (most.eq(0) | most.isinf()).where(1.0, most)
        length = ((a / unit).square() + (b / unit).square()).sqrt() * unit
        value = (a.isinf() | b.isinf()).where(math.inf, length)
        return value._called(slopes_of_hypot, a, b)

    def glu(self, dim: int = -1) -> Self:
        """The first half of an axis times the sigmoid of the second. Raises ShapeError if odd.

        >>> Tensor([2.0, 0.0]).glu().tolist()
        [1.0]
        """
        axis = self._axis_with_size("glu", dim)
        half, odd = divmod(self.shape[axis], 2)
        if odd:
            raise ShapeError(f"glu: axis {axis} of shape {self.shape} has no two halves")
        gate = self._between(axis, half, 2 * half).sigmoid()
        return self._between(axis, 0, half) * gate

    # --- losses

    def mse_loss(self, target: Self, reduction: Reduction = "mean") -> Self:
        """(a - target)**2.

        >>> Tensor([1.0, 3.0]).mse_loss(Tensor([0.0, 0.0])).item()
        5.0
        """
        return (self._as_float() - target).square()._reduced(reduction)

    def l1_loss(self, target: Self, reduction: Reduction = "mean") -> Self:
        """|a - target|.

        >>> Tensor([1.0, -3.0]).l1_loss(Tensor([0.0, 0.0])).item()
        2.0
        """
        return (self._as_float() - target).abs()._reduced(reduction)

    def huber_loss(self, target: Self, reduction: Reduction = "mean", delta: float = 1.0) -> Self:
        """(a - target)**2 / 2 up to delta, then delta * (|a - target| - delta / 2).

        >>> Tensor([0.5, 3.0]).huber_loss(Tensor([0.0, 0.0]), "none").tolist()
        [0.125, 2.5]
        """
        apart = (self._as_float() - target).abs()
        near = apart < delta
        inner = near.where(apart, 0.0).square() * 0.5
        return near.where(inner, (apart - 0.5 * delta) * delta)._reduced(reduction)

    def kl_div(
        self,
        target: Self,
        reduction: Literal["mean", "batchmean", "sum", "none"] = "mean",
        log_target: bool = False,
    ) -> Self:
        """target * (log(target) - a) of log-probabilities a; "batchmean" divides by the first size.

        >>> logs = Tensor([0.5, 0.5]).log()
        >>> logs.kl_div(Tensor([0.5, 0.5]), "sum").item()
        0.0
        """
        x, target = self._as_float(), target._as_float()
        if log_target:
            loss = target.exp() * (target - x)
        else:
            some = target > 0
            logs = some.where(some.where(target, 1.0).log(), 0.0)
            loss = some.where(target * logs, 0.0) - target * x
        if reduction == "batchmean":
            return loss.sum() / (self.shape[0] if self.ndim else 1)
        return loss._reduced(reduction)


AnyTensor = TypeVar("AnyTensor", bound=Losses)


def between(below: AnyTensor, above: AnyTensor, weight: float) -> AnyTensor:
    """Linear interpolation, infinite beside infinite numbers; NaN between two of both signs."""
    infinite = below.isinf() | above.isinf()
    total = below * (1 - weight) + above * weight
    return infinite.where(total, below.lerp(above, weight))


def slopes_of_atan2(g: UOp, call: UOp) -> list[Composed]:
    """d atan2(y, x) = (x dy - y dx) / (x**2 + y**2); 0 at the origin."""
    wide = least_upper_dtype(call.dtype, dtypes.float32)  # squares overflow float16 above 255
    y, x, slope = (Composed._from_node(n).cast(wide) for n in (*call.src[1:], g))
    most = x.abs().maximum(y.abs())
    most = (most.eq(0) | most.isinf()).where(1.0, most)  # squares of less may underflow
    x, y = x / most, y / most
    origin = x.eq(0) & y.eq(0)
    scale = origin.where(1.0, (x.square() + y.square()) * most)
    slope = origin.where(0.0, slope)
    return [(part * slope / scale).cast(call.dtype) for part in (x, -y)]


def slopes_of_hypot(g: UOp, call: UOp) -> list[Composed]:
    """d hypot(a, b) = (a da + b db) / hypot(a, b)."""
    length, a, b, slope = (Composed._from_node(n) for n in (call, *call.src[1:], g))
    return [slope * (a / length), slope * (b / length)]
