"""Decoder-only transformer: the scores of the next token, with a cache of keys and values.

A call takes a fixed number of tokens, of which the first `count` are real, at a position that is
symbolic: one capture serves every position. Attention looks at the first `reach` places of the
cache, a fixed number too; a longer text uses the next power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy

from tiny_llm.description import Description, Rotation
from tiny_llm.packing import Matrix
from tinycore import Tensor
from tinycore.errors import UnsupportedError

__all__ = ["Cache", "Decoder", "Layer", "SharedExpert"]

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": Tensor.silu,
    "gelu": lambda x: x.gelu("none"),
    "gelu_tanh": lambda x: x.gelu("tanh"),
}


@dataclass(frozen=True)
class SharedExpert:
    """A network that takes every token, times the sigmoid of a product where there is a gate."""

    into: tuple[Matrix, ...]
    out: Matrix
    gate: Tensor | None


@dataclass
class Layer:
    """The weights of one layer; None for parts that a family has not.

    `into_attention` and `into_network` are products of the same input, their results side by side
    in the order queries, keys, values and gate, up.
    """

    into_attention: tuple[Matrix, ...]
    out_of_attention: Matrix
    norm_attention: Tensor
    norm_network: Tensor
    into_network: tuple[Matrix, ...] = ()
    out_of_network: Matrix | None = None
    bias: Tensor | None = None
    norm_queries: Tensor | None = None
    norm_keys: Tensor | None = None
    norm_after_attention: Tensor | None = None
    norm_after_network: Tensor | None = None
    router: Matrix | None = None
    experts: tuple[Matrix, ...] = ()
    """Gate, up and down of all experts, one after another in each."""
    shared: SharedExpert | None = None


@dataclass
class Cache:
    """Keys and values of each layer (kv heads, places, head width), and how many are there."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(cls, about: Description, places: int, dtype: str, device: str | None) -> Cache:
        """A cache for `places` positions."""
        shape = (about.attention.kv_heads, places, about.attention.head_width)

        def made() -> list[Tensor]:
            return [
                Tensor.zeros(*shape, dtype=dtype, device=device).contiguous().realize()
                for _ in range(about.layers)
            ]

        return cls(made(), made())


