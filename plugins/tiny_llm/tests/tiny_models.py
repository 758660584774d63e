"""Tiny random decoders of each family: as folders, as GGUF files, and computed by plain NumPy.

The reference follows the definitions of the families, not the code that is tested: a token at a
time, head by head, in float64.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import gguf
import numpy
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tinycore import Tensor
from tinycore.nn.state import safe_save

Array = numpy.ndarray[Any, Any]
Config = dict[str, Any]
Weights = dict[str, Array]

WIDTH: Final = 64
INNER: Final = 96
EXPERTS: Final = 5
SPECIALS: Final = ["<|im_start|>", "<|im_end|>"]
VOCABULARY: Final = 256 + len(SPECIALS)

FAMILIES: Final[dict[str, Config]] = {
    "llama": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    "qwen2": {"rope_theta": 1e6},
    "qwen3": {"head_dim": 32},
    "qwen2_moe": {
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": 32, "norm_topk_prob": False,
    },
    "qwen3_moe": {
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": INNER,
        "norm_topk_prob": True,
    },
    "gemma": {"head_dim": 32, "num_key_value_heads": 1},
    "gemma2": {
        "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 6,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"partial_rotary_factor": 0.5},
}  # fmt: skip
"""The model types of `transformers`, with the part of their configuration that is their own."""


def is_gemma(config: Config) -> bool:
    return str(config["model_type"]).startswith("gemma")


def config_of(family: str) -> Config:
    activation = "gelu_pytorch_tanh" if family.startswith("gemma") else "silu"
    usual: Config = {
        "model_type": family, "hidden_size": WIDTH, "intermediate_size": INNER,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "hidden_act": activation, "rope_theta": 1e4, "eos_token_id": VOCABULARY - 1,
        "tie_word_embeddings": family.startswith("gemma"),
    }  # fmt: skip
    config = usual | FAMILIES[family]
    config.setdefault("head_dim", WIDTH // config["num_attention_heads"])
    return config


def weights_of(config: Config, seed: int = 0) -> Weights:
    random = numpy.random.default_rng(seed)
    family, heads = config["model_type"], config["num_attention_heads"]
    wide, narrow = (n * config["head_dim"] for n in (heads, config["num_key_value_heads"]))

    def matrix(rows: int, columns: int) -> Array:
        drawn = random.standard_normal((rows, columns)) / math.sqrt(columns)
        return drawn.astype(numpy.float32)

    def norm(size: int = WIDTH) -> Array:
        around = 0.0 if is_gemma(config) else 1.0
        return (around + 0.2 * random.standard_normal(size)).astype(numpy.float32)

    found = {"model.embed_tokens.weight": matrix(VOCABULARY, WIDTH), "model.norm.weight": norm()}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = matrix(VOCABULARY, WIDTH)
    for layer in range(config["num_hidden_layers"]):
        parts: Weights = {"input_layernorm": norm(), "post_attention_layernorm": norm()}
        if family == "phi3":
            parts["self_attn.qkv_proj"] = matrix(wide + 2 * narrow, WIDTH)
            parts["mlp.gate_up_proj"] = matrix(2 * INNER, WIDTH)
            parts["mlp.down_proj"] = matrix(WIDTH, INNER)
        else:
            for name, rows in {"q": wide, "k": narrow, "v": narrow}.items():
                parts[f"self_attn.{name}_proj"] = matrix(rows, WIDTH)
        parts["self_attn.o_proj"] = matrix(WIDTH, wide)
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            parts["self_attn.q_norm"] = norm(config["head_dim"])
            parts["self_attn.k_norm"] = norm(config["head_dim"])
        if family in ("gemma2", "gemma3_text"):
            parts["pre_feedforward_layernorm"] = norm()
            parts["post_feedforward_layernorm"] = norm()
        if family == "mixtral":
            parts["block_sparse_moe.gate"] = matrix(EXPERTS, WIDTH)
            for e in range(EXPERTS):
                for name in ("w1", "w3"):
                    parts[f"block_sparse_moe.experts.{e}.{name}"] = matrix(INNER, WIDTH)
                parts[f"block_sparse_moe.experts.{e}.w2"] = matrix(WIDTH, INNER)
        elif family in ("qwen2_moe", "qwen3_moe"):
            parts["mlp.gate"] = matrix(EXPERTS, WIDTH)
            networks = {f"mlp.experts.{e}": INNER for e in range(EXPERTS)}
            if shared := config.get("shared_expert_intermediate_size"):
                networks["mlp.shared_expert"] = shared
                parts["mlp.shared_expert_gate"] = matrix(1, WIDTH)
            for name, inner in networks.items():
                parts[f"{name}.gate_proj"] = matrix(inner, WIDTH)
                parts[f"{name}.up_proj"] = matrix(inner, WIDTH)
                parts[f"{name}.down_proj"] = matrix(WIDTH, inner)
        elif family != "phi3":
            parts["mlp.gate_proj"], parts["mlp.up_proj"] = (
                matrix(INNER, WIDTH),
                matrix(INNER, WIDTH),
            )
            parts["mlp.down_proj"] = matrix(WIDTH, INNER)
        at = f"model.layers.{layer}."
        found |= {f"{at}{name}.weight": value for name, value in parts.items()}
        if family in ("qwen2", "qwen2_moe"):
            for name, rows in {"q": wide, "k": narrow, "v": narrow}.items():
                found[f"{at}self_attn.{name}_proj.bias"] = matrix(1, rows)[0]
    return found


# --- the reference


def reference(config: Config, weights: Weights, ids: list[int]) -> Array:
    """The scores after each token, in float64."""
    eps, family = config["rms_norm_eps"], config["model_type"]
    w = {name: value.astype(numpy.float64) for name, value in weights.items()}

    def norm(x: Array, weight: Array) -> Array:
        scaled = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps)
        return numpy.asarray(scaled * (1 + weight if is_gemma(config) else weight))

    x = w["model.embed_tokens.weight"][ids]
    if is_gemma(config):
        x = x * math.sqrt(WIDTH)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        part = {
            n.removeprefix(at).removesuffix(".weight"): v for n, v in w.items() if n.startswith(at)
        }
        added = attention(config, part, layer, norm(x, part["input_layernorm"]), norm)
        if "pre_feedforward_layernorm" in part:
            x = x + norm(added, part["post_attention_layernorm"])
            added = network(config, part, norm(x, part["pre_feedforward_layernorm"]))
            x = x + norm(added, part["post_feedforward_layernorm"])
        else:
            x = x + added
            x = x + network(config, part, norm(x, part["post_attention_layernorm"]))
    out = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    scores: Array = norm(x, w["model.norm.weight"]) @ out.T
    if family == "gemma2":
        scores = numpy.tanh(scores / config["final_logit_softcapping"])
        scores *= config["final_logit_softcapping"]
    return scores


def sees_window(config: Config, layer: int) -> bool:
    every = {"gemma2": 2, "gemma3_text": 6}.get(config["model_type"])
    return "sliding_window" in config and (every is None or layer % every != every - 1)


def frequencies(config: Config, layer: int, width: int) -> Array:
    base, scaling = config["rope_theta"], config.get("rope_scaling")
    if config["model_type"] == "gemma3_text" and sees_window(config, layer):
        base, scaling = config["rope_local_base_freq"], None
    plain = numpy.array([base ** (-2 * i / width) for i in range(width // 2)])
    if scaling is None:
        return plain
    if scaling["rope_type"] == "linear":
        return numpy.asarray(plain / scaling["factor"])
    lengths, original = 2 * math.pi / plain, scaling["original_max_position_embeddings"]
    found = []
    for frequency, length in zip(plain, lengths, strict=True):
        if length < original / scaling["high_freq_factor"]:
            found.append(frequency)
        elif length > original / scaling["low_freq_factor"]:
            found.append(frequency / scaling["factor"])
        else:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            smooth = (original / length - low) / (high - low)
            found.append((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
    return numpy.array(found)


def attention(config: Config, part: Weights, layer: int, x: Array, norm: Any) -> Array:
    heads, kv_heads, size = (
        config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if "self_attn.qkv_proj" in part:
        q, k, v = numpy.split(
            x @ part["self_attn.qkv_proj"].T, [heads * size, (heads + kv_heads) * size], axis=1
        )
    else:
        q, k, v = (
            x @ part[f"self_attn.{n}_proj"].T + part.get(f"self_attn.{n}_proj.bias", 0.0)
            for n in "qkv"
        )
    q, k, v = (each.reshape(len(x), -1, size) for each in (q, k, v))
    if "self_attn.q_norm" in part:
        q, k = norm(q, part["self_attn.q_norm"]), norm(k, part["self_attn.k_norm"])
    turned = int(size * config.get("partial_rotary_factor", 1))
    angles = numpy.outer(numpy.arange(len(x)), frequencies(config, layer, turned))[:, None]
    for each in (q, k):
        first, second = each[..., : turned // 2].copy(), each[..., turned // 2 : turned].copy()
        each[..., : turned // 2] = first * numpy.cos(angles) - second * numpy.sin(angles)
        each[..., turned // 2 : turned] = second * numpy.cos(angles) + first * numpy.sin(angles)
    out = numpy.zeros((len(x), heads, size))
    scale = 1 / math.sqrt(config.get("query_pre_attn_scalar", size))
    for i in range(len(x)):
        begin = max(0, i + 1 - config["sliding_window"]) if sees_window(config, layer) else 0
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores = k[begin : i + 1, g] @ q[i, h] * scale
            if cap := config.get("attn_logit_softcapping"):
                scores = numpy.tanh(scores / cap) * cap
            share = numpy.exp(scores - scores.max())
            out[i, h] = share / share.sum() @ v[begin : i + 1, g]
    return numpy.asarray(out.reshape(len(x), -1) @ part["self_attn.o_proj"].T)


def network(config: Config, part: Weights, x: Array) -> Array:
    def gated(gate: Array, up: Array, down: Array, x: Array) -> Array:
        a = x @ gate.T
        if is_gemma(config):
            a = a * 0.5 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
        else:
            a = a / (1 + numpy.exp(-a))
        return numpy.asarray((a * (x @ up.T)) @ down.T)

    def named(name: str, x: Array) -> Array:
        return gated(
            part[f"{name}.gate_proj"], part[f"{name}.up_proj"], part[f"{name}.down_proj"], x
        )

    router = part.get("mlp.gate", part.get("block_sparse_moe.gate"))
    if "mlp.gate_up_proj" in part:
        gate, up = numpy.split(part["mlp.gate_up_proj"], 2)
        return gated(gate, up, part["mlp.down_proj"], x)
    if router is None:
        return named("mlp", x)
    out = numpy.zeros_like(x)
    for i, row in enumerate(x):
        scores = numpy.exp(router @ row)
        scores /= scores.sum()
        chosen = numpy.argsort(-scores)[: config["num_experts_per_tok"]]
        total = scores[chosen].sum() if config.get("norm_topk_prob", True) else 1.0
        for e in chosen:
            if config["model_type"] == "mixtral":
                w1, w2, w3 = (part[f"block_sparse_moe.experts.{e}.w{n}"] for n in (1, 2, 3))
                found = gated(w1, w3, w2, row)
            else:
                found = named(f"mlp.experts.{e}", row)
            out[i] += scores[e] / total * found
        if "mlp.shared_expert_gate" in part:
            gate = 1 / (1 + numpy.exp(-(part["mlp.shared_expert_gate"] @ row)[0]))
            out[i] += gate * named("mlp.shared_expert", row)
    return out


# --- files


def letters() -> dict[str, int]:
    """A vocabulary of bytes, in the letters of byte-level tokenizers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {letter: number for number, letter in enumerate(alphabet)}


