"""Models whose files are damaged end in errors of tinycore: folders, and metadata of GGUF."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import pytest
import tiny_models

from tiny_llm import LanguageModel
from tinycore import Tensor
from tinycore.errors import TinycoreError
from tinycore.nn.state import safe_load

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 64, 1000, 2**31, 2**40, 2**63, 2**64, 10**400, 0.5, -1.5,
    1e30, 1e400, "", "a", "llama", "\ud800", "x" * 1000, [], {}, [[]], [1], {"a": 1}, [None],
)  # fmt: skip


OTHERS: dict[gguf.GGUFValueType, list[Any]] = {
    gguf.GGUFValueType.STRING: ["", "a", "llama", "none", TEMPLATE],
    gguf.GGUFValueType.BOOL: [True, False],
    gguf.GGUFValueType.INT64: [0, 1, -1, 3, 2**31, -(2**63)],
    gguf.GGUFValueType.FLOAT32: [0.0, -1.0, 1e30, float("nan"), float("inf")],
    gguf.GGUFValueType.ARRAY: [[1, 1], [1, 2], ["a"], [0.5]],
}


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a value of JSON with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places_in(value[key])


def with_other_values(text: str, draw: random.Random) -> str:
    """JSON with a value that is another, gone, doubled, or where another one was."""
    whole = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        if not (places := list(places_in(whole))):
            break
        # one of few, as vocabularies have most
        holder, key = draw.choice(draw.choice([places, places[:60]]))
        match draw.randrange(5):
            case 0:
                del holder[key]
            case 1:
                other, at = draw.choice(places)
                holder[key] = (
                    json.loads(json.dumps(other[at]))
                    if at in range(len(other)) or (isinstance(other, dict) and at in other)
                    else None
                )
            case 2 if isinstance(holder, list):
                holder.append(holder[key])
            case 3 if isinstance(holder, dict):
                holder[draw.choice(["", "a", "type", str(key) + "s"])] = holder.pop(key)
            case _:
                holder[key] = draw.choice(VALUES)
    return json.dumps(whole)


def with_other_bytes(content: bytes, draw: random.Random) -> bytes:
    """A file with some bytes changed, cut out or put in, most near its beginning."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(min(len(found), draw.choice([300, 3000, len(found)])) or 1)
        match draw.randrange(4):
            case 0:
                del found[at : at + draw.randint(1, 8)]
            case 1:
                found[at:at] = draw.randbytes(draw.randint(1, 8))
            case 2:
                del found[at:]
            case _:
                found[at : at + 1] = bytes(
                    [draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])]
                )
        if not found:
            break
    return bytes(found)


def good_folder(folder: Path) -> Path:
    """A folder with all files that are read."""
    config = tiny_models.config_of("gemma3_text")
    tiny_models.write_folder(folder, config, tiny_models.weights_of(config))
    options = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    text = json.dumps(options | {"add_bos_token": True, "chat_template": TEMPLATE})
    (folder / "tokenizer_config.json").write_text(text)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    names = safe_load(folder / "part.safetensors")
    index = {"weight_map": dict.fromkeys(names, "part.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def damaged_folder(good: Path, path: Path, draw: random.Random) -> Path:
    """A copy in which one or two files are damaged."""
    folder = path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    for _ in range(draw.randint(1, 2)):
        file = draw.choice(sorted(folder.iterdir()))
        if file.suffix == ".json" and draw.random() < 0.8:
            try:
                file.write_text(with_other_values(file.read_text(), draw))
            except ValueError:  # damaged before
                continue
        else:
            file.write_bytes(with_other_bytes(file.read_bytes(), draw))
    return folder


def damaged_gguf(path: Path, draw: random.Random) -> Path:
    """A file with other metadata, and perhaps other bytes."""
    add = gguf.GGUFWriter.add_key_value

    def changed(self: Any, key: str, value: Any, kind: Any, *more: Any) -> None:
        if draw.random() < 0.94:
            return add(self, key, value, kind, *more)
        match draw.randrange(4):
            case 0:
                return None
            case 1:
                kind = draw.choice(sorted(OTHERS))
                return add(self, key, draw.choice(OTHERS[kind]), kind)
            case 2 if isinstance(value, list) and value:
                value = draw.choice([value[:-1], [*value, value[0]], value[::-1], value[:1]])
            case _ if type(value) is int:
                value = draw.choice([0, 1, value + 1, max(0, value - 1), 2**31, 2**32 - 1])
        return add(self, key, value, kind, *more)

    path = path / "damaged.gguf"
    config = tiny_models.config_of(draw.choice(["llama", "gemma3_text", "qwen3_moe", "phi3"]))
    weights, kind = tiny_models.weights_of(config), draw.choice(["F32", "Q8_0"])
    with patch.object(gguf.GGUFWriter, "add_key_value", changed):
        tiny_models.write_gguf(path, config, weights, kind, tokenizer__chat_template=TEMPLATE)
    if draw.random() < 0.3:
        path.write_bytes(with_other_bytes(path.read_bytes(), draw))
    return path


def use(path: Path) -> None:
    """Load a model and read a talk; kernels are left out, as they take their time."""
    with patch.object(Tensor, "realize", lambda tensor, *others: tensor):
        model = LanguageModel.load(path, lanes=2)
        model.prompt("a b <|im_end|> \u00e9")
        if model.template is not None:
            model.prompt([{"role": "user", "content": "Hello"}])
        for token in range(model.tokenizer.size):
            model.tokenizer.bytes_of(token)


def check(seeds: Iterable[int], damaged: Callable[[random.Random], Path]) -> Counter[str]:
    """Use damaged models; what became of them."""
    found: Counter[str] = Counter()
    for seed in seeds:
        path = damaged(random.Random(seed))
        try:
            use(path)
            found["ran"] += 1
        except (TinycoreError, OSError) as error:  # as for a name of a file that is too long
            found[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    return found


@pytest.mark.slow
def test_damaged_folders_end_in_errors_of_ours(tmp_path: Path) -> None:
    good = good_folder(tmp_path / "good")
    use(good)
    found = check([*range(100), 1045, 1460], lambda draw: damaged_folder(good, tmp_path, draw))
    assert found["FileFormatError"] > 30
    assert found["ran"] > 10


@pytest.mark.slow
def test_damaged_metadata_ends_in_errors_of_ours(tmp_path: Path) -> None:
    found = check([*range(100), 1864, 8006754], lambda draw: damaged_gguf(tmp_path, draw))
    assert found["FileFormatError"] > 20
    assert found["ran"] > 20
