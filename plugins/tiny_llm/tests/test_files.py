"""Files of models: descriptions, and files that are damaged in any way."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tiny_models

from tiny_llm.folder import FolderModel
from tiny_llm.gguf import GgufModel
from tiny_llm.tokenizer import Tokenizer
from tinycore.cli.main import main, parser
from tinycore.errors import FileFormatError, UnsupportedError


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_models.config_of("llama")
    path = tmp_path_factory.mktemp("files") / "file.gguf"
    return tiny_models.write_gguf(path, config, tiny_models.weights_of(config), "Q8_0")


def read(path: Path) -> None:
    """All that is read before anything is computed."""
    with GgufModel(path) as model:
        Tokenizer.of_gguf(model.metadata, "test")
        for name, file in model.where.items():
            shape = file.tensors[name].shape
            if len(shape) == 2:
                model.groups(name, shape, (0, 1))


def test_a_file_is_read(gguf_file: Path) -> None:
    read(gguf_file)
    with GgufModel(gguf_file) as model:
        about = model.about

    assert (about.layers, about.width, about.vocabulary, about.context) == (2, 64, 258, 512)
    assert (about.attention.heads, about.attention.kv_heads) == (4, 2)
    assert len(about.attention.rotation.factors) == 8


def test_damaged_files_raise_the_errors_of_files(gguf_file: Path, tmp_path: Path) -> None:
    content = gguf_file.read_bytes()
    chance = random.Random(1)
    path = tmp_path / "damaged.gguf"
    failed = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(min(len(damaged), 6000))
            damaged[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            read(path)
        except (FileFormatError, UnsupportedError):
            failed += 1

    assert failed > 30


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "t5"}, "the model type 't5' is none of"),
        ({"model_type": 3}, "no model_type"),
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"hidden_size": "x"}, "no number"),
        ({"hidden_size": 1.5}, "not whole"),
        ({"hidden_size": True}, "no number"),
        ({"num_hidden_layers": 10**9}, "its layers is 1000000000"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"vocab_size": -1}, "its vocabulary is -1"),
        ({"rms_norm_eps": 0}, "must be positive"),
        ({"rope_theta": 0}, "not positive"),
        ({"rope_scaling": 3}, "no object"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "scaled by 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"hidden_act": "relu2"}, "activation 'relu2'"),
        ({"quantization_config": {"bits": 4}}, "quantized weights"),
    ],
    ids=str,
)
def test_a_configuration_that_is_wrong_is_explained(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = tiny_models.config_of("llama")
    config |= changes
    config = {key: value for key, value in config.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")

    with pytest.raises((FileFormatError, UnsupportedError), match=said):
        FolderModel(tmp_path)


def test_a_folder_without_files_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no config\.json"):
        FolderModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_models.config_of("llama")))
    with pytest.raises(FileFormatError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        FolderModel(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "gone.bin"}}')
    with pytest.raises(FileFormatError, match=r"gone\.bin"):
        FolderModel(tmp_path)
    for text in ("[" * 100_000, '{"model_type": "\\ud800"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(FileFormatError, match="no JSON"):
            FolderModel(tmp_path)


@pytest.mark.slow
def test_a_folder_of_files_of_torch_has_the_same_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    config = tiny_models.config_of("llama")
    weights = tiny_models.weights_of(config)
    folder = tiny_models.write_folder(tmp_path, config, weights)
    (folder / "model.safetensors").unlink()
    names = list(weights)
    places = {name: f"pytorch_model-{place % 2}.bin" for place, name in enumerate(names)}
    for file in set(places.values()):
        part = {name: torch.tensor(weights[name]) for name in names if places[name] == file}
        torch.save(part, folder / file)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "pytorch_model.bin.index.json").write_text(index)

    model = FolderModel(folder)

    assert {name: each.tolist() for name, each in model.tensors.items()} == {
        name: value.tolist() for name, value in weights.items()
    }
    (folder / "pytorch_model.bin.index.json").unlink()
    for content in ([1, 2], torch.nn.Linear(2, 2)):
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(FileFormatError, match="no state dict"):
            FolderModel(folder)


@pytest.mark.parametrize("command", ["chat", "serve", "perplexity"])
def test_a_mistaken_path_is_explained(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    rest = [str(tmp_path / "text.txt")] if command != "serve" else []
    for name, said in (("gone.gguf", "cannot be read"), ("model.safetensors", "give its folder")):
        assert main([command, str(tmp_path / name), *rest]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("model", None),
        ("model text", "text"),
        ("model --temperature 0 text", "text"),
        ("--seed 1 model --temperature 0 text --limit 3", "text"),
        ("model --seed 1 -- --text", "--text"),
    ],
)
def test_the_text_of_a_chat_may_follow_options(words: str, text: str | None) -> None:
    found = parser("chat").parse_args(["chat", *words.split()])

    assert (found.model, found.text) == ("model", text)


def test_a_type_of_blocks_that_is_not_known_is_named(gguf_file: Path, tmp_path: Path) -> None:
    content = bytearray(gguf_file.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of axes, and these
    assert content[at] == 8
    content[at] = 9  # Q8_1, in which no tool writes files
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises((FileFormatError, UnsupportedError), match=r"ffn_up.*type 9 of ggml"):
        read(path)
