"""Batches that texts enter and leave at any step (continuous batching): texts that are written side
by side, a token of each in one step.

A text joins when a lane of the cache is free, and leaves when it ends. Its prompt is computed in
parts between the steps of the others, which so wait for one part at most. Weights are read once for
a step, whatever the number of texts: that is what batching gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tiny_llm.model import Lane, LanguageModel
from tiny_llm.text import Options, Piece, Text

__all__ = ["Batch"]


class Batch:
    """Texts in progress of one model. All methods are called in one thread."""

    def __init__(self, model: LanguageModel, speculate: bool = False) -> None:
        self.model, self.speculate = model, speculate
        self._texts: dict[Text, Lane] = {}
        self._last_prompt: Text | None = None

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, ids: Sequence[int], options: Options) -> Text | None:
        """A text that begins now; None where all lanes are taken. Raises ArgumentError."""
        self.model.check(ids)
        lane = self.model.take_lane(ids, options.sampling)
        if lane is None:
            return None
        try:
            options = replace(options, speculate=self.speculate)
            text = Text(
                self.model.tokenizer, list(ids), options, self.model.context, len(lane.held)
            )
        except BaseException:
            self.model.free_lane(lane)
            raise
        self._texts[text] = lane
        return text

    def drop(self, text: Text) -> None:
        """End a text without a piece."""
        self.model.free_lane(self._texts.pop(text))

    def step(self) -> Iterator[tuple[Text, Piece]]:
        """Pieces of one step: of a part of one prompt, and a token of each text past its prompt.

        A text whose last piece came has left.
        """
        yield from self._ended()
        alone = next(iter(self._texts.items())) if len(self._texts) == 1 else None
        if alone is not None:
            text, lane = alone
            for piece in self.model.continued(text, lane):
                yield text, piece
        else:
            yield from self._prompt_part()
            yield from self._tokens()
        yield from self._ended()

    def _prompt_part(self) -> Iterator[tuple[Text, Piece]]:
        """A part of a prompt: of the texts that have not all of theirs, by turns."""
        waiting = [t for t, lane in self._texts.items() if len(lane.held) < len(t.ids) - 1]
        if not waiting:
            return
        at = waiting.index(self._last_prompt) + 1 if self._last_prompt in waiting else 0
        text = self._last_prompt = waiting[at % len(waiting)]
        for piece in self.model.continued(text, self._texts[text]):
            yield text, piece

    def _tokens(self) -> Iterator[tuple[Text, Piece]]:
        """A token of each text that lacks the keys of its last token alone."""
        ready = [
            text
            for text, lane in self._texts.items()
            if text.reason is None and len(lane.held) == len(text.ids) - 1
        ]
        if not ready:
            return
        if len(ready) == 1:
            scores = [self.model.advance(self._texts[ready[0]], ready[0].ids)]
        else:
            scores = self.model.together([(self._texts[text], text.ids[-1]) for text in ready])
        for text, row in zip(ready, scores, strict=True):
            if (piece := text.take(row)) is not None:
                yield text, piece

    def _ended(self) -> Iterator[tuple[Text, Piece]]:
        """The last pieces of texts that ended, or that somebody asked to end."""
        for text in list(self._texts):
            if text.reason is None and text.options.until():
                text.reason = "ended"
            if text.reason is not None:
                last = text.last()
                self.drop(text)
                yield text, last
