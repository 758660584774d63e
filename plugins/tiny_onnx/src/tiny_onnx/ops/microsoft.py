"""Operators of com.microsoft, which onnxruntime and its optimizers write into models."""

from __future__ import annotations

import math

import numpy

from tiny_onnx.call import Call
from tiny_onnx.element_types import element_of
from tiny_onnx.ops.attention import heads_apart, heads_together, joined, turned
from tiny_onnx.ops.elementwise import UNARY, gelu_of
from tiny_onnx.ops.indexing import gather_nd
from tiny_onnx.ops.layout import trilu
from tiny_onnx.ops.products import convolved, groups, shape_of_windows
from tiny_onnx.ops.quantization import dequantize, dequantized, quantize, requantized
from tiny_onnx.ops.recurrent import Activation
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, widened
from tinycore import Tensor, dtypes

MICROSOFT = "com.microsoft"

operator("DequantizeLinear", domain=MICROSOFT)(dequantize)
operator("GatherND", domain=MICROSOFT)(gather_nd)
operator("QuantizeLinear", domain=MICROSOFT)(quantize)
operator("Trilu", domain=MICROSOFT)(trilu)


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(call: Call) -> Data:
    """alpha * A @ B, of either the last axes perhaps transposed, or the first moved before them."""
    factors = []
    for index, letter in enumerate("AB"):
        x = call.tensor(index)
        x = x.movedim(0, -2) if call.get(f"transBatch{letter}", 0) else x
        factors.append(x.transpose(-2, -1) if call.get(f"trans{letter}", 0) else x)
    return factors[0].matmul(factors[1]) * call.real("alpha", 1.0)


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: Call) -> Data:
    """Gemm followed by an activation."""
    from tiny_onnx.ops.products import gemm  # noqa: PLC0415

    result = gemm(call)
    assert isinstance(result, Tensor)
    return activated(call, result)


def activated(call: Call, x: Tensor) -> Tensor:
    """The activation that a fused node names, if any."""
    name = call.get("activation", "")
    if not name:
        return x
    if name in UNARY:
        return UNARY[name](x)
    numbers = [*call.get("activation_params", []), None, None]
    return Activation(name, numbers[0], numbers[1])(x)


@operator("FusedConv", domain=MICROSOFT)
def fused_convolution(call: Call) -> Data:
    """Conv, perhaps with a tensor added, followed by an activation."""
    x, weight = call.tensor(0), call.tensor(1)
    y = convolved(x, weight, call.optional(2), shape_of_windows(call, x, weight), groups(call))
    return activated(call, y + call.tensor(3) if call.has(3) else y)


@operator("Gelu", domain=MICROSOFT)
def gelu(call: Call) -> Data:
    """The exact Gaussian error linear unit."""
    x = call.tensor(0)
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(call: Call) -> Data:
    """Gelu of the sum with a bias."""
    return gelu_of(call.tensor(0) + call.tensor(1))


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(call: Call) -> Data:
    """Gelu by tanh, perhaps of the sum with a bias."""
    x = call.tensor(0)
    return gelu_of(x + call.tensor(1) if call.has(1) else x, "tanh")


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call) -> Data:
    """x * sigmoid(alpha * x)."""
    x = call.tensor(0)
    return x * (x * call.real("alpha", 1.702)).sigmoid()


