"""GroupQueryAttention of com.microsoft, with which language models are exported."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tiny_onnx.call import Call
from tiny_onnx.ops.attention import heads_apart, heads_for, heads_together, turned
from tiny_onnx.ops.microsoft import MICROSOFT, hidden
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, widened
from tinycore import Tensor


@operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> tuple[Data, ...]:
    """Attention with a cache, whose sequences may differ in length within a batch.

    The new rows of a sequence end at its length, seqlens_k + 1. Those beyond, in a prompt shorter
    than the longest of the batch, are padding: results mean nothing there, the cache has zeros.
    """
    for index, what in REFUSED.items():
        if call.has(index):
            raise call.unsupported(f"{what} (input {index}).")
    if call.get("sliding_window_cache", 0) or call.wants(3):
        raise call.unsupported("caches of one window, and scores as an output.")
    q, k, v = projections(call)
    rows = int(q.shape[2])
    if int(k.shape[2]) != rows:
        raise call.unsupported(f"{int(k.shape[2])} new keys for {rows} queries.")

    lengths = call.tensor(5).reshape(-1, 1) + 1
    counts = call.tensor(16).reshape(-1, 1) if call.has(16) else lengths.minimum(rows)
    begins = lengths - counts
    places = begins + Tensor.arange(rows, device=q.device)
    total = int(call.number(6))
    if call.get("do_rotary", 0):
        angles = call.tensor(9) if call.has(9) else places
        if call.has(9) and total == rows and not call.has(16):
            angles = angles[:1, :1] + Tensor.arange(rows, device=q.device)  # so the operator says
        cosine, sine = call.tensor(7), call.tensor(8)
        size, pairs = 2 * int(cosine.shape[1]), bool(call.get("rotary_interleaved", 0))
        q, k = (turned(each, cosine, sine, angles, size, pairs) for each in (q, k))
    k, v = (
        appended(call.optional(index), each, begins, counts, total)
        for index, each in ((3, k), (4, v))
    )
    seen = visible(call, places, lengths, total)
    y = weighted(call, q, k[:, :, :total], seen).cast(v.dtype).matmul(heads_for(q, v[:, :, :total]))
    return heads_together(y), k, v


REFUSED = {
    12: "quantized keys",
    13: "quantized values",
    14: "normalized queries",
    15: "normalized keys",
}
"""Inputs that are not implemented."""


def projections(call: Call) -> Iterator[Tensor]:
    """Queries, keys and values by heads: three inputs, or one that has them side by side."""
    heads, shared = int(call.get("num_heads")), int(call.get("kv_num_heads"))
    if call.has(1):
        parts = [call.tensor(index) for index in range(3)]
    else:
        size = int(call.tensor(0).shape[2]) // (heads + 2 * shared)
        parts = [*call.tensor(0).split([heads * size, shared * size, shared * size], 2)]
    return (heads_apart(x, n) for x, n in zip(parts, (heads, shared, shared), strict=True))


def appended(
    past: Tensor | None, new: Tensor, begins: Tensor, counts: Tensor, total: int
) -> Tensor:
    """A cache of at least `total` rows, with new ones written from where each sequence begins."""
    batch, heads, rows, size = (int(side) for side in new.shape)
    held = 0 if past is None else int(past.shape[2])
    length = max(held, total)
    steps = (Tensor.arange(length, device=new.device) - begins).reshape(batch, 1, length, 1)
    taken = new.gather(2, steps.clip(0, rows - 1).expand(batch, heads, length, size))
    written = (steps < counts.reshape(batch, 1, 1, 1)).where(taken, 0)
    if past is None:
        return written
    return (steps < 0).where(past.pad((0, 0, 0, length - held)), written)


def visible(call: Call, places: Tensor, lengths: Tensor, total: int) -> Tensor:
    """True where a query sees a key: one not after it, and within a window if there is one."""
    keys = Tensor.arange(total, device=places.device).reshape(1, 1, 1, -1)
    if not call.get("causal", 1):
        return keys < lengths.reshape(-1, 1, 1, 1)
    places = places.reshape(int(places.shape[0]), 1, -1, 1)
    seen, window = keys <= places, int(call.get("local_window_size", -1))
    return seen & (keys > places - window) if window > 0 else seen


def weighted(call: Call, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """The softmax of scores, in which a sink takes a share that goes to no key."""
    scale = call.real("scale", 0.0) or 1 / math.sqrt(int(q.shape[-1]))
    scores = widened(q).matmul(widened(heads_for(q, k)).transpose(-2, -1)) * scale
    softcap = call.real("softcap", 0.0)
    scores = (scores / softcap).tanh() * softcap if softcap else scores
    scores = scores + call.tensor(10)[..., : int(k.shape[2])] if call.has(10) else scores
    scores = scores + hidden(seen, scores.dtype)
    if not call.has(11) and not call.get("smooth_softmax", 0):
        return scores.softmax(-1)
    sink = call.tensor(11).reshape(-1, 1, 1) if call.has(11) else call.constant(0, scores.dtype)
    column = sink.cast(scores.dtype).expand(*scores.shape[:3], 1)
    return scores.cat(column, dim=-1).softmax(-1)[..., :-1]
