"""Decoder from a GGUF file: description from its metadata, weights repacked from its blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy
from tqdm import tqdm

from tiny_llm.decoder import Decoder, Layer
from tiny_llm.description import Attention, Description, Experts, Rotation
from tiny_llm.packing import Matrix, dense, joined, packed
from tiny_llm.quants import Groups, split
from tinycore import Tensor
from tinycore.errors import FileFormatError, UnsupportedError
from tinycore.nn.blocks import BLOCK_TYPES
from tinycore.nn.files.gguf import GgufFile, parts_of_model

__all__ = ["GgufModel"]

Array = numpy.ndarray[Any, Any]

FLOATS: Final = {"F32": "float32", "F16": "float16", "F64": "float64"}


@dataclass(frozen=True)
class Family:
    """Facts of an architecture that its metadata does not state."""

    pairs: bool = False
    """Rows of queries and keys are in the order of adjacent pairs, which rotations take apart."""
    activation: str = "silu"
    scales_embedding: bool = False
    windowed_every: int = 0
    """Period of layers, all but the last of which see a window; 0: all do, if one is stated."""
    local_base: float = 0.0
    """The base of rotations in windowed layers, where it is another."""
    window: bool = True
    normalizes_experts: bool = True


FAMILIES: Final = {
    "llama": Family(pairs=True),
    "mistral": Family(pairs=True),
    "mistral3": Family(pairs=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen2moe": Family(normalizes_experts=False),
    "qwen3moe": Family(),
    "gemma": Family(activation="gelu_tanh", scales_embedding=True),
    "gemma2": Family(activation="gelu_tanh", scales_embedding=True, windowed_every=2),
    "gemma3": Family(
        activation="gelu_tanh", scales_embedding=True, windowed_every=6, local_base=10000.0
    ),
    "phi3": Family(),
}


class Metadata:
    """The metadata of an architecture, read with its types checked."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def get(self, key: str, kind: type, otherwise: Any = None) -> Any:
        """A value of a type. Raises FileFormatError for one of another type, or none at all."""
        value = self.values.get(key, otherwise)
        if value is None:
            raise FileFormatError(f"{self.place}: the metadata has no {key}")
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise FileFormatError(
                f"{self.place}: {key} is {str(value)[:60]!r}, of type {type(value).__name__}, "
                f"not {kind.__name__}"
            )
        return value

    def one(self, key: str, otherwise: Any = None) -> int:
        """An integer, which may be stated for each layer alike."""
        value = self.values.get(key, otherwise)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        elif isinstance(value, list):
            raise UnsupportedError(f"{self.place}: {key} differs between layers")
        return int(Metadata({key: value}, self.place).get(key, int))


