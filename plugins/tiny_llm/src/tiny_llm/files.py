"""Model files: which reader a path takes."""

from __future__ import annotations

from pathlib import Path

from tiny_llm.decoder import Decoder
from tiny_llm.gguf import GgufModel
from tiny_llm.tokenizer import Tokenizer
from tinycore.errors import FileFormatError

__all__ = ["opened"]


def opened(path: Path, device: str | None) -> tuple[Decoder, Tokenizer, str | None, str]:
    """Decoder, tokenizer, chat template if there is one, and name of a model."""
    if path.is_dir():
        raise FileFormatError(f"{path}: folders are not read yet")
    model = GgufModel(path)
    tokenizer = Tokenizer.of_gguf(model.metadata, str(path))
    if tokenizer.size > model.about.vocabulary:
        raise FileFormatError(
            f"{path}: {tokenizer.size} tokens, and scores for {model.about.vocabulary}"
        )
    template = model.metadata.get("tokenizer.chat_template")
    source = template if isinstance(template, str) else None
    return model.decoder(device), tokenizer, source, path.stem
