"""Decoder: one description whose parts choose llama, qwen, gemma, phi, mistral, and experts.

All are the same network: a residual stream, to which each layer adds attention and then a gated
network of two products. They differ in what a field here says: norms, rotations, caps, windows,
scales. `gguf` and `folder` read a description from the metadata of files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tinycore.errors import FileFormatError

__all__ = ["Attention", "Description", "Experts", "Rotation"]

LARGEST: Final = 1 << 24
"""The greatest width, vocabulary or context that is believed."""
MOST_LAYERS: Final = 1024


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding: the frequencies of the pairs of a head.

    `width` of its numbers are rotated, the first half with the second. Frequencies are
    `base ** (-2 i / width)`, divided by `factors`, if given, and by `scale`; the cosines and sines
    are multiplied by `magnitude`.
    """

    base: float
    width: int
    scale: float = 1.0
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0

    def frequencies(self) -> list[float]:
        """The angle by which each pair turns from one position to the next."""
        steps = range(min(self.width, LARGEST) // 2)
        plain = [self.base ** (-2 * i / self.width) / self.scale for i in steps]
        return [f / by for f, by in zip(plain, self.factors or [1.0] * len(plain), strict=True)]


@dataclass(frozen=True)
class Attention:
    """Heads, and how their scores are made. `window` is the reach of layers in `windowed`."""

    heads: int
    kv_heads: int
    head_width: int
    rotation: Rotation
    scale: float
    soft_cap: float = 0.0
    window: int = 0
    windowed: frozenset[int] = frozenset()
    local_rotation: Rotation | None = None
    """The rotation of windowed layers, where it is another."""

    def rotation_of(self, layer: int) -> Rotation:
        """The rotation in a layer."""
        return (layer in self.windowed and self.local_rotation) or self.rotation


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: of `count` networks a token takes the `used` with the greatest scores.

    Their weights are the softmax over all scores; `normalized` divides them by their sum. A network
    of width `shared`, if not 0, takes every token, by a gate of its own.
    """

    count: int
    used: int
    normalized: bool = True
    shared: int = 0


@dataclass(frozen=True)
class Description:
    """A decoder: sizes, and the parts in which families differ."""

    family: str
    layers: int
    width: int
    feed_forward: int
    vocabulary: int
    context: int
    """The number of positions that it was trained for."""
    attention: Attention
    epsilon: float
    activation: str = "silu"
    embedding_scale: float = 1.0
    soft_cap: float = 0.0
    """The bound of the scores of tokens: `cap * tanh(scores / cap)`; 0 for none."""
    experts: Experts | None = None

    def check(self, place: str) -> Description:
        """Itself. Raises FileFormatError for sizes that no decoder has."""
        sizes = {
            "layers": (self.layers, MOST_LAYERS),
            "width": (self.width, LARGEST),
            "feed-forward width": (self.feed_forward, LARGEST),
            "vocabulary": (self.vocabulary, LARGEST),
            "context": (self.context, LARGEST),
            "heads": (self.attention.heads, LARGEST),
            "key-value heads": (self.attention.kv_heads, self.attention.heads),
            "width of a head": (self.attention.head_width, LARGEST),
        }
        if self.experts is not None:
            sizes["experts"] = (self.experts.count, LARGEST)
            sizes["experts of a token"] = (self.experts.used, self.experts.count)
        for name, (size, most) in sizes.items():
            if not 0 < size <= most:
                raise FileFormatError(f"{place}: its {name} is {size}, not from 1 to {most}")
        if self.attention.heads % self.attention.kv_heads:
            raise FileFormatError(
                f"{place}: its {self.attention.heads} heads are no multiple of its "
                f"{self.attention.kv_heads} key-value heads"
            )
        for rotation in filter(None, (self.attention.rotation, self.attention.local_rotation)):
            if not 0 < rotation.width <= self.attention.head_width or rotation.width % 2:
                raise FileFormatError(
                    f"{place}: {rotation.width} numbers of a head are rotated, no even number up "
                    f"to its width {self.attention.head_width}"
                )
            if rotation.factors and len(rotation.factors) != rotation.width // 2:
                raise FileFormatError(
                    f"{place}: {len(rotation.factors)} factors of rotation for "
                    f"{rotation.width // 2} pairs"
                )
            numbers = (rotation.base, rotation.scale, rotation.magnitude, *rotation.factors)
            if not all(math.isfinite(n) and n > 0 for n in numbers):
                raise FileFormatError(f"{place}: its rotation has numbers that are not positive")
        numbers = (self.epsilon, self.attention.scale, self.embedding_scale)
        if not all(math.isfinite(n) and n > 0 for n in numbers):
            raise FileFormatError(
                f"{place}: epsilon, scale of scores and scale of embeddings must be positive, "
                f"not {numbers}"
            )
        return self
