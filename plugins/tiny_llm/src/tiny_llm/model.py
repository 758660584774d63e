"""Language model: a file or folder, loaded, and texts that it writes token by token."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy

from tiny_llm.decoder import Cache, Decoder
from tiny_llm.sampling import Sampling
from tiny_llm.template import CHATML, ChatTemplate
from tiny_llm.text import Options, Piece, Speed, Text, never
from tiny_llm.tokenizer import Tokenizer
from tinycore import Device, Tensor, TinyJit, Variable
from tinycore.errors import ArgumentError
from tinycore.nn.state import get_parameters
from tinycore.plugin import lock

__all__ = ["Lane", "LanguageModel", "Piece", "Speed"]

Array = numpy.ndarray[Any, Any]

CHUNKS: Final = (1, 4, 8, 32, 64, 128)
"""Numbers of tokens that are computed at once: a prompt is cut, and its last part padded."""
SIDE_BY_SIDE: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of texts that are computed at once, by the greatest lane: few, as each is captured."""
LEAST_REACH: Final = 256
FIRST_PLACES: Final = 512
"""Places of a new cache, all lanes together: while one grows, there are two."""
UNSTATED_CONTEXT: Final = 4096
"""The context unless given: what models were trained for may not fit in memory."""


@dataclass(eq=False)
class Lane:
    """A place for one text in the cache, and the tokens whose keys and values it has."""

    number: int
    held: list[int] = field(default_factory=list)
    is_taken: bool = False
    exact: int = 0
    """Length of the prefix that was computed in whole parts of a prompt, as in an empty lane.
    Products of many rows add up in another order than those of few."""

    def shorten(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        del self.held[count:]
        self.exact = min(self.exact, whole_parts(count))


class LanguageModel:
    """A decoder with its tokenizer, and a cache of the texts that it saw last.

    So many texts are written at the same time as the cache has lanes, one unless `lanes` says
    otherwise; a further thread waits. `context` is the greatest number of tokens of a text, prompt
    and answer together.
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
        lanes: int = 1,
    ) -> None:
        trained = decoder.about.context
        if context is not None and not 1 <= context <= trained:
            raise ArgumentError(f"context must be from 1 to {trained}, not {context}")
        if not 1 <= lanes <= SIDE_BY_SIDE[-1]:
            raise ArgumentError(f"lanes must be from 1 to {SIDE_BY_SIDE[-1]}, not {lanes}")
        self.context = context or min(trained, UNSTATED_CONTEXT)
        self._decoder, self.tokenizer, self.template, self.name = decoder, tokenizer, template, name
        self.device = device
        self.places = (-(-self.context // CHUNKS[-1]) + 1) * CHUNKS[-1]
        """The most places of a lane: a padded part may end behind the context."""
        places = reach_for(FIRST_PLACES // lanes, self.places)
        self.cache = Cache.empty(decoder.about, places, cache_dtype, device, lanes)
        self.lanes = [Lane(number) for number in range(lanes)]
        self.lock = lock()
        """Held for one call of the decoder."""
        self._freed = threading.Condition(lock())
        self._lane = Variable("lane", 0, max(1, lanes - 1))
        self._steps: dict[tuple[int, int, bool], TinyJit[Any, Tensor]] = {}
        """Captures by lanes, tokens of each, and whether one score is wanted; each by reach."""
        self._weights, self._values = get_parameters(decoder), list[Any]()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        cache_dtype: str = "float16",
        device: str | None = None,
        lanes: int = 1,
    ) -> LanguageModel:
        """The model of a GGUF file, or of a folder with config.json and weights.

        Raises FileFormatError for files that break their format, UnsupportedError for families
        that are not known, and OSError.
        """
        from tiny_llm.files import opened  # noqa: PLC0415  which imports this module's neighbors

        decoder, tokenizer, source, name = opened(Path(path), device)
        if source is None and "<|im_start|>" in tokenizer.specials:
            source = CHATML
        template = None if source is None else ChatTemplate(source, tokenizer, str(path))
        return cls(decoder, tokenizer, template, context, cache_dtype, device, name, lanes)

    @property
    def decoder(self) -> Decoder:
        """The decoder. Its weights may be assigned to; another decoder takes another model, as
        captures and the cache are of this one."""
        return self._decoder

    # --- lanes

    def take_lane(self, ids: Sequence[int], sampling: Sampling | None = None) -> Lane | None:
        """The free lane that has the most of a text, now taken; None where all are taken.

        What follows in the lane is forgotten. With a seed, so is what was not computed as if the
        lane were empty, so that the seed draws the same text. `free_lane` gives the lane back.
        """
        with self._freed:
            free = [lane for lane in self.lanes if not lane.is_taken]
            if not free:
                return None
            # of equal ones the first: texts that lie side by side are computed together
            lane = max(free, key=lambda each: (in_common(each.held, ids), -each.number))
            lane.is_taken = True
            lane.shorten(in_common(lane.held, ids))
            if sampling is not None and sampling.seed is not None:
                lane.shorten(lane.exact)
            return lane

    def free_lane(self, lane: Lane) -> None:
        """Give a lane back. It keeps its tokens for the next text."""
        with self._freed:
            lane.is_taken = False
            self._freed.notify()

    @contextmanager
    def _lane_for(self, ids: Sequence[int], sampling: Sampling | None = None) -> Iterator[Lane]:
        """A lane, as soon as one is free."""
        with self._freed:
            while (lane := self.take_lane(ids, sampling)) is None:
                self._freed.wait()
        try:
            yield lane
        finally:
            self.free_lane(lane)

    # --- scores

    def _computed(
        self, rows: Array, starts: Sequence[int], last: int | None, first: int, end: int
    ) -> Array:
        """The scores of rows of tokens (n, m) that begin at `starts`, in the lanes from `first`.

        Attention looks at all places before `end`. With `last`, the scores after that token alone.
        """

        def tensor(numbers: Any) -> Tensor:
            return Tensor(numpy.array(numbers, numpy.int32), device=self.device)

        lane = self._lane.bind(first) if len(rows) == 1 < len(self.lanes) else first
        self._make_room(max(starts) + rows.shape[1])
        reach = reach_for(end, self.cache.places)
        which = None if last is None else tensor([last])
        kind = (*rows.shape, last is not None)
        if (values := [weight.uop for weight in self._weights]) != self._values:
            self._steps.clear()  # captures are of the values that weights had
            self._values = values
        if kind not in self._steps:
            decoder, cache = self._decoder, self.cache
            # the decoder is frozen: there is nothing else to guard; of what an interrupt leaves in
            # the cache, no lane has the rows
            self._steps[kind] = TinyJit(
                lambda tokens, *others: decoder(tokens, cache, *others), guards=False, atomic=False
            )
        step = self._steps[kind]
        before = step.captured
        found: Array = step(tensor(rows), tensor(starts), which, reach, lane).numpy()
        if step.captured is not before:
            self._free_unused()
        return found

    def _make_room(self, end: int) -> None:
        """Give lanes places up to `end`: a cache for the whole context might never be filled."""
        if end > self.cache.places:
            self._steps.clear()  # they write to the cache that there was
            self.cache = self.cache.grown(reach_for(end, self.places))
            self._free_unused()

    def _free_unused(self) -> None:
        """Give back what first calls and a smaller cache leave: replays have no use for it."""
        Device[self.device or Device.DEFAULT].allocator.free_cache()

    def scores(self, ids: Sequence[int]) -> Array:
        """The scores of the token after these: (vocabulary,).

        What they have in common with the cache is not computed again.
        """
        self.check(ids)
        with self._lane_for(ids) as lane:
            while True:  # its last token is always left to be computed
                found = self.advance(lane, ids)
                if len(lane.held) == len(ids):
                    return found

    def all_scores(self, ids: Sequence[int]) -> Iterator[Array]:
        """The scores of the token after each of these, in parts (m, vocabulary), from the first.

        The cache is not used for what it has; it then has these tokens.
        """
        self.check(ids)
        with self._lane_for(()) as lane:
            while rest := ids[len(lane.held) :]:
                yield self._part(lane, rest[: CHUNKS[-1]])

    def advance(self, lane: Lane, ids: Sequence[int]) -> Array:
        """Compute the next part of a text that a lane does not have: the scores after it."""
        found: Array = self._part(lane, ids[len(lane.held) :][: CHUNKS[-1]], last_alone=True)[0]
        return found

    def _part(self, lane: Lane, part: Sequence[int], *, last_alone: bool = False) -> Array:
        """The scores after tokens that follow what a lane has: (m or 1, vocabulary)."""
        row = padded(part)
        with self.lock:
            start = len(lane.held)
            last = len(part) - 1 if last_alone else None
            found = self._computed(row[None], [start], last, lane.number, start + len(row))
            if start == lane.exact and len(part) == CHUNKS[-1]:
                lane.exact += len(part)
            lane.held += part
        return found[: len(part)]

    def together(self, texts: Sequence[tuple[Lane, int]]) -> list[Array]:
        """The scores after one more token of each of several texts, computed in one step."""
        highest = max(lane.number for lane, _ in texts)
        count = min(next(size for size in SIDE_BY_SIDE if size > highest), len(self.lanes))
        rows = numpy.zeros((count, 1), numpy.int32)
        for lane, token in texts:
            rows[lane.number] = token
        with self.lock:
            # other lanes compute something behind what they hold, where it is overwritten
            starts = [len(lane.held) for lane in self.lanes[:count]]
            end = 1 + max(len(lane.held) for lane, _ in texts)
            found = self._computed(rows, starts, None, 0, end)
            for lane, token in texts:
                lane.held.append(token)
        return [found[lane.number] for lane, _ in texts]

    def check(self, ids: Sequence[int]) -> None:
        """Raises ArgumentError for tokens that are no prompt here."""
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
        speculate: bool = False,
    ) -> Iterator[Piece]:
        """Pieces of the text that follows a prompt: a text, tokens, or messages of a talk.

        Ends with a piece that has a reason: "stop" at a token that ends a text or at one of the
        `stop` strings, which are not shown, "length" after `limit` tokens, "context" when the
        context is full, "ended" when `until`, asked before each part of the work, is true. With
        `speculate`, tokens that the text repeats are computed several at a time (`lookup`). Raises
        ArgumentError for a prompt that does not fit in the context.
        """
        ids = self.prompt(given)
        self.check(ids)
        options = Options(sampling or Sampling(), limit, stop, until or never, speculate)
        with self._lane_for(ids, options.sampling) as lane:
            text = Text(self.tokenizer, ids, options, self.context, len(lane.held))
            while text.reason is None:
                if options.until():
                    text.reason = "ended"
                    break
                yield from self.continued(text, lane)
            yield text.last()

    def continued(self, text: Text, lane: Lane) -> Iterator[Piece]:
        """The pieces of one more part of the work: a part of the prompt, or a token, or several."""
        if len(lane.held) == len(text.ids) - 1 and (draft := text.draft()):
            yield from self._checked(text, lane, draft)
            return
        scores = self.advance(lane, text.ids)
        if len(lane.held) == len(text.ids) and (piece := text.take(scores)) is not None:
            yield piece

    def _checked(self, text: Text, lane: Lane, draft: list[int]) -> Iterator[Piece]:
        """The tokens of a draft that the model chooses, and the one after them."""
        before = len(text.ids)
        rows = self._part(lane, [text.ids[-1], *draft])
        pieces, accepted = [], 0
        for scores, guess in zip(rows, [*draft, None], strict=True):
            piece = text.take(scores)
            if piece is not None:
                pieces.append(piece)
            if piece is None or text.reason is not None or piece.token != guess:
                break
            accepted += 1
        lane.shorten(before + accepted)
        text.checked(len(draft), accepted)
        yield from pieces


def in_common(held: Sequence[int], ids: Sequence[int]) -> int:
    """Length of the common prefix of a lane and a text, without the last token of the text."""
    most = max(0, min(len(held), len(ids) - 1))
    return next((n for n in range(most) if held[n] != ids[n]), most)


def whole_parts(count: int) -> int:
    """Number of tokens in the whole parts of a prompt of `count`."""
    return count // CHUNKS[-1] * CHUNKS[-1]


def padded(tokens: Sequence[int]) -> Array:
    """The tokens, and zeros up to a number that is computed at once."""
    size = next(size for size in CHUNKS if size >= len(tokens))
    return numpy.array([*tokens, *[0] * (size - len(tokens))], numpy.int32)


def reach_for(places: int, most: int) -> int:
    """The places that attention looks at: a power of two, so that few captures are made."""
    reach = LEAST_REACH
    while reach < places:
        reach *= 2
    return min(reach, most)
