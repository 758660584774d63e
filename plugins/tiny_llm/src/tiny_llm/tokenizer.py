"""Text and tokens: `tokenizers` splits text as the model file says, and tokens are read as bytes.

Tokens come from a GGUF file's metadata or a folder's `tokenizer.json`. Text of a user is never
read as control tokens unless the caller asks for that.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from tinycore.errors import ArgumentError, FileFormatError, UnsupportedError

__all__ = ["TextStream", "Tokenizer"]

SPACE: Final = "\u2581"
"""The space of SentencePiece."""
BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
CONTROL: Final = 3
"""The type of control tokens in GGUF."""
USER_DEFINED: Final = 4
ENDS: Final = frozenset(
    "<|im_end|> <|eot_id|> <|eom_id|> <end_of_turn> <|end|> <|endoftext|> <|end_of_text|>".split()
)
"""Control tokens that end a turn in the families that are known."""

CONTRACTIONS: Final = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2: Final = rf"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3: Final = rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(after: str, digits: str) -> str:
    """Words by their case, as in o200k: contractions `after` them, and so many digits at once."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{UPPER}*{LOWER}+{after}|{before}{UPPER}+{LOWER}*{after}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


PRETOKENIZERS: Final[dict[str, tuple[str, ...]]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "dbrx": (LLAMA3,),
    "smaug-bpe": (LLAMA3,),
    "qwen2": (LLAMA3.replace("{1,3}", ""),),
    "tekken": (cased("", ""),),
    "gpt-4o": (cased(f"(?i:{CONTRACTIONS})?", "{1,3}"),),
}
"""Expressions that split text before byte pairs are merged, by `tokenizer.ggml.pre`."""


def byte_letters() -> dict[str, int]:
    """The letter that byte-level vocabularies write for each byte: itself where it is printable."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letters = {chr(b): b for b in printable}
    return letters | {chr(256 + n): b for n, b in enumerate(others)}


class Tokenizer:
    """Tokens of a model: `encode`, the bytes of each, and those that begin and end texts."""

    def __init__(
        self,
        full: tokenizers.Tokenizer,
        plain: tokenizers.Tokenizer,
        specials: Mapping[str, int],
        is_byte_level: bool,
        bos: int | None,
        eos: Iterable[int],
        adds_bos: bool,
    ) -> None:
        self._full, self._plain = full, plain
        self.specials = dict(specials)
        self.is_byte_level = is_byte_level
        self.bos, self.adds_bos = bos, adds_bos and bos is not None
        self.ends = frozenset(eos) | {n for text, n in specials.items() if text in ENDS}
        self._by_id = {n: text for text, n in self.specials.items()}
        self._letters = byte_letters()

    @classmethod
    def of_gguf(cls, metadata: Mapping[str, Any], place: str) -> Tokenizer:
        """The tokenizer in the metadata of a GGUF file. Raises FileFormatError."""
        return from_metadata(metadata, place)

    @classmethod
    def of_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer in `tokenizer.json` of a folder. Raises FileFormatError."""
        return from_json(folder)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return int(self._full.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, with_specials: bool = True, with_bos: bool = True) -> list[int]:
        """The tokens of a text. `with_specials` reads the texts of control tokens as such."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"a text is no Unicode: {error}") from error
        chosen = self._full if with_specials else self._plain
        ids: list[int] = chosen.encode(text, add_special_tokens=False).ids
        if with_bos and self.adds_bos and self.bos is not None and ids[:1] != [self.bos]:
            return [self.bos, *ids]
        return ids

    def text_of(self, token: int) -> str:
        """A token as the vocabulary writes it; "" for no token."""
        return self._by_id.get(token) or self._full.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none of a control token."""
        text: str = "" if token in self._by_id else self._full.id_to_token(token) or ""
        if self.is_byte_level:
            letters = self._letters
            if all(letter in letters for letter in text):
                return bytes(letters[letter] for letter in text)
            return text.encode()
        if byte := BYTE.fullmatch(text):
            return bytes([int(byte[1], 16)])
        return text.replace(SPACE, " ").encode()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens, without control tokens; broken characters are replaced."""
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")


class TextStream:
    """Text from tokens as they come: whole characters only, and nothing that may yet be a stop."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that can be shown after one more token."""
        return self._shown(self._decoder.decode(self._tokenizer.bytes_of(token)))

    def end(self) -> str:
        """The text that is left when no token comes."""
        text = self._shown(self._decoder.decode(b"", True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _shown(self, more: str) -> str:
        if self.stopped:
            return ""
        text = self._held + more
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that begins a stop."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


# --- from files


def from_metadata(metadata: Mapping[str, Any], place: str) -> Tokenizer:
    """Tokenizer of a GGUF file, see `Tokenizer.of_gguf`."""

    def listed(key: str, kind: type | tuple[type, ...]) -> list[Any]:
        found = metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
            raise FileFormatError(f"{place}: tokenizer.ggml.{key} is no list of the right type")
        return found

    tokens = listed("tokens", str)
    kinds = listed("token_type", int) or [1] * len(tokens)
    if not tokens or len(kinds) != len(tokens):
        raise FileFormatError(f"{place}: {len(tokens)} tokens, {len(kinds)} types of them")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):  # of equal ones the first, which others refer to
        vocabulary = {token: n for n, token in reversed(list(enumerate(tokens)))}
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        made = byte_level(vocabulary, listed("merges", str), metadata, place)
    elif model == "llama":
        scores = listed("scores", (float, int))
        made = by_scores(tokens, vocabulary, scores, metadata, place)
    else:
        raise UnsupportedError(f"{place}: a tokenizer of type {model!r}; gpt2 and llama are known")
    specials = {
        token: n for n, token in enumerate(tokens) if kinds[n] in (CONTROL, USER_DEFINED) and token
    }

    def number(key: str) -> int | None:
        found = metadata.get(f"tokenizer.ggml.{key}")
        return found if isinstance(found, int) and 0 <= found < len(tokens) else None

    full = made()
    full.add_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    controls = {text: n for text, n in specials.items() if kinds[n] == CONTROL}
    stated = [number(f"{word}_token_id") for word in ("eos", "eot", "eom")]
    ends = [end for end in stated if end is not None]
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token")
    if adds_bos is None:
        adds_bos = model == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    return Tokenizer(
        full, made(), controls, model == "gpt2", number("bos_token_id"), ends, bool(adds_bos)
    )


def byte_level(
    vocabulary: dict[str, int], merges: list[str], metadata: Mapping[str, Any], place: str
) -> Any:
    """A maker of tokenizers by merges of bytes, which share the vocabulary."""
    name = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
    if name not in PRETOKENIZERS:
        raise UnsupportedError(
            f"{place}: text is split as {name!r} says, which is not known; "
            f"{', '.join(PRETOKENIZERS)} are"
        )
    if any(merge.count(" ") != 1 for merge in merges):
        raise FileFormatError(f"{place}: a merge of tokens is no pair")
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    try:
        model = models.BPE(vocabulary, pairs, ignore_merges=name == "llama-bpe")
    except Exception as error:
        raise FileFormatError(f"{place}: its merges of tokens are wrong: {error}") from error

    def made() -> tokenizers.Tokenizer:
        found = tokenizers.Tokenizer(model)
        splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in PRETOKENIZERS[name]]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
        found.decoder = decoders.ByteLevel()
        return found

    return made


