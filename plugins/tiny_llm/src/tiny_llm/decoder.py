"""Decoder-only transformer: the scores of the next token, with a cache of keys and values.

The cache has lanes, one for each text that is written at the same time. A call takes a fixed number
of tokens for each of some lanes that lie side by side. Where they go is data, so one capture serves
every position. Attention looks at the first `reach` places of these lanes, a fixed number too; a
longer text uses the next power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy

from tiny_llm.description import Description, Rotation
from tiny_llm.packing import Matrix
from tinycore import Tensor
from tinycore.errors import UnsupportedError

__all__ = ["Cache", "Decoder", "Layer", "Places", "SharedExpert"]

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


@dataclass(frozen=True)
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


@final  # so true wherever there is one
@dataclass
class Cache:
    """Keys and values of each layer (lanes * places, kv heads, head width), and the rotations.

    Places come first, so that rows are stored where a tensor of indices says, without a copy.
    """

    lanes: int
    places: int
    keys: list[Tensor]
    values: list[Tensor]
    turns: dict[Rotation, tuple[Tensor, Tensor]]
    """Cosines and sines at each place: (places, pairs)."""

    @classmethod
    def empty(
        cls, about: Description, places: int, dtype: str, device: str | None, lanes: int = 1
    ) -> Cache:
        """A cache for `places` positions in each of `lanes`."""
        shape = (lanes * places, about.attention.kv_heads, about.attention.head_width)

        def made() -> list[Tensor]:
            return [
                Tensor.zeros(*shape, dtype=dtype, device=device).contiguous().realize()
                for _ in range(about.layers)
            ]

        rotations = {about.attention.rotation_of(number) for number in range(about.layers)}
        turns = {rotation: turn(rotation, places, device) for rotation in rotations}
        return cls(lanes, places, made(), made(), turns)

    def grown(self, places: int) -> Cache:
        """The same with more places in each lane."""

        def wider(kept: Tensor) -> Tensor:
            by_lane = kept.reshape(self.lanes, self.places, *kept.shape[1:])
            more = ((0, 0), (0, places - self.places), (0, 0), (0, 0))
            return by_lane.pad(more).flatten(0, 1).contiguous().realize()

        turns = {
            rotation: turn(rotation, places, cosines.device)
            for rotation, (cosines, _) in self.turns.items()
        }
        keys, values = (list(map(wider, kept)) for kept in (self.keys, self.values))
        return Cache(self.lanes, places, keys, values, turns)


@dataclass(frozen=True)
class Places:
    """Positions of the tokens (n, m) of a call, their rows in the cache, and the causal mask."""

    cache: Cache | None
    """None where the texts are new, and nothing of them is kept."""
    first: Any
    """The first of n lanes."""
    reach: int
    positions: Tensor
    """Positions in the texts: (n, m)."""
    rows: Tensor
    """Rows in the cache: (n * m,)."""
    made: dict[Any, Any] = field(default_factory=dict)
    """Masks by window and turns by rotation, which most layers share."""

    @classmethod
    def of(
        cls, tokens: Tensor, cache: Cache | None, starts: Tensor | None, first: Any, reach: int
    ) -> Places:
        """The places of tokens (n, m) that follow `starts` (n,) tokens of their texts."""
        lanes, count = (int(size) for size in tokens.shape)
        device = tokens.device
        positions = Tensor.arange(count, dtype="int32", device=device).expand(lanes, count)
        if cache is None:
            return cls(None, 0, count, positions, positions)
        if starts is not None:
            positions = positions + starts.unsqueeze(1)
        numbers = Tensor.arange(lanes, dtype="int32", device=device) + first
        rows = (numbers * cache.places).unsqueeze(1) + positions
        return cls(cache, first, reach, positions, rows.flatten().contiguous())

    def to(self, device: Any) -> Places:
        """The same on another device."""
        if device == self.positions.device:
            return self
        positions, rows = self.positions.to(device), self.rows.to(device)
        return Places(self.cache, self.first, self.reach, positions, rows)

    def mask(self, window: int) -> Tensor:
        """True where a token sees a place: (n, 1, 1, m, reach); `window` 0 for all before it."""
        if window not in self.made:
            seen = Tensor.arange(self.reach, dtype="int32", device=self.positions.device)
            distance = self.positions.unsqueeze(-1) - seen
            mask = distance >= 0
            if window:
                mask = mask & (distance < window)
            self.made[window] = mask.unsqueeze(1).unsqueeze(1)
        found: Tensor = self.made[window]
        return found

    def turns(self, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the tokens: (n * m, 1, pairs) each."""
        if rotation not in self.made:
            at, device = self.positions.flatten(), self.positions.device
            tables = (
                turn(rotation, self.reach, device)
                if self.cache is None
                else self.cache.turns[rotation]
            )
            self.made[rotation] = [table.to(device)[at].unsqueeze(1) for table in tables]
        cosines, sines = self.made[rotation]
        return cosines, sines

    def seen(self, kept: Tensor | None, new: Tensor) -> Tensor:
        """Keys or values of the lanes, after `new` (n * m, kv heads, head width) joined `kept`.

        (n, kv heads, reach, head width) float32.
        """
        lanes, count = (int(size) for size in self.positions.shape)
        if self.cache is None or kept is None:
            return new.reshape(lanes, count, *new.shape[1:]).transpose(1, 2)
        kept[self.rows] = new.cast(kept.dtype).detach()
        by_lane = kept.reshape(self.cache.lanes, self.cache.places, *kept.shape[1:])
        seen = by_lane[self.first : self.first + lanes, : self.reach]
        return seen.cast("float32").transpose(1, 2)


