"""Decoder from named weights: matrices with one input side by side, quantized ones packed.

Weights have the names of GGUF, without regard to the file they come from: `blk.0.attn_q.weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy

from tiny_llm.decoder import Decoder, Layer, SharedExpert
from tiny_llm.description import Description
from tiny_llm.packing import Matrix, dense, form, joined, packed, packed_experts
from tiny_llm.quants import Groups
from tinycore import Tensor
from tinycore.plugin import progress

__all__ = ["Assembly", "Weights"]

Array = numpy.ndarray[Any, Any]

WHOLE: Final = (0, 1)
"""The part of a tensor that is not one of several matrices in it."""


class Weights(Protocol):
    """Named weights of a file. All methods raise FileFormatError for what is absent or ill-shaped.

    `part` is the number of a matrix and their count, for tensors that hold those of all experts.
    """

    def has(self, name: str) -> bool:
        """True if there is a tensor of that name."""

    def numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        """A small tensor in float32."""

    def groups(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Groups | None:
        """A quantized matrix taken apart, None for one that is dense here."""

    def values(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Tensor:
        """A dense matrix, on the device."""


class Assembly:
    """Maker of the decoder that a description and weights give, on a device."""

    def __init__(self, about: Description, weights: Weights, device: str | None) -> None:
        self.about, self.weights, self.device = about, weights, device

    def decoder(self) -> Decoder:
        """The network. Raises FileFormatError for weights that do not fit the description."""
        about, scores = self.about, (self.about.vocabulary, self.about.width)
        numbers = progress(range(about.layers), "loading layers", about.layers)
        embedding = self.matrix("token_embd", scores)
        return Decoder(
            about,
            embedding,
            tuple([self.layer(number) for number in numbers]),
            self.vector("output_norm.weight", about.width),
            self.matrix("output", scores) if self.weights.has("output.weight") else embedding,
        )

    def layer(self, number: int) -> Layer:
        """One layer."""
        about, a, at = self.about, self.about.attention, f"blk.{number}."
        wide, narrow = a.heads * a.head_width, a.kv_heads * a.head_width
        attention: tuple[Matrix, ...]
        if self.weights.has(f"{at}attn_qkv.weight"):
            attention = (self.matrix(f"{at}attn_qkv", (wide + 2 * narrow, about.width)),)
        else:
            sizes = {"attn_q": wide, "attn_k": narrow, "attn_v": narrow}
            attention = self.side_by_side(at, sizes, about.width)

        def optional(name: str, size: int) -> Tensor | None:
            found = f"{at}{name}.weight"
            return self.vector(found, size) if self.weights.has(found) else None

        return Layer(
            into_attention=attention,
            out_of_attention=self.matrix(f"{at}attn_output", (about.width, wide)),
            norm_attention=self.vector(f"{at}attn_norm.weight", about.width),
            norm_network=self.vector(f"{at}ffn_norm.weight", about.width),
            bias=self.bias(at, wide, narrow),
            norm_queries=optional("attn_q_norm", a.head_width),
            norm_keys=optional("attn_k_norm", a.head_width),
            norm_after_attention=optional("post_attention_norm", about.width),
            norm_after_network=optional("post_ffw_norm", about.width),
            **self.network(at),
        )

    def into_network(self, at: str, end: str, inner: int) -> tuple[Matrix, ...]:
        """Gate and up; one tensor may hold both."""
        if self.weights.has(f"{at}ffn_gate{end}.weight"):
            both = {f"ffn_gate{end}": inner, f"ffn_up{end}": inner}
            return self.side_by_side(at, both, self.about.width)
        return (self.matrix(f"{at}ffn_up{end}", (2 * inner, self.about.width)),)

    def bias(self, at: str, wide: int, narrow: int) -> Tensor | None:
        """Biases of queries, keys and values, or None."""
        sizes = {"attn_q": wide, "attn_k": narrow, "attn_v": narrow}
        names = {f"{at}{name}.bias": size for name, size in sizes.items()}
        if not any(self.weights.has(name) for name in names):
            return None
        parts = [
            self.weights.numbers(name, (size,))
            if self.weights.has(name)
            else numpy.zeros(size, numpy.float32)
            for name, size in names.items()
        ]
        return Tensor(numpy.concatenate(parts), device=self.device).realize()

    def network(self, at: str) -> dict[str, Any]:
        """The parts of a network: of one, or a router, experts and one that all tokens share."""
        about, experts, inner = self.about, self.about.experts, self.about.feed_forward
        back = (about.width, inner)
        if experts is None:
            into = self.into_network(at, "", inner)
            return {"into_network": into, "out_of_network": self.matrix(f"{at}ffn_down", back)}
        sizes = {"ffn_gate": back[::-1], "ffn_up": back[::-1], "ffn_down": back}
        count = experts.count
        found: dict[str, Any] = {
            "router": self.matrix(f"{at}ffn_gate_inp", (count, about.width)),
            "experts": tuple(self.matrices(f"{at}{n}", size, count) for n, size in sizes.items()),
        }
        if shared := experts.shared:
            gate_name = f"{at}ffn_gate_inp_shexp.weight"
            found["shared"] = SharedExpert(
                self.into_network(at, "_shexp", shared),
                self.matrix(f"{at}ffn_down_shexp", (about.width, shared)),
                self.vector(gate_name, about.width) if self.weights.has(gate_name) else None,
            )
        return found

    def vector(self, name: str, size: int) -> Tensor:
        """The weights of a norm."""
        return Tensor(self.weights.numbers(name, (size,)), device=self.device).realize()

    def side_by_side(self, at: str, sizes: Mapping[str, int], width: int) -> tuple[Matrix, ...]:
        """Matrices that have one input: one where they are stored alike, else as few as may be."""
        found: list[list[Groups] | Tensor] = []
        for name, size in sizes.items():
            groups = self.weights.groups(f"{at}{name}.weight", (size, width), WHOLE)
            last = found[-1] if found else None
            if groups is None:
                values = self.weights.values(f"{at}{name}.weight", (size, width), WHOLE)
                if isinstance(last, Tensor) and last.dtype == values.dtype:
                    found[-1] = last.cat(values, dim=0)
                else:
                    found.append(values)
            elif isinstance(last, list) and form(last[0]) == form(groups):
                last.append(groups)
            else:
                found.append([groups])
        return tuple(
            packed(joined(each), self.device) if isinstance(each, list) else dense(each)
            for each in found
        )

    def matrix(self, name: str, shape: tuple[int, int], part: tuple[int, int] = WHOLE) -> Matrix:
        """A matrix (n, k), or that of one expert of several that lie in one tensor."""
        groups = self.weights.groups(f"{name}.weight", shape, part)
        if groups is not None:
            return packed(groups, self.device)
        return dense(self.weights.values(f"{name}.weight", shape, part))

    def matrices(self, name: str, shape: tuple[int, int], count: int) -> Matrix:
        """The matrices of all experts, one after another: of one tensor, or of one for each."""
        weights = self.weights
        is_one = weights.has(f"{name}_exps.weight")
        places = [
            (f"{name}_exps.weight", (n, count)) if is_one else (f"{name}.{n}.weight", WHOLE)
            for n in range(count)
        ]
        groups = [weights.groups(place, shape, part) for place, part in places]
        known = [each for each in groups if each is not None]
        if len(known) == count and len({form(each) for each in known}) == 1:
            return packed_experts(known, self.device)
        values = [weights.values(place, shape, part) for place, part in places]
        if len({value.dtype for value in values}) > 1:
            values = [value.cast("float16") for value in values]
        return dense(Tensor.cat(*values, dim=0).realize())