def by_scores(
    tokens: list[str],
    vocabulary: dict[str, int],
    scores: list[float],
    metadata: Mapping[str, Any],
    place: str,
) -> Any:
    """A maker of tokenizers as SentencePiece merges: the pair whose token has the best score."""
    if len(scores) != len(tokens):
        raise FileFormatError(f"{place}: {len(tokens)} tokens and {len(scores)} scores")
    merges = []
    for token, number in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[number], left, right, (token[:cut], token[cut:])))
    merges.sort(key=lambda merge: merge[:3])
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = unknown if isinstance(unknown, int) and 0 <= unknown < len(tokens) else 0
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)

    model = models.BPE(
        vocabulary,
        [pair for *_, pair in merges],
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )

    def made() -> tokenizers.Tokenizer:
        found = tokenizers.Tokenizer(model)
        steps = [normalizers.Prepend(SPACE)] if prefix else []
        found.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        return found

    return made


def from_json(folder: Path) -> Tokenizer:
    """Tokenizer of a folder, see `Tokenizer.of_folder`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileFormatError(
            f"{folder}: there is no tokenizer.json beside config.json. With transformers, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) makes it of other files"
        )
    try:
        stated = json.loads(path.read_text("utf-8"))
        added = stated.get("added_tokens") or []
        full = tokenizers.Tokenizer.from_str(json.dumps(stated))
        plain = tokenizers.Tokenizer.from_str(json.dumps(stated | {"added_tokens": []}))
        specials = {each["content"]: int(each["id"]) for each in added if each.get("special")}
    except Exception as error:  # `tokenizers` raises Exception itself
        raise FileFormatError(f"{path}: no tokenizer: {str(error)[:200]}") from error
    is_byte_level = "ByteLevel" in json.dumps([stated.get("decoder"), stated.get("pre_tokenizer")])
    options = read_json(folder / "tokenizer_config.json")
    config, more = read_json(folder / "config.json"), read_json(folder / "generation_config.json")

    def named(key: str) -> int | None:
        text = options.get(key)
        text = text.get("content") if isinstance(text, dict) else text
        found: int | None = full.token_to_id(text) if isinstance(text, str) else None
        return found

    ends: set[int] = set()
    for stated_ends in (config.get("eos_token_id"), more.get("eos_token_id")):
        each = stated_ends if isinstance(stated_ends, list) else [stated_ends]
        ends |= {n for n in each if isinstance(n, int) and n in range(1 << 32)}
    if (end := named("eos_token")) is not None:
        ends.add(end)
    adds_bos = options.get("add_bos_token")
    if adds_bos is None:
        probe = full.encode("a", add_special_tokens=True).ids
        adds_bos = bool(probe) and probe[0] == named("bos_token")
    return Tokenizer(full, plain, specials, is_byte_level, named("bos_token"), ends, bool(adds_bos))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if there is none. Raises FileFormatError."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        json.dumps(found, ensure_ascii=False).encode()  # half of a character is no text
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: no JSON object")
    return found
