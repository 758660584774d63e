"""Operators between floats and small integers: scales, zeros, blocks, sums in int32."""

from __future__ import annotations

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import Element, element_of, held_as, named
from tiny_onnx.ops.elementwise import SMALL_INTEGERS, largest, saturated
from tiny_onnx.ops.products import convolved, groups, shape_of_windows
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, as_tensor
from tinycore import Tensor, dtypes


def laid(call: Call, parameter: Tensor, x: Tensor) -> Tensor:
    """A scale or zero beside what it belongs to: of all, of an axis, or of blocks of an axis."""
    if parameter.numel() == 1:
        return parameter.reshape(*[1] * x.ndim)
    axis = call.axis("axis", x.ndim, 1)
    block = int(call.get("block_size", 0))
    if block:
        repeated = parameter.repeat_interleave(block, axis)
        return repeated.shrink(
            tuple((0, min(int(s), int(t))) for s, t in zip(repeated.shape, x.shape, strict=True))
        )
    if parameter.ndim == 1:
        shape = [1] * x.ndim
        shape[axis] = -1
        return parameter.reshape(*shape)
    return parameter


def bounds(element: Element) -> tuple[int, int]:
    """The least and greatest number of an integer type."""
    if element.name in SMALL_INTEGERS:
        bits, is_signed = SMALL_INTEGERS[element.name]
        return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    assert element.tensor is not None
    return int(dtypes.min(element.tensor)), int(dtypes.max(element.tensor))


def quantized(x: Tensor, zero: Tensor | int, element: Element) -> Tensor:
    """Numbers, which are divided by their scale already, rounded to even and moved by the zero."""
    low, high = bounds(element)
    assert element.tensor is not None
    return (x.round() + zero).clip(low, high).cast(element.tensor)


@operator("QuantizeLinear")
def quantize(call: Call) -> Data:
    """Floats as small numbers: x / scale rounded, plus a zero, within the type's bounds."""
    x = call.tensor(0)
    element = target(call)
    scale = laid(call, call.tensor(1), x)
    precise = call.get("precision", 0)
    held = named(precise, str(call.node)).tensor if precise else scale.dtype
    if held in (dtypes.float16, dtypes.bfloat16) and not precise:
        held = dtypes.float32
    ratio = x.cast(held or dtypes.float32) / scale.cast(held or dtypes.float32)
    if element.name == "float4e2m1":
        return call_host_cast(ratio, element)
    assert element.tensor is not None
    if element.tensor in dtypes.fp8s:
        if call.get("saturate", 1):
            ratio = saturated(ratio, largest(element))
        return ratio.cast(element.tensor)
    zero: Tensor | int = 0
    if call.has(2):
        zero = laid(call, call.tensor(2), x).cast(ratio.dtype)
    return quantized(ratio, zero, element)


def call_host_cast(x: Tensor, element: Element) -> Data:
    """A tensor rounded to a type that only NumPy has."""
    return x.numpy().astype(element.array)


def target(call: Call) -> Element:
    """The type that a node quantizes to: of its zero, by its attribute, or uint8."""
    if call.has(2):
        data = call.data(2)
        if isinstance(data, numpy.ndarray):
            return element_of(data)
        assert isinstance(data, Tensor)
        return held_as(data.dtype)
    return named(int(call.get("output_dtype", 0)) or 2, str(call.node))


@operator("DequantizeLinear")
def dequantize(call: Call) -> Data:
    """Floats from small numbers: (x - zero) * scale."""
    x, scale = call.tensor(0), call.tensor(1)
    wanted = call.get("output_dtype", 0)
    dtype = named(wanted, str(call.node)).tensor if wanted else scale.dtype
    held = dtypes.float32 if x.dtype in dtypes.fp8s else x.dtype
    value = x.cast(held)
    if call.has(2) and not x.is_floating_point():
        wide = dtypes.int32
        value = value.cast(wide) - laid(call, call.tensor(2), x).cast(wide)
    return (value.cast(scale.dtype) * laid(call, scale, x)).cast(dtype or scale.dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> tuple[Data, ...]:
    """uint8 with a scale and a zero that fit the range of the input, which includes zero."""
    x = call.tensor(0)
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    safe = (scale == 0).where(1, scale)
    zero = (0 - low / safe).round().clip(0, 255)
    y = ((x / safe).round() + zero).clip(0, 255).cast(dtypes.uint8)
    return y, scale, zero.cast(dtypes.uint8)


@operator("QLinearMatMul")
@operator("QLinearMatMul", domain="com.microsoft")
def quantized_matmul(call: Call) -> Data:
    """Products of quantized matrices, quantized again."""
    first, second = call.tensor(0), call.tensor(3)
    left, right = (call.tensor(index) for index in (1, 4))
    zero_left, zero_right = (call.tensor(index).cast(dtypes.int32) for index in (2, 5))
    if zero_left.ndim == 1 and zero_left.numel() > 1:
        zero_left, left = zero_left.unsqueeze(-1), left.unsqueeze(-1)
    total = (first.cast(dtypes.int32) - zero_left).matmul(second.cast(dtypes.int32) - zero_right)
    return rescaled(call, total, left * right)


def requantized(call: Call, ratio: Tensor, at: int) -> Tensor:
    """Numbers over the scale that is input `at`, in the type of the zero after it, else uint8."""
    zero = call.tensor(at + 1) if call.has(at + 1) else call.constant(0, dtypes.uint8)
    return quantized(ratio, zero.cast(dtypes.float32), held_as(zero.dtype))


def rescaled(call: Call, total: Tensor, scale: Tensor) -> Tensor:
    """Sums in int32 of products that have this scale, as numbers of the scale that is input 6."""
    ratio = total.cast(dtypes.float32) * (scale / call.tensor(6)).cast(dtypes.float32)
    return requantized(call, ratio, 6)


@operator("QLinearConv")
def quantized_convolution(call: Call) -> Data:
    """Convolutions of quantized images, quantized again."""
    x, weight = call.tensor(0), call.tensor(3)
    scale_x, scale_w = call.tensor(1), call.tensor(4)
    zero_w = call.tensor(5).cast(dtypes.int32)
    rank = weight.ndim
    if zero_w.numel() > 1:
        zero_w = zero_w.reshape(-1, *[1] * (rank - 1))
    if scale_w.numel() > 1:
        scale_w = scale_w.reshape(-1, *[1] * (rank - 2))
    bias = call.optional(8)
    total = convolved(
        x.cast(dtypes.int32) - call.tensor(2).cast(dtypes.int32),
        weight.cast(dtypes.int32) - zero_w,
        bias,
        shape_of_windows(call, x, weight),
        groups(call),
    )
    return rescaled(call, total, scale_x * scale_w)


def dequantized(call: Call, at: int) -> Tensor:
    """The floats of an input that is followed by its scale and its zero."""
    x, scale = call.tensor(at), call.tensor(at + 1)
    zero = (
        as_tensor(call.data(at + 2), call.run.device).cast(dtypes.int32) if call.has(at + 2) else 0
    )
    return (x.cast(dtypes.int32) - zero).cast(dtypes.float32) * scale
