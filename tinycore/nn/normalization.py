"""Normalization layers.

Floor 6. Imports the public API, the settings and the errors.
"""

from __future__ import annotations

import math

from tinycore import Tensor, dtypes
from tinycore.config import settings
from tinycore.dtype import DType, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.initializers import neutral_affine, positive_sizes, verify_input

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LayerNorm2d",
    "RMSNorm",
]


class BatchNorm:
    """Batch normalization (https://arxiv.org/abs/1502.03167): x (N, C, ...) -> the same shape.

    Each channel is normalized by its mean and variance: in training those of the batch, which also
    move the running ones by `momentum`, else the running ones. The running variance is that of the
    population. With `affine`, weight and bias (C,) follow. Training is `Context(TRAINING=1)`.
    Statistics are float32 at least, and do not widen the result: it has the dtype of `x`, or a
    wider one of the weight.

    Raises ArgumentError unless `sz` is positive, ShapeError when `x` has no channel axis or other
    channels.

    >>> layer, x = nn.BatchNorm(2), Tensor([[1.0, 10.0], [3.0, 30.0]])
    >>> with Tensor.train():
    ...     layer(x).numpy().round(2)
    array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)
    >>> layer.running_mean.numpy().round(2)
    array([0.2, 2. ], dtype=float32)
    """

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        positive_sizes("BatchNorm", sz=sz)
        self._channels, self.eps, self.momentum = sz, eps, momentum
        self.weight, self.bias = neutral_affine(affine, sz)
        self.num_batches_tracked = _statistic(Tensor.zeros(dtype=dtypes.int64))
        self.track_running_stats = track_running_stats
        if track_running_stats:  # as if one batch of mean 0 and variance 1 had been seen
            self.running_mean, self.running_var = map(_statistic, _standard_moments(sz))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize; in training also note the batch's statistics."""
        verify_input(self, x)
        if x.ndim < 2 or x.shape[1] != self._channels:
            raise ShapeError(f"BatchNorm of {self._channels} channels cannot take {x.shape}")
        if self.track_running_stats and not settings.TRAINING:
            mean, variance = self.running_mean, self.running_var
        else:
            mean, variance = self.calc_stats(x)
        if self.track_running_stats and settings.TRAINING:
            self._track(x, mean.detach(), variance.detach())
        normal = x.batchnorm(self.weight, self.bias, mean, (variance + self.eps).rsqrt())
        return normal.cast(_widest(x, self.weight, self.bias))

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (C,) of the batch, in float32 at least."""
        others = tuple(axis for axis in range(x.ndim) if axis != 1)
        x = _precise(x)
        mean = x.mean(axis=others)
        # mean((x - m)**2) - (mean(x) - m)**2 is the variance for any m; with the mean as m no
        # gradient need flow through the great tensor's mean, and second derivatives are right
        fixed = mean.detach()
        centered = x - fixed.reshape(1, -1, *[1] * (x.ndim - 2))
        return mean, centered.square().mean(axis=others) - (mean - fixed).square()

    def _track(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        count = x.numel() // self._channels
        if count < 2:
            raise ShapeError(f"BatchNorm needs two values per channel to train, {x.shape} has one")
        population = variance * (count / (count - 1))
        self.running_mean.assign(_moved(self.running_mean, mean, self.momentum))
        self.running_var.assign(_moved(self.running_var, population, self.momentum))
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)


BatchNorm2d = BatchNorm3d = BatchNorm


def _standard_moments(size: int) -> tuple[Tensor, Tensor]:
    return Tensor.zeros(size), Tensor.ones(size)


def _precise(x: Tensor) -> Tensor:
    """The input in float32 at least."""
    return x.cast(least_upper_dtype(x.dtype, dtypes.float32))


def _widest(x: Tensor, *weights: Tensor | None) -> DType:
    """The dtype of a layer's result, whichever it computes in."""
    return least_upper_dtype(x.dtype, *[w.dtype for w in weights if w is not None])


def _statistic(tensor: Tensor) -> Tensor:
    """State that is loaded and saved but not trained."""
    return tensor.is_param_(False)


def _moved(running: Tensor, seen: Tensor, momentum: float) -> Tensor:
    return ((1 - momentum) * running + momentum * seen).cast(running.dtype)


