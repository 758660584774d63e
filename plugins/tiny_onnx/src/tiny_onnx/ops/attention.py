"""Attention and rotary positions, written as the products and the softmax that they are."""

from __future__ import annotations

import math
from functools import reduce

from tiny_onnx.call import Call
from tiny_onnx.element_types import named
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = (int(side) for side in x.shape)
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def heads_for(q: Tensor, k: Tensor) -> Tensor:
    """Heads of keys or values for those of queries: groups of these share one."""
    return k.repeat_interleave(int(q.shape[1]) // int(k.shape[1]), 1)


def heads_together(x: Tensor) -> Tensor:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = (int(side) for side in x.shape)
    return x.transpose(1, 2).reshape(batch, length, heads * size)


def joined(past: Tensor | None, new: Tensor) -> Tensor:
    """Rows of a cache with the new ones behind them."""
    return new if past is None else past.cat(new, dim=2)


@operator("RotaryEmbedding", since=23)
def rotary(call: Call) -> Data:
    """Pairs of features turned by the angle of their position (Su et al., 2021)."""
    given = call.tensor(0)
    is_flat = given.ndim == 3
    x = given
    if is_flat:
        x = heads_apart(given, int(call.get("num_heads")))
    result = turned(
        x,
        call.tensor(1),
        call.tensor(2),
        call.optional(3),
        int(call.get("rotary_embedding_dim", 0)),
        bool(call.get("interleaved", 0)),
    )
    return heads_together(result) if is_flat else result


def turned(
    x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor | None, size: int, pairs: bool
) -> Tensor:
    """Features of (batch, heads, length, size) turned; `pairs` are neighbors, or halves."""
    whole = int(x.shape[-1])
    size = size or whole
    if positions is not None:
        shape = positions.shape
        flat = positions.reshape(-1)
        cosine = cosine.index_select(0, flat).reshape(*shape, -1)
        sine = sine.index_select(0, flat).reshape(*shape, -1)
    cosine, sine = (each[..., : size // 2].unsqueeze(1) for each in (cosine, sine))
    moved, rest = x[..., :size], x[..., size:]
    if pairs:
        first, second = moved[..., 0::2], moved[..., 1::2]
    else:
        first, second = moved[..., : size // 2], moved[..., size // 2 :]
    real, imaginary = first * cosine - second * sine, first * sine + second * cosine
    if pairs:
        result = Tensor.stack(real, imaginary, dim=-1).reshape(*moved.shape)
    else:
        result = real.cat(imaginary, dim=-1)
    return result if size == whole else result.cat(rest, dim=-1)


@operator("Attention", since=23)
def attention(call: Call) -> tuple[Data, ...]:
    """softmax(q @ k.T * scale + mask) @ v, with a cache, groups of heads and a soft cap."""
    q, k, v = (call.tensor(index) for index in range(3))
    is_flat = q.ndim == 3
    if is_flat:
        q = heads_apart(q, int(call.get("q_num_heads")))
        k, v = (heads_apart(each, int(call.get("kv_num_heads"))) for each in (k, v))
    k, v = joined(call.optional(4), k), joined(call.optional(5), v)
    present = (k, v)
    k, v = (heads_for(q, each) for each in (k, v))
    root = math.sqrt(call.real("scale", 0.0) or 1 / math.sqrt(int(q.shape[-1])))
    scores = (q * root).matmul((k * root).transpose(-2, -1))
    softcap = call.real("softcap", 0.0)
    capped = (scores / softcap).tanh() * softcap if softcap else scores
    bias = total_mask(call, scores)
    masked = capped if bias is None else capped + bias
    precision = call.get("softmax_precision", 0)
    held = named(precision, str(call.node)).tensor if precision else None
    weights = weighted_or_zero(masked if held is None else masked.cast(held), bias).cast(q.dtype)
    y = weights.matmul(v)
    shown = (scores, capped, masked, weights)[call.get("qk_matmul_output_mode", 0)]
    return heads_together(y) if is_flat else y, *present, shown


def weighted_or_zero(scores: Tensor, bias: Tensor | None) -> Tensor:
    """The softmax of scores; a row in which everything is masked is zero, not NaN."""
    if bias is None:
        return scores.softmax(-1)
    is_hidden = scores.max(-1, keepdim=True) == -math.inf
    return is_hidden.where(0, is_hidden.where(0, scores).softmax(-1))


def total_mask(call: Call, scores: Tensor) -> Tensor | None:
    """Bias of the scores: the mask given, and minus infinity where a key is not seen."""
    total = given_mask(call, scores)
    seen = visible(call, scores)
    if seen is None:
        return total
    added = seen.where(0.0, -math.inf).cast(scores.dtype)
    return added if total is None else total + added


def given_mask(call: Call, scores: Tensor) -> Tensor | None:
    """The mask of a node as numbers to be added; keys beyond its end are hidden."""
    if not call.has(3):
        return None
    mask = call.tensor(3)
    if mask.dtype == dtypes.bool:
        mask = mask.where(0.0, -math.inf).cast(scores.dtype)
    lacking = int(scores.shape[3]) - int(mask.shape[-1])
    if lacking > 0 and int(mask.shape[-1]) != 1:
        mask = mask.pad((*[(0, 0)] * (mask.ndim - 1), (0, lacking)), value=-math.inf)
    return mask


def visible(call: Call, scores: Tensor) -> Tensor | None:
    """True where a query may see a key, by causality, windows and lengths; None if everywhere."""
    rows, columns = int(scores.shape[2]), int(scores.shape[3])
    keys = Tensor.arange(columns, device=scores.device).reshape(1, 1, 1, -1)
    places = Tensor.arange(rows, device=scores.device).reshape(1, 1, -1, 1)
    conditions = []
    if call.has(4):
        places = places + int(call.tensor(4).shape[2])
    elif call.has(6):
        lengths = call.tensor(6).reshape(-1, 1, 1, 1)
        places = places + (lengths - rows)
        conditions.append(keys < lengths)
    if call.get("is_causal", 0):
        conditions.append(keys <= places)
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    if left >= 0:
        conditions.append(places - keys <= left)
    if right >= 0:
        conditions.append(keys - places <= right)
    return reduce(Tensor.bitwise_and, conditions) if conditions else None