class Decoder:
    """The network: description and weights."""

    def __init__(
        self,
        about: Description,
        embedding: Matrix,
        layers: list[Layer],
        norm: Tensor,
        output: Matrix | None,
    ) -> None:
        if about.activation not in ACTIVATIONS:
            raise UnsupportedError(
                f"the activation {about.activation!r} is none of {', '.join(ACTIVATIONS)}"
            )
        self.about = about
        self.embedding, self.layers, self.norm = embedding, layers, norm
        self.output = embedding if output is None else output

    def __call__(
        self, tokens: Tensor, cache: Cache, position: Any, last: Tensor | None, reach: int
    ) -> Tensor:
        """Scores of what follows: tokens (m,) at `position` and on -> (m, vocabulary).

        With `last` (1,), the scores after the token with that index alone: (1, vocabulary).
        The keys and values of all m are written to the cache.
        """
        about, count = self.about, int(tokens.shape[0])
        x = self.embedding.taken(tokens)
        if about.embedding_scale != 1:
            x = x * about.embedding_scale
        places = Tensor.arange(count, device=tokens.device) + position
        turns = {}
        for number, layer in enumerate(self.layers):
            device = layer.norm_attention.device  # layers may lie on several, as in a pipeline
            x, places = x.to(device), places.to(device)
            rotation = about.attention.rotation_of(number)
            if (rotation, device) not in turns:
                turns[rotation, device] = turn(rotation, places)
            mask, turned_by = self._mask(number, places, reach), turns[rotation, device]
            x = self._attended(layer, x, cache, number, position, turned_by, mask, reach)
            x = x.contiguous()
            # stored, or each layer would add up all before it, in a kernel of its own
            x = self._transformed(layer, x).contiguous()
        if last is not None:
            x = x[last]
        scores = self.output(normalized(x.to(self.norm.device), self.norm, about.epsilon))
        return scores if not about.soft_cap else capped(scores, about.soft_cap)

    def _mask(self, number: int, places: Tensor, reach: int) -> Tensor:
        """True where a token sees a place: (m, reach)."""
        seen = Tensor.arange(reach, device=places.device)
        distance = places.unsqueeze(1) - seen
        mask = distance >= 0
        if number in self.about.attention.windowed:
            mask = mask & (distance < self.about.attention.window)
        return mask

    def _attended(
        self,
        layer: Layer,
        x: Tensor,
        cache: Cache,
        number: int,
        position: Any,
        turns: tuple[Tensor, Tensor],
        mask: Tensor,
        reach: int,
    ) -> Tensor:
        """x (m, width) plus attention."""
        a, count = self.about.attention, int(x.shape[0])
        parts = products(
            normalized(x, layer.norm_attention, self.about.epsilon), *layer.into_attention
        )
        if layer.bias is not None:
            parts = parts + layer.bias
        wide, narrow = a.heads * a.head_width, a.kv_heads * a.head_width
        queries = parts[:, :wide].reshape(count, a.heads, a.head_width)
        keys = parts[:, wide : wide + narrow].reshape(count, a.kv_heads, a.head_width)
        values = parts[:, wide + narrow :].reshape(count, a.kv_heads, a.head_width)
        if layer.norm_queries is not None:
            queries = normalized(queries, layer.norm_queries, self.about.epsilon)
        if layer.norm_keys is not None:
            keys = normalized(keys, layer.norm_keys, self.about.epsilon)
        queries, keys = turned(queries, *turns), turned(keys, *turns)
        all_keys, all_values = cache.keys[number], cache.values[number]
        all_keys[:, position : position + count] = keys.transpose(0, 1).cast(all_keys.dtype)
        all_values[:, position : position + count] = values.transpose(0, 1).cast(all_values.dtype)
        seen_keys = all_keys[:, :reach].cast("float32")
        seen_values = all_values[:, :reach].cast("float32")
        share = a.heads // a.kv_heads
        # (kv heads, share * m, head width): heads that share keys are rows of one product
        grouped = (
            (queries * a.scale).transpose(0, 1).reshape(a.kv_heads, share * count, a.head_width)
        )
        scores = (grouped @ seen_keys.transpose(1, 2)).reshape(a.kv_heads, share, count, reach)
        if a.soft_cap:
            scores = capped(scores, a.soft_cap)
        weights = mask.where(scores, -math.inf).softmax(-1)
        found = weights.reshape(a.kv_heads, share * count, reach) @ seen_values
        found = found.reshape(a.heads, count, a.head_width).transpose(0, 1).reshape(count, wide)
        added = layer.out_of_attention(found)
        if layer.norm_after_attention is not None:
            added = normalized(added, layer.norm_after_attention, self.about.epsilon)
        return x + added

    def _transformed(self, layer: Layer, x: Tensor) -> Tensor:
        """x (m, width) plus the network of each token, or its experts."""
        y = normalized(x, layer.norm_network, self.about.epsilon)
        if layer.router is not None:
            added = self._by_experts(layer, y)
        else:
            assert layer.out_of_network is not None
            added = layer.out_of_network(self._gated(products(y, *layer.into_network)))
        if layer.norm_after_network is not None:
            added = normalized(added, layer.norm_after_network, self.about.epsilon)
        return x + added

    def _gated(self, parts: Tensor) -> Tensor:
        half = parts.shape[1] // 2
        return ACTIVATIONS[self.about.activation](parts[:, :half]) * parts[:, half:]

    def _by_experts(self, layer: Layer, y: Tensor) -> Tensor:
        """The weighted sum of the experts of each token."""
        experts, count = self.about.experts, int(y.shape[0])
        assert experts is not None and layer.router is not None  # noqa: PT018
        scores, chosen = layer.router(y).softmax(-1).topk(experts.used)
        if experts.normalized:
            scores = scores / scores.sum(-1, keepdim=True)
        if count * experts.used < experts.count:
            added = self._by_chosen(layer, y, scores, chosen, experts.count)
        else:
            added = self._by_all(layer, y, scores, chosen, experts.count)
        if layer.shared is not None:
            one = layer.shared.out(self._gated(products(y, *layer.shared.into)))
            if layer.shared.gate is not None:
                one = one * (y * layer.shared.gate).sum(-1, keepdim=True).sigmoid()
            added = added + one
        return added

    def _by_chosen(
        self, layer: Layer, y: Tensor, scores: Tensor, chosen: Tensor, count: int
    ) -> Tensor:
        """The sum over the chosen experts (m, u), of which alone weights are read."""
        gate, up, down = layer.experts
        one = y.unsqueeze(1)
        activated = ACTIVATIONS[self.about.activation](gate.of_experts(one, chosen, count))
        found = down.of_experts(activated * up.of_experts(one, chosen, count), chosen, count)
        return (found * scores.unsqueeze(-1)).sum(1)

    def _by_all(
        self, layer: Layer, y: Tensor, scores: Tensor, chosen: Tensor, count: int
    ) -> Tensor:
        """The same where tokens are many: all experts are computed, most with weight 0."""
        gate, up, down = layer.experts
        added = None
        for number in range(count):
            activated = ACTIVATIONS[self.about.activation](gate.of_expert(y, number, count))
            one = down.of_expert(activated * up.of_expert(y, number, count), number, count)
            weight = (chosen == number).where(scores, 0).sum(-1, keepdim=True)
            added = one * weight if added is None else added + one * weight
        assert added is not None
        return added


def products(x: Tensor, *matrices: Matrix) -> Tensor:
    """The products of one input with several matrices, side by side."""
    found = [matrix(x) for matrix in matrices]
    return found[0] if len(found) == 1 else Tensor.cat(*found, dim=1)


def normalized(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm over the last axis."""
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def capped(x: Tensor, cap: float) -> Tensor:
    """Numbers softly bounded by +-cap."""
    return (x / cap).tanh() * cap


def turn(rotation: Rotation, places: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines at places (m,): (m, 1, pairs) each."""
    frequencies = Tensor(numpy.array(rotation.frequencies(), numpy.float32), device=places.device)
    angles = (places.cast("float32").unsqueeze(1) * frequencies).unsqueeze(1)
    return angles.cos() * rotation.magnitude, angles.sin() * rotation.magnitude


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of heads (m, heads, width): the first half turns with the second."""
    half = int(cosines.shape[-1])
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    parts = [first * cosines - second * sines, second * cosines + first * sines]
    return Tensor.cat(*parts, *([rest] if rest.shape[-1] else []), dim=-1)
