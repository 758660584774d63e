"""Attention in memory linear in the sequence length (online softmax).

Floor 5. softmax(Q K^T) V processes the keys in pieces that fit a near cache, and combines the
results of the pieces by their maxima and totals (M. Milakov & N. Gimelshein, "Online normalizer
calculation for softmax", 2018). No scores are kept: the gradient recomputes them from the
logarithms of the totals (T. Dao et al., "FlashAttention", 2022). See
docs/decisions/0045-attention.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from tinycore._deferred import deferred
from tinycore.config import settings
from tinycore.dtype import dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import broadcast_shapes, floating_dtype
from tinycore.tensor.composed import Composed
from tinycore.tensor.grad import gradients
from tinycore.tensor.partial_attention import (
    LEAST_PART,
    Seen,
    approximate_exp,
    check_shapes,
    combine_all,
    combine_parts,
    finite,
    length_of_part,
    masked,
    of_one_shape,
    part_of,
    root,
    thinned,
    turned,
)
from tinycore.tensor.pixels import is_fixed
from tinycore.tensor.softmax_products import Weighed, in_memory, pieces, ways_of
from tinycore.trace import Trace
from tinycore.uop.node import UOp
from tinycore.uop.proportional import MOST_KEPT
from tinycore.uop.size import greatest

CAUSAL_ROWS: Final = 512
"""Queries that share the keys they see where attention is causal. Fewer leave out more of what the
mask hides, but each group of queries is a kernel of its own. Shorter sequences than twice that are
cut in two: at 512 queries that leaves out a quarter of all scores, and of their memory."""
MOST_CAUSAL_BLOCKS: Final = 8
MOST_TOGETHER: Final = 64
"""Queries of heads that share keys up to which they are rows of one product: as in decoding, where
each key is read once for all of them."""

refusal_of_chain: Final[Callable[..., str | None]] = deferred(
    "tinycore.schedule.product_chains:refusal_of_chain"
)
multiplies: Final[Callable[..., bool]] = deferred("tinycore.schedule.product_chains:multiplies")

trace = Trace("schedule")


class Attention(Composed):
    """Softmax attention."""

    __slots__ = ()

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
        scale: float | None = None,
    ) -> Self:
        """softmax(q @ k.T * scale + mask) @ v over (.., heads, length, d); scale is 1 / sqrt(d).

        A bool mask is True for positions that take part; any other mask is added to the scores.
        With `is_causal`, position i attends to positions up to i. A query that attends to nothing
        gets 0. With `enable_gqa`, groups of query heads share key and value heads. Scores are
        computed in at least float32. For long sequences no scores are kept, not even for the
        gradient; with dropout only where one kernel computes all of it. Raises ArgumentError for a
        mask together with `is_causal` or a `dropout_p` outside of 0 to 1, ShapeError for sizes that
        do not fit.

        >>> q, k, v = Tensor.zeros(1, 2, 4), Tensor.zeros(1, 2, 4), Tensor([[[1.0], [3.0]]])
        >>> q.scaled_dot_product_attention(k, v).tolist()
        [[[2.0], [2.0]]]
        >>> q.scaled_dot_product_attention(k, v, is_causal=True).tolist()
        [[[1.0], [2.0]]]
        """
        if attn_mask is not None and is_causal:
            raise ArgumentError(
                "scaled_dot_product_attention: give attn_mask or is_causal, not both"
            )
        floating_dtype("scaled_dot_product_attention", self.dtype)
        check_shapes(self, key, value)
        if not 0 <= dropout_p <= 1:
            raise ArgumentError(f"dropout_p is a probability, got {dropout_p}")
        p = dropout_p if settings.TRAINING else 0.0
        if enable_gqa:
            shared = self._heads_of_group(key, value)
            together = None if p else self._together(key, value, attn_mask, shared)
            if together is not None:
                mask = self._mask_together(key, attn_mask, is_causal, shared)
                found = together.scaled_dot_product_attention(key, value, mask, scale=scale)
                return found.reshape(*self.shape[:-1], value.shape[-1])
            key, value = (x.repeat_interleave(shared, -3) for x in (key, value))
        if scale is not None:
            query = self * (root(self.shape[-1]) * scale)
            return query.scaled_dot_product_attention(key, value, attn_mask, p, is_causal)
        if not is_causal:
            return self._attended(key, value, attn_mask, p)
        length, seen = self.shape[-2], key.shape[-2]
        # Kernels go through the keys that their rows see, and no others (`lower/tighten.py`).
        if (
            not is_fixed((length, seen))
            or length < CAUSAL_ROWS
            or self._refusal(key, value, is_masked=bool(p)) is None
        ):
            return self._attended(key, value, 0, p)
        rows = max(min(CAUSAL_ROWS, -(-length // 2)), -(-length // MOST_CAUSAL_BLOCKS))
        parts = []
        for start in range(0, length, rows):
            queries = self[..., start : start + rows, :]
            past = min(start + rows, seen)
            keys, values = key[..., :past, :], value[..., :past, :]
            parts.append(queries._attended(keys, values, start, p))
        return parts[0].cat(*parts[1:], dim=-2).contiguous()

    def _heads_of_group(self, key: Self, value: Self) -> int:
        """The heads of queries that share a head of keys and values."""
        if min(self.ndim, key.ndim, value.ndim) < 3:
            raise ShapeError(
                "scaled_dot_product_attention: groups of heads need an axis of heads, got shapes "
                f"{self.shape}, {key.shape} and {value.shape}"
            )
        heads, groups = self.shape[-3], key.shape[-3]
        if not groups or heads % groups or value.shape[-3] != groups:
            raise ShapeError(
                "scaled_dot_product_attention: keys and values need as many heads as each "
                f"other, which divide those of queries, got shapes {self.shape}, {key.shape} "
                f"and {value.shape}"
            )
        return int(heads // groups)

    def _together(self, key: Self, value: Self, mask: Self | None, shared: int) -> Self | None:
        """Queries with those of all heads of a group as rows, where a kernel reads keys for all of
        them at once; None where it does not."""
        if shared == 1 or not self._varies_by_keys_alone(key, value):
            return None
        *outer, _, length, width = self.shape
        heads = self.shape[:-2]
        shapes = [heads] if mask is None else [heads, mask.shape[:-2]]
        shape = broadcast_shapes("scaled_dot_product_attention", *shapes)
        is_one_batch = self.shape[:-3] == key.shape[:-3] == value.shape[:-3]
        if shared * length > MOST_TOGETHER or not is_one_batch or shape != heads:
            return None
        rows = self.reshape(*outer, key.shape[-3], shared * length, width)
        return rows if rows._parts_of_keys(key, value, is_few=True) else None

    def _mask_together(
        self, key: Self, mask: Self | None, is_causal: bool, shared: int
    ) -> Self | None:
        """The mask of `_together`."""
        if is_causal:
            mask = self._visible(key, 0)
        if mask is None:
            return None
        *outer, heads, length, _ = self.shape
        mask = mask.expand(*outer, heads, length, key.shape[-2])
        return mask.reshape(*outer, heads // shared, shared * length, key.shape[-2])

    def _visible(self, key: Self, start: int) -> Self:
        """The mask that shows each query the keys up to its own, the first one up to `start`."""
        shape = self.shape[-2], key.shape[-2]
        return (
            self.const_like(True, dtypes.bool)[..., :1].expand(*self.shape[:-2], *shape).tril(start)
        )

    def _attended(self, key: Self, value: Self, mask: Self | int | None, p: float) -> Self:
        """Values weighed by how well their keys suit each query, after dropout with probability p.

        A number instead of a mask is the position of the first query, which sees up to there.
        """
        rows, (seen, columns) = self.shape[-2], value.shape[-2:]
        if seen == 0:  # a sum of nothing, where there is no greatest score
            scores = self.matmul(turned(key))
            return masked(scores, mask).cast(self.dtype).matmul(value)
        is_masked = bool(p) or isinstance(mask, Attention)
        parts = self._parts_of_keys(key, value, p, is_masked=is_masked)
        if not is_fixed((*self.shape, *key.shape, *value.shape)):
            if parts > 1:
                return self._seen_in_parts(key, value, mask, parts).result(self, value)
            return self._seen(key, value, mask, p).result(self, value)
        if trace.on and not parts:
            name = f"{self.dtype.name} {self.shape} by {key.shape}"
            trace(f"{'attention':<16} several kernels: {name}: {self._refusal(key, value)}")
        if not parts and rows * seen <= MOST_KEPT:
            return self._seen(key, value, mask, p).result(self, value)
        query, key, value, mask = of_one_shape(self, key, value, mask)
        is_whole = parts and p < 1
        kept = query._kept(p, (*query.shape[:-1], seen)) if p and is_whole else None
        if parts > 1:
            whole = query._seen_in_parts(key, value, mask, parts)
        else:
            some = [slice(0, seen)] if is_whole else pieces(seen, key.shape[-1] + columns)
            at = [(key[..., keys, :], value[..., keys, :], part_of(mask, keys)) for keys in some]
            whole = combine_all([query._seen(*each, p, kept) for each in at])
        result = whole.result(query, value)
        if p and kept is None:
            return result
        given = query, key, value, whole.logarithm(), mask, kept
        backward = Backward(mask if isinstance(mask, int) else None, p)
        return result._called(backward, *[t for t in given if isinstance(t, Attention)])

    def _parts_of_keys(self, key: Self, value: Self, p: float = 0.0, **facts: bool) -> int:
        """The parts of keys, of one length, that one kernel sees at once: more than one where rows
        are too few for the units of a device. 0 where no kernel goes through them.

        As in T. Dao et al., "Flash-Decoding for long-context inference", 2023.
        """
        if not self._varies_by_keys_alone(key, value):
            return 0
        seen = key.shape[-2]
        most = greatest(seen) // LEAST_PART if not p and self.shape[-2] <= MOST_TOGETHER else 1
        fixed = is_fixed((seen,))
        counts = (n for n in range(1, max(most, 1) + 1) if not fixed or seen % n == 0)
        return next((n for n in counts if self._refusal(key, value, n, **facts) is None), 0)

    def _seen_in_parts(
        self, key: Self, value: Self, mask: Self | int | None, parts: int
    ) -> Seen[Self]:
        """Attention over all keys, whose parts are seen at once."""
        if not is_fixed(key.shape):
            key, value, mask = self._with_fixed_keys(key, value, mask, parts)
        if isinstance(mask, int):
            mask = self._visible(key, mask)
        if mask is not None:
            shape = (*mask.shape[:-1], parts, mask.shape[-1] // parts)
            mask = mask.reshape(*shape).transpose(-3, -2)
        keys, values = (x.reshape(*x.shape[:-2], parts, -1, x.shape[-1]) for x in (key, value))
        return combine_parts(self.unsqueeze(-3)._seen(keys, values, mask, 0.0))

    def _with_fixed_keys(
        self, key: Self, value: Self, mask: Self | int | None, parts: int
    ) -> tuple[Self, Self, Self]:
        """Keys and values of parts that hold the most there can be, and a mask of those there are.

        What is beyond the others is 0, and not read.
        """
        seen = key.shape[-2]
        whole = parts * length_of_part(seen, parts)
        key, value = (
            x.pad((*[None] * (x.ndim - 2), (0, whole - seen), None)) for x in (key, value)
        )
        places = self._from_node(graph.arange(whole, dtypes.int32, self.device)).unsqueeze(0)
        there = places < seen
        if isinstance(mask, int):
            return key, value, self._visible(key, mask) & there
        if mask is None:
            return key, value, there
        mask = mask.expand(*mask.shape[:-1], seen)
        mask = mask.pad((*[None] * (mask.ndim - 1), (0, whole - seen)))
        hidden = False if mask.dtype is dtypes.bool else -math.inf
        return key, value, there.where(mask, hidden)

    def _varies_by_keys_alone(self, key: Self, value: Self) -> bool:
        """True if no size but the number of keys is known at launch only."""
        sizes = (*key.shape[:-2], key.shape[-1], *value.shape[:-2], value.shape[-1])
        return is_fixed((*self.shape, *sizes))

    def _refusal(self, key: Self, value: Self, parts: int = 1, **facts: bool) -> str | None:
        """Why no kernel goes through all keys, in so many parts at once; None if one does."""
        width, columns = key.shape[-1], value.shape[-1]
        length = length_of_part(key.shape[-2], parts)
        others = math.prod(self.shape[:-2]) * parts
        sizes = (others, self.shape[-2], length, (width,), (columns,))
        if not self.dtype is key.dtype is value.dtype:
            return "its operands are of several types"
        facts |= {"is_few": True} if parts > 1 else {}
        return refusal_of_chain(self.device, self.dtype, sizes, **facts)

    def _seen(
        self,
        key: Self,
        value: Self,
        mask: Self | int | None,
        p: float,
        kept: Self | None = None,
    ) -> Seen[Self]:
        """Partial attention: queries over a piece of the keys.

        Dropout with probability p leaves the weights that are `kept`, or draws which it leaves.
        """
        wide = least_upper_dtype(self.dtype, key.dtype, dtypes.float32)
        scores = self.matmul(turned(key), dtype=wide) * (1 / root(self.shape[-1]))
        scores = masked(scores, mask)
        is_widened = self.dtype is not wide and not multiplies(self.device, self.dtype)
        exp = approximate_exp if is_widened else type(scores).exp
        # In memory: a kernel of both the maxima and the factors of `combine_pair` is slow.
        top = scores.max(-1, keepdim=True).detach().contiguous()
        powers = exp(scores - (top if mask is None else finite(top)))
        total = powers.sum(-1, keepdim=True)
        weights = thinned(powers, kept, p)
        weights = weights if is_widened else weights.cast(self.dtype)
        if kept is None:
            weights = weights._dropped(p)
        return Seen(top, total, weights.matmul(value, dtype=wide), mask is not None)

    def _dropped(self, p: float) -> Self:
        """The tensor after dropout, which the random class provides."""
        raise NotImplementedError

    def _kept(self, p: float, shape: tuple[Any, ...]) -> Self:
        """A mask of what dropout keeps, which the random class provides."""
        raise NotImplementedError


def stands_for(x: Attention) -> Attention:
    """A node of its own in place of a value, of which a mask may be made, too."""
    return x._called(lambda g, call: [])


@dataclass(frozen=True)
class Backward:
    """The gradient of attention: a function of a CALL over queries, keys, values, the logarithms
    of the totals, the mask if there is one, and what dropout keeps if there is dropout.

    `start` is the position of the first query where attention is causal.
    """

    start: int | None
    dropout_p: float = 0.0

    def __call__(self, g: UOp, call: UOp) -> list[UOp | Attention | None]:
        """Gradients for each argument of `call`, whose result gets `g`."""
        query, key, value, logarithm, *masks = map(Attention._from_node, call.src[1:])
        kept = masks.pop() if self.dropout_p else None
        first = stands_for(query.matmul(turned(key), dtype=logarithm.dtype))
        weights = (masked(first, masks[0] if masks else self.start) - logarithm).exp()
        made = thinned(weights, kept, self.dropout_p)
        if multiplies(query.device, query.dtype):
            made = made.cast(query.dtype)
        (*outer, rows, width), (seen, columns) = query.shape, value.shape[-2:]
        kind = query.dtype if {key.dtype, value.dtype, g.dtype} == {query.dtype} else None
        is_masked = bool(masks) or kept is not None
        sizes = rows, seen, width, columns
        ways = ways_of(query.device, kind, math.prod(outer), sizes, is_masked)
        q, k, v, a, w, p = (x.uop for x in (query, key, value, made, weights, first))
        # Weights are 0 where a mask hides scores: their slopes are those of P, and of the mask.
        given = tuple([n for n in call.src[4:] if n.shape == p.shape])
        weighed = Weighed(call, q, k, v, a, w, p, p, ways, given, 1 / root(width))
        of_query, of_key, of_value, parts = weighed.gradients(g, gradients)
        if ways.are_whole:  # a sum over heads that share keys is no part of a chain
            of_key, of_value = in_memory(of_key), in_memory(of_value)
        first, *others = map(Attention._from_node, parts)
        whole = first.cat(*others, dim=-1) if others else first
        of_masks = [whole if dtypes.is_float(m.dtype) else None for m in masks]
        return [of_query, of_key, of_value, None, *of_masks, None][: len(call.src) - 1]
