"""Text in progress: its tokens, how the next one is chosen, and why and when it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tiny_llm.lookup import Lookup
from tiny_llm.sampling import Sampler, Sampling
from tiny_llm.tokenizer import TextStream, Tokenizer

__all__ = ["Options", "Piece", "Speed", "Text"]

Array = numpy.ndarray[Any, Any]


def never() -> bool:
    """False: no end is asked for."""
    return False


@dataclass(frozen=True)
class Options:
    """Options of a text: how it is written, and where it ends, see `LanguageModel.generate`."""

    sampling: Sampling
    limit: int | None = None
    stop: Sequence[str] = ()
    until: Callable[[], bool] = never
    speculate: bool = False


@dataclass(frozen=True)
class Speed:
    """Counts and seconds of one text. `reused` tokens of the prompt were in the cache.

    Of `drafted` tokens, which speculation proposed, `accepted` became text.
    """

    prompt: int
    reused: int
    prompt_seconds: float
    generated: int
    seconds: float
    drafted: int = 0
    accepted: int = 0

    def __str__(self) -> str:
        first = rate(self.prompt - self.reused, self.prompt_seconds)
        then = rate(self.generated - 1, self.seconds)  # the first is the prompt's
        guessed = f", {self.accepted} of {self.drafted} drafted accepted" if self.drafted else ""
        return (
            f"prompt {self.prompt} tokens ({self.reused} reused), {first} tokens/s; "
            f"generated {self.generated}, {then} tokens/s{guessed}"
        )


@dataclass(frozen=True)
class Piece:
    """Some text, and in the last piece the reason of the end, see `LanguageModel.generate`."""

    text: str
    token: int | None = None
    reason: str | None = None
    speed: Speed | None = None


class Text:
    """One text: prompt and what follows. `reason` is None until it ends."""

    def __init__(
        self, tokenizer: Tokenizer, ids: list[int], options: Options, context: int, reused: int
    ) -> None:
        self.ids, self.options, self.context, self.reused = ids, options, context, reused
        self.reason = "length" if options.limit is not None and options.limit < 1 else None
        self._tokenizer = tokenizer
        self._sampler = Sampler(options.sampling)
        self._stream = TextStream(tokenizer, options.stop)
        self._lookup = Lookup(ids) if options.speculate else None
        self._prompt = len(ids)
        self._count = 0
        self._began = self._first = time.perf_counter()

    def draft(self) -> list[int]:
        """Tokens that may come next; none where there is nothing to go by."""
        if self._lookup is None:
            return []
        left = self.context - len(self.ids)
        if self.options.limit is not None:
            left = min(left, self.options.limit - self._count)
        return self._lookup.draft(left - 1)

    def checked(self, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were those that the model chose."""
        assert self._lookup is not None
        self._lookup.learn(drafted, accepted)

    def take(self, scores: Array) -> Piece | None:
        """Choose the next token; None if it ends the text, and is not shown."""
        if not self._count:
            self._first = time.perf_counter()
        token = self._sampler.choose(scores, self.ids)
        self._count += 1
        if token in self._tokenizer.ends:
            self.reason = "stop"
            return None
        self.ids.append(token)
        if self._lookup is not None:
            self._lookup.add(token)
        text = self._stream.add(token)
        if self._stream.stopped:
            self.reason = "stop"
        elif self.options.limit is not None and self._count >= self.options.limit:
            self.reason = "length"
        elif len(self.ids) >= self.context:
            self.reason = "context"
        return Piece(text, token)

    def last(self) -> Piece:
        """The piece that ends it."""
        now = time.perf_counter()
        first = self._first if self._count else now
        drafted, accepted = self._lookup.counts if self._lookup is not None else (0, 0)
        speed = Speed(
            self._prompt,
            self.reused,
            first - self._began,
            self._count,
            now - first,
            drafted,
            accepted,
        )
        return Piece(self._stream.end(), None, self.reason, speed)


def rate(tokens: int, seconds: float) -> str:
    """Tokens in a second, for people."""
    return f"{tokens / seconds:.1f}" if tokens > 0 and seconds > 0 else "?"
