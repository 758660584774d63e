"""Operators that center and scale elements by statistics."""

from __future__ import annotations

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, widened
from tinycore import Tensor, dtypes


def along(x: Tensor, rank: int, axis: int = 1) -> Tensor:
    """A vector laid along an axis of tensors of a rank."""
    shape = [1] * rank
    shape[axis] = -1
    return x.reshape(*shape)


@operator("BatchNormalization")
def batch_normalization(call: Call) -> Data | tuple[Data, ...]:
    """Channels normalized by running statistics, or in training by those of the batch."""
    given, held = call.tensor(0).dtype, call.tensor(3).dtype
    x = widened(call.tensor(0))  # a mean of float16 by its factor may be infinite
    scale, bias, mean, variance = (
        along(widened(call.tensor(index)), x.ndim) for index in range(1, 5)
    )
    epsilon = call.real("epsilon", 1e-5)
    is_training = (
        call.get("training_mode", 0)
        if call.version >= 14
        else (call.version < 7 and not call.get("is_test", 0))
    )
    if not is_training:
        factor = call.kept("factor", (1, 4), lambda: scale / (variance + epsilon).sqrt())
        added = call.kept("added", (1, 2, 3, 4), lambda: bias - mean * factor)
        return (x * factor + added).cast(given)
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    momentum = call.real("momentum", 0.9)
    now, spread = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, correction=0)
    result = (scale * (x - now) / (spread + epsilon).sqrt() + bias).cast(given)
    return (
        result,
        (mean * momentum + now * (1 - momentum)).reshape(-1).cast(held),
        (variance * momentum + spread * (1 - momentum)).reshape(-1).cast(held),
    )


@operator("InstanceNormalization")
def instance_normalization(call: Call) -> Data:
    """Each channel of each image normalized by itself."""
    given = call.tensor(0)
    x, axes = widened(given), tuple(range(2, given.ndim))
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, correction=0)
    scaled = ((x - mean) / (variance + call.real("epsilon", 1e-5)).sqrt()).cast(given.dtype)
    return along(call.tensor(1), x.ndim) * scaled + along(call.tensor(2), x.ndim)


def stashed(call: Call, x: Tensor) -> Tensor:
    """A tensor in the dtype in which its mean and deviation are taken."""
    return x.cast(dtypes.float32) if call.get("stash_type", 1) == 1 else x


@operator("LayerNormalization")
def layer_normalization(call: Call) -> Data | tuple[Data, ...]:
    """Last axes normalized; mean and inverse deviation are further outputs."""
    x = call.tensor(0)
    axes = tuple(range(call.axis("axis", x.ndim, -1), x.ndim))
    held = stashed(call, x)
    mean = held.mean(axes, keepdim=True)
    centered = held - mean
    inverse = (centered.square().mean(axes, keepdim=True) + call.real("epsilon", 1e-5)).rsqrt()
    result = (centered * inverse).cast(x.dtype) * call.tensor(1)
    if call.has(2):
        result = result + call.tensor(2)
    return result, mean, inverse


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def root_mean_square(call: Call) -> Data:
    """Last axes divided by the root of their mean square (Zhang and Sennrich, 2019)."""
    x = call.tensor(0)
    axes = tuple(range(call.axis("axis", x.ndim, -1), x.ndim))
    held = stashed(call, x)
    inverse = (held.square().mean(axes, keepdim=True) + call.real("epsilon", 1e-5)).rsqrt()
    return (held * inverse).cast(x.dtype) * call.tensor(1)


@operator("LRN")
def local_response(call: Call) -> Data:
    """Elements divided by a power of the squares of channels nearby (Krizhevsky et al., 2012)."""
    given, size = call.tensor(0), int(call.get("size"))
    x = widened(given)
    channels = int(x.shape[1])  # beyond which there is nothing, however large the size
    near = min(size, 2 * channels)
    pairs = (0, 0), ((near - 1) // 2, near // 2), *[(0, 0)] * (x.ndim - 2)
    squares = x.square().pad(pairs)
    bounds = [(0, int(side)) for side in x.shape]
    total = x.zeros_like()
    for begin in range(near):
        bounds[1] = (begin, begin + channels)
        total = total + squares.shrink(tuple(bounds))
    base = call.real("bias", 1.0) + call.real("alpha", 1e-4) / size * total
    return (x / base.pow(call.real("beta", 0.75))).cast(given.dtype)


@operator("LpNormalization")
def norm(call: Call) -> Data:
    """An axis divided by its 1-norm or 2-norm; zeros stay."""
    given = call.tensor(0)
    x = widened(given)
    axis = call.axis("axis", x.ndim, -1)
    if call.get("p", 2) == 1:
        length = x.abs().sum(axis, keepdim=True)
    else:
        length = x.square().sum(axis, keepdim=True).sqrt()
    return (length == 0).where(x.zeros_like(), x / length).cast(given.dtype)


@operator("GroupNormalization")
def group_normalization(call: Call) -> Data:
    """Groups of channels normalized (Wu and He, 2018). Scales are of groups before version 21."""
    x, count = call.tensor(0), int(call.get("num_groups"))
    held = stashed(call, x)
    grouped = held.reshape(int(x.shape[0]), count, -1)
    mean = grouped.mean(-1, keepdim=True)
    inverse = (
        (grouped - mean).square().mean(-1, keepdim=True) + call.real("epsilon", 1e-5)
    ).rsqrt()
    scaled = ((grouped - mean) * inverse).reshape(*x.shape).cast(x.dtype)
    scale, bias = call.tensor(1), call.tensor(2)
    if call.version < 21:
        each = int(x.shape[1]) // count
        scale, bias = scale.repeat_interleave(each, 0), bias.repeat_interleave(each, 0)
    return scaled * along(scale, x.ndim) + along(bias, x.ndim)


@operator("MeanVarianceNormalization")
def mean_variance(call: Call) -> Data:
    """Axes centered and divided by their deviation."""
    given = call.tensor(0)
    x, axes = widened(given), tuple(call.get("axes", [0, 2, 3]))
    centered = x - x.mean(axes, keepdim=True)
    deviation = centered.square().mean(axes, keepdim=True).sqrt()
    return (centered / (deviation + 1e-9)).cast(given.dtype)
