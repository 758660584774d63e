"""Softmax attention.

Floor 5. softmax(Q @ K.T) @ V, written out: which scores are in memory at a time, and how many
kernels compute it, is decided where the device is known (`schedule/attention.py`).
"""

from __future__ import annotations

import math
from typing import Self

from tinycore.config import settings
from tinycore.dtype import dtypes, least_upper_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor.checks import floating_dtype
from tinycore.tensor.methods.composed import Composed


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
        result = least_upper_dtype(self.dtype, value.dtype)
        narrow = least_upper_dtype(result, key.dtype)
        query, key, value = (x.cast(narrow) for x in (self, key, value))
        if enable_gqa:
            shared = query._heads_of_group(key, value)
            key, value = (x.repeat_interleave(shared, -3) for x in (key, value))
        query, key, value = query._of_one_rank(key, value)
        wide = least_upper_dtype(narrow, dtypes.float32)
        factor = 1 / (math.sqrt(self.shape[-1]) or 1.0) if scale is None else scale
        scores = query.matmul(key.transpose(-2, -1), dtype=wide) * factor
        mask = scores._visible() if is_causal else attn_mask
        weights = scores._hidden(mask)._weights(mask is not None)
        weights = weights._dropped(dropout_p if settings.TRAINING else 0.0)
        return weights.cast(narrow).matmul(value, dtype=wide).cast(result)

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

    def _of_one_rank(self, *others: Self) -> list[Self]:
        """This and others, with as many axes as each other."""
        operands = [self, *others]
        rank = max(x.ndim for x in operands)
        return [x.reshape(*(1,) * (rank - x.ndim), *x.shape) for x in operands]

    def _visible(self) -> Self:
        """The mask that shows each row of scores the keys up to its own."""
        return self._upper_part(1).logical_not()

    def _hidden(self, mask: Self | None) -> Self:
        """Scores less what a mask hides."""
        if mask is None:
            return self
        return mask.where(self, -math.inf) if mask.dtype is dtypes.bool else self + mask

    def _weights(self, is_masked: bool) -> Self:
        """The softmax of scores; 0 in a row of which a mask hides all."""
        if not self.shape[-1]:
            return self
        top = self.max(-1, keepdim=True).detach()
        powers = (self - (top.eq(-math.inf).where(0, top) if is_masked else top)).exp()
        total = powers.sum(-1, keepdim=True)
        return powers / (total.eq(0).where(1, total) if is_masked else total)

    def _dropped(self, p: float) -> Self:
        """The tensor after dropout, which the random class provides."""
        raise NotImplementedError


def check_shapes(query: Composed, key: Composed, value: Composed) -> None:
    """Raises ShapeError for queries, keys and values that do not belong together."""
    shapes = query.shape, key.shape, value.shape
    if (
        min(map(len, shapes)) < 2
        or shapes[0][-1] != shapes[1][-1]
        or shapes[1][-2] != shapes[2][-2]
    ):
        raise ShapeError(
            "scaled_dot_product_attention: queries (.., length, d), keys (.., seen, d) and values "
            f"(.., seen, e) do not fit, got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
