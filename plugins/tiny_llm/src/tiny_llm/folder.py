"""Hugging Face folders: a description from config.json, weights from safetensors or torch files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy

from tiny_llm.description import MOST_LAYERS, Attention, Description, Experts, Rotation
from tiny_llm.quants import Groups
from tiny_llm.tokenizer import read_json
from tinycore import Tensor
from tinycore.errors import FileFormatError, UnsupportedError
from tinycore.nn.state import folder_load

__all__ = ["FolderModel"]

Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """Facts of a model type that its configuration does not state."""

    norms_from_one: bool = False
    """Norms multiply by 1 plus their weights."""
    scales_embedding: bool = False
    windowed_every: int = 0
    """Period of layers, all but the last of which see a window; 0: all do, if one is stated."""
    uses_window: bool = False
    """A stated window is used without `use_sliding_window`."""
    has_bias: bool = False
    normalizes_experts: bool = True


GEMMA: Final = Kind(norms_from_one=True, scales_embedding=True)
KINDS: Final = {
    "llama": Kind(),
    "mistral": Kind(uses_window=True),
    "mixtral": Kind(uses_window=True),
    "qwen2": Kind(has_bias=True),
    "qwen3": Kind(),
    "qwen2_moe": Kind(has_bias=True, normalizes_experts=False),
    "qwen3_moe": Kind(normalizes_experts=False),
    "gemma": GEMMA,
    "gemma2": Kind(norms_from_one=True, scales_embedding=True, windowed_every=2, uses_window=True),
    "gemma3_text": Kind(
        norms_from_one=True, scales_embedding=True, windowed_every=6, uses_window=True
    ),
    "phi3": Kind(uses_window=True),
}

ACTIVATION_NAMES: Final = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

NAMES: Final = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
"""The names of `transformers` for those of GGUF, below `model.layers.N.`."""
FOUR_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms of Gemma 2 and 3, which have two in front and two behind."""
TWO_NORMS: Final = {"ffn_norm": "post_attention_layernorm"}
MIXTRAL: Final = {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}