def tokenizer() -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer(models.BPE(letters(), []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    return found


def write_folder(folder: Path, config: Config, weights: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer().save(str(folder / "tokenizer.json"))
    safe_save({n: Tensor(v) for n, v in weights.items()}, folder / "model.safetensors")
    return folder


GGUF_NAMES: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
ARCHITECTURES: Final = {
    "mixtral": "llama", "mistral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}  # fmt: skip


def write_gguf(
    path: Path, config: Config, weights: Weights, kind: str = "F32", **metadata: Any
) -> Path:
    """A file as converters write it: its names, its order of rows, norms of Gemma plus 1."""
    family = config["model_type"]
    a: str = ARCHITECTURES.get(family) or family
    writer = gguf.GGUFWriter(path, a)
    scalars: dict[str, Any] = {
        "block_count": config["num_hidden_layers"], "context_length": 512,
        "embedding_length": WIDTH, "feed_forward_length": INNER,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "attention.sliding_window": config.get("sliding_window"),
        "expert_count": config.get("num_local_experts", config.get("num_experts")),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": INNER if "moe_intermediate_size" in config else None,
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "rope.dimension_count": int(config["head_dim"] * config.get("partial_rotary_factor", 1)),
    }  # fmt: skip
    for key, value in scalars.items():
        if value is not None:
            writer.add_uint32(f"{a}.{key}", value)
    writer.add_float32(f"{a}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{a}.rope.freq_base", config["rope_theta"])
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in config:
            writer.add_float32(f"{a}.{key}", config[key])
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") == "linear":
        writer.add_string(f"{a}.rope.scaling.type", "linear")
        writer.add_float32(f"{a}.rope.scaling.factor", scaling["factor"])
    elif scaling:
        width = config["head_dim"]
        plain = numpy.array([config["rope_theta"] ** (-2 * i / width) for i in range(width // 2)])
        writer.add_tensor(
            "rope_freqs.weight", (plain / frequencies(config, 0, width)).astype(numpy.float32)
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters(), *SPECIALS])
    writer.add_token_types([1] * 256 + [3] * len(SPECIALS))
    writer.add_token_merges(["a b"] if metadata.pop("broken_merges", False) else [])
    writer.add_eos_token_id(VOCABULARY - 1)
    for key, text in metadata.items():
        writer.add_string(key.replace("__", "."), text)
    for name, value in gguf_tensors(config, weights).items():
        if value.ndim > 1 and kind != "F32" and "ffn_gate_inp" not in name:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(value, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(config: Config, weights: Weights) -> Weights:
    family, found = config["model_type"], {}
    tops = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    tops["lm_head.weight"] = "output.weight"
    four = "pre_feedforward_layernorm" in "".join(weights)
    names = GGUF_NAMES | {"post_attention_layernorm": "post_attention_norm" if four else "ffn_norm"}
    experts: dict[str, list[Array]] = {}
    for name, value in weights.items():
        if is_gemma(config) and "norm" in name:
            value = value + 1
        if name in tops:
            found[tops[name]] = value
            continue
        _, _, layer, *middle, end = name.split(".")
        part = ".".join(middle)
        if ".experts." in part:
            last = {"w1": "gate", "w2": "down", "w3": "up"}.get(middle[-1], middle[-1][:-5])
            experts.setdefault(f"blk.{layer}.ffn_{last}_exps.weight", []).append(value)
            continue
        if ARCHITECTURES.get(family, family) == "llama" and part.endswith(("q_proj", "k_proj")):
            half = config["head_dim"] // 2
            value = value.reshape(-1, 2, half, WIDTH).swapaxes(1, 2).reshape(-1, WIDTH)
        if part == "mlp.shared_expert_gate":
            value = value[0]
        found[f"blk.{layer}.{names[part]}.{end}"] = value
    return found | {name: numpy.stack(values) for name, values in experts.items()}
