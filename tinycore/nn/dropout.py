"""Dropout.

Floor 6. Imports the public API and the errors.
"""

from __future__ import annotations

from tinycore import Tensor
from tinycore.errors import ArgumentError
from tinycore.nn.initializers import verify_input

__all__ = ["Dropout", "probability"]


class Dropout:
    """Dropout (https://jmlr.org/papers/v15/srivastava14a.html): `Tensor.dropout` as a layer.

    In training each element is 0 with probability `p` and the rest are divided by 1 - p, else
    nothing changes. Training is `Context(TRAINING=1)`. Raises ArgumentError unless 0 <= p <= 1.

    >>> layer = nn.Dropout(0.5)
    >>> layer(Tensor.ones(4)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability("Dropout", p)

    def __call__(self, x: Tensor) -> Tensor:
        """The tensor itself, or some of it."""
        verify_input(self, x)
        return x.dropout(self.p)


def probability(layer: str, p: float) -> float:
    """`p` itself. Raises ArgumentError unless it lies in [0, 1]."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"{layer}: a probability lies between 0 and 1, got {p}")
    return p
