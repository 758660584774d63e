"""Layers that are one matrix: a linear map, and a table of vectors.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

import math

from tinycore import Tensor, dtypes
from tinycore.errors import DTypeError

__all__ = ["Embedding", "Linear"]


class Linear:
    """A linear map: x (..., in_features) -> (..., out_features).

    Weight (out_features, in_features) and bias (out_features,) start uniform within
    1/sqrt(in_features).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = 1 / math.sqrt(in_features)
        self.weight = Tensor.uniform(out_features, in_features, low=-bound, high=bound)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ShapeError when the last axis of `x` is not `in_features`."""
        return x.linear(self.weight.transpose(), self.bias)


class Embedding:
    """A table of vectors looked up by number: integers (...) -> (..., embed_size).

    Weight (vocab_size, embed_size) starts uniform after Glorot.
    """

    def __init__(self, vocab_size: int, embed_size: int) -> None:
        self.weight = Tensor.glorot_uniform(vocab_size, embed_size)

    def __call__(self, idx: Tensor) -> Tensor:
        """Raises DTypeError when `idx` holds no integers."""
        if not dtypes.is_int(idx.dtype):
            raise DTypeError(f"an embedding is looked up by integers, not {idx.dtype.name}")
        return self.weight[idx]
