"""Convolution, pooling and resizing over any number of spatial axes, and normalization.

Floor 5. Windows are an expanded axis per spatial axis and Op.SKEW; a transposed convolution is
Op.UNSKEW. Padding is an int, one per spatial axis, or (before, after) pairs flat with the last axis
first, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, overload

from tinycore._deferred import numpy
from tinycore.config import settings
from tinycore.dtype import DTypeLike, dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import Ints, counter_dtype, resolve_axes, same_device, same_size
from tinycore.tensor.graph import Pair
from tinycore.tensor.methods.linalg import Linalg
from tinycore.tensor.methods.pixels import product_operands
from tinycore.tensor.methods.templates import templated
from tinycore.uop.node import Skew, UOp
from tinycore.uop.op import Op


class Windows(Linalg):
    """Convolution, pooling and resizing: windows that slide over spatial axes."""

    __slots__ = ()

    def _windows(self, kernel: Sequence[int], stride: Ints = 1, dilation: Ints = 1) -> Self:
        """Windows sliding over the last axes: (.., o1 .., k1 ..). Raises ShapeError if none fit."""
        rank = len(kernel)
        strides, dilations = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
        node, first = self.uop, self.ndim - rank
        for i, (size, step, gap) in enumerate(zip(kernel, strides, dilations, strict=True)):
            if size < 1 or step < 1 or gap < 1 or gap * (size - 1) + 1 > self.shape[first + i]:
                raise ShapeError(
                    f"window: size {tuple(kernel)} with stride {strides} and dilation {dilations} "
                    f"does not fit shape {self.shape}"
                )
            node = graph.windows(node, first + i, size, step, gap)
        return self._from_node(node)

    @templated
    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Ints = 1,
        dilation: Ints = 1,
        padding: Ints = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """Cross-correlation over the spatial axes of the weight (one, two, three or more).

        x (N, C, H, W), weight (O, C/groups, kH, kW), bias (O) -> (N, O, H', W'),
        H' = (H + padding - dilation*(kH - 1) - 1)//stride + 1. Narrow floats are accumulated in
        float32, or `dtype`. Raises ShapeError when channels do not fit the groups or a window the
        padded image.

        >>> Tensor([[[[1, 2, 3], [4, 5, 6]]]]).conv2d(Tensor([[[[1, 1], [0, -1]]]])).tolist()
        [[[[-2, -1]]]]
        """
        rank = self._spatial_rank("conv2d", weight)
        batch, channels = self.shape[:2]
        outputs, inner, *kernel = weight.shape
        of_groups = "" if groups == 1 else f"{groups} groups of "
        what = f"channels of the image and those of {of_groups}the weight"
        same_size("conv2d", what, channels, inner * groups, self.shape, weight.shape)
        if groups < 1 or outputs % groups:
            raise ShapeError(
                f"conv2d: {outputs} output channels cannot be cut into {groups} groups"
            )
        pads = [(0, 0), (0, 0), *spatial_padding("conv2d", padding, rank)]
        x = self._pad_constant(pads, 0)._windows(kernel, stride, dilation)
        sizes = x.shape[2 : 2 + rank]
        if settings.IMAGE:
            extents = (batch, outputs, *sizes, inner, *kernel)
            kept, weight = product_operands((self, weight), extents)
            x = kept._pad_constant(pads, 0)._windows(kernel, stride, dilation)
        x = x.reshape((batch, groups, 1, inner, *sizes, *kernel))
        spatial = range(4, 4 + rank)
        x = x.permute([0, 1, 2, *spatial, 3, *range(4 + rank, 4 + 2 * rank)])
        w = weight.reshape((1, groups, outputs // groups, *[1] * rank, inner, *kernel))
        result = x._product_sum([w], range(-rank - 1, 0), dtype).reshape((batch, outputs, *sizes))
        return result if bias is None else result + bias.reshape((1, -1, *[1] * rank))

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Ints = 1,
        dilation: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
    ) -> Self:
        """The adjoint of `conv2d`: every input element spreads a weighted kernel.

        x (N, C, H, W), weight (C, O/groups, kH, kW) -> (N, O, H', W'),
        H' = (H - 1)*stride - padding + dilation*(kH - 1) + output_padding + 1.

        >>> Tensor([[[[1, 2]]]]).conv_transpose2d(Tensor([[[[1, 10]]]]), stride=2).tolist()
        [[[[1, 10, 2, 20]]]]
        """
        rank = self._spatial_rank("conv_transpose2d", weight)
        batch, channels = self.shape[:2]
        _, outer, *kernel = weight.shape
        same_size(
            "conv_transpose2d", "channels", weight.shape[0], channels, self.shape, weight.shape
        )
        if groups < 1 or channels % groups:
            raise ShapeError(
                f"conv_transpose2d: {channels} channels cannot be cut into {groups} groups"
            )
        inner = channels // groups
        w = weight.reshape((1, groups, inner, outer, *[1] * rank, *kernel))
        x = self.reshape((batch, groups, inner, 1, *self.shape[2:], *[1] * rank))
        node = x._product_sum([w], [2], None).uop  # (N, groups, outer, *spatial, *kernel)
        summed = self._from_node(overlapped(node, rank, stride, dilation))
        extra = per_axis("output_padding", output_padding, rank)
        pads = spatial_padding("conv_transpose2d", padding, rank)
        trims = [(-a, e - b) for (a, b), e in zip(pads, extra, strict=True)]
        if any(n + a + b < 0 for n, (a, b) in zip(summed.shape[3:], trims, strict=True)):
            raise ShapeError(
                f"conv_transpose2d: padding {pads} takes away more than the result of shape "
                f"{summed.shape[3:]} has"
            )
        result = summed.reshape((batch, groups * outer, *summed.shape[3:]))._pad_constant(
            [(0, 0), (0, 0), *trims], 0
        )
        return result if bias is None else result + bias.reshape((1, -1, *[1] * rank))

    def _spatial_rank(self, name: str, weight: Self) -> int:
        """Number of axes that a convolution slides over. Raises ShapeError or DeviceError."""
        rank = weight.ndim - 2
        if rank < 1 or self.ndim != rank + 2:
            raise ShapeError(
                f"{name}: an image of shape {self.shape} and a weight of shape {weight.shape}"
            )
        same_device(name, [self.device, weight.device])
        return rank

    # --- pooling

    @templated
    def avg_pool2d(
        self,
        kernel_size: Ints = (2, 2),
        stride: Ints | None = None,
        dilation: Ints = 1,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """Averages of windows over the last axes, one axis per entry of `kernel_size`.

        With `ceil_mode` a last window may hang over the end. Padded zeros count unless
        `count_include_pad` is false; what hangs over never counts.
        """
        kernel, pads = self._pooling("avg_pool2d", kernel_size, padding)
        stride = kernel if stride is None else stride
        x = self._as_float()
        hanging = x._overhang(kernel, stride, dilation, pads) if ceil_mode else pads
        inside = range(-len(kernel), 0)
        total = x._padded_windows(kernel, stride, dilation, hanging, 0).sum(inside)
        if not any(a or b for a, b in hanging) or (count_include_pad and hanging == pads):
            return total / float(math.prod(kernel))
        ones = x.const_like(1.0)
        if count_include_pad:
            ones = ones._pad_constant([(0, 0)] * (self.ndim - len(kernel)) + pads, 1.0)
            hanging = [(c - a, d - b) for (a, b), (c, d) in zip(pads, hanging, strict=True)]
        return total / ones._padded_windows(kernel, stride, dilation, hanging, 0).sum(inside)

    @overload
    def max_pool2d(
        self,
        kernel_size: Ints = ...,
        stride: Ints | None = ...,
        dilation: Ints = ...,
        padding: Ints = ...,
        ceil_mode: bool = ...,
        return_indices: Literal[False] = ...,
    ) -> Self: ...

    @overload
    def max_pool2d(
        self,
        kernel_size: Ints = ...,
        stride: Ints | None = ...,
        dilation: Ints = ...,
        padding: Ints = ...,
        ceil_mode: bool = ...,
        *,
        return_indices: Literal[True],
    ) -> tuple[Self, Self]: ...

    def max_pool2d(
        self,
        kernel_size: Ints = (2, 2),
        stride: Ints | None = None,
        dilation: Ints = 1,
        padding: Ints = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """Maxima of windows over the last axes, one axis per entry of `kernel_size`.

        With `return_indices` also where they stand, counted over the pooled axes of the input.

        >>> x = Tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
        >>> values, places = x.max_pool2d(return_indices=True)
        >>> places.tolist(), values.max_unpool2d(places).tolist(), x.avg_pool2d().tolist()
        ([[5, 7]], [[0, 0, 0, 0], [0, 6, 0, 8]], [[3.5, 5.5]])
        """
        kernel, pads = self._pooling("max_pool2d", kernel_size, padding)
        stride = kernel if stride is None else stride
        if ceil_mode:
            pads = self._overhang(kernel, stride, dilation, pads)
        rank = len(kernel)
        axes = list(range(self.ndim, self.ndim + rank))
        values = self._padded_windows(kernel, stride, dilation, pads, dtypes.min(self.dtype))
        best = values.max(axes)
        if not return_indices:
            return best
        spatial = self.shape[self.ndim - rank :]
        kind = counter_dtype(math.prod(spatial))
        numbers = self._from_node(graph.arange(math.prod(spatial), kind, self.device))
        places = numbers.reshape(spatial)._padded_windows(
            kernel, stride, dilation, pads, int(dtypes.max(kind))
        )
        top = best.reshape((*best.shape, *[1] * rank))
        stands = values.eq(top)
        if dtypes.is_float(self.dtype):
            stands = stands | (values.isnan() & top.isnan())
        return best, stands.where(places, math.prod(spatial)).min(axes)

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Ints = (2, 2),
        stride: Ints | None = None,
        dilation: Ints = 1,
        padding: Ints = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:
        """Elements put back at the places that `max_pool2d` found, zeros elsewhere.

        An index outside the result is left out; where several are equal the last one wins.
        """
        kernel, pads = self._pooling("max_unpool2d", kernel_size, padding)
        rank = len(kernel)
        steps, gaps = (
            per_axis("stride", kernel if stride is None else stride, rank),
            per_axis("dilation", dilation, rank),
        )
        spatial = self.shape[self.ndim - rank :]
        sizes = [
            (n - 1) * s - a - b + g * (k - 1) + 1
            for n, s, (a, b), g, k in zip(spatial, steps, pads, gaps, kernel, strict=True)
        ]
        sizes = sizes if output_size is None else list(output_size)[-rank:]
        outer = self.shape[: self.ndim - rank]
        empty = self._from_node(graph.full((*outer, math.prod(sizes)), self.dtype, 0, self.device))
        flat = (*outer, math.prod(spatial))
        filled = empty.scatter(-1, indices.reshape(flat), self.reshape(flat))
        return filled.reshape((*outer, *sizes))

    def _pooling(self, name: str, kernel_size: Ints, padding: Ints) -> tuple[list[int], list[Pair]]:
        """The window and the padding of a pooling. Raises ShapeError for too few axes."""
        kernel = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
        if not 0 < len(kernel) <= self.ndim:
            raise ShapeError(
                f"{name}: a window over {len(kernel)} axes in a tensor of shape {self.shape}"
            )
        return kernel, spatial_padding(name, padding, len(kernel))

    def _padded_windows(
        self, kernel: Sequence[int], stride: Ints, dilation: Ints, pads: list[Pair], value: Any
    ) -> Self:
        """Windows over the last axes after padding them with `value`."""
        node = graph.pad_with(self.uop, [(0, 0)] * (self.ndim - len(kernel)) + pads, value)
        return self._from_node(node)._windows(kernel, stride, dilation)

    def _overhang(
        self, kernel: Sequence[int], stride: Ints, dilation: Ints, pads: list[Pair]
    ) -> list[Pair]:
        """The padding with which a last window that starts inside the image fits."""
        rank = len(kernel)
        result = []
        for i, (step, gap) in enumerate(
            zip(per_axis("stride", stride, rank), per_axis("dilation", dilation, rank), strict=True)
        ):
            (before, after), size = pads[i], self.shape[self.ndim - rank + i]
            span = gap * (kernel[i] - 1) + 1
            count = -(-(size + before + after - span) // step) + 1
            if (count - 1) * step >= size + before:
                count -= 1
            result.append((before, max(after, (count - 1) * step + span - size - before)))
        return result

    # --- resizing

    def interpolate(
        self, size: Sequence[int], mode: str = "linear", align_corners: bool = False
    ) -> Self:
        """The last axes resized to `size`, by "linear", "nearest" or "nearest-exact" choice.

        Pixels are squares whose corners (or, with `align_corners`, whose outermost centers) agree.
        Integers become floats between two of them, but uint8 stays uint8: by weights of 16 bits,
        rounded after each axis, the last one first, as in torch.

        Raises ArgumentError for another mode, ShapeError for more sizes than axes.

        >>> Tensor([0.0, 4.0]).interpolate((4,)).tolist()
        [0.0, 1.0, 3.0, 4.0]
        """
        if mode not in ("linear", "nearest", "nearest-exact"):
            raise ArgumentError(f"interpolate: mode {mode!r} is not linear, nearest, nearest-exact")
        if not 0 < len(size) <= self.ndim or min(*size, *self.shape[-len(size) :]) < 1:
            raise ShapeError(f"interpolate: sizes {tuple(size)} for a tensor of shape {self.shape}")
        x = self
        for axis, count in reversed([*enumerate(size, self.ndim - len(size))]):
            x = x._resized(axis, count, mode, align_corners)
        return x

    def _resized(self, axis: int, count: int, mode: str, align_corners: bool) -> Self:
        """One axis resized."""
        old, steps = self.shape[axis], numpy.arange(count)
        if mode != "linear":
            half = mode == "nearest-exact"  # of a pixel further on; in integers, to be exact
            return self._rows(axis, (2 * steps + half) * old // (2 * count))
        if align_corners:
            place = steps * ((old - 1) / max(1, count - 1))
        else:
            place = numpy.clip((steps + 0.5) * (old / count) - 0.5, 0, old - 1)
        shape = [count if a == axis else 1 for a in range(self.ndim)]
        share = place - numpy.floor(place)
        if self.dtype is dtypes.uint8:
            return self._blended(axis, place, share.reshape(shape))
        x = self._as_float()
        part = type(self)(share, self.device, x.dtype).reshape(shape)
        return x._rows(axis, place).lerp(x._rows(axis, numpy.ceil(place)), part)

    def _blended(
        self, axis: int, place: numpy.ndarray[Any, Any], share: numpy.ndarray[Any, Any]
    ) -> Self:
        """Bytes between two neighbors by weights of 16 bits, which is how torch and Pillow do it:
        their greatest one has 15 bits.
        """
        most = max(share.max(), (1 - share).max())
        bits = next(n for n in range(24) if int(most * 2 ** (n + 1) + 0.5) >= 1 << 15)
        near, far = (
            type(self)(numpy.floor(weight * 2**bits + 0.5).astype("int32"), self.device)
            for weight in (1 - share, share)
        )
        wide = self.cast(dtypes.int32)
        total = wide._rows(axis, place) * near + wide._rows(axis, numpy.ceil(place)) * far
        return ((total + (1 << bits - 1)) >> bits).cast(self.dtype)

    def _rows(self, axis: int, places: numpy.ndarray[Any, Any]) -> Self:
        """The elements at the whole parts of some places along an axis."""
        index = type(self)(places.astype(numpy.int64), self.device, counter_dtype(self.shape[axis]))
        return self[(slice(None),) * axis + (index,)]

    # --- normalization

    @templated
    def batchnorm(
        self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: Ints = 1
    ) -> Self:
        """(x - mean) * invstd * weight + bias, all of them running along `axis`."""
        axes = resolve_axes("batchnorm", axis, self.ndim)
        shape = [n if a in axes else 1 for a, n in enumerate(self.shape)]
        x = self - mean.reshape(shape)
        if weight is not None:
            x = x * weight.reshape(shape)
        scale = invstd.reshape(shape) if invstd.ndim == len(axes) else invstd
        x = x * scale
        return x if bias is None else x + bias.reshape(shape)

    @templated
    def layernorm(self, axis: Ints = -1, eps: float = 1e-5) -> Self:
        """Elements with mean 0 and variance 1 along axes; computed in float32 at least."""
        x = self._as_float()
        wide = x.cast(least_upper_dtype(x.dtype, dtypes.float32))
        centered = wide - wide.mean(axis, keepdim=True)
        variance = centered.square().mean(axis, keepdim=True)
        return (centered * (variance + eps).rsqrt()).cast(x.dtype)


def overlapped(x: UOp, rank: int, stride: Ints, dilation: Ints) -> UOp:
    """Windows (.., o1 .., k1 ..) added up where they slide to: the adjoint of `windows`."""
    steps, gaps = per_axis("stride", stride, rank), per_axis("dilation", dilation, rank)
    inside = range(len(x.shape) - rank, len(x.shape))
    found = graph.widened(x)  # rounded once, after all axes
    for step, gap, window in zip(steps, gaps, inside, strict=True):
        axis = window - rank
        size = (x.shape[axis] - 1) * step + gap * (x.shape[window] - 1) + 1
        found = graph.fold(
            graph.unskew(found, Skew(axis, window, step, gap, size)), Op.ADD, [window]
        )
    return graph.drop_axes(found, inside).cast(x.dtype)


def per_axis(name: str, value: Ints, rank: int) -> list[int]:
    """One number for each axis. Raises ArgumentError when there are too many or too few."""
    values = [value] * rank if isinstance(value, int) else list(value)
    if len(values) != rank:
        raise ArgumentError(f"{name}: {tuple(values)} for {rank} spatial axes")
    if min(values) < (name != "output_padding"):
        raise ArgumentError(f"{name}: must be positive on every axis, got {tuple(values)}")
    return values


def spatial_padding(name: str, padding: Ints, rank: int) -> list[Pair]:
    """(before, after) for each spatial axis, from any spelling."""
    values = [padding] * rank if isinstance(padding, int) else list(padding)
    if len(values) == rank:
        return [(p, p) for p in values]
    if len(values) != 2 * rank:
        raise ArgumentError(f"{name}: padding {tuple(values)} for {rank} spatial axes")
    return list(zip(values[::2], values[1::2], strict=True))[::-1]