class FolderModel:
    """A model in a folder of Hugging Face: config.json, and weights as `folder_load` finds them."""

    def __init__(self, folder: Path, device: str | None = None) -> None:
        self.place, self.device = str(folder), device
        config = read_json(folder / "config.json")
        if not config:
            raise FileFormatError(
                f"{folder}: there is no config.json. A GGUF file is given by its own path"
            )
        inner = config.get("text_config")
        self.config: Mapping[str, Any] = config | inner if isinstance(inner, dict) else config
        if self.config.get("quantization_config"):
            raise UnsupportedError(f"{folder}: quantized weights in a folder; use a GGUF file")
        self.type = self.text("model_type")
        self.type = "gemma3_text" if self.type == "gemma3" else self.type
        if self.type not in KINDS:
            raise UnsupportedError(
                f"{folder}: the model type {self.type!r} is none of {', '.join(KINDS)}"
            )
        self.kind = KINDS[self.type]
        try:
            _, self.tensors = folder_load(folder, device)
        except FileNotFoundError as error:
            raise FileFormatError(
                f"{folder}: there is neither model.safetensors nor pytorch_model.bin, whole or as "
                f"an index has it: {error}"
            ) from error
        if not isinstance(self.tensors, dict):
            raise FileFormatError(f"{folder}: the weights are no state dict")
        prefixes = ("model.language_model.", "language_model.model.", "model.", "")
        self.prefix = next(
            (p for p in prefixes if f"{p}embed_tokens.weight" in self.tensors), "model."
        )
        self.about = self._description()

    # --- config.json

    def text(self, key: str) -> str:
        """A string of the configuration."""
        found = self.config.get(key)
        if not isinstance(found, str):
            raise FileFormatError(f"{self.place}: config.json has no {key}")
        return found

    def number(self, key: str, otherwise: Any = None, of: Mapping[str, Any] | None = None) -> Any:
        """A number of the configuration; `otherwise` where it is absent or null."""
        found = (self.config if of is None else of).get(key)
        found = otherwise if found is None else found
        if not is_number(found):
            raise FileFormatError(
                f"{self.place}: {key} in config.json is {str(found)[:60]!r}, no number"
            )
        return found

    def size(self, key: str, otherwise: int | None = None) -> int:
        """A whole number of the configuration."""
        found = self.number(key, otherwise)
        if not isinstance(found, int):
            raise FileFormatError(f"{self.place}: {key} in config.json is {found}, not whole")
        return found

    def _description(self) -> Description:
        layers, width = self.size("num_hidden_layers"), self.size("hidden_size")
        heads, context = self.size("num_attention_heads"), self.size("max_position_embeddings")
        head_width = self.size("head_dim", width // max(heads, 1))
        windowed = self._windowed(layers, context)
        rotation, local = self._rotations(head_width, context)
        activation = self.config.get("hidden_activation") or self.text("hidden_act")
        if activation not in ACTIVATION_NAMES:
            raise UnsupportedError(f"{self.place}: the activation {activation!r} is not known")
        if self.type == "gemma":
            activation = "gelu_pytorch_tanh"  # whatever the older field says
        count = self.size("num_local_experts", self.size("num_experts", 0))
        experts = None
        inner = self.size("intermediate_size")
        if count:
            inner = self.size("moe_intermediate_size", inner)
            normalized = self.config.get("norm_topk_prob", self.kind.normalizes_experts)
            shared = self.size("shared_expert_intermediate_size", 0)
            used = self.size("num_experts_per_tok")
            experts = Experts(count, used, bool(normalized), shared)
            if self.config.get("mlp_only_layers") or self.size("decoder_sparse_step", 1) != 1:
                raise UnsupportedError(f"{self.place}: layers with and without experts")
        scale = self.number("query_pre_attn_scalar", head_width)
        return Description(
            family=self.type,
            layers=layers,
            width=width,
            feed_forward=inner,
            vocabulary=self.size("vocab_size"),
            context=context,
            attention=Attention(
                heads=heads,
                kv_heads=self.size("num_key_value_heads", heads),
                head_width=head_width,
                rotation=rotation,
                scale=float(scale) ** -0.5 if scale > 0 else 0.0,
                soft_cap=float(self.number("attn_logit_softcapping", 0.0)),
                window=self.size("sliding_window", 0) if windowed else 0,
                windowed=windowed,
                local_rotation=local,
            ),
            epsilon=float(self.number("rms_norm_eps")),
            activation=ACTIVATION_NAMES[activation],
            embedding_scale=math.sqrt(width) if self.kind.scales_embedding and width > 0 else 1.0,
            soft_cap=float(self.number("final_logit_softcapping", 0.0)),
            experts=experts,
        ).check(self.place)

    def _windowed(self, layers: int, context: int) -> frozenset[int]:
        """The layers that see a window."""
        if not 0 < self.size("sliding_window", 0) < context:
            return frozenset()
        types = self.config.get("layer_types")
        if isinstance(types, list) and len(types) == layers:
            return frozenset(n for n, each in enumerate(types) if each == "sliding_attention")
        if not self.config.get("use_sliding_window", self.kind.uses_window):
            return frozenset()
        first = self.size("max_window_layers", 0) if self.type.startswith("qwen") else 0
        every = self.size("sliding_window_pattern", self.kind.windowed_every)
        return frozenset(
            n
            for n in range(first, min(layers, MOST_LAYERS))
            if not (every and n % every == every - 1)
        )

    def _rotations(self, head_width: int, context: int) -> tuple[Rotation, Rotation | None]:
        """The rotation of layers, and that of windowed ones where it is another."""
        width = int(head_width * self.number("partial_rotary_factor", 1.0))
        stated = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if not isinstance(stated, dict):
            raise FileFormatError(f"{self.place}: rope_scaling in config.json is no object")
        local = None
        if isinstance(stated.get("full_attention"), dict):
            other = stated.get("sliding_attention")
            if isinstance(other, dict):
                local = self._rotation(other, width, context)
            stated = stated["full_attention"]
        elif self.config.get("rope_local_base_freq") is not None:
            local = Rotation(float(self.number("rope_local_base_freq")), width)
        elif self.type == "gemma3_text":
            local = Rotation(10000.0, width)
        return self._rotation(stated, width, context), local

    def _rotation(self, stated: Mapping[str, Any], width: int, context: int) -> Rotation:
        usual = self.number("rope_theta", 1e6 if self.type == "gemma3_text" else 1e4)
        base = float(self.number("rope_theta", usual, stated))
        kind = stated.get("rope_type", stated.get("type", "default"))
        if not 0 < base < math.inf:
            raise FileFormatError(f"{self.place}: the base of rotations is {base}, not positive")
        plain = Rotation(base, width)
        if kind in ("default", None):
            return plain
        if kind == "linear":
            return Rotation(base, width, scale=float(self.number("factor", None, stated)))
        if kind == "llama3":
            return Rotation(base, width, factors=self._llama3(plain, stated))
        if kind in ("longrope", "su"):
            return self._long(plain, stated, context)
        raise UnsupportedError(f"{self.place}: rotations scaled by {str(kind)[:40]!r}")

    def _llama3(self, plain: Rotation, stated: Mapping[str, Any]) -> tuple[float, ...]:
        """Factors of Llama 3.1: slow pairs are slowed, fast ones are not, between them both."""
        factor, low, high, original = (
            float(self.number(key, None, stated))
            for key in (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            )
        )
        if min(factor, low, original) <= 0 or high <= low:
            raise FileFormatError(f"{self.place}: rope_scaling has numbers that do not fit")
        factors = []
        for frequency in plain.frequencies():
            turns = original * frequency / (2 * math.pi)
            share = min(max((turns - low) / (high - low), 0.0), 1.0)
            factors.append(1 / ((1 - share) / factor + share))
        return tuple(factors)

    def _long(self, plain: Rotation, stated: Mapping[str, Any], context: int) -> Rotation:
        """LongRoPE of Phi 3: factors for contexts beyond the original one."""
        original = int(self.number("original_max_position_embeddings", context))
        factors = stated.get("long_factor" if context > original else "short_factor")
        if not isinstance(factors, list) or not all(map(is_number, factors)):
            raise FileFormatError(f"{self.place}: rope_scaling has no factors")
        magnitude = 1.0
        if context > original > 1:
            magnitude = math.sqrt(1 + math.log(context / original) / math.log(original))
        return Rotation(plain.base, plain.width, 1.0, tuple(map(float, factors)), magnitude)

    # --- weights

    def name(self, name: str) -> str:
        """The name that `transformers` gives a weight."""
        if name == "output.weight":
            return "lm_head.weight"
        if name in NAMES:
            return self.prefix + NAMES[name]
        _, layer, part, *rest = name.split(".")
        norms = FOUR_NORMS if self.type in ("gemma2", "gemma3_text") else TWO_NORMS
        known = NAMES | norms
        if self.type == "phi3":
            known = known | {"ffn_up": "mlp.gate_up_proj"}
        if len(rest) == 2 and self.type == "mixtral":
            found = f"block_sparse_moe.experts.{rest[0]}.{MIXTRAL[part]}"
        elif len(rest) == 2:
            found = known[part].replace("mlp.", f"mlp.experts.{rest[0]}.")
        elif self.type == "mixtral" and part == "ffn_gate_inp":
            found = "block_sparse_moe.gate"
        else:
            found = known.get(part, part)
        return f"{self.prefix}layers.{layer}.{found}.{rest[-1]}"

    def has(self, name: str) -> bool:
        """True if there is a tensor of that name."""
        if name == "output.weight":
            tied = self.config.get("tie_word_embeddings", self.kind.scales_embedding)
            return "lm_head.weight" in self.tensors and not tied
        return self.name(name) in self.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor. Raises FileFormatError unless it is there, in that shape, and of floats."""
        theirs = self.name(name)
        found = self.tensors.get(theirs)
        if not isinstance(found, Tensor):
            raise FileFormatError(f"{self.place}: the model has no tensor {theirs}")
        if math.prod(found.shape) != math.prod(shape) or found.shape[-1] != shape[-1]:
            raise FileFormatError(
                f"{self.place}: tensor {theirs} has shape {found.shape}, config.json says {shape}"
            )
        if str(found.dtype).removeprefix("dtypes.") not in (
            "float16", "bfloat16", "float32", "float64", "half", "float", "double",
        ):  # fmt: skip
            raise FileFormatError(f"{self.place}: tensor {theirs} is of {found.dtype}, no float")
        return found.reshape(shape)

    def numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        """A small tensor in float32."""
        found: Array = self.tensor(name, shape).cast("float32").numpy()
        is_norm = "norm" in name and not name.endswith(".bias")
        return found + 1 if is_norm and self.kind.norms_from_one else found

    def groups(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Groups | None:
        """None: all matrices are dense here."""
        return None

    def values(self, name: str, shape: tuple[int, int], part: tuple[int, int]) -> Tensor:
        """A dense matrix, as it is stored."""
        return self.tensor(name, shape).realize()


def is_number(value: Any) -> bool:
    """True for a number that can be computed with."""
    return type(value) in (int, float) and bool(abs(value) < 2.0**63)