class GgufModel:
    """A model in a GGUF file, or in several: any one of them is named."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        sizes = {number: (kind.elements, kind.size) for number, kind in BLOCK_TYPES.items()}
        self.files = parts_of_model(path, sizes)
        self.place = str(path)
        self.metadata = self.files[0].metadata
        self.where: dict[str, GgufFile] = {
            name: file for file in self.files for name in file.tensors
        }
        known = Metadata(self.metadata, self.place)
        self.architecture: str = known.get("general.architecture", str)
        if self.architecture not in FAMILIES:
            raise UnsupportedError(
                f"{self.place}: the architecture {self.architecture!r} is none of "
                f"{', '.join(FAMILIES)}"
            )
        self.family = FAMILIES[self.architecture]
        self.about = self._description(known)

    def _description(self, known: Metadata) -> Description:
        a = self.architecture
        layers, width = known.one(f"{a}.block_count"), known.one(f"{a}.embedding_length")
        heads = known.one(f"{a}.attention.head_count")
        head_width = known.one(f"{a}.attention.key_length", width // max(heads, 1))
        if known.one(f"{a}.attention.value_length", head_width) != head_width:
            raise UnsupportedError(f"{self.place}: keys and values differ in width")
        context = known.one(f"{a}.context_length")
        window = known.one(f"{a}.attention.sliding_window", 0)
        if not 0 < window < context:
            window = 0
        experts = known.one(f"{a}.expert_count", 0)
        feed_forward = known.one(f"{a}.feed_forward_length", 0)
        if experts:
            feed_forward = known.one(f"{a}.expert_feed_forward_length", feed_forward)
        embedding = self.where.get("token_embd.weight")
        rows = embedding.tensors["token_embd.weight"].shape[0] if embedding else 0
        rotation = self._rotation(known, head_width, context)
        every = self.family.windowed_every
        windowed = [n for n in range(layers) if window and not (every and n % every == every - 1)]
        local = Rotation(self.family.local_base, rotation.width) if self.family.local_base else None
        scale = head_width**-0.5
        if a == "gemma2" and layers == 46:
            scale = (width / heads) ** -0.5  # the 27B model's own
        if a == "gemma3" and layers == 62:
            scale = (width / heads) ** -0.5
        return Description(
            family=a,
            layers=layers,
            width=width,
            feed_forward=feed_forward,
            vocabulary=rows,
            context=context,
            attention=Attention(
                heads=heads,
                kv_heads=known.one(f"{a}.attention.head_count_kv", heads),
                head_width=head_width,
                rotation=rotation,
                scale=scale,
                soft_cap=known.get(f"{a}.attn_logit_softcapping", float, 0.0),
                window=window,
                windowed=frozenset(windowed),
                local_rotation=local,
            ),
            epsilon=known.get(f"{a}.attention.layer_norm_rms_epsilon", float),
            activation=self.family.activation,
            embedding_scale=math.sqrt(width) if self.family.scales_embedding else 1.0,
            soft_cap=known.get(f"{a}.final_logit_softcapping", float, 0.0),
            experts=Experts(
                experts,
                known.one(f"{a}.expert_used_count"),
                self.family.normalizes_experts,
            )
            if experts
            else None,
        ).check(self.place)

    def _rotation(self, known: Metadata, head_width: int, context: int) -> Rotation:
        a = self.architecture
        kind = known.get(f"{a}.rope.scaling.type", str, "none")
        scale, magnitude = 1.0, 1.0
        factor = known.get(f"{a}.rope.scaling.factor", float, 1.0)
        if kind == "linear":
            scale = factor
        elif kind not in ("none", "longrope"):
            raise UnsupportedError(f"{self.place}: rotations scaled by {kind!r}; linear is known")
        factors: tuple[float, ...] = ()
        original = known.one(f"{a}.rope.scaling.original_context_length", context)
        name = "rope_factors_short.weight" if context <= original else "rope_factors_long.weight"
        for each in ("rope_freqs.weight", name):
            if each in self.where:
                factors = tuple(float(f) for f in self.numbers(each).reshape(-1))
        if context > original and name in self.where:
            magnitude = known.get(f"{a}.rope.scaling.attn_factor", float, 1.0)
            if magnitude == 1.0:
                magnitude = math.sqrt(1 + math.log(context / original) / math.log(original))
        return Rotation(
            known.get(f"{a}.rope.freq_base", float, 10000.0),
            known.one(f"{a}.rope.dimension_count", head_width),
            scale,
            factors,
            magnitude,
        )

    # --- weights

    def decoder(self, device: str | None = None) -> Decoder:
        """The network with its weights, read and repacked. Raises FileFormatError."""
        about = self.about
        numbers = tqdm(
            range(about.layers), "loading", unit=" layers", disable=None, leave=False, delay=1
        )
        layers = [self._layer(number, device) for number in numbers]
        return Decoder(
            about,
            self.matrix("token_embd", device, (about.vocabulary, about.width)),
            layers,
            self.vector("output_norm.weight", device, about.width),
            self.matrix("output", device, (about.vocabulary, about.width))
            if "output.weight" in self.where
            else None,
        )

    def _layer(self, number: int, device: str | None) -> Layer:
        about, a, at = self.about, self.about.attention, f"blk.{number}."
        wide, narrow = a.heads * a.head_width, a.kv_heads * a.head_width
        attention: tuple[Matrix, ...]
        if f"{at}attn_qkv.weight" in self.where:
            attention = (self.matrix(f"{at}attn_qkv", device, (wide + 2 * narrow, about.width)),)
        else:
            sizes = {"attn_q": wide, "attn_k": narrow, "attn_v": narrow}
            attention = self.side_by_side(at, sizes, about.width, device)

        def optional(name: str, size: int) -> Tensor | None:
            found = f"{at}{name}.weight"
            return self.vector(found, device, size) if found in self.where else None

        layer = Layer(
            into_attention=attention,
            out_of_attention=self.matrix(f"{at}attn_output", device, (about.width, wide)),
            norm_attention=self.vector(f"{at}attn_norm.weight", device, about.width),
            norm_network=self.vector(f"{at}ffn_norm.weight", device, about.width),
            bias=self._bias(at, wide, narrow, device),
            norm_queries=optional("attn_q_norm", a.head_width),
            norm_keys=optional("attn_k_norm", a.head_width),
            norm_after_attention=optional("post_attention_norm", about.width),
            norm_after_network=optional("post_ffw_norm", about.width),
        )
        if about.experts is not None:
            self._add_experts(layer, at, device)
            return layer
        inner = about.feed_forward
        if f"{at}ffn_gate.weight" in self.where:
            both = {"ffn_gate": inner, "ffn_up": inner}
            layer.into_network = self.side_by_side(at, both, about.width, device)
        else:
            layer.into_network = (self.matrix(f"{at}ffn_up", device, (2 * inner, about.width)),)
        layer.out_of_network = self.matrix(f"{at}ffn_down", device, (about.width, inner))
        return layer

    def _bias(self, at: str, wide: int, narrow: int, device: str | None) -> Tensor | None:
        sizes = {"attn_q": wide, "attn_k": narrow, "attn_v": narrow}
        names = {f"{at}{name}.bias": size for name, size in sizes.items()}
        if not any(name in self.where for name in names):
            return None
        parts = []
        for name, size in names.items():
            values = self.numbers(name, (size,)) if name in self.where else numpy.zeros(size, "f4")
            parts.append(values if name.endswith("attn_v.bias") else self._ordered(name, values))
        return Tensor(numpy.concatenate(parts), device=device).realize()

    def _add_experts(self, layer: Layer, at: str, device: str | None) -> None:
        about = self.about
        assert about.experts is not None
        count, inner = about.experts.count, about.feed_forward
        if f"{at}ffn_gate_shexp.weight" in self.where:
            raise UnsupportedError(f"{self.place}: experts that all tokens share are not read yet")
        layer.router = self.matrix(f"{at}ffn_gate_inp", device, (count, about.width))
        sizes = {"ffn_gate": (inner, about.width), "ffn_up": (inner, about.width)}
        sizes["ffn_down"] = (about.width, inner)
        for expert in range(count):
            gate, up, down = (
                self.matrix(f"{at}{name}_exps", device, size, (expert, count))
                if f"{at}{name}_exps.weight" in self.where
                else self.matrix(f"{at}{name}.{expert}", device, size)
                for name, size in sizes.items()
            )
            layer.experts.append((gate, up, down))

    def blocks(self, name: str, shape: tuple[int, ...]) -> tuple[str, Array]:
        """The type and the blocks of a tensor. Raises FileFormatError unless it has the shape."""
        file = self.where.get(name)
        if file is None:
            raise FileFormatError(f"{self.place}: the model has no tensor {name}")
        tensor = file.tensors[name]
        if tensor.shape != shape:
            raise FileFormatError(
                f"{self.place}: tensor {name} has shape {tensor.shape}, its metadata says {shape}"
            )
        blocks = file.blocks_of(name)
        return BLOCK_TYPES[tensor.kind].name, blocks

    def numbers(self, name: str, shape: tuple[int, ...] | None = None) -> Array:
        """A small tensor in float32."""
        file = self.where.get(name)
        stated = file.tensors[name].shape if file is not None and shape is None else shape or ()
        kind, blocks = self.blocks(name, stated)
        if kind in FLOATS:
            return blocks.reshape(-1).view(FLOATS[kind]).astype(numpy.float32).reshape(stated)
        number = next(n for n, k in BLOCK_TYPES.items() if k.name == kind)
        return BLOCK_TYPES[number].decode(Tensor(blocks)).float().reshape(stated).numpy()

    def vector(self, name: str, device: str | None, size: int) -> Tensor:
        """The weights of a norm, or a bias."""
        return Tensor(self.numbers(name, (size,)), device=device).realize()

    def side_by_side(
        self, at: str, sizes: Mapping[str, int], width: int, device: str | None
    ) -> tuple[Matrix, ...]:
        """Matrices that have one input: one where their types agree, else as few as may be."""
        found: list[list[Groups] | Matrix] = []
        for name, size in sizes.items():
            groups = self._groups(f"{at}{name}.weight", (size, width))
            if groups is None:
                found.append(self.matrix(f"{at}{name}", device, (size, width)))
            elif found and isinstance(found[-1], list) and alike(found[-1][0], groups):
                found[-1].append(groups)
            else:
                found.append([groups])
        return tuple(packed(joined(f), device) if isinstance(f, list) else f for f in found)

    def matrix(
        self,
        name: str,
        device: str | None,
        shape: tuple[int, int],
        part: tuple[int, int] = (0, 1),
    ) -> Matrix:
        """A matrix (n, k), or that of one expert of several that lie in one tensor."""
        name = f"{name}.weight"
        groups = self._groups(name, shape, part)
        if groups is not None:
            return packed(groups, device)
        kind, blocks = self._part(name, shape, part)
        number = next(n for n, k in BLOCK_TYPES.items() if k.name == kind)
        values = BLOCK_TYPES[number].decode(Tensor(blocks, device=device)).reshape(shape)
        if kind not in (*FLOATS, "BF16"):
            values = values.cast("float16")
        if self._is_paired(name):
            values = values[Tensor(self._order(shape[0]), device=device)]
        return dense(values.contiguous().realize())

    def _part(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> tuple[str, Array]:
        which, count = part
        kind, blocks = self.blocks(name, shape if count == 1 else (count, *shape))
        return kind, blocks.reshape(count, -1, blocks.shape[1])[which]

    def _groups(
        self, name: str, shape: tuple[int, int], part: tuple[int, int] = (0, 1)
    ) -> Groups | None:
        kind, blocks = self._part(name, shape, part)
        if self._is_paired(name):
            rows = blocks.reshape(shape[0], -1)[self._order(shape[0])]
            blocks = rows.reshape(blocks.shape)
        return split(kind, blocks, shape[0])

    def _is_paired(self, name: str) -> bool:
        return self.family.pairs and name.endswith(("attn_q.weight", "attn_k.weight"))

    def _ordered(self, name: str, values: Array) -> Array:
        return values[self._order(len(values))] if self.family.pairs else values

    def _order(self, rows: int) -> Array:
        """Rows of heads so that the first halves of what is rotated come before the second."""
        width, turned = self.about.attention.head_width, self.about.attention.rotation.width
        inside = [*range(0, turned, 2), *range(1, turned, 2), *range(turned, width)]
        order = numpy.arange(rows).reshape(-1, width)[:, inside]
        return order.reshape(-1)


def alike(first: Groups, second: Groups) -> bool:
    """True if two matrices are stored the same way, so that they can be one."""

    def form(groups: Groups) -> Iterator[object]:
        yield from (groups.size, groups.bits, groups.zero, groups.integers.shape[1])
        for name in ("scale", "least", "outer", "outer_least"):
            array = getattr(groups, name)
            yield None if array is None else (array.dtype, array.shape[1])

    return tuple(form(first)) == tuple(form(second))
