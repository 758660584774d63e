"""GGUF models: a description from the metadata, weights from blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy

from tiny_llm.description import MOST_LAYERS, Attention, Description, Experts, Rotation
from tiny_llm.quants import Groups, split
from tinycore import Tensor
from tinycore.errors import FileFormatError, UnsupportedError
from tinycore.nn.blocks import BLOCK_TYPES
from tinycore.nn.files.gguf import GgufFile, parts_of_model

__all__ = ["GgufModel"]

Array = numpy.ndarray[Any, Any]


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
    """Model in a GGUF file, or in several of which any one is named: open to the end of `with`."""

    def __init__(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        self.device = device
        sizes = {number: (kind.elements, kind.size) for number, kind in BLOCK_TYPES.items()}
        self.place = str(path)
        with ExitStack() as opened:
            files = parts_of_model(path, sizes, opened)
            self.metadata = files[0].metadata
            self.where: dict[str, GgufFile] = {name: f for f in files for name in f.tensors}
            self._read_description()
            self.opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.close()

    def _read_description(self) -> None:
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
        seen = range(min(layers, MOST_LAYERS) if window else 0)
        windowed = [n for n in seen if not (every and n % every == every - 1)]
        local = Rotation(self.family.local_base, rotation.width) if self.family.local_base else None
        is_27b = (a, layers) in (("gemma2", 46), ("gemma3", 62))
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
                scale=max(width / max(heads, 1) if is_27b else head_width, 1) ** -0.5,
                soft_cap=known.get(f"{a}.attn_logit_softcapping", float, 0.0),
                window=window,
                windowed=frozenset(windowed),
                local_rotation=local,
            ),
            epsilon=known.get(f"{a}.attention.layer_norm_rms_epsilon", float),
            activation=self.family.activation,
            embedding_scale=max(width, 0) ** 0.5 if self.family.scales_embedding else 1.0,
            soft_cap=known.get(f"{a}.final_logit_softcapping", float, 0.0),
            experts=Experts(
                experts,
                known.one(f"{a}.expert_used_count"),
                self.family.normalizes_experts,
                known.one(f"{a}.expert_shared_feed_forward_length", 0),
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
                shape = self.where[each].tensors[each].shape
                factors = tuple(float(f) for f in self.numbers(each, shape).reshape(-1))
        if context > original > 1 and name in self.where:
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

    def has(self, name: str) -> bool:
        """True if there is a tensor of that name."""
        return name in self.where

    def blocks(self, name: str, shape: tuple[int, ...]) -> tuple[int, Array]:
        """The type and the blocks of a tensor. Raises FileFormatError unless it has the shape."""
        file = self.where.get(name)
        if file is None:
            raise FileFormatError(f"{self.place}: the model has no tensor {name}")
        tensor = file.tensors[name]
        if tensor.shape != shape:
            raise FileFormatError(
                f"{self.place}: tensor {name} has shape {tensor.shape}, its metadata says {shape}"
            )
        return tensor.kind, file.blocks_of(name)

    def numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        """A small tensor in float32."""
        kind, blocks = self.blocks(name, shape)
        if BLOCK_TYPES[kind].name == "F32":
            found = blocks.reshape(-1).view(numpy.float32).reshape(shape)
        else:
            decoded = BLOCK_TYPES[kind].decode(Tensor(blocks)).cast("float32")
            found = decoded.reshape(shape).numpy()
        return found[self.order(shape[0])] if self.is_paired(name) else found

    def groups(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Groups | None:
        """A quantized matrix taken apart, None for one that is dense here."""
        kind, blocks = self.part(name, shape, part)
        return split(BLOCK_TYPES[kind].name, blocks, shape[0])

    def values(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Tensor:
        """A dense matrix; float16 for quantized types that cannot be taken apart."""
        kind, blocks = self.part(name, shape, part)
        found = BLOCK_TYPES[kind].decode(Tensor(blocks, device=self.device)).reshape(shape)
        if BLOCK_TYPES[kind].elements > 1:
            found = found.cast("float16")
        return found.contiguous().realize()

    def part(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> tuple[int, Array]:
        """The type and the blocks of a matrix, its rows in the order of halves."""
        which, count = part
        kind, blocks = self.blocks(name, shape if count == 1 else (count, *shape))
        blocks = blocks.reshape(count, -1, blocks.shape[1])[which]
        if self.is_paired(name):
            blocks = blocks.reshape(shape[0], -1)[self.order(shape[0])].reshape(blocks.shape)
        return kind, blocks

    def is_paired(self, name: str) -> bool:
        """True if its rows are those of heads, in pairs that a rotation turns."""
        ends = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")
        return self.family.pairs and name.endswith(ends)

    def order(self, rows: int) -> Array:
        """Rows of heads so that the first halves of what is rotated come before the second."""
        width, turned = self.about.attention.head_width, self.about.attention.rotation.width
        inside = [*range(0, turned, 2), *range(1, turned, 2), *range(turned, width)]
        return numpy.arange(rows).reshape(-1, width)[:, inside].reshape(-1)
