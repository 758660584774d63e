"""Language model: a file or folder, loaded, and texts that it writes token by token."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy

from tiny_llm.decoder import Cache, Decoder
from tiny_llm.sampling import Sampler, Sampling
from tiny_llm.template import CHATML, ChatTemplate
from tiny_llm.tokenizer import TextStream, Tokenizer
from tinycore import Tensor, TinyJit, Variable
from tinycore.errors import ArgumentError
from tinycore.plugin import lock

__all__ = ["LanguageModel", "Piece", "Speed"]

Array = numpy.ndarray[Any, Any]

CHUNKS: Final = (1, 8, 32, 128)
"""Numbers of tokens that are computed at once: a prompt is cut, and its last part padded."""
LEAST_REACH: Final = 256
UNSTATED_CONTEXT: Final = 4096
"""The context unless given: what models were trained for may not fit in memory."""


@dataclass(frozen=True)
class Speed:
    """Counts and seconds of one text. `reused` tokens of the prompt were in the cache."""

    prompt: int
    reused: int
    prompt_seconds: float
    generated: int
    seconds: float

    def __str__(self) -> str:
        first = rate(self.prompt - self.reused, self.prompt_seconds)
        then = rate(self.generated - 1, self.seconds)  # the first is the prompt's
        return (
            f"prompt {self.prompt} tokens ({self.reused} reused), {first} tokens/s; "
            f"generated {self.generated}, {then} tokens/s"
        )


@dataclass(frozen=True)
class Piece:
    """Some text, and in the last piece the reason of the end, see `LanguageModel.generate`."""

    text: str
    token: int | None = None
    reason: str | None = None
    speed: Speed | None = None


class LanguageModel:
    """A decoder with its tokenizer, and a cache of the text that it saw last.

    One text is generated at a time; a second thread waits. `context` is the greatest number of
    tokens of a text, prompt and answer together.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        context: int | None = None,
        cache_dtype: str = "float16",
        device: str | None = None,
        name: str = "model",
    ) -> None:
        trained = decoder.about.context
        if context is not None and not 1 <= context <= trained:
            raise ArgumentError(f"context must be from 1 to {trained}, not {context}")
        self.context = context or min(trained, UNSTATED_CONTEXT)
        self.decoder, self.tokenizer, self.template, self.name = decoder, tokenizer, template, name
        self.device = device
        places = reach_for(self.context + CHUNKS[-1], 1 << 30)
        self.cache = Cache.empty(decoder.about, places, cache_dtype, device)
        self.held: list[int] = []
        """The tokens whose keys and values the cache has."""
        self.lock = lock()
        self._position = Variable("position", 0, self.context)
        self._step = TinyJit(self._scores)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        cache_dtype: str = "float16",
        device: str | None = None,
    ) -> LanguageModel:
        """The model of a GGUF file, or of a folder with config.json and safetensors.

        Raises FileFormatError for files that break their format, UnsupportedError for families
        that are not known, and OSError.
        """
        from tiny_llm.files import opened  # noqa: PLC0415  which imports this module's neighbors

        decoder, tokenizer, source, name = opened(Path(path), device)
        template = None
        if source is not None:
            template = ChatTemplate(source, tokenizer, str(path))
        elif "<|im_start|>" in tokenizer.specials:
            template = ChatTemplate(CHATML, tokenizer, str(path))
        return cls(decoder, tokenizer, template, context, cache_dtype, device, name)

    # --- scores

    def _scores(self, tokens: Tensor, last: Tensor, position: Any, reach: int) -> Tensor:
        return self.decoder(tokens, self.cache, position, last, reach)

    def scores(self, ids: Sequence[int]) -> Array:
        """The scores of the token after these: (vocabulary,).

        What they have in common with the cache is not computed again.
        """
        self._check(ids)
        found = self._advance(ids, never)
        assert found is not None
        return found

    def _advance(self, ids: Sequence[int], until: Callable[[], bool]) -> Array | None:
        """The scores after tokens; None if `until` becomes true before they are computed."""
        del self.held[self._reused(ids) :]
        while not until():
            found = self._chunk(ids[len(self.held) :])
            if len(self.held) == len(ids):
                return found
        return None

    def _reused(self, ids: Sequence[int]) -> int:
        """Length of the common prefix of these tokens and the cache, without the last token."""
        most = min(len(self.held), len(ids) - 1)
        return next((n for n in range(most) if self.held[n] != ids[n]), most)

    def _chunk(self, rest: Sequence[int]) -> Array:
        size = next((size for size in CHUNKS if size >= len(rest)), CHUNKS[-1])
        real, start = list(rest[:size]), len(self.held)
        tokens = Tensor(
            numpy.array(real + [0] * (size - len(real)), numpy.int32), device=self.device
        )
        last = Tensor(numpy.array([len(real) - 1], numpy.int32), device=self.device)
        places = int(self.cache.keys[0].shape[1])
        reach = reach_for(start + size, places)
        found: Array = self._step(tokens, last, self._position.bind(start), reach).numpy()[0]
        self.held += real
        return found

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise ArgumentError("the prompt has no tokens")
        if len(ids) > self.context:
            raise ArgumentError(
                f"the prompt has {len(ids)} tokens; the context takes {self.context}"
            )
        if not all(0 <= token < self.decoder.about.vocabulary for token in ids):
            raise ArgumentError(f"tokens are from 0 to {self.decoder.about.vocabulary - 1}")

    # --- texts

    def prompt(self, given: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of a text, of the messages of a talk, or those given."""
        if isinstance(given, str):
            return self.tokenizer.encode(given)
        if all(isinstance(each, int) for each in given):
            return list(given)  # type: ignore[arg-type]
        if self.template is None:
            raise ArgumentError(f"{self.name} has no chat template; give a text to continue")
        return self.template.tokens(given)  # type: ignore[arg-type]

    def generate(
        self,
        given: str | Sequence[int] | Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        limit: int | None = None,
        stop: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """Pieces of the text that follows a prompt: a text, tokens, or messages of a talk.

        Ends with a piece that has a reason: "stop" at a token that ends a text or at one of the
        `stop` strings, which are not shown, "length" after `limit` tokens, "context" when the
        context is full, "ended" when `until`, asked before each part of the work, is true. Raises
        ArgumentError for a prompt that does not fit in the context.
        """
        ids = self.prompt(given)
        self._check(ids)
        with self.lock:
            sampler = Sampler(sampling or Sampling())
            yield from self._generated(ids, sampler, limit, stop, until or never)

    def _generated(
        self,
        ids: list[int],
        sampler: Sampler,
        limit: int | None,
        stop: Sequence[str],
        until: Callable[[], bool],
    ) -> Iterator[Piece]:
        stream, count, reused, prompt = (
            TextStream(self.tokenizer, stop),
            0,
            self._reused(ids),
            len(ids),
        )
        began = first = time.perf_counter()
        reason = "length" if limit is not None and limit < 1 else None
        while reason is None:
            scores = self._advance(ids, until)
            if scores is None:
                reason = "ended"
                break
            if not count:
                first = time.perf_counter()
            token = sampler.choose(scores, ids)
            count += 1
            if token in self.tokenizer.ends:
                reason = "stop"
                break
            ids.append(token)
            text = stream.add(token)
            if stream.stopped:
                reason = "stop"
            elif limit is not None and count >= limit:
                reason = "length"
            elif len(ids) >= self.context:
                reason = "context"
            yield Piece(text, token)
        now = time.perf_counter()
        yield Piece(
            stream.end(), None, reason, Speed(prompt, reused, first - began, count, now - first)
        )


def never() -> bool:
    """False: no end is asked for."""
    return False


def rate(tokens: int, seconds: float) -> str:
    """Tokens in a second, for people."""
    return f"{tokens / seconds:.1f}" if tokens > 0 and seconds > 0 else "?"


def reach_for(places: int, most: int) -> int:
    """The places that attention looks at: a power of two, so that few captures are made."""
    reach = LEAST_REACH
    while reach < places:
        reach *= 2
    return min(reach, most)