@dataclass(frozen=True)
class Decoder:
    """The network: description and weights. Neither is exchanged, as captures are made of them."""

    about: Description
    embedding: Matrix
    layers: tuple[Layer, ...]
    norm: Tensor
    output: Matrix

    def __post_init__(self) -> None:
        if self.about.activation not in ACTIVATIONS:
            raise UnsupportedError(
                f"the activation {self.about.activation!r} is none of {', '.join(ACTIVATIONS)}"
            )

    def __call__(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        starts: Tensor | None = None,
        last: Tensor | None = None,
        reach: int = 0,
        first: Any = 0,
    ) -> Tensor:
        """Scores of what follows: tokens (n, m) of n lanes from `first` on -> (n * m, vocabulary).

        `starts` (n,) are the positions of the first tokens in their texts. With `last` (n,), the
        scores after the rows with these numbers alone: (n, vocabulary). The keys and values of all
        n * m are written to the cache; without one, as in training, texts begin with the tokens.
        """
        about = self.about
        places = Places.of(tokens, cache, starts, first, reach)
        x = self.embedding.taken(tokens.flatten()) * about.embedding_scale
        for number, layer in enumerate(self.layers):
            device = layer.norm_attention.device  # layers may lie on several, as in a pipeline
            x, places = x.to(device), places.to(device)
            # stored, or each layer would add up all before it, in a kernel of its own
            x = self._attended(layer, x, number, places).contiguous()
            x = self._transformed(layer, x).contiguous()
            if cache is not None:  # computed layer by layer, alike ones are scheduled once
                x.realize()
        if last is not None:
            x = x[last]
        scores = self.output(normalized(x.to(self.norm.device), self.norm, about.epsilon))
        return scores if not about.soft_cap else capped(scores, about.soft_cap)

    def _attended(self, layer: Layer, x: Tensor, number: int, places: Places) -> Tensor:
        """x (n * m, width) plus attention."""
        a, rows = self.about.attention, int(x.shape[0])
        lanes, count = (int(size) for size in places.positions.shape)
        parts = products(
            normalized(x, layer.norm_attention, self.about.epsilon), *layer.into_attention
        )
        if layer.bias is not None:
            parts = parts + layer.bias
        wide, narrow = a.heads * a.head_width, a.kv_heads * a.head_width
        queries = parts[:, :wide].reshape(rows, a.heads, a.head_width)
        keys = parts[:, wide : wide + narrow].reshape(rows, a.kv_heads, a.head_width)
        values = parts[:, wide + narrow :].reshape(rows, a.kv_heads, a.head_width)
        if layer.norm_queries is not None:
            queries = normalized(queries, layer.norm_queries, self.about.epsilon)
        if layer.norm_keys is not None:
            keys = normalized(keys, layer.norm_keys, self.about.epsilon)
        turns = places.turns(a.rotation_of(number))
        cache = places.cache
        seen_keys = places.seen(cache and cache.keys[number], turned(keys, *turns))
        seen_values = places.seen(cache and cache.values[number], values)
        share = a.heads // a.kv_heads
        # (n, kv heads, share * m, head width): heads that share keys are rows of one product
        grouped = (turned(queries, *turns) * a.scale).reshape(lanes, count, a.heads, a.head_width)
        grouped = grouped.transpose(1, 2).reshape(lanes, a.kv_heads, share * count, a.head_width)
        scores = grouped @ seen_keys.transpose(2, 3)
        scores = scores.reshape(lanes, a.kv_heads, share, count, places.reach)
        if a.soft_cap:
            scores = capped(scores, a.soft_cap)
        mask = places.mask(a.window if number in a.windowed else 0)
        weights = mask.where(scores, -math.inf).softmax(-1)
        found = weights.reshape(lanes, a.kv_heads, share * count, places.reach) @ seen_values
        found = found.reshape(lanes, a.heads, count, a.head_width).transpose(1, 2)
        added = layer.out_of_attention(found.reshape(rows, wide))
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


def turn(rotation: Rotation, places: int, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines at the first places: (places, pairs) each.

    A table, so that a row has the same ones however many rows are computed beside it.
    """
    angles = numpy.outer(numpy.arange(places), numpy.array(rotation.frequencies()))
    parts = (numpy.cos(angles), numpy.sin(angles))
    cosines, sines = ((part * rotation.magnitude).astype(numpy.float32) for part in parts)
    return Tensor(cosines, device=device).realize(), Tensor(sines, device=device).realize()


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of heads (m, heads, width): the first half turns with the second."""
    half = int(cosines.shape[-1])
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    parts = [first * cosines - second * sines, second * cosines + first * sines]
    return Tensor.cat(*parts, *([rest] if rest.shape[-1] else []), dim=-1)