def normalized(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Layer normalization of the last axis, with its mean and inverse deviation."""
    wide = widened(x)
    mean = wide.mean(-1, keepdim=True)
    inverse = ((wide - mean).square().mean(-1, keepdim=True) + call.real("epsilon", 1e-12)).rsqrt()
    y = ((wide - mean) * inverse).cast(x.dtype) * scale
    return [y if bias is None else y + bias, mean, inverse]


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(call: Call) -> tuple[Data, ...]:
    """Layer normalization of a sum, which is the last output."""
    x = call.tensor(0) + call.tensor(1)
    x = x + call.tensor(4) if call.has(4) else x
    return (*normalized(call, x, call.tensor(2), call.optional(3)), x)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_root_mean_square(call: Call) -> tuple[Data, ...]:
    """Root mean square normalization of a sum, which is the last output."""
    x = call.tensor(0) + call.tensor(1)
    x = x + call.tensor(3) if call.has(3) else x
    wide = widened(x)
    inverse = (wide.square().mean(-1, keepdim=True) + call.real("epsilon", 1e-12)).rsqrt()
    return (wide * inverse).cast(x.dtype) * call.tensor(2), None, inverse, x


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(call: Call) -> tuple[Data, ...]:
    """Rows of tables for words, places and segments, added and normalized (BERT)."""
    words = call.tensor(0)
    batch, length = (int(side) for side in words.shape)
    total = call.tensor(2).index_select(0, words.reshape(-1)).reshape(batch, length, -1)
    if call.has(8):
        places = call.tensor(8)
        rows = call.tensor(3).index_select(0, places.reshape(-1)).reshape(*places.shape, -1)
        total = total + rows
    else:
        total = total + call.tensor(3)[:length]
    if call.has(1) and call.has(4):
        segments = call.tensor(1)
        total = total + call.tensor(4).index_select(0, segments.reshape(-1)).reshape(
            batch, length, -1
        )
    y = normalized(call, total, call.tensor(5), call.tensor(6))[0]
    mask = Tensor.zeros(batch, dtype=dtypes.int32, device=y.device)
    if call.has(7):
        mask = call.tensor(7).sum(1).cast(dtypes.int32)
    return y, mask, total


@operator("RotaryEmbedding", domain=MICROSOFT)
def rotary(call: Call) -> Data:
    """Features turned by the angle of their position, which is the second input here."""
    x, places = call.tensor(0), call.tensor(1)
    heads = int(call.get("num_heads", 0))
    is_flat = x.ndim == 3
    size = int(call.get("rotary_embedding_dim", 0))
    cosine, sine = call.tensor(2), call.tensor(3)
    if is_flat:
        heads = heads or int(x.shape[2]) // (int(cosine.shape[1]) * 2)
        x = heads_apart(x, heads)
    if places.ndim == 1 and places.numel() == 1:
        steps = Tensor.arange(int(x.shape[2]), device=x.device).cast(places.dtype)
        places = (places + steps).reshape(1, -1).expand(int(x.shape[0]), -1)
    result = turned(x, cosine, sine, places, size, bool(call.get("interleaved", 0)))
    return heads_together(result) if is_flat else result


def attended(call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(q @ k.T * scale + bias) @ v, each row perhaps of the keys up to it alone."""
    scale = call.real("scale", 0.0) or 1 / math.sqrt(int(q.shape[-1]))
    scores = q.matmul(k.transpose(-2, -1)) * scale
    scores = scores if bias is None else scores + bias
    if call.get("unidirectional", 0):
        rows, columns = (int(side) for side in scores.shape[2:])
        earlier = numpy.arange(columns)[None] <= numpy.arange(rows)[:, None] + columns - rows
        scores = scores + hidden(Tensor(earlier, device=q.device), q.dtype)
    return scores.softmax(-1).cast(v.dtype).matmul(v)


def hidden(is_seen: Tensor, dtype: object) -> Tensor:
    """Zero where a key is seen, else a number that its exponential vanishes beside."""
    return is_seen.where(0.0, -1e4 if dtype == dtypes.float16 else -1e30)


def added(call: Call, mask_at: int, bias_at: int, batch: int, columns: int) -> Tensor | None:
    """The bias of scores, and what the mask adds where it hides a key.

    A mask of one axis has the ends of the sequences, and behind these perhaps their begins.
    """
    bias = call.optional(bias_at)
    if not call.has(mask_at):
        return bias
    mask = call.tensor(mask_at)
    if mask.ndim > 3:
        raise call.unsupported("masks of four axes.")
    if mask.ndim == 1:
        steps = Tensor.arange(columns, device=mask.device)
        seen = steps < mask[:batch].reshape(-1, 1)
        if int(mask.shape[0]) == 2 * batch:
            seen = seen & (steps >= mask[batch:].reshape(-1, 1))
    else:
        seen = mask != 0
    seen = seen.reshape(int(seen.shape[0]), 1, -1 if seen.ndim == 3 else 1, columns)
    masked = seen.where(0.0, call.real("mask_filter_value", -10000.0))
    return masked if bias is None else bias + masked


@operator("Attention", domain=MICROSOFT)
def attention(call: Call) -> tuple[Data, ...]:
    """Self-attention with the projection to queries, keys and values in front (BERT, GPT-2)."""
    projected = call.tensor(0).matmul(call.tensor(1))
    projected = projected + call.tensor(2) if call.has(2) else projected
    return self_attended(call, projected, (3, 4, 5))


@operator("QAttention", domain=MICROSOFT)
def quantized_attention(call: Call) -> tuple[Data, ...]:
    """Self-attention whose projection multiplies quantized matrices."""
    x, weight = (
        call.tensor(at).cast(dtypes.int32)
        - (call.tensor(at + 6).cast(dtypes.int32) if call.has(at + 6) else 0)
        for at in (0, 1)
    )
    scale = call.tensor(3) * call.tensor(4)
    return self_attended(
        call, x.matmul(weight).cast(scale.dtype) * scale + call.tensor(2), (5, 8, 9)
    )


def self_attended(call: Call, projected: Tensor, at: tuple[int, int, int]) -> tuple[Data, ...]:
    """Attention of what is projected, with inputs for a mask, for a cache and for a bias."""
    if call.get("do_rotary", 0) or call.get("past_present_share_buffer", 0):
        raise call.unsupported("rotary positions, and caches that are shared.")
    heads = int(call.get("num_heads"))
    sizes = call.get("qkv_hidden_sizes", None) or [int(projected.shape[-1]) // 3] * 3
    q, k, v = (heads_apart(each, heads) for each in projected.split([*sizes], -1))
    past = call.optional(at[1])
    if past is not None:
        k, v = joined(past[0], k), joined(past[1], v)
    y = attended(call, q, k, v, added(call, at[0], at[2], int(q.shape[0]), int(k.shape[2])))
    return heads_together(y), Tensor.stack(k, v) if call.wants(1) else None


@operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> tuple[Data, ...]:
    """Attention over queries, keys and values that are projected already."""
    heads = int(call.get("num_heads"))
    q = call.tensor(0)
    if not call.has(2):
        raise call.unsupported("packed queries, keys and values.")
    if call.has(8) or call.has(9) or call.wants(3):
        raise call.unsupported("caches that are shared or of beams, and scores as an output.")
    k, v = call.tensor(1), call.tensor(2)
    if call.has(3):
        bias = call.tensor(3)
        width = int(q.shape[-1])
        q = q + bias[:width]
        if k.ndim == 3:
            k, v = k + bias[width : 2 * width], v + bias[2 * width :]
    q = heads_apart(q, heads)
    k, v = (each if each.ndim == 4 else heads_apart(each, heads) for each in (k, v))
    k, v = joined(call.optional(6), k), joined(call.optional(7), v)
    bias_of_scores = added(call, 4, 5, int(q.shape[0]), int(k.shape[2]))
    return heads_together(attended(call, q, k, v, bias_of_scores)), k, v


@operator("MatMulNBits", domain=MICROSOFT)
def matmul_bits(call: Call) -> Data:
    """x @ w.T for weights of 2, 4 or 8 bits in blocks, each with a scale and perhaps a zero."""
    x, packed = call.tensor(0), call.tensor(1)
    rows, depth = int(call.get("N")), int(call.get("K"))
    bits, block = int(call.get("bits", 4)), int(call.get("block_size"))
    if bits not in (2, 4, 8):
        raise call.unsupported(f"weights of {bits} bits.")
    if call.has(4) and bits != 4:
        raise call.unsupported("blocks of columns by an index, but for weights of 4 bits.")
    blocks = -(-depth // block)
    values = unpacked(packed, bits).reshape(rows, blocks, block).cast(x.dtype)
    scales = call.tensor(2).reshape(rows, blocks, 1)
    zeros = call.optional(3)
    if zeros is None:
        zeros = call.constant(2 ** (bits - 1), x.dtype, (rows, blocks, 1))
    elif zeros.dtype == dtypes.uint8:
        zeros = unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    zeros = zeros.reshape(rows, blocks, 1).cast(x.dtype)
    if call.has(4):  # the block of each column
        values, block_of = values.reshape(rows, -1)[:, :depth], call.tensor(4)
        scales, zeros = (each[..., 0].index_select(1, block_of) for each in (scales, zeros))
    weight = (values - zeros) * scales
    result = x.matmul(weight.reshape(rows, -1)[:, :depth].transpose())
    return result + call.tensor(5) if call.has(5) else result


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Numbers of 2, 4 or 8 bits from bytes, the lowest bits first, along the last axis."""
    parts = [(packed >> shift) & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return Tensor.stack(*parts, dim=-1).flatten(-2)


@operator("GatherBlockQuantized", domain=MICROSOFT)
def gather_blocks(call: Call) -> Data:
    """Rows of a table of small integers in blocks, each with a scale and perhaps a zero."""
    table, index, scales = call.tensor(0), call.tensor(1), call.tensor(2)
    bits, block = int(call.get("bits", 4)), int(call.get("block_size", 128))
    axis, along = call.axis("gather_axis", table.ndim, 0), call.axis("quantize_axis", table.ndim, 1)
    if table.is_floating_point() or axis == along:
        raise call.unsupported("tables of floats, and blocks along the axis of the places.")
    data = call.data(0)
    is_packed = table.dtype == dtypes.uint8 and (
        not isinstance(data, numpy.ndarray) or element_of(data).name == "uint8"
    )

    def rows(x: Tensor) -> Tensor:
        places = (index < 0).where(index + int(x.shape[axis]), index)
        taken = x.index_select(axis, places.reshape(-1))
        return unpacked(taken, bits) if is_packed and x.dtype == dtypes.uint8 else taken

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(block, along).narrow(along, 0, int(values.shape[along]))

    values, scale = rows(table), rows(scales)
    zero: Tensor | int = 2 ** (bits - 1) if is_packed else 0
    if call.has(3):
        zero = spread(rows(call.tensor(3)).cast(dtypes.int32))
    result = (values.cast(dtypes.int32) - zero).cast(scale.dtype) * spread(scale)
    return result.reshape(*result.shape[:axis], *index.shape, *result.shape[axis + 1 :])


@operator("QLinearAdd", domain=MICROSOFT)
def quantized_sum(call: Call) -> Data:
    """The sum of two quantized tensors, quantized."""
    return requantized(call, (dequantized(call, 0) + dequantized(call, 3)) / call.tensor(6), 6)


@operator("QLinearMul", domain=MICROSOFT)
def quantized_product(call: Call) -> Data:
    """The product of two quantized tensors, quantized."""
    return requantized(call, dequantized(call, 0) * dequantized(call, 3) / call.tensor(6), 6)


@operator("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def quantized_activation(call: Call) -> Data:
    """An activation of a quantized tensor, quantized."""
    x = dequantized(call, 0)
    y = x.sigmoid() if call.node.op == "QLinearSigmoid" else x.leaky_relu(call.real("alpha", 0.01))
    return requantized(call, y / call.tensor(3), 3)


@operator("QLinearGlobalAveragePool", domain=MICROSOFT)
def quantized_global_average(call: Call) -> Data:
    """The mean of each channel of a quantized image, quantized."""
    x = dequantized(call, 0)
    axes = tuple(range(1, x.ndim - 1)) if call.get("channels_last", 0) else tuple(range(2, x.ndim))
    return requantized(call, x.mean(axes, keepdim=True) / call.tensor(3), 3)


@operator("QLinearSoftmax", domain=MICROSOFT)
def quantized_softmax(call: Call) -> Data:
    """The softmax of a quantized tensor, quantized; before version 13 of all axes from one on."""
    x = dequantized(call, 0)
    axis = call.axis("axis", x.ndim, -1)
    if int(call.get("opset")) < 13:
        y = x.flatten(axis).softmax(-1).reshape(*x.shape)
    else:
        y = x.softmax(axis)
    return requantized(call, y / call.tensor(3), 3)


@operator("QLinearWhere", domain=MICROSOFT)
def quantized_where(call: Call) -> Data:
    """Elements of one quantized tensor or another, quantized alike."""
    y = call.tensor(0).where(dequantized(call, 1), dequantized(call, 4))
    return requantized(call, y / call.tensor(7), 7)


@operator("QLinearConcat", domain=MICROSOFT)
def quantized_concat(call: Call) -> Data:
    """Quantized tensors joined along an axis, quantized alike."""
    parts = [dequantized(call, index) for index in range(2, len(call), 3)]
    joined_parts = parts[0].cat(*parts[1:], dim=int(call.get("axis")))
    return requantized(call, joined_parts / call.tensor(0), 0)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantized_matmul(call: Call) -> Data:
    """Products of floats with quantized weights."""
    weight, scale = call.tensor(1), call.tensor(2)
    zero = call.tensor(3).cast(dtypes.int32) if call.has(3) else 0
    y = call.tensor(0).matmul((weight.cast(dtypes.int32) - zero).cast(scale.dtype) * scale)
    return y + call.tensor(4) if call.has(4) else y


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def integer_matmul_to_float(call: Call) -> Data:
    """Products of quantized matrices as floats."""
    first, second = call.tensor(0).cast(dtypes.int32), call.tensor(1).cast(dtypes.int32)
    first = first - call.tensor(4).cast(dtypes.int32) if call.has(4) else first
    second = second - call.tensor(5).cast(dtypes.int32) if call.has(5) else second
    y = first.matmul(second).cast(dtypes.float32) * (call.tensor(2) * call.tensor(3))
    return y + call.tensor(6) if call.has(6) else y
