"""Random numbers, drawn by tinycore's generator: `Tensor.manual_seed` makes them repeatable.

A node's own `seed` is honored by drawing from a generator of NumPy on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import named
from tiny_onnx.ops.layout import shape_of
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes
from tinycore.dtype import DType

Draw = Callable[[numpy.random.Generator, tuple[int, ...]], numpy.ndarray]


def generator(call: Call) -> numpy.random.Generator | None:
    """The generator of a node that has a seed."""
    seed = call.get("seed", None)
    if seed is None:
        return None
    return numpy.random.default_rng(int(numpy.float32(seed).view(numpy.uint32)))


def dtype_of(call: Call, default: DType) -> DType:
    """The dtype that a node asks for."""
    wanted = call.get("dtype", 0)
    return (named(wanted, str(call.node)).tensor or default) if wanted else default


def uniform(call: Call, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Numbers between two bounds."""
    low, high = call.real("low", 0.0), call.real("high", 1.0)
    drawn = generator(call)
    if drawn is not None:
        return Tensor(drawn.uniform(low, high, shape).astype(numpy.float32)).cast(dtype)
    return Tensor.uniform(*shape, low=low, high=high, device=call.run.device).cast(dtype)


def normal(call: Call, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Numbers of a normal distribution."""
    mean, scale = call.real("mean", 0.0), call.real("scale", 1.0)
    drawn = generator(call)
    if drawn is not None:
        return Tensor(drawn.normal(mean, scale, shape).astype(numpy.float32)).cast(dtype)
    return Tensor.normal(*shape, mean=mean, std=scale, device=call.run.device).cast(dtype)


@operator("RandomUniform")
def random_uniform(call: Call) -> Data:
    """Uniform numbers of a given shape."""
    return uniform(call, tuple(call.get("shape")), dtype_of(call, dtypes.float32))


@operator("RandomNormal")
def random_normal(call: Call) -> Data:
    """Normal numbers of a given shape."""
    return normal(call, tuple(call.get("shape")), dtype_of(call, dtypes.float32))


@operator("RandomUniformLike")
def random_uniform_like(call: Call) -> Data:
    """Uniform numbers of the input's shape."""
    return uniform(call, shape_of(call.data(0)), dtype_of(call, call.tensor(0).dtype))


@operator("RandomNormalLike")
def random_normal_like(call: Call) -> Data:
    """Normal numbers of the input's shape."""
    return normal(call, shape_of(call.data(0)), dtype_of(call, call.tensor(0).dtype))


@operator("Bernoulli")
def bernoulli(call: Call) -> Data:
    """Ones with the probabilities that the input gives."""
    x = call.tensor(0)
    return (uniform(call, shape_of(x), dtypes.float32) < x).cast(dtype_of(call, x.dtype))


@operator("Multinomial")
def multinomial(call: Call) -> Data:
    """Classes drawn by unnormalized log probabilities."""
    x, count = call.tensor(0), int(call.get("sample_size", 1))
    drawn = x.softmax(-1).multinomial(count, replacement=True)
    return drawn.cast(dtype_of(call, dtypes.int32))


@operator("Dropout")
def dropout(call: Call) -> tuple[Data, ...]:
    """In training zeros at random and the rest scaled up; otherwise the input. And the mask."""
    x = call.tensor(0)
    ratio = (
        call.number(1, call.real("ratio", 0.5)) if call.version >= 12 else call.real("ratio", 0.5)
    )
    is_training = bool(call.number(2, False)) if call.version >= 12 else False
    if call.version < 7:
        is_training = not call.get("is_test", 0)
    if not is_training or ratio == 0:
        return x, Tensor.full(tuple(x.shape), True, dtype=dtypes.bool, device=x.device)
    kept = uniform(call, shape_of(x), dtypes.float32) >= ratio
    return (kept.where(x, 0) / (1 - ratio)).cast(x.dtype), kept