class GroupNorm:
    """Group normalization (https://arxiv.org/abs/1803.08494): x (N, C, ...) -> the same shape.

    The channels of one sample are normalized in `num_groups` groups. With `affine`, weight and bias
    (C,) follow. Raises ArgumentError when the groups do not divide the channels, ShapeError when
    `x` has other channels.

    >>> x = Tensor([[[1.0], [3.0], [10.0], [30.0]]])
    >>> nn.GroupNorm(2, 4)(x).flatten().numpy().round(2)
    array([-1.,  1., -1.,  1.], dtype=float32)
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        positive_sizes(type(self).__name__, num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(f"{num_groups} groups do not divide {num_channels} channels")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight, self.bias = neutral_affine(affine, num_channels)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize every group of every sample."""
        verify_input(self, x)
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            name = type(self).__name__
            raise ShapeError(f"{name} of {self.num_channels} channels cannot take {x.shape}")
        size = math.prod(x.shape[1:]) // self.num_groups
        groups = x.reshape(x.shape[0], self.num_groups, size)
        normal = groups.layernorm(eps=self.eps).reshape(x.shape)
        if self.weight is None or self.bias is None:
            return normal
        per_channel = (1, -1, *[1] * (x.ndim - 2))
        return normal * self.weight.reshape(per_channel) + self.bias.reshape(per_channel)


class InstanceNorm(GroupNorm):
    """Instance normalization (https://arxiv.org/abs/1607.08022): every channel is its own group.

    >>> x = Tensor([[[1.0, 3.0], [10.0, 30.0]]])
    >>> nn.InstanceNorm(2)(x).numpy().round(2)
    array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine)
        self.num_features = num_features


class LayerNorm:
    """Layer normalization (https://arxiv.org/abs/1607.06450) over the last axes.

    x (..., *normalized_shape) -> the same shape; weight and bias have `normalized_shape`.
    Raises ShapeError when the last axes of `x` differ from it.

    >>> nn.LayerNorm(2)(Tensor([[1.0, 3.0], [10.0, 30.0]])).numpy().round(2)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        for size in shape:
            positive_sizes(type(self).__name__, normalized_shape=size)
        if not shape:
            raise ArgumentError(f"{type(self).__name__}: normalized_shape has no axes")
        self.normalized_shape, self.eps = tuple(shape), eps
        self.axis = tuple(range(-len(shape), 0))
        self.weight, self.bias = neutral_affine(elementwise_affine, *shape)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize over the last axes."""
        verify_input(self, x)
        if x.shape[-len(self.axis) :] != self.normalized_shape:
            name = type(self).__name__
            raise ShapeError(f"{name} over {self.normalized_shape} cannot take {x.shape}")
        normal = x.layernorm(axis=self.axis, eps=self.eps)
        if self.weight is None or self.bias is None:
            return normal
        return normal * self.weight + self.bias


class LayerNorm2d(LayerNorm):
    """Layer normalization over the channels of an image: x (N, C, H, W) -> the same shape.

    >>> nn.LayerNorm2d(3)(Tensor.zeros(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize every pixel over its channels. Raises ShapeError when `x` is no image."""
        verify_input(self, x)
        if x.ndim != 4 or x.shape[1:2] != self.normalized_shape:
            channels = ", ".join(map(str, self.normalized_shape))
            raise ShapeError(f"LayerNorm2d takes (N, {channels}, H, W), not {x.shape}")
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm:
    """Root-mean-square normalization (https://arxiv.org/abs/1910.07467) over the last axis.

    x (..., dim) -> the same shape: x / sqrt(mean(x**2) + eps), computed in float32 at least and
    given back in the dtype of `x`, times weight (dim,).
    Raises ArgumentError unless `dim` is positive, ShapeError when the last axis of `x` differs.

    >>> nn.RMSNorm(2)(Tensor([[3.0, 4.0]])).numpy().round(4)
    array([[0.8485, 1.1314]], dtype=float32)
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        positive_sizes("RMSNorm", dim=dim)
        self._size, self.eps = dim, eps
        self.weight, _ = neutral_affine(elementwise_affine, dim)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize over the last axis."""
        verify_input(self, x)
        if x.shape[-1:] != (self._size,):
            raise ShapeError(f"RMSNorm over {self._size} values cannot take {x.shape}")
        precise = _precise(x)
        scale = (precise.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        normal = (precise * scale).cast(x.dtype)
        return normal if self.weight is None else normal * self.weight
