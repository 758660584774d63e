"""Linear layers, and embeddings.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

from tinycore import Tensor, dtypes
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.nn.initializers import inverse_root_uniform, positive_sizes, verify_input

__all__ = ["Embedding", "Linear"]


class Linear:
    """A linear map: x (..., in_features) -> (..., out_features).

    Weight (out_features, in_features) and bias (out_features,) start uniform within
    1/sqrt(in_features). Raises ArgumentError for sizes that are not positive.

    >>> layer = nn.Linear(3, 2)
    >>> layer(Tensor.ones(5, 3)).shape, layer.weight.shape, layer.bias.shape
    ((5, 2), (2, 3), (2,))
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        positive_sizes("Linear", in_features=in_features, out_features=out_features)
        matrix = (out_features, in_features)
        self.weight = inverse_root_uniform(matrix, inputs=in_features)
        self.bias = inverse_root_uniform(matrix[:1], inputs=in_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Raises ShapeError when the last axis of `x` is not `in_features`."""
        verify_input(self, x)
        outputs, inputs = self.weight.shape
        if x.shape[-1:] != (inputs,):
            raise ShapeError(f"Linear from {inputs} to {outputs} features cannot take {x.shape}")
        return x.linear(self.weight.transpose(), self.bias)


class Embedding:
    """A table of vectors looked up by number: integers (...) -> (..., embed_size).

    Weight (vocab_size, embed_size) starts uniform after Glorot. Rows are gathered, and their
    gradients scattered back, without a one-hot matrix. Negative numbers count from the end; numbers
    outside the table give zeros. The row `padding_idx` starts as zeros and gets no gradient. Raises
    ArgumentError for sizes that are not positive, and for a `padding_idx` outside the table.

    >>> table = nn.Embedding(10, 4)
    >>> table(Tensor([[1, 2, 1]])).shape
    (1, 3, 4)
    """

    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None) -> None:
        positive_sizes("Embedding", vocab_size=vocab_size, embed_size=embed_size)
        self.weight = Tensor.glorot_uniform(vocab_size, embed_size)
        self.padding_idx = padding_idx
        if padding_idx is not None:
            if not -vocab_size <= padding_idx < vocab_size:
                raise ArgumentError(
                    f"Embedding: padding_idx {padding_idx} names no row of {vocab_size}"
                )
            self.padding_idx = padding_idx % vocab_size
            rows = Tensor.arange(vocab_size, device=self.weight.device).unsqueeze(1)
            self.weight = rows.eq(self.padding_idx).where(0.0, self.weight)

    def __call__(self, idx: Tensor) -> Tensor:
        """Raises DTypeError when `idx` holds no integers."""
        verify_input(self, idx)
        if not dtypes.is_int(idx.dtype):
            raise DTypeError(f"an embedding is looked up by integers, not {idx.dtype.name}")
        if self.padding_idx is None:
            return self.weight[idx]
        negative = idx.eq(self.padding_idx - self.weight.shape[0])
        is_padding = (idx.eq(self.padding_idx) | negative).unsqueeze(-1)
        rows = self.weight[idx]
        return is_padding.where(rows.detach(), rows)
