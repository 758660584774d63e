"""Model files: the reader of a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_llm.assembly import Assembly
from tiny_llm.decoder import Decoder
from tiny_llm.folder import FolderModel
from tiny_llm.gguf import GgufModel
from tiny_llm.tokenizer import Tokenizer, read_json
from tinycore.errors import FileFormatError

__all__ = ["opened"]


def opened(path: Path, device: str | None) -> tuple[Decoder, Tokenizer, str | None, str]:
    """Decoder, tokenizer, chat template if there is one, and name of a model."""
    if path.is_dir():
        model = FolderModel(path, device)
        source = folder_template(path)
        return built(model, Tokenizer.of_folder(path), source, path, device)
    if (path.parent / "config.json").is_file() and path.suffix != ".gguf":
        raise FileFormatError(f"{path} is one file of a model: give its folder, {path.parent}")
    with GgufModel(path, device) as file:
        source = file.metadata.get("tokenizer.chat_template")
        tokenizer = Tokenizer.of_gguf(file.metadata, str(path))
        file.metadata.clear()  # a vocabulary in Python takes as much as that of the tokenizer
        return built(file, tokenizer, source, path, device)


def built(
    model: FolderModel | GgufModel,
    tokenizer: Tokenizer,
    source: Any,
    path: Path,
    device: str | None,
) -> tuple[Decoder, Tokenizer, str | None, str]:
    """The parts, with the weights read. Raises FileFormatError where they do not fit together."""
    if tokenizer.size > model.about.vocabulary:
        raise FileFormatError(
            f"{path}: the tokenizer has {tokenizer.size} tokens, and the model scores for "
            f"{model.about.vocabulary}: they belong to different models"
        )
    decoder = Assembly(model.about, model, device).decoder()
    return decoder, tokenizer, source if isinstance(source, str) else None, path.stem


def folder_template(folder: Path) -> Any:
    """The chat template of a folder, in a file of its own or among the tokenizer's options."""
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text("utf-8", errors="replace")
    found = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {e.get("name"): e.get("template") for e in found if isinstance(e, dict)}
        return named.get("default")
    return found
